"""The store directory that a Java 4.9.4 broker wrote: tests/data/store.tar.gz."""

from __future__ import annotations

import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).parent / "data" / "store.tar.gz"


def unpack(directory: Path) -> Path:
    """Unpack the store into a directory, and return its root."""
    with tarfile.open(ARCHIVE) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(directory, filter="data")
        else:  # Python 3.11.2 of Debian 12
            archive.extractall(directory)
    return directory / "store"
