"""Polls of the exporter: what a scrape requests, deleted groups and topics, brokers that do not respond, slow details."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from ariane.cluster.lag import LagSum
from ariane.errors import RequestTimeout
from ariane.metrics.cluster_metrics import EXPORTER_METRICS
from ariane.metrics.exporter import ExporterSource
from ariane.metrics.families import HistogramValue, read
from ariane.metrics.polling.cluster_poller import DETAIL_AGE_MAX_S, ClusterPoller, PolledCluster
from ariane.metrics.polling.scraped_cluster import ConnectedClient, GroupState, MinuteRate
from ariane.metrics.polling.settled_rates import SETTLED_S
from ariane.metrics.polling.wanted_statistics import PollScope
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.command import encode as encode_command
from ariane.protocol.request_batch import BATCHED_CODES, REQUESTS_KEY, decode_requests
from ariane.protocol.requests import encode_header as fields_of
from ariane.protocol.requests.admin import ClientConnection, ConsumerConnection, ConsumerOffsetTable
from ariane.protocol.requests.brokers import ProducerInfo, ProducerTable
from ariane.protocol.requests.clients import SubscriptionData
from ariane.protocol.requests.messaging import OffsetResponse
from ariane.protocol.requests.routing import BrokerData, ClusterInfo, KvTableBody
from ariane.testing.clock import FakeClock

DIFF = "rocketmq_group_diff"
RUNTIME = {"brokerVersion": "401", "brokerVersionDesc": "V4_9_4", "bootTimestamp": "77", "commitLogMaxOffset": "900"}


class Servers:
    """Name server `ns`, a master and a slave as tables in place of sockets."""

    def __init__(self) -> None:
        self.brokers = {0: "master:1", 1: "slave:1"}
        self.topics = {"T": {0: (0, 100), 1: (3, 50)}, "%RETRY%G": {0: (0, 2)}}
        self.offsets = {"T@G": {0: 90, 1: 50}}
        self.groups = ["G", "idle"]
        self.consumers = {"G": ClientConnection("10.0.0.9:5000", "10.0.0.9@1", "JAVA", 401)}
        self.counted = {("GROUP_GET_NUMS", "T@G"): 60, ("GROUP_GET_SIZE", "T@G"): 6000, ("SNDBCK_PUT_NUMS", "T@G"): 7}
        self.starts: set[tuple[str, int]] = set()  # queues whose first message is in memory
        self.read_only: dict[str, int] = {}  # number of queues with 6 messages that producers use no more
        self.rejected: set[str] = set()  # topics whose queues the brokers do not report
        self.accepts_batches = False
        self.silent: set[str] = set()
        self.requests: list[tuple[str, RequestCode, str]] = []
        self.before: Callable[[RequestCode], Awaitable[None]] | None = None

    async def request(
        self, addr: str, code: int, header: msgspec.Struct | None = None, body: bytes = b"", *, timeout_ms: float = 3000
    ) -> Command:
        values = fields_of(header) if header else {}
        self.requests.append((addr, RequestCode(code), "@".join(values.values())))
        await asyncio.sleep(0)
        if self.before:
            await self.before(RequestCode(code))
        if addr in self.silent:
            raise RequestTimeout(addr, timeout_ms)
        if code == RequestCode.REQUEST_BATCH:
            responses = ((one.opaque, self._command(one.code, one.field_map())) for one in decode_requests(body))
            frames = (
                encode_command(answer.code, opaque=number, flag=1, remark=answer.remark, body=answer.body)
                for number, answer in responses
            )
            return Command(ResponseCode.SUCCESS, body=b"".join(piece for frame in frames for piece in frame))
        return self._command(code, values)

    def _command(self, code: int, values: dict[str, str]) -> Command:
        answer = self._answer(RequestCode(code), values)
        if isinstance(answer, Command):
            return answer
        return Command(ResponseCode.SUCCESS, body=answer if isinstance(answer, bytes) else fastjson.write(answer))

    def _answer(self, code: RequestCode, values: dict[str, str]) -> object:
        match code:
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                return ClusterInfo({"b": BrokerData(self.brokers, "b", "c")})
            case RequestCode.GET_BROKER_RUNTIME_INFO:
                return KvTableBody(RUNTIME | ({REQUESTS_KEY: "500"} if self.accepts_batches else {}))
            case RequestCode.GET_ALL_TOPIC_CONFIG:
                return msgspec.json.encode({"topicConfigTable": {name: self._config(name) for name in self.topics}})
            case RequestCode.GET_ALL_CONSUMER_OFFSET:
                return ConsumerOffsetTable(self.offsets)
            case RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
                table = {name: {"groupName": name} for name in self.groups}
                return msgspec.json.encode({"subscriptionGroupTable": table})
            case RequestCode.GET_TOPIC_STATS_INFO:
                return self._queues(values["topic"])
            case RequestCode.GET_CONSUMER_CONNECTION_LIST:
                return self._consumers(values["consumerGroup"])
            case RequestCode.GET_CONSUMER_RUNNING_INFO:
                return b'{"mqTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{}},"statusTable":{"T":{"consumeOKTPS":2.5}}}'
            case RequestCode.GET_ALL_PRODUCER_INFO:
                return ProducerTable({"P": (ProducerInfo("10.0.0.9@1"),)})
            case RequestCode.QUERY_CONSUME_TIME_SPAN:
                queue = {"brokerName": "b", "queueId": 0, "topic": "T"}
                times = dict.fromkeys(("consumeTimeStamp", "maxTimeStamp", "minTimeStamp"), 0)
                texts = dict.fromkeys(("consumeTimeStampStr", "maxTimeStampStr", "minTimeStampStr"), "")
                return msgspec.json.encode(
                    {"consumeTimeSpanSet": [{"messageQueue": queue, "delayTime": 4100, **times, **texts}]}
                )
            case RequestCode.GET_MIN_OFFSET | RequestCode.GET_MAX_OFFSET:
                return Command(
                    ResponseCode.SUCCESS,
                    fields=fields_of(OffsetResponse(0 if code == RequestCode.GET_MIN_OFFSET else 6)),
                )
            case RequestCode.QUERY_CONSUMER_OFFSET:
                if (values["topic"], int(values["queueId"])) not in self.starts:
                    return Command(ResponseCode.QUERY_NOT_FOUND, remark="none")
                return Command(ResponseCode.SUCCESS, fields=fields_of(OffsetResponse(0)))
        count = self.counted.get((values["statsName"], values["statsKey"]))
        if count is None:
            return Command(ResponseCode.SYSTEM_ERROR, remark="The stats <x> <y> not exist")
        item = {"sum": count, "tps": count / 60, "avgpt": 0.0}
        return msgspec.json.encode({"statsDay": item, "statsHour": item, "statsMinute": item})

    def _config(self, topic: str) -> dict[str, Any]:
        return {"topicName": topic, "readQueueNums": len(self.topics[topic]) + self.read_only.get(topic, 0)}

    def _queues(self, topic: str) -> object:
        if topic not in self.topics or topic in self.rejected:
            return Command(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")
        entries = ",".join(
            f'{{"brokerName":"b","queueId":{queue},"topic":"{topic}"}}:{{"minOffset":{low},"maxOffset":{high}}}'
            for queue, (low, high) in self.topics[topic].items()
        )
        return f'{{"offsetTable":{{{entries}}}}}'.encode()

    def _consumers(self, group: str) -> object:
        if group not in self.consumers:
            return Command(ResponseCode.CONSUMER_NOT_ONLINE, remark="not online")
        subscriptions = {topic: SubscriptionData(topic=topic) for topic in ("T", f"%RETRY%{group}")}
        return ConsumerConnection((self.consumers[group],), None, None, "CLUSTERING", subscriptions)


def poll(servers: Servers) -> PolledCluster:
    return asyncio.run(ClusterPoller(servers, ["ns"], detail_wait_s=10).poll())


def test_a_poll_reads_everything() -> None:
    servers = Servers()
    polled = poll(servers)
    master, slave = polled.snapshot.brokers
    assert (master.is_up, slave.is_up, polled.name_servers) == (True, True, {"ns": True})
    assert master.topics == {"T": ((0, 0, 100), (1, 3, 50)), "%RETRY%G": ((0, 0, 2),)}
    assert master.offsets == {("T", "G"): {0: 90, 1: 50}}
    assert master.rates == {
        ("GROUP_GET_NUMS", "T@G"): MinuteRate(60, 1.0),
        ("GROUP_GET_SIZE", "T@G"): MinuteRate(6000, 100.0),
        ("SNDBCK_PUT_NUMS", "T@G"): MinuteRate(7, 7 / 60),
    }
    assert (master.ages_ms, master.producers) == ({("T", "G"): 4100}, {"P": 1})
    client = ConnectedClient("10.0.0.9:5000", "10.0.0.9@1", "JAVA", 401)
    assert polled.snapshot.groups == {
        "G": GroupState((client,), False, frozenset({"T", "%RETRY%G"})),
        "idle": GroupState(),
    }
    assert [(status.group, status.topic, status.status.consume_ok_tps) for status in polled.snapshot.statuses] == [
        ("G", "T", 2.5)
    ]
    assert (slave.runtime, slave.topics) == (RUNTIME, {})


def test_the_start_of_groups_without_an_offset_is_requested_once_per_queue() -> None:
    servers = Servers()
    servers.topics["T"] = {0: (0, 100), 1: (0, 50), 2: (3, 70), 3: (0, 0), 4: (0, 9)}
    servers.offsets = {"T@G": {0: 90}, "T@H": {0: 100, 1: 50}}
    servers.starts = {("T", 1)}
    polled = poll(servers)
    asked = [name.split("@", 1)[1] for _, code, name in servers.requests if code == RequestCode.QUERY_CONSUMER_OFFSET]
    # Not: queue 2 has lost its first message, queue 3 is empty, and the group of queue 4 does not matter.
    assert sorted(asked) == ["%RETRY%G@0", "T@1", "T@4"]
    lags = {(one.topic, one.group): one.lag for one in polled.snapshot.progress}
    assert lags == {
        ("T", "G"): LagSum(60, True),
        ("T", "H"): LagSum(0, True),
        ("%RETRY%G", "G"): LagSum(None, True),
    }


def test_queues_that_are_only_read_count_and_those_that_are_only_written_do_not() -> None:
    servers = Servers()
    servers.offsets = {"T@G": {0: 100, 1: 50, 2: 1}, "%RETRY%G@G": {0: 0}}
    servers.read_only = {"T": 1, "%RETRY%G": -1}
    lags = {(one.topic, one.group): one.lag.total for one in poll(servers).snapshot.progress}
    assert lags == {("T", "G"): 5, ("%RETRY%G", "G"): None}


def test_a_topic_whose_queues_a_broker_does_not_report_makes_the_lag_unknown() -> None:
    servers = Servers()
    poller = ClusterPoller(servers, ["ns"], detail_wait_s=10)
    servers.rejected = {"T"}
    polled = asyncio.run(poller.poll())
    lags = {(one.topic, one.group): one.lag for one in polled.snapshot.progress}
    assert lags["T", "G"] == LagSum(None, True)
    diffs = next(samples for metric, samples in read(EXPORTER_METRICS, polled.snapshot) if metric.name == DIFF)
    assert list(diffs) == []


def test_nothing_is_requested_twice_and_no_size_without_a_number() -> None:
    servers = Servers()
    del servers.counted["GROUP_GET_NUMS", "T@G"]
    servers.topics["%RETRY%G"] = {0: (0, 0)}
    poll(servers)
    assert {item: count for item, count in Counter(servers.requests).items() if count > 1} == {}
    statistics = {name for _, code, name in servers.requests if code == RequestCode.VIEW_BROKER_STATS_DATA}
    assert statistics == {"TOPIC_PUT_NUMS@T", "GROUP_GET_NUMS@T@G", "BROKER_PUT_NUMS@c", "BROKER_GET_NUMS@c"}


def test_deleted_groups_and_topics_disappear_with_the_next_poll() -> None:
    servers = Servers()

    async def run() -> tuple[set[str], set[str]]:
        source = ExporterSource(ClusterPoller(servers, ["ns"], detail_wait_s=10))
        first = await labels(source)
        servers.groups, servers.offsets = ["idle"], {}
        servers.topics = {"other": {0: (0, 1)}}
        return first, await labels(source)

    async def labels(source: ExporterSource) -> set[str]:
        return {text for _, samples in await source.families(None) for result, _ in samples for text in result}

    before, after = asyncio.run(run())
    assert {"T", "G", "%RETRY%G"} <= before
    assert not {"T", "G", "%RETRY%G"} & after
    assert "other" in after


def test_a_group_deleted_during_slow_details_does_not_reappear() -> None:
    servers = Servers()
    gate = asyncio.Event()

    async def hold(code: RequestCode) -> None:
        if code == RequestCode.GET_ALL_PRODUCER_INFO:
            await gate.wait()

    async def run() -> PolledCluster:
        poller = ClusterPoller(servers, ["ns"], detail_wait_s=0)
        servers.before = hold
        first = await poller.poll()
        assert first.details_age_s is None
        assert first.snapshot.groups == {}
        assert first.snapshot.brokers[0].offsets  # lags do not wait for details
        servers.groups, servers.offsets = ["idle"], {}
        gate.set()
        while not (await poller.poll()).details_age_s:
            await asyncio.sleep(0)
        second = await poller.poll()
        await poller.close()
        return second

    second = asyncio.run(run())
    assert set(second.snapshot.groups) == {"idle"}
    assert second.snapshot.statuses == ()


def test_old_details_are_unknown() -> None:
    servers = Servers()
    clock = FakeClock()

    async def never(code: RequestCode) -> None:
        if code == RequestCode.GET_ALL_PRODUCER_INFO:
            await asyncio.Event().wait()

    async def run() -> list[PolledCluster]:
        poller = ClusterPoller(servers, ["ns"], detail_wait_s=0.01, clock=clock)
        while not (await poller.poll()).snapshot.groups:
            pass
        servers.before = never
        recent = await poller.poll()
        clock.advance(DETAIL_AGE_MAX_S + 1)
        late = await poller.poll()
        await poller.close()
        return [recent, late]

    recent, late = asyncio.run(run())
    assert recent.snapshot.groups
    assert (late.snapshot.groups, late.details_age_s) == ({}, None)


def test_details_that_take_long_are_shown_until_there_are_newer_ones() -> None:
    servers = Servers()
    clock = FakeClock()
    long_s = 2 * DETAIL_AGE_MAX_S

    async def slow(code: RequestCode) -> None:
        if code == RequestCode.GET_ALL_PRODUCER_INFO:
            clock.advance(long_s)

    async def run() -> list[bool]:
        servers.before = slow
        poller = ClusterPoller(servers, ["ns"], detail_wait_s=10, clock=clock)
        await poller.poll()
        servers.before = None
        gate = asyncio.Event()

        async def hold(code: RequestCode) -> None:
            if code == RequestCode.GET_ALL_PRODUCER_INFO:
                await gate.wait()

        servers.before = hold
        shown = []
        for _ in range(4):
            shown.append(bool((await poller.poll()).snapshot.groups))
            clock.advance(long_s)
        await poller.close()
        return shown

    # Their age at the three scrapes is 1, 2 and 3 times their duration; a fourth one would find them too old.
    assert asyncio.run(run()) == [True, True, True, False]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_silent_master_is_down(is_known: bool) -> None:
    servers = Servers()

    async def run() -> PolledCluster:
        poller = ClusterPoller(servers, ["ns"], detail_wait_s=10)
        if is_known:
            await poller.poll()
        servers.silent = {"master:1"}
        return await poller.poll()

    master, slave = asyncio.run(run()).snapshot.brokers
    assert (master.is_up, slave.is_up) == (False, True)
    assert (master.topics, master.runtime, master.rates) == ({}, {}, {})
    assert master.expected_topics == (frozenset({"T", "%RETRY%G"}) if is_known else None)


def test_a_silent_server_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    servers = Servers()

    async def run() -> None:
        poller = ClusterPoller(servers, ["ns", "ns2"], detail_wait_s=10)
        rounds: list[set[str]] = [{"slave:1", "ns2"}, {"slave:1", "ns2"}, set(), {"slave:1"}]
        for servers.silent in rounds:
            await poller.poll()

    asyncio.run(run())
    assert [record.getMessage().partition(" does")[0] for record in caplog.records] == [
        "Name server ns2", "Broker b (slave:1)", "Broker b (slave:1)",
    ]  # fmt: skip


def test_a_hung_master_does_not_delay_the_scrape_for_longer_than_its_limit() -> None:
    servers = Servers()

    async def hang(code: RequestCode) -> None:
        if code == RequestCode.GET_ALL_CONSUMER_OFFSET:
            await asyncio.Event().wait()

    async def run() -> PolledCluster:
        servers.before = hang
        return await asyncio.wait_for(ClusterPoller(servers, ["ns"], detail_wait_s=10).poll(0.01), 60)

    assert [broker.is_up for broker in asyncio.run(run()).snapshot.brokers] == [False, True]


def test_without_a_name_server_only_that_is_reported() -> None:
    servers = Servers()
    servers.silent = {"ns"}

    async def run() -> dict[str, list[tuple[tuple[str, ...], float | HistogramValue]]]:
        source = ExporterSource(ClusterPoller(servers, ["ns"], detail_wait_s=10))
        return {metric.name: result for metric, samples in await source.families(5.0) if (result := list(samples))}

    result = asyncio.run(run())
    assert result.pop("ariane_name_server_up") == [(("ns",), 0)]
    assert all(name.startswith("ariane_exporter_") for name in result)


def test_concurrent_scrapes_share_one_poll() -> None:
    servers = Servers()

    async def run() -> None:
        poller = ClusterPoller(servers, ["ns"], detail_wait_s=10)
        first, second = await asyncio.gather(poller.poll(), poller.poll())
        assert first is second

    asyncio.run(run())
    assert [code for _, code, _ in servers.requests].count(RequestCode.GET_BROKER_CLUSTER_INFO) == 1


# --- batches and long rounds ---

PACED = PollScope(client_rates=False, returned=False, slaves=True, group_sizes=False, is_paced=True)


def test_batches_read_the_same_as_single_requests() -> None:
    single, batched = Servers(), Servers()
    batched.accepts_batches = True
    ours, java = poll(batched).snapshot, poll(single).snapshot
    for broker in (*ours.brokers, *java.brokers):
        assert isinstance(broker.runtime, dict)
        broker.runtime.pop(REQUESTS_KEY, None)
    assert (ours.brokers, ours.groups, ours.statuses) == (java.brokers, java.groups, java.statuses)
    assert not BATCHED_CODES & {code for _, code, _ in batched.requests}
    assert {code for _, code, _ in single.requests} >= BATCHED_CODES


class PacedRounds:
    """Complete rounds of a poller for the console, at times of the test."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.clock = FakeClock()
        self.poller = ClusterPoller(servers, ["ns"], detail_wait_s=10, scope=PACED, clock=self.clock)

    async def next(self, after_s: float = 0.0) -> tuple[PolledCluster, Counter[RequestCode]]:
        """Return the result of a round and the number of its requests by code."""
        self.clock.advance(after_s)
        self.servers.requests.clear()
        polled = await self.poller.poll()
        return polled, Counter(code for _, code, _ in self.servers.requests)


def test_an_age_grows_without_a_request_until_the_group_consumes_the_message() -> None:
    servers = Servers()
    servers.topics["T"] = {0: (0, 100)}

    async def run() -> None:
        rounds = PacedRounds(servers)
        pair = ("T", "G")
        first, counts = await rounds.next()
        assert (first.snapshot.brokers[0].ages_ms[pair], counts[RequestCode.QUERY_CONSUME_TIME_SPAN]) == (4_100, 1)
        servers.topics["T"] = {0: (7, 200)}  # other messages arrive, and others are removed
        second, counts = await rounds.next(30)
        assert (second.snapshot.brokers[0].ages_ms[pair], counts[RequestCode.QUERY_CONSUME_TIME_SPAN]) == (34_100, 0)
        servers.offsets["T@G"] = {0: 91, 1: 50}
        third, counts = await rounds.next(1)
        assert (third.snapshot.brokers[0].ages_ms[pair], counts[RequestCode.QUERY_CONSUME_TIME_SPAN]) == (4_100, 1)
        servers.topics["T"] = {0: (95, 200)}  # the message was removed
        assert (await rounds.next(1))[1][RequestCode.QUERY_CONSUME_TIME_SPAN] == 1

    asyncio.run(run())


def test_rates_that_are_certainly_zero_are_not_requested() -> None:
    servers = Servers()
    servers.counted.clear()
    servers.consumers.clear()

    async def run() -> None:
        rounds = PacedRounds(servers)
        statistics = [
            (await rounds.next(after_s))[1][RequestCode.VIEW_BROKER_STATS_DATA] for after_s in (0, SETTLED_S, 1)
        ]
        # Totals of the broker; topic; group at the master and at the slave.
        assert statistics == [5, 5, 2]
        servers.topics["T"] = {0: (0, 101), 1: (3, 50)}
        polled, counts = await rounds.next(1)
        assert counts[RequestCode.VIEW_BROKER_STATS_DATA] == 3
        assert polled.snapshot.brokers[0].has_rates
        servers.counted = {("TOPIC_PUT_NUMS", "T"): 60}
        polled, _ = await rounds.next(10)
        assert polled.snapshot.brokers[0].rates["TOPIC_PUT_NUMS", "T"] == MinuteRate(60, 1.0)

    asyncio.run(run())


def test_the_parts_of_a_long_round_are_shown_with_their_times_when_they_are_complete() -> None:
    servers = Servers()
    gate = asyncio.Event()

    async def hold(code: RequestCode) -> None:
        if code == RequestCode.VIEW_BROKER_STATS_DATA:
            await gate.wait()

    async def run() -> None:
        rounds = PacedRounds(servers)
        rounds.poller.detail_wait_s = 0.01
        servers.before = hold
        started_s = rounds.clock.monotonic()
        first, _ = await rounds.next()
        assert first.snapshot.groups["G"].clients
        assert not first.snapshot.brokers[0].has_rates
        assert first.times == (started_s, None, None)
        rounds.clock.advance(50)
        gate.set()
        second, _ = await rounds.next()
        while None in second.times:
            second, _ = await rounds.next()
        assert second.snapshot.brokers[0].has_rates
        assert second.times == (started_s, started_s, started_s + 50)
        await rounds.poller.close()

    asyncio.run(run())
