"""Heartbeats, members and queue locks: headers and bodies of 34, 35, 38, 40, 41, 42, 46.

Members of the body Structs stand in the order in which Java prints them.
"""

from __future__ import annotations

import msgspec

from ariane.model.message import MessageQueue

BROADCASTING = ("BROADCASTING", 0)  # message model: Java sends the name of the enum, other clients its ordinal


class ProducerData(msgspec.Struct, frozen=True, rename="camel"):
    group_name: str


class SubscriptionData(msgspec.Struct, frozen=True, rename="camel"):
    """A subscription of a group to a topic. Brokers filter by `code_set` (hashes of the tags), clients by `tags_set`."""

    class_filter_mode: bool = False  # class filters of 3.x run on filter servers, which 4.9.4 no longer ships
    code_set: frozenset[int] = frozenset()
    expression_type: str | None = "TAG"  # TAG or SQL92; None means TAG
    sub_string: str | None = "*"  # the expression as the application wrote it
    sub_version: int = 0  # creation time in ms: brokers ignore older subscriptions, and refuse pulls newer than theirs
    tags_set: frozenset[str] = frozenset()
    topic: str = ""  # may be the group's retry topic


class CheckClient(msgspec.Struct, frozen=True, rename="camel"):
    """Body of CHECK_CLIENT_CONFIG (46)."""

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData | None = None


class ConsumerData(msgspec.Struct, frozen=True, rename="camel"):
    # Where the group starts; brokers only list it. A number from some clients, as the next two.
    consume_from_where: str | int | None = "CONSUME_FROM_LAST_OFFSET"
    consume_type: str | int | None = "CONSUME_PASSIVELY"  # CONSUME_PASSIVELY (push) or CONSUME_ACTIVELY (pull)
    group_name: str = ""  # one client may be in several groups
    message_model: str | int | None = "CLUSTERING"  # CLUSTERING or BROADCASTING
    # All subscriptions: a topic that is absent is removed from the group.
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False  # carried as sent


class HeartbeatData(
    msgspec.Struct,
    frozen=True,
    rename={"client_id": "clientID", "consumers": "consumerDataSet", "producers": "producerDataSet"},
):
    """Body of HEART_BEAT (34)."""

    client_id: str
    consumers: tuple[ConsumerData, ...] = ()
    producers: tuple[ProducerData, ...] = ()


class UnregisterClient(
    msgspec.Struct,
    frozen=True,
    rename={"client_id": "clientID", "producer_group": "producerGroup", "consumer_group": "consumerGroup"},
):
    """UNREGISTER_CLIENT (35)."""

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


class GroupRef(msgspec.Struct, frozen=True, rename="camel"):
    """GET_CONSUMER_LIST_BY_GROUP (38), NOTIFY_CONSUMER_IDS_CHANGED (40), GET_CONSUMER_CONNECTION_LIST (203)."""

    consumer_group: str


class ConsumerList(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to 38."""

    consumer_id_list: tuple[str, ...] = ()


class WireQueue(msgspec.Struct, frozen=True, rename="camel"):
    """A MessageQueue as JSON bodies write it."""

    broker_name: str
    queue_id: int
    topic: str

    @classmethod
    def of(cls, queue: MessageQueue) -> WireQueue:
        return cls(queue.broker, queue.queue_id, queue.topic)

    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


class LockBatch(msgspec.Struct, frozen=True, rename="camel"):
    """Body of LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42)."""

    client_id: str
    consumer_group: str
    mq_set: tuple[WireQueue, ...]


class LockBatchResponse(msgspec.Struct, frozen=True, rename={"locked": "lockOKMQSet"}):
    """Body of the response to 41: the queues the caller holds now."""

    locked: tuple[WireQueue, ...] = ()
