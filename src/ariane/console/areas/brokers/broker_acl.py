"""Access control of the brokers (ACL 1.0): accounts with their permissions, addresses without an account, versions per server.

Secret keys are accepted and never returned. Changes go to all servers that have access control enabled, slaves included.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import ConfigDict

from ariane.cluster.admin import Admin
from ariane.cluster.connection import Answers, BrokerServer, BrokerUnavailable
from ariane.console.areas.admin_results import changed_servers, check_all_responded, result_of, server_name, texts_of
from ariane.console.areas.confirmation import DeletionForm, check_confirmed
from ariane.console.services import ConsoleServices
from ariane.console.web.paging import ListQuery, Page, paginate
from ariane.console.web.view_model import ChangeResult, DryRunForm, PartialView, View
from ariane.errors import ConfigError, NotFound
from ariane.protocol.requests.acl import AccountBody, AclConfig, UpdateAccount

PERMISSIONS = ("DENY", "PUB", "SUB", "PUB|SUB")
_SEPARATORS = re.compile(r"[,\n]")


class AclServerRow(View):
    """Access control of one server."""

    server: str
    """Broker name and id."""
    addr: str
    is_enabled: bool
    """Whether it checks requests (`aclEnable`)."""
    global_addresses: list[str]
    """Addresses from which requests need no account."""
    version: int | None
    """Number of changes of its file; null: unknown or not enabled."""
    changed_ms: int | None
    """When its file was changed last; null: unknown or not enabled."""
    is_different: bool
    """Whether its addresses or accounts differ from those of the first server."""


class AclAccountRow(View):
    """An account of the brokers, without its secret key."""

    access_key: str
    """Its access key, which identifies it."""
    is_admin: bool
    """Whether it may administer brokers."""
    default_topic_perm: str
    """Permission for topics without an entry."""
    default_group_perm: str
    """Permission for consumer groups without an entry."""
    topic_perms: list[str]
    """Entries NAME=PERMISSION of topics."""
    group_perms: list[str]
    """Entries NAME=PERMISSION of consumer groups."""
    white_remote_address: str
    """Addresses from which its requests are not checked."""
    servers: list[str]
    """Servers that have it."""
    missing: list[str]
    """Servers with access control that do not have it."""
    is_different: bool
    """Whether its settings or secret keys differ between servers; those of the first server are shown."""


class AclView(PartialView):
    """Access control of all brokers."""

    servers: list[AclServerRow]
    """All servers that responded."""
    accounts: Page[AclAccountRow]


class AclAccountForm(DryRunForm):
    """An account to create or change."""

    # No error may repeat a secret key.
    model_config = ConfigDict(hide_input_in_errors=True)

    access_key: str
    secret_key: str = ""
    """Its secret key. Empty keeps the stored one; a new account needs one."""
    is_admin: bool = False
    """Whether it may administer brokers."""
    default_topic_perm: str = "DENY"
    """DENY, PUB, SUB or PUB|SUB for topics without an entry."""
    default_group_perm: str = "DENY"
    """DENY, PUB, SUB or PUB|SUB for consumer groups without an entry."""
    topic_perms: str = ""
    """Entries NAME=PERMISSION of topics, separated by commas or lines."""
    group_perms: str = ""
    """Entries NAME=PERMISSION of consumer groups, separated by commas or lines."""
    white_remote_address: str = ""
    """Addresses from which its requests are not checked, for example 10.0.0.*."""


class AclDeletionForm(DeletionForm, DryRunForm):
    """An account to delete."""

    access_key: str


class GlobalAddressesForm(DryRunForm):
    """Addresses from which requests need no account."""

    addresses: str = ""
    """Patterns separated by commas or lines, for example 10.0.0.*; empty: none."""


ACCOUNT_COLUMNS = {"account": lambda row: row.access_key, "admin": lambda row: row.is_admin}


class _AclState(NamedTuple):
    """What the servers answered. `disabled` servers do not check requests."""

    configs: list[tuple[BrokerServer, AclConfig]]
    versions: dict[BrokerServer, tuple[int, int]]
    disabled: list[BrokerServer]
    unavailable: tuple[BrokerUnavailable, ...]


async def broker_acl(services: ConsoleServices, query: ListQuery) -> AclView:
    """Return access control of all brokers."""
    as_of_ms = services.clock.now_ms()
    async with services.admin() as admin:
        state = await _state(admin)
    return AclView(
        as_of_ms=as_of_ms,
        unavailable=texts_of(state.unavailable),
        servers=_server_rows(state),
        accounts=paginate(
            _account_rows(state), query, name=lambda row: row.access_key, columns=ACCOUNT_COLUMNS, sort="account"
        ),
    )


async def acl_account(services: ConsoleServices, access_key: str) -> AclAccountRow:
    """Return an account.

    Raises:
        NotFound: no server that responded has it.
    """
    async with services.admin() as admin:
        rows = _account_rows(await _state(admin))
    for row in rows:
        if row.access_key == access_key:
            return row
    raise NotFound("account", access_key, [row.access_key for row in rows])


async def save_account(services: ConsoleServices, form: AclAccountForm) -> ChangeResult:
    """Create an account, or replace its settings.

    Raises:
        ConfigError: a value is invalid, or no server has access control enabled.
    """
    if not form.access_key:
        raise ConfigError("accessKey", "", "expected the access key of the account")
    topics, groups = _entries("topicPerms", form.topic_perms), _entries("groupPerms", form.group_perms)
    update = UpdateAccount(
        form.access_key,
        form.secret_key or None,
        form.white_remote_address,
        form.is_admin,
        _permission("defaultTopicPerm", form.default_topic_perm),
        _permission("defaultGroupPerm", form.default_group_perm),
        ",".join(topics) or None,
        ",".join(groups) or None,
    )
    async with services.admin(is_dry_run=form.is_dry_run) as admin:
        state = await _state(admin)
        stored = next((row for row in _account_rows(state) if row.access_key == form.access_key), None)
        _check_possible(form, stored, topics, groups)
        await admin.save_account(update, _enabled(state))
    verb = form.verb("save", "saved")
    return result_of(admin, f"{verb} broker account {form.access_key} on {changed_servers(admin)}")


async def delete_account(services: ConsoleServices, form: AclDeletionForm) -> ChangeResult:
    """Delete an account from all servers that have it.

    Raises:
        NotFound: no server that responded has it.
    """
    if not form.is_dry_run:
        check_confirmed(form, form.access_key)
    async with services.admin(is_dry_run=form.is_dry_run) as admin:
        state = await _state(admin)
        servers = [server for server, config in state.configs if _find(config, form.access_key) is not None]
        if not servers:
            raise NotFound("account", form.access_key, [row.access_key for row in _account_rows(state)])
        await admin.delete_account(form.access_key, servers)
    verb = form.verb("delete", "deleted")
    return result_of(admin, f"{verb} broker account {form.access_key} on {changed_servers(admin)}")


async def set_global_addresses(services: ConsoleServices, form: GlobalAddressesForm) -> ChangeResult:
    """Replace the addresses from which requests need no account.

    Raises:
        ConfigError: no server has access control enabled.
    """
    addresses = ",".join(part.strip() for part in _SEPARATORS.split(form.addresses) if part.strip())
    async with services.admin(is_dry_run=form.is_dry_run) as admin:
        await admin.set_global_addresses(addresses, _enabled(await _state(admin)))
    verb = form.verb("allow", "allowed")
    return result_of(admin, f"{verb} {addresses or 'no address'} without an account on {changed_servers(admin)}")


async def _state(admin: Admin) -> _AclState:
    servers = await admin.select_brokers(with_slaves=True)
    settings = await admin.fetch_broker_config(servers)
    # Java's brokers leave the next requests without a response if access control is disabled.
    enabled = [server for server, values in settings.values if values.get("aclEnable") == "true"]
    disabled = [server for server, values in settings.values if values.get("aclEnable") != "true"]
    configs: Answers[AclConfig] = await admin.acl_configs(enabled)
    versions = await admin.acl_versions(enabled)
    newest = {
        server: max(((file.version.counter, file.version.timestamp) for file in files), default=(0, 0))
        for server, files in versions.values
    }
    return _AclState(
        sorted(configs.values), newest, disabled,
        (*settings.unavailable, *configs.unavailable, *versions.unavailable),
    )  # fmt: skip


def _enabled(state: _AclState) -> list[BrokerServer]:
    """Return the servers that have access control.

    Raises:
        ConfigError: there is none, or one did not respond.
    """
    check_all_responded(state.unavailable)
    if not state.configs:
        raise ConfigError("aclEnable", "false", "no broker has access control; set aclEnable=true and restart it")
    return [server for server, _ in state.configs]


def _check_possible(
    form: AclAccountForm, stored: AclAccountRow | None, topics: Sequence[str], groups: Sequence[str]
) -> None:
    if not form.secret_key and (stored is None or stored.missing):
        raise ConfigError("secretKey", None, f"a server without the account {form.access_key} needs its secret key")
    for key, before, after in (
        ("topicPerms", stored.topic_perms if stored else [], topics),
        ("groupPerms", stored.group_perms if stored else [], groups),
    ):
        if before and not after:
            # The request cannot express an empty list: brokers keep the stored one.
            fix = f"brokers cannot remove all entries: keep {before[0].partition('=')[0]}=DENY, or delete the account"
            raise ConfigError(key, "", fix)


def _entries(key: str, text: str) -> list[str]:
    """Return the entries NAME=PERMISSION of a text."""
    entries = []
    for part in _SEPARATORS.split(text):
        name, sign, permission = part.strip().partition("=")
        if not part.strip():
            continue
        if not sign or not name.strip():
            raise ConfigError(key, part.strip(), "expected NAME=PERMISSION, for example orders=PUB|SUB")
        entries.append(f"{name.strip()}={_permission(key, permission)}")
    return entries


def _permission(key: str, text: str) -> str:
    value = text.strip().upper()
    if value not in PERMISSIONS:
        raise ConfigError(key, text, f"expected one of {', '.join(PERMISSIONS)}")
    return value


def _find(config: AclConfig, access_key: str) -> AccountBody | None:
    return next((account for account in config.plain_access_configs if account.access_key == access_key), None)


def _server_rows(state: _AclState) -> list[AclServerRow]:
    first = _comparable(state.configs[0][1]) if state.configs else None
    rows = [
        AclServerRow(
            server=server_name(server), addr=server.addr, is_enabled=True, global_addresses=list(config.global_white_addrs),
            version=state.versions[server][0] if server in state.versions else None,
            changed_ms=state.versions[server][1] if server in state.versions else None,
            is_different=_comparable(config) != first,
        )
        for server, config in state.configs
    ]  # fmt: skip
    rows += [
        AclServerRow(
            server=server_name(server), addr=server.addr, is_enabled=False, global_addresses=[], version=None,
            changed_ms=None, is_different=False,
        )
        for server in state.disabled
    ]  # fmt: skip
    return sorted(rows, key=lambda row: row.server)


def _account_rows(state: _AclState) -> list[AclAccountRow]:
    names = sorted({account.access_key for _, config in state.configs for account in config.plain_access_configs})
    rows = []
    for name in names:
        entries = [
            (server, account) for server, config in state.configs if (account := _find(config, name)) is not None
        ]
        account = entries[0][1]
        having = [server for server, _ in entries]
        rows.append(
            AclAccountRow.of(
                account,
                is_admin=account.admin,
                default_topic_perm=account.default_topic_perm or "DENY",
                default_group_perm=account.default_group_perm or "DENY",
                topic_perms=account.topic_perms or (),
                group_perms=account.group_perms or (),
                white_remote_address=account.white_remote_address or "",
                servers=[server_name(server) for server in having],
                missing=[server_name(server) for server, _ in state.configs if server not in having],
                is_different=len({_settings(other) for _, other in entries}) > 1,
            )
        )
    return rows


def _settings(account: AccountBody) -> tuple[object, ...]:
    """Return the settings of an account in a form that is equal if they are."""
    return (
        account.access_key, account.secret_key, account.admin, account.default_topic_perm or "DENY",
        account.default_group_perm or "DENY", account.white_remote_address or "",
        tuple(sorted(account.topic_perms or ())), tuple(sorted(account.group_perms or ())),
    )  # fmt: skip


def _comparable(config: AclConfig) -> tuple[object, ...]:
    accounts = sorted((_settings(account) for account in config.plain_access_configs), key=str)
    return tuple(sorted(config.global_white_addrs)), tuple(accounts)
