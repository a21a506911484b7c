"""`ariane cluster`: state of all servers, maintenance while clients go on, and settings and KV table of the name servers."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.admin.admin_session import AdminSession, ChangeSession, ClusterName
from ariane.cli.admin.topic_command import TopicName
from ariane.cli.options.option_kinds import number_option, seconds_option, text_option
from ariane.cli.output.help_format import create_app

if TYPE_CHECKING:
    from ariane.cluster.admin import Admin
    from ariane.cluster.connection import Answers, BrokerServer
    from ariane.cluster.queue_moves import PlannedMove
    from ariane.cluster.rolling_restart import RestartPlan, RestartStep
    from ariane.cluster.servers.broker_runtime import RuntimeInfo
    from ariane.cluster.servers.broker_sets import BrokerSet
    from ariane.reports.report import Table

app = create_app("Print the state of all servers, maintain brokers, set keys of name servers.")

Namespace = Annotated[str, typer.Argument(metavar="NAMESPACE", help="Namespace of the key.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="Name of the value.")]
NewValue = Annotated[str, typer.Argument(metavar="VALUE", help="New value.")]
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_.:\-]*")
RESTART_FIELDS = "{broker}, {addr}, {host}, {port}, {id} and {member}"


RouteRefresh = Annotated[
    float, seconds_option("--route-refresh", minimum=0, help="Longest interval in which clients fetch routes.")
]


@app.command("status", "ariane cluster status", "ariane cluster status --json -n 10.0.0.1:9876")
def status(*, cluster: ClusterName = None, session: AdminSession) -> None:
    """Print rates and disk usage of brokers, and the state of broker sets.

    Broker sets have failover: each member shows why it may not become the master.

    Rates are those of the last 10 seconds. Exit status: 1 if a broker did not respond.
    """
    from ariane.cli.mqadmin.commands.broker_commands import server_data
    from ariane.cluster.servers.broker_sets import broker_set

    async def work(admin: Admin) -> tuple[list[BrokerServer], Answers[RuntimeInfo]]:
        servers = await admin.select_brokers(cluster=cluster, with_slaves=True)
        return servers, await admin.fetch_runtimes(servers)

    servers, answers = session.read(work)
    runtimes = dict(answers.values)
    by_broker: dict[str, list[RuntimeInfo]] = {}
    for server, runtime in runtimes.items():
        by_broker.setdefault(server.broker, []).append(runtime)
    sets = [found for broker, reported in sorted(by_broker.items()) if (found := broker_set(broker, reported))]
    data = [server_data(server, runtimes.get(server)) | _member_data(server, sets) for server in servers]
    session.show(data, _status_table(servers, runtimes), *([_sets_table(sets)] if sets else []))
    session.finish(answers.unavailable)


def _status_table(servers: list[BrokerServer], runtimes: Mapping[BrokerServer, RuntimeInfo]) -> Table:
    from ariane.reports.report import Column, Table, Value

    rows: list[tuple[Value, ...]] = []
    for server in servers:
        runtime = runtimes.get(server)
        role = "master" if server.is_master else f"slave {server.broker_id}"
        names = (server.broker, role, server.addr)
        if runtime is None:
            rows.append((*names, None, None, None, None, None))
            continue
        started = datetime.fromtimestamp(runtime.boot_ms / 1000, UTC)
        percent = None if runtime.disk_ratio is None else runtime.disk_ratio * 100
        rows.append((*names, runtime.version, runtime.put_tps.ten_s, runtime.get_tps.ten_s, percent, started))
    columns = (
        Column("broker"), Column("role"), Column("address"), Column("version"), Column("put", "/s"), Column("get", "/s"),
        Column("disk", "%"), Column("started", "UTC"),
    )  # fmt: skip
    return Table("Servers", columns, tuple(rows))


def _member_data(server: BrokerServer, sets: list[BrokerSet]) -> dict[str, object]:
    for brokers in sets:
        for member in brokers.members:
            if member.addr == server.addr:
                state = {**member._asdict(), "in_sync": member.name in brokers.in_sync, "lag": brokers.lag(member)}
                return {"failover": state}
    return {}


def _sets_table(sets: list[BrokerSet]) -> Table:
    from ariane.reports.report import Column, Table

    rows = tuple(
        (brokers.broker, member.name, member.role.lower(), member.epoch, "yes" if member.name in brokers.in_sync else "no",
         brokers.lag(member), member.refusal)
        for brokers in sets
        for member in brokers.members
    )  # fmt: skip
    columns = (
        Column("broker"), Column("member"), Column("role"), Column("epoch"), Column("in sync"), Column("lag", "B"),
        Column("not promoted because"),
    )  # fmt: skip
    return Table("Broker sets", columns, rows)


@app.command(
    "restart",
    "ariane cluster restart --plan",
    "ariane cluster restart broker-a --command './restart {host} {broker}'",
)
def restart(
    brokers: Annotated[
        list[str] | None, typer.Argument(metavar="BROKER", help="Names of brokers; all by default.")
    ] = None,
    *,
    cluster: ClusterName = None,
    command: Annotated[
        str | None,
        text_option(
            "--command",
            metavar="COMMAND",
            help=f"Command that restarts a server, with {RESTART_FIELDS}. "
            "Without it, print each server and wait until it was restarted.",
        ),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print the steps without executing them, as --dry-run.")] = False,
    accept_failed_sends: Annotated[
        bool,
        typer.Option("--accept-failed-sends", help="Restart brokers that are the only ones of a topic, too."),
    ] = False,
    route_refresh: RouteRefresh = 30.0,
    session: ChangeSession,
) -> None:
    """Restart brokers one after another, while producers send to the others.

    A broker without failover is drained first: name servers remove its write permission, and producers move.
    In a broker set with failover another member becomes the master first.
    The next server follows when the restarted one runs and has all messages.
    """
    from ariane.errors import UsageError

    async def work(admin: Admin) -> RestartPlan:
        restart_plan = await admin.plan_restart(cluster=cluster, brokers=brokers or ())
        if plan or session.is_dry_run:
            return restart_plan
        if restart_plan.only_there and not accept_failed_sends:
            raise UsageError("--accept-failed-sends", None, _only_there_text(restart_plan))
        drained = ""
        try:
            for step in restart_plan.steps:
                drained = {"drain": step.server.broker, "restore": ""}.get(step.action, drained)
                await admin.execute_restart([step], _starter(command), _report, route_refresh_s=route_refresh)
        finally:
            if drained:
                typer.echo(f"{drained} is drained; later: ariane broker allow-writes {drained}", err=True)
        return restart_plan

    result = session.read(work)
    if plan or session.is_dry_run:
        lines = [f"would {step}" for step in result.steps]
        if result.only_there:
            lines.append(f"would fail without --accept-failed-sends: {_only_there_text(result)}")
        session.show([str(step) for step in result.steps], *lines)


@app.command("rebalance", "ariane cluster rebalance orders --to broker-c,broker-d --dry-run")
def rebalance(
    topic: TopicName,
    *,
    to: Annotated[
        str,
        text_option("--to", metavar="BROKER,…", help="Brokers that get all queues; they do not have the topic yet."),
    ],
    queues: Annotated[
        int | None,
        number_option("--queues", minimum=1, help="Queues of each of them.  [default: as many as a former broker has]"),
    ] = None,
    route_refresh: RouteRefresh = 30.0,
    session: ChangeSession,
) -> None:
    """Move the queues of a topic to other brokers.

    No message is lost, and those of each key stay in their order. Producers send to the new queues at once. Consumers
    see these when all groups have consumed the former queues, which stay readable. The same command continues a move
    that was interrupted.
    """
    targets = [name.strip() for name in to.split(",") if name.strip()]
    steps: list[str] = []

    def report(step: str) -> None:
        steps.append(step)
        if not session.is_dry_run:
            _report(step)

    async def work(admin: Admin) -> PlannedMove:
        move = await admin.plan_move(topic, targets, queues=queues)
        await admin.move_queues(move, report, route_refresh_s=route_refresh)
        return move

    move = session.read(work)
    if move.is_done:
        session.show([], f"all queues of {topic} are on {', '.join(targets)} already")
    elif session.is_dry_run:
        session.show(steps, *(f"would {step}" for step in steps))
    else:
        session.show(steps, f"moved {topic} to {', '.join(targets)}")


def _report(line: str) -> None:
    typer.echo(f"{time.strftime('%H:%M:%S')} {line}", err=True)


def _only_there_text(plan: RestartPlan) -> str:
    texts = [f"{', '.join(topics)} on {broker}" for broker, topics in plan.only_there.items()]
    return f"these topics have no other broker, and sends to them would fail: {'; '.join(texts)}; create them on another one"


def _starter(command: str | None) -> Callable[[RestartStep], Awaitable[None]]:
    async def wait(step: RestartStep) -> None:
        _report(f"waiting until {step.server.addr} was restarted: do it now")

    async def execute(step: RestartStep) -> None:
        from ariane.errors import ServerUnavailable

        assert command is not None
        arguments = restart_arguments(command, step)
        process = await asyncio.create_subprocess_exec(*arguments)
        if status := await process.wait():
            raise ServerUnavailable(f"`{shlex.join(arguments)}` ended with status {status}")

    return wait if command is None else execute


def restart_arguments(command: str, step: RestartStep) -> list[str]:
    """Return the words of a command for one server; no shell of this machine interprets them.

    Raises:
        UsageError: the command has an unknown field, or a broker registered a name that a shell may interpret.
    """
    from ariane.errors import UsageError

    server = step.server
    host, _, port = server.addr.rpartition(":")
    fields = {
        "broker": server.broker, "addr": server.addr, "host": host, "port": port, "id": str(server.broker_id),
        "member": step.member,
    }  # fmt: skip
    for name, value in fields.items():
        if not _PLAIN_VALUE.fullmatch(value):
            raise UsageError(
                "--command", value, f"cannot be the {name} in a command: expected letters, digits, '.', '_', '-'"
            )
    try:
        return [word.format(**fields) for word in shlex.split(command)]
    except (KeyError, IndexError, ValueError) as error:
        raise UsageError("--command", command, f"expected only the fields {RESTART_FIELDS} ({error})") from error


@app.command("config", "ariane cluster config -n '10.0.0.1:9876;10.0.0.2:9876'")
def config(session: AdminSession) -> None:
    """Print the settings of each name server."""
    answers = session.read(lambda admin: admin.fetch_name_server_config())
    data = [{"addr": server.addr, "settings": settings} for server, settings in answers.values]
    lines = []
    for server, settings in answers.values:
        lines += [f"# {server.addr}", *(f"{key}={value}" for key, value in settings.items())]
    session.show(data, *lines)
    session.finish(answers.unavailable)


@app.command("set", "ariane cluster set orderMessageEnable true --dry-run")
def set_config(key: Key, value: NewValue, session: ChangeSession) -> None:
    """Change a setting of all name servers."""
    changes = session.run(lambda admin: admin.update_name_server_config({key: value}))
    addrs = [change.addr for change in changes]
    session.show({"settings": {key: value}, "nameServers": addrs}, f"set {key} = {value} on {', '.join(addrs)}")


@app.command("get-kv", "ariane cluster get-kv ORDER_TOPIC_CONFIG orders")
def get_kv(namespace: Namespace, key: Key, session: AdminSession) -> None:
    """Print a value of the name servers' KV table.

    Exit status: 1 if no name server has it.
    """
    from ariane.errors import NotFound

    value = session.read(lambda admin: admin.fetch_kv(namespace, key))
    if value is None:
        raise NotFound("value", f"{namespace}/{key}")
    session.show({"namespace": namespace, "key": key, "value": value}, value)


@app.command("set-kv", "ariane cluster set-kv ORDER_TOPIC_CONFIG orders 'broker-a:4;broker-b:4'")
def set_kv(namespace: Namespace, key: Key, value: NewValue, session: ChangeSession) -> None:
    """Set a value of the KV table of all name servers."""
    changes = session.run(lambda admin: admin.put_kv(namespace, key, value))
    addrs = [change.addr for change in changes]
    session.show({"namespace": namespace, "key": key, "nameServers": addrs}, f"set {key} on {', '.join(addrs)}")


@app.command("delete-kv", "ariane cluster delete-kv ORDER_TOPIC_CONFIG orders")
def delete_kv(namespace: Namespace, key: Key, session: ChangeSession) -> None:
    """Delete a value from the KV table of all name servers."""
    changes = session.run(lambda admin: admin.delete_kv(namespace, key))
    addrs = [change.addr for change in changes]
    session.show({"namespace": namespace, "key": key, "nameServers": addrs}, f"deleted {key} on {', '.join(addrs)}")
