"""Users and their policies (ACL 2.0 of RocketMQ 5): headers and bodies of 3001–3010. [UserInfo, AclInfo]"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

NAME_MAX = 255  # characters of a user name
PASSWORD_MAX = 1_024
RESOURCE_MAX = 512  # characters of a resource pattern
ENTRIES_MAX = 1_000  # entries of a policy
ADDRESSES_MAX = 1_000  # source addresses of an entry

Text = Annotated[str, Meta(max_length=RESOURCE_MAX)]


class OfUser(msgspec.Struct, frozen=True):
    """Header of AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER and AUTH_GET_USER (3001–3004)."""

    username: str = ""


class UserFilter(msgspec.Struct, frozen=True):
    """Header of AUTH_LIST_USER (3005): a part of the names."""

    filter: str | None = None


class OfSubject(msgspec.Struct, frozen=True, rename="camel"):
    """Header of AUTH_CREATE_ACL, AUTH_UPDATE_ACL, AUTH_DELETE_ACL and AUTH_GET_ACL (3006–3009).

    A deletion without `resource` is that of all policies of the subject.
    """

    subject: str = ""  # User:name
    policy_type: str | None = None
    resource: str | None = None


class PolicyFilter(msgspec.Struct, frozen=True, rename="camel"):
    """Header of AUTH_LIST_ACL (3010): parts of the subjects and of the resources."""

    subject_filter: str | None = None
    resource_filter: str | None = None


class UserInfo(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A user. Responses have no password; in an update, missing members stay unchanged."""

    username: Annotated[str, Meta(max_length=NAME_MAX)] | None = None  # in requests, the name in the header counts
    password: Annotated[str, Meta(max_length=PASSWORD_MAX)] | None = None  # in clear text: signatures need it
    user_type: Text | None = None  # Super or Normal
    user_status: Text | None = None  # enable or disable

    def __repr__(self) -> str:
        return f"UserInfo({self.username!r}, ...)"


class PolicyEntryInfo(msgspec.Struct, frozen=True, rename="camel"):
    """One entry of a policy."""

    resource: Text | None = None  # *, Topic:orders, Topic:ord*, Topic:*, and so on
    actions: Annotated[tuple[Text, ...], Meta(max_length=16)] | None = None  # Pub, Sub, Get, … or All
    source_ips: Annotated[tuple[Text, ...], Meta(max_length=ADDRESSES_MAX)] | None = None  # IPs or CIDR; None: any
    decision: Text | None = None  # Allow or Deny


class PolicyInfo(msgspec.Struct, frozen=True, rename="camel"):
    """Entries of one type: those of type Default count only if no entry of type Custom matches."""

    policy_type: Text | None = None  # Custom, if it is missing
    entries: Annotated[tuple[PolicyEntryInfo, ...], Meta(max_length=ENTRIES_MAX)] | None = None


class AclInfo(msgspec.Struct, frozen=True, rename="camel"):
    """The policies of a subject."""

    subject: Text | None = None
    policies: Annotated[tuple[PolicyInfo, ...], Meta(max_length=2)] | None = None
