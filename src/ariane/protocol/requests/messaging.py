"""Sending, pulling and offsets: headers of 10, 11, 12, 14, 15, 29–33, 36, 37, 39, 310, 320, 323, 370 and their responses."""

from __future__ import annotations

from typing import Annotated

import msgspec

# A value that does not fit its field on disk or on the wire is rejected when it is received.
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

NAME_MAX = 271  # characters: the retry topic of a group with the longest name
EXPRESSION_MAX = 16_384  # characters of a subscription: hundreds of tags, or an SQL92 expression
WORD_MAX = 64

# Lengths that are checked while a send or pull is decoded; `rules` has those of all other requests.
Name = Annotated[str, msgspec.Meta(max_length=NAME_MAX)]
Expression = Annotated[str, msgspec.Meta(max_length=EXPRESSION_MAX)]
Word = Annotated[str, msgspec.Meta(max_length=WORD_MAX)]

# pull sysFlag bits
COMMIT_OFFSET = 1
SUSPEND = 2
SUBSCRIPTION = 4
CLASS_FILTER = 8
LITE_PULL = 16

TAG = "TAG"
SQL92 = "SQL92"


class SendMessage(
    msgspec.Struct,
    frozen=True,
    rename={
        "producer_group": "a",
        "topic": "b",
        "default_topic": "c",
        "default_topic_queue_nums": "d",
        "queue_id": "e",
        "sys_flag": "f",
        "born_ms": "g",
        "flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "unit_mode": "k",
        "max_reconsume_times": "l",
        "batch": "m",
    },
):
    """SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320); SEND_MESSAGE (10) says the same with LONG_NAMES.

    `batch` alone decides that the body is a batch. A negative `queue_id` lets the broker choose.
    """

    producer_group: Name  # not checked by brokers, except as the target of transaction checks
    topic: str  # created if it does not exist, `default_topic` does, and the broker allows it
    default_topic: Name  # template of a topic that does not exist: usually TBW102
    default_topic_queue_nums: Int32  # queues of a new topic, at most those of the template
    queue_id: Int32
    sys_flag: Int32  # compression, transaction state, address sizes (`model.message`)
    born_ms: Int64  # by the client's clock
    flag: Int32  # the application's, uninterpreted
    properties: str | None = None  # encoded as in records (`protocol.properties`)
    reconsume_times: Int32 | None = None  # redeliveries so far, if a consumer sends a message back this way
    unit_mode: bool = False  # marks retry topics of units; Java's, and rarely used
    max_reconsume_times: Int32 | None = None  # limit of the consumer that sends back; None: that of its group
    batch: bool = False


LONG_NAMES = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
}


class SendMessageResponse(
    msgspec.Struct,
    frozen=True,
    rename={
        "region": "MSG_REGION",
        "trace_on": "TRACE_ON",
        "message_id": "msgId",
        "queue_id": "queueId",
        "queue_offset": "queueOffset",
        "transaction_id": "transactionId",
        "recall_handle": "recallHandle",
    },
):
    """Response to a send that was stored. `message_id` is the offset id, comma-joined for a batch; `recall_handle` (5.x) cancels
    a delayed message."""

    message_id: str
    queue_id: Int32  # where the broker stored it, which may not be the requested one
    queue_offset: Int64  # number in the queue; that of the first message of a batch
    transaction_id: str | None = None  # None for messages without a transaction
    region: str = "DefaultRegion"  # copied to trace events
    trace_on: bool = True  # False: the broker asks its clients not to trace
    recall_handle: str | None = None


class PullMessage(msgspec.Struct, frozen=True, rename="camel"):
    """PULL_MESSAGE (11)."""

    consumer_group: Name  # must exist, or be created on first use
    topic: Name  # the group's heartbeats must subscribe to it, unless the request has an expression
    queue_id: Int32
    queue_offset: Int64  # first wanted offset
    max_msg_nums: Int32  # at most; the broker has limits of its own
    sys_flag: Int32  # bits COMMIT_OFFSET, SUSPEND, SUBSCRIPTION, CLASS_FILTER, LITE_PULL
    commit_offset: Int64 = 0  # stored for the group if the flag is set and this is the master
    suspend_timeout_millis: Int64 = 0  # how long the broker may hold a pull that finds nothing
    subscription: Expression | None = None  # expression, if the flag is set; None: that of the group's heartbeats
    # A pull with a newer subscription than the broker's is refused (25) until the heartbeat arrives.
    sub_version: Int64 = 0
    expression_type: Word | None = None  # TAG or SQL92; None means TAG


class PullMessageResponse(msgspec.Struct, frozen=True, rename="camel"):
    """On 0, 19, 20 and 21; Java unboxes all four."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int


class QueueRef(msgspec.Struct, frozen=True, rename="camel"):
    """GET_MAX_OFFSET (30), GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: Int32


class SearchOffset(msgspec.Struct, frozen=True, rename="camel"):
    """SEARCH_OFFSET_BY_TIMESTAMP (29); `timestamp` in ms."""

    topic: str
    queue_id: Int32
    timestamp: Int64


class OffsetResponse(msgspec.Struct, frozen=True):
    """Response to 14, 29, 30, 31."""

    offset: Int64


class TimestampResponse(msgspec.Struct, frozen=True):
    """Response to 32: ms, -1 when the queue holds nothing."""

    timestamp: Int64


class QueryConsumerOffset(msgspec.Struct, frozen=True, rename="camel"):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: Int32


class UpdateConsumerOffset(msgspec.Struct, frozen=True, rename="camel"):
    """UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class QueryMessage(
    msgspec.Struct,
    frozen=True,
    rename={
        "max_num": "maxNum",
        "begin_timestamp": "beginTimestamp",
        "end_timestamp": "endTimestamp",
        "unique_key_query": "_UNIQUE_KEY_QUERY",
        "query_position": "queryPosition",
    },
):
    """QUERY_MESSAGE (12). Times are store times in ms. `query_position` is Ariane's: the `next_position` of a response."""

    topic: str  # keys are indexed by topic
    key: str  # a key, or a unique id if `unique_key_query` is set
    max_num: Int32  # at most; the broker has a limit of its own
    begin_timestamp: Int64  # inclusive
    end_timestamp: Int64  # inclusive
    # "true": `key` is a unique id; a text, because Java passes it outside the header class.
    unique_key_query: str | None = None
    query_position: str | None = None


class QueryMessageResponse(msgspec.Struct, frozen=True, rename="camel"):
    """Response to 12, also without matches. `truncated` and `next_position` are Ariane's: there are more matches, and the position
    at which the query continues; a Java broker sends neither."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64
    truncated: bool | None = None
    next_position: str | None = None


class ViewMessage(msgspec.Struct, frozen=True):
    """VIEW_MESSAGE_BY_ID (33): a commit-log offset."""

    offset: Int64


class ConsumerSendMsgBack(msgspec.Struct, frozen=True, rename="camel"):
    """CONSUMER_SEND_MSG_BACK (36): `offset` is the commit-log offset; a `delay_level` < 0 makes the message a dead letter."""

    offset: Int64
    group: str  # consumer group, whose retry topic receives the copy
    delay_level: Int32
    origin_msg_id: str | None = None  # sent by Java; the stored record is used instead
    origin_topic: str | None = None  # sent by Java; the stored record is used instead
    unit_mode: bool = False  # carried as sent
    max_reconsume_times: Int32 | None = None  # limit of the consumer; None or an old client: that of the group


# commitOrRollback of END_TRANSACTION: the transaction bits of sysFlag
UNKNOWN = 0
COMMIT = 8
ROLLBACK = 12


class EndTransactionHeader(msgspec.Struct, frozen=True, rename="camel"):
    """END_TRANSACTION (37), mostly one-way. The two offsets identify a copy of the half message: its offset in the half queue and
    in the commit log."""

    producer_group: str  # compared with that of the half message
    tran_state_table_offset: Int64  # offset in the queue of half messages
    commit_log_offset: Int64  # names the record; compared with the queue offset before it counts
    commit_or_rollback: Int32  # transaction bits of the sysFlag: 0 unknown, 8 commit, 12 rollback
    from_transaction_check: bool = False  # the answer to a check, as opposed to the end of the local transaction
    msg_id: str | None = None  # unique id, for logs
    transaction_id: str | None = None  # for logs


class CheckTransactionState(msgspec.Struct, frozen=True, rename="camel"):
    """CHECK_TRANSACTION_STATE (39), broker to producer, one-way; the body is the half message as a record."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class QueryConsumeQueue(msgspec.Struct, frozen=True, rename="camel"):
    """QUERY_CONSUME_QUEUE (321): entries of a queue from `index` on."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class ResumeCheckHalfMessage(msgspec.Struct, frozen=True, rename="camel"):
    """RESUME_CHECK_HALF_MESSAGE (323): an offset id."""

    msg_id: str | None = None


class RecallMessage(msgspec.Struct, frozen=True, rename="camel"):
    """RECALL_MESSAGE (370) of 5.x: cancel a delayed message. `ids.recall_handle` builds its handle; Ariane also accepts the
    message id and the unique key."""

    recall_handle: str
    topic: str = ""
    producer_group: str = ""


class RecallMessageResponse(msgspec.Struct, frozen=True, rename="camel"):
    """Response to 370: the unique key of the cancelled message."""

    msg_id: str
