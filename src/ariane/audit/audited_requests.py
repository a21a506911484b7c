"""Which requests are changes, and what they change. Pure.

Each code that a server handles is in exactly one of three sets. Changes are recorded with their result, and refusals of any code.
Traffic is what clients do all the time: messages, positions, heartbeats and locks, whose effect other statistics show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ariane.errors import ProtocolError
from ariane.protocol import java_properties
from ariane.protocol.codes import RequestCode as Code
from ariane.protocol.requests.pop import RequestMode

Fields = Mapping[str, str]
Resource = Callable[[Fields, bytes], str]

LARGE_BODY = 64 * 1024  # bytes: a larger body is not read for its resource


def _named(**kinds: str) -> Resource:
    """Return the resource by kind and field: `topic:orders group:stock`."""
    return lambda fields, body: " ".join(
        f"{kind}:{fields[field]}" for kind, field in kinds.items() if fields.get(field)
    )


def _setting_keys(fields: Fields, body: bytes) -> str:
    # Never the values: a request may contain a password, although it cannot change one.
    try:
        return " ".join(f"setting:{key}" for key in java_properties.parse_body(body[:LARGE_BODY]))
    except ProtocolError:
        return ""


def _subscription_group(fields: Fields, body: bytes) -> str:
    try:
        document: Any = msgspec.json.decode(body) if len(body) <= LARGE_BODY else {}
    except msgspec.DecodeError:
        return ""
    return f"group:{document['groupName']}" if isinstance(document, dict) and "groupName" in document else ""


def _request_mode(fields: Fields, body: bytes) -> str:
    try:
        mode = msgspec.json.decode(body, type=RequestMode)
    except msgspec.DecodeError:
        return ""
    return f"topic:{mode.topic} group:{mode.consumer_group} mode:{mode.mode}"


_NONE: Resource = lambda fields, body: ""  # noqa: E731 - the server as a whole
_TOPIC, _ACCOUNT = _named(topic="topic"), _named(account="accessKey")
_KV = _named(namespace="namespace", key="key")
_BROKER = _named(broker="brokerName", address="brokerAddr", cluster="clusterName", id="brokerId")

CHANGES: dict[int, Resource] = {
    # Brokers
    Code.UPDATE_AND_CREATE_TOPIC: _TOPIC,
    Code.DELETE_TOPIC_IN_BROKER: _TOPIC,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _subscription_group,
    Code.DELETE_SUBSCRIPTIONGROUP: _named(group="groupName"),
    Code.SET_MESSAGE_REQUEST_MODE: _request_mode,
    Code.UPDATE_BROKER_CONFIG: _setting_keys,
    Code.MEMBER_REQUEST: _named(member="member"),
    Code.UPDATE_AND_CREATE_ACL_CONFIG: _ACCOUNT,
    Code.DELETE_ACL_CONFIG: _ACCOUNT,
    **dict.fromkeys((Code.AUTH_CREATE_USER, Code.AUTH_UPDATE_USER, Code.AUTH_DELETE_USER), _named(user="username")),
    **dict.fromkeys(
        (Code.AUTH_CREATE_ACL, Code.AUTH_UPDATE_ACL, Code.AUTH_DELETE_ACL),
        _named(subject="subject", resource="resource"),
    ),
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _named(addresses="globalWhiteAddrs", file="aclFileFullPath"),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _named(topic="topic", group="group"),
    Code.CLONE_GROUP_OFFSET: _named(topic="topic", group="destGroup"),
    Code.CONSUME_MESSAGE_DIRECTLY: _named(group="consumerGroup", message="msgId"),
    Code.RESUME_CHECK_HALF_MESSAGE: _named(message="msgId"),
    Code.REGISTER_FILTER_SERVER: _named(address="filterServerAddr"),
    Code.CLEAN_UNUSED_TOPIC: _NONE,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _NONE,
    Code.DELETE_EXPIRED_COMMITLOG: _NONE,
    # Name servers. Of registrations only those that are new: see `nameserver.server`.
    Code.REGISTER_BROKER: _BROKER,
    Code.UNREGISTER_BROKER: _BROKER,
    Code.PUT_KV_CONFIG: _KV,
    Code.DELETE_KV_CONFIG: _KV,
    Code.WIPE_WRITE_PERM_OF_BROKER: _BROKER,
    Code.ADD_WRITE_PERM_OF_BROKER: _BROKER,
    Code.DELETE_TOPIC_IN_NAMESRV: _TOPIC,
    Code.UPDATE_NAMESRV_CONFIG: _setting_keys,
}

TRAFFIC = frozenset(
    {
        Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.CONSUMER_SEND_MSG_BACK,
        Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2, Code.RECALL_MESSAGE, Code.END_TRANSACTION,
        Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE, Code.UPDATE_CONSUMER_OFFSET, Code.HEART_BEAT, Code.UNREGISTER_CLIENT,
        Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ, Code.POP_MESSAGE, Code.ACK_MESSAGE, Code.BATCH_ACK_MESSAGE,
        Code.CHANGE_MESSAGE_INVISIBLETIME, Code.NOTIFICATION,
    }
)  # fmt: skip

READS = frozenset(
    {
        # Brokers
        Code.QUERY_MESSAGE, Code.VIEW_MESSAGE_BY_ID, Code.QUERY_CONSUMER_OFFSET, Code.GET_ALL_CONSUMER_OFFSET,
        Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET, Code.GET_EARLIEST_MSG_STORETIME, Code.SEARCH_OFFSET_BY_TIMESTAMP,
        Code.CHECK_CLIENT_CONFIG, Code.GET_CONSUMER_LIST_BY_GROUP, Code.GET_CONSUMER_CONNECTION_LIST,
        Code.GET_PRODUCER_CONNECTION_LIST, Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, Code.GET_CONSUMER_RUNNING_INFO,
        Code.GET_ALL_TOPIC_CONFIG, Code.GET_TOPIC_CONFIG, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        Code.GET_SUBSCRIPTIONGROUP_CONFIG, Code.GET_TOPIC_STATS_INFO, Code.GET_CONSUME_STATS,
        Code.GET_BROKER_CONSUME_STATS, Code.QUERY_CONSUME_TIME_SPAN, Code.VIEW_BROKER_STATS_DATA, Code.REQUEST_BATCH,
        Code.GET_BROKER_RUNTIME_INFO, Code.GET_ALL_DELAY_OFFSET, Code.QUERY_TOPIC_CONSUME_BY_WHO,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Code.GET_ALL_PRODUCER_INFO, Code.QUERY_CORRECTION_OFFSET,
        Code.QUERY_CONSUME_QUEUE, Code.GET_BROKER_CONFIG, Code.GET_BROKER_CLUSTER_ACL_INFO,
        Code.GET_BROKER_CLUSTER_ACL_CONFIG, Code.GET_AUDIT_LOG, Code.AUTH_GET_USER, Code.AUTH_LIST_USER,
        Code.AUTH_GET_ACL, Code.AUTH_LIST_ACL, Code.POLLING_INFO, Code.QUERY_ASSIGNMENT,
        Code.LIST_IN_FLIGHT,
        # Name servers
        Code.GET_KV_CONFIG, Code.GET_KVLIST_BY_NAMESPACE, Code.QUERY_DATA_VERSION, Code.GET_ROUTEINFO_BY_TOPIC,
        Code.GET_BROKER_CLUSTER_INFO, Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Code.GET_TOPICS_BY_CLUSTER,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, Code.GET_UNIT_TOPIC_LIST, Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
        Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, Code.GET_NAMESRV_CONFIG,
    }
)  # fmt: skip

# Fields that name what another request is about, for its refusal.
_NAMES = {
    "topic": "topic", "group": "group", "groupName": "group", "consumerGroup": "group", "subscriptionGroup": "group",
    "msgId": "message", "brokerName": "broker",
}  # fmt: skip
_BRIEF_SENDS = (Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.SEND_REPLY_MESSAGE_V2)


def resource_of(code: int, fields: Fields, body: bytes) -> str:
    """Return what a request is about, for example `topic:orders group:stock`; empty if it names nothing."""
    if code in CHANGES:
        return CHANGES[code](fields, body)
    if code in _BRIEF_SENDS:
        return f"topic:{fields['b']}" if fields.get("b") else ""
    return " ".join(f"{kind}:{fields[field]}" for field, kind in _NAMES.items() if fields.get(field))
