"""Session of the commands `ariane topic|group|offset|…`: an `Admin` with the common options, and the form of its results.

def delete(topic: TopicName, session: ChangeSession) -> None:     Typer sees --namesrv, --access-key, …, --dry-run, --json

session.read(work) ─→ value of `await work(admin)`
session.run(work)  ─→ the same; a dry run ends after printing the changes
session.change_servers(brokers, change, text)    a change of masters and slaves; prints the servers that executed it
session.show(data, table, …)   --json: `data`; otherwise the tables
session.finish(unavailable)    brokers that did not respond on stderr, then exit status 1
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ariane.cli.options.access_options import NO_ACCESS, AccessOptions
from ariane.cli.options.option_kinds import flag_option
from ariane.cli.options.shared_options import NAMESRV_DEFAULT, OUTPUT, AsJson, NameServers

if TYPE_CHECKING:
    from ariane.cluster.admin import Admin
    from ariane.cluster.connection import BrokerServer, BrokerUnavailable, Change
    from ariane.reports.report import Table, Value

T = TypeVar("T")

INCOMPLETE = 1  # exit status if a broker did not respond

DryRun = Annotated[bool, flag_option("--dry-run", "Print the changes without executing them.", panel=OUTPUT)]
ClusterName = Annotated[
    str | None, typer.Option("-c", "--cluster", metavar="NAME", help="Only brokers of this cluster.")
]
BrokerName = Annotated[
    str | None, typer.Option("-b", "--broker", metavar="NAME|ADDR", help="Only this broker: its name or HOST:PORT.")
]


@dataclass(frozen=True, kw_only=True)
class BrokerChoice:
    """Options that select brokers; without any, all are selected."""

    cluster: ClusterName = None
    broker: BrokerName = None

    @property
    def is_given(self) -> bool:
        """Whether the command line selects brokers."""
        return self != BrokerChoice()

    async def select(self, admin: Admin, *, with_slaves: bool = False) -> list[BrokerServer]:
        """Return the masters, and on request the slaves."""
        return await admin.select_brokers(cluster=self.cluster, broker=self.broker, with_slaves=with_slaves)


@dataclass(frozen=True, kw_only=True)
class AdminSession:
    """Options of the commands that read the state of a cluster."""

    namesrv: NameServers = NAMESRV_DEFAULT
    access: AccessOptions = NO_ACCESS
    is_dry_run: bool = field(default=False, init=False)  # an option of `ChangeSession`
    as_json: AsJson = False

    def read(self, work: Callable[[Admin], Awaitable[T]]) -> T:
        """Return the value of `work`, in a dry run, too: for reads, and for changes that return their plan."""
        return asyncio.run(self._execute(work))[0]

    def read_servers(self, brokers: BrokerChoice, read: Callable[[Admin, list[BrokerServer]], Awaitable[T]]) -> T:
        """Return the value of a read from the selected masters and slaves."""
        return self.read(_on_servers(brokers, read))

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

    async def _execute(self, work: Callable[[Admin], Awaitable[T]]) -> tuple[T, Sequence[Change]]:
        from ariane.cluster.admin import Admin

        async with Admin(self.namesrv, client=self.access.client_settings(), is_dry_run=self.is_dry_run) as admin:
            try:
                return await work(admin), admin.changes
            finally:
                for note in admin.notes:
                    typer.echo(note, err=True)


@dataclass(frozen=True, kw_only=True)
class ChangeSession(AdminSession):
    """Options of the commands that change a cluster."""

    is_dry_run: DryRun = False

    def run(self, work: Callable[[Admin], Awaitable[T]]) -> T:
        """Return the value of `work`; in a dry run print the changes that it would execute, and end the command.

        Raises:
            typer.Exit: in a dry run, with status 0.
        """
        value, changes = asyncio.run(self._execute(work))
        if self.is_dry_run:
            planned = [f"would {change.summary} on {change.addr}" for change in changes]
            self.show(changes_data(changes), *(planned or ["would change nothing"]))
            raise typer.Exit
        return value

    def change_servers(
        self,
        brokers: BrokerChoice,
        change: Callable[[Admin, list[BrokerServer]], Awaitable[Sequence[Change]]],
        done: str,
    ) -> None:
        """Change the selected masters and slaves, and print those that executed the change."""
        addrs = [change.addr for change in self.run(_on_servers(brokers, change))]
        self.show({"changed": addrs}, *(f"{done} on {addr}" for addr in addrs))


def _on_servers(
    brokers: BrokerChoice, work: Callable[[Admin, list[BrokerServer]], Awaitable[T]]
) -> Callable[[Admin], Awaitable[T]]:
    async def run(admin: Admin) -> T:
        return await work(admin, await brokers.select(admin, with_slaves=True))

    return run


def changes_data(changes: Iterable[Change]) -> list[dict[str, str]]:
    """Return changes as a JSON value."""
    return [{"addr": change.addr, "change": change.summary} for change in changes]


def table(names: Iterable[str], rows: Iterable[tuple[Value, ...]]) -> Table:
    """Return a table without a title and without units."""
    from ariane.reports.report import Column, Table

    return Table("", tuple(map(Column, names)), tuple(rows))
