"""`ariane store`: checks and prints a store directory. Only reads; a broker may be running on it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.options import shared_options
from ariane.cli.options.option_kinds import json_option, number_option, path_option
from ariane.cli.output import value_format
from ariane.cli.output.help_format import create_app
from ariane.clock import utc_of
from ariane.errors import StoreError, UsageError

if TYPE_CHECKING:
    from ariane.protocol.records.record import Record

app = create_app("Check and print a store directory without changing it.")

UNREADABLE = 2  # exit status

Directory = Annotated[
    Path, typer.Argument(parser=shared_options.local_path, metavar="DIR", help="Store directory (storePathRootDir).")
]
CommitLog = Annotated[
    Path | None,
    path_option(metavar="DIR", help="Directory of the commit log, if storePathCommitLog is set in broker.conf."),
]


@app.command("check", "ariane store check ~/.ariane/store")
def check(
    directory: Directory,
    commit_log: CommitLog = None,
    as_json: Annotated[bool, json_option("Print one JSON object per finding; the last line is the summary.")] = False,
) -> None:
    """Check all invariants of a store directory.

    Exit status: 0 without findings, 1 with findings, 2 if the directory is unreadable.
    """
    from ariane.store.check import store_check as checks

    # Filled while findings are printed: a check of a large store takes minutes, and its findings should not wait for
    # the end.
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
        raise _unreadable(error) from None
    # Notes do not lead to a failed exit status.
    faults = counts[checks.ERROR] + counts[checks.WARNING]
    if as_json:
        totals = {name: getattr(summary, name) for name in summary.__struct_fields__}
        typer.echo(json.dumps({"summary": totals, "errors": counts[checks.ERROR], "warnings": counts[checks.WARNING]}))
    else:
        typer.echo(
            f"{summary.records:,} records ({summary.bytes:,} bytes), {summary.entries:,} entries of {summary.queues:,} queues, "
            f"{summary.files:,} files: "
            + (f"{counts[checks.ERROR]} errors, {counts[checks.WARNING]} warnings" if faults else "no errors")
        )
    raise typer.Exit(1 if faults else 0)


@dataclass(frozen=True, kw_only=True)
class CatOptions:
    """Options of `ariane store cat`."""

    commit_log: CommitLog = None
    topic: shared_options.Topic = None
    queue: Annotated[
        int | None, number_option(minimum=0, help="Only this queue; requires --topic.", panel=shared_options.FILTERS)
    ] = None
    start: Annotated[
        int,
        number_option(
            "--from",
            minimum=0,
            metavar="OFFSET",
            help="First offset: of the queue, or without --queue of the commit log.",
            panel=shared_options.FILTERS,
        ),
    ] = 0
    count: Annotated[
        int | None, number_option(minimum=1, help="Maximum number of messages.", panel=shared_options.FILTERS)
    ] = None
    as_json: Annotated[bool, json_option("Print one JSON object per message.")] = False
    body: Annotated[
        str,
        typer.Option(
            metavar="FORMAT", help="Format of the body: text, hex or none.", rich_help_panel=shared_options.OUTPUT
        ),
    ] = "text"

    def check(self, directory: Path) -> None:
        """Raise UsageError if a value is invalid, or options contradict each other."""
        if self.body not in ("text", "hex", "none"):
            raise UsageError("--body", self.body, "expected text, hex or none")
        # Queue ids exist within a topic only.
        if self.queue is not None and self.topic is None:
            raise UsageError("--queue", self.queue, "requires --topic; specify both")
        if self.queue is not None and directory.is_file():
            raise UsageError("--queue", self.queue, "requires a store directory; a cut file has no queues")

    def records(self, directory: Path) -> Iterator[Record]:
        """Yield the selected messages, and report corrupt ranges on stderr."""
        from ariane.store.check import reader

        root, log_root = _root(directory), _log_root(self.commit_log)
        if directory.is_file():
            items = reader.read_cut(root, self.start)
        elif self.topic is not None and self.queue is not None:
            items = reader.read_queue(root, self.topic, self.queue, self.start, commit_log=log_root)
        else:
            items = reader.read_log(root, self.start, commit_log=log_root)
        for item in items:
            if isinstance(item, str):
                typer.echo(f"Warning: {item}", err=True)
            # The log contains all topics.
            elif self.topic is None or item.topic == self.topic:
                yield item


@app.command(
    "cat",
    "ariane store cat ~/.ariane/store --topic orders --count 10",
    "ariane store cat ~/.ariane/store --topic orders --queue 0 --from 4120 --json",
)
def cat(
    directory: Annotated[
        Path,
        typer.Argument(
            parser=shared_options.local_path,
            metavar="DIR",
            help="Store directory (storePathRootDir), or a file of its directory cut: what a failover cut off the log.",
        ),
    ],
    options: CatOptions,
) -> None:
    """Print messages of the commit log, or of one queue in its order."""
    options.check(directory)
    try:
        for record in islice(options.records(directory), options.count):
            row = _row(record, options.body)
            typer.echo(json.dumps(row, ensure_ascii=False) if options.as_json else _line(row))
    except StoreError as error:
        raise _unreadable(error) from None


def _unreadable(error: StoreError) -> typer.Exit:
    typer.echo(f"Error: {error}", err=True)
    return typer.Exit(UNREADABLE)


def _root(directory: Path) -> str:
    return str(directory.resolve())


def _log_root(directory: Path | None) -> str | None:
    return None if directory is None else str(directory.resolve())


def _row(item: Record, body: str) -> dict[str, object]:
    """Return the fields of a record for printing. A compressed body is decompressed, if possible."""
    from ariane.errors import ProtocolError
    from ariane.model import host, ids
    from ariane.protocol.records import compression

    row: dict[str, object] = {
        "offset": item.offset,
        "size": item.size,
        "topic": item.topic,
        "queue": item.queue_id,
        "number": item.queue_offset,
        "message_id": ids.offset_message_id(item.store_host, item.offset),
        "born_ms": item.born_ms,
        "store_ms": item.store_ms,
        "born_host": host.text(item.born_host),
        "sys_flag": item.sys_flag,
        "reconsume_times": item.reconsume_times,
        "crc_is_right": item.crc_is_right(),
        "properties": item.property_map(),
    }
    if body != "none":
        data = item.body
        try:
            data = compression.decompress(data, item.sys_flag)
        except ProtocolError as error:
            row["body_error"] = str(error)
        row["body"] = data.hex() if body == "hex" else data.decode("utf-8", "backslashreplace")
    return row


def _line(row: dict[str, object]) -> str:
    """Return one line of text for a message, with control characters escaped."""
    store_ms = row["store_ms"]
    assert isinstance(store_ms, int)
    time = utc_of(store_ms)  # a damaged record may have any number
    stored = f"{store_ms} ms" if time is None else f"{time:%Y-%m-%d %H:%M:%S.%f}"[:-3]
    text = f"{row['offset']} {row['topic']}-{row['queue']} #{row['number']} {stored} {row['size']} B"
    if not row["crc_is_right"]:
        text += " (body CRC mismatch)"
    properties = row["properties"]
    if properties:
        text += f" {json.dumps(properties, ensure_ascii=False)}"
    if "body" in row:
        text += f" {row['body']}"
    return value_format.escape_control(text)
