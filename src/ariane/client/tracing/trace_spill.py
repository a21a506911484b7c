"""Trace records that wait in files: what the queue has no room for, sent later, also after a crash of the process.

    <directory>/<process>-<token>/lock           locked as long as its dispatcher lives
                                  00000001.trace the oldest segment, sealed: read, sent, deleted
                                  00000002.trace the newest, appended to
    segment = entries: crc u32 | text u32 | keys u32 | text | keys, joined by a blank

A dispatcher that starts takes over what dead ones left. Entries are handed to the operating system at once, so they survive the
process, not a power loss. After a crash at most one segment is sent again; the end of an entry that was being written is ignored.
Used by one thread, and synchronous: a write to the page cache costs less than a switch to another thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import zlib
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from struct import Struct

from ariane.errors import ConfigError
from ariane.protocol.trace_batches import TraceEntry
from ariane.protocol.trace_codec import RECORD_END

log = logging.getLogger("ariane.client.tracing.trace_dispatcher")

SEGMENT_BYTES = 1024 * 1024
LOCK = "lock"
_SEGMENT = re.compile(r"\d{8}\.trace")
_HOME = re.compile(r"\d+-[0-9a-f]{8}")  # of a dispatcher; other directories are not touched
_START = Struct(">III")
_RECORD_END = RECORD_END.encode()


class TraceSpill:
    """Records of one dispatcher in files, oldest first.

    Args:
        directory: Directory that the dispatchers of this machine share.
        bytes_max: Maximum size of this dispatcher's files, those that it took over included.
    """

    def __init__(self, directory: Path, bytes_max: int) -> None:
        self.count = 0
        self._directory = directory
        self._bytes_max = bytes_max
        self._home = directory / f"{os.getpid()}-{secrets.token_hex(4)}"  # a name that no other dispatcher uses
        self._lock = -1  # handle of the locked file
        self._segments: deque[tuple[Path, int]] = deque()  # oldest first, with their bytes
        self._bytes = 0  # of all segments
        self._writing = -1  # handle of the newest segment; -1: the next append starts one
        self._number = 0  # of the newest segment
        self._read: deque[TraceEntry] = deque()  # entries of the oldest segment that were not discarded
        self._is_read = False  # whether the oldest segment is in `_read`

    def open(self) -> None:
        """Take over what dead dispatchers left.

        Raises:
            ConfigError: the directory cannot be used.
        """
        try:
            self._home.mkdir(parents=True)
            self._lock = _lock(self._home / LOCK)
            for other in sorted(self._directory.iterdir()):
                if other != self._home and _HOME.fullmatch(other.name) and other.is_dir():
                    self._take_over(other)
        except OSError as error:
            raise ConfigError("spill_dir", str(self._directory), f"cannot be used: {error}") from None

    def append(self, entries: Sequence[TraceEntry]) -> int:
        """Append records as far as there is room. Return how many.

        Raises:
            OSError: the file cannot be written; the records count as not stored.
        """
        parts, size, records = [], self._bytes, 0
        for entry in entries:
            data = _encode(entry)
            if size + len(data) > self._bytes_max:
                break
            size += len(data)
            parts.append(data)
            records += entry.records
        if parts:
            self._write(b"".join(parts), records)
        return records

    def oldest(self) -> Sequence[TraceEntry]:
        """Return the entries of the oldest segment, which `discard` removes."""
        while self._segments and not self._is_read:
            if len(self._segments) == 1:
                self._seal()
            self._read.extend(_decode(self._segments[0][0].read_bytes()))
            self._is_read = True
            self._delete_if_done()
        return self._read

    def discard(self, count: int) -> None:
        """Remove the first entries of `oldest`."""
        for _ in range(count):
            self.count -= self._read.popleft().records
        self._delete_if_done()

    def close(self) -> None:
        """Release the files: the next dispatcher takes over what remains."""
        self._seal()
        if self._lock >= 0:
            if not self._segments:
                _remove(self._home)
            os.close(self._lock)
            self._lock = -1

    def _write(self, data: bytes, records: int) -> None:
        if self._writing < 0:
            self._number += 1
            path = self._home / f"{self._number:08}.trace"
            self._writing = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            self._segments.append((path, 0))
        path, size = self._segments[-1]
        self._segments[-1] = (path, size + len(data))
        self._bytes += len(data)
        try:
            if os.write(self._writing, data) != len(data):
                raise OSError(f"{path} was written in part: the disk is full")
        except OSError:
            self._seal()  # what follows an incomplete entry could not be read
            raise
        self.count += records
        if size + len(data) >= SEGMENT_BYTES:
            self._seal()

    def _seal(self) -> None:
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1

    def _delete_if_done(self) -> None:
        if self._is_read and not self._read:
            path, size = self._segments.popleft()
            path.unlink(missing_ok=True)
            self._bytes -= size
            self._is_read = False

    def _take_over(self, other: Path) -> None:
        try:
            lock = _lock(other / LOCK)
        except (BlockingIOError, FileNotFoundError):
            return  # its dispatcher lives, or another one has taken it over
        try:
            names = sorted(path.name for path in other.iterdir() if _SEGMENT.fullmatch(path.name))
            for name in names:
                self._number += 1
                path = self._home / f"{self._number:08}.trace"
                (other / name).rename(path)
                data = path.read_bytes()
                self._segments.append((path, len(data)))
                self._bytes += len(data)
                self.count += sum(entry.records for entry in _decode(data))
            if names:
                log.info("Sending the trace records that process %s left in %s", other.name.partition("-")[0], other)
            _remove(other)
        finally:
            os.close(lock)


def _encode(entry: TraceEntry) -> bytes:
    keys = entry.keys.encode()
    payload = entry.text + keys
    return _START.pack(zlib.crc32(payload), len(entry.text), len(keys)) + payload


def _decode(data: bytes) -> list[TraceEntry]:
    """Return the entries up to the first incomplete or damaged one."""
    entries: list[TraceEntry] = []
    position = 0
    while position + _START.size <= len(data):
        crc, text_size, keys_size = _START.unpack_from(data, position)
        start = position + _START.size
        position = start + text_size + keys_size
        payload = data[start:position]
        if len(payload) != text_size + keys_size or zlib.crc32(payload) != crc:
            break
        text = payload[:text_size]
        entries.append(TraceEntry(text, payload[text_size:].decode(), text.count(_RECORD_END)))
    return entries


def _lock(path: Path) -> int:
    """Open and lock a file. Raise BlockingIOError if another process, or another dispatcher of this one, holds it."""
    try:
        import fcntl
    except ModuleNotFoundError:
        raise ConfigError("when_full", "spill", "needs file locks of POSIX systems; choose 'block'") from None
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def _remove(home: Path) -> None:
    (home / LOCK).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # another dispatcher may be looking into it: the empty directory harms nothing
        home.rmdir()
