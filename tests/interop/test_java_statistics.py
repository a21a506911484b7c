"""Statistics across implementations: mqadmin against our broker, and responses of both brokers compared."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from interop_servers import consume, produce

from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.admin import CreateTopic, TopicRef
from ariane.protocol.requests.messaging import SUBSCRIPTION, PullMessage, SendMessage, UpdateConsumerOffset
from ariane.protocol.requests.stats import (
    GetBrokerConsumeStats,
    GetConsumeStats,
    QueryConsumeTimeSpan,
    ViewBrokerStats,
    by_queue,
)
from ariane.testing import LocalCluster, java

SAMPLED_S = 60.0  # both brokers sample their minute every 10 s
SENT = 12


def admin(namesrv: str, *args: str) -> str:
    return "\n".join(java.run(java.ADMIN, [*args, "-n", namesrv]))


async def until_sampled(peers: ConnectionPool, addr: str) -> None:
    """Wait until the broker's statistics of the minute contain all messages sent and received."""
    async with asyncio.timeout(SAMPLED_S):
        for name, key in (("TOPIC_PUT_NUMS", "T"), ("GROUP_GET_NUMS", "T@G"), ("BROKER_GET_NUMS", "DefaultCluster")):
            while await _minute_sum(peers, addr, name, key) < SENT:
                await asyncio.sleep(0.1)


async def _minute_sum(peers: ConnectionPool, addr: str, name: str, key: str) -> int:
    answer = await peers.request(addr, RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStats(name, key))
    return int(fastjson.read(answer.body)["statsMinute"]["sum"]) if answer.body else 0


def wait_until_sampled(addr: str) -> None:
    async def wait() -> None:
        async with ConnectionPool() as peers:
            await until_sampled(peers, addr)

    asyncio.run(wait())


def test_mqadmin_reads_our_statistics(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv, addr = servers.namesrv, servers.broker.addr
        produce(namesrv, SENT)
        assert len(consume(namesrv, "G", "*", SENT)) == SENT
        wait_until_sampled(addr)

        status = dict(re.findall(r"^(\w+)\s+: (.*)$", admin(namesrv, "brokerStatus", "-b", addr), re.MULTILINE))
        assert status["msgPutTotalTodayNow"] == status["msgGetTotalTodayNow"] == str(SENT)
        assert status["brokerVersionDesc"] == "V4_9_4"

        rows = [line.split() for line in admin(namesrv, "topicStatus", "-t", "T").splitlines() if "broker-a" in line]
        assert sum(int(row[3]) - int(row[2]) for row in rows) == SENT

        progress = admin(namesrv, "consumerProgress", "-g", "G")
        assert "Diff Total: 0" in progress
        rows = [line.split() for line in progress.splitlines() if line.startswith("T ")]
        assert sum(int(row[4]) for row in rows) == SENT
        assert "G " in admin(namesrv, "consumerProgress")

        assert "broker-a" in admin(namesrv, "brokerConsumeStats", "-b", addr)
        clusters = admin(namesrv, "clusterList")
        assert "broker-a" in clusters


def test_mqadmin_lists_an_online_consumer(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        produce(namesrv, 1)
        with java.start("ariane.peers.Consume", [namesrv, "T", "G", "*", "0", "60"]) as consumer:
            next(consumer.events(time.monotonic() + 60))
            (row,) = [line.split() for line in admin(namesrv, "consumerProgress").splitlines() if line.startswith("G ")]
            assert row[1:5] == ["1", "V4_9_4", "PUSH", "CLUSTERING"]


def test_mqadmin_combines_rates_and_lag(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv, addr = servers.namesrv, servers.broker.addr
        produce(namesrv, SENT)
        assert len(consume(namesrv, "G", "*", SENT)) == SENT
        wait_until_sampled(addr)
        (row,) = [line.split() for line in admin(namesrv, "statsAll", "-t", "T").splitlines() if line.startswith("T ")]
        assert row[1:3] == ["G", "0"]
        assert 0 < float(row[3]) < SENT and 0 < float(row[4]) < SENT


def test_both_brokers_return_the_same_structure(tmp_path: Path) -> None:
    """Send and read the same messages at both brokers, then compare the members of each response and all stable values."""
    with (
        java.name_server(tmp_path / "ns") as names,
        java.broker(tmp_path / "java", names.addr) as theirs,
        LocalCluster(tmp_path / "ours") as servers,
    ):
        addr = servers.broker.addr
        reported = [asyncio.run(used_and_asked(item)) for item in (theirs.addr, addr)]

    java_says, we_say = reported
    for name in ("kernels", "requestBatchMax", "memberStream", "replicationTls"):
        assert we_say["28"]["body"]["table"].pop(name), "a value that Java does not report"
    for name in java_says:
        assert shape(java_says[name]) == shape(we_say[name]), name
    numbers = [sums(item) for item in reported]
    assert numbers[0] == numbers[1]
    assert numbers[1]["ends"] == dict.fromkeys(range(4), (0, 3))
    assert numbers[1]["group"] == {0: (3, 2), 1: (3, 0), 2: (3, 0), 3: (3, 0)}
    assert numbers[1]["stats"]["315 GROUP_GET_NUMS T@G"] == (12, 3.0)
    assert float(we_say["28"]["body"]["table"]["commitLogDiskRatio"]) == pytest.approx(
        float(java_says["28"]["body"]["table"]["commitLogDiskRatio"]), abs=0.011
    )


async def used_and_asked(addr: str) -> dict[str, Any]:
    """Send twelve messages to four queues, read all, commit two of one queue; return the statistics of the next sample."""
    async with ConnectionPool() as peers:
        await peers.request_ok(addr, RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopic("T", "TBW102", 4, 4, 6))
        for number in range(SENT):
            header = SendMessage("P", "T", "TBW102", 4, number % 4, 0, 1234, 0)
            await peers.request_ok(addr, RequestCode.SEND_MESSAGE_V2, header, b"hello")
        await asyncio.sleep(0.5)  # Java makes queue entries in a thread of its own
        for queue in range(4):
            header = PullMessage("G", "T", queue, 0, 32, SUBSCRIPTION, 0, 0, "*", 0, None)
            await peers.request_ok(addr, RequestCode.PULL_MESSAGE, header)
        await peers.request_ok(addr, RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("G", "T", 0, 2))
        await until_sampled(peers, addr)
        await asyncio.sleep(1)  # other statistics are sampled in the same moment, by other threads
    return await answers(addr)


async def answers(addr: str) -> dict[str, Any]:
    questions: dict[str, tuple[RequestCode, msgspec.Struct | None]] = {
        "28": (RequestCode.GET_BROKER_RUNTIME_INFO, None),
        "202": (RequestCode.GET_TOPIC_STATS_INFO, TopicRef("T")),
        "208": (RequestCode.GET_CONSUME_STATS, GetConsumeStats("G", "T")),
        "208 empty": (RequestCode.GET_CONSUME_STATS, GetConsumeStats("Nobody")),
        "303": (RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpan("T", "G")),
        "317": (RequestCode.GET_BROKER_CONSUME_STATS, GetBrokerConsumeStats(False)),
    }
    keys = (
        "TOPIC_PUT_NUMS T",
        "TOPIC_PUT_SIZE T",
        "GROUP_GET_NUMS T@G",
        "GROUP_GET_SIZE T@G",
        "BROKER_PUT_NUMS DefaultCluster",
    )
    for key in (*keys, "BROKER_GET_NUMS DefaultCluster", "GROUP_GET_LATENCY 0@T@G", "GROUP_GET_FALL_SIZE 0@T@G", "X y"):
        questions[f"315 {key}"] = (RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStats(*key.split()))
    reported: dict[str, Any] = {}
    async with ConnectionPool() as peers:
        for name, (code, header) in questions.items():
            answer = await peers.request(addr, code, header)
            reported[name] = {"code": answer.code, "body": fastjson.read(answer.body) if answer.body else None}
        reported["202 unknown"] = {
            "code": (await peers.request(addr, RequestCode.GET_TOPIC_STATS_INFO, TopicRef("Z"))).code
        }
    return reported


def shape(value: Any) -> Any:
    """Return members and value types. Paths and broker-specific groups are normalized."""
    if isinstance(value, dict):
        return {
            re.sub(r"commitLogDiskRatio_.*", "commitLogDiskRatio_PATH", key): shape(item) for key, item in value.items()
        }
    if isinstance(value, list):
        return sorted(
            {json.dumps(shape(item), sort_keys=True) for item in value if item != {} and not is_silent_group(item)}
        )
    return type(value).__name__


def is_silent_group(value: Any) -> bool:
    return isinstance(value, dict) and list(value.values()) == [[]]


def sums(told: dict[str, Any]) -> dict[str, Any]:
    """Return the values that must be equal on both sides."""
    ends = by_queue(told["202"]["body"]["offsetTable"])
    group = by_queue(told["208"]["body"]["offsetTable"])
    return {
        "codes": {name: item["code"] for name, item in told.items()},
        "ends": {queue.queue_id: (item["minOffset"], item["maxOffset"]) for queue, item in sorted(ends.items())},
        "group": {
            queue.queue_id: (item["brokerOffset"], item["consumerOffset"]) for queue, item in sorted(group.items())
        },
        "behind": told["317"]["body"]["totalDiff"],
        "stats": {
            name: (item["body"]["statsMinute"]["sum"], item["body"]["statsMinute"]["avgpt"])
            for name, item in told.items()
            if name.startswith("315") and item["body"] and "LATENCY" not in name
        },
    }
