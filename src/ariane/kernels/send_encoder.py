"""The Python implementation of `SendEncoder`: one decode per header, one record, one entry, one response per message.

    frame → _Send (decoded header) → _Message (properties as stored) → _RunBuilder (records by queue) → SendRun

The handler of single sends is the reference: each function here decides like one of its steps, or leaves the frame to it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ariane.errors import ProtocolError
from ariane.kernels.key_hashes import KeyHashes
from ariane.kernels.send_turn import BINARY_STARTS, JSON_STARTS, SEND_CODES, LogEnd, QueueRun, SendRun, SendSettings
from ariane.model import ids
from ariane.model.hashes import java_hash
from ariane.model.message import CLUSTER, TAGS, TRANSACTION_MASK, WAIT
from ariane.protocol import batch, fastjson
from ariane.protocol import command as commands
from ariane.protocol import properties as properties_text
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import ONE_WAY, RESPONSE, Int32
from ariane.protocol.frame import BINARY_FORM, FRAME_MAX, JSON_FORM, PREFIX, PREFIX_SIZE, Frame
from ariane.protocol.queue_entry import ENTRY
from ariane.protocol.record import encode_v4
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import LONG_NAMES, SendMessage

FRAMES_MAX = 128  # of the Python implementation: about a millisecond

_V2_STARTS = JSON_STARTS[:2]  # the header names of both are those of `SendMessage`


class _SendCommand(
    msgspec.Struct,
    forbid_unknown_fields=True,
    gc=False,
    rename={"fields": "extFields", "form": "serializeTypeCurrentRPC"},
):
    """A JSON header of a send, decoded in one pass with its fields."""

    code: Int32  # again: it may occur twice
    fields: SendMessage  # those of `SEND_MESSAGE_V2`
    flag: Int32  # bit 0 response, bit 1 one-way
    opaque: Int32  # repeated by the response
    language: str | None = None  # ignored, as all below
    remark: None = None  # of responses
    form: str | None = None  # the frame's first byte is authoritative
    version: Int32 = 0  # of the client


_decode_json = msgspec.json.Decoder(_SendCommand, strict=False).decode


class _Send(msgspec.Struct, frozen=True, gc=False):
    """A frame that is a send, plain or not."""

    request: SendMessage  # decoded header fields
    body: bytes  # of one message, or of a batch
    opaque: int  # repeated by the response
    is_one_way: bool  # gets no response
    form: int  # JSON or binary header, that of the response as well
    end: int  # of the frame, in the data


class _Message(msgspec.Struct, frozen=True, gc=False):
    """A message of a plain send: a batch has several."""

    flag: int
    body: bytes
    properties: str  # as stored
    encoded: bytes  # the same in UTF-8
    tags_code: int


class PythonSendEncoder:
    """Encodes runs of plain sends. [SendEncoder]"""

    frames_max = FRAMES_MAX

    def __init__(self, settings: SendSettings) -> None:
        self._settings = settings
        self._fields = {"MSG_REGION": settings.region, "TRACE_ON": "true" if settings.trace_on else "false"}
        self._json = _json_response(self._fields, settings.store_host)

    def encode(
        self, data: bytes, position: int, born_host: bytes, log_end: LogEnd, next_offset: Callable[[str, int], int]
    ) -> SendRun:
        """Encode the plain sends in `data` from `position` on. [SendEncoder.encode]"""
        settings = self._settings
        run = _RunBuilder(settings, born_host, log_end, next_offset)
        responses: list[bytes] = []
        sends = 0
        while sends < FRAMES_MAX:
            send = _parse(data, position, settings.header_max)
            if send is None:
                break
            messages = _plain_messages(send, settings)
            if not messages or (placed := run.add(send.request, messages)) is None:
                break
            position = send.end
            sends += 1
            if not send.is_one_way:
                responses.append(self._response(send, *placed))
        return SendRun(position, sends, b"".join(run.records), run.queue_runs(), run.keys(), b"".join(responses))

    def _response(self, send: _Send, offsets: list[int], number: int) -> bytes:
        """Return the response to messages that are stored at `offsets`, the first of them with `number`."""
        queue_id = send.request.queue_id
        if len(offsets) == 1 and send.form == JSON_FORM:
            header = self._json % (offsets[0], queue_id, number, send.opaque)
            return PREFIX.pack(4 + len(header), len(header)) + header
        message_ids = ",".join([ids.offset_message_id(self._settings.store_host, offset) for offset in offsets])
        fields = self._fields | {"msgId": message_ids, "queueId": str(queue_id), "queueOffset": str(number)}
        return commands.encode(0, opaque=send.opaque, flag=RESPONSE, fields=fields, form=send.form)[0]


class _RunBuilder:
    """Records of a run and what is derived from them."""

    def __init__(
        self, settings: SendSettings, born_host: bytes, log_end: LogEnd, next_offset: Callable[[str, int], int]
    ) -> None:
        self.records: list[bytes] = []  # next to each other in the log
        self._store_host = settings.store_host  # of the broker, in each record
        self._is_indexed = settings.is_indexed  # whether keys are wanted
        self._born_host = born_host  # of the client, in each record
        self._offset, room, self._store_ms = log_end  # of the next record
        self._end = self._offset + room  # no record may exceed this offset
        self._next_offset = next_offset  # called for the first record of each queue
        self._queues: dict[tuple[str, int], _OpenQueue] = {}  # by topic and queue id
        self._keyed: list[tuple[str, str, int, int]] = []  # what `KeyHashes` hashes

    def add(self, request: SendMessage, messages: list[_Message]) -> tuple[list[int], int] | None:
        """Add the messages of a send; return their offsets and the number of the first, or None if they cannot be added."""
        key = (request.topic, request.queue_id)
        queue = self._queues.get(key)
        if queue is None:
            number = self._next_offset(*key) if request.queue_id >= 0 else -1
            if number < 0:
                return None
            queue = self._queues[key] = _OpenQueue(request.topic, number)
        reconsume_times = 0 if request.batch else request.reconsume_times or 0
        first, offset, offsets, records = queue.next_offset, self._offset, [], []
        for number, message in enumerate(messages, first):
            record = encode_v4(
                queue.topic, message.body, message.encoded, request.queue_id, number, offset, request.born_ms,
                self._born_host, self._store_ms, self._store_host, message.flag, request.sys_flag, reconsume_times, 0,
            )  # fmt: skip
            offsets.append(offset)
            records.append(record)
            offset += len(record)
        if offset > self._end:
            return None
        self.records += records
        for message, record, start in zip(messages, records, offsets, strict=True):
            queue.entries.append(ENTRY.pack(start, len(record), message.tags_code))
            if self._is_indexed:
                self._keyed.append((request.topic, message.properties, start, self._store_ms))
        queue.next_offset += len(messages)
        queue.sends += 1
        queue.size += offset - self._offset
        self._offset = offset
        return offsets, first

    def queue_runs(self) -> list[QueueRun]:
        return [
            QueueRun(topic, queue_id, b"".join(queue.entries), queue.sends, queue.size)
            for (topic, queue_id), queue in self._queues.items()
            if queue.sends
        ]

    def keys(self) -> bytes:
        return _hash_keys(self._keyed)


class _OpenQueue:
    """What a run has appended to one queue so far."""

    __slots__ = ("entries", "next_offset", "sends", "size", "topic")

    def __init__(self, topic: str, next_offset: int) -> None:
        self.topic = topic.encode()
        self.next_offset = next_offset
        self.entries: list[bytes] = []
        self.sends = self.size = 0


_hash_keys = KeyHashes().hash_keys


# --- frames ---


def _parse(data: bytes, position: int, header_max: int) -> _Send | None:
    """Return the send at `position`; None if the frame is incomplete, not a send, or invalid."""
    if len(data) - position < PREFIX_SIZE:
        return None
    length, form_and_header = PREFIX.unpack_from(data, position)
    header_size, form = form_and_header & 0xFFFFFF, form_and_header >> 24
    end = position + 4 + length
    if not 4 <= length <= FRAME_MAX - 4 or end > len(data) or header_size > min(length - 4, header_max):
        return None
    start = position + PREFIX_SIZE
    if form == JSON_FORM and data.startswith(_V2_STARTS, start):
        header_end = start + header_size
        try:
            command = _decode_json(data[start:header_end])
        except fastjson.UNREADABLE:
            return None
        if command.code not in SEND_CODES or command.flag & RESPONSE:  # `code` may occur twice
            return None
        return _Send(command.fields, data[header_end:end], command.opaque, bool(command.flag & ONE_WAY), form, end)
    if form == BINARY_FORM or data.startswith(JSON_STARTS, start):
        return _parse_slowly(Frame(form, data[start : start + header_size], data[start + header_size : end]), end)
    return None


def _parse_slowly(frame: Frame, end: int) -> _Send | None:
    """Return a send in a header form that clients rarely use, decoded like every other request."""
    if frame.form == BINARY_FORM and not frame.header.startswith(BINARY_STARTS):
        return None
    try:
        command = commands.decode(frame)
        if command.code not in SEND_CODES or command.flag & RESPONSE:
            return None
        names = LONG_NAMES if command.code == RequestCode.SEND_MESSAGE else None
        request = decode_header(command, SendMessage, names)
    except ProtocolError:
        return None
    return _Send(request, command.body, command.opaque, command.is_one_way, frame.form, end)


# --- messages ---


def _plain_messages(send: _Send, settings: SendSettings) -> list[_Message] | None:
    """Return the messages of a send; None if it is not plain."""
    request = send.request
    if request.sys_flag & TRANSACTION_MASK or len(send.body) > settings.body_max:
        return None
    property_map = properties_text.decode(request.properties) if request.properties else {}
    if property_map.get(WAIT) == "false":
        return None
    if request.batch:
        return _batch_messages(send.body, property_map, settings)
    property_map.pop(WAIT, None)
    message = _message(request.flag, send.body, property_map, settings)
    return [message] if message is not None else None


def _batch_messages(body: bytes, common: dict[str, str], settings: SendSettings) -> list[_Message] | None:
    messages: list[_Message] = []
    size = 0
    try:
        entries = batch.decode(body)
    except ProtocolError:
        return None
    for entry in entries:
        # The properties of the request hold for each message of the batch and win over its own.
        property_map = properties_text.decode(entry.properties)
        property_map.update(common)
        message = _message(entry.flag, entry.body, property_map, settings)
        if message is None:
            return None
        size += len(message.body) + len(message.properties)
        if size > batch.STORED_MAX:
            return None
        messages.append(message)
    return messages


def _message(flag: int, body: bytes, property_map: dict[str, str], settings: SendSettings) -> _Message | None:
    """Return a message with the properties that are stored; None if one of them is exceptional, or all are too long."""
    if not settings.exceptional.isdisjoint(property_map):
        return None
    property_map[CLUSTER] = settings.cluster
    text = properties_text.join(property_map)
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return None
    if len(encoded) > properties_text.SIZE_MAX:
        return None
    tags = property_map.get(TAGS)
    return _Message(flag, body, text, encoded, java_hash(tags) if tags else 0)


# --- responses ---


def _json_response(fields: dict[str, str], store_host: bytes) -> bytes:
    """Return the header of a response as a format for offset, queue id, number and opaque."""
    (frame,) = commands.encode(0, opaque=0, flag=RESPONSE, fields=fields)
    header = frame[PREFIX_SIZE:].replace(b"%", b"%%")
    end = header.rindex(b'},"flag":')
    rest = header[end:].replace(b'"opaque":0', b'"opaque":%d')
    message_id = store_host.hex().upper().encode() + b"%016X"
    return header[:end] + b',"msgId":"' + message_id + b'","queueId":"%d","queueOffset":"%d"' + rest
