"""Sending within one deadline: several attempts, at different brokers if possible. [DefaultMQProducerImpl.sendDefaultImpl]

    outcome of an attempt                               next
    stored                                              return the result
    stored, but flush or replication was late           return the result (with retry_not_stored: another attempt)
    no connection, no response, 1 14 16 17 204 205      another attempt while attempts and time are left
    no connection or 14, the only broker has slaves     another attempt after a refresh of the routes, while time is left
    any other response, or access denied                raise ReplyError

A send to a queue that the caller chose has one attempt. The routes are fetched again if a broker did not serve a send.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from typing import Protocol

import msgspec

from ariane.client.instance import hooks as hook_events
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.hooks import SendEvent, SendHook
from ariane.client.instance.instants import TOLERANCE_S, Instant, duration_ms
from ariane.client.instance.send_types import PreparedMessage, SendResult, SendStatus, StoredSend
from ariane.client.instance.settings import ProducerSettings
from ariane.client.sending import send_codec
from ariane.client.sending.broker_latencies import BrokerLatencies
from ariane.client.sending.in_flight import InFlightBound
from ariane.client.sending.send_headers import SendHeaders
from ariane.client.sending.timer_support import TimerSupport
from ariane.errors import ConnectionLost, ReplyError, RequestTimeout
from ariane.model.message import MessageQueue
from ariane.net.connection import Connection
from ariane.net.pools.fail_fast_pool import NotAsked
from ariane.protocol.client_rules.transient import RETRY_ELSEWHERE_CODES, is_transient
from ariane.protocol.codes import ResponseCode

log = logging.getLogger("ariane.client")

NOT_SERVED_CODES = frozenset({ResponseCode.SERVICE_NOT_AVAILABLE})  # of a broker that is not the master any more, too

HELD_MAX = 16 * 1024  # bytes of a body that may wait with its send until its record is encoded


class SendTrace(Protocol):
    """What records the sends of a producer: its trace dispatcher."""

    sends: list[StoredSend]
    """Sends that a broker stored: the sender appends to it."""
    sends_max: int
    """Length of `sends` at which the sender calls `take_sends`."""

    def take_sends(self) -> Awaitable[None] | None:
        """Record `sends`; as a hook, this may make the client wait."""
        ...

    def on_send(self, event: SendEvent) -> Awaitable[None] | None:
        """Record any attempt that got a response."""
        ...


class MessageSender:
    """Sends prepared messages for one producer group."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        settings: ProducerSettings,
        hooks: Sequence[SendHook] = (),
        trace: SendTrace | None = None,
    ) -> None:
        self._instance = instance  # routes, connections
        self._clock = instance.clock  # an attribute less to look up for each of its readings
        self._group = group  # producer group in the requests
        self.settings = settings  # time limit, retries, template of new topics
        # A setting is a descriptor, which takes longer to read.
        self._timeout_s, self._attempts_max = settings.send_timeout, 1 + settings.retries
        # Called after each attempt that got a response.
        self._hooks = hooks if trace is None else (*hooks, trace.on_send)
        # Records attempts if the application has no hooks: without an event, which takes longer to make than a record.
        self._trace = trace if not hooks else None
        # Back-pressure: further sends wait.
        self._in_flight = InFlightBound(settings.in_flight_max, settings.in_flight_bytes_max)
        self._namespace = instance.namespace or None  # of the names in requests; None: they are the application's
        # None: brokers take turns, whatever their latency.
        self._latencies = BrokerLatencies(instance.clock.monotonic) if settings.avoid_slow_brokers else None
        # Open connections by address: a look-up here is cheaper than in the pool, and every send pays for it.
        self._connections: dict[str, Connection] = {}
        # Refuses messages that the broker would deliver too early.
        self._timers = TimerSupport(instance.namespace.wrap(group)) if settings.check_timers else None
        # None: the fields of a request are changed before it is sent, by a namespace or a signature.
        self._headers: SendHeaders | None = None
        if not instance.namespace and instance.settings.credentials is None:
            self._headers = SendHeaders(group, settings)
        # Producers start at different queues, so that few of them do not load the first queue only.
        self._next_index = instance.rng.randrange(65536)

    async def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of `topic` that can be written to, from the cache if possible."""
        if self._namespace is not None:
            self._namespace.check_sent_topic(topic)
            topic = self._namespace.unwrap(topic)
        cached = self._instance.routes.cached_publish_queues(topic)
        if cached is not None:
            return cached
        queues = await self._instance.routes.publish_queues(
            topic, self.settings.create_topic_key, self.settings.default_topic_queue_nums
        )
        self._instance.register_with_new_brokers()
        return queues

    def master_addresses(self, queues: Iterable[MessageQueue]) -> list[str]:
        """Return the addresses of the masters of `queues`, as far as the routes contain them."""
        addrs = {self._instance.routes.master_address(queue.broker) for queue in queues}
        return sorted(addr for addr in addrs if addr is not None)

    async def send(self, message: PreparedMessage, queue: MessageQueue | None = None) -> SendResult:
        """Send to `queue`, or to the next queue in turn, within `send_timeout`.

        Raises:
            ArianeError: the last attempt's error, if none succeeded.
        """
        if self._namespace is not None:
            message = self._named(message)
        size = len(message.body)
        if not self._in_flight.try_take(size):
            await self._in_flight.take(size)
        try:
            if queue is None:
                return await self._attempts(message)
            try:
                return await self._attempt(message, queue, self._clock.monotonic(), self._timeout_s)
            except (ConnectionLost, RequestTimeout):
                self._instance.refresh_routes_soon()
                raise
        finally:
            self._in_flight.release(size)

    async def send_one_way(self, message: PreparedMessage, queue: MessageQueue | None = None) -> None:
        """Send without waiting for a response.

        Raises:
            MessageRefused: the message has a delivery time, which the broker does not support.
            ConnectionLost: the broker cannot be reached.
            RequestTimeout: the broker does not read the messages sent before.
        """
        if self._namespace is not None:
            message = self._named(message)
        if queue is None:
            queue = send_codec.select_queue(await self.publish_queues(message.topic), self._advance_index(), None)
        header = self._fields(message, queue, self._clock.now_ms())
        addr = self._address(queue)
        connection = await self._instance.peers.connect(addr)
        if message.needs_timer and self._timers is not None:
            await self._timers.require(connection, addr, self._wire_topic(message), self._timeout_s * 1000)
        if not connection.is_writable:
            # Without responses, only this bounds the memory of a client that sends faster than the broker reads.
            await connection.wait_writable(self.settings.send_timeout * 1000)
        connection.one_way(message.code, header, message.body)

    async def _attempts(self, message: PreparedMessage) -> SendResult:
        now_s = self._clock.monotonic()
        deadline = now_s + self._timeout_s
        queues = self._instance.routes.cached_publish_queues(message.topic)
        if queues is None:
            queues = await self.publish_queues(message.topic)
            now_s = self._clock.monotonic()
        avoid: str | None = None
        last_error: Exception | None = None
        # A result whose flush or replication was late (retry_not_stored): returned unless a further attempt does better.
        late_result: SendResult | None = None
        attempt = self._attempt if self._latencies is None else self._timed_attempt
        attempts = 0
        while attempts < self._attempts_max and now_s < deadline:
            attempts += 1
            queue = self._select_queue(queues, avoid)
            avoid = queue.broker
            try:
                stored = await attempt(message, queue, now_s, deadline - now_s)
            except (ConnectionLost, RequestTimeout, ReplyError) as error:
                if not is_transient(error, RETRY_ELSEWHERE_CODES):
                    if late_result is not None:
                        return late_result
                    raise
                last_error, now_s = error, self._clock.monotonic()
                if is_transient(error, NOT_SERVED_CODES):
                    refresh = self._instance.refresh_routes_soon()
                    only_broker = self._only_broker(error, queues)
                    if only_broker:
                        await asyncio.wait([refresh], timeout=deadline - now_s)
                        queues = self._instance.routes.cached_publish_queues(message.topic) or queues
                        now_s = self._clock.monotonic()
                        if self._instance.routes.has_slaves(only_broker):  # one may become the master that accepts it
                            attempts -= 1
                continue
            if stored.status is SendStatus.SEND_OK or not self.settings.retry_not_stored:
                return stored
            late_result, now_s = stored, self._clock.monotonic()
        if late_result is not None:
            return late_result
        raise last_error or RequestTimeout(f"a broker of {message.topic}", self.settings.send_timeout * 1000)

    def _only_broker(self, error: Exception, queues: Sequence[MessageQueue]) -> str:
        """Return the topic's broker if another attempt needs another route of it; "" if it has several, or none would help."""
        brokers = {queue.broker for queue in queues}
        is_final = isinstance(error, RequestTimeout | NotAsked)  # no time is left, or a command does not wait
        return "" if is_final or len(brokers) != 1 else brokers.pop()

    def _select_queue(self, queues: Sequence[MessageQueue], avoid: str | None) -> MessageQueue:
        turn = self._advance_index()
        if self._latencies is None:
            if avoid is None:
                return queues[turn % len(queues)]
            return send_codec.select_queue(queues, turn, avoid)
        return self._latencies.select(queues, turn)

    async def _timed_attempt(
        self, message: PreparedMessage, queue: MessageQueue, now_s: float, timeout_s: float
    ) -> SendResult:
        assert self._latencies is not None
        has_failed = True
        try:
            stored = await self._attempt(message, queue, now_s, timeout_s)
            has_failed = False
            return stored
        except ReplyError as error:
            # A broker that refuses this message is not a slow one.
            has_failed = is_transient(error, RETRY_ELSEWHERE_CODES)
            raise
        finally:
            self._latencies.record(queue.broker, self._clock.monotonic() - now_s, has_failed=has_failed)

    async def _attempt(
        self, message: PreparedMessage, queue: MessageQueue, now_s: float, timeout_s: float
    ) -> SendResult:
        """Send to `queue` within `timeout_s`; `now_s` is the monotonic time."""
        addr, timeout_ms = self._address(queue), timeout_s * 1000
        connection = self._connections.get(addr)
        if connection is None or not connection.is_open:
            connection = await self._connect(addr, timeout_ms)
            now_s = self._clock.monotonic()
        if message.needs_timer and self._timers is not None:
            await self._timers.require(connection, addr, self._wire_topic(message), timeout_ms)
            checked_s = self._clock.monotonic()
            timeout_ms, now_s = max(1.0, timeout_ms - (checked_s - now_s) * 1000), checked_s
        started_ms = self._clock.now_ms()
        if self._hooks and self._clock.monotonic() - now_s > TOLERANCE_S:  # a pause between the two readings
            started_ms, now_s = Instant.read(self._clock)
        if self._headers is not None:
            header = self._headers.fields(message, queue.queue_id, started_ms)
        else:
            header = self._fields(message, queue, started_ms)
        response = await connection.request_nowait(message.code, header, message.body, timeout_ms=timeout_ms)
        if not self._hooks:
            return send_codec.parse_result(message, response, queue, addr)
        # Only the request is between the readings, so the broker's store time is between them, too.
        ended_s, ended_ms = self._clock.monotonic(), self._clock.now_ms()
        try:
            stored = send_codec.parse_result(message, response, queue, addr)
        except ReplyError as error:
            cost_ms = duration_ms(ended_ms - started_ms, ended_s - now_s)
            event = self._event(message, queue, addr, (started_ms, cost_ms), error)
            await hook_events.notify(self._hooks, event)
            raise
        trace = self._trace
        if trace is None:
            cost_ms = duration_ms(ended_ms - started_ms, ended_s - now_s)
            event = self._event(message, queue, addr, (started_ms, cost_ms), stored)
            await hook_events.notify(self._hooks, event)
            return stored
        trace.sends.append((message, addr, started_ms, now_s, ended_ms, ended_s, stored))
        is_group = len(trace.sends) >= trace.sends_max or len(message.body) > HELD_MAX
        if is_group and (waiting := trace.take_sends()) is not None:
            await waiting
        return stored

    def _fields(self, message: PreparedMessage, queue: MessageQueue, born_ms: int) -> dict[str, str]:
        fields = send_codec.request_fields(message, self._group, queue.queue_id, born_ms, self.settings)
        if self._namespace is not None:
            self._namespace.wrap_send(fields)
        return fields

    def _event(
        self,
        message: PreparedMessage,
        queue: MessageQueue,
        addr: str,
        times_ms: tuple[int, int],
        outcome: SendResult | ReplyError,
    ) -> SendEvent:
        """Return the event of an attempt with its start and cost."""
        return SendEvent(
            group=self._group,
            prepared=message,
            queue=queue,
            broker_addr=addr,
            started_ms=times_ms[0],
            cost_ms=times_ms[1],
            result=outcome if isinstance(outcome, SendResult) else None,
            refusal=outcome if isinstance(outcome, ReplyError) else None,
        )

    async def _connect(self, addr: str, timeout_ms: float) -> Connection:
        """Open the connection to `addr` within `timeout_ms`.

        `in_flight_max` bounds unwritten requests, not the connection's buffer: a broker that does not read is detected at
        the deadline.
        """
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = self._connections[addr] = await self._instance.peers.connect(addr)
        except TimeoutError:
            raise RequestTimeout(addr, timeout_ms) from None
        return connection

    def _named(self, message: PreparedMessage) -> PreparedMessage:
        """Return the message with the application's name of its topic, if it was given the name on the wire."""
        assert self._namespace is not None
        name = self._namespace.unwrap(message.topic)
        return message if name == message.topic else msgspec.structs.replace(message, topic=name)

    def _wire_topic(self, message: PreparedMessage) -> str:
        return message.topic if self._namespace is None else self._namespace.wrap(message.topic)

    def _address(self, queue: MessageQueue) -> str:
        addr = self._instance.routes.master_address(queue.broker)
        if addr is None:
            raise ConnectionLost(queue.broker, "no master in the cached routes")
        return addr

    def _advance_index(self) -> int:
        self._next_index += 1
        return self._next_index
