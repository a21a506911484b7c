"""Store of consumed messages in an SQLite file, which survives the process.

    entries   name, expires_ms              a consumed message
    blocks    name, expires_ms, bits        8,192 rows of Spark, one bit each

Any number of groups, and of processes of one machine, may share a file: names start with the group, and each addition is one
transaction. WAL mode with `synchronous=NORMAL`: an addition survives the process; a power loss may take the last ones, whose
messages are then delivered again. The file is used by one thread, because SQLite waits for locks and the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ariane.client.duplicates.consumed_store import ConsumedBlock, ConsumedKey
from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.errors import ClientClosed, ConfigError

if TYPE_CHECKING:
    import sqlite3  # at run time it is imported on use: it takes a quarter of the start of a client without it

APPLICATION_ID = 0x41524944  # "ARID"; in the head of the file
VERSION = 1
NEVER_MS = 2**53  # exact as a float, too
LOCK_TIMEOUT_S = 30.0  # other processes hold the lock for one addition
LOCK_PAUSE_S = 0.01
QUERY_NAMES = 500  # SQLite before 3.32 allows 999 parameters
PURGE_MIN = 64  # expired rows that one addition removes at most, or twice as many as it adds

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS entries (name TEXT PRIMARY KEY, expires_ms INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS entries_by_expiry ON entries (expires_ms)",
    "CREATE TABLE IF NOT EXISTS blocks (name TEXT PRIMARY KEY, expires_ms INTEGER NOT NULL, bits BLOB NOT NULL)",
    "CREATE INDEX IF NOT EXISTS blocks_by_expiry ON blocks (expires_ms)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)
_ADD_ENTRY = (
    "INSERT INTO entries VALUES (?, ?) "
    "ON CONFLICT (name) DO UPDATE SET expires_ms = max(expires_ms, excluded.expires_ms)"
)
_PURGE = (
    "DELETE FROM entries WHERE name IN (SELECT name FROM entries WHERE expires_ms <= ? ORDER BY expires_ms LIMIT ?)",
    "DELETE FROM blocks WHERE name IN (SELECT name FROM blocks WHERE expires_ms <= ? ORDER BY expires_ms LIMIT ?)",
)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class SqliteStore:
    """Remembers consumed messages in a file.

    Args:
        path: Database file, created with its directory. It must be on a local disk: SQLite's locks do not work on network
            file systems.
        clock: Source of time.

    Raises:
        ConfigError: the path is not a path. On entry of `Idempotent`: the file cannot be opened, or is another program's.

    Example:
        Idempotent(listener, store=SqliteStore("/data/stock.db"))
    """

    def __init__(self, path: str | Path, *, clock: Clock = SYSTEM_CLOCK) -> None:
        if not isinstance(path, str | Path) or not str(path):
            raise ConfigError("path", path, "expected the path of a database file, which is created: /data/stock.db")
        self.path = Path(path)
        self._clock = clock
        self._users = 0  # calls of `open` without their `close`
        self._thread: ThreadPoolExecutor | None = None  # one thread, which uses the connection
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Open the file, or create it.

        Raises:
            ConfigError: the file cannot be opened, or is not a file of this class.
        """
        self._users += 1
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite-store")
        try:
            await self._in_thread(self._open)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Finish writes and close the file, if no other user has it open."""
        self._users = max(0, self._users - 1)
        if self._users or self._thread is None:
            return
        thread, self._thread = self._thread, None
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(thread, self._close))
        thread.shutdown(wait=False)

    async def seen(self, keys: Sequence[ConsumedKey]) -> set[ConsumedKey]:
        """Return those keys that were added, by any process, and are not older than their `ttl`."""
        return await self._in_thread(self._seen, keys)

    async def add(self, keys: Sequence[ConsumedKey], ttl: float | None) -> None:
        """Record keys for `ttl` seconds, a block from the last time that a row was added to it."""
        await self._in_thread(self._add, keys, ttl)

    async def _in_thread(
        self, function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        if self._thread is None:
            raise ClientClosed(f"{self.path} is not open: use Idempotent within `async with`")
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: function(*args, **kwargs))

    # Everything below runs in the thread.

    def _open(self) -> None:
        import sqlite3

        if self._connection is not None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # An absolute path: SQLite gives names such as ":memory:" a meaning.
            connection = sqlite3.connect(
                self.path.absolute(), timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise ConfigError("path", str(self.path), f"the database cannot be opened: {error}") from error
        try:
            self._wait_prepared(connection)
        except sqlite3.Error as error:
            connection.close()
            raise ConfigError("path", str(self.path), f"this is not a usable SQLite database: {error}") from error
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _wait_prepared(self, connection: sqlite3.Connection) -> None:
        """Create the tables and set the modes, again while another process does the same.

        SQLite waits for locks, but not for the one that the change to WAL mode needs.
        """
        import sqlite3

        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                self._prepare(connection)
                return
            except sqlite3.OperationalError as error:
                is_locked = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
                if not is_locked or time.monotonic() >= deadline:
                    raise
            time.sleep(LOCK_PAUSE_S)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        with _transaction(connection):
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if application != APPLICATION_ID and (application or version or tables):
                raise ConfigError("path", str(self.path), "this is another program's database; choose another path")
            if application and version != VERSION:
                fix = f"its format is {version}, this version of Ariane reads {VERSION}; choose another path"
                raise ConfigError("path", str(self.path), fix)
            if not application:
                for statement in _SCHEMA:
                    connection.execute(statement)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise ClientClosed(f"{self.path} is closed")
        return self._connection

    def _seen(self, keys: Sequence[ConsumedKey]) -> set[ConsumedKey]:
        connection, now_ms = self._opened(), self._clock.now_ms()
        entries: set[str] = set()
        for names in _chunks(key.name for key in keys if key.bit is None):
            query = f"SELECT name FROM entries WHERE expires_ms > ? AND name IN ({_marks(names)})"  # noqa: S608 - only marks
            entries.update(name for (name,) in connection.execute(query, (now_ms, *names)))
        blocks = _read_blocks(connection, keys, now_ms)
        return {
            key
            for key in keys
            if (key.name in entries if key.bit is None else key.name in blocks and key.bit in blocks[key.name])
        }

    def _add(self, keys: Sequence[ConsumedKey], ttl: float | None) -> None:
        connection, now_ms = self._opened(), self._clock.now_ms()
        expires_ms = NEVER_MS if ttl is None else now_ms + max(1, round(ttl * 1000))
        with _transaction(connection):
            connection.executemany(_ADD_ENTRY, [(name, expires_ms) for name, bit in keys if bit is None])
            # Read within the transaction: another process may have added rows to the same block.
            blocks = _read_blocks(connection, keys, now_ms)
            for name, bit in keys:
                if bit is not None:
                    blocks.setdefault(name, ConsumedBlock()).add(bit)
            connection.executemany(
                "INSERT OR REPLACE INTO blocks VALUES (?, ?, ?)",
                [(name, max(expires_ms, int(block.expires)), bytes(block.bits)) for name, block in blocks.items()],
            )
            for statement in _PURGE:
                connection.execute(statement, (now_ms, max(PURGE_MIN, 2 * len(keys))))


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    # IMMEDIATE: a transaction that reads first and writes later could not wait for another writer.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


def _read_blocks(connection: sqlite3.Connection, keys: Sequence[ConsumedKey], now_ms: int) -> dict[str, ConsumedBlock]:
    blocks = {}
    for names in _chunks(dict.fromkeys(key.name for key in keys if key.bit is not None)):
        query = f"SELECT name, expires_ms, bits FROM blocks WHERE expires_ms > ? AND name IN ({_marks(names)})"  # noqa: S608
        for name, expires_ms, bits in connection.execute(query, (now_ms, *names)):
            blocks[name] = ConsumedBlock(bits, expires_ms)
    return blocks


def _chunks(names: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(names)
    while chunk := list(islice(remaining, QUERY_NAMES)):
        yield chunk


def _marks(names: Sequence[str]) -> str:
    return ",".join("?" * len(names))
