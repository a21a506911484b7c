"""Tests of an application: of order_service.py, with a real name server and broker in the test's process.

    pip install ariane pytest
    pytest test_order_service.py

The fixture `ariane_cluster` comes with the package `ariane`, without configuration: docs/testing.md.
"""

from __future__ import annotations

import asyncio
import json

import pytest

import order_service
from ariane import MessageQueue, Producer, errors
from ariane.testing import LocalCluster


async def place_and_pay(namesrv: str, order_id: str) -> None:
    async with Producer(namesrv, "test") as producer:
        service = order_service.OrderService(producer)
        await service.place(order_id, amount=100)
        await service.pay(order_id)


def test_the_steps_of_an_order_are_in_one_queue_in_order(ariane_cluster: LocalCluster) -> None:
    asyncio.run(place_and_pay(ariane_cluster.namesrv, "ORDER-17"))

    created, paid = ariane_cluster.messages("orders")
    assert [json.loads(message.body)["step"] for message in (created, paid)] == ["created", "paid"]
    assert [message.keys for message in (created, paid)] == [("ORDER-17",), ("ORDER-17",)]
    assert isinstance(created.queue, MessageQueue)
    assert created.queue == paid.queue


def test_the_reminder_is_delivered_after_the_payment_time(ariane_cluster: LocalCluster) -> None:
    asyncio.run(place_and_pay(ariane_cluster.namesrv, "ORDER-17"))
    assert ariane_cluster.messages("payment-reminders") == []

    ariane_cluster.clock.advance(order_service.PAYMENT_TIME)  # without waiting
    (reminder,) = ariane_cluster.wait_messages("payment-reminders")
    assert reminder.body == b"ORDER-17"


def test_a_failed_send_is_reported(ariane_cluster: LocalCluster) -> None:
    ariane_cluster.broker.stop()
    with pytest.raises(errors.ArianeError):
        asyncio.run(place_and_pay(ariane_cluster.namesrv, "ORDER-17"))
