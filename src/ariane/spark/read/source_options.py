"""Options of the `rocketmq` source: parsing and validation. Names are those of Kafka's connector and of rocketmq-spark.

`PullAccess` holds the options that concern servers. Connections are shared by equal PullAccess values
(`pull_client.shared_cluster`), so it contains exactly the options that change a request or a connection.
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
from ariane.spark.values.body_options import is_body_option
from ariane.spark.wire import access as reaching
from ariane.spark.wire.access import DEFAULT_GROUP, ClusterAccess

EPOCH = datetime.fromtimestamp(0, UTC)  # not that of `clock`, which imports asyncio: a process plans each stream
OffsetOption = Literal["earliest", "latest"] | Positions
TimeOption = int | dict[MessageQueue, int]
Offset = Annotated[int, msgspec.Meta(ge=EARLIEST, le=LONG_MAX)]
QueueId = Annotated[str, msgspec.Meta(pattern=r"^(0|[1-9][0-9]{0,9})\Z")]  # exactly one text for each queue id

TIME_DIGITS_MIN = 11  # of ms since 1970: shorter numbers are dates (20260131) or seconds
TIME_MS_MAX = 253_402_300_799_999  # end of the year 9999: larger numbers are µs or ns
CLOCK_AHEAD_MS_MAX = 5 * 60_000  # tolerated clock difference between brokers and this machine

BATCH_ONLY = dict.fromkeys(
    ("ending_offsets", "ending_timestamp"), "not supported by streams, which have no end: remove it, or use spark.read"
) | {
    "push_down_predicate": "not supported by streams, as Spark pushes filters to batch reads only: remove it, or use spark.read"
}
STREAM_ONLY = dict.fromkeys(
    ("max_offsets_per_trigger", "max_bytes_per_trigger", "min_offsets_per_trigger", "max_trigger_delay"),
    "only for spark.readStream, as it limits micro-batches: remove it, or use endingOffsets",
) | {"commit_offsets": "only for spark.readStream, as a batch commits no offsets: remove it"}

ALIASES = reaching.ALIASES | {"subexpression": "tags", "pulltimeoutms": "timeoutms"}


class PullAccess(ClusterAccess, frozen=True, kw_only=True):
    """How to reach servers, and how many messages to request by a pull."""

    pull_batch_size: int = 512
    """Messages requested by a pull; brokers return fewer if they are configured so: Java 32, Ariane 1,024 by default."""


class SourceOptions(PullAccess, frozen=True, kw_only=True):
    """Validated options of the source."""

    topic: str = ""
    """One topic. Exactly one of topic, topics, topicsPattern is required."""
    topics: tuple[str, ...] = ()
    """Several topics, separated by `,`."""
    topics_pattern: str = ""
    """Python regular expression that has to match the whole topic name."""
    include_system_topics: bool = False
    """Whether a pattern also matches system topics, retry topics and dead-letter topics."""
    topics_with_body: tuple[str, ...] | None = None
    """Topics whose bodies are read, separated by `,`; `body` is null in other topics. None: all topics."""
    starting_offsets: OffsetOption = "earliest"
    """earliest, latest, or JSON {topic: {broker: {queue id: offset}}} with -2 for earliest and -1 for latest. Other queues start at
    the earliest offset. A query with a checkpoint resumes from there."""
    ending_offsets: OffsetOption = "latest"
    """Batch only: latest, or JSON as above (exclusive). Other queues end at the latest offset."""
    starting_timestamp: TimeOption | None = None
    """Read messages stored at this time or later: ms since 1970, ISO 8601 (UTC by default), or JSON
    {topic: {broker: {queue id: time}}}. Other queues start at the earliest offset."""
    ending_timestamp: TimeOption | None = None
    """Batch only: read messages stored before this time; same formats."""
    tags: str = "*"
    """Tag expression, `a || b`."""
    keys: tuple[str, ...] = ()
    """Read only messages with one of these keys, separated by `,`."""
    max_offsets_per_trigger: int | None = None
    """Streaming: maximum number of queue entries in a micro-batch, shared by the queues in proportion to their unread entries."""
    max_bytes_per_trigger: int | None = None
    """Streaming: approximate bytes of stored messages in a micro-batch, estimated from a few messages of each queue."""
    min_offsets_per_trigger: int | None = None
    """Streaming: delay a micro-batch until this many entries are available or maxTriggerDelay has passed."""
    max_trigger_delay: int = 15 * 60_000
    """Streaming: maximum delay by minOffsetsPerTrigger, in ms; texts such as 30s, 15m, 1h are accepted."""
    min_partitions: int = 1
    """Minimum number of tasks, if there are as many entries: ranges of queues are split."""
    max_records_per_partition: int | None = None
    """Maximum number of queue entries of a task."""
    fail_on_data_loss: bool = True
    """Whether deleted offsets (retention, a lost disk) fail the query; otherwise they are skipped with a warning."""
    commit_offsets: bool = False
    """Streaming: whether to commit the offsets of finished micro-batches to `groupId`, for tools that show lag."""
    push_down_predicate: bool = False
    """Batch: whether to accept Spark's filters; the session needs spark.sql.python.filterPushdown.enabled, too."""


def parse(options: Mapping[str, str], now_ms: int | None = None) -> SourceOptions:
    """Parse and validate options.

    Args:
        now_ms: Current time, to reject a start in the future; default: the system clock.

    Raises:
        ConfigError: an option is unknown, invalid or contradicts another; the message names the option and the remedy.
    """
    body_names = {name.lower() for name in options if is_body_option(name)}
    parsed = SourceOptions(**parse_options(options, "rocketmq source", SourceOptions, READERS, ALIASES, body_names))
    reaching.validate(parsed)
    texts = {name.lower(): text.strip() for name, text in options.items()}
    selectors = [name for name in ("topic", "topics", "topicsPattern") if texts.get(name.lower())]
    if len(selectors) != 1:
        raise ConfigError(
            "topic", ", ".join(selectors) or "none", "expected exactly one of the options topic, topics, topicsPattern"
        )
    for offsets, times in (("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp")):
        if offsets.lower() in texts and times.lower() in texts:
            raise ConfigError(times, texts[times.lower()], f"cannot be combined with {offsets}: keep one of them")
    _check_times(parsed, time.time_ns() // 1_000_000 if now_ms is None else now_ms)
    return _validate(parsed)


def reject_batch_options(options: SourceOptions) -> None:
    """Raise ConfigError for an option that has no effect in a stream."""
    reject_changed(options, BATCH_ONLY)


def reject_stream_options(options: SourceOptions) -> None:
    """Raise ConfigError for an option that has no effect in a batch."""
    reject_changed(options, STREAM_ONLY)


def pull_access(options: PullAccess) -> PullAccess:
    """Return the access options alone; equal for sources that can share connections."""
    return PullAccess(**{name: getattr(options, name) for name in PullAccess.__struct_fields__})


def listed_topics(options: SourceOptions) -> tuple[str, ...]:
    """Return the topics selected by name; empty if a pattern selects them."""
    return (options.topic,) if options.topic else tuple(sorted(set(options.topics)))


def time_for_queue(times: TimeOption | None, queue: MessageQueue) -> int | None:
    """Return the time that an option sets for a queue, if any."""
    return times.get(queue) if isinstance(times, dict) else times


def _offsets(name: str, text: str) -> object:
    if text in ("earliest", "latest"):
        return text
    try:
        tree = msgspec.json.decode(text, type=dict[str, dict[str, dict[QueueId, Offset]]])
        _check_complete(name, text, tree)
        return positions_from_json(tree)
    except (msgspec.DecodeError, ValueError):
        fix = 'expected earliest, latest, or JSON such as {"T": {"broker-a": {"0": 12}}} (-2 earliest, -1 latest)'
        raise ConfigError(name, text, fix) from None


def _times(name: str, text: str) -> TimeOption:
    fix = 'expected ms since 1970, 2026-01-31T12:00:00, or JSON such as {"T": {"broker-a": {"0": 1700000000000}}}'
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
            fix = f"expected ms since 1970 ({TIME_DIGITS_MIN} digits or more, or 0), or a date, 2026-01-31; append 000 to seconds"
            raise ConfigError(name, text, fix)
        if len(text) > len(str(TIME_MS_MAX)) or int(text) > TIME_MS_MAX:
            fix = "is after the year 9999 as ms since 1970, which have 13 digits today: divide µs by 1,000, ns by 1,000,000"
            raise ConfigError(name, text, fix)
        return int(text)
    when = datetime.fromisoformat(text)
    since = (when if when.tzinfo else when.replace(tzinfo=UTC)) - EPOCH
    if since < timedelta(0):
        raise ValueError(text)
    return -(
        -since // timedelta(milliseconds=1)
    )  # Store times are whole ms: the first ms that is not before the given time.


def _check_complete(name: str, text: str, tree: Mapping[str, Mapping[str, Mapping[str, object]]]) -> None:
    """Raise ConfigError for JSON with duplicate names, or with a topic or broker without queues: these would have no effect."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        for key, count in Counter(key for key, _ in pairs).items():
            if count > 1:
                raise ConfigError(name, text, f"contains {key!r} {count} times: keep one")
        return dict(pairs)

    # A JSON decoder keeps the last of two equal names, so the first would silently have no effect.
    json.loads(text, object_pairs_hook=unique)
    if not tree or not all(brokers and all(brokers.values()) for brokers in tree.values()):
        raise ConfigError(name, text, 'contains no queue: expected JSON such as {"T": {"broker-a": {"0": 12}}}')


def _keys(name: str, text: str) -> tuple[str, ...]:
    keys = list_option(",")(name, text)
    for key in keys:
        if len(key.split()) > 1:
            raise ConfigError(name, key, "expected keys without white space: separate several keys by ','")
    return keys


def _tags(name: str, text: str) -> str:
    """Validate a tag expression: `*`, or tags separated by `||`. Any other text would match no message."""
    fix = "expected *, a tag, or tags separated by ||, such as A || B"
    if text == "*":
        return text
    parts = [part.strip() for part in text.split("||")]
    for part in parts:
        if not part:
            raise ConfigError(name, text, f"contains an empty tag: {fix}")
        if "&&" in part:
            raise ConfigError(name, text, f"&& is not supported, as a message has only one tag: {fix}")
        if "|" in part or "*" in part or len(part.split()) > 1:
            reason = f"{part!r} is not a tag: {fix} (for other tags, and for SQL, use .where() on the DataFrame)"
            raise ConfigError(name, text, reason)
    return text


READERS: Readers = {
    **reaching.READERS,
    "pullbatchsize": integer_option(1),
    "topics": list_option(","),
    "topicswithbody": list_option(","),
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
            "endingOffsets", "earliest", "expected latest or JSON: a batch that ends at the earliest offset is empty"
        )
    if isinstance(options.ending_offsets, dict) and EARLIEST in options.ending_offsets.values():
        raise ConfigError(
            "endingOffsets",
            str(EARLIEST),
            "expected an offset, or -1 for the latest: a queue that ends at its earliest offset is empty",
        )
    _check_order(options)
    minimum, maximum = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if minimum is not None and maximum is not None and minimum > maximum:
        raise ConfigError("minOffsetsPerTrigger", minimum, f"expected at most maxOffsetsPerTrigger, {maximum}")
    if minimum is None:
        reason = "has no effect without minOffsetsPerTrigger: set both, or remove it"
        reject_changed(options, {"max_trigger_delay": reason})
    # Two queries that commit to one group overwrite each other's offsets.
    if options.commit_offsets and options.group_id == DEFAULT_GROUP:
        raise ConfigError("commitOffsets", "true", "requires a group that only this query uses: set groupId")
    return options


def _check_topics(options: SourceOptions) -> None:
    listed = listed_topics(options)
    if not listed and not options.topics_pattern:
        raise ConfigError("topics", "", "expected at least one topic, such as a,b,c")
    for topic in listed:
        if fault := topic_name_fault(topic):
            raise ConfigError("topic" if options.topic else "topics", topic, fault)
    try:
        pattern = re.compile(options.topics_pattern)
    except re.error as error:
        raise ConfigError(
            "topicsPattern", options.topics_pattern, f"is not a valid regular expression: {error}"
        ) from None
    for name, topics in (
        ("startingOffsets", options.starting_offsets),
        ("endingOffsets", options.ending_offsets),
        ("startingTimestamp", options.starting_timestamp),
        ("endingTimestamp", options.ending_timestamp),
    ):
        for other in {queue.topic for queue in (topics if isinstance(topics, dict) else ())} - set(listed):
            if listed or not pattern.fullmatch(other):
                allowed = ", ".join(listed) or f"those that match {options.topics_pattern}"
                raise ConfigError(name, other, f"the source reads only the topics {allowed}: remove other topics")


def _check_times(options: SourceOptions, now_ms: int) -> None:
    """Raise ConfigError for a start in the future: it would silently behave like latest."""
    times = options.starting_timestamp
    latest = max(times.values()) if isinstance(times, dict) else times
    if latest is not None and latest > now_ms + CLOCK_AHEAD_MS_MAX:
        shown = (EPOCH + timedelta(milliseconds=latest)).isoformat()
        raise ConfigError("startingTimestamp", shown, "is in the future (times without a zone are UTC)")


def _check_order(options: SourceOptions) -> None:
    """Raise ConfigError if an end is before its start."""
    start, end = options.starting_timestamp, options.ending_timestamp
    queues = {*(start if isinstance(start, dict) else ()), *(end if isinstance(end, dict) else ())}
    for queue in sorted(queues) or [None]:
        begin_ms, end_ms = (bound.get(queue) if isinstance(bound, dict) else bound for bound in (start, end))
        if begin_ms is not None and end_ms is not None and begin_ms > end_ms:
            where = f"{describe_queue(queue)}: " if queue else ""
            raise ConfigError("endingTimestamp", end_ms, f"{where}is before startingTimestamp, {begin_ms}")
    first, last = options.starting_offsets, options.ending_offsets
    if isinstance(first, dict) and isinstance(last, dict):
        for queue in sorted(first.keys() & last.keys()):
            if 0 <= last[queue] < first[queue]:
                reason = f"{describe_queue(queue)}: is before startingOffsets, {first[queue]}"
                raise ConfigError("endingOffsets", last[queue], reason)
