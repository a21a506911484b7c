"""`ariane trace`: prints the timeline of the messages with a key or an id, or lists the journeys of a topic."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ariane.cli.options import paths as homes
from ariane.cli.options import shared_options
from ariane.cli.options.option_kinds import (
    flag_option,
    json_option,
    number_option,
    text_option,
    time_option,
    topic_option,
)
from ariane.cli.options.time_options import parse_time
from ariane.cli.output import value_format
from ariane.clock import SYSTEM_CLOCK
from ariane.errors import UsageError
from ariane.model.quantities import count_text
from ariane.tables.table_home import Home

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ariane.reports.tables.pipeline_status import Freshness
    from ariane.reports.trace_lookup import LookupResult, TimelineEvent


SINCE = "10m"
PIPE_WIDTH = 1000  # more than any row needs
NUMBERS = ("QUEUED", "TOOK", "TRIES", "±", "ELAPSED")  # columns that are aligned to the right
FOLDED = ("MESSAGE", "GROUP", "RESULT", "EVENT", "HOST", "TAG", "")  # texts, in several lines where columns are narrow
# Events of a delivery without problems; all others are highlighted.
NORMAL_EVENTS = ("sent", "stored", "available", "delivered", "consumed", "decided: COMMIT_MESSAGE")


def trace(
    key: Annotated[str | None, text_option(metavar="KEY", help="Business key, for example an order number.")] = None,
    message_id: Annotated[
        str | None, text_option("--id", metavar="ID", help="Message id: unique id or offset id.")
    ] = None,
    topic: Annotated[str | None, topic_option(help="List the journeys of messages of this topic.")] = None,
    since: Annotated[
        str | None,
        time_option(
            help="With --topic: a duration before now (30s, 10m, 2h) or a UTC time (2026-01-31T10:00).  [default: 10m]",
            panel=shared_options.FILTERS,
        ),
    ] = None,
    slowest: Annotated[
        bool, flag_option("--slowest", "With --topic: slowest messages first.", panel=shared_options.OUTPUT)
    ] = False,
    group: shared_options.Group = None,
    limit: Annotated[
        int, number_option(minimum=1, maximum=10_000, help="Maximum number of messages.", panel=shared_options.FILTERS)
    ] = 20,
    home: homes.TablesHome = None,
    as_json: Annotated[bool, json_option("Print one JSON object per journey.")] = False,
) -> None:
    """Print the timeline of messages: sent, stored, delivered, consumed.

    Times are converted to the broker's clock where the offset of the client's clock could be estimated. Reads the tables
    of the job trace of `ariane pipeline run`, which needs Spark and Java 17; this command needs neither.
    """
    from ariane.reports import trace_lookup
    from ariane.reports.tables.pipeline_status import freshness
    from ariane.tables import JOURNEYS

    # A key and an id name messages, a topic lists journeys: their outputs differ.
    if sum(value is not None for value in (key, message_id, topic)) != 1:
        raise UsageError("trace", None, "specify exactly one of --key, --id and --topic")
    if topic is None and (slowest or since is not None):
        raise UsageError("--slowest" if slowest else "--since", since, "requires --topic; remove it or specify a topic")
    now_ms = SYSTEM_CLOCK.now_ms()
    since_ms = parse_time(since or SINCE, now_ms, "--since")
    tables_dir = homes.existing_tables_dir(home)
    table_freshness = freshness(tables_dir, JOURNEYS, now_ms)
    if topic is None:
        result = trace_lookup.find_journeys(tables_dir, key=key, message_id=message_id, group=group, limit=limit)
    else:
        selected = trace_lookup.TopicSelection(topic, since_ms, now_ms, group)
        result = trace_lookup.journeys_of_topic(tables_dir, selected, is_slowest_first=slowest, limit=limit)
    remarks = _remarks(table_freshness, result.omitted, tables_dir)
    if as_json:
        _print_json(result, remarks)
    else:
        selection = f"key {key}" if key else f"id {message_id}" if message_id else f"topic {topic}"
        _print(result, remarks, selection, is_list=topic is not None)


def _print_json(result: LookupResult, remarks: list[str]) -> None:
    """Print one journey per line; the remarks go to stderr, so that stdout remains JSON."""
    for row in result.rows:
        typer.echo(json.dumps(row, default=_json_value))
    for remark in remarks:
        typer.echo(remark, err=True)


def _print(result: LookupResult, remarks: list[str], selection: str, *, is_list: bool) -> None:
    from ariane.cli.output.terminal import create_console
    from ariane.reports import trace_lookup

    console = create_console()
    if result.rows and is_list:
        _print_journeys(console, result.rows)
    elif result.rows:
        events = trace_lookup.timeline(result.rows)
        _print_table(console, _timeline_table(events))
        _print_ids(console, _message_numbers(event.message_id for event in events))
        messages = len({row["message_id"] for row in result.rows})
        groups = len({row["consumer_group"] for row in result.rows if row["consumer_group"]})
        counts = ", ".join((count_text(messages, "message"), count_text(groups, "consumer group")))
        console.print(f"{counts}; ±: error of the time in ms, ?: clock offset unknown")
    else:
        console.print(f"no traced message with {selection}", soft_wrap=True)
    for remark in remarks:
        console.print(remark, soft_wrap=True)
    if not result.rows:
        raise typer.Exit(1)


def _print_journeys(console: Console, rows: list[dict[str, Any]]) -> None:
    """Print a table of journeys, with numbers of the messages if their ids make it too wide."""
    from ariane.cli.output.terminal import is_width_bound

    table = _journey_table(rows, {})
    needed = console.measure(table, options=console.options.update(max_width=PIPE_WIDTH)).maximum
    if not is_width_bound(console) or needed <= console.width:
        _print_table(console, table)
        return
    ids = _message_numbers(row["message_id"] for row in rows)
    _print_table(console, _journey_table(rows, ids))
    _print_ids(console, ids)


def _print_ids(console: Console, numbers: Mapping[str, str]) -> None:
    """Print the ids in full below the table, where they can be copied."""
    for message_id, number in numbers.items():
        console.print(f"{number} {message_id}", soft_wrap=True)


def _print_table(console: Console, table: Table) -> None:
    """Print a table within the width of a terminal; in a pipe with one line per row, for grep."""
    from ariane.cli.output.terminal import is_width_bound

    console.print(table, width=None if is_width_bound(console) else PIPE_WIDTH, crop=False)


def _remarks(table_freshness: Freshness, omitted: int, tables_dir: Home) -> list[str]:
    """Return how many results are omitted, the as-of time, the source, and the reasons for missing data."""
    from ariane.reports.report import utc_time

    as_of = utc_time(table_freshness.as_of_ms)
    as_of_text = f"{as_of:%Y-%m-%d %H:%M:%S} UTC" if as_of else "unknown"
    omission = [f"{omitted:,} more results omitted; raise --limit to see them"] if omitted else []
    state = "INCOMPLETE" if table_freshness.warnings else "complete"
    lines = [*omission, f"as of {as_of_text}, {state}; times are UTC", value_format.source_line(str(tables_dir))]
    return [*lines, *(f"! {warning}" for warning in table_freshness.warnings)]


def _empty_table(names: Iterable[str]) -> Table:
    """Return a table whose times and numbers are never cut."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name in names:
        justify: Literal["right", "left"] = "right" if name in NUMBERS else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name not in FOLDED)
    return table


def _journey_table(rows: list[dict[str, Any]], numbers: Mapping[str, str]) -> Table:
    """Return a table with one row per journey, with the numbers of messages in place of their ids, if any."""
    table = _empty_table(
        ("#" if numbers else "MESSAGE", "GROUP", "SENT", "STORED", "DELIVERED", "QUEUED", "TOOK", "TRIES", "RESULT")
    )
    for row in rows:
        error = row["queueing_error_ms"]
        queued = "?" if row["queueing_ms"] is None else f"{row['queueing_ms']:,}ms" + (f"±{error}" if error else "")
        unconsumed = row["transaction_state"] or ("not consumed" if row["recalled_at"] is None else "recalled")
        result = "dead-lettered" if row["dead_lettered"] else row["result"] or unconsumed
        table.add_row(
            numbers.get(row["message_id"], row["message_id"]),
            row["consumer_group"] or "",
            _time_of_day(row["sent_corrected_at"] or row["sent_at"]),
            _time_of_day(row["stored_at"]),
            _time_of_day(row["delivered_corrected_at"] or row["delivered_at"]),
            queued if row["delivered_at"] is not None else "",
            "" if row["took_ms"] is None else f"{row['took_ms']:,}ms",
            "" if row["attempts"] is None else str(row["attempts"]),
            result,
        )
    return table


def _time_of_day(time: datetime | None) -> str:
    return "?" if time is None else f"{time:%H:%M:%S.%f}"[:-3]


def _timeline_table(events: list[TimelineEvent]) -> Table:
    """Return a table with one row per event, without empty columns. Messages are numbered, because ids are long."""
    from rich.text import Text

    numbers = _message_numbers(event.message_id for event in events)
    rows = [
        (
            f"{event.at:%H:%M:%S.%f}"[:-3],
            "?" if event.error_ms is None else "" if event.error_ms == 0 else str(event.error_ms),
            _ms(event.at - events[0].at),
            numbers[event.message_id].removeprefix("#"),
            Text(event.event, style="" if event.event in NORMAL_EVENTS else "bold red"),
            event.group or "",
            "" if event.duration is None else _ms(event.duration),
            event.host or "",
            event.tags or "",
            "" if event.event == "stored" else event.note,
        )
        for event in events
    ]
    # Columns without a value are omitted, so that the timeline fits into 80 columns.
    names = ("TIME", "±", "ELAPSED", "#", "EVENT", "GROUP", "TOOK", "HOST", "TAG", "")
    used = [index for index in range(len(names)) if any(row[index] for row in rows)]
    table = _empty_table(names[index] for index in used)
    for row in rows:
        table.add_row(*(row[index] for index in used))
    return table


def _message_numbers(ids: Iterable[str]) -> dict[str, str]:
    """Return #1, #2, … for each message id, in the order in which they first occur."""
    return {message_id: f"#{number}" for number, message_id in enumerate(dict.fromkeys(ids), 1)}


def _ms(duration: timedelta) -> str:
    return f"{duration / timedelta(milliseconds=1):,.0f}ms"


def _json_value(value: object) -> object:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    return str(value)
