"""Traces that the broker writes for clients of 4.x on demand: real clients in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.delivery.pulled_deliveries import PulledDeliveries
from ariane.broker.delivery.remoting_traces import RemotingTraces
from ariane.broker.state.pop_table import QueueKey
from ariane.client import (
    ClientInstance,
    LocalState,
    Producer,
    PushConsumer,
    ReconsumeLater,
    SimpleConsumer,
    TransactionProducer,
)
from ariane.client.instance.send_types import SendResult
from ariane.errors import ConfigError
from ariane.model.message import Message, ReceivedMessage
from ariane.model.trace_event import (
    ConsumeEndEvent,
    ConsumeStartEvent,
    EndTransactionEvent,
    PublishEvent,
    TraceEvent,
)
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.replies import Reply, make_peer
from ariane.protocol import trace_codec
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.records import record
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.messaging import SUBSCRIPTION, PullMessage, SendMessage
from ariane.proxy.traces import open_deliveries
from ariane.proxy.traces.message_traces import DeliveredMessage, MessageTraces, TraceSource
from ariane.proxy.traces.trace_writer import TraceMessage, TraceWriter
from ariane.store.message_store import MessageStore
from ariane.testing.clock import FakeClock
from ariane.testing.virtual.virtual_cluster import virtual_cluster

BROKER, TRACE_TOPIC = "10.0.0.2:10911", "RMQ_SYS_TRACE_TOPIC"
SETTLED_S = 10.0  # until consumers have committed, and the broker has written its records


def traced(work: Callable[[ClientInstance], Awaitable[None]], **settings: Any) -> list[TraceEvent]:
    """Return the records in the trace topic after the work of a client."""

    async def scenario() -> list[TraceEvent]:
        await world.start()
        shop = world.process("shop")

        async def run() -> list[TraceEvent]:
            async with world.instance(shop) as instance:
                await work(instance)
            await asyncio.sleep(SETTLED_S)
            async with ConnectionPool() as peers:
                header = PullMessage("READER", TRACE_TOPIC, 0, 0, 32, SUBSCRIPTION, subscription="*")
                answer = await peers.request(BROKER, RequestCode.PULL_MESSAGE, header)
            return [event for item in record.decode_all(answer.body) for event in trace_codec.decode(item.body)[0]]

        return await shop.start(run())

    with virtual_cluster(**settings) as world:
        return world.run(scenario())


def kinds(events: list[TraceEvent]) -> list[type]:
    return [type(event) for event in events]


async def send(instance: ClientInstance, topic: str = "T", **options: Any) -> None:
    async with Producer(instance, "P", **options) as producer:
        await producer.send(Message(topic=topic, body=b"one", keys=["k"]))


async def consume(
    instance: ClientInstance, listener: Any = lambda messages: None, seconds: float = SETTLED_S, **options: Any
) -> None:
    async with PushConsumer(instance, "G", "T", listener, start="first", **options):
        await asyncio.sleep(seconds)


def test_a_message_of_clients_without_traces_has_records_of_its_send_delivery_and_commit() -> None:
    async def work(instance: ClientInstance) -> None:
        await send(instance)
        await send(instance, "Other")
        await consume(instance)

    sent, start, end = traced(work, remoting_trace_topics="T")
    assert isinstance(sent, PublishEvent)
    assert isinstance(start, ConsumeStartEvent)
    assert isinstance(end, ConsumeEndEvent)
    assert (sent.group, sent.topic, sent.keys, sent.store_host, sent.success) == ("P", "T", "k", BROKER, True)
    assert sent.message_id == start.message_id == end.message_id
    assert (end.request_id, end.group, end.success) == (start.request_id, "G", True)


def test_messages_of_a_batch_have_records_of_their_own_and_nothing_is_written_by_default() -> None:
    async def work(instance: ClientInstance) -> None:
        async with Producer(instance, "P") as producer:
            await producer.send(Message(topic="T", body=b"creates the topic"))
            await producer.send_batch([Message(topic="T", body=body) for body in (b"one", b"three")])

    events = [event for event in traced(work, remoting_trace_topics="*") if isinstance(event, PublishEvent)]
    assert [event.body_length for event in events] == [17, 3, 5]
    assert len({(event.message_id, event.offset_message_id) for event in events}) == 3
    assert traced(work, trace_topic_enable=True) == []


def test_a_message_that_was_sent_back_has_failed_and_is_delivered_once_more() -> None:
    def listener(messages: list[ReceivedMessage]) -> None:
        if messages[0].reconsume_times == 0:
            raise ReconsumeLater(delay_level=1)

    async def work(instance: ClientInstance) -> None:
        await send(instance)
        await consume(instance, listener)

    _, first, failed, second, end = traced(work, remoting_trace_topics="T")
    assert isinstance(first, ConsumeStartEvent)
    assert isinstance(failed, ConsumeEndEvent)
    assert isinstance(second, ConsumeStartEvent)
    assert isinstance(end, ConsumeEndEvent)
    assert (failed.request_id, failed.success) == (first.request_id, False)
    assert (second.message_id, second.retry_times) == (first.message_id, 1)
    assert (end.request_id, end.success) == (second.request_id, True)


def test_a_simple_consumer_has_records_of_its_deliveries() -> None:
    async def work(instance: ClientInstance) -> None:
        await send(instance)
        async with SimpleConsumer(instance, "G", "T", start="first") as consumer:
            for _ in range(2):  # the first delivery ends by time
                (message,) = await consumer.receive(1, invisible=10)
                await asyncio.sleep(11 if message.reconsume_times == 0 else 0)
            await message.ack()

    _, first, late, second, end = traced(work, remoting_trace_topics="T")
    assert kinds([first, late, second, end]) == [ConsumeStartEvent, ConsumeEndEvent] * 2
    assert isinstance(late, ConsumeEndEvent)
    assert isinstance(end, ConsumeEndEvent)
    assert (late.context_code, end.context_code) == (1, 0)


def test_decisions_about_transactions_have_records() -> None:
    async def execute(sent: SendResult) -> LocalState:
        return LocalState.ROLLBACK

    async def work(instance: ClientInstance) -> None:
        async with TransactionProducer(instance, "P", check=lambda message: LocalState.ROLLBACK) as producer:
            await producer.send_in_transaction(Message(topic="T", body=b"half"), execute)

    sent, decision = traced(work, remoting_trace_topics="T")
    assert isinstance(sent, PublishEvent)
    assert isinstance(decision, EndTransactionEvent)
    assert (decision.message_id, decision.topic, decision.state) == (sent.message_id, "T", "ROLLBACK_MESSAGE")


def test_clients_that_trace_have_no_further_records_after_their_first_trace_message() -> None:
    async def work(instance: ClientInstance) -> None:
        for _ in range(2):
            await send(instance, trace=True)
        async with PushConsumer(instance, "G", "T", lambda messages: None, start="first", trace=True):
            await asyncio.sleep(SETTLED_S)
            await send(instance)  # of the same group and host
            await asyncio.sleep(SETTLED_S)

    events = traced(work, remoting_trace_topics="*")
    of_message: dict[str, list[type]] = {}
    for event in events:
        of_message.setdefault(event.message_id, []).append(type(event))
    first, second, third = of_message.values()
    assert first.count(PublishEvent) == 2  # that of the broker as well: nothing has said yet that the client traces
    assert second.count(PublishEvent) == 1
    assert third == [ConsumeStartEvent, ConsumeEndEvent]


def test_traces_are_turned_on_while_the_broker_runs() -> None:
    async def work(instance: ClientInstance) -> None:
        await send(instance)
        async with ConnectionPool() as peers:
            change = b"remotingTraceTopics=T"
            await peers.request(BROKER, RequestCode.UPDATE_BROKER_CONFIG, body=change)
        await send(instance)

    assert kinds(traced(work)) == [PublishEvent]


def test_names_of_topics_are_checked() -> None:
    with pytest.raises(ConfigError, match="remotingTraceTopics.*'a/b'"):
        BrokerConfig(broker_name="b", remoting_trace_topics="a/b,T").validate()
    config = BrokerConfig(broker_name="b", remoting_trace_topics="*").validate()
    concerned = {name for name in ("T", TRACE_TOPIC, "%RETRY%G", "SCHEDULE_TOPIC_XXXX") if config.concerns_traces(name)}
    assert concerned == {"T", TRACE_TOPIC, "%RETRY%G"}
    assert not BrokerConfig(broker_name="b").concerns_traces(TRACE_TOPIC)


class _Pulls:
    """Deliveries of pulls, and the records about them."""

    def __init__(self) -> None:
        clock = FakeClock()
        self.writer, self.events = TraceWriter(self, clock), list[TraceEvent]()
        source = TraceSource(BROKER, TRACE_TOPIC, "north")
        self.pulled = PulledDeliveries(
            MessageTraces(writer=self.writer, source=source, is_on=lambda: True, now_ms=clock.now_ms)
        )

    async def store(self, message: TraceMessage) -> None:
        self.events += trace_codec.decode(message.body)[0]

    def deliver(self, offset: int, group: str = "G", keys: str = "") -> None:
        message = DeliveredMessage(f"{group}{offset}", keys, 0, True)
        self.pulled.delivered(make_peer(1, ("192.0.2.1", 5000)), QueueKey(group, "T", 0), offset, message)

    def ended(self) -> list[str]:
        asyncio.run(self.writer.flush())
        return [event.message_id for event in self.events if isinstance(event, ConsumeEndEvent)]


def test_a_request_that_traces_cannot_read_is_answered_and_counted() -> None:
    remoting = RemotingTraces(
        settings=DynamicConfig(BrokerConfig(remoting_trace_topics="*"), 0),
        traces=MessageTraces(
            writer=_Pulls().writer, source=TraceSource(BROKER, TRACE_TOPIC, ""), is_on=lambda: True, now_ms=lambda: 0
        ),
        store=cast(MessageStore, None),
        broker_name="a",
        clock=FakeClock(),
    )
    answer = Reply()
    handlers = remoting.with_records({RequestCode.SEND_MESSAGE_V2: lambda command, peer: answer})
    header = encode_header(SendMessage("P", "T", "TBW102", 4, 0, 0, 1, 0, "", batch=True))
    command = Command(RequestCode.SEND_MESSAGE_V2, fields=header, body=b"no batch")
    assert handlers[RequestCode.SEND_MESSAGE_V2](command, make_peer(1, ("192.0.2.1", 5000))) is answer
    assert remoting.unreadable == 1


def test_a_commit_ends_the_deliveries_before_it_and_a_pull_replaces_later_ones() -> None:
    pulls = _Pulls()
    for offset in (3, 5, 6, 5):
        pulls.deliver(offset)
    pulls.pulled.committed("G", "T", 0, 5, 9)
    assert pulls.ended() == ["G3"]
    pulls.pulled.committed("G", "T", 0, 9, 9)
    assert pulls.ended() == ["G3", "G5"]  # once, and 6 only if it is pulled again


def test_deliveries_of_groups_that_never_commit_are_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_deliveries, "OPEN_MAX", 3)
    pulls = _Pulls()
    pulls.deliver(0, "Other")
    for offset in range(3):
        pulls.deliver(offset)
    pulls.pulled.committed("Other", "T", 0, 1, 9)
    pulls.pulled.committed("G", "T", 0, 3, 9)
    assert pulls.ended() == ["G0", "G1", "G2"]
    assert pulls.pulled.dropped == 1


def test_deliveries_of_groups_that_never_commit_are_dropped_first_by_their_bytes_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The keys of a message may have 32 KB."""
    monkeypatch.setattr(open_deliveries, "OPEN_BYTES_MAX", 100_000)
    pulls = _Pulls()
    pulls.deliver(0, "Other", 30_000 * "k")
    for offset in (1, 2, 2, 3):  # a pull replaces the delivery before it
        pulls.deliver(offset, keys=30_000 * "k")
    pulls.pulled.committed("Other", "T", 0, 1, 9)
    pulls.pulled.committed("G", "T", 0, 4, 9)
    assert pulls.ended() == ["G1", "G2", "G3"]
    assert pulls.pulled.dropped == 1
