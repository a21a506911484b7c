"""Commands on brokers and clusters. Reference: admin-and-dashboard 1.5."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from ariane.cli.mqadmin.command import BROKER, CLUSTER, CommandList, Option, Options, Output, Run, lines
from ariane.cli.mqadmin.value_text import UNKNOWN, number
from ariane.cli.output.json_output import to_builtins
from ariane.cluster.admin import Admin
from ariane.cluster.connection import BrokerServer, Change
from ariane.cluster.servers.broker_runtime import RequestQueue, RuntimeInfo

STATUS_ROW = "{:<16}  {:<22}  {:<4}  {:<22} {:<16} {:>19} {:>19} {:>10} {:>5} {:>6}"
TOTALS_ROW = "{:<16}  {:<32} {:>14} {:>14} {:>14} {:>14}"
MS_PER_HOUR = 3_600_000


class ServerStatus(NamedTuple):
    """One row of clusterList: a server, and its state; None if it did not respond."""

    server: BrokerServer
    runtime: RuntimeInfo | None


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError("expected a positive number of seconds")
    return seconds


CLEANED = (BROKER, Option("c", "cluster", "Only servers of this cluster.", metavar="NAME"))

COMMANDS = CommandList()


@COMMANDS.add(
    "clusterList",
    Option("m", "moreStats", "Print messages of yesterday and today.", is_flag=True),
    Option("i", "interval", "Repeat every SECONDS until interrupted.", _seconds, metavar="SECONDS"),
)
async def cluster_list(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print one row per server of all clusters."""
    while True:
        yield await _cluster_list(admin, with_totals=options.moreStats)
        if options.interval is None:
            return
        await asyncio.sleep(options.interval)


async def _cluster_list(admin: Admin, *, with_totals: bool) -> Output:
    servers = await admin.select_brokers(with_slaves=True)
    answers = await admin.fetch_runtimes(servers)
    runtimes = dict(answers.values)
    rows = [ServerStatus(server, runtimes.get(server)) for server in servers]
    if with_totals:
        header = TOTALS_ROW.format(
            "#Cluster Name", "#Broker Name", "#InTotalYest", "#OutTotalYest", "#InTotalToday", "#OutTotalToday"
        )
        texts = [header, *map(_totals_row, rows)]
    else:
        header = STATUS_ROW.format(
            "#Cluster Name", "#Broker Name", "#BID", "#Addr", "#Version", "#InTPS(LOAD)", "#OutTPS(LOAD)",
            "#PCWait(ms)", "#Hour", "#SPACE",
        )  # fmt: skip
        now_ms = int(time.time() * 1000)
        texts = [header, *(_status_row(row, now_ms) for row in rows)]
    return Output(lines(texts), [server_data(*row) for row in rows], answers.unavailable)


def _totals_row(row: ServerStatus) -> str:
    runtime = row.runtime
    totals = (
        (None,) * 4
        if runtime is None
        else (runtime.put_yesterday, runtime.got_yesterday, runtime.put_today, runtime.got_today)
    )
    return TOTALS_ROW.format(row.server.cluster, row.server.broker, *map(number, totals))


def _status_row(row: ServerStatus, now_ms: int) -> str:
    server, runtime = row
    names = (server.cluster, server.broker, server.broker_id, server.addr)
    if runtime is None:
        return STATUS_ROW.format(*names, *[UNKNOWN] * 6)
    # A broker with a small log reports none; Java prints the hours since 1970 for it.
    hours = None if runtime.earliest_ms is None else (now_ms - runtime.earliest_ms) / MS_PER_HOUR
    return STATUS_ROW.format(
        *names,
        runtime.version,
        _load(runtime.put_tps.ten_s, runtime.send_queue),
        _load(runtime.get_tps.ten_s, runtime.pull_queue),
        number(runtime.page_cache_lock_ms),
        UNKNOWN if hours is None else f"{hours:2.2f}",
        UNKNOWN if runtime.disk_ratio is None else f"{runtime.disk_ratio:.4f}",
    )


def _load(tps: float | None, queue: RequestQueue) -> str:
    # In its first seconds a broker has no rate yet; the column is a number for scripts that add it up.
    return f"{tps or 0.0:9.2f}({number(queue.size)},{number(queue.head_wait_ms)}ms)"


def server_data(server: BrokerServer, runtime: RuntimeInfo | None) -> dict[str, object]:
    """Return a server and its runtime state for JSON, without the texts that the state was decoded from."""
    state = to_builtins(runtime)
    if state is not None:
        del state["table"]
    return {**to_builtins(server), "runtime": state}


@COMMANDS.add("brokerStatus", BROKER, CLUSTER)
async def broker_status(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print all values that a broker, or each server of a cluster, reports about itself."""
    servers = await admin.select_brokers(cluster=options.clusterName, broker=options.brokerAddr, with_slaves=True)
    if options.brokerAddr:
        servers = servers[:1]  # a name selects the master
    answers = await admin.fetch_runtimes(servers)
    texts = [
        f"{key:<32}: {value}" if options.brokerAddr else f"{server.addr:<24} {key:<32}: {value}"
        for server, runtime in answers.values
        for key, value in sorted(runtime.table.items())
    ]
    data = [{"addr": server.addr, "values": runtime.table} for server, runtime in answers.values]
    yield Output(lines(texts), data, answers.unavailable)


@COMMANDS.add("getBrokerConfig", BROKER, CLUSTER)
async def get_broker_config(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print the settings of a broker, or of each server of a cluster."""
    servers = await admin.select_brokers(cluster=options.clusterName, broker=options.brokerAddr, with_slaves=True)
    if options.brokerAddr:
        servers = servers[:1]
    masters = {server.broker: server.addr for server in servers if server.is_master}
    answers = await admin.fetch_broker_config(servers)
    texts = []
    for server, settings in answers.values:
        if options.brokerAddr:
            title = server.addr
        elif server.is_master:
            title = f"Master: {server.addr}"
        else:
            title = f"My Master: {masters.get(server.broker, 'null')}=====Slave: {server.addr}"
        texts += [f"============{title}============", *(f"{key:<50}=  {value}" for key, value in settings.items()), ""]
    data = [{"addr": server.addr, "settings": settings} for server, settings in answers.values]
    yield Output(lines(texts), data, answers.unavailable)


@COMMANDS.add(
    "updateBrokerConfig",
    BROKER,
    CLUSTER,
    Option("k", "key", "Name of the setting.", metavar="KEY", is_required=True),
    Option("v", "value", "Its value.", metavar="VALUE", is_required=True),
    is_change=True,
)
async def update_broker_config(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Change a setting of a broker, or of all masters of a cluster."""
    servers = await admin.select_brokers(cluster=options.clusterName, broker=options.brokerAddr)
    changes = await admin.update_broker_config({options.key: options.value}, servers)
    addrs = [change.addr for change in changes]
    yield Output(lines(f"update broker config success, {addr}" for addr in addrs), {"brokers": addrs})


def _clean(clean: Callable[[Admin, list[BrokerServer]], Awaitable[list[Change]]]) -> Run:
    async def run(admin: Admin, options: Options) -> AsyncIterator[Output]:
        # Without -b and -c: the servers of all clusters.
        servers = await admin.select_brokers(cluster=options.cluster, broker=options.brokerAddr, with_slaves=True)
        changes = await clean(admin, servers[:1] if options.brokerAddr else servers)
        yield Output("success", {"brokers": [change.addr for change in changes]})

    return run


for name, clean in {
    "cleanExpiredCQ": Admin.delete_expired_queues,
    "deleteExpiredCommitLog": Admin.delete_expired_commit_log,
    "cleanUnusedTopic": Admin.delete_unused_queues,
}.items():
    COMMANDS.add(name, *CLEANED, is_change=True)(_clean(clean))
