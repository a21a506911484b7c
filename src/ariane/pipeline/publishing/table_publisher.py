"""Writes the tables of `ariane.tables.table_format` and reads them into Spark.

    DataFrame with a column `bucket` → files of the next version → CURRENT lists them → readers see all of them

One process writes a table at a time (`lock_tables`), and within it one thread (`exclusive_change`). The next writer removes the
files of a writer that crashed before its commit.
A commit records the progress of its input (`applied`) together with its rows. Repeating a micro-batch or a rebuild after a crash
is therefore detected, and adds no row twice.
"""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ariane.clock import SYSTEM_CLOCK
from ariane.errors import ConfigError, StoreError
from ariane.pipeline.publishing import few_rows
from ariane.pipeline.publishing.data_files import DataFiles, Target
from ariane.pipeline.publishing.directory_files import DirectoryFiles
from ariane.pipeline.publishing.object_files import ObjectFiles
from ariane.tables import TableSchema
from ariane.tables.object_tables import ObjectTables
from ariane.tables.table_format import BUCKET, LOCK, DataFile, TableVersion
from ariane.tables.table_home import Home, ObjectHome
from ariane.tables.table_store import open_store, read_version
from ariane.tables.time_buckets import MAX_COUNTED_MS, bucket_start_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_SMALL_FILES = 8  # per bucket; more are merged into one
# Larger files are never merged, otherwise a bucket that grows all day would be rewritten again and again.
SMALL_BYTES = 32 * 1024 * 1024

# One lock per table directory: micro-batches are appended in threads of their own while the driver compacts and expires files.
_change_locks: dict[Path, threading.RLock] = {}


@contextmanager
def lock_tables(home: Home, tables: Collection[TableSchema]) -> Iterator[None]:
    """Hold the exclusive right of this process to write some tables.

    Raises:
        ConfigError: another pipeline holds it, or HOME is not writable.
    """
    store = open_store(home)
    with ExitStack() as locks:
        for table in tables:
            directory = store.local_dir / table.name
            try:
                directory.mkdir(parents=True, exist_ok=True)
                lock = locks.enter_context((directory / LOCK).open("w"))
            except OSError as error:
                raise ConfigError("home", str(home), f"cannot be written to: {error.strerror}") from error
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                fix = f"another pipeline is writing {table.name} to it; stop that one, run both jobs as one, or use another home"
                raise ConfigError("home", str(home), fix) from None
            store.recover(table, SYSTEM_CLOCK.now_ms())
        yield


@contextmanager
def exclusive_change(home: Home, table: TableSchema) -> Iterator[None]:
    """Hold the exclusive right of this thread to change a table, from reading its version to publishing the next one."""
    with _change_locks.setdefault(open_store(home).local_dir / table.name, threading.RLock()):
        yield


def read_table(
    spark: SparkSession, home: Home, table: TableSchema, predicate: Callable[[DataFile], bool] = lambda _: True
) -> DataFrame:
    """Return the rows of a table with the column `bucket`, or only of the files that match `predicate`."""
    version = read_version(home, table)
    files = [file for file in version.files if predicate(file)] if version else []
    if files:
        return _data_files(home).read(spark, table, files)
    # Unlike createDataFrame([]), Spark recognizes this frame as empty when it plans, and starts no Python worker for it.
    fields = T.StructType.fromDDL(f"{table.ddl}, {BUCKET} STRING")
    assert isinstance(fields, T.StructType)
    no_rows = spark.range(1).where(F.lit(False))
    return no_rows.select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in fields.fields))


def _data_files(home: Home) -> DataFiles:
    return ObjectFiles(ObjectTables(home)) if isinstance(home, ObjectHome) else DirectoryFiles(home.absolute())


def append_batch(
    rows: DataFrame | few_rows.Rows, home: Home, table: TableSchema, query: str, batch: int, now_ms: int
) -> TableVersion:
    """Append the rows of a micro-batch exactly once; a batch that is in the table already is ignored.

    Args:
        rows: DataFrame with `bucket`, or rows by bucket.
        query: identifies the checkpoint that numbers the batches, `SOURCE CHECKPOINT_ID`.

    Raises:
        StoreError: the table lacks earlier batches of the query.
    """
    with exclusive_change(home, table):
        former = read_version(home, table)
        last_batch = former.applied.get(query, -1) if former is not None else -1
        if former is not None and last_batch >= batch:
            return former
        source = query.partition(" ")[0]
        if former is not None and query not in former.applied and open_store(home).directory is None:
            _refuse_other_checkpoint(home, table, source, former)
        if last_batch + 1 != batch:  # Spark numbers the batches of a checkpoint without gaps
            raise StoreError(
                f"{home}/{table.name} lacks batches {last_batch + 1} to {batch - 1} of {source}: the table was removed, or it was "
                "created after its checkpoint. To read everything that brokers still hold, remove "
                f"{open_store(home).local_dir / 'checkpoint' / source} "
                "and the other tables of this source, and run the pipeline again"
            )
        applied = {**(former.applied if former else {}), query: batch}
        change = (
            TableChange(rows=(rows,), applied=applied)
            if isinstance(rows, dict)
            else TableChange(frame=rows, applied=applied)
        )
        return commit(home, table, change, now_ms)


def _refuse_other_checkpoint(home: Home, table: TableSchema, source: str, former: TableVersion) -> None:
    """Refuse a checkpoint that starts from the beginning: checkpoints are on the driver's machine, tables are not.

    Raises:
        StoreError: the table contains batches of another checkpoint of the source.
    """
    if any(name.partition(" ")[0] == source for name in former.applied):
        checkpoint = open_store(home).local_dir / "checkpoint" / source
        raise StoreError(
            f"{home}/{table.name} has {source} that another checkpoint has read; rows would be added twice. Run the pipeline where "
            f"that checkpoint is, copy it to {checkpoint}, or remove the tables of this source"
        )


@dataclass(frozen=True, kw_only=True)
class TableChange:
    """What the next version of a table adds or replaces."""

    frame: DataFrame | None = None
    """Rows with the table's columns and `bucket`."""
    rows: Iterable[few_rows.Rows] = ()
    """Further rows, of other buckets than those of `frame`; iterators compute a part after the former one is written."""
    applied: Mapping[str, int]
    """Progress of the inputs, see `TableVersion.applied`."""
    replaced: Collection[str] = ()
    """Buckets, or paths of files, whose rows these replace; empty: rows are appended."""
    as_of_ms: int | None = None
    """See `TableVersion.as_of_ms`; None: the latest time of the table's own rows."""
    added_version: int | None = None
    """Version to which the rows are attributed if they were in the table before; None: the next one."""


def commit(home: Home, table: TableSchema, change: TableChange, now_ms: int) -> TableVersion:
    """Publish the next version of a table: write the rows of a change, and atomically replace earlier rows by them."""
    with exclusive_change(home, table):
        store = open_store(home)
        former = store.read_version(table) or TableVersion.initial(table, now_ms)
        number = former.version + 1
        target = Target(table, number, change.added_version or number)
        written = _data_files(home).write(target, change.frame, change.rows)
        as_of_ms = change.as_of_ms
        if as_of_ms is None:
            times = [former.as_of_ms, *(file.last_ms for file in written)]
            as_of_ms = max((ms for ms in times if ms is not None), default=None)
        version = former.replace(
            removed=lambda file: file.bucket in change.replaced or file.path in change.replaced,
            added=written,
            retired=store.remove_retired(table, former.retired, now_ms) if former.retired else (),
            now_ms=now_ms,
        )
        version = msgspec.structs.replace(version, schema=table.schema, as_of_ms=as_of_ms, applied=dict(change.applied))
        store.publish(table, former, version, now_ms)
        return version


def compact(spark: SparkSession, home: Home, table: TableSchema, now_ms: int) -> TableVersion | None:
    """Merge the small files of each bucket that has more than `MAX_SMALL_FILES`; return None if none has."""
    with exclusive_change(home, table):
        former = read_version(home, table)
        if former is None:
            return None
        by_bucket: dict[str, list[DataFile]] = {}
        for file in former.files:
            if file.bytes < SMALL_BYTES:
                by_bucket.setdefault(file.bucket, []).append(file)
        merged = {file.path: file for files in by_bucket.values() if len(files) > MAX_SMALL_FILES for file in files}
        if not merged:
            return None
        frame = read_table(spark, home, table, lambda file: file.path in merged)
        change = TableChange(
            frame=frame,
            applied=former.applied,
            replaced=merged,
            as_of_ms=former.as_of_ms,
            # All merged files get the newest version among them. A dependent table may rebuild a bucket that did not change,
            # with the same result; with an older version it could miss a change.
            added_version=max(file.added_version for file in merged.values()),
        )
        return commit(home, table, change, now_ms)


def expire(home: Home, table: TableSchema, first_bucket: str, now_ms: int) -> TableVersion | None:
    """Remove old files: those of buckets before `first_bucket`, and those without a time whose rows are as old.

    A file with newer rows stays, because an id written by a wrong clock leads to a bucket up to a month before its rows. Files of
    buckets that are even older are removed whatever times their clients recorded. Returns None if there is nothing to remove.
    """
    with exclusive_change(home, table):
        former = read_version(home, table)
        if former is None:
            return None
        first_ms = bucket_start_ms(first_bucket)
        assert first_ms is not None

        def is_expired(file: DataFile) -> bool:
            start_ms = bucket_start_ms(file.bucket)
            if start_ms is None:
                return file.last_ms is not None and file.last_ms < first_ms
            has_old_rows = file.last_ms is None or file.last_ms < first_ms or start_ms < first_ms - MAX_COUNTED_MS
            return start_ms < first_ms and has_old_rows

        if not any(is_expired(file) for file in former.files):
            return None
        version = former.replace(removed=is_expired, now_ms=now_ms)
        open_store(home).publish(table, former, version, now_ms)
        return version


def remove_retired(home: Home, table: TableSchema, now_ms: int) -> TableVersion | None:
    """Delete the retired files whose retention has passed; return None if the version lists none. A commit does the same."""
    with exclusive_change(home, table):
        store = open_store(home)
        former = store.read_version(table)
        if former is None:
            return None
        retired = store.remove_retired(table, former.retired, now_ms)
        if len(retired) == len(former.retired):
            return None
        version = former.replace(removed=lambda _: False, retired=retired, now_ms=now_ms)
        store.publish(table, former, version, now_ms)
        return version
