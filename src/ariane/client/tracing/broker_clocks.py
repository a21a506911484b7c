"""Clock offsets of the brokers that a traced client sends to, measured without support by the broker.

    a send of this client ─→ its offset id ─→ VIEW_MESSAGE_BY_ID ─→ store timestamp ─→ OffsetEstimate of that broker

One message is read back per broker and interval: a producer's are its own and its trace messages, a consumer's its trace messages.
No send waits for it, and no message is sent for it. Brokers that do not let messages be read are asked less and less often.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.hooks import SendEvent
from ariane.client.instance.instants import Instant
from ariane.client.tracing.offset_estimate import OffsetEstimate, OffsetSample
from ariane.clock import Clock
from ariane.errors import ArianeError, ProtocolError
from ariane.model import clock_offset, ids
from ariane.model.clock_offset import ClockOffset
from ariane.model.message import UNIQ_KEY
from ariane.model.trace_event import PublishEvent
from ariane.net.tasks import BackgroundTasks
from ariane.protocol.codes import RequestCode
from ariane.protocol.records import record
from ariane.protocol.requests.messaging import ViewMessage

log = logging.getLogger("ariane.client")

# Seconds from one sample of a broker to the next. The first follow quickly: the first exchange of all is often a slow one.
INTERVAL_FIRST_S, INTERVAL_MAX_S, PAUSE_MAX_S = 0.5, 5.0, 600.0
STALE_S = 30.0  # bounds have widened by 15 ms: worth a trace message of its own
BODY_MAX = 256 * 1024  # bytes of a message that is read back
SETTLE_S = 0.1

ReadStoreMs = Callable[[str, str, str], Awaitable[int]]
"""Returns when a message was stored: broker address, offset id, unique id."""


class BrokerClocks:
    """Offsets of brokers' clocks from the clock of this client."""

    def __init__(self, read_store_ms: ReadStoreMs, clock: Clock) -> None:
        self._read_store_ms = read_store_ms  # a request to a broker; may fail
        self._clock = clock  # the one whose offset is measured
        self._opened = Instant.read(clock)  # from here on it is noticed if the wall clock is set
        self._wanted_s = -math.inf  # monotonic time from which `wants_sample` may return True again
        self._brokers: dict[str, _SampledBroker] = {}  # by address
        self._tasks = BackgroundTasks("broker clocks")
        self._reading: set[asyncio.Task[None]] = set()  # samples that are being completed

    @classmethod
    def of_client(cls, instance: ClientInstance) -> BrokerClocks:
        """Return the clocks of the brokers that `instance` is connected to."""

        async def read_store_ms(addr: str, offset_message_id: str, message_id: str) -> int:
            _, offset = ids.parse_offset_message_id(offset_message_id)
            answer = await instance.peers.request_ok(addr, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(offset))
            stored = record.decode(answer.body)
            if stored.property_map().get(UNIQ_KEY) != message_id:
                raise ProtocolError(f"{addr} returned another message than {message_id} at offset {offset}")
            return stored.store_ms

        return cls(read_store_ms, instance.clock)

    @property
    def offsets(self) -> dict[str, ClockOffset]:
        """Current bounds by broker address, the broker that was sampled last first."""
        return self._offsets(self._clock.monotonic())

    def text(self, since_s: float) -> str:
        """Return the property of a trace message whose oldest record was written at monotonic time `since_s`; may be empty."""
        return clock_offset.to_text(self._offsets(since_s).items()) if self._brokers else ""

    def wants_sample(self) -> bool:
        """Return whether no broker's clock is known well, and the next message should be a sample; at most once per interval."""
        now = self._clock.monotonic()
        if now < self._wanted_s:
            return False
        is_wanted = all(
            now >= broker.due_s and (broker.estimate.sampled_s is None or now - broker.estimate.sampled_s > STALE_S)
            for broker in self._brokers.values()
        )
        if is_wanted:
            self._wanted_s = now + INTERVAL_MAX_S
        return is_wanted

    def on_send(self, event: SendEvent) -> None:
        """Note a send of the client's own trace messages."""
        if event.result is not None and len(event.prepared.body) <= BODY_MAX:
            message = (event.result.offset_message_id, event.prepared.ids[0])
            self._note(event.broker_addr, message, event.started_ms, event.cost_ms)

    def on_publish(self, event: PublishEvent) -> None:
        """Note a send of the application."""
        if event.offset_message_id and event.body_length <= BODY_MAX:
            message = (event.offset_message_id, event.message_id)
            self._note(event.store_host, message, event.timestamp_ms, event.cost_ms)

    async def settle(self) -> None:
        """Wait until the samples that are being read are complete, but not for long."""
        if self._reading:
            await asyncio.wait(self._reading, timeout=SETTLE_S)

    async def close(self) -> None:
        """Stop reading."""
        await self._tasks.close()

    def _offsets(self, since_s: float) -> dict[str, ClockOffset]:
        now = Instant.read(self._clock)
        latest = sorted(self._brokers.items(), key=lambda item: item[1].estimate.sampled_s or 0.0, reverse=True)
        bounds = ((addr, broker.estimate.bounds(now, since_s)) for addr, broker in latest)
        return {addr: offset for addr, offset in bounds if offset is not None}

    def _note(self, addr: str, message: tuple[str, str], started_ms: int, cost_ms: int) -> None:
        noted = Instant.read(self._clock)
        broker = self._brokers.get(addr)
        if broker is None:
            broker = self._brokers[addr] = _SampledBroker(self._opened)
        if noted.monotonic_s < broker.due_s:
            return
        broker.postpone(noted.monotonic_s)
        sample = OffsetSample(started_ms, cost_ms, noted, 0)
        task = self._tasks.start(self._complete(addr, message, sample), f"read {message[1]} from {addr}")
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _complete(self, addr: str, message: tuple[str, str], sample: OffsetSample) -> None:
        broker = self._brokers[addr]
        try:
            stored_ms = await self._read_store_ms(addr, *message)
        except ArianeError as error:
            broker.failed(self._clock.monotonic())
            log.debug("Clock of %s not measured: message %s cannot be read: %s", addr, message[1], error)
            return
        broker.succeeded(self._clock.monotonic())
        broker.estimate.add(sample._replace(stored_ms=stored_ms))


class _SampledBroker:
    """The estimate of one broker, and when it is sampled again."""

    def __init__(self, opened: Instant) -> None:
        self.estimate = OffsetEstimate(opened)
        self.due_s = opened.monotonic_s
        self._interval_s = INTERVAL_FIRST_S / 2  # doubled before its first use

    def postpone(self, now_s: float) -> None:
        """Set the time of the next sample while one is being taken."""
        self._interval_s = min(2 * self._interval_s, max(INTERVAL_MAX_S, self._interval_s))
        self.due_s = now_s + self._interval_s

    def succeeded(self, now_s: float) -> None:
        """End the pauses that failures have caused."""
        self._interval_s = min(self._interval_s, INTERVAL_MAX_S)
        self.due_s = min(self.due_s, now_s + INTERVAL_MAX_S)

    def failed(self, now_s: float) -> None:
        """Double the interval: the broker may never let messages be read."""
        self._interval_s = min(2 * max(self._interval_s, INTERVAL_MAX_S), PAUSE_MAX_S)
        self.due_s = now_s + self._interval_s
