"""Disks of local clusters, which can be full: one in memory, and the machine's.

While `is_full`, no file can be created and no file takes more room; writing over what was written, reading and removing still
work, as on any full disk. `MemoryDisk` stores files only as far as they were written, so that large ones cost nothing. Unlike
`ariane.testing.disk.FakeDisk` it can be used by several threads, and of a loss of power it has one outcome: everything is lost that
was not flushed.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
from collections.abc import Callable, Sequence

from ariane.clock import Clock
from ariane.kernels.pulls.pull_selection import FileMap
from ariane.store.disk.files import SystemDisk, Usage
from ariane.testing.disk import MemoryTree

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
        # What each change since the last flush replaced: offset and bytes, and both lengths. Oldest first.
        self.unflushed: list[tuple[int, bytes, int, int]] = []

    def copy(self) -> _MemoryFile:
        copy = _MemoryFile(self.size, self.modified_ms)
        copy.data, copy.unflushed = bytearray(self.data), list(self.unflushed)
        return copy

    def write(self, data: bytes, offset: int) -> None:
        self._record(offset, bytes(self.data[offset : offset + len(data)]))
        if len(self.data) < offset:
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset : offset + len(data)] = data
        self.size = max(self.size, len(self.data))

    def truncate(self, size: int) -> None:
        self._record(size, bytes(self.data[size:]))
        del self.data[size:]
        self.size = size

    def lose_unflushed(self) -> None:
        """Undo all changes since the last flush."""
        while self.unflushed:
            offset, replaced, written, size = self.unflushed.pop()
            self.data[offset : offset + len(replaced)] = replaced
            del self.data[written:]
            self.size = size

    def _record(self, offset: int, replaced: bytes) -> None:
        self.unflushed.append((offset, replaced, len(self.data), self.size))


class MemoryDisk(MemoryTree[_MemoryFile]):
    """A `Disk` in memory."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.is_full = False  # set by tests: files take no more room
        self._clock = clock  # modification times
        self._lock = threading.Lock()  # protects the tables of names: flushes run in threads
        # What each name meant before its change, None for no file; until the flush of its directory. Oldest first.
        self._names_unflushed: list[tuple[str, _MemoryFile | None]] = []
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

    def create_private(self, path: str) -> int:
        return self.create(path, 0)

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
        """Protect the content of a file from a loss of power."""
        self._open_file(handle).unflushed.clear()

    def fsync_dir(self, path: str) -> None:
        """Protect the names in a directory from a loss of power."""
        with self._lock:
            self._names_unflushed = [change for change in self._names_unflushed if _parent(change[0]) != path]

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
            return super().listdir(path)

    def make_dirs(self, path: str) -> list[str]:
        with self._lock:
            return super().make_dirs(path)

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            self._link(target, self._file(source))
            self._unlink(source)

    def remove(self, path: str) -> None:
        with self._lock:
            self._file(path)
            self._unlink(path)

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

    # --- the end of the process ---

    def copy(self) -> MemoryDisk:
        """Return the disk as the next process finds it: the same files, nothing open or locked."""
        copy = MemoryDisk(self._clock)
        with self._lock:
            copies: dict[int, _MemoryFile] = {}  # a renamed file is one file, also among the changes that may be undone

            def copy_of(file: _MemoryFile) -> _MemoryFile:
                if id(file) not in copies:
                    copies[id(file)] = file.copy()
                return copies[id(file)]

            copy._directories = set(self._directories)
            copy._files = {path: copy_of(file) for path, file in self._files.items()}
            copy._names_unflushed = [(path, file and copy_of(file)) for path, file in self._names_unflushed]
        return copy

    def lose_unflushed(self) -> None:
        """Lose every change that was not flushed. No file may be open."""
        with self._lock:
            while self._names_unflushed:
                path, file = self._names_unflushed.pop()
                if file is None:
                    self._files.pop(path, None)
                else:
                    self._files[path] = file
            for file in self._files.values():
                file.lose_unflushed()

    # --- implementation ---

    def _file(self, path: str) -> _MemoryFile:
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._files[path]

    def _new_file(self, path: str, size: int) -> _MemoryFile:
        file = _MemoryFile(size, self._clock.now_ms())
        self._link(path, file)
        return file

    def _link(self, path: str, file: _MemoryFile) -> None:
        self._names_unflushed.append((path, self._files.get(path)))
        self._files[path] = file

    def _unlink(self, path: str) -> None:
        self._names_unflushed.append((path, self._files.pop(path)))

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


def copy_sparse(source: str, target: str) -> None:
    """Copy a file with its times; ranges that were never written take no room in the copy either."""
    disk = SystemDisk()
    with open(source, "rb") as reading, open(target, "wb") as writing:  # noqa: PTH123 (paths of the store are str)
        os.ftruncate(writing.fileno(), os.fstat(reading.fileno()).st_size)
        offset = disk.next_data(reading.fileno(), 0)
        while offset is not None:
            end = os.lseek(reading.fileno(), offset, os.SEEK_HOLE)
            disk.pwrite(writing.fileno(), disk.pread(reading.fileno(), end - offset, offset), offset)
            offset = disk.next_data(reading.fileno(), end)
    shutil.copystat(source, target)


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
