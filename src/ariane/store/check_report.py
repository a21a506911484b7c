"""What a check of a store directory finds, and the files of one of its directories as they are. See `check`."""

from __future__ import annotations

from collections import Counter

import msgspec

from ariane.store.files import OpenFiles
from ariane.store.segments import NAME_DIGITS, Segments

ERROR = "error"  # a message is lost or unreadable, or a broker will not start
WARNING = "warning"  # something is not as it has to be, and nothing is lost by it
NOTE = "note"  # worth knowing, not a fault


class CheckFinding(msgspec.Struct, frozen=True):
    """One of them; `offset` is a byte of `file`, `fix` may be empty."""

    severity: str
    file: str
    offset: int
    message: str
    fix: str


def inspect_files(files: OpenFiles, directory: str, setting: str) -> tuple[Segments, list[CheckFinding]]:
    """The files in `directory` as they lie there, and what is wrong with their names and lengths.

    Their size is that of most of them. Gaps are the caller's to find.
    """
    found = []
    sizes: dict[int, int] = {}
    for name in files.disk.listdir(directory):
        path = f"{directory}/{name}"
        length = files.disk.size(path)
        if len(name) != NAME_DIGITS or not name.isdigit() or length is None:
            fix = "move it out of the store directory: no broker starts with it"
            found.append(CheckFinding(ERROR, path, 0, "does not belong here", fix))
        else:
            sizes[int(name)] = length
    lengths = Counter(length for length in sizes.values() if length)
    size = max(lengths, key=lambda length: (lengths[length], length), default=1)
    for base, length in sizes.items():
        path = f"{directory}/{base:0{NAME_DIGITS}d}"
        if length != size:
            fix = f"a start after a crash brings it to its length; else set {setting} to what it was made with"
            found.append(CheckFinding(WARNING, path, 0, f"has {length} bytes, the others {size}", fix))
        if base % size:
            found.append(
                CheckFinding(ERROR, path, 0, f"does not begin at a multiple of {size}", f"set {setting} right")
            )
    return Segments(files, directory, size, sorted(base for base in sizes if base % size == 0)), found
