"""Topics and consumer groups: their names, permissions and settings. [TopicConfig, SubscriptionGroupConfig, MixAll]"""

from __future__ import annotations

import math
import re

import msgspec

PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1
PERMISSIONS = {"read-write": PERM_READ | PERM_WRITE, "read": PERM_READ, "write": PERM_WRITE}

TOPIC_MAX = 127
GROUP_MAX = 255
QUEUES_MAX = 65_536  # per topic; more than any cluster uses, and few enough that a mistyped number does no harm

AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"  # of 5.x
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC = "BenchmarkTest"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SAMPLES_TOPIC = "ARIANE_SAMPLES"  # written by `ariane collect`
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"

# Only the broker writes to these; a send is rejected with code 16.
SEND_FORBIDDEN = frozenset(
    {SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC}
)
SYSTEM_TOPICS = SEND_FORBIDDEN | {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}
SYSTEM_TOPIC_PREFIX = "rmq_sys_"

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


def topic_name_fault(name: str) -> str | None:
    """Return why `name` is not a valid topic, or None if it is. Names become paths (CVE-2019-17572): check each one received."""
    return _name_fault("topic", name, TOPIC_MAX)


def group_name_fault(name: str) -> str | None:
    """Return why `name` is not a valid consumer group, or None if it is."""
    return _name_fault("group", name, GROUP_MAX)


def _name_fault(kind: str, name: str, most: int) -> str | None:
    if not name or name.isspace():
        return f"the {kind} is blank"
    if len(name) > most:
        return f"the {kind} has {len(name)} characters, at most {most} are allowed"
    if not _NAME.match(name):
        return f"the {kind} {name!r} holds characters other than letters, digits, and % | _ -"
    return None


def permission_words(perm: int) -> str:
    """Return a permission as words: `read-write`, `read`, `write` or `none`."""
    allowed = perm & (PERM_READ | PERM_WRITE)
    return next((words for words, value in PERMISSIONS.items() if value == allowed), "none")


def is_system_topic(name: str) -> bool:
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)


def retry_topic(group: str) -> str:
    return group if group.startswith(RETRY_PREFIX) else RETRY_PREFIX + group


def pop_topics(group: str, topic: str) -> tuple[str, str, str]:
    """Return where brokers store messages of a topic for a group that takes them by POP: the second and third only those of 5.x."""
    return topic, f"{retry_topic(group)}_{topic}", f"{retry_topic(group)}+{topic}"


def popping_topics(group: str, stored: str) -> tuple[str, ...]:
    """Return the topics for which a group takes messages that are stored in a topic: the reverse of `pop_topics`."""
    retries = retry_topic(group)
    is_retry = stored.startswith((f"{retries}_", f"{retries}+"))
    return (stored, stored[len(retries) + 1 :]) if is_retry else (stored,)


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def group_of_topic(topic: str) -> str:
    """Return the consumer group of a retry or dead-letter topic; empty for other topics."""
    if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return ""
    return topic.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)


def reply_topic(cluster: str) -> str:
    return f"{cluster}_REPLY_TOPIC"


class DataVersion(msgspec.Struct, frozen=True):
    """Version of a table that servers copy from each other. Two versions are equal if both numbers are."""

    counter: int = 0
    timestamp: int = 0

    def next(self, now_ms: int) -> DataVersion:
        return DataVersion(counter=self.counter + 1, timestamp=now_ms)


class TopicConfig(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A topic on one broker. Members in the order Java prints them."""

    attributes: dict[str, str] | msgspec.UnsetType = msgspec.UNSET  # of 5.x, see `topic_attributes`; 4.9.4 prints none
    order: bool = False  # the name server's ORDER_TOPIC_CONFIG lists the topic; clients then use its queue numbers
    perm: int = PERM_READ | PERM_WRITE  # bits of PERM_READ, PERM_WRITE, PERM_INHERIT
    read_queue_nums: int = 16  # queues that consumers read; larger than `write_queue_nums` while a topic shrinks
    topic_filter_type: str = "SINGLE_TAG"  # MULTI_TAG sets a bit in records and has no other effect
    topic_name: str = ""  # repeats the key of the table, as Java's document does
    topic_sys_flag: int = 0  # bit 0 UNIT, bit 1 UNIT_SUB: the name server's lists 311 to 313 select by them
    write_queue_nums: int = 16  # queues that producers choose from

    def attribute(self, key: str) -> str | None:
        """Return the value of an attribute; None if the topic does not have it."""
        return self.attributes.get(key) if self.attributes else None


class TopicDeletion(msgspec.Struct, frozen=True, rename="camel"):
    """Deletion of a topic: its records below the log offset `below`, stored at or before `store_ms`, no longer exist."""

    below: int
    store_ms: int


class ExponentialRetry(msgspec.Struct, frozen=True):
    """Each attempt is delayed longer than the one before it, in milliseconds. [ExponentialRetryPolicy]"""

    initial: int = 5_000
    max: int = 7_200_000
    multiplier: int | float = 2


class CustomizedRetry(msgspec.Struct, frozen=True):
    """Delays of the attempts, in milliseconds. The last one repeats. [CustomizedRetryPolicy]"""

    next: tuple[int, ...] = ()


RETRY_TYPES = ("CUSTOMIZED", "EXPONENTIAL")
RETRY_DELAYS_MAX = 128


class GroupRetryPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """How clients of 5.x space the attempts of a message: by their list of delays unless one is given. [GroupRetryPolicy]

    Any policy can be decoded, so that one that no client can follow does not make a whole table of groups unreadable.
    """

    type: str = RETRY_TYPES[0]  # which of the two counts
    exponential_retry_policy: ExponentialRetry | msgspec.UnsetType | None = msgspec.UNSET
    customized_retry_policy: CustomizedRetry | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def fault(self) -> str | None:
        """What makes the policy one that no client can follow; None if nothing does."""
        if self.type not in RETRY_TYPES:
            return f"Invalid type {self.type[:40]!r} of a retry policy: expected {' or '.join(RETRY_TYPES)}"
        if (grows := self.exponential_retry_policy) and not (
            0 < grows.initial <= grows.max and 1 <= grows.multiplier < math.inf
        ):
            return f"Invalid {grows}: expected 0 < initial <= max and a multiplier of at least 1"
        if (listed := self.customized_retry_policy) and not (
            1 <= len(listed.next) <= RETRY_DELAYS_MAX and min(listed.next) >= 0
        ):
            return (
                f"Invalid delays {listed.next[:5]} of a retry policy: expected 1 to {RETRY_DELAYS_MAX}, none negative"
            )
        return None


class SubscriptionGroupConfig(msgspec.Struct, frozen=True, rename="camel"):
    """A consumer group on one broker. Members in the order Java prints them."""

    broker_id: int = 0  # server that pull responses suggest while a consumer keeps up; 0 is the master
    consume_broadcast_enable: bool = True  # False refuses pulls of broadcasting members
    consume_enable: bool = True  # False refuses all pulls of the group
    consume_from_min_enable: bool = True  # stored and listed for tools; no request depends on it
    # Of 5.x; 4.9.4 prints neither. Messages of a queue reach clients of 5.x one after the other.
    consume_message_orderly: bool | msgspec.UnsetType = msgspec.UNSET
    group_name: str = ""  # repeats the key of the table, as Java's document does
    group_retry_policy: GroupRetryPolicy | msgspec.UnsetType = msgspec.UNSET
    notify_consumer_ids_changed_enable: bool = True  # False: members learn of a rebalance with their next period only
    # Redeliveries before a message becomes a dead letter; clients from 3.4.9 send their own limit.
    retry_max_times: int = 16
    retry_queue_nums: int = 1  # queues of the retry topic; 0 or less discards messages that are sent back
    # Slave that pull responses suggest for messages that memory no longer holds.
    which_broker_when_consume_slowly: int = 1

    @property
    def is_ordered(self) -> bool:
        """Whether messages of a queue are delivered to clients of 5.x one after the other."""
        return self.consume_message_orderly is True
