"""A directory of equally sized files, named by the offset of their first byte, that together form one offset space.

    00000000000000000000   00000000000000000100   00000000000000000200      with a size of 100
    |------ 0..99 ------|  |----- 100..199 ----|  |----- 200..299 ----|

Files have their full size from the start (sparse); unwritten parts read as zeros. Java insists on exact lengths, so a file is
never shorter, except after a crash between two system calls (see `file_loading`). [MappedFileQueue]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ariane.kernels.pulls.pull_selection import FileMap
from ariane.store.disk.files import OpenFiles

NAME_DIGITS = 20


class FileCount:
    """The number of files of several directories."""

    __slots__ = ("files",)

    def __init__(self) -> None:
        self.files = 0


class Segments:
    """The files of one directory. Reads and writes stay within one file: the caller splits at `size`."""

    __slots__ = ("_count", "_disk", "_files", "_paths", "bases", "directory", "size")

    def __init__(self, files: OpenFiles, directory: str, size: int, bases: list[int]) -> None:
        self._files = files  # bounds the number of open files
        self._disk = files.disk  # reads, writes, creates and removes the files
        self.directory = directory  # of the log, or of one consume queue
        self.size = size
        # Offsets of the files, ascending.
        self.bases = bases
        # Paths by offset, because every read and write needs one.
        self._paths = {base: self._name(base) for base in bases}
        # Counter that follows these files, shared by several directories.
        self._count: FileCount | None = None

    def set_counter(self, count: FileCount | None) -> None:
        """Add these files to a counter, which follows each change; None removes them from it."""
        if self._count is not None:
            self._count.files -= len(self.bases)
        if count is not None:
            count.files += len(self.bases)
        self._count = count

    def _name(self, base: int) -> str:
        return f"{self.directory}/{base:0{NAME_DIGITS}d}"

    def path(self, base: int) -> str:
        return self._paths.get(base) or self._name(base)

    @property
    def start(self) -> int:
        """Offset of the first byte."""
        return self.bases[0] if self.bases else 0

    @property
    def stop(self) -> int:
        """Offset after the last file."""
        return self.bases[-1] + self.size if self.bases else 0

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes at `offset`, not beyond the end of its file; b"" if the file does not exist."""
        position = offset % self.size
        path = self._paths.get(offset - position)
        if path is None:
            return b""
        return self._disk.pread(self._files.get(path), min(length, self.size - position), position)

    def read_each(self, base: int, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Return so many bytes at each of `offsets`, all of them in the file that begins at `base`, which must exist."""
        pread, handle = self._disk.pread, self._files.get(self._paths[base])
        return [pread(handle, size, offset - base) for offset, size in zip(offsets, sizes, strict=True)]

    def map(self, offset: int) -> FileMap | None:
        """Return the map of the file that contains `offset`; None if there is no such file, or it cannot be mapped safely."""
        path = self._paths.get(offset - offset % self.size)
        return None if path is None else self._files.map(path, self.size)

    def find_data(self, offset: int) -> int | None:
        """Return the first offset from `offset` on at which its file was ever written; None if there is none."""
        position = offset % self.size
        path = self._paths.get(offset - position)
        data_start = None if path is None else self._disk.next_data(self._files.get(path), position)
        return None if data_start is None or data_start >= self.size else offset - position + data_start

    def write(self, offset: int, data: bytes) -> None:
        """Write `data` into the one file that contains `offset`, which must exist."""
        position = offset % self.size
        self._disk.pwrite(self._files.get(self._paths[offset - position]), data, position)

    def write_if_contained(self, offset: int, data: bytes) -> str | None:
        """Write `data` if one existing file contains all of it; return the path of that file, else None."""
        position = offset % self.size
        path = self._paths.get(offset - position)
        if path is None or position + len(data) > self.size:
            return None
        self._disk.pwrite(self._files.get(path), data, position)
        return path

    def split(self, offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield `data` in pieces, split at the ends of files, each with its offset."""
        position = 0
        while position < len(data):
            room = self.size - (offset + position) % self.size
            yield offset + position, data[position : position + room]
            position += room

    def has(self, offset: int) -> bool:
        return offset - offset % self.size in self._paths

    def create_file(self, base: int) -> None:
        """Create the file at `base`, which must follow the last one. The caller fsyncs the directory."""
        path = self._name(base)
        self._files.create(path, self.size)
        self.bases.append(base)
        self._paths[base] = path
        if self._count is not None:
            self._count.files += 1

    def truncate(self, end: int) -> None:
        """Zero everything from `end` on and remove later files; the caller fsyncs what it needs.

        Without zeroing, an old record after the end would be valid again once newer records reach it.
        """
        later = [base for base in self.bases if base > end]
        for base in reversed(later):
            self.remove_file(base)
        if later:
            # A loss of power may leave the next file short, which only the last one may be.
            self._disk.fsync_dir(self.directory)
        if self.has(end):
            handle = self._files.get(self._paths[end - end % self.size])
            self._disk.truncate(handle, end % self.size)
            self._disk.truncate(handle, self.size)

    def remove_file(self, base: int) -> None:
        self._disk.remove(self.detach(base))

    def detach(self, base: int) -> str:
        """Remove a file from the table, so that nothing reads or writes it any more; return its path for the caller to unlink."""
        path = self._paths.pop(base)
        self.bases.remove(base)
        if self._count is not None:
            self._count.files -= 1
        self._files.drop(path)
        return path

    def remove_all(self) -> None:
        """Remove all files and the directory."""
        for base in reversed(list(self.bases)):
            self.remove_file(base)
        self._disk.remove_dir(self.directory)
