"""Values of the cluster in the form in which Apache's dashboard prints them.

Times are ms since the epoch, addresses `ip:port`, enumerations their names. A value that is unknown is null where Java would print
0, except for `diffTotal`, which is -1 there, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ariane.cluster.groups.group_lag import QueueLag, total_of
from ariane.cluster.messages.message_tracking import MessageTrack
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.model.topic import SubscriptionGroupConfig, TopicConfig
from ariane.protocol.requests.admin import ClientConnection
from ariane.protocol.requests.callbacks import ConsumeStatus, ProcessQueueInfo
from ariane.protocol.requests.clients import SubscriptionData
from ariane.protocol.requests.routing import BrokerData, TopicRoute
from ariane.protocol.versions import version_name

Json = dict[str, Any]

UNKNOWN_LAG = -1
UNSPECIFIED = "UNSPECIFIED"  # type of messages of a topic without the attribute; brokers of 4.x have no attributes


def queue_text(queue: MessageQueue) -> str:
    """Return a queue as Java prints it, which is the key of tables by queue."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"


def broker_shape(data: BrokerData) -> Json:
    """Return the addresses of a broker. Zones and acting masters are features of 5.x."""
    return {
        "cluster": data.cluster,
        "brokerName": data.broker_name,
        "brokerAddrs": {str(number): addr for number, addr in sorted(data.broker_addrs.items())},
        "zoneName": None,
        "enableActingMaster": False,
    }


def route_shape(route: TopicRoute) -> Json:
    """Return a route."""
    return {
        "orderTopicConf": route.order_topic_conf,
        "queueDatas": [
            {
                "brokerName": queues.broker_name,
                "readQueueNums": queues.read_queue_nums,
                "writeQueueNums": queues.write_queue_nums,
                "perm": queues.perm,
                "topicSysFlag": queues.topic_sys_flag,
            }
            for queues in route.queue_datas
        ],
        "brokerDatas": [broker_shape(data) for data in route.broker_datas],
        "filterServerTable": {addr: list(servers) for addr, servers in route.filter_server_table.items()},
        "topicQueueMappingByBroker": None,
    }


def topic_config_shape(config: TopicConfig, broker: str) -> Json:
    """Return the configuration of a topic on one broker."""
    return {
        "clusterNameList": None,
        "brokerNameList": [broker],
        "topicName": config.topic_name,
        "writeQueueNums": config.write_queue_nums,
        "readQueueNums": config.read_queue_nums,
        "perm": config.perm,
        "order": config.order,
        "messageType": UNSPECIFIED,
    }


def group_config_shape(config: SubscriptionGroupConfig, broker: str) -> Json:
    """Return the configuration of a consumer group on one broker, without settings that only brokers of 5.x have."""
    return {
        "clusterNameList": None,
        "brokerNameList": [broker],
        "subscriptionGroupConfig": {
            "groupName": config.group_name,
            "consumeEnable": config.consume_enable,
            "consumeFromMinEnable": config.consume_from_min_enable,
            "consumeBroadcastEnable": config.consume_broadcast_enable,
            "retryQueueNums": config.retry_queue_nums,
            "retryMaxTimes": config.retry_max_times,
            "brokerId": config.broker_id,
            "whichBrokerWhenConsumeSlowly": config.which_broker_when_consume_slowly,
            "notifyConsumerIdsChangedEnable": config.notify_consumer_ids_changed_enable,
        },
    }


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
    return {
        "clientId": client.client_id,
        "clientAddr": client.client_addr,
        "language": client.language,
        "version": client.version,
        "versionDesc": version_name(client.version),
    }


def subscription_shape(subscription: SubscriptionData) -> Json:
    """Return a subscription."""
    return {
        "classFilterMode": subscription.class_filter_mode,
        "topic": subscription.topic,
        "subString": subscription.sub_string,
        "tagsSet": sorted(subscription.tags_set),
        "codeSet": sorted(subscription.code_set),
        "subVersion": subscription.sub_version,
        "expressionType": subscription.expression_type,
        "filterClassSource": None,
    }


def queue_state_shape(info: ProcessQueueInfo) -> Json:
    """Return the state of a queue at its client."""
    return {
        "commitOffset": info.commit_offset,
        "cachedMsgMinOffset": info.cached_msg_min_offset,
        "cachedMsgMaxOffset": info.cached_msg_max_offset,
        "cachedMsgCount": info.cached_msg_count,
        "cachedMsgSizeInMiB": info.cached_msg_size_in_mi_b,
        "transactionMsgMinOffset": info.transaction_msg_min_offset,
        "transactionMsgMaxOffset": info.transaction_msg_max_offset,
        "transactionMsgCount": info.transaction_msg_count,
        "locked": info.locked,
        "tryUnlockTimes": info.try_unlock_times,
        "lastLockTimestamp": info.last_lock_timestamp,
        "droped": info.droped,
        "lastPullTimestamp": info.last_pull_timestamp,
        "lastConsumeTimestamp": info.last_consume_timestamp,
    }


def rates_shape(status: ConsumeStatus) -> Json:
    """Return the rates of a topic at a client."""
    return {
        "pullRT": status.pull_rt,
        "pullTPS": status.pull_tps,
        "consumeRT": status.consume_rt,
        "consumeOKTPS": status.consume_ok_tps,
        "consumeFailedTPS": status.consume_failed_tps,
        "consumeFailedMsgs": status.consume_failed_msgs,
    }


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
