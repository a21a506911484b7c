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
import inspect
import logging
import os
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from ariane.client.listening import Listener
from ariane.errors import ConfigError
from ariane.model.dedup import DEDUP, Row, parse, text
from ariane.model.message import ReceivedMessage

log = logging.getLogger("ariane.client")

BLOCK = 8192  # sequences; a kilobyte of bits
BLOCKS_MAX = 16_384  # 16 MiB, 134 million rows when they are dense
JOURNAL_LINES = 100_000  # then the file is written anew, from what is remembered

Block = tuple[str, int, int, int]  # run, batch, partition, number


class Seen:
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


class Idempotent:
    """The listener to give to a consumer in place of `listener`. With a `path` the memory outlives the process: a line for each
    row, handed to the operating system before the consumer is told of success."""

    def __init__(self, listener: Listener, path: Path | None = None, *, blocks_max: int = BLOCKS_MAX) -> None:
        if blocks_max < 1:
            raise ConfigError("blocks_max", blocks_max, "at least one block has to be remembered")
        call = getattr(listener, "__call__", None)  # noqa: B004 - an object may have an async __call__
        self._is_async = inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(call)
        self._listener = listener
        self._seen = Seen(blocks_max)
        self._running: dict[Row, asyncio.Event] = {}
        self._file = _File(path) if path is not None else None
        self._turn = asyncio.Lock()
        self._writing: asyncio.Future[None] | None = None
        self.left_out = 0
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
        try:
            if fresh:
                await self._consume(fresh)
            self.left_out += len(messages) - len(fresh)
            for row in mine:
                self._seen.add(row)
        finally:
            for row in mine:
                del self._running[row]
            ended.set()
        if mine:
            await self._store(mine)

    async def _consume(self, messages: list[ReceivedMessage]) -> None:
        call: Callable[[list[ReceivedMessage]], Awaitable[None] | None] = self._listener
        waiting = call(messages) if self._is_async else await asyncio.to_thread(call, messages)
        if waiting is not None:
            await waiting

    async def _store(self, rows: Iterable[Row]) -> None:
        file = self._file
        if file is None:
            return
        async with self._turn:
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


class _File:
    """The memory on disk.

    + run/batch/partition/sequence            a row, appended
    = run/batch/partition/block base64        8,192 rows as bits, when the file is written anew
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = 0

    @property
    def is_long(self) -> bool:
        return self._lines >= JOURNAL_LINES

    def load(self, seen: Seen) -> None:
        """Read the file, if there is one, and write it anew: what a dying process left half written is gone then. A line
        without its end does not count: half of a number is another number."""
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
        """What was appended is on the disk."""
        with self.path.open("a", encoding="utf-8") as file:
            os.fsync(file.fileno())

    def rewrite(self, lines: Iterable[str]) -> None:
        fresh = self.path.with_name(f"{self.path.name}.tmp")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)
        self._lines = 0
