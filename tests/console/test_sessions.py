"""Sessions and limits of log-ins."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ariane.console.security import sessions as module
from ariane.console.security.accounts import ConsoleAccount, ConsoleAccounts
from ariane.console.security.login_limits import LoginLimiter
from ariane.console.security.roles import ConsoleRole
from ariane.console.security.sessions import SessionStore, csrf_token
from ariane.errors import NotFound
from ariane.testing.clock import FakeClock

PASSWORD = "correct horse battery"
HOUR_S = 3_600


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def accounts(tmp_path: Path) -> ConsoleAccounts:
    accounts = ConsoleAccounts(tmp_path)
    accounts.add("ann", ConsoleRole.ADMIN, PASSWORD)
    accounts.add("bob", ConsoleRole.ADMIN, PASSWORD)
    return accounts


@pytest.fixture
def sessions(tmp_path: Path, accounts: ConsoleAccounts, clock: FakeClock) -> SessionStore:
    return SessionStore(tmp_path, accounts=accounts, clock=clock)


def test_a_full_disk_does_not_prevent_reading(
    sessions: SessionStore, accounts: ConsoleAccounts, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = sessions.create(account(accounts), address="a", user_agent="b")

    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(module, "write_document", fail)
    clock.advance(61)
    assert sessions.authenticate(token, "a") is not None
    accounts.set_password("ann", "another long password")
    assert sessions.authenticate(token, "a") is None


def account(accounts: ConsoleAccounts, name: str = "ann") -> ConsoleAccount:
    found = accounts.find(name)
    assert found is not None
    return found


def log_in(sessions: SessionStore, accounts: ConsoleAccounts, name: str = "ann") -> str:
    return sessions.create(account(accounts, name), address="10.0.0.1", user_agent="Firefox")


def test_a_session_survives_a_restart_without_its_token_in_the_file(
    sessions: SessionStore, accounts: ConsoleAccounts, tmp_path: Path, clock: FakeClock
) -> None:
    token = log_in(sessions, accounts)
    assert token not in sessions.path.read_text()
    assert stat.S_IMODE(sessions.path.stat().st_mode) == 0o600
    restarted = SessionStore(tmp_path, accounts=accounts, clock=clock)
    result = restarted.authenticate(token, "10.0.0.2")
    assert result is not None
    assert (result[0].address, result[1].name) == ("10.0.0.2", "ann")
    assert restarted.authenticate(token + "x", "10.0.0.2") is None
    assert restarted.authenticate(result[0].token_hash, "10.0.0.2") is None


def test_idle_sessions_end(sessions: SessionStore, accounts: ConsoleAccounts, clock: FakeClock) -> None:
    token = log_in(sessions, accounts)
    for _ in range(3):
        clock.advance(7 * HOUR_S)
        assert sessions.authenticate(token, "a") is not None
    clock.advance(8 * HOUR_S + 1)
    assert sessions.authenticate(token, "a") is None
    assert sessions.list() == []


def test_old_sessions_end_although_they_are_used(
    sessions: SessionStore, accounts: ConsoleAccounts, clock: FakeClock
) -> None:
    token = log_in(sessions, accounts)
    for _ in range(7 * 24 // 6):
        clock.advance(6 * HOUR_S)
        assert sessions.authenticate(token, "a") is not None
    clock.advance(1)
    assert sessions.authenticate(token, "a") is None


@pytest.mark.parametrize("change", ["password", "role", "removal"])
def test_changes_of_the_account_end_its_sessions(
    change: str, sessions: SessionStore, accounts: ConsoleAccounts
) -> None:
    tokens = {name: log_in(sessions, accounts, name) for name in ("ann", "bob")}
    if change == "password":
        accounts.set_password("ann", "another password")
    elif change == "role":
        accounts.set_role("ann", ConsoleRole.VIEWER)
    else:
        accounts.remove("ann")
    assert sessions.authenticate(tokens["ann"], "a") is None
    assert sessions.authenticate(tokens["bob"], "a") is not None
    assert [session.account for session in sessions.list()] == ["bob"]


def test_revoking(sessions: SessionStore, accounts: ConsoleAccounts) -> None:
    first, second, foreign = log_in(sessions, accounts), log_in(sessions, accounts), log_in(sessions, accounts, "bob")
    session_id = sessions.authenticate(foreign, "a")[0].id  # type: ignore[index]
    with pytest.raises(NotFound):
        sessions.revoke(session_id, account="ann")
    sessions.revoke(session_id)
    assert sessions.authenticate(foreign, "a") is None
    current = sessions.authenticate(second, "a")[0].id  # type: ignore[index]
    assert sessions.revoke_all("ann", keep=current) == 1
    assert sessions.authenticate(first, "a") is None
    assert sessions.authenticate(second, "a") is not None


def test_the_number_of_sessions_is_bounded(
    sessions: SessionStore, accounts: ConsoleAccounts, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SESSIONS_PER_ACCOUNT_MAX", 3)
    tokens = []
    for _ in range(5):
        clock.advance(1)
        tokens.append(log_in(sessions, accounts))
    assert [sessions.authenticate(token, "a") is not None for token in tokens] == [False, False, True, True, True]


def test_times_of_use_are_saved_once_a_minute(
    sessions: SessionStore, accounts: ConsoleAccounts, clock: FakeClock
) -> None:
    token = log_in(sessions, accounts)
    before = sessions.path.read_bytes()
    clock.advance(59)
    sessions.authenticate(token, "a")
    assert sessions.path.read_bytes() == before
    clock.advance(1)
    sessions.authenticate(token, "a")
    assert sessions.path.read_bytes() != before


def test_csrf_tokens_differ_between_sessions() -> None:
    assert csrf_token("a") != csrf_token("b")
    assert csrf_token("a") == csrf_token("a")


# --- limits of log-ins ---


def attempts(limiter: LoginLimiter, account: str, address: str, count: int) -> list[int]:
    return [limiter.begin(account, address) for _ in range(count)]


def test_one_account_from_one_address(clock: FakeClock) -> None:
    limiter = LoginLimiter(clock=clock)
    assert attempts(limiter, "ann", "10.0.0.1", 6) == [0, 0, 0, 0, 0, 900]
    assert limiter.begin("ann", "10.0.0.2") == 0, "the owner, elsewhere, is not locked out"
    clock.advance(899.5)
    assert limiter.begin("ann", "10.0.0.1") == 1
    clock.advance(0.5)
    assert limiter.begin("ann", "10.0.0.1") == 0


def test_many_accounts_from_one_address(clock: FakeClock) -> None:
    limiter = LoginLimiter(clock=clock)
    waits = [limiter.begin(f"user{number}", "10.0.0.1") for number in range(21)]
    assert waits == [0] * 20 + [900]


def test_one_account_from_many_addresses(clock: FakeClock) -> None:
    limiter = LoginLimiter(clock=clock)
    waits = [limiter.begin("ann", f"10.0.{number}.1") for number in range(101)]
    assert waits == [0] * 100 + [900]


def test_addresses_of_one_ipv6_network_count_together(clock: FakeClock) -> None:
    limiter = LoginLimiter(clock=clock)
    assert [limiter.begin("ann", f"2001:db8::{number}") for number in range(1, 7)][-1] == 900
    assert limiter.begin("ann", "2001:db8:0:1::1") == 0


def test_success_takes_the_attempt_back(clock: FakeClock) -> None:
    limiter = LoginLimiter(clock=clock)
    for _ in range(200):
        assert limiter.begin("ann", "10.0.0.1") == 0
        limiter.succeed("ann", "10.0.0.1")


def test_the_memory_is_bounded(clock: FakeClock) -> None:
    limiter = LoginLimiter(clock=clock, entries_max=30)
    for number in range(1_000):
        limiter.begin(f"user{number}", f"10.{number // 250}.{number % 250}.1")
    assert len(limiter._attempts) == 30
