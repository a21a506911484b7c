"""Topics and consumer groups of a broker: headers and bodies of 17, 43, 200, 201, 203, 204, 207, 215, 351, 352."""

from __future__ import annotations

import msgspec

from ariane.model.topic import DataVersion, GroupRetryPolicy, SubscriptionGroupConfig, TopicConfig
from ariane.protocol.requests.clients import SubscriptionData


class CreateTopic(msgspec.Struct, frozen=True, rename="camel"):
    """UPDATE_AND_CREATE_TOPIC (17). `order` is carried and ignored, as in 4.9.4."""

    topic: str  # created, or changed if it exists
    default_topic: str  # sent by Java, ignored by brokers
    read_queue_nums: int  # queues for consumers
    write_queue_nums: int  # queues for producers
    perm: int  # 2 write, 4 read, 6 both
    topic_filter_type: str = "SINGLE_TAG"  # SINGLE_TAG or MULTI_TAG
    topic_sys_flag: int | None = None  # unit bits; None: 0
    order: bool = False
    attributes: str | None = (
        None  # of 5.x: changes of the topic's attributes, see `model.topic_attributes.parse_changes`
    )


class TopicRef(msgspec.Struct, frozen=True):
    """DELETE_TOPIC_IN_BROKER (215), GET_TOPIC_STATS_INFO (202), GET_TOPIC_CONFIG (351)."""

    topic: str


class TopicConfigBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to GET_TOPIC_CONFIG (351): a topic as 5.x prints it. [TopicConfigAndQueueMapping]"""

    attributes: dict[str, str] = {}  # of 5.x, see `model.topic_attributes`
    order: bool = False  # see `model.topic.TopicConfig`, also for the following
    perm: int = 0  # 2 write, 4 read, 6 both
    read_queue_nums: int = 0  # queues for consumers
    topic_filter_type: str = "SINGLE_TAG"  # SINGLE_TAG or MULTI_TAG
    topic_name: str = ""  # repeats the requested name
    topic_sys_flag: int = 0  # unit bits
    write_queue_nums: int = 0  # queues for producers

    @classmethod
    def of(cls, topic: TopicConfig) -> TopicConfigBody:
        return cls(**{**msgspec.structs.asdict(topic), "attributes": topic.attributes or {}})


class GroupName(msgspec.Struct, frozen=True):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352)."""

    group: str


class GroupConfigBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to 352: a group as 5.x prints it. Members that 4.9.4 does not have hold the defaults of 5.x."""

    attributes: dict[str, str] = {}  # of 5.x; always empty
    broker_id: int = 0  # see `model.topic.SubscriptionGroupConfig`, also for the other members that 4.9.4 has
    consume_broadcast_enable: bool = True  # whether broadcasting members may pull
    consume_enable: bool = True  # whether members may pull
    consume_from_min_enable: bool = True  # no effect
    consume_message_orderly: bool = False  # whether messages of a queue reach clients of 5.x one after the other
    consume_timeout_minute: int = 15  # of 5.x
    group_name: str = ""  # repeats the requested name
    group_retry_policy: GroupRetryPolicy = GroupRetryPolicy()  # of clients of 5.x
    group_sys_flag: int = 0  # of 5.x
    notify_consumer_ids_changed_enable: bool = True  # whether members are notified of a rebalance
    retry_max_times: int = 16  # redeliveries before a dead letter
    retry_queue_nums: int = 1  # queues of the retry topic
    which_broker_when_consume_slowly: int = 1  # suggested slave

    @classmethod
    def of(cls, group: SubscriptionGroupConfig) -> GroupConfigBody:
        members = msgspec.structs.asdict(group)
        return cls(**{name: value for name, value in members.items() if value is not msgspec.UNSET})


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
