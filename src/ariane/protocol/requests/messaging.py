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

    producer_group: Name
    topic: str
    default_topic: Name
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_ms: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
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


class SendMessageAnswer(
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
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    region: str = "DefaultRegion"
    trace_on: bool = True
    recall_handle: str | None = None


class PullMessage(msgspec.Struct, frozen=True, rename="camel"):
    """PULL_MESSAGE (11)."""

    consumer_group: Name
    topic: Name
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64 = 0
    suspend_timeout_millis: Int64 = 0
    subscription: Expression | None = None
    sub_version: Int64 = 0
    expression_type: Word | None = None


class PullMessageAnswer(msgspec.Struct, frozen=True, rename="camel"):
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


class OffsetAnswer(msgspec.Struct, frozen=True):
    """Response to 14, 29, 30, 31."""

    offset: Int64


class TimestampAnswer(msgspec.Struct, frozen=True):
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

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key_query: str | None = None
    query_position: str | None = None


class QueryMessageAnswer(msgspec.Struct, frozen=True, rename="camel"):
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
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


# commitOrRollback of END_TRANSACTION: the transaction bits of sysFlag
UNKNOWN = 0
COMMIT = 8
ROLLBACK = 12


class EndTransactionHeader(msgspec.Struct, frozen=True, rename="camel"):
    """END_TRANSACTION (37), mostly one-way. The two offsets identify a copy of the half message: its offset in the half queue and
    in the commit log."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None


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


class RecallMessageAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """Response to 370: the unique key of the cancelled message."""

    msg_id: str
