"""Tables in a local directory: CURRENT is the truth, the Delta log follows it (`table_format`, `delta_log`)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ariane.errors import StoreError
from ariane.tables import delta_log
from ariane.tables.arrow_types import arrow_schema
from ariane.tables.table import TableSchema
from ariane.tables.table_format import (
    BUCKET,
    CURRENT,
    FORMAT,
    RETIRED_RETENTION_MS,
    DataFile,
    RetiredFile,
    TableVersion,
    replace_file,
)

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset


class _FormatNumber(msgspec.Struct):
    """The part of CURRENT that every format has."""

    format: int = 1


class _LastVersion(NamedTuple):
    """The newest version of a table that this process has read or published.

    A list of 30,000 files takes 40 ms to decode, and a round of the pipeline reads that of each table several times.
    """

    identity: tuple[int, int, int]
    """Inode, time of modification in ns and size of CURRENT, which is never modified, only replaced."""
    version: TableVersion


MAX_LAST_VERSIONS = 64  # more than a home has tables
_last_versions: dict[Path, _LastVersion] = {}  # by path of CURRENT, the one that was read first comes first


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _remember(path: Path, identity: tuple[int, int, int], version: TableVersion) -> None:
    if path not in _last_versions and len(_last_versions) >= MAX_LAST_VERSIONS:
        _last_versions.pop(next(iter(_last_versions)), None)
    _last_versions[path] = _LastVersion(identity, version)


@dataclass(frozen=True)
class DirectoryTables:
    """The `TableStore` of a local directory."""

    directory: Path

    @property
    def local_dir(self) -> Path:
        return self.directory

    def exists(self) -> bool:
        return self.directory.is_dir()

    def read_version(self, table: TableSchema) -> TableVersion | None:
        path = self.directory / table.name / CURRENT
        try:
            with path.open("rb") as file:
                identity = _identity(os.fstat(file.fileno()))
                if (last := _last_versions.get(path)) is not None and last.identity == identity:
                    return last.version
                text = file.read()
            # The number alone first: another format may not decode as a TableVersion.
            number = msgspec.json.decode(text, type=_FormatNumber).format
            if number == FORMAT:
                version = msgspec.json.decode(text, type=TableVersion)
                _remember(path, identity, version)
                return version
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, OSError) as error:
            raise StoreError(
                f"Cannot read {path}: {error}. Remove {path.parent} and run the pipeline again; "
                "it names any other directory to remove."
            ) from error
        raise StoreError(
            f"{path} has table format {number}, expected {FORMAT}: the tables were written by another version of Ariane. "
            f"Remove {self.directory} and run the pipeline again to rebuild them from the messages that brokers still hold. "
            f"Keep it if it has older messages, such as an archive: only that version reads them."
        )

    def publish(self, table: TableSchema, former: TableVersion, version: TableVersion, now_ms: int) -> None:
        path = self.directory / table.name / CURRENT
        replace_file(path, msgspec.json.encode(version) + b"\n")
        _remember(path, _identity(path.stat()), version)
        delta_log.record_version(self.directory, table, version, now_ms, former=former)

    def recover(self, table: TableSchema, now_ms: int) -> None:
        version = self.read_version(table)
        # Directories that CURRENT does not mention are remains of a writer that crashed before its commit.
        listed: Collection[str] = version.version_directories() if version else ()
        for path in (self.directory / table.name).glob("v=*"):
            if path.name not in listed:
                shutil.rmtree(path)
        if version is not None:
            delta_log.record_version(self.directory, table, version, now_ms)

    def remove_retired(self, table: TableSchema, retired: Iterable[RetiredFile], now_ms: int) -> list[RetiredFile]:
        remaining = []
        for file in retired:
            if now_ms - file.retired_ms < RETIRED_RETENTION_MS:
                remaining.append(file)
                continue
            path = self.directory / table.name / file.path
            path.unlink(missing_ok=True)
            for parent in (path.parent, path.parent.parent):
                if not any(parent.glob(f"{BUCKET}=*")) and not any(parent.glob("*.parquet")):
                    shutil.rmtree(parent, ignore_errors=True)
        return remaining

    def open_dataset(self, table: TableSchema, files: Sequence[DataFile]) -> Dataset:
        import pyarrow.dataset as ds

        paths = [str(self.directory / table.name / file.path) for file in files]
        return ds.dataset(paths, arrow_schema(table), format="parquet")

    def read_small_files(self, directory: str) -> Iterator[tuple[str, bytes]]:
        for path in sorted((self.directory / directory).glob("[!.]*")):
            yield path.name, path.read_bytes()

    def write_small_file(self, name: str, content: bytes) -> None:
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        # Readers never see a part of the file. No fsync: a lost status is written again with the next batch.
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_bytes(content)
        temporary.replace(path)


def data_paths(home: Path, table: TableSchema, predicate: Callable[[DataFile], bool] = lambda _: True) -> list[Path]:
    """Return the paths of a table's files, or of those that match `predicate`; empty if nothing was published yet."""
    version = DirectoryTables(home).read_version(table)
    return [home / table.name / file.path for file in version.files if predicate(file)] if version else []
