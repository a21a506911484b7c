"""Response headers that restrict what a browser does with the console's pages (ASGI middleware).

The policy allows no inline script, no inline style and no eval: text of a message that got into a page unescaped still could
not run.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ariane.console.security.request_checks import host_name, is_loopback_host

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'self'",
        "img-src 'self' data:",  # icons in style sheets, and charts that are saved as images
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
PAGE_CACHE_CONTROL = "no-store"  # pages show data of accounts: none may stay in a shared browser's cache
_STATIC_PREFIX = "/static/"
# Browsers then use only https for this host, at every port.
HSTS = (b"strict-transport-security", b"max-age=15552000")

_HEADERS = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),  # for browsers that do not support frame-ancestors
    # With no-referrer, browsers send "Origin: null" with forms, which the check of the origin has to refuse.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)


class SecurityHeadersMiddleware:
    """Adds the headers to every response. A header that the application set stays as it is."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = with_security_headers(scope["path"], message.get("headers", ()))
                message = {**message, "headers": [*headers, HSTS] if _is_https_only(scope) else headers}
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _is_https_only(scope: Scope) -> bool:
    """Return whether this console accepts encrypted connections only, by a name that other programs of a machine do not share."""
    tls = scope["app"].state.services.settings.tls
    is_enforcing = tls is not None and tls.mode == "enforcing" and not tls.is_test
    return is_enforcing and not is_loopback_host(host_name(Headers(scope=scope).get("host", "")))


def with_security_headers(path: str, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers of the response for a path, with those of this module that are not among them."""
    result = list(headers)
    present = {name.lower() for name, _ in result}
    result += [header for header in _HEADERS if header[0] not in present]
    if not path.startswith(_STATIC_PREFIX) and b"cache-control" not in present:
        result.append((b"cache-control", PAGE_CACHE_CONTROL.encode()))
    return result
