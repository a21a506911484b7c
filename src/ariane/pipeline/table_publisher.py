"""Changing the tables that `ariane.tables.published` reads, and reading them in Spark.

    frame with a column `slot` → files of the next version → CURRENT names them → readers see them, all at once

One writer at a time (`claimed`), and of its threads one (`changing`). Files of a writer that died before it named them are
overwritten or swept by the next one.
A change says what it has done (`done`), in the same instant in which its rows become visible: so a batch or a fold that is
done again is known, and each is in the table once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ariane.clock import ms_of
from ariane.errors import ConfigError, StoreError
from ariane.tables import TableSchema
from ariane.tables.published import CURRENT, GRACE_MS, DataFile, RetiredFile, TableVersion, current, paths
from ariane.tables.time_buckets import COUNTED_MAX_MS, begins_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLOT = "slot"
LOCK = "LOCK"
FILES_MAX = 8  # small ones of one slot; with more they are merged
# What is larger is left as it is, or a slot that grows all day would be written again and again.
SMALL_BYTES = 32 * 1024 * 1024

# Micro-batches append in threads of their own while the driver's merges small files and leaves old ones.
_changes: dict[Path, threading.RLock] = {}


@contextmanager
def claimed(home: Path, tables: Collection[TableSchema]) -> Iterator[None]:
    """The right to change these tables. ConfigError while another pipeline has it, or when HOME cannot be written to."""
    with ExitStack() as held:
        for table in tables:
            directory = home / table.name
            try:
                directory.mkdir(parents=True, exist_ok=True)
                lock = held.enter_context((directory / LOCK).open("w"))
            except OSError as error:
                raise ConfigError("home", str(home), f"cannot be written to: {error.strerror}") from error
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                fix = (
                    f"another pipeline is writing {table.name} there: stop it, or run both as one, or use another home"
                )
                raise ConfigError("home", str(home), fix) from None
            _sweep(home, table)
        yield


@contextmanager
def changing(home: Path, table: TableSchema) -> Iterator[None]:
    """The right of a thread to change a table: who reads its list, and writes the next one, does so before anybody else."""
    with _changes.setdefault((home / table.name).absolute(), threading.RLock()):
        yield


def read(
    spark: SparkSession, home: Path, table: TableSchema, wanted: Callable[[DataFile], bool] = lambda _: True
) -> DataFrame:
    """The rows of a table, or of those of its files that are `wanted`, with the column `slot`."""
    schema = f"{table.ddl}, {SLOT} STRING"
    files = [str(path) for path in paths(home, table, wanted)]
    if not files:
        return _nothing(spark, schema)
    base = str(home / table.name)
    return spark.read.schema(schema).option("basePath", base).parquet(*files).select(*table.names, SLOT)


def _nothing(spark: SparkSession, schema: str) -> DataFrame:
    """No rows. Spark knows it when it plans, and starts no Python for them, as it does for createDataFrame([])."""
    kinds = T.StructType.fromDDL(schema)
    assert isinstance(kinds, T.StructType)
    none = spark.range(1).where(F.lit(False))
    return none.select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in kinds.fields))


def append(frame: DataFrame, home: Path, table: TableSchema, query: str, batch: int, now_ms: int) -> TableVersion:
    """Add the rows of a micro-batch, once: a batch that is in the table already is left alone. StoreError when the table lacks
    the batches before it."""
    with changing(home, table):
        former = current(home, table)
        before = former.done.get(query, -1) if former is not None else -1
        if former is not None and before >= batch:
            return former
        if before + 1 != batch:  # a query counts without gaps
            source = query.partition(" ")[0]
            raise StoreError(
                f"{home / table.name} lacks batches {before + 1} to {batch - 1} of {source}: it was removed, or it is newer than "
                f"what was read; to have all that brokers still hold, remove {home / 'checkpoint' / source} and the other tables "
                "that come from there, and run the pipeline anew"
            )
        done = {**(former.done if former else {}), query: batch}
        return change(frame, home, table, done=done, replaced=(), as_of_ms=None, now_ms=now_ms)


def change(
    frame: DataFrame,
    home: Path,
    table: TableSchema,
    *,
    done: Mapping[str, int],
    replaced: Collection[str],
    as_of_ms: int | None,
    now_ms: int,
    added: int | None = None,
) -> TableVersion:
    """Publish `frame` (the table's columns and `slot`) in place of all rows of the slots, or files by path, that are `replaced`.

    `as_of_ms` None: the newest time of the table's own rows. `added` is for rows that were there before.
    """
    with changing(home, table):
        # A table that is made anew counts from the time, so that no fold takes a version of it for one of a table that was removed.
        former = current(home, table) or TableVersion(now_ms // 1000, table.schema, 0, None)
        number = former.version + 1
        directory = home / table.name
        written = _write(frame, directory, number, table, added or number)
        kept = [file for file in former.files if file.slot not in replaced and file.path not in replaced]
        gone = [
            RetiredFile(file.path, now_ms) for file in former.files if file.slot in replaced or file.path in replaced
        ]
        files = (*kept, *written)
        if as_of_ms is None:
            times = [former.as_of_ms, *(file.last_ms for file in written)]
            as_of_ms = max((ms for ms in times if ms is not None), default=None)
        dropped = [old for old in former.dropped if not _forget(directory, old, now_ms)]
        now = TableVersion(
            number, table.schema, sum(file.rows for file in files), as_of_ms, files, dict(done), (*dropped, *gone)
        )
        put(directory / CURRENT, msgspec.json.encode(now) + b"\n")
        return now


def merge_small(spark: SparkSession, home: Path, table: TableSchema, now_ms: int) -> TableVersion | None:
    """Merge the small files of slots that have more than `FILES_MAX` of them; None when there are none."""
    with changing(home, table):
        former = current(home, table)
        if former is None:
            return None
        by_slot: dict[str, list[DataFile]] = {}
        for file in former.files:
            if file.bytes < SMALL_BYTES:
                by_slot.setdefault(file.slot, []).append(file)
        many = {file.path: file for files in by_slot.values() if len(files) > FILES_MAX for file in files}
        if not many:
            return None
        frame = read(spark, home, table, lambda file: file.path in many)
        # One number for all of them: a fold may see a slot as new that was not, and give the same rows again.
        return change(
            frame, home, table, done=former.done, replaced=many, as_of_ms=former.as_of_ms, now_ms=now_ms,
            added=max(file.added for file in many.values()),
        )  # fmt: skip


def expire(home: Path, table: TableSchema, first_slot: str, now_ms: int) -> TableVersion | None:
    """Take the slots before `first_slot`, and those without a time, out of the table, but for files with rows that are not older
    than it; None when there are none. An id by a wrong clock lies in a slot up to a month before its news: what is older than
    that is old, whatever clients' times say."""
    with changing(home, table):
        former = current(home, table)
        if former is None:
            return None
        least_ms = begins_ms(first_slot)
        assert least_ms is not None

        def is_old(file: DataFile) -> bool:
            begin_ms = begins_ms(file.slot)
            if begin_ms is None:
                return file.last_ms is not None and file.last_ms < least_ms
            is_before = file.last_ms is None or file.last_ms < least_ms or begin_ms < least_ms - COUNTED_MAX_MS
            return begin_ms < least_ms and is_before

        old = [file for file in former.files if is_old(file)]
        if not old:
            return None
        files = tuple(file for file in former.files if not is_old(file))
        now = msgspec.structs.replace(
            former,
            version=former.version + 1,
            files=files,
            rows=sum(file.rows for file in files),
            dropped=(*former.dropped, *(RetiredFile(file.path, now_ms) for file in old)),
        )
        put(home / table.name / CURRENT, msgspec.json.encode(now) + b"\n")
        return now


def put(path: Path, text: bytes) -> None:
    """Replace a small file: readers see the old text or the new one, also after a crash."""
    beside = path.with_name(f"{path.name}.tmp")
    with beside.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    _sync(path.parent)


def _write(frame: DataFrame, directory: Path, number: int, table: TableSchema, added: int) -> list[DataFile]:
    """Write the files of a version. Every slot is in one file, sorted by the table's order."""
    import pyarrow.parquet as pq

    place = directory / f"v={number:08d}"
    rows = frame.select(*table.names, SLOT).repartition(SLOT).sortWithinPartitions(SLOT, *table.order)
    writer = rows.write.mode("overwrite").partitionBy(SLOT)
    writer = writer.option("compression", "zstd").option("parquet.block.size", table.group_bytes)
    writer.parquet(str(place))
    written = []
    for path in sorted(place.glob(f"{SLOT}=*/*.parquet")):
        footer = pq.read_metadata(path)
        first_ms, last_ms = _times(footer, table.time)
        slot = unquote(path.parent.name.removeprefix(f"{SLOT}="))
        name = path.relative_to(directory).as_posix()
        written.append(DataFile(name, slot, footer.num_rows, path.stat().st_size, added, first_ms, last_ms))
        _sync(path)
        _sync(path.parent)
    if not written:  # or every batch without rows would leave a directory
        shutil.rmtree(place)
        return []
    _sync(place)
    _sync(directory)
    return written


def _times(footer: Any, column: str) -> tuple[int | None, int | None]:
    """Least and greatest ms of a TIMESTAMP column, by the statistics of the file."""
    # Maps and lists have several leaves, so a leaf is found by its path.
    (leaf,) = (number for number in range(footer.num_columns) if footer.schema.column(number).path == column)
    parts = [footer.row_group(number).column(leaf).statistics for number in range(footer.num_row_groups)]
    known = [part for part in parts if part is not None and part.has_min_max]
    if not known:
        return None, None
    return ms_of(min(part.min for part in known)), ms_of(max(part.max for part in known))


def _forget(directory: Path, old: RetiredFile, now_ms: int) -> bool:
    """Remove a file that left the table long enough ago; whether it was removed."""
    if now_ms - old.at_ms < GRACE_MS:
        return False
    path = directory / old.path
    path.unlink(missing_ok=True)
    for parent in (path.parent, path.parent.parent):
        if not any(parent.glob(f"{SLOT}=*")) and not any(parent.glob("*.parquet")):
            shutil.rmtree(parent, ignore_errors=True)
    return True


def _sweep(home: Path, table: TableSchema) -> None:
    """Remove the versions that CURRENT does not know: their writer died before it named them."""
    now = current(home, table)
    paths_known = [*(file.path for file in now.files), *(old.path for old in now.dropped)] if now else []
    known = {path.partition("/")[0] for path in paths_known}
    for place in (home / table.name).glob("v=*"):
        if place.name not in known:
            shutil.rmtree(place)


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
