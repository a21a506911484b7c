"""Offsets of the source: the range of each batch, with nothing read twice or omitted. Pure functions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ariane.errors import ConfigError
from ariane.model.message import MessageQueue
from ariane.spark.read import offset_ranges
from ariane.spark.read.source_options import listed_topics, parse, pull_access, time_for_queue

A, B, NEW = MessageQueue("T", "a", 0), MessageQueue("T", "b", 1), MessageQueue("T", "c", 0)
MINIMAL = {"namesrv": "h:9876", "topic": "T"}


def test_an_offset_carries_the_start_of_its_batch() -> None:
    start = offset_ranges.initial_offset({A: 5, B: 0})
    end = offset_ranges.next_offset(start, {A: 0, B: 0}, {A: 9, B: 0})
    assert offset_ranges.batch_ranges(end) == [offset_ranges.OffsetRange(A, 5, 9)]
    assert offset_ranges.end_positions(end) == {A: 9, B: 0}
    assert offset_ranges.batch_ranges(start) == []


def test_without_new_messages_the_same_offset_is_returned() -> None:
    start = offset_ranges.initial_offset({A: 5})
    assert offset_ranges.next_offset(start, {A: 0}, {A: 5}) is start
    assert offset_ranges.next_offset(start, {}, {}) is start


def test_a_new_queue_starts_at_its_minimum_offset_and_a_missing_one_retains_its_position() -> None:
    start = offset_ranges.initial_offset({A: 5, B: 7})
    end = offset_ranges.next_offset(start, {A: 0, NEW: 2}, {A: 6, NEW: 4})
    assert offset_ranges.batch_ranges(end) == [offset_ranges.OffsetRange(A, 5, 6), offset_ranges.OffsetRange(NEW, 2, 4)]
    assert offset_ranges.end_positions(end)[B] == 7


def test_the_text_of_an_offset_does_not_depend_on_the_order_of_queues() -> None:
    item = offset_ranges.next_offset(offset_ranges.initial_offset({A: 0, B: 0}), {A: 0, B: 0}, {A: 1, B: 1})
    other = offset_ranges.next_offset(offset_ranges.initial_offset({B: 0, A: 0}), {B: 0, A: 0}, {B: 1, A: 1})
    assert json.dumps(item) == json.dumps(other)


def test_positions_outside_their_queue_are_reported_and_corrected() -> None:
    start = offset_ranges.initial_offset({A: 5, B: 40, NEW: 3})
    first, ends = {A: 8, B: 0, NEW: 0}, {A: 8, B: 30, NEW: 4}
    below, beyond = offset_ranges.find_losses(start, first, ends)
    assert (below.queue, below.position, below.resume) == (A, 5, 8)
    assert (beyond.queue, beyond.position, beyond.resume) == (B, 40, 30)
    assert "T queue 0 of a: offsets 5 to 7 are gone (the queue holds nothing)" in str(below)
    assert "T queue 1 of b: offsets 30 to 39" in str(beyond)
    after = offset_ranges.next_offset(start, first, ends)
    assert offset_ranges.batch_ranges(after) == [offset_ranges.OffsetRange(NEW, 3, 4)]
    assert offset_ranges.end_positions(after) == {A: 8, B: 30, NEW: 4}
    assert offset_ranges.find_losses(after, first, ends) == []
    assert offset_ranges.next_offset(after, first, ends) is after


def test_a_queue_without_bounds_is_not_a_data_loss() -> None:
    assert offset_ranges.find_losses(offset_ranges.initial_offset({A: 5}), {}, {}) == []


def test_offset_options_are_resolved_to_positions() -> None:
    first, last = {A: 2, B: 3}, {A: 20, B: 30}
    assert offset_ranges.resolve_offsets("earliest", first, last) == first
    assert offset_ranges.resolve_offsets("latest", first, last) == last
    assert offset_ranges.resolve_offsets({A: 7}, first, last) == {A: 7, B: 3}
    assert offset_ranges.resolve_offsets({A: offset_ranges.LATEST, B: offset_ranges.EARLIEST}, first, last) == {
        A: 20,
        B: 3,
    }
    assert offset_ranges.resolve_offsets({A: 7, B: offset_ranges.LATEST}, {}, {}) == {A: 7}


QUEUES = st.builds(MessageQueue, st.just("T"), st.sampled_from("abc"), st.integers(0, 3))


@given(st.dictionaries(QUEUES, st.integers(0, 1000), min_size=1), st.integers(1, 50))
def test_limited_batches_add_up_to_everything_once(ends: dict[MessageQueue, int], most: int) -> None:
    first = dict.fromkeys(ends, 0)
    offset = offset_ranges.initial_offset(first)
    read: dict[MessageQueue, int] = dict.fromkeys(ends, 0)
    while (after := offset_ranges.next_offset(offset, first, ends, offset_ranges.ReadLimits(most))) is not offset:
        parts = offset_ranges.batch_ranges(json.loads(json.dumps(after)))
        assert 0 < sum(part.end - part.start for part in parts) <= most + len(ends)  # at least one of each queue
        for part in parts:
            assert part.start == read[part.queue]
            read[part.queue] = part.end
        offset = after
    assert read == ends


def test_options_are_parsed_to_typed_values() -> None:
    options = parse(
        {**MINIMAL, "startingOffsets": '{"T":{"a":{"0":12}}}', "maxOffsetsPerTrigger": "5", "subExpression": "x"}
    )
    assert options.starting_offsets == {A: 12}
    assert (options.max_offsets_per_trigger, options.tags, options.namesrv) == (5, "x", ("h:9876",))


def test_json_offsets_accept_earliest_and_latest() -> None:
    options = parse({**MINIMAL, "startingOffsets": '{"T":{"a":{"0":-2},"b":{"1":-1}}}'})
    assert options.starting_offsets == {A: offset_ranges.EARLIEST, B: offset_ranges.LATEST}


@pytest.mark.parametrize(
    "wrong",
    [
        {"namesrv": ""},
        {"namesrv": "nowhere"},
        {"topic": "a/b"},
        {"startingOffsets": "first"},
        {"endingOffsets": "earliest"},
        {"failOnDataLoss": "maybe"},
        {"maxOffsetsPerTrigger": "0"},
        {"startingOffset": "latest"},
        {"startingOffsets": '{"Other":{"a":{"0":1}}}'},
        {"startingOffsets": '{"T":{"a":{"0":-3}}}'},
        {"startingOffsets": '{"T":{"a":{"0":1.5}}}'},
        {"startingOffsets": '{"T":{"a":{"zero":1}}}'},
        {"startingOffsets": '{"T":[]}'},
        {"pullTimeoutMs": "²"},
        {"pullBatchSize": "4294967296"},
        {"nameServer": "h:1"},
    ],
)
def test_an_invalid_option_is_named(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({**MINIMAL, **wrong})
    assert next(iter(wrong)).lower() in str(caught.value).lower()


def test_topics_are_selected_by_list_and_offsets_by_time() -> None:
    options = parse({"namesrv": "h:1", "topics": "b, a,b", "startingTimestamp": "1700000000000", "keys": "k1, k2"})
    assert (listed_topics(options), options.keys) == (("a", "b"), ("k1", "k2"))
    assert time_for_queue(options.starting_timestamp, A) == 1_700_000_000_000
    times = parse({**MINIMAL, "startingTimestamp": '{"T":{"a":{"0":"2023-11-14T22:13:20+00:00"}}}'}).starting_timestamp
    assert (time_for_queue(times, A), time_for_queue(times, B)) == (1_700_000_000_000, None)
    assert parse({**MINIMAL, "endingTimestamp": "2023-11-14T22:13:20.0001"}).ending_timestamp == 1_700_000_000_001


@pytest.mark.parametrize("text", ["20260131", "1700000000", '{"T":{"a":{"0":20260131}}}', '{"T":{"a":{"0":"1"}}}'])
def test_a_date_or_seconds_are_not_interpreted_as_ms(text: str) -> None:
    with pytest.raises(ConfigError, match="startingTimestamp = .*or a date, 2026-01-31; append 000 to seconds"):
        parse({**MINIMAL, "startingTimestamp": text})
    assert parse({**MINIMAL, "startingTimestamp": "0"}).starting_timestamp == 0
    assert parse({**MINIMAL, "startingTimestamp": "10000000000"}).starting_timestamp == 10_000_000_000
    assert parse({**MINIMAL, "startingTimestamp": "2026-01-31"}).starting_timestamp == 1_769_817_600_000


def test_an_option_and_its_alias_cannot_both_be_set() -> None:
    assert parse({**MINIMAL, "pullTimeoutMs": "7"}).timeout_ms == parse({**MINIMAL, "timeoutMs": "7"}).timeout_ms == 7
    with pytest.raises(ConfigError, match="pullTimeoutMs = '7': is an alias of timeoutMs, .* keep one"):
        parse({**MINIMAL, "timeoutMs": "7", "pullTimeoutMs": "7"})


def test_sizes_and_durations_have_units() -> None:
    options = parse({**MINIMAL, "maxBytesPerTrigger": "64m", "maxTriggerDelay": "30s", "minOffsetsPerTrigger": "5"})
    assert (options.max_bytes_per_trigger, options.max_trigger_delay) == (64 * 1024 * 1024, 30_000)


def test_sources_with_different_selections_share_connections() -> None:
    item, other = parse(MINIMAL), parse({"namesrv": "h:9876", "topics": "a,b", "tags": "x", "minPartitions": "9"})
    assert pull_access(item) == pull_access(other)
    assert hash(pull_access(item)) == hash(pull_access(other))
    for more in ({"groupId": "g"}, {"useTls": "true"}, {"pullBatchSize": "8"}, {"accessKey": "a", "secretKey": "s"}):
        assert pull_access(parse({**MINIMAL, **more})) != pull_access(item)


@pytest.mark.parametrize(
    "wrong",
    [
        {"topics": "a/b"},
        {"topics": ","},
        {"topicsPattern": "("},
        {"startingTimestamp": "yesterday"},
        {"startingTimestamp": "1960-01-01"},
        {"startingTimestamp": '{"Other":{"a":{"0":1700000000000}}}'},
        {"startingTimestamp": '{"T":{"a":{"-1":1700000000000}}}'},
        {"startingTimestamp": '{"T":{"a":{"00":1700000000000}}}'},
        {"startingOffsets": '{"T":{"a":{"0":1,"00":2}}}'},
        {"startingOffsets": '{"T":{"a":{"-1":1}}}'},
        {"endingOffsets": '{"T":{"a":{"+1":1}}}'},
        {"endingTimestamp": "-1"},
        {"maxBytesPerTrigger": "0"},
        {"maxTriggerDelay": "soon"},
        {"minPartitions": "0"},
        {"commitOffsets": "true"},
        {"tlsCaFile": "ca.pem"},
        {"tlsVerify": "maybe"},
        {"tlsKeyFile": "key.pem"},
    ],
)
def test_an_invalid_selection_option_is_named(wrong: dict[str, str]) -> None:
    name = next(iter(wrong))
    one_topic = {} if name.startswith("topics") else {"topic": "T"}
    with pytest.raises(ConfigError) as caught:
        parse({"namesrv": "h:9876", **one_topic, **wrong})
    assert name.lower() in str(caught.value).lower()


def test_topic_and_end_options_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="exactly one of the options topic, topics, topicsPattern"):
        parse({**MINIMAL, "topics": "a,b"})
    with pytest.raises(ConfigError, match="cannot be combined with startingOffsets"):
        parse({**MINIMAL, "startingOffsets": "latest", "startingTimestamp": "0"})
