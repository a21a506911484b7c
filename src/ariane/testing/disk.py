"""A disk in memory that fails: any write or fsync, a full disk, and the loss of power.

    disk = FakeDisk()
    disk.power_off_at = 17                  # raise PowerLost at the 17th change, which is made in part or not at all
    ...
    disk = disk.after_power_loss(SurvivingData.SOME, random.Random(1))   # the disk as the machine finds it when it restarts

A write is durable once its file was fsynced after it, a name (creation, removal, renaming) once its directory was. Other changes
are lost, survive, or survive in part and in any order (any subset of the writes, chosen by a seed): a disk promises nothing
else. (Rules: fsync(2), and the behaviour of file systems.)
"""

from __future__ import annotations

import enum
import errno
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ariane.kernels.pulls.pull_selection import FileMap
from ariane.store.disk.files import Usage

Change = tuple[int, bytes] | int  # a write at an offset, or a truncation to a size


class PowerLost(BaseException):
    """The machine lost power: no code of the program runs any more, so no error handler may catch this."""


class SurvivingData(enum.Enum):
    """Which changes survive that were not flushed."""

    NONE = "none"
    ALL = "all"
    SOME = "some"  # any subset of the changes, so that later ones may survive earlier ones
    TORN = "torn"  # as SOME, and a write may survive in part, split anywhere


@dataclass(eq=False)
class _FakeFile:
    data: bytearray
    durable: bytes = b""
    pending: list[Change] = field(default_factory=list)
    dropped: list[Change] = field(default_factory=list)  # by a failed fsync: readable, and no later fsync writes them
    modified_ms: int = 0

    def change(self, change: Change, now_ms: int) -> None:
        self.modified_ms = now_ms
        _apply(self.data, change)
        self.pending.append(change)

    def flushed(self) -> bytes:
        """Return the content on the disk after an fsync."""
        durable = bytearray(self.data)
        for change in self.dropped:
            if not isinstance(change, int):
                offset, size = change[0], len(change[1])
                durable[offset : offset + size] = self.durable[offset : offset + size].ljust(size, b"\0")
        for change in self.pending if self.dropped else ():
            _apply(durable, change)
        return bytes(durable)


def _apply(data: bytearray, change: Change) -> None:
    if isinstance(change, int):
        del data[change:]
        data.extend(bytes(change - len(data)))
        return
    offset, written = change
    if len(data) < offset + len(written):
        data.extend(bytes(offset + len(written) - len(data)))
    data[offset : offset + len(written)] = written


def _parts(change: Change, rng: random.Random) -> list[Change]:
    """Split a write into up to four parts in random order, one time in three; else return it unchanged."""
    if isinstance(change, int) or rng.random() < 2 / 3:
        return [change]
    offset, written = change
    cuts = sorted({0, len(written), *(rng.randrange(len(written) + 1) for _ in range(3))})
    parts: list[Change] = [(offset + start, written[start:stop]) for start, stop in itertools.pairwise(cuts)]
    rng.shuffle(parts)
    return parts


File = TypeVar("File")


class MemoryTree(Generic[File]):
    """Names of files and directories in memory."""

    def __init__(self) -> None:
        self._files: dict[str, File] = {}  # by path
        self._directories = {"", "/"}  # created ones and both roots

    def listdir(self, path: str) -> list[str]:
        if path in self._files:
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        start = path + "/"
        names = (*self._files, *self._directories)
        return sorted({name[len(start) :].split("/")[0] for name in names if name.startswith(start)})

    def make_dirs(self, path: str) -> list[str]:
        """Create directories, durably: losing one means losing the names in it, which SurvivingData covers."""
        created = []
        while path not in self._directories:
            if path in self._files:
                raise FileExistsError(errno.EEXIST, "file exists", path)
            created.append(path)
            path = _parent(path)
        self._directories.update(created)
        return [_parent(directory) for directory in created]


class FakeDisk(MemoryTree[_FakeFile]):
    """A `Disk` in memory.

    `changes` counts the changes so far; `fail` is called with kind and path before each of them and may raise.
    """

    def __init__(self, room: int | None = None) -> None:
        super().__init__()
        self.changes = 0
        self.power_off_at: int | None = None  # the power fails at the change of this number; None: never
        self.torn_at: int | None = None  # how many bytes of the write at `power_off_at` reach the file; None for none
        self.fail: Callable[[str, str], None] = lambda kind, path: None
        self.room = room  # capacity for written data in bytes; None for no limit
        self.now_ms: Callable[[], int] = lambda: 0  # clock for the modification times of files
        self.used: Usage | None = None  # result of `usage`; None to compute it from `room`
        # Directory entries that survive a power loss; the content of their files may be older.
        self._durable_names: dict[str, _FakeFile] = {}
        # Created and removed names (None) since the last fsync of their directory, oldest first. A power loss may undo each
        # of them.
        self._names_pending: list[tuple[str, _FakeFile | None]] = []
        # Path and file, so that a handle outlives the removal of its name as on POSIX.
        self._handles: dict[int, tuple[str, _FakeFile]] = {}
        self._numbers = itertools.count(3)  # from 3, like descriptors after stdin, stdout and stderr
        self._locked: set[str] = set()  # a second process that locks the same path is refused

    # --- the Disk interface of the store ---

    def open(self, path: str) -> int:
        self._check_parents(path)
        if path in self._directories:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._handle(path)

    def create(self, path: str, size: int) -> int:
        if path in self._files:
            raise FileExistsError(errno.EEXIST, "file exists", path)
        self._check_parents(path)
        if _parent(path) not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        self._changing("create", path)
        file = _FakeFile(bytearray(size), bytes(size), modified_ms=self.now_ms())
        self._link(path, file)
        return self._handle(path)

    def create_private(self, path: str) -> int:
        return self.create(path, 0)

    def close(self, handle: int) -> None:
        del self._handles[handle]

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        return bytes(self._handles[handle][1].data[offset : offset + size])

    def map(self, handle: int, size: int) -> FileMap | None:
        file = self._handles[handle][1]
        return _FakeMap(self, file) if len(file.data) >= size else None

    def next_data(self, handle: int, offset: int) -> int | None:
        remainder = self._handles[handle][1].data[offset:]
        zeros = len(remainder) - len(remainder.lstrip(b"\0"))
        return None if zeros == len(remainder) else offset + zeros

    def pwrite(self, handle: int, data: bytes, offset: int) -> None:
        path, file = self._handles[handle]
        if self.room is not None and self.room < len(data):
            file.change((offset, bytes(data[: self.room])), self.now_ms())  # a full disk takes as much as fits
            raise OSError(errno.ENOSPC, "no space left on device", path)
        try:
            self._changing("write", path)
        except PowerLost:
            if self.torn_at:
                file.change((offset, bytes(data[: self.torn_at])), self.now_ms())
            raise
        if self.room is not None:
            self.room -= len(data)
        file.change((offset, bytes(data)), self.now_ms())

    def truncate(self, handle: int, size: int) -> None:
        path, file = self._handles[handle]
        self._changing("truncate", path)
        file.change(size, self.now_ms())

    def fsync(self, handle: int) -> None:
        path, file = self._handles[handle]
        try:
            self._changing("fsync", path)
        except OSError:
            # As in Linux: the pages count as clean then, and the next fsync reports success.
            file.dropped += file.pending
            file.pending.clear()
            raise
        file.durable = file.flushed()
        file.pending.clear()

    def for_each(self, work: Callable[[str], None], paths: Sequence[str]) -> None:
        for path in paths:
            work(path)

    def fsync_dir(self, path: str) -> None:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        self._changing("fsync_dir", path)
        for name, file in self._names_pending:
            if _parent(name) == path:
                _relink(self._durable_names, name, file)
        self._names_pending = [change for change in self._names_pending if _parent(change[0]) != path]

    def size(self, path: str) -> int | None:
        self._check_parents(path)
        if path in self._directories:
            return 0
        file = self._files.get(path)
        return None if file is None else len(file.data)

    def is_at(self, handle: int, path: str) -> bool:
        return self._handles[handle][1] is self._files.get(path)

    def modified_ms(self, path: str) -> int | None:
        file = self._files.get(path)
        return None if file is None else file.modified_ms

    def rename(self, source: str, target: str) -> None:
        if source not in self._files:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        self._changing("rename", target)
        file = self._files[source]
        self._link(target, file)
        self._unlink(source)

    def remove(self, path: str) -> None:
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self._changing("remove", path)
        self._unlink(path)

    def remove_dir(self, path: str) -> None:
        self._changing("remove_dir", path)
        self._directories.discard(path)

    def lock(self, path: str, content: bytes) -> int:
        if path in self._locked:
            raise BlockingIOError(errno.EAGAIN, "locked", path)
        if path not in self._files:
            self._link(path, _FakeFile(bytearray(content), content))
        self._locked.add(path)
        return self._handle(path)

    def lock_dir(self, path: str) -> int:
        if path in self._locked:
            raise BlockingIOError(errno.EAGAIN, "locked", path)
        self._locked.add(path)
        number = next(self._numbers)
        self._handles[number] = (path, _FakeFile(bytearray()))
        return number

    def unlock(self, handle: int) -> None:
        path, _ = self._handles.pop(handle)
        self._locked.discard(path)

    def usage(self, path: str) -> Usage:
        if self.used is not None:
            return self.used
        free = 1 << 40 if self.room is None else self.room
        return Usage(1 << 40, free)

    # --- for tests ---

    def after_power_loss(self, surviving: SurvivingData, rng: random.Random) -> FakeDisk:
        """Return the disk as the next start finds it. `rng` decides about each change for SurvivingData.SOME and TORN."""
        survivor = FakeDisk()
        survivor.now_ms = self.now_ms
        survivor._directories = set(self._directories)

        def stays() -> bool:
            return surviving is SurvivingData.ALL or (surviving is not SurvivingData.NONE and rng.random() < 0.5)

        names = dict(self._durable_names)
        for name, file in self._names_pending:
            if stays():
                _relink(names, name, file)
        for name, file in names.items():
            data = bytearray(file.data if surviving is SurvivingData.ALL else file.durable)
            for change in () if surviving is SurvivingData.ALL else (*file.dropped, *file.pending):
                for part in _parts(change, rng) if surviving is SurvivingData.TORN else (change,):
                    if stays():
                        _apply(data, part)
            survivor._files[name] = _FakeFile(data, bytes(data), modified_ms=file.modified_ms)
            survivor.make_dirs(_parent(name))  # a directory that still contains a name is not lost
        survivor._durable_names = dict(survivor._files)
        return survivor

    def after_kill(self) -> FakeDisk:
        """Return the disk after only the process died: nothing is lost, and changes that were not flushed are still not durable."""
        survivor = FakeDisk(self.room)
        survivor._directories = set(self._directories)
        copies = {
            id(attribute): _FakeFile(
                bytearray(attribute.data), attribute.durable, list(attribute.pending), list(attribute.dropped)
            )
            for attribute in (
                *self._files.values(),
                *self._durable_names.values(),
                *(file for _, file in self._names_pending),
            )
            if attribute is not None
        }
        survivor._files = {name: copies[id(attribute)] for name, attribute in self._files.items()}
        survivor._durable_names = {name: copies[id(attribute)] for name, attribute in self._durable_names.items()}
        survivor._names_pending = [
            (name, copies[id(attribute)] if attribute else None) for name, attribute in self._names_pending
        ]
        return survivor

    def contents(self, path: str) -> bytearray:
        """Return the bytes of a file for modification in place, to simulate corruption (a loss of power may undo it)."""
        return self._files[path].data

    def paths(self) -> list[str]:
        return sorted(self._files)

    def remove_tree(self, path: str) -> None:
        """Remove a directory recursively, as `rm -r` of another process does: open handles stay usable."""
        for name in [name for name in self._files if name.startswith(f"{path}/")]:
            self._unlink(name)
        self._directories = {
            directory for directory in self._directories if directory != path and not directory.startswith(f"{path}/")
        }

    def put_file(self, path: str, data: bytes = b"") -> None:
        """Create or replace a file, as another process does."""
        file = _FakeFile(bytearray(data), data)
        self._link(path, file)

    # --- implementation ---

    def _check_parents(self, path: str) -> None:
        while path := _parent(path):
            if path in self._files:
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)

    def _changing(self, kind: str, path: str) -> None:
        self.changes += 1
        if self.power_off_at is not None and self.changes >= self.power_off_at:
            raise PowerLost(f"at change {self.changes}, {kind} of {path}")
        self.fail(kind, path)

    def _handle(self, path: str) -> int:
        number = next(self._numbers)
        self._handles[number] = (path, self._files[path])
        return number

    def _link(self, path: str, file: _FakeFile) -> None:
        self._files[path] = file
        self._names_pending.append((path, file))

    def _unlink(self, path: str) -> None:
        del self._files[path]
        self._names_pending.append((path, None))


class _FakeMap:
    """A map of a file in memory. A slice that the machine would answer with SIGBUS, or could, is a failed test."""

    def __init__(self, disk: FakeDisk, file: _FakeFile) -> None:
        self._disk = disk
        self._file: _FakeFile | None = file  # None once the map is closed
        # The range that may be read, and the number of changes of the disk after which it may not.
        self._loaded = range(0)
        self._changes = -1

    def load(self, start: int, stop: int) -> bool:
        assert self._file is not None, "the map is closed"
        self._loaded, self._changes = range(0), -1
        if stop > len(self._file.data):
            return False
        self._loaded, self._changes = range(start, stop + 1), self._disk.changes
        return True

    def __getitem__(self, part: slice) -> bytes:
        assert self._file is not None, "the map is closed"
        is_loaded = part.start in self._loaded and part.stop in self._loaded and self._changes == self._disk.changes
        assert is_loaded, f"bytes {part.start} to {part.stop} of a map are read without a load right before"
        return bytes(self._file.data[part])

    def close(self) -> None:
        self._file = None


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _relink(names: dict[str, _FakeFile], name: str, file: _FakeFile | None) -> None:
    if file is None:
        names.pop(name, None)
    else:
        names[name] = file
