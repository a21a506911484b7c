"""Scripted peers and a clock that does not advance: client tests need no socket and no real time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from types import SimpleNamespace
from typing import NamedTuple

import msgspec

from ariane.client.consuming.consume_rates import ConsumeRates
from ariane.client.consuming.group_options import GroupOptions
from ariane.client.consuming.offset_store import OffsetStore
from ariane.client.delivery.consume_events import ConsumeEvents
from ariane.client.delivery.delivery_strategy import DeliveryServices
from ariane.client.delivery.listener_invoker import ListenerInvoker
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.route_cache import RouteCache
from ariane.client.instance.settings import ConsumerSettings
from ariane.client.instance.telemetry import NO_TELEMETRY
from ariane.client.membership.fetcher import FetchContext
from ariane.errors import ReplyError
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command, field_texts
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.clients import SubscriptionData
from ariane.protocol.requests.routing import BrokerData, QueueData, TopicRoute
from ariane.testing.clock import EPOCH_MS, FakeClock


class Asked(NamedTuple):
    addr: str
    code: int
    fields: Mapping[str, str]
    body: bytes
    timeout_ms: float


Answer = Callable[[Asked], Command]


class Script:
    """`answers` by request code; a code that is missing fails the test. `asked` records the requests."""

    def __init__(self, answers: dict[int, Answer]) -> None:
        self.answers = answers
        self.asked: list[Asked] = []
        self.aborted: list[str] = []

    def abort(self, addr: str) -> None:
        self.aborted.append(addr)

    def of(self, code: int) -> list[Asked]:
        return [item for item in self.asked if item.code == code]

    def _answer(self, asked: Asked) -> Command:
        self.asked.append(asked)
        return self.answers[asked.code](asked)

    async def request(self, addr, code, header=None, body=b"", *, timeout_ms=3000.0) -> Command:
        return self._answer(Asked(addr, code, _texts(header), body, timeout_ms))

    async def request_ok(self, addr, code, header=None, body=b"", *, timeout_ms=3000.0) -> Command:
        answer = await self.request(addr, code, header, body, timeout_ms=timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise ReplyError(answer.code, answer.remark, addr)
        return answer

    async def one_way(self, addr, code, header=None, body=b"") -> None:
        self._answer(Asked(addr, code, _texts(header), body, 0))

    async def connect(self, addr):
        script = self

        class To:
            is_open = True
            is_writable = True
            peer = SimpleNamespace(id=1)

            async def request_nowait(self, code, fields=None, body=b"", *, timeout_ms):
                return await script.request(addr, code, fields, body, timeout_ms=timeout_ms)

            def one_way(self, code, fields=None, body=b""):
                script._answer(Asked(addr, code, fields or {}, body, 0))

        return To()


def _texts(header) -> Mapping[str, str]:
    return encode_header(header) if isinstance(header, msgspec.Struct) else field_texts(header)


class PausingClock(FakeClock):
    """A clock in whose reading number `pause_at` the process pauses for 49 ms, before the value is taken."""

    def __init__(self, pause_at: int) -> None:
        super().__init__(EPOCH_MS + 0.75, is_auto=True)
        self.readings_left = pause_at

    def _read(self) -> None:
        self.advance_ms(49.01 if self.readings_left == 0 else 0.01)
        self.readings_left -= 1

    def now_ms(self):
        self._read()
        return super().now_ms()

    def monotonic(self):
        self._read()
        return super().monotonic()


def raising(error: Exception) -> Answer:
    def answer(asked: Asked) -> Command:
        raise error

    return answer


def route(*brokers: str, queues: int = 2, perm: int = 6) -> TopicRoute:
    """A route over masters named `brokers`, at the address `<name>:1`."""
    return TopicRoute(
        broker_datas=tuple(BrokerData({0: f"{name}:1"}, name, "c") for name in brokers),
        queue_datas=tuple(QueueData(name, perm, queues, 0, queues) for name in brokers),
    )


def name_server(topics: dict[str, TopicRoute]) -> Answer:
    def answer(asked: Asked) -> Command:
        result = topics.get(asked.fields["topic"])
        if result is None:
            return Command(ResponseCode.TOPIC_NOT_EXIST, remark="no topic")
        return Command(ResponseCode.SUCCESS, body=fastjson.write(result))

    return answer


def instance(script: Script, clock: FakeClock | None = None) -> ClientInstance:
    """An instance that is open, without a connection."""
    client = ClientInstance("ns:1;ns2:1", clock=clock or FakeClock(is_auto=True), rng=Random(1))
    client._peers = script  # the only door to the network
    client._routes = RouteCache(script, ("ns:1", "ns2:1"), timeout_ms=3000, rng=Random(1))
    script.answers.setdefault(RequestCode.HEART_BEAT, lambda asked: Command(0))
    return client


def invoker(listener, hooks=(), *, clock=None, is_orderly: bool = False, **settings) -> ListenerInvoker:
    """Return an invoker of group g; `settings` are those of the consumer."""
    services = SimpleNamespace(clock=clock or FakeClock(is_auto=True), new_message_id=lambda: "R")
    limits = ConsumerSettings(**({"consume_timeout": 60, "concurrency": 1} | settings))
    options = GroupOptions(group="g", settings=limits, is_orderly=is_orderly)
    events = ConsumeEvents("g", hooks, services)
    return ListenerInvoker(listener, options=options, clock=services.clock, events=events)


def fetch_context(open_instance: ClientInstance, **more) -> FetchContext:
    """Return the context of fetch loops of group g, which is subscribed to every message of T."""
    values = {
        "options": GroupOptions(group="g"),
        "subscriptions": {"T": SubscriptionData(topic="T")},
        "offsets": OffsetStore(open_instance.peers, open_instance.routes, "g", timeout_ms=3000),
        "delivery": None,
        "rates": ConsumeRates(open_instance.clock.monotonic),
    }
    return FetchContext(instance=open_instance, **(values | more))


def delivery_services(
    clock, *, hooks=(), offsets=None, send_back=None, telemetry=NO_TELEMETRY, **options
) -> DeliveryServices:
    """Return what a delivery strategy of group g needs; `options` are those of the group."""
    services = SimpleNamespace(clock=clock, new_message_id=lambda: "R")
    return DeliveryServices(
        instance=services,
        options=GroupOptions(group="g", **options),
        offsets=offsets or OffsetStore(Script({}), None, "g", timeout_ms=1),
        send_back=send_back,
        events=ConsumeEvents("g", hooks, services),
        telemetry=telemetry,
        rates=ConsumeRates(clock.monotonic),
    )


QUEUE = MessageQueue("T", "a", 0)


def message(offset: int, *, queue: MessageQueue = QUEUE, size: int = 100, **more) -> ReceivedMessage:
    values = {
        "topic": queue.topic,
        "body": b"%d" % offset,
        "properties": {},
        "queue": queue,
        "queue_offset": offset,
        "commit_log_offset": offset * 1000,
        "message_id": f"ID{offset}",
        "offset_message_id": f"OFF{offset}",
        "born_ms": 1,
        "born_host": "127.0.0.1:1",
        "store_ms": 2,
        "store_host": "127.0.0.1:2",
        "reconsume_times": 0,
        "flag": 0,
        "sys_flag": 0,
        "stored_size": size,
    }
    return ReceivedMessage(**(values | more))
