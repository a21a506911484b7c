"""What each request needs: an account, an admin, or permissions for the topics and groups that it names. Pure.

    code ─▶ RequestNeeds ─┬▶ admin?
                  ├▶ permissions, by the fields and the body of the request
                  └▶ permission for the topic of a stored message, if the request refers to one by its offset

Of accounts of plain_acl.yml, requests that read names, numbers and settings need no more than a signature, as in 4.9.4. Stricter
than 4.9.4, where an account is enough as well, are requests that read or copy messages by offset, that change positions, locks or
transactions of others, that interrogate members of a group, and that delete or register something for the whole broker. Users of
ACL 2.0 need one of the actions of 5.3.3, and a policy where 5.3.3 needs none. Reference: remoting-protocol 12.2, rocketmq5 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

import msgspec

from ariane.access.request_needs import (
    CLUSTER,
    NO_ACTIONS,
    Action,
    Fields,
    MessageReference,
    Permission,
    RequestNeeds,
    RequiredPermission,
    for_topic,
)
from ariane.errors import ProtocolError
from ariane.model import ids
from ariane.model.topic import RETRY_PREFIX
from ariane.protocol.codes import RequestCode
from ariane.protocol.request_batch import BATCHED_CODES, decode_requests
from ariane.protocol.requests import decode_json_body
from ariane.protocol.requests.clients import HeartbeatData
from ariane.protocol.requests.pop import BatchAckBody, QueryAssignment, RequestMode

REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"  # replies pass through a topic of the cluster without subscribers

ANY_ACCOUNT, PUB, SUB = Permission.DENY, Permission.PUB, Permission.SUB
READ = Action.SUB | Action.GET  # what reads messages and positions may also see them


class _Part(NamedTuple):
    """Permissions for some of the topics and groups that a request names."""

    policy: str  # for the documentation
    permissions: Callable[[Fields, bytes], list[RequiredPermission]]


def _topic(name: str | None, right: Permission, actions: Action = NO_ACTIONS) -> list[RequiredPermission]:
    return [for_topic(name, right, actions)] if name else []


def _group(name: str | None, right: Permission = SUB, actions: Action = NO_ACTIONS) -> list[RequiredPermission]:
    return [RequiredPermission(RETRY_PREFIX + name.removeprefix(RETRY_PREFIX), right, actions)] if name else []


def _words(right: Permission, actions: Action) -> str:
    """Return actions as policies name them."""
    return " or ".join((action.name or "").capitalize() for action in actions) or (right.name or "").capitalize()


def _of_topic(right: Permission, actions: Action = NO_ACTIONS, field: str = "topic") -> _Part:
    return _Part(f"{_words(right, actions)} topic", lambda fields, body: _topic(fields.get(field), right, actions))


def _of_group(right: Permission, actions: Action = NO_ACTIONS, field: str = "consumerGroup") -> _Part:
    return _Part(f"{_words(right, actions)} group", lambda fields, body: _group(fields.get(field), right, actions))


def _cluster(action: Action) -> _Part:
    need = RequiredPermission(CLUSTER, ANY_ACCOUNT, action)
    return _Part(f"{_words(ANY_ACCOUNT, action)} cluster", lambda fields, body: [need])


def _all(prefix: str, kind: str) -> _Part:
    need = RequiredPermission(prefix, ANY_ACCOUNT, Action.LIST)
    return _Part(f"List all {kind}", lambda fields, body: [need])


def _needs(text: str, *parts: _Part, message: MessageReference | None = None, is_admin: bool = False) -> RequestNeeds:
    def permissions(fields: Fields, body: bytes) -> list[RequiredPermission]:
        return [need for part in parts for need in part.permissions(fields, body)]

    policies = dict.fromkeys(part.policy for part in parts)
    if message is not None:
        policies.setdefault(f"{_words(message.right, message.actions)} topic of the message")
    # Sends have one part, and need no loop over parts.
    check = parts[0].permissions if len(parts) == 1 else permissions
    return RequestNeeds(text, check, is_admin, message, ", ".join(policies) or "-")


def _account(*parts: _Part) -> RequestNeeds:
    return _needs("account", *parts)


def _admin(*parts: _Part) -> RequestNeeds:
    return _needs("admin", *parts, is_admin=True)


def _publish(field: str) -> RequestNeeds:
    return _needs("PUB topic", _of_topic(PUB, field=field))


def _reply(field: str) -> RequestNeeds:
    def permissions(fields: Fields, body: bytes) -> list[RequiredPermission]:
        name = fields.get(field, "")
        return [] if name.endswith(REPLY_TOPIC_SUFFIX) else _topic(name, PUB)

    text = "account; PUB topic, unless it is that of replies"
    return _needs(text, _Part("Pub topic, unless it is that of replies", permissions))


def _heartbeat(fields: Fields, body: bytes) -> list[RequiredPermission]:
    required = []
    for consumer in decode_json_body(RequestCode.HEART_BEAT, body, HeartbeatData).consumers:
        required += _group(consumer.group_name)
        for subscription in consumer.subscription_data_set:
            required += _topic(subscription.topic, SUB)
    return required


def _queue_locks(fields: Fields, body: bytes) -> list[RequiredPermission]:
    return _group(decode_json_body(RequestCode.LOCK_BATCH_MQ, body, _LockingGroup).consumer_group)


def _created_group(fields: Fields, body: bytes) -> list[RequiredPermission]:
    try:
        name = decode_json_body(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body, _CreatedGroup).group_name
    except ProtocolError:
        return []  # the handler refuses the body, if the sender is an admin
    return _group(name, ANY_ACCOUNT, Action.CREATE)


def _batched(fields: Fields, body: bytes) -> list[RequiredPermission]:
    """Return what the requests of a batch need, each once. Others than BATCHED_CODES are not served."""
    needs = (
        REQUEST_NEEDS[request.code].permissions(request.field_map(), request.body)
        for request in decode_requests(body)
        if request.code in BATCHED_CODES
    )
    return list(dict.fromkeys(chain.from_iterable(needs)))


def _batch_ack(fields: Fields, body: bytes) -> list[RequiredPermission]:
    acks = decode_json_body(RequestCode.BATCH_ACK_MESSAGE, body, BatchAckBody).acks
    return list(dict.fromkeys(chain.from_iterable((*_topic(ack.topic, SUB), *_group(ack.group, SUB)) for ack in acks)))


def _assignment(fields: Fields, body: bytes) -> list[RequiredPermission]:
    query = decode_json_body(RequestCode.QUERY_ASSIGNMENT, body, QueryAssignment)
    return [*_topic(query.topic, SUB), *_group(query.consumer_group, SUB)]


def _request_mode(fields: Fields, body: bytes) -> list[RequiredPermission]:
    try:
        mode = decode_json_body(RequestCode.SET_MESSAGE_REQUEST_MODE, body, RequestMode)
    except ProtocolError:
        return []  # the handler refuses the body, if the sender is an admin
    return _group(mode.consumer_group, ANY_ACCOUNT, Action.UPDATE)


class _LockingGroup(msgspec.Struct, rename="camel"):
    """The group of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    consumer_group: str | None = None


class _CreatedGroup(msgspec.Struct, rename="camel"):
    """The group of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""

    group_name: str | None = None


def _message_at(field: str, right: Permission, actions: Action = NO_ACTIONS) -> MessageReference:
    return MessageReference(lambda fields: int(fields[field]), right, actions)


_MESSAGE_OF_ID = MessageReference(lambda fields: ids.parse_offset_message_id(fields["msgId"])[1], SUB)
_CONSUME = _needs("SUB topic, SUB group", _of_topic(SUB), _of_group(SUB))
_LOCK = _needs("SUB group", _Part("Sub group", _queue_locks))
_OFFSETS = _account(_of_topic(ANY_ACCOUNT, READ))
_CLUSTER_GET = _account(_cluster(Action.GET))
_CLUSTER_UPDATE = _admin(_cluster(Action.UPDATE))
# No action is sufficient: an account of plain_acl.yml could be an admin.
_SUPER = _admin(_Part("Super user", lambda fields, body: [RequiredPermission(CLUSTER, ANY_ACCOUNT)]))
ACCOUNT = _account()

REQUEST_NEEDS: dict[int, RequestNeeds] = {
    # Messages
    RequestCode.SEND_MESSAGE: _publish("topic"),
    RequestCode.SEND_MESSAGE_V2: _publish("b"),
    RequestCode.SEND_BATCH_MESSAGE: _publish("b"),
    RequestCode.CONSUMER_SEND_MSG_BACK: _needs(
        "SUB group, SUB topic of the message", _of_group(SUB, field="group"), message=_message_at("offset", SUB)
    ),
    RequestCode.SEND_REPLY_MESSAGE: _reply("topic"),
    RequestCode.SEND_REPLY_MESSAGE_V2: _reply("b"),
    RequestCode.RECALL_MESSAGE: _publish("topic"),
    RequestCode.END_TRANSACTION: _needs("PUB topic of the message", message=_message_at("commitLogOffset", PUB)),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _CLUSTER_UPDATE,
    RequestCode.PULL_MESSAGE: _CONSUME,
    RequestCode.LITE_PULL_MESSAGE: _CONSUME,
    RequestCode.QUERY_MESSAGE: _needs("SUB topic", _of_topic(SUB, READ)),
    RequestCode.VIEW_MESSAGE_BY_ID: _needs("SUB topic of the message", message=_message_at("offset", SUB, READ)),
    # POP
    RequestCode.POP_MESSAGE: _CONSUME,
    RequestCode.ACK_MESSAGE: _CONSUME,
    RequestCode.BATCH_ACK_MESSAGE: _needs(
        "SUB each topic, SUB each group", _Part("Sub each topic, Sub each group", _batch_ack)
    ),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _CONSUME,
    RequestCode.NOTIFICATION: _CONSUME,
    RequestCode.POLLING_INFO: _CONSUME,
    RequestCode.QUERY_ASSIGNMENT: _needs("SUB topic, SUB group", _Part("Sub topic, Sub group", _assignment)),
    RequestCode.SET_MESSAGE_REQUEST_MODE: _admin(_Part("Update group", _request_mode)),
    # Offsets
    RequestCode.QUERY_CONSUMER_OFFSET: _account(_of_topic(ANY_ACCOUNT, READ), _of_group(ANY_ACCOUNT, READ)),
    RequestCode.UPDATE_CONSUMER_OFFSET: _needs(
        "SUB topic, SUB group",
        _of_topic(SUB, Action.SUB | Action.UPDATE),
        _of_group(SUB, Action.SUB | Action.UPDATE),
    ),
    RequestCode.GET_ALL_CONSUMER_OFFSET: _CLUSTER_GET,
    RequestCode.GET_MAX_OFFSET: _OFFSETS,
    RequestCode.GET_MIN_OFFSET: _OFFSETS,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _OFFSETS,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _OFFSETS,
    # Clients
    RequestCode.HEART_BEAT: _needs(
        "SUB each topic, SUB each group", _Part("Sub each topic, Sub each group", _heartbeat)
    ),
    RequestCode.UNREGISTER_CLIENT: _needs("SUB group", _of_group(SUB)),
    RequestCode.CHECK_CLIENT_CONFIG: ACCOUNT,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _needs("SUB group", _of_group(SUB, READ)),
    RequestCode.LOCK_BATCH_MQ: _LOCK,
    RequestCode.UNLOCK_BATCH_MQ: _LOCK,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _account(_of_group(ANY_ACCOUNT, Action.GET)),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _CLUSTER_GET,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _needs(
        "SUB topic, SUB group", _of_topic(SUB, Action.UPDATE), _of_group(SUB, Action.UPDATE, "group")
    ),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _needs("SUB group", _of_group(SUB, Action.GET, "group")),
    RequestCode.GET_CONSUMER_RUNNING_INFO: _needs("SUB group", _of_group(SUB, Action.GET)),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _needs(
        "SUB group, SUB topic of the message", _of_group(SUB), message=_MESSAGE_OF_ID
    ),
    # Topics and groups
    RequestCode.UPDATE_AND_CREATE_TOPIC: _admin(_of_topic(ANY_ACCOUNT, Action.CREATE)),
    RequestCode.DELETE_TOPIC_IN_BROKER: _admin(_of_topic(ANY_ACCOUNT, Action.DELETE)),
    RequestCode.GET_ALL_TOPIC_CONFIG: _account(_all("", "topics")),
    RequestCode.GET_TOPIC_CONFIG: _account(_of_topic(ANY_ACCOUNT, Action.GET)),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _admin(_Part("Create group", _created_group)),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _admin(_of_group(ANY_ACCOUNT, Action.DELETE, "groupName")),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _account(_all(RETRY_PREFIX, "groups")),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _account(_of_group(ANY_ACCOUNT, Action.GET, "group")),
    # Statistics
    RequestCode.GET_TOPIC_STATS_INFO: _account(_of_topic(ANY_ACCOUNT, Action.GET)),
    RequestCode.GET_CONSUME_STATS: _account(_of_topic(ANY_ACCOUNT, Action.GET), _of_group(ANY_ACCOUNT, Action.GET)),
    RequestCode.GET_BROKER_CONSUME_STATS: _CLUSTER_GET,
    RequestCode.QUERY_CONSUME_TIME_SPAN: _account(
        _of_topic(ANY_ACCOUNT, Action.GET), _of_group(ANY_ACCOUNT, Action.GET, "group")
    ),
    RequestCode.VIEW_BROKER_STATS_DATA: _CLUSTER_GET,
    RequestCode.REQUEST_BATCH: _account(_Part("what its requests need", _batched)),
    RequestCode.GET_BROKER_RUNTIME_INFO: _CLUSTER_GET,
    # The broker as a whole
    RequestCode.GET_ALL_DELAY_OFFSET: _CLUSTER_GET,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _account(_of_topic(ANY_ACCOUNT, Action.GET)),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _account(_all("", "topics")),
    RequestCode.GET_ALL_PRODUCER_INFO: _CLUSTER_GET,
    RequestCode.REGISTER_FILTER_SERVER: _CLUSTER_UPDATE,
    RequestCode.CLONE_GROUP_OFFSET: _needs(
        "SUB group", _of_group(SUB, Action.UPDATE, "srcGroup"), _of_group(SUB, Action.UPDATE, "destGroup")
    ),
    RequestCode.QUERY_CORRECTION_OFFSET: _account(
        _of_topic(ANY_ACCOUNT, Action.GET), _of_group(ANY_ACCOUNT, Action.GET, "compareGroup")
    ),
    RequestCode.QUERY_CONSUME_QUEUE: _needs("SUB topic", _of_topic(SUB, READ)),
    RequestCode.CLEAN_UNUSED_TOPIC: _CLUSTER_UPDATE,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _CLUSTER_UPDATE,
    RequestCode.DELETE_EXPIRED_COMMITLOG: _CLUSTER_UPDATE,
    RequestCode.UPDATE_BROKER_CONFIG: _CLUSTER_UPDATE,
    RequestCode.GET_BROKER_CONFIG: _CLUSTER_GET,
    # Access control
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: _SUPER,
    RequestCode.DELETE_ACL_CONFIG: _SUPER,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _SUPER,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: _CLUSTER_GET,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: _SUPER,
    RequestCode.AUTH_CREATE_USER: _CLUSTER_UPDATE,
    RequestCode.AUTH_UPDATE_USER: _CLUSTER_UPDATE,
    RequestCode.AUTH_DELETE_USER: _CLUSTER_UPDATE,
    RequestCode.AUTH_GET_USER: _admin(_cluster(Action.GET)),
    RequestCode.AUTH_LIST_USER: _admin(_cluster(Action.GET)),
    RequestCode.AUTH_CREATE_ACL: _CLUSTER_UPDATE,
    RequestCode.AUTH_UPDATE_ACL: _CLUSTER_UPDATE,
    RequestCode.AUTH_DELETE_ACL: _CLUSTER_UPDATE,
    RequestCode.AUTH_GET_ACL: _admin(_cluster(Action.GET)),
    RequestCode.AUTH_LIST_ACL: _admin(_cluster(Action.GET)),
    RequestCode.GET_AUDIT_LOG: _admin(_cluster(Action.GET)),
    RequestCode.MEMBER_REQUEST: _CLUSTER_UPDATE,
    RequestCode.LIST_IN_FLIGHT: _account(_of_topic(ANY_ACCOUNT, Action.GET), _of_group(ANY_ACCOUNT, Action.GET)),
}

# Checked for calls of the gRPC port only: clients of remoting ask name servers for routes.
ROUTE_NEEDS: dict[int, RequestNeeds] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _needs("PUB or SUB topic", _of_topic(PUB | SUB, Action.PUB | Action.SUB)),
}

# Requests that are decided about in runs (`signed_turns`), with all extFields that their needs depend on.
RUN_FIELDS: dict[int, tuple[str, ...]] = {
    RequestCode.SEND_MESSAGE: ("topic",),
    RequestCode.SEND_MESSAGE_V2: ("b",),
    RequestCode.SEND_BATCH_MESSAGE: ("b",),
    RequestCode.PULL_MESSAGE: ("topic", "consumerGroup"),
    RequestCode.LITE_PULL_MESSAGE: ("topic", "consumerGroup"),
}
