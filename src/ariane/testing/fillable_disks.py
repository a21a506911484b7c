"""Disks of local clusters, which can be full: one in memory, and the machine's.

While `is_full`, no file can be created and no file takes more room; writing over what was written, reading and removing still
work, as on any full disk. `MemoryDisk` stores
files only as far as they were written, so that large ones cost nothing. Unlike `ariane.testing.disk.FakeDisk` it can be used by
several threads, and does not record which data would survive a loss of power.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Callable, Sequence

from ariane.clock import Clock
from ariane.kernels.pull_selection import FileMap
from ariane.store.files import SystemDisk, Usage

SIZE = 1 << 40  # bytes of a disk in memory, as far as `usage` is concerned


class FillableDisk(SystemDisk):
    """The machine's disk, with a switch that makes it full."""

    is_full = False

    def create(self, path: str, size: int) -> int:
        _check_room(self.is_full)
        return super().create(path, size)

    def pwrite(self, handle: int, data: bytes, offset: int) -> None:
        _check_room(self.is_full and not _is_allocated(handle, offset, len(data)))
        super().pwrite(handle, data, offset)

    def usage(self, path: str) -> Usage:
        usage = super().usage(path)
        return Usage(usage.total, 0, usage.reserved) if self.is_full else usage


class _MemoryFile:
    """Bytes of a file, without the zeros at its end that were never written."""

    def __init__(self, size: int, modified_ms: int) -> None:
        self.data = bytearray()
        self.size = size  # length of the file, at least that of `data`
        self.modified_ms = modified_ms

    def write(self, data: bytes, offset: int) -> None:
        if len(self.data) < offset:
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset : offset + len(data)] = data
        self.size = max(self.size, len(self.data))

    def truncate(self, size: int) -> None:
        del self.data[size:]
        self.size = size


class MemoryDisk:
    """A `Disk` in memory."""

    def __init__(self, clock: Clock) -> None:
        self.is_full = False  # set by tests: files take no more room
        self._clock = clock  # modification times
        self._lock = threading.Lock()  # protects the tables of names: flushes run in threads
        self._files: dict[str, _MemoryFile] = {}  # by path
        self._directories = {"", "/"}  # created ones and both roots
        # By handle: a file stays readable after its name is removed, as on POSIX. None: a directory.
        self._handles: dict[int, _MemoryFile | None] = {}
        self._locked: dict[int, str] = {}  # locked paths by handle
        self._numbers = itertools.count(3)  # from 3, like descriptors after stdin, stdout and stderr

    # --- files ---

    def open(self, path: str) -> int:
        with self._lock:
            if path in self._directories:
                raise IsADirectoryError(errno.EISDIR, "is a directory", path)
            return self._new_handle(self._file(path))

    def create(self, path: str, size: int) -> int:
        with self._lock:
            if path in self._files:
                raise FileExistsError(errno.EEXIST, "file exists", path)
            if _parent(path) not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "no such directory", path)
            _check_room(self.is_full, path)
            return self._new_handle(self._new_file(path, size))

    def close(self, handle: int) -> None:
        del self._handles[handle]

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        file = self._open_file(handle)
        size = max(0, min(size, file.size - offset))
        data = bytes(file.data[offset : offset + size])
        return data + bytes(size - len(data))

    def map(self, handle: int, size: int) -> FileMap | None:
        return None  # `pread` copies from memory anyway

    def next_data(self, handle: int, offset: int) -> int | None:
        return offset if offset < len(self._open_file(handle).data) else None

    def pwrite(self, handle: int, data: bytes, offset: int) -> None:
        file = self._open_file(handle)
        _check_room(self.is_full and offset + len(data) > len(file.data))
        file.write(data, offset)
        file.modified_ms = self._clock.now_ms()

    def truncate(self, handle: int, size: int) -> None:
        self._open_file(handle).truncate(size)

    def fsync(self, handle: int) -> None:
        """Do nothing: the data is lost with the process anyway."""

    def fsync_dir(self, path: str) -> None:
        """Do nothing, as `fsync`."""

    def for_each(self, work: Callable[[str], None], paths: Sequence[str]) -> None:
        for path in paths:
            work(path)

    # --- names ---

    def size(self, path: str) -> int | None:
        if path in self._directories:
            return 0
        file = self._files.get(path)
        return None if file is None else file.size

    def is_at(self, handle: int, path: str) -> bool:
        return self._handles[handle] is self._files.get(path)

    def modified_ms(self, path: str) -> int | None:
        file = self._files.get(path)
        return None if file is None else file.modified_ms

    def listdir(self, path: str) -> list[str]:
        with self._lock:
            if path in self._files:
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
            if path not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "no such directory", path)
            start = path + "/"
            names = (*self._files, *self._directories)
            return sorted({name[len(start) :].split("/")[0] for name in names if name.startswith(start)})

    def make_dirs(self, path: str) -> list[str]:
        with self._lock:
            created = []
            while path not in self._directories:
                if path in self._files:
                    raise FileExistsError(errno.EEXIST, "file exists", path)
                created.append(path)
                path = _parent(path)
            self._directories.update(created)
            return [_parent(directory) for directory in created]

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            self._files[target] = self._file(source)
            del self._files[source]

    def remove(self, path: str) -> None:
        with self._lock:
            self._file(path)
            del self._files[path]

    def remove_dir(self, path: str) -> None:
        with self._lock:
            self._directories.discard(path)

    def lock(self, path: str, content: bytes) -> int:
        with self._lock:
            self._check_unlocked(path)
            if path not in self._files:
                self._new_file(path, 0).write(content, 0)
            return self._new_lock(path, self._files[path])

    def lock_dir(self, path: str) -> int:
        with self._lock:
            self._check_unlocked(path)
            return self._new_lock(path, None)

    def unlock(self, handle: int) -> None:
        with self._lock:
            del self._handles[handle], self._locked[handle]

    def usage(self, path: str) -> Usage:
        return Usage(SIZE, 0 if self.is_full else SIZE)

    # --- implementation ---

    def _file(self, path: str) -> _MemoryFile:
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._files[path]

    def _new_file(self, path: str, size: int) -> _MemoryFile:
        self._files[path] = file = _MemoryFile(size, self._clock.now_ms())
        return file

    def _open_file(self, handle: int) -> _MemoryFile:
        file = self._handles[handle]
        if file is None:
            raise IsADirectoryError(errno.EISDIR, "is a directory")
        return file

    def _new_handle(self, file: _MemoryFile | None) -> int:
        number = next(self._numbers)
        self._handles[number] = file
        return number

    def _new_lock(self, path: str, file: _MemoryFile | None) -> int:
        handle = self._new_handle(file)
        self._locked[handle] = path
        return handle

    def _check_unlocked(self, path: str) -> None:
        if path in self._locked.values():
            raise BlockingIOError(errno.EAGAIN, "locked", path)


def _is_allocated(handle: int, offset: int, size: int) -> bool:
    """Return whether a range of a file already takes room on the disk."""
    try:
        return os.lseek(handle, offset, os.SEEK_HOLE) >= offset + size
    except OSError:  # the range begins after the end of the file
        return False


def _check_room(is_full: bool, path: str | None = None) -> None:
    if is_full:
        raise OSError(errno.ENOSPC, "no space left on device", path)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
