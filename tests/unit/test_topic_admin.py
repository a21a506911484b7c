"""Operations on topics, brokers and name servers, against scripted servers: sums, unknown values, dry run, partial failure."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from ariane.cli.mqadmin.command import Output
from ariane.cli.mqadmin.commands import broker_commands
from ariane.cli.mqadmin.commands.broker_commands import cluster_list
from ariane.cli.mqadmin.commands.traffic_commands import stats_all
from ariane.cluster.admin import Admin
from ariane.cluster.connection import BrokerServer
from ariane.cluster.groups.topic_traffic import Traffic
from ariane.cluster.servers.broker_runtime import BrokerRates, RequestQueue, parse_runtime
from ariane.cluster.topics.topic_queries import TopicGroups, TopicSummary
from ariane.errors import (
    ConfigError,
    ConnectionLost,
    NotFound,
    PartialFailure,
    ReplyError,
    RequestTimeout,
    RouteNotFound,
    ServerUnavailable,
)
from ariane.model.topic import TopicConfig, permission_words
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.pools.requester import ServerRequest
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.admin import CreateTopic
from ariane.protocol.requests.brokers import GroupList
from ariane.protocol.requests.clients import WireQueue
from ariane.protocol.requests.routing import (
    BrokerData,
    ChangedTopics,
    ClusterInfo,
    DeleteTopicRoute,
    KvTableBody,
    KvValue,
    PutKv,
    QueueData,
    TopicList,
    TopicRoute,
    TopicTable,
)
from ariane.protocol.requests.stats import BrokerStatsData, BrokerStatsItem, ConsumeStats, TopicOffset, TopicStats

NAMES, OTHER_NAMES, MASTER, SLAVE, OTHER = "ns:1", "ns:2", "a:1", "a:2", "b:1"
BROKERS = {
    "broker-a": BrokerData({0: MASTER, 1: SLAVE}, "broker-a", "C"),
    "broker-b": BrokerData({0: OTHER}, "broker-b", "C"),
}
SERVERS = [BrokerServer("C", "broker-a", 0, MASTER), BrokerServer("C", "broker-b", 0, OTHER)]
ROUTE = TopicRoute(
    tuple(BROKERS.values()), {}, None, (QueueData("broker-a", 6, 4, 0, 3), QueueData("broker-b", 6, 8, 1, 8))
)
CODE = RequestCode
Script = dict[tuple[str, RequestCode], Any]


class Fields(msgspec.Struct):
    """A response with header fields instead of a body."""

    header: msgspec.Struct


class ScriptedServers(ConnectionPool):
    """Responds by (address, code): a Struct or bytes as body, Fields, or an error; records the requests."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        cluster = ClusterInfo(BROKERS, {"C": tuple(BROKERS)})
        routes = {(NAMES, CODE.GET_BROKER_CLUSTER_INFO): cluster, (NAMES, CODE.GET_ROUTEINFO_BY_TOPIC): ROUTE}
        self.script: Script = {**routes, **script}
        self.sent: list[tuple[str, RequestCode, msgspec.Struct | None, bytes]] = []

    async def exchange(self, request: ServerRequest) -> Command:
        addr, code, header, body, _ = request
        self.sent.append((addr, RequestCode(code), header, body))
        response = self.script.get((addr, RequestCode(code)), ConnectionLost(addr, "refused"))
        if isinstance(response, ReplyError):
            return Command(response.code, 0, 1, response.remark)
        if isinstance(response, Exception):
            raise response
        if isinstance(response, Fields):
            return Command(0, 0, 1, None, encode_header(response.header))
        return Command(0, 0, 1, None, None, response if isinstance(response, bytes) else fastjson.write(response))


def run(
    script: Script, work: Callable[[Admin], Awaitable[Any]], *, namesrv: str = NAMES, is_dry_run: bool = False
) -> tuple[Any, ScriptedServers]:
    async def main() -> tuple[Any, ScriptedServers]:
        servers = ScriptedServers(script)
        async with Admin(namesrv, peers=servers, is_dry_run=is_dry_run) as admin:
            return await work(admin), servers

    return asyncio.run(main())


def accept(code: RequestCode, *addrs: str) -> Script:
    return {(addr, code): b"" for addr in addrs}


def offsets(broker: str, **queues: tuple[int, int, int]) -> TopicStats:
    table = {
        fastjson.write(WireQueue(broker, int(name[1:]), "T")).decode(): TopicOffset(stored, end, start)
        for name, (start, end, stored) in queues.items()
    }
    return TopicStats(table)


# --- topics ---


def test_a_change_keeps_the_queues_and_flags_of_each_broker() -> None:
    code = CODE.UPDATE_AND_CREATE_TOPIC
    changes, servers = run(accept(code, MASTER, OTHER), lambda admin: admin.change_topic("T", perm=4))
    assert [(change.addr, change.old_perm) for change in changes] == [(MASTER, 6), (OTHER, 6)]
    headers = [header for _, sent, header, _ in servers.sent if sent is code]
    assert all(isinstance(header, CreateTopic) for header in headers)
    assert [(h.read_queue_nums, h.write_queue_nums, h.perm, h.topic_sys_flag) for h in headers] == [
        (4, 3, 4, 0),
        (8, 8, 4, 1),
    ]


def test_configurations_are_those_of_the_brokers_that_have_the_topic() -> None:
    table = TopicTable(topic_config_table={"T": TopicConfig(topic_name="T", order=True)})
    script: Script = {(MASTER, CODE.GET_ALL_TOPIC_CONFIG): table, (OTHER, CODE.GET_ALL_TOPIC_CONFIG): TopicTable()}
    answers, _ = run(script, lambda admin: admin.topic_configs("T"))
    assert [(server.broker, config.order) for server, config in answers.values] == [("broker-a", True)]
    with pytest.raises(RouteNotFound):
        run({**script, (MASTER, CODE.GET_ALL_TOPIC_CONFIG): TopicTable()}, lambda admin: admin.topic_configs("T"))
    # While a broker does not respond, the topic may be there.
    answers, _ = run({(OTHER, CODE.GET_ALL_TOPIC_CONFIG): TopicTable()}, lambda admin: admin.topic_configs("T"))
    assert [broker.broker for broker in answers.unavailable] == ["broker-a"]


def test_brokers_can_get_different_configurations() -> None:
    code = CODE.UPDATE_AND_CREATE_TOPIC

    async def work(admin: Admin) -> None:
        first, second = await admin.select_brokers()
        await admin.put_topics(
            [(first, TopicConfig(topic_name="T", perm=4)), (second, TopicConfig(topic_name="T", perm=6, order=True))]
        )

    _, servers = run(accept(code, MASTER, OTHER), work)
    headers = [header for _, sent, header, _ in servers.sent if sent is code]
    assert all(isinstance(header, CreateTopic) for header in headers)
    assert [(header.perm, header.order) for header in headers] == [(4, False), (6, True)]


def test_the_rate_of_a_topic_is_unknown_if_a_master_does_not_respond() -> None:
    minute = BrokerStatsItem(sum=120, tps=2.0, avgpt=60.0)
    stats = BrokerStatsData(BrokerStatsItem(), BrokerStatsItem(), minute)
    script: Script = {(addr, CODE.VIEW_BROKER_STATS_DATA): stats for addr in (MASTER, OTHER)}
    (stored, unavailable), _ = run(script, lambda admin: admin.stored_traffic("T"))
    assert (stored, unavailable) == (Traffic(4.0, 240), ())
    del script[OTHER, CODE.VIEW_BROKER_STATS_DATA]
    (stored, unavailable), _ = run(script, lambda admin: admin.stored_traffic("T"))
    assert (stored, [broker.broker for broker in unavailable]) == (None, ["broker-b"])


def test_a_dry_run_sends_no_change() -> None:
    async def work(admin: Admin) -> list[str]:
        await admin.delete_topic("T", cluster="C")
        await admin.create_topic("T", queues=4)
        return [f"{change.summary} on {change.addr}" for change in admin.changes]

    changes, servers = run({}, work, is_dry_run=True)
    assert changes == [
        "delete topic T on a:1",
        "delete topic T on b:1",
        "delete topic T on a:2",
        "delete the route of topic T on ns:1",
        "create or change topic T on a:1",
        "create or change topic T on b:1",
    ]
    assert {code for _, code, _, _ in servers.sent} == {CODE.GET_BROKER_CLUSTER_INFO}


def test_name_servers_keep_a_topic_that_a_broker_failed_to_delete() -> None:
    script = accept(CODE.DELETE_TOPIC_IN_BROKER, MASTER, SLAVE) | accept(CODE.DELETE_TOPIC_IN_NAMESRV, NAMES)
    with pytest.raises(PartialFailure) as failure:
        run(script, lambda admin: admin.delete_topic("T"))
    ((failed, reason),) = failure.value.failed
    assert failed == "delete topic T on b:1"
    assert "refused" in reason
    assert len(failure.value.succeeded) == 2


def test_a_topic_is_deleted_although_a_slave_refuses() -> None:
    async def work(admin: Admin) -> tuple[list[str], list[str]]:
        return [change.addr for change in await admin.delete_topic("T", cluster="C")], admin.notes

    script = accept(CODE.DELETE_TOPIC_IN_BROKER, MASTER, OTHER) | accept(CODE.DELETE_TOPIC_IN_NAMESRV, NAMES)
    script[SLAVE, CODE.DELETE_TOPIC_IN_BROKER] = ReplyError(1, "please execute it from master broker.", SLAVE)
    (addrs, (note,)), _ = run(script, work)
    assert addrs == [MASTER, OTHER, NAMES]
    assert note.startswith("a:2 did not delete topic T: ") and "master broker" in note


def test_the_route_stays_if_only_a_slave_could_be_asked() -> None:
    """The master, which is not registered now, still has the topic."""
    registered = ClusterInfo({"broker-a": BrokerData({1: SLAVE}, "broker-a", "C")}, {"C": ("broker-a",)})
    script: Script = {
        (NAMES, CODE.GET_BROKER_CLUSTER_INFO): registered,
        (SLAVE, CODE.DELETE_TOPIC_IN_BROKER): ReplyError(1, "please execute it from master broker.", SLAVE),
    }
    with pytest.raises(ReplyError, match="master broker"):
        run(script, lambda admin: admin.delete_topic("T"))


def test_deleting_a_group_keeps_the_routes_of_other_clusters_and_of_failed_brokers() -> None:
    clusters = ClusterInfo(BROKERS | {"d": BrokerData({0: "d:1"}, "d", "D")}, {"C": tuple(BROKERS), "D": ("d",)})

    async def work(admin: Admin) -> None:
        servers = await admin.select_brokers(cluster="C")
        await admin.delete_group("G", with_topics=True, servers=servers)

    script: Script = {(NAMES, CODE.GET_BROKER_CLUSTER_INFO): clusters}
    script |= accept(CODE.DELETE_SUBSCRIPTIONGROUP, MASTER, OTHER) | accept(CODE.DELETE_TOPIC_IN_BROKER, MASTER, OTHER)
    _, servers = run(script | accept(CODE.DELETE_TOPIC_IN_NAMESRV, NAMES), work)
    routes = [header for _, code, header, _ in servers.sent if code == CODE.DELETE_TOPIC_IN_NAMESRV]
    assert routes == [DeleteTopicRoute("%RETRY%G", "C"), DeleteTopicRoute("%DLQ%G", "C")]

    del script[OTHER, CODE.DELETE_TOPIC_IN_BROKER]
    with pytest.raises(PartialFailure, match="delete topic %RETRY%G on b:1") as failure:
        run(script, work)
    assert "route" not in str(failure.value)


@pytest.mark.parametrize(("name", "queues"), [("a/b", 1), ("", 1), ("T", 0), ("T", 65_537)])
def test_invalid_topics_are_not_sent(name: str, queues: int) -> None:
    with pytest.raises(ConfigError):
        run({}, lambda admin: admin.create_topic(name, queues=queues))


@pytest.mark.parametrize(("name", "kind"), [("broker-b", "broker"), ("C", "cluster")])
def test_the_names_of_servers_are_no_topics(name: str, kind: str) -> None:
    """Brokers have a topic with their own name and one with that of their cluster, and reject changes of both."""
    works: list[Callable[[Admin], Awaitable[Any]]] = [
        lambda admin: admin.create_topic(name),
        lambda admin: admin.check_topic_is_new(name, SERVERS),
        lambda admin: admin.change_topic(name, queues=4),
    ]
    for work in works:
        with pytest.raises(ConfigError, match=f"topic = '{name}': is the {kind}'s own name, .*; use another name"):
            run({}, work)
    others = [server for server in SERVERS if server.broker == "broker-a"]
    script = accept(CODE.UPDATE_AND_CREATE_TOPIC, MASTER)
    changes, _ = run(script, lambda admin: admin.create_topic("broker-b", servers=others))
    assert [change.addr for change in changes] == [MASTER]


def test_an_existing_topic_is_found_on_the_brokers_that_have_it() -> None:
    async def work(admin: Admin) -> None:
        await admin.check_topic_is_new("T", await admin.select_brokers(broker="broker-b"))

    with pytest.raises(ConfigError, match="exists on broker-b;"):
        run({}, work)
    unknown = ReplyError(ResponseCode.TOPIC_NOT_EXIST, "no route", NAMES)
    run({(NAMES, CODE.GET_ROUTEINFO_BY_TOPIC): unknown}, work)


def test_totals_are_unknown_if_a_broker_does_not_respond() -> None:
    script: Script = {
        (MASTER, CODE.GET_TOPIC_STATS_INFO): offsets("broker-a", q1=(2, 9, 77), q0=(0, 0, 0)),
        (OTHER, CODE.GET_TOPIC_STATS_INFO): offsets("broker-b", q0=(0, 5, 99)),
    }
    bounds, _ = run(script, lambda admin: admin.fetch_bounds("T"))
    assert [(queue.broker, queue.queue_id, queue.stored_ms) for queue in bounds.queues] == [
        ("broker-a", 0, None),
        ("broker-a", 1, 77),
        ("broker-b", 0, 99),
    ]
    assert (bounds.messages, bounds.unavailable) == (12, ())
    del script[OTHER, CODE.GET_TOPIC_STATS_INFO]
    bounds, _ = run(script, lambda admin: admin.fetch_bounds("T"))
    assert bounds.messages is None
    assert [str(missing) for missing in bounds.unavailable] == [
        "Broker broker-b b:1 did not respond: connection to b:1: refused"
    ]


def test_a_slave_responds_for_a_broker_without_a_master_and_makes_totals_unknown() -> None:
    brokers = {"broker-a": BrokerData({1: SLAVE, 2: "a:3"}, "broker-a", "C")}
    script: Script = {
        (NAMES, CODE.GET_BROKER_CLUSTER_INFO): ClusterInfo(brokers, {"C": ("broker-a",)}),
        (SLAVE, CODE.GET_TOPIC_STATS_INFO): offsets("broker-a", q0=(0, 5, 99)),
    }
    bounds, _ = run(script, lambda admin: admin.fetch_bounds("T"))
    assert (len(bounds.queues), bounds.messages) == (1, None)
    assert "no master is registered" in str(bounds.unavailable[0])


def test_topics_are_summed_over_brokers_and_listed_with_all_groups() -> None:
    tables = {
        MASTER: TopicTable(
            topic_config_table={"T": TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=3)}
        ),
        OTHER: TopicTable(
            topic_config_table={"T": TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=8, perm=4)}
        ),
    }
    script: Script = {(addr, CODE.GET_ALL_TOPIC_CONFIG): table for addr, table in tables.items()}
    (summaries, unavailable), _ = run(script, lambda admin: admin.list_summaries())
    assert summaries == [TopicSummary("C", "T", ("broker-a", "broker-b"), 12, 11, (4, 6))]
    assert unavailable == ()
    script = {
        (NAMES, CODE.GET_TOPICS_BY_CLUSTER): TopicList(None, ("T", "%RETRY%G", "%DLQ%G")),
        (MASTER, CODE.QUERY_TOPIC_CONSUME_BY_WHO): GroupList(("G", "H")),
        (OTHER, CODE.QUERY_TOPIC_CONSUME_BY_WHO): GroupList(("A", "G")),
    }
    directory, _ = run(script, lambda admin: admin.list_topic_groups())
    assert directory.topics == (TopicGroups("C", "T", ("A", "G", "H")),)


def test_queues_are_assigned_evenly() -> None:
    assigned, _ = run({}, lambda admin: admin.assign_queues("T", ["x", "y"]))
    assert [len(queues) for queues in assigned.values()] == [6, 6]
    assert (assigned["x"][0].broker, assigned["y"][-1].queue_id) == ("broker-a", 7)


def test_traffic_is_summed_over_masters_and_slaves() -> None:
    def statistic(minute: float, day: int, hour: int = 0) -> BrokerStatsData:
        items = (BrokerStatsItem(sum=day), BrokerStatsItem(sum=hour), BrokerStatsItem(tps=minute, sum=1))
        return BrokerStatsData(*items)

    script: Script = {
        (MASTER, CODE.VIEW_BROKER_STATS_DATA): statistic(1.25, 100),
        (SLAVE, CODE.VIEW_BROKER_STATS_DATA): statistic(0.5, 0, 20),
        (OTHER, CODE.VIEW_BROKER_STATS_DATA): ReplyError(ResponseCode.SYSTEM_ERROR, "The stats <x> not exist", OTHER),
        **{(addr, CODE.QUERY_TOPIC_CONSUME_BY_WHO): GroupList(("G",)) for addr in (MASTER, OTHER)},
        **{(addr, CODE.GET_CONSUME_STATS): ConsumeStats() for addr in (MASTER, SLAVE, OTHER)},
        **{
            (addr, CODE.GET_CONSUMER_CONNECTION_LIST): ReplyError(ResponseCode.CONSUMER_NOT_ONLINE, "not online")
            for addr in (MASTER, OTHER)
        },
    }
    report, _ = run(script, lambda admin: admin.fetch_traffic("T"))
    (topic,) = report.topics
    assert topic.stored == Traffic(1.25, 100)
    assert (topic.groups[0].received, topic.groups[0].lag) == (Traffic(1.75, 120), None)
    assert report.unavailable == ()
    del script[SLAVE, CODE.VIEW_BROKER_STATS_DATA]
    report, _ = run(script, lambda admin: admin.fetch_traffic("T"))
    assert (report.topics[0].stored, report.topics[0].groups[0].received) == (Traffic(1.25, 100), None)
    assert [missing.addr for missing in report.unavailable] == [SLAVE]


# --- selecting brokers ---


def test_an_address_that_is_not_registered_is_used_as_it_is() -> None:
    servers, _ = run({}, lambda admin: admin.select_brokers(broker="10.0.0.9:10911"))
    assert [(server.addr, server.broker) for server in servers] == [("10.0.0.9:10911", "")]
    with pytest.raises(NotFound, match="expected one of: broker-a, broker-b"):
        run({}, lambda admin: admin.select_brokers(broker="broker-z"))


@pytest.mark.parametrize(
    "refused", [ConnectionLost(NAMES, "refused"), RequestTimeout(NAMES, 3000), ClusterInfo({}, {})]
)
def test_an_address_needs_no_name_server(refused: Any) -> None:
    script = {(NAMES, CODE.GET_BROKER_CLUSTER_INFO): refused}
    servers, _ = run(script, lambda admin: admin.select_brokers(broker="10.0.0.9:10911"))
    assert [(server.addr, server.broker) for server in servers] == [("10.0.0.9:10911", "")]
    for options in ({}, {"broker": "broker-a"}, {"broker": "10.0.0.9:10911", "cluster": "C"}):
        with pytest.raises((ConnectionLost, RequestTimeout, ServerUnavailable)):
            run(script, lambda admin, options=options: admin.select_brokers(**options))


def test_a_server_that_does_not_respond_is_named_by_its_kind_and_address() -> None:
    async def broker_status(admin: Admin) -> list[Output]:
        options = Namespace(clusterName=None, brokerAddr="10.0.0.9:10911")
        return [output async for output in broker_commands.broker_status(admin, options)]

    (output,), _ = run({(NAMES, CODE.GET_BROKER_CLUSTER_INFO): ConnectionLost(NAMES, "refused")}, broker_status)
    assert [str(missing) for missing in output.unavailable] == [
        "Broker 10.0.0.9:10911 did not respond: connection to 10.0.0.9:10911: refused"
    ]
    answers, _ = run({}, lambda admin: admin.fetch_runtimes([BrokerServer("C", "broker-b", 0, OTHER)]))
    assert str(answers.unavailable[0]).startswith("Broker broker-b b:1 did not respond: ")
    settings, _ = run({}, lambda admin: admin.fetch_name_server_config())
    assert str(settings.unavailable[0]).startswith("Name server ns:1 did not respond: ")


def test_no_registered_broker_is_an_error() -> None:
    with pytest.raises(ServerUnavailable, match="no broker is registered"):
        run({(NAMES, CODE.GET_BROKER_CLUSTER_INFO): ClusterInfo({}, {})}, lambda admin: admin.fetch_bounds("T"))


# --- brokers ---


def test_runtime_values_that_a_broker_lacks_are_unknown() -> None:
    counters = ("PutTotalTodayNow", "PutTotalTodayMorning", "GetTotalTodayNow", "GetTotalTodayMorning")
    table = {"brokerVersionDesc": "V5_3_3", "bootTimestamp": "5", "sendThreadPoolQueueSize": "7", "putTps": "1.5 0.25 "}
    table |= {f"msg{name}": str(value) for name, value in zip(counters, (30, 10, 8, 8), strict=True)}
    runtime = parse_runtime("a:1", table)
    assert (runtime.put_today, runtime.got_today, runtime.put_yesterday) == (20, 0, None)
    assert (runtime.put_tps, runtime.get_tps) == (BrokerRates(1.5, 0.25, None), BrokerRates(None, None, None))
    assert (runtime.send_queue, runtime.pull_queue) == (RequestQueue(7, None), RequestQueue(None, None))
    assert (runtime.disk_ratio, runtime.page_cache_lock_ms, runtime.put_times) == (None, None, None)
    assert parse_runtime("a:1", {**table, "msgPutTotalYesterdayMorning": "4"}).put_yesterday == 6


def test_settings_are_sent_as_properties_and_a_failure_names_its_broker() -> None:
    async def work(admin: Admin) -> None:
        await admin.update_broker_config({"brokerPermission": "4"}, await admin.select_brokers())

    script: Script = accept(CODE.UPDATE_BROKER_CONFIG, MASTER, OTHER)
    _, servers = run(script, work)
    bodies = [body for _, code, _, body in servers.sent if code is CODE.UPDATE_BROKER_CONFIG]
    assert bodies == [b"brokerPermission=4\n"] * 2
    script[OTHER, CODE.UPDATE_BROKER_CONFIG] = ReplyError(ResponseCode.SYSTEM_ERROR, "cannot be changed", OTHER)
    with pytest.raises(PartialFailure, match="on b:1: b:1 answered code 1: cannot be changed"):
        run(script, work)


def test_settings_are_read_from_each_broker() -> None:
    async def work(admin: Admin) -> Any:
        return await admin.fetch_broker_config(await admin.select_brokers())

    answers, _ = run({(MASTER, CODE.GET_BROKER_CONFIG): b"b=2\na=1\n"}, work)
    assert [(server.addr, list(settings.items())) for server, settings in answers.values] == [
        (MASTER, [("a", "1"), ("b", "2")])
    ]
    assert [missing.addr for missing in answers.unavailable] == [OTHER]


# --- name servers ---


def test_changes_go_to_every_name_server() -> None:
    script = accept(CODE.PUT_KV_CONFIG, NAMES, OTHER_NAMES)
    _, servers = run(script, lambda admin: admin.put_kv("N", "k", "v"), namesrv=f"{NAMES};{OTHER_NAMES}")
    assert [(addr, header) for addr, _, header, _ in servers.sent] == [
        (addr, PutKv("N", "k", "v")) for addr in (NAMES, OTHER_NAMES)
    ]
    del script[OTHER_NAMES, CODE.PUT_KV_CONFIG]
    with pytest.raises(PartialFailure, match="set N/k on ns:2"):
        run(script, lambda admin: admin.put_kv("N", "k", "v"), namesrv=f"{NAMES};{OTHER_NAMES}")


def test_a_name_server_that_does_not_respond_is_named() -> None:
    script: Script = {(NAMES, CODE.GET_NAMESRV_CONFIG): b"listenPort=1\n"}
    work = lambda admin: admin.fetch_name_server_config()  # noqa: E731
    answers, _ = run(script, work, namesrv=f"{NAMES};{OTHER_NAMES}")
    assert [settings for _, settings in answers.values] == [{"listenPort": "1"}]
    assert [str(missing) for missing in answers.unavailable] == [
        "Name server ns:2 did not respond: connection to ns:2: refused"
    ]


def test_a_missing_kv_value_is_none() -> None:
    none = ReplyError(ResponseCode.QUERY_NOT_FOUND, "No config item", NAMES)
    assert run({(NAMES, CODE.GET_KV_CONFIG): none}, lambda admin: admin.fetch_kv("N", "k"))[0] is None
    found: Script = {(NAMES, CODE.GET_KV_CONFIG): Fields(KvValue("v"))}
    assert run(found, lambda admin: admin.fetch_kv("N", "k"))[0] == "v"


def test_the_order_configuration_of_other_brokers_is_kept() -> None:
    script: Script = {(NAMES, CODE.GET_KV_CONFIG): Fields(KvValue("broker-a:4;broker-b:4"))}
    script |= accept(CODE.PUT_KV_CONFIG, NAMES)
    conf, _ = run(script, lambda admin: admin.add_order_conf("T", "broker-b", 2))
    assert conf == "broker-a:4;broker-b:2"


def test_write_permission_counts_topics_except_in_a_dry_run() -> None:
    script: Script = {(NAMES, CODE.WIPE_WRITE_PERM_OF_BROKER): Fields(ChangedTopics(wipe_topic_count=7))}
    results, _ = run(script, lambda admin: admin.set_broker_writable("broker-a", False))
    assert [tuple(result) for result in results] == [(NAMES, 7)]
    results, _ = run({}, lambda admin: admin.set_broker_writable("broker-a", False), is_dry_run=True)
    assert [tuple(result) for result in results] == [(NAMES, None)]


# --- what mqadmin prints ---


def outputs(script: Script, command: Callable[[Admin, Namespace], Any], **options: Any) -> list[Output]:
    async def work(admin: Admin) -> list[Output]:
        return [output async for output in command(admin, Namespace(**options))]

    return run(script, work)[0]


def test_servers_without_a_response_are_listed_with_unknown_values() -> None:
    counters = {f"msg{kind}Total{day}": "3" for kind in ("Put", "Get") for day in ("TodayNow", "TodayMorning")}
    table = {"brokerVersionDesc": "V4_9_4", "bootTimestamp": "5", "earliestMessageTimeStamp": "-1", **counters}
    script: Script = {(MASTER, CODE.GET_BROKER_RUNTIME_INFO): KvTableBody(table)}
    (output,) = outputs(script, cluster_list, moreStats=False, interval=None)
    rows = [line.split() for line in output.text.splitlines()[1:]]
    assert [row[3] for row in rows] == [MASTER, SLAVE, OTHER]
    assert rows[0][4:] == [
        "V4_9_4",
        "0.00(unknown,unknownms)",
        "0.00(unknown,unknownms)",
        "unknown",
        "unknown",
        "unknown",
    ]
    assert rows[1][4:] == rows[2][4:] == ["unknown"] * 6
    assert [row["runtime"] is None for row in output.data] == [False, True, True]
    assert [missing.addr for missing in output.unavailable] == [SLAVE, OTHER]
    (output,) = outputs(script, cluster_list, moreStats=True, interval=None)
    assert [line.split()[2:] for line in output.text.splitlines()[1:]] == [
        ["unknown", "unknown", "0", "0"],
        ["unknown"] * 4,
        ["unknown"] * 4,
    ]


def test_unknown_traffic_and_lag_are_printed_as_unknown() -> None:
    script: Script = {
        **{(addr, CODE.QUERY_TOPIC_CONSUME_BY_WHO): GroupList(("G",)) for addr in (MASTER, OTHER)},
        **{(addr, CODE.GET_CONSUME_STATS): ConsumeStats() for addr in (MASTER, SLAVE, OTHER)},
    }
    (output,) = outputs(script, stats_all, topic="T", activeTopic=True)
    assert output.text.splitlines()[1].split() == ["T", "G", *["unknown"] * 5]
    assert {missing.addr for missing in output.unavailable} == {MASTER, SLAVE, OTHER}


def test_words_of_a_permission_ignore_the_bits_that_grant_nothing() -> None:
    # 7 is the default topic's: read, write, and a template for topics that are created with the first send.
    assert [permission_words(perm) for perm in (7, 6, 4, 2, 1, 0)] == [
        "read-write", "read-write", "read", "write", "none", "none",
    ]  # fmt: skip
