"""Cookies with the token of a session and of a known device: not readable by scripts, sent to this console only."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ariane.console.security.accounts.sessions import AGE_MAX_MS
from ariane.console.security.oidc.login_attempt import ATTEMPT_S
from ariane.console.settings import ConsoleSettings

SESSION, DEVICE, LOGIN = "session", "device", "login"  # LOGIN: a log-in at the provider that is in progress
AGES_S = {SESSION: AGE_MAX_MS // 1000, DEVICE: 365 * 24 * 3600, LOGIN: ATTEMPT_S}


def cookie_token(request: Request, settings: ConsoleSettings, kind: str) -> str:
    """Return the token of a session or a known device that a browser sent; empty if it sent none."""
    return request.cookies.get(_name(request, settings, kind), "")


def set_cookie(request: Request, response: Response, settings: ConsoleSettings, kind: str, token: str) -> None:
    """Let the browser send the token of a session or a known device from now on."""
    # Lax, not Strict: a link to a page in a mail or chat must find the reader logged in. Unsafe requests of other
    # sites are refused by their origin and by the CSRF token.
    response.set_cookie(
        _name(request, settings, kind), token, max_age=AGES_S[kind], path="/", secure=is_https(request),
        httponly=True, samesite="lax",
    )  # fmt: skip


def clear_cookie(request: Request, response: Response, settings: ConsoleSettings, kind: str) -> None:
    """Let the browser forget the token."""
    response.delete_cookie(
        _name(request, settings, kind), path="/", secure=is_https(request), httponly=True, samesite="lax"
    )  # fmt: skip


def is_https(request: Request) -> bool:
    """Return whether the browser's connection, to this console or to its proxy, is encrypted."""
    return request.url.scheme == "https"


def _name(request: Request, settings: ConsoleSettings, kind: str) -> str:
    # Cookies do not distinguish ports: two consoles on one machine need two names. The prefix __Host- makes browsers
    # refuse a cookie that another host of the domain set.
    prefix = "__Host-" if is_https(request) else ""
    return f"{prefix}ariane-{kind}-{settings.port}"
