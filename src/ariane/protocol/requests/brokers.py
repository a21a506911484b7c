"""Requests of tools about a broker as a whole: headers and bodies of 26, 45, 300, 301, 308, 314, 321, 328.

The members of body Structs are in the order in which Java prints them.
"""

from __future__ import annotations

import msgspec

from ariane.protocol.requests.clients import SubscriptionData


class ConfigVersion(msgspec.Struct, frozen=True):
    """Response to GET_BROKER_CONFIG (26): a DataVersion as JSON text."""

    version: str


class GroupList(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    group_list: tuple[str, ...] = ()


class FilterServer(msgspec.Struct, frozen=True, rename="camel"):
    """REGISTER_FILTER_SERVER (301)."""

    filter_server_addr: str


class FilterServerResponse(msgspec.Struct, frozen=True, rename="camel"):
    broker_name: str
    broker_id: int


class QueryCorrection(msgspec.Struct, frozen=True, rename="camel"):
    """QUERY_CORRECTION_OFFSET (308); `filter_groups` is a list joined by commas."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


class Corrections(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to 308: queue id → offset."""

    correction_offsets: dict[int, int] = {}


class CloneOffsets(msgspec.Struct, frozen=True, rename="camel"):
    """CLONE_GROUP_OFFSET (314)."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryQueue(msgspec.Struct, frozen=True, rename="camel"):
    """QUERY_CONSUME_QUEUE (321)."""

    topic: str
    queue_id: int = 0
    index: int = 0
    count: int = 0
    consumer_group: str | None = None


class QueueEntry(msgspec.Struct, frozen=True, rename="camel"):
    """One entry of a consume queue; `eval` says whether the given group would receive it."""

    bit_map: str | None = None  # from the extension file (enableConsumeQueueExt), which only Java's brokers have
    eval: bool = False
    extend_data_json: str | None = None  # of the same file
    msg: str | None = None  # a remark of Java's brokers
    physic_offset: int = 0  # of the record in the commit log
    physic_size: int = 0  # of the record in bytes
    tags_code: int = 0  # hash of the tag; in delay queues the due time


class QueueEntries(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to 321."""

    filter_data: str | None = None
    max_queue_index: int = 0
    min_queue_index: int = 0
    queue_data: tuple[QueueEntry, ...] = ()
    subscription_data: SubscriptionData | None = None


class ProducerInfo(msgspec.Struct, frozen=True, rename={
    "client_id": "clientId", "last_update_ms": "lastUpdateTimestamp", "remote_ip": "remoteIP",
}):  # fmt: skip
    """One producer in the response to 328; `remote_ip` is `/ip:port`."""

    client_id: str
    language: str | None = None
    last_update_ms: int = 0
    remote_ip: str = ""
    version: int = 0


class ProducerTable(msgspec.Struct, frozen=True):
    """Body of the response to GET_ALL_PRODUCER_INFO (328): group → producers."""

    data: dict[str, tuple[ProducerInfo, ...]] = {}
