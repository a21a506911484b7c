"""Receipt handles: a delivery of a message, as clients return it to acknowledge the message. [ReceiptHandle, ExtraInfoUtil]

    startOffset popTime invisibleTime reviveQid retry broker queueId offset commitLogOffset

The first eight parts are the extraInfo of POP requests. Clients do not interpret a handle. `retry` is 0 at brokers of ours; those
of Apache store retries in topics of their own, and name them 1 (%RETRY%group_topic) or 2 (%RETRY%group+topic). They deliver these
records under the name of the topic, with the eight parts as a property, or under that of the retry topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from ariane.model.message import POP_CHECK_POINT
from ariane.model.topic import pop_topics
from ariane.protocol.records.record import Record
from ariane.protocol.requests.pop import ORDERED_QUEUE, ChangeInvisibleTimeResponse, PopMessage, PopMessageResponse
from ariane.proxy.conversion.grpc_statuses import CallRefused, StatusCode

PARTS = 9
RETRIES = ("0", "1", "2")
SHOWN_MAX = 120  # characters of an invalid handle in a text


class DeliveryKey(NamedTuple):
    """A message, as one group consumes it."""

    group: str
    topic: str
    broker: str
    retry: int
    queue_id: int
    offset: int


class ReceiptHandle(msgspec.Struct, frozen=True):
    """The parts of a handle."""

    start: int  # first offset of the delivery in the queue
    taken_ms: int  # identifies the delivery
    invisible_ms: int
    revive_queue: int  # ORDERED_QUEUE: of an ordered delivery
    broker: str
    queue_id: int
    offset: int
    log_offset: int  # of the record, for dead letters
    retry: int = 0  # which retry topic has the record

    @property
    def extra_info(self) -> str:
        """The part that POP requests have."""
        taken = f"{self.start} {self.taken_ms} {self.invisible_ms} {self.revive_queue}"
        return f"{taken} {self.retry} {self.broker} {self.queue_id} {self.offset}"

    def key(self, group: str, topic: str) -> DeliveryKey:
        """Return which message of a group and topic was delivered."""
        return DeliveryKey(group, topic, self.broker, self.retry, self.queue_id, self.offset)

    def stored_topic(self, group: str, topic: str) -> str:
        """Return the topic in which a broker has stored the message of a topic and group."""
        return pop_topics(group, topic)[self.retry]

    def changed(self, response: ChangeInvisibleTimeResponse) -> ReceiptHandle:
        """Return the handle after a change of the invisible time."""
        return msgspec.structs.replace(
            self,
            start=self.offset,
            taken_ms=response.pop_time,
            invisible_ms=response.invisible_time,
            revive_queue=response.revive_qid,
        )

    @property
    def renewal_info(self) -> str:
        """The extraInfo of a change that retains the delivery: as for an ordered one, its handle stays valid."""
        return msgspec.structs.replace(self, revive_queue=ORDERED_QUEUE).extra_info

    def __str__(self) -> str:
        return f"{self.extra_info} {self.log_offset}"


def with_handles(
    records: Iterable[Record], request: PopMessage, broker: str, taken: PopMessageResponse
) -> Iterator[tuple[Record, ReceiptHandle]]:
    """Yield the records that a broker has delivered, each with its handle."""
    topics, starts = pop_topics(request.consumer_group, request.topic), first_offsets(taken)
    for item in records:
        named = _named(item, broker)
        if (
            named is not None and named.taken_ms == taken.pop_time
        ):  # not copied from a former delivery by an application
            yield item, named
            continue
        retry = topics.index(item.topic) if item.topic in topics else 0
        handle = ReceiptHandle(
            starts.get((retry, item.queue_id), item.queue_offset),
            taken.pop_time,
            taken.invisible_time,
            taken.revive_qid,
            broker,
            item.queue_id,
            item.queue_offset,
            item.offset,
            retry,
        )
        yield item, handle


def _named(item: Record, broker: str) -> ReceiptHandle | None:
    """Return the handle that is a property of a record; None without one, or if it is not valid."""
    text = item.property_map().get(POP_CHECK_POINT)
    try:
        return None if text is None else msgspec.structs.replace(parse(f"{text} {item.offset}"), broker=broker)
    except CallRefused:
        return None


def parse(text: str) -> ReceiptHandle:
    """Return the parts of a handle. Raise CallRefused if it is none."""
    parts = text.split(" ")
    try:
        if len(parts) != PARTS or parts[4] not in RETRIES:
            raise ValueError(len(parts))
        start, taken_ms, invisible_ms, revive_queue = map(int, parts[:4])
        queue_id, offset, log_offset = map(int, parts[6:])
        return ReceiptHandle(
            start, taken_ms, invisible_ms, revive_queue, parts[5], queue_id, offset, log_offset, int(parts[4])
        )
    except ValueError:
        text = f"Invalid receipt handle {text[:SHOWN_MAX]!r}: expected one of a received message"
        raise CallRefused(StatusCode.INVALID_RECEIPT_HANDLE, text) from None


def first_offsets(header: PopMessageResponse) -> dict[tuple[int, int], int]:
    """Return the first offset of each queue of a delivery, by retry topic and queue."""
    entries = (entry.split(" ") for entry in (header.start_offset_info or "").split(";") if entry)
    return {(int(retry), int(queue_id)): int(offset) for retry, queue_id, offset in entries}
