"""docs/journeys.md describes every column of its tables with the text of the table definitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from ariane.tables import CLOCKS, JOURNEYS, MESSAGE_KEYS, TableSchema, markdown_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "journeys.md"


@pytest.mark.parametrize("table", [CLOCKS, JOURNEYS, MESSAGE_KEYS], ids=lambda table: table.name)
def test_the_page_matches_the_table_definition(table: TableSchema) -> None:
    assert markdown_page(table) in PAGE.read_text(encoding="utf-8"), (
        f"print ariane.tables.markdown_page of {table.name} into it"
    )
