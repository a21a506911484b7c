"""A partition to send requests, with brokers that reject, disappear and respond late. No socket, no waiting."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

import logging
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from ariane.client.sending.send_codec import queue_for_key
from ariane.errors import ArianeError, ConnectionLost, MessageRefused, RequestTimeout, RouteNotFound
from ariane.model.message import MessageQueue
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import batch, compression, properties
from ariane.protocol.requests.routing import BrokerData, QueueData, TopicRoute
from ariane.spark.wire.blocking_connection import Request
from ariane.spark.wire.name_servers import BlockingNameServerClient
from ariane.spark.wire.pipelined_connections import PipelinedResponse
from ariane.spark.write import message_encoder, send_client, sink, stream_sink
from ariane.spark.write.partitioner import Partitioner, SendRequest
from ariane.spark.write.sink_options import SinkOptions, parse
from ariane.testing.clock import FakeClock

CALLED = message_encoder.row_ids("run-1", 0, 1, 1_760_000_000_000)
ADDRS = {"broker-a": "10.0.0.1:10911", "broker-b": "10.0.0.2:10911"}
NO = ResponseCode.SYSTEM_BUSY


class Cluster:
    """Name server and brokers: keeps what is stored, answers as `behave` says, later requests sometimes first."""

    def __init__(
        self, behave: Callable[[int, str], Any] = lambda number, addr: 0, queues: int = 2, seed: int = 1
    ) -> None:
        self.behave = behave
        self.brokers = dict(ADDRS)
        self.queues = queues
        self.topics = {"T"}
        self.stored: dict[tuple[str, int], list[tuple[bytes, dict[str, str]]]] = {}
        self.requests: list[tuple[str, int, dict[str, str]]] = []
        self.in_flight = self.most_in_flight = 0
        self.clock = FakeClock(100_000)
        self.versions: dict[str, int] = {}  # of the brokers that do not know RECALL_MESSAGE
        self.asked: list[str] = []  # addresses that got a RECALL_MESSAGE
        self._waiting: list[PipelinedResponse] = []
        self._chance = random.Random(seed)
        self._tokens = 0

    def send(self, addr: str, code: int, fields: dict[str, str], body: bytes = b"") -> int:
        self._tokens += 1
        self.requests.append((addr, code, fields))
        outcome = self.behave(len(self.requests), addr)
        if outcome == "refused":
            raise ConnectionLost(addr, "refused")
        if outcome in (0, "silent", 10):
            self._store(addr, fields, body)
        error = RequestTimeout(addr, 10) if outcome == "silent" else None
        command = None if error else Command(outcome, remark="because")
        self._waiting.append(PipelinedResponse(self._tokens, command, error))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        return self._tokens

    def poll(self, wait_s: float) -> list[PipelinedResponse]:
        if not self._waiting:
            self.clock.advance(wait_s)
            return []
        answer = self._waiting.pop(self._chance.randrange(len(self._waiting)))
        self.in_flight = max(0, self.in_flight - 1)
        return [answer]

    def close(self) -> None:
        """Nothing to close."""

    def answer_recall(self, addr: str, requests: Sequence[Request]) -> list[Command]:
        assert [request.code for request in requests] == [RequestCode.RECALL_MESSAGE]
        self.asked.append(addr)
        if self.behave(0, addr) == "refused":
            raise ConnectionLost(addr, "refused")
        if addr in self.versions:
            return [Command(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, version=self.versions[addr])]
        return [Command(ResponseCode.MESSAGE_ILLEGAL)]

    def route(self, topic: str) -> Command:
        if topic not in self.topics:
            return Command(ResponseCode.TOPIC_NOT_EXIST)
        brokers = tuple(BrokerData({0: addr}, name) for name, addr in sorted(self.brokers.items()))
        queues = tuple(QueueData(name, 6, self.queues, 0, self.queues) for name in sorted(self.brokers))
        return Command(0, body=fastjson.write(TopicRoute(broker_datas=brokers, queue_datas=queues)))

    def _store(self, addr: str, fields: dict[str, str], body: bytes) -> None:
        queue = self.stored.setdefault((addr, int(fields["e"])), [])
        if fields["m"] == "true":
            queue += [(entry.body, properties.decode(entry.properties)) for entry in batch.decode(body)]
        else:
            queue.append((compression.decompress(body, int(fields["f"])), properties.decode(fields["i"])))

    def bodies(self, addr: str, queue_id: int) -> list[bytes]:
        return [body for body, _ in self.stored.get((addr, queue_id), [])]

    def everything(self) -> list[bytes]:
        return [body for queue in self.stored.values() for body, _ in queue]


def write_routes(cluster: Cluster, sink_options: SinkOptions) -> send_client.WriteRoutes:
    """Return the routes of `cluster`, from a name server that always responds."""

    def respond(addr: str, requests: Sequence[Request]) -> list[Command]:
        assert {request.code for request in requests} == {RequestCode.GET_ROUTEINFO_BY_TOPIC}
        return [cluster.route(request.header.topic) for request in requests]  # type: ignore[union-attr]

    name_servers = BlockingNameServerClient(respond, sink_options.namesrv)
    return send_client.WriteRoutes(
        sink_options, name_servers, sleep=cluster.clock.advance, monotonic=cluster.clock.monotonic
    )


def options(**given: str) -> SinkOptions:
    return parse({"namesrv": "10.0.0.9:9876", "topic": "T", "retries": "5", **given})


def write(cluster: Cluster, rows: dict[str, list[Any]], record_batch: int = 50, **given: str) -> send_client.SendStats:
    sink_options = options(**given)
    routes = write_routes(cluster, sink_options)
    spread = Partitioner(sink_options, CALLED, 1, routes.queues)
    sender = send_client.RequestSender(
        sink_options,
        routes,
        cluster,
        require_timers=sink.timer_check(sink_options, cluster.answer_recall),
        now_ms=lambda: 5,
        monotonic=cluster.clock.monotonic,
    )
    types = {
        "queue_id": pa.int32(), "delay_level": pa.int32(), "flag": pa.int32(), "body": pa.binary(),
        "deliver_at": pa.timestamp("us", "UTC"),
    }  # fmt: skip
    table = pa.table({name: pa.array(values, types.get(name, pa.string())) for name, values in rows.items()})
    first = 0
    for part in table.to_batches(record_batch):
        for chunk in spread.requests(part, message_encoder.encode(part, CALLED, first, sink_options)):
            sender.put(chunk)
        first += part.num_rows
    return sender.finish()


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def first_copies(bodies: list[bytes]) -> list[bytes]:
    return list(dict.fromkeys(bodies))


def test_rows_rotate_over_the_queues_and_each_is_stored_once() -> None:
    cluster = Cluster()
    sent = write(cluster, {"body": numbers(100)}, batchSize="10")
    assert sorted(cluster.everything()) == sorted(numbers(100))
    assert {key: len(item) for key, item in cluster.stored.items()} == {
        (ADDRS["broker-a"], 0): 20, (ADDRS["broker-a"], 1): 30, (ADDRS["broker-b"], 0): 30, (ADDRS["broker-b"], 1): 20
    }  # fmt: skip
    assert (sent.messages, sent.requests, sent.retried, sent.not_durable) == (100, 10, 0, 0)
    assert {fields["i"] for _, _, fields in cluster.requests} == {"WAIT\x01true"}


def test_keys_go_to_the_queue_that_producers_select() -> None:
    cluster = Cluster()
    keys = [f"key {number % 7}" for number in range(60)]
    write(cluster, {"body": numbers(60), "ordering_key": keys}, batchSize="3")
    queues = [MessageQueue("T", name, queue_id) for name in sorted(ADDRS) for queue_id in range(2)]
    for number, key in enumerate(keys):
        queue = queue_for_key(queues, key)
        assert b"%d" % number in cluster.bodies(ADDRS[queue.broker], queue.queue_id)


@pytest.mark.parametrize("seed", range(20))
def test_order_is_retained_when_brokers_fail_and_time_out(seed: int) -> None:
    chance = random.Random(seed)

    def behave(number: int, addr: str) -> Any:
        return chance.choice([0, 0, 0, 0, NO, "refused", "silent", ResponseCode.SYSTEM_ERROR])

    cluster = Cluster(behave, seed=seed)
    keys = [f"key {number % 5}" for number in range(120)]
    delays = [1 if number % 11 == 0 else None for number in range(120)]  # those are sent one by one
    sent = write(
        cluster, {"body": numbers(120), "ordering_key": keys, "delay_level": delays}, batchSize="4", retries="40"
    )
    for key in range(5):
        of_key = [body for body in numbers(120) if int(body) % 5 == key]
        (holding,) = [queue for queue in cluster.stored.values() if of_key[0] in [body for body, _ in queue]]
        assert first_copies([body for body, _ in holding if int(body) % 5 == key]) == of_key
    assert sent.messages == 120
    assert sent.retried > 0
    dedup = [result["ARIANE_DEDUP"] for queue in cluster.stored.values() for _, result in queue]
    assert len(set(dedup)) == 120  # a copy has the name of the first


def test_requests_in_flight_are_limited_and_one_per_ordered_queue() -> None:
    cluster = Cluster()
    write(cluster, {"body": numbers(200)}, batchSize="1", maxInFlight="5")
    assert cluster.most_in_flight <= 5
    cluster = Cluster()
    write(cluster, {"body": numbers(200), "queue_id": [1] * 200, "broker": ["broker-a"] * 200}, batchSize="1")
    assert cluster.bodies(ADDRS["broker-a"], 1) == numbers(200)
    assert cluster.most_in_flight == 1


def test_unordered_rows_fail_over_to_another_broker_and_keyed_rows_wait() -> None:
    def away(number: int, addr: str) -> Any:
        return "refused" if addr == ADDRS["broker-a"] else 0

    cluster = Cluster(away)
    assert write(cluster, {"body": numbers(40)}, batchSize="5").messages == 40
    assert {addr for addr, _ in cluster.stored} == {ADDRS["broker-b"]}
    cluster = Cluster(away)
    with pytest.raises(
        ArianeError,
        match=r"T queue 0 of broker-a: 1 messages from run-1/0/1/0 on: connection to 10.0.0.1.*tried 6 times",
    ):
        write(cluster, {"body": [b"x"], "queue_id": [0], "broker": ["broker-a"]})


def test_a_broker_that_moved_is_found() -> None:
    cluster = Cluster(lambda number, addr: "refused" if addr == ADDRS["broker-a"] else 0)
    cluster.brokers = {"broker-a": ADDRS["broker-a"]}
    sink_options = options()
    routes = write_routes(cluster, sink_options)
    queue = routes.queues("T")[0]
    cluster.brokers = {"broker-a": "10.0.0.3:10911"}
    cluster.queues = 7
    routes.refresh("T")
    assert routes.master(queue.broker) == "10.0.0.3:10911"
    assert len(routes.queues("T")) == 2  # keys keep their queues within a task


@pytest.mark.parametrize(
    ("code", "remark"), [(ResponseCode.MESSAGE_ILLEGAL, "because"), (ResponseCode.SYSTEM_ERROR, "AclException: no")]
)
def test_permanent_errors_are_not_retried(code: int, remark: str) -> None:
    class Refusing(Cluster):
        def poll(self, wait_s: float) -> list[PipelinedResponse]:
            result = super().poll(wait_s)
            return [
                PipelinedResponse(item.token, Command(item.command.code, remark=remark, body=item.command.body))
                for item in result
            ]

    cluster = Refusing(lambda number, addr: code)
    with pytest.raises(ArianeError, match=f"T queue 1 of broker-a.*answered code {int(code)}: {remark}"):
        write(cluster, {"body": [b"x"]}, batchSize="1")
    assert len(cluster.requests) == 1


def test_a_message_stored_without_flush_counts_as_not_durable() -> None:
    sent = write(Cluster(lambda number, addr: 10), {"body": numbers(3)})
    assert (sent.messages, sent.not_durable, sent.retried) == (3, 3, 0)


def test_large_delayed_and_retry_messages_have_their_own_requests() -> None:
    cluster = Cluster()
    cluster.topics.add("%RETRY%G")
    rows = {
        "body": [b"x" * 5000, b"a", b"b", b"c", b"d"], "delay_level": [None, 3, None, None, None],
        "topic": ["T", "T", "%RETRY%G", "T", None],
    }  # fmt: skip
    write(cluster, rows)
    requests = {(code, fields["b"], fields["f"]) for _, code, fields in cluster.requests}
    single, several = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
    flags = str(compression.ZLIB_FLAGS)
    assert requests == {(single, "T", flags), (single, "T", "0"), (single, "%RETRY%G", "0"), (several, "T", "0")}
    assert sorted(cluster.everything()) == sorted(rows["body"])


def test_no_request_exceeds_the_size_limit() -> None:
    sink_options = options(batchBytes="1000", batchSize="100")
    table = pa.record_batch({"body": pa.array([b"x" * (number * 7 % 900 + 1) for number in range(200)])})
    spread = Partitioner(sink_options, CALLED, 0, lambda topic: [MessageQueue(topic, "broker-a", 0)])
    chunks: list[SendRequest] = list(spread.requests(table, message_encoder.encode(table, CALLED, 0, sink_options)))
    assert sum(chunk.message_count for chunk in chunks) == 200
    assert all(len(chunk.message.body) <= 1000 for chunk in chunks)
    assert max(len(chunk.message.body) for chunk in chunks if chunk.message.is_batch) > 700


def test_an_unknown_topic_or_queue_is_named_with_the_remedy() -> None:
    with pytest.raises(RouteNotFound, match="not found on any of 10.0.0.9:9876; the sink creates no topics"):
        write(Cluster(), {"body": [b"x"], "topic": ["U"]})
    cases = [
        (
            {"queue_id": [9]},
            "row run-1/0/1/0: queue_id 9 is not a writable queue of T; expected one of broker-a 0 to 1, broker-b 0 to 1",
        ),
        ({"queue_id": [0]}, "queue_id 0 exists on several brokers .*add a column broker"),
        ({"queue_id": [0], "broker": ["broker-x"]}, "queue_id 0 of broker-x is not a writable queue"),
        (
            {"queue_id": [0], "broker": ["broker-a"], "ordering_key": ["k"]},
            "queue_id and ordering_key are both set: keep one",
        ),
        ({"topic": ["a b"]}, "'a b' holds characters"),
        ({"topic": ["SCHEDULE_TOPIC_XXXX"]}, "is reserved for the broker"),
    ]
    for columns, text in cases:
        with pytest.raises(MessageRefused, match=text):
            write(Cluster(), {"body": [b"x"], **columns})


def test_commit_and_abort_log_the_counts_of_a_job(caplog: pytest.LogCaptureFixture) -> None:
    done = [sink.TaskCommit(10, 2, 500, 1, 3, partition=0), None, sink.TaskCommit(5, 1, 100, partition=2)]
    counts = "15 messages, 600 bytes in 3 requests by 2 of 3 tasks"
    assert sink.summarize(done).startswith(counts)
    assert (
        "1 requests retried (their messages may be stored twice), 3 messages stored without confirmation of"
        in sink.summarize(done)
    )
    with caplog.at_level(logging.INFO, "ariane.spark"):
        sink.BatchWriter(options(), "run-1").abort(done)
        stream_sink.StreamWriter(options()).commit(done[2:], 7)
    failed, fine = (record.getMessage() for record in caplog.records)
    assert failed.startswith(f"Run run-1 failed: {counts}")
    assert failed.endswith("messages already sent cannot be removed from their topics, and a retry sends them again")
    assert fine == "Batch 7 committed: 5 messages, 100 bytes in 1 requests by 1 of 1 tasks"


DUE = datetime(2030, 1, 1, tzinfo=UTC)
V4_9_4, V5_0_0 = 399, 413


def timed_rows(count: int) -> dict[str, list[Any]]:
    return {
        "body": numbers(count),
        "deliver_at": [DUE] * count,
        "queue_id": [0] * count,
        "broker": ["broker-a"] * count,
    }


def test_a_broker_is_asked_once_whether_it_delivers_at_a_time() -> None:
    cluster = Cluster()
    write(cluster, {"body": numbers(2)})
    assert cluster.asked == []
    write(cluster, timed_rows(3))
    assert cluster.asked == [ADDRS["broker-a"]]
    cluster.versions = dict.fromkeys(ADDRS.values(), V5_0_0)  # has timers, and not this request
    assert write(cluster, timed_rows(1)).messages == 1


def test_a_time_is_refused_for_a_broker_that_would_deliver_immediately() -> None:
    cluster = Cluster()
    cluster.versions = dict.fromkeys(ADDRS.values(), V4_9_4)
    with pytest.raises(
        ArianeError, match=r"T queue 0 of broker-a: 1 messages .*deliver it immediately.*checkTimers=false"
    ):
        write(cluster, timed_rows(1))
    assert cluster.everything() == []
    assert write(cluster, timed_rows(1), checkTimers="false").messages == 1


def test_a_broker_that_cannot_be_asked_is_asked_again() -> None:
    outcomes = iter(["refused", "refused"])
    cluster = Cluster(lambda number, addr: 0 if number else next(outcomes, 0))
    assert write(cluster, timed_rows(1)).messages == 1
    assert len(cluster.asked) == 3
