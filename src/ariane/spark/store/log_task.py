"""Task of `format("rocketmq-store")`: reads a range of a commit log and returns its rows.

    LogRange → RecordRun | LogDamage (`commit_log`) → Arrow batches: records with `valid` true, damage as rows of its own

A record whose body has a wrong CRC, or cannot be expanded, keeps its other columns and has no body. A range without a record has
only position, size and reason, and so has a record with which a broker replaced a corrupt range (`store.corrupt_ranges`).
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ariane.errors import ProtocolError, StoreError
from ariane.kernels.scanned_record import parse_record
from ariane.model.message import TRANSACTION_ROLLBACK
from ariane.spark.records import arrow_decoder, bodies, record_columns
from ariane.spark.store import commit_log
from ariane.spark.store.commit_log import LogDamage, RecordRun, StoredLog
from ariane.spark.store.store_options import StoreOptions
from ariane.store.disk.files import OpenFiles, ReadOnlyDisk
from ariane.store.disk.segments import NAME_DIGITS, Segments
from ariane.store.log import corrupt_ranges

# Rows in an Arrow batch: enough to amortise its overhead, few enough for the processor's cache.
BATCH_ROWS = 8192
CRC_ROWS = 512  # bodies converted to objects in one step: they stay in the cache, and their memory is reused

# Why a record has no body.
WRONG_CRC = "the CRC of the body is wrong"
TORN = "the properties end in zeros"

# columns in addition to those of a record → Arrow type, Spark DDL
STORE_COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "segment": (pa.string(), "STRING"),
    "position": (pa.int64(), "BIGINT"),
    "valid": (pa.bool_(), "BOOLEAN"),
    "damage": (pa.string(), "STRING"),
}
COLUMNS = {
    name: kind for name, kind in record_columns.COLUMNS.items() if name not in record_columns.DERIVED_COLUMNS
} | STORE_COLUMNS
DDL = ", ".join(f"{name} {ddl}" for name, (_, ddl) in COLUMNS.items())


class LogRange(NamedTuple):
    """The part [begin, end) of a file whose records end at `limit`. `exact`: a record starts at `begin`."""

    directory: str  # of the commit log; the task opens its files itself
    file_size: int  # bytes of each file, from which names and positions follow
    begin: int
    end: int  # a record that starts before it belongs to this range, even if it ends after it
    limit: int
    exact: bool


def plan_ranges(stored_log: StoredLog, begin: int, end: int, split_bytes: int) -> list[LogRange | LogDamage]:
    """Split the log from `begin` (the start of a record or file) to `end` into ranges; missing files are damage."""
    parts: list[LogRange | LogDamage] = []
    existing = set(stored_log.bases)
    base = begin - begin % stored_log.file_size
    while base < end:
        limit = min(base + stored_log.file_size, end)
        if base not in existing:
            parts.append(LogDamage(max(base, begin), limit - max(base, begin), "this file is missing"))
        else:
            edges = [*range(max(base, begin), limit, split_bytes), limit]
            # A remainder that is too small for a task is added to the previous range.
            if len(edges) > 2 and edges[-1] - edges[-2] < split_bytes // 4:
                del edges[-2]
            parts += [
                LogRange(stored_log.directory, stored_log.file_size, low, high, limit, exact=low == edges[0])
                for low, high in itertools.pairwise(edges)
            ]
        base += stored_log.file_size
    return parts


def read_rows(
    log_range: LogRange | LogDamage, options: StoreOptions, columns: Sequence[str], file_size: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range in log order. `file_size` is the size of the log's files."""
    builder = _RowBuilder(options, columns, file_size)
    if isinstance(log_range, LogDamage):
        yield builder.damage_row(log_range)
        return
    arrow_decoder.retain_heap()
    base = log_range.begin - log_range.begin % log_range.file_size
    files = OpenFiles(ReadOnlyDisk())
    segments = Segments(files, log_range.directory, log_range.file_size, [base])
    try:
        pieces = commit_log.scan_range(
            segments, log_range.begin, log_range.end, log_range.limit, options.chunk_bytes, exact=log_range.exact
        )
        for piece in pieces:
            if isinstance(piece, LogDamage):
                yield builder.damage_row(piece)
            else:
                yield from builder.rows(piece)
    except FileNotFoundError:
        name = Path(segments.path(base)).name
        removed = (
            f"{log_range.directory}/{name} was removed after this read was planned, probably by retention: read again"
        )
        raise StoreError(removed) from None
    except OSError as error:
        raise StoreError(f"cannot read {error.filename or log_range.directory}: {error.strerror or error}") from error
    finally:
        files.close()


class _RowBuilder:
    """Builds the Arrow batches of a task."""

    def __init__(self, options: StoreOptions, columns: Sequence[str], file_size: int) -> None:
        self._options = options  # broker name of the rows, topics, and whether to verify bodies
        self._columns = list(columns)  # requested columns, in Spark's order
        self._file_size = file_size  # to compute the columns segment and position from a log offset
        # Encoded once, because they are compared with bytes of every record; empty: all.
        self._topics = [topic.encode() for topic in options.topic]
        # Columns that the decoder of records provides; the others are computed from positions.
        self._decoded = [name for name in columns if name not in STORE_COLUMNS]
        if "body" in columns:
            self._decoded.append(record_columns.ERROR_COLUMN)
        # Types of the batches: Spark compares them with the declared ones.
        self._schema = pa.schema([(name, COLUMNS[name][0]) for name in columns])

    def rows(self, run: RecordRun) -> Iterator[pa.RecordBatch]:
        for position in range(0, len(run.starts), BATCH_ROWS):
            yield from self._batches(run.select(slice(position, position + BATCH_ROWS)))

    def _batches(self, run: RecordRun) -> Iterator[pa.RecordBatch]:
        """Yield records as batches; replacements of corrupt ranges become damage rows."""
        if not run.may_have_replacement:
            yield from self._intact_rows(run)
            return
        header = run.header
        closing = (header["sys_flag"] == TRANSACTION_ROLLBACK) & (header["flag"] == corrupt_ranges.FLAG)
        first = 0
        for index in np.flatnonzero(closing).tolist():
            start, position = int(run.starts[index]), run.offset + int(run.starts[index])
            replacement = parse_record(
                run.data, start, position, self._file_size - position % self._file_size, check_crc=False
            )
            if not corrupt_ranges.is_replacement(replacement):
                continue
            yield from self._intact_rows(run.select(slice(first, index)))
            reason = replacement.properties.decode("utf-8", "replace").partition("\x01")[2] or "unknown"
            yield self.damage_row(
                LogDamage(position, replacement.size, f"a broker replaced a corrupt range here: {reason}")
            )
            first = index + 1
        yield from self._intact_rows(run.select(slice(first, None)) if first else run)

    def _intact_rows(self, run: RecordRun) -> Iterator[pa.RecordBatch]:
        if self._topics:
            run = run.select(np.flatnonzero(_topic_mask(run, self._topics)))
        count = len(run.starts)
        if not count:
            return
        try:
            with suppress(bodies.BatchTooLarge):
                yield self._batch(run)
                return
        except (
            ProtocolError
        ) as error:  # invalid UTF-8 or an invalid host, which no checksum covers: halve the run to isolate the record
            if count == 1:
                yield self.damage_row(
                    LogDamage(run.offset + int(run.starts[0]), int(run.header["size"][0]), str(error))
                )
                return
        yield from self._intact_rows(run.select(slice(0, count // 2)))
        yield from self._intact_rows(run.select(slice(count // 2, None)))

    def _batch(self, run: RecordRun) -> pa.RecordBatch:
        decoded, wrong = self._decode_native(run) or self._decode(run)
        arrays = dict(zip(self._decoded, decoded.columns, strict=True))
        damage = arrays.pop(record_columns.ERROR_COLUMN, None)
        if wrong:
            texts: list[str | None] = [None] * len(run.starts) if damage is None else damage.to_pylist()
            for index, reason in wrong.items():
                texts[index] = reason
            damage = pa.array(texts, pa.string())
            if "body" in arrays:
                is_wrong = np.zeros(len(run.starts), bool)
                is_wrong[list(wrong)] = True
                arrays["body"] = pc.if_else(pa.array(is_wrong), pa.scalar(None, pa.binary()), arrays["body"])
        return self._assemble(arrays, run.offset + run.starts, damage)

    def _decode_native(self, run: RecordRun) -> tuple[pa.RecordBatch, dict[int, str]] | None:
        """Decode a run with the native core, like `_decode`; return None if a record is unusual."""
        check_crc = self._options.check_crc
        decoded = arrow_decoder.decode_native(
            run.data, run.starts, self._options.broker, self._decoded, check_crc=check_crc
        )
        if decoded is None:
            return None
        batch, faults = decoded
        return batch, {index: TORN if is_torn else WRONG_CRC for index, is_torn in faults}

    def _decode(self, run: RecordRun) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Return the columns of a run, and its damaged records by index, with the reason."""
        broker = self._options.broker
        records = arrow_decoder.RecordColumns(run.data, run.header, run.bounds, broker, tolerant=True)
        if run.header.has_ipv6:
            scanned = arrow_decoder.RecordScan(run.data, run.starts, run.header["queue_offset"])
            decoded = arrow_decoder.decode_scan(scanned, broker, self._decoded)
        else:
            decoded = records.batch(self._decoded)
        return decoded, _find_damaged(run, records) if self._options.check_crc else {}

    def _assemble(self, arrays: dict[str, pa.Array], positions: Any, damage: pa.Array | None) -> pa.RecordBatch:
        count = len(positions)
        store_arrays = {
            "segment": lambda: pa.repeat(pa.scalar(self._segment_name(int(positions[0]))), count),
            "position": lambda: pa.array(positions.astype(np.int64)),
            "valid": lambda: pa.repeat(pa.scalar(True), count) if damage is None else damage.is_null(),
            "damage": lambda: pa.nulls(count, pa.string()) if damage is None else damage,
        }
        ordered = [store_arrays[name]() if name in store_arrays else arrays[name] for name in self._columns]
        return pa.record_batch(ordered, schema=self._schema)

    def damage_row(self, damage: LogDamage) -> pa.RecordBatch:
        """Return the row for a range that is not a record."""
        row: dict[str, Any] = {
            "broker": self._options.broker,
            "store_size": damage.size if damage.size < 2**31 else None,
            "segment": self._segment_name(damage.offset),
            "position": damage.offset,
            "valid": False,
            "damage": f"{damage.size} bytes are not a record: {damage.reason}",
        }
        arrays = [pa.array([row.get(field.name)], field.type) for field in self._schema]
        return pa.record_batch(arrays, schema=self._schema)

    def _segment_name(self, position: int) -> str:
        return f"{position - position % self._file_size:0{NAME_DIGITS}d}"


def _find_damaged(run: RecordRun, records: arrow_decoder.RecordColumns) -> dict[int, str]:
    """Return the damaged records of a run by index, with the reason."""
    stored = records.stored_bodies
    crcs = np.empty(len(stored), np.int64)
    for index in range(0, len(stored), CRC_ROWS):
        some = stored.slice(index, CRC_ROWS)
        crcs[index : index + len(some)] = np.fromiter(map(zlib.crc32, some.to_pylist()), np.int64, len(some))
    differ = ((crcs & 0x7FFFFFFF) != run.header["crc"]) & (run.bounds[:, 1] > run.bounds[:, 0])
    damaged = dict.fromkeys(np.flatnonzero(differ).tolist(), WRONG_CRC)
    # No checksum covers the properties, but no valid text ends in zeros: the write was interrupted, and the file contained zeros.
    text_start, text_end = run.bounds[:, 4], run.bounds[:, 5]
    torn = (np.frombuffer(run.data, np.uint8)[text_end - 1] == 0) & (text_end > text_start)
    return damaged | dict.fromkeys(np.flatnonzero(torn).tolist(), TORN)


def _topic_mask(run: RecordRun, topics: list[bytes]) -> Any:
    """Return which records are stored in one of the topics."""
    start, lengths = run.bounds[:, 2].astype(np.int64), run.bounds[:, 3] - run.bounds[:, 2]
    is_match = np.zeros(len(start), bool)
    for topic in topics:
        alike = np.flatnonzero(lengths == len(topic))
        if len(alike):
            texts = np.ndarray((len(run.data) - len(topic) + 1,), f"S{len(topic)}", run.data, 0, (1,))
            is_match[alike[texts[start[alike]] == topic]] = True
    return is_match
