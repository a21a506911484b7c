"""Trace records of what clients do with messages, by the server's clock: the layouts that traced clients write.

    stored, refused ──────────▶ Pub                 committed, rolled back ─▶ EndTransaction    recalled ─▶ Recall
    delivered ────────────────▶ SubBefore ┬ acknowledged ─────────────────▶ SubAfter, success
                                          ├ returned, dead letter ────────▶ SubAfter, failed
                                          └ its invisible time has ended ─▶ SubAfter, time-out; acknowledged after all: one more

Deliveries that have not ended are known until a restart; the end of one from before it has no record.
"""

from __future__ import annotations

import heapq
import itertools
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ariane.kernels.grpc_port import TraceFields, TraceRecords
from ariane.model import ids
from ariane.model import message as names
from ariane.model.topic_attributes import TopicMessageType, message_type
from ariane.model.trace_event import (
    ConsumeEndEvent,
    ConsumeStartEvent,
    EndTransactionEvent,
    MessageType,
    PublishEvent,
    RecallEvent,
)
from ariane.net.replies import Peer
from ariane.protocol.records.record import Record
from ariane.protocol.requests.messaging import (
    COMMIT,
    ROLLBACK,
    EndTransactionHeader,
    SendMessage,
    SendMessageResponse,
)
from ariane.protocol.trace_batches import TraceEntry
from ariane.proxy.conversion.receipt_handles import DeliveryKey
from ariane.proxy.traces import open_deliveries
from ariane.proxy.traces.open_deliveries import LATE_BYTES_MAX, LATE_MAX, DeliveryTable, TracedDelivery
from ariane.proxy.traces.trace_writer import TraceWriter

SUCCESS, TIME_OUT, FAILED = 0, 1, 4  # codes of SubAfter
STATES = {COMMIT: "COMMIT_MESSAGE", ROLLBACK: "ROLLBACK_MESSAGE"}
UNDECIDED = "UNKNOW"  # spelled like this in 4.9.4
TYPES = {TopicMessageType.TRANSACTION: MessageType.HALF, TopicMessageType.DELAY: MessageType.DELAY}


class TraceSource(NamedTuple):
    """What all records of a server contain."""

    broker_addr: str
    """Of the only broker; empty: the ids of stored messages name theirs."""
    trace_topic: str
    region: str


class TracedSend(NamedTuple):
    """A send that has started."""

    client: Peer
    request: SendMessage
    properties: Mapping[str, str]
    body_bytes: int
    started_ms: int


class DeliveredMessage(NamedTuple):
    """What traces contain of a message that is delivered."""

    message_id: str
    keys: str
    reconsume_times: int
    is_traced: bool
    """Unless its producer has turned traces off."""

    @classmethod
    def of(cls, item: Record) -> DeliveredMessage:
        """Return the message of a record."""
        properties = item.property_map()
        return cls(
            properties.get(names.UNIQ_KEY) or ids.offset_message_id(item.store_host, item.offset),
            properties.get(names.KEYS, ""),
            item.reconsume_times,
            properties.get(names.TRACE_ON) != "false",
        )


class MessageTraces:
    """Writes the records of clients.

    Args:
        writer: Stores them.
        source: Of the server.
        is_on: Returns whether records are written now.
        now_ms: The clock of the broker.
    """

    def __init__(
        self, *, writer: TraceWriter, source: TraceSource, is_on: Callable[[], bool], now_ms: Callable[[], int]
    ) -> None:
        self.untracked = 0
        """Number of deliveries without records: as many or as large ones as are awaited had not ended."""
        self._writer = writer
        self._source = source
        self._is_on = is_on
        self._now_ms = now_ms
        self._open = DeliveryTable()
        self._late = DeliveryTable()  # ended by time, and not delivered again yet
        self._due: list[
            tuple[int, DeliveryKey]
        ] = []  # heap of (visible_ms, key); those that `_open` contradicts are obsolete
        self._request_ids = (f"{secrets.token_hex(8)}{number:016X}" for number in itertools.count())

    # --- producers ---

    def sent(self, send: TracedSend, stored: SendMessageResponse | None) -> None:
        """Note the end of a send. `stored` is None if the broker has refused it."""
        client, request, properties, body_bytes, started_ms = send
        if not self._is_traced(request.topic):
            return
        event = PublishEvent(
            timestamp_ms=started_ms,
            region=self._source.region,
            group=request.producer_group,
            topic=request.topic,
            message_id=properties.get(names.UNIQ_KEY) or ("" if stored is None else stored.message_id),
            tags=properties.get(names.TAGS, ""),
            keys=properties.get(names.KEYS, ""),
            store_host=self._store_host(stored),
            body_length=body_bytes,
            cost_ms=max(0, self._now_ms() - started_ms),
            message_type=TYPES.get(message_type(properties), MessageType.NORMAL),
            offset_message_id="" if stored is None else stored.message_id,
            success=stored is not None,
        )
        self._writer.add(client, event)

    def is_own(self, topic: str) -> bool:
        """Return whether messages of a topic have no records because they carry records."""
        return topic.startswith(self._source.trace_topic)

    def plain_fields(self, started_ms: int) -> TraceFields | None:
        """Return what the records of plain sends contain that end now; None if none are written."""
        if not self._is_on():
            return None
        return self._source.region, self._source.broker_addr, started_ms, max(0, self._now_ms() - started_ms)

    def sent_plain(self, client: Peer, records: Iterable[TraceRecords]) -> None:
        """Note the end of plain sends, whose records the kernels have encoded."""
        for entry in records:
            self._writer.add_entry(client, TraceEntry(*entry))

    def decided(self, client: Peer, topic: str, request: EndTransactionHeader) -> None:
        """Note the decision about a half message."""
        if not self._is_traced(topic):
            return
        event = EndTransactionEvent(
            timestamp_ms=self._now_ms(),
            region=self._source.region,
            group=request.producer_group,
            topic=topic,
            message_id=request.msg_id or "",
            tags="",
            keys="",
            store_host=self._source.broker_addr,
            message_type=MessageType.COMMIT,
            transaction_id=request.transaction_id or "",
            state=STATES.get(request.commit_or_rollback, UNDECIDED),
            from_check=bool(request.from_transaction_check),
        )
        self._writer.add(client, event)

    def recalled(self, client: Peer, topic: str, message_id: str, *, is_success: bool) -> None:
        """Note that a delayed message was cancelled, or that the broker refused it."""
        if self._is_traced(topic):
            event = RecallEvent(
                timestamp_ms=self._now_ms(),
                region=self._source.region,
                group=topic,  # as that of the send
                topic=topic,
                message_id=message_id,
                success=is_success,
            )
            self._writer.add(client, event)

    # --- consumers ---

    @property
    def has_deliveries(self) -> bool:
        """Return whether `acknowledged` may have an effect."""
        return bool(self._open or self._late)

    @property
    def tracks_deliveries(self) -> bool:
        """Return whether `delivered` may have an effect."""
        return self.has_deliveries or self._is_on()

    def delivered(
        self, client: Peer, key: DeliveryKey, message: DeliveredMessage, taken_ms: int, visible_ms: int
    ) -> None:
        """Note a delivery. One of the same message before it has ended by time, if it has not ended otherwise."""
        if (former := self._open.take(key)) is not None:
            self.end(key.group, former, TIME_OUT, min(former.visible_ms, self._now_ms()))
        self._late.take(key)
        if not self._is_traced(key.topic) or not message.is_traced:
            return
        if len(self._open) >= open_deliveries.OPEN_MAX or self._open.text_bytes >= open_deliveries.OPEN_BYTES_MAX:
            self.untracked += 1
            return
        delivery = self.start(client, key.group, message, taken_ms, visible_ms)
        self._open.add(key, delivery)
        self._note_due(key, delivery)

    def acknowledged(self, key: DeliveryKey, taken_ms: int) -> None:
        """Note that a message was consumed."""
        if (delivery := self._open.take(key, taken_ms)) is not None:
            self.end(key.group, delivery, SUCCESS, self._now_ms())
        elif (delivery := self._late.take(key, taken_ms)) is not None:
            # Its delivery has a result: the consumption is an attempt of its own, without a start.
            delivery.request_id, delivery.started_ms = next(self._request_ids), self._now_ms()
            self.end(key.group, delivery, SUCCESS, delivery.started_ms)

    def returned(self, key: DeliveryKey, taken_ms: int | None) -> None:
        """Note that a message was not consumed: it is delivered again, or has become a dead letter.

        Args:
            taken_ms: Of the delivery; None: of the last one.
        """
        if (delivery := self._open.take(key, taken_ms)) is not None:
            self.end(key.group, delivery, FAILED, self._now_ms())
        else:
            self._late.take(key, taken_ms)

    def hidden(self, key: DeliveryKey, taken_ms: int, new_taken_ms: int, visible_ms: int) -> None:
        """Note that a message stays invisible to others until another time, and by which time its handle identifies it now."""
        delivery = self._open.take(key, taken_ms)
        if delivery is not None:
            delivery.taken_ms, delivery.visible_ms = new_taken_ms, visible_ms
            self._open.add(key, delivery)
            self._note_due(key, delivery)

    def end_due(self) -> None:
        """Write the ends of deliveries whose time has passed."""
        now_ms = self._now_ms()
        while self._due and self._due[0][0] <= now_ms:
            visible_ms, key = heapq.heappop(self._due)
            delivery = self._open.get(key)
            if delivery is None or delivery.visible_ms != visible_ms:
                continue
            self._open.take(key)
            self.end(key.group, delivery, TIME_OUT, visible_ms)
            self._late.add(key, delivery)
            while len(self._late) > LATE_MAX or self._late.text_bytes > LATE_BYTES_MAX:
                self._late.take_oldest()

    # --- records of deliveries ---

    def start(
        self, client: Peer, group: str, message: DeliveredMessage, taken_ms: int = 0, visible_ms: int = 0
    ) -> TracedDelivery:
        """Write the start of a consumption, and return it for `end`."""
        delivery = TracedDelivery(
            client=client,
            request_id=next(self._request_ids),
            message_id=message.message_id,
            keys=message.keys,
            started_ms=self._now_ms(),
            taken_ms=taken_ms,
            visible_ms=visible_ms,
        )
        event = ConsumeStartEvent(
            timestamp_ms=delivery.started_ms,
            region=self._source.region,
            group=group,
            request_id=delivery.request_id,
            message_id=delivery.message_id,
            retry_times=message.reconsume_times,
            keys=delivery.keys,
        )
        self._writer.add(client, event)
        return delivery

    def end(self, group: str, delivery: TracedDelivery, code: int, ended_ms: int) -> None:
        """Write the end of a consumption."""
        event = ConsumeEndEvent(
            request_id=delivery.request_id,
            message_id=delivery.message_id,
            cost_ms=max(0, ended_ms - delivery.started_ms),
            success=code == SUCCESS,
            keys=delivery.keys,
            context_code=code,
            timestamp_ms=ended_ms,
            group=group,
        )
        self._writer.add(delivery.client, event)

    # --- inside ---

    def _is_traced(self, topic: str) -> bool:
        return self._is_on() and not self.is_own(topic)

    def _store_host(self, stored: SendMessageResponse | None) -> str:
        if self._source.broker_addr or stored is None:
            return self._source.broker_addr
        return ids.parse_offset_message_id(stored.message_id)[0]

    def _note_due(self, key: DeliveryKey, delivery: TracedDelivery) -> None:
        heapq.heappush(self._due, (delivery.visible_ms, key))
        if len(self._due) > 64 and len(self._due) > 4 * len(self._open):  # mostly obsolete
            self._due = [(each.visible_ms, key) for key, each in self._open.items()]
            heapq.heapify(self._due)
