"""Session of the commands `ariane topic|group|offset|…`: an `Admin` with the common options, and the form of its results.

session.run(work) ─→ value of `await work(admin)`; in a dry run None, after printing the changes
session.show(data, table, …)   --json: `data`; otherwise the tables
session.finish(unavailable)    brokers that did not respond on stderr, then exit status 1
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from ariane.cli.options.access_options import NO_ACCESS, AccessOptions
from ariane.cli.options.shared_options import OUTPUT

if TYPE_CHECKING:
    from ariane.cluster.admin import Admin
    from ariane.cluster.connection import BrokerUnavailable, Change
    from ariane.reports.report import Table

T = TypeVar("T")

INCOMPLETE = 1  # exit status if a broker did not respond

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the changes without executing them.", rich_help_panel=OUTPUT)
]
ClusterName = Annotated[
    str | None, typer.Option("-c", "--cluster", metavar="NAME", help="Only brokers of this cluster.")
]
BrokerName = Annotated[
    str | None, typer.Option("-b", "--broker", metavar="NAME|ADDR", help="Only this broker: its name or HOST:PORT.")
]


class AdminSession(NamedTuple):
    """Common options of the commands that administer a cluster.

    Attributes:
        namesrv: Name server addresses, separated by ';'.
        access: Account and TLS.
        as_json: Print JSON instead of tables.
        is_dry_run: Print changes instead of executing them.
    """

    namesrv: str
    access: AccessOptions = NO_ACCESS
    as_json: bool = False
    is_dry_run: bool = False

    def run(self, work: Callable[[Admin], Awaitable[T]]) -> T | None:
        """Return the value of `work`; in a dry run print the changes that it would execute, and return None.

        Raises:
            ArianeError: as `work`.
        """
        return asyncio.run(self._run(work))

    def read(self, work: Callable[[Admin], Awaitable[T]]) -> T:
        """Return the value of `work`, in a dry run, too: for reads, and for changes that return their plan.

        Raises:
            ArianeError: as `work`.
        """
        return asyncio.run(self._value(work))[0]

    @property
    def is_terminal(self) -> bool:
        """Whether tables are printed to a terminal."""
        return not self.as_json and sys.stdout.isatty()

    async def _run(self, work: Callable[[Admin], Awaitable[T]]) -> T | None:
        value, changes = await self._value(work)
        if not self.is_dry_run:
            return value
        self._print_changes(changes)
        return None

    async def _value(self, work: Callable[[Admin], Awaitable[T]]) -> tuple[T, Sequence[Change]]:
        from ariane.cluster.admin import Admin

        async with Admin(self.namesrv, client=self.access.client_settings(), is_dry_run=self.is_dry_run) as admin:
            try:
                return await work(admin), admin.changes
            finally:
                for note in admin.notes:
                    typer.echo(note, err=True)

    def show(self, data: Any, *parts: Table | str) -> None:
        """Print `data` as JSON with --json, otherwise the parts: tables, and lines of text."""
        if self.as_json:
            from ariane.cli.output.json_output import to_json

            typer.echo(to_json(data))
            return
        from ariane.cli.output.terminal import ReportTable, create_console

        console = create_console()
        for part in parts:
            if isinstance(part, str):
                typer.echo(part)
            else:
                console.print(ReportTable(part, max_rows=None), soft_wrap=True)

    def finish(self, unavailable: Iterable[BrokerUnavailable]) -> None:
        """Report brokers that did not respond on stderr, each once.

        Raises:
            typer.Exit: with status 1 if there are any.
        """
        from ariane.cluster.connection import each_once

        missing = each_once(unavailable)
        for broker in missing:
            typer.echo(str(broker), err=True)
        if missing:
            raise typer.Exit(INCOMPLETE)

    def _print_changes(self, changes: Sequence[Change]) -> None:
        if self.as_json:
            from ariane.cli.output.json_output import to_json

            typer.echo(to_json([{"addr": change.addr, "change": change.summary} for change in changes]))
            return
        for change in changes:
            typer.echo(f"would {change.summary} on {change.addr}")
        if not changes:
            typer.echo("would change nothing")
