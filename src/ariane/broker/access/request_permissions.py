"""What each request needs: an account, an admin, or permissions for the topics and groups that it names. Pure.

    code ─▶ RequestNeeds ─┬▶ admin?
                  ├▶ permissions, by the fields and the body of the request
                  └▶ permission for the topic of a stored message, if the request refers to one by its offset

Requests that read names, numbers and settings need an account only, as in 4.9.4. Stricter than 4.9.4, where an account is enough
as well, are requests that read or copy messages by offset, that change positions, locks or transactions of others, that
interrogate members of a group, and that delete or register something for the whole broker. Reference: remoting-protocol 12.2.
"""

from __future__ import annotations

import msgspec

from ariane.access.request_needs import (
    Fields,
    MessageReference,
    Permission,
    RequestNeeds,
    RequiredPermission,
    for_topic,
)
from ariane.model import ids
from ariane.model.topic import RETRY_PREFIX
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests import decode_json_body
from ariane.protocol.requests.clients import HeartbeatData

REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"  # replies pass through a topic of the cluster without subscribers


def _topic(name: str | None, right: Permission) -> list[RequiredPermission]:
    return [for_topic(name, right)] if name else []


def _group(name: str | None) -> list[RequiredPermission]:
    return [RequiredPermission(RETRY_PREFIX + name.removeprefix(RETRY_PREFIX), Permission.SUB)] if name else []


def _publish(field: str) -> RequestNeeds:
    return RequestNeeds("PUB topic", lambda fields, body: _topic(fields.get(field), Permission.PUB))


def _reply(field: str) -> RequestNeeds:
    def permissions(fields: Fields, body: bytes) -> list[RequiredPermission]:
        name = fields.get(field, "")
        return [] if name.endswith(REPLY_TOPIC_SUFFIX) else _topic(name, Permission.PUB)

    return RequestNeeds("account; PUB topic, unless it is that of replies", permissions)


def _read_topic(fields: Fields, body: bytes) -> list[RequiredPermission]:
    return _topic(fields.get("topic"), Permission.SUB)


def _consume(group: str) -> RequestNeeds:
    return RequestNeeds(
        "SUB topic, SUB group", lambda fields, body: _read_topic(fields, body) + _group(fields.get(group))
    )


def _of_group(*fields_of_groups: str) -> RequestNeeds:
    return RequestNeeds(
        "SUB group", lambda fields, body: [need for field in fields_of_groups for need in _group(fields.get(field))]
    )


def _heartbeat(fields: Fields, body: bytes) -> list[RequiredPermission]:
    required = []
    for consumer in decode_json_body(RequestCode.HEART_BEAT, body, HeartbeatData).consumers:
        required += _group(consumer.group_name)
        for subscription in consumer.subscription_data_set:
            required += _topic(subscription.topic, Permission.SUB)
    return required


def _queue_locks(fields: Fields, body: bytes) -> list[RequiredPermission]:
    return _group(decode_json_body(RequestCode.LOCK_BATCH_MQ, body, _LockingGroup).consumer_group)


class _LockingGroup(msgspec.Struct, rename="camel"):
    """The group of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    consumer_group: str | None = None


def _message_at(field: str, right: Permission) -> MessageReference:
    return MessageReference(lambda fields: int(fields[field]), right)


_MESSAGE_OF_ID = MessageReference(lambda fields: ids.parse_offset_message_id(fields["msgId"])[1], Permission.SUB)
_ACCOUNT = RequestNeeds("account")
_ADMIN = RequestNeeds("admin", is_admin=True)

REQUEST_NEEDS: dict[int, RequestNeeds] = {
    # Messages
    RequestCode.SEND_MESSAGE: _publish("topic"),
    RequestCode.SEND_MESSAGE_V2: _publish("b"),
    RequestCode.SEND_BATCH_MESSAGE: _publish("b"),
    RequestCode.CONSUMER_SEND_MSG_BACK: RequestNeeds(
        "SUB group, SUB topic of the message",
        lambda fields, body: _group(fields.get("group")),
        message=_message_at("offset", Permission.SUB),
    ),
    RequestCode.SEND_REPLY_MESSAGE: _reply("topic"),
    RequestCode.SEND_REPLY_MESSAGE_V2: _reply("b"),
    RequestCode.RECALL_MESSAGE: _publish("topic"),
    RequestCode.END_TRANSACTION: RequestNeeds(
        "PUB topic of the message", message=_message_at("commitLogOffset", Permission.PUB)
    ),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _ADMIN,
    RequestCode.PULL_MESSAGE: _consume("consumerGroup"),
    RequestCode.LITE_PULL_MESSAGE: _consume("consumerGroup"),
    RequestCode.QUERY_MESSAGE: RequestNeeds("SUB topic", _read_topic),
    RequestCode.VIEW_MESSAGE_BY_ID: RequestNeeds(
        "SUB topic of the message", message=_message_at("offset", Permission.SUB)
    ),
    # Offsets
    RequestCode.QUERY_CONSUMER_OFFSET: _ACCOUNT,
    RequestCode.UPDATE_CONSUMER_OFFSET: _consume("consumerGroup"),
    RequestCode.GET_ALL_CONSUMER_OFFSET: _ACCOUNT,
    RequestCode.GET_MAX_OFFSET: _ACCOUNT,
    RequestCode.GET_MIN_OFFSET: _ACCOUNT,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _ACCOUNT,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _ACCOUNT,
    # Clients
    RequestCode.HEART_BEAT: RequestNeeds("SUB each topic, SUB each group", _heartbeat),
    RequestCode.UNREGISTER_CLIENT: _of_group("consumerGroup"),
    RequestCode.CHECK_CLIENT_CONFIG: _ACCOUNT,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _of_group("consumerGroup"),
    RequestCode.LOCK_BATCH_MQ: RequestNeeds("SUB group", _queue_locks),
    RequestCode.UNLOCK_BATCH_MQ: RequestNeeds("SUB group", _queue_locks),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _ACCOUNT,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _ACCOUNT,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _consume("group"),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _of_group("group"),
    RequestCode.GET_CONSUMER_RUNNING_INFO: _of_group("consumerGroup"),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: RequestNeeds(
        "SUB group, SUB topic of the message",
        lambda fields, body: _group(fields.get("consumerGroup")),
        message=_MESSAGE_OF_ID,
    ),
    # Topics and groups
    RequestCode.UPDATE_AND_CREATE_TOPIC: _ADMIN,
    RequestCode.DELETE_TOPIC_IN_BROKER: _ADMIN,
    RequestCode.GET_ALL_TOPIC_CONFIG: _ACCOUNT,
    RequestCode.GET_TOPIC_CONFIG: _ACCOUNT,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _ADMIN,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _ADMIN,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _ACCOUNT,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _ACCOUNT,
    # Statistics
    RequestCode.GET_TOPIC_STATS_INFO: _ACCOUNT,
    RequestCode.GET_CONSUME_STATS: _ACCOUNT,
    RequestCode.GET_BROKER_CONSUME_STATS: _ACCOUNT,
    RequestCode.QUERY_CONSUME_TIME_SPAN: _ACCOUNT,
    RequestCode.VIEW_BROKER_STATS_DATA: _ACCOUNT,
    RequestCode.REQUEST_BATCH: _ACCOUNT,
    RequestCode.GET_BROKER_RUNTIME_INFO: _ACCOUNT,
    # The broker as a whole
    RequestCode.GET_ALL_DELAY_OFFSET: _ACCOUNT,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _ACCOUNT,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _ACCOUNT,
    RequestCode.GET_ALL_PRODUCER_INFO: _ACCOUNT,
    RequestCode.REGISTER_FILTER_SERVER: _ADMIN,
    RequestCode.CLONE_GROUP_OFFSET: _of_group("srcGroup", "destGroup"),
    RequestCode.QUERY_CORRECTION_OFFSET: _ACCOUNT,
    RequestCode.QUERY_CONSUME_QUEUE: RequestNeeds("SUB topic", _read_topic),
    RequestCode.CLEAN_UNUSED_TOPIC: _ADMIN,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _ADMIN,
    RequestCode.DELETE_EXPIRED_COMMITLOG: _ADMIN,
    RequestCode.UPDATE_BROKER_CONFIG: _ADMIN,
    RequestCode.GET_BROKER_CONFIG: _ACCOUNT,
    # Access control
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: _ADMIN,
    RequestCode.DELETE_ACL_CONFIG: _ADMIN,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _ADMIN,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: _ACCOUNT,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: _ADMIN,
    RequestCode.GET_AUDIT_LOG: _ADMIN,
}

# Requests that are decided about in runs (`signed_turns`), with all extFields that their needs depend on.
RUN_FIELDS: dict[int, tuple[str, ...]] = {
    RequestCode.SEND_MESSAGE: ("topic",),
    RequestCode.SEND_MESSAGE_V2: ("b",),
    RequestCode.SEND_BATCH_MESSAGE: ("b",),
    RequestCode.PULL_MESSAGE: ("topic", "consumerGroup"),
    RequestCode.LITE_PULL_MESSAGE: ("topic", "consumerGroup"),
}
