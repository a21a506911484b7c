"""Options by the kind of their value: each kind has its parser and its name in the help.

    retries: Annotated[int | None, number_option(minimum=0, help="Retries before …")] = None

    dry_run: Annotated[bool, flag_option("--dry-run", "Only count the missing rows.")] = False

Their arguments are the option's names (by default that of the parameter), its help, and the section of the help.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import typer

from ariane.cli.options import shared_options


def value_option(*names: str, parser: Any, metavar: str, help: str, panel: str | None = None, **settings: Any) -> Any:
    return typer.Option(*names, parser=parser, metavar=metavar, help=help, rich_help_panel=panel, **settings)


port_option = partial(value_option, parser=shared_options.port, metavar="PORT")
topic_option = partial(value_option, parser=shared_options.topic_name, metavar="TOPIC")
group_option = partial(value_option, parser=shared_options.group_name, metavar="GROUP")
path_option = partial(value_option, parser=shared_options.local_path)
time_option = partial(value_option, parser=None, metavar="DURATION|TIME")  # as `parse_time` reads it
text_option = partial(value_option, parser=shared_options.non_blank)


def number_option(*names: str, minimum: int, maximum: int | None = None, metavar: str = "N", **settings: Any) -> Any:
    return value_option(*names, parser=shared_options.whole_number(minimum, maximum), metavar=metavar, **settings)


def seconds_option(*names: str, minimum: float, **settings: Any) -> Any:
    return value_option(*names, parser=shared_options.seconds(minimum), metavar="SECONDS", **settings)


def flag_option(name: str, help: str, *, short: str | None = None, panel: str | None = None) -> Any:
    """Return an option without a value. Without `name`, Typer would add the opposite, `--no-…`."""
    return typer.Option(*filter(None, (short, name)), help=help, rich_help_panel=panel)


def json_option(help: str) -> Any:
    """Return the option --json of a command whose documents are not obvious; the others have `shared_options.AsJson`."""
    return flag_option("--json", help, panel=shared_options.OUTPUT)
