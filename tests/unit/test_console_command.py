"""`ariane console` and `ariane console user` without a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("fastapi", reason="needs fastapi: pip install 'ariane[console]'")

from ariane.cli import main
from ariane.cli.servers import console_command
from ariane.cli.servers.process import run_server
from ariane.console.security.accounts.accounts import ConsoleAccounts
from ariane.console.settings import ConsoleSettings
from ariane.errors import ConfigError, NotFound, UsageError

PASSWORD = "a long enough password"


def user(data: Path, *arguments: str, password: str = PASSWORD) -> Result:
    line = ["console", "user", *arguments, "--data", str(data)]
    return CliRunner().invoke(main.app, line, input=f"{password}\n", catch_exceptions=False)


def settings_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> ConsoleSettings:
    """Return the settings that a command line results in."""
    seen: list[ConsoleSettings] = []
    monkeypatch.setattr(console_command, "_serving", seen.append)
    monkeypatch.setattr(run_server, "serve", lambda create_server, **_options: create_server())
    done = CliRunner().invoke(main.app, ["console", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return seen[0]


def test_accounts_are_created_listed_changed_and_removed(tmp_path: Path) -> None:
    assert user(tmp_path, "add", "alice", "--role", "admin").exit_code == 0
    assert user(tmp_path, "add", "bob").exit_code == 0
    assert user(tmp_path, "role", "bob", "operator").exit_code == 0
    rows = json.loads(user(tmp_path, "list", "--json").stdout)
    assert [(row["name"], row["role"]) for row in rows] == [("alice", "admin"), ("bob", "operator")]
    former = ConsoleAccounts(tmp_path).find("bob")
    assert user(tmp_path, "password", "bob", password="another long password").exit_code == 0
    changed = ConsoleAccounts(tmp_path).find("bob")
    assert former and changed and former.password_hash != changed.password_hash
    assert user(tmp_path, "remove", "bob").exit_code == 0
    assert "bob" not in user(tmp_path, "list").stdout


def test_passwords_are_in_no_output_and_not_in_clear_text_on_disk(tmp_path: Path) -> None:
    done = user(tmp_path, "add", "alice", "--role", "admin")
    assert PASSWORD not in done.output
    assert PASSWORD not in (tmp_path / "accounts.json").read_text()
    assert (tmp_path / "accounts.json").stat().st_mode & 0o077 == 0


def test_errors_name_the_value_and_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected at least 10 characters"):
        user(tmp_path, "add", "alice", password="short")
    with pytest.raises(UsageError, match="standard input is empty"):
        user(tmp_path, "add", "alice", password="")
    with pytest.raises(NotFound, match="alice"):
        user(tmp_path, "remove", "alice")
    assert "expected one of viewer, operator, admin" in user(tmp_path, "add", "alice", "--role", "root").output
    assert "no accounts in" in user(tmp_path, "list").stdout


def test_options_become_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = ("--access-key", "rocketmq", "--secret-key", "12345678")
    where = ("-n", "10.0.0.1:9876", "--host", "10.0.0.2", "--insecure", "--port", "8081", "--data", str(tmp_path))
    settings = settings_of(monkeypatch, *where, *keys, "--read-only", "--require-login", "--trace-topic", "MyTrace")
    assert (settings.namesrv, settings.host, settings.port) == ("10.0.0.1:9876", "10.0.0.2", 8081)
    assert [gap.name for gap in settings.gaps] == ["encryption"]
    assert settings.client is not None
    assert settings.client.credentials is not None
    assert settings.client.credentials.access_key == "rocketmq"
    assert (settings.is_read_only, settings.is_login_required, settings.trace_topic) == (True, True, "MyTrace")
    assert settings.data_dir == tmp_path


def test_defaults_are_those_of_ariane_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ARIANE_HOME", str(tmp_path))
    settings = settings_of(monkeypatch)
    assert (settings.namesrv, settings.host, settings.port) == ("127.0.0.1:9876", "127.0.0.1", 8080)
    assert settings.gaps == ()
    assert (settings.data_dir, settings.tables_dir) == (tmp_path / "console", tmp_path / "tables")


def test_console_and_its_accounts_are_of_the_same_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    default, home = tmp_path / "default", tmp_path / "home"
    monkeypatch.setenv("ARIANE_HOME", str(default))
    line = ["console", "user", "add", "alice", "--role", "admin", "--home", str(home)]
    assert CliRunner().invoke(main.app, line, input=f"{PASSWORD}\n", catch_exceptions=False).exit_code == 0
    data = settings_of(monkeypatch, "--home", str(home)).data_dir
    assert data == home / "console"
    assert ConsoleAccounts(data).find("alice")
    assert not default.exists()
    # A pipeline writes its tables there: the accounts stay those of the console.
    (home / "journeys").mkdir()
    (home / "journeys" / "CURRENT").touch()
    assert settings_of(monkeypatch, "--home", str(home)).data_dir == data


def test_a_directory_of_tables_has_no_console_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    default, tables = tmp_path / "default", tmp_path / "tables"
    monkeypatch.setenv("ARIANE_HOME", str(default))
    (tables / "journeys").mkdir(parents=True)
    (tables / "journeys" / "CURRENT").touch()
    settings = settings_of(monkeypatch, "--home", str(tables))
    assert (settings.data_dir, settings.tables_dir) == (default / "console", tables)


def test_options_of_the_console_before_a_subcommand_are_refused() -> None:
    with pytest.raises(UsageError, match="is an option of a console that is run"):
        CliRunner().invoke(main.app, ["console", "--read-only", "user", "list"], catch_exceptions=False)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        console_command.importlib.util, "find_spec", lambda name: None if name == "uvicorn" else object()
    )
    assert (
        console_command.install_fault() == "missing packages: uvicorn; install them with pip install 'ariane[console]'"
    )
