"""A listener that is not given a row a second time when its writer ran again. The consumer's side of `spark.write`.

    async with Idempotent(listener, Path("orders.seen")) as once:
        async with PushConsumer("stock", namesrv, {"orders": "*"}, once): ...

    messages ─→ rows that were consumed are left out ─→ rows that are being consumed just now are waited for ─→ listener
                                                                                   success ─→ remembered, and written to the file

What is remembered: rows of ARIANE_DEDUP (`model.dedup`), a bit each, in blocks of 8,192 sequences. Not the highest sequence of
each partition, which would be smaller: a task that dies leaves gaps behind it in one queue while another is ahead, and when
rows then take another queue (a broker was away, the topic grew) the highest sequence would pass over a row that nobody consumed.
A bit says only what was seen. What has been forgotten is let through, never the other way round.

Without the property, or with one that is no row's, a message goes to the listener as it came.
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

BLOCK = 8192  # sequences; a kilobyte of bits
BLOCKS_MAX = 16_384  # 16 MiB, 134 million rows when they are dense
JOURNAL_LINES = 100_000  # then the file is written anew, from what is remembered

Block = tuple[str, int, int, int]  # run, batch, partition, number


class ConsumedRows:
    """Rows that were consumed, the blocks that were last written to; pure."""

    def __init__(self, blocks_max: int = BLOCKS_MAX) -> None:
        self._blocks_max = blocks_max
        self._blocks: OrderedDict[Block, bytearray] = OrderedDict()

    def __contains__(self, row: Row) -> bool:
        bits = self._blocks.get((*row[:3], row.sequence // BLOCK))
        at = row.sequence % BLOCK
        return bits is not None and bool(bits[at >> 3] & 1 << (at & 7))

    def add(self, row: Row) -> None:
        block, at = (*row[:3], row.sequence // BLOCK), row.sequence % BLOCK
        bits = self._blocks.setdefault(block, bytearray(BLOCK // 8))
        bits[at >> 3] |= 1 << (at & 7)
        self._blocks.move_to_end(block)
        if len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)

    def lines(self) -> list[str]:
        """All blocks for the file, oldest first."""
        return [f"= {text(Row(*block))} {b64encode(bits).decode()}" for block, bits in self._blocks.items()]

    def read(self, line: str) -> bool:
        """Remember what a line of the file says; False when it is none."""
        kind, _, rest = line.partition(" ")
        name, _, coded = rest.partition(" ")
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
    """The listener to give to a consumer in place of `listener`. With a `path` the memory outlives the process: a line for each
    row, handed to the operating system before the consumer is told of success.

    A file belongs to one `Idempotent` of one process at a time, for two would drop each other's lines: the second is refused.

    A plain function that takes longer than the consumer waits cannot be stopped: its rows are held until it has ended, and a
    late success is one."""

    def __init__(self, listener: Listener, path: Path | None = None, *, blocks_max: int = BLOCKS_MAX) -> None:
        validation.whole("blocks_max", blocks_max, 1, 2**31 - 1)
        self.listener = validation.callback("listener", listener, "messages")
        self._is_async = is_coroutine_listener(listener)
        self._seen = ConsumedRows(blocks_max)
        self._running: dict[Row, asyncio.Event] = {}
        self._file = _Journal(path) if path is not None else None
        self._late: set[asyncio.Task[None]] = set()  # calls in threads that nobody waits for any more
        self._turn = asyncio.Lock()
        self._writing: asyncio.Future[None] | None = None
        self.skipped = 0
        """Messages that the listener was not given, because their rows were consumed before."""

    async def __aenter__(self) -> Self:
        if self._file is not None:
            await asyncio.to_thread(self._file.load, self._seen)
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
            await running[0].wait()  # nothing is held meanwhile, so two calls never wait for each other
        mine: dict[Row, None] = {}
        fresh = []
        for message, row in zip(messages, rows, strict=True):
            if row is None:
                fresh.append(message)
            elif row not in self._seen and row not in mine:
                mine[row] = None
                fresh.append(message)
        ended = asyncio.Event()
        self._running.update(dict.fromkeys(mine, ended))
        in_thread: Future[bool] = Future()
        try:
            if fresh:
                await run(self.listener if self._is_async else _tracked(self.listener, in_thread), fresh)
        except BaseException:
            if in_thread.cancel():  # no thread has the call, and none will take it
                self._end(mine, ended)
            else:
                late = asyncio.ensure_future(self._end_late(mine, ended, in_thread))
                self._late.add(late)
                late.add_done_callback(self._late.discard)
            raise
        self.skipped += len(messages) - len(fresh)
        await self._remember(mine, ended)

    async def _run(self, listener: Listener, messages: list[ReceivedMessage]) -> None:
        waiting = listener(messages) if self._is_async else await asyncio.to_thread(listener, messages)
        if waiting is not None:
            await waiting

    def _end(self, rows: Iterable[Row], ended: asyncio.Event) -> None:
        for row in rows:
            del self._running[row]
        ended.set()

    async def _end_late(self, rows: dict[Row, None], ended: asyncio.Event, in_thread: Future[bool]) -> None:
        try:
            is_success = await asyncio.wrap_future(in_thread)
        except BaseException:
            self._end(rows, ended)
            raise
        if is_success:
            await self._remember(rows, ended)
        else:
            self._end(rows, ended)

    async def _remember(self, rows: dict[Row, None], ended: asyncio.Event) -> None:
        for row in rows:
            self._seen.add(row)
        try:
            if rows:
                await self._store(rows)
        finally:
            self._end(rows, ended)

    async def _store(self, rows: Iterable[Row]) -> None:
        file = self._file
        if file is None:
            return
        async with self._turn:
            if not file.is_open:
                log.error("%s: rows were consumed while it was not open, a restart gives them again", file.path)
                return
            if self._writing is not None:  # of a call that was cancelled: its thread goes on, with the same file
                await asyncio.wait([self._writing])
            try:
                if file.is_long:
                    self._writing = asyncio.ensure_future(asyncio.to_thread(file.rewrite, self._seen.lines()))
                else:
                    self._writing = asyncio.ensure_future(asyncio.to_thread(file.append, rows))
                await asyncio.shield(self._writing)
            except OSError as error:
                log.error("%s: rows are remembered by this process only, a restart forgets them: %s", file.path, error)


def _tracked(listener: Listener, in_thread: Future[bool]) -> Listener:
    """The plain function `listener`; `in_thread` says when its thread is done, and whether that was success."""

    def call(messages: list[ReceivedMessage]) -> Awaitable[None] | None:
        if not in_thread.set_running_or_notify_cancel():
            return None  # nobody waits for it, and the rows are free
        try:
            waiting = listener(messages)
        except BaseException:
            in_thread.set_result(False)
            raise
        in_thread.set_result(waiting is None)
        return waiting

    return call


class _Journal:
    """The memory on disk, and `path`.lock beside it, which says whose it is.

    + run/batch/partition/sequence            a row, appended
    = run/batch/partition/block base64        8,192 rows as bits, when the file is written anew
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

    def load(self, seen: ConsumedRows) -> None:
        """Claim the file, read it, if there is one, and write it anew: what a dying process left half written is gone then.
        A line without its end does not count: half of a number is another number."""
        lock = self._claim()
        try:
            self._load(seen)
        except BaseException:
            lock.close()
            raise
        self._lock = lock

    def _claim(self) -> IO[str]:
        """A file of its own, for `path` is replaced again and again. It stays: another may have it open already."""
        try:
            import fcntl  # here: clients without a memory on disk run where there are no such locks, too
        except ImportError as error:
            raise ConfigError("path", str(self.path), f"the memory needs file locks: leave it out ({error})") from error
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = self.path.with_name(f"{self.path.name}.lock").open("w")
        except OSError as error:
            raise ConfigError("path", str(self.path), f"the memory cannot be written to: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            why = f"the memory cannot be locked: {error}"
            if isinstance(error, BlockingIOError):
                why = "another Idempotent, of this process or of another, has this memory: give each a path of its own"
            raise ConfigError("path", str(self.path), why) from error
        return lock

    def _load(self, seen: ConsumedRows) -> None:
        try:
            with self.path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
                bad = sum(not (line.endswith("\n") and seen.read(line[:-1])) for line in lines)
        except FileNotFoundError:
            bad = 0
        except OSError as error:
            raise ConfigError("path", str(self.path), f"the memory cannot be read: {error}") from error
        if bad:
            log.warning("%s: %d lines are none and forgotten; their rows would be consumed again", self.path, bad)
        self.rewrite(seen.lines())

    def append(self, rows: Iterable[Row]) -> None:
        added = [f"+ {text(row)}\n" for row in rows]
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(added)
        self._lines += len(added)

    def close(self) -> None:
        """What was appended is on the disk, and the file another's to have."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        with lock, self.path.open("a", encoding="utf-8") as file:
            os.fsync(file.fileno())

    def rewrite(self, lines: Iterable[str]) -> None:
        fresh = self.path.with_name(f"{self.path.name}.tmp")
        with fresh.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)
        self._lines = 0
