"""Offsets of a broadcasting consumer. Every member reads every queue, so each stores its own offsets. [LocalFileOffsetStore]

    <offsets_dir>/<client id>/<group>/offsets.json       {"offsetTable":{{"brokerName":…,"queueId":…,"topic":…}:5}}
                                     offsets.json.bak    the previous version; read if the other is missing or corrupt
                                     offsets.json.tmp    being written

The format and the default path are Java's. Unlike Java's client this one retains the offsets of queues that are not assigned
at the moment. Disk access runs in a thread, so that it never blocks the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from ariane.client.consuming.offset_store import OffsetStore
from ariane.client.instance.message_texts import identity
from ariane.client.instance.namespace import Namespace
from ariane.client.instance.route_cache import RouteCache
from ariane.errors import ConfigError, ProtocolError
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.requests.callbacks import QueueTable, reset_body, reset_table

log = logging.getLogger("ariane.client")

DIRECTORY = ".rocketmq_offsets"  # in the user's home directory


def offsets_path(directory: str, client_id: str, group: str) -> Path:
    """Return the path of a group's offsets file; an empty directory means Java's default."""
    base = Path(directory) if directory else Path.home() / DIRECTORY
    return base / client_id / group / "offsets.json"


class LocalOffsets(OffsetStore):
    """An offset store with a file instead of the brokers. Call `load` first."""

    is_local = True

    def __init__(
        self,
        peers: ConnectionPool,
        routes: RouteCache,
        group: str,
        *,
        timeout_ms: float,
        path: Path,
        namespace: Namespace | None = None,
    ) -> None:
        super().__init__(peers, routes, group, timeout_ms=timeout_ms)
        self._path = path
        self._namespace = namespace or Namespace("")  # of the topics in the file, as in Java's
        self._table: QueueTable = {}
        # One commit at a time; `_writing` outlives a commit that is cancelled.
        self._commit_lock = asyncio.Lock()
        self._writing: asyncio.Future[None] | None = None

    async def load(self) -> None:
        """Read the file.

        Raises:
            ConfigError: neither the file nor its previous version can be read.
        """
        table = await asyncio.to_thread(read, self._path)
        self._table = {self._namespace.unwrap_queue(queue): offset for queue, offset in table.items()}

    async def commit(self, queues: Iterable[MessageQueue]) -> None:
        """Write the file if an offset changed. Failures are logged and repeated with the next commit."""
        async with self._commit_lock:
            if self._writing is not None:  # of a cancelled commit: its thread continues and uses the same files
                await asyncio.wait([self._writing])
            table = dict(self._table)
            table.update({queue: offset for queue in queues if (offset := self.consumed(queue)) is not None})
            if table == self._table:
                return
            try:
                stored = {self._namespace.wrap_queue(queue): offset for queue, offset in table.items()}
                self._writing = asyncio.ensure_future(asyncio.to_thread(write, self._path, stored))
                await asyncio.shield(self._writing)
            except OSError as error:
                log.warning("Group %s could not write its offsets to %s: %s", self._group, self._path, error)
            else:
                self._table = table

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset in the file; None if it has none."""
        return self._table.get(queue)


class DropFailed:
    """Drops messages that a broadcasting listener failed on: retry topics belong to groups, not to single members."""

    def __init__(self, group: str) -> None:
        self._group = group

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Log the message and return True: it is done."""
        reason = f"; {message.body_error}" if message.body_error else ""
        log.error(
            "Group %s drops failed message %s: a broadcasting group has no retry topic%s",
            self._group,
            identity(message),
            reason,
        )
        return True

    async def send_copy(self, message: ReceivedMessage) -> bool:
        """Log the message and return True: it is done."""
        return await self.send_back(message, 0)


def read(path: Path) -> QueueTable:
    """Return the offsets of a file, or of its previous version."""
    faults = []
    for candidate in (path, path.with_name(f"{path.name}.bak")):
        try:
            data = candidate.read_bytes()
            return reset_table(data)
        except FileNotFoundError:
            continue
        except (OSError, ProtocolError) as error:
            log.warning("Could not read %s: %s", candidate, error)
            faults.append(f"{candidate.name}: {error}")
    if faults:
        fix = f"cannot be read ({'; '.join(faults)}); repair it, or remove it and its .bak file to start at the start position"
        raise ConfigError("offsets_dir", str(path), fix)
    return {}


def write(path: Path, table: QueueTable) -> None:
    """Replace the file and retain the previous version as .bak."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(reset_body(table))
        file.flush()
        # Written to disk before the rename, so that a power failure leaves the new or the previous version.
        os.fsync(file.fileno())
    if path.exists():
        path.replace(path.with_name(f"{path.name}.bak"))
    temporary.replace(path)
