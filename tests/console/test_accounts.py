"""Accounts of the console: rules, the file, and changes by another process."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from ariane.console.security.accounts import passwords
from ariane.console.security.accounts.accounts import ConsoleAccounts
from ariane.console.security.accounts.passwords import PasswordVerifier, hash_password, verify_password
from ariane.console.security.roles import ConsoleRole
from ariane.errors import ConfigError, NotFound

PASSWORD = "correct horse battery"


@pytest.fixture
def accounts(tmp_path: Path) -> ConsoleAccounts:
    return ConsoleAccounts(tmp_path)


def test_an_account_survives_a_restart_and_its_file_is_private(accounts: ConsoleAccounts, tmp_path: Path) -> None:
    accounts.add("ann", ConsoleRole.ADMIN, PASSWORD)
    accounts.add("bob", ConsoleRole.OPERATOR, PASSWORD)
    reread = ConsoleAccounts(tmp_path).find("bob")
    assert reread is not None
    assert reread.role is ConsoleRole.OPERATOR
    assert stat.S_IMODE(accounts.path.stat().st_mode) == 0o600
    assert PASSWORD not in accounts.path.read_text()


def test_changes_of_another_process_are_seen(accounts: ConsoleAccounts, tmp_path: Path) -> None:
    other = ConsoleAccounts(tmp_path)
    assert other.list() == ()
    accounts.add("ann", ConsoleRole.ADMIN, PASSWORD)
    accounts.add("bob", ConsoleRole.VIEWER, PASSWORD)
    assert [account.name for account in other.list()] == ["ann", "bob"]
    accounts.remove("bob")
    assert other.find("bob") is None


@pytest.mark.parametrize("name", ["", "-x", "a b", "x" * 65, "<b>", "a/b", "ann\n"])
def test_invalid_names(accounts: ConsoleAccounts, name: str) -> None:
    with pytest.raises(ConfigError, match="letters, digits"):
        accounts.add(name, ConsoleRole.VIEWER, PASSWORD)


@pytest.mark.parametrize("password", ["short", "x" * 1025, "Ann.Operator"])
def test_weak_passwords_are_refused_and_not_repeated(accounts: ConsoleAccounts, password: str) -> None:
    with pytest.raises(ConfigError, match="expected") as raised:
        accounts.add("ann.operator", ConsoleRole.VIEWER, password)
    assert password not in str(raised.value)


def test_a_name_is_used_once(accounts: ConsoleAccounts) -> None:
    accounts.add("ann", ConsoleRole.ADMIN, PASSWORD)
    with pytest.raises(ConfigError, match="exists"):
        accounts.add("ann", ConsoleRole.VIEWER, PASSWORD)


def test_the_first_account_is_an_admin(accounts: ConsoleAccounts) -> None:
    with pytest.raises(ConfigError, match="first account must be an admin"):
        accounts.add("ann", ConsoleRole.OPERATOR, PASSWORD)


def test_the_last_admin_stays(accounts: ConsoleAccounts) -> None:
    accounts.add("ann", ConsoleRole.ADMIN, PASSWORD)
    with pytest.raises(ConfigError, match="last admin"):
        accounts.remove("ann")
    with pytest.raises(ConfigError, match="last admin"):
        accounts.set_role("ann", ConsoleRole.VIEWER)
    accounts.add("bob", ConsoleRole.ADMIN, PASSWORD)
    accounts.remove("ann")
    assert [account.name for account in accounts.list()] == ["bob"]


def test_password_and_role_start_a_new_generation(accounts: ConsoleAccounts) -> None:
    generations = {accounts.add("ann", ConsoleRole.ADMIN, PASSWORD).generation}
    accounts.add("bob", ConsoleRole.ADMIN, PASSWORD)
    accounts.set_password("ann", "another long one")
    generations.add(accounts.find("ann").generation)  # type: ignore[union-attr]
    accounts.set_role("ann", ConsoleRole.VIEWER)
    generations.add(accounts.find("ann").generation)  # type: ignore[union-attr]
    assert len(generations) == 3


def test_an_unknown_account_is_named_with_those_that_exist(accounts: ConsoleAccounts) -> None:
    accounts.add("ann", ConsoleRole.ADMIN, PASSWORD)
    with pytest.raises(NotFound, match="no console account bob; expected one of: ann"):
        accounts.set_password("bob", PASSWORD)


def test_a_damaged_file_is_an_error_and_stays(accounts: ConsoleAccounts) -> None:
    accounts.path.write_text('{"accounts": [{"name":')
    with pytest.raises(ConfigError, match=r"accounts\.json"):
        accounts.list()
    assert accounts.path.read_text() == '{"accounts": [{"name":'


def test_hashes_are_salted_and_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "COST", 2**15)
    first, second = hash_password(PASSWORD), hash_password(PASSWORD)
    assert first != second
    assert verify_password(PASSWORD, first)
    assert not verify_password(PASSWORD + "x", first)
    assert not verify_password("x" * 2_000, first)
    assert first.startswith("scrypt$32768$8$3$"), "the cost that OWASP recommends"
    monkeypatch.setattr(passwords, "COST", 2**8)
    assert verify_password(PASSWORD, first), "a stored hash states its own cost"


def test_the_verifier_hashes_for_unknown_accounts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = hash_password(PASSWORD)
    verified: list[str] = []

    def count(password: str, stored: str) -> bool:
        verified.append(stored)
        return verify_password(password, stored)

    monkeypatch.setattr(passwords, "verify_password", count)

    async def verify() -> list[bool]:
        verifier = PasswordVerifier()
        return [
            await verifier.verify(password, known)
            for password, known in ((PASSWORD, stored), ("x", stored), ("x", None))
        ]

    assert asyncio.run(verify()) == [True, False, False]
    assert len(verified) == 3


def test_roles_include_lower_ones() -> None:
    assert ConsoleRole.ADMIN.includes(ConsoleRole.OPERATOR)
    assert ConsoleRole.OPERATOR.includes(ConsoleRole.OPERATOR)
    assert not ConsoleRole.VIEWER.includes(ConsoleRole.OPERATOR)
