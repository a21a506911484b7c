"""On-disk format of the pipeline's tables, shared by the writer (Spark) and all readers (any Parquet library).

    HOME/<table>/CURRENT                                        one line of JSON (`TableVersion`), replaced by rename
    HOME/<table>/LOCK                                           locked by the only process that may write the table
    HOME/<table>/v=00000012/bucket=2026-11-21T1020/….parquet    data files, never modified

A data file is part of the table while CURRENT lists it. All other files are half-written, replaced, or remains of a writer that
crashed. Readers that open only the listed files see each row once. Removed files stay on disk for `RETIRED_RETENTION_MS`, so
that readers which have just read CURRENT can still open them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import unquote

import msgspec

from ariane.tables.table import TableSchema

# Format of CURRENT and of the directory names. In format 1 partitions were named `slot=…`, and CURRENT had no format number.
FORMAT = 2
CURRENT = "CURRENT"
LOCK = "LOCK"
BUCKET = "bucket"  # partition column: the unit in which rows are replaced, usually ten minutes (`ariane.tables.time_buckets`)
# Much longer than a reader takes from CURRENT to its last file.
RETIRED_RETENTION_MS = 600_000


class DataFile(msgspec.Struct, frozen=True):
    """A Parquet file of a table."""

    path: str
    """Path below the table's directory."""
    bucket: str
    """Value of the partition column for all rows of the file."""
    rows: int  # to size compactions and to count a table without opening its files
    bytes: int  # size on disk; small files are merged until they are large enough
    added_version: int
    """Version that added these rows. A file merged from several files keeps the newest of their versions."""
    first_ms: int | None = None
    """Earliest value of the table's time column, ms since the epoch; None if all are null."""
    last_ms: int | None = None
    """Latest value of the table's time column, ms since the epoch; None if all are null."""


class RetiredFile(msgspec.Struct, frozen=True):
    """A file that was removed from the table but is still on disk."""

    path: str
    retired_ms: int
    """Time of removal, ms since the epoch."""


class TableVersion(msgspec.Struct, frozen=True):
    """Content of CURRENT: the complete list of files of one version of a table."""

    version: int  # increased by each commit; readers compare it to notice changes
    schema: int
    """`TableSchema.schema` of the last writer."""
    rows: int  # sum over `files`
    as_of_ms: int | None
    """Broker time of the newest input that is in the table, ms since the epoch; None if there was no input yet."""
    # Everything else in the directory is left over from a writer that died, and is not read.
    files: tuple[DataFile, ...] = ()
    applied: dict[str, int] = {}
    """Progress of the writer, committed atomically with the rows: the last version of each input table, or the last micro-batch
    of each streaming query (`SOURCE CHECKPOINT_ID`)."""
    retired: tuple[RetiredFile, ...] = ()  # removed files that queries of an earlier version may still be reading
    format: int = FORMAT  # checked before all other members, so that another format is refused with a clear error

    @classmethod
    def initial(cls, table: TableSchema, now_ms: int) -> TableVersion:
        """Return the empty version that precedes the first commit.

        Version numbers start at the current time in seconds. A table that was removed and created again therefore has higher
        numbers than before, and tables computed from it notice the change.
        """
        return cls(now_ms // 1000, table.schema, 0, None)

    def replace(
        self,
        *,
        removed: Callable[[DataFile], bool],
        added: Sequence[DataFile] = (),
        retired: Sequence[RetiredFile] | None = None,
        now_ms: int,
    ) -> TableVersion:
        """Return the next version, without the `removed` files and with the `added` ones.

        Args:
            removed: selects the files to remove; they become retired files.
            added: new files, already on disk.
            retired: earlier retired files that are still on disk; None keeps all of them.
            now_ms: time of removal, ms since the epoch.
        """
        files = (*(file for file in self.files if not removed(file)), *added)
        newly_retired = (RetiredFile(file.path, now_ms) for file in self.files if removed(file))
        return msgspec.structs.replace(
            self,
            version=self.version + 1,
            rows=sum(file.rows for file in files),
            files=files,
            retired=(*(self.retired if retired is None else retired), *newly_retired),
        )

    def version_directories(self) -> set[str]:
        """Return the names of the directories that hold listed or retired files."""
        return {path.partition("/")[0] for path in (*(f.path for f in self.files), *(f.path for f in self.retired))}


def version_directory(version: int) -> str:
    """Return the name of the directory for the files that a version adds."""
    return f"v={version:08d}"


def bucket_of_directory(name: str) -> str:
    """Return the bucket of a partition directory (`bucket=…`), whose name Spark percent-encodes."""
    return unquote(name.removeprefix(f"{BUCKET}="))


def replace_file(path: Path, content: bytes) -> None:
    """Replace a small file atomically and durably: readers see the old content or the new one, even after a crash."""
    temporary = path.with_name(f"{path.name}.tmp")
    # The content, then the name, then the directory: after a power loss the name leads to the old content or the new
    # one.
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    fsync_path(path.parent)


def fsync_path(path: Path) -> None:
    """Force a file or directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
