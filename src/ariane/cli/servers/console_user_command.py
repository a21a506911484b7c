"""`ariane console user`: accounts that may log in to the web console. A running console uses a change at its next request.

Passwords are read from the terminal, twice, or as the first line of standard input; never from an option, which other users of
the machine could read in the list of processes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.options import paths as homes
from ariane.cli.options import shared_options
from ariane.cli.options.shared_options import AsJson
from ariane.cli.output.help_format import create_app
from ariane.cli.servers.console_options import DataDir, Home
from ariane.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from ariane.console.security.accounts.accounts import ConsoleAccounts

app = create_app("Manage the accounts of the console.")

ROLES = ("viewer", "operator", "admin")
PASSWORD_LINE_MAX = 4096  # characters that are read from standard input


def _role(text: object) -> str:
    value = str(text).strip().lower()
    if value not in ROLES:
        raise typer.BadParameter(f"{str(text)!r}: expected one of {', '.join(ROLES)}.")
    return value


Name = Annotated[str, typer.Argument(parser=shared_options.non_blank, metavar="NAME", help="Name for the log-in.")]


@app.command(
    "add", "ariane console user add alice --role admin", "ariane console user add grafana < password.txt  # a viewer"
)
def add(
    name: Name,
    role: Annotated[
        str,
        typer.Option(
            parser=_role,
            metavar="ROLE",
            help="Role: viewer, operator (also changes topics, groups and messages) or admin.",
        ),
    ] = "viewer",
    home: Home = None,
    data: DataDir = None,
) -> None:
    """Create an account."""
    from ariane.console.security.roles import ConsoleRole

    accounts = _accounts(home, data)
    accounts.add(name, ConsoleRole(role), _read_password(name))
    typer.echo(f"created the {role} {name} in {accounts.path}")


@app.command("list", "ariane console user list", "ariane console user list --json")
def list_users(home: Home = None, data: DataDir = None, as_json: AsJson = False) -> None:
    """List the accounts with their roles."""
    accounts = _accounts(home, data)
    if as_json:
        from ariane.cli.output.json_output import to_json

        rows = [
            {"name": account.name, "role": account.role.value, "changedMs": account.changed_ms}
            for account in accounts.list()
        ]
        typer.echo(to_json(rows))
        return
    width = max((len(account.name) for account in accounts.list()), default=0)
    for account in accounts.list():
        typer.echo(f"{account.name:{width}}  {account.role}")
    if not accounts.list():
        typer.echo(f"no accounts in {accounts.path}: `ariane console user add NAME --role admin` creates one")


@app.command("role", "ariane console user role alice operator")
def change_role(
    name: Name,
    role: Annotated[str, typer.Argument(parser=_role, metavar="ROLE", help="Role: viewer, operator or admin.")],
    home: Home = None,
    data: DataDir = None,
) -> None:
    """Change the role of an account; its sessions end."""
    from ariane.console.security.roles import ConsoleRole

    _accounts(home, data).set_role(name, ConsoleRole(role))
    typer.echo(f"{name} is {role} now; its sessions have ended")


@app.command("password", "ariane console user password alice")
def change_password(name: Name, home: Home = None, data: DataDir = None) -> None:
    """Change the password of an account; its sessions end."""
    _accounts(home, data).set_password(name, _read_password(name))
    typer.echo(f"changed the password of {name}; its sessions have ended")


@app.command("remove", "ariane console user remove alice")
def remove(name: Name, home: Home = None, data: DataDir = None) -> None:
    """Remove an account; its sessions end."""
    _accounts(home, data).remove(name)
    typer.echo(f"removed {name}")


def _accounts(home: Path | None, data: Path | None) -> ConsoleAccounts:
    from ariane.console.security.accounts.accounts import ConsoleAccounts

    return ConsoleAccounts(data or homes.console_dir(home))


def _read_password(name: str) -> str:
    """Read a new password.

    Raises:
        UsageError: standard input is empty.
    """
    if sys.stdin.isatty():
        return str(typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt="Again"))
    password = sys.stdin.readline(PASSWORD_LINE_MAX).rstrip("\r\n")
    if not password:
        raise UsageError("password", None, "standard input is empty; pass the password as its first line")
    return password
