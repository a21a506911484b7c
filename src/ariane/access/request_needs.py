"""What a request needs in addition to an account: an admin, or permissions for topics and groups. Pure.

Each server has a table of its own, from code to `RequestNeeds`. It says what accounts of plain_acl.yml need (`right`, `is_admin`)
and what users of ACL 2.0 need (`actions`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from ariane.errors import ProtocolError
from ariane.model import message as names
from ariane.model.topic import RETRY_PREFIX
from ariane.protocol.records import record


class Permission(enum.Flag):
    """What an account may do with a topic, a group or a broker."""

    DENY = 0
    PUB = enum.auto()
    SUB = enum.auto()
    REGISTER = enum.auto()  # of a broker: not in 4.9.4


class Action(enum.Flag):
    """What a policy allows or denies."""

    PUB = enum.auto()
    SUB = enum.auto()
    CREATE = enum.auto()
    UPDATE = enum.auto()
    DELETE = enum.auto()
    GET = enum.auto()
    LIST = enum.auto()


NO_ACTIONS = Action(0)
CLUSTER = "*"  # the resource of requests about a server as a whole; no valid topic has this name
_ACTIONS_OF_RIGHT = {Permission.DENY: NO_ACTIONS, Permission.PUB: Action.PUB, Permission.SUB: Action.SUB}


class RequiredPermission(NamedTuple):
    """A permission on a topic, broker or group: its `resource` is its retry topic, as in the file. An empty name stands for all."""

    resource: str
    right: Permission
    """What an account of plain_acl.yml needs; DENY: nothing."""
    actions: Action = NO_ACTIONS
    """A user needs one of these; none: that of `right`."""

    @property
    def any_of(self) -> Action:
        """The actions that satisfy the need: a user needs one of them."""
        return self.actions or _ACTIONS_OF_RIGHT[self.right]

    @property
    def kind(self) -> str:
        """Topic, Group or Cluster."""
        if self.resource == CLUSTER:
            return "Cluster"
        return "Group" if self.resource.startswith(RETRY_PREFIX) else "Topic"

    def __str__(self) -> str:
        if self.right is Permission.REGISTER:
            return f"broker:{self.resource}"
        if self.resource.startswith(RETRY_PREFIX):
            return f"group:{self.resource.removeprefix(RETRY_PREFIX)}"
        return f"topic:{self.resource}"


Fields = Mapping[str, str]
RecordReader = Callable[[int], bytes | None]  # offset in the commit log -> the record that begins there


class MessageReference(NamedTuple):
    """A stored message that a request refers to, and the permission for its topic."""

    offset: Callable[[Fields], int]
    """Raises ValueError or ProtocolError if the field is malformed; the handler refuses it."""
    right: Permission
    actions: Action = NO_ACTIONS


class RequestNeeds(NamedTuple):
    """What requests of one code need in addition to an account."""

    text: str  # for the documentation: of an account of plain_acl.yml
    permissions: Callable[[Fields, bytes], list[RequiredPermission]] = lambda fields, body: []
    is_admin: bool = False
    message: MessageReference | None = None
    policy: str = "-"  # for the documentation: of a user


def required_permissions(
    needs: RequestNeeds, fields: Fields, body: bytes, read_record: RecordReader
) -> Iterator[RequiredPermission]:
    """Yield the permissions that a request needs."""
    yield from needs.permissions(fields, body)
    if needs.message is None:
        return
    try:
        data = read_record(needs.message.offset(fields))
    except (KeyError, ValueError, ProtocolError):
        return
    if data is not None:
        yield for_topic(_topic_of(data), needs.message.right, needs.message.actions)


def _topic_of(data: bytes) -> str:
    """Return the topic that a record was sent to: delayed and half messages are stored in others."""
    stored = record.decode(data)
    return stored.property_map().get(names.REAL_TOPIC, stored.topic)


def for_topic(name: str, right: Permission, actions: Action = NO_ACTIONS) -> RequiredPermission:
    """Return the permission for a topic. The retry topic of a group belongs to the group's consumers."""
    is_sent_to_group = right is Permission.PUB and name.startswith(RETRY_PREFIX)
    return RequiredPermission(name, Permission.SUB if is_sent_to_group else right, actions)
