"""Values of the cluster in the form in which Apache's dashboard prints them.

Times are ms since the epoch, addresses `ip:port`, enumerations their names. A value that is unknown is null where Java would print
0, except for `diffTotal`, which is -1 there, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ariane.cluster.groups.group_lag import QueueLag, total_of
from ariane.cluster.messages.message_tracking import MessageTrack
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.model.topic import SubscriptionGroupConfig, TopicConfig
from ariane.protocol.requests.admin import ClientConnection
from ariane.protocol.requests.clients import SubscriptionData
from ariane.protocol.requests.routing import BrokerData, TopicRoute
from ariane.protocol.versions import version_name

Json = dict[str, Any]

UNKNOWN_LAG = -1
UNSPECIFIED = "UNSPECIFIED"  # type of messages of a topic without the attribute; brokers of 4.x have no attributes


def queue_text(queue: MessageQueue) -> str:
    """Return a queue as Java prints it, which is the key of tables by queue."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"


def members(value: msgspec.Struct) -> Json:
    """Return a value of the protocol with its members as Java prints them, which are their names on the wire."""
    shape: Json = msgspec.to_builtins(value, str_keys=True)
    return shape


def broker_shape(data: BrokerData) -> Json:
    """Return the addresses of a broker. Zones and acting masters are features of 5.x."""
    return members(data) | {"zoneName": None, "enableActingMaster": False}


def route_shape(route: TopicRoute) -> Json:
    """Return a route."""
    brokers = [broker_shape(data) for data in route.broker_datas]
    return members(route) | {"brokerDatas": brokers, "topicQueueMappingByBroker": None}


def topic_config_shape(config: TopicConfig, broker: str) -> Json:
    """Return the configuration of a topic on one broker."""
    shape = members(config)
    return {
        "clusterNameList": None,
        "brokerNameList": [broker],
        "messageType": UNSPECIFIED,
        **{name: shape[name] for name in ("topicName", "writeQueueNums", "readQueueNums", "perm", "order")},
    }


def group_config_shape(config: SubscriptionGroupConfig, broker: str) -> Json:
    """Return the configuration of a consumer group on one broker, without settings that only brokers of 5.x have."""
    return {"clusterNameList": None, "brokerNameList": [broker], "subscriptionGroupConfig": members(config)}


def topic_progress_shapes(queues: Iterable[QueueLag], owners: Mapping[MessageQueue, str]) -> list[Json]:
    """Return the progress of a group by topic. `owners`: the client that each queue is assigned to."""
    by_topic: dict[str, list[QueueLag]] = {}
    for queue in sorted(queues):
        by_topic.setdefault(queue.topic, []).append(queue)
    return [topic_progress_shape(topic, lags, owners) for topic, lags in by_topic.items()]


def topic_progress_shape(topic: str, queues: Sequence[QueueLag], owners: Mapping[MessageQueue, str]) -> Json:
    """Return the progress of a group in one topic."""
    return {
        "topic": topic,
        "diffTotal": 0 if not queues else lag_shape(total_of(queues)),
        "lastTimestamp": max((queue.consumed_ms or 0 for queue in queues), default=0),
        "queueStatInfoList": [
            {
                "brokerName": queue.broker,
                "queueId": queue.queue_id,
                "brokerOffset": queue.broker_offset,
                "consumerOffset": queue.consumer_offset,
                "clientInfo": owners.get(queue.queue),
                "lastTimestamp": queue.consumed_ms or 0,
            }
            for queue in queues
        ],
    }


def lag_shape(lag: int | None) -> int:
    """Return a lag, -1 if it is unknown."""
    return UNKNOWN_LAG if lag is None else lag


def connection_shape(client: ClientConnection) -> Json:
    """Return a connected client."""
    return members(client) | {"versionDesc": version_name(client.version)}


def subscription_shape(subscription: SubscriptionData) -> Json:
    """Return a subscription."""
    tags, codes = sorted(subscription.tags_set), sorted(subscription.code_set)
    return members(subscription) | {"tagsSet": tags, "codeSet": codes, "filterClassSource": None}


def message_shape(message: ReceivedMessage, *, with_body: bool = True) -> Json:
    """Return a message as it is stored: a dead letter with the topic of dead letters, not with its original one."""
    return {
        "queueId": message.queue.queue_id,
        "storeSize": message.stored_size,
        "queueOffset": message.queue_offset,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_ms,
        "bornHost": message.born_host,
        "storeTimestamp": message.store_ms,
        "storeHost": message.store_host,
        "msgId": message.message_id,
        "commitLogOffset": message.commit_log_offset,
        "bodyCRC": message.body_crc,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_offset,
        "topic": message.queue.topic,
        "flag": message.flag,
        "properties": dict(message.properties),
        "messageBody": message.body.decode("utf-8", "replace") if with_body else None,
    }


def track_shape(track: MessageTrack) -> Json:
    """Return the state of a message in a consumer group."""
    return {"consumerGroup": track.group, "trackType": track.state.name, "exceptionDesc": track.reason}
