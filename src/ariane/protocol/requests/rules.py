"""One table of rules for all values from clients: length, characters, count and range, by the member that holds them.

    decode_header(command, PullMessage)  ─┐
    decode_body(command, HeartbeatData)  ─┴→ check: every text, number and collection of the Struct against RULES and RANGES

`Struct.member` takes precedence over `member`. Rules bound what a server looks up or stores. Stricter checks stay in the
handlers: the name of a created topic must also be a valid path (`model.topic.topic_name_fault`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from ariane.errors import ProtocolError
from ariane.model.topic import GROUP_MAX, QUEUES_MAX
from ariane.protocol.requests.messaging import EXPRESSION_MAX, NAME_MAX, WORD_MAX
from ariane.protocol.secret_masks import HIDDEN

SHOWN_MAX = 40  # characters of a refused value in its error
REMEMBERED_MAX = 128  # characters: longer values are checked each time
REMEMBERED_VALUES = 8_192  # of one rule
PATH = "/\\"  # characters that separate the parts of a path
PARENTS = (".", "..")  # the directory itself and the one above it

INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)


class FieldRule:
    """A rule for texts: 1 to `longest` characters, none of them a control character, not blank.

    Attributes:
        longest: Maximum number of characters.
        may_be_empty: Whether an empty or blank text is valid: a member that a request may omit.
        is_free: Whether any character is valid: text that is compared or stored, never used as a name.
        is_secret: Whether errors must not show the value.
        forbidden: Invalid characters, in addition to control characters. A rule with PATH is for names that may become part of
            a path: it refuses `.` and `..`, too.
        count: Maximum number of elements if the member is a collection.
        accepted: Values that passed the check recently.
    """

    __slots__ = ("accepted", "count", "forbidden", "is_free", "is_secret", "longest", "may_be_empty")

    def __init__(
        self,
        longest: int,
        *,
        may_be_empty: bool = False,
        is_free: bool = False,
        is_secret: bool = False,
        forbidden: str = "",
        count: int = 0,
    ) -> None:
        self.longest = longest
        self.is_secret = is_secret
        self.may_be_empty = may_be_empty
        self.is_free = is_free
        self.forbidden = forbidden
        self.count = count
        self.accepted: set[str] = set()

    def check(self, member: str, value: str) -> None:
        """Raise ProtocolError if `value` breaks the rule. A value that was accepted is remembered."""
        if fault := self._fault(value):
            raise ProtocolError(f"Invalid {member} {HIDDEN if self.is_secret else shown(value)}: {fault}")
        if len(value) <= REMEMBERED_MAX:
            if len(self.accepted) >= REMEMBERED_VALUES:
                self.accepted.clear()
            self.accepted.add(value)

    def _fault(self, value: str) -> str | None:
        if len(value) > self.longest:
            return f"expected at most {self.longest} characters, it has {len(value)}"
        if not self.may_be_empty and not value.strip():
            return f"expected 1 to {self.longest} characters, it is blank"
        if self.is_free:
            return None
        if not value.isprintable():
            return "expected no control characters"
        if any(character in value for character in self.forbidden):
            return f"expected none of the characters {self.forbidden}"
        if value in PARENTS and PATH[0] in self.forbidden:
            return "expected a name, not a directory"
        return None


class NumberRange(NamedTuple):
    """A rule for numbers, both ends included."""

    minimum: int
    maximum: int


# Names that are looked up. The retry topic of a group with the longest name is longer than a topic may be that is created.
TOPIC = FieldRule(NAME_MAX)
GROUP = FieldRule(GROUP_MAX, forbidden=f"@{PATH}")  # stored as part of `topic@group`, and of the names of retry topics
PRODUCER_GROUP = FieldRule(GROUP_MAX)
CLIENT_ID = FieldRule(512)  # IP@instance@unit; the last two are the application's
SERVER_NAME = FieldRule(GROUP_MAX, forbidden=PATH)  # brokers and clusters: Java's default is the name of the host
ADDRESS = FieldRule(GROUP_MAX, forbidden=PATH)
KV_NAME = FieldRule(1_024)
ACCESS_KEY = FieldRule(1_024)
MESSAGE_KEY = FieldRule(32_767, is_free=True)  # as many as the properties of a message hold
EXPRESSION = FieldRule(EXPRESSION_MAX, may_be_empty=True, is_free=True)
TAG = FieldRule(EXPRESSION_MAX, may_be_empty=True, is_free=True, count=EXPRESSION_MAX // 2)
TEXT = FieldRule(255, may_be_empty=True, is_free=True)  # compared only
WORD = FieldRule(WORD_MAX, may_be_empty=True)  # the name of a constant
ID = FieldRule(1_024, may_be_empty=True)  # compared with what is stored, or passed on
LIST = FieldRule(32_767, may_be_empty=True, is_free=True)  # names joined by commas
OPTIONAL_TOPIC = FieldRule(TOPIC.longest, may_be_empty=True)
OPTIONAL_GROUP = FieldRule(GROUP_MAX, may_be_empty=True, forbidden=GROUP.forbidden)
OPTIONAL_PRODUCER_GROUP = FieldRule(GROUP_MAX, may_be_empty=True)
OPTIONAL_SERVER_NAME = FieldRule(SERVER_NAME.longest, may_be_empty=True, forbidden=PATH)
OPTIONAL_ADDRESS = FieldRule(GROUP_MAX, may_be_empty=True, forbidden=PATH)

RULES: dict[str, FieldRule | None] = {
    # Sends and pulls are the hot path: their types bound the lengths, and the handlers check a name only if it is not in the
    # table of topics or groups.
    "SendMessage.topic": None,
    "SendMessage.default_topic": None,
    "SendMessage.producer_group": None,
    "PullMessage.topic": None,
    "PullMessage.consumer_group": None,
    "PullMessage.subscription": None,
    "PullMessage.expression_type": None,
    # topics
    "topic": TOPIC,
    "default_topic": OPTIONAL_TOPIC,  # no template: the topic is not created
    "origin_topic": OPTIONAL_TOPIC,
    "topic_name": OPTIONAL_TOPIC,  # in a table the key counts
    "topic_filter_type": WORD,
    "CreateTopic.attributes": TEXT,
    "attributes": TEXT,  # keys and values, which are stored and printed only
    "topic_config_table": FieldRule(NAME_MAX, forbidden=PATH),  # the keys
    "RecallMessage.topic": OPTIONAL_TOPIC,
    "GetConsumeStats.topic": OPTIONAL_TOPIC,  # every topic of the group
    "ListInFlight.topic": OPTIONAL_TOPIC,
    "CloneOffsets.topic": OPTIONAL_TOPIC,
    # groups and clients
    "group": GROUP,
    "group_name": GROUP,
    "consumer_group": GROUP,
    "compare_group": GROUP,
    "src_group": GROUP,
    "dest_group": GROUP,
    "filter_groups": LIST,
    "producer_group": PRODUCER_GROUP,
    "ProducerData.group_name": PRODUCER_GROUP,
    "RecallMessage.producer_group": OPTIONAL_PRODUCER_GROUP,
    "UnregisterClient.producer_group": OPTIONAL_PRODUCER_GROUP,
    "UnregisterClient.consumer_group": OPTIONAL_GROUP,
    "QueryQueue.consumer_group": OPTIONAL_GROUP,
    "OfGroup.consumer_group": OPTIONAL_GROUP,
    "OfGroup.group": OPTIONAL_GROUP,
    "CheckClient.group": OPTIONAL_GROUP,
    "client_id": CLIENT_ID,
    "CheckClient.client_id": FieldRule(CLIENT_ID.longest, may_be_empty=True),
    "client_addr": FieldRule(CLIENT_ID.longest, may_be_empty=True),  # of 223, a client id
    "consume_from_where": WORD,
    "consume_type": WORD,
    "message_model": WORD,
    # subscriptions
    "subscription": EXPRESSION,
    "sub_string": EXPRESSION,
    "expression_type": WORD,
    "tags_set": TAG,
    "code_set": FieldRule(0, count=EXPRESSION_MAX // 2),
    "subscription_data_set": FieldRule(0, count=10_000),
    "consumers": FieldRule(0, count=4_096),
    "producers": FieldRule(0, count=4_096),
    "mq_set": FieldRule(0, count=QUEUES_MAX),
    # POP
    "exp": EXPRESSION,
    "exp_type": WORD,
    "attempt_id": ID,
    "extra_info": ID,
    "bits": FieldRule(16_384, may_be_empty=True, is_free=True),  # of 98,304 messages
    "retry": WORD,
    "acks": FieldRule(0, count=10_000),
    "strategy_name": WORD,
    "mode": WORD,
    # messages
    "properties": None,  # the store refuses more than 32,767 bytes with code 13, as 4.9.4 does
    "msg_id": ID,
    "origin_msg_id": ID,
    "transaction_id": ID,
    "unique_key_query": ID,
    "query_position": ID,
    "recall_handle": FieldRule(4_096, may_be_empty=True),
    "QueryMessage.key": MESSAGE_KEY,
    # brokers and name servers
    "broker_name": SERVER_NAME,
    "ConsumeDirectly.broker_name": OPTIONAL_SERVER_NAME,
    "cluster_name": SERVER_NAME,
    "DeleteTopicRoute.cluster_name": OPTIONAL_SERVER_NAME,
    "cluster": SERVER_NAME,
    "broker_addr": ADDRESS,
    "ha_server_addr": OPTIONAL_ADDRESS,
    "filter_server_addr": ADDRESS,
    "filter_server_list": FieldRule(GROUP_MAX, forbidden=PATH, count=256),
    "namespace": KV_NAME,
    "key": KV_NAME,
    "value": FieldRule(1024 * 1024, may_be_empty=True, is_free=True),
    "stats_name": FieldRule(64),
    "stats_key": FieldRule(1_024),
    # audit log
    "GetAuditLog.account": TEXT,
    "GetAuditLog.address": TEXT,
    "GetAuditLog.request": TEXT,
    "GetAuditLog.resource": TEXT,
    "GetAuditLog.result": TEXT,
    # accounts
    "access_key": ACCESS_KEY,
    "secret_key": FieldRule(1_024, may_be_empty=True, is_free=True, is_secret=True),
    "white_remote_address": LIST,
    "default_topic_perm": WORD,
    "default_group_perm": WORD,
    "topic_perms": LIST,
    "group_perms": LIST,
    "global_white_addrs": LIST,
    "acl_file_full_path": FieldRule(4_096, may_be_empty=True),
}

QUEUE_COUNT = NumberRange(0, QUEUES_MAX)

# Numbers that are not bounded by their type (`Int32`, `Int64`); all others must fit 64 bits.
RANGES: dict[str, NumberRange] = {
    "read_queue_nums": QUEUE_COUNT,
    "write_queue_nums": QUEUE_COUNT,
    "perm": NumberRange(0, 15),
    "topic_sys_flag": NumberRange(0, INT32[1]),
    "retry_queue_nums": NumberRange(-1, QUEUES_MAX),
    "retry_max_times": NumberRange(*INT32),
    "WireQueue.queue_id": NumberRange(0, QUEUES_MAX),
    "UpdateConsumerOffset.queue_id": NumberRange(0, QUEUES_MAX),
    "UpdateConsumerOffset.commit_offset": NumberRange(0, INT64[1]),
    "broker_id": NumberRange(0, INT64[1]),
    "body_crc32": NumberRange(*INT32),
}

ANY_INT64 = NumberRange(*INT64)

Check = Callable[[Any], None]


def check(request: msgspec.Struct) -> None:
    """Raise ProtocolError, naming the member, the value and what is expected, if a member of `request` breaks its rule."""
    for member, check_member in checks(type(request)):
        check_member(getattr(request, member))


def shown(value: str) -> str:
    """Return `value` as an error shows it: quoted, and truncated if it is long."""
    return repr(value) if len(value) <= SHOWN_MAX else f"{value[:SHOWN_MAX]!r}…"


@cache
def checks(kind: type[msgspec.Struct]) -> tuple[tuple[str, Check], ...]:
    """Return the members of `kind` that have a rule, with the functions that check their values."""
    field_checks = []
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        key = f"{kind.__name__}.{field.name}"
        rule = RULES[key] if key in RULES else RULES.get(field.name)
        span = RANGES.get(key) or RANGES.get(field.name)
        name = field.encode_name if len(field.encode_name) > 1 else field.name
        if (field_check := _check_of(field.type, name, rule, span)) is not None:
            field_checks.append((field.name, field_check))
    return tuple(field_checks)


def _check_of(kind: inspect.Type, name: str, rule: FieldRule | None, span: NumberRange | None) -> Check | None:
    """Return the check for values of `kind`; None if every value is valid."""
    match kind:
        case inspect.UnionType():
            parts = [
                part for member_type in kind.types if (part := _check_of(member_type, name, rule, span)) is not None
            ]
            return _all_of(parts)
        case inspect.StrType():
            return None if rule is None else _text_check(name, rule)
        case inspect.IntType():
            if span is None and kind.ge is not None:
                return None  # bounded by its type
            return _number_check(name, span or ANY_INT64)
        case inspect.StructType():
            nested = kind.cls
            return lambda value: check(value) if isinstance(value, nested) else None
        case inspect.DictType():
            key_check = _check_of(kind.key_type, name, rule, None)
            value_check = _check_of(kind.value_type, name, rule, span)
            return _dict_check(key_check, value_check)
        case inspect.VarTupleType() | inspect.FrozenSetType() | inspect.ListType() | inspect.SetType():
            return _collection_check(name, rule, _check_of(kind.item_type, name, rule, span))
        case _:
            return None


def _all_of(parts: list[Check]) -> Check | None:
    if len(parts) <= 1:
        return parts[0] if parts else None

    def check_all(value: Any) -> None:
        for part in parts:
            part(value)

    return check_all


def _text_check(name: str, rule: FieldRule) -> Check:
    def check_text(value: Any) -> None:
        if isinstance(value, str) and value not in rule.accepted:
            rule.check(name, value)

    return check_text


def _number_check(name: str, span: NumberRange) -> Check:
    minimum, maximum = span

    def check_number(value: Any) -> None:
        if isinstance(value, int) and not minimum <= value <= maximum:
            number = value if abs(value) <= 2**64 else "of more than 64 bits"
            raise ProtocolError(f"Invalid {name} {number}: expected {minimum} to {maximum}")

    return check_number


def _dict_check(key_check: Check | None, value_check: Check | None) -> Check | None:
    if key_check is None and value_check is None:
        return None

    def check_dict(table: Any) -> None:
        for key, value in (table or {}).items():
            if key_check is not None:
                key_check(key)
            if value_check is not None:
                value_check(value)

    return check_dict


def _collection_check(name: str, rule: FieldRule | None, item_check: Check | None) -> Check | None:
    count_max = rule.count if rule is not None else 0
    if not count_max and item_check is None:
        return None

    def check_collection(items: Any) -> None:
        if items is None:
            return
        if count_max and len(items) > count_max:
            raise ProtocolError(f"Invalid {name} with {len(items)} elements: expected at most {count_max}")
        if item_check is not None:
            for item in items:
                item_check(item)

    return check_collection
