"""Delayed messages for operators: lists those that are pending, and cancels one. [no counterpart in Java's tools]

    SCHEDULE_TOPIC_XXXX, queue = level - 1    from the position of the level (45) on; due at store time + delay of the level (26)
    rmq_sys_wheel_timer, queue 0              entries (321) with a later due time, without those cancelled in queue 1
    cancel ─→ RECALL_MESSAGE (370)            of Ariane and Apache 5.x; a message of a level cannot be cancelled
           └→ trace topic                     a Recall record, if the send of the message is traced

Only pending messages are fetched: the entries of a queue have the due times of its messages.
"""

from __future__ import annotations

import asyncio
import heapq
import re
from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

import msgspec

from ariane.clock import SYSTEM_CLOCK
from ariane.cluster.connection import BrokerServer, BrokerUnavailable, Change
from ariane.cluster.messages.message_query import MessageOperations, to_message
from ariane.cluster.messages.message_sending import MessageSendOperations
from ariane.cluster.messages.queue_reading import QueueServer
from ariane.errors import ArianeError, ProtocolError, ReplyError, RouteNotFound
from ariane.model import ids
from ariane.model.message import (
    COMPRESSED,
    COMPRESSION_MASK,
    REAL_TOPIC,
    TIMER_OUT_MS,
    UNIQ_KEY,
    Message,
    MessageQueue,
    ReceivedMessage,
    parse_ms,
)
from ariane.model.topic import SCHEDULE_TOPIC, TIMER_TOPIC, TRACE_TOPIC
from ariane.model.trace_event import PublishEvent, RecallEvent
from ariane.protocol import fastjson, java_properties, trace_codec
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.records import record
from ariane.protocol.requests.admin import DelayOffsetTable
from ariane.protocol.requests.brokers import QueueEntries, QueueEntry
from ariane.protocol.requests.messaging import QueryConsumeQueue, RecallMessage, ViewMessage
from ariane.protocol.requests.routing import KvTableBody

TIMER_QUEUE, CANCEL_QUEUE = 0, 1  # queues of the timer topic
ENTRIES = 1_000  # entries per request; a broker may return fewer
LIMIT = 1_000
AT_ONCE = 32  # requests for single messages in flight to one broker
DUE_MIN_MS = 10**12  # a smaller tags code is not a time of this century, but the hash of a tag
UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class DelayedMessage(msgspec.Struct, frozen=True):
    """A pending delayed message.

    Attributes:
        due_ms: When the broker delivers it, ms since the epoch by its clock.
        topic: Topic to which it is delivered; the retry topic of a group for a redelivery.
        level: Delay level, from 1; None for a message with a delivery time.
        message: The message as it is stored until then; in a list without its body, because messages can be large.
    """

    due_ms: int
    topic: str
    level: int | None
    message: ReceivedMessage


class DelayedResult(NamedTuple):
    """Pending delayed messages, the first due first.

    Attributes:
        messages: The messages.
        is_truncated: Whether more are pending than the limit.
        unavailable: Brokers that did not respond.
    """

    messages: list[DelayedMessage]
    is_truncated: bool = False
    unavailable: tuple[BrokerUnavailable, ...] = ()


class DelayedFilter(NamedTuple):
    """Selection of delayed messages: due at a time or earlier, and of one topic; None: all."""

    due_until_ms: int | None = None
    topic: str | None = None

    def accepts(self, delayed: DelayedMessage) -> bool:
        """Return whether a message belongs to the selection."""
        return self.accepts_time(delayed.due_ms) and self.topic in (None, delayed.topic)

    def accepts_time(self, due_ms: int) -> bool:
        """Return whether a due time belongs to the selection."""
        return self.due_until_ms is None or due_ms <= self.due_until_ms


class DelayedOperations(MessageOperations, MessageSendOperations):
    """Operations on delayed messages."""

    async def list_delayed(self, selection: DelayedFilter | None = None, *, limit: int = LIMIT) -> DelayedResult:
        """Return the pending delayed messages of all masters.

        A timer that is due is not listed, because its entry stays after the delivery. The messages have no bodies.

        Args:
            selection: Which messages; None: all.
            limit: Maximum number of messages.

        Raises:
            ServerUnavailable: no master is registered.
        """
        wanted = selection or DelayedFilter()

        async def read(server: BrokerServer) -> list[DelayedMessage]:
            first: list[DelayedMessage] = []
            async for delayed in self._pending_of_levels(server, wanted, limit + 1):
                first.append(delayed)
                # Each level may yield as many as the limit: only the first due of all levels stay in memory.
                if len(first) > 2 * (limit + 1):
                    first = _first_due(first, limit + 1)
            return first + await self._pending_timers(server, wanted, limit + 1)

        answers = await self.ask_all(await self.select_brokers(), read)
        messages = [delayed for _, some in answers.values for delayed in some]
        first = _first_due(messages, limit + 1)
        return DelayedResult(first[:limit], len(first) > limit, answers.unavailable)

    async def find_delayed(self, message_id: str) -> DelayedMessage:
        """Return the pending delayed message with a unique key or offset id.

        Raises:
            NotFound: no pending delayed message has this id: it was delivered or cancelled, or never existed.
        """
        matches = await self.find_messages(message_id, pending_only=True)
        for message in matches.messages:
            server = await self._master_of(message)
            delayed = await self._describe(server, message)
            if delayed is not None and await self._is_pending(server, delayed):
                return delayed
        raise matches.not_found("pending delayed message", message_id)

    async def cancel_delayed(self, message_id: str, *, trace_topic: str = TRACE_TOPIC) -> DelayedMessage:
        """Cancel a pending message with a delivery time, and return it.

        If its send is in the trace topic, a record of the recall is added. `notes` has the reason if that fails.

        Raises:
            NotFound: no pending delayed message has this id.
            ArianeError: it has a delay level, or its broker does not support cancelling.
            ReplyError: the broker rejected the request, for example because the message was delivered meanwhile.
        """
        delayed = await self.find_delayed(message_id)
        message = delayed.message
        server = await self._master_of(message)
        if delayed.level is not None:
            raise ArianeError(
                f"message {message_id} has delay level {delayed.level} and cannot be cancelled: only messages with a delivery"
                f" time can be ({server.broker} runs {await self._version(server)})"
            )
        key = message.properties.get(UNIQ_KEY)
        handle = message.offset_message_id
        if key:
            handle = ids.recall_handle(delayed.topic, server.broker, delayed.due_ms, key)
        header = RecallMessage(handle, delayed.topic)
        summary = f"cancel delayed message {message.message_id} of topic {delayed.topic}"
        try:
            await self.change(Change(server.addr, summary, RequestCode.RECALL_MESSAGE, header))
        except ReplyError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            raise ArianeError(
                f"{server.broker} {server.addr} runs {await self._version(server)}, which does not support"
                " RECALL_MESSAGE (370): delayed messages can be cancelled on Ariane and Apache RocketMQ 5.3.2 or later"
            ) from None
        if not self.is_dry_run:
            await self._trace_cancel(message.message_id, trace_topic)
        return delayed

    async def _trace_cancel(self, message_id: str, trace_topic: str) -> None:
        """Write the record that the producer of a traced message would have written if it had recalled the message."""
        try:
            carriers = (await self.query_by_key(trace_topic, message_id)).messages
            events = [event for carrier in carriers for event in trace_codec.decode(carrier.body)[0]]
            sends = [event for event in events if isinstance(event, PublishEvent) and event.message_id == message_id]
            if not sends:
                return
            recall = RecallEvent(
                timestamp_ms=SYSTEM_CLOCK.now_ms(),
                region=sends[0].region,
                group=sends[0].group,
                topic=sends[0].topic,
                message_id=message_id,
                success=True,
            )
            body, keys = trace_codec.encode(recall).encode(), trace_codec.keys(recall)
            async with self.open_producer() as producer:
                await producer.send(Message(topic=trace_topic, body=body, keys=keys))
        except RouteNotFound:
            return  # the cluster has no traces
        except ArianeError as error:
            self.notes.append(f"Could not trace the cancellation of {message_id}: {error}")

    # --- levels ---

    async def _pending_of_levels(
        self, server: BrokerServer, wanted: DelayedFilter, limit: int
    ) -> AsyncIterator[DelayedMessage]:
        delays_ms = await self._level_delays(server)
        for level, position in sorted((await self._positions(server)).items()):
            at = QueueServer(MessageQueue(SCHEDULE_TOPIC, server.broker, level - 1), server)
            first, stop = await self.queue_bounds(at)
            count, is_due_later = 0, False
            async for page in self.read_queue(at, max(first, position), stop):
                for stored in page.records:
                    delayed = _of_level(to_message(_without_body(stored), server.broker), delays_ms)
                    is_due_later |= delayed is not None and not wanted.accepts_time(delayed.due_ms)
                    if delayed is not None and wanted.accepts(delayed):
                        count += 1
                        yield delayed
                # A level delivers in order: those after the first one that is due too late are due even later.
                if is_due_later or count >= limit:
                    break

    async def _positions(self, server: BrokerServer) -> dict[int, int]:
        """Return the next offset of each level whose queue was used."""
        answer = await self.request(server.addr, RequestCode.GET_ALL_DELAY_OFFSET)
        positions = fastjson.decode(answer.body, DelayOffsetTable).offset_table if answer.body else {}
        return {level: positions.get(level, 0) for level in range(1, len(await self._level_delays(server)) + 1)}

    async def _level_delays(self, server: BrokerServer) -> list[int]:
        answer = await self.request(server.addr, RequestCode.GET_BROKER_CONFIG)
        text = java_properties.parse_body(answer.body).get("messageDelayLevel", "")
        return [int(number) * UNITS_MS[unit] for number, unit in re.findall(r"(\d+)([smhd])", text)]

    # --- timers ---

    async def _pending_timers(self, server: BrokerServer, wanted: DelayedFilter, limit: int) -> list[DelayedMessage]:
        if not await self._has_timers(server):
            return []
        cancelled = {entry.tags_code async for _, entry in self._entries(server, CANCEL_QUEUE)}
        now_ms = SYSTEM_CLOCK.now_ms()
        # A moved timer has two entries while the older file still exists: the later one counts.
        pending = []
        async for number, entry in self._entries(server, TIMER_QUEUE):
            if entry.tags_code < DUE_MIN_MS:
                raise ProtocolError(f"{TIMER_TOPIC} has entries without due times (Apache 5.x), which cannot be listed")
            if entry.tags_code > now_ms and number not in cancelled and wanted.accepts_time(entry.tags_code):
                pending.append((entry.tags_code, number, entry.physic_offset))
        delayed_by_id: dict[str, DelayedMessage] = {}
        pending.sort()
        # In pages, because reading one message after another takes a round trip each.
        for page in (pending[start : start + AT_ONCE] for start in range(0, len(pending), AT_ONCE)):
            messages = await asyncio.gather(*(self._view(server, offset) for _, _, offset in page))
            for (due_ms, _, _), message in zip(page, messages, strict=True):
                if message is None:
                    continue  # its file was removed after the timer was moved to the end of the log
                delayed = DelayedMessage(due_ms, message.properties.get(REAL_TOPIC, ""), None, message)
                if wanted.accepts(delayed):
                    delayed_by_id[message.message_id] = delayed
            if len(delayed_by_id) >= limit:
                break
        return list(delayed_by_id.values())

    async def _view(self, server: BrokerServer, offset: int) -> ReceivedMessage | None:
        """Return the message at a position of the commit log without its body; None if it was deleted."""
        answer = await self.peers.request(
            server.addr, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(offset), timeout_ms=self.timeout_ms
        )
        if answer.code != ResponseCode.SUCCESS:
            return None
        return to_message(_without_body(record.decode(answer.body)), server.broker)

    async def _entries(self, server: BrokerServer, queue_id: int) -> AsyncIterator[tuple[int, QueueEntry]]:
        """Yield the entries of a queue of the timer topic with their numbers."""
        at = QueueServer(MessageQueue(TIMER_TOPIC, server.broker, queue_id), server)
        first, stop = await self.queue_bounds(at)
        number = max(first, 0)
        while number < stop:
            header = QueryConsumeQueue(TIMER_TOPIC, queue_id, number, min(ENTRIES, stop - number))
            answer = await self.request(server.addr, RequestCode.QUERY_CONSUME_QUEUE, header)
            entries = fastjson.decode(answer.body, QueueEntries).queue_data if answer.body else ()
            if not entries:
                return
            for entry in entries:
                yield number, entry
                number += 1

    async def _has_timers(self, server: BrokerServer) -> bool:
        return TIMER_TOPIC in (await self._fetch_topics(server)).topic_config_table

    # --- one message ---

    async def _describe(self, server: BrokerServer, message: ReceivedMessage) -> DelayedMessage | None:
        if message.queue.topic == SCHEDULE_TOPIC:
            return _of_level(message, await self._level_delays(server))
        due_ms = parse_ms(message.properties.get(TIMER_OUT_MS, ""))
        if message.queue.topic != TIMER_TOPIC or due_ms is None:
            return None
        return DelayedMessage(due_ms, message.properties.get(REAL_TOPIC, ""), None, message)

    async def _is_pending(self, server: BrokerServer, delayed: DelayedMessage) -> bool:
        number = delayed.message.queue_offset
        if delayed.level is not None:
            return number >= (await self._positions(server)).get(delayed.level, 0)
        if delayed.due_ms <= SYSTEM_CLOCK.now_ms():
            return False
        return number not in {entry.tags_code async for _, entry in self._entries(server, CANCEL_QUEUE)}

    async def _master_of(self, message: ReceivedMessage) -> BrokerServer:
        (server,) = await self.select_brokers(broker=message.queue.broker)
        return server

    async def _version(self, server: BrokerServer) -> str:
        answer = await self.request(server.addr, RequestCode.GET_BROKER_RUNTIME_INFO)
        return fastjson.decode(answer.body, KvTableBody).table.get("brokerVersionDesc", "an unknown version")


def _of_level(message: ReceivedMessage, delays_ms: list[int]) -> DelayedMessage | None:
    level = message.queue.queue_id + 1
    if level > len(delays_ms):
        return None
    topic = message.properties.get(REAL_TOPIC, "")
    return DelayedMessage(message.store_ms + delays_ms[level - 1], topic, level, message)


def _first_due(messages: Iterable[DelayedMessage], count: int) -> list[DelayedMessage]:
    return heapq.nsmallest(count, messages, key=lambda delayed: (delayed.due_ms, delayed.message.message_id))


def _without_body(stored: record.Record) -> record.Record:
    """Return a record without its body, which would be decompressed: a small body may expand to megabytes."""
    return msgspec.structs.replace(stored, body=b"", sys_flag=stored.sys_flag & ~(COMPRESSED | COMPRESSION_MASK))
