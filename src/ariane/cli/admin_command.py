"""`ariane admin`: the commands of `mqadmin`, for installations where another `mqadmin` comes first in PATH."""

from __future__ import annotations

import typer


def admin(context: typer.Context) -> None:
    """Run a command of mqadmin, with its names, options and columns."""
    from ariane.cli.mqadmin.main import main

    raise typer.Exit(main(context.args, prog="ariane admin"))
