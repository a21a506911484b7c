"""Log-in and log-out, with their audit entries."""

from __future__ import annotations

import asyncio

import msgspec
from pydantic import ConfigDict

from ariane.console.security.accounts.authentication import LoginRefused
from ariane.console.security.accounts.passwords import PASSWORD_BYTES_MAX
from ariane.console.security.audit_log import AuditEntry
from ariane.console.services import ConsoleServices
from ariane.console.web.view_model import ChangeForm

NAME_CHARACTERS_MAX = 64


class LoginForm(ChangeForm):
    """A log-in."""

    # A password may begin or end with a space.
    model_config = ConfigDict(str_strip_whitespace=False, hide_input_in_errors=True)

    name: str = ""
    """Name of the account."""
    password: str = ""
    """Password of the account."""
    next: str = ""
    """Path of the page to continue with."""


async def log_in(
    services: ConsoleServices,
    form: LoginForm,
    *,
    address: str,
    user_agent: str,
    device_token: str,
    path: str = "/login",
) -> str:
    """Start a session and return its token. `device_token` is that of a known device, `path` is for the audit entry.

    Raises:
        LoginRefused: name or password is wrong, or there were too many attempts.
    """
    # No account has a name that is too long: it is cut so that limits and audit entries stay small.
    name, password = form.name.strip()[: NAME_CHARACTERS_MAX + 1], form.password[: PASSWORD_BYTES_MAX + 1]
    try:
        token, account = await services.authenticator.log_in(
            name, password, address=address, user_agent=user_agent, device_token=device_token
        )  # fmt: skip
    except LoginRefused as error:
        status = 429 if error.wait_seconds else 401
        detail = f"log-in of {name!r}: {error}"
        await record_login(services, AuditEntry(0, "", address, "POST", path, "refused", status, detail=detail))
        raise
    role = account.role.value
    await record_login(
        services, AuditEntry(0, account.name, address, "POST", path, "done", 303, role=role, detail="log-in")
    )
    return token


async def record_login(services: ConsoleServices, entry: AuditEntry) -> None:
    """Write the audit entry of a log-in, with the current time."""
    entry = msgspec.structs.replace(entry, time_ms=services.clock.now_ms())
    await asyncio.to_thread(services.audit.record, entry)
