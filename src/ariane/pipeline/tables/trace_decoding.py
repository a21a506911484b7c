"""Trace messages → trace_events and trace_rejects, a micro-batch at a time.

    bodies ─ split ─→ records ─ split ─→ fields ─→ a column per field of each type ─┬ valid ──→ trace_events, a row per message id
                                                                                     └ reason ─→ trace_rejects

The layouts are those of `protocol.trace_codec`. Clients write more or fewer fields, so every field may be absent: a record that
lacks a required field becomes a reject with a reason and does not affect other records. No content may raise an error, because it
would end the query again after every restart: invalid UTF-8 (clients write in their platform's charset) is replaced, and numbers
and times out of range become rejects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ariane.model import clock_offset
from ariane.model.message import UNIQ_KEY
from ariane.pipeline.tables.bucket_columns import buckets_of_messages, buckets_of_times, ms_of_times, with_buckets
from ariane.protocol import trace_codec
from ariane.protocol.trace_codec import ABSENT, FIELD_END, RECORD_END
from ariane.tables import TRACE_EVENTS, TRACE_REJECTS
from ariane.tables.time_buckets import UNIQUE_ID

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]
    Numbers = NDArray[np.int64]

# Minimum number of fields per type, including the type's name.
FIELDS_MIN = {"Pub": 12, "SubBefore": 7, "SubAfter": 5, "EndTransaction": 13, "Recall": 7}
SUB_AFTER_TIMED = 9  # with fewer fields a SubAfter has neither time nor group

# Index of each field per record type. (`_events` handles fields whose index depends on more than the type.)
TEXTS = {
    "region": {"Pub": 2, "SubBefore": 2, "EndTransaction": 2, "Recall": 2},
    "client_group": {"Pub": 3, "SubBefore": 3, "SubAfter": 8, "EndTransaction": 3, "Recall": 3},
    "topic": {"Pub": 4, "EndTransaction": 4, "Recall": 4},
    "message_id": {"Pub": 5, "SubBefore": 5, "SubAfter": 2, "EndTransaction": 5, "Recall": 5},
    "tags": {"Pub": 6, "EndTransaction": 6},
    "keys": {"Pub": 7, "SubBefore": 7, "SubAfter": 5, "EndTransaction": 7},
    "store_host": {"Pub": 8, "EndTransaction": 8},
    "request_id": {"SubBefore": 4, "SubAfter": 1},
    "transaction_id": {"EndTransaction": 10},
    "transaction_state": {"EndTransaction": 11},
}
# The same for numbers, which must be valid if present, with their bits: Java's times are long, the others int.
NUMBERS = {
    "event_ms": ({"Pub": 1, "SubBefore": 1, "SubAfter": 7, "EndTransaction": 1, "Recall": 1}, 64),
    "cost_ms": ({"Pub": 10, "SubAfter": 3}, 32),
    "body_length": ({"Pub": 9}, 32),
    "message_type": ({"Pub": 11, "EndTransaction": 9}, 32),
    "retry_times": ({"SubBefore": 6}, 32),
    "context_code": ({"SubAfter": 6}, 32),
}
NUMBER = re.compile(r"[+-]?[0-9]{1,99}")
SHORT_NUMBER = "^-?[0-9]{1,18}$"  # of at most 64 bits
# Of a unique id: time and counter follow address, pid and process constant, see `ariane.model.ids`.
PROCESS_DIGITS_AFTER = 12

TIME_MAX_MS = 253_402_300_799_999  # last ms of the year 9999: later times overflow the date types of readers
# Of the texts that the rows of a record with several ids repeat: so many times the record, or so many bytes.
MAX_REPEATED, MAX_REPEATED_BYTES = 64, 65_536
REASON_TYPE_MAX = 40  # characters of an unknown type's name in the reason; the row has the whole record


class Records(NamedTuple):
    """The records of a micro-batch, in the order of their messages."""

    text: pa.StringArray
    message: Numbers
    """Number of the message of each record in the micro-batch."""
    place: Numbers
    """Index of each record in its message."""
    fields: pa.StringArray
    """Fields of all records one after another. An empty field, or the word null that Java prints, is null."""
    begin: Numbers
    """Number of the first field of each record in `fields`."""
    size: Numbers
    """Number of fields."""
    type: pa.StringArray

    def filter(self, chosen: Flags) -> Records:
        """Return some of the records."""
        text, kind = (texts.filter(pa.array(chosen)) for texts in (self.text, self.type))
        message, place, begin, size = (array[chosen] for array in (self.message, self.place, self.begin, self.size))
        return Records(text, message, place, self.fields, begin, size, kind)

    def is_type(self, *names: str) -> Flags:
        """Return which records have one of these types."""
        return np.asarray(pc.is_in(self.type, pa.array(names)))

    def by_type(self, values: Mapping[str, int]) -> Numbers:
        """Return the value for the type of each record; -1 for other types."""
        numbers = np.asarray(pc.index_in(self.type, pa.array(list(values))).fill_null(len(values)))
        return np.take(np.array([*values.values(), -1], np.int64), numbers)

    def field(self, position: int | Numbers) -> pa.StringArray:
        """Return a field of each record; null if it is absent, or the position is negative."""
        is_absent = (self.size <= position) | (np.asarray(position) < 0)
        return self.fields.take(pa.array(np.where(is_absent, 0, self.begin + position), mask=is_absent))


def decode(messages: pa.Table) -> dict[str, pa.Table]:
    """Return the rows of TRACE_EVENTS and TRACE_REJECTS, with `bucket`, by name of the table.

    Valid records have a row for each of their message ids.

    Args:
        messages: trace messages, with the columns of `jobs.TRACES.schema`.
    """
    records = _records(_valid_texts(_column(messages, "body")))
    numbers = _numbers_of(records)
    reasons = _reasons(records, numbers)
    is_valid = np.ones(len(records.text), np.bool_)
    is_valid[list(reasons)] = False
    stored_ms = ms_of_times(_column(messages, "store_timestamp"))[records.message]
    rejected = records.filter(~is_valid)
    texts = {"record": rejected.text, "reason": pa.array(reasons.values(), pa.string())}
    rejects = pa.table(_positions(messages, rejected) | texts)
    if reasons:  # a message of a hostile client can have millions of invalid records
        records = records.filter(is_valid)
        numbers = _numbers_of(records)
    events, parents = _one_by_one(pa.table(_positions(messages, records) | _events(messages, records, numbers)))
    ids = events["message_id"].combine_chunks()
    event_buckets = buckets_of_messages(ids, stored_ms[is_valid][parents])
    return {
        TRACE_EVENTS.name: with_buckets(events, TRACE_EVENTS, event_buckets),
        TRACE_REJECTS.name: with_buckets(rejects, TRACE_REJECTS, buckets_of_times(stored_ms[~is_valid])),
    }


# --- records and fields ------------------------------------------------------------------------------------------------


def _column(messages: pa.Table, name: str) -> pa.Array:
    return messages[name].combine_chunks()


def _valid_texts(bodies: pa.BinaryArray) -> pa.StringArray:
    """Return bodies as text. Invalid bytes are replaced."""
    try:
        return bodies.cast(pa.string()).fill_null("")
    except pa.ArrowInvalid:
        return pa.array([(body or b"").decode("utf-8", "replace") for body in bodies.to_pylist()], pa.string())


def _records(texts: pa.StringArray) -> Records:
    """Return the records of texts. CLOUD clients from 4.9.5 to 5.3.0 write no end after a SubAfter: its time is the next type."""
    records = _split(texts)
    is_next_type = pc.is_in(records.field(trace_codec.SUB_AFTER_UNTIMED), pa.array(list(FIELDS_MIN)))
    runs_on = records.is_type("SubAfter") & np.asarray(is_next_type)
    if not runs_on.any():
        return records
    is_suspect = np.zeros(len(texts), np.bool_)
    is_suspect[records.message[runs_on]] = True
    suspects = texts.filter(pa.array(is_suspect)).to_pylist()
    ended = pa.array([trace_codec.terminated(text) for text in suspects], pa.string())
    return _split(pc.replace_with_mask(texts, pa.array(is_suspect), ended))


def _split(texts: pa.StringArray) -> Records:
    in_message = pc.split_pattern(texts, RECORD_END)
    message = np.asarray(pc.list_parent_indices(in_message))
    place = np.arange(len(message)) - np.asarray(in_message.offsets)[message]
    text = in_message.flatten()
    is_filled = pc.not_equal(text, "")
    text, kept = text.filter(is_filled), np.asarray(is_filled)
    in_record = pc.split_pattern(text, FIELD_END)
    fields, begin = in_record.flatten(), np.asarray(in_record.offsets)[:-1].astype(np.int64)
    return Records(
        text=text,
        message=message[kept],
        place=place[kept],
        fields=pc.if_else(pc.is_in(fields, pa.array(["", ABSENT])), pa.scalar(None, pa.string()), fields),
        begin=begin,
        size=np.asarray(in_record.value_lengths(), dtype=np.int64),
        type=fields.take(pa.array(begin)),
    )


def _numbers_of(records: Records) -> dict[str, pa.Int64Array]:
    return {name: _numbers(records.field(records.by_type(places)), bits) for name, (places, bits) in NUMBERS.items()}


def _numbers(texts: pa.StringArray, bits: int) -> pa.Int64Array:
    """Return signed decimal numbers; null for those that are absent, invalid, or have more bits."""
    is_short = pc.match_substring_regex(texts, SHORT_NUMBER).fill_null(True)
    numbers = pc.if_else(is_short, texts, pa.scalar(None, pa.string())).cast(pa.int64())
    others = pc.invert(is_short)
    if others.true_count:
        parsed = [int(text) if NUMBER.fullmatch(text.strip()) else None for text in texts.filter(others).to_pylist()]
        fitting = [None if number is None or number.bit_length() > 63 else number for number in parsed]
        numbers = pc.replace_with_mask(numbers, others, pa.array(fitting, pa.int64()))
    if bits == 64:
        return numbers
    is_fitting = pc.equal(numbers, pc.cast(numbers, pa.int32(), safe=False).cast(pa.int64()))
    return pc.if_else(is_fitting, numbers, pa.scalar(None, pa.int64()))


# --- columns -----------------------------------------------------------------------------------------------------------


def _positions(messages: pa.Table, records: Records) -> dict[str, pa.Array]:
    """Return where each record was stored."""
    of_message = pa.array(records.message)
    return {
        "trace_broker": _column(messages, "broker").take(of_message),
        "trace_queue_id": _column(messages, "queue_id").take(of_message),
        "trace_queue_offset": _column(messages, "queue_offset").take(of_message),
        "record_index": pa.array(records.place),
        "trace_stored_at": _column(messages, "store_timestamp").take(of_message),
    }


def _events(messages: pa.Table, records: Records, numbers: Mapping[str, pa.Int64Array]) -> dict[str, pa.Array]:
    """Return the other columns of TRACE_EVENTS, of valid records."""
    is_pub, size = records.is_type("Pub"), records.size
    has_offset_id = is_pub & (size >= 14)  # an offset id before the success flag
    texts = {name: records.field(records.by_type(places)) for name, places in TEXTS.items()}
    # The position of the success flag; a Pub without it is a success.
    success = records.by_type({"Pub": 12, "SubAfter": 4, "Recall": 6})
    success[has_offset_id] = 13
    is_success = _is_true(records.field(success)) | (is_pub & (size < 13))
    decided = _is_true(records.field(12))
    host = records.field(records.by_type({"Pub": 14, "SubBefore": 8}))
    # Consumers in C++ write `dKey` for no keys.
    is_no_key = records.is_type("SubBefore", "SubAfter") & np.asarray(pc.equal(texts["keys"], "dKey").fill_null(False))
    lower_ms, upper_ms = _clock_bounds(messages, records, texts["store_host"])
    return {
        **texts,
        **{name: numbers[name] for name in NUMBERS if name != "event_ms"},
        "type": records.type,
        "event_time": _where(_is_timed(records), numbers["event_ms"]).cast(pa.timestamp("ms", "UTC")),
        "client_group": _where(_is_timed(records), texts["client_group"]),
        "keys": _where(~is_no_key, texts["keys"]),
        "offset_message_id": _where(has_offset_id, records.field(12)),
        "success": pa.array(is_success, mask=success < 0),
        "from_check": pa.array(decided, mask=~records.is_type("EndTransaction")),
        "client_host": pc.coalesce(host, _column(messages, "born_host").take(pa.array(records.message))),
        "clock_lower_ms": lower_ms,
        "clock_upper_ms": upper_ms,
        "client_process": _client_process(messages).take(pa.array(records.message)),
    }


def _is_timed(records: Records) -> Flags:
    return ~records.is_type("SubAfter") | (records.size >= SUB_AFTER_TIMED)


def _is_true(texts: pa.StringArray) -> Flags:
    return np.asarray(pc.equal(texts, "true").fill_null(False))


def _where(condition: Flags, values: pa.Array) -> pa.Array:
    return pc.if_else(pa.array(condition), values, pa.scalar(None, values.type))


def _client_process(messages: pa.Table) -> pa.StringArray:
    """Return the part of each trace message's unique id that all ids of a process share; null without such an id."""
    ids = _property(messages, UNIQ_KEY)
    is_unique = pc.match_substring_regex(ids, f"^{UNIQUE_ID.pattern}$")
    process = pc.utf8_slice_codeunits(pc.utf8_upper(ids), 0, -PROCESS_DIGITS_AFTER)
    return pc.if_else(is_unique, process, pa.scalar(None, pa.string()))


def _property(messages: pa.Table, name: str) -> pa.StringArray:
    return pc.map_lookup(_column(messages, "properties"), name, "first")


def _clock_bounds(messages: pa.Table, records: Records, store_host: pa.StringArray) -> tuple[pa.Array, pa.Array]:
    """Return the bounds of the offset to the broker of each record, as `clock_offset.to_broker` chooses them; null: unknown."""
    texts, hosts = _property(messages, clock_offset.PROPERTY).dictionary_encode(), store_host.dictionary_encode()
    offsets = [{}, *map(clock_offset.of_text, texts.dictionary.to_pylist())]
    addresses = ["", *hosts.dictionary.to_pylist()]
    of_text = np.asarray(texts.indices.fill_null(-1))[records.message] + 1
    of_host = np.asarray(hosts.indices.fill_null(-1)) + 1
    # Few of both, so each pair is chosen once.
    pairs, numbers = np.unique(of_text.astype(np.int64) * len(addresses) + of_host, return_inverse=True)
    chosen = [
        clock_offset.to_broker(offsets[pair // len(addresses)], addresses[pair % len(addresses)]) for pair in pairs
    ]
    taken = pa.array(numbers)
    lower_ms, upper_ms = ([None if offset is None else offset[side] for offset in chosen] for side in (0, 1))
    return pa.array(lower_ms, pa.int64()).take(taken), pa.array(upper_ms, pa.int64()).take(taken)


# --- validity ----------------------------------------------------------------------------------------------------------


def _reasons(records: Records, numbers: Mapping[str, pa.Int64Array]) -> dict[int, str]:
    """Return why records are invalid, by number of the record, in their order."""
    minimum, size = records.by_type(FIELDS_MIN), records.size
    event_ms = numbers["event_ms"]
    is_unknown, is_short = minimum < 0, size < minimum
    has_bad_number = reduce(
        or_,
        (
            np.asarray(numbers[name].is_null()) & (position >= 0) & (position < size)
            for name, (places, _) in NUMBERS.items()
            if name != "event_ms"
            for position in [records.by_type(places)]
        ),
    )
    is_in_range = pc.and_(pc.greater_equal(event_ms, 0), pc.less_equal(event_ms, TIME_MAX_MS)).fill_null(False)
    has_bad_time = _is_timed(records) & ~np.asarray(is_in_range)
    message_id = records.field(records.by_type(TEXTS["message_id"]))
    has_no_id = np.asarray(pc.equal(pc.utf8_trim(message_id.fill_null(""), ", "), ""))
    invalid = is_unknown | is_short | has_bad_number | has_bad_time | has_no_id | _is_repeated(records, message_id)
    reasons: dict[int, str] = {}
    known: dict[str, str] = {}  # equal texts are one object
    for row in np.flatnonzero(invalid).tolist():
        kind = records.type[row].as_py()
        if is_unknown[row]:
            reasons[row] = f"unknown record type {kind[:REASON_TYPE_MAX]}"
        elif is_short[row]:
            reasons[row] = f"{kind} with {size[row]} fields is too short"
        elif has_bad_number[row]:
            reasons[row] = f"{kind} with an invalid or out-of-range number"
        elif has_bad_time[row]:
            reasons[row] = f"{kind} with an invalid or out-of-range time"
        elif has_no_id[row]:
            reasons[row] = f"{kind} without a message id"
        else:
            reasons[row] = f"{kind} with long texts and too many message ids"
        reasons[row] = known.setdefault(reasons[row], reasons[row])
    return reasons


def _is_repeated(records: Records, message_id: pa.StringArray) -> Flags:
    """Return which records have so many ids that rows with their other texts would be many times as large as they are."""
    ids = np.asarray(pc.count_substring(message_id, ",").fill_null(0)) + 1
    offset_ids = records.field(12)
    as_many = np.asarray(pc.count_substring(offset_ids, ",").fill_null(-1)) + 1 == ids
    length = _length(records.text)
    rest = length - _length(message_id) - np.where(as_many, _length(offset_ids), 0)
    return np.asarray((ids > 1) & (ids * rest > np.maximum(MAX_REPEATED * length, MAX_REPEATED_BYTES)))


def _length(texts: pa.StringArray) -> Numbers:
    return np.asarray(pc.binary_length(texts).fill_null(0)).astype(np.int64)


def _one_by_one(events: pa.Table) -> tuple[pa.Table, Numbers]:
    """Return a row per message id, and the number of the row that it was.

    The record of a batch has the ids of its messages separated by commas, and the offset ids in the same order.
    """
    ids = events["message_id"].combine_chunks()
    if not pc.any(pc.match_substring(ids, ",")).as_py():
        return events, np.arange(len(ids))
    lists = pc.split_pattern(ids, ",")
    parents = np.asarray(pc.list_parent_indices(lists))
    at = np.arange(len(parents)) - np.asarray(lists.offsets)[parents]
    offset_ids = events["offset_message_id"].combine_chunks()
    offset_lists = pc.split_pattern(offset_ids.fill_null(""), ",")
    as_many = pc.equal(lists.value_lengths(), offset_lists.value_lengths())
    is_own = np.asarray(pc.and_(as_many, offset_ids.is_valid()))[parents]
    own = np.asarray(offset_lists.offsets)[parents] + at
    own_ids = pc.coalesce(
        offset_lists.flatten().take(pa.array(np.where(is_own, own, 0), mask=~is_own)),
        offset_ids.take(pa.array(parents, mask=is_own)),
    )
    one_id = lists.flatten()
    each = events.drop_columns(["message_id", "offset_message_id"]).take(pa.array(parents))
    each = each.append_column("message_id", one_id).append_column("offset_message_id", own_ids)
    is_filled = pc.not_equal(one_id, "")
    return each.filter(is_filled), parents[np.asarray(is_filled)]
