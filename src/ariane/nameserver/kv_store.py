"""The KV table: namespace → key → value, stored in kvConfig.json. [KVConfigManager]

The file is replaced as a whole, and the former one stays as `.bak`. If it is empty or damaged, a start reads the `.bak`, or is
refused without one. A thread writes the file: changes that arrive during a write share the next one, and each is answered when
it is on disk.

    put, delete ─► table in memory ─► wait_saved() ─► one write for all changes so far ─► responses
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from ariane.errors import ConfigError, ProtocolError, StoreError
from ariane.net.limits.paced_calls import PacedCalls
from ariane.net.shared_replies import SharedResult
from ariane.private_files import sync_directory
from ariane.protocol import fastjson
from ariane.protocol.requests import rules
from ariane.protocol.requests.routing import PutKv

log = logging.getLogger("ariane.nameserver")

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
EXAMPLES_MAX = 3  # dropped entries in one log line
NAMESPACES_MAX = 1000
NAME_MAX = 1024  # characters of a namespace or key
VALUES_MAX = 100_000
TABLE_MAX = 8 * 1024 * 1024  # bytes of all keys and values as JSON, so that a list of them fits into one frame


class KvDocument(msgspec.Struct, frozen=True, rename="camel"):
    """The document kvConfig.json."""

    config_table: dict[str, dict[str, str]] = {}


class KvStore:
    """The table and its file."""

    def __init__(self, path: Path) -> None:
        self._path = path  # kvConfig.json; its .bak is next to it
        # A damaged file is renamed at the next write, instead of replacing the backup that the table was read from.
        document, self._damaged = _load(path)
        self._table = {name: dict(values) for name, values in document.config_table.items()}  # by namespace and key
        self._drop_invalid()
        # Totals of all namespaces, compared with VALUES_MAX and TABLE_MAX.
        self._count = sum(map(len, self._table.values()))
        # Bytes, see above.
        self._size = sum(_size(key, value) for values in self._table.values() for key, value in values.items())
        self._changes = 0  # number of changes since the start
        self._written = 0  # number of changes on disk
        self._queued: SharedResult[None] | None = None  # of the next write, if there are changes for it
        self._task: asyncio.Task[None] | None = None  # writes until there are none
        self._calls = PacedCalls()  # of requests whose changes are written
        self._writer = ThreadPoolExecutor(1, "kv-table")  # writes block on the disk, requests must not

    def _drop_invalid(self) -> None:
        """Remove entries that PUT_KV_CONFIG would refuse; the file is retained as one that is damaged."""
        faults = []
        for namespace, values in self._table.items():
            for key, value in list(values.items()):
                try:
                    rules.check(PutKv(namespace, key, value))
                except ProtocolError as error:
                    del values[key]
                    faults.append(str(error))
        if faults:
            self._damaged = True
            text = "Dropped %d invalid entries of %s, the next change retains the file as %s.damaged: %s"
            log.error(
                text, len(faults), self._path, self._path.name, "; ".join(faults[:EXAMPLES_MAX]), extra={"notice": True}
            )

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, None if it does not exist."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, name: str) -> dict[str, str] | None:
        """Return a copy of a namespace, None if it does not exist."""
        values = self._table.get(name)
        return None if values is None else dict(values)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value in memory; `wait_saved` waits until it is on disk.

        Raises:
            ProtocolError: a name or the table would be too large.
        """
        for kind, name in (("namespace", namespace), ("key", key)):
            if len(name) > NAME_MAX:
                raise ProtocolError(f"the KV {kind} has {len(name)} characters: expected at most {NAME_MAX}")
        former = self.get(namespace, key)
        size = self._size + _size(key, value) - (0 if former is None else _size(key, former))
        if size > TABLE_MAX and size > self._size:
            raise ProtocolError(
                f"the KV table would have {size} bytes: expected at most {TABLE_MAX}; delete some values"
            )
        if former is None and self._count >= VALUES_MAX:
            raise ProtocolError(f"the KV table has {self._count} values, the maximum is {VALUES_MAX}; delete some")
        if namespace not in self._table:
            self._make_room_for_namespace()
        self._table.setdefault(namespace, {})[key] = value
        self._count += former is None
        self._size = size
        self._changes += 1

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value from memory; the namespace stays, as in Java."""
        former = self._table.get(namespace, {}).pop(key, None)
        if former is not None:
            self._count -= 1
            self._size -= _size(key, former)
            self._changes += 1

    async def wait_saved(self) -> None:
        """Wait until all changes so far are on disk.

        Raises:
            StoreError: the file cannot be written; the next save tries again.
        """
        if self._written == self._changes:
            return
        if self._queued is None:
            self._queued = SharedResult(self._calls)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write_queued())
        await self._queued.wait()

    async def _write_queued(self) -> None:
        """Write the table until all changes are on disk, or a write fails."""
        try:
            while (queued := self._queued) is not None:
                self._queued = None
                await queued.settle(self._write_all())
        finally:
            self._task = None

    async def _write_all(self) -> None:
        latest, table = self._changes, {name: dict(values) for name, values in self._table.items()}
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._write, table)
        except OSError as error:
            raise StoreError(f"cannot write the KV table to {self._path}: {error.strerror or error}") from error
        self._written = latest

    def close(self) -> None:
        """Wait for the last write."""
        self._writer.shutdown()

    def _make_room_for_namespace(self) -> None:
        if len(self._table) < NAMESPACES_MAX:
            return
        # Deleted values leave empty namespaces, which make room first.
        for name in [name for name, values in self._table.items() if not values]:
            del self._table[name]
        if len(self._table) >= NAMESPACES_MAX:
            raise ProtocolError(f"the KV table has {len(self._table)} namespaces, the maximum is {NAMESPACES_MAX}")

    def _write(self, table: Mapping[str, Mapping[str, str]]) -> None:
        data = fastjson.write({"configTable": table}, pretty=True)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(self._path.name + ".tmp")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if self._path.exists():
            # A damaged file must not replace the backup that this table was read from.
            self._path.replace(
                self._path.with_name(f"{self._path.name}.damaged") if self._damaged else _backup(self._path)
            )
            self._damaged = False
        temporary.replace(self._path)
        sync_directory(self._path.parent)


def _size(key: str, value: str) -> int:
    """Return the bytes of one entry as JSON."""
    return len(fastjson.write(key)) + len(fastjson.write(value)) + 2


def _backup(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def _load(path: Path) -> tuple[KvDocument, bool]:
    """Return the table, and whether it was read from the backup because the file is damaged."""
    faults = []
    for candidate in (path, _backup(path)):
        try:
            data = candidate.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise ConfigError(
                "kvConfigPath", str(path), f"cannot read {candidate}: {error.strerror or error}"
            ) from error
        try:
            if not data.strip(b"\0 \t\r\n"):
                raise ProtocolError(f"the file is empty ({len(data)} bytes without content)")
            document = fastjson.decode(data, KvDocument)
        except ProtocolError as error:
            faults.append(f"{candidate}: {error}")
            continue
        for fault in faults:
            log.error("%s; using %s instead", fault, candidate)
        return document, bool(faults)
    if faults:
        raise ConfigError("kvConfigPath", str(path), f"{'; '.join(faults)}; repair or remove the file")
    return KvDocument(), False
