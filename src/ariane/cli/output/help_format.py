"""Formats `--help` as plain text in sections, like kcat and nats: no boxes, so that names and addresses can be copied.

    Usage: ariane report [OPTIONS] NAME

      Print a report from the pipeline's tables.

    Options:                    options without a panel
    Filter options:             one section per `rich_help_panel`
    Examples:                   the epilog, with its line breaks

Typer prints such sections only in boxes of rich (`rich_markup_mode`); without markup it ignores the panels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from ariane.cli.options.option_groups import expand_groups

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])

DEFAULT_SECTION = "Options"
# An option whose left side is wider has its text on the next line.
LEFT_WIDTH_MAX = 28


class HelpCommand(TyperCommand):
    """A command with sections in its help."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return _usage_pieces(self, ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_sections(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_epilog(self.epilog, formatter)


class HelpGroup(TyperGroup):
    """A group of commands with sections in its help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        _write_sections(self, ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is None or command.hidden:
                continue
            # Typer stores a placeholder object where no panel is set.
            section = getattr(command, "rich_help_panel", None)
            title = section if isinstance(section, str) else "Commands"
            sections.setdefault(title, []).append((name, command.get_short_help_str(limit=LEFT_WIDTH_MAX * 3)))
        width = max((len(name) for rows in sections.values() for name, _ in rows), default=0)
        for title, rows in sections.items():
            with formatter.section(title):
                # The same left column in every section.
                formatter.write_dl([(f"{name:{width}}", text) for name, text in rows])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_epilog(self.epilog, formatter)


def _usage_pieces(command: TyperCommand, ctx: Any) -> list[str]:
    """Return `[OPTIONS]` and the arguments: optional ones in brackets, repeatable ones with dots."""
    pieces = [command.options_metavar] if command.options_metavar else []
    for param in command.get_params(ctx):
        if param.param_type_name == "argument" and not getattr(param, "hidden", False):
            name = _argument_name(param) + ("..." if param.nargs != 1 else "")
            pieces.append(name if param.required else f"[{name}]")
    return pieces


def _write_sections(command: TyperCommand | TyperGroup, ctx: Any, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], DEFAULT_SECTION: []}
    last = []
    for param in command.get_params(ctx):
        if getattr(param, "hidden", False):
            continue
        if param.param_type_name == "argument":
            sections["Arguments"].append((_argument_name(param), getattr(param, "help", None) or ""))
            continue
        record = param.get_help_record(ctx)
        if record is None:
            continue
        names, text = record
        # Shorter, because a line of help has 80 columns.
        row = (names, text.replace("[env var: ", "[env: "))
        if param.name == "help":
            last.append(row)
            continue
        panel = getattr(param, "rich_help_panel", None)
        sections.setdefault(panel if isinstance(panel, str) else DEFAULT_SECTION, []).append(row)
    # --help closes the general options.
    sections[DEFAULT_SECTION] += last
    for title, rows in sections.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows, col_max=LEFT_WIDTH_MAX)


def _argument_name(param: Any) -> str:
    return str(param.metavar or (param.name or "").upper())


def _write_epilog(epilog: str | None, formatter: Any) -> None:
    """Write the examples as they are: their lines are commands to copy, which must not be wrapped."""
    if epilog:
        formatter.write_paragraph()
        formatter.write("\n".join(epilog.strip("\n").splitlines()) + "\n")


def examples(*lines: str) -> str:
    """Return an epilog with example commands, `command  # remark`, whose optional remarks are aligned."""
    pairs = [line.partition("  # ") for line in lines]
    width = max(len(command) for command, _, _ in pairs)
    rows = (f"  {command:{width}}  # {remark}" if remark else f"  {command}" for command, _, remark in pairs)
    return "Examples:\n" + "\n".join(rows)


class Application(typer.Typer):
    """An application whose commands have sections in their help, and may have groups of options as parameters."""

    def command(  # type: ignore[override]
        self, name: str, *lines: str, **settings: Any
    ) -> Callable[[CommandFunction], CommandFunction]:
        """Add a command, with lines of examples in its help, and further settings of Typer."""
        return _with_groups(super().command(name, cls=HelpCommand, epilog=examples(*lines), **settings))

    def callback(self, *args: Any, **settings: Any) -> Callable[[CommandFunction], CommandFunction]:
        return _with_groups(super().callback(*args, **settings))


def _with_groups(register: Callable[[Any], Any]) -> Callable[[CommandFunction], CommandFunction]:
    def decorate(function: CommandFunction) -> CommandFunction:
        register(expand_groups(function))
        return function

    return decorate


def create_app(help_text: str, **settings: Any) -> Application:
    """Return an application whose commands use this help format."""
    return Application(cls=HelpGroup, help=help_text, no_args_is_help=True, add_completion=False, **settings)
