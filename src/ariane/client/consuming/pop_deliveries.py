"""Deliveries of POP: which one a response of POP_MESSAGE begins for each of its records. [PopCallback, ExtraInfoUtil]

    startOffsetInfo "0 3 4;0 0 0"      retry, queue, first offset of the delivery
    msgOffsetInfo   "0 3 4;0 0 0,1,2"  retry, queue, offsets of the records

A broker of Apache delivers again what it copied to a retry topic: `retry` is 1 for %RETRY%group_topic and 2 for %RETRY%group+topic.
It names the delivery of such a record in its properties.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter

import msgspec

from ariane.errors import ProtocolError
from ariane.model.message import POP_CHECK_POINT
from ariane.model.topic import RETRY_PREFIX
from ariane.protocol.command import Command
from ariane.protocol.records import record
from ariane.protocol.records.record import Record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.pop import HANDLE_FIELDS, BatchAck, PopMessageResponse

NO_RETRY = "0"
SEPARATORS = {"1": "_", "2": "+"}  # in the name of a retry topic
SPAN_MAX = 1 << 20  # offsets of one delivery: each takes a bit in an acknowledgement


class Delivery(msgspec.Struct, frozen=True):
    """One delivery of one message, in the order of its fields in a request (extraInfo)."""

    start: int
    """First offset of the delivery; bits of acknowledgements count from it."""
    taken_ms: int
    """When the message was taken, by the broker's clock: identifies the delivery."""
    invisible_ms: int
    revive_queue: int
    retry: str
    """In which topic the message is stored: NO_RETRY, or a key of SEPARATORS."""
    broker: str
    queue_id: int
    offset: int

    @property
    def handle(self) -> str:
        """Return the text that identifies the delivery in requests."""
        return " ".join(map(str, msgspec.structs.astuple(self)))

    def stored_topic(self, group: str, topic: str) -> str:
        """Return the topic in which the message is stored; all names are those on the wire."""
        if self.retry == NO_RETRY:
            return topic
        return f"{RETRY_PREFIX}{group}{SEPARATORS[self.retry]}{topic}"


def parse_handle(text: str) -> Delivery:
    """Return the delivery that `text` identifies.

    Raises:
        ProtocolError: it has fewer fields, or one is not valid.
    """
    fields = text.split(" ")[:HANDLE_FIELDS]
    try:
        start, taken_ms, invisible_ms, revive_queue, retry, broker, queue_id, offset = fields
        delivery = Delivery(
            int(start), int(taken_ms), int(invisible_ms), int(revive_queue), retry, broker, int(queue_id), int(offset)
        )
    except ValueError:
        raise ProtocolError(f"Invalid {POP_CHECK_POINT} {text[:120]!r}: expected {HANDLE_FIELDS} fields") from None
    if retry != NO_RETRY and retry not in SEPARATORS:
        raise ProtocolError(f"Invalid {POP_CHECK_POINT} {text[:120]!r}: unknown kind of retry topic {retry[:20]!r}")
    return delivery


def taken_records(
    response: Command, broker: str, group: str, topic: str
) -> Iterator[tuple[Record, dict[str, str], Delivery]]:
    """Yield the records of a response, with their properties and deliveries; all names are those on the wire.

    Raises:
        ProtocolError: the header does not name the queue of a record, or fewer offsets than records.
    """
    header = decode_header(response, PopMessageResponse)
    starts = {key: int(value) for key, value in _entries(header.start_offset_info)}
    offsets = {key: map(int, value.split(",")) for key, value in _entries(header.msg_offset_info)}
    for stored in record.decode_all(response.body):
        properties = stored.property_map()
        named = properties.pop(POP_CHECK_POINT, None)
        # A record that was copied by an application may have that of a former delivery.
        if named is not None and parse_handle(named).taken_ms == header.pop_time:
            yield stored, properties, parse_handle(named)
            continue
        key = (_retry(stored.topic, group, topic), str(stored.queue_id))
        try:
            offset = next(offsets[key]) if offsets else stored.queue_offset
            start = starts[key] if starts else offset
        except (KeyError, StopIteration, ValueError):
            reason = f"queue {stored.queue_id} of {stored.topic} has more records than the header of POP_MESSAGE names"
            raise ProtocolError(reason) from None
        if not 0 <= offset - start < SPAN_MAX:
            raise ProtocolError(f"Invalid offset {offset} in the header of POP_MESSAGE: the delivery starts at {start}")
        taken = (header.pop_time, header.invisible_time, header.revive_qid)
        yield stored, properties, Delivery(start, *taken, key[0], broker, stored.queue_id, offset)


def batch_acks(deliveries: Iterable[Delivery], group: str, topic: str) -> Iterator[BatchAck]:
    """Yield the acknowledgements of a topic's deliveries: one for all messages of a queue that were taken together."""

    taken_together = attrgetter("retry", "queue_id", "start", "taken_ms", "invisible_ms", "revive_queue")
    for key, same in groupby(sorted(deliveries, key=taken_together), taken_together):
        retry, queue_id, start, taken_ms, invisible_ms, revive_queue = key
        bits = BatchAck.encode_bits(start, (delivery.offset for delivery in same))
        yield BatchAck(group, topic, queue_id, start, taken_ms, bits, retry, revive_queue, invisible_ms)


def _entries(text: str | None) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the entries of `retry queue value;…`."""
    for entry in (text or "").split(";"):
        if entry:
            parts = entry.split(" ")
            if len(parts) != 3:
                raise ProtocolError(f"Invalid entry {entry[:120]!r} in the header of POP_MESSAGE: expected 3 fields")
            yield (parts[0], parts[1]), parts[2]


def _retry(stored_topic: str, group: str, topic: str) -> str:
    """Return which retry topic a record was stored in."""
    for retry, separator in SEPARATORS.items():
        if stored_topic == f"{RETRY_PREFIX}{group}{separator}{topic}":
            return retry
    return NO_RETRY
