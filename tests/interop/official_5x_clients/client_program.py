"""Programs of the official Python client of RocketMQ 5, each with the address as its only connection setting.

    python client_program.py ADDRESS ACCESS_KEY SECRET_KEY PROGRAM [NAME=VALUE …]

It runs in an environment of the client's own: its grpcio and protobuf may differ from ours. Each event is a line of JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rocketmq import (  # type: ignore[import-not-found]
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

TIMEOUT_S = 90.0


def report(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")  # one write: listeners run in several threads
    sys.stdout.flush()


def message(topic: str, body: str) -> Any:
    new = Message()
    new.topic, new.body = topic, body.encode()
    return new


def report_sent(receipt: Any) -> None:
    report(event="sent", id=receipt.message_id, offset=receipt.offset, recall=receipt.recall_handle)


def report_received(received: Any) -> None:
    report(
        event="received",
        body=received.body.decode(),
        tag=received.tag,
        keys=sorted(received.keys),
        properties=received.properties,
        group=received.message_group,
        attempt=received.delivery_attempt,
        id=received.message_id,
        is_corrupted=received.corrupted,
    )


def produce(config: Any, topic: str) -> None:
    """Send one message of each kind, and recall one."""
    producer = Producer(config, (topic,))
    producer.startup()
    normal = message(topic, "normal")
    normal.tag, normal.keys = "A", "key-1"
    normal.add_property("name", "value")
    report_sent(producer.send(normal))
    ordered = message(topic, "ordered")
    ordered.message_group = "group-1"
    report_sent(producer.send(ordered))
    delayed = message(topic, "delayed")
    delayed.delivery_timestamp = int(time.time()) + 2
    report_sent(producer.send(delayed))
    recalled = message(topic, "recalled")
    recalled.delivery_timestamp = int(time.time()) + 60
    receipt = producer.send(recalled)
    recalled_id = producer.recall_message(topic, receipt.recall_handle)
    report(event="recalled", id=recalled_id, expected=receipt.message_id)
    producer.shutdown()


class Checker(TransactionChecker):  # type: ignore[misc]
    """Commits what the server asks about."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()

    def check(self, half: Any) -> Any:
        report(event="checked", body=half.body.decode())
        self.is_asked.set()
        return TransactionResolution.COMMIT


def transactions(config: Any, topic: str) -> None:
    """Commit one transaction, roll one back, and leave one to the checks of the server."""
    checker = Checker()
    producer = Producer(config, (topic,), checker=checker)
    producer.startup()
    for end in ("commit", "rollback", ""):
        transaction = producer.begin_transaction()
        producer.send(message(topic, end or "checked"), transaction)
        if end:
            getattr(transaction, end)()
    if not checker.is_asked.wait(TIMEOUT_S):
        report(event="no check")
    time.sleep(1)  # the answer to the check is sent by another thread
    producer.shutdown()


def simple(config: Any, topic: str, group: str, count: str) -> None:
    """Receive messages; the first one is hidden again before it is acknowledged."""
    consumer = SimpleConsumer(config, group, {topic: FilterExpression()}, await_duration=5)
    consumer.startup()
    acknowledged, is_first, end = 0, True, time.monotonic() + TIMEOUT_S
    while acknowledged < int(count) and time.monotonic() < end:
        for received in consumer.receive(16, 15):
            report_received(received)
            if is_first:
                consumer.change_invisible_duration(received, 20)
                is_first = False
            consumer.ack(received)
            acknowledged += 1
    consumer.shutdown()


class Listener(MessageListener):  # type: ignore[misc]
    """Fails each message once."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.is_done = threading.Event()

    def consume(self, received: Any) -> Any:
        report_received(received)
        if received.delivery_attempt == 1:
            return ConsumeResult.FAILURE
        self._left -= 1
        if not self._left:
            self.is_done.set()
        return ConsumeResult.SUCCESS


def push(config: Any, topic: str, group: str, count: str) -> None:
    """Consume messages, each at its second delivery."""
    listener = Listener(int(count))
    consumer = PushConsumer(config, group, listener, {topic: FilterExpression()})
    consumer.startup()
    listener.is_done.wait(TIMEOUT_S)
    time.sleep(1)  # the last acknowledgement
    consumer.shutdown()


class OrderedListener(MessageListener):  # type: ignore[misc]
    """Fails the first message of each message group once. This client repeats it by itself, without a new attempt number."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._failed: set[bytes] = set()
        self.is_done = threading.Event()

    def consume(self, received: Any) -> Any:
        report_received(received)
        if received.body.endswith(b"1") and received.body not in self._failed:
            self._failed.add(received.body)
            return ConsumeResult.FAILURE
        self._left -= 1
        if not self._left:
            self.is_done.set()
        return ConsumeResult.SUCCESS


def ordered(config: Any, topic: str, group: str) -> None:
    """Send three messages of each of two message groups, and consume them with an ordered consumer group."""
    producer = Producer(config, (topic,))
    producer.startup()
    listener = OrderedListener(6)
    consumer = PushConsumer(config, group, listener, {topic: FilterExpression()})
    consumer.startup()
    time.sleep(2)  # a new group starts at the end of the queues
    for number in (1, 2, 3):
        for name in ("a", "b"):
            new = message(topic, f"{name}{number}")
            new.message_group = name
            producer.send(new)
    listener.is_done.wait(TIMEOUT_S)
    time.sleep(1)  # the last acknowledgement
    consumer.shutdown()
    producer.shutdown()


PROGRAMS: dict[str, Callable[..., None]] = {
    "ordered": ordered,
    "produce": produce,
    "transactions": transactions,
    "simple": simple,
    "push": push,
}


def main() -> None:
    address, access_key, secret_key, program, *values = sys.argv[1:]
    config = ClientConfiguration(address, Credentials(access_key, secret_key))
    PROGRAMS[program](config, **dict(value.split("=", 1) for value in values))
    report(event="done")


main()
