"""`ariane pipeline explain`: where the columns of a table come from, what they mean, and how fresh they are."""

from __future__ import annotations

import json
import textwrap
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ariane.cli.options import paths, shared_options
from ariane.cli.options.option_kinds import flag_option, json_option
from ariane.clock import SYSTEM_CLOCK
from ariane.errors import UsageError
from ariane.tables.table_home import Home
from ariane.tables.table_store import open_store

if TYPE_CHECKING:
    from ariane.tables import TableSchema

INDENT = "    "


def explain(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="Table, see `ariane pipeline tables`.")],
    home: paths.TablesHome = None,
    as_json: Annotated[bool, json_option("Print one JSON object per column.")] = False,
    as_openlineage: Annotated[
        bool,
        flag_option(
            "--openlineage", "Print an OpenLineage event with the facets of the table.", panel=shared_options.OUTPUT
        ),
    ] = False,
) -> None:
    """Print the meaning, nullability, sources and freshness of each column of a table.

    A column is complete up to the oldest as-of time of the appended tables that it is computed from.
    """
    from ariane.tables import lineage

    if as_json and as_openlineage:
        raise UsageError("--json", "--openlineage", "choose one of them")
    table = lineage.TABLES.get(name)
    if table is None:
        raise UsageError("TABLE", name, "unknown table; list them with `ariane pipeline tables`")
    tables_dir = paths.tables_dir(home)
    now_ms = SYSTEM_CLOCK.now_ms()
    if as_openlineage:
        event_time = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat()
        namespace = str(open_store(tables_dir).directory or tables_dir)
        typer.echo(json.dumps(lineage.openlineage_event(table, namespace, event_time)))
        return
    columns = lineage.describe(table)
    as_of_ms = _as_of_ms(tables_dir, {origin for column in columns for origin in column["fresh_as"]}, now_ms)
    for column in columns:
        times = [as_of_ms[origin] for origin in column["fresh_as"]]
        present = [time for time in times if time is not None]
        column["as_of_ms"] = min(present) if len(present) == len(times) else None
    if as_json:
        for column in columns:
            typer.echo(json.dumps(column))
        return
    _print_text(table, columns, as_of_ms)


def _print_text(table: TableSchema, columns: list[dict[str, Any]], as_of_ms: dict[str, int | None]) -> None:
    from ariane.cli.output import terminal
    from ariane.tables import lineage

    console = terminal.create_console()

    def echo(text: str, indent: str = "") -> None:
        # In a pipe each text is one line.
        wrapped = textwrap.fill(text, console.width, initial_indent=indent, subsequent_indent=indent)
        typer.echo(wrapped if terminal.is_width_bound(console) else indent + text)

    echo(f"{table.name}, schema {table.schema}. {table.description}")
    echo("")
    for column in columns:
        kind = column["type"] if column["nullable"] else f"{column['type']} NOT NULL"
        unit = f", {column['unit']}" if column["unit"] else ""
        echo(f"{column['column']}  {kind}{unit}")
        if column["meaning"]:
            echo(column["meaning"], INDENT)
        echo(f"from {', '.join(column['sources'])}; fresh as {', '.join(column['fresh_as'])}", INDENT)
    echo("")
    for topic, meaning in lineage.TOPICS.items():
        if topic in lineage.input_tables(table):
            echo(f"{topic}: {meaning}")
    for origin, time_ms in as_of_ms.items():
        echo(f"{origin}: {_text_of_time(time_ms)}")


def _as_of_ms(tables_dir: Home, names: set[str], now_ms: int) -> dict[str, int | None]:
    """Return the as-of time of tables by name; None without data."""
    from ariane.reports.tables.pipeline_status import freshness
    from ariane.tables import lineage

    return {name: freshness(tables_dir, lineage.TABLES[name], now_ms).as_of_ms for name in sorted(names)}


def _text_of_time(time_ms: int | None) -> str:
    return (
        "no data yet"
        if time_ms is None
        else f"as of {datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    )
