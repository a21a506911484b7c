"""`mqadmin`: command lines, help, errors and exit statuses, without a server."""

from __future__ import annotations

import json

import pytest

from ariane.cli.mqadmin import command_registry, completion
from ariane.cli.mqadmin.main import main
from ariane.cli.mqadmin.option_parser import create_parser
from ariane.cli.mqadmin.tools_account import read_account
from ariane.errors import ConfigError, UsageError

COMMANDS = {command.name: command for command in command_registry.load_all()}


def parse(name: str, *arguments: str):
    return create_parser(COMMANDS[name], "Do it.", "mqadmin").parse_args(arguments)


def test_registry_and_modules_have_the_same_commands() -> None:
    assert list(command_registry.REGISTRY) == list(COMMANDS)
    for alias, name in command_registry.ALIASES.items():
        assert name not in COMMANDS or alias in COMMANDS[name].aliases


@pytest.mark.parametrize("name", COMMANDS)
def test_options_of_a_command_are_unique_and_described(name: str) -> None:
    options = COMMANDS[name].options
    assert len({option.long for option in options}) == len(options)
    shorts = [option.short for option in options if option.short]
    assert len(set(shorts)) == len(shorts)
    assert not {"h", "n"} & set(shorts)
    assert all(option.help.endswith(".") and " " not in option.long for option in options)
    assert set(COMMANDS[name].one_of) <= {option.long for option in options}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_80_columns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_request:
        main([name, "-h"])
    assert exit_request.value.code == 0
    printed = capsys.readouterr().out
    assert command_registry.REGISTRY[name].summary.split()[0] in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_the_list_of_commands_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["help"]) == main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS)
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.parametrize(
    "arguments",
    [
        ("-b", "h:1", "-t", "orders", "-r", "4"),
        ("-bh:1", "-torders", "-r4"),
        ("--brokerAddr", "h:1", "--topic", "orders", "--readQueueNums", "4"),
        ("--brokerAddr=h:1", "--topic=orders", "--readQueueNums=4"),
    ],
)
def test_all_spellings_of_options_are_understood(arguments: tuple[str, ...]) -> None:
    options = parse("updateTopic", *arguments)
    assert (options.brokerAddr, options.topic, options.readQueueNums, options.writeQueueNums) == ("h:1", "orders", 4, 8)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("-t", "orders"), "expected --brokerAddr or --clusterName"),
        (("-t", "orders", "-b", "h:1", "-c", "C"), "expected --brokerAddr or --clusterName, not both"),
        (("-b", "h:1"), "-t/--topic"),
        (("-b", "h:1", "-t", "orders", "-r", "none"), "'none': expected a number of queues"),
        (("-b", "h:1", "-t", "orders", "-p", "7"), "'7': expected 2 (write), 4 (read) or 6"),
        (("-b", "h:1", "-t", "orders", "--read", "4"), "--read"),  # abbreviations would change meaning with new options
        (("-b", "h:1", "-t", "orders", "--watch", "0"), "expected at least 0.1 seconds"),
    ],
)
def test_invalid_command_lines_name_the_reason(
    arguments: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["updateTopic", *arguments]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert "mqadmin updateTopic --help" in error


def test_names_are_compared_without_regard_to_case_and_misspelt_ones_get_suggestions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command_registry.find_name("TOPICLIST") == "topicList"
    assert main(["topicLst"]) == 2
    assert "did you mean topicList" in capsys.readouterr().err


def test_an_unreachable_name_server_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topicList", "-n", "127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_completion_scripts_contain_all_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in COMMANDS)
    assert "readQueueNums" in script


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "bash, zsh, fish" in capsys.readouterr().err


def test_the_account_comes_from_options_environment_or_tools_yml(tmp_path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/tools.yml").write_text(json.dumps({"accessKey": "file", "secretKey": "s"}))
    environment = {"ROCKETMQ_HOME": str(tmp_path)}
    keys = {"ARIANE_ACCESS_KEY": "env", "ARIANE_SECRET_KEY": "s"}
    assert read_account(None, None, {}) is None
    assert read_account(None, None, {"ROCKETMQ_HOME": str(tmp_path / "other")}) is None
    for given, expected in ((environment, "file"), (environment | keys, "env")):
        account = read_account(None, None, given)
        assert account is not None
        assert account.access_key == expected
    account = read_account("option", "s", environment | keys)
    assert account is not None
    assert account.access_key == "option"
    with pytest.raises(UsageError, match="--secretKey"):
        read_account("option", None, {})
    (tmp_path / "conf/tools.yml").write_text("accessKey: x")
    with pytest.raises(ConfigError, match=r"tools\.yml"):
        read_account(None, None, environment)
