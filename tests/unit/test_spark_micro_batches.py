"""Planning of the next micro-batch with servers that appear, disappear, lag or lose entries. No socket, no Spark session."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from ariane.errors import ArianeError, ConnectionLost, ReplyError, RequestTimeout
from ariane.model.message import MessageQueue
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.routing import BrokerData, ClusterInfo
from ariane.spark.read import offset_ranges, progress, pull_client
from ariane.spark.read.micro_batches import StreamReader
from ariane.spark.read.offset_ranges import DataLoss
from ariane.spark.read.pull_client import BlockingCluster, BrokerResponse, OffsetBounds
from ariane.spark.read.source_options import parse
from ariane.testing.clock import FakeClock

A, B = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)


class Servers(BlockingCluster):
    """Queues that hold what a test says; an error in place of an End is what the broker answers."""

    def __init__(self) -> None:
        super().__init__(parse({"namesrv": "h:1", "topic": "T", "retries": "1"}), sleep=lambda _: None)
        self.held: dict[MessageQueue, OffsetBounds | ArianeError] = {
            A: OffsetBounds(0, 10, True),
            B: OffsetBounds(0, 30, True),
        }
        self.names: ArianeError | None = None
        self.committed: dict[MessageQueue, int] = {}
        self.registered = {"a", "b"}

    def queues(self, *topics: str) -> list[MessageQueue]:
        if self.names is not None:
            raise self.names
        return sorted(queue for queue in self.held if queue.topic in topics and queue.broker in self.registered)

    def brokers(self) -> ClusterInfo:
        return ClusterInfo({name: BrokerData({0: "h:2"}, name) for name in self.registered})

    def queue_bounds(self, queues: Any) -> dict[MessageQueue, OffsetBounds | ArianeError]:
        return {queue: self.held[queue] for queue in queues}

    def request_all(self, requests: Any, accepted: Any = (0,)) -> list[BrokerResponse | ArianeError]:
        for queue, question in requests:
            if question.code == RequestCode.UPDATE_CONSUMER_OFFSET:
                self.committed[queue] = question.header.commit_offset
        return [BrokerResponse(Command(0), True) for _ in requests]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    fake_servers = Servers()
    monkeypatch.setattr(pull_client, "shared_cluster", lambda options: fake_servers)
    yield fake_servers


def reader(clock: FakeClock | None = None, **options: str) -> StreamReader:
    clock = clock or FakeClock(0)
    return StreamReader(parse({"namesrv": "h:1", "topic": "T", **options}), ["body"], clock.monotonic)


def next_batch(one: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return one.latestOffset(start, one.getDefaultReadLimit())


def test_an_unavailable_broker_retains_its_position_and_its_lag_is_unknown(servers: Servers) -> None:
    item = reader()
    start = next_batch(item, item.initialOffset())
    servers.held |= {A: ConnectionLost("h:2", "refused"), B: OffsetBounds(0, 40, True)}
    after = next_batch(item, start)
    assert offset_ranges.batch_ranges(after) == [offset_ranges.OffsetRange(B, 30, 40)]
    assert offset_ranges.end_positions(after)[A] == 10
    why = "connection to h:2: refused"
    assert item.reportLatestOffset() == {"latest": {"T": {"b": {"0": 40}}}, "unavailable": {"a": why}}
    assert progress.unavailable_servers({"sources": [{"latestOffset": json.dumps(item.reportLatestOffset())}]}) == {
        "a": why
    }
    servers.names = ConnectionLost("h:1", "refused")
    assert next_batch(item, after) is after
    assert item.reportLatestOffset() == {"unavailable": {"a": why, "all name servers": "connection to h:1: refused"}}


def test_each_change_of_availability_is_logged_once(servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    item = reader()
    start = next_batch(item, item.initialOffset())
    servers.held[A] = ConnectionLost("h:2", "refused")
    for _ in range(3):
        assert next_batch(item, start) is start
    servers.held[A] = OffsetBounds(0, 10, True)
    for _ in range(2):
        assert next_batch(item, start) is start
    assert caplog.messages == ["a unavailable: connection to h:2: refused", "a available again"]
    caplog.clear()
    servers.held[A], servers.names = ConnectionLost("h:2", "refused"), None
    assert next_batch(item, start) is start
    servers.names = ConnectionLost("h:1", "refused")
    assert next_batch(item, start) is start
    servers.held[A], servers.names = OffsetBounds(0, 10, True), None
    assert next_batch(item, start) is start
    lost = ["a unavailable: connection to h:2: refused", "all name servers unavailable: connection to h:1: refused"]
    assert caplog.messages == [*lost, "a available again", "all name servers available again"]
    assert item.reportLatestOffset() == {"latest": {"T": {"a": {"0": 10}, "b": {"0": 30}}}}


def test_a_permanent_error_fails_the_query(servers: Servers) -> None:
    item = reader()
    start = item.initialOffset()
    servers.held[A] = ReplyError(ResponseCode.NO_PERMISSION, "no", "h:2")
    with pytest.raises(ReplyError):
        next_batch(item, start)


def lag_of(one: StreamReader, offset: dict[str, Any]) -> int | None:
    reported = {"sources": [{"endOffset": offset, "latestOffset": one.reportLatestOffset()}]}
    return progress.total_lag(progress.lags(reported))


def test_an_unregistered_broker_is_unavailable(servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    """Name servers remove a broker's routes when it disconnects: its queues are only known from earlier reads."""
    item = reader()
    start = next_batch(item, item.initialOffset())
    servers.held[A] = RequestTimeout("h:2", 1000)  # it hangs first
    assert next_batch(item, start) is start
    servers.registered.remove("a")
    for _ in range(2):
        assert next_batch(item, start) is start
    assert item.reportLatestOffset() == {
        "latest": {"T": {"b": {"0": 30}}},
        "unavailable": {"a": "not registered with any name server"},
    }
    assert lag_of(item, start) is None
    servers.registered.add("a")
    servers.held[A] = OffsetBounds(0, 12, True)
    assert offset_ranges.batch_ranges(next_batch(item, start)) == [offset_ranges.OffsetRange(A, 10, 12)]
    assert caplog.messages == ["a unavailable: no response from h:2 within 1000 ms", "a available again"]


@pytest.mark.parametrize("left", [{"b"}, set()])
def test_available_now_waits_for_unregistered_brokers_and_then_fails(servers: Servers, left: set[str]) -> None:
    item = reader()
    start = next_batch(item, item.initialOffset())
    servers.registered = left
    repeated = reader()
    repeated.prepareForTriggerAvailableNow()
    with pytest.raises(ArianeError, match=r"queues read before: no route .* was read before.*tried 2 times"):
        next_batch(repeated, start)
    servers.registered = {"a", "b"}
    servers.held[A] = OffsetBounds(0, 12, True)
    assert offset_ranges.batch_ranges(next_batch(repeated, start)) == [offset_ranges.OffsetRange(A, 10, 12)]


def test_a_deleted_topic_is_logged_once_and_has_no_lag(servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    item = reader()
    start = next_batch(item, item.initialOffset())
    held, servers.held = servers.held, {}
    with caplog.at_level(logging.WARNING):
        assert next_batch(item, start) is start
        assert next_batch(item, start) is start
    assert caplog.text.count("Queues of T no longer exist") == 1
    assert progress.unavailable_servers({"sources": [{"latestOffset": item.reportLatestOffset()}]}) == {}
    assert lag_of(item, start) == 0
    repeated = reader()
    repeated.prepareForTriggerAvailableNow()
    assert next_batch(repeated, start) is start
    servers.held = {**held, A: OffsetBounds(0, 3, True)}  # created again
    with pytest.raises(DataLoss, match="offsets 3 to 9"):
        next_batch(item, start)


def test_a_new_queue_without_messages_has_a_position_and_nothing_to_read(servers: Servers) -> None:
    item = reader()
    start = next_batch(item, item.initialOffset())
    new = MessageQueue("T", "a", 1)
    servers.held[new] = OffsetBounds(4, 4, True)
    after = next_batch(item, start)
    assert offset_ranges.batch_ranges(after) == []
    assert offset_ranges.end_positions(after)[new] == 4
    assert lag_of(item, after) == 0
    assert next_batch(item, after) is after


def test_a_slave_that_responds_for_its_master_is_reported(servers: Servers) -> None:
    item = reader()
    start = next_batch(item, item.initialOffset())
    servers.held[A] = OffsetBounds(0, 10, False)
    assert next_batch(item, start) is start
    report = item.reportLatestOffset()
    assert report is not None
    assert report["unavailable"] == {"master of a": "reading from a slave, which may lack the newest messages"}


def test_a_slave_that_lags_the_current_position_is_not_a_data_loss(servers: Servers) -> None:
    item = reader()
    start = next_batch(item, item.initialOffset())
    servers.held[A] = OffsetBounds(0, 7, False)
    assert next_batch(item, start) is start
    servers.held[A] = OffsetBounds(0, 7, True)
    with pytest.raises(DataLoss):
        next_batch(item, start)


def test_the_initial_offset_is_computed_once(servers: Servers) -> None:
    item = reader(startingOffsets="latest")
    first = item.initialOffset()
    servers.held[A] = OffsetBounds(0, 99, True)
    assert item.initialOffset() is first
    assert offset_ranges.batch_ranges(next_batch(item, first)) == [offset_ranges.OffsetRange(A, 10, 99)]


def test_a_batch_waits_for_min_offsets_or_the_trigger_delay(servers: Servers) -> None:
    clock = FakeClock(0)
    item = reader(clock, minOffsetsPerTrigger="50", maxTriggerDelay="10s")
    first = next_batch(item, item.initialOffset())  # after a start, everything stored before is read at once
    assert offset_ranges.end_positions(first) == {A: 10, B: 30}
    servers.held[A] = OffsetBounds(0, 20, True)
    assert next_batch(item, first) is first
    clock.advance(10)
    after = next_batch(item, first)
    assert offset_ranges.end_positions(after) == {A: 20, B: 30}
    servers.held[A] = OffsetBounds(0, 100, True)
    assert offset_ranges.end_positions(next_batch(item, after))[A] == 100
    start = item.initialOffset()
    item = reader(minOffsetsPerTrigger="50")
    last = item.latestOffset(start, ReadMinRows(50))
    servers.held[A] = OffsetBounds(0, 101, True)
    assert item.latestOffset(last, ReadMinRows(50)) is last
    due = iter([True])
    item.is_due = lambda: next(due, False)
    servers.held[A] = OffsetBounds(0, 100, True)
    assert item.latestOffset(last, ReadMinRows(50)) is last
    servers.held[A] = OffsetBounds(0, 101, True)
    assert offset_ranges.end_positions(item.latestOffset(last, ReadMinRows(50)))[A] == 101, (
        "due since nothing was pending"
    )
    servers.held[A] = OffsetBounds(0, 100, True)
    item = reader(minOffsetsPerTrigger="50")
    assert item.latestOffset(start, ReadAllAvailable()) != start
    item.prepareForTriggerAvailableNow()
    servers.held[A] = OffsetBounds(0, 1000, True)
    assert offset_ranges.end_positions(next_batch(item, start))[A] == 100  # as it was when the query began


def test_the_default_read_limit_follows_the_options() -> None:
    assert reader().getDefaultReadLimit() == ReadAllAvailable()
    assert reader(maxBytesPerTrigger="1k").getDefaultReadLimit() == ReadMaxBytes(1024)
    assert reader(minOffsetsPerTrigger="3").getDefaultReadLimit() == ReadMinRows(3)
    assert reader(minOffsetsPerTrigger="3", maxOffsetsPerTrigger="9").getDefaultReadLimit() == ReadMaxRows(9)


def test_a_policy_scales_the_limits_and_learns_of_the_rest(servers: Servers) -> None:
    plans: list[bool] = []

    class Half:
        def share(self) -> float:
            return 0.5

        def record_plan(self, *, is_limited: bool) -> None:
            plans.append(is_limited)

    item = reader(maxOffsetsPerTrigger="40")
    item.limit_policy = Half()
    first = next_batch(item, item.initialOffset())
    assert offset_ranges.end_positions(first) == {A: 5, B: 15}
    after = next_batch(item, first)
    assert offset_ranges.end_positions(after) == {A: 10, B: 30}
    assert next_batch(item, after) is after
    assert plans == [True, False, False]


def test_a_finished_batch_is_committed_when_the_next_is_planned(servers: Servers) -> None:
    item = reader(commitOffsets="true", groupId="own", maxOffsetsPerTrigger="8")
    start = item.initialOffset()
    after = next_batch(item, start)
    assert servers.committed == {}
    next_batch(item, after)
    assert servers.committed == offset_ranges.end_positions(after) == {A: 2, B: 6}
    assert reader().latestOffset(after, ReadAllAvailable()) != after
    assert servers.committed == {A: 2, B: 6}


def test_a_used_reader_can_be_pickled(servers: Servers) -> None:
    item = StreamReader(parse({"namesrv": "h:1", "topic": "T", "commitOffsets": "true", "groupId": "g"}), ["body"])
    next_batch(item, next_batch(item, item.initialOffset()))
    assert pickle.loads(pickle.dumps(item)).initialOffset() == item.initialOffset()
