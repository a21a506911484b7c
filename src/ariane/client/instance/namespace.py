"""Namespaces: applications use the same names of topics and groups in one cluster. [NamespaceUtil, ClientConfig.withNamespace]

    name in the application   name on the wire, with namespace ns
    orders                    ns%orders
    %RETRY%stock              %RETRY%ns%stock
    %DLQ%stock                %DLQ%ns%stock
    RMQ_SYS_TRACE_TOPIC       the same: system topics and groups, and names that clients use themselves, have no namespace
    ns%orders                 the same: it has the namespace already

Clients work with the application's names: in messages, queues, results, errors, log lines, hooks and traces. Names are wrapped
where requests are encoded (headers by `NamespacedPool`, bodies by `to_wire`), and unwrapped where responses, records and requests
of brokers are decoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec

from ariane.errors import ConfigError, MessageRefused
from ariane.model import message as names
from ariane.model.message import MessageQueue
from ariane.model.topic import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    group_name_fault,
    is_system_topic,
    topic_name_fault,
)
from ariane.protocol.records import properties

T = TypeVar("T")

SEPARATOR = "%"
NAMESPACE_MAX = 100  # characters: leaves 26 for the name of a topic, which has at most 127 with its namespace
_NAMESPACE = re.compile(r"[|a-zA-Z0-9_-]+\Z")

# Endpoint of an instance at Alibaba Cloud, whose name is the namespace. [NameServerAddressUtils]
_INSTANCE_ENDPOINT = re.compile(r"(MQ_INST_\w+_\w+)\.", re.ASCII)

# Groups of clients' own requests, which exist at every broker, or at none.
_CLIENT_GROUPS = frozenset({"CLIENT_INNER_PRODUCER", "TOOLS_CONSUMER"})
_TRACE_GROUP_PREFIX = "_INNER_TRACE_PRODUCER"

# Members of headers and bodies that contain the name of a topic or group.
_NAMES = frozenset(
    {"topic", "origin_topic", "default_topic", "group", "group_name", "consumer_group", "producer_group"}
)
# The same in the short form of a send request.
_SEND_NAMES = ("a", "c")  # group, template of a new topic
_SEND_TOPIC, _SEND_PROPERTIES = "b", "i"
INSTANCE_ID_START = f"{properties.PAIR_END}{names.INSTANCE_ID}{properties.NAME_END}"


def namespace_fault(name: str) -> str | None:
    """Return why `name` is not a valid namespace, or None if it is."""
    if len(name) > NAMESPACE_MAX:
        return f"it has {len(name)} characters, at most {NAMESPACE_MAX} are allowed"
    if not _NAMESPACE.match(name):
        return "expected letters, digits, and | _ -"
    if is_system_topic(name + SEPARATOR) or name.startswith(SYSTEM_GROUP_PREFIX):
        return "names that begin like this belong to the system: choose another"
    return None


def endpoint_namespace(name_servers: Sequence[str]) -> str:
    """Return the namespace that the address of an instance of Alibaba Cloud implies; empty for other addresses."""
    match = _INSTANCE_ENDPOINT.match(name_servers[0])
    return match[1] if match else ""


class Namespace:
    """Wraps and unwraps names. An empty namespace, which is false, leaves all names as they are."""

    def __init__(self, name: str) -> None:
        self.name = name
        """Name of the namespace; empty if there is none."""
        self._prefix = name + SEPARATOR if name else ""
        # Names that have no namespace on the wire: the topics of traces and replies, templates of new topics.
        self._excluded: set[str] = set()
        # Validated names on the wire of the topics that were sent to.
        self._wire_topics: dict[str, str] = {}
        # Property INSTANCE_ID as it is added to the properties of a message.
        self._instance_id = f"{INSTANCE_ID_START}{name}"

    def __bool__(self) -> bool:
        return bool(self.name)

    def exclude(self, name: str) -> None:
        """Leave a name as it is, like that of a system topic."""
        self._excluded.add(name)
        self._wire_topics.pop(name, None)

    def wrap(self, name: str) -> str:
        """Return the name of a topic or group on the wire."""
        prefix, inner = _split(name)
        if not inner or inner.startswith(self._prefix) or self._is_outside(inner):
            return name
        return f"{prefix}{self._prefix}{inner}"

    def unwrap(self, name: str) -> str:
        """Return the application's name of a topic or group; names outside of the namespace stay as they are."""
        prefix, wrapped = _split(name)
        inner = wrapped.removeprefix(self._prefix)
        # `wrap` returns no other name that begins with the namespace, so this one would not be found by its inner name.
        if inner == wrapped or not inner or inner.startswith(self._prefix) or self._is_outside(inner):
            return name
        return prefix + inner

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue with the name of its topic on the wire."""
        return MessageQueue(self.wrap(queue.topic), queue.broker, queue.queue_id)

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue with the application's name of its topic."""
        return MessageQueue(self.unwrap(queue.topic), queue.broker, queue.queue_id)

    def to_wire(self, value: T) -> T:
        """Return a header or body with the names on the wire."""
        return _renamed(value, self.wrap) if self.name else value

    def from_wire(self, value: T) -> T:
        """Return a header or body with the application's names."""
        return _renamed(value, self.unwrap) if self.name else value

    def wrap_send(self, fields: dict[str, str]) -> None:
        """Replace the names in the extFields of a send request, and add the property INSTANCE_ID, as Java does.

        Raises:
            MessageRefused: the name of the topic or the properties are too long with the namespace.
        """
        topic = fields[_SEND_TOPIC]
        for key in _SEND_NAMES:
            fields[key] = self.wrap(fields[key])
        fields[_SEND_TOPIC] = wrapped = self.check_sent_topic(topic)
        if wrapped == topic and not _split(topic)[1].startswith(self._prefix):
            return  # outside of the namespace
        text = fields[_SEND_PROPERTIES]
        # A redelivered message has the property already.
        if INSTANCE_ID_START not in properties.PAIR_END + text:
            text += self._instance_id
            if len(text) * 4 > properties.SIZE_MAX and len(text.encode()) > properties.SIZE_MAX:
                size, fix = len(text.encode()), f"at most {properties.SIZE_MAX} are allowed"
                raise MessageRefused(f"the properties have {size} bytes with the namespace {self.name}, {fix}")
            fields[_SEND_PROPERTIES] = text

    # --- validation ---

    def check_sent_topic(self, topic: str) -> str:
        """Return the name on the wire of a topic to send to.

        Raises:
            MessageRefused: it is not valid with the namespace.
        """
        if not self.name:
            return topic
        wrapped = self._wire_topics.get(topic)
        if wrapped is None:
            wrapped = self.wrap(topic)
            if fault := self._fault(wrapped, topic_name_fault):
                raise MessageRefused(fault)
            self._wire_topics[topic] = wrapped
        return wrapped

    def check_topic(self, key: str, topic: str) -> str:
        """Return a topic's name in the application. Raise ConfigError for argument `key` if it is not valid with the namespace."""
        if fault := self._fault(self.wrap(topic), topic_name_fault):
            raise ConfigError(key, topic, fault)
        return self.unwrap(topic)

    def check_group(self, group: str) -> str:
        """Return a group's name in the application. Raise ConfigError if it is not valid with the namespace."""
        if fault := self._fault(self.wrap(group), group_name_fault):
            raise ConfigError("group", group, fault)
        return self.unwrap(group)

    def _fault(self, wrapped: str, fault_of: Callable[[str], str | None]) -> str | None:
        fault = fault_of(wrapped)
        return f"{fault}; with its namespace {self.name}, this is {wrapped}" if fault and self.name else None

    def _is_outside(self, name: str) -> bool:
        return not self.name or name in self._excluded or _is_system(name)


@lru_cache(maxsize=4096)
def _is_system(name: str) -> bool:
    return (
        is_system_topic(name)
        or name in _CLIENT_GROUPS
        or name.startswith(SYSTEM_GROUP_PREFIX)
        or name.startswith(_TRACE_GROUP_PREFIX)
    )


def _split(name: str) -> tuple[str, str]:
    """Return the prefix of a retry or dead-letter topic, else an empty text; and the rest of the name."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def _renamed(value: T, rename: Callable[[str], str]) -> T:
    """Return a Struct, or a tuple of these, with its names replaced, also in the Structs that it contains."""
    if isinstance(value, tuple):
        return cast(T, tuple(_renamed(item, rename) for item in value))
    if not isinstance(value, msgspec.Struct):
        return value
    changes: dict[str, Any] = {}
    for field in value.__struct_fields__:
        item = getattr(value, field)
        if isinstance(item, str):
            if field in _NAMES:
                changes[field] = rename(item)
        elif isinstance(item, msgspec.Struct | tuple):
            changes[field] = _renamed(item, rename)
    return msgspec.structs.replace(value, **changes)
