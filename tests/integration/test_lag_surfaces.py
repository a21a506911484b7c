"""One cluster, and the lag of its groups on every surface: console, alerts, /metrics, commands, collector.

    group    committed                                   lag
    slow     orders 0: 3, its listener is stuck          7 + 3 * 10 of orders, 5 of fresh, in which it has no offset
    offline  orders 0: 4, orders 1: 99; a deleted topic  6 + 0 + 2 * 10: the offset of queue 1 is beyond the end
    retried  all of orders                               2 of its retry topic, in which it has no offset
    unknown  orders 0: 8, others at the end; cold 1: 0   at least 2: cold 0 has no offset, and its messages are on disk only
    behind   all of orders                               6 of a topic whose number of write queues was reduced

Broker a has a slave, from which `slow` has read. Broker b considers no message to be in memory: a group may start at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

from ariane import Admin, PushConsumer
from ariane.broker.broker import Broker
from ariane.cli import main
from ariane.cli.servers.process.metrics_endpoint import broker_source
from ariane.cluster.lag import LagSum, queue_lag, sum_lags
from ariane.console.alerts.alert_rules import AlertMetric
from ariane.console.alerts.readings import read_snapshot
from ariane.console.areas.groups.group_list import GroupListQuery, group_list
from ariane.console.areas.groups.group_progress import ProgressQuery, group_progress
from ariane.console.areas.overview.overview import overview
from ariane.console.services import ConsoleServices, open_services
from ariane.console.settings import ConsoleSettings
from ariane.metrics.exporter import ExporterSource
from ariane.metrics.families import Family
from ariane.metrics.polling.cluster_poller import ClusterPoller
from ariane.metrics_collector.poller import BrokerPoller
from ariane.model.message import ReceivedMessage
from ariane.model.topic import SubscriptionGroupConfig, retry_topic
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode
from ariane.protocol.records import properties
from ariane.protocol.requests.admin import CreateTopic
from ariane.protocol.requests.messaging import SUBSCRIPTION, PullMessage, SendMessage, UpdateConsumerOffset
from ariane.testing.cluster_servers import broker_config

DEADLINE_S = 90
QUEUES, EACH = 4, 10  # of topic orders on broker a
EXPECTED = {
    "slow": LagSum(42, False),
    "offline": LagSum(26, False),
    "retried": LagSum(2, False),
    "unknown": LagSum(2, True),
    "behind": LagSum(6, False),
}
TOTAL = LagSum(78, True)  # of the overview

Lags = dict[str, LagSum]


class Servers(NamedTuple):
    """Name server, master a with a slave, and master b."""

    namesrv: str
    first: Broker
    slave: Broker
    second: Broker
    peers: ConnectionPool

    async def send(self, broker: Broker, topic: str, queue_id: int, count: int) -> None:
        header = SendMessage("P", topic, "TBW102", 1, queue_id, 0, 1, 0, properties.encode({"KEYS": "k"}))
        for _ in range(count):
            await self.peers.request_ok(broker.addr, RequestCode.SEND_MESSAGE_V2, header, b"hello")

    async def commit(self, broker: Broker, group: str, topic: str, *offsets: int | None) -> None:
        """Commit offsets of the first queues; None: not of this one."""
        for queue_id, offset in enumerate(offsets):
            if offset is None:
                continue
            header = UpdateConsumerOffset(group, topic, queue_id, offset)
            await self.peers.request_ok(broker.addr, RequestCode.UPDATE_CONSUMER_OFFSET, header)


@contextlib.asynccontextmanager
async def started(home: Path) -> AsyncIterator[Servers]:
    names = NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(home / "kv.json"))
    async with NameServer(names) as name_server, ConnectionPool() as peers:

        def broker(name: str, **settings: Any) -> Broker:
            values = {"broker_name": name.partition("-")[0], "mapped_file_size_commit_log": 1 << 20, **settings}
            return Broker(broker_config(home / name, name_server.addr, **values))

        async with (
            broker("a") as first,
            broker("a-slave", broker_role="SLAVE", broker_id=1) as slave,
            broker("b", access_message_in_memory_max_ratio=0) as second,
        ):
            yield Servers(name_server.addr, first, slave, second, peers)


async def prepare(servers: Servers) -> None:
    async with Admin(servers.namesrv) as admin:
        for topic in ("orders", "fresh", "cold", "gone", "shrunk"):
            await admin.create_topic(topic, queues=QUEUES)
        for group in EXPECTED:
            await admin.save_group(SubscriptionGroupConfig(group_name=group))
            # Without a retry topic, `mqadmin consumerProgress` does not find a group, as Java's tool does not.
            header = CreateTopic(retry_topic(group), "TBW102", 1, 1, 6)
            await servers.peers.request_ok(servers.first.addr, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        for queue_id in range(QUEUES):
            await servers.send(servers.first, "orders", queue_id, EACH)
        await servers.send(servers.first, "fresh", 0, 5)
        await servers.send(servers.first, retry_topic("retried"), 0, 2)
        await servers.send(servers.second, "cold", 0, 7)
        await servers.send(servers.first, "shrunk", 3, 6)
        await servers.commit(servers.first, "slow", "orders", 3)
        await servers.commit(servers.first, "offline", "orders", 4, 99)
        await servers.commit(servers.first, "offline", "gone", 1)
        await servers.commit(servers.first, "retried", "orders", *[EACH] * QUEUES)
        await servers.commit(servers.first, "unknown", "orders", 8, *[EACH] * (QUEUES - 1))
        await servers.commit(servers.second, "unknown", "cold", None, 0)
        await servers.commit(servers.first, "behind", "orders", *[EACH] * QUEUES)
        await servers.commit(servers.first, "behind", "shrunk", *[0] * QUEUES)
        # The queues that are no longer written must be consumed before they are removed.
        await admin.create_topic("shrunk", queues=QUEUES, write_queues=1)
        await admin.delete_topic("gone")


async def read_at_slave(servers: Servers) -> None:
    """Let the slave deliver a message to the group `slow`."""
    header = PullMessage("slow", "orders", 0, 3, 1, SUBSCRIPTION, 0, 0, "*", 0, None)
    async with asyncio.timeout(DEADLINE_S):
        while not (await servers.peers.request(servers.slave.addr, RequestCode.PULL_MESSAGE, header)).body:
            await asyncio.sleep(0.1)


async def of_console(services: ConsoleServices) -> dict[str, Lags]:
    """Return the lags of list, pages, alerts and, as the group TOTAL, of the overview."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            listed = await group_list(services, GroupListQuery(size=100))
            rows = {row.group: row for row in listed.groups.items}
            if rows.keys() >= EXPECTED.keys() and all(row.tps is not None for row in rows.values()):
                break
            await asyncio.sleep(0.1)
    readings = read_snapshot(await services.live.snapshot()).values[AlertMetric.GROUP_LAG]
    pages = {group: await group_progress(services, group, ProgressQuery(size=100)) for group in EXPECTED}
    sums = await overview(services)
    return {
        "list": {group: LagSum(rows[group].lag, rows[group].lag_is_partial) for group in EXPECTED},
        "page": {group: LagSum(page.known_lag, page.lag is None) for group, page in pages.items()},
        "rows of the page": {
            group: sum_lags(row.lag for row in page.queues.items) for group, page in pages.items()
        },
        "topics of the page": {
            group: LagSum(page.known_lag, any(topic.lag is None for topic in page.topics))
            for group, page in pages.items()
        },
        "alerts": {
            group: LagSum(int(readings[group].value or 0), readings[group].is_minimum) for group in EXPECTED
        },
        "overview": {**EXPECTED, "TOTAL": LagSum(sums.lag, sums.lag_is_partial)},
        "overview, groups": {
            **EXPECTED, **{row.group: LagSum(row.lag, row.is_partial) for row in sums.lagging}
        },
    }  # fmt: skip


def of_families(scrapes: Iterable[list[Family]]) -> Lags:
    """Return the sums over topics and brokers: of queues, and partial if a topic is absent in the metric of groups."""
    groups: defaultdict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    queues: defaultdict[str, list[int]] = defaultdict(list)
    pairs: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
    for families in scrapes:
        for metric, samples in families:
            for labels, value in samples:
                if metric.name == "ariane_group_lag_messages":
                    groups[labels[3]][labels[:3]] = float(value)  # type: ignore[arg-type]
                elif metric.name == "ariane_group_queue_lag_messages":
                    queues[labels[3]].append(int(value))  # type: ignore[call-overload]
                elif metric.name == "rocketmq_consumer_offset":
                    pairs[labels[3]].add(labels[:3])
    for group in EXPECTED:
        if pairs[group] == groups[group].keys():
            assert sum(groups[group].values()) == sum(queues[group]), group
    return {group: LagSum(sum(queues[group]), pairs[group] != groups[group].keys()) for group in EXPECTED}


async def command(servers: Servers, *words: str) -> Any:
    done = await asyncio.to_thread(CliRunner().invoke, main.app, [*words, "-n", servers.namesrv, "--json"])
    assert done.exit_code == 0, (words, done.output, done.exception)
    return json.loads(done.stdout)


def lag_of(row: dict[str, Any]) -> LagSum:
    return LagSum(row["lagAtLeast"], row["lag"] is None)


async def of_commands(servers: Servers) -> dict[str, Lags]:
    listed = await command(servers, "group", "list")
    all_groups = await command(servers, "admin", "consumerProgress")
    live = {group: await command(servers, "group", "lag", group) for group in EXPECTED}
    java = {group: await command(servers, "admin", "consumerProgress", "-g", group) for group in EXPECTED}
    return {
        "ariane group list": {row["group"]: lag_of(row) for row in listed if row["group"] in EXPECTED},
        "mqadmin consumerProgress": {row["group"]: lag_of(row) for row in all_groups if row["group"] in EXPECTED},
        "ariane group lag": {group: lag_of(data) for group, data in live.items()},
        "mqadmin consumerProgress -g": {group: lag_of(data) for group, data in java.items()},
        "queues of ariane group lag": {
            group: sum_lags(row["lag"] for row in data["queues"]) for group, data in live.items()
        },
    }


async def of_collector(servers: Servers) -> Lags:
    """Return the lags of a round of samples. The collector knows the topics of a group by its committed offsets."""
    poller = BrokerPoller(servers.peers, [servers.namesrv], collector="test", interval_ms=5_000)
    lags: defaultdict[str, list[int | None]] = defaultdict(list)
    for sample in await poller.poll():
        assert sample.error is None
        for progress in sample.groups:
            for _, committed, _, last, _ in progress.queues:
                assert last is not None
                lags[progress.group].append(queue_lag(committed, last))
    return {group: sum_lags(lags[group]) for group in EXPECTED}


async def compare(home: Path) -> None:
    stuck = asyncio.Event()

    async def listener(messages: list[ReceivedMessage]) -> None:
        await stuck.wait()

    async with started(home) as servers:
        await prepare(servers)
        await read_at_slave(servers)
        settings = ConsoleSettings(namesrv=servers.namesrv, data_dir=home / "console")
        poller = ClusterPoller(servers.peers, [servers.namesrv], detail_wait_s=DEADLINE_S)
        consumer = PushConsumer(servers.namesrv, "slow", {"orders": "*", "fresh": "*"}, listener)
        async with consumer:
            try:
                async with open_services(settings) as services:
                    surfaces = await of_console(services)
                brokers = [await broker_source(broker).families(None) for broker in (servers.first, servers.second)]
                surfaces["/metrics of the brokers"] = of_families(brokers)
                surfaces["exporter"] = of_families([await ExporterSource(poller).families(None)])
                surfaces |= await of_commands(servers)
                surfaces["collector"] = await of_collector(servers)
            finally:
                stuck.set()
                await poller.close()
    different = {
        name: {group: lag for group, lag in lags.items() if {**EXPECTED, "TOTAL": TOTAL}[group] != lag}
        for name, lags in surfaces.items()
    }
    # The collector does not ask for subscriptions: a topic without any offset is not in its samples.
    assert different.pop("collector") == {"slow": LagSum(37, False)}
    assert {name: lags for name, lags in different.items() if lags} == {}


def test_all_surfaces_show_the_same_lag(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(compare(tmp_path), 3 * DEADLINE_S))
