"""A round of the collector: requests per broker, work deferred to the next round, unresponsive brokers."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from ariane.client.producer import Producer
from ariane.cluster.admin import Admin
from ariane.errors import ArianeError, ConfigError, ConnectionLost, RequestTimeout, ServerUnavailable
from ariane.metrics_collector import publisher, sample
from ariane.metrics_collector.poller import FORGET_MS, BrokerPoller, PollLimits, take_round_robin
from ariane.metrics_collector.sample import GroupProgress, OmittedPart, Sample, StatsCounter, TopicQueueRanges
from ariane.model.message import Message
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.pools.requester import ServerRequest
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.admin import ConsumerOffsetTable
from ariane.protocol.requests.messaging import OffsetResponse
from ariane.protocol.requests.routing import BrokerData, ClusterInfo, KvTableBody
from ariane.testing.clock import FakeClock

BOOT = {"bootTimestamp": "77", "msgPutTotalTodayNow": "5", "msgGetTotalTodayNow": "6", "commitLogMaxOffset": "900"}


class Cluster(ConnectionPool):
    """Brokers as tables in place of sockets: one name, a master and a slave, `ns` the name server."""

    def __init__(self) -> None:
        super().__init__()
        self.brokers = {0: "master:1", 1: "slave:1"}
        self.topics = {"T": {0: (0, 100), 1: (3, 50)}}
        self.offsets = {"T@G": {0: 90, 1: 50}}
        self.delays = {0: 4100, 1: 0}
        self.counted = {("slave:1", "GROUP_GET_NUMS", "T@G"): 60, ("slave:1", "GROUP_GET_SIZE", "T@G"): 6000}
        self.starts: set[int] = set()  # queues whose first message is in memory
        self.silent: set[str] = set()
        self.asked: list[tuple[str, RequestCode, str]] = []

    async def exchange(self, request: ServerRequest) -> Command:
        addr, code, header, _, timeout_ms = request
        values = encode_header(header) if header else {}
        self.asked.append((addr, RequestCode(code), "@".join(values.values())))
        if addr in self.silent:
            raise RequestTimeout(addr, timeout_ms)
        return self._answer(addr, code, values)

    def _answer(self, addr: str, code: int, values: dict[str, str]) -> Command:
        def good(body: object) -> Command:
            return Command(ResponseCode.SUCCESS, body=body if isinstance(body, bytes) else fastjson.write(body))

        if code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return good(ClusterInfo({"b": BrokerData(self.brokers, "b", "c")}))
        if code == RequestCode.GET_BROKER_RUNTIME_INFO:
            return good(KvTableBody(BOOT))
        if code == RequestCode.GET_ALL_TOPIC_CONFIG:
            names = [*self.topics, "gone", "TBW102", "b", "c", "RMQ_SYS_TRACE_TOPIC"]
            table = {name: {"topicName": name, "readQueueNums": len(self.topics.get(name, ()))} for name in names}
            return good(msgspec.json.encode({"topicConfigTable": table}))
        if code == RequestCode.GET_ALL_CONSUMER_OFFSET:
            return good(ConsumerOffsetTable(self.offsets))
        if code == RequestCode.GET_TOPIC_STATS_INFO:
            if values["topic"] not in self.topics:
                return Command(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")
            queues = self.topics[values["topic"]].items()
            inside = ",".join(
                f'{{"brokerName":"b","queueId":{queue},"topic":"{values["topic"]}"}}:{{"minOffset":{low},"maxOffset":{high}}}'
                for queue, (low, high) in queues
            )
            return good(f'{{"offsetTable":{{{inside}}}}}'.encode())
        if code == RequestCode.QUERY_CONSUME_TIME_SPAN:
            return good(msgspec.json.encode({"consumeTimeSpanSet": [_span(*delay) for delay in self.delays.items()]}))
        if code == RequestCode.QUERY_CONSUMER_OFFSET:
            if int(values["queueId"]) not in self.starts:
                return Command(ResponseCode.QUERY_NOT_FOUND, remark="none")
            return Command(ResponseCode.SUCCESS, fields=encode_header(OffsetResponse(0)))
        assert code == RequestCode.VIEW_BROKER_STATS_DATA
        count = self.counted.get((addr, values["statsName"], values["statsKey"]))
        if count is None:
            return Command(ResponseCode.SYSTEM_ERROR, remark="The stats <x> <y> not exist")
        none = {"sum": 0, "tps": 0.0, "avgpt": 0.0}
        minute = none | {"sum": count, "tps": count / 60}
        return good(msgspec.json.encode({"statsDay": none, "statsHour": none, "statsMinute": minute}))


def _span(queue: int, delay_ms: int) -> dict[str, Any]:
    texts = dict.fromkeys(("consumeTimeStampStr", "maxTimeStampStr", "minTimeStampStr"), "")
    times = dict.fromkeys(("consumeTimeStamp", "maxTimeStamp", "minTimeStamp"), 1)
    return {
        "delayTime": delay_ms,
        "messageQueue": {"brokerName": "b", "queueId": queue, "topic": "T"},
        **texts,
        **times,
    }


def sampler(cluster: Cluster, clock: FakeClock | None = None, **limits: int) -> BrokerPoller:
    return BrokerPoller(
        cluster,
        ["ns"],
        collector="host",
        interval_ms=5000,
        limits=PollLimits(**limits),
        clock=clock or FakeClock(1000, is_auto=True),
    )


def one_round(cluster: Cluster) -> list[Sample]:
    return asyncio.run(sampler(cluster).poll())


def test_a_round_samples_a_master_and_its_slave() -> None:
    cluster = Cluster()
    master, slave = one_round(cluster)
    assert master.topics == (TopicQueueRanges("T", 1000, ((0, 0, 100), (1, 3, 50))),)
    # The oldest pending message of queue 0 is 4.1 s old; queue 1 has none.
    assert master.groups == (GroupProgress("G", "T", 1000, 1000, ((0, 90, 0, 100, 4100), (1, 50, 3, 50, None))),)
    none = {(counter.name, counter.sum, counter.tps) for counter in master.counters}
    assert none == {("GROUP_GET_NUMS", 0, 0.0), ("TOPIC_PUT_NUMS", 0, 0.0), ("SNDBCK_PUT_NUMS", 0, 0.0)}
    assert slave.counters == (
        StatsCounter("GROUP_GET_NUMS", "T", "G", 1000, 60, 1.0),
        StatsCounter("GROUP_GET_SIZE", "T", "G", 1000, 6000, 100.0),
    )
    assert (slave.broker_id, slave.topics, slave.groups) == (1, (), ())
    assert master.runtime == sample.BrokerRuntime(1000, 77, 5, 6, None, 900, None)
    of_broker = {
        addr: [code for counter, code, _ in cluster.asked if counter == addr] for addr in ("master:1", "slave:1")
    }
    assert (master.requests, slave.requests) == tuple(len(codes) for codes in of_broker.values()) == (9, 3)
    assert RequestCode.PULL_MESSAGE not in of_broker["master:1"]
    # Committed offsets first, so that no lag is too small.
    assert of_broker["master:1"].index(RequestCode.GET_ALL_CONSUMER_OFFSET) < of_broker["master:1"].index(
        RequestCode.GET_TOPIC_STATS_INFO
    )


def test_queues_without_a_committed_offset_are_in_samples() -> None:
    cluster = Cluster()
    cluster.topics = {"T": {0: (0, 100), 1: (0, 50), 2: (0, 7), 3: (3, 9), 4: (0, 0)}, "%RETRY%G": {0: (0, 2)}}
    cluster.offsets = {"T@G": {0: 120, 9: 5}}  # the topic had more queues before
    cluster.starts = {0, 1}
    (master, _) = one_round(cluster)
    positions = {group.topic: [queue[:2] for queue in group.queues] for group in master.groups}
    assert positions == {"T": [(0, 120), (1, 0), (2, None), (3, None), (4, 0)], "%RETRY%G": [(0, 0)]}
    asked = [name for _, code, name in cluster.asked if code == RequestCode.QUERY_CONSUMER_OFFSET]
    assert sorted(asked) == ["G@%RETRY%G@0", "G@T@1", "G@T@2"]


def test_topics_are_requested_again_when_a_group_subscribes_to_a_new_one() -> None:
    cluster = Cluster()

    async def work() -> list[int]:
        rounds = sampler(cluster)
        counts = []
        for number in range(4):
            if number == 2:
                cluster.topics["New"] = {0: (0, 5)}
                cluster.offsets["New@G"] = {0: 1}
                cluster.offsets["deleted@G"] = {0: 1}
            (master, _) = await rounds.poll()
            counts.append(len(master.groups))
        return counts

    assert asyncio.run(work()) == [1, 1, 2, 2]
    assert sum(code == RequestCode.GET_ALL_TOPIC_CONFIG for _, code, _ in cluster.asked) == 2


def test_requests_beyond_the_limit_of_a_round_move_to_the_next() -> None:
    assert take_round_robin("abc", 3, 2) == (["a", "b", "c"], 0)
    assert take_round_robin("abcde", 2, 4) == (["e", "a"], 1)
    cluster = Cluster()
    cluster.offsets = {f"T@G{number}": {0: 90} for number in range(5)}
    cluster.topics |= {f"other{number}": {0: (0, 1)} for number in range(3)}

    async def work() -> tuple[list[list[str]], list[list[str]], list[OmittedPart]]:
        rounds = sampler(cluster, pairs=2, ages=1, topics=2)
        groups, topics, remaining = [], [], []
        for _ in range(3):
            (master, _) = await rounds.poll()
            groups.append([group.group for group in master.groups])
            topics.append([group.topic for group in master.topics])
            remaining.append(master.skipped)
        return groups, topics, remaining

    groups, topics, remaining = asyncio.run(work())
    assert groups == [["G0", "G1"], ["G2", "G3"], ["G4", "G0"]]
    # "gone" has its turn, too, and is refused.
    assert topics == [["T", "other0"], ["T", "other1", "other2"], ["T", "other0"]]
    assert remaining[0] == OmittedPart(topics=2, groups=3, counters=3, ages=1)
    with pytest.raises(ConfigError, match="pairs in a round"):
        sampler(cluster, pairs=0)


def test_the_age_of_a_removed_message_is_unknown() -> None:
    """4.9.4 subtracts -1 from the current time if the message was removed; Ariane returns -1."""
    for delay_ms in (1_795_000_000_000, -1):
        cluster = Cluster()
        cluster.delays = {0: delay_ms}
        (master, _) = one_round(cluster)
        assert master.groups[0].queues[0] == (0, 90, 0, 100, None)


def test_an_unresponsive_broker_gives_a_sample_with_the_reason() -> None:
    cluster = Cluster()
    cluster.silent = {"master:1"}
    master, slave = one_round(cluster)
    assert master.error == "no response from master:1 within 3000 ms"
    assert (master.runtime, master.groups, master.counters) == (None, (), ())
    assert slave.error is None


def test_a_rejected_request_is_reported_and_affects_no_other() -> None:
    cluster = Cluster()
    cluster.offsets["gone@G"] = {0: 7}
    (master, _) = one_round(cluster)
    assert master.failed_requests == (f"offsets of gone: code {ResponseCode.TOPIC_NOT_EXIST}: no such topic",)
    assert [(group.topic, group.bounds_at_ms, group.queues) for group in master.groups] == [
        ("T", 1000, ((0, 90, 0, 100, 4100), (1, 50, 3, 50, None))),
        ("gone", None, ((0, 7, None, None, None),)),
    ]


def test_brokers_remain_listed_while_name_servers_are_unavailable_or_drop_them_briefly() -> None:
    cluster, clock = Cluster(), FakeClock(1000, is_auto=True)

    async def work() -> None:
        rounds = sampler(cluster, clock)
        cluster.silent = {"ns"}
        with pytest.raises(RequestTimeout):
            await rounds.poll()
        cluster.silent = set()
        assert len(await rounds.poll()) == 2
        cluster.silent = {"ns"}
        clock.advance_ms(2 * FORGET_MS)
        assert [item.error for item in await rounds.poll()] == [None, None]
        cluster.silent = {"slave:1"}
        await rounds.poll()
        cluster.brokers = {0: "master:1"}
        assert [item.error is None for item in await rounds.poll()] == [True, False]
        clock.advance_ms(FORGET_MS + 1)
        assert [item.addr for item in await rounds.poll()] == ["master:1"]

    asyncio.run(work())


def test_the_messages_of_a_sample_contain_all_of_it() -> None:
    (master, slave) = one_round(Cluster())
    (body,) = sample.encode_messages(master)
    assert msgspec.json.decode(body, type=Sample) == master
    queues = tuple((queue, 0, queue) for queue in range(9000))
    sample_of_many = msgspec.structs.replace(
        slave, topics=tuple(TopicQueueRanges(f"T{number}", 1, queues) for number in range(5))
    )
    parts = [msgspec.json.decode(body, type=Sample) for body in sample.encode_messages(sample_of_many)]
    assert [[topic.topic for topic in part.topics] for part in parts] == [["T0", "T1"], ["T2", "T3"], ["T4"]]
    assert [(part.part, len(part.counters)) for part in parts] == [(0, 2), (1, 0), (2, 0)]


class Producing:
    """A producer whose broker takes what `room` allows."""

    def __init__(self) -> None:
        self.room = 1
        self.sent: list[bytes] = []

    async def send(self, message: Message) -> None:
        if len(self.sent) == self.room:
            raise ConnectionLost("keeper:1", "refused")
        self.sent.append(message.body)


def collector_rounds(
    cluster: Cluster, producer: Producer, clock: FakeClock, *, once: bool = False
) -> publisher.CollectorRounds:
    options = publisher.CollectorOptions(topic="S", once=once)
    return publisher.CollectorRounds(poller=sampler(cluster, clock), producer=producer, options=options, clock=clock)


def test_unsent_samples_are_retried_and_dropped_ones_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "MAX_PENDING", 3)
    producing, clock, cluster = Producing(), FakeClock(1000, is_auto=True), Cluster()
    seen: list[publisher.PollingRound] = []

    async def work(rounds: int) -> None:
        stop = asyncio.Event()

        def on_round(done: publisher.PollingRound) -> None:
            seen.append(done)
            if len(seen) == rounds - 1:
                producing.room = 100
            if len(seen) == rounds:
                stop.set()

        producer = cast(Producer, producing)
        await collector_rounds(cluster, producer, clock).run(on_round, stop)

    asyncio.run(work(4))
    assert [(item.pending, item.dropped) for item in seen] == [(1, 0), (3, 0), (3, 2), (0, 4)]
    assert [isinstance(item.error, ArianeError) for item in seen] == [True, True, True, False]
    reported = [msgspec.json.decode(body, type=Sample) for body in producing.sent]
    # Oldest first; those of the last round know how many are lost.
    assert [item.round for item in reported] == [1, 3, 4, 4]
    assert reported[-1].dropped_samples == 2


def test_once_reports_that_no_broker_accepted_the_samples() -> None:
    async def work() -> None:
        clock = FakeClock(1000, is_auto=True)
        producer = cast(Producer, Producing())
        await collector_rounds(Cluster(), producer, clock, once=True).run(lambda _: None, asyncio.Event())

    with pytest.raises(ConnectionLost, match="keeper:1"):
        asyncio.run(work())
    with pytest.raises(ConfigError, match="interval"):
        publisher.CollectorOptions(interval_s=0.1)


class NameServers(ConnectionPool):
    """Name servers that list `masters`, by address, and a master that creates topics; no one has a route."""

    def __init__(self, **masters: str | None) -> None:
        super().__init__()
        self.masters = masters
        self.created: list[str] = []

    async def exchange(self, request: ServerRequest) -> Command:
        addr, code, *_, timeout_ms = request
        if code == RequestCode.UPDATE_AND_CREATE_TOPIC:
            self.created.append(addr)
            return Command(ResponseCode.SUCCESS)
        if addr not in self.masters:
            raise RequestTimeout(addr, timeout_ms)
        if code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return Command(ResponseCode.TOPIC_NOT_EXIST)
        master = self.masters[addr]
        brokers = {"b": BrokerData({0: master}, "b", "c")} if master else {}
        return Command(ResponseCode.SUCCESS, body=fastjson.write(ClusterInfo(brokers)))


@pytest.mark.parametrize("first", ["started", "away"])
def test_the_topic_is_created_although_the_first_name_server_lists_no_broker(first: str) -> None:
    servers = NameServers(started=None, ns="master:1")
    asyncio.run(publisher._ensure_topic(Admin([first, "ns"], peers=servers), "S"))
    assert servers.created == ["master:1"]


def test_without_a_broker_the_topic_cannot_be_created() -> None:
    with pytest.raises(ServerUnavailable, match="no broker is registered with started, ns"):
        asyncio.run(publisher._ensure_topic(Admin(["started", "ns"], peers=NameServers(started=None, ns=None)), "S"))
    with pytest.raises(RequestTimeout, match="away"):
        asyncio.run(publisher._ensure_topic(Admin(["started", "away"], peers=NameServers(started=None)), "S"))
