"""Traces: what a client did with each message, as records on a trace topic. [AsyncTraceDispatcher, *TraceHookImpl]

    Sent, Consuming, Consumed, Ending ─ records ─→ text and keys ─ queue (`queue_max`) ─→ batch ─→ one message to the trace topic
                                             full: drop and count, or wait        bounded by body bytes, by key bytes,
                                                                                  and by the age of its oldest record

Nothing is thrown away in silence: `sent`, `dropped` (queue full) and `failed` (could not be sent) count every record, and
a line a minute says so. Each message of a batch gets a record of its own id; a send that was refused leaves one, too.
A send that got no answer leaves none: nobody knows whether it was stored.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from ariane.client import send_codec
from ariane.client.client_instance import ClientInstance
from ariane.client.hooks import ConsumeFinished, ConsumeReturn, ConsumeStarted, LocalState, SendEvent, TransactionEnd
from ariane.client.send_codec import PreparedMessage
from ariane.client.sender import MessageSender
from ariane.client.settings import ProducerSettings, TraceSettings
from ariane.clock import Clock
from ariane.errors import ArianeError, ConfigError, MessageRefused
from ariane.model import message as names
from ariane.model.message import Message, ReceivedMessage
from ariane.model.trace_event import (
    ConsumeEndEvent,
    ConsumeStartEvent,
    EndTransactionEvent,
    MessageType,
    PublishEvent,
    TraceEvent,
)
from ariane.net.tasks import BackgroundTasks
from ariane.protocol import trace_codec as trace_text

log = logging.getLogger("ariane.client.trace_dispatcher")

WARNING_INTERVAL_S = 60.0
DEFAULT_REGION = "DefaultRegion"
STATES = {
    LocalState.COMMIT: "COMMIT_MESSAGE",
    LocalState.ROLLBACK: "ROLLBACK_MESSAGE",
    LocalState.UNKNOWN: "UNKNOW",  # so spelled in 4.9.4
}

_counter = itertools.count()


def trace_settings(trace: TraceSettings | bool) -> TraceSettings | None:
    """What `trace=…` of a client means."""
    if isinstance(trace, TraceSettings):
        return trace
    if not isinstance(trace, bool):
        raise ConfigError("trace", trace, "choose True, False, or TraceSettings(…)")
    return TraceSettings() if trace else None


# --- from events to records --------------------------------------------------------------------------------------------


def events_of_send(event: SendEvent, trace_topic: str) -> list[TraceEvent]:
    """One Pub per message. Nothing for trace messages, and when the broker has traces switched off."""
    out, result = event.prepared, event.result
    if out.topic.startswith(trace_topic) or (result is not None and not result.trace_on):
        return []
    offset_ids = result.offset_message_id.split(",") if result is not None else []
    if len(offset_ids) != len(out.messages):
        offset_ids = [""] * len(out.messages)
    is_stored = result is not None and result.status is send_codec.SendStatus.SEND_OK
    return [
        PublishEvent(
            timestamp_ms=event.started_ms,
            region=result.region if result is not None else DEFAULT_REGION,
            group=event.group,
            topic=out.topic,
            message_id=message_id,
            tags=message.tags,
            keys=" ".join(message.keys),
            store_host=event.broker_addr,
            body_length=len(message.body) if out.is_batch else len(out.body),
            cost_ms=event.cost_ms,
            message_type=_type(out, message),
            offset_message_id=offset_id,
            success=is_stored,
        )
        for message, message_id, offset_id in zip(out.messages, out.ids, offset_ids, strict=True)
    ]


def _type(out: PreparedMessage, message: Message) -> MessageType:
    if out.sys_flag & names.TRANSACTION_MASK == names.TRANSACTION_PREPARED:
        return MessageType.HALF
    return MessageType.DELAY if message.delay_level or message.deliver_at_ms else MessageType.NORMAL


def events_of_transaction_end(event: TransactionEnd, trace_topic: str) -> list[TraceEvent]:
    """One EndTransaction; nothing for trace messages. Its type is COMMIT whatever the state, as in 4.9.4."""
    if event.topic.startswith(trace_topic):
        return []
    return [
        EndTransactionEvent(
            timestamp_ms=event.ended_ms,
            region=event.region,
            group=event.group,
            topic=event.topic,
            message_id=event.message_id,
            tags=event.tags,
            keys=event.keys,
            store_host=event.broker_addr,
            message_type=MessageType.COMMIT,
            transaction_id=event.transaction_id,
            state=STATES[event.state],
            from_check=event.from_check,
        )
    ]


def events_of_consume(event: ConsumeStarted | ConsumeFinished) -> list[TraceEvent]:
    """One SubBefore or SubAfter per message, but for messages whose own switch is off."""
    consuming = event.started if isinstance(event, ConsumeFinished) else event
    messages = [one for one in consuming.messages if one.properties.get(names.TRACE_ON) != "false"]
    if isinstance(event, ConsumeFinished):
        return [_after(event, consuming, message) for message in messages]
    region = consuming.messages[-1].properties.get(names.MSG_REGION, "")
    return [
        ConsumeStartEvent(
            timestamp_ms=consuming.started_ms,
            region=region,
            group=consuming.group,
            request_id=consuming.request_id,
            message_id=message.message_id,
            retry_times=message.reconsume_times,
            keys=message.properties.get(names.KEYS, ""),
        )
        for message in messages
    ]


def _after(event: ConsumeFinished, consuming: ConsumeStarted, message: ReceivedMessage) -> ConsumeEndEvent:
    return ConsumeEndEvent(
        request_id=consuming.request_id,
        message_id=message.message_id,
        cost_ms=event.cost_ms // len(consuming.messages),
        success=event.outcome is ConsumeReturn.SUCCESS,
        keys=message.properties.get(names.KEYS, ""),
        context_code=int(event.outcome),
        timestamp_ms=event.ended_ms,
        group=consuming.group,
    )


# --- from records to messages ------------------------------------------------------------------------------------------


class TraceEntry(NamedTuple):
    """A record as it waits: its text and the keys that its trace message is to be found by."""

    text: bytes
    keys: tuple[str, ...]
    key_bytes: int
    since: float


class TraceBatch(NamedTuple):
    """What one trace message takes: the first `records` entries that wait, and their keys."""

    records: int
    body: bytes
    keys: tuple[str, ...]
    dropped_keys: int


def to_entry(event: TraceEvent, now: float) -> TraceEntry:
    keys = trace_text.keys(event)
    return TraceEntry(trace_text.encode(event).encode(), keys, sum(len(key.encode()) + 1 for key in keys), now)


def next_batch(entries: Iterable[TraceEntry], body_max: int, keys_max: int) -> TraceBatch:
    """As many of the first entries as fit into both bounds, at least one.

    Keys that make a single record pass `keys_max` are left out; its ids come first among them.
    """
    texts: list[bytes] = []
    body_bytes = key_bytes = left_out = 0
    keys: dict[str, None] = {}
    for one in entries:
        new = [key for key in dict.fromkeys(one.keys) if key not in keys]
        new_bytes = sum(len(key.encode()) + 1 for key in new)
        if texts and (body_bytes + len(one.text) > body_max or key_bytes + new_bytes > keys_max):
            break
        texts.append(one.text)
        body_bytes += len(one.text)
        for key in new:
            size = len(key.encode()) + 1
            if key_bytes + size > keys_max:
                left_out += 1
                continue
            keys[key] = None
            key_bytes += size
    return TraceBatch(len(texts), b"".join(texts), tuple(keys), left_out)


class TraceDispatcher:
    """`async with Tracer(send, settings, clock)`: leaving it sends what waits, within a bounded time."""

    def __init__(self, send: Callable[[Message], Awaitable[object]], settings: TraceSettings, clock: Clock) -> None:
        self.sent = 0
        """Records that a broker has stored."""
        self.dropped = 0
        """Records that found the queue full."""
        self.failed = 0
        """Records that could not be sent, after all retries or when the client closed."""
        self.dropped_keys = 0
        """Keys that records cannot be found by, because one message had more than fit."""
        self._send = send
        self._settings = settings
        self._clock = clock
        self._entries: deque[TraceEntry] = deque()
        self._bytes = 0
        self._key_bytes = 0
        self._arrived = asyncio.Event()
        self._due = asyncio.Event()
        self._room = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._is_closing = False
        self._tasks = BackgroundTasks("trace")
        self._last_warning: dict[str, float] = {}

    @classmethod
    def of_client(cls, instance: ClientInstance, group: str, kind: str, settings: TraceSettings) -> Self:
        """A tracer that sends through `instance`, as a group of its own; what it sends is not traced."""
        own = ProducerSettings(send_timeout_ms=settings.send_timeout_ms)
        sender = MessageSender(instance, f"_INNER_TRACE_PRODUCER-{group}-{kind}-{next(_counter)}", own)

        async def send(message: Message) -> object:
            return await sender.send(send_codec.prepare(message, instance.new_message_id(), own))

        return cls(send, settings, instance.clock)

    async def __aenter__(self) -> Self:
        self._tasks.start(self._run(), "send records")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closing = True
        self._due.set()
        self._room.set()
        try:
            async with asyncio.timeout(self._settings.close_wait_ms / 1000):
                await self._empty.wait()
        except TimeoutError:
            left = len(self._entries)
            self.failed += left
            log.warning(
                "%d trace records are lost: not sent within %d ms of closing", left, self._settings.close_wait_ms
            )
        self._entries.clear()
        await self._tasks.close()

    # --- hooks ---

    def on_send(self, event: SendEvent) -> Awaitable[None] | None:
        return self.record(events_of_send(event, self._settings.topic))

    def on_transaction_end(self, event: TransactionEnd) -> Awaitable[None] | None:
        return self.record(events_of_transaction_end(event, self._settings.topic))

    def on_consume(self, event: ConsumeStarted | ConsumeFinished) -> Awaitable[None] | None:
        return self.record(events_of_consume(event))

    def record(self, events: Sequence[TraceEvent]) -> Awaitable[None] | None:
        """Queue `events`. When the queue is full they are dropped, or what is returned waits until there is room."""
        room = self._settings.queue_max - len(self._entries)
        for event in events[:room]:
            self._put(event)
        if len(events) <= room:
            return None
        if self._settings.when_full == "block" and not self._is_closing:
            return self._put_when_room(events[max(room, 0) :])
        self._drop(len(events) - max(room, 0))
        return None

    async def _put_when_room(self, events: Sequence[TraceEvent]) -> None:
        for number, event in enumerate(events):
            while len(self._entries) >= self._settings.queue_max and not self._is_closing:
                self._room.clear()
                await self._room.wait()
            if self._is_closing:
                self._drop(len(events) - number)
                return
            self._put(event)

    def _put(self, event: TraceEvent) -> None:
        one = to_entry(event, self._clock.monotonic())
        self._entries.append(one)
        self._bytes += len(one.text)
        self._key_bytes += one.key_bytes
        self._empty.clear()
        self._arrived.set()
        if self._bytes >= self._settings.body_max or self._key_bytes >= self._settings.keys_max:
            self._due.set()

    def _drop(self, count: int) -> None:
        self.dropped += count
        self._warn("dropped", "%d trace records dropped so far: more arise than are sent", self.dropped)

    # --- sending ---

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            await self._wait_until_due()
            batch = next_batch(self._entries, self._settings.body_max, self._settings.keys_max)
            self.dropped_keys += batch.dropped_keys
            # The records stay in the queue until their fate is known: closing counts what it finds there.
            is_sent = await self._send_with_retries(
                Message(topic=self._settings.topic, body=batch.body, keys=batch.keys)
            )
            for _ in range(batch.records):
                gone = self._entries.popleft()
                self._bytes -= len(gone.text)
                self._key_bytes -= gone.key_bytes
            if is_sent:
                self.sent += batch.records
            else:
                self.failed += batch.records
                self._warn("failed", "%d trace records could not be sent so far", self.failed)
            self._room.set()
            if not self._entries:
                self._arrived.clear()
                self._empty.set()

    async def _wait_until_due(self) -> None:
        """Return when a whole batch waits, when the oldest record is `flush_ms` old, or when the client closes."""
        if self._is_closing or self._bytes >= self._settings.body_max or self._key_bytes >= self._settings.keys_max:
            return
        self._due.clear()
        left_s = self._entries[0].since + self._settings.flush_ms / 1000 - self._clock.monotonic()
        try:
            async with asyncio.timeout(max(left_s, 0)):
                await self._due.wait()
        except TimeoutError:
            return

    async def _send_with_retries(self, message: Message) -> bool:
        for _ in range(1 + self._settings.retries):
            try:
                await self._send(message)
            except MessageRefused as error:
                self._warn("error", "trace records cannot be sent: %s", error)
                return False
            except ArianeError as error:
                self._warn("error", "trace records are not sent yet: %s", error)
                await self._clock.sleep(self._settings.retry_ms / 1000)
            else:
                return True
        return False

    def _warn(self, what: str, text: str, *facts: object) -> None:
        now = self._clock.monotonic()
        if now - self._last_warning.get(what, -WARNING_INTERVAL_S) >= WARNING_INTERVAL_S:
            self._last_warning[what] = now
            log.warning(text, *facts)
