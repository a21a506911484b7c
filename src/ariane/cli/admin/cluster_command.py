"""`ariane cluster`: state of all servers, and settings and KV table of the name servers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.admin.admin_session import AdminSession, ChangeSession, ClusterName
from ariane.cli.output.help_format import create_app

if TYPE_CHECKING:
    from ariane.cluster.admin import Admin
    from ariane.cluster.connection import Answers, BrokerServer
    from ariane.cluster.servers.broker_runtime import RuntimeInfo
    from ariane.cluster.servers.broker_sets import BrokerSet
    from ariane.reports.report import Table

app = create_app("Print the state of all servers, and change settings of the name servers.")

Namespace = Annotated[str, typer.Argument(metavar="NAMESPACE", help="Namespace of the key.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="Name of the value.")]
NewValue = Annotated[str, typer.Argument(metavar="VALUE", help="New value.")]


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
