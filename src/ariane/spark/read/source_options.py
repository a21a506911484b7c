"""Options of the source, as texts and as values. Names are Kafka's and rocketmq-spark's where they say the same.

`PullAccess` is what reaches servers: who asks, how, and for how long. Connections are kept per PullAccess (`pull.cluster`), so
every option that changes a request or a connection belongs there, and no other.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import msgspec

from ariane.clock import EPOCH
from ariane.errors import ConfigError
from ariane.model.message import MessageQueue
from ariane.model.topic import topic_name_fault
from ariane.spark.option_parsing import (
    LONG_MAX,
    Readers,
    boolean_option,
    duration_option,
    integer_option,
    list_option,
    parse_options,
    reject_changed,
    size_option,
)
from ariane.spark.read.offset_ranges import EARLIEST, Positions, describe_queue, positions_from_json
from ariane.spark.wire import access as reaching
from ariane.spark.wire.access import DEFAULT_GROUP, ClusterAccess

OffsetOption = Literal["earliest", "latest"] | Positions
TimeOption = int | dict[MessageQueue, int]
Offset = Annotated[int, msgspec.Meta(ge=EARLIEST, le=LONG_MAX)]
QueueId = Annotated[str, msgspec.Meta(pattern=r"^(0|[1-9][0-9]{0,9})\Z")]  # one text for each queue

TIME_DIGITS_MIN = 11  # of ms since 1970: fewer are a date (20260131) or seconds
TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999: more are µs or ns
CLOCK_AHEAD_MS_MAX = 5 * 60_000  # how far the clock of a broker may be ahead of this machine's

BATCH_ONLY = dict.fromkeys(
    ("ending_offsets", "ending_timestamp"), "a stream has no end: leave it out, or use spark.read"
) | {"push_down_predicate": "filters reach the source in batches only: leave it out, or use spark.read"}
STREAM_ONLY = dict.fromkeys(
    ("max_offsets_per_trigger", "max_bytes_per_trigger", "min_offsets_per_trigger", "max_trigger_delay"),
    "limits the micro-batches of spark.readStream, and a batch has none: leave it out, or use endingOffsets",
) | {"commit_offsets": "works in streams only (spark.readStream): a batch commits no offsets"}

ALIASES = reaching.ALIASES | {"subexpression": "tags", "pulltimeoutms": "timeoutms"}


class PullAccess(ClusterAccess, frozen=True, kw_only=True):
    """How servers are reached, and how much is asked of them at once."""

    pull_batch_size: int = 32
    """Messages asked for at once; brokers answer with 32 at most unless told otherwise."""


class SourceOptions(PullAccess, frozen=True, kw_only=True):
    """What a read was asked for."""

    topic: str = ""
    """One topic. Exactly one of topic, topics, topicsPattern is given."""
    topics: tuple[str, ...] = ()
    """Several, joined by `,`."""
    topics_pattern: str = ""
    """Python regular expression that the whole name of a topic has to match."""
    include_system_topics: bool = False
    """Whether a pattern takes the topics that brokers keep for themselves as well, and those of retries and dead letters."""
    starting_offsets: OffsetOption = "earliest"
    """earliest, latest, or JSON {topic: {broker: {queue id: offset}}} with -2 for earliest and -1 for latest; queues that it
    does not name begin at the earliest. A query that has a checkpoint goes on from there."""
    ending_offsets: OffsetOption = "latest"
    """Batch only: latest, or JSON as above (exclusive); queues that it does not name end at the latest."""
    starting_timestamp: TimeOption | None = None
    """Messages stored at this time or later: ms since 1970, ISO 8601 (UTC unless it says otherwise), or JSON
    {topic: {broker: {queue id: time}}}; queues that it does not name begin at the earliest."""
    ending_timestamp: TimeOption | None = None
    """Batch only: messages stored before this time, written as above."""
    tags: str = "*"
    """Tag expression, `a || b`."""
    keys: tuple[str, ...] = ()
    """Only messages that have one of these keys, joined by `,`."""
    max_offsets_per_trigger: int | None = None
    """Streaming: most queue entries of one micro-batch, shared by the queues after what each has waiting."""
    max_bytes_per_trigger: int | None = None
    """Streaming: about how many bytes of stored messages one micro-batch reads, estimated from a few of each queue."""
    min_offsets_per_trigger: int | None = None
    """Streaming: a micro-batch waits until this many entries are there, or maxTriggerDelay is over."""
    max_trigger_delay: int = 15 * 60_000
    """ms that a micro-batch waits at most; also 30s, 15m, 1h."""
    min_partitions: int = 1
    """At least this many tasks, if there are as many entries: ranges of queues are split."""
    max_records_per_partition: int | None = None
    """Most queue entries of one task."""
    fail_on_data_loss: bool = True
    """Whether offsets that are gone (retention, a lost disk) end the query, or are skipped with a warning."""
    commit_offsets: bool = False
    """Streaming: whether the offsets of finished micro-batches are committed to `groupId`, for tools to see."""
    push_down_predicate: bool = False
    """Batch: whether filters reach the source; Spark has to allow it: spark.sql.python.filterPushdown.enabled."""


def parse(options: Mapping[str, str], now_ms: int | None = None) -> SourceOptions:
    """ConfigError names the option and what to write instead. Unknown options are refused: they are mistyped ones.

    `now_ms` is the current time, for tests: a start in the future is refused.
    """
    parsed = SourceOptions(**parse_options(options, "rocketmq source", SourceOptions, READERS, ALIASES))
    reaching.validate(parsed)
    texts = {name.lower(): text.strip() for name, text in options.items()}
    selectors = [name for name in ("topic", "topics", "topicsPattern") if texts.get(name.lower())]
    if len(selectors) != 1:
        raise ConfigError(
            "topic", ", ".join(selectors) or "none", "exactly one of topic, topics, topicsPattern is needed"
        )
    for offsets, times in (("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp")):
        if offsets.lower() in texts and times.lower() in texts:
            raise ConfigError(times, texts[times.lower()], f"{offsets} is given too: keep one")
    _check_times(parsed, time.time_ns() // 1_000_000 if now_ms is None else now_ms)
    return _validate(parsed)


def reject_batch_options(options: SourceOptions) -> None:
    """Raise ConfigError for an option that has no effect in a stream."""
    reject_changed(options, BATCH_ONLY)


def reject_stream_options(options: SourceOptions) -> None:
    """Raise ConfigError for an option that has no effect in a batch."""
    reject_changed(options, STREAM_ONLY)


def pull_access(options: PullAccess) -> PullAccess:
    """What of the options reaches servers; equal for sources that may share connections."""
    return PullAccess(**{name: getattr(options, name) for name in PullAccess.__struct_fields__})


def listed_topics(options: SourceOptions) -> tuple[str, ...]:
    """The topics that are given by name; none with a pattern."""
    return (options.topic,) if options.topic else tuple(sorted(set(options.topics)))


def time_for_queue(times: TimeOption | None, queue: MessageQueue) -> int | None:
    """The time that an option says for a queue."""
    return times.get(queue) if isinstance(times, dict) else times


def _offsets(name: str, text: str) -> object:
    if text in ("earliest", "latest"):
        return text
    try:
        tree = msgspec.json.decode(text, type=dict[str, dict[str, dict[QueueId, Offset]]])
        _check_complete(name, text, tree)
        return positions_from_json(tree)
    except (msgspec.DecodeError, ValueError):
        fix = 'use earliest, latest, or JSON such as {"T": {"broker-a": {"0": 12}}} (-2 earliest, -1 latest)'
        raise ConfigError(name, text, fix) from None


def _times(name: str, text: str) -> TimeOption:
    fix = 'use ms since 1970, 2026-01-31T12:00:00, or JSON such as {"T": {"broker-a": {"0": 1700000000000}}}'
    try:
        if not text.startswith("{"):
            return _time_ms(name, text)
        tree = msgspec.json.decode(text, type=dict[str, dict[str, dict[QueueId, int | str]]])
        _check_complete(name, text, tree)
        return {
            MessageQueue(topic, broker, int(queue_id)): _time_ms(name, str(when))
            for topic, brokers in tree.items()
            for broker, queues in brokers.items()
            for queue_id, when in queues.items()
        }
    except (msgspec.DecodeError, ValueError, OverflowError):
        raise ConfigError(name, text, fix) from None


def _time_ms(name: str, text: str) -> int:
    if text.isascii() and text.isdigit():
        if len(text) < TIME_DIGITS_MIN and text != "0":
            fix = f"ms since 1970 have {TIME_DIGITS_MIN} digits or are 0: write a day as 2026-01-31, seconds with 000 added"
            raise ConfigError(name, text, fix)
        if len(text) > len(str(TIME_MS_MAX)) or int(text) > TIME_MS_MAX:
            fix = "lies after the year 9999 as ms since 1970, which have 13 digits today: divide µs by 1,000, ns by 1,000,000"
            raise ConfigError(name, text, fix)
        return int(text)
    when = datetime.fromisoformat(text)
    since = (when if when.tzinfo else when.replace(tzinfo=UTC)) - EPOCH
    if since < timedelta(0):
        raise ValueError(text)
    return -(-since // timedelta(milliseconds=1))  # brokers know whole ms: none before `text` is at it or later


def _check_complete(name: str, text: str, tree: Mapping[str, Mapping[str, Mapping[str, object]]]) -> None:
    """ConfigError for JSON that names a topic or broker without a queue, or anything twice: it would have no effect."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        for key, count in Counter(key for key, _ in pairs).items():
            if count > 1:
                raise ConfigError(name, text, f"names {key!r} {count} times: keep one")
        return dict(pairs)

    json.loads(text, object_pairs_hook=unique)
    if not tree or not all(brokers and all(brokers.values()) for brokers in tree.values()):
        raise ConfigError(name, text, 'names no queue: expected JSON such as {"T": {"broker-a": {"0": 12}}}')


def _keys(name: str, text: str) -> tuple[str, ...]:
    keys = list_option(",")(name, text)
    for key in keys:
        if len(key.split()) > 1:
            raise ConfigError(name, key, "no key of a message holds white space: join several keys by ','")
    return keys


def _tags(name: str, text: str) -> str:
    """A tag expression of RocketMQ: `*`, or tags joined by `||`; anything else would select no message."""
    fix = "expected *, a tag, or tags joined by ||, such as A || B"
    if text == "*":
        return text
    parts = [part.strip() for part in text.split("||")]
    for part in parts:
        if not part:
            raise ConfigError(name, text, f"names an empty tag: {fix}")
        if "&&" in part:
            raise ConfigError(name, text, f"RocketMQ's tag expressions have no &&, as a message has one tag: {fix}")
        if "|" in part or "*" in part or len(part.split()) > 1:
            why = f"{part!r} is no tag: {fix} (for tags with such characters, and for SQL, use .where() on the frame)"
            raise ConfigError(name, text, why)
    return text


READERS: Readers = {
    **reaching.READERS,
    "pullbatchsize": integer_option(1),
    "topics": list_option(","),
    "keys": _keys,
    "tags": _tags,
    "startingoffsets": _offsets,
    "endingoffsets": _offsets,
    "startingtimestamp": _times,
    "endingtimestamp": _times,
    "failondataloss": boolean_option,
    "includesystemtopics": boolean_option,
    "commitoffsets": boolean_option,
    "pushdownpredicate": boolean_option,
    "maxoffsetspertrigger": integer_option(1),
    "minoffsetspertrigger": integer_option(1),
    "maxbytespertrigger": size_option,
    "maxtriggerdelay": duration_option,
    "minpartitions": integer_option(1),
    "maxrecordsperpartition": integer_option(1),
}


def _validate(options: SourceOptions) -> SourceOptions:
    _check_topics(options)
    if options.ending_offsets == "earliest":
        raise ConfigError(
            "endingOffsets", "earliest", "use latest or JSON: a batch that ends at the beginning is empty"
        )
    if isinstance(options.ending_offsets, dict) and EARLIEST in options.ending_offsets.values():
        raise ConfigError(
            "endingOffsets",
            str(EARLIEST),
            "a queue that ends at the beginning is empty: use an offset, or -1 for its end",
        )
    _check_order(options)
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise ConfigError("minOffsetsPerTrigger", least, f"is more than maxOffsetsPerTrigger, {most}")
    if least is None:
        reason = "has an effect together with minOffsetsPerTrigger only: add it, or leave this out"
        reject_changed(options, {"max_trigger_delay": reason})
    if options.commit_offsets and options.group_id == DEFAULT_GROUP:
        raise ConfigError("commitOffsets", "true", "groupId says which group, one of this query's own")
    return options


def _check_topics(options: SourceOptions) -> None:
    listed = listed_topics(options)
    if not listed and not options.topics_pattern:
        raise ConfigError("topics", "", "names no topic: use a,b,c")
    for topic in listed:
        if fault := topic_name_fault(topic):
            raise ConfigError("topic" if options.topic else "topics", topic, fault)
    try:
        pattern = re.compile(options.topics_pattern)
    except re.error as error:
        raise ConfigError("topicsPattern", options.topics_pattern, f"is no regular expression: {error}") from None
    for name, wanted in (
        ("startingOffsets", options.starting_offsets),
        ("endingOffsets", options.ending_offsets),
        ("startingTimestamp", options.starting_timestamp),
        ("endingTimestamp", options.ending_timestamp),
    ):
        for other in {queue.topic for queue in (wanted if isinstance(wanted, dict) else ())} - set(listed):
            if listed or not pattern.fullmatch(other):
                there = ", ".join(listed) or f"those that match {options.topics_pattern}"
                raise ConfigError(name, other, f"the source reads the topics {there} only: leave others out")


def _check_times(options: SourceOptions, now_ms: int) -> None:
    """ConfigError for a start in the future: no message was stored then, and a stream would begin now instead."""
    times = options.starting_timestamp
    latest = max(times.values()) if isinstance(times, dict) else times
    if latest is not None and latest > now_ms + CLOCK_AHEAD_MS_MAX:
        shown = (EPOCH + timedelta(milliseconds=latest)).isoformat()
        raise ConfigError("startingTimestamp", shown, "lies in the future (times without a zone are UTC)")


def _check_order(options: SourceOptions) -> None:
    """ConfigError when an option says an end that lies before the start."""
    start, end = options.starting_timestamp, options.ending_timestamp
    queues = {*(start if isinstance(start, dict) else ()), *(end if isinstance(end, dict) else ())}
    for queue in sorted(queues) or [None]:
        begin_ms, end_ms = (one.get(queue) if isinstance(one, dict) else one for one in (start, end))
        if begin_ms is not None and end_ms is not None and begin_ms > end_ms:
            where = f"{describe_queue(queue)}: " if queue else ""
            raise ConfigError("endingTimestamp", end_ms, f"{where}lies before startingTimestamp, {begin_ms}")
    first, last = options.starting_offsets, options.ending_offsets
    if isinstance(first, dict) and isinstance(last, dict):
        for queue in sorted(first.keys() & last.keys()):
            if 0 <= last[queue] < first[queue]:
                why = f"{describe_queue(queue)}: lies before startingOffsets, {first[queue]}"
                raise ConfigError("endingOffsets", last[queue], why)
