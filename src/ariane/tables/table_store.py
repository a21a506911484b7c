"""What all homes of tables can do.

    Path        directory_tables.DirectoryTables     ─┐
    ObjectHome  object_tables.ObjectTables           ─┴→ TableStore

`open_store` chooses. Reading and writing data files by Spark is chosen in `ariane.pipeline.publishing.table_publisher`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ariane.tables.directory_tables import DirectoryTables
from ariane.tables.object_tables import ObjectTables
from ariane.tables.table import TableSchema
from ariane.tables.table_format import DataFile, RetiredFile, TableVersion
from ariane.tables.table_home import Home

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset


class TableStore(Protocol):
    """The tables of a home.

    Raises:
        StoreError: from all methods: what is stored cannot be read, or the object store does not respond.
    """

    @property
    def directory(self) -> Path | None:
        """Directory of the tables, whose files can be opened, linked and locked by path; None in an object store."""
        ...

    @property
    def local_dir(self) -> Path:
        """Directory of what only the machine of the driver needs: checkpoints, locks and logs."""
        ...

    def exists(self) -> bool:
        """Return whether the home can have tables. An object store is not asked: its tables are missing or not."""
        ...

    def read_version(self, table: TableSchema) -> TableVersion | None:
        """Return the published version of a table; None if nothing was published yet."""
        ...

    def publish(self, table: TableSchema, former: TableVersion, version: TableVersion, now_ms: int) -> None:
        """Publish a version atomically. Its files must be stored already.

        Raises:
            StoreError: another pipeline published a version after `former`.
        """
        ...

    def recover(self, table: TableSchema, now_ms: int) -> None:
        """Remove the remains of a writer that crashed before its commit; called by the next writer before it changes anything."""
        ...

    def remove_retired(self, table: TableSchema, retired: Iterable[RetiredFile], now_ms: int) -> list[RetiredFile]:
        """Delete removed files whose retention has passed. Return those of `retired` that remain."""
        ...

    def open_dataset(self, table: TableSchema, files: Sequence[DataFile]) -> Dataset:
        """Return files of a table as a pyarrow dataset with the table's columns."""
        ...

    def read_small_files(self, directory: str) -> Iterator[tuple[str, bytes]]:
        """Yield the name and content of each file in a directory, in order of their names; nothing if it does not exist."""
        ...

    def write_small_file(self, name: str, content: bytes) -> None:
        """Replace a small file atomically; `name` contains its directory."""
        ...


def open_store(home: Home) -> TableStore:
    """Return the tables of a home."""
    return DirectoryTables(home.absolute()) if isinstance(home, Path) else ObjectTables(home)


def read_version(home: Home, table: TableSchema) -> TableVersion | None:
    """Return the published version of a table; None if nothing was published yet.

    Raises:
        StoreError: it cannot be read, or was written in another format.
    """
    return open_store(home).read_version(table)
