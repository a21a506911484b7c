"""What a connection writes: the frames of a tick leave in one write, and a peer that does not read them is noticed.

    write ─→ frames of this tick ─→ one write ─→ transport ── its buffer is above the limit ─→ not writable until the peer reads
                                        └─ server ─→ counted in the bound of all connections (`limits.unread_responses`)

A server drops a connection whose peer reads nothing for `unread_timeout_s` while it is not writable.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.limits.quotas import ConnectionQuota
from ariane.net.limits.unread_responses import NOTE_MIN_BYTES

WRITE_HIGH_WATER = 4 * 1024 * 1024  # bytes of a client's requests that may be buffered before `request` waits


class Owner(Protocol):
    """The connection that writes."""

    def on_written(self, size: int, now: float) -> None:
        """Called after each write, with its bytes and its time on the loop's clock."""
        ...

    def drop(self, reason: str) -> None:
        """Abort the connection."""
        ...

    def update_reading(self) -> None:
        """Stop to serve requests while frames are held, or serve them again."""
        ...


class Outgoing:
    """Frames for one peer, and how much of them it has read.

    Args:
        owner: Its `on_written` is called; dropped if its peer does not read.
        limits: Bounds of the server; None: a client, which waits before it sends more.
        loop: The running event loop.
    """

    def __init__(self, owner: Owner, limits: ServerLimits | None, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._limits = limits
        self._loop = loop
        self._transport: asyncio.Transport | None = None  # None before the connection is established, and after its end
        self._quota: ConnectionQuota | None = None  # of a server's connection: counts unread bytes
        self._pieces: list[bytes] = []  # of the next write; one write per batch costs less than one per response
        self.size = 0  # bytes of responses in it
        self._is_scheduled = False  # it happens later in this tick
        self.writable = asyncio.Event()  # cleared while the transport's buffer is above its limit
        self.writable.set()
        self._is_full = False  # the transport's buffer is above its limit
        self._is_held = False  # the server may not answer now
        self._written = 0  # bytes handed to the transport; minus its buffer they are what the peer has read
        self._noted = 0  # bytes written since they were last counted in the limits
        self._read_by_peer = 0  # bytes that the peer had read at the last check of its progress
        self._unread_timer: asyncio.TimerHandle | None = None  # runs while the peer does not read

    @property
    def pieces(self) -> int:
        """Number of pieces of the next write."""
        return len(self._pieces)

    def attach(self, transport: asyncio.Transport, quota: ConnectionQuota | None = None) -> None:
        """Write to `transport` from now on; `quota` counts what its peer does not read."""
        self._transport, self._quota = transport, quota
        self._set_high_water()

    def detach(self) -> None:
        """Discard what is not written: the connection is lost."""
        self._transport = None
        self._pieces.clear()
        self.writable.set()
        self.forget()
        if self._unread_timer is not None:
            self._unread_timer.cancel()

    def write(self, pieces: list[bytes]) -> None:
        """Write frames at the end of this tick, or in the next `flush`."""
        self._pieces += pieces
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.flush)

    def write_responses(self, pieces: list[bytes]) -> None:
        """Write frames whose bytes end a batch of requests."""
        self.size += sum(map(len, pieces))
        self.write(pieces)

    def hold(self) -> None:
        """Collect frames until the caller calls `flush`."""
        self._is_scheduled = True

    def flush(self) -> None:
        """Write what is collected."""
        self._is_scheduled = False
        if self._pieces and self._transport is not None:
            may_answer = None if self._limits is None else self._limits.may_answer
            if may_answer is not None and not may_answer():
                self._is_held = True
                self.writable.clear()
                self._owner.update_reading()
                return
            now = self._loop.time()
            # One copy costs less than handing over many small pieces, and for large ones `writelines` measured the same.
            data = b"".join(self._pieces)
            self._pieces = []
            self.size = 0
            self._written += len(data)
            self._transport.write(data)
            if self._limits is not None:
                self._noted += len(data)
                if self._noted >= NOTE_MIN_BYTES:
                    self._note_unread(now)
            self._owner.on_written(len(data), now)

    def release(self) -> None:
        """Write what is held."""
        if self._is_held:
            self._is_held = False
            self.flush()
            if not (self._is_held or self._is_full):
                self.writable.set()

    def unread_bytes(self) -> int:
        """Return the number of bytes that were written but not read by the peer yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def drop(self, reason: str) -> None:
        """Abort the connection; unread responses are lost."""
        self._owner.drop(reason)

    def forget(self) -> None:
        """Stop counting unread bytes."""
        for usage in self._quota.usages if self._quota is not None else ():
            usage.unread.forget(self)

    def pause(self) -> None:
        """Note that the transport's buffer is above its limit."""
        self._is_full = True
        self.writable.clear()
        if self._limits is not None and self._unread_timer is None:
            self._start_check(self._limits)

    def resume(self) -> None:
        """Note that the peer has read most of the transport's buffer."""
        self._is_full = False
        if not self._is_held:
            self.writable.set()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        self._set_high_water()

    def _set_high_water(self) -> None:
        if self._transport is not None:
            high = WRITE_HIGH_WATER if self._limits is None else self._limits.connection_unread_max
            self._transport.set_write_buffer_limits(high=high)

    def _start_check(self, limits: ServerLimits) -> None:
        self._read_by_peer = self._written - self.unread_bytes()
        self._unread_timer = self._loop.call_later(limits.unread_timeout_s, self._check_progress, limits)

    def _check_progress(self, limits: ServerLimits) -> None:
        """Drop a connection whose peer has read none of its responses since the last check."""
        self._unread_timer = None
        if self._transport is None:
            return
        unread = self.unread_bytes()
        if self._written - unread <= self._read_by_peer:
            self.drop(f"it has {unread} bytes of unread responses and read none for {limits.unread_timeout_s:.0f} s")
        else:
            self._start_check(limits)

    def _note_unread(self, now: float) -> None:
        """Count unread responses. Beyond a bound of several connections this one waits until its peer has read everything."""
        size, self._noted = self._noted, 0
        if self._transport is None or self._quota is None or not self.unread_bytes():
            return
        for usage, limit in self._quota.limited("unread"):
            usage.unread.total_max = limit
            if not usage.unread.note(self, size, now):
                continue
            self._quota.count_exceeded(usage, "unread")
            self._transport.set_write_buffer_limits(high=0)
            if excess := usage.unread.excess(now):
                excess.drop(
                    f"all connections of {usage.name} have more than twice {limit} bytes of unread responses,"
                    f" this one has {excess.unread_bytes()}"
                )
                if self._transport is None:
                    return
