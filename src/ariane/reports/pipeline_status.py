"""How far the pipeline is, and so how much an answer from its tables can be trusted.

HOME/status/<source>     JSON (`Status`), written by the pipeline with every round
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from ariane import tables
from ariane.errors import StoreError
from ariane.tables import TableSchema
from ariane.tables.table_format import read_version

STATUS = "status"
SILENT_MS = 120_000  # a pipeline that has not said anything for so long is taken for stopped


class SourceStatus(msgspec.Struct, frozen=True):
    """How far a source is."""

    source: str
    at_ms: int
    """When this was so, ms since the epoch."""
    batch: int | None
    """The last micro-batch; None before the first."""
    batch_ms: int | None
    """How long it took."""
    pending: int | None
    """Messages that its queues hold and that are in no table yet; None when that is not known."""
    unavailable: str | None
    """Which server does not answer; the source waits for it."""
    topics: int | None = None
    """How many topics it reads; 0: none of them is there yet. None when that is not known."""
    caught_up_ms: int | None = None
    """When it was last seen that nothing is left to read, by the reading machine's clock: what brokers had stored then is in its
    tables. None: not yet."""


class Freshness(NamedTuple):
    """What is in a table: all that brokers had stored until `as_of_ms` (None: nothing yet), or less, for a reason.

    That is when the newest of it was stored, by its broker; or later, when all was read: brokers to which nobody sends do not
    tell the time."""

    as_of_ms: int | None
    warnings: tuple[str, ...]
    """Why the table may lack something; none: it is complete."""
    caught_up_ms: int | None = None
    """Until when all was read, as `Status` has it for the sources; None when the table lacks what was."""

    @property
    def is_complete(self) -> bool:
        return not self.warnings


def write_status(home: Path, status: SourceStatus) -> None:
    """Put down how far a source is."""
    path = home / STATUS / status.source
    path.parent.mkdir(exist_ok=True)
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_bytes(msgspec.json.encode(status) + b"\n")
    beside.replace(path)


def read_statuses(home: Path) -> dict[str, SourceStatus]:
    """Every source that has ever run, by name."""
    found = {}
    for path in sorted((home / STATUS).glob("[!.]*")):
        try:
            found[path.name] = msgspec.json.decode(path.read_bytes(), type=SourceStatus)
        except msgspec.DecodeError as error:
            raise StoreError(f"{path} is no status: {error}; remove it, the pipeline writes it anew") from error
    return found


def freshness(home: Path, table: TableSchema, now_ms: int) -> Freshness:
    """As of when a table is, and whether it is complete until then. To be asked before the table is: rows that come meanwhile do no
    harm."""
    return _freshness(home, table, now_ms, read_statuses(home))


def _freshness(home: Path, table: TableSchema, now_ms: int, statuses: Mapping[str, SourceStatus]) -> Freshness:
    now = read_version(home, table)
    if now is None:
        return Freshness(None, (f"no {table.name} in {home} yet",))
    gaps = []
    by_name = {one.name: one for one in tables.ALL_TABLES}
    read_ms: list[int | None] = []
    for name, version in now.applied.items():
        table_before = by_name.get(name)
        if table_before is None:
            source = name.split(" ")[0]
            gaps.extend(_gaps(source, statuses, now_ms))
            read_ms.append(statuses[source].caught_up_ms if source in statuses else None)
            continue
        before = read_version(home, table_before)
        if before is not None and (
            version > before.version or any(file.added_version > version for file in before.files)
        ):
            gaps.append(f"{table.name} does not have the newest {name} yet")
            read_ms.append(None)
        inner = _freshness(home, table_before, now_ms, statuses)
        gaps.extend(inner.warnings)
        read_ms.append(inner.caught_up_ms)
    known = [ms for ms in read_ms if ms is not None]
    all_read_ms = min(known) if known and len(known) == len(read_ms) else None
    times = [ms for ms in (now.as_of_ms, all_read_ms) if ms is not None]
    return Freshness(max(times, default=None), tuple(dict.fromkeys(gaps)), all_read_ms)


def _gaps(source: str, statuses: Mapping[str, SourceStatus], now_ms: int) -> list[str]:
    """Why the tables of a source may lack something."""
    status = statuses.get(source)
    if status is None:
        return [f"it is not known how far {source} is"]
    gaps = []
    if status.unavailable is not None:
        gaps.append(f"{source} waits for a server: {status.unavailable}")
    if status.pending is None:
        gaps.append(f"it is not known how many messages {source} has still to read")
    elif status.pending:
        gaps.append(f"{source} has {status.pending:,} messages to read")
    if now_ms - status.at_ms > SILENT_MS:
        gaps.append(f"the pipeline has not looked at {source} for {(now_ms - status.at_ms) // 60_000:,} minutes")
    return gaps
