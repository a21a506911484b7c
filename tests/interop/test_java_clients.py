"""Unmodified Java 4.9.4 clients and tools against our name server and broker."""

from __future__ import annotations

import base64
import time
from collections import defaultdict
from pathlib import Path

from interop_servers import consume, produce, pull_all

from ariane.protocol import trace_codec
from ariane.testing import LocalCluster, java


def test_java_consumers_receive_messages_of_java_producers(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        plain = produce(namesrv, 40, "tags=A,B")
        batched = produce(namesrv, 20, "batch=5", "keys=batch")
        compressed = produce(namesrv, 3, "size=20000", "keys=large")
        sent = {item["msgId"]: item for item in plain + batched + compressed}

        result = consume(namesrv, "G", "*", len(sent))
        assert {item["msgId"] for item in result} == sent.keys()
        for item in result:
            assert (item["offsetMsgId"], item["key"]) == (
                sent[item["msgId"]]["offsetMsgId"],
                sent[item["msgId"]]["key"],
            )
        large = [base64.b64decode(str(item["body"])) for item in result if str(item["key"]).startswith("large")]
        assert [len(body) for body in large] == [20_000] * 3

        only_a = consume(namesrv, "OnlyA", "A || none", 20)
        assert {item["tags"] for item in only_a} == {"A"}


def test_java_clients_accept_host_names_in_routes(tmp_path: Path) -> None:
    """The address of a pod changes, its name stays."""
    with LocalCluster(tmp_path, broker_ip1="localhost") as servers:
        assert servers.broker.addr.startswith("localhost:")
        sent = {item["msgId"] for item in produce(servers.namesrv, 5)}
        assert {item["msgId"] for item in consume(servers.namesrv, "G", "*", len(sent))} == sent


def test_order_within_a_queue_is_preserved(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        produce(namesrv, 60, "orders=5")
        by_order = defaultdict(list)
        for item in consume(namesrv, "G", "*", 60, "orderly"):
            by_order[item["key"]].append(base64.b64decode(str(item["body"])))
        numbers = {key: [int(body.split()[1]) for body in bodies] for key, bodies in by_order.items()}
        assert len(numbers) == 5
        assert all(order == sorted(order) for order in numbers.values())


def test_a_consumer_resumes_at_the_offsets_of_its_group(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        first = produce(namesrv, 20)
        assert len(consume(namesrv, "G", "*", 20)) == 20
    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        second = produce(namesrv, 20, "keys=later")
        result = {item["msgId"] for item in consume(namesrv, "G", "*", 20)}
    assert result == {item["msgId"] for item in second}
    assert not result & {item["msgId"] for item in first}


def test_java_traces_are_stored_in_the_trace_topic(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        sent = produce(namesrv, 10, "trace")
        consume(namesrv, "G", "*", 10, "trace")
        kinds = defaultdict(set)
        for message in pull_all(namesrv, "RMQ_SYS_TRACE_TOPIC"):
            events, rejects = trace_codec.decode(base64.b64decode(str(message["body"])))
            assert not rejects
            for event in events:
                kinds[trace_codec.RECORD_TYPES[type(event)]].add(event.message_id)
    ids = {item["msgId"] for item in sent}
    assert kinds == {"Pub": ids, "SubBefore": ids, "SubAfter": ids}


def test_mqadmin_creates_lists_and_deletes_a_topic(tmp_path: Path) -> None:
    def admin(*args: str) -> str:
        return "\n".join(java.run(java.ADMIN, [*args, "-n", namesrv]))

    with LocalCluster(tmp_path) as servers:
        namesrv, addr = servers.namesrv, servers.broker.addr
        assert "success" in admin("updateTopic", "-b", addr, "-t", "Made", "-r", "3", "-w", "2")
        route = admin("topicRoute", "-t", "Made")
        assert '"readQueueNums":3' in route
        assert '"writeQueueNums":2' in route
        produce(namesrv, 2, topic="Made")
        assert "success" in admin("deleteTopic", "-c", "DefaultCluster", "-t", "Made")
        assert "Made" not in admin("topicList")
        assert "success" in admin("updateSubGroup", "-b", addr, "-g", "Slow", "-s", "false")
        assert "%RETRY%" not in admin("topicList")


def test_mqadmin_lists_connected_clients(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv = servers.namesrv
        produce(namesrv, 1)
        with java.start("ariane.peers.Consume", [namesrv, "T", "G", "*", "0", "60"]) as consumer:
            next(consumer.events(time.monotonic() + 60))
            shown = "\n".join(java.run(java.ADMIN, ["consumerConnection", "-g", "G", "-n", namesrv]))
        assert "V4_9_4" in shown
        assert "CONSUME_PASSIVELY" in shown
