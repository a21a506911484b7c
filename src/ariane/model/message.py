"""A message as an application makes it, and as it comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

# Property names of the wire (reference: remoting-protocol 10.3).
KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
UNIQ_KEY = "UNIQ_KEY"
CLUSTER = "CLUSTER"
POP_CHECK_POINT = "POP_CK"  # 5.x: identifies a delivery by POP, in messages that a client has received
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
TRAN_MSG = "TRAN_MSG"
PGROUP = "PGROUP"
SHARDING_KEY = "__SHARDINGKEY"  # messages with the same value are kept in order; "message group" of 5.x
CHECK_IMMUNITY_TIME = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
INSTANCE_ID = "INSTANCE_ID"
START_DELIVER_TIME = "__STARTDELIVERTIME"  # Alibaba Cloud's clients: deliver at (ms)
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"  # 5.x: deliver at (ms)
TIMER_DELAY_MS = "TIMER_DELAY_MS"  # 5.x: deliver after (ms)
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"  # 5.x: deliver after (s)
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"  # 5.x: this message deletes the timer with that unique key
TIMER_OUT_MS = "TIMER_OUT_MS"  # in the timer topic: when it is due (ms)
TIMER_CANCELS = "TIMER_CANCELS"  # in the timer topic: number of the timer that is cancelled
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
MSG_TYPE = "MSG_TYPE"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
ARRIVE_TIME = "ARRIVE_TIME"

# Names that an application must not set: they belong to the client or the broker.
RESERVED = frozenset(
    {
        KEYS,
        TAGS,
        WAIT,
        DELAY,
        UNIQ_KEY,
        CLUSTER,
        REAL_TOPIC,
        REAL_QID,
        RETRY_TOPIC,
        ORIGIN_MESSAGE_ID,
        RECONSUME_TIME,
        MAX_RECONSUME_TIMES,
        TRAN_MSG,
        PGROUP,
        INSTANCE_ID,
        MSG_REGION,
        TRACE_ON,
        CORRELATION_ID,
        REPLY_TO_CLIENT,
        TTL,
        MSG_TYPE,
        PUSH_REPLY_TIME,
        ARRIVE_TIME,
        "MIN_OFFSET",
        "MAX_OFFSET",
        "CONSUME_START_TIME",
        "INNER_MULTI_QUEUE_OFFSET",
        "BUYER_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
    }
)

# sysFlag bits (reference: remoting-protocol 10.5).
COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
TRANSACTION_MASK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
COMPRESSION_MASK = 0x700
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300

_MS_DIGITS = 15  # enough for the next 30,000 years; int() rejects texts of thousands of digits


def parse_ms(text: str) -> int | None:
    """Return the time in ms of a property; None for another text: clients write properties, and only brokers check some."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MS_DIGITS else None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message to send.

    The constructor does not validate; `send` does, and raises `MessageRefused` with what to change.

    Example:
        Message(topic="orders", body=b"created", tags="new", keys=["ORDER-17"])
    """

    topic: str
    """Name of the topic."""
    body: bytes
    """Content, not empty."""
    tags: str = ""
    """Tag that subscriptions filter by; RocketMQ uses one tag per message."""
    keys: Sequence[str] = ()
    """Business keys by which the message can be found, without white space."""
    properties: Mapping[str, str] = {}
    """Properties of the application; the names in RESERVED are not allowed."""
    flag: int = 0
    """Number of 32 bits for the application's own use."""
    delay_level: int = 0
    """Level of a delayed delivery, from 1; 0: immediately."""
    delay: float | timedelta = 0
    """Delay of the delivery in seconds, by the broker's clock; 0: immediately. Ariane and Apache 5.x support it; for Apache 4.x,
    which would deliver immediately, the producer refuses the message (`ProducerSettings.check_timers`)."""
    deliver_at: datetime | None = None
    """Delivery time, with a time zone; None: immediately. Ariane, Alibaba Cloud and Apache 5.x support it; for Apache 4.x the
    producer refuses the message, as with `delay`."""
    deliver_at_ms: int = 0
    """The same in milliseconds since the epoch; 0: immediately."""
    wait_stored: bool = True
    """Whether the broker waits for flush and replication before it responds, as far as it is configured to."""
    message_id: str = ""
    """Unique id; empty: a new one for each send. A message that is sent again after a lost response should have the same id: it
    may be stored twice, and consumers and traces can recognize the copy."""

    @property
    def is_delayed(self) -> bool:
        """Whether the message asks for a later delivery."""
        return bool(self.delay_level or self.delay or self.deliver_at is not None or self.deliver_at_ms)


class MessageQueue(msgspec.Struct, frozen=True, order=True):
    """One queue of a topic on one broker. Sorts by topic, broker and id, the order that all members of a group must use."""

    topic: str
    broker: str
    queue_id: int


class ReceivedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as a consumer receives it, with where and when it was stored."""

    topic: str
    """Topic that the message was sent to, also for a redelivery."""
    body: bytes
    """Content, decompressed; as stored if `body_error` is set."""
    properties: Mapping[str, str]
    """All properties, of the application and of RocketMQ."""
    queue: MessageQueue
    """Queue that the message was read from."""
    queue_offset: int
    """Offset in that queue."""
    commit_log_offset: int
    """Offset in the broker's commit log."""
    message_id: str
    """Id that the producer gave the message; the same for every redelivery."""
    offset_message_id: str
    """Id that the broker gave the record: store address and commit log offset."""
    born_ms: int
    """Time of sending by the producer's clock, in milliseconds since the epoch."""
    born_host: str
    """Address of the producer."""
    store_ms: int
    """Time of storing by the broker's clock, in milliseconds since the epoch."""
    store_host: str
    """Address of the broker."""
    reconsume_times: int
    """Number of redeliveries so far."""
    flag: int
    """The producer's flag."""
    sys_flag: int
    """RocketMQ's flags (compression, transaction)."""
    stored_size: int
    """Size of the stored record in bytes."""
    body_error: str = ""
    """Why the body could not be decompressed, or its payload not decoded; otherwise empty."""
    body_crc: int = 0
    """CRC-32 of the body as it is stored, in 31 bits."""
    prepared_offset: int = 0
    """Offset of the half message in the broker's commit log, for the message of a committed transaction."""

    @property
    def tags(self) -> str:
        """Tag of the message; empty if it has none."""
        return self.properties.get(TAGS, "")

    @property
    def keys(self) -> tuple[str, ...]:
        """Business keys of the message."""
        return tuple(self.properties.get(KEYS, "").split())

    @property
    def born_at(self) -> datetime:
        """Time of sending by the producer's clock, in UTC."""
        return datetime.fromtimestamp(self.born_ms / 1000, UTC)

    @property
    def stored_at(self) -> datetime:
        """Time of storing by the broker's clock, in UTC."""
        return datetime.fromtimestamp(self.store_ms / 1000, UTC)
