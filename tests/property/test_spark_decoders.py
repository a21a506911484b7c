"""The connector's decoders on arbitrary bytes: rows or an ArianeError, bounded expansion, work linear in the input."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import pack_into
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the extra spark is not installed")

import pyarrow as pa

from ariane.errors import ProtocolError
from ariane.model import host
from ariane.protocol.records import compression, record
from ariane.spark.records import arrow_decoder, bodies, record_columns
from ariane.spark.store import commit_log, log_task
from ariane.spark.store.commit_log import LogDamage
from ariane.spark.store.store_options import parse
from ariane.store.disk.files import OpenFiles, ReadOnlyDisk
from ariane.store.disk.segments import Segments

COLUMNS = list(record_columns.COLUMNS)
STRICT = [name for name in COLUMNS if name not in record_columns.DERIVED_COLUMNS]
HOSTS = [host.pack("10.0.0.1", 10911), host.pack("fe80::1", 10911)]

FLAGS = st.sampled_from([0, 1, 4, 8, 12, 0x101, 0x201, 0x301, 0x401, 0x701]) | st.integers(0, 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.binary(max_size=40) | st.sampled_from(
    [b"KEYS\x01a\x02KEYS\x01b", b"DELAY\x01" + b"9" * 30, b"\x01\x02\x01", b"TAGS\x01\xff", "TRAN_MSG\x01\u00b2".encode(),
     b"__STARTDELIVERTIME\x01" + b"9" * 15, b"TIMER_DELAY_SEC\x0199999999999"]
)  # fmt: skip
BODIES = st.binary(max_size=60) | st.sampled_from(
    [zlib.compress(b"x" * 100),
     zlib.compress(b"x" * 100)[:-3], pa.compress(b"x" * 50, "zstd", asbytes=True),
     record.MAGIC.to_bytes(4, "big", signed=True) * 5]
)  # fmt: skip


@st.composite
def records(draw: Any) -> bytes:
    """Strategy: a record with arbitrary field values."""
    return record.encode(
        draw(st.binary(max_size=20)), draw(BODIES), draw(TEXTS), queue_id=draw(st.integers(0, 3)),
        queue_offset=draw(I64), offset=draw(I64), born_ms=draw(I64), born_host=draw(st.sampled_from(HOSTS)),
        store_ms=draw(I64), store_host=draw(st.sampled_from(HOSTS)), flag=draw(st.integers(-5, 5)), sys_flag=draw(FLAGS),
        reconsume_times=draw(st.integers(-1, 20)), prepared_offset=draw(I64),
    )  # fmt: skip


@st.composite
def spoilt(draw: Any, pieces: st.SearchStrategy[bytes]) -> bytes:
    """Strategy: concatenated pieces with some bytes changed or truncated."""
    data = bytearray(b"".join(draw(st.lists(pieces, max_size=5))))
    for _ in range(draw(st.integers(0, 4)) if data else 0):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    if len(data) > 4 and draw(st.booleans()):
        position = draw(st.integers(0, len(data) - 4))
        pack_into(">i", data, position, draw(st.integers(-(2**31), 2**31 - 1) | st.integers(-5, 200)))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


ANYTHING = st.binary(max_size=400) | spoilt(records()) | spoilt(records() | st.binary(max_size=30))


@settings(max_examples=150, deadline=None)
@given(
    ANYTHING,
    st.sampled_from([COLUMNS, STRICT, ["body"], ["body_length"], ["properties", "tags"], ["deliver_at", "born_host"]]),
)
def test_pulled_bytes_become_rows_or_a_protocol_error(data: bytes, columns: list[str]) -> None:
    try:
        rows = list(arrow_decoder.decode_in_batches(arrow_decoder.scan(data), "b", columns))
    except ProtocolError:
        return
    for batch in rows:
        batch.validate(full=True)
    try:
        expected = len(list(record.decode_all(data)))
    except ProtocolError as error:
        # The row decoder reads every text of a record; the columnar one only those of the requested columns.
        assert "not UTF-8" in str(error) and "topic" not in columns
        expected = len(arrow_decoder.find_records(data))
    assert sum(batch.num_rows for batch in rows) == expected


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200) | BODIES, st.integers(0, 2**31 - 1) | FLAGS, st.integers(1, 200))
def test_a_body_expands_within_its_bound_or_is_a_protocol_error(body: bytes, sys_flag: int, most: int) -> None:
    try:
        data = compression.decompress(body, sys_flag, most)
    except ProtocolError:
        return
    assert len(data) <= max(most, len(body))


LZ4, ZSTD, ZLIB = 0x101, 0x201, 1


@pytest.mark.parametrize("sys_flag", [LZ4, ZSTD, ZLIB])
def test_strongly_compressed_bodies_are_returned_in_bounded_batches(
    monkeypatch: pytest.MonkeyPatch, sys_flag: int
) -> None:
    monkeypatch.setattr(bodies, "EXPANDED_BYTES_MAX", 3_000_000)
    body = b"\0" * 1_000_000
    codec = {LZ4: "lz4", ZSTD: "zstd"}.get(sys_flag)
    if codec is None:
        stored = zlib.compress(body)
    else:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(body)
        stored = sink.getvalue().to_pybytes()
    assert compression.decompress(stored, sys_flag) == body
    item = record.encode(b"T", stored, b"", queue_id=0, queue_offset=0, offset=0, born_ms=1, born_host=HOSTS[0],
                        store_ms=1, store_host=HOSTS[0], sys_flag=sys_flag)  # fmt: skip
    sizes = [batch.nbytes for batch in arrow_decoder.decode_in_batches(arrow_decoder.scan(item * 7), "b", ["body"])]
    assert sum(sizes) >= 7 * len(body)
    assert max(sizes) <= bodies.EXPANDED_BYTES_MAX + 4096


# --- files ---


class OneFile(ReadOnlyDisk):
    """A disk whose files all contain the same bytes; counts the bytes read."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data, self.octets = data, 0

    def open(self, path: str) -> int:
        return 0

    def close(self, handle: int) -> None:
        """Do nothing, as no file is open."""

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        result = self.data[offset : offset + size]
        self.octets += len(result)
        return result


def pieces_of(data: bytes, chunk: int, exact: bool = True) -> tuple[list[Any], int]:
    """Return the rows of a task on a file with these bytes, and the number of bytes read."""
    disk = OneFile(data)
    segments = Segments(OpenFiles(disk), "/log", len(data) or 1, [0])
    return list(commit_log.scan_range(segments, 0, len(data), len(data), chunk, exact=exact)), disk.octets


@st.composite
def placed(draw: Any) -> bytes:
    """Strategy: records with their own offsets, as in a file, with other bytes between them."""
    data = b""
    for _ in range(draw(st.integers(0, 8))):
        if draw(st.booleans()):
            data += record.encode(
                b"T", draw(BODIES), draw(TEXTS), queue_id=0, queue_offset=draw(I64), offset=len(data), born_ms=draw(I64),
                born_host=draw(st.sampled_from(HOSTS)), store_ms=draw(I64), store_host=HOSTS[0], sys_flag=draw(FLAGS),
            )  # fmt: skip
        else:
            data += draw(st.binary(max_size=30) | records())
    return data


@settings(max_examples=100, deadline=None)
@given(placed() | spoilt(placed()), st.sampled_from([128, 1024]))
def test_the_rows_of_a_file_cover_it_exactly_once(data: bytes, chunk: int) -> None:
    pieces, _ = pieces_of(data, chunk)
    shape = log_task._RowBuilder(parse({"path": "/log"}), [*STRICT, *log_task.STORE_COLUMNS], max(len(data), 1))
    position = 0
    for piece in pieces:
        if isinstance(piece, LogDamage):
            assert (piece.offset, piece.size > 0) == (position, True)
            position += piece.size
            shape.damage_row(piece).validate(full=True)
            continue
        for start, size in zip(piece.starts.tolist(), piece.header["size"].tolist(), strict=True):
            assert piece.offset + start == position
            position += size
        for batch in shape.rows(piece):
            batch.validate(full=True)
    assert position <= len(data)


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=300) | spoilt(placed()), st.booleans())
def test_results_do_not_depend_on_the_chunk_size(data: bytes, exact: bool) -> None:
    def places(chunk: int) -> Iterator[tuple[int, str]]:
        for piece in pieces_of(data, chunk, exact)[0]:
            if isinstance(piece, LogDamage):
                yield piece.offset, "damage"
            else:
                yield from ((piece.offset + start, "record") for start in piece.starts.tolist())

    assert list(places(128)) == list(places(4096))


def _record_at(place: int, size: int = 0) -> bytes:
    encoded = record.encode(b"T", b"x" * 20, b"", queue_id=0, queue_offset=0, offset=place, born_ms=1, born_host=HOSTS[0],
                         store_ms=1, store_host=HOSTS[0])  # fmt: skip
    return size.to_bytes(4, "big") + encoded[4:] if size else encoded


@pytest.mark.parametrize("claimed", [0, 1 << 20], ids=["junk", "claims-much"])
def test_a_fully_damaged_file_is_read_only_a_few_times(claimed: int) -> None:
    data = b""
    while len(data) < 1 << 18:
        data += _record_at(len(data))
        data += _record_at(len(data), claimed) if claimed else b"junk bytes"
    pieces, octets = pieces_of(data, commit_log.CHUNK_BYTES)
    assert sum(isinstance(piece, LogDamage) for piece in pieces) > 1000
    assert octets < 100 * len(data)
