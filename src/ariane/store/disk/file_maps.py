"""Files in memory, for reading only: a slice of a map costs a tenth of a pread.

    load(start, stop) ─ True  → slices of [start, stop) are in memory: take them before anything else happens
                      └ False → they cannot be read this way: use pread, which returns less or raises OSError

A process that touches a mapped page which the disk cannot deliver (the file is shorter, a sector is bad) is killed by SIGBUS, so
no byte is touched before `load` has proved that it is in memory. On Linux that is MADV_POPULATE_READ, which returns an error where
an access would raise SIGBUS. A kernel without it (before 5.14) and other systems get no map at all. Bytes that pwrite wrote are
visible at once: both use the same pages of the kernel's cache. See docs/decisions/0008. [MappedFile]
"""

from __future__ import annotations

import mmap
import os
import sys

from ariane.kernels.implementation import selected
from ariane.kernels.pulls.pull_selection import FileMap

PAGE = mmap.PAGESIZE
# Bytes that a map loads before it releases all its pages, which count as memory of the process.
RESIDENT_MAX = 4 << 20
_POPULATE_READ = 22  # MADV_POPULATE_READ of Linux 5.14, which the mmap module does not define


class MappedFile(mmap.mmap):
    """A file of the machine's disk, mapped."""

    _loaded = 0  # bytes loaded since pages were released

    def load(self, start: int, stop: int) -> bool:
        first = start - start % PAGE
        self._loaded += stop - first
        try:
            if self._loaded > RESIDENT_MAX:
                # The kernel still caches the pages; they only leave the page table, and so the memory of this process.
                self.madvise(mmap.MADV_DONTNEED)
                self._loaded = stop - first
            self.madvise(_POPULATE_READ, first, stop - first)
        except OSError:
            return False
        return True


def map_file(handle: int, size: int) -> FileMap | None:
    """Map a file of `size` bytes; None if it is shorter, or if this system cannot load a map without the risk of a SIGBUS."""
    if sys.platform != "linux" or os.fstat(handle).st_size < size:
        return None
    mapped: FileMap | None
    try:
        mapped = selected().map_file(handle, size, RESIDENT_MAX)
        if mapped is None:
            mapped = MappedFile(handle, size, access=mmap.ACCESS_READ)
    except OSError:  # no free descriptor or address space, or a file system without maps
        return None
    if not mapped.load(0, 1):
        mapped.close()
        return None
    return mapped
