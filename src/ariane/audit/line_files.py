"""Lines in private files: appended durably, rotated by size, read from the newest on. Blocks: for threads.

audit.jsonl      the newest lines; fsync after each append
audit.1.jsonl …  older files, up to `files_max` with the newest
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ariane.private_files import PRIVATE_MODE, sync_directory

PRIVATE_DIRECTORY = 0o700


class LineFiles:
    """A file of lines with the older ones that it replaced.

    Args:
        path: The newest file; its directory is created if it does not exist.
        file_bytes_max: Size from which a new file is started.
        files_max: Files that are retained, including the newest.
    """

    def __init__(self, path: Path, file_bytes_max: int, files_max: int) -> None:
        self.path = path
        self._file_bytes_max = file_bytes_max
        self._files_max = files_max

    def append(self, lines: bytes) -> None:
        """Append complete lines and flush them to the disk; all of them or none.

        Raises:
            OSError: the disk failed or is full.
        """
        self.path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE)
        with os.fdopen(handle, "rb+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                lines = b"\n" + lines  # a crash tore the last line: it must not damage this one, too
            try:
                rest = memoryview(lines)
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)  # a full disk took a part of the lines
                raise
        if size == 0:
            sync_directory(self.path.parent)
        if size + len(lines) >= self._file_bytes_max:
            self._rotate()

    def contents(self) -> Iterator[list[bytes]]:
        """Yield the lines of each file in the order of their writing, the newest file first."""
        for path in (self.path, *map(self._rotated, range(1, self._files_max))):
            yield _lines(path)

    def read(self) -> Iterator[bytes]:
        """Yield all lines, the newest first."""
        for lines in self.contents():
            yield from reversed(lines)

    def _rotated(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.stem}.{number}{self.path.suffix}")

    def _rotate(self) -> None:
        # From the oldest on: a crash between two steps leaves a gap in the numbers, and no file is lost.
        for number in range(self._files_max - 1, 0, -1):
            source = self._rotated(number - 1) if number > 1 else self.path
            if source.exists():
                source.replace(self._rotated(number))
        sync_directory(self.path.parent)


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except FileNotFoundError:
        return []  # never written, or being rotated
