"""Accounts and sessions of the console: all of them for admins, one's own for everyone."""

from __future__ import annotations

import asyncio

from pydantic import ConfigDict

from ariane.console.areas.confirmation import DeletionForm, check_confirmed
from ariane.console.security.accounts.identity import Identity
from ariane.console.security.accounts.sessions import ConsoleSession
from ariane.console.security.roles import ConsoleRole
from ariane.console.services import ConsoleServices
from ariane.console.texts.translation import gettext_noop
from ariane.console.web.paging import ListQuery, Page, paginate, sort_keys
from ariane.console.web.view_model import ChangeForm, ChangeResult, View
from ariane.errors import ConfigError

ROLE_TEXTS = (gettext_noop("viewer"), gettext_noop("operator"), gettext_noop("admin"))


class ConsoleUserRow(View):
    """An account of the console."""

    name: str
    role: ConsoleRole
    """What it may do."""
    changed_ms: int
    """When its password or role was changed last."""
    sessions: int
    """Number of its sessions."""
    used_ms: int | None
    """Last use of a session; null: none."""


class SessionRow(View):
    """A logged-in browser."""

    id: str
    account: str
    created_ms: int
    """Log-in."""
    used_ms: int
    """Last request."""
    address: str
    """Address that the last request came from."""
    user_agent: str
    """The browser's description of itself."""
    is_current: bool
    """Whether this request belongs to it."""


class AccessView(View):
    """All accounts and sessions."""

    as_of_ms: int
    """Time of the values."""
    is_login_needed: bool
    """Whether requests need an account; False: everyone on this machine is an admin."""
    users: list[ConsoleUserRow]
    """Accounts by name."""
    sessions: Page[SessionRow]
    """Sessions, the last used one first."""


class OwnAccountView(View):
    """The account of the sender of the request."""

    as_of_ms: int
    """Time of the values."""
    name: str
    role: ConsoleRole
    """What it may do."""
    is_account: bool
    """False: local access without an account, which has no password and no sessions."""
    sessions: list[SessionRow]
    """Its sessions, the last used one first."""


class _PasswordForm(ChangeForm):
    # A password may begin or end with a space, and no error may repeat it.
    model_config = ConfigDict(str_strip_whitespace=False, hide_input_in_errors=True)


class NewUserForm(_PasswordForm):
    """An account to create."""

    name: str
    """Letters, digits and . _ @ -."""
    role: ConsoleRole = ConsoleRole.VIEWER
    """What it may do."""
    password: str
    """At least 10 characters."""


class UserPasswordForm(_PasswordForm):
    """A new password, set by an admin."""

    password: str
    """At least 10 characters."""


class OwnPasswordForm(_PasswordForm):
    """A new password, set by its owner."""

    current: str
    """The password so far."""
    password: str
    """At least 10 characters."""
    repeated: str | None = None
    """The new password again, if it was typed without being visible."""


class UserRoleForm(ChangeForm):
    """A new role."""

    role: ConsoleRole
    """What the account may do."""


SESSION_COLUMNS = sort_keys("account", "address", used="used_ms", created="created_ms")


def access(services: ConsoleServices, query: ListQuery, *, identity: Identity | None) -> AccessView:
    """Return all accounts and sessions."""
    sessions = services.sessions.list()
    rows = [_session_row(session, identity) for session in sessions]
    used: dict[str, list[int]] = {}  # times of last use by account
    for session in sessions:
        used.setdefault(session.account, []).append(session.used_ms)
    users = []
    for account in services.accounts.list():
        last_uses = used.get(account.name, [])
        users.append(ConsoleUserRow.of(account, sessions=len(last_uses), used_ms=max(last_uses, default=None)))
    return AccessView(
        as_of_ms=services.clock.now_ms(),
        is_login_needed=services.authenticator.is_login_needed,
        users=users,
        sessions=paginate(
            rows, query, name=lambda row: f"{row.account} {row.address} {row.user_agent}", columns=SESSION_COLUMNS,
            sort="used", is_descending=True,
        ),
    )  # fmt: skip


def own_account(services: ConsoleServices, identity: Identity) -> OwnAccountView:
    """Return the account of the sender, with its sessions."""
    sessions = services.sessions.list(identity.name) if identity.is_account else []
    rows = [_session_row(session, identity) for session in sessions]
    return OwnAccountView.of(identity, as_of_ms=services.clock.now_ms(), sessions=rows)


async def add_user(services: ConsoleServices, form: NewUserForm) -> ChangeResult:
    """Create an account. The first one ends local access without a log-in.

    Raises:
        ConfigError: name or password is invalid, or the first account is not an admin.
    """
    await asyncio.to_thread(services.accounts.add, form.name.strip(), form.role, form.password)
    return ChangeResult(notice=f"created console account {form.name.strip()} with role {form.role}")


def set_role(services: ConsoleServices, name: str, form: UserRoleForm) -> ChangeResult:
    """Change a role; all sessions of the account end."""
    services.accounts.set_role(name, form.role)
    return ChangeResult(notice=f"changed the role of {name} to {form.role}")


async def set_password(services: ConsoleServices, name: str, form: UserPasswordForm) -> ChangeResult:
    """Replace the password of an account; all its sessions end."""
    await asyncio.to_thread(services.accounts.set_password, name, form.password)
    return ChangeResult(notice=f"changed the password of {name}")


async def set_own_password(services: ConsoleServices, form: OwnPasswordForm, *, identity: Identity) -> ChangeResult:
    """Replace one's own password; all sessions end.

    Raises:
        LoginRefused: the current password is wrong, or there were too many attempts.
        ConfigError: the new password is too weak, or differs from its repetition.
    """
    check_is_account(identity)
    if not identity.has_password:
        raise ConfigError("account", identity.name, "it logs in at a provider; change the password there")
    if form.repeated is not None and form.repeated != form.password:
        raise ConfigError("repeated", None, "expected the new password again; nothing was changed")
    await services.authenticator.verify(identity, form.current)
    await asyncio.to_thread(services.accounts.set_password, identity.name, form.password)
    return ChangeResult(notice="changed your password")


def remove_user(services: ConsoleServices, name: str, form: DeletionForm) -> ChangeResult:
    """Remove an account; all its sessions end."""
    check_confirmed(form, name)
    services.accounts.remove(name)
    return ChangeResult(notice=f"removed console account {name}")


def revoke_session(services: ConsoleServices, session_id: str, *, account: str | None = None) -> ChangeResult:
    """End a session; with `account` only one of this account."""
    session = services.sessions.revoke(session_id, account=account)
    return ChangeResult(notice=f"ended a session of {session.account} from {session.address}")


def revoke_other_sessions(services: ConsoleServices, *, identity: Identity) -> ChangeResult:
    """End all sessions of the sender except the current one."""
    check_is_account(identity)
    count = services.sessions.revoke_all(identity.name, keep=identity.session_id)
    return ChangeResult(notice=f"ended {count} other {'session' if count == 1 else 'sessions'} of {identity.name}")


def check_is_account(identity: Identity) -> None:
    """Raise ConfigError if the sender has no account."""
    if not identity.is_account:
        raise ConfigError(
            "account", identity.name, "local access has no password and no sessions; create an account first"
        )


def _session_row(session: ConsoleSession, identity: Identity | None) -> SessionRow:
    return SessionRow.of(session, is_current=identity is not None and session.id == identity.session_id)
