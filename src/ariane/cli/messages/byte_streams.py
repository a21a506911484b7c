"""Reads bytes from files and writes bytes to standard output without blocking the event loop.

A blocked loop would answer no broker: heartbeats of a consumer group would stop while `less` shows its first page. Pipes and
terminals are written in pieces that fit into the pipe; input is read by a thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import select
import stat
import threading
from collections.abc import AsyncIterator

CHUNK_BYTES = 64 * 1024
PIPE_BYTES = 512  # POSIX: a write of PIPE_BUF bytes, at least 512, does not block if poll reports POLLOUT
POLL_S = 0.01  # between two attempts to write to a full pipe
CHUNKS_MAX = 16  # chunks that were read and not taken yet


class WriteInterrupted(Exception):
    """A signal arrived while the reader of the output did not read."""


class ByteOutput:
    """Writes bytes to a file descriptor. Nothing is buffered. `stop` ends a write that waits for the reader."""

    def __init__(self, fd: int, stop: asyncio.Event) -> None:
        self._fd = fd
        self._stop = stop
        self._poll: select.poll | None = None
        # Regular files always accept data, and poll has nothing to report about them.
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            self._poll = select.poll()
            self._poll.register(fd, select.POLLOUT)
            self._piece = max(PIPE_BYTES, getattr(select, "PIPE_BUF", PIPE_BYTES))

    async def write(self, data: bytes) -> None:
        """Write all bytes.

        Raises:
            BrokenPipeError: the reader has closed the pipe.
            WriteInterrupted: `stop` was set while the reader did not read; a part of the data may be written.
        """
        view = memoryview(data)
        while view:
            if self._poll is None:
                view = view[os.write(self._fd, view) :]
                continue
            if self._can_write():
                try:
                    view = view[os.write(self._fd, view[: self._piece]) :]
                    continue
                except BlockingIOError:  # the terminal's other programs may have set O_NONBLOCK
                    pass
            if self._stop.is_set():
                raise WriteInterrupted
            await asyncio.sleep(POLL_S)

    def check_reader(self) -> None:
        """Raise BrokenPipeError if the reader has closed the pipe, without writing anything."""
        if self._poll is not None:
            self._can_write()

    def _can_write(self) -> bool:
        assert self._poll is not None
        events = self._poll.poll(0)
        if not events:
            return False
        mask = events[0][1]
        if mask & (select.POLLERR | select.POLLNVAL):
            raise BrokenPipeError
        return bool(mask & select.POLLOUT)


async def read_chunks(fd: int) -> AsyncIterator[bytes]:
    """Yield the bytes of a file descriptor as they arrive.

    A daemon thread reads: a read from a terminal or a pipe cannot be cancelled, and must not keep the program from ending.

    Raises:
        OSError: the file cannot be read.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(CHUNKS_MAX)

    def read() -> None:
        is_open = True
        while is_open:
            chunk: bytes | OSError
            try:
                # os.read instead of a file object, whose lock would be held when the interpreter ends.
                chunk = os.read(fd, CHUNK_BYTES)
            except OSError as error:
                chunk = error
            is_open = isinstance(chunk, bytes) and bool(chunk)
            try:
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
            except (RuntimeError, concurrent.futures.CancelledError):  # the loop ends
                return

    threading.Thread(target=read, name=f"read {fd}", daemon=True).start()
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
        yield chunk
