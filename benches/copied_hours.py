"""Tables with a long history: copies of the hour that `pipeline.py` has computed, each an hour earlier than the one before.

    rows of a file ─ times, ids, keys and offsets of another hour ─→ commit of the pipeline's publisher

The tables are those that the pipeline computes from events of that hour: message ids have its time, and no id, key or offset is
repeated. `history.py` measures what the pipeline does with them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ariane.pipeline.jobs import PipelineJob
from ariane.pipeline.publishing import table_publisher
from ariane.pipeline.tables import message_keys
from ariane.tables import MESSAGE_KEYS, TableSchema
from ariane.tables.table_format import DataFile, TableVersion, version_directory
from ariane.tables.table_store import open_store, read_version
from ariane.tables.time_buckets import bucket_of_time, bucket_start_ms

HOUR_MS = 3_600_000
# Of the ids of `pipeline.py`: what precedes the time in a message id, and the offset in a broker's id.
CLIENT, BROKER = "0A0000011F4018B4AAC2", "0A00000200002A9F"
TIME_DIGITS = 8
SHIFTS = range(4 * TIME_DIGITS - 4, -1, -4)
KEY = "order-"
HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
VALUES = np.zeros(256, np.int64)
VALUES[HEX] = range(16)


def last_hour(now_ms: int, hours: int) -> tuple[int, int]:
    """Return the last hour that so many hours of its month precede: its begin since that of the month, and the month's."""
    end_ms = now_ms // HOUR_MS * HOUR_MS
    month = datetime.fromtimestamp(end_ms / 1000, UTC).replace(day=1, hour=0)
    if end_ms - int(month.timestamp() * 1000) < (hours + 1) * HOUR_MS:
        end_ms = int(month.timestamp() * 1000)
        month = (month - timedelta(days=1)).replace(day=1)
    month_ms = int(month.timestamp() * 1000)
    return end_ms - HOUR_MS - month_ms, month_ms


def append_copies(home: Path, computed: Path, job: PipelineJob, numbers: range, now_ms: int) -> None:
    """Add copies of a computed hour to the tables of a job.

    Each commit has at most one file of a bucket, as that of a micro-batch has.

    Args:
        home: directory of the tables; they contain the computed hour.
        computed: directory of the tables that contain only this hour.
        job: its tables.
        numbers: by how many hours each copy is earlier.
        now_ms: time of the commits.
    """
    for number in numbers:
        for table in job.tables:
            for files in _original_files(computed, table):
                rows = {bucket_of(file.bucket, number): copied(_read(computed, table, file), number) for file in files}
                former = _version(home, table)
                applied = _applied(home, job, table, former)
                change = table_publisher.TableChange(rows=(rows,), applied=applied, as_of_ms=former.as_of_ms)
                table_publisher.commit(home, table, change, now_ms)


def append_links(home: Path, computed: Path, job: PipelineJob, numbers: range, now_ms: int) -> None:
    """Add files that are links to those of a computed hour, with the names, buckets and times of other hours.

    The lists are those of copies, in a fraction of the time. The rows of these hours have wrong times and ids, so they are for what
    does not read them. `message_keys` has one file for each day.
    """
    for number in numbers:
        for table in job.tables:
            for files in _original_files(computed, table):
                former = _version(home, table)
                buckets = [bucket_of(file.bucket, number) for file in files]
                if table == MESSAGE_KEYS:
                    listed = {file.bucket for file in former.files}
                    buckets = [day for day in {message_keys.day_of(bucket) for bucket in buckets} if day not in listed]
                added = []
                for file, bucket in zip(files, buckets, strict=False):
                    path = f"{version_directory(former.version + 1)}/bucket={bucket}/part-00000.zstd.parquet"
                    target = home / table.name / path
                    target.parent.mkdir(parents=True)
                    os.link(computed / table.name / file.path, target)
                    times = (None if ms is None else ms - number * HOUR_MS for ms in (file.first_ms, file.last_ms))
                    added.append(DataFile(path, bucket, file.rows, file.bytes, former.version + 1, *times))
                version = former.replace(removed=lambda _: False, added=added, now_ms=now_ms)
                version = msgspec.structs.replace(version, applied=_applied(home, job, table, former))
                open_store(home).publish(table, former, version, now_ms)


def _original_files(home: Path, table: TableSchema) -> Iterator[list[DataFile]]:
    """Yield the first file of each bucket of a table, the second one of each bucket, and so on."""
    by_bucket: dict[str, list[DataFile]] = {}
    for file in _version(home, table).files:
        by_bucket.setdefault(file.bucket, []).append(file)
    for files in zip_longest(*by_bucket.values()):
        yield [file for file in files if file is not None]


def _version(home: Path, table: TableSchema) -> TableVersion:
    version = read_version(home, table)
    assert version is not None
    return version


def _read(home: Path, table: TableSchema, file: DataFile) -> pa.Table:
    return pq.ParquetFile(home / table.name / file.path).read()


def _applied(home: Path, job: PipelineJob, table: TableSchema, former: TableVersion) -> dict[str, int]:
    """Return the progress of a table that contains all rows of its inputs."""
    inputs = {
        source.name: source
        for computed in job.incremental_tables
        if computed.table == table
        for source in computed.inputs
    }
    return {
        name: _version(home, inputs[name]).version if name in inputs else number
        for name, number in former.applied.items()
    }


def bucket_of(bucket: str, number: int) -> str:
    """Return the bucket that is some hours earlier."""
    start_ms = bucket_start_ms(bucket)
    if start_ms is None:
        raise ValueError(f"Bucket {bucket} has no time: expected those of the computed hour before days are merged.")
    return bucket_of_time(start_ms - number * HOUR_MS)


def copied(rows: pa.Table, number: int) -> pa.Table:
    """Return the rows as they are some hours earlier."""
    columns = [
        _copied(column.combine_chunks(), name, number)
        for name, column in zip(rows.column_names, rows.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=rows.schema.remove_metadata())


def _copied(values: pa.Array, name: str, number: int) -> pa.Array:
    kind = values.type
    if pa.types.is_timestamp(kind):
        return pc.subtract(values, pa.scalar(timedelta(hours=number), pa.duration(kind.unit)))
    if pa.types.is_string(kind):
        return _copied_text(values, name, number)
    if pa.types.is_list(kind):
        parts = _copied(values.values, name, number)
        return pa.ListArray.from_arrays(values.offsets, parts, type=kind, mask=values.is_null())
    if pa.types.is_map(kind):
        items = _copied(values.items, name, number)
        return pa.MapArray.from_arrays(values.offsets, values.keys, items, type=kind, mask=values.is_null())
    if pa.types.is_struct(kind):
        fields = [_copied(values.field(field.name), field.name, number) for field in kind]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=values.is_null())
    if name.endswith("_offset"):
        return pc.add(values, pa.scalar(number << 32, kind))
    return values


def _copied_text(texts: pa.Array, name: str, number: int) -> pa.Array:
    if name.endswith("_bucket"):
        encoded = texts.dictionary_encode()
        buckets = [bucket_of(bucket, number) for bucket in encoded.dictionary.to_pylist()]
        return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(buckets, texts.type)).cast(texts.type)
    is_id = pc.starts_with(texts, CLIENT)
    if pc.any(is_id).as_py():
        return pc.replace_with_mask(texts, is_id, earlier_ids(texts.filter(is_id), number * HOUR_MS))
    # An offset has few digits, so the first ones of its sixteen are free.
    for former, copy in ((KEY, f"{KEY}{number}-"), (f"{BROKER}{0:08X}", f"{BROKER}{number:08X}")):
        texts = pc.replace_substring(texts, former, copy)
    return texts


def earlier_ids(ids: pa.Array, by_ms: int) -> pa.Array:
    """Return message ids of one length, and texts that begin with them, whose time is earlier.

    Raises:
        ValueError: the time would precede the month of the ids.
    """
    (length,) = pc.unique(pc.binary_length(ids)).to_pylist()
    _, offsets, text = ids.buffers()
    first = np.frombuffer(offsets, np.int32)[ids.offset]
    digits = np.frombuffer(text, np.uint8, len(ids) * length, first).reshape(len(ids), length).copy()
    time = digits[:, len(CLIENT) : len(CLIENT) + TIME_DIGITS].T
    counted_ms = sum(VALUES[digit] << shift for digit, shift in zip(time, SHIFTS, strict=True)) - by_ms
    if (counted_ms < 0).any():
        raise ValueError("A copy begins before the month of its message ids: expected an hour later in the month.")
    for digit, shift in zip(time, SHIFTS, strict=True):
        digit[:] = HEX[counted_ms >> shift & 15]
    offsets = pa.py_buffer(np.arange(len(ids) + 1, dtype=np.int32) * np.int32(length))
    return pa.StringArray.from_buffers(len(ids), offsets, pa.py_buffer(digits.tobytes()))
