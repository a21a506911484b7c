"""Log-in and log-out, with their audit entries."""

from __future__ import annotations

import asyncio

from pydantic import ConfigDict

from ariane.console.security.audit_log import AuditEntry
from ariane.console.security.authentication import LoginRefused
from ariane.console.security.passwords import PASSWORD_BYTES_MAX
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


async def log_in(services: ConsoleServices, form: LoginForm, *, address: str, user_agent: str) -> str:
    """Start a session and return its token.

    Raises:
        LoginRefused: name or password is wrong, or there were too many attempts.
    """
    # No account has a name that is too long: it is cut so that limits and audit entries stay small.
    name, password = form.name.strip()[: NAME_CHARACTERS_MAX + 1], form.password[: PASSWORD_BYTES_MAX + 1]
    try:
        token, account = await services.authenticator.log_in(name, password, address=address, user_agent=user_agent)
    except LoginRefused as error:
        status = 429 if error.wait_seconds else 401
        await _record(services, address, outcome="refused", status=status, detail=f"log-in of {name!r}: {error}")
        raise
    await _record(services, address, account=account.name, role=account.role.value, outcome="done", detail="log-in")
    return token


async def _record(
    services: ConsoleServices, address: str, *, account: str = "", role: str = "", outcome: str, status: int = 303,
    detail: str,
) -> None:  # fmt: skip
    entry = AuditEntry(
        services.clock.now_ms(), account, address, "POST", "/login", outcome, status, role=role, detail=detail
    )
    await asyncio.to_thread(services.audit.record, entry)
