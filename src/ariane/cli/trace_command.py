"""`ariane trace`: where is my message? The timeline of the messages with a key or an id; the journeys of a topic."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ariane.cli import paths as homes
from ariane.cli import shared_options, value_format
from ariane.cli.time_options import parse_time
from ariane.clock import SYSTEM_CLOCK
from ariane.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ariane.reports.pipeline_status import Freshness
    from ariane.reports.trace_lookup import LookupResult, TimelineEvent


SINCE = "10m"


def trace(
    key: Annotated[
        str | None,
        typer.Option(parser=shared_options.some_text, metavar="KEY", help="A business key, such as an order's id."),
    ] = None,
    message_id: Annotated[
        str | None,
        typer.Option(
            "--id", parser=shared_options.some_text, metavar="ID", help="A message id: the unique one or the broker's."
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            parser=shared_options.topic_name, metavar="TOPIC", help="List the journeys of this topic's messages."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="With --topic: how long ago (30s, 10m, 2h, 1d), or a time in UTC (2026-01-31T10:00). Default: 10m.",
        ),
    ] = None,
    slowest: Annotated[bool, typer.Option("--slowest", help="With --topic: the slowest first.")] = False,
    group: Annotated[
        str | None, typer.Option(parser=shared_options.group_name, metavar="GROUP", help="Only this consumer group.")
    ] = None,
    limit: Annotated[
        int,
        typer.Option(parser=shared_options.whole_number(1, 10_000), metavar="N", help="Maximum number of messages."),
    ] = 20,
    home: shared_options.TablesHome = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per journey.")] = False,
) -> None:
    """Print what happened to messages. Times are by the broker's clock where it is known."""
    from ariane.reports import trace_lookup
    from ariane.reports.pipeline_status import freshness
    from ariane.tables import JOURNEYS

    if sum(one is not None for one in (key, message_id, topic)) != 1:
        raise UsageError("trace", None, "give exactly one of --key KEY, --id ID and --topic TOPIC")
    if topic is None and (slowest or since is not None):
        raise UsageError("--slowest" if slowest else "--since", since, "works with --topic TOPIC only")
    now_ms = SYSTEM_CLOCK.now_ms()
    since_ms = parse_time(since or SINCE, now_ms, "--since")
    place = homes.existing_tables_dir(home)
    fresh = freshness(place, JOURNEYS, now_ms)
    if topic is None:
        found = trace_lookup.find_journeys(place, key=key, message_id=message_id, group=group, limit=limit)
    else:
        found = trace_lookup.journeys_of_topic(
            place, topic, since_ms=since_ms, until_ms=now_ms, group=group, is_slowest_first=slowest, limit=limit,
        )  # fmt: skip
    trust = _trust(fresh, found.omitted, place)
    if as_json:
        _say_json(found, trust)
    else:
        wanted = f"key {key}" if key else f"id {message_id}" if message_id else f"topic {topic}"
        _say(found, trust, wanted, topic is not None)


def _say_json(found: LookupResult, trust: list[str]) -> None:
    """The journeys, one a line; what a reader of them must know goes to stderr."""
    for row in found.rows:
        typer.echo(json.dumps(row, default=_json_value))
    for line in trust:
        typer.echo(line, err=True)


def _say(found: LookupResult, trust: list[str], wanted: str, is_list: bool) -> None:
    from rich.console import Console

    from ariane.reports import trace_lookup

    console = Console(highlight=False)
    if not found.rows:
        console.print(f"no message with {wanted} in the traces", markup=False)
        _say_lines(console, trust)
        raise typer.Exit(1)
    if is_list:
        console.print(_listed(found.rows))
    else:
        moments = trace_lookup.timeline(found.rows)
        console.print(_drawn(moments))
        for one, number in _numbers(moments).items():
            console.print(f"#{number} {one}", markup=False)
        messages = len({row["message_id"] for row in found.rows})
        groups = len({row["consumer_group"] for row in found.rows if row["consumer_group"]})
        of = " and ".join((_count(messages, "message"), _count(groups, "consumer group")))
        console.print(f"{of}; ± how far off by the broker's clock, ? not known")
    _say_lines(console, trust)


def _say_lines(console: Console, lines: list[str]) -> None:
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _trust(fresh: Freshness, left_out: int, home: Path) -> list[str]:
    """What is left out, as of when the answer is, and why it may lack something."""
    from ariane.reports.report import utc_time

    as_of = utc_time(fresh.as_of_ms)
    known_until = f"{as_of:%Y-%m-%d %H:%M:%S} UTC" if as_of else "unknown"
    more = [f"{left_out:,} more results omitted; raise --limit to see them"] if left_out else []
    complete = "" if fresh.warnings else ", complete"
    lines = [*more, f"traces until {known_until}{complete}; times in UTC", value_format.source_line(str(home))]
    return [*lines, *(f"may lack: {gap}" for gap in fresh.warnings)]


def _listed(rows: list[dict[str, Any]]) -> Table:
    """One line per journey."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name in ("message", "group", "sent", "stored", "delivered", "queued", "took", "tries", "result"):
        table.add_column(name, justify="right" if name in ("queued", "took", "tries") else "left", overflow="fold")
    for row in rows:
        error = row["queueing_error_ms"]
        queued = "?" if row["queueing_ms"] is None else f"{row['queueing_ms']:,}ms" + (f"±{error}" if error else "")
        result = (
            "dead-lettered" if row["dead_lettered"] else row["result"] or row["transaction_state"] or "not consumed"
        )
        table.add_row(
            row["message_id"],
            row["consumer_group"] or "",
            _clock(row["sent_corrected_at"] or row["sent_at"]),
            _clock(row["stored_at"]),
            _clock(row["delivered_corrected_at"] or row["delivered_at"]),
            queued if row["delivered_at"] is not None else "",
            "" if row["took_ms"] is None else f"{row['took_ms']:,}ms",
            "" if row["attempts"] is None else str(row["attempts"]),
            result,
        )
    return table


def _clock(time: datetime | None) -> str:
    return "?" if time is None else f"{time:%H:%M:%S.%f}"[:-3]


def _drawn(moments: list[TimelineEvent]) -> Table:
    """One line per moment, within 80 columns, without columns that say nothing; messages are numbered, their ids stand below."""
    from rich.table import Table
    from rich.text import Text

    numbers = _numbers(moments)
    good = ("sent", "stored", "available", "delivered", "consumed", "decided: COMMIT_MESSAGE")
    lines = [
        (
            f"{moment.at:%H:%M:%S.%f}"[:-3],
            "?" if moment.error_ms is None else "" if moment.error_ms == 0 else str(moment.error_ms),
            _ms(moment.at - moments[0].at),
            str(numbers[moment.message_id]),
            Text(moment.event, style="" if moment.event in good else "bold red"),
            moment.group or "",
            "" if moment.duration is None else _ms(moment.duration),
            moment.host or "",
            moment.tags or "",
            "" if moment.event == "stored" else moment.note,
        )
        for moment in moments
    ]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    names = ("time", "±", "after", "#", "what", "group", "took", "where", "tag", "")
    told = [number for number in range(len(names)) if any(line[number] for line in lines)]
    for name in (names[number] for number in told):
        table.add_column(name, justify="right" if name in ("±", "after", "took") else "left", no_wrap=name != "")
    for line in lines:
        table.add_row(*(line[number] for number in told))
    return table


def _numbers(moments: Iterable[TimelineEvent]) -> dict[str, int]:
    """Messages by number, in the order of their first moments."""
    ids = dict.fromkeys(moment.message_id for moment in moments)
    return {message_id: number for number, message_id in enumerate(ids, 1)}


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _ms(span: timedelta) -> str:
    return f"{span / timedelta(milliseconds=1):,.0f}ms"


def _json_value(value: object) -> object:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    return str(value)
