"""Responses to plain sends: those to single messages are filled into a template."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

from ariane.kernels.sends.send_turn import SendSettings
from ariane.model import ids
from ariane.protocol import command as commands
from ariane.protocol.command import RESPONSE
from ariane.protocol.frame import BINARY_FORM, JSON_FORM, PREFIX

_ID_SIZE = 32  # characters of a message id: host and offset in hexadecimal
_DIGITS_MAX = 40  # of a queue id, a number in a queue and an opaque together, and one more
_BEFORE_QUEUE_ID, _BEFORE_NUMBER = '","queueId":"', '","queueOffset":"'
_I32 = Struct(">i")
# In a ROCKETMQ header without a remark: positions of opaque, length of the extFields, first of them.
_OPAQUE_AT, _SIZE_AT, _FIELDS_AT = 5, 17, 21


class SendResponses:
    """Writes responses as Latin-1 texts, which are formatted faster than bytes."""

    def __init__(self, settings: SendSettings) -> None:
        self._store_host = settings.store_host  # first half of each message id
        # Fields that all responses have.
        self._fields = {"MSG_REGION": settings.region, "TRACE_ON": "true" if settings.trace_on else "false"}
        # A response in JSON: up to the offset, by the count of its digits; from the number to the opaque; the rest.
        self._json_starts, self._before_opaque, self._after_opaque = self._json_parts()
        # One in the ROCKETMQ form: a format, and the size of its fields without digits.
        self._binary, self._binary_size = self._binary_template()

    def single(self, form: int, opaque: str, queue_id: str, offset: int, number: int) -> tuple[str, ...]:
        """Return the response to one message, stored at `offset` as `number` of its queue, in parts.

        Args:
            form: JSON or ROCKETMQ header.
            opaque: That of the request as it was written: digits in JSON, else four bytes.
            queue_id: In digits.
        """
        digits = str(number)
        if form == JSON_FORM:
            start = self._json_starts[len(queue_id) + len(digits) + len(opaque)]
            return (
                start, f"{offset:016X}", _BEFORE_QUEUE_ID, queue_id, _BEFORE_NUMBER, digits, self._before_opaque, opaque,
                self._after_opaque,
            )  # fmt: skip
        size = self._binary_size + len(queue_id) + len(digits)
        header = self._binary % (
            opaque, _length(size), offset, _length(len(queue_id)), queue_id, _length(len(digits)), digits
        )  # fmt: skip
        return _prefix(form, len(header)), header

    def response(self, form: int, opaque: int, queue_id: int, offsets: list[int], number: int) -> str:
        """Return the response to messages that are stored at `offsets`, the first as `number` of their queue."""
        message_ids = ",".join([ids.offset_message_id(self._store_host, offset) for offset in offsets])
        return self._encode(form, opaque, {"msgId": message_ids, "queueId": str(queue_id), "queueOffset": str(number)})

    def _encode(self, form: int, opaque: int, stored: dict[str, str]) -> str:
        frame = commands.encode(0, opaque=opaque, flag=RESPONSE, fields=self._fields | stored, form=form)
        return b"".join(frame).decode("latin-1")

    def _json_parts(self) -> tuple[list[str], str, str]:
        """Return a JSON response up to the offset by the count of its digits, and what is before and after its opaque."""
        header = self._encode(JSON_FORM, 0, {"msgId": ""})[PREFIX.size :]
        start, _, end = header.rpartition('"},"flag":')
        start += self._store_host.hex().upper()
        before, _, after = f'"}},"flag":{end}'.partition('"opaque":0')
        before += '"opaque":'
        size = sum(map(len, (start, _BEFORE_QUEUE_ID, _BEFORE_NUMBER, before, after))) + _ID_SIZE // 2
        return [_prefix(JSON_FORM, size + count) + start for count in range(_DIGITS_MAX)], before, after

    def _binary_template(self) -> tuple[str, int]:
        """Return a ROCKETMQ header as a format for the arguments in `single`, and the size of its fields without digits."""
        header = self._encode(BINARY_FORM, 0, {"msgId": "", "queueId": "", "queueOffset": ""})[PREFIX.size :]
        size = len(header) - _FIELDS_AT + _ID_SIZE
        before, fields = header[:_OPAQUE_AT] + "%s" + header[_OPAQUE_AT + 4 : _SIZE_AT] + "%s", header[_FIELDS_AT:]
        fields, _, _ = fields.replace("%", "%%").rpartition("msgId")
        message_id = f"msgId{_length(_ID_SIZE)}{self._store_host.hex().upper()}%016X"
        return f"{before}{fields}{message_id}\0\x07queueId%s%s\0\x0bqueueOffset%s%s", size


@lru_cache(maxsize=4096)
def _prefix(form: int, header_size: int) -> str:
    return PREFIX.pack(4 + header_size, form << 24 | header_size).decode("latin-1")


@lru_cache(maxsize=4096)
def _length(size: int) -> str:
    return _I32.pack(size).decode("latin-1")
