"""Account and TLS of brokers as command-line options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ariane.cli.main import app
from ariane.cli.mqadmin.main import main as mqadmin
from ariane.cli.options.access_options import NO_ACCESS, AccessOptions, source_options
from ariane.cli.options.tls_options import TLS_OPTIONS
from ariane.errors import UsageError


def _commands(group: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in getattr(group, "commands", {}).items():
        yield (*names, name), command
        yield from _commands(command, (*names, name))


COMMANDS = {" ".join(names): command for names, command in _commands(typer.main.get_command(app))}


def options_of(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if "--namesrv" in options_of(command)])
def test_every_command_that_connects_has_all_options(name: str) -> None:
    # A broker and `up` connect as servers.
    if name not in ("broker", "up"):
        assert {"--access-key", "--secret-key", *(option.flag for option in TLS_OPTIONS)} <= options_of(COMMANDS[name])


def test_commands_that_connect_were_found() -> None:
    connecting = [name for name, command in COMMANDS.items() if "--tls" in options_of(command)]
    assert len(connecting) > 50
    assert {"cat", "bench", "console", "collect", "exporter", "replay", "pipeline run", "topic list"} <= {*connecting}


def test_access_key_and_secret_key_are_required_together() -> None:
    assert NO_ACCESS.client_settings() is None
    assert "s3cret" not in repr(AccessOptions(access_key="a", secret_key="s3cret"))
    settings = AccessOptions(access_key="a", secret_key="s").client_settings()
    assert settings is not None
    assert settings.credentials is not None
    for keys in ({"access_key": "a"}, {"secret_key": "s"}):
        with pytest.raises(UsageError, match="specify both"):
            AccessOptions(**keys)


def test_spark_receives_account_and_tls() -> None:
    assert source_options("n:1", NO_ACCESS) == {"namesrv": "n:1"}
    access = AccessOptions(access_key="a", secret_key="s", use_tls=True, tls_verify="false")
    assert source_options("n:1", access, ["retries=3"]) == {
        "namesrv": "n:1",
        "accessKey": "a",
        "secretKey": "s",
        "useTls": "true",
        "tlsVerify": "false",
        "retries": "3",
    }
    for option, fix in (("useTls=true", "use --tls or ARIANE_TLS"), ("tlsCaFile=x", "use --tls-ca-file")):
        with pytest.raises(UsageError, match=fix):
            source_options("n:1", NO_ACCESS, [option])


@pytest.mark.parametrize(
    ("arguments", "environment", "fault"),
    [
        (["--tls-ca-file", "x"], {}, "--tls-ca-file = 'x': has no effect without --tls:"),
        (["--tls", "--tls-ca-file", "/nowhere.pem"], {}, "--tls-ca-file = '/nowhere.pem': cannot be used"),
        (["--tls", "--tls-key-file", "x"], {}, "--tls-key-file = 'x': has no effect without --tls-cert-file"),
        ([], {"ARIANE_TLS_CERT_FILE": "x"}, "--tls-cert-file = 'x': has no effect without --tls:"),
        (["--tls-ca-file", "/nowhere.pem"], {"ARIANE_TLS": "true"}, "cannot be used on this machine"),
    ],
)
def test_options_that_cannot_be_used_are_refused(arguments: list[str], environment: dict[str, str], fault: str) -> None:
    result = CliRunner().invoke(app, ["topic", "list", *arguments], env=environment)
    assert isinstance(result.exception, UsageError)
    assert fault in str(result.exception)


def test_an_unknown_mode_of_verification_is_refused() -> None:
    result = CliRunner().invoke(app, ["cat", "T", "--tls", "--tls-verify", "no"], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "'no': expected true, ca or false." in result.output


@pytest.mark.parametrize(
    ("arguments", "variable", "fault"),
    [
        (["--tlsCaFile", "x"], "", "--tlsCaFile = 'x': has no effect without --useTls:"),
        (["--useTls", "--tlsVerify", "no"], "", "argument --tlsVerify: 'no': expected true, ca or false"),
        (["--tlsCaFile", "/nowhere.pem"], "yes", "--tlsCaFile = '/nowhere.pem': cannot be used"),
        ([], "maybe", "ARIANE_TLS = 'maybe': expected true or false"),
    ],
)
def test_mqadmin_has_the_same_options_in_javas_style(
    arguments: list[str],
    variable: str,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ARIANE_TLS", variable)
    assert mqadmin(["topicList", *arguments]) == 2
    assert fault in capsys.readouterr().err
