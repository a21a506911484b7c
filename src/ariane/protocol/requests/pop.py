"""POP of 5.x: headers and bodies of 400, 401, 200050, 200051, 200053–200055, 200151; 14003 of Ariane. [reference rocketmq5 2]"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from ariane.errors import ProtocolError
from ariane.protocol.requests.messaging import Int32, Int64

HANDLE_FIELDS = 8  # of an extraInfo
ORDERED_QUEUE = 999  # `reviveQid` of messages that are taken in order
FROM_END = 1  # `initMode`: a group without an offset starts with the last message
POP_MODE, PULL_MODE = "POP", "PULL"
IN_FLIGHT_MAX = 1_000  # messages of a list


class PopMessage(msgspec.Struct, frozen=True, rename="camel"):
    """POP_MESSAGE (200050). `queue_id` -1: all queues."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32  # 1 to 32
    invisible_time: Int64  # ms until messages that are not acknowledged are delivered again
    poll_time: Int64  # ms for which the request may be parked
    born_time: Int64 = 0  # by the client's clock, so it is not compared with ours
    init_mode: Int32 = 0  # 0 or FROM_END
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None  # a repeated ordered request names that of the first


class PopMessageResponse(msgspec.Struct, frozen=True, rename="camel"):
    """`start_offset_info`: `retry queueId offset;…`. `msg_offset_info`: `retry queueId offset,offset,…;…`."""

    pop_time: int = 0
    invisible_time: int = 0
    revive_qid: int = 0
    rest_num: int = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessage(msgspec.Struct, frozen=True, rename="camel"):
    """ACK_MESSAGE (200051)."""

    consumer_group: str
    topic: str  # the retry topic for retries
    queue_id: Int32
    extra_info: str
    offset: Int64


class AckedDelivery(msgspec.Struct, frozen=True):
    """What requests of ACK_MESSAGE say about the messages of one delivery in one queue."""

    group: str
    topic: str  # never the retry topic
    broker: str
    queue_id: int
    taken_ms: int  # time of the delivery
    is_ordered: bool
    offsets: list[int]  # at least one


class ChangeInvisibleTime(msgspec.Struct, frozen=True, rename="camel"):
    """CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64


class ChangeInvisibleTimeResponse(msgspec.Struct, frozen=True, rename="camel"):
    """The parts of the new handle."""

    pop_time: int = 0
    invisible_time: int = 0
    revive_qid: int = 0


class PopNotification(msgspec.Struct, frozen=True, rename="camel"):
    """NOTIFICATION (200054): wait for messages without taking them."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64 = 0
    order: bool = False
    attempt_id: str | None = None


class PopNotificationResponse(msgspec.Struct, frozen=True, rename="camel"):
    has_msg: bool
    polling_full: bool = False


class PollingInfo(msgspec.Struct, frozen=True, rename="camel"):
    """POLLING_INFO (200055)."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResponse(msgspec.Struct, frozen=True, rename="camel"):
    polling_num: int


class ListInFlight(msgspec.Struct, frozen=True, rename="camel"):
    """LIST_IN_FLIGHT (14003, of Ariane): messages that were delivered to a group and not acknowledged."""

    consumer_group: str
    limit: Int32  # 1 to IN_FLIGHT_MAX
    topic: str | None = None  # None: all topics


class InFlightMessage(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A message that was delivered and not acknowledged."""

    topic: str
    queue_id: int
    offset: int
    taken_ms: int
    """Time of the delivery, which its receipt handle contains: only the last delivery can be acknowledged."""
    visible_ms: int
    """From then on it is delivered again."""
    attempts: int
    """Deliveries so far."""
    message_id: str | None = None
    """Unique key; None if the message was removed."""
    client_id: str | None = None
    """Client of the delivery; None if it is not connected any more, or unknown."""
    client_addr: str | None = None
    """Its address; None after a restart of the broker, and for old deliveries."""


class InFlightMessages(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to LIST_IN_FLIGHT."""

    total: int = 0  # of the broker
    messages: tuple[InFlightMessage, ...] = ()  # the first ones of each queue


class BatchAck(
    msgspec.Struct,
    frozen=True,
    rename={
        "group": "c",
        "topic": "t",
        "queue_id": "q",
        "start": "so",
        "taken_ms": "pt",
        "bits": "b",
        "retry": "r",
        "revive_queue": "rq",
        "invisible_ms": "it",
    },
):
    """Acknowledgements of one delivery in one queue."""

    group: str
    topic: str  # never the retry topic
    queue_id: Int32
    start: Int64  # offset of bit 0
    taken_ms: Int64  # time of the delivery
    bits: str  # base64, the lowest bit of each byte first
    retry: str = "0"  # which retry topic; "0": the topic itself
    revive_queue: Int32 = 0  # as the next one, for brokers of Apache
    invisible_ms: Int64 = 0

    @staticmethod
    def encode_bits(start: int, offsets: Iterable[int]) -> str:
        """Return the bits of offsets from `start` on."""
        bits = sum(1 << offset - start for offset in set(offsets))
        return base64.b64encode(bits.to_bytes(bits.bit_length() // 8 + 1, "little")).decode()

    @property
    def offsets(self) -> tuple[int, ...]:
        """Return the acknowledged offsets. Raise ProtocolError if they are not base64."""
        try:
            data = base64.b64decode(self.bits, validate=True)
        except binascii.Error as error:
            raise ProtocolError(f"Invalid bits of BATCH_ACK_MESSAGE: {error}") from None
        return tuple(self.start + 8 * at + bit for at, byte in enumerate(data) for bit in range(8) if byte >> bit & 1)


class BatchAckBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of BATCH_ACK_MESSAGE (200151)."""

    acks: tuple[BatchAck, ...] = ()
    broker_name: str | None = None


class AckHandle(NamedTuple):
    """The parts of an extraInfo that say which delivery of a message is meant."""

    taken_ms: int
    invisible_ms: int
    revive_queue: int
    retry: str


def parse_handle(text: str) -> AckHandle:
    """Return the parts of an extraInfo: `startOffset popTime invisibleTime reviveQid retry broker queueId offset`.

    Raises:
        ProtocolError: it has fewer fields, or one is not a number.
    """
    fields = text.split(" ")
    try:
        return AckHandle(int(fields[1]), int(fields[2]), int(fields[3]), fields[4])
    except (IndexError, ValueError):
        reason = (
            f"Invalid extraInfo {text[:120]!r}: expected {HANDLE_FIELDS} fields, startOffset popTime invisibleTime …"
        )
        raise ProtocolError(reason) from None


class QueryAssignment(msgspec.Struct, frozen=True, rename="camel"):
    """Body of QUERY_ASSIGNMENT (400)."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: str | int | None = None


class AssignedQueue(msgspec.Struct, frozen=True, rename="camel"):
    broker_name: str
    queue_id: int  # -1: all queues of the broker
    topic: str


class QueueAssignment(msgspec.Struct, frozen=True, rename="camel"):
    message_queue: AssignedQueue
    mode: str


class QueueAssignments(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Body of the response to QUERY_ASSIGNMENT."""

    message_queue_assignments: tuple[QueueAssignment, ...] = ()


class RequestMode(msgspec.Struct, frozen=True, rename="camel"):
    """Body of SET_MESSAGE_REQUEST_MODE (401)."""

    topic: str
    consumer_group: str
    mode: str
    pop_share_queue_num: Int32 = 0


class RequestModes(msgspec.Struct, frozen=True, rename="camel"):
    """messageRequestMode.json, as 5.x writes it: topic → group → mode."""

    message_request_mode_map: dict[str, dict[str, RequestMode]] = {}

    def get(self, topic: str, group: str) -> RequestMode | None:
        return self.message_request_mode_map.get(topic, {}).get(group)

    def put(self, mode: RequestMode) -> None:
        self.message_request_mode_map.setdefault(mode.topic, {})[mode.consumer_group] = mode

    def modes(self) -> list[RequestMode]:
        return [mode for groups in self.message_request_mode_map.values() for mode in groups.values()]

    def replace(self, modes: Iterable[RequestMode]) -> None:
        self.message_request_mode_map.clear()
        for mode in modes:
            self.put(mode)
