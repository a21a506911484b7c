"""The statuses of all tables: each version is read once, and an input after the tables that are computed from it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the tables of this test are written with pyarrow")

from ariane import tables
from ariane.reports.tables import pipeline_status
from ariane.tables import CLOCKS, JOURNEYS, TRACE_EVENTS, TableSchema, lineage
from ariane.tables.table_format import TableVersion
from ariane.tables.table_store import read_version
from tables_on_disk import put

NOW_MS = 1_700_000_000_000


@pytest.fixture
def home(tmp_path: Path) -> Path:
    put(tmp_path, TRACE_EVENTS, [], as_of_ms=NOW_MS)
    put(tmp_path, CLOCKS, [], applied={"trace_events": 1})
    put(tmp_path, JOURNEYS, [], applied={"trace_events": 1, "clocks": 1})
    return tmp_path


def test_the_statuses_are_those_of_single_tables(home: Path) -> None:
    statuses = pipeline_status.table_statuses(home, NOW_MS)
    assert [status.table for status in statuses] == [*tables.ALL_TABLES]
    for table, version, fresh in statuses:
        assert version == read_version(home, table)
        assert fresh == pipeline_status.freshness(home, table, NOW_MS)


def test_each_version_is_read_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: Counter[str] = Counter()

    def read(home: Path, table: TableSchema) -> TableVersion | None:
        reads[table.name] += 1
        return read_version(home, table)

    monkeypatch.setattr(pipeline_status, "read_version", read)
    pipeline_status.table_statuses(home, NOW_MS)
    assert reads == dict.fromkeys((table.name for table in tables.ALL_TABLES), 1)


def test_a_table_that_is_published_meanwhile_is_not_outdated(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(home: Path, table: TableSchema) -> TableVersion | None:
        if table is CLOCKS:  # the pipeline publishes both before the versions are read further
            put(home, TRACE_EVENTS, [], as_of_ms=NOW_MS)
            put(home, CLOCKS, [], applied={"trace_events": 2})
        return read_version(home, table)

    monkeypatch.setattr(pipeline_status, "read_version", read)
    (clocks,) = (state for state in pipeline_status.table_statuses(home, NOW_MS) if state.table is CLOCKS)
    assert clocks.version is not None
    assert clocks.version.version == 2
    assert clocks.freshness.is_complete


def test_tables_are_listed_after_their_inputs() -> None:
    names = [table.name for table in tables.ALL_TABLES]
    for table in tables.ALL_TABLES:
        inputs = {name for name in lineage.input_tables(table) if not name.startswith("@")}
        assert inputs <= set(names[: names.index(table.name)])
