"""Resends messages of an archive, of a dead-letter topic, or of any other topic.

    originals ─→ chunk ─→ journal: "sending", with new ids ─→ Producer ─→ journal: outcome of each ─→ result
                   ↑ rate limit

A message is sent with its body, keys, tag, flag and the application's properties, under a new unique id, and with a property
for its source (`REPLAYED_FROM`). Properties of brokers and clients are removed (`DROPPED_PROPERTIES`): it is delivered
immediately, in no transaction, as a first attempt. Messages with a sharding key are sent to that key's queue, in order: if one
of them fails, the later ones of its key are not sent.

At least once: the new id is in the journal before the message is sent, so a replay that is killed, or gets no response, sends
it again with the same id. The message may then be stored twice; consumers can detect that by the id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.send_types import SendResult
from ariane.client.producer import Producer
from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.errors import (
    ArianeError,
    ConfigError,
    MessageRefused,
    RouteNotFound,
)
from ariane.model import message as names
from ariane.model.message import COMPRESSED, RESERVED, Message
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX, topic_name_fault
from ariane.net.pools.name_servers import NameServerClient
from ariane.protocol.client_rules.transient import UNAVAILABLE

REPLAYED_FROM = "REPLAYED_FROM"  # topic, broker, queue id, queue offset and message id, joined by "/"
SHARDING_KEY = "__SHARDINGKEY"
RATE = 500.0  # messages a second
CHUNK_MAX = 64  # messages in flight
CHUNK_S = 0.1  # a chunk contains at most the messages that the rate allows in this time

# Properties that describe the history of the original record. KEYS and TAGS are separate fields of a message.
DROPPED_PROPERTIES = RESERVED | {
    names.CHECK_IMMUNITY_TIME,
    names.PREPARED_QUEUE_OFFSET,
    names.CHECK_TIMES,
    names.START_DELIVER_TIME,
    names.TIMER_DELIVER_MS,
    names.TIMER_DELAY_MS,
    names.TIMER_DELAY_SEC,
    names.TIMER_DEL_UNIQKEY,
    names.TIMER_OUT_MS,
    names.TIMER_CANCELS,
    "__transactionId__",
    "DLQ_ORIGIN_TOPIC",  # of 5.x
    "DLQ_ORIGIN_MESSAGE_ID",
    REPLAYED_FROM,
}


class RecordId(NamedTuple):
    """The position of a record, which identifies it."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int


class OriginalMessage(NamedTuple):
    """A message to resend."""

    record_id: RecordId  # identifies the record, so that a replay that continues skips it
    message_id: str  # its unique id; the copy gets a new one
    properties: Mapping[str, str]  # all stored properties; those of the broker are dropped
    body: bytes  # as stored, possibly compressed
    flag: int  # the application's, passed on unchanged
    sys_flag: int  # says how the body is compressed


class ReplayOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a message: a row of the result."""

    source_topic: str  # where the original is stored: a dead-letter topic, or the topic of the archive
    source_broker: str  # part of the original's identity
    source_queue_id: int  # part of the original's identity
    source_queue_offset: int  # part of the original's identity
    source_message_id: str  # unique id of the original
    state: str
    """ok; failed; unsent: the replay ended earlier; sending: the replay was killed before the response."""
    error: str | None = None  # why it failed or was not sent; None for ok and sending
    at_ms: int
    """Time of the outcome by the local clock, ms since the epoch."""
    topic: str | None = None  # of the copy; None if the message was refused before
    message_id: str | None = None
    """The new unique id; retries reuse it."""
    broker: str | None = None  # that stored the copy, as the next three; None if none did
    queue_id: int | None = None  # of the copy
    queue_offset: int | None = None  # of the copy
    offset_message_id: str | None = None  # of the copy

    @property
    def record_id(self) -> RecordId:
        """The position of the original."""
        return RecordId(self.source_topic, self.source_broker, self.source_queue_id, self.source_queue_offset)


class ReplayResult(NamedTuple):
    """Numbers of messages; `already_sent` counts those sent by an earlier replay with the same result file."""

    ok: int
    failed: int
    unsent: int
    already_sent: int
    stop_reason: str | None = None
    """Why the replay ended early; None if it did not."""


class ReplayJournal(Protocol):
    """Storage of outcomes (`ariane.reports.replay.replay_result`)."""

    def is_sent(self, place: RecordId) -> bool:
        """Return whether the message was sent successfully."""
        ...

    def message_id_of(self, place: RecordId) -> str | None:
        """Return the unique id of an earlier attempt; None without one."""
        ...

    def write(self, outcomes: list[ReplayOutcome]) -> None:
        """Store outcomes durably: they survive a kill of the process. Blocks, and is called in a thread."""
        ...


class ReplayTarget(Protocol):
    """Target of a replay (`ProducerTarget`)."""

    def make_id(self) -> str:
        """Return a new unique id."""
        ...

    async def topic_fault(self, topic: str) -> str | None:
        """Return why nothing can be sent to a topic; None if it can."""
        ...

    async def send(self, message: Message, order_key: str | None) -> SendResult:
        """Send a message; those with the same order key go to one queue."""
        ...


class ReplayPace:
    """Limits the rate evenly to `rate` messages per second; unused time does not accumulate."""

    def __init__(self, rate: float, clock: Clock = SYSTEM_CLOCK) -> None:
        if not rate > 0:
            raise ConfigError("--rate", rate, "expected more than 0 messages per second, for example 500/s")
        self._rate = rate
        self._clock = clock
        self._next_s = clock.monotonic()

    @property
    def chunk_size(self) -> int:
        """Number of messages sent together."""
        return max(1, min(CHUNK_MAX, int(self._rate * CHUNK_S)))

    async def wait(self, count: int) -> None:
        """Wait until `count` more messages may be sent."""
        now_s = self._clock.monotonic()
        if self._next_s > now_s:
            await self._clock.sleep(self._next_s - now_s)
        self._next_s = max(self._next_s, now_s) + count / self._rate


def build_message(original: OriginalMessage, topic: str | None, message_id: str) -> Message:
    """Return the message to send to `topic`, or to its original topic.

    Raises:
        MessageRefused: it cannot be sent.
    """
    if original.sys_flag & COMPRESSED:
        raise MessageRefused("the body cannot be decompressed")
    properties = original.properties
    forwarded = {name: value for name, value in properties.items() if name not in DROPPED_PROPERTIES and value}
    forwarded[REPLAYED_FROM] = "/".join(map(str, (*original.record_id, original.message_id)))
    return Message(
        topic=topic or original_topic(original),
        body=original.body,
        tags=properties.get(names.TAGS, ""),
        keys=tuple(properties.get(names.KEYS, "").split()),
        properties=forwarded,
        flag=original.flag,
        message_id=message_id,
    )


def original_topic(original: OriginalMessage) -> str:
    """Return the topic to which a dead letter or a retried message was first sent.

    Raises:
        MessageRefused: the message does not contain it.
    """
    if not original.record_id.topic.startswith((DLQ_PREFIX, RETRY_PREFIX)):
        raise MessageRefused(
            f"cannot determine the original topic of this message (stored in {original.record_id.topic}); specify a target topic"
        )
    first = original.properties.get(names.RETRY_TOPIC) or original.properties.get("DLQ_ORIGIN_TOPIC")
    if not first:
        raise MessageRefused(
            "cannot determine the original topic of this message (no RETRY_TOPIC); specify a target topic"
        )
    return first


async def replay(
    originals: AsyncIterator[OriginalMessage],
    target: ReplayTarget,
    journal: ReplayJournal,
    *,
    topic: str | None = None,
    pace: ReplayPace,
    clock: Clock = SYSTEM_CLOCK,
    stop: asyncio.Event | None = None,
    on_progress: Callable[[ReplayResult], None] = lambda _: None,
) -> ReplayResult:
    """Send all messages that the journal does not contain as sent, to `topic` or to the original topic of each.

    If servers become unavailable, or `stop` is set, the remaining messages are recorded as unsent.

    Raises:
        ConfigError: `topic` does not exist.
    """
    if topic is not None and (fault := await target.topic_fault(topic)):
        raise ConfigError("--topic", topic, fault)
    sending = _ChunkSender(target, journal, topic, clock)
    done = ReplayResult(0, 0, 0, 0)
    async for chunk in _chunks(originals, pace.chunk_size):
        due = [original for original in chunk if not journal.is_sent(original.record_id)]
        done = done._replace(already_sent=done.already_sent + len(chunk) - len(due))
        if due and done.stop_reason is None and stop is not None and stop.is_set():
            done = done._replace(stop_reason="stopped")
        if done.stop_reason is not None:
            await _write(journal, [sending.outcome(original, "unsent", error=done.stop_reason) for original in due])
            done = done._replace(unsent=done.unsent + len(due))
        elif due:
            await pace.wait(len(due))
            outcomes, why = await sending.send(due)
            ok = sum(outcome.state == "ok" for outcome in outcomes)
            done = done._replace(ok=done.ok + ok, failed=done.failed + len(due) - ok, stop_reason=why)
        on_progress(done)
    return done


async def _write(journal: ReplayJournal, outcomes: list[ReplayOutcome]) -> None:
    """Store outcomes in a thread: a write waits for the disk, and the event loop serves other tasks meanwhile."""
    writing = asyncio.ensure_future(asyncio.to_thread(journal.write, outcomes))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        # The caller closes the journal next.
        await asyncio.wait([writing])
        raise


async def _chunks(originals: AsyncIterator[OriginalMessage], size: int) -> AsyncIterator[list[OriginalMessage]]:
    chunk: list[OriginalMessage] = []
    async for original in originals:
        chunk.append(original)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


class _ChunkSender:
    """Sends chunks and records the outcome of each message."""

    def __init__(self, target: ReplayTarget, journal: ReplayJournal, topic: str | None, clock: Clock) -> None:
        self._target = target  # sends messages, and knows whether a topic accepts them
        self._journal = journal  # outcomes on disk, written before and after each send
        self._topic = topic  # of all copies; None: each goes to the original's topic
        self._clock = clock
        self._faults: dict[str, str | None] = {}  # topic -> why it accepts no message, or None; asked once per topic
        self._broken: set[tuple[str, str]] = set()  # topic and sharding key with a failed message

    async def send(self, chunk: list[OriginalMessage]) -> tuple[list[ReplayOutcome], str | None]:
        """Send a chunk. Return the recorded outcomes, and the reason to stop if servers are unavailable."""
        ready: list[tuple[OriginalMessage, Message]] = []
        outcomes: list[ReplayOutcome] = []
        for original in chunk:
            try:
                message = build_message(
                    original, self._topic, self._journal.message_id_of(original.record_id) or self._target.make_id()
                )
                if fault := await self._fault(message.topic):
                    raise MessageRefused(f"{message.topic}: {fault}")
            except MessageRefused as error:
                outcomes.append(self.outcome(original, "failed", error=str(error)))
            except UNAVAILABLE as error:
                outcomes.append(self.outcome(original, "unsent", error=str(error)))
            else:
                ready.append((original, message))
        await _write(self._journal, [self.outcome(original, "sending", message) for original, message in ready])
        # Messages of one key are sent sequentially, all others concurrently.
        by_key: dict[object, list[tuple[OriginalMessage, Message]]] = {}
        for number, (original, message) in enumerate(ready):
            key = message.properties.get(SHARDING_KEY)
            by_key.setdefault(number if key is None else (message.topic, key), []).append((original, message))
        errors: list[ArianeError] = []
        for some in await asyncio.gather(*(self._send_in_order(those, errors) for those in by_key.values())):
            outcomes += some
        await _write(self._journal, outcomes)
        away = [outcome.error for outcome in outcomes if outcome.state == "unsent"] + [
            str(error) for error in errors if isinstance(error, UNAVAILABLE)
        ]
        is_over = not any(outcome.state == "ok" for outcome in outcomes) and all(
            isinstance(error, UNAVAILABLE) for error in errors
        )
        return outcomes, away[0] if away and is_over else None

    async def _send_in_order(
        self, those: list[tuple[OriginalMessage, Message]], errors: list[ArianeError]
    ) -> list[ReplayOutcome]:
        outcomes = []
        for original, message in those:
            key = message.properties.get(SHARDING_KEY)
            if key is not None and (message.topic, key) in self._broken:
                outcomes.append(
                    self.outcome(original, "failed", message, error=f"an earlier message of key {key} was not sent")
                )
                continue
            try:
                result = await self._target.send(message, key)
            except ArianeError as error:
                if key is not None:
                    self._broken.add((message.topic, key))
                errors.append(error)
                outcomes.append(self.outcome(original, "failed", message, error=str(error)))
            else:
                outcomes.append(self.outcome(original, "ok", message, result))
        return outcomes

    async def _fault(self, topic: str) -> str | None:
        if topic not in self._faults:
            self._faults[topic] = await self._target.topic_fault(topic)
        return self._faults[topic]

    def outcome(
        self,
        original: OriginalMessage,
        state: str,
        message: Message | None = None,
        result: SendResult | None = None,
        error: str | None = None,
    ) -> ReplayOutcome:
        return ReplayOutcome(
            source_topic=original.record_id.topic,
            source_broker=original.record_id.broker,
            source_queue_id=original.record_id.queue_id,
            source_queue_offset=original.record_id.queue_offset,
            source_message_id=original.message_id,
            state=state,
            error=error,
            at_ms=self._clock.now_ms(),
            topic=self._topic if message is None else message.topic,
            # A message that may have been sent is retried under the same id.
            message_id=self._journal.message_id_of(original.record_id) if message is None else message.message_id,
            broker=result.queue.broker if result else None,
            queue_id=result.queue.queue_id if result else None,
            queue_offset=result.queue_offset if result else None,
            offset_message_id=result.offset_message_id if result else None,
        )


class ProducerTarget:
    """A cluster, accessed through a producer that shares `instance`."""

    def __init__(self, instance: ClientInstance, producer: Producer) -> None:
        self._instance = instance
        self._producer = producer

    def make_id(self) -> str:
        return self._instance.new_message_id()

    async def topic_fault(self, topic: str) -> str | None:
        """Return why nothing can be sent to a topic.

        A missing topic is a fault: brokers would create it with default settings because of a typing error.
        """
        if reason := topic_name_fault(topic):
            return reason
        try:
            await NameServerClient(self._instance.peers, self._instance.name_servers).fetch_route(topic)
        except RouteNotFound:
            return "topic does not exist; create it first"
        return None

    async def send(self, message: Message, order_key: str | None) -> SendResult:
        return await self._producer.send(message, order_key=order_key)
