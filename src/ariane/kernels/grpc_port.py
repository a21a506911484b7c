"""The gRPC port of the native implementation, which Python has no twin of: `ariane.proxy.transport` uses grpcio without it.

A thread owns sockets, TLS and HTTP/2. Its descriptor is readable while there are events; answers wait for `send`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple, Protocol

Event = tuple[Any, ...]
"""The kind, and what it is about:

    "opened", connection, ip, port          "message", call, data     of a Telemetry stream; the next one follows after `read`
    "closed", connection, reason            "ended", call             the client has sent its last message
    "tls_needed",                           "cancelled", call         of a streaming call; it is not answered any more
    "call", call, connection, method, metadata, data, remaining_ms    "room", call    messages of a streaming call were written
"""

FailedSend = tuple[int, int, str]  # call, code and remark of the broker
TraceFields = tuple[str, str, int, int]
"""Region and address of the broker, when sends were started, and how long they took, in milliseconds."""
TraceRecords = tuple[bytes, str, int]  # text, keys and number: the fields of a `TraceEntry`


class Reception(NamedTuple):
    """What the messages of a receive call share."""

    namespace: str  # of the topic, as the client named it
    topic: str
    broker: str
    delivery: tuple[int, int, int]
    """Its time, invisible time and revive queue, as in receipt handles."""
    starts: Mapping[int, int]
    """First offset of the delivery, by queue."""
    filters: tuple[int | None, Set[str] | None]
    """Attempts after which a message is a dead letter, and tags of the subscription; None: no limit, all tags."""


ReceivedMessage = tuple[int, int, int, int, str, str, int, bool]
"""First offset of the delivery, queue id, offset, offset in the log, message id, keys, number of redeliveries, and whether the
message may be traced."""


class PlainSends(Protocol):
    """SendMessage calls of a client that need no decision, each with one message."""

    connection: int
    client_id: str
    size: int
    """Bytes of the requests."""
    headers: dict[str, str]
    """Of the first call."""
    topics: list[str]
    """Each once."""

    def __len__(self) -> int: ...

    def frames(self, queues: Sequence[tuple[int, int] | None]) -> bytes:
        """Return the sends as frames of SEND_MESSAGE_V2.

        Args:
            queues: For each of `topics`: the queue of its first message, and how many queues its messages take in turn. Sends to
                topics with None are omitted.
        """
        ...

    def take_at(self, position: int, end: int) -> tuple[int, Event]:
        """Remove the send whose frame begins at `position`. Return the position of the next frame, and the call."""
        ...

    def take_between(self, position: int, end: int) -> list[int]:
        """Remove the sends whose frames are between two positions, and return the numbers of their calls."""
        ...

    def take_rest(self) -> list[Event]:
        """Remove the sends that have no frame, and return their calls."""
        ...

    def answer(
        self, port: GrpcPort, responses: bytes, traces: TraceFields | None
    ) -> tuple[list[FailedSend], list[TraceRecords]]:
        """Answer the sends that a broker has stored, by its responses to their frames.

        Args:
            traces: What trace records of the sends contain; None if none are written.

        Returns:
            The other sends, and the records of all.
        """
        ...


class PlainAcks(Protocol):
    """AckMessage calls of a client whose receipt handles are those of messages in their own topic."""

    connection: int
    client_id: str
    headers: dict[str, str]
    """Of the first call."""
    deliveries: list[tuple[Any, ...]]
    """Fields of an `AckedDelivery`, of each delivery once."""

    def __len__(self) -> int: ...

    def answer(self, port: GrpcPort) -> None:
        """Answer all calls: their messages are acknowledged."""
        ...

    def take_rest(self) -> list[Event]:
        """Remove the calls that are not answered, and return them."""
        ...


class GrpcPort(Protocol):
    """An open port."""

    port: int

    def fileno(self) -> int: ...

    def take(self) -> tuple[list[Event], list[PlainSends], list[PlainAcks]]:
        """Return what happened since the last call."""
        ...

    def reply(self, call: int, message: bytes) -> None:
        """End a call with its only message."""
        ...

    def message(self, call: int, message: bytes, wants_room: bool) -> None:
        """Answer a streaming call with another message; with `wants_room`, an event follows when it is written."""
        ...

    def messages(self, call: int, framed: bytes, wants_room: bool) -> None:
        """The same with several messages, as `encode_received` returns them."""
        ...

    def encode_received(self, records: bytes, reception: Reception) -> list[tuple[bytes, list[ReceivedMessage]]] | None:
        """Return the replies with the messages of records, in parts of at most 64 KiB and one message, each with what it contains.

        Returns:
            None if one of the messages is unusual: not to be delivered, compressed, or with a handle of another broker.
        """
        ...

    def end(self, call: int, code: int, text: str) -> None:
        """End a call with a status of gRPC."""
        ...

    def read(self, call: int) -> None:
        """Let the next message of a Telemetry stream arrive."""
        ...

    def abort(self, connection: int) -> None:
        """Close a connection at once."""
        ...

    def set_certificate(self, certificate: bytes, key: bytes) -> None:
        """Encrypt new connections with a certificate, in PEM. Raise ValueError if it cannot be used."""
        ...

    def send(self) -> None:
        """Pass the answers on."""
        ...

    def close(self) -> None:
        """Close the port and all connections."""
        ...


class OpenGrpcPort(Protocol):
    """Opens a port. Raises OSError if it is in use."""

    def __call__(
        self,
        address: str,
        port: int,
        *,
        methods: Set[str],
        tls_mode: str,
        takes_plain_calls: bool,
        reserved: tuple[Set[str], Sequence[str]],
    ) -> GrpcPort: ...
