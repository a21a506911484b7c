"""Both decoders of records give the same rows, errors and damage, whatever the bytes are.

records, damaged ones ─┬→ ariane.spark.records ─┐
                       └→ ariane_native ────────┴→ the same batches, errors and damaged ranges
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the extra spark is not installed")
pytest.importorskip("ariane_native", reason="ariane_native is not installed; ./ariane install builds it with cargo")

from test_spark_decoders import ANYTHING, COLUMNS, HOSTS, STRICT, placed, spoilt

from ariane.errors import ArianeError
from ariane.kernels import implementation
from ariane.protocol.records import record
from ariane.spark.records import arrow_decoder, bodies
from ariane.spark.store import commit_log, log_task
from ariane.spark.store.commit_log import LogDamage
from ariane.spark.store.store_options import parse
from ariane.store.disk.files import OpenFiles, ReadOnlyDisk
from ariane.store.disk.segments import Segments
from ariane.store.log import corrupt_ranges

CHOICES = ("python", "native")
FILE_COLUMNS = [*STRICT, *log_task.STORE_COLUMNS]

NAMES = [
    "KEYS", "TAGS", "UNIQ_KEY", "DELAY", "__STARTDELIVERTIME", "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC",
    "TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "TRANSACTION_CHECK_TIMES", "RETRY_TOPIC",
    "ORIGIN_MESSAGE_ID", "KEY", "", "x",
]  # fmt: skip
VALUES = st.sampled_from(
    ["", "true", "\u00b2", "2147483647", "2147483648", "-1", "0007", "9" * 15, "9" * 16, "\x01", "é"]
)
PAIRS = st.tuples(st.sampled_from(NAMES), VALUES | st.text(max_size=5)).map("\x01".join)
TEXTS = (st.lists(PAIRS | st.text(max_size=3), max_size=6) | st.lists(PAIRS, min_size=33, max_size=60)).map("\x02".join)
I64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([(2**63 - 1) // 1000 + shift for shift in (-2, -1, 0, 1, 2)])
BODIES = st.binary(max_size=40) | st.just(b"x" * 300) | st.just(zlib.compress(b"x" * 100))


@st.composite
def records(draw: Any, offset: int | None = None) -> bytes:
    """Strategy: a record that is valid, apart from a text or a body now and then."""
    body = draw(BODIES)
    is_compressed = body[:1] == b"\x78" and draw(st.booleans())
    text = draw(TEXTS).encode("utf-8", "surrogatepass") + draw(st.sampled_from([b"", b"", b"", b"", b"\0", b"\xff"]))
    data = record.encode(
        draw(st.sampled_from([b"T", "Ü".encode(), b"RMQ_SYS_TRANS_HALF_TOPIC"])), body, text,
        queue_id=draw(st.integers(-1, 3)), queue_offset=draw(I64), offset=draw(I64) if offset is None else offset,
        born_ms=draw(I64), store_ms=draw(I64), born_host=draw(st.sampled_from([HOSTS[0]] * 9 + HOSTS)),
        store_host=HOSTS[0], flag=draw(st.integers(-5, 5) | st.just(corrupt_ranges.FLAG)),
        sys_flag=draw(st.sampled_from([0, 4, 8, 12])) | is_compressed, reconsume_times=draw(st.integers(-1, 20)),
        prepared_offset=draw(I64),
    )  # fmt: skip
    if draw(st.integers(0, 9)) == 0:
        data = data[: record.BODY_CRC_AT] + b"\x01\x02\x03\x04" + data[record.BODY_CRC_AT + 4 :]
    return data


@st.composite
def logs(draw: Any) -> bytes:
    """Strategy: records at their own offsets."""
    data = b""
    for _ in range(draw(st.integers(0, 6))):
        data += draw(records(len(data)))
    return data


def results(run: Callable[[], Iterator[Any]]) -> list[list[Any]]:
    """Return what a function yields, and its error, with each implementation."""
    found = []
    for choice in CHOICES:
        with mock.patch.object(implementation, "selected", partial(CORES.__getitem__, choice)):
            items: list[Any] = []
            try:
                items.extend(run())
            except ArianeError as error:
                items.append((type(error), str(error)))
            found.append(items)
    return found


CORES = {choice: implementation.select(choice) for choice in CHOICES}
if CORES["native"].native_records is None:
    pytest.skip(
        "ariane_native was built without columns; ./ariane install builds it with cargo", allow_module_level=True
    )
LENGTHS = ["body_length", "body_error"]
SETS = st.sampled_from(
    [COLUMNS, STRICT, ["body"], ["body_error"], LENGTHS, LENGTHS[:1], ["tags"], ["deliver_at", "born_host"]]
)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(records(), max_size=6).map(b"".join) | spoilt(records()) | ANYTHING,
    SETS | st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True),
    st.none() | I64,
)
def test_pulled_records(data: bytes, columns: list[str], end: int | None) -> None:
    def rows() -> Iterator[Any]:
        scanned = arrow_decoder.scan(data)
        yield scanned.starts.tolist()
        yield scanned.queue_offsets.tolist()
        for batch in arrow_decoder.decode_in_batches(scanned, "b", columns, end):
            batch.validate(full=True)
            yield batch

    python, native = results(rows)
    assert native == python


class OneFile(ReadOnlyDisk):
    """A disk whose files all contain the same bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data

    def open(self, path: str) -> int:
        return 0

    def close(self, handle: int) -> None:
        """Do nothing, as no file is open."""

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        return self.data[offset : offset + size]


@settings(max_examples=80, deadline=None)
@given(
    logs() | spoilt(logs()) | placed() | spoilt(placed()),
    st.sampled_from([FILE_COLUMNS, ["keys", "position"], ["damage"], ["body", "valid"], ["properties", "damage"]]),
    st.sampled_from([128, 4096]),
    st.sampled_from([{}, {"checkCrc": "false"}, {"topic": "T"}, {"topic": "T,other", "broker": "b"}]),
    st.integers(0, 300),
)
def test_files(data: bytes, columns: list[str], chunk: int, options: dict[str, str], begin: int) -> None:
    size = max(len(data), 1) + record.FILLER_SIZE

    def rows() -> Iterator[Any]:
        segments = Segments(OpenFiles(OneFile(data)), "/log", size, [0])
        builder = log_task._RowBuilder(parse({"path": "/log", **options}), columns, size)
        for piece in commit_log.scan_range(segments, begin, len(data), len(data), chunk, exact=not begin):
            if isinstance(piece, LogDamage):
                yield piece
            else:
                yield piece.offset, piece.starts.tolist(), piece.bounds.tolist()
                yield from builder.rows(piece)

    python, native = results(rows)
    assert native == python


def test_bodies_that_expand_too_much_are_split_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "EXPANDED_BYTES_MAX", 250_000)
    body = zlib.compress(b"\0" * 100_000)
    item = record.encode(b"T", body, b"KEYS\x01k", queue_id=0, queue_offset=0, offset=0, born_ms=1, born_host=HOSTS[0],
                        store_ms=1, store_host=HOSTS[0], sys_flag=1)  # fmt: skip
    python, native = results(
        lambda: arrow_decoder.decode_in_batches(arrow_decoder.scan(item * 7), "b", ["body", "keys"])
    )
    assert native == python
    assert len(native) > 1


def test_usual_records_are_decoded_in_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    item = record.encode(b"T", b"body", b"KEYS\x01k", queue_id=0, queue_offset=0, offset=0, born_ms=1,
                        born_host=HOSTS[0], store_ms=1, store_host=HOSTS[0])  # fmt: skip
    monkeypatch.setattr(implementation, "selected", lambda: CORES["native"])
    monkeypatch.setattr(arrow_decoder, "RecordColumns", None)
    monkeypatch.setattr(arrow_decoder.layout, "find_candidates", None)
    batch = arrow_decoder.decode(item * 2, "b", COLUMNS)
    assert batch["keys"].to_pylist() == ["k", "k"]
