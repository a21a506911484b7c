"""Offsets of a broadcasting consumer: each member reads everything, so each keeps its own, in a file. [LocalFileOffsetStore]

    <offsets_dir>/<client id>/<group>/offsets.json       {"offsetTable":{{"brokerName":…,"queueId":…,"topic":…}:5}}
                                     offsets.json.bak    the one before; read when the other is missing or broken
                                     offsets.json.tmp    being written

Java's file, in the same place by default. Unlike Java's it keeps the queues that are not read just now. The disk is waited
for in a thread, never in the loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from ariane.client.offset_store import OffsetStore
from ariane.client.route_cache import Peers, RouteCache
from ariane.errors import ConfigError, ProtocolError
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.protocol.requests.callbacks import QueueTable, reset_body, reset_table

log = logging.getLogger("ariane.client")

DIRECTORY = ".rocketmq_offsets"  # in the user's home


def offsets_path(directory: str, client_id: str, group: str) -> Path:
    base = Path(directory) if directory else Path.home() / DIRECTORY
    return base / client_id / group / "offsets.json"


class LocalOffsets(OffsetStore):
    """As Offsets, with a file in place of the brokers. `load` comes first."""

    is_local = True

    def __init__(self, peers: Peers, routes: RouteCache, group: str, *, timeout_ms: int, path: Path) -> None:
        super().__init__(peers, routes, group, timeout_ms=timeout_ms)
        self._path = path
        self._table: QueueTable = {}
        self._turn = asyncio.Lock()
        self._writing: asyncio.Future[None] | None = None

    async def load(self) -> None:
        """Read the file; ConfigError when there is one and neither it nor its predecessor can be read."""
        self._table = await asyncio.to_thread(read, self._path)

    async def commit(self, queues: Iterable[MessageQueue]) -> None:
        """Write the file when an offset changed. What cannot be written stays due, and is logged."""
        async with self._turn:
            if self._writing is not None:  # of a commit that was cancelled: its thread goes on, with the same files
                await asyncio.wait([self._writing])
            table = dict(self._table)
            table.update({queue: offset for queue in queues if (offset := self.consumed(queue)) is not None})
            if table == self._table:
                return
            try:
                self._writing = asyncio.ensure_future(asyncio.to_thread(write, self._path, table))
                await asyncio.shield(self._writing)
            except OSError as error:
                log.warning("group %s: offsets are not stored yet in %s: %s", self._group, self._path, error)
            else:
                self._table = table

    async def _stored(self, queue: MessageQueue) -> int | None:
        return self._table.get(queue)


class DropFailed:
    """What a broadcasting listener fails on is not delivered again: there is no retry topic for one member. It is logged."""

    def __init__(self, group: str) -> None:
        self._group = group

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        log.error("group %s broadcasts: %s, which failed, is given up", self._group, message.message_id)
        return True

    async def send_copy(self, message: ReceivedMessage) -> bool:
        return await self.send_back(message, 0)


def read(path: Path) -> QueueTable:
    """The offsets of a file, or of its predecessor."""
    faults = []
    for candidate in (path, path.with_name(f"{path.name}.bak")):
        try:
            data = candidate.read_bytes()
            return reset_table(data)
        except FileNotFoundError:
            continue
        except (OSError, ProtocolError) as error:
            log.warning("%s cannot be read: %s", candidate, error)
            faults.append(f"{candidate.name}: {error}")
    if faults:
        fix = (
            f"cannot be read ({'; '.join(faults)}); mend it, or remove it with its .bak to begin at the start position"
        )
        raise ConfigError("offsets_dir", str(path), fix)
    return {}


def write(path: Path, table: QueueTable) -> None:
    """Replace the file, keeping the former one beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.tmp")
    with fresh.open("wb") as file:
        file.write(reset_body(table))
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        path.replace(path.with_name(f"{path.name}.bak"))
    fresh.replace(path)
