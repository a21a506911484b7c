"""Both implementations of `SendEncoder` and the handler of single sends give the same bytes, whatever arrives.

    frames ─┬→ PythonSendEncoder ──┐
            ├→ ariane_native ──────┼→ the same runs; in a broker: the same files and responses
            └→ SendHandler ────────┘

Frames are those of `test_send_turn`, recorded ones of Java clients, and all of them damaged. ARIANE_FUZZ_S sets how many seconds
`test_damaged_frames` runs, ARIANE_FUZZ_SEED repeats a run of it.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_send_turn import DAMAGED, FRAMES, PLAIN, SENDS, send_frame, serve
from unusual_sends import RECORDED, altered, corpus, damaged

from ariane.broker.handlers.sending import send_turns
from ariane.broker.handlers.sending.send_turns import EXCEPTIONAL_PROPERTIES
from ariane.kernels.implementation import select
from ariane.kernels.sends.send_encoder import FRAMES_MAX
from ariane.kernels.sends.send_turn import LogEnd, SendEncoder, SendRun, SendSettings
from ariane.protocol.records import batch

pytest.importorskip("ariane_native", reason="ariane_native is not installed; ./ariane install builds it with cargo")

IMPLEMENTATIONS = {choice: select(choice) for choice in ("python", "native")}
BORN_HOST = bytes((10, 1, 2, 3, 0, 0, 0x11, 0xD7))
LOG_END = LogEnd(40_000, 1_000_000, 1_700_000_000_123)


def encoder(name: str, **values: Any) -> SendEncoder:
    """Return the encoder of an implementation for these settings."""
    members: dict[str, Any] = {
        "store_host": bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F)),
        "cluster": "DefaultCluster", "region": "DefaultRegion", "trace_on": True,
        "header_max": 20_000, "body_max": 3000, "is_indexed": True, "exceptional": EXCEPTIONAL_PROPERTIES,
    }  # fmt: skip
    return IMPLEMENTATIONS[name].send_encoder(SendSettings(**members | values))


def next_offset(topic: str, queue_id: int) -> int:
    return queue_id * 7 + len(topic) if topic in ("T", "Many", "Ü", "%RETRY%G") and queue_id < 4 else -1


def encode(implementation: SendEncoder, data: bytes, start: int, log_end: LogEnd = LOG_END) -> SendRun:
    """Return a run; check that it needs the number of each queue once."""
    queues: list[tuple[str, int]] = []

    def asked(topic: str, queue_id: int) -> int:
        queues.append((topic, queue_id))
        return next_offset(topic, queue_id)

    run = implementation.encode(data, start, BORN_HOST, log_end, asked)
    assert len(queues) == len(set(queues))
    return run


def assert_twins(twins: tuple[SendEncoder, SendEncoder], frames: list[bytes], log_end: LogEnd = LOG_END) -> int:
    """Check that runs from the start of each frame are the same; return how many frames were plain for native code."""
    data, start, plain = b"".join(frames), 0, 0
    python, compiled = twins
    for frame in frames:
        fast = encode(compiled, data, start, log_end)
        slow = encode(python, data, start, log_end)
        # Native code may leave more to the handler, but it never takes what Python leaves to it.
        assert fast.sends <= slow.sends or slow.sends == FRAMES_MAX
        end = fast.position
        assert encode(python, data[:end], start, log_end) == encode(compiled, data[:end], start, log_end) == fast
        plain += fast.sends > 0
        start += len(frame)
    return plain


def assert_same_broker(reads: list[bytes]) -> dict[str, int]:
    """Check that a broker does the same with and without the encoders; return how many sends each of them served."""
    expected = serve(reads, together=False)
    together = {}
    for name, implementation in IMPLEMENTATIONS.items():
        with mock.patch.object(send_turns, "send_encoder", implementation.send_encoder):
            outcome = serve(reads, together=True)
        assert outcome._replace(together=0) == expected, name
        together[name] = outcome.together
    return together


@pytest.mark.parametrize("frame", RECORDED)
def test_recorded_frames_are_plain(frame: bytes) -> None:
    twins = encoder("python"), encoder("native")
    assert assert_twins(twins, [frame, frame]) == 2
    assert assert_same_broker([frame, frame]) == {"python": 2, "native": 2}


def test_usual_sends_are_plain() -> None:
    frames = corpus(random.Random(1))
    assert assert_twins((encoder("python"), encoder("native")), frames) == len(frames)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PLAIN | SENDS | DAMAGED, min_size=1, max_size=8), st.sampled_from([1_000_000, 700, 400, 0]))
def test_any_frames_give_the_same_runs(frames: list[bytes], room: int) -> None:
    assert_twins((encoder("python"), encoder("native")), frames, LOG_END._replace(room=room))


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "store_host": st.binary(min_size=8, max_size=8),
            "cluster": st.text(st.characters(exclude_categories=["Cs"])),
            "region": st.text(st.characters(exclude_categories=["Cs"]))
            | st.sampled_from(['"\\/%b%%\b\n\x7f\x01', "}],"]),
            "trace_on": st.booleans(),
            "header_max": st.sampled_from([0, 300, 400, 20_000]),
            "body_max": st.sampled_from([0, 5, 3000]),
            "is_indexed": st.booleans(),
            "exceptional": st.frozensets(st.sampled_from(["TAGS", "KEYS", "x", ""])),
        },
    ),
    st.randoms(use_true_random=False),
)
def test_any_settings_give_the_same_runs(values: dict[str, Any], rng: random.Random) -> None:
    assert_twins((encoder("python", **values), encoder("native", **values)), corpus(rng))


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(FRAMES, st.randoms(use_true_random=False))
def test_any_stream_leaves_the_same_files(frames: list[bytes], rng: random.Random) -> None:
    stream = b"".join([*frames, *RECORDED, damaged(rng, rng.choice(RECORDED)), *frames])
    cut = rng.randrange(len(stream))
    assert_same_broker([stream[:cut], stream[cut:]])


def test_damaged_frames(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "ariane")  # a record of each refused frame would fill the memory in a long run
    seconds, seed = float(os.environ.get("ARIANE_FUZZ_S") or 2), int(os.environ.get("ARIANE_FUZZ_SEED") or os.getpid())
    rng, deadline = random.Random(seed), time.monotonic() + seconds
    twins = encoder("python"), encoder("native")
    count = plain = streams = broker_frames = served = 0
    print(f"ARIANE_FUZZ_SEED={seed}")
    while time.monotonic() < deadline:
        sources = corpus(rng)
        sources += [altered(rng) for _ in range(100)]
        frames = [altered(rng) if rng.random() < 0.6 else damaged(rng, rng.choice(sources)) for _ in range(200)]
        plain += assert_twins(twins, frames)
        count += len(frames)
        # A broker closes the connection at the first invalid frame, so each stream has few that are damaged.
        for first in range(0, 40, 8):
            stream = [rng.choice(sources), *frames[first : first + 8], rng.choice(sources)]
            served += assert_same_broker([b"".join(stream)])["native"]
            streams += 1
            broker_frames += len(stream)
    print(f"{count} frames in both encoders, {plain} of them plain;")
    print(f"{broker_frames} frames in {streams} brokers of each kind, {served} of them served by native code")
    assert plain and served


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda values: values | {"data": bytearray(b"x")}, TypeError),
        (lambda values: values | {"data": memoryview(b"x")}, TypeError),
        (lambda values: values | {"position": -1}, OverflowError),
        (lambda values: values | {"born_host": bytes(20)}, ValueError),
        (lambda values: values | {"log_end": (1, 2)}, ValueError),
        (lambda values: values | {"log_end": (2**63, 2, 3)}, OverflowError),
        (lambda values: values | {"next_offset": None}, TypeError),
        (lambda values: values | {"next_offset": lambda topic, queue_id: "5"}, TypeError),
        (lambda values: values | {"next_offset": lambda topic, queue_id: 1 / 0}, ZeroDivisionError),
    ],
)
def test_a_wrong_caller_gets_an_error(
    change: Callable[[dict[str, Any]], dict[str, Any]], error: type[Exception]
) -> None:
    compiled = encoder("native")
    values = {
        "data": send_frame(),
        "position": 0,
        "born_host": BORN_HOST,
        "log_end": LOG_END,
        "next_offset": next_offset,
    }
    with pytest.raises(error):
        compiled.encode(*change(values).values())
    assert compiled.encode(*values.values()).sends == 1  # type: ignore[arg-type]


def test_a_batch_that_repeats_long_properties_is_refused() -> None:
    body = batch.encode(
        [batch.BatchEntry(0, b"", "")] * 2_200
    )  # 48 kB, with properties of 30 kB that each message gets
    frame = send_frame(batch=True, body=body, property_text=f"x\x01{'v' * 31_000}")
    for name in ("python", "native"):
        assert (
            encode(encoder(name, header_max=2**18, body_max=2**22), frame, 0, LOG_END._replace(room=2**30)).sends == 0
        )


def test_the_id_of_a_batch_replaces_no_ids_of_its_messages() -> None:
    body = batch.encode([batch.BatchEntry(0, b"a", "UNIQ_KEY\x01A"), batch.BatchEntry(0, b"b", "TAGS\x01t")])
    frame = send_frame(batch=True, body=body, property_text="UNIQ_KEY\x01BATCH\x02x\x01y")
    for name in ("python", "native"):
        run = encode(encoder(name), frame, 0)
        assert run.sends == 1
        assert b"UNIQ_KEY\x01A" in run.records
        assert b"BATCH" not in run.records


def test_a_position_beyond_the_data_is_an_empty_run() -> None:
    for twin in (encoder("python"), encoder("native")):
        assert encode(twin, b"", 0) == SendRun(0, 0, b"", [], b"", b"")
        assert encode(twin, send_frame(), 10**6) == SendRun(10**6, 0, b"", [], b"", b"")
