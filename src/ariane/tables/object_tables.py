"""Tables in an object store or HDFS: Delta tables, committed with delta-rs by a conditional put (in HDFS a conditional rename).

    HOME/<table>/_delta_log/                                 the truth, in place of CURRENT
    HOME/<table>/v=00000012/bucket=…/part-12-….parquet       data files, never modified
    HOME/status/<source>                                     small files, each replaced by one put

The information of the newest commit has the members of `TableVersion` that Delta does not have (`ariane`), the name of a data file
those of `DataFile` (`part-ADDED-FIRST-LAST-UUID`). Only one writer succeeds in putting the commit after a version: the
other one fails. Removed files are tombstones of the log until `vacuum` deletes them, `RETIRED_RETENTION_MS` later.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import msgspec

from ariane.errors import StoreError
from ariane.tables.arrow_types import arrow_schema
from ariane.tables.delta_log import PARTITION_COLUMNS, WRITER, schema_string
from ariane.tables.table import TableSchema
from ariane.tables.table_format import (
    BUCKET,
    RETIRED_RETENTION_MS,
    DataFile,
    RetiredFile,
    TableVersion,
    version_directory,
)
from ariane.tables.table_home import ObjectHome

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from pyarrow import Buffer
    from pyarrow.dataset import Dataset
    from pyarrow.fs import FileSystem

STATE = "ariane"  # member of the commit information
CHECKPOINT_INTERVAL = 20
FILE_NAME = re.compile(r"part-(\d+)-(-?\d+|n)-(-?\d+|n)-")


class TableState(msgspec.Struct, frozen=True):
    """The members of `TableVersion` that are not in the list of files."""

    version: int
    schema: int
    as_of_ms: int | None
    applied: dict[str, int]


@dataclass(frozen=True)
class ObjectTables:
    """The `TableStore` of an object store."""

    home: ObjectHome

    @property
    def directory(self) -> None:
        return None

    @property
    def local_dir(self) -> Path:
        return self.home.local

    def exists(self) -> bool:
        return True

    def table_uri(self, table: TableSchema) -> str:
        return f"{self.home.uri}/{table.name}"

    def filesystem(self) -> tuple[FileSystem, str]:
        """Return the file system of the home, and its path there."""
        from pyarrow import fs

        if self.home.uri.startswith("hdfs://"):  # pyarrow's own needs libhdfs and a JVM in each process
            from deltalake.fs import DeltaStorageHandler

            return fs.PyFileSystem(DeltaStorageHandler(self.home.uri)), ""
        return fs.FileSystem.from_uri(self.home.uri)  # type: ignore[no-any-return]

    def read_version(self, table: TableSchema) -> TableVersion | None:
        opened = self._open(table)
        return opened[1] if opened else None

    def publish(self, table: TableSchema, former: TableVersion, version: TableVersion, now_ms: int) -> None:
        from deltalake import Schema
        from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

        uri, schema = self.table_uri(table), Schema.from_json(schema_string(table))
        former_paths, paths = _paths(former), _paths(version)
        adds = [
            AddAction(file.path, file.bytes, _partition(file), now_ms, True, f'{{"numRecords":{file.rows}}}')
            for file in version.files
            if file.path not in former_paths
        ]
        removes = [
            RemoveAction(file.path, True, now_ms, size=file.bytes, partition_values=_partition(file))
            for file in former.files
            if file.path not in paths
        ]
        opened = self._open(table)
        # The number alone may be that of a table that another writer has just created, as numbers begin with the time.
        if opened is not None and (opened[1].version, _paths(opened[1])) != (former.version, former_paths):
            raise _conflict(uri)
        with _errors_of(uri):
            if opened is None:
                create_table_with_add_actions(
                    uri, schema, adds, mode="error", partition_by=list(PARTITION_COLUMNS), name=table.name,
                    description=table.description, configuration=_CONFIGURATION, commit_properties=_properties(version),
                )  # fmt: skip
                return
            delta, _ = opened
            missing = {field.name for field in schema.fields} - {field.name for field in delta.schema().fields}
            if missing:
                fields = [field for field in schema.fields if field.name in missing]
                delta.alter.add_columns(fields, commit_properties=_properties(former))
                delta.update_incremental()
            delta.create_write_transaction(
                [*adds, *removes], "append", delta.schema(), partition_by=list(PARTITION_COLUMNS),
                commit_properties=_properties(version),
            )  # fmt: skip

    def recover(self, table: TableSchema, now_ms: int) -> None:
        self._vacuum(table, orphans=True)

    def remove_retired(self, table: TableSchema, retired: Iterable[RetiredFile], now_ms: int) -> list[RetiredFile]:
        self._vacuum(table, orphans=False)  # tombstones of the log are the retired files
        return []

    def open_dataset(self, table: TableSchema, files: Sequence[DataFile]) -> Dataset:
        import pyarrow.dataset as ds

        system, root = self.filesystem()
        paths = [f"{root}/{table.name}/{file.path}" for file in files]
        return ds.dataset(paths, arrow_schema(table), format="parquet", filesystem=system)

    def read_small_files(self, directory: str) -> Iterator[tuple[str, bytes]]:
        from pyarrow import fs

        with _errors_of(f"{self.home.uri}/{directory}", "read"):
            system, root = self.filesystem()
            infos = system.get_file_info(fs.FileSelector(f"{root}/{directory}", allow_not_found=True))
            for info in sorted(infos, key=lambda info: info.base_name):
                # In HDFS a file is written under a hidden name, which a writer that crashed leaves.
                if info.type == fs.FileType.File and not info.base_name.startswith("."):
                    with system.open_input_file(info.path) as file:
                        yield info.base_name, file.read()

    def write_small_file(self, name: str, content: bytes) -> None:
        self.write_file(name, content)

    def write_file(self, path: str, content: bytes | Buffer) -> None:
        """Write a file below the home, which appears with its whole content."""
        with _errors_of(f"{self.home.uri}/{path}"):
            system, root = self.filesystem()
            # Buffered as a whole: the streams of delta-rs refuse pyarrow's buffers, and take what a buffered stream passes on.
            with system.open_output_stream(f"{root}/{path}", buffer_size=len(content) + 1) as file:
                file.write(content)

    def _open(self, table: TableSchema) -> tuple[DeltaTable, TableVersion] | None:
        import pyarrow as pa
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        uri = self.table_uri(table)
        try:
            delta = DeltaTable(uri)
            # Newest first; begins with the commits that others have put since the table was opened.
            *_, commit = delta.history(1)
            adds = pa.table(delta.get_add_actions())
        except TableNotFoundError:
            return None
        except Exception as error:  # delta-rs raises OSError, DeltaError and others for the same faults
            raise StoreError(f"Cannot read {uri}: {_reason(error)}") from error
        if STATE not in commit:
            raise StoreError(
                f"{uri} was changed by another program: {commit.get('engineInfo')}, {commit.get('operation')} in version "
                f"{delta.version()}. The pipeline must be the only writer; remove the table, and the tables that are read with it"
            )
        state = msgspec.convert(commit[STATE], TableState)
        columns = (adds[name].to_pylist() for name in ("path", "partition", "num_records", "size_bytes"))
        files = tuple(
            _data_file(path, partition[BUCKET], rows, size)
            for path, partition, rows, size in zip(*columns, strict=True)
        )
        rows = sum(file.rows for file in files)
        return delta, TableVersion(state.version, state.schema, rows, state.as_of_ms, files, state.applied)

    def _vacuum(self, table: TableSchema, *, orphans: bool) -> None:
        """Delete the files that were removed before the retention, and with `orphans` those of writers that crashed."""
        from deltalake.fs import DeltaStorageHandler

        opened = self._open(table)
        if opened is not None:
            delta, _ = opened
            uri = self.table_uri(table)
            with _errors_of(uri):
                files = DeltaStorageHandler(uri)
                # Deleted here, as delta-rs commits a vacuum also after other writers' commits, and would repeat an old state there.
                for path in delta.vacuum(dry_run=True, enforce_retention_duration=False, full=orphans):
                    # Until the next checkpoint the log names files that were deleted before.
                    with suppress(FileNotFoundError):
                        files.delete_file(path)


def _data_file(path: str, bucket: str, rows: int, size: int) -> DataFile:
    path = unquote(path)  # actions are made of paths, and are listed as the log has them
    match = FILE_NAME.match(path.rpartition("/")[2])
    assert match is not None, path
    first_ms, last_ms = (None if text == "n" else int(text) for text in match.groups()[1:])
    return DataFile(path, bucket, rows, size, int(match[1]), first_ms, last_ms)


def file_path(number: int, bucket: str, added_version: int, first_ms: int | None, last_ms: int | None) -> str:
    """Return a new path for a data file below its table."""
    times = "-".join("n" if ms is None else str(ms) for ms in (first_ms, last_ms))
    name = f"part-{added_version}-{times}-{uuid.uuid4()}.parquet"
    return f"{version_directory(number)}/{BUCKET}={quote(bucket, safe='')}/{name}"


_CONFIGURATION = {
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    "delta.deletedFileRetentionDuration": f"interval {RETIRED_RETENTION_MS // 60_000} minutes",
    "delta.logRetentionDuration": f"interval {RETIRED_RETENTION_MS // 60_000} minutes",
}


@contextmanager
def _errors_of(uri: str, action: str = "write") -> Iterator[None]:
    """Raise the errors of delta-rs and pyarrow as StoreErrors."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, OSError) as error:
        if "CommitFailed" in type(error).__name__ or "already exists" in str(error):
            raise _conflict(uri) from error
        raise StoreError(f"Cannot {action} {uri}: {_reason(error)}") from error


def _properties(version: TableVersion) -> CommitProperties:
    from deltalake import CommitProperties

    state = TableState(version.version, version.schema, version.as_of_ms, version.applied)
    # No retries: the commit after another writer's would be based on files that it may have removed.
    return CommitProperties(custom_metadata={STATE: msgspec.to_builtins(state)}, max_commit_retries=0)


def _paths(version: TableVersion) -> set[str]:
    return {file.path for file in version.files}


def _partition(file: DataFile) -> dict[str, str | None]:
    return {WRITER: str(int(file.path.partition("/")[0].removeprefix("v="))), BUCKET: file.bucket}


def _conflict(uri: str) -> StoreError:
    return StoreError(f"another pipeline is writing {uri}; stop that one, run both jobs as one, or use another home")


def _reason(error: Exception) -> str:
    """Return the causes that delta-rs prints below each other, with colors and arrows, as one line."""
    return " ".join(re.sub(r"\x1b\[\d+m|↳", "", str(error)).split()) or type(error).__name__
