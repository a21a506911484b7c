"""Users and policies of the brokers (ACL 2.0 of RocketMQ 5): lists by server, and changes.

Passwords are accepted and never returned: the servers' answers have none. Changes go to all servers with users, slaves included.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from pydantic import ConfigDict, Field

from ariane.access import users as user_table
from ariane.access.policies import POLICY_TYPES, choice, normalized_entry
from ariane.access.users import SUBJECT
from ariane.cluster.admin import Admin
from ariane.cluster.connection import BrokerServer, BrokerUnavailable
from ariane.console.areas.admin_results import changed_servers, check_all_responded, result_of, server_name, texts_of
from ariane.console.areas.confirmation import DeletionForm, check_confirmed
from ariane.console.services import ConsoleServices
from ariane.console.web.form_fields import OptionalText, VerbatimText
from ariane.console.web.paging import ListQuery, Page, paginate
from ariane.console.web.view_model import ChangeResult, DryRunForm, PartialView, View
from ariane.errors import ConfigError, NotFound
from ariane.protocol.requests.users import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo

_SEPARATORS = re.compile(r"[,\s]+")


class UserServerRow(View):
    """Users of one server."""

    server: str
    """Broker name and id."""
    addr: str
    is_enabled: bool
    """Whether users sign requests (`authenticationEnabled`)."""
    is_authorizing: bool
    """Whether policies decide (`authorizationEnabled`); otherwise each user may do everything."""
    users: int | None
    """Number of users; null: unknown or not enabled."""


class PolicyRow(View):
    """An entry of the policies of a user."""

    policy_type: str
    """`Custom`, or `Default`, which counts only if no entry of type Custom matches."""
    resource: str
    """`Topic:orders`, `Topic:ord*`, `Topic:*`, and so on; `*`: all."""
    actions: list[str]
    """Pub, Sub, Create, Update, Delete, Get, List or All."""
    addresses: list[str]
    """Source addresses; none: any."""
    decision: str
    """Allow or Deny."""


class BrokerUserRow(View):
    """A user of the brokers with its policies, without its password."""

    username: str
    user_type: str | None
    """`Super` (may do everything) or `Normal`; null: the servers have policies for it, but no such user."""
    user_status: str | None
    """`enable` or `disable`; null as above."""
    policies: list[PolicyRow]
    """Its policies on the first server that has it."""
    servers: list[str]
    """Servers that have it."""
    missing: list[str]
    """Servers with users that do not have it."""
    is_different: bool
    """Whether type, status or policies differ between servers. Passwords cannot be compared: no server returns them."""


class BrokerUsersView(PartialView):
    """Users and policies of all brokers."""

    servers: list[UserServerRow]
    """All servers that responded."""
    users: Page[BrokerUserRow]
    """Users with their policies."""


class BrokerUserForm(DryRunForm):
    """A user to create or change."""

    # No error may repeat a password.
    model_config = ConfigDict(hide_input_in_errors=True)

    username: str
    password: VerbatimText = ""
    """Its password. Empty keeps the stored one; a new user needs one."""
    user_type: OptionalText = None
    """Super or Normal; null keeps the stored one (new users: Normal)."""
    user_status: OptionalText = None
    """enable or disable; null keeps the stored one (new users: enable)."""


class BrokerUserDeletionForm(DeletionForm, DryRunForm):
    """A user to delete, with its policies."""

    username: str


class PolicyForm(DryRunForm):
    """An entry of the policies of a user, to add or to replace."""

    username: str
    """Name of the user."""
    policy_type: str = "Custom"
    """Custom, or Default, which counts only if no entry of type Custom matches."""
    resource: str
    """`KIND:NAME`, `KIND:PREFIX*` or `KIND:*` with a KIND of Cluster, Namespace, Topic, Group; `*`: all."""
    actions: list[str] = Field(default_factory=list, max_length=16)
    """Pub, Sub, Create, Update, Delete, Get, List or All."""
    addresses: str = ""
    """Source addresses and networks, separated by commas or lines, for example 10.0.0.0/8; empty: any."""
    decision: str = "Allow"
    """Allow or Deny."""


class PolicyDeletionForm(DeletionForm, DryRunForm):
    """An entry of the policies of a user, to delete."""

    username: str
    """Name of the user."""
    policy_type: str = "Custom"
    """Type of the entry."""
    resource: str


USER_COLUMNS = {
    "user": lambda row: row.username,
    "type": lambda row: row.user_type,
    "status": lambda row: row.user_status,
    "policies": lambda row: len(row.policies),
}


class UserState(NamedTuple):
    """What the servers answered. `settings` are those of every server that responded."""

    settings: dict[BrokerServer, dict[str, str]]
    users: dict[BrokerServer, list[UserInfo]]
    policies: dict[BrokerServer, list[AclInfo]]
    unavailable: tuple[BrokerUnavailable, ...]

    @property
    def enabled(self) -> list[BrokerServer]:
        """Servers whose users and policies are known."""
        return sorted(self.users.keys() & self.policies.keys())


async def broker_users(services: ConsoleServices, query: ListQuery) -> BrokerUsersView:
    """Return users and policies of all brokers."""
    as_of_ms = services.clock.now_ms()
    async with services.admin() as admin:
        state = await _state(admin)
    return BrokerUsersView(
        as_of_ms=as_of_ms,
        unavailable=texts_of(state.unavailable),
        servers=_server_rows(state),
        users=paginate(user_rows(state), query, name=lambda row: row.username, columns=USER_COLUMNS, sort="user"),
    )


async def broker_user(services: ConsoleServices, username: str) -> BrokerUserRow:
    """Return a user with its policies."""
    async with services.admin() as admin:
        rows = user_rows(await _state(admin))
    return _row_of(rows, username)


async def broker_policy(services: ConsoleServices, username: str, policy_type: str, resource: str) -> PolicyRow:
    """Return an entry of the policies of a user.

    Raises:
        NotFound: no server that responded has the user, or its first one has no such entry.
    """
    policies = (await broker_user(services, username)).policies
    for policy in policies:
        if (policy.policy_type, policy.resource) == (policy_type, resource):
            return policy
    raise NotFound("policy", f"{policy_type} {resource}", [policy.resource for policy in policies])


async def save_user(services: ConsoleServices, form: BrokerUserForm) -> ChangeResult:
    """Create a user, or change those of its settings that the form contains.

    Raises:
        ConfigError, UsageError: a value is invalid, or no server has users.
    """
    info = UserInfo(form.username, form.password or None, form.user_type, form.user_status)
    # The rules of the servers, so that a dry run rejects the same values.
    checked = msgspec.structs.replace(info, password=form.password or "-")
    user_table.create_user({}, form.username, checked, by_super=True)
    async with services.admin(is_dry_run=form.is_dry_run) as admin:
        state = await _state(admin)
        servers = _enabled(state)
        missing = [server for server in servers if not _has_user(state, server, form.username)]
        if missing and not form.password:
            names = ", ".join(map(server_name, missing))
            raise ConfigError("password", None, f"{names} has no user {form.username}: expected its password")
        await admin.save_user(info, servers)
    verb = form.verb("save", "saved")
    return result_of(admin, f"{verb} user {form.username} on {changed_servers(admin)}")


async def delete_user(services: ConsoleServices, form: BrokerUserDeletionForm) -> ChangeResult:
    """Delete a user with its policies from all servers that have it."""
    if not form.is_dry_run:
        check_confirmed(form, form.username)
    async with services.admin(is_dry_run=form.is_dry_run) as admin:
        state = await _state(admin)
        row = _row_of(user_rows(state), form.username)
        await admin.delete_user(
            form.username, [server for server in state.enabled if server_name(server) in row.servers]
        )
    verb = form.verb("delete", "deleted")
    return result_of(admin, f"{verb} user {form.username} on {changed_servers(admin)}")


async def save_policy(services: ConsoleServices, form: PolicyForm) -> ChangeResult:
    """Add an entry to the policies of a user, or replace that of the same type and resource.

    Raises:
        ConfigError: a value is invalid, no server has users, or one has no such user.
    """
    addresses = tuple(part for part in _SEPARATORS.split(form.addresses) if part)
    entry = normalized_entry(PolicyEntryInfo(form.resource, tuple(form.actions), addresses or None, form.decision))
    policy_type = choice("policyType", form.policy_type, POLICY_TYPES)
    async with services.admin(is_dry_run=form.is_dry_run) as admin:
        state = await _state(admin)
        servers = _enabled(state)
        if missing := [server_name(server) for server in servers if not _has_user(state, server, form.username)]:
            fix = f"{', '.join(missing)} has no such user; create it there first: save it with its password"
            raise ConfigError("username", form.username, fix)
        await admin.save_policy(form.username, [entry], servers, policy_type=policy_type)
    verb = form.verb("save", "saved")
    return result_of(admin, f"{verb} the policy of {form.username} for {entry.resource} on {changed_servers(admin)}")


async def delete_policy(services: ConsoleServices, form: PolicyDeletionForm) -> ChangeResult:
    """Delete an entry from the policies of a user, on all servers that have it.

    Raises:
        NotFound: no server that responded has it.
    """
    if not form.is_dry_run:
        check_confirmed(form, form.resource)
    async with services.admin(is_dry_run=form.is_dry_run) as admin:
        state = await _state(admin)
        having = {server: _policy_rows(state, server, form.username) for server in state.enabled}
        servers = [
            server
            for server, rows in having.items()
            if any((row.policy_type, row.resource) == (form.policy_type, form.resource) for row in rows)
        ]
        if not servers:
            raise NotFound("policy", form.resource, sorted({row.resource for rows in having.values() for row in rows}))
        await admin.delete_policies(f"User:{form.username}", form.resource, servers, policy_type=form.policy_type)
    verb = form.verb("delete", "deleted")
    return result_of(admin, f"{verb} the policy of {form.username} for {form.resource} on {changed_servers(admin)}")


async def _state(admin: Admin) -> UserState:
    settings = await admin.fetch_broker_config(await admin.select_brokers(with_slaves=True))
    enabled = [server for server, values in settings.values if values.get("authenticationEnabled") == "true"]
    users, policies = await admin.users(enabled), await admin.policies(enabled)
    return UserState(
        dict(settings.values), dict(users.values), dict(policies.values),
        (*settings.unavailable, *users.unavailable, *policies.unavailable),
    )  # fmt: skip


def _enabled(state: UserState) -> list[BrokerServer]:
    """Return the servers that have users.

    Raises:
        ConfigError: there is none, or one did not respond.
    """
    check_all_responded(state.unavailable)
    if not state.users:
        fix = "no broker has users; set authenticationEnabled=true and restart it"
        raise ConfigError("authenticationEnabled", "false", fix)
    return state.enabled


def _server_rows(state: UserState) -> list[UserServerRow]:
    rows = [
        UserServerRow(
            server=server_name(server), addr=server.addr,
            is_enabled=values.get("authenticationEnabled") == "true",
            is_authorizing=values.get("authorizationEnabled") == "true",
            users=len(state.users[server]) if server in state.users else None,
        )
        for server, values in state.settings.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: row.server)


def user_rows(state: UserState) -> list[BrokerUserRow]:
    """Return the users of all servers by name; subjects that have policies and no user, too."""
    rows = []
    for name in sorted({name for server in state.enabled for name in _names(state, server)}):
        having = [server for server in state.enabled if name in _names(state, server)]
        user = _user_of(state, having[0], name)
        settings = {_settings(state, server, name) for server in having}
        rows.append(
            BrokerUserRow(
                username=name,
                user_type=user.user_type if user else None,
                user_status=user.user_status if user else None,
                policies=_policy_rows(state, having[0], name),
                servers=[server_name(server) for server in having],
                missing=[server_name(server) for server in state.enabled if server not in having],
                is_different=len(settings) > 1,
            )
        )
    return rows


def _names(state: UserState, server: BrokerServer) -> set[str]:
    subjects = (acl.subject or "" for acl in state.policies[server])
    return {user.username or "" for user in state.users[server]} | {_name_of(subject) for subject in subjects}


def _name_of(subject: str) -> str:
    return subject.removeprefix(SUBJECT)


def _has_user(state: UserState, server: BrokerServer, name: str) -> bool:
    return _user_of(state, server, name) is not None


def _user_of(state: UserState, server: BrokerServer, name: str) -> UserInfo | None:
    return next((user for user in state.users[server] if user.username == name), None)


def _policy_rows(state: UserState, server: BrokerServer, name: str) -> list[PolicyRow]:
    policies: Iterable[PolicyInfo] = (
        policy for acl in state.policies[server] if _name_of(acl.subject or "") == name for policy in acl.policies or ()
    )
    return [
        PolicyRow(
            policy_type=policy.policy_type or "Custom", resource=entry.resource or "",
            actions=list(entry.actions or ()), addresses=list(entry.source_ips or ()), decision=entry.decision or "",
        )
        for policy in policies
        for entry in policy.entries or ()
    ]  # fmt: skip


def _settings(state: UserState, server: BrokerServer, name: str) -> tuple[object, ...]:
    """Return the settings of a user in a form that is equal if they are."""
    user = _user_of(state, server, name)
    policies = sorted(
        (row.policy_type, row.resource, tuple(sorted(row.actions)), tuple(sorted(row.addresses)), row.decision)
        for row in _policy_rows(state, server, name)
    )
    return (user and user.user_type, user and user.user_status, tuple(policies))


def _row_of(rows: list[BrokerUserRow], username: str) -> BrokerUserRow:
    for row in rows:
        if row.username == username:
            return row
    raise NotFound("user", username, [row.username for row in rows])
