"""Statistics over the socket: counters, responses and the statistics log. The test advances the broker's clock."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.stats.stats_recorder import TICK_INTERVAL_S
from ariane.clock import Timer
from ariane.cluster.admin import Admin
from ariane.cluster.groups.group_lag import GroupLagOperations
from ariane.cluster.servers.broker_runtime import BrokerRates
from ariane.errors import ReplyError, RouteNotFound
from ariane.kernels import implementation
from ariane.model.message import MessageQueue
from ariane.net.connection import Reply
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.server import RemotingServer
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import batch
from ariane.protocol.requests.admin import CreateTopic, DeleteGroup, TopicRef
from ariane.protocol.requests.clients import ConsumerData, HeartbeatData, SubscriptionData
from ariane.protocol.requests.messaging import SUBSCRIPTION, PullMessage, SendMessage, UpdateConsumerOffset
from ariane.protocol.requests.routing import BrokerData, ClusterInfo, KvTableBody
from ariane.protocol.requests.stats import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    GetBrokerConsumeStats,
    GetConsumeStats,
    GroupOffset,
    QueryConsumeTimeSpan,
    TopicOffset,
    TopicStats,
    ViewBrokerStats,
    by_queue,
)
from ariane.store.message_store import Disk, SystemDisk
from ariane.testing.clock import FakeClock

CLUSTER = "DefaultCluster"
# Every key that a 4.9.4 broker reports (it adds scheduleMessageOffset_N and remainHowManyDataToCommit at times).
RUNTIME_KEYS = {
    "EndTransactionQueueSize", "EndTransactionThreadPoolQueueCapacity", "bootTimestamp", "brokerVersion",
    "brokerVersionDesc", "commitLogDirCapacity", "commitLogDiskRatio", "commitLogMaxOffset", "commitLogMinOffset",
    "consumeQueueDiskRatio", "dispatchBehindBytes", "dispatchMaxBuffer", "earliestMessageTimeStamp", "getFoundTps",
    "getMessageEntireTimeMax", "getMissTps", "getTotalTps", "getTransferedTps", "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow", "msgGetTotalYesterdayMorning", "msgPutTotalTodayMorning", "msgPutTotalTodayNow",
    "msgPutTotalYesterdayMorning", "pageCacheLockTimeMills", "pullThreadPoolQueueCapacity",
    "pullThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueSize", "putLatency99", "putLatency999",
    "putMessageAverageSize", "putMessageDistributeTime", "putMessageEntireTimeMax", "putMessageFailedTimes",
    "putMessageSizeTotal", "putMessageTimesTotal", "putTps", "queryThreadPoolQueueCapacity",
    "queryThreadPoolQueueHeadWaitTimeMills", "queryThreadPoolQueueSize", "remainHowManyDataToFlush",
    "remainTransientStoreBufferNumbs", "runtime", "sendThreadPoolQueueCapacity",
    "sendThreadPoolQueueHeadWaitTimeMills", "sendThreadPoolQueueSize", "startAcceptSendRequestTimeStamp",
}  # fmt: skip


class JumpingClock(FakeClock):
    """Clock that follows the system clock plus the seconds that a test adds; the interval between statistics is short."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + int(self.elapsed_ms)

    def monotonic(self) -> float:
        return time.monotonic() + self.elapsed_ms / 1000

    async def sleep(self, seconds: float) -> None:
        if seconds != TICK_INTERVAL_S:
            await asyncio.sleep(seconds)
            return
        await asyncio.sleep(0.005)
        self.sleep_count += 1

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback, *args)

    async def jump(self, seconds: int) -> None:
        """Advance the clock and wait until the work that is due is done."""
        self.advance(seconds)
        sleeps = self.sleep_count
        while self.sleep_count < sleeps + 3:
            await asyncio.sleep(0.005)


class Client:
    """Client of one broker."""

    def __init__(self, peers: ConnectionPool, addr: str, clock: JumpingClock) -> None:
        self.peers, self.addr, self.clock = peers, addr, clock

    async def ask(self, code: int, header: msgspec.Struct | None = None, body: bytes = b"") -> Command:
        return await self.peers.request_ok(self.addr, code, header, body)

    async def topic(self, name: str = "T", queues: int = 2, readable: int | None = None) -> None:
        header = CreateTopic(name, "TBW102", queues if readable is None else readable, queues, 6)
        await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def send(self, body: bytes = b"hello", topic: str = "T", queue_id: int = 0, *, many: bool = False) -> None:
        header = SendMessage("P", topic, "TBW102", 4, queue_id, 0, 1234, 7, None, batch=many)
        await self.ask(RequestCode.SEND_BATCH_MESSAGE if many else RequestCode.SEND_MESSAGE_V2, header, body)

    async def pull(self, group: str = "G", offset: int = 0, queue_id: int = 0, expression: str = "*") -> Command:
        header = PullMessage(group, "T", queue_id, offset, 32, SUBSCRIPTION, 0, 0, expression, 0, None)
        return await self.peers.request(self.addr, RequestCode.PULL_MESSAGE, header)

    async def commit(self, offset: int, queue_id: int = 0, group: str = "G", topic: str = "T") -> None:
        await self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset(group, topic, queue_id, offset))

    async def view(self, name: str, key: str) -> BrokerStatsData:
        answer = await self.ask(RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStats(name, key))
        return fastjson.decode(answer.body, BrokerStatsData)

    async def minute(self, name: str, key: str) -> tuple[int, float]:
        held = (await self.view(name, key)).stats_minute
        return held.sum, held.avgpt

    async def consume_stats(
        self, group: str = "G", topic: str | None = None
    ) -> tuple[float, dict[MessageQueue, GroupOffset]]:
        answer = await self.ask(RequestCode.GET_CONSUME_STATS, GetConsumeStats(group, topic))
        stats = fastjson.decode(answer.body, ConsumeStats)
        return stats.consume_tps, by_queue(stats.offset_table)

    async def runtime(self) -> dict[str, str]:
        return fastjson.decode((await self.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body, KvTableBody).table


def against_broker(
    path: Path, work: Callable[[Client], Awaitable[None]], disk: Disk | None = None, **settings: object
) -> None:
    small = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20_000}
    # No other periodic work may have the interval of the statistics, which JumpingClock recognizes by it.
    values = {**small, "flush_interval_consume_queue": 900, **settings}
    config = BrokerConfig(
        broker_name="broker-a", broker_ip1="127.0.0.1", bind_address="127.0.0.1", listen_port=0,
        store_path_root_dir=str(path), namesrv_addr="", **values,
    )  # fmt: skip

    async def run() -> None:
        clock = JumpingClock()
        async with Broker(config, disk=disk, clock=clock) as broker, ConnectionPool() as peers:
            await work(Client(peers, broker.addr, clock))

    asyncio.run(asyncio.wait_for(run(), 60))


def queue(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


def three() -> bytes:
    return batch.encode(batch.BatchEntry(0, body, "") for body in (b"a", b"b", b"c"))


def test_sends_and_pulls_are_counted(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.topic()
        await client.send()
        await client.send(three(), many=True)
        size = len((await client.pull()).body)
        assert (await client.pull(offset=4)).code == ResponseCode.PULL_NOT_FOUND
        await client.clock.jump(11)
        assert await client.minute("TOPIC_PUT_NUMS", "T") == (4, 2.0)
        assert await client.minute("TOPIC_PUT_SIZE", "T") == (size, size / 2)
        assert await client.minute("GROUP_GET_NUMS", "T@G") == (4, 4.0)
        assert await client.minute("GROUP_GET_SIZE", "T@G") == (size, size)
        assert await client.minute("BROKER_PUT_NUMS", CLUSTER) == (4, 0.0)
        assert await client.minute("BROKER_GET_NUMS", CLUSTER) == (4, 0.0)
        assert (await client.view("GROUP_GET_LATENCY", "0@T@G")).stats_minute.avgpt > 0
        reported = await client.view("TOPIC_PUT_NUMS", "T")
        assert 0 < reported.stats_minute.tps <= 0.4
        assert reported.stats_hour == reported.stats_day == BrokerStatsItem()
        await client.clock.jump(600)
        assert (await client.view("TOPIC_PUT_NUMS", "T")).stats_hour.sum == 4

    against_broker(tmp_path, work)


def test_reads_of_tools_are_not_counted_as_consumption(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.topic()
        await client.send()
        for group in ("TOOLS_CONSUMER", "__MONITOR_CONSUMER", "CID_RMQ_SYS_READER", "ariane-spark"):
            assert (await client.pull(group)).code == 0
        await client.clock.jump(11)
        assert await client.minute("BROKER_GET_NUMS", CLUSTER) == (0, 0.0)
        assert (await client.runtime())["msgGetTotalTodayNow"] == "0"
        with pytest.raises(ReplyError, match="not exist"):
            await client.view("GROUP_GET_NUMS", "T@TOOLS_CONSUMER")

    against_broker(tmp_path, work)


def test_missing_statistics_are_reported_by_code(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        for name, key in (("TOPIC_PUT_NUMS", "T"), ("NO_SUCH", "T"), ("GROUP_GET_FALL_SIZE", "0@T@G")):
            with pytest.raises(ReplyError) as refused:
                await client.view(name, key)
            assert refused.value.code == ResponseCode.SYSTEM_ERROR
        for code, header in (
            (RequestCode.GET_TOPIC_STATS_INFO, TopicRef("T")),
            (RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpan("T", "G")),
        ):
            with pytest.raises(ReplyError) as refused:
                await client.ask(code, header)
            assert refused.value.code == ResponseCode.TOPIC_NOT_EXIST
        assert (await client.ask(RequestCode.GET_CONSUME_STATS, GetConsumeStats("G"))).body == (
            b'{"consumeTps":0.0,"offsetTable":{}}'
        )

    against_broker(tmp_path, work)


def test_offsets_of_a_topic_and_of_a_group(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.topic("T", 2, readable=3)
        await client.topic("U", 1)
        for _ in range(3):
            await client.send()
        await client.send(topic="U")
        answer = await client.ask(RequestCode.GET_TOPIC_STATS_INFO, TopicRef("T"))
        assert answer.body.startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"lastUpdate')
        ends = by_queue(fastjson.decode(answer.body, TopicStats).offset_table)
        stored_ms = ends[queue(0)].last_update_timestamp
        assert ends == {queue(0): TopicOffset(stored_ms, 3, 0), queue(1): TopicOffset()}
        assert abs(stored_ms - client.clock.now_ms()) < 10_000

        await client.commit(2)
        await client.commit(1, topic="U")
        await client.commit(1, topic="Gone")
        await client.pull()
        await client.clock.jump(11)
        tps, offsets = await client.consume_stats()
        assert 0 < tps <= 0.3
        consumed_ms = offsets[queue(0)].last_timestamp
        assert offsets == {
            queue(0): GroupOffset(3, 2, consumed_ms),
            queue(1): GroupOffset(),
            queue(2): GroupOffset(),
            queue(0, "U"): GroupOffset(1, 1, offsets[queue(0, "U")].last_timestamp),
        }
        assert 0 < consumed_ms <= stored_ms
        assert set((await client.consume_stats(topic="U"))[1]) == {queue(0, "U")}

        subscribed = ConsumerData(group_name="G", subscription_data_set=(SubscriptionData(topic="U"),))
        await client.ask(RequestCode.HEART_BEAT, body=fastjson.write(HeartbeatData("c", (subscribed,))))
        assert set((await client.consume_stats())[1]) == {queue(0, "U")}

    against_broker(tmp_path, work)


def test_all_groups_of_a_broker(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.topic("T", 1)
        await client.topic("U", 1)
        for _ in range(3):
            await client.send()
        await client.pull("G")
        await client.commit(1)
        await client.commit(0, topic="U")

        async def told(*, ordered: bool) -> ConsumeStatsList:
            answer = await client.ask(RequestCode.GET_BROKER_CONSUME_STATS, GetBrokerConsumeStats(ordered))
            return fastjson.decode(answer.body, ConsumeStatsList)

        result = await told(ordered=False)
        groups = {group: stats for item in result.consume_stats_list for group, stats in item.items()}
        assert [set(by_queue(item.offset_table)) for item in groups["G"]] == [{queue(0)}, {queue(0, "U")}]
        assert groups["TOOLS_CONSUMER"] == []
        assert (result.broker_addr, result.total_diff) == (client.addr, 2)
        assert (await told(ordered=True)).total_diff == 0

    against_broker(tmp_path, work)


def test_times_of_a_group_in_each_queue(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.topic()
        await client.send()
        await client.clock.jump(100)
        await client.send()

        async def spans() -> list[tuple[int, int, int, int]]:
            answer = await client.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpan("T", "G"))
            reported = sorted(
                fastjson.decode(answer.body, ConsumeTimeSpans).consume_time_span_set,
                key=lambda one: one.message_queue.queue_id,
            )
            assert len(reported[0].min_time_stamp_str) == len("1970-01-01#07:59:59:999")
            return [
                (one.min_time_stamp, one.consume_time_stamp, one.max_time_stamp, one.delay_time) for one in reported
            ]

        (first, consumed, last, delay), empty = await spans()
        assert 100_000 <= last - first < 110_000
        assert consumed == first
        assert 100_000 <= delay < 110_000
        assert empty == (-1, -1, -1, 0)
        await client.commit(1)
        assert (await spans())[0][:3] == (first, first, last)
        assert (await spans())[0][3] < 10_000
        await client.commit(2)
        assert (await spans())[0] == (first, last, last, 0)

    against_broker(tmp_path, work)


def test_a_broker_returns_its_runtime_info(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        early = await client.runtime()
        ariane_keys = {"kernels", "requestBatchMax", "memberStream", "replicationTls"}
        assert early.keys() == RUNTIME_KEYS | {f"commitLogDiskRatio_{tmp_path}/commitlog"} | ariane_keys
        assert (early["putMessageDistributeTime"], early["putTps"], early["getTotalTps"]) == (
            "null",
            "  ",
            "0.0 0.0 0.0",
        )
        assert (early["putMessageTimesTotal"], early["earliestMessageTimeStamp"]) == ("0", "-1")
        unknown = await Admin(client.addr, peers=client.peers).fetch_runtime(client.addr)
        assert (unknown.put_latency_99_ms, unknown.put_times, unknown.earliest_ms) == (None, None, None)
        assert unknown.put_tps == BrokerRates(None, None, None)

        await client.topic()
        await client.send()
        await client.send(three(), many=True)
        await client.pull()
        await client.clock.jump(61)
        late = await client.runtime()
        assert (late["putMessageTimesTotal"], late["msgGetTotalTodayNow"]) == ("4", "4")
        assert late["putMessageSizeTotal"] == late["commitLogMaxOffset"]
        assert float(late["putMessageAverageSize"]) == int(late["commitLogMaxOffset"]) / 4
        assert late["runtime"].startswith("[ 0 days, 0 hours, 1 minutes, ")
        assert (late["dispatchBehindBytes"], late["brokerVersionDesc"]) == ("0", "V4_9_4")
        assert late["kernels"] == implementation.selected().description
        known = await Admin(client.addr, peers=client.peers).fetch_runtime(client.addr)
        assert known.put_times is not None and sum(known.put_times.values()) == 2
        assert known.put_latency_99_ms is not None
        assert (known.put_today, known.got_today) == (4, 4)
        assert known.disk_ratio is not None and 0 < known.disk_ratio < 1
        assert known.earliest_ms is not None

    against_broker(tmp_path, work)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_put_times_include_the_wait_for_the_disk(tmp_path: Path, flush: str) -> None:
    async def work(client: Client) -> None:
        await client.topic()
        for _ in range(5):
            await client.send()
        await client.clock.jump(61)
        reported = await Admin(client.addr, peers=client.peers).fetch_runtime(client.addr)
        assert reported.put_times is not None and sum(reported.put_times.values()) == 5
        assert await client.minute("TOPIC_PUT_NUMS", "T") == (5, 1.0)

    against_broker(tmp_path, work, flush_disk_type=flush)


def test_a_failed_put_is_counted_only_as_failed(tmp_path: Path) -> None:
    class FullDisk(SystemDisk):
        def pwrite(self, handle: int, data: bytes, offset: int) -> None:
            if b"does not fit" in data:
                raise OSError(errno.ENOSPC, "no room")
            super().pwrite(handle, data, offset)

    async def work(client: Client) -> None:
        await client.topic()
        with pytest.raises(ReplyError) as refused:
            await client.send(b"does not fit")
        assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
        reported = await client.runtime()
        assert (reported["putMessageFailedTimes"], reported["putMessageTimesTotal"]) == ("1", "0")
        with pytest.raises(ReplyError, match="not exist"):
            await client.view("TOPIC_PUT_NUMS", "T")

    against_broker(tmp_path, work, disk=FullDisk())


def test_totals_roll_over_at_midnight_and_the_log_is_written(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.topic()
        await client.send()
        await client.clock.jump(11)
        await client.clock.jump(26 * 3600)
        reported = await client.runtime()
        assert (reported["msgPutTotalTodayMorning"], reported["msgPutTotalTodayNow"]) == ("1", "1")
        log = tmp_path / "logs" / "stats.log"
        for _ in range(400):
            if log.exists() and "One Day" in log.read_text():
                break
            await asyncio.sleep(0.01)
        text = log.read_text()
        for period in ("Minute", "Hour", "Day"):
            assert f" INFO - [TOPIC_PUT_NUMS] [T] Stats In One {period}, SUM: 1 TPS: " in text

    against_broker(tmp_path, work)


def test_deleted_topics_and_groups_are_removed_from_the_statistics(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.topic()
        await client.send()
        await client.pull()
        await client.view("GROUP_GET_NUMS", "T@G")
        await client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup("G"))
        with pytest.raises(ReplyError, match="not exist"):
            await client.view("GROUP_GET_NUMS", "T@G")
        await client.view("TOPIC_PUT_NUMS", "T")
        await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRef("T"))
        with pytest.raises(ReplyError, match="not exist"):
            await client.view("TOPIC_PUT_NUMS", "T")

    against_broker(tmp_path, work, auto_delete_unused_stats=True)


def test_pulls_of_a_group_beyond_the_lag_threshold_are_denied(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.topic()
        for _ in range(40):
            await client.send(b"x" * 1000)
        assert (await client.pull("Slow")).code == 0
        assert (await client.pull("Fast", offset=39)).code == 0
        await client.clock.jump(181)
        refused = await client.pull("Slow")
        assert refused.code == ResponseCode.NO_PERMISSION
        assert (await client.pull("Fast", offset=39)).code == 0

    against_broker(tmp_path, work, disable_consume_if_consumer_read_slowly=True, consumer_fallbehind_threshold=5_000)


def test_unknown_lag_of_a_broker_is_never_reported_as_zero(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.topic()
        for _ in range(5):
            await client.send()
        await client.commit(2)
        brokers = {"broker-a": BrokerData({0: client.addr}, "broker-a", CLUSTER)}

        def cluster(command: Command, peer: object) -> Reply:
            return Reply(body=fastjson.write(ClusterInfo(brokers, {})))

        async with RemotingServer({RequestCode.GET_BROKER_CLUSTER_INFO: cluster}, "127.0.0.1", 0) as names:
            namesrv = f"127.0.0.1:{names.port}"
            admin = Admin(namesrv, peers=client.peers)
            lag_of = GroupLagOperations(namesrv, peers=client.peers).group_lag
            result = await lag_of("G")
            assert (result.total, result.unavailable, result.consume_tps) == (3, (), 0.0)
            assert [(item.queue_id, item.lag, item.consumer_offset) for item in result.queues] == [(0, 3, 2), (1, 0, 0)]
            assert result.queues[0].consumed_ms is not None and result.queues[1].consumed_ms is None
            assert (await lag_of("Nobody")).total is None

            ends = await admin.fetch_bounds("T")
            assert ends.messages == 5
            assert [(item.queue_id, item.max_offset, item.stored_ms is None) for item in ends.queues] == [
                (0, 5, False),
                (1, 0, True),
            ]
            with pytest.raises(RouteNotFound, match="no broker registered"):
                await admin.fetch_bounds("Nothing")

            brokers["broker-b"] = BrokerData({0: "127.0.0.1:1"}, "broker-b", CLUSTER)
            brokers["broker-c"] = BrokerData({1: "127.0.0.1:2"}, "broker-c", CLUSTER)
            result = await lag_of("G")
            assert (result.total, result.consume_tps, len(result.queues)) == (None, None, 2)
            assert [(item.broker, item.addr) for item in result.unavailable] == [
                ("broker-c", ""),  # it has no master
                ("broker-b", "127.0.0.1:1"),
                ("broker-c", "127.0.0.1:2"),
            ]
            assert (await admin.fetch_bounds("T")).messages is None

    against_broker(tmp_path, work)
