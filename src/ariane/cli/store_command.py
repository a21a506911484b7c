"""`ariane store`: what lies in a store directory. Reads only; a broker may be running on it."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from ariane.cli import shared_options

app = typer.Typer(help="Check and read a store directory without changing it.", no_args_is_help=True)

UNREADABLE = 2

Directory = Annotated[
    Path, typer.Argument(parser=shared_options.local_path, metavar="DIR", help="Store directory (storePathRootDir).")
]
CommitLog = Annotated[
    Path | None,
    typer.Option(
        parser=shared_options.local_path,
        metavar="DIR",
        help="Directory of the commit log, if storePathCommitLog is set.",
    ),
]


@app.command("check")
def check(
    directory: Directory,
    commit_log: CommitLog = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one object a line; the last is the summary.")
    ] = False,
) -> None:
    """Check every invariant of a store directory. Exit status 0: sound, 1: findings, 2: unreadable."""
    from ariane.errors import StoreError
    from ariane.store import check as checks

    summary = checks.CheckSummary()
    counts: Counter[str] = Counter()
    try:
        for finding in checks.check(_root(directory), summary=summary, commit_log=_log_root(commit_log)):
            counts[finding.severity] += 1
            if as_json:
                row = {name: getattr(finding, name) for name in finding.__struct_fields__}
                typer.echo(json.dumps(row, ensure_ascii=False))
            else:
                typer.echo(f"{finding.severity:<7} {finding.file} at {finding.offset}: {finding.message}")
                if finding.fix:
                    typer.echo(f"        {finding.fix}")
    except StoreError as error:
        typer.echo(f"ariane: {error}", err=True)
        raise typer.Exit(UNREADABLE) from None
    faults = counts[checks.ERROR] + counts[checks.WARNING]
    if as_json:
        looked_at = {name: getattr(summary, name) for name in summary.__struct_fields__}
        typer.echo(
            json.dumps({"summary": looked_at, "errors": counts[checks.ERROR], "warnings": counts[checks.WARNING]})
        )
    else:
        typer.echo(
            f"{summary.records:,} records ({summary.bytes:,} bytes), {summary.entries:,} entries of {summary.queues:,} queues, "
            f"{summary.files:,} files: "
            + (f"{counts[checks.ERROR]} errors, {counts[checks.WARNING]} warnings" if faults else "sound")
        )
    raise typer.Exit(1 if faults else 0)


@app.command("cat")
def cat(
    directory: Directory,
    commit_log: CommitLog = None,
    topic: shared_options.Topic = None,
    queue: Annotated[
        int | None,
        typer.Option(parser=shared_options.whole_number(0), metavar="N", help="Only this queue; needs --topic."),
    ] = None,
    start: Annotated[
        int,
        typer.Option(
            "--from",
            parser=shared_options.whole_number(0),
            metavar="OFFSET",
            help="First offset in the queue, or, without --queue, in the log.",
        ),
    ] = 0,
    count: Annotated[
        int | None, typer.Option(parser=shared_options.whole_number(1), metavar="N", help="Maximum number of messages.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
    body: Annotated[str, typer.Option(metavar="FORM", help="Form of the body: text, hex or none.")] = "text",
) -> None:
    """Print messages of the log. With --topic and --queue: in the order of that queue."""
    from ariane.errors import StoreError, UsageError
    from ariane.store import reader

    if body not in ("text", "hex", "none"):
        raise UsageError("--body", body, "expected text, hex or none")
    if queue is not None and topic is None:
        raise UsageError("--queue", queue, "give --topic, too")
    left = count
    try:
        found = (
            reader.read_queue(_root(directory), topic, queue, start, commit_log=_log_root(commit_log))
            if topic is not None and queue is not None
            else reader.read_log(_root(directory), start, commit_log=_log_root(commit_log))
        )
        for one in found:
            if isinstance(one, str):
                typer.echo(f"ariane: {one}", err=True)
                continue
            if topic is not None and one.topic != topic:
                continue
            row = _row(one, body)
            typer.echo(json.dumps(row, ensure_ascii=False) if as_json else _line(row))
            if left is not None:
                left -= 1
                if left == 0:
                    break
    except StoreError as error:
        typer.echo(f"ariane: {error}", err=True)
        raise typer.Exit(UNREADABLE) from None


def _root(directory: Path) -> str:
    return str(directory.resolve())


def _log_root(directory: Path | None) -> str | None:
    return None if directory is None else str(directory.resolve())


def _row(one: object, body: str) -> dict[str, object]:
    """A record's fields for printing; the body expanded when it is compressed and can be expanded."""
    from ariane.errors import ProtocolError
    from ariane.model import host, ids
    from ariane.protocol import compression
    from ariane.protocol.record import Record

    assert isinstance(one, Record)
    row: dict[str, object] = {
        "offset": one.offset,
        "size": one.size,
        "topic": one.topic,
        "queue": one.queue_id,
        "number": one.queue_offset,
        "message_id": ids.offset_message_id(one.store_host, one.offset),
        "born_ms": one.born_ms,
        "store_ms": one.store_ms,
        "born_host": host.text(one.born_host),
        "sys_flag": one.sys_flag,
        "reconsume_times": one.reconsume_times,
        "crc_is_right": one.crc_is_right(),
        "properties": one.property_map(),
    }
    if body != "none":
        data = one.body
        try:
            data = compression.expand(data, one.sys_flag)
        except ProtocolError as error:
            row["body_error"] = str(error)
        row["body"] = data.hex() if body == "hex" else data.decode("utf-8", "backslashreplace")
    return row


def _line(row: dict[str, object]) -> str:
    """For people: one line a message; what a terminal would act on is escaped."""
    store_ms = row["store_ms"]
    assert isinstance(store_ms, int)
    try:
        stored = f"{datetime.datetime.fromtimestamp(store_ms / 1000, datetime.UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]
    except (OverflowError, ValueError, OSError):
        stored = f"{store_ms} ms"
    text = f"{row['offset']} {row['topic']}-{row['queue']} #{row['number']} {stored} {row['size']} B"
    if not row["crc_is_right"]:
        text += " (the body's CRC is wrong)"
    properties = row["properties"]
    if properties:
        text += f" {json.dumps(properties, ensure_ascii=False)}"
    if "body" in row:
        text += f" {row['body']}"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
