"""Findings of a check of a store directory, and the files of one directory, valid or not. See `check`."""

from __future__ import annotations

from collections import Counter

import msgspec

from ariane.store.disk.files import OpenFiles
from ariane.store.disk.segments import NAME_DIGITS, Segments

ERROR = "error"  # a message is lost or unreadable, or a broker will not start
WARNING = "warning"  # something is wrong, but nothing is lost by it
NOTE = "note"  # information, not a fault


class CheckFinding(msgspec.Struct, frozen=True):
    """One finding: `offset` is a byte of `file`, `fix` may be empty."""

    severity: str
    file: str
    offset: int
    message: str
    fix: str


def inspect_files(files: OpenFiles, directory: str, setting: str) -> tuple[Segments, list[CheckFinding]]:
    """Return the files in `directory`, and findings about their names and lengths.

    Their size is assumed to be that of most of them. The caller looks for gaps.
    """
    findings = []
    sizes: dict[int, int] = {}
    for name in files.disk.listdir(directory):
        path = f"{directory}/{name}"
        length = files.disk.size(path)
        if len(name) != NAME_DIGITS or not name.isdigit() or length is None:
            fix = "move it out of the store directory: no broker starts with it"
            findings.append(CheckFinding(ERROR, path, 0, "does not belong here", fix))
        else:
            sizes[int(name)] = length
    lengths = Counter(length for length in sizes.values() if length)
    size = max(lengths, key=lambda length: (lengths[length], length), default=1)
    for base, length in sizes.items():
        path = f"{directory}/{base:0{NAME_DIGITS}d}"
        if length != size:
            fix = f"a start after a crash corrects its length; else set {setting} to the size of the files"
            findings.append(CheckFinding(WARNING, path, 0, f"has {length} bytes, the others {size}", fix))
        if base % size:
            findings.append(
                CheckFinding(
                    ERROR, path, 0, f"does not begin at a multiple of {size}", f"set {setting} to the size of the files"
                )
            )
    return Segments(files, directory, size, sorted(base for base in sizes if base % size == 0)), findings
