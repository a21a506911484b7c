"""Trace text: the body of a message on the trace topic, both ways. [TraceDataEncoder]

    record = fields joined by 0x01, ended by 0x02          absent: the four letters null
    Pub             time region group topic id tags keys storeHost bodyLength cost type offsetId success [clientHost]
    SubBefore       time region group requestId id retryTimes keys [clientHost]
    SubAfter        requestId id cost success keys contextCode [time group]
    EndTransaction  time region group topic id tags keys storeHost type transactionId state fromCheck
    Recall          time region group topic id success

Written are the layouts that every 4.x and 5.x reader understands (14, 8, 9 and 13 fields with the name), and Recall of 5.3.2 (7),
which earlier readers ignore. Read is whatever clients from 4.4 to 5.3 and those in Go and C++ write: Pub 12–15, SubBefore 8–9,
SubAfter 6–9, Recall 7, and records that run together: with access channel CLOUD, 4.9.5 to 5.3.0 write no end after a SubAfter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ariane.model.trace_event import (
    ConsumeEndEvent,
    ConsumeStartEvent,
    EndTransactionEvent,
    PublishEvent,
    RecallEvent,
    TraceEvent,
)

FIELD_END = "\x01"
RECORD_END = "\x02"
ABSENT = "null"

# A separator within a value would make other fields of it, and a reader of 4.9.4 would drop the whole message.
_SAFE = str.maketrans({FIELD_END: " ", RECORD_END: " "})


class TraceReject(NamedTuple):
    """A record that cannot be decoded, and why."""

    text: str
    reason: str


def encode(event: TraceEvent) -> str:
    """One record with its end."""
    if entry := _TEXTS.get(type(event)):
        make_text, separators = entry
        text = make_text(event)
        if text.count(FIELD_END) == separators and text.count(RECORD_END) == 1:
            return text
    fields = [RECORD_TYPES[type(event)], *map(_text, _LAYOUTS[type(event)](event))]
    return FIELD_END.join(field.translate(_SAFE) for field in fields) + RECORD_END


def keys(event: TraceEvent) -> tuple[str, ...]:
    """Return the keys by which the trace message can be found: the message's id, and its business keys.

    White space separates keys, so an id that contains some, which a foreign producer may set, becomes several keys.
    """
    return (*event.message_id.split(), *("" if isinstance(event, RecallEvent) else event.keys).split())


def decode(body: bytes) -> tuple[list[TraceEvent], list[TraceReject]]:
    """The records of a trace message's body. One that is broken does not hide the others."""
    events: list[TraceEvent] = []
    rejects = []
    for fields in _records(body.decode("utf-8", "replace")):
        text = FIELD_END.join(fields)
        reader = _READERS.get(fields[0])
        if reader is None:
            rejects.append(TraceReject(text, f"unknown record type {fields[0]!r}"))
            continue
        try:
            events.append(reader(fields))
        except IndexError:
            rejects.append(TraceReject(text, f"{fields[0]} with {len(fields)} fields is too short"))
        except ValueError as error:
            rejects.append(TraceReject(text, f"{fields[0]}: {error}"))
    return events, rejects


def terminated(text: str) -> str:
    """Return the text of a trace message with an end after each record: some clients omit it after a SubAfter."""
    records = (fields for record in text.split(RECORD_END) for fields in _apart(record))
    return RECORD_END.join(map(FIELD_END.join, records))


# --- writing -----------------------------------------------------------------------------------------------------------


# Records whose texts contain no separator, as almost all: every message with traces pays for them.


def _pub_text(e: PublishEvent) -> str:
    return (
        f"Pub{FIELD_END}{e.timestamp_ms}{FIELD_END}{e.region or ABSENT}{FIELD_END}{e.group or ABSENT}{FIELD_END}"
        f"{e.topic or ABSENT}{FIELD_END}{e.message_id or ABSENT}{FIELD_END}{e.tags or ABSENT}{FIELD_END}"
        f"{e.keys or ABSENT}{FIELD_END}{e.store_host or ABSENT}{FIELD_END}{e.body_length}{FIELD_END}{e.cost_ms}{FIELD_END}"
        f"{e.message_type:d}{FIELD_END}{e.offset_message_id or ABSENT}{FIELD_END}{'true' if e.success else 'false'}{RECORD_END}"
    )


def _before_text(e: ConsumeStartEvent) -> str:
    return (
        f"SubBefore{FIELD_END}{e.timestamp_ms}{FIELD_END}{e.region or ABSENT}{FIELD_END}{e.group or ABSENT}{FIELD_END}"
        f"{e.request_id or ABSENT}{FIELD_END}{e.message_id or ABSENT}{FIELD_END}{e.retry_times}{FIELD_END}"
        f"{e.keys or ABSENT}{RECORD_END}"
    )


def _after_text(e: ConsumeEndEvent) -> str:
    timestamp = ABSENT if e.timestamp_ms is None else e.timestamp_ms
    return (
        f"SubAfter{FIELD_END}{e.request_id or ABSENT}{FIELD_END}{e.message_id or ABSENT}{FIELD_END}{e.cost_ms}{FIELD_END}"
        f"{'true' if e.success else 'false'}{FIELD_END}{e.keys or ABSENT}{FIELD_END}{e.context_code:d}{FIELD_END}{timestamp}"
        f"{FIELD_END}{e.group or ABSENT}{RECORD_END}"
    )


# Kind → its text, and the number of its separators.
_TEXTS: dict[type, tuple[Callable[[Any], str], int]] = {
    PublishEvent: (_pub_text, 13),
    ConsumeStartEvent: (_before_text, 7),
    ConsumeEndEvent: (_after_text, 8),
}


def _text(value: object) -> str:
    """A field; never empty, for Java's split drops empty fields at the end. Separators in it are not replaced."""
    if isinstance(value, str):
        return value or ABSENT
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ABSENT
    return str(int(value)) if isinstance(value, int) else str(value)


# The first field of a record: Java's names of the kinds. [TraceType]
RECORD_TYPES: dict[type, str] = {
    PublishEvent: "Pub",
    ConsumeStartEvent: "SubBefore",
    ConsumeEndEvent: "SubAfter",
    EndTransactionEvent: "EndTransaction",
    RecallEvent: "Recall",
}

_LAYOUTS: dict[type, Callable[[Any], tuple[object, ...]]] = {
    PublishEvent: lambda e: (
        e.timestamp_ms, e.region, e.group, e.topic, e.message_id, e.tags, e.keys, e.store_host, e.body_length, e.cost_ms,
        e.message_type, e.offset_message_id, e.success,
    ),
    ConsumeStartEvent: lambda e: (e.timestamp_ms, e.region, e.group, e.request_id, e.message_id, e.retry_times, e.keys),
    ConsumeEndEvent: lambda e: (
        e.request_id, e.message_id, e.cost_ms, e.success, e.keys, e.context_code, e.timestamp_ms, e.group,
    ),
    EndTransactionEvent: lambda e: (
        e.timestamp_ms, e.region, e.group, e.topic, e.message_id, e.tags, e.keys, e.store_host, e.message_type,
        e.transaction_id, e.state, e.from_check,
    ),
    RecallEvent: lambda e: (e.timestamp_ms, e.region, e.group, e.topic, e.message_id, e.success),
}  # fmt: skip


# --- reading -----------------------------------------------------------------------------------------------------------


SUB_AFTER_UNTIMED = 7  # fields of a SubAfter without time and group


def _records(text: str) -> Iterator[list[str]]:
    """The fields of each record."""
    return (fields for record in text.split(RECORD_END) if record for fields in _apart(record))


def _apart(record: str) -> Iterator[list[str]]:
    """The fields of a record, and of those that run together with it: they stand in place of the time of a SubAfter."""
    fields = record.split(FIELD_END)
    position = 0
    while (
        fields[position] == "SubAfter"
        and len(fields) - position > SUB_AFTER_UNTIMED + 1
        and fields[position + SUB_AFTER_UNTIMED] in _READERS
    ):
        yield fields[position : position + SUB_AFTER_UNTIMED]
        position += SUB_AFTER_UNTIMED
    yield fields[position:]


def _known(text: str) -> str:
    return "" if text == ABSENT else text


def _pub(f: list[str]) -> PublishEvent:
    has_offset_id = len(f) >= 14
    return PublishEvent(
        timestamp_ms=int(f[1]),
        region=_known(f[2]),
        group=_known(f[3]),
        topic=_known(f[4]),
        message_id=_known(f[5]),
        tags=_known(f[6]),
        keys=_known(f[7]),
        store_host=_known(f[8]),
        body_length=int(f[9]),
        cost_ms=int(f[10]),
        message_type=int(f[11]),
        offset_message_id=_known(f[12]) if has_offset_id else "",
        success=f[13 if has_offset_id else 12] == "true" if len(f) >= 13 else True,
        client_host=_known(f[14]) if len(f) >= 15 else "",
    )


def _sub_before(f: list[str]) -> ConsumeStartEvent:
    return ConsumeStartEvent(
        timestamp_ms=int(f[1]),
        region=_known(f[2]),
        group=_known(f[3]),
        request_id=_known(f[4]),
        message_id=_known(f[5]),
        retry_times=int(f[6]),
        keys=_known(f[7]) if len(f) > 7 else "",
        client_host=_known(f[8]) if len(f) > 8 else "",
    )


def _sub_after(f: list[str]) -> ConsumeEndEvent:
    success = f[4] == "true"
    return ConsumeEndEvent(
        request_id=_known(f[1]),
        message_id=_known(f[2]),
        cost_ms=int(f[3]),
        success=success,
        keys=_known(f[5]) if len(f) > 5 else "",
        context_code=int(f[6]) if len(f) > 6 else (0 if success else 4),
        timestamp_ms=int(f[7]) if len(f) > 8 else None,
        group=_known(f[8]) if len(f) > 8 else "",
    )


def _end_transaction(f: list[str]) -> EndTransactionEvent:
    return EndTransactionEvent(
        timestamp_ms=int(f[1]),
        region=_known(f[2]),
        group=_known(f[3]),
        topic=_known(f[4]),
        message_id=_known(f[5]),
        tags=_known(f[6]),
        keys=_known(f[7]),
        store_host=_known(f[8]),
        message_type=int(f[9]),
        transaction_id=_known(f[10]),
        state=_known(f[11]),
        from_check=f[12] == "true",
    )


def _recall(f: list[str]) -> RecallEvent:
    return RecallEvent(
        timestamp_ms=int(f[1]),
        region=_known(f[2]),
        group=_known(f[3]),
        topic=_known(f[4]),
        message_id=_known(f[5]),
        success=f[6] == "true",
    )


_READERS: dict[str, Callable[[list[str]], TraceEvent]] = {
    "Pub": _pub,
    "SubBefore": _sub_before,
    "SubAfter": _sub_after,
    "EndTransaction": _end_transaction,
    "Recall": _recall,
}
