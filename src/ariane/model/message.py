"""A message as an application makes it, and as it comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

# Property names of the wire (reference: remoting-protocol 10.3).
KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
UNIQ_KEY = "UNIQ_KEY"
CLUSTER = "CLUSTER"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
TRAN_MSG = "TRAN_MSG"
PGROUP = "PGROUP"
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

# What an application must not set by itself: the client or the broker owns these names.
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


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer sends.

    `keys` are the business keys it can be found by; `properties` are the application's own and may hold no name of
    RESERVED. `delay_level` counts from 1 (0: at once); `deliver_at_ms` is a time (ms since the epoch, 0: at once) for brokers
    that know one: Ariane, Alibaba Cloud, Apache 5.x (a 4.x broker of Apache delivers at once). `wait_stored` False asks the
    broker not to wait for flush or replica. `message_id` is its unique id, empty: a new one with each send. Who sends a
    message again because no answer came gives it the same id again: it may be stored twice, and consumers and traces can
    still tell that it is one message.
    """

    topic: str
    body: bytes
    tags: str = ""
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = {}
    flag: int = 0
    delay_level: int = 0
    deliver_at_ms: int = 0
    wait_stored: bool = True
    message_id: str = ""


class MessageQueue(msgspec.Struct, frozen=True, order=True):
    """One queue of a topic on one broker. Ordered by topic, broker, id, as every member of a group must sort it."""

    topic: str
    broker: str
    queue_id: int


class ReceivedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer gets: the message and where, when and by whom it was stored.

    `body` is decompressed. If that failed, `body_error` says why and `body` is as stored.
    """

    topic: str
    body: bytes
    properties: Mapping[str, str]
    queue: MessageQueue
    queue_offset: int
    commit_log_offset: int
    message_id: str
    offset_message_id: str
    born_ms: int
    born_host: str
    store_ms: int
    store_host: str
    reconsume_times: int
    flag: int
    sys_flag: int
    stored_size: int
    body_error: str = ""

    @property
    def tags(self) -> str:
        return self.properties.get(TAGS, "")

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.properties.get(KEYS, "").split())
