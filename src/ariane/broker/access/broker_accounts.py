"""Access control of a broker, as its settings ask for it: accounts of plain_acl.yml (aclEnable) and users (authenticationEnabled).

aclEnable                accounts of files; a refusal is code 1, as in 4.9.4
authenticationEnabled    users of ACL 2.0, alone or alongside those accounts; a refusal is code 16, as in 5.x
authorizationEnabled     policies of users are checked; without, each user may do everything
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path, PurePath
from typing import TypeVar

import msgspec

from ariane.access.access_control import AccessControl, UserSettings
from ariane.access.request_needs import RecordReader, RequestNeeds
from ariane.access.users import User
from ariane.broker.access.request_permissions import ACCOUNT, REQUEST_NEEDS, ROUTE_NEEDS
from ariane.broker.config.broker_config import BrokerConfig
from ariane.errors import ConfigError
from ariane.net.connection import Handler
from ariane.net.limits.quotas import Quotas
from ariane.net.replies import Sign
from ariane.protocol.signing import Credentials, sign
from ariane.store.disk.files import Disk

USERS_FILE = "users.json"
T = TypeVar("T", bound=msgspec.Struct)


class _InitialUser(msgspec.Struct, frozen=True):
    username: str
    password: str


class _InnerCredentials(msgspec.Struct, frozen=True, rename="camel"):
    access_key: str
    secret_key: str


def open_access_control(
    config: BrokerConfig, disk: Disk, executor: Executor, now_ms: Callable[[], int]
) -> AccessControl | None:
    """Return the access control of a broker, None if every request is served.

    Raises:
        ConfigError: a setting or a file is invalid.
    """
    if not config.has_accounts:
        return None
    return AccessControl(
        Path(config.rocketmq_home) if config.acl_enable else None,
        needs_of(config),
        executor,
        now_ms,
        user_settings=_user_settings(config, disk) if config.authentication_enabled else None,
    )


def needs_of(config: BrokerConfig) -> Mapping[int, RequestNeeds]:
    """Return what each request needs: a signature only for the codes of authorizationWhitelist."""
    return (
        REQUEST_NEEDS
        | ROUTE_NEEDS
        | dict.fromkeys(_codes(config.authorization_whitelist) & REQUEST_NEEDS.keys(), ACCOUNT)
    )


def guard(
    config: BrokerConfig,
    access: AccessControl | None,
    handlers: Mapping[int, Handler],
    read_record: RecordReader,
    quotas: Quotas,
) -> dict[int, Handler]:
    """Return handlers that only permitted requests reach."""
    if access is None:
        return dict(handlers)
    unsigned: frozenset[int] = frozenset()
    if config.authentication_enabled:
        unsigned = _codes(config.authentication_whitelist)
        if config.authorization_enabled or config.acl_enable:
            unsigned &= _codes(config.authorization_whitelist)
    open_handlers = {code: serve for code, serve in handlers.items() if code in unsigned}
    return access.with_checks(handlers, read_record, quotas) | access.with_accounts(open_handlers, quotas)


def signs(config: BrokerConfig) -> Sign | None:
    """Return the signature of the broker's own requests, None without innerClientAuthenticationCredentials."""
    if not config.inner_client_authentication_credentials:
        return None
    inner = _inner_credentials(config)
    credentials = Credentials(inner.access_key, inner.secret_key)
    return lambda fields, body: sign(credentials, fields, body)


def _user_settings(config: BrokerConfig, disk: Disk) -> UserSettings:
    initial = []
    if config.init_authentication_user:
        user = _decoded("initAuthenticationUser", config.init_authentication_user, _InitialUser)
        initial.append(User(user.username, user.password, "Super"))
    if config.inner_client_authentication_credentials:
        inner = _inner_credentials(config)
        initial.append(User(inner.access_key, inner.secret_key, "Super"))
    return UserSettings(
        disk,
        str(PurePath(config.auth_config_path or config.config_dir) / USERS_FILE),
        config.broker_cluster_name,
        tuple({user.username: user for user in reversed(initial)}.values()),
        config.authorization_enabled,
    )


def _inner_credentials(config: BrokerConfig) -> _InnerCredentials:
    return _decoded(
        "innerClientAuthenticationCredentials", config.inner_client_authentication_credentials, _InnerCredentials
    )


def _decoded(key: str, text: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text.encode(), type=kind)
    except (msgspec.DecodeError, UnicodeError):
        # The text holds a secret.
        fields = ", ".join(f'"{field.encode_name}":"…"' for field in msgspec.structs.fields(kind))
        raise ConfigError(key, None, f"expected JSON: {{{fields}}}") from None


def _codes(text: str) -> frozenset[int]:
    return frozenset(int(word) for word in text.replace(",", " ").split() if word.isascii() and word.isdecimal())
