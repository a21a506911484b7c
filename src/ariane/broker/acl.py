"""Who may do what: accounts, their permissions, and the decision about one request. Pure. [PlainPermissionManager]

    global white list ─▶ account ─▶ its white list ─▶ signature ─▶ trace topic ─▶ admin code ─▶ each topic and group
         accept          else deny      accept          else deny      accept       else deny     permitted, else deny

What a 4.9.4 broker leaves open is closed here: a batch (320) needs PUB on its topic like any send, a send to a retry topic
needs SUB on that topic's group and not on a group that the sender names, and the codes that show or change accounts (50, 51,
53, 54) need an admin, for their answers hold secret keys.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ariane.broker import ip_allowlist
from ariane.broker.ip_allowlist import Pattern
from ariane.errors import ConfigError
from ariane.model.topic import RETRY_PREFIX, TRACE_TOPIC, DataVersion
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests import decode_body
from ariane.protocol.requests.clients import HeartbeatData
from ariane.protocol.signing import ACCESS_KEY, verify

KEY_CHARACTERS_MIN = 7
ACCOUNTS_MAX = 10_000
SHOWN_MAX = 300  # longer than any name that is one


class Permission(enum.Flag):
    DENY = 0
    PUB = enum.auto()
    SUB = enum.auto()


PERMISSIONS = {
    "DENY": Permission.DENY,
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "PUB|SUB": Permission.PUB | Permission.SUB,
    "SUB|PUB": Permission.PUB | Permission.SUB,
}

# Only an account with `admin: true` may ask for these.
ADMIN_CODES = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        # not among those of 4.9.4:
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
    }
)


class RequiredPermission(NamedTuple):
    """A right on a topic, or on a group (`resource` is then its retry topic, as in the file's own terms)."""

    resource: str
    right: Permission

    def __str__(self) -> str:
        if self.resource.startswith(RETRY_PREFIX):
            return f"group:{self.resource.removeprefix(RETRY_PREFIX)}"
        return f"topic:{self.resource}"


# --- the file ---


class AccountEntry(msgspec.Struct, frozen=True, rename="camel"):
    """One of `accounts` of plain_acl.yml."""

    access_key: str
    secret_key: str
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: tuple[str, ...] | None = None
    group_perms: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return f"AccountEntry({self.access_key!r}, ...)"


class AclFile(msgspec.Struct, frozen=True, rename="camel"):
    """A plain_acl.yml. `data_version` is a list of one, maintained by the broker."""

    global_white_remote_addresses: tuple[str, ...] | None = None
    accounts: tuple[AccountEntry, ...] | None = None
    data_version: tuple[DataVersion, ...] | None = None

    @property
    def version(self) -> DataVersion:
        return self.data_version[0] if self.data_version else DataVersion()


def parse_acl_file(path: str, document: Any) -> AclFile:
    """The content of a YAML file, checked. ConfigError names what cannot be used, and never shows a secret."""
    try:
        file = msgspec.convert(_keys_as_texts(document or {}), AclFile)
    except msgspec.ValidationError as error:
        raise ConfigError("aclEnable", path, f"{error}; keys and addresses are texts: put them in quotes") from None
    for entry in file.accounts or ():
        parse_account(path, entry)
    for one in file.global_white_remote_addresses or ():
        ip_allowlist.parse_patterns(one)
    return file


def _keys_as_texts(document: Any) -> Any:
    """YAML takes `secretKey: 12345678` for a number."""
    if not isinstance(document, dict) or not isinstance(document.get("accounts"), list):
        return document

    def text(value: Any) -> Any:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    names = ("accessKey", "secretKey")
    accounts = [
        {key: text(value) if key in names else value for key, value in one.items()} if isinstance(one, dict) else one
        for one in document["accounts"]
    ]
    return {**document, "accounts": accounts}


# --- accounts ---


class Account(NamedTuple):
    """An account, ready to be asked."""

    entry: AccountEntry
    white: tuple[Pattern, ...]
    default_topic: Permission
    default_group: Permission
    resources: Mapping[str, Permission]  # groups by their retry topic

    def has_permission(self, need: RequiredPermission) -> bool:
        default = self.default_group if need.resource.startswith(RETRY_PREFIX) else self.default_topic
        return bool(self.resources.get(need.resource, default) & need.right)


def parse_account(path: str, entry: AccountEntry) -> Account:
    """ConfigError when the entry cannot be used."""
    for what, value in (("accessKey", entry.access_key), ("secretKey", entry.secret_key)):
        if len(value) < KEY_CHARACTERS_MIN:
            fix = f"{path}: its {what} has {len(value)} characters, use at least {KEY_CHARACTERS_MIN}"
            raise ConfigError("accounts", entry.access_key, fix)
    resources = {}
    for prefix, perms in (("", entry.topic_perms), (RETRY_PREFIX, entry.group_perms)):
        for one in perms or ():
            name, equals, right = one.partition("=")
            if not name.strip() or not equals or right.strip() not in PERMISSIONS:
                fix = f"{path}: {one!r} is no permission, use name= and one of {', '.join(PERMISSIONS)}"
                raise ConfigError("accounts", entry.access_key, fix)
            resources[prefix + name.strip()] = PERMISSIONS[right.strip()]
    return Account(
        entry,
        ip_allowlist.parse_patterns(entry.white_remote_address or ""),
        PERMISSIONS.get((entry.default_topic_perm or "").strip(), Permission.DENY),
        PERMISSIONS.get((entry.default_group_perm or "").strip(), Permission.DENY),
        resources,
    )


# --- the decision ---


class Acl:
    """What all files say together: of accounts with one access key the first counts."""

    def __init__(self, files: Sequence[tuple[str, AclFile]]) -> None:
        self._accounts: dict[str, Account] = {}
        white: list[Pattern] = []
        for path, file in files:
            for entry in file.accounts or ():
                self._accounts.setdefault(entry.access_key, parse_account(path, entry))
            for one in file.global_white_remote_addresses or ():
                white += ip_allowlist.parse_patterns(one)
        if len(self._accounts) > ACCOUNTS_MAX:
            raise ConfigError("accounts", f"{len(self._accounts)} accounts", f"use at most {ACCOUNTS_MAX}")
        self._white = tuple(white)

    def denial_reason(self, code: int, fields: Mapping[str, str], body: bytes, ip: str) -> str | None:
        """Why a request is not served; None: it is."""
        if ip_allowlist.matches(self._white, ip):
            return None
        access_key = fields.get(ACCESS_KEY)
        if not access_key:
            return "No accessKey is configured"
        known = self._accounts.get(access_key)
        if known is None:
            return f"No acl config for {_shown(access_key)}"
        if ip_allowlist.matches(known.white, ip):
            return None
        if not verify(known.entry.secret_key, fields, body):
            return f"Check signature failed for accessKey={access_key}"
        return _missing_permission(known, code, fields, body)


def _missing_permission(known: Account, code: int, fields: Mapping[str, str], body: bytes) -> str | None:
    needed = list(required_permissions(code, fields, body))
    if RequiredPermission(TRACE_TOPIC, Permission.PUB) in needed:
        return None
    if code in ADMIN_CODES and not known.entry.admin:
        return f"Need admin permission for request code={code}, but accessKey={known.entry.access_key} is not"
    if known.entry.admin and not known.resources:
        return None
    refused = next((need for need in needed if not known.has_permission(need)), None)
    return None if refused is None else f"No default permission for {_shown(str(refused))}"


def _shown(text: str) -> str:
    """What a peer sent, fit for one line of a log."""
    return text if len(text) <= SHOWN_MAX and text.isprintable() else repr(text[:SHOWN_MAX])


def required_permissions(code: int, fields: Mapping[str, str], body: bytes) -> Iterable[RequiredPermission]:
    """The rights that a request needs."""
    of = _NEEDS.get(code)
    return of(fields, body) if of is not None else ()


def _topic(name: str | None, right: Permission) -> list[RequiredPermission]:
    return [RequiredPermission(name, right)] if name else []


def _group(name: str | None) -> list[RequiredPermission]:
    return [RequiredPermission(RETRY_PREFIX + name.removeprefix(RETRY_PREFIX), Permission.SUB)] if name else []


def _send(topic: str | None) -> list[RequiredPermission]:
    """A message to a retry topic comes from a consumer of its group."""
    if topic is not None and topic.startswith(RETRY_PREFIX):
        return _group(topic)
    return _topic(topic, Permission.PUB)


def _heartbeat(body: bytes) -> list[RequiredPermission]:
    needed = []
    for consumer in decode_body(RequestCode.HEART_BEAT, body, HeartbeatData).consumers:
        needed += _group(consumer.group_name)
        for subscription in consumer.subscription_data_set:
            needed += _topic(subscription.topic, Permission.SUB)
    return needed


_Needs = Callable[[Mapping[str, str], bytes], list[RequiredPermission]]

# Reference remoting-protocol 12.2. Codes that are not here need an account and no more.
_NEEDS: dict[int, _Needs] = {
    RequestCode.SEND_MESSAGE: lambda fields, body: _send(fields.get("topic")),
    RequestCode.SEND_MESSAGE_V2: lambda fields, body: _send(fields.get("b")),
    RequestCode.SEND_BATCH_MESSAGE: lambda fields, body: _send(fields.get("b")),
    RequestCode.CONSUMER_SEND_MSG_BACK: lambda fields, body: _group(fields.get("group")),
    RequestCode.PULL_MESSAGE: lambda fields, body: (
        _topic(fields.get("topic"), Permission.SUB) + _group(fields.get("consumerGroup"))
    ),
    RequestCode.LITE_PULL_MESSAGE: lambda fields, body: (
        _topic(fields.get("topic"), Permission.SUB) + _group(fields.get("consumerGroup"))
    ),
    RequestCode.QUERY_MESSAGE: lambda fields, body: _topic(fields.get("topic"), Permission.SUB),
    RequestCode.HEART_BEAT: lambda fields, body: _heartbeat(body),
    RequestCode.UNREGISTER_CLIENT: lambda fields, body: _group(fields.get("consumerGroup")),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: lambda fields, body: _group(fields.get("consumerGroup")),
    RequestCode.UPDATE_CONSUMER_OFFSET: lambda fields, body: (
        _topic(fields.get("topic"), Permission.SUB) + _group(fields.get("consumerGroup"))
    ),
}
