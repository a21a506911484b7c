"""Runs a command and turns errors into one line and an exit status. [mqnamesrv, mqbroker and their shell scripts]

Command modules import their dependencies when they run: starting a broker loads neither Spark nor rich.

exit status   0 success   1 failure   2 invalid command line   130 interrupted
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from ariane.cli import command_table
from ariane.errors import ArianeError, UsageError
from ariane.extras import naming_extras

FAILED, MISUSED, INTERRUPTED = 1, 2, 130

if TYPE_CHECKING:
    app: typer.Typer
else:

    def __getattr__(name: str) -> object:
        """Return `app`, with all commands: `run` loads only those of its command line."""
        if name == "app":
            return command_table.all_commands()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def run() -> None:
    """Run the command of `sys.argv`. Print expected errors as one line, without a traceback."""
    # Errors that a user can solve are one line; anything else is a fault of the program and keeps its traceback.
    try:
        with naming_extras():
            command_table.application_of(sys.argv[1:])(prog_name="ariane")
    except UsageError as error:
        _fail(str(error), MISUSED)
    except ArianeError as error:
        _fail(str(error), FAILED)
    except OSError as error:
        # Disk and network errors are the user's to solve: the message names the file, a traceback adds nothing.
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), FAILED)
    except SystemExit as exit_request:
        if exit_request.code == INTERRUPTED:
            typer.echo("Interrupted.", err=True)
        raise


def _fail(message: str, status: int) -> None:
    typer.echo(f"Error: {message}", err=True)
    sys.exit(status)
