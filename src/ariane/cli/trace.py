"""`ariane trace`: where is my message? The timeline of the messages with a key, or with an id."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli import home as homes
from ariane.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from ariane.admin.traces import Moment


def trace(
    key: Annotated[str | None, typer.Option(help="A business key, such as an order's id.")] = None,
    message_id: Annotated[
        str | None, typer.Option("--id", help="A message id: the unique one or the broker's.")
    ] = None,
    home: Annotated[
        Path | None, typer.Option(help="Directory of the tables; default: the newest of this user.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the journeys as JSON, one a line.")] = False,
) -> None:
    """Show what happened to messages: sent, stored, delivered, consumed, by the clocks of those who noted it."""
    from rich.console import Console

    from ariane.admin import traces

    if (key is None) == (message_id is None):
        raise ConfigError("--key", key, "give either --key KEY or --id ID")
    place = home or _newest_tables()
    found = traces.find(place, key=key, message_id=message_id)
    if as_json:
        for row in found.rows:
            typer.echo(json.dumps(row, default=_json_value))
        return
    console = Console()
    known_until = f"{found.as_of:%Y-%m-%d %H:%M:%S} UTC" if found.as_of else "unknown"
    if not found.rows:
        console.print(
            f"no message with {'key ' + key if key else f'id {message_id}'} in the traces until {known_until}"
        )
        raise typer.Exit(1)
    moments = traces.timeline(found.rows)
    console.print(_drawn(moments))
    for one, number in _numbers(moments).items():
        console.print(f"#{number} {one}")
    messages = len({row["message_id"] for row in found.rows})
    groups = len({row["consumer_group"] for row in found.rows if row["consumer_group"]})
    console.print(f"{messages} messages, {groups} consumer groups; traces until {known_until}, times in UTC")


def _newest_tables() -> Path:
    """The tables that were written last: of ~/.ariane, or of a demo."""
    homes_there = [homes.default_home(), *homes.demo_homes()]
    tables = [one / homes.TABLES for one in homes_there if (one / homes.TABLES).is_dir()]
    if not tables:
        fix = "no tables of this user are found: run `ariane up --demo` or `ariane pipeline run trace`, or name a directory"
        raise ConfigError("--home", "", fix)
    return max(tables, key=lambda path: path.stat().st_mtime)


def _drawn(moments: list[Moment]) -> Table:
    """One line per moment, within 80 columns; messages are numbered, their ids stand below."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name in ("time", "after", "#", "what", "group", "took", "where", "tag", ""):
        table.add_column(name, justify="right" if name in ("after", "took") else "left", no_wrap=name != "")
    numbers = _numbers(moments)
    for moment in moments:
        bad = moment.what not in ("sent", "stored", "delivered", "consumed")
        table.add_row(
            f"{moment.at:%H:%M:%S.%f}"[:-3],
            _ms(moment.at - moments[0].at),
            str(numbers[moment.message_id]),
            Text(moment.what, style="bold red" if bad else ""),
            moment.group or "",
            "" if moment.cost is None else _ms(moment.cost),
            moment.where or "",
            moment.tags or "",
            "" if moment.what == "stored" else moment.note,
        )
    return table


def _numbers(moments: Iterable[Moment]) -> dict[str, int]:
    """Messages by number, in the order of their first moments."""
    ids = dict.fromkeys(moment.message_id for moment in moments)
    return {message_id: number for number, message_id in enumerate(ids, 1)}


def _ms(span: timedelta) -> str:
    return f"{span / timedelta(milliseconds=1):,.0f}ms"


def _json_value(value: object) -> str:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    return str(value)
