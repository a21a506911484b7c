"""The disk interface. All file access of the store goes through a `Disk`, so that tests can fail it at any point.

`SystemDisk` is the machine's disk (POSIX: pread, pwrite, fcntl locks). `ariane.testing.disk.FakeDisk` stores all in memory and can
lose power, fail an fsync or run full. Files are written with pwrite, never through a map: a full disk is then an OSError at the
write that met it, not a later SIGBUS. Maps are for reading (`file_maps`). [MappedFile, MappedFileQueue, MixAll.string2File]
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePath
from typing import ClassVar, NamedTuple, Protocol

from ariane.errors import StoreError, StoreFull
from ariane.kernels.pulls.pull_selection import FileMap
from ariane.private_files import sync_directory
from ariane.store.disk.file_maps import map_file

OPEN_FILES_MAX = 512  # open descriptors of the store; a usual process limit is 1024
CLOSED_PER_SLICE = 64  # idle files closed without yielding to the loop
FILES_PER_MAP = 16  # a map takes a descriptor as well: so many open files allow one map
PARALLEL = 16  # threads that fsync many files
PARALLEL_MIN = 4
_OPEN_FIXES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "Give the user of the broker read and write access to it"),
    errno.EROFS: "Mount its file system writable, or set storePathRootDir to another directory",
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EEXIST),
        "A file or a broken link (a missing mount?) exists in place of a directory: move it away, or correct storePathRootDir",
    ),
    errno.EISDIR: "A directory exists in place of a file: move it away",
    errno.ENOENT: "Part of the path is missing, or is a broken link: mount its disk, or correct storePathRootDir",
}
# A file system that locks only files, such as NFS: then only the lock of the root protects the store.
_NO_DIRECTORY_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Usage(NamedTuple):
    """Bytes of a disk, as `df` counts them.

    `total` is used or available to this process; `free` is available. `reserved` bytes are neither: only root may use them. The
    file system has `total + reserved`.
    """

    total: int
    free: int
    reserved: int = 0


class Disk(Protocol):
    """The operations that the store needs of a disk. Every failure is an OSError; a handle is an int."""

    def open(self, path: str) -> int: ...
    def create(self, path: str, size: int) -> int:
        """Create a file of `size` zero bytes (sparse). FileExistsError if it exists."""
        ...

    def create_private(self, path: str) -> int:
        """Create an empty file that only its owner can read. FileExistsError if it exists."""
        ...

    def close(self, handle: int) -> None: ...
    def pread(self, handle: int, size: int, offset: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file."""
        ...

    def map(self, handle: int, size: int) -> FileMap | None:
        """Map a file of `size` bytes for reading; None if it cannot be mapped safely: then use `pread`."""
        ...

    def next_data(self, handle: int, offset: int) -> int | None:
        """Return the first offset from `offset` on that contains data; None if only unwritten zeros follow."""
        ...

    def pwrite(self, handle: int, data: bytes, offset: int) -> None:
        """Write all of `data`; after an OSError an unknown part of it is written."""
        ...

    def truncate(self, handle: int, size: int) -> None: ...
    def fsync(self, handle: int) -> None: ...
    def fsync_dir(self, path: str) -> None: ...
    def for_each(self, work: Callable[[str], None], paths: Sequence[str]) -> None:
        """Call `work` for each path, concurrently where that is faster. Raises the first error."""
        ...

    def size(self, path: str) -> int | None:
        """Return the length of a file; None if it does not exist."""
        ...

    def is_at(self, handle: int, path: str) -> bool:
        """Return whether `path` is the file open as `handle`; False if it was removed or replaced."""
        ...

    def modified_ms(self, path: str) -> int | None:
        """Return when a file was last written; None if it does not exist."""
        ...

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted. NotADirectoryError for a file."""
        ...

    def make_dirs(self, path: str) -> list[str]:
        """Create `path` and missing parents; return the directories that got a new entry, to be fsynced."""
        ...

    def rename(self, source: str, target: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def remove_dir(self, path: str) -> None: ...
    def lock(self, path: str, content: bytes) -> int:
        """Lock the first byte of a file, created with `content`. BlockingIOError if another process or store holds the lock."""
        ...

    def lock_dir(self, path: str) -> int:
        """Lock a directory, if the file system supports it. BlockingIOError if another process or store holds the lock."""
        ...

    def unlock(self, handle: int) -> None: ...
    def usage(self, path: str) -> Usage: ...


class SystemDisk:
    """The machine's disk."""

    # fcntl locks are per process, and closing any descriptor of the file drops them, so two stores of one process are
    # distinguished here.
    _locked: ClassVar[dict[int, tuple[int, int]]] = {}

    open_flags = os.O_RDWR | os.O_CLOEXEC

    def open(self, path: str) -> int:
        return os.open(path, self.open_flags)

    def create_private(self, path: str) -> int:
        return os.open(path, self.open_flags | os.O_CREAT | os.O_EXCL, 0o600)

    def create(self, path: str, size: int) -> int:
        handle = os.open(path, self.open_flags | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.ftruncate(handle, size)
        except OSError:
            os.close(handle)
            os.unlink(path)  # noqa: PTH108 (paths of the store are str throughout)
            raise
        return handle

    def close(self, handle: int) -> None:
        os.close(handle)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        data = os.pread(handle, size, offset)
        while 0 < len(data) < size:
            more = os.pread(handle, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def map(self, handle: int, size: int) -> FileMap | None:
        return map_file(handle, size)

    def next_data(self, handle: int, offset: int) -> int | None:
        try:
            return os.lseek(handle, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise

    def pwrite(self, handle: int, data: bytes, offset: int) -> None:
        written = os.pwrite(handle, data, offset)
        while written < len(data):
            written += os.pwrite(handle, data[written:], offset + written)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def fsync(self, handle: int) -> None:
        os.fsync(handle)

    def fsync_dir(self, path: str) -> None:
        sync_directory(path)

    def for_each(self, work: Callable[[str], None], paths: Sequence[str]) -> None:
        # Concurrent fsyncs share a commit of the file system's journal: 3,000 small files take 0.3 s and not 8 s.
        if len(paths) < PARALLEL_MIN:
            for path in paths:
                work(path)
            return
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="ariane-fsync") as pool:
            for _ in pool.map(work, paths):
                pass

    def size(self, path: str) -> int | None:
        try:
            return os.stat(path).st_size  # noqa: PTH116
        except FileNotFoundError:
            return None

    def is_at(self, handle: int, path: str) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), os.stat(path))  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            return False

    def modified_ms(self, path: str) -> int | None:
        try:
            return os.stat(path).st_mtime_ns // 1_000_000  # noqa: PTH116
        except FileNotFoundError:
            return None

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))  # noqa: PTH208

    def make_dirs(self, path: str) -> list[str]:
        missing = []
        path = os.path.abspath(path)  # a relative path has no parent at which the loop could end  # noqa: PTH100
        while not os.path.isdir(path):  # noqa: PTH112
            missing.append(path)
            path = os.path.dirname(path)  # noqa: PTH120
        for directory in reversed(missing):
            os.mkdir(directory)  # noqa: PTH102
        return [os.path.dirname(directory) for directory in missing]  # noqa: PTH120

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)  # noqa: PTH105

    def remove(self, path: str) -> None:
        os.unlink(path)  # noqa: PTH108

    def remove_dir(self, path: str) -> None:
        os.rmdir(path)  # noqa: PTH106

    def lock(self, path: str, content: bytes) -> int:
        # Before the file is opened: closing it again would drop the lock that the other store of this process holds.
        if self._identity(path) in self._locked.values():
            raise BlockingIOError(errno.EAGAIN, "held by another store of this process", path)
        handle = os.open(path, self.open_flags | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            os.pwrite(handle, content, 0)
        except OSError:
            os.close(handle)
            raise
        self._locked[handle] = self._identity(path)
        return handle

    @staticmethod
    def _identity(path: str) -> tuple[int, int]:
        try:
            state = os.stat(path)  # noqa: PTH116
        except FileNotFoundError:
            return (-1, -1)
        return (state.st_dev, state.st_ino)

    def lock_dir(self, path: str) -> int:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_DIRECTORY_LOCKS:
                os.close(handle)
                raise
        return handle

    def unlock(self, handle: int) -> None:
        self._locked.pop(handle, None)
        os.close(handle)

    def usage(self, path: str) -> Usage:
        state = os.statvfs(path)
        used, reserved = state.f_blocks - state.f_bfree, state.f_bfree - state.f_bavail
        size = state.f_frsize
        return Usage((used + state.f_bavail) * size, state.f_bavail * size, reserved * size)


class ReadOnlyDisk(SystemDisk):
    """The machine's disk for read-only access: files that it opens cannot be written."""

    open_flags = os.O_RDONLY | os.O_CLOEXEC


class OpenFiles:
    """Handles and maps by path; the least recently used ones are closed first, and idle handles in time. One thread only."""

    def __init__(self, disk: Disk, files_max: int = OPEN_FILES_MAX) -> None:
        self.disk = disk  # opens, maps and closes
        self._files_max = files_max  # most handles
        self._maps_max = max(1, files_max // FILES_PER_MAP)  # a small limit of open files still allows one map
        # By path, the least recently used first.
        self._handles: dict[str, int] = {}
        self._idle: dict[str, int] = {}  # not used since the last call of `close_idle`, in the same order
        self._maps: dict[str, FileMap] = {}  # of log files that pulls read
        # Paths that are not mapped again: an attempt costs as much as several reads.
        self._unmappable: set[str] = set()

    def get(self, path: str) -> int:
        handle = self._handles.pop(path, None)
        if handle is None and (handle := self._idle.pop(path, None)) is None:
            return self._add(path, self.disk.open(path))
        self._handles[path] = handle
        return handle

    def create(self, path: str, size: int) -> None:
        """Create a file of `size` zero bytes, which is written next, so its handle stays open."""
        self._add(path, self.disk.create(path, size))

    def _add(self, path: str, handle: int) -> int:
        if len(self._handles) + len(self._idle) >= self._files_max:
            oldest = self._idle or self._handles
            self.disk.close(oldest.pop(next(iter(oldest))))
        self._handles[path] = handle
        return handle

    def close_idle(self) -> Iterator[None]:
        """Close the handles that were not used since the last call, in slices: thousands of topics may be used once only."""
        while self._idle:
            for path in list(itertools.islice(self._idle, CLOSED_PER_SLICE)):
                self.disk.close(self._idle.pop(path))
            yield
        self._idle, self._handles = self._handles, {}

    def map(self, path: str, size: int) -> FileMap | None:
        """Return the map of a file of `size` bytes; None if it cannot be mapped safely."""
        file_map = self._maps.pop(path, None)
        if file_map is None:
            if path in self._unmappable:
                return None
            file_map = self.disk.map(self.get(path), size)
            if file_map is None:
                self._unmappable.add(path)
                return None
            if len(self._maps) >= self._maps_max:
                self._maps.pop(next(iter(self._maps))).close()
        self._maps[path] = file_map
        return file_map

    def drop(self, path: str) -> None:
        """Close `path`, which is about to be removed."""
        handle = self._handles.pop(path, None)
        if handle is None:
            handle = self._idle.pop(path, None)
        if handle is not None:
            self.disk.close(handle)
        file_map = self._maps.pop(path, None)
        if file_map is not None:
            file_map.close()
        self._unmappable.discard(path)

    def close(self) -> None:
        while self._maps:
            self._maps.popitem()[1].close()
        for handles in (self._idle, self._handles):
            while handles:
                self.disk.close(handles.popitem()[1])


def write_error(error: OSError, path: str) -> StoreError:
    """Return the error for a failed write of `path`: StoreFull if the disk has no room."""
    if error.errno in NO_ROOM:
        return StoreFull(f"No room to write {path}: {error.strerror}. Free space on that disk; reads still work")
    return StoreError(f"Cannot write {path}: {error}")


def open_error(error: OSError, path: str) -> StoreError:
    """Return the refusal of a start because of `error`, with advice; `path` is used if the error names none."""
    path = str(error.filename or path)
    if error.errno in NO_ROOM:
        return StoreFull(f"Cannot open the store: no room to write {path} ({error.strerror}). Free space on that disk")
    fix = _OPEN_FIXES.get(error.errno or 0, "Check the disk and its mount")
    return StoreError(f"Cannot open the store: {path}: {error.strerror or error}. {fix}")


def read_error(disk: Disk, error: OSError, path: str) -> StoreError:
    """Return the refusal of a start that cannot read `path`. Names the parent that is a file, if there is one."""
    if not isinstance(error, NotADirectoryError):
        return StoreError(f"Cannot read {path}: {error.strerror or error}")
    for parent in reversed(PurePath(path).parents):
        try:
            disk.listdir(str(parent))
        except NotADirectoryError:
            return open_error(OSError(error.errno, error.strerror), str(parent))
        except OSError:  # not readable: the file is further down
            continue
    return open_error(error, path)


def exists(disk: Disk, path: str) -> bool:
    """Return whether a file exists; False also if a parent directory is a file."""
    try:
        return disk.size(path) is not None
    except NotADirectoryError:
        return False


def read_whole(disk: Disk, path: str) -> bytes | None:
    """Return the content of a small file; None if it does not exist."""
    size = disk.size(path)
    if size is None:
        return None
    handle = disk.open(path)
    try:
        return disk.pread(handle, size, 0)
    finally:
        disk.close(handle)


def write_atomic(disk: Disk, path: str, data: bytes, *, is_private: bool = False) -> None:
    """Replace the content of `path`: after a crash at any point it has the old content or the new one.

    Args:
        is_private: Whether only the owner of the file can read it.
    """
    temporary = path + ".tmp"
    if disk.size(temporary) is not None:
        disk.remove(temporary)
    handle = disk.create_private(temporary) if is_private else disk.create(temporary, 0)
    try:
        disk.pwrite(handle, data, 0)
        disk.fsync(handle)
    finally:
        disk.close(handle)
    disk.rename(temporary, path)
    disk.fsync_dir(path.rpartition("/")[0] or "/")
