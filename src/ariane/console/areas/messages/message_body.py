"""Bodies and properties of messages as texts for people: text, JSON or hex, bounded. Pure; templates escape what it returns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

from ariane.console.areas.messages.body_encoding import ENCODINGS, BodyEncoding, decode, guess_encoding
from ariane.console.limits.access import MASKED
from ariane.console.texts.translation import gettext_noop
from ariane.console.texts.visible_text import visible
from ariane.console.web.view_model import View
from ariane.model import message as names
from ariane.model.message import ReceivedMessage

BodyFormat = Literal["text", "json", "hex"]

TEXT_BYTES = 64 * 1024  # shown of a text; the download has everything
JSON_BYTES = 1024 * 1024  # larger bodies are not parsed
HEX_BYTES = 4 * 1024
HEX_ROW = 16
PREVIEW_CHARS = 120
JSON_DEPTH = 200  # deeper documents are shown as text

# What the properties of clients and brokers mean.
EXPLANATIONS = {
    MASKED: gettext_noop("Contents that this account may not see"),
    names.KEYS: gettext_noop("Business keys, separated by spaces"),
    names.TAGS: gettext_noop("Tag, by which subscriptions filter"),
    names.WAIT: gettext_noop("Whether the broker responded only after flush and replication"),
    names.DELAY: gettext_noop("Delay level"),
    names.UNIQ_KEY: gettext_noop("Unique key, which the producer generated"),
    names.CLUSTER: gettext_noop("Cluster that stored the message"),
    names.REAL_TOPIC: gettext_noop("Topic to which a delayed, half or retried message is delivered"),
    names.REAL_QID: gettext_noop("Queue to which a delayed, half or retried message is delivered"),
    names.RETRY_TOPIC: gettext_noop("Topic to which a retried message or dead letter was sent first"),
    names.ORIGIN_MESSAGE_ID: gettext_noop("Offset id of the first record of a retried message"),
    names.RECONSUME_TIME: gettext_noop("Number of deliveries before this record"),
    names.MAX_RECONSUME_TIMES: gettext_noop("Maximum number of redeliveries before the message becomes a dead letter"),
    names.TRAN_MSG: gettext_noop("Half message of a transaction"),
    names.PGROUP: gettext_noop("Producer group of the transaction, which the broker asks for its state"),
    names.CHECK_IMMUNITY_TIME: gettext_noop("Seconds before the first check of the transaction"),
    names.PREPARED_QUEUE_OFFSET: gettext_noop("Queue offset of the half message before"),
    names.CHECK_TIMES: gettext_noop("Number of checks of the transaction"),
    names.INSTANCE_ID: gettext_noop("Namespace instance of the producer"),
    names.START_DELIVER_TIME: gettext_noop("Delivery time in ms since the epoch"),
    names.TIMER_DELIVER_MS: gettext_noop("Delivery time in ms since the epoch"),
    names.TIMER_DELAY_MS: gettext_noop("Delay in ms"),
    names.TIMER_DELAY_SEC: gettext_noop("Delay in seconds"),
    names.TIMER_DEL_UNIQKEY: gettext_noop("Unique key of the delayed message that this one cancels"),
    names.TIMER_OUT_MS: gettext_noop("Time at which the message is due, in ms since the epoch"),
    names.TIMER_CANCELS: gettext_noop("Number of the timer that is cancelled"),
    names.MSG_REGION: gettext_noop("Region of the broker"),
    names.TRACE_ON: gettext_noop("Whether consumers trace the message"),
    names.CORRELATION_ID: gettext_noop("Joins a request with its reply"),
    names.REPLY_TO_CLIENT: gettext_noop("Client that waits for the reply"),
    names.TTL: gettext_noop("Time in ms for which the requester waits"),
    names.MSG_TYPE: gettext_noop("Kind of message, for example a reply"),
    names.PUSH_REPLY_TIME: gettext_noop("When the broker sent the reply to the requester, in ms since the epoch"),
    names.ARRIVE_TIME: gettext_noop("When the reply reached the broker, in ms since the epoch"),
    "MIN_OFFSET": gettext_noop("First offset of the queue when the message was read"),
    "MAX_OFFSET": gettext_noop("Offset after the last message of the queue when the message was read"),
    "CONSUME_START_TIME": gettext_noop("When the consumer began to process the message, in ms since the epoch"),
    "1ST_POP_TIME": gettext_noop("When a client of version 5 first received the message, in ms since the epoch"),
    "INNER_NUM": gettext_noop("Number of messages in a batch"),
    "INNER_BASE": gettext_noop("Offset of the first message of a batch"),
    "__SHARDINGKEY": gettext_noop("Key of ordered messages: those with the same key are in one queue"),
    "__transactionId__": gettext_noop("Id of the transaction"),
    "DLQ_ORIGIN_TOPIC": gettext_noop("Original topic of a dead letter"),
    "DLQ_ORIGIN_MESSAGE_ID": gettext_noop("Id of the message that became this dead letter"),
    "REPLAYED_FROM": gettext_noop("Record that was resent: topic, broker, queue, offset and message id"),
}


class MessagePropertyRow(View):
    """A property of a message."""

    name: str
    value: str
    """Its value; control characters are shown as escapes."""
    explanation: str
    """Meaning of a property of clients and brokers; empty for those of applications."""


class BodyView(View):
    """A body, as far as it is shown."""

    size: int
    """Bytes of the whole body, decompressed."""
    format: BodyFormat
    """How `content` shows it."""
    formats: list[BodyFormat]
    """In which ways the body can be shown."""
    encoding: BodyEncoding | None
    """Encoding in which it is read; null: it is not text."""
    is_guessed: bool
    """Whether the encoding is a guess: the body is not UTF-8, and none was chosen."""
    is_ascii: bool
    """Whether the body is the same in all encodings."""
    content: str
    """The body or its beginning: text, indented JSON, or rows of hex digits with their offsets."""
    shown: int
    """Number of bytes that `content` shows."""
    error: str
    """Why the body could not be decompressed; empty if it could."""

    @property
    def encodings(self) -> dict[BodyEncoding, str]:
        """Names of the encodings that the reader can choose."""
        return ENCODINGS

    @property
    def is_truncated(self) -> bool:
        """Whether the content is only the beginning."""
        return self.shown < self.size


def body_view(
    message: ReceivedMessage, wanted: BodyFormat | None = None, encoding: BodyEncoding | None = None
) -> BodyView:
    """Return a body in a format; by default as JSON or text if it is one, otherwise as hex.

    Args:
        wanted: The format; one that does not fit the body is replaced by the default.
        encoding: Encoding to read it in, with a mark for each invalid byte; None: UTF-8, or a guess if it is not.
    """
    body = message.body
    text, used = (None, None) if message.body_error else read_text(body[:TEXT_BYTES], encoding, len(body) > TEXT_BYTES)
    formats: list[BodyFormat] = ["hex"]
    document = None
    if text is not None:
        formats.insert(0, "text")
        document = _parsed(body if used == "utf-8" else text.encode() if len(body) <= TEXT_BYTES else b"")
        if document is not None:
            formats.insert(0, "json")
    chosen = wanted if wanted in formats else formats[0]
    if chosen == "json" and document is not None:
        content, written = _indented(document)
        shown = len(body) if written is None else min(written, len(body) - 1)
    elif chosen == "text" and text is not None:
        content, shown = text, min(len(body), TEXT_BYTES)
    else:
        content, shown = hex_rows(body[:HEX_BYTES]), min(len(body), HEX_BYTES)
    head = body[:JSON_BYTES]
    return BodyView(
        size=len(body),
        format=chosen,
        formats=formats,
        encoding=used,
        is_guessed=encoding is None and used not in (None, "utf-8"),
        is_ascii=head.isascii() and b"\0" not in head,
        content=visible(content),
        shown=shown,
        error=message.body_error,
    )


def read_text(
    body: bytes, encoding: BodyEncoding | None = None, is_part: bool = False
) -> tuple[str | None, BodyEncoding | None]:
    """Return a body as text, and the encoding: the chosen one, UTF-8 or a guess. (None, None): it is not text.

    Args:
        encoding: The encoding that the reader chose; bytes that are invalid in it are shown as U+FFFD.
        is_part: Whether they are the beginning of a body, which may end within a character.
    """
    if encoding is not None:
        return decode(body, encoding, errors="replace"), encoding
    text = text_of(body, is_part=is_part)
    if text is not None:
        return text, "utf-8"
    guessed = guess_encoding(body, is_part=is_part)
    return (None, None) if guessed is None else (decode(body, guessed, is_part=is_part), guessed)


def text_of(body: bytes, *, is_part: bool = False) -> str | None:
    """Return a body, or with `is_part` the beginning of one, as text; None if it is not UTF-8, or contains NUL."""
    return None if b"\0" in body else decode(body, "utf-8", is_part=is_part)


def preview(body: bytes) -> str:
    """Return the beginning of a body in one line; bytes that are not a text as hex."""
    head = body[: PREVIEW_CHARS * 4]
    text, _ = read_text(head, is_part=len(body) > len(head))
    if text is None:
        return body[: PREVIEW_CHARS // 3].hex(" ")
    return visible(" ".join(text[: PREVIEW_CHARS + 1].split()))[:PREVIEW_CHARS]


def hex_rows(body: bytes) -> str:
    """Return bytes as rows of an offset, 16 bytes in hex, and their ASCII characters."""
    rows = []
    for start in range(0, len(body), HEX_ROW):
        row = body[start : start + HEX_ROW]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{start:08x}  {row.hex(' '):<{HEX_ROW * 3 - 1}}  {letters}")
    return "\n".join(rows)


def property_rows(message: ReceivedMessage) -> list[MessagePropertyRow]:
    """Return the properties of a message: the application's first, then those of clients and brokers, by name."""
    rows = [
        MessagePropertyRow(name=visible(name), value=visible(value), explanation=EXPLANATIONS.get(name, ""))
        for name, value in message.properties.items()
    ]
    return sorted(rows, key=lambda row: (row.explanation != "", row.name))


def _parsed(body: bytes) -> dict[str, object] | list[object] | None:
    """Return a JSON document, numbers as `_Literal`; None if the body is not an object or array, too large or nested too deeply."""
    head = body[:64].lstrip()[:1]
    if head not in (b"{", b"[") or len(body) > JSON_BYTES:
        return None
    try:
        # Numbers are texts here: a float would lose the digits of a long one.
        document = json.loads(body, parse_float=_Literal, parse_int=_Literal, parse_constant=_Literal)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict | list) and not _is_deeper(document, JSON_DEPTH) else None


def _is_deeper(document: object, limit: int) -> bool:
    level = [document]
    for _ in range(limit + 1):
        items = (item for value in level for item in (value.values() if isinstance(value, dict) else value))  # type: ignore[attr-defined]
        level = [item for item in items if isinstance(item, dict | list) and item]
    return bool(level)


class _Literal(str):
    """A number as it is written in the document."""

    __slots__ = ()


def _indented(document: object) -> tuple[str, int | None]:
    """Return a document with indentation, at most TEXT_BYTES characters, and the bytes of what was written; None: all of it."""
    pieces: list[str] = []
    length = written = 0
    for space, piece in _pieces(document, 0):
        pieces += (space, piece)
        length += len(space) + len(piece)
        written += len(piece.encode(errors="surrogatepass"))
        if length > TEXT_BYTES:
            return "".join(pieces)[:TEXT_BYTES], written
    return "".join(pieces), None


def _pieces(value: object, depth: int) -> Iterator[tuple[str, str]]:
    """Yield a document as pairs of white space and what follows it. A document of any size is written piece by piece."""
    inner, outer = "\n" + "  " * (depth + 1), "\n" + "  " * depth
    if isinstance(value, dict) and value:
        for number, (name, item) in enumerate(value.items()):
            yield "", "," if number else "{"
            yield inner, _quoted(name) + ": "
            yield from _pieces(item, depth + 1)
        yield outer, "}"
    elif isinstance(value, list) and value:
        for number, item in enumerate(value):
            yield "", "," if number else "["
            yield inner, ""
            yield from _pieces(item, depth + 1)
        yield outer, "]"
    else:
        yield "", str(value) if isinstance(value, _Literal) else _quoted(value)


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
