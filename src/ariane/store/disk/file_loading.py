"""Lists the files of a directory at start, and finds those that do not have the configured length.

    commit log     cannot be rebuilt: a file of another length is a refusal that explains its cause. Only the last file may be
                   short, after a crash, and only above the flushed offset
    consume queue  can be rebuilt: the queue of such a file is dropped and dispatched again from the log (`consume_queues`)

If all files have one other length, the configuration differs from the one the store was written with: nothing is changed then.
[MappedFileQueue.load]
"""

from __future__ import annotations

from typing import NamedTuple

from ariane.errors import ConfigError, StoreCorrupt
from ariane.store.disk.files import OpenFiles
from ariane.store.disk.segments import NAME_DIGITS, Segments

LOG_SETTING = "mappedFileSizeCommitLog"


class LoadedFiles(NamedTuple):
    """The files of one directory, with their lengths."""

    segments: Segments
    lengths: dict[int, int]
    """Length of each file, by its base offset."""

    def wrong_lengths(self) -> dict[int, int]:
        """Return the lengths of the files that do not have the configured one."""
        return {base: length for base, length in self.lengths.items() if length != self.segments.size}

    def find_gap(self) -> int | None:
        """Return the offset of the first file that is missing between others, None if none is."""
        size = self.segments.size
        for base in self.segments.bases[:-1]:
            if base + size not in self.lengths:
                return base + size
        return None

    def find_misplaced(self) -> int | None:
        """Return the base of the first file whose name is not a multiple of the configured length."""
        return next((base for base in self.segments.bases if base % self.segments.size), None)


def load(files: OpenFiles, directory: str, size: int) -> LoadedFiles:
    """Return the files of `directory`.

    Raises:
        StoreCorrupt: a file there is not a file of a log or a queue.
    """
    disk = files.disk
    lengths = {}
    for name in disk.listdir(directory):
        path = f"{directory}/{name}"
        if len(name) != NAME_DIGITS or not name.isdigit():
            raise StoreCorrupt(path, 0, "this file does not belong here: move it out of the store directory")
        length = disk.size(path)
        if length is None:
            raise StoreCorrupt(path, 0, "this file cannot be read: a broken link? move it out of the store directory")
        lengths[int(name)] = length
    return LoadedFiles(Segments(files, directory, size, list(lengths)), lengths)


def load_log(files: OpenFiles, directory: str, size: int, *, clean: bool, flushed: int | None) -> LoadedFiles:
    """Return the files of the commit log, all of the configured length.

    Args:
        clean: the last process stopped in order, so a short file is not caused by a crash.
        flushed: everything below this offset was on the disk.

    Raises:
        ConfigError: the files were written with another size.
        StoreCorrupt: a file was truncated, extended or renamed.
    """
    loaded = load(files, directory, size)
    wrong = loaded.wrong_lengths()
    if wrong:
        last = loaded.segments.bases[-1]
        length = wrong.get(last, size)
        # A file is created and then extended to its size; a crash in between leaves it short.
        is_crash = length < size and (not clean or length == 0) and (flushed is None or flushed <= last + length)
        if set(wrong) == {last} and is_crash:
            files.disk.truncate(files.get(loaded.segments.path(last)), size)
        else:
            raise _log_fault(loaded, wrong)
    misplaced = loaded.find_misplaced()
    if misplaced is not None:
        raise StoreCorrupt(
            loaded.segments.path(misplaced),
            0,
            f"its name is not a multiple of {size} ({LOG_SETTING}): it was renamed, or belongs to another store",
        )
    return loaded


def find_common_length(lengths: list[int]) -> int | None:
    """Return the length that all files have, if there are several and it is the same for all."""
    return lengths[0] if len(lengths) > 1 and len(set(lengths)) == 1 and lengths[0] else None


def _log_fault(loaded: LoadedFiles, wrong: dict[int, int]) -> ConfigError | StoreCorrupt:
    size, lengths = loaded.segments.size, list(loaded.lengths.values())
    other = find_common_length(lengths)
    if other is not None:
        fix = f"all {len(lengths)} files of {loaded.segments.directory} have {other} bytes: set {LOG_SETTING} = {other}"
        return ConfigError(LOG_SETTING, size, fix)
    base, length = next(iter(wrong.items()))
    path = loaded.segments.path(base)
    more = f"; {len(wrong) - 1} more files have another length" if len(wrong) > 1 else ""
    if len(lengths) == 1 and length:
        fix = (
            f"{path}, the only file, has {length} bytes. If the store was written with files of that size, set"
            f" {LOG_SETTING} = {length}. If the file was truncated, restore it from a copy"
        )
        return ConfigError(LOG_SETTING, size, fix)
    if length < size:
        problem = (
            f"the file has {length} bytes instead of {size}: it was truncated. Restore it from a copy. To start without"
            f" the lost messages, run `truncate -s {size} {path}`: consumers then skip the corrupt range{more}"
        )
    else:
        problem = (
            f"the file has {length} bytes instead of {size}: something was appended to it. Make a copy of it, then"
            f" remove what was appended with `truncate -s {size} {path}`{more}"
        )
    return StoreCorrupt(path, min(length, size), problem)
