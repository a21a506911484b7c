"""Idempotent listener: skips rows that were consumed before, when their writer ran again. The consumer's side of `spark.write`.

    async with Idempotent(listener, Path("orders.seen")) as idempotent:
        async with PushConsumer(namesrv, "stock", {"orders": "*"}, idempotent): ...

    messages ─→ skip consumed rows ─→ wait for rows that are being consumed ─→ listener ─ success ─→ memory and journal file

Rows are identified by the property ARIANE_DEDUP (`model.dedup`) and stored as one bit each, in blocks of 8,192 sequences. The
highest sequence of each partition would be smaller, but wrong: a task that dies leaves gaps in one queue while another is ahead,
and if rows then move to another queue (a broker was unavailable, the topic grew), the highest sequence would skip rows that were
never consumed. A bit states only what was consumed. Forgotten rows are delivered again; unconsumed rows are never skipped.

Messages without the property, or with an invalid one, are passed on unchanged.
"""

from __future__ import annotations

import asyncio
import logging
import os
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Iterable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from ariane.client import validation
from ariane.client.listener_invoker import CallListener, Listener, ListenerMiddleware, is_coroutine_listener
from ariane.errors import ConfigError
from ariane.model.dedup import DEDUP, Row, parse, text
from ariane.model.message import ReceivedMessage

log = logging.getLogger("ariane.client")

BLOCK = 8192  # sequences; one kilobyte of bits
BLOCKS_MAX = 16_384  # 16 MiB, up to 134 million rows
JOURNAL_LINES = 100_000  # lines after which the file is rewritten from memory

Block = tuple[str, int, int, int]  # run, batch, partition, number


class ConsumedRows:
    """Consumed rows, in the blocks that were written to most recently. Pure."""

    def __init__(self, blocks_max: int = BLOCKS_MAX) -> None:
        self._blocks_max = blocks_max
        self._blocks: OrderedDict[Block, bytearray] = OrderedDict()

    def __contains__(self, row: Row) -> bool:
        bits = self._blocks.get((*row[:3], row.sequence // BLOCK))
        bit = row.sequence % BLOCK
        return bits is not None and bool(bits[bit >> 3] & 1 << (bit & 7))

    def add(self, row: Row) -> None:
        """Add a row; the block that was written to least recently may be forgotten for it."""
        block, bit = (*row[:3], row.sequence // BLOCK), row.sequence % BLOCK
        bits = self._blocks.setdefault(block, bytearray(BLOCK // 8))
        bits[bit >> 3] |= 1 << (bit & 7)
        self._blocks.move_to_end(block)
        if len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)

    def lines(self) -> list[str]:
        """Return all blocks as lines of the file, oldest first."""
        return [f"= {text(Row(*block))} {b64encode(bits).decode()}" for block, bits in self._blocks.items()]

    def read(self, line: str) -> bool:
        """Add what a line of the file states. Return False if the line is invalid."""
        kind, _, row_text = line.partition(" ")
        name, _, coded = row_text.partition(" ")
        row = parse(name)
        if row is None or kind not in ("+", "=") or (kind == "+" and coded):
            return False
        if kind == "+":
            self.add(row)
            return True
        try:
            bits = bytearray(b64decode(coded, validate=True))
        except ValueError:
            return False
        if len(bits) != BLOCK // 8:
            return False
        self._blocks[row] = bits
        self._blocks.move_to_end(row)
        if len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)
        return True


class Idempotent(ListenerMiddleware):
    """A listener that skips rows which were consumed before; give it to a consumer in place of `listener`.

    A journal file belongs to one `Idempotent` of one process at a time, because two would lose each other's lines.

    A plain function that exceeds the consumer's timeout cannot be stopped: its rows are blocked until it has ended, and a late
    success counts.

    Args:
        listener: The application's listener.
        path: Journal file. With it consumed rows survive a restart: a line per row is handed to the operating system before
            the consumer learns of the success. None: rows are remembered by this process only.
        blocks_max: Maximum number of blocks of 8,192 rows in memory; the least recently written are forgotten.

    Raises:
        ConfigError: an argument cannot be used. On entry: the file cannot be read, or belongs to another `Idempotent`.

    Example:
        async with Idempotent(listener, Path("orders.seen")) as idempotent:
            async with PushConsumer(namesrv, "stock", {"orders": "*"}, idempotent):
                await stopped.wait()
    """

    def __init__(self, listener: Listener, path: Path | None = None, *, blocks_max: int = BLOCKS_MAX) -> None:
        validation.whole("blocks_max", blocks_max, 1, 2**31 - 1)
        self.listener = validation.callback("listener", listener, "messages")
        # A coroutine function can be cancelled by the consumer's timeout, a thread cannot.
        self._is_async = is_coroutine_listener(listener)
        self._consumed = ConsumedRows(blocks_max)  # rows that were consumed, by blocks of sequence numbers
        # Rows in a call, with an event that is set when it ends: a duplicate waits for the outcome.
        self._running: dict[Row, asyncio.Event] = {}
        self._file = _Journal(path) if path is not None else None  # None: rows are remembered by this process only
        self._late_calls: set[asyncio.Task[None]] = set()  # calls in threads that outlived the consumer's timeout
        self._turn = asyncio.Lock()  # one write to the journal at a time, because lines must not interleave
        # The write in a thread: it goes on after its caller was cancelled, so the next one waits for it.
        self._writing: asyncio.Future[None] | None = None
        self.skipped = 0
        """Messages that were skipped because their rows were consumed before."""

    async def __aenter__(self) -> Self:
        if self._file is not None:
            await asyncio.to_thread(self._file.load, self._consumed)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with self._turn:
            if self._writing is not None:
                await asyncio.wait([self._writing])
            if self._file is not None:
                await asyncio.to_thread(self._file.close)

    async def __call__(self, messages: list[ReceivedMessage]) -> None:
        await self.invoke(messages, self._run)

    async def invoke(self, messages: list[ReceivedMessage], run: CallListener) -> None:
        rows = [parse(message.properties.get(DEDUP, "")) for message in messages]
        while running := [self._running[row] for row in rows if row is not None and row in self._running]:
            await running[0].wait()  # without holding a row, so two calls cannot wait for each other
        claimed: dict[Row, None] = {}
        fresh = []
        for message, row in zip(messages, rows, strict=True):
            if row is None:
                fresh.append(message)
            elif row not in self._consumed and row not in claimed:
                claimed[row] = None
                fresh.append(message)
        has_ended = asyncio.Event()
        self._running.update(dict.fromkeys(claimed, has_ended))
        in_thread: Future[bool] = Future()
        try:
            if fresh:
                await run(self.listener if self._is_async else _tracked(self.listener, in_thread), fresh)
        except BaseException:
            if in_thread.cancel():  # no thread has taken the call, and none will
                self._release(claimed, has_ended)
            else:
                late_call = asyncio.ensure_future(self._end_late(claimed, has_ended, in_thread))
                self._late_calls.add(late_call)
                late_call.add_done_callback(self._late_calls.discard)
            raise
        self.skipped += len(messages) - len(fresh)
        await self._remember(claimed, has_ended)

    async def _run(self, listener: Listener, messages: list[ReceivedMessage]) -> None:
        result = listener(messages) if self._is_async else await asyncio.to_thread(listener, messages)
        if result is not None:
            await result

    def _release(self, rows: Iterable[Row], has_ended: asyncio.Event) -> None:
        for row in rows:
            del self._running[row]
        has_ended.set()

    async def _end_late(self, rows: dict[Row, None], has_ended: asyncio.Event, in_thread: Future[bool]) -> None:
        try:
            is_success = await asyncio.wrap_future(in_thread)
        except BaseException:
            self._release(rows, has_ended)
            raise
        if is_success:
            await self._remember(rows, has_ended)
        else:
            self._release(rows, has_ended)

    async def _remember(self, rows: dict[Row, None], has_ended: asyncio.Event) -> None:
        for row in rows:
            self._consumed.add(row)
        try:
            if rows:
                await self._store(rows)
        finally:
            self._release(rows, has_ended)

    async def _store(self, rows: Iterable[Row]) -> None:
        file = self._file
        if file is None:
            return
        async with self._turn:
            if not file.is_open:
                log.error(
                    "%s: rows were consumed while the journal was closed; a restart delivers them again", file.path
                )
                return
            if self._writing is not None:  # of a cancelled call: its thread continues and uses the same file
                await asyncio.wait([self._writing])
            try:
                if file.is_long:
                    self._writing = asyncio.ensure_future(asyncio.to_thread(file.rewrite, self._consumed.lines()))
                else:
                    self._writing = asyncio.ensure_future(asyncio.to_thread(file.append, rows))
                await asyncio.shield(self._writing)
            except OSError as error:
                log.error("%s: could not write consumed rows, a restart delivers them again: %s", file.path, error)


def _tracked(listener: Listener, in_thread: Future[bool]) -> Listener:
    """Return the plain function `listener`, reporting to `in_thread` when its thread has ended and whether it succeeded."""

    def call(messages: list[ReceivedMessage]) -> Awaitable[None] | None:
        if not in_thread.set_running_or_notify_cancel():
            return None  # the call was cancelled and its rows are released
        try:
            result = listener(messages)
        except BaseException:
            in_thread.set_result(False)
            raise
        in_thread.set_result(result is None)
        return result

    return call


class _Journal:
    """Consumed rows on disk, and `path`.lock alongside, which one process holds.

    + run/batch/partition/sequence            a row, appended
    = run/batch/partition/block base64        8,192 rows as bits, written when the file is rewritten
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = 0
        self._lock: IO[str] | None = None

    @property
    def is_open(self) -> bool:
        return self._lock is not None

    @property
    def is_long(self) -> bool:
        return self._lines >= JOURNAL_LINES

    def load(self, consumed: ConsumedRows) -> None:
        """Lock the file, read it and rewrite it, which removes a line that a crash left incomplete.

        A line without its newline does not count: half of a number is another number.
        """
        lock = self._claim()
        try:
            self._load(consumed)
        except BaseException:
            lock.close()
            raise
        self._lock = lock

    def _claim(self) -> IO[str]:
        """Return the locked lock file. It is a separate file because `path` is replaced, and it is never removed, because another
        process may have opened it."""
        try:
            import fcntl  # imported here: a client without a journal also runs on systems without these locks
        except ImportError as error:
            raise ConfigError(
                "path",
                str(self.path),
                f"the journal needs file locks, which this system lacks; omit the path ({error})",
            ) from error
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = self.path.with_name(f"{self.path.name}.lock").open("w")
        except OSError as error:
            raise ConfigError("path", str(self.path), f"the journal cannot be written to: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            fix = f"the journal cannot be locked: {error}"
            if isinstance(error, BlockingIOError):
                fix = "another Idempotent, of this process or of another, uses this file; give each a path of its own"
            raise ConfigError("path", str(self.path), fix) from error
        return lock

    def _load(self, consumed: ConsumedRows) -> None:
        try:
            with self.path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
                bad = sum(not (line.endswith("\n") and consumed.read(line[:-1])) for line in lines)
        except FileNotFoundError:
            bad = 0
        except OSError as error:
            raise ConfigError("path", str(self.path), f"the journal cannot be read: {error}") from error
        if bad:
            log.warning("%s: ignoring %d invalid lines; their rows would be delivered again", self.path, bad)
        self.rewrite(consumed.lines())

    def append(self, rows: Iterable[Row]) -> None:
        """Append a line per row."""
        added = [f"+ {text(row)}\n" for row in rows]
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(added)
        self._lines += len(added)

    def close(self) -> None:
        """Write everything to disk and release the lock."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        with lock, self.path.open("a", encoding="utf-8") as file:
            os.fsync(file.fileno())

    def rewrite(self, lines: Iterable[str]) -> None:
        """Replace the file by `lines`, atomically."""
        temporary = self.path.with_name(f"{self.path.name}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        self._lines = 0
