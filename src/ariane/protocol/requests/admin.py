"""Topics and consumer groups of a broker: headers and bodies of 17, 43, 200, 201, 203, 204, 207, 215, 351, 352."""

from __future__ import annotations

import msgspec

from ariane.model.topic import DataVersion, SubscriptionGroupConfig, TopicConfig
from ariane.protocol.requests.clients import SubscriptionData


class CreateTopic(msgspec.Struct, frozen=True, rename="camel"):
    """UPDATE_AND_CREATE_TOPIC (17). `order` is carried and ignored, as in 4.9.4."""

    topic: str
    default_topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int | None = None
    order: bool = False


class TopicRef(msgspec.Struct, frozen=True):
    """DELETE_TOPIC_IN_BROKER (215), GET_TOPIC_STATS_INFO (202), GET_TOPIC_CONFIG (351)."""

    topic: str


class TopicConfigBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to GET_TOPIC_CONFIG (351): a topic as 5.x prints it. [TopicConfigAndQueueMapping]"""

    attributes: dict[str, str] = {}
    order: bool = False
    perm: int = 0
    read_queue_nums: int = 0
    topic_filter_type: str = "SINGLE_TAG"
    topic_name: str = ""
    topic_sys_flag: int = 0
    write_queue_nums: int = 0

    @classmethod
    def of(cls, topic: TopicConfig) -> TopicConfigBody:
        return cls(**msgspec.structs.asdict(topic))


class GroupName(msgspec.Struct, frozen=True):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352)."""

    group: str


class RetryPolicy(msgspec.Struct, frozen=True):
    """How a group of 5.x spaces its attempts; CUSTOMIZED without a policy is the delay levels of 4.9.4. [GroupRetryPolicy]"""

    type: str = "CUSTOMIZED"


class GroupConfigBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to 352: a group as 5.x prints it. Members that 4.9.4 does not have hold the defaults of 5.x."""

    attributes: dict[str, str] = {}
    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minute: int = 15
    group_name: str = ""
    group_retry_policy: RetryPolicy = RetryPolicy()
    group_sys_flag: int = 0
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    which_broker_when_consume_slowly: int = 1

    @classmethod
    def of(cls, group: SubscriptionGroupConfig) -> GroupConfigBody:
        return cls(**msgspec.structs.asdict(group))


class DeleteGroup(msgspec.Struct, frozen=True, rename="camel"):
    """DELETE_SUBSCRIPTIONGROUP (207)."""

    group_name: str
    remove_offset: bool = False


class SubscriptionGroupTable(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201)."""

    data_version: DataVersion = DataVersion()
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}


class ConsumerOffsetTable(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to GET_ALL_CONSUMER_OFFSET (43), and consumerOffset.json: `topic@group` → queue id → offset."""

    offset_table: dict[str, dict[int, int]] = {}


class DelayOffsetTable(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to GET_ALL_DELAY_OFFSET (45), and delayOffset.json: delay level → offset of its next entry."""

    offset_table: dict[int, int] = {}


class ProducerGroupRef(msgspec.Struct, frozen=True, rename="camel"):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


class ClientConnection(msgspec.Struct, frozen=True, rename="camel"):
    """One client in the responses to 203 and 204."""

    client_addr: str
    client_id: str
    language: str | None
    version: int


class ConsumerConnection(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to 203."""

    connection_set: tuple[ClientConnection, ...]
    consume_from_where: str | int | None
    consume_type: str | int | None
    message_model: str | int | None
    subscription_table: dict[str, SubscriptionData]


class ProducerConnection(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to 204."""

    connection_set: tuple[ClientConnection, ...]
