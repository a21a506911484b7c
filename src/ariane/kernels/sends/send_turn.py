"""Plain sends of a turn: frames become records, queue entries, index keys and responses, all of them together.

    frames → headers → queue by queue: numbers → records for one append, entries, keys
                                               → responses for one write

A send is plain if nothing about it needs a decision: SEND_MESSAGE, SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE to a queue that
`next_offset` accepts, no transaction, no exceptional property. `encode` stops at the first frame that is not; the handler of single
sends serves that one, and decides about every refusal. So this module refuses nothing, and a caller that goes on after each stop
returns the same bytes as one that hands every frame to the handler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from ariane.protocol.codes import RequestCode

SEND_CODES = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE)
# What a JSON header begins with if it is a send: all known clients write `code` first.
JSON_STARTS = tuple(b'{"code":%d,' % code for code in SEND_CODES)
BINARY_STARTS = tuple(code.to_bytes(2, "big") for code in SEND_CODES)


class SendSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What records and responses contain in addition to the message, and what makes a send plain."""

    store_host: bytes  # packed IPv4 address of the broker: the first half of each message id
    cluster: str  # value of the property CLUSTER of each record
    region: str  # MSG_REGION of each response
    trace_on: bool  # TRACE_ON of each response
    header_max: int  # bytes of a plain header
    body_max: int  # bytes of a plain body, also of a whole batch
    is_indexed: bool  # whether keys are wanted
    exceptional: frozenset[str]
    """Properties that a plain send does not have; WAIT is plain unless its value is "false", CLUSTER never is."""


class LogEnd(NamedTuple):
    """Where and when records are appended."""

    offset: int  # of the first record, in the commit log
    room: int  # bytes that all records together may have
    store_ms: int


class QueueRun(NamedTuple):
    """What a run appends to one queue."""

    topic: str
    queue_id: int
    entries: bytes  # 20 bytes per record (`protocol.queue_entry`), in order
    sends: int  # frames; a batch is one
    size: int  # bytes of the records


class SendRun(NamedTuple):
    """A run of plain sends. `sends` is 0, and `position` where it was, if the first frame is not plain or not complete."""

    position: int  # of the next frame in the data
    sends: int
    records: bytes  # to append at `LogEnd.offset`, next to each other
    queues: list[QueueRun]  # in the order of their first records
    keys: bytes  # per key: hash u32, offset of its record i64 (`INDEX_KEY`), in the order of the records
    responses: bytes  # frames, in the order of the sends; none for one-way sends


class SendEncoder(Protocol):
    """Encodes runs of plain sends. The numbers of queues and the end of the log are the caller's."""

    frames_max: int
    """Most frames of a run: a bound of the time that the event loop is busy with one connection."""

    def encode(
        self, data: bytes, position: int, born_host: bytes, log_end: LogEnd, next_offset: Callable[[str, int], int]
    ) -> SendRun:
        """Encode the plain sends in `data` from `position` on.

        Args:
            data: Received frames; the last may be incomplete.
            position: Start of a frame.
            born_host: Packed IPv4 address of the client.
            log_end: Where the records are appended.
            next_offset: Returns the number of the next record of a queue (topic, queue id), or -1 if a send to it is not
                plain. Called once per queue and run.

        Returns:
            The run up to the first frame that is not plain or complete, does not fit into `LogEnd.room`, or is the
            `frames_max`-th. The caller either stores all of it or nothing.
        """
        ...
