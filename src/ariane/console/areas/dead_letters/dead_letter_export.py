"""Dead letters as files: JSON, and CSV whose cells no spreadsheet executes.

A spreadsheet evaluates a cell that begins with = + - @ or a control character as a formula, quoted or not. Producers choose keys,
properties and bodies, so such a cell gets an apostrophe before it, which spreadsheets show as the mark of a text.
"""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from ariane.cluster.messages.message_sending import to_original
from ariane.cluster.messages.replay import original_topic
from ariane.console.areas.dead_letters.dead_letter_selection import DeadLetterFilter, all_matching, check_group_name
from ariane.console.areas.messages.message_body import text_of
from ariane.console.services import ConsoleServices
from ariane.errors import MessageRefused
from ariane.model.message import ReceivedMessage

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
# The full-width forms of the same characters, which some spreadsheets accept, too.
FORMULA_STARTS_WIDE = ("＝", "＋", "－", "＠")
COLUMNS = (
    "messageId", "offsetMessageId", "originalTopic", "keys", "tag", "bornTime", "bornHost", "deadTime", "reconsumeTimes", "broker",
    "queueId", "queueOffset", "properties", "bodyText", "bodyBase64",
)  # fmt: skip


async def export_csv(services: ConsoleServices, group: str, selection: DeadLetterFilter) -> str:
    """Return all matching dead letters of a group as CSV.

    Raises:
        UsageError: the group or a time is invalid, or more match than can be read.
        NotFound: none matches.
    """
    messages = await _selected(services, group, selection)
    return await asyncio.to_thread(lambda: csv_text(COLUMNS, (export_record(message).values() for message in messages)))


async def export_json(services: ConsoleServices, group: str, selection: DeadLetterFilter) -> str:
    """Return all matching dead letters of a group as a JSON array; raises as `export_csv`."""
    messages = await _selected(services, group, selection)
    return await asyncio.to_thread(
        lambda: json.dumps([export_record(message) for message in messages], ensure_ascii=False, indent=1)
    )


def csv_text(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV with a header line, by RFC 4180."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([csv_cell(value) for value in row] for row in rows)
    return file.getvalue()


def csv_cell(value: object) -> str:
    """Return a value as a cell that is not executed. Numbers are not marked: they cannot be formulas."""
    if value is None:
        return ""
    if isinstance(value, dict | list):
        value = json.dumps(value, ensure_ascii=False)
    text = str(value)
    is_text = not isinstance(value, int | float)
    return f"'{text}" if is_text and text.startswith(FORMULA_STARTS + FORMULA_STARTS_WIDE) else text


def export_record(message: ReceivedMessage) -> dict[str, Any]:
    """Return a dead letter by the names of `COLUMNS`."""
    text = text_of(message.body)
    try:
        topic = original_topic(to_original(message))
    except MessageRefused:
        topic = None
    values = (
        message.message_id, message.offset_message_id, topic, " ".join(message.keys), message.tags, _iso(message.born_ms),
        message.born_host, _iso(message.store_ms), message.reconsume_times, message.queue.broker, message.queue.queue_id,
        message.queue_offset, dict(message.properties), text, None if text is not None else base64.b64encode(message.body).decode(),
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


async def _selected(services: ConsoleServices, group: str, selection: DeadLetterFilter) -> list[ReceivedMessage]:
    check_group_name(group)
    return await all_matching(services, services.admin(), group, selection)


def _iso(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):  # producers may send any number
        return str(ms)
