"""Stores of consumed messages: what `Idempotent` requires of one, and the store in memory.

    name                                             bit
    stock/id/orders/7F00000100002A9F00000000001       -     a message, by topic and unique id
    stock/key/ORDER-17                               -     a message, by the application's function
    stock/row/orders/<run>/<batch>/<partition>/0     17    row 17 of a Spark partition: bit 17 of block 0

A store is only a record of successes. `Idempotent` itself prevents concurrent calls with one key, so a store needs two
operations, `seen` and `add`, and a key that was lost, evicted or forgotten has one effect: its message is delivered again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from ariane.client.instance import validation
from ariane.clock import SYSTEM_CLOCK, Clock

BLOCK_ROWS = 8192  # rows of Spark in a block; one kilobyte of bits
ENTRIES_MAX = 100_000
BLOCKS_MAX = 16_384  # 16 MiB, up to 134 million rows


class ConsumedKey(NamedTuple):
    """Identity of a consumed message in a store."""

    name: str
    """Consumer group, kind and identity, at most 512 characters. Rows of a block have the same name."""
    bit: int | None = None
    """Number of a Spark row in its block, from 0 to 8,191; None: the name alone identifies the message."""


class ConsumedStore(Protocol):
    """What `Idempotent` requires of a store; applications may implement it.

    Several `Idempotent` may use one store: each calls `open` once before everything else, and `close` once.
    Exceptions are allowed everywhere: if `seen` raises, the messages are delivered again later; if `add` raises, an error is
    logged, and copies are recognized by this process only.
    """

    async def open(self) -> None:
        """Connect. An exception ends the entry of `Idempotent`."""
        ...

    async def close(self) -> None:
        """Finish writes and disconnect, if no other user has the store open."""
        ...

    async def seen(self, keys: Sequence[ConsumedKey]) -> Collection[ConsumedKey]:
        """Return those keys that were added and are not older than their `ttl`. Never return a key that was not added."""
        ...

    async def add(self, keys: Sequence[ConsumedKey], ttl: float | None) -> None:
        """Record keys for `ttl` seconds, or without limit if it is None. Keys that are present get the later end.

        The messages are acknowledged after this returns. It is not cancelled.
        """
        ...


class ConsumedBlock:
    """Rows of one block, as bits."""

    __slots__ = ("bits", "expires")

    def __init__(self, bits: bytes = b"", expires: float = 0.0) -> None:
        self.bits = bytearray(bits or bytes(BLOCK_ROWS // 8))
        self.expires = expires

    def __contains__(self, bit: int) -> bool:
        return bool(self.bits[bit >> 3] & 1 << (bit & 7))

    def add(self, bit: int) -> None:
        """Set a bit."""
        self.bits[bit >> 3] |= 1 << (bit & 7)


class MemoryStore:
    """Remembers consumed messages until the process ends.

    Args:
        entries_max: Maximum number of messages; the oldest are forgotten. 100,000 take about 25 MB.
        blocks_max: Maximum number of blocks of 8,192 Spark rows, each 1 KiB; the least recently written are forgotten.
        clock: Source of time.

    Raises:
        ConfigError: an argument cannot be used.

    Example:
        Idempotent(listener, store=MemoryStore(1_000_000))
    """

    def __init__(
        self, entries_max: int = ENTRIES_MAX, *, blocks_max: int = BLOCKS_MAX, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._entries_max = validation.whole("entries_max", entries_max, 1, 2**31 - 1)
        self._blocks_max = validation.whole("blocks_max", blocks_max, 1, 2**31 - 1)
        self._clock = clock
        # Names with the end of their time to live, least recently added first.
        self._entries: OrderedDict[str, float] = OrderedDict()
        self._blocks: OrderedDict[str, ConsumedBlock] = OrderedDict()

    def __len__(self) -> int:
        """Number of remembered messages and blocks, including those that are past their time to live."""
        return len(self._entries) + len(self._blocks)

    async def open(self) -> None:
        """Do nothing: memory is always open."""

    async def close(self) -> None:
        """Do nothing: what was consumed stays known as long as the object exists."""

    async def seen(self, keys: Sequence[ConsumedKey]) -> set[ConsumedKey]:
        """Return those keys that were added and are not older than their `ttl`."""
        now = self._clock.monotonic()
        return {key for key in keys if self._is_seen(key, now)}

    def _is_seen(self, key: ConsumedKey, now: float) -> bool:
        if key.bit is None:
            return self._entries.get(key.name, now) > now
        block = self._blocks.get(key.name)
        return block is not None and block.expires > now and key.bit in block

    async def add(self, keys: Sequence[ConsumedKey], ttl: float | None) -> None:
        """Record keys for `ttl` seconds, a block from the last time that a row was added to it."""
        now = self._clock.monotonic()
        expires = float("inf") if ttl is None else now + ttl
        for name, bit in keys:
            if bit is None:
                self._entries[name] = max(expires, self._entries.get(name, expires))
                self._entries.move_to_end(name)
            else:
                self._add_row(name, bit, now, expires)
        self._evict(now, 2 * len(keys))

    def _add_row(self, name: str, bit: int, now: float, expires: float) -> None:
        block = self._blocks.get(name)
        if block is None or block.expires <= now:
            block = self._blocks[name] = ConsumedBlock()
        block.add(bit)
        block.expires = max(expires, block.expires)
        self._blocks.move_to_end(name)

    def _evict(self, now: float, steps: int) -> None:
        """Remove what exceeds the limits, and up to `steps` expired entries and blocks: few, so that no call takes long."""
        while len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
        while len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)
        for _ in range(steps):
            if self._entries and next(iter(self._entries.values())) <= now:
                self._entries.popitem(last=False)
            elif self._blocks and next(iter(self._blocks.values())).expires <= now:
                self._blocks.popitem(last=False)
            else:
                break
