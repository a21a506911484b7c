"""Messages as text for people: one with all attributes, or a table with one row each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from ariane.cli.output.value_format import escape_control
from ariane.clock import utc_of
from ariane.model.born_time import ClockDifference, compare_clocks
from ariane.model.host import ip_of
from ariane.model.message import RETRY_TOPIC, ReceivedMessage
from ariane.model.quantities import count_text, duration_text

if TYPE_CHECKING:
    from ariane.reports.report import Table

BODY_SHOWN = 4_000  # characters of a body; --json has all
LABEL_WIDTH = 12


def time_text(ms: int) -> str:
    """Return a time in UTC with milliseconds; the number if no calendar has it."""
    time = utc_of(ms)
    return str(ms) if time is None else f"{time:%Y-%m-%d %H:%M:%S}.{ms % 1000:03} UTC"


def message_table(messages: Sequence[ReceivedMessage], *, with_origin: bool = False) -> Table:
    """Return a table of messages; for dead letters with their original topics and numbers of redeliveries."""
    from ariane.reports.report import Column, Table

    names = ["stored (UTC)", "message id", "tag", "keys", "bytes"]
    if with_origin:
        names[2:2] = ["topic", "retries"]
    rows = []
    for message in messages:
        row: list[datetime | str | int | None] = [utc_of(message.store_ms), message.message_id]
        if with_origin:
            row += [message.properties.get(RETRY_TOPIC, message.topic), message.reconsume_times]
        rows.append((*row, message.tags, " ".join(message.keys), len(message.body)))
    return Table("", tuple(map(Column, names)), tuple(rows))


def clock_remarks(messages: Iterable[ReceivedMessage]) -> list[str]:
    """Return what the times of messages prove about the clocks of their producers: one line per producer and broker."""
    greatest: dict[tuple[str, str, bool], tuple[ClockDifference, int]] = {}
    for message in messages:
        difference = compare_clocks(message)
        if difference == ClockDifference():
            continue
        key = (ip_of(message.born_host), message.queue.broker, difference.late_ms is None)
        former, count = greatest.get(key, (difference, 0))
        greatest[key] = (max(former, difference, key=lambda item: item.ahead_ms or item.late_ms or 0), count + 1)
    return [
        f"{_clock_remark(difference)} ({count_text(count, 'message')} from {host}, stored by {broker})"
        for (host, broker, _), (difference, count) in greatest.items()
    ]


def _clock_remark(difference: ClockDifference) -> str:
    """Return a statement about the clock of a producer as a sentence; empty without one."""
    if difference.ahead_ms is not None:
        return f"The producer's clock was at least {duration_text(difference.ahead_ms)} ahead of the broker's."
    if difference.late_ms is not None:
        return (
            f"Stored {duration_text(difference.late_ms)} after it was sent, by the producer's clock:"
            " that clock was behind the broker's, or the send was late."
        )
    return ""


def message_lines(message: ReceivedMessage) -> Iterator[str]:
    """Yield the attributes of a message, its properties and its body."""
    queue = message.queue
    yield _line("Message", message.message_id)
    yield _line("Offset id", message.offset_message_id)
    yield _line("Topic", escape_control(queue.topic))
    yield _line("Queue", f"{queue.queue_id} on {queue.broker}, offset {message.queue_offset}")
    yield _line("Tag", escape_control(message.tags) or "-")
    yield _line("Keys", escape_control(" ".join(message.keys)) or "-")
    yield _line("Stored", f"{time_text(message.store_ms)} by {message.store_host}")
    yield _line("Born", f"{time_text(message.born_ms)} by {message.born_host}")
    if remark := _clock_remark(compare_clocks(message)):
        yield _line("", remark)
    if message.reconsume_times:
        yield _line("Retries", str(message.reconsume_times))
    yield _line("Properties", "" if message.properties else "-")
    for name, value in sorted(message.properties.items()):
        yield f"  {escape_control(name)} = {escape_control(value)}"
    yield _line("Body", count_text(len(message.body), "byte"))
    yield from _body_lines(message)


def _line(label: str, value: str) -> str:
    return f"{label:<{LABEL_WIDTH}}{value}".rstrip()


def _body_lines(message: ReceivedMessage) -> Iterator[str]:
    if message.body_error:
        yield f"  unreadable: {message.body_error}"
        return
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        text = message.body.hex(" ")
    for line in text[:BODY_SHOWN].splitlines():
        yield f"  {escape_control(line)}"
    if len(text) > BODY_SHOWN:
        yield f"  … {len(text) - BODY_SHOWN:,} more characters: use --json"
