"""Statistics of topics with many queues: other requests are served meanwhile, and identical requests share one reply. No socket."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.handlers.admin.statistics import StatisticsHandler
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.group_members import GroupMembers
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.pop_table import PopTable, QueueKey
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.clock import Clock
from ariane.model.topic import SubscriptionGroupConfig, TopicConfig
from ariane.net.connection import Reply
from ariane.net.replies import make_peer
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.requests.admin import SubscriptionGroupTable
from ariane.protocol.requests.clients import WireQueue
from ariane.protocol.requests.routing import TopicTable
from ariane.protocol.requests.stats import (
    ConsumeStats,
    ConsumeStatsList,
    GroupOffset,
    TopicOffset,
    TopicStats,
    by_queue,
)
from ariane.store.message_store import MessageStore

QUEUES = 3000


class TenMessagesPerQueue:
    """A store with ten messages in each queue."""

    def max_offset(self, topic: str, queue_id: int) -> int:
        return 10

    def min_offset(self, topic: str, queue_id: int) -> int:
        return 0

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        return 1_700_000_000_000


class NoStatistics:
    def snapshot(self, *args: Any) -> None:
        return None


def group_registry() -> GroupRegistry:
    groups = SubscriptionGroupTable(subscription_group_table={"G": SubscriptionGroupConfig(group_name="G")})
    return GroupRegistry(groups, auto_create=False, now_ms=lambda: 0)


def statistics_handler() -> StatisticsHandler:
    config = BrokerConfig(broker_name="b")
    topic = TopicConfig(topic_name="T", read_queue_nums=QUEUES, write_queue_nums=QUEUES)
    offsets = ConsumerOffsets()
    offsets.commit("G", "T", 0, 4)
    pop = PopTable()
    pop.open(QueueKey("Popping", "T", 0), 4).take((4, 5, 6), 0, 60_000)
    pop.get(QueueKey("Popping", "T", 0)).drop((5,))  # type: ignore[union-attr]
    offsets.commit("Popping", "T", 0, 4)
    return StatisticsHandler(
        config=config,
        addr="h:1",
        topics=TopicRegistry(TopicTable(topic_config_table={"T": topic}), config, now_ms=lambda: 0),
        groups=group_registry(),
        members=GroupMembers(),
        pop=pop,
        offsets=offsets,
        store=cast(MessageStore, TenMessagesPerQueue()),
        stats=cast(BrokerStats, NoStatistics()),
        clock=cast(Clock, SimpleNamespace(now_ms=lambda: 0)),
    )


def request(code: RequestCode, header: dict[str, str], count: int = 1) -> tuple[list[Reply], int]:
    """Return the replies to `count` simultaneous requests, and how often another task ran meanwhile."""

    async def run() -> tuple[list[Reply], int]:
        handler = statistics_handler()
        methods = {
            RequestCode.GET_TOPIC_STATS_INFO: handler.topic_stats,
            RequestCode.GET_CONSUME_STATS: handler.consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: handler.all_consume_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: handler.time_spans,
        }
        serve, turns = methods[code], 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async def served() -> Reply:
            handled = serve(Command(code, fields=header), make_peer(1, ("127.0.0.1", 1)))
            reply = await handled if inspect.isawaitable(handled) else handled
            assert isinstance(reply, Reply)
            return reply

        ticking = asyncio.ensure_future(others())
        replies = await asyncio.gather(*(served() for _ in range(count)))
        ticking.cancel()
        return replies, turns

    return asyncio.run(run())


@pytest.mark.parametrize(
    "code, header",
    [
        (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}),
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G", "topic": "T"}),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "G"}),
    ],
)
def test_a_topic_with_many_queues_does_not_block_the_loop(code: RequestCode, header: dict[str, str]) -> None:
    replies, turns = request(code, header, count=50)
    assert turns >= QUEUES // 100
    assert len({id(reply.body) for reply in replies}) == 1


def test_replies_are_encoded_as_java_encodes_them() -> None:
    def body(code: RequestCode, header: dict[str, str]) -> bytes:
        ((reply,), _) = request(code, header)
        assert isinstance(reply.body, bytes)
        return reply.body

    queues = [WireQueue("b", number, "T") for number in range(QUEUES)]
    time_ms = TenMessagesPerQueue().store_time("T", 0, 0)
    ends = {queue: TopicOffset(time_ms, 10, 0) for queue in queues}
    assert body(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}) == fastjson.write(TopicStats(ends))
    stats = ConsumeStats(
        0.0, {queue: GroupOffset(10, 0, 0) for queue in queues} | {queues[0]: GroupOffset(10, 4, time_ms)}
    )
    assert body(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"}) == fastjson.write(stats)
    groups = group_registry().table().subscription_group_table
    listed = tuple({name: [stats] if name == "G" else []} for name in groups)
    complete = ConsumeStatsList("h:1", listed, 10 * QUEUES - 4)
    assert body(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}) == fastjson.write(complete)


def test_messages_that_were_delivered_by_pop_and_not_acknowledged_are_counted() -> None:
    (reply,), _ = request(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "Popping", "topic": "T"})
    assert isinstance(reply.body, bytes)
    first, second, *_ = by_queue(fastjson.decode(reply.body, ConsumeStats).offset_table).values()
    assert (first.consumer_offset, first.pull_offset, first.in_flight) == (4, 7, 2)
    assert (second.pull_offset, second.in_flight) == (None, None)  # nothing was taken by POP
    java = fastjson.decode(
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"consumerOffset":4,"pullOffset":7}}}',
        ConsumeStats,
    )
    assert [offset.in_flight for offset in java.offset_table.values()] == [3]
