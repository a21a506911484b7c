"""Credentials of brokers with access control as command-line options."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from ariane.cli import auth_options
from ariane.cli.main import app
from ariane.errors import ConfigError


def test_access_key_and_secret_key_are_required_together() -> None:
    assert auth_options.source_options("n:1", "", "") == {"namesrv": "n:1"}
    assert auth_options.source_options("n:1", "a", "s") == {"namesrv": "n:1", "accessKey": "a", "secretKey": "s"}
    assert auth_options.client_settings("", "") is None
    settings = auth_options.client_settings("a", "s")
    assert settings is not None
    assert settings.credentials is not None
    for item in (("a", ""), ("", "s")):
        with pytest.raises(ConfigError, match="specify both"):
            auth_options.client_settings(*item)


@pytest.mark.parametrize("command", [("pipeline", "run"), ("archive", "run"), ("collect",), ("replay",)])
def test_commands_that_connect_to_brokers_accept_credentials(command: tuple[str, ...]) -> None:
    output = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert output.exit_code == 0
    assert "--access-key" in output.output
    assert "--secret-key" in output.output
