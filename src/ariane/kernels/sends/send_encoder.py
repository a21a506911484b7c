"""The Python implementation of `SendEncoder`: one record, one entry, one response per message.

    frame ─┬→ SendLayouts (a header as those before it) ────────────────────────────┬→ _RunBuilder (records by queue) → SendRun
           └→ _Send (decoded header) → _Message (properties as stored) → a new layout ┘

The handler of single sends is the reference: each function here decides like one of its steps, or leaves the frame to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from ariane.errors import ProtocolError
from ariane.kernels.key_hashes import KeyHashes, KeyValues
from ariane.kernels.sends.send_layouts import HEADER_AT, SendLayout, SendLayouts
from ariane.kernels.sends.send_responses import SendResponses
from ariane.kernels.sends.send_turn import (
    BINARY_STARTS,
    JSON_STARTS,
    SEND_CODES,
    LogEnd,
    QueueRun,
    SendRun,
    SendSettings,
)
from ariane.model.hashes import java_hash
from ariane.model.message import CLUSTER, KEYS, TAGS, TRANSACTION_MASK, UNIQ_KEY, WAIT
from ariane.protocol import command as commands
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import ONE_WAY, RESPONSE, Int32
from ariane.protocol.frame import BINARY_FORM, FRAME_MAX, JSON_FORM, PREFIX, PREFIX_SIZE, Frame
from ariane.protocol.records import batch
from ariane.protocol.records import properties as properties_text
from ariane.protocol.records.properties import SIZE_MAX
from ariane.protocol.records.queue_entry import ENTRY
from ariane.protocol.records.record import encode_v4
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


class _Message(msgspec.Struct, frozen=True, gc=False):
    """A message of a plain send: a batch has several."""

    flag: int  # the application's
    body: bytes  # without what a batch puts around it
    properties: bytes  # as stored
    unique_key: str  # value of UNIQ_KEY; empty if there is none
    words: str  # of KEYS
    tags: str  # of TAGS


class PythonSendEncoder:
    """Encodes runs of plain sends. [SendEncoder]"""

    frames_max = FRAMES_MAX

    def __init__(self, settings: SendSettings) -> None:
        self._settings = settings
        self._layouts = SendLayouts(settings.cluster)  # of headers that were parsed before
        self._responses = SendResponses(settings)

    def encode(
        self, data: bytes, position: int, born_host: bytes, log_end: LogEnd, next_offset: Callable[[str, int], int]
    ) -> SendRun:
        """Encode the plain sends in `data` from `position` on. [SendEncoder.encode]"""
        header_max, body_max = self._settings.header_max, self._settings.body_max
        run = _RunBuilder(self._settings, self._responses, born_host, log_end, next_offset)
        match = self._layouts.match
        sends = 0
        while sends < FRAMES_MAX and len(data) - position >= PREFIX_SIZE:
            length, form_and_size = PREFIX.unpack_from(data, position)
            header_size = form_and_size & 0xFFFFFF
            end = position + 4 + length
            if header_size > header_max or header_size + 4 > length or length > FRAME_MAX - 4 or end > len(data):
                break
            body_at = position + PREFIX_SIZE + header_size
            if end - body_at > body_max:
                break
            header, body = data[position + HEADER_AT : body_at].decode("latin-1"), data[body_at:end]
            matched = match(header)
            if not (run.add_known(*matched, body) if matched is not None else self._add_parsed(run, header, body)):
                break
            position = end
            sends += 1
        return run.finish(position, sends)

    def _add_parsed(self, run: _RunBuilder, header: str, body: bytes) -> bool:
        """Parse the header of a send and add the send to a run; return False if it is not plain or does not fit."""
        send = _parse(ord(header[0]), header[4:].encode("latin-1"), body)
        messages = None if send is None else _plain_messages(send, self._settings)
        if send is None or not messages or not run.add_parsed(send, messages):
            return False
        if not send.request.batch:
            self._layouts.learn(header, send.request, send.is_one_way, messages[0].properties)
        return True


class _RunBuilder:
    """Records of a run, what is derived from them, and responses."""

    def __init__(
        self,
        settings: SendSettings,
        responses: SendResponses,
        born_host: bytes,
        log_end: LogEnd,
        next_offset: Callable[[str, int], int],
    ) -> None:
        self._store_host = settings.store_host  # of the broker, in each record
        self._is_indexed = settings.is_indexed  # whether keys are wanted
        self._writer = responses  # of responses
        self._born_host = born_host  # of the client, in each record
        self._offset, room, self._store_ms = log_end  # of the next record
        self._end = self._offset + room  # no record may exceed this offset
        self._next_offset = next_offset  # called for the first record of each queue
        self._queues: dict[tuple[str, int], _OpenQueue] = {}  # by topic and queue id
        self._known_queues: dict[tuple[str, str], _OpenQueue] = {}  # the same by the text of the queue id
        self._records: list[bytes] = []  # next to each other in the log
        self._keys: list[KeyValues] = []
        self._responses: list[str] = []  # in Latin-1

    def add_known(self, layout: SendLayout, match: re.Match[str], body: bytes) -> bool:
        """Add a send whose header has a known layout; return False if it is not plain or does not fit."""
        topic, queue_id, born_ms, opaque, unique_key, words, tags = match.group(*layout.fields)
        properties = (layout.properties % match.group(*layout.values)).encode()
        if len(properties) > SIZE_MAX:
            return False
        queue = self._known_queues.get((topic, queue_id))
        if queue is None:
            queue = self._queue(topic, int(queue_id))
            if queue is None:
                return False
            self._known_queues[topic, queue_id] = queue
        offset, number, request = self._offset, queue.next_offset, layout.request
        record = encode_v4(
            queue.topic, body, properties, queue.queue_id, number, offset, int(born_ms), self._born_host, self._store_ms,
            self._store_host, request.flag, request.sys_flag, request.reconsume_times or 0, 0,
        )  # fmt: skip
        size = len(record)
        if offset + size > self._end:
            return False
        self._records.append(record)
        self._offset = offset + size
        queue.next_offset = number + 1
        queue.sends += 1
        queue.size += size
        queue.entries.append(ENTRY.pack(offset, size, java_hash(tags) if tags else 0))
        if self._is_indexed:
            self._keys.append((topic, unique_key, words, offset))
        if not layout.is_one_way:
            self._responses += self._writer.single(layout.form, opaque, queue_id, offset, number)
        return True

    def add_parsed(self, send: _Send, messages: list[_Message]) -> bool:
        """Add the messages of a send; return False if it is not plain or they do not fit."""
        request = send.request
        queue = self._queue(request.topic, request.queue_id)
        if queue is None:
            return False
        reconsume_times = 0 if request.batch else request.reconsume_times or 0
        first, offset, offsets, records = queue.next_offset, self._offset, [], []
        for number, message in enumerate(messages, first):
            record = encode_v4(
                queue.topic, message.body, message.properties, request.queue_id, number, offset, request.born_ms,
                self._born_host, self._store_ms, self._store_host, message.flag, request.sys_flag, reconsume_times, 0,
            )  # fmt: skip
            offsets.append(offset)
            records.append(record)
            offset += len(record)
        if offset > self._end:
            return False
        self._records += records
        for message, record, start in zip(messages, records, offsets, strict=True):
            queue.entries.append(ENTRY.pack(start, len(record), java_hash(message.tags) if message.tags else 0))
            self._keys.append((request.topic, message.unique_key, message.words, start))
        queue.next_offset += len(messages)
        queue.sends += 1
        queue.size += offset - self._offset
        self._offset = offset
        if not send.is_one_way:
            self._responses.append(self._writer.response(send.form, send.opaque, request.queue_id, offsets, first))
        return True

    def _queue(self, topic: str, queue_id: int) -> _OpenQueue | None:
        """Return a queue; None if a send to it is not plain."""
        queue = self._queues.get((topic, queue_id))
        if queue is None and queue_id >= 0 and (number := self._next_offset(topic, queue_id)) >= 0:
            queue = self._queues[topic, queue_id] = _OpenQueue(topic, queue_id, number)
        return queue

    def finish(self, position: int, sends: int) -> SendRun:
        queues = [
            QueueRun(topic, queue_id, b"".join(queue.entries), queue.sends, queue.size)
            for (topic, queue_id), queue in self._queues.items()
            if queue.sends
        ]
        keys = _key_hashes.hash_values(self._keys) if self._is_indexed else b""
        responses = "".join(self._responses).encode("latin-1")
        return SendRun(position, sends, b"".join(self._records), queues, keys, responses)


class _OpenQueue:
    """What a run has appended to one queue so far."""

    __slots__ = ("entries", "next_offset", "queue_id", "sends", "size", "topic")

    def __init__(self, topic: str, queue_id: int, next_offset: int) -> None:
        self.topic = topic.encode()  # as in records
        self.queue_id = queue_id  # as in records
        self.next_offset = next_offset  # number of the next record
        self.entries: list[bytes] = []  # of the appended records
        self.sends = 0  # frames; a batch is one
        self.size = 0  # bytes of the records


_key_hashes = KeyHashes()


# --- frames ---


def _parse(form: int, header: bytes, body: bytes) -> _Send | None:
    """Return the send in a frame; None if it is not a send, or invalid."""
    if form == JSON_FORM and header.startswith(_V2_STARTS):
        try:
            command = _decode_json(header)
        except fastjson.UNREADABLE:
            return None
        if command.code not in SEND_CODES or command.flag & RESPONSE:  # `code` may occur twice
            return None
        return _Send(command.fields, body, command.opaque, bool(command.flag & ONE_WAY), form)
    if form == BINARY_FORM or header.startswith(JSON_STARTS):
        return _parse_slowly(Frame(form, header, body))
    return None


def _parse_slowly(frame: Frame) -> _Send | None:
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
    return _Send(request, command.body, command.opaque, command.is_one_way, frame.form)


# --- messages ---


def _plain_messages(send: _Send, settings: SendSettings) -> list[_Message] | None:
    """Return the messages of a send; None if it is not plain."""
    request = send.request
    if request.sys_flag & TRANSACTION_MASK:
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
    common.pop(UNIQ_KEY, None)
    size = 0
    try:
        entries = batch.decode(body)
    except ProtocolError:
        return None
    if batch.exceeds_stored_max(entries, common):
        return None
    for entry in entries:
        # The properties of the request hold for each message of the batch and win over its own, except the id of the batch.
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
    try:
        properties = properties_text.join(property_map).encode()
    except UnicodeEncodeError:
        return None
    if len(properties) > SIZE_MAX:
        return None
    get = property_map.get
    return _Message(flag, body, properties, get(UNIQ_KEY, ""), get(KEYS, ""), get(TAGS, ""))
