"""The heads of HTTP/2 frames: calls are found wherever chunks are cut, and each flood ends at its limit."""

from __future__ import annotations

import pytest

from ariane.proxy.transport import frame_meter
from ariane.proxy.transport.frame_meter import FloodError, FrameMeter
from http2_frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    call,
    frame,
    headers,
    reset_calls,
)

OPENING = PREFACE + frame(SETTINGS)
CALLS = [call(stream, b"m" * stream) for stream in (1, 3, 5)]
STREAM = OPENING + b"".join(CALLS)
BEGINS = [len(OPENING) + sum(map(len, CALLS[:number])) for number in range(3)]
PRIORITY, UNKNOWN = 2, 77


def opened() -> FrameMeter:
    meter = FrameMeter()
    assert meter.read(OPENING, 0.0) == []
    return meter


def test_calls_are_found_in_one_chunk() -> None:
    assert FrameMeter().read(STREAM, 0.0) == BEGINS


def test_calls_are_found_wherever_a_chunk_is_cut() -> None:
    for cut in range(len(STREAM) + 1):
        meter = FrameMeter()
        first, second = meter.read(STREAM[:cut], 0.0), meter.read(STREAM[cut:], 0.0)
        # The first bytes of a call that is cut in its head are in the chunk before.
        assert first + [cut + position for position in second] == [
            cut if begin < cut < begin + 9 else begin for begin in BEGINS
        ]


def test_calls_are_found_byte_by_byte() -> None:
    meter = FrameMeter()
    found = [number for number in range(len(STREAM)) if meter.read(STREAM[number : number + 1], 0.0)]
    assert found == [begin + 8 for begin in BEGINS]


def test_trailers_are_no_call() -> None:
    meter = opened()
    assert meter.read(call(1), 0.0) == [0]
    assert meter.read(frame(HEADERS, END_HEADERS, 1, b""), 0.0) == []


@pytest.mark.parametrize("cut", [0, 1, 10, 23])
def test_a_connection_begins_with_the_preface(cut: int) -> None:
    meter = FrameMeter()
    assert meter.read(PREFACE[:cut], 0.0) == []
    with pytest.raises(FloodError, match="did not begin with HTTP/2"):
        meter.read(b"X" + PREFACE[cut + 1 :], 0.0)


@pytest.mark.parametrize(
    ("flood", "limit"),
    [
        (frame(PING, 0, 0, b"12345678"), 1000),
        (frame(SETTINGS), 1000),
        (frame(DATA, 0, 1), 1000),
        (frame(PRIORITY, 0, 1, b"12345"), 1000),
        (frame(UNKNOWN), 1000),
        (frame(RST_STREAM, 0, 1, b"1234"), 4096),
        (frame(WINDOW_UPDATE, 0, 0, b"1234"), 16384),
    ],
    ids=["ping", "settings", "empty data", "priority", "unknown", "reset", "window"],
)
def test_frames_without_a_call_are_limited(flood: bytes, limit: int) -> None:
    meter = FrameMeter()
    meter.read(PREFACE + frame(HEADERS, END_HEADERS, 1, headers()), 0.0)
    meter.read(flood * limit, 0.0)
    meter.read(frame(DATA, 0, 1, b"x"), 0.0)
    for second in range(3):
        meter.read(flood * limit, float(second))
    with pytest.raises(FloodError, match=f"more than {limit} frames"):
        meter.read(flood, 2.5)


def test_frames_after_the_limit_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    count = FrameMeter._count
    monkeypatch.setattr(FrameMeter, "_count", lambda self, *args: counted.append(args) or count(self, *args))
    with pytest.raises(FloodError):
        FrameMeter().read(PREFACE + frame(SETTINGS) * 10_000, 0.0)
    assert len(counted) == 1001


def test_calls_that_are_reset_at_once_are_limited_in_a_second() -> None:
    meter = opened()
    meter.read(reset_calls(1, 20), 0.0)
    meter.read(reset_calls(101, 20), 1.0)
    with pytest.raises(FloodError, match="reset more than 20 calls"):
        meter.read(reset_calls(201, 1), 1.5)


def test_calls_that_have_begun_may_all_be_reset() -> None:
    meter = opened()
    streams = range(1, 2 * 4096, 2)
    assert len(meter.read(b"".join(map(call, streams)), 0.0)) == 4096
    assert meter.read(b"".join(frame(RST_STREAM, 0, stream, b"1234") for stream in streams), 0.0) == []


def test_headers_that_do_not_end_are_limited() -> None:
    meter = opened()
    meter.read(frame(HEADERS, 0, 1, bytes(16_384)), 0.0)
    with pytest.raises(FloodError, match="exceed 16384 bytes"):
        meter.read(frame(CONTINUATION, 0, 1, b"x"), 0.0)


def test_continuations_of_a_call_are_limited() -> None:
    meter = opened()
    for stream in (1, 3):
        meter.read(frame(HEADERS, 0, stream) + frame(CONTINUATION, 0, stream) * 5, 0.0)
    with pytest.raises(FloodError, match="more than 5 continuations"):
        meter.read(frame(CONTINUATION, 0, 3), 0.0)


def test_large_frames_cost_their_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    class Head:
        size = frame_meter.HEAD.size

        @staticmethod
        def unpack_from(data: bytes, at: int) -> tuple[int, ...]:
            reads.append(at)
            return frame_meter.struct.unpack_from(">BHBBI", data, at)

    monkeypatch.setattr(frame_meter, "HEAD", Head)
    meter = opened()
    reads.clear()
    stream = frame(HEADERS, END_HEADERS, 1, headers()) + frame(DATA, 0, 1, bytes(1 << 20)) * 16
    for at in range(0, len(stream), 65536):
        meter.read(stream[at : at + 65536], 0.0)
    assert len(reads) == 17
