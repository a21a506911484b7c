"""Receipt handles: a delivery of a message, as clients return it to acknowledge the message. [ReceiptHandle]

    startOffset popTime invisibleTime reviveQid retry broker queueId offset commitLogOffset

The first eight parts are the extraInfo of POP requests. Clients do not interpret a handle.
"""

from __future__ import annotations

import msgspec

from ariane.protocol.requests.pop import ORDERED_QUEUE, PopMessageResponse
from ariane.proxy.conversion.grpc_statuses import CallRefused, StatusCode

PARTS = 9
SHOWN_MAX = 120  # characters of an invalid handle in a text


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

    @property
    def extra_info(self) -> str:
        """The part that POP requests have."""
        return f"{self.start} {self.taken_ms} {self.invisible_ms} {self.revive_queue} 0 {self.broker} {self.queue_id} {self.offset}"

    @property
    def renewal_info(self) -> str:
        """The extraInfo of a change that retains the delivery: as for an ordered one, its handle stays valid."""
        return msgspec.structs.replace(self, revive_queue=ORDERED_QUEUE).extra_info

    def __str__(self) -> str:
        return f"{self.extra_info} {self.log_offset}"


def parse(text: str, broker: str) -> ReceiptHandle:
    """Return the parts of a handle. Raise CallRefused if it is not one of this broker."""
    parts = text.split(" ")
    try:
        if len(parts) != PARTS or parts[4] != "0":
            raise ValueError(len(parts))
        start, taken_ms, invisible_ms, revive_queue = map(int, parts[:4])
        handle = ReceiptHandle(start, taken_ms, invisible_ms, revive_queue, parts[5], *map(int, parts[6:]))
    except ValueError:
        text = f"Invalid receipt handle {text[:SHOWN_MAX]!r}: expected one of a received message"
        raise CallRefused(StatusCode.INVALID_RECEIPT_HANDLE, text) from None
    if handle.broker != broker:
        text = f"Invalid receipt handle of broker {handle.broker[:SHOWN_MAX]!r}: this is {broker}"
        raise CallRefused(StatusCode.INVALID_RECEIPT_HANDLE, text)
    return handle


def starts(header: PopMessageResponse) -> dict[int, int]:
    """Return the first offset of each queue of a delivery."""
    entries = (entry.split(" ") for entry in (header.start_offset_info or "").split(";") if entry)
    return {int(queue_id): int(offset) for _, queue_id, offset in entries}
