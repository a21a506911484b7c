"""Message traces: what a client did with each message, as records in a trace topic. [AsyncTraceDispatcher, *TraceHookImpl]

    sends, hook events ─→ text and keys ─→ queue (`queue_max`) ─→ batch ─→ one message to the trace topic
                                 full: drop and count, wait,        bounded by body bytes, by key bytes,
                                 or spill to a file                 and by the age of its oldest record

No record is lost silently: `sent`, `dropped` (queue full) and `failed` (could not be sent) count all of them, and a warning is
logged at most once a minute. `trace_records` says which records a client writes, `trace_spill` where spilled ones wait.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Self

from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.hooks import ConsumeFinished, ConsumeStarted, SendEvent, TransactionEnd
from ariane.client.instance.send_types import SendResult, StoredSend
from ariane.client.instance.settings import ProducerSettings, TraceSettings
from ariane.client.sending import send_codec
from ariane.client.sending.sender import MessageSender
from ariane.client.tracing.broker_clocks import BrokerClocks
from ariane.client.tracing.trace_records import (
    events_of_consume,
    events_of_recall,
    events_of_send,
    events_of_stored,
    events_of_transaction_end,
    texts_of_stored,
)
from ariane.client.tracing.trace_spill import TraceSpill
from ariane.clock import Clock
from ariane.errors import ArianeError, ConfigError, MessageRefused
from ariane.model import clock_offset
from ariane.model.clock_offset import ClockOffset
from ariane.model.message import Message
from ariane.model.trace_event import PublishEvent, TraceEvent
from ariane.net.tasks import BackgroundTasks
from ariane.protocol import trace_codec
from ariane.protocol.trace_batches import TraceBatch, TraceEntry, keys_text, next_batch, to_entries

log = logging.getLogger("ariane.client.tracing.trace_dispatcher")

WARNING_INTERVAL_S = 60.0
COMPRESS_LEVEL = 1  # records resemble each other: a higher level takes twice the time for hardly smaller bodies
SENDS_MAX = 64  # sends whose records are encoded together: one after another, each would take twice as long
_counter = itertools.count()


def trace_settings(trace: TraceSettings | bool) -> TraceSettings | None:
    """Return the settings that the `trace` argument of a client stands for; None: no traces."""
    if isinstance(trace, TraceSettings):
        return trace
    if not isinstance(trace, bool):
        raise ConfigError("trace", trace, "expected True, False or TraceSettings(…)")
    return TraceSettings() if trace else None


class Outcome(Enum):
    """Outcome of sending a batch of trace records."""

    SENT = "sent"
    FAILED = "failed"  # no broker accepted it: it may be sent later
    REFUSED = "refused"  # it cannot be sent as it is


class TraceCounts(NamedTuple):
    """Counts of a client's trace records by their outcome; all 0 without `trace`."""

    sent: int = 0
    """Number of records that a broker has stored."""
    dropped: int = 0
    """Number of records for which the queue, or the spill file, had no room."""
    failed: int = 0
    """Number of records that could not be sent, after all retries or when the client closed."""
    spilled: int = 0
    """Number of records that wait in the spill file."""

    @classmethod
    def of(cls, dispatcher: TraceDispatcher | None) -> Self:
        """Return the counts of a client's trace queue; None: the client is not traced."""
        if dispatcher is None:
            return cls()
        return cls(dispatcher.sent, dispatcher.dropped, dispatcher.failed, dispatcher.spilled)


class TraceDispatcher:
    """Queues trace records and sends them in batches. Leaving `async with` sends pending records, within a limited time."""

    def __init__(
        self,
        send: Callable[[Message], Awaitable[object]],
        settings: TraceSettings,
        clock: Clock,
        broker_clocks: BrokerClocks | None = None,
        group: str = "",
    ) -> None:
        self.sent = 0
        """Number of records that a broker has stored."""
        self.dropped = 0
        """Number of records for which queue and spill file had no room."""
        self.failed = 0
        """Number of records that could not be sent, after all retries or when the client closed."""
        self.dropped_keys = 0
        """Number of keys dropped because one trace message had too many; records cannot be found by them."""
        self._send = send  # the producer's send: traces use its connections and routes
        self._group = group  # producer group in the records of `sends` and recalls
        self._settings = settings  # topic, limits, and what to do when the queue is full
        # Limits that every record is compared with; a setting is a descriptor, which takes longer to read.
        self._queue_max, self._body_max, self._keys_max = settings.queue_max, settings.body_max, settings.keys_max
        self._clock = clock
        # Trace messages carry the offsets that it measures; None: they carry none.
        self._broker_clocks = broker_clocks
        # Records that wait in a file; None unless `when_full` is "spill".
        self._overflow: TraceSpill | None = None
        if settings.when_full == "spill":
            self._overflow = TraceSpill(Path(settings.spill_dir), settings.spill_bytes_max)
        self.sends: list[StoredSend] = []
        """Sends whose records are not encoded yet: a sender appends to it."""
        self.sends_max = 1
        """Length of `sends` at which the sender calls `take_sends`."""
        # Encoded records, including the batch in flight.
        self._entries: deque[TraceEntry] = deque()
        self._pending = 0  # number of these records
        self._oldest_s = 0.0  # no pending record was queued before this monotonic time
        self._bytes = 0  # of their texts
        # Characters of their keys, which are bytes for almost all: a broker bounds the keys of one message.
        self._key_size = 0
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
        instance.namespace.exclude(settings.topic)  # as in Java: one trace topic serves all namespaces
        producer_settings = ProducerSettings(send_timeout=settings.send_timeout, compress_level=COMPRESS_LEVEL)
        clocks = BrokerClocks.of_client(instance)
        inner_group = f"_INNER_TRACE_PRODUCER-{group}-{kind}-{next(_counter)}"
        sender = MessageSender(instance, inner_group, producer_settings, (clocks.on_send,))

        async def send(message: Message) -> object:
            return await sender.send(send_codec.prepare(message, instance.new_message_id(), producer_settings))

        return cls(send, settings, instance.clock, clocks, group)

    @property
    def spilled(self) -> int:
        """Number of records that wait in the spill file."""
        return 0 if self._overflow is None else self._overflow.count

    @property
    def clock_offsets(self) -> dict[str, ClockOffset]:
        """Offsets of the brokers' clocks from this machine's, by address, as far as they were measured."""
        return {} if self._broker_clocks is None else self._broker_clocks.offsets

    async def __aenter__(self) -> Self:
        if self._overflow is not None:
            self._overflow.open()
            if self.spilled:
                self._on_pending()
        self._tasks.start(self._run(), "send records")
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._is_closing = True
        self._due.set()
        self._room.set()
        try:
            async with asyncio.timeout(self._settings.close_timeout):
                await self._empty.wait()
        except TimeoutError:
            self._on_late_close()
        await self._tasks.close()
        if self._broker_clocks is not None:
            await self._broker_clocks.close()
        if self._overflow is not None:
            self._overflow.close()

    def _on_late_close(self) -> None:
        self._put_sends()
        unsent, late_s = self._pending, self._settings.close_timeout
        kept = self._append_to_file(tuple(self._entries))
        self.failed += unsent - kept
        self._entries.clear()
        self._pending = 0
        if unsent > kept:
            log.warning("%d trace records are lost: not sent within %g s of closing", unsent - kept, late_s)
        if self.spilled:
            log.warning(
                "%d trace records wait in %s for the next process: not sent within %g s of closing",
                self.spilled,
                self._settings.spill_dir,
                late_s,
            )

    # --- hooks ---

    def take_sends(self) -> Awaitable[None] | None:
        """Queue the records of `sends`. Return as `record` does."""
        self._note_publish(
            events_of_stored(self.sends[0], self._group, self._settings.topic) if not self._entries else ()
        )
        waiting = self._add(*self._encode_sends())
        self._update_sends_max()
        return waiting

    def on_send(self, event: SendEvent) -> Awaitable[None] | None:
        """Queue the records of a send."""
        return self.record(events_of_send(event, self._settings.topic))

    def on_transaction_end(self, event: TransactionEnd) -> Awaitable[None] | None:
        """Queue the record of the end of a transaction."""
        return self.record(events_of_transaction_end(event, self._settings.topic))

    async def on_recall(self, sent: SendResult, *, is_success: bool) -> None:
        """Queue the record of a recall that the broker has just accepted or refused. Waits as `record` says."""
        answered_ms = self._clock.now_ms()
        events = events_of_recall(sent, self._group, answered_ms, is_success, self._settings.topic)
        if (waiting := self.record(events)) is not None:
            await waiting

    def on_consume(self, event: ConsumeStarted | ConsumeFinished) -> Awaitable[None] | None:
        """Queue the records of a listener call."""
        return self.record(events_of_consume(event))

    def record(self, events: Sequence[TraceEvent]) -> Awaitable[None] | None:
        """Queue records.

        Returns:
            None, or an awaitable that waits for room if the queue is full and `when_full` is "block".
        """
        self._note_publish(events)
        return self._add(list(map(trace_codec.encode, events)), list(map(keys_text, events)))

    def _note_publish(self, events: Sequence[TraceEvent]) -> None:
        """Let the first of several sends be a sample of its broker's clock."""
        if self._broker_clocks is not None and not self._entries and events and isinstance(events[0], PublishEvent):
            self._broker_clocks.on_publish(events[0])

    def _encode_sends(self) -> tuple[list[str], list[str]]:
        sends, self.sends = self.sends, []
        return texts_of_stored(sends, self._group, self._settings.topic)

    def _add(self, texts: Sequence[str], keys: Sequence[str]) -> Awaitable[None] | None:
        """Queue records with the keys of each, as far as there is room."""
        room = max(self._queue_max - self._pending - len(self.sends), 0)
        if len(texts) <= room:
            self._put_all(texts, keys)
            return None
        self._put_all(texts[:room], keys[:room])
        rest = to_entries(texts[room:], keys[room:])
        if self._settings.when_full == "block" and not self._is_closing:
            return self._put_when_room(rest)
        if kept := self._append_to_file(rest):
            self._on_pending()
        if kept < len(rest):
            self._drop(len(rest) - kept)
        return None

    def _put_all(self, texts: Sequence[str], keys: Sequence[str]) -> None:
        """Queue records: the first of all alone, as it may become a sample of a broker's clock, the others as one entry.

        Records that do not fit into one message are queued one by one.
        """
        if texts and not self._entries:
            self._put(TraceEntry(texts[0].encode(), keys[0], 1))
            texts, keys = texts[1:], keys[1:]
        if not texts:
            return
        joined = TraceEntry("".join(texts).encode(), " ".join(keys), len(texts))
        if len(joined.text) <= self._body_max and len(joined.keys.encode()) < self._keys_max:
            self._put(joined)
            return
        for entry in to_entries(texts, keys):
            self._put(entry)

    def _put_sends(self) -> None:
        """Queue the records of `sends`, even if there is less room by now: they were accepted."""
        if self.sends:
            ended_s = self.sends[0][5]
            self._put_all(*self._encode_sends())
            self._oldest_s = min(self._oldest_s, ended_s)

    def _update_sends_max(self) -> None:
        """Let the first send arrive at once, further ones in groups, and each alone if the queue is full."""
        room = self._queue_max - self._pending
        self.sends_max = max(min(SENDS_MAX, room), 1) if self._pending else 1

    def _append_to_file(self, entries: Sequence[TraceEntry]) -> int:
        """Append records to the spill file, if there is one. Return how many."""
        if self._overflow is None:
            return 0
        try:
            return self._overflow.append(entries)
        except OSError as error:
            self._warn("spill", "Trace records cannot be written to %s: %s", self._settings.spill_dir, error)
            return 0

    async def _put_when_room(self, entries: Sequence[TraceEntry]) -> None:
        for number, entry in enumerate(entries):
            while self._pending + len(self.sends) >= self._queue_max and not self._is_closing:
                self._room.clear()
                await self._room.wait()
            if self._is_closing:
                self._drop(len(entries) - number)  # of one record each
                return
            self._put(entry)

    def _put(self, entry: TraceEntry) -> None:
        if not self._entries:
            self._oldest_s = self._clock.monotonic()
            self._on_pending()
        self._entries.append(entry)
        self._pending += entry.records
        self._bytes += len(entry.text)
        self._key_size += len(entry.keys) + 1
        if self._is_batch_full():
            self._due.set()

    def _on_pending(self) -> None:
        self._empty.clear()
        self._arrived.set()

    def _is_batch_full(self) -> bool:
        # Records that a small queue has no room for must not wait for those that would fill the batch.
        is_queue_full = self._pending >= self._queue_max
        return is_queue_full or self._bytes >= self._body_max or self._key_size >= self._keys_max

    def _drop(self, count: int) -> None:
        self.dropped += count
        self._warn("dropped", "Trace queue full: %d records dropped so far", self.dropped)

    # --- sending ---

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            if self.spilled:
                await self._send_spilled()
            if self._entries and (self._is_batch_full() or not self.spilled):
                await self._wait_until_due()
                await self._send_pending()
            self._put_sends()
            self._update_sends_max()
            if not self._entries and not self.spilled:
                self._arrived.clear()
                self._empty.set()

    async def _send_pending(self) -> None:
        self._put_sends()
        properties: Mapping[str, str] = {}
        entries: Iterable[TraceEntry] = self._entries
        if self._broker_clocks is not None:
            await self._broker_clocks.settle()
            if self._broker_clocks.wants_sample():
                # One record measures the offset that the message with the others carries.
                entries = itertools.islice(self._entries, 1)
            elif offsets := self._broker_clocks.text(self._oldest_s):
                properties = {clock_offset.PROPERTY: offsets}
        batch = next_batch(entries, self._body_max, self._keys_max)
        if batch.entries == len(self._entries):
            self._oldest_s = self._clock.monotonic()  # those that follow are younger
        # Records stay in the queue until the send has ended, so that closing can count the ones that were not sent.
        outcome = await self._send_batch(batch, properties)
        taken = [self._entries.popleft() for _ in range(min(batch.entries, len(self._entries)))]
        records = sum([entry.records for entry in taken])
        self._pending -= records
        self._bytes -= sum([len(entry.text) for entry in taken])
        self._key_size -= sum([len(entry.keys) + 1 for entry in taken])
        if outcome is not Outcome.SENT:
            kept = self._append_to_file(taken) if outcome is Outcome.FAILED else 0
            self._fail(records - kept)
        self._room.set()

    async def _send_spilled(self) -> None:
        """Send a batch of the oldest records in the file; if no broker accepts it, it stays there."""
        assert self._overflow is not None
        try:
            entries = self._overflow.oldest()
        except OSError as error:
            self._warn("spill", "Trace records cannot be read from %s: %s", self._settings.spill_dir, error)
            await self._clock.sleep(self._settings.retry_delay)
            return
        if not entries:
            return
        batch = next_batch(entries, self._body_max, self._keys_max)
        outcome = await self._send_batch(batch)
        if outcome is Outcome.REFUSED:
            self._fail(batch.records)
        if outcome is not Outcome.FAILED:
            self._overflow.discard(batch.entries)

    async def _send_batch(self, batch: TraceBatch, properties: Mapping[str, str] | None = None) -> Outcome:
        self.dropped_keys += batch.dropped_keys
        message = Message(topic=self._settings.topic, body=batch.body, keys=batch.keys, properties=properties or {})
        outcome = await self._send_with_retries(message)
        if outcome is Outcome.SENT:
            self.sent += batch.records
        return outcome

    def _fail(self, count: int) -> None:
        if count:
            self.failed += count
            self._warn("failed", "%d trace records could not be sent so far", self.failed)

    async def _wait_until_due(self) -> None:
        """Return when a whole batch is pending, the oldest record is `flush_interval` old, or the client closes."""
        if self._is_closing or self._is_batch_full():
            return
        self._due.clear()
        remaining_s = self._oldest_s + self._settings.flush_interval - self._clock.monotonic()
        try:
            async with asyncio.timeout(max(remaining_s, 0)):
                await self._due.wait()
        except TimeoutError:
            return

    async def _send_with_retries(self, message: Message) -> Outcome:
        for _ in range(1 + self._settings.retries):
            try:
                await self._send(message)
            except MessageRefused as error:
                self._warn("error", "Trace records cannot be sent: %s", error)
                return Outcome.REFUSED
            except ArianeError as error:
                self._warn("error", "Could not send trace records, retrying: %s", error)
                await self._clock.sleep(self._settings.retry_delay)
            else:
                return Outcome.SENT
        return Outcome.FAILED

    def _warn(self, kind: str, text: str, *facts: object) -> None:
        """Log a warning, at most one of its kind per minute."""
        now = self._clock.monotonic()
        if now - self._last_warning.get(kind, -WARNING_INTERVAL_S) >= WARNING_INTERVAL_S:
            self._last_warning[kind] = now
            log.warning(text, *facts)
