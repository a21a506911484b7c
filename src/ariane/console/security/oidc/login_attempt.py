"""A log-in between its begin and the answer of the provider. The browser holds it in a cookie, so that it binds both.

    begin ─→ cookie of 10 minutes ─→ provider ─→ callback: `state` of the URL and of the cookie must be the same

What the browser's user could change in the cookie concerns only this log-in: the provider proves the rest.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

import msgspec

from ariane.console.security.request_checks import path_after_login

ATTEMPT_S = 600  # time for a log-in at the provider


class LoginAttempt(msgspec.Struct, frozen=True, array_like=True):
    """A log-in. Attributes: random texts of the protocol, and the path to continue with."""

    state: str
    nonce: str
    verifier: str
    next: str

    @property
    def challenge(self) -> str:
        """Return the PKCE challenge of the verifier (S256)."""
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    @property
    def cookie(self) -> str:
        """Return the value of the cookie."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()


def begin_attempt(next_path: str) -> LoginAttempt:
    """Return a new log-in that continues with a path."""
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    return LoginAttempt(state, nonce, verifier, path_after_login(next_path))


def resume_attempt(cookie: str, state: str) -> LoginAttempt | None:
    """Return the log-in of a cookie; None if it has none, or another one than the answer of the provider."""
    try:
        attempt = msgspec.json.decode(base64.urlsafe_b64decode(cookie.encode()), type=LoginAttempt)
    except (ValueError, msgspec.DecodeError):
        return None
    is_same = hmac.compare_digest(attempt.state.encode(errors="replace"), state.encode(errors="replace"))
    return attempt if is_same and attempt.state else None
