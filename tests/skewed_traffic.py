"""Traced traffic between clients whose clocks are wrong, in a virtual cluster: what is stored, and the true times."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.settings import ClientSettings
from ariane.client.lite_pull_consumer import LitePullConsumer
from ariane.client.producer import Producer
from ariane.client.push_consumer import PushConsumer
from ariane.model.clock_offset import ClockOffset
from ariane.model.message import Message, ReceivedMessage
from ariane.model.topic import TRACE_TOPIC
from ariane.testing.virtual.virtual_cluster import VirtualCluster, virtual_cluster
from ariane.testing.virtual.virtual_time import VirtualClock, VirtualProcess

TOPIC, SELLERS, GROUP, BROKER = "Orders", "shop", "billing", "10.0.0.2:10911"
PRODUCER_AHEAD_MS, CONSUMER_AHEAD_MS = 1_200, -700
COUNT = 30
# One way: a network that is slow in one direction.
TO_BROKER_S, FROM_BROKER_S = 0.004, 0.0005


class SkewedTraffic(NamedTuple):
    """What the broker has stored, and what happened.

    Attributes:
        traces: Messages of the trace topic.
        orders: Messages of TOPIC.
        sent_ms: True start of each send, by message id.
        delivered_ms: True start of each call of the listener, by message id.
        offsets: What each client has measured, by group.
    """

    traces: list[ReceivedMessage]
    orders: list[ReceivedMessage]
    sent_ms: dict[str, int]
    delivered_ms: dict[str, int]
    offsets: dict[str, Mapping[str, ClockOffset]]


def skewed_traffic(seed: int = 1) -> SkewedTraffic:
    """Send and consume COUNT messages with traces, by a producer that is ahead and a consumer that is behind."""

    async def run(world: VirtualCluster) -> SkewedTraffic:
        world.network.delay_s = lambda _, to_ip: TO_BROKER_S if to_ip == "10.0.0.2" else FROM_BROKER_S
        await world.start()
        traffic = SkewedTraffic([], [], {}, {}, {})
        shop, billing, reader = (world.process(name) for name in ("shop", "billing", "reader"))
        await asyncio.gather(
            shop.start(_sell(_instance(world, shop, PRODUCER_AHEAD_MS), world, traffic)),
            billing.start(_bill(_instance(world, billing, CONSUMER_AHEAD_MS), world, traffic)),
        )
        await reader.start(_read(_instance(world, reader, 0), traffic))
        return traffic

    with virtual_cluster(seed) as world:
        return world.run(run(world))


def _instance(world: VirtualCluster, process: VirtualProcess, ahead_ms: int) -> ClientInstance:
    settings = ClientSettings(client_ip=process.ip, instance_name=process.name)
    return ClientInstance(world.namesrv, settings, clock=VirtualClock(world.loop, ahead_ms))


async def _sell(instance: ClientInstance, world: VirtualCluster, traffic: SkewedTraffic) -> None:
    async with instance, Producer(instance, SELLERS, trace=True) as producer:
        for number in range(COUNT):
            at_ms = world.clock.now_ms()
            result = await producer.send(Message(topic=TOPIC, body=b"%d" % number))
            traffic.sent_ms[result.message_id] = at_ms
            await asyncio.sleep(0.3)
        assert producer.trace is not None
        traffic.offsets[producer.group] = producer.trace.clock_offsets


async def _bill(instance: ClientInstance, world: VirtualCluster, traffic: SkewedTraffic) -> None:
    async def bill(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            traffic.delivered_ms[message.message_id] = world.clock.now_ms()

    async with instance, PushConsumer(instance, GROUP, {TOPIC: "*"}, bill, start="first", trace=True) as consumer:
        while len(traffic.delivered_ms) < COUNT:
            await asyncio.sleep(0.05)
        assert consumer.trace is not None
        traffic.offsets[consumer.group] = consumer.trace.clock_offsets


async def _read(instance: ClientInstance, traffic: SkewedTraffic) -> None:
    async with instance:
        for topic, messages in ((TOPIC, traffic.orders), (TRACE_TOPIC, traffic.traces)):
            async with LitePullConsumer(instance, f"read-{topic}", {topic: "*"}, start="first") as consumer:
                while polled := await consumer.poll(timeout=30):
                    messages.extend(polled)
