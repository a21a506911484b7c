"""Tables are contracts with their readers: a change that breaks a reader needs a new version of the schema."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ariane.pipeline import jobs
from ariane.tables import ALL_TABLES, TableSchema, lineage
from ariane.tables.table import ColumnSchema

CONTRACTS = Path(__file__).resolve().parents[1] / "data" / "table_contracts.json"
DOCS = Path(__file__).resolve().parents[2] / "docs"
RECORD = "PYTHONPATH=src python tests/style/test_table_contracts.py records the present ones in tests/data/table_contracts.json"


def contract_of(table: TableSchema) -> dict[str, Any]:
    """Return what readers of a table rely on: its version, and type, nullability and unit of each column."""
    columns = {column.name: [column.type, column.is_nullable, column.unit] for column in table.columns}
    return {"schema": table.schema, "columns": columns}


def breaks(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the changes between two contracts of a table that break a reader."""
    found = []
    for name, (kind, is_nullable, unit) in before["columns"].items():
        if name not in after["columns"]:
            found.append(f"column {name} was removed")
            continue
        new_kind, now_nullable, new_unit = after["columns"][name]
        if new_kind != kind:
            found.append(f"type of {name} changed from {kind} to {new_kind}")
        if now_nullable and not is_nullable:
            found.append(f"{name} can be null now")
        if new_unit != unit:
            found.append(f"unit of {name} changed from {unit or 'none'} to {new_unit or 'none'}")
    return found


@pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.name)
def test_a_change_that_breaks_readers_raises_the_version(table: TableSchema) -> None:
    recorded = json.loads(CONTRACTS.read_text()).get(table.name, {"schema": 0, "columns": {}})
    present = contract_of(table)
    found = breaks(recorded, present)
    assert not found or present["schema"] > recorded["schema"], (
        f"{table.name}: {'; '.join(found)}. Readers rely on schema {recorded['schema']}: keep the column and add another one, or "
        f"raise `schema` of the table in ariane.tables, describe the change in CHANGELOG.md, and record the contract ({RECORD})."
    )
    assert present == recorded, f"{table.name} has changed without breaking readers: record it ({RECORD})"


COLUMNS = {"id": ["STRING", False, ""], "cost_ms": ["BIGINT", True, "ms"]}


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"id": ["STRING", False, ""]}, ["column cost_ms was removed"]),
        (COLUMNS | {"id": ["INT", False, ""]}, ["type of id changed from STRING to INT"]),
        (COLUMNS | {"id": ["STRING", True, ""]}, ["id can be null now"]),
        (COLUMNS | {"cost_ms": ["BIGINT", True, "s"]}, ["unit of cost_ms changed from ms to s"]),
        (COLUMNS | {"cost_ms": ["BIGINT", False, "ms"], "other": ["INT", True, ""]}, []),
    ],
)
def test_breaking_changes_are_found(columns: dict[str, Any], found: list[str]) -> None:
    assert breaks({"schema": 1, "columns": COLUMNS}, {"schema": 1, "columns": columns}) == found


@pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.name)
def test_every_column_has_sources_that_exist(table: TableSchema) -> None:
    names = [name for names in table.sources for name in names.split() if name != "*"]
    assert len(names) == len(set(names)), "a column is listed twice"
    assert set(names) <= set(table.column_names)
    assert set(table.units) <= set(table.column_names)
    for column in table.columns:
        assert column.sources, f"{column.name}: add it to `sources`"
        for source in column.sources:
            dataset, _, name = source.partition(".")
            assert dataset in lineage.TOPICS or name in lineage.TABLES[dataset].column_names, source
        assert lineage.appended_tables(table, column)


@pytest.mark.parametrize(
    "table", [one for job in jobs.JOBS.values() for one in job.incremental_tables], ids=lambda one: one.table.name
)
def test_sources_are_the_inputs_of_the_job(table: Any) -> None:
    assert set(lineage.input_tables(table.table)) == {one.name for one in table.inputs}


@pytest.mark.parametrize("source", [jobs.TRACES, jobs.SAMPLES, jobs.RECORDS], ids=lambda source: source.name)
def test_sources_of_appended_tables_are_columns_that_are_read(source: jobs.TopicSource) -> None:
    read = set(re.findall(r"(\w+) [A-Z]+(?:<[^>]*>)?(?:,|$)", source.schema))
    for table in source.tables:
        topic = {"messages": "@records"}.get(source.name, f"@{source.name}")
        sources = {one for column in table.columns for one in column.sources}
        assert {lineage.dataset_of(one) for one in sources} == {topic}
        unread = {one.partition(".")[2] for one in sources} - read
        # Of a version of the connector without this column.
        assert unread <= {"prepared_transaction_offset"}, table.name


def test_an_openlineage_event_has_the_facets_of_each_column() -> None:
    event = lineage.openlineage_event(lineage.TABLES["clocks"], "/data", "2026-11-23T10:00:00+00:00")
    dataset = event["dataset"]
    assert (dataset["namespace"], dataset["name"]) == ("file", "/data/clocks")
    facets = dataset["facets"]
    assert facets["schema"]["fields"][0] | {"description": ""} == {
        "name": "host", "type": "STRING", "description": "", "ordinal_position": 1,
    }  # fmt: skip
    assert facets["columnLineage"]["fields"]["host"]["inputFields"] == [
        {"namespace": "file", "name": "/data/trace_events", "field": "client_host"}
    ]
    assert facets["version"]["datasetVersion"] == str(lineage.TABLES["clocks"].schema)
    (traces,) = lineage.openlineage_event(lineage.TABLES["trace_events"], "/data", "")["dataset"]["facets"][
        "columnLineage"
    ]["fields"]["type"]["inputFields"]
    assert traces == {"namespace": "rocketmq", "name": "traces", "field": "body"}


def test_a_column_is_as_fresh_as_all_tables_that_it_comes_from() -> None:
    journeys = lineage.TABLES["journeys"]
    fresh = {column.name: lineage.appended_tables(journeys, column) for column in journeys.columns}
    assert fresh["message_id"] == ("trace_events",)
    assert fresh["available_at"] == ("messages",)
    assert fresh["queueing_ms"] == ("messages", "trace_events")


def test_names_and_units_of_a_column_are_read_from_its_definition() -> None:
    table = TableSchema(
        "t",
        "",
        {"a_ms BIGINT NOT NULL": "x", "b MAP<STRING, BIGINT>": ""},
        time_column="a_ms",
        sort_columns=("a_ms",),
        sources={"a_ms": "@traces.body", "*": "t.*"},
    )
    assert table.columns == (
        ColumnSchema("a_ms", "BIGINT", "x", False, "ms", ("@traces.body",)),
        ColumnSchema("b", "MAP<STRING, BIGINT>", "", True, "", ("t.b",)),
    )
    assert table.ddl == "a_ms BIGINT, b MAP<STRING, BIGINT>"


def test_the_page_of_contracts_describes_every_table() -> None:
    page = (DOCS / "table-contracts.md").read_text(encoding="utf-8")
    for table in ALL_TABLES:
        assert lineage.markdown_contract(table) in page, f"docs/table-contracts.md: {RECORD}"


def record() -> None:
    """Record the present contracts, and write their page."""
    text = json.dumps({table.name: contract_of(table) for table in ALL_TABLES}, indent=1)
    # One line per column.
    CONTRACTS.write_text(re.sub(r"\[\s+(.*?),\s+(\w+),\s+(\".*?\")\s+\]", r"[\1, \2, \3]", text) + "\n")
    page = DOCS / "table-contracts.md"
    head = page.read_text(encoding="utf-8").split("\n## ")[0].rstrip()
    page.write_text(
        "\n\n".join([head, *(lineage.markdown_contract(table).rstrip() for table in ALL_TABLES)]) + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    record()
