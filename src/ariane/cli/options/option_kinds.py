"""Options by the kind of their value: each kind has its parser and its name in the help.

    retries: Annotated[int | None, number_option(minimum=0, help="Retries before …")] = None

Their arguments are the option's names (by default that of the parameter), its help, and the section of the help.
"""

from __future__ import annotations

from typing import Any

import typer

from ariane.cli.options import shared_options


def number_option(
    *names: str, minimum: int, help: str, maximum: int | None = None, metavar: str = "N", panel: str | None = None
) -> Any:
    """Return an option with a whole number."""
    return _option(names, shared_options.whole_number(minimum, maximum), metavar, help, panel)


def seconds_option(*names: str, minimum: float, help: str, panel: str | None = None) -> Any:
    """Return an option with a duration in seconds."""
    return _option(names, shared_options.seconds(minimum), "SECONDS", help, panel)


def port_option(*names: str, help: str, panel: str | None = None) -> Any:
    """Return an option with a port."""
    return _option(names, shared_options.port, "PORT", help, panel)


def topic_option(*names: str, help: str, panel: str | None = None) -> Any:
    """Return an option with the name of a topic."""
    return _option(names, shared_options.topic_name, "TOPIC", help, panel)


def group_option(*names: str, help: str, panel: str | None = None) -> Any:
    """Return an option with the name of a group."""
    return _option(names, shared_options.group_name, "GROUP", help, panel)


def path_option(*names: str, metavar: str, help: str, panel: str | None = None) -> Any:
    """Return an option with a local path."""
    return _option(names, shared_options.local_path, metavar, help, panel)


def time_option(*names: str, help: str, panel: str | None = None) -> Any:
    """Return an option with a time as `parse_time` reads it."""
    return _option(names, None, "DURATION|TIME", help, panel)


def text_option(*names: str, metavar: str, help: str, panel: str | None = None, **settings: Any) -> Any:
    """Return an option with a text that is not blank."""
    return _option(names, shared_options.non_blank, metavar, help, panel, **settings)


def _option(
    names: tuple[str, ...], parser: Any, metavar: str, help_text: str, panel: str | None, **settings: Any
) -> Any:
    return typer.Option(*names, parser=parser, metavar=metavar, help=help_text, rich_help_panel=panel, **settings)
