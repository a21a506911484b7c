"""Message traces: what a client did with each message, as records in a trace topic. [AsyncTraceDispatcher, *TraceHookImpl]

    hook events ─→ records ─→ text and keys ─→ queue (`queue_max`) ─→ batch ─→ one message to the trace topic
                                      full: drop and count, or wait     bounded by body bytes, by key bytes,
                                                                        and by the age of its oldest record

No record is lost silently: `sent`, `dropped` (queue full) and `failed` (could not be sent) count all of them, and a warning is
logged at most once a minute. Each message of a batch has a record of its own, and so has a refused send. A send without a
response has none, because its message may or may not be stored.
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
    LocalState.UNKNOWN: "UNKNOW",  # spelled like this in 4.9.4
}

_counter = itertools.count()


def trace_settings(trace: TraceSettings | bool) -> TraceSettings | None:
    """Return the settings that the `trace` argument of a client stands for; None: no traces."""
    if isinstance(trace, TraceSettings):
        return trace
    if not isinstance(trace, bool):
        raise ConfigError("trace", trace, "expected True, False or TraceSettings(…)")
    return TraceSettings() if trace else None


# --- from hook events to records ---------------------------------------------------------------------------------------


def events_of_send(event: SendEvent, trace_topic: str) -> list[TraceEvent]:
    """Return one Pub record per message; none for trace messages, or if the broker has traces switched off."""
    prepared, result = event.prepared, event.result
    if prepared.topic.startswith(trace_topic) or (result is not None and not result.trace_on):
        return []
    offset_ids = result.offset_message_id.split(",") if result is not None else []
    if len(offset_ids) != len(prepared.messages):
        offset_ids = [""] * len(prepared.messages)
    is_stored = result is not None and result.status is send_codec.SendStatus.SEND_OK
    return [
        PublishEvent(
            timestamp_ms=event.started_ms,
            region=result.region if result is not None else DEFAULT_REGION,
            group=event.group,
            topic=prepared.topic,
            message_id=message_id,
            tags=message.tags,
            keys=" ".join(message.keys),
            store_host=event.broker_addr,
            body_length=len(message.body) if prepared.is_batch else len(prepared.body),
            cost_ms=event.cost_ms,
            message_type=_type(prepared, message),
            offset_message_id=offset_id,
            success=is_stored,
        )
        for message, message_id, offset_id in zip(prepared.messages, prepared.ids, offset_ids, strict=True)
    ]


def _type(prepared: PreparedMessage, message: Message) -> MessageType:
    if prepared.sys_flag & names.TRANSACTION_MASK == names.TRANSACTION_PREPARED:
        return MessageType.HALF
    return MessageType.DELAY if message.delay_level or message.deliver_at_ms else MessageType.NORMAL


def events_of_transaction_end(event: TransactionEnd, trace_topic: str) -> list[TraceEvent]:
    """Return one EndTransaction record; none for trace messages. Its type is COMMIT in every state, as in 4.9.4."""
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
    """Return one SubBefore or SubAfter record per message, except for messages whose own trace switch is off."""
    call = event.started if isinstance(event, ConsumeFinished) else event
    messages = [message for message in call.messages if message.properties.get(names.TRACE_ON) != "false"]
    if isinstance(event, ConsumeFinished):
        return [_consume_end(event, call, message) for message in messages]
    region = call.messages[-1].properties.get(names.MSG_REGION, "")
    return [
        ConsumeStartEvent(
            timestamp_ms=call.started_ms,
            region=region,
            group=call.group,
            request_id=call.request_id,
            message_id=message.message_id,
            retry_times=message.reconsume_times,
            keys=message.properties.get(names.KEYS, ""),
        )
        for message in messages
    ]


def _consume_end(event: ConsumeFinished, call: ConsumeStarted, message: ReceivedMessage) -> ConsumeEndEvent:
    return ConsumeEndEvent(
        request_id=call.request_id,
        message_id=message.message_id,
        cost_ms=event.cost_ms // len(call.messages),
        success=event.outcome is ConsumeReturn.SUCCESS,
        keys=message.properties.get(names.KEYS, ""),
        context_code=int(event.outcome),
        timestamp_ms=event.ended_ms,
        group=call.group,
    )


# --- from records to messages ------------------------------------------------------------------------------------------


class TraceEntry(NamedTuple):
    """A pending record: its text, the keys by which its trace message can be found, and when it was queued."""

    text: bytes
    keys: tuple[str, ...]
    key_bytes: int
    since: float


class TraceBatch(NamedTuple):
    """Contents of one trace message: the first `records` pending entries and their keys."""

    records: int
    body: bytes
    keys: tuple[str, ...]
    dropped_keys: int


def to_entry(event: TraceEvent, now: float) -> TraceEntry:
    """Encode a record that is queued at monotonic time `now`."""
    keys = trace_text.keys(event)
    return TraceEntry(trace_text.encode(event).encode(), keys, sum(len(key.encode()) + 1 for key in keys), now)


def next_batch(entries: Iterable[TraceEntry], body_max: int, keys_max: int) -> TraceBatch:
    """Return as many of the first entries as fit into both limits, at least one.

    If a single record has more keys than `keys_max`, the last ones are dropped; its ids come first.
    """
    texts: list[bytes] = []
    body_bytes = key_bytes = dropped_keys = 0
    keys: dict[str, None] = {}
    for entry in entries:
        new = [key for key in dict.fromkeys(entry.keys) if key not in keys]
        new_bytes = sum(len(key.encode()) + 1 for key in new)
        if texts and (body_bytes + len(entry.text) > body_max or key_bytes + new_bytes > keys_max):
            break
        texts.append(entry.text)
        body_bytes += len(entry.text)
        for key in new:
            size = len(key.encode()) + 1
            if key_bytes + size > keys_max:
                dropped_keys += 1
                continue
            keys[key] = None
            key_bytes += size
    return TraceBatch(len(texts), b"".join(texts), tuple(keys), dropped_keys)


class TraceDispatcher:
    """Queues trace records and sends them in batches. Leaving `async with` sends pending records, within a limited time."""

    def __init__(self, send: Callable[[Message], Awaitable[object]], settings: TraceSettings, clock: Clock) -> None:
        self.sent = 0
        """Number of records that a broker has stored."""
        self.dropped = 0
        """Number of records for which the queue had no room."""
        self.failed = 0
        """Number of records that could not be sent, after all retries or when the client closed."""
        self.dropped_keys = 0
        """Number of keys dropped because one trace message had too many; records cannot be found by them."""
        self._send = send  # the producer's send: traces use its connections and routes
        self._settings = settings  # topic, limits, and what to do when the queue is full
        self._clock = clock  # tests replace it
        # Pending records, with the bytes of their texts and of their keys.
        self._entries: deque[TraceEntry] = deque()
        self._bytes = 0  # texts of pending records
        self._key_bytes = 0  # keys of pending records: a broker bounds the keys of one message
        # Set ….
        self._arrived = asyncio.Event()  # … while records are pending
        self._due = asyncio.Event()  # … when a batch must be sent immediately
        self._room = asyncio.Event()  # … when the queue has room again
        self._empty = asyncio.Event()  # … when no record is pending
        self._empty.set()
        self._is_closing = False  # further records are not waited for
        self._tasks = BackgroundTasks("trace")  # the sender of batches
        # Monotonic time of the last warning of each kind.
        self._last_warning: dict[str, float] = {}

    @classmethod
    def of_client(cls, instance: ClientInstance, group: str, kind: str, settings: TraceSettings) -> Self:
        """Return a dispatcher that sends through `instance`, as a producer group of its own without traces."""
        producer_settings = ProducerSettings(send_timeout=settings.send_timeout)
        sender = MessageSender(instance, f"_INNER_TRACE_PRODUCER-{group}-{kind}-{next(_counter)}", producer_settings)

        async def send(message: Message) -> object:
            return await sender.send(send_codec.prepare(message, instance.new_message_id(), producer_settings))

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
            async with asyncio.timeout(self._settings.close_timeout):
                await self._empty.wait()
        except TimeoutError:
            unsent = len(self._entries)
            self.failed += unsent
            log.warning(
                "%d trace records are lost: not sent within %g s of closing", unsent, self._settings.close_timeout
            )
        self._entries.clear()
        await self._tasks.close()

    # --- hooks ---

    def on_send(self, event: SendEvent) -> Awaitable[None] | None:
        """Queue the records of a send."""
        return self.record(events_of_send(event, self._settings.topic))

    def on_transaction_end(self, event: TransactionEnd) -> Awaitable[None] | None:
        """Queue the record of the end of a transaction."""
        return self.record(events_of_transaction_end(event, self._settings.topic))

    def on_consume(self, event: ConsumeStarted | ConsumeFinished) -> Awaitable[None] | None:
        """Queue the records of a listener call."""
        return self.record(events_of_consume(event))

    def record(self, events: Sequence[TraceEvent]) -> Awaitable[None] | None:
        """Queue records.

        Returns:
            None, or an awaitable that waits for room if the queue is full and `when_full` is "block".
        """
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
        entry = to_entry(event, self._clock.monotonic())
        self._entries.append(entry)
        self._bytes += len(entry.text)
        self._key_bytes += entry.key_bytes
        self._empty.clear()
        self._arrived.set()
        if self._bytes >= self._settings.body_max or self._key_bytes >= self._settings.keys_max:
            self._due.set()

    def _drop(self, count: int) -> None:
        self.dropped += count
        self._warn("dropped", "Trace queue full: %d records dropped so far", self.dropped)

    # --- sending ---

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            await self._wait_until_due()
            batch = next_batch(self._entries, self._settings.body_max, self._settings.keys_max)
            self.dropped_keys += batch.dropped_keys
            # Records stay in the queue until the send has ended, so that closing can count the ones that were not sent.
            is_sent = await self._send_with_retries(
                Message(topic=self._settings.topic, body=batch.body, keys=batch.keys)
            )
            for _ in range(batch.records):
                entry = self._entries.popleft()
                self._bytes -= len(entry.text)
                self._key_bytes -= entry.key_bytes
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
        """Return when a whole batch is pending, the oldest record is `flush_interval` old, or the client closes."""
        if self._is_closing or self._bytes >= self._settings.body_max or self._key_bytes >= self._settings.keys_max:
            return
        self._due.clear()
        remaining_s = self._entries[0].since + self._settings.flush_interval - self._clock.monotonic()
        try:
            async with asyncio.timeout(max(remaining_s, 0)):
                await self._due.wait()
        except TimeoutError:
            return

    async def _send_with_retries(self, message: Message) -> bool:
        for _ in range(1 + self._settings.retries):
            try:
                await self._send(message)
            except MessageRefused as error:
                self._warn("error", "Trace records cannot be sent: %s", error)
                return False
            except ArianeError as error:
                self._warn("error", "Could not send trace records, retrying: %s", error)
                await self._clock.sleep(self._settings.retry_delay)
            else:
                return True
        return False

    def _warn(self, kind: str, text: str, *facts: object) -> None:
        """Log a warning, at most one of its kind per minute."""
        now = self._clock.monotonic()
        if now - self._last_warning.get(kind, -WARNING_INTERVAL_S) >= WARNING_INTERVAL_S:
            self._last_warning[kind] = now
            log.warning(text, *facts)
