"""Ports that `ariane up` chooses before it starts its servers."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from ariane.cli.up import server_ports
from ariane.cli.up.up_command import _check_distinct
from ariane.errors import ConfigError, UsageError
from ariane.net.listening import fixed_ports


@pytest.fixture
def used() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield int(server.getsockname()[1])


def test_a_port_that_the_user_named_is_not_replaced(used: int) -> None:
    with pytest.raises(ConfigError, match=f"--console-port.*{used}.*in use"):
        server_ports.choose_port("--console-port", used, may_move=False, print_line=print)


def test_a_port_without_permission_is_not_reported_as_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = PermissionError(13, "Permission denied")
    monkeypatch.setattr(server_ports, "port_fault", lambda port, offsets: (80, denied))
    for may_move in (False, True):
        with pytest.raises(ConfigError, match="port 80 is not permitted"):
            server_ports.choose_port("--broker-port", 82, may_move=may_move, print_line=print)


def test_an_adjacent_broker_port_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    used = OSError(98, "Address already in use")
    monkeypatch.setattr(server_ports, "port_fault", lambda port, offsets: (10909, used))
    with pytest.raises(ConfigError, match="--broker-port = 10911: port 10909 is in use by another program"):
        server_ports.choose_port("--broker-port", 10911, may_move=False, print_line=print)


def test_a_demo_moves_to_a_free_port_and_prints_it(used: int) -> None:
    lines: list[str] = []
    port = server_ports.choose_port("--broker-port", used, may_move=True, print_line=lines.append)
    assert port != used
    assert lines == [f"port {used} is in use, the demo uses {port}"]


def test_the_default_port_of_the_console_gives_way_to_the_next_free_one(used: int) -> None:
    lines: list[str] = []
    reserved = {used + 1}
    port = server_ports.choose_next_port("--console-port", used, lines.append, reserved, server="the console")
    assert port > used + 1
    assert lines == [f"port {used} is in use, the console uses {port}"]


def test_a_free_default_port_is_used_without_a_line(used: int) -> None:
    lines: list[str] = []
    port = server_ports.choose_next_port("--console-port", used, lambda line: None, (), server="the console")
    assert server_ports.choose_next_port("--console-port", port, lines.append, (), server="it") == port
    assert lines == []


@pytest.mark.parametrize(
    ("namesrv", "broker", "console"), [(10909, 10911, None), (9876, 10911, 10912), (9876, 0, 9876)]
)
def test_two_servers_cannot_have_one_port(namesrv: int, broker: int, console: int | None) -> None:
    with pytest.raises(UsageError, match="specify another port"):
        _check_distinct(namesrv, broker, console)


def test_a_chosen_port_is_not_one_of_outgoing_connections_and_has_free_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    def used_twice(port: int, offsets: tuple[int, ...]) -> tuple[int, OSError] | None:
        tried.append(port)
        return (port, OSError(98, "Address already in use")) if len(tried) < 3 else None

    monkeypatch.setattr(fixed_ports, "port_fault", used_twice)
    port = fixed_ports.choose_free_port((-2, 0, 1))
    assert [port] == tried[2:]
    assert 12_000 <= port < 32_000  # Linux gives outgoing connections ports from 32768 on


def test_no_free_port_is_an_error_that_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_ports, "port_fault", lambda port, offsets: (port, OSError(98, "Address already in use")))
    with pytest.raises(ConfigError, match="--console-port = 0: no free port found from 12000 to 31999; specify one"):
        server_ports.choose_port("--console-port", 0, may_move=False, print_line=print)


def test_any_free_port_is_distinct() -> None:
    _check_distinct(0, 0, 0)
    _check_distinct(9876, 10911, 8080)
