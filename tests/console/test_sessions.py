"""Sessions and limits of log-ins."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from ariane.console.security import login_limits
from ariane.console.security.accounts import sessions as module
from ariane.console.security.accounts.accounts import ConsoleAccount, ConsoleAccounts
from ariane.console.security.accounts.known_devices import KnownDevices
from ariane.console.security.accounts.sessions import SessionStore, csrf_token
from ariane.console.security.login_limits import LoginLimiter, TooManyAttempts
from ariane.console.security.roles import ConsoleRole
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


async def attempts(limiter: LoginLimiter, clock: FakeClock, count: int, address: str = "10.0.0.1") -> list[float]:
    """Try one after another; return the delay of each."""
    delays = []
    for _ in range(count):
        before_s = clock.monotonic()
        await limiter.admit("ann", address)
        delays.append(clock.monotonic() - before_s)
    return delays


@pytest.fixture
def delayed(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A clock that advances when an attempt is delayed."""
    monkeypatch.setattr(login_limits, "WAIT_MAX_S", 30.0)
    return FakeClock(is_auto=True)


def test_one_account_from_one_address_is_slowed_down_and_never_locked_out(delayed: FakeClock) -> None:
    async def run() -> None:
        limiter = LoginLimiter(clock=delayed)
        assert await attempts(limiter, delayed, 12) == [0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 30, 30]
        assert await attempts(limiter, delayed, 1, "10.0.0.2") == [0], "the owner, elsewhere, is not delayed"
        limiter.succeed("ann", "10.0.0.1")
        assert await attempts(limiter, delayed, 1) == [0], "the right password after the delay"

    asyncio.run(run())


def test_delays_end_with_the_window(delayed: FakeClock) -> None:
    async def run() -> None:
        limiter = LoginLimiter(clock=delayed)
        await attempts(limiter, delayed, 12)
        delayed.advance(900)
        assert await attempts(limiter, delayed, 6) == [0, 0, 0, 0, 0, 1]

    asyncio.run(run())


def test_many_accounts_from_one_address(delayed: FakeClock) -> None:
    async def run() -> None:
        limiter, delays = LoginLimiter(clock=delayed), []
        for number in range(25):
            before_s = delayed.monotonic()
            await limiter.admit(f"user{number}", "10.0.0.1")
            delays.append(delayed.monotonic() - before_s)
        assert delays == [0] * 20 + [1, 2, 4, 5, 5]

    asyncio.run(run())


def test_one_account_from_many_addresses_and_a_known_device(delayed: FakeClock) -> None:
    async def run() -> None:
        limiter = LoginLimiter(clock=delayed)
        for number in range(100):
            await limiter.admit("ann", f"10.0.{number}.1")
        assert await attempts(limiter, delayed, 2, "10.1.0.1") == [1, 2]
        before_s = delayed.monotonic()
        for _ in range(6):
            await limiter.admit("ann", "10.1.0.1", "device")
        assert delayed.monotonic() - before_s == 1, "only its own failures count"

    asyncio.run(run())


def test_simultaneous_attempts_do_not_escape_and_few_of_them_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_limits, "WAIT_MAX_S", 30.0)

    async def run() -> None:
        clock = FakeClock()
        limiter = LoginLimiter(clock=clock)
        tasks = [asyncio.create_task(limiter.admit("ann", "10.0.0.1")) for _ in range(100)]
        await asyncio.sleep(0)
        refused = [task for task in tasks if task.done() and task.exception() is not None]
        waiting = [task for task in tasks if not task.done()]
        assert (len(tasks) - len(refused) - len(waiting), len(waiting)) == (5, 4), "1, 3, 7 and 15 s; 31 s is too long"
        assert isinstance(refused[0].exception(), TooManyAttempts)
        clock.advance(30)
        await asyncio.gather(*waiting)

    asyncio.run(run())


def test_the_number_of_waiting_attempts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_limits, "WAIT_MAX_S", 30.0)
    monkeypatch.setattr(login_limits, "WAITING_MAX", 3)

    async def run() -> None:
        clock = FakeClock()
        limiter = LoginLimiter(clock=clock)
        for number in range(4):
            for _ in range(5):
                await limiter.admit("ann", f"10.0.0.{number}")
        waiting = [asyncio.create_task(limiter.admit("ann", f"10.0.0.{number}")) for number in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyAttempts):
            await limiter.admit("ann", "10.0.0.3")
        await limiter.admit("ann", "10.0.0.4")  # one without a delay
        clock.advance(1)
        await asyncio.gather(*waiting)

    asyncio.run(run())


def test_addresses_of_one_ipv6_network_count_together(clock: FakeClock) -> None:
    async def run() -> None:
        limiter = LoginLimiter(clock=clock)
        for number in range(1, 6):
            await limiter.admit("ann", f"2001:db8::{number}")
        with pytest.raises(TooManyAttempts):
            await limiter.admit("ann", "2001:db8::6")
        await limiter.admit("ann", "2001:db8:0:1::1")

    asyncio.run(run())


def test_success_takes_the_attempt_back(clock: FakeClock) -> None:
    async def run() -> None:
        limiter = LoginLimiter(clock=clock)
        for _ in range(200):
            await limiter.admit("ann", "10.0.0.1")
            limiter.succeed("ann", "10.0.0.1")
        assert len(limiter._attempts) == 0

    asyncio.run(run())


def test_the_memory_is_bounded(clock: FakeClock) -> None:
    async def run() -> None:
        limiter = LoginLimiter(clock=clock, entries_max=30)
        for number in range(90):
            await limiter.admit(f"user{number}", f"10.{number}.0.1")
        assert len(limiter._attempts) == 30

    asyncio.run(run())


def test_known_devices(tmp_path: Path) -> None:
    devices = KnownDevices(tmp_path / "devices.key")
    token = devices.issue("ann")
    assert token.startswith(devices.find("ann", token) + ".")
    assert KnownDevices(tmp_path / "devices.key").find("ann", token), "survives a restart"
    other = KnownDevices(tmp_path / "other.key").issue("ann")
    assert [
        devices.find("bob", token),
        devices.find("ann", other),
        devices.find("ann", ""),
        devices.find("ann", "."),
    ] == [""] * 4
    assert devices.find("ann", token + "\N{SNOWMAN}") == ""
