"""When a producer without a decision is asked first: at the broker's first round after the timeout, as in 4.9.4."""

from __future__ import annotations

import asyncio

import pytest

from ariane.client.instance.hooks import LocalState
from ariane.client.instance.send_types import SendResult
from ariane.client.transaction_producer import TransactionProducer
from ariane.model.message import Message, ReceivedMessage
from ariane.testing.virtual.virtual_cluster import VirtualCluster, virtual_cluster

TIMEOUT_S, INTERVAL_S = 6.0, 60.0  # transactionTimeOut and transactionCheckInterval, both sides' defaults
SLACK_S = 0.5  # of a round and a trip
# Seconds after the broker's start. The last ones before a round are too young for it, and wait for a whole interval more.
SENT_S = (1.0, 15.0, 30.0, 53.0, 54.5, 59.0, 61.0, 100.0, 113.5, 114.5, 119.0)


def round_of_java(sent_s: float) -> float:
    """Return when TransactionalMessageCheckService of 4.9.4, started at 0, first checks a half message that was sent then."""
    at_s = INTERVAL_S
    while at_s - sent_s < TIMEOUT_S:
        at_s += INTERVAL_S
    return at_s


@pytest.mark.parametrize("earlier", [0, 600], ids=["alone", "after many others"])
def test_the_first_check_comes_with_the_first_round_after_the_timeout(earlier: int) -> None:
    checked_s: dict[bytes, float] = {}

    async def scenario(world: VirtualCluster) -> None:
        started_s = world.loop.time()
        await world.start()

        async def check(message: ReceivedMessage) -> LocalState:
            checked_s.setdefault(message.body, world.loop.time() - started_s)
            return LocalState.COMMIT

        async def execute(sent: SendResult) -> LocalState:
            return LocalState.UNKNOWN

        async def sell() -> None:
            async with (
                world.instance(shop) as instance,
                TransactionProducer(instance, "shop", check=check) as producer,
            ):
                for _ in range(earlier):
                    await producer.send_in_transaction(Message(topic="T", body=b"earlier"), execute)
                for sent_s in SENT_S:
                    await asyncio.sleep(started_s + sent_s - world.loop.time())
                    await producer.send_in_transaction(Message(topic="T", body=str(sent_s).encode()), execute)
                await asyncio.sleep(3 * INTERVAL_S)

        shop = world.process("shop")
        await shop.start(sell())

    with virtual_cluster() as world:
        world.run(scenario(world))
    for sent_s in SENT_S:
        asked_s = checked_s[str(sent_s).encode()]
        assert asked_s <= round_of_java(sent_s) + SLACK_S
        assert TIMEOUT_S <= asked_s - sent_s <= TIMEOUT_S + INTERVAL_S + SLACK_S
