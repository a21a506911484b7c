"""The help of every command: complete, in plain verb and noun phrases, and under the name that users type."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from ariane.cli import main
from ariane.cli.mqadmin import command_registry
from ariane.cli.mqadmin.option_parser import create_parser

ROOT = typer.main.get_command(main.app)


def commands(command: Any = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command of the tree with its path, the root and groups included."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


TREE = dict(commands())
ALL = pytest.mark.parametrize("path", TREE, ids=" ".join)


def visible_params(path: tuple[str, ...]) -> list[Any]:
    return [param for param in TREE[path].params if not getattr(param, "hidden", False)]


@functools.cache
def help_of(path: tuple[str, ...]) -> str:
    done = CliRunner().invoke(main.app, [*path, "--help"], prog_name="ariane", env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.output


def test_the_tree_contains_every_command() -> None:
    assert len(TREE) > 15
    assert {("up",), ("report",), ("pipeline", "run"), ("store", "cat"), ("archive", "run")} <= TREE.keys()


@ALL
def test_each_help_begins_with_a_verb_and_ends_with_a_period(path: tuple[str, ...]) -> None:
    summary = TREE[path].help.strip().split("\n\n")[0]
    verb = summary.split()[0]
    assert re.fullmatch(r"[A-Z][a-z]+", verb), summary
    assert not verb.endswith("s") and verb not in ("The", "A", "An", "Whole", "What"), "imperative, not 'Prints'"
    for paragraph in TREE[path].help.strip().split("\n\n"):
        assert paragraph.strip().endswith("."), paragraph


@ALL
def test_each_usage_line_begins_with_ariane(path: tuple[str, ...]) -> None:
    text = help_of(path)
    assert text.startswith(f"Usage: {' '.join(('ariane', *path))} ")
    assert "python -m" not in text


@ALL
def test_each_option_and_argument_has_a_help_text(path: tuple[str, ...]) -> None:
    for param in visible_params(path):
        # The default may follow the sentence.
        text = re.sub(r"\s+\[default: [^\]]*\]$", "", param.help or "")
        assert re.match(r"[A-Z]|messageDelayLevel", text), (param.name, text)
        assert text.endswith("."), (param.name, text)


@ALL
def test_each_option_with_a_value_names_its_format(path: tuple[str, ...]) -> None:
    for param in visible_params(path):
        if param.param_type_name == "option" and not param.is_flag:
            assert re.fullmatch(r"[A-Z][A-Z:=|,…]*", param.metavar or ""), param.name


@ALL
def test_each_help_fits_80_columns(path: tuple[str, ...]) -> None:
    assert max(map(len, help_of(path).splitlines())) <= 80


@ALL
def test_each_command_shows_examples_that_parse(path: tuple[str, ...]) -> None:
    """An example must name an existing command and existing options."""
    if hasattr(TREE[path], "commands") and path:
        return  # the commands of a group have the examples
    lines = help_of(path).partition("Examples:\n")[2].splitlines()
    assert lines, "no examples"
    for line in lines:
        words = line.partition("  # ")[0].split()
        assert words[0] == "ariane"
        command, words = ROOT, words[1:]
        while words and words[0] in getattr(command, "commands", {}):
            command, words = command.commands[words[0]], words[1:]
        assert not hasattr(command, "commands"), line
        if path == ("admin",):
            if words == ["help"]:
                continue
            mqadmin = command_registry.load(words[0])
            create_parser(mqadmin, "", "mqadmin").parse_args(words[1:])
            continue
        options = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
        assert {word for word in words if word.startswith("-")} <= options, line


def test_options_are_in_sections_and_help_closes_the_general_ones() -> None:
    text = help_of(("report",))
    sections = re.findall(r"^([A-Z][a-z ]+):$", text, re.MULTILINE)
    assert sections == ["Arguments", "Options", "Filter options", "Output options", "Examples"]
    general = text.partition("Options:\n")[2].partition("\n\n")[0].splitlines()
    assert general[-1].split()[:2] == ["-h,", "--help"]


def test_optional_and_repeated_arguments_are_marked_in_the_usage_line() -> None:
    assert help_of(("pipeline", "run")).startswith("Usage: ariane pipeline run [OPTIONS] [JOB...]\n")
    assert help_of(("store", "check")).startswith("Usage: ariane store check [OPTIONS] DIR\n")
