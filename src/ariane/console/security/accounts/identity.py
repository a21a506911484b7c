"""Who sends a request: an account with a role, found by the middleware and read by pages and templates."""

from __future__ import annotations

from typing import NamedTuple, cast

from starlette.requests import HTTPConnection

from ariane.console.security.roles import ConsoleRole

STATE_KEY = "identity"
ANONYMOUS_NAME = "local"  # everyone on the console's machine, while no account exists


class Identity(NamedTuple):
    """The sender of a request.

    Attributes:
        name: Account; ANONYMOUS_NAME for local access without accounts.
        role: What it may do.
        address: Address that the request came from.
        csrf_token: Token that unsafe requests of its pages must carry; empty for scripts.
        session_id: Session of a browser; empty for scripts and local access.
        is_account: Whether it is an account, with sessions to revoke.
        has_password: Whether the console stores its password; an account of a provider logs in there.
    """

    name: str
    role: ConsoleRole
    address: str
    csrf_token: str = ""
    session_id: str = ""
    is_account: bool = True
    has_password: bool = True


def identity_of(request: HTTPConnection) -> Identity | None:
    """Return the sender of a request; None before the log-in."""
    return cast("Identity | None", request.scope.get("state", {}).get(STATE_KEY))


def has_role(request: HTTPConnection, role: ConsoleRole) -> bool:
    """Return whether the sender of a request has a role, or one that includes it."""
    identity = identity_of(request)
    return identity is not None and identity.role.includes(role)


def address_of(request: HTTPConnection) -> str:
    """Return the address that a request came from."""
    return request.client.host if request.client else ""
