"""Several requests in one: a request of Ariane (REQUEST_BATCH) for tools that poll thousands of topics and groups.

    request    body: frames of requests with a code of BATCHED_CODES, as on a connection; `opaque` numbers them from 0
    response   body: frames of their responses, in the same order

A response may answer only the first of the requests, at least one, because it is bounded in size and time; the caller sends the
others again. A broker that supports this reports REQUESTS_KEY in its runtime information (28); others are never asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ariane.errors import ProtocolError
from ariane.protocol import command as commands
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.frame import FrameReader

# All of them only read.
BATCHED_CODES = frozenset(
    {
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.VIEW_BROKER_STATS_DATA,
    }
)
REQUESTS_KEY = "requestBatchMax"
REQUESTS_MAX = 500
REQUEST_BYTES_MAX = 8 * 1024  # a frame with the longest names, escaped

Fields = Mapping[str, str]


def encode_requests(code: int, headers: Iterable[Fields | None]) -> bytes:
    """Return the body of a batch of requests with the same code."""
    return b"".join(
        piece
        for number, fields in enumerate(headers)
        for piece in commands.encode(code, opaque=number, flag=0, fields=fields)
    )


def decode_requests(body: bytes) -> Iterator[Command]:
    """Yield the requests of a batch.

    Raises:
        ProtocolError: a frame is invalid or too large, or there are none or too many.
    """
    reader = FrameReader(frame_max=REQUEST_BYTES_MAX)
    count = 0
    for frame in reader.feed(body):
        count += 1
        if count > REQUESTS_MAX:
            raise ProtocolError(f"Invalid batch of more than {REQUESTS_MAX} requests")
        yield commands.decode(frame)
    if not count or reader.waiting:
        raise ProtocolError(f"Invalid batch: {reader.waiting} bytes after {count} requests")


def decode_responses(body: bytes, requests: int) -> list[Command]:
    """Return the responses to the first of the requests of a batch.

    Raises:
        ProtocolError: a frame is invalid, or there are none or more than `requests`.
    """
    reader = FrameReader()
    responses = [commands.decode(frame) for frame in reader.feed(body)]
    if not 1 <= len(responses) <= requests or reader.waiting:
        raise ProtocolError(f"Invalid batch of {len(responses)} responses to {requests} requests")
    return responses
