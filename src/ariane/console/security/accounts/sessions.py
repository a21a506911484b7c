"""Sessions of logged-in browsers. The server holds them, so that each can be revoked.

    browser: cookie with a random 256-bit token          sessions.json (0600): SHA-256 of the token, account, times

A session ends when it is idle for too long, too old, revoked, or when password or role of its account change. A stolen file
contains no token.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from pathlib import Path
from typing import NamedTuple

import msgspec

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.console.security.accounts.accounts import ConsoleAccount, ConsoleAccounts
from ariane.console.security.accounts.private_files import read_document, write_document
from ariane.console.security.roles import ConsoleRole
from ariane.errors import NotFound

log = logging.getLogger("ariane.console")

IDLE_MAX_MS = 8 * 3_600_000  # a working day: open tabs poll, which counts as use
AGE_MAX_MS = 7 * 86_400_000
SESSIONS_MAX = 10_000
SESSIONS_PER_ACCOUNT_MAX = 50  # the one that was used least recently ends
SAVE_INTERVAL_MS = 60_000  # times of last use are not worth a write per request
USER_AGENT_MAX = 200
_ID_CHARACTERS = 16
NO_PASSWORD = ""


class ConsoleSession(msgspec.Struct, rename="camel"):
    """A logged-in browser.

    Attributes:
        token_hash: SHA-256 of the token in the browser's cookie.
        account: Name of the account.
        generation: The account's generation at the log-in.
        created_ms: Time of the log-in.
        used_ms: Time of the last request.
        address: Address from which it last came.
        user_agent: The browser's description of itself.
        role: Of an account of the provider; empty: the account is one of the console, which has its role.
    """

    token_hash: str
    account: str
    generation: str
    created_ms: int
    used_ms: int
    address: str
    user_agent: str
    role: str = ""

    @property
    def id(self) -> str:
        """Name of the session for people and for revoking; useless as a cookie."""
        return self.token_hash[:_ID_CHARACTERS]

    def __repr__(self) -> str:
        return f"ConsoleSession({self.account!r}, {self.id})"


class SessionFile(msgspec.Struct, frozen=True):
    """The content of sessions.json."""

    sessions: tuple[ConsoleSession, ...] = ()


class ExternalSessions(NamedTuple):
    """Which sessions of a provider's accounts are valid. Attributes: those that its present settings made, and for how long."""

    generation: str
    age_max_ms: int


class SessionStore:
    """The sessions of a console.

    Args:
        external: Sessions of accounts of a provider; None: none is valid.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        accounts: ConsoleAccounts,
        external: ExternalSessions | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.path = data_dir / "sessions.json"
        self._accounts = accounts
        self._external = external
        self._clock = clock
        document = read_document(self.path, SessionFile) or SessionFile()
        self._sessions = {session.token_hash: session for session in document.sessions}
        self._saved_ms = clock.now_ms()

    def create(self, account: ConsoleAccount, *, address: str, user_agent: str) -> str:
        """Start a session and return its token, which is stored nowhere else than in the browser."""
        return self._create(account.name, account.generation, "", address, user_agent)

    def create_external(self, name: str, role: ConsoleRole, *, generation: str, address: str, user_agent: str) -> str:
        """Start a session of an account that a provider has authenticated, and return its token."""
        return self._create(name, generation, role.value, address, user_agent)

    def _create(self, name: str, generation: str, role: str, address: str, user_agent: str) -> str:
        self._remove_ended()
        self._make_room(name)
        token = secrets.token_urlsafe(32)
        now_ms = self._clock.now_ms()
        session = ConsoleSession(
            _hash(token), name, generation, now_ms, now_ms, address, user_agent[:USER_AGENT_MAX], role
        )
        self._sessions[session.token_hash] = session
        self._save()
        return token

    def authenticate(self, token: str, address: str) -> tuple[ConsoleSession, ConsoleAccount] | None:
        """Return the session of a token with its account, and note its use; None if it has ended."""
        session = self._sessions.get(_hash(token))
        if session is None:
            return None
        account = self._valid_account(session)
        if account is None:
            del self._sessions[session.token_hash]
            self._save_uses()
            return None
        session.used_ms, session.address = self._clock.now_ms(), address
        if abs(session.used_ms - self._saved_ms) >= SAVE_INTERVAL_MS:
            self._save_uses()
        return session, account

    def list(self, account: str | None = None) -> list[ConsoleSession]:
        """Return the sessions of an account, or of all accounts, the last used one first."""
        self._remove_ended()
        sessions = [session for session in self._sessions.values() if account in (None, session.account)]
        return sorted(sessions, key=lambda session: session.used_ms, reverse=True)

    def revoke(self, session_id: str, *, account: str | None = None) -> ConsoleSession:
        """End a session.

        Args:
            account: Only a session of this account; None: of any.

        Raises:
            NotFound: there is no such session.
        """
        for session in self.list(account):
            if session.id == session_id:
                del self._sessions[session.token_hash]
                self._save()
                return session
        raise NotFound("session", session_id)

    def revoke_all(self, account: str, *, keep: str = "") -> int:
        """End all sessions of an account except the one with the id `keep`; return how many ended."""
        ended = [session for session in self.list(account) if session.id != keep]
        for session in ended:
            del self._sessions[session.token_hash]
        self._save()
        return len(ended)

    def save(self) -> None:
        """Write the times of last use, at the end of the program."""
        if self._sessions:
            self._save()

    def _valid_account(self, session: ConsoleSession) -> ConsoleAccount | None:
        now_ms = self._clock.now_ms()
        if now_ms - session.used_ms > IDLE_MAX_MS or now_ms - session.created_ms > AGE_MAX_MS:
            return None
        if session.role:
            return self._external_account(session, now_ms)
        account = self._accounts.find(session.account)
        return account if account is not None and account.generation == session.generation else None

    def _external_account(self, session: ConsoleSession, now_ms: int) -> ConsoleAccount | None:
        external = self._external
        if external is None or session.generation != external.generation:
            return None
        if now_ms - session.created_ms > external.age_max_ms:
            return None
        role = ConsoleRole(session.role)
        return ConsoleAccount(session.account, role, NO_PASSWORD, session.generation, session.created_ms)

    def _remove_ended(self) -> None:
        ended = [key for key, session in self._sessions.items() if self._valid_account(session) is None]
        for key in ended:
            del self._sessions[key]

    def _make_room(self, account: str) -> None:
        """End the least recently used sessions where a new one would exceed a bound."""
        by_use = sorted(self._sessions.values(), key=lambda session: session.used_ms)
        same_account = [session for session in by_use if session.account == account]
        surplus = same_account[: max(0, len(same_account) - SESSIONS_PER_ACCOUNT_MAX + 1)]
        surplus += by_use[: max(0, len(by_use) - SESSIONS_MAX + 1)]
        for session in surplus:
            self._sessions.pop(session.token_hash, None)

    def _save_uses(self) -> None:
        try:
            self._save()
        except OSError:
            # A full disk must not prevent reading: the times are written again a minute later.
            log.exception("Cannot write the sessions to %s", self.path)

    def _save(self) -> None:
        self._saved_ms = self._clock.now_ms()
        write_document(self.path, SessionFile(tuple(self._sessions.values())))


def csrf_token(token: str) -> str:
    """Return the CSRF token of a session, computed from its token: it cannot be computed from anything that is stored."""
    return hmac.new(token.encode(), b"csrf", hashlib.sha256).hexdigest()


def _hash(token: str) -> str:
    # A fast hash suffices: 256 random bits cannot be guessed, unlike a password.
    return hashlib.sha256(token.encode()).hexdigest()
