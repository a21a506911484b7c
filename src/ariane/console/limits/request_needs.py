"""Which requests a limited account's pages may send, and how the servers' answers are limited: one table of request codes.

A code without a row is refused: an operation that is new has to say what its answers contain.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from ariane.protocol.codes import RequestCode, ResponseCode

Code = RequestCode
Answer = Literal["plain", "json", "records", "record"]


class Need(NamedTuple):
    """A row of the table.

    Attributes:
        names: Fields of the header that name a topic or group, which the account must see.
        answer: What the answer contains: no names (plain), names in JSON, stored messages, or one stored message.
        refusal: Code and remark for a name that the account does not see: those of a server that does not have it.
        body: What an answer of success contains then; empty: the answer is the refusal.
    """

    names: tuple[str, ...] = ()
    answer: Answer = "plain"
    refusal: tuple[int, str] = (ResponseCode.TOPIC_NOT_EXIST, "topic[{name}] not exist")
    body: bytes = b""


GROUP_FIELDS = ("consumerGroup", "group", "groupName", "producerGroup")
TOPIC_FIELDS = ("topic",)
STATISTICS_KEY = "statsKey"  # a topic, or topic@group

_TOPIC = Need(TOPIC_FIELDS)
_PLAIN, _JSON = Need(), Need(answer="json")
_GROUP_UNKNOWN = (ResponseCode.SYSTEM_ERROR, "group {name} does not exist")
_OFFLINE = (ResponseCode.CONSUMER_NOT_ONLINE, "the consumer group[{name}] not online")
_NO_PERMISSION = (ResponseCode.NO_PERMISSION, "this account is limited to other topics and groups than {name}")

NEEDS: dict[int, Need] = {
    Code.GET_ROUTEINFO_BY_TOPIC: Need(
        TOPIC_FIELDS,
        refusal=(ResponseCode.TOPIC_NOT_EXIST, "No topic route info in name server for the topic: {name}"),
    ),
    # --- servers ---
    Code.GET_BROKER_CLUSTER_INFO: _PLAIN,
    Code.GET_BROKER_RUNTIME_INFO: _PLAIN,
    Code.GET_BROKER_CONFIG: _PLAIN,
    Code.GET_NAMESRV_CONFIG: _PLAIN,
    Code.GET_ALL_DELAY_OFFSET: _PLAIN,
    # --- lists ---
    Code.GET_ALL_TOPIC_CONFIG: _JSON,
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _JSON,
    Code.GET_TOPICS_BY_CLUSTER: _JSON,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _JSON,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _JSON,
    Code.GET_ALL_CONSUMER_OFFSET: _JSON,
    Code.GET_ALL_PRODUCER_INFO: _JSON,
    Code.GET_BROKER_CONSUME_STATS: _JSON,
    # --- one topic ---
    Code.GET_TOPIC_STATS_INFO: Need(TOPIC_FIELDS, "json"),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: Need(TOPIC_FIELDS, "json"),
    Code.GET_MAX_OFFSET: _TOPIC,
    Code.GET_MIN_OFFSET: _TOPIC,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _TOPIC,
    Code.QUERY_CONSUME_QUEUE: _TOPIC,
    Code.UPDATE_AND_CREATE_TOPIC: Need(TOPIC_FIELDS, refusal=_NO_PERMISSION),
    Code.DELETE_TOPIC_IN_BROKER: _TOPIC,
    Code.DELETE_TOPIC_IN_NAMESRV: _TOPIC,
    Code.GET_KV_CONFIG: Need(("key",), refusal=(ResponseCode.QUERY_NOT_FOUND, "No config item, Key: {name}")),
    Code.PUT_KV_CONFIG: Need(("key",), refusal=_NO_PERMISSION),
    Code.DELETE_KV_CONFIG: Need(("key",), refusal=_NO_PERMISSION),
    # --- one group ---
    Code.GET_CONSUMER_CONNECTION_LIST: Need(GROUP_FIELDS, "json", _OFFLINE),
    Code.GET_CONSUMER_RUNNING_INFO: Need(GROUP_FIELDS, "json", _OFFLINE),
    Code.GET_PRODUCER_CONNECTION_LIST: Need(
        GROUP_FIELDS, "json", (ResponseCode.SYSTEM_ERROR, "the producer group[{name}] not exist")
    ),
    Code.GET_CONSUME_STATS: Need(
        (*GROUP_FIELDS, *TOPIC_FIELDS), "json", (ResponseCode.SUCCESS, ""), b'{"consumeTps":0.0,"offsetTable":{}}'
    ),
    Code.QUERY_CONSUME_TIME_SPAN: Need((*GROUP_FIELDS, *TOPIC_FIELDS), "json"),
    Code.QUERY_CONSUMER_OFFSET: Need(
        (*GROUP_FIELDS, *TOPIC_FIELDS), refusal=(ResponseCode.QUERY_NOT_FOUND, "Not found")
    ),
    Code.UPDATE_CONSUMER_OFFSET: Need((*GROUP_FIELDS, *TOPIC_FIELDS), refusal=_NO_PERMISSION),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: Need((*GROUP_FIELDS, *TOPIC_FIELDS), refusal=_NO_PERMISSION),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Need(GROUP_FIELDS, refusal=_NO_PERMISSION),  # of the body
    Code.DELETE_SUBSCRIPTIONGROUP: Need(GROUP_FIELDS, refusal=_GROUP_UNKNOWN),
    Code.CONSUME_MESSAGE_DIRECTLY: Need(GROUP_FIELDS, refusal=_OFFLINE),
    Code.VIEW_BROKER_STATS_DATA: Need(
        (STATISTICS_KEY,), refusal=(ResponseCode.SYSTEM_ERROR, "The stats <{name}> not exist")
    ),
    # --- messages ---
    Code.PULL_MESSAGE: Need(TOPIC_FIELDS, "records"),
    Code.QUERY_MESSAGE: Need(
        TOPIC_FIELDS,
        "records",
        (ResponseCode.QUERY_NOT_FOUND, "can not find message of topic {name} in this time range"),
    ),
    Code.VIEW_MESSAGE_BY_ID: Need(answer="record"),
    Code.RECALL_MESSAGE: Need(TOPIC_FIELDS, refusal=_NO_PERMISSION),
    Code.RESUME_CHECK_HALF_MESSAGE: Need(("msgId",), refusal=_NO_PERMISSION),
}
