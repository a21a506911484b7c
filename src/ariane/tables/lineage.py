"""Where the columns of the tables come from: their sources down to the topics, as text and as OpenLineage events.

The topics that the pipeline reads are named `@traces`, `@samples` and `@records` (TOPICS). A column is as fresh as the oldest of
the appended tables that it is computed from (`appended_tables`), so the freshness of a column is declared by its sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from ariane.tables import ALL_TABLES
from ariane.tables.table import ColumnSchema, TableSchema

TOPICS = {
    "@traces": "message traces of clients (RMQ_SYS_TRACE_TOPIC)",
    "@samples": "samples of the metrics collector",
    "@records": "stored records of every topic that is read",
}
TABLES: Mapping[str, TableSchema] = {table.name: table for table in ALL_TABLES}

PRODUCER = "https://pypi.org/project/ariane/"
SPECIFICATION = "https://openlineage.io/spec"


def input_tables(table: TableSchema) -> tuple[str, ...]:
    """Return the names of the tables and topics that a table is computed from, sorted."""
    return tuple(sorted({dataset_of(source) for column in table.columns for source in column.sources}))


def dataset_of(source: str) -> str:
    """Return the table or topic of a source."""
    return source.partition(".")[0]


def appended_tables(table: TableSchema, column: ColumnSchema) -> tuple[str, ...]:
    """Return the names of the appended tables that a column comes from, sorted: it is as fresh as the oldest of them."""
    if any(source.startswith("@") for source in column.sources):
        return (table.name,)
    return tuple(sorted({name for source in column.sources for name in appended_tables(*_column_of(source))}))


def _column_of(source: str) -> tuple[TableSchema, ColumnSchema]:
    dataset, _, name = source.partition(".")
    table = TABLES[dataset]
    return table, next(column for column in table.columns if column.name == name)


def describe(table: TableSchema) -> list[dict[str, Any]]:
    """Return the contract of each column as JSON values."""
    return [
        {
            "table": table.name,
            "schema": table.schema,
            "column": column.name,
            "type": column.type,
            "nullable": column.is_nullable,
            "unit": column.unit or None,
            "meaning": column.description or None,
            "sources": column.sources,
            "fresh_as": appended_tables(table, column),
        }
        for column in table.columns
    ]


def markdown_contract(table: TableSchema) -> str:
    """Return the contract of a table as a section of a Markdown page."""
    rows = []
    for column in table.columns:
        kind = f"`{column.type}`" if column.is_nullable else f"`{column.type} NOT NULL`"
        fresh, sources = (
            ", ".join(appended_tables(table, column)),
            ", ".join(f"`{source}`" for source in column.sources),
        )
        rows.append(f"| `{column.name}` | {kind} | {column.unit} | {column.description} | {sources} | {fresh} |\n")
    head = "| column | type | unit | meaning | from | fresh as |\n|---|---|---|---|---|---|\n"
    return f"## {table.name}\n\n{table.description} Schema {table.schema}.\n\n{head}{''.join(rows)}"


def openlineage_event(table: TableSchema, home: str, event_time: str) -> dict[str, Any]:
    """Return an OpenLineage DatasetEvent with the facets schema, columnLineage, version and documentation.

    Args:
        table: Table.
        home: Absolute directory of the tables, or their URI in an object store.
        event_time: Time of the event, ISO 8601.
    """
    fields = [
        {"name": column.name, "type": column.type, "description": column.description, "ordinal_position": number}
        for number, column in enumerate(table.columns, 1)
    ]
    lineage = {column.name: {"inputFields": _input_fields(column.sources, home)} for column in table.columns}
    facets = {
        "schema": _facet("SchemaDatasetFacet", "1-2-0", fields=fields),
        "columnLineage": _facet("ColumnLineageDatasetFacet", "1-2-0", fields=lineage),
        "version": _facet("DatasetVersionDatasetFacet", "1-0-1", datasetVersion=str(table.schema)),
        "documentation": _facet("DocumentationDatasetFacet", "1-1-0", description=table.description),
    }
    return {
        "eventTime": event_time,
        "producer": PRODUCER,
        "schemaURL": f"{SPECIFICATION}/2-0-2/OpenLineage.json#/$defs/DatasetEvent",
        "dataset": {**_dataset(table.name, home), "facets": facets},
    }


def _facet(name: str, version: str, **values: Any) -> dict[str, Any]:
    return {
        "_producer": PRODUCER,
        "_schemaURL": f"{SPECIFICATION}/facets/{version}/{name}.json#/$defs/{name}",
        **values,
    }


def _input_fields(sources: Iterable[str], home: str) -> list[dict[str, str]]:
    return [{**_dataset(dataset_of(source), home), "field": source.partition(".")[2]} for source in sources]


def _dataset(name: str, home: str) -> dict[str, str]:
    """Return the identity of a table or topic by OpenLineage's rules for names."""
    if name.startswith("@"):
        return {"namespace": "rocketmq", "name": name[1:]}
    store = urlsplit(home)
    if store.scheme:
        path = f"{store.path}/{name}"  # of a file; keys of objects have no slash at the beginning
        return {
            "namespace": f"{store.scheme}://{store.netloc}", "name": path if store.scheme == "hdfs" else path.lstrip("/")
        }  # fmt: skip
    return {"namespace": "file", "name": f"{home}/{name}"}
