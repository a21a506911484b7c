"""Accounts of the console: names, roles and password hashes, in one file of the data directory.

    accounts.json   {"accounts": [{"name", "role", "passwordHash", "generation", "changedMs"}]}     mode 0600

The console and `ariane console user` both change the file, under a lock; each change is read again before the next request.
`generation` changes with password and role: a session of an earlier generation is invalid, in every process.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.console.security.accounts.passwords import check_new_password, hash_password
from ariane.console.security.accounts.private_files import file_lock, read_document, write_document
from ariane.console.security.roles import ConsoleRole
from ariane.errors import AlreadyExists, ConfigError, NotFound

ACCOUNTS_MAX = 1_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
# Created while no account exists; the command that the server's refusal to start names.
FIRST_ACCOUNT_COMMAND = "ariane console user add NAME --role admin"


class ConsoleAccount(msgspec.Struct, frozen=True, rename="camel"):
    """A person or script that may log in.

    Attributes:
        name: Name for the log-in.
        role: What it may do.
        password_hash: `passwords.hash_password` of its password.
        generation: Random text, new with each change of password or role.
        changed_ms: Time of that change.
    """

    name: str
    role: ConsoleRole
    password_hash: str
    generation: str
    changed_ms: int

    def __repr__(self) -> str:
        return f"ConsoleAccount({self.name!r}, {self.role.value})"


class AccountFile(msgspec.Struct, frozen=True):
    """The content of accounts.json."""

    accounts: tuple[ConsoleAccount, ...] = ()


class ConsoleAccounts:
    """The accounts of a console."""

    def __init__(self, data_dir: Path, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.path = data_dir / "accounts.json"
        self._clock = clock
        self._accounts: dict[str, ConsoleAccount] = {}
        self._stamp: tuple[int, int, int] | None = None  # the file that was read: inode, size and time of change

    def list(self) -> tuple[ConsoleAccount, ...]:
        """Return all accounts, sorted by name."""
        return tuple(account for _, account in sorted(self._read().items()))

    def find(self, name: str) -> ConsoleAccount | None:
        """Return an account; None if it does not exist."""
        return self._read().get(name)

    def add(self, name: str, role: ConsoleRole, password: str) -> ConsoleAccount:
        """Create an account.

        Raises:
            ConfigError: the name is invalid or taken, the password is too weak, there are too many accounts, or the first one
                is not an admin.
        """
        if not _NAME.fullmatch(name):
            fix = "expected 1 to 64 letters, digits or . _ @ -, the first a letter or digit"
            raise ConfigError("name", name, fix)
        check_new_password(name, password)
        created = self._account(name, role, hash_password(password))

        def insert(accounts: dict[str, ConsoleAccount]) -> None:
            if not accounts and role is not ConsoleRole.ADMIN:
                # The first account ends local access: without an admin, no one could create the next one.
                raise ConfigError("role", role.value, "the first account must be an admin")
            if name in accounts:
                raise AlreadyExists("name", name, "an account with this name exists; choose another one")
            if len(accounts) >= ACCOUNTS_MAX:
                raise ConfigError("accounts", len(accounts), f"expected at most {ACCOUNTS_MAX}; remove unused ones")
            accounts[name] = created

        self._change(insert)
        return created

    def set_password(self, name: str, password: str) -> None:
        """Replace a password. All sessions of the account end.

        Raises:
            NotFound: there is no such account.
            ConfigError: the password is too weak.
        """
        check_new_password(name, password)
        digest = hash_password(password)

        def replace(accounts: dict[str, ConsoleAccount]) -> None:
            accounts[name] = self._account(name, _existing(accounts, name).role, digest)

        self._change(replace)

    def set_role(self, name: str, role: ConsoleRole) -> None:
        """Change what an account may do. All its sessions end.

        Raises:
            NotFound: there is no such account.
            ConfigError: it is the last admin.
        """

        def replace(accounts: dict[str, ConsoleAccount]) -> None:
            account = _existing(accounts, name)
            if role is not ConsoleRole.ADMIN:
                _check_other_admin(accounts, name)
            accounts[name] = self._account(name, role, account.password_hash)

        self._change(replace)

    def remove(self, name: str) -> None:
        """Remove an account. All its sessions end.

        Raises:
            NotFound: there is no such account.
            ConfigError: it is the last admin.
        """

        def delete(accounts: dict[str, ConsoleAccount]) -> None:
            _existing(accounts, name)
            _check_other_admin(accounts, name)
            del accounts[name]

        self._change(delete)

    def _account(self, name: str, role: ConsoleRole, password_hash: str) -> ConsoleAccount:
        return ConsoleAccount(name, role, password_hash, secrets.token_hex(8), self._clock.now_ms())

    def _change(self, change: Callable[[dict[str, ConsoleAccount]], None]) -> None:
        # The lock spans reading and writing: a change of another process in between would be lost.
        with file_lock(self.path):
            accounts = dict(self._read())
            change(accounts)
            write_document(self.path, AccountFile(tuple(accounts[name] for name in sorted(accounts))))
        self._stamp = None

    def _read(self) -> dict[str, ConsoleAccount]:
        """Return the accounts, from the file if it changed since it was last read."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            self._accounts, self._stamp = {}, None
            return self._accounts
        stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        if stamp != self._stamp:
            document = read_document(self.path, AccountFile) or AccountFile()
            self._accounts = {account.name: account for account in document.accounts}
            self._stamp = stamp
        return self._accounts


def _existing(accounts: dict[str, ConsoleAccount], name: str) -> ConsoleAccount:
    if name not in accounts:
        raise NotFound("console account", name, sorted(accounts))
    return accounts[name]


def _check_other_admin(accounts: dict[str, ConsoleAccount], name: str) -> None:
    """Raise ConfigError if no admin remains without this account: no one could create accounts from then on."""
    if accounts[name].role is ConsoleRole.ADMIN and not any(
        account.role is ConsoleRole.ADMIN for account in accounts.values() if account.name != name
    ):
        raise ConfigError("accounts", name, "it is the last admin; create another admin first")
