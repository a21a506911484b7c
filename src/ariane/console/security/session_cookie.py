"""The cookie with a session's token: not readable by scripts, sent to this console only."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ariane.console.security.sessions import AGE_MAX_MS
from ariane.console.settings import ConsoleSettings


def session_token(request: Request, settings: ConsoleSettings) -> str:
    """Return the token that a browser sent; empty if it sent none."""
    return request.cookies.get(_name(request, settings), "")


def set_session_cookie(request: Request, response: Response, settings: ConsoleSettings, token: str) -> None:
    """Let the browser send the token from now on."""
    # Lax, not Strict: a link to a page in a mail or chat must find the reader logged in. Unsafe requests of other
    # sites are refused by their origin and by the CSRF token.
    response.set_cookie(
        _name(request, settings), token, max_age=AGE_MAX_MS // 1000, path="/", secure=_is_https(request), httponly=True,
        samesite="lax",
    )  # fmt: skip


def clear_session_cookie(request: Request, response: Response, settings: ConsoleSettings) -> None:
    """Let the browser forget the token."""
    response.delete_cookie(
        _name(request, settings), path="/", secure=_is_https(request), httponly=True, samesite="lax"
    )  # fmt: skip


def _is_https(request: Request) -> bool:
    return request.url.scheme == "https"


def _name(request: Request, settings: ConsoleSettings) -> str:
    # Cookies do not distinguish ports: two consoles on one machine need two names. The prefix __Host- makes browsers
    # refuse a cookie that another host of the domain set.
    prefix = "__Host-" if _is_https(request) else ""
    return f"{prefix}ariane-session-{settings.port}"
