"""Transactions between Java 4.9.4 and us: producers, brokers, and one store directory."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from interop_servers import pull_all

from ariane.broker.transactions import half_messages
from ariane.client import LocalState, SendResult, TransactionProducer
from ariane.cluster.admin import Admin
from ariane.cluster.messages.transaction_admin import BrokerHalfMessages
from ariane.model import host
from ariane.model.message import Message, ReceivedMessage
from ariane.model.topic import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from ariane.protocol.records import record
from ariane.protocol.records.record import Record
from ariane.store.message_store import StoreConfig, open_store
from ariane.testing import LocalCluster, java

pytestmark = pytest.mark.interop

PATIENCE_S = 60.0
OURS = {"transaction_time_out": 500, "transaction_check_interval": 500}
JAVA = {"transactionTimeOut": "500", "transactionCheckInterval": "500"}
THREE = "first=commit,rollback,unknown"


def transact(namesrv: str, count: int, seconds: int, *options: str) -> list[dict[str, Any]]:
    args = [namesrv, "T", "P", str(count), str(seconds), *options]
    return java.events(java.run("ariane.peers.Transact", args))


def keys(messages: list[dict[str, Any]]) -> Counter[str]:
    return Counter(str(message["key"]) for message in messages)


def numbered(*numbers: int, name: str = "K") -> Counter[str]:
    return Counter(f"{name}-{number}" for number in numbers)


def of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == kind]


@contextmanager
def java_servers(home: Path, **settings: str) -> Iterator[str]:
    properties = {"mappedFileSizeCommitLog": str(1 << 20), "mappedFileSizeConsumeQueue": "2000", **JAVA, **settings}
    with java.name_server(home / "ns") as names, java.broker(home, names.addr, properties=properties):
        yield names.addr


def test_transactions_of_a_java_producer_at_our_broker(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, **OURS, transaction_check_max=3) as servers:
        namesrv = servers.namesrv
        # 2, 5, 8 and 11 are unknown at first; then 2 and 8 are committed, 5 rolled back, 11 never decided
        check = "check=,,commit,,,rollback,,,commit,,,unknown"
        events = transact(namesrv, 12, 5, THREE, check)
        sent, checks = of(events, "sent"), of(events, "check")
        assert [item["status"] for item in sent] == ["SEND_OK"] * 12
        assert [item["queueOffset"] for item in sent[:3]] == [0, 1, 2]
        assert keys(pull_all(namesrv, "T")) == numbered(0, 3, 6, 9, 2, 8)
        assert keys(checks).keys() == numbered(2, 5, 8, 11).keys()
        counts = sorted(int(item["checks"]) for item in checks if item["key"] == "K-11")
        assert counts in ([1, 2, 3], [2, 3])  # a round before the producer's first heartbeat counts, too
        assert {item["topic"] for item in checks} == {"T"}
        ids = {item["key"]: item["msgId"] for item in sent}
        assert all(item["msgId"] == ids[item["key"]] for item in [*checks, *pull_all(namesrv, "T")])
        aside = pull_all(namesrv, CHECK_MAX_TIME_TOPIC)
        assert keys(aside) == numbered(11)


def test_transactions_of_our_producer_at_a_java_broker(tmp_path: Path) -> None:
    checks: Counter[str] = Counter()

    def check(message: ReceivedMessage) -> LocalState:
        checks[message.keys[0]] += 1
        # A slow machine may be asked about a transaction whose end is on its way: the answer is the same.
        return LocalState.COMMIT if message.keys[0] in {"K-0", "K-3", "K-2"} else LocalState.ROLLBACK

    def execute(number: int) -> Callable[[SendResult], LocalState]:
        return lambda sent: (LocalState.COMMIT, LocalState.ROLLBACK, LocalState.UNKNOWN)[number % 3]

    async def play(namesrv: str) -> list[SendResult]:
        sent = []
        async with TransactionProducer(namesrv, "P", check=check) as producer:
            for number in range(6):
                message = Message(topic="T", body=b"%d" % number, keys=[f"K-{number}"])
                sent.append((await producer.send_in_transaction(message, execute(number))).sent)
            asked: Counter[str] = Counter()
            async with asyncio.timeout(PATIENCE_S):
                # Until both were asked about, and nothing was asked during more than a round of checks.
                while not asked.keys() >= {"K-2", "K-5"} or asked != checks:
                    asked = checks.copy()
                    await asyncio.sleep(2.5)
        return sent

    with java_servers(tmp_path, transactionCheckMax="1000") as namesrv:
        sent = asyncio.run(play(namesrv))
        result = pull_all(namesrv, "T")
    assert keys(result) == numbered(0, 3, 2)
    assert {item["msgId"] for item in result} == {sent[number].message_id for number in (0, 3, 2)}
    assert checks.keys() >= {"K-2", "K-5"}
    halves, ops, committed = (records(tmp_path, topic) for topic in (HALF_TOPIC, OP_HALF_TOPIC, "T"))
    first = next(item for item in halves if item.body == b"0")
    assert (first.sys_flag, first.property_map()["REAL_TOPIC"], first.property_map()["WAIT"]) == (0, "T", "true")
    assert {item.properties for item in ops} == {half_messages.OP_PROPERTIES}
    assert {item.body for item in ops} >= {b"0", b"1"}  # ends are one-way: a pool of threads decides their order
    item = next(item for item in committed if item.body == b"0")
    ours = half_messages.committed_draft(first)
    assert (item.topic, item.queue_id, item.sys_flag) == (ours.topic, ours.queue_id, ours.sys_flag)
    assert (item.prepared_offset, item.properties) == (ours.prepared_offset, ours.properties)


def records(home: Path, topic: str) -> list[Record]:
    """Return the messages of a stopped broker in queue 0, or in all queues, of a topic."""
    config = StoreConfig(root=str(home / "store"), commit_log_size=1 << 20, consume_queue_size=2000)
    store = open_store(config, store_host=host.pack("127.0.0.1", 10911))
    results: list[Record] = []
    for queue_id in store.topics().get(topic, []):
        offset = store.min_offset(topic, queue_id)
        while result := store.get(topic, queue_id, offset, 32).records:
            results += [record.decode(data) for data in result]
            offset += len(result)
    store.close()
    return results


@pytest.mark.long(
    "tests/interop/test_store_directory.py::test_a_store_opened_by_java_then_ours_then_java",
    "tests/interop/test_transactions_java.py::test_transactions_of_a_java_producer_at_our_broker",
)
def test_open_transactions_survive_ours_then_java_then_ours(tmp_path: Path) -> None:
    """Half messages that one broker left open are checked by the next; completed ones are not."""
    quiet = {"transaction_time_out": 1, "transaction_check_interval": 700, "transaction_check_max": 1000}
    small = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 2000}
    with LocalCluster(tmp_path, **quiet, **small) as servers:
        namesrv = servers.namesrv
        events = transact(namesrv, 9, 3, THREE, "check=unknown", "keys=ours")
        assert keys(of(events, "check")).keys() == numbered(2, 5, 8, name="ours").keys()
        assert keys(pull_all(namesrv, "T")) == numbered(0, 3, 6, name="ours")
    # Java copies what is older than its time-out; a half whose end is still on its way then stays open in the copy
    with java_servers(tmp_path, transactionTimeOut="1500", transactionCheckMax="1000") as namesrv:
        checks = transact(namesrv, 0, 6, "check=,,commit,,,rollback,,,unknown")
        assert keys(of(checks, "check")).keys() == numbered(2, 5, 8, name="ours").keys()
        assert min(int(item["checks"]) for item in checks) >= 2  # the count goes on
        events = transact(namesrv, 6, 5, THREE, "check=unknown", "keys=java")
        assert keys(of(events, "check")).keys() >= numbered(2, 5, name="java").keys()
        committed = numbered(0, 3, 6, 2, name="ours") + numbered(0, 3, name="java")
        assert keys(pull_all(namesrv, "T")) == committed
    with LocalCluster(tmp_path, **quiet, **small) as servers:
        namesrv = servers.namesrv
        checks = transact(namesrv, 0, 5, "check=,,commit,,,rollback,,,rollback")
        expected = numbered(8, name="ours") + numbered(2, 5, name="java")
        assert keys(of(checks, "check")).keys() == expected.keys()
        assert keys(pull_all(namesrv, "T")) == committed + numbered(2, name="java")
        before = len(pull_all(namesrv, HALF_TOPIC))
        time.sleep(2)
        assert len(pull_all(namesrv, HALF_TOPIC)) == before  # nothing is open, so nothing is copied


@pytest.mark.long(
    "tests/interop/test_transactions_java.py::test_transactions_of_a_java_producer_at_our_broker",
)
def test_a_java_admin_client_resumes_a_half_message_discarded_by_our_broker(tmp_path: Path) -> None:
    # A Java client registers its group a second after its start; a check before that would be lost.
    slow = {**OURS, "transaction_time_out": 3000}
    with LocalCluster(tmp_path, **slow, transaction_check_max=1) as servers:
        namesrv = servers.namesrv
        events = transact(namesrv, 1, 8, "first=unknown", "check=unknown")
        assert keys(of(events, "check")) == numbered(0)
        (aside,) = pull_all(namesrv, CHECK_MAX_TIME_TOPIC)
        with java.start(
            "ariane.peers.Transact", [namesrv, "T", "P", "0", f"{PATIENCE_S:.0f}", "check=commit"]
        ) as program:
            java.run("ariane.peers.Resume", [namesrv, str(aside["offsetMsgId"])])
            event = next(program.events(time.monotonic() + PATIENCE_S))
            deadline = time.monotonic() + PATIENCE_S
            while not (result := pull_all(namesrv, "T")):
                assert time.monotonic() < deadline
        assert (event["key"], event["checks"]) == ("K-0", "1")
        assert keys(result) == numbered(0)


@pytest.mark.long(
    "tests/unit/test_list_transactions.py::test_a_check_between_two_requests_hides_and_doubles_no_open_transaction",
)
def test_open_half_messages_of_a_java_broker_are_listed(tmp_path: Path) -> None:
    async def listed(namesrv: str) -> BrokerHalfMessages:
        async with Admin(namesrv) as admin:
            (broker,) = (await admin.list_open_transactions()).brokers
            return broker

    with java_servers(tmp_path, transactionCheckMax="1000", transactionCheckInterval="2000") as namesrv:
        sent = of(transact(namesrv, 9, 0, THREE, "check=unknown"), "sent")
        deadline = time.monotonic() + PATIENCE_S
        broker = asyncio.run(listed(namesrv))
        assert (broker.total, [half.keys for half in broker.messages]) == (3, ["K-2", "K-5", "K-8"])
        while any(half.checks < 2 for half in broker.messages):
            assert time.monotonic() < deadline
            time.sleep(0.5)
            broker = asyncio.run(listed(namesrv))
        assert sorted(half.keys for half in broker.messages) == ["K-2", "K-5", "K-8"]
        ids = {item["key"]: item["msgId"] for item in sent}
        assert all((half.topic, half.group, half.unique_key) == ("T", "P", ids[half.keys]) for half in broker.messages)
        # Java's copies do not reference the first one; it is known only while it is still in the range that is read.
        assert all(half.first_stored_ms is None or half.first_stored_ms <= half.stored_ms for half in broker.messages)
