"""Measurements of a benchmark: histograms, sums over processes, bodies, shares. No socket, no process."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ariane.bench.bench_body import STAMP_BYTES, BodyFactory, Stamp, parse_stamp
from ariane.bench.bench_plan import BenchMode, BenchPlan, Role, SendMethod, WorkerPlan, share
from ariane.bench.measurements import (
    Bitmap,
    Errors,
    LatencyHistogram,
    WorkerReport,
    combine,
    count_union,
    merge_latencies,
    unique_received,
)
from ariane.errors import ConnectionLost, ReplyError, RequestTimeout

RUN = bytes(range(8))
LATENCIES = st.lists(st.just(0.0) | st.floats(1e-6, 1e7), min_size=1, max_size=100)


def plan(mode: BenchMode = BenchMode.SEND, **more: object) -> BenchPlan:
    values: dict[str, object] = {"namesrv": "ns:1", "topic": "T", "group": "g", "run_id": RUN.hex(), **more}
    return BenchPlan(mode=mode, **values)  # type: ignore[arg-type]


def histogram(values: list[float]) -> LatencyHistogram:
    latency = LatencyHistogram()
    for ms in values:
        latency.record(ms)
    return latency


@given(st.lists(LATENCIES, min_size=1, max_size=4), st.sampled_from([0.0, 50.0, 90.0, 99.0, 99.9, 100.0]))
def test_percentiles_of_merged_processes_are_within_one_per_cent(parts: list[list[float]], percent: float) -> None:
    merged = merge_latencies(map(histogram, parts))
    values = sorted(value for part in parts for value in part)
    exact = values[max(1, math.ceil(percent / 100 * len(values) - 1e-9)) - 1]
    found = merged.percentile(percent)
    assert found is not None and abs(found - exact) <= 0.01 * exact
    assert (merged.min_ms, merged.max_ms, merged.count) == (values[0], values[-1], len(values))
    assert merged.mean_ms == pytest.approx(sum(values) / len(values))
    assert values[0] <= found <= values[-1]


def test_an_empty_histogram_has_no_values() -> None:
    empty = merge_latencies([LatencyHistogram(), LatencyHistogram()])
    assert (empty.percentile(50), empty.mean_ms, empty.count) == (None, None, 0)
    assert merge_latencies([LatencyHistogram(), histogram([5.0])]).min_ms == 5.0


def test_a_negative_latency_counts_as_zero() -> None:
    latency = histogram([-0.5, 2.0])
    assert (latency.min_ms, latency.percentile(50)) == (0.0, 0.0)


@given(st.lists(st.sets(st.integers(0, 300)), max_size=4))
def test_bitmaps_count_the_union(sets: list[set[int]]) -> None:
    texts = []
    for numbers in sets:
        bitmap = Bitmap()
        for number in random.Random(1).sample(sorted(numbers), len(numbers)):
            assert bitmap.add(number)
        assert not any(bitmap.add(number) for number in numbers)
        texts.append(bitmap.encode())
    assert count_union(texts) == len(set().union(*sets))


@given(st.integers(0, 10**9), st.integers(1, 256))
def test_shares_add_up_and_differ_by_at_most_one(total: int, count: int) -> None:
    shares = [share(total, number, count) for number in range(count)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize(
    ("mode", "roles"),
    [
        (BenchMode.SEND, [Role.SEND] * 3),
        (BenchMode.CONSUME, [Role.CONSUME] * 3),
        (BenchMode.BOTH, [Role.CONSUME] * 2 + [Role.SEND] * 3),
        (BenchMode.REQUEST, [Role.REPLY] * 2 + [Role.REQUEST] * 3),
    ],
)
def test_the_parts_of_the_clients_add_up(mode: BenchMode, roles: list[Role]) -> None:
    workers = list(plan(mode, clients=3, consumers=2, messages=100, warm_up=10, rate=30.0).workers())
    assert [worker.role for worker in workers] == roles
    senders = [worker for worker in workers if worker.role in (Role.SEND, Role.REQUEST)]
    if senders:
        assert sum(worker.messages for worker in senders) == 100
        assert sum(worker.warm_up for worker in senders) == 10
        assert sum(worker.rate or 0 for worker in senders) == 30.0
    else:
        assert sum(worker.warm_up for worker in workers) == 10


def test_a_plan_survives_the_pipe_to_its_process() -> None:
    (worker,) = plan(method=SendMethod.ONE_WAY, rate=0.5, secret_key="s").workers()
    assert msgspec.json.decode(msgspec.json.encode(worker), type=WorkerPlan) == worker


def test_a_report_survives_the_pipe_to_the_parent() -> None:
    report = WorkerReport(role="send", late_statuses={"FLUSH_DISK_TIMEOUT": 2}, received={0: "AQ=="})
    report.latency.record(1.5)
    report.errors.record(ConnectionLost("a:1", "refused"), 3)
    report.on_measured(1.0, 2.0, 100)
    assert msgspec.json.decode(msgspec.json.encode(report), type=WorkerReport) == report


@given(st.integers(0, 2**48 - 1), st.integers(0, 65_535), st.floats(0, 1e6), st.integers(STAMP_BYTES, 100))
def test_bodies_identify_run_sender_and_message(sequence: int, sender: int, sent_s: float, size: int) -> None:
    body = BodyFactory(size, RUN, sender).make(sent_s, sequence)
    assert len(body) == size
    stamp = parse_stamp(body, RUN)
    assert stamp == Stamp(pytest.approx(sent_s, abs=1e-9), sender, sequence)
    assert parse_stamp(body, bytes(8)) is None
    assert parse_stamp(body[: STAMP_BYTES - 1], RUN) is None


def test_bodies_without_a_stamp_have_any_size() -> None:
    assert len(BodyFactory(1, None, 0).make(0.0, 0)) == 1


def test_errors_are_counted_by_kind_with_the_first_text() -> None:
    errors = Errors()
    errors.record(ReplyError(2, "busy", "a:1"), 32)
    errors.record(ReplyError(2, "busy again", "a:1"))
    errors.record(ReplyError(4711, None))
    errors.record(RequestTimeout("a:1", 3000))
    kinds = {kind: (entry.count, entry.example) for kind, entry in errors.kinds.items()}
    assert kinds == {
        "SYSTEM_BUSY (2)": (33, "a:1 answered code 2: busy"),
        "code (4711)": (1, "peer answered code 4711: no remark"),
        "RequestTimeout": (1, "no response from a:1 within 3000 ms"),
    }
    assert errors.count == 35


def report_of(*spans: tuple[float, float], errors: int = 0) -> WorkerReport:
    report = WorkerReport(role="send", completed=len(spans) + 1)
    for start_s, end_s in spans:
        report.on_measured(start_s, end_s, 100)
        report.latency.record((end_s - start_s) * 1000)
    for _ in range(errors):
        report.errors.record(ConnectionLost("a:1", "refused"))
    return report


def test_throughput_counts_from_the_first_to_the_last_message_of_all_clients() -> None:
    total = combine([report_of((10.0, 10.5), (11.0, 12.0)), report_of((9.0, 9.1), errors=2), report_of()])
    assert (total.clients, total.messages, total.completed, total.seconds) == (3, 3, 6, 3.0)
    assert (total.messages_per_s, total.bytes_per_s) == (1.0, 100.0)
    assert (total.latency.count, total.latency.max_ms, total.errors.count) == (3, 1000.0, 2)


def test_a_rate_of_less_than_two_messages_is_unknown() -> None:
    assert combine([report_of((1.0, 2.0))]).messages_per_s is None
    assert combine([report_of()]).messages_per_s is None


def test_messages_that_two_consumers_received_are_duplicates() -> None:
    def consumer(numbers: set[int], duplicates: int = 0) -> WorkerReport:
        bitmap = Bitmap()
        for number in numbers:
            bitmap.add(number)
        return WorkerReport(role="consume", received={0: bitmap.encode()}, duplicates=duplicates)

    reports = [consumer({1, 2, 3}, duplicates=1), consumer({3, 4})]
    assert combine(reports).duplicates == 2
    assert unique_received(reports) == 4
