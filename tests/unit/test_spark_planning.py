"""Planning of the source: topics, offset ranges and their division. Pure functions, no socket, no Spark session."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the extra spark is not installed")
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from ariane.errors import ArianeError, ConnectionLost, RequestTimeout
from ariane.model.message import MessageQueue
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.routing import BrokerData, ClusterInfo
from ariane.spark.read import offset_ranges, pushdown
from ariane.spark.read.batch import FilteredReader
from ariane.spark.read.offset_ranges import OffsetRange, ReadLimits
from ariane.spark.read.pull_client import BlockingCluster
from ariane.spark.read.queue_bounds import matching_topics
from ariane.spark.read.source_options import parse
from ariane.spark.wire.blocking_connection import Request

A, B, C = MessageQueue("T", "a", 0), MessageQueue("T", "b", 1), MessageQueue("U", "a", 0)

BROKERS = ClusterInfo({"broker-a": BrokerData({0: "h:1"}, "broker-a")}, {"DefaultCluster": ("broker-a",)})
KNOWN = [
    "orders", "orders-eu", "xorders", "%RETRY%g", "%DLQ%g", "RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_OTHER", "rmq_sys_wheel_timer",
    "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC",
]  # fmt: skip


def test_a_pattern_matches_whole_names_and_no_system_topics() -> None:
    assert matching_topics("orders.*", False, KNOWN, BROKERS) == ["orders", "orders-eu"]
    assert matching_topics(".*", False, KNOWN, BROKERS) == ["orders", "orders-eu", "xorders"]
    assert matching_topics("order", False, KNOWN, BROKERS) == []


def test_system_topics_match_on_request() -> None:
    assert matching_topics("%(RETRY|DLQ)%.*", True, KNOWN, BROKERS) == ["%DLQ%g", "%RETRY%g"]
    assert set(matching_topics(".*", True, KNOWN, BROKERS)) >= {*KNOWN, "RMQ_SYS_TRANS_HALF_TOPIC"}


@pytest.mark.parametrize("error", [ConnectionLost("h:1", "refused"), RequestTimeout("h:1", 5)])
def test_an_unavailable_broker_is_named_if_no_name_server_has_its_queues(error: ArianeError) -> None:
    class Servers(BlockingCluster):
        def _call_server(self, addr: str, requests: Sequence[Request]) -> list[Command]:
            if addr == "h:1":
                raise error
            if requests[0].code == RequestCode.GET_BROKER_CLUSTER_INFO:
                return [Command(ResponseCode.SUCCESS, body=fastjson.write(BROKERS))]
            return [Command(ResponseCode.TOPIC_NOT_EXIST)]

    cluster = Servers(parse({"namesrv": "h:9876", "topic": "SCHEDULE_TOPIC_XXXX"}))
    with pytest.raises(
        ConnectionLost, match=r"broker broker-a is unavailable.* its queues of SCHEDULE_TOPIC_XXXX: .*h:1"
    ) as reported:
        cluster.queues("SCHEDULE_TOPIC_XXXX")
    assert reported.value.addr == "h:1"


PARTS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 300)), max_size=8)


@given(PARTS, st.integers(1, 60), st.none() | st.integers(1, 100))
def test_split_ranges_cover_the_same_entries_in_the_requested_number(
    spans: list[tuple[int, int]], at_least: int, most: int | None
) -> None:
    parts = [OffsetRange(MessageQueue("T", "a", n), start, start + count) for n, (start, count) in enumerate(spans)]
    pieces = offset_ranges.split_ranges(parts, at_least, most)
    entries = [(part.queue, position) for part in parts for position in range(part.start, part.end)]
    assert [(part.queue, position) for part in pieces for position in range(part.start, part.end)] == entries
    assert all(part.start < part.end for part in pieces)
    assert len(pieces) >= min(at_least, len(entries))
    assert most is None or all(part.end - part.start <= most for part in pieces)
    assert offset_ranges.split_ranges(parts, at_least, most) == pieces


def test_enough_ranges_are_not_split() -> None:
    parts = [OffsetRange(A, 0, 100), OffsetRange(B, 5, 6)]
    assert offset_ranges.split_ranges(parts) == parts
    assert offset_ranges.split_ranges(parts, 2) == parts
    assert offset_ranges.split_ranges(parts, 4) == [
        OffsetRange(A, 0, 33),
        OffsetRange(A, 33, 66),
        OffsetRange(A, 66, 100),
        OffsetRange(B, 5, 6),
    ]


def taken(limits: ReadLimits) -> dict[MessageQueue, int]:
    start = offset_ranges.initial_offset({A: 0, B: 0})
    after = offset_ranges.next_offset(start, {A: 0, B: 0}, {A: 100, B: 300}, limits)
    return {part.queue: part.end - part.start for part in offset_ranges.batch_ranges(after)}


def test_bytes_are_shared_by_pending_entries_and_both_limits_apply() -> None:
    sizes = {A: 1000.0, B: 100.0}  # 100,000 and 30,000 bytes wait
    assert taken(ReadLimits(max_bytes=13_000, entry_sizes=sizes)) == {A: 10, B: 30}
    assert taken(ReadLimits(max_bytes=130_000, entry_sizes=sizes)) == {A: 100, B: 300}
    assert taken(ReadLimits(max_entries=40, max_bytes=6_500, entry_sizes=sizes)) == {A: 5, B: 15}
    assert taken(ReadLimits(max_bytes=1, entry_sizes=sizes)) == {A: 1, B: 1}


def test_pending_entries_are_counted_from_the_next_batch() -> None:
    start = offset_ranges.initial_offset({A: 5, B: 40})
    assert offset_ranges.pending_counts(start, {A: 8, B: 0, C: 2}, {A: 10, B: 40, C: 4}) == {A: 2, C: 2}


def test_filters_select_queues_and_offsets() -> None:
    filters = pushdown.parse_filters(
        [
            IsNotNull(("topic",)), EqualTo(("topic",), "T"), In(("queue_id",), (0, 1)), In(("queue_id",), (1, 2)),
            GreaterThan(("queue_offset",), 9), LessThanOrEqual(("queue_offset",), 19), LessThan(("queue_offset",), 30),
            EqualTo(("body",), b"x"), Not(EqualTo(("broker",), "b")),
        ]
    )  # fmt: skip
    assert [filters.matches(queue) for queue in (A, B, C)] == [False, True, False]
    assert filters.clip(OffsetRange(B, 0, 100)) == OffsetRange(B, 10, 20)
    assert filters.clip(OffsetRange(B, 12, 15)) == OffsetRange(B, 12, 15)
    for other in (OffsetRange(B, 0, 5), OffsetRange(B, 40, 50)):
        cut = filters.clip(other)
        assert cut.start == cut.end


def test_filters_that_the_ranges_apply_exactly_stay_at_the_source() -> None:
    exact = [
        EqualTo(("topic",), "T"), EqualNullSafe(("broker",), "b"), In(("queue_id",), (1,)), GreaterThan(("queue_offset",), 9),
        IsNotNull(("queue_offset",)),
    ]  # fmt: skip
    others = [
        EqualNullSafe(("queue_offset",), None), Not(EqualTo(("broker",), "b")), IsNotNull(("keys",)), EqualTo(("keys",), "K"),
        GreaterThan(("queue_id",), 1), LessThan(("store_timestamp",), datetime.fromtimestamp(1, UTC)),
        EqualTo(("value", "queue_id"), 1),
    ]  # fmt: skip
    reader = FilteredReader(parse({"namesrv": "h:1", "topic": "T", "pushDownPredicate": "true"}), ["body"])
    assert list(reader.pushFilters([*exact, *others])) == others


@pytest.mark.parametrize(
    ("one", "bounds"),
    [
        (GreaterThanOrEqual, (1001, None)), (GreaterThan, (1001, None)), (LessThan, (None, 1001)), (LessThanOrEqual, (None, 1001)),
        (EqualTo, (1001, 1001)),
    ],
)  # fmt: skip
def test_store_time_filters_between_whole_ms_omit_no_ms(one: type, bounds: tuple[int | None, int | None]) -> None:
    filters = pushdown.parse_filters([one(("store_timestamp",), datetime.fromtimestamp(1.000_500, UTC))])
    assert (filters.first_ms, filters.end_ms) == bounds


@pytest.mark.parametrize(
    ("one", "bounds"),
    [
        (GreaterThanOrEqual, (1000, None)), (GreaterThan, (1001, None)), (LessThan, (None, 1000)), (LessThanOrEqual, (None, 1001)),
        (EqualTo, (1000, 1001)),
    ],
)  # fmt: skip
def test_store_time_filters_of_whole_ms_are_exact(one: type, bounds: tuple[int | None, int | None]) -> None:
    filters = pushdown.parse_filters([one(("store_timestamp",), datetime.fromtimestamp(1, UTC))])
    assert (filters.first_ms, filters.end_ms) == bounds


def test_times_without_zone_and_nested_columns_are_ignored() -> None:
    naive = LessThan(("store_timestamp",), datetime(2026, 1, 1))
    assert pushdown.parse_filters([naive, EqualTo(("properties", "topic"), "T")]) == pushdown.PushedFilters()
