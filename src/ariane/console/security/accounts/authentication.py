"""Finds out who sends a request, and logs accounts in.

session cookie                  → its account
Authorization: Basic (API)      → the account, if the password is right; slowed down like log-ins
neither, on loopback only       → the local admin, while no account exists and no log-in is demanded
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Mapping

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.console.security.accounts.accounts import FIRST_ACCOUNT_COMMAND, ConsoleAccount, ConsoleAccounts
from ariane.console.security.accounts.identity import ANONYMOUS_NAME, Identity
from ariane.console.security.accounts.known_devices import KnownDevices
from ariane.console.security.accounts.passwords import PasswordVerifier
from ariane.console.security.accounts.private_files import read_or_create_key
from ariane.console.security.accounts.sessions import SessionStore, csrf_token
from ariane.console.security.login_limits import LoginLimiter, TooManyAttempts
from ariane.console.security.oidc.oidc_settings import read_settings
from ariane.console.security.request_checks import is_loopback_host, is_through_proxy
from ariane.console.security.roles import ConsoleRole
from ariane.console.settings import ConsoleSettings
from ariane.errors import ArianeError, ConfigError

VERIFIED_MAX = 1_000  # verified passwords of scripts that are remembered

WRONG_PASSWORD = "Name or password is wrong."  # noqa: S105 - a message; the same for unknown accounts


class LoginRefused(ArianeError):
    """A log-in failed. `wait_seconds` is positive if there were too many attempts, so that the password was not examined."""

    def __init__(self, wait_seconds: int = 0) -> None:
        wait = f"Too many failed log-ins: try again in {wait_seconds} s."
        super().__init__(wait if wait_seconds else WRONG_PASSWORD)
        self.wait_seconds = wait_seconds


class Authenticator:
    """Finds the identity of requests.

    Args:
        is_login_demanded: Whether even local access needs an account, of the console or of a provider.
    """

    def __init__(
        self,
        *,
        host: str,
        is_login_demanded: bool,
        accounts: ConsoleAccounts,
        sessions: SessionStore,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._is_login_demanded = is_login_demanded or not is_loopback_host(host)
        self._accounts = accounts
        self._sessions = sessions
        self.devices = KnownDevices(accounts.path.with_name("devices.key"))  # browsers that have logged in
        self._limiter = LoginLimiter(clock=clock)  # also of scripts: otherwise they could guess passwords
        self._verifier = PasswordVerifier()  # hashes in threads
        self._key_path = accounts.path.with_name("local.key")  # source of the next attribute
        self._local_csrf_token = ""  # computed when it is first needed
        # HMAC of a verified name and password → the account's generation; the least recently used one is first.
        self._verified: OrderedDict[bytes, str] = OrderedDict()
        self._verified_key = secrets.token_bytes(32)  # of this process: see _digest

    @property
    def is_login_needed(self) -> bool:
        """Whether requests need an account."""
        return self._is_login_demanded or bool(self._accounts.list())

    async def log_in(
        self, name: str, password: str, *, address: str, user_agent: str, device_token: str = ""
    ) -> tuple[str, ConsoleAccount]:
        """Start a session; return its token and account. `device_token`: of `devices`, if the browser sent one.

        Raises:
            LoginRefused: name or password is wrong, or there were too many attempts.
        """
        account = await self._verify(name, password, address, self.devices.find(name, device_token))
        return self._sessions.create(account, address=address, user_agent=user_agent), account

    async def verify(self, identity: Identity, password: str) -> None:
        """Check the password of a sender before a change of its account. Raises LoginRefused like `log_in`."""
        await self._verify(identity.name, password, identity.address, identity.session_id)

    def from_session(self, token: str, address: str) -> Identity | None:
        """Return the identity of a session's token; None if the session has ended."""
        if not token or (result := self._sessions.authenticate(token, address)) is None:
            return None
        session, account = result
        return Identity(
            account.name, account.role, address, csrf_token(token), session.id, has_password=bool(account.password_hash)
        )

    async def from_basic(self, authorization: str, address: str) -> Identity | None:
        """Return the identity of an Authorization header; None if it is of another kind.

        Raises:
            LoginRefused: name or password is wrong, or there were too many attempts.
        """
        scheme, _, value = authorization.partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            name, colon, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise LoginRefused from None
        if not colon:
            raise LoginRefused
        account = self._remembered(name, password)
        if account is None:
            account = await self._verify(name, password, address)
            self._remember(account, password)
        return Identity(account.name, account.role, address)

    def local(self, headers: Mapping[str, str], address: str) -> Identity | None:
        """Return the local admin; None if requests need an account or come through a proxy."""
        if self.is_login_needed or is_through_proxy(headers):
            return None
        return Identity(ANONYMOUS_NAME, ConsoleRole.ADMIN, address, self._local_token(), is_account=False)

    async def _verify(self, name: str, password: str, address: str, device: str = "") -> ConsoleAccount:
        try:
            await self._limiter.admit(name, address, device)
        except TooManyAttempts as error:
            raise LoginRefused(error.seconds) from None
        account = self._accounts.find(name)
        # Unknown names are hashed, too: otherwise the time of the answer would show which accounts exist.
        if not await self._verifier.verify(password, account.password_hash if account else None) or account is None:
            raise LoginRefused
        self._limiter.succeed(name, address, device)
        return account

    # --- passwords of scripts: each request carries one, and hashing takes a fifth of a second. A remembered one is not slowed
    # down by the failures of others ---

    def _remembered(self, name: str, password: str) -> ConsoleAccount | None:
        account = self._accounts.find(name)
        digest = self._digest(name, password)
        if account is None or account.generation != self._verified.get(digest):
            return None
        self._verified.move_to_end(digest)
        return account

    def _remember(self, account: ConsoleAccount, password: str) -> None:
        self._verified[self._digest(account.name, password)] = account.generation
        while len(self._verified) > VERIFIED_MAX:
            self._verified.popitem(last=False)

    def _digest(self, name: str, password: str) -> bytes:
        # With a key of this process: the memory of a crashed console contains no hash that can be guessed offline.
        return hmac.new(self._verified_key, f"{name}\0{password}".encode(errors="replace"), hashlib.sha256).digest()

    def _local_token(self) -> str:
        """Return the CSRF token of local access. It survives a restart, because open pages contain it."""
        if not self._local_csrf_token:
            self._local_csrf_token = csrf_token(read_or_create_key(self._key_path))
        return self._local_csrf_token


def check_first_account(settings: ConsoleSettings) -> None:
    """Check that an account exists if the console needs a log-in. Default passwords do not exist.

    Raises:
        ConfigError: there is none; the message has the command that creates one.
    """
    is_login_demanded = settings.is_login_required or not is_loopback_host(settings.host)
    if is_login_demanded and read_settings(settings.data_dir) is None and not ConsoleAccounts(settings.data_dir).list():
        why = "it demands a log-in" if settings.is_login_required else "other machines can reach it"
        fix = f"the console needs an account because {why}; create one: {FIRST_ACCOUNT_COMMAND}"
        raise ConfigError("host", settings.host, fix)
