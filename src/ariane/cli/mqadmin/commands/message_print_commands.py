"""Commands that print the messages of queues, without committing offsets. Reference: admin-and-dashboard 1.6."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, NamedTuple

from ariane.cli.mqadmin import message_text
from ariane.cli.mqadmin.command import TOPIC, CommandList, Option, Options, Output, lines
from ariane.cli.mqadmin.option_values import whole_number, yes_or_no
from ariane.cli.mqadmin.value_text import message_queue
from ariane.cli.output.message_table import time_text
from ariane.clock import SYSTEM_CLOCK
from ariane.cluster.admin import Admin
from ariane.cluster.messages.message_query import to_message
from ariane.cluster.messages.queue_reading import ALL_TAGS, FOUND, NO_MATCHED_MSG, TOOLS_GROUP, QueuePage, QueueServer
from ariane.errors import UsageError
from ariane.model.message import MessageQueue

RULE = "-" * 56
COUNT = 128  # messages of consumeMessage


def _time_ms(text: str) -> int:
    """Parse ms since the epoch, or `yyyy-MM-dd#HH:mm:ss:SSS` in local time."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return int(datetime.strptime(text, "%Y-%m-%d#%H:%M:%S:%f").astimezone().timestamp() * 1000)
    except ValueError:
        raise ValueError("expected a time in ms, or yyyy-MM-dd#HH:mm:ss:SSS") from None


_number = whole_number(0)


def _positive(text: str) -> int:
    if not (number := _number(text)):
        raise ValueError("expected a whole number of at least 1")
    return number


def _charset(text: str) -> str:
    try:
        return codecs.lookup(text).name
    except LookupError:
        raise ValueError("unknown character set; expected for example UTF-8 or GBK") from None


CHARSET = Option("c", "charsetName", "Character set of the bodies.", _charset, "UTF-8", "NAME")
TAGS = Option("s", "subExpression", "Tags: 'A || B', or * for all.", str, ALL_TAGS, "TAGS")
BEGIN = Option("b", "beginTimestamp", "Stored since: ms, or yyyy-MM-dd#HH:mm:ss:SSS.", _time_ms, metavar="TIME")
END = Option("e", "endTimestamp", "Stored before, in the same forms.", _time_ms, metavar="TIME")


class BodyFormat(NamedTuple):
    """How bodies are printed: in a character set, or not at all."""

    charset: str = "utf-8"
    is_printed: bool = True


COMMANDS = CommandList()


@COMMANDS.add(
    "printMsg",
    TOPIC,
    CHARSET,
    TAGS,
    BEGIN,
    END,
    Option("d", "printBody", "Print bodies.", yes_or_no, "true", "true|false"),
)
async def print_messages(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print all messages of a topic in a time range, queue by queue."""
    async for output in _with_range_note(_topic_messages(admin, options), options, "-b"):
        yield output


async def _topic_messages(admin: Admin, options: Options) -> AsyncIterator[Output]:
    form = BodyFormat(options.charsetName, options.printBody)
    for at in await admin.locate_queues(options.topic):
        first, stop = await admin.time_bounds(at, options.beginTimestamp, options.endTimestamp)
        queue = message_queue(at.queue)
        data = {"queue": at.queue, "minOffset": first, "maxOffset": stop}
        yield Output(f"minOffset={first}, maxOffset={stop}, {queue}\n", data)
        async for page in admin.read_queue(at, first, stop, tags=options.subExpression):
            yield Output(_page_text(page, at, form), _page_data(page, at))
        if not options.json:
            yield Output(f"{RULE}\n", None)


@COMMANDS.add(
    "printMsgByQueue",
    TOPIC,
    Option("a", "brokerName", "Broker name.", is_required=True, metavar="NAME"),
    Option("i", "queueId", "Queue id.", _number, is_required=True, metavar="N"),
    CHARSET,
    TAGS,
    BEGIN,
    END,
    Option("p", "printMsg", "Print messages.", yes_or_no, "false", "true|false"),
    Option("d", "printBody", "Print bodies.", yes_or_no, "false", "true|false"),
    Option("f", "calculate", "Count the messages of each tag.", yes_or_no, "false", "true|false"),
)
async def print_queue(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print the messages of one queue, or how many have each tag."""
    at = await admin.locate_queue(options.topic, options.brokerName, options.queueId)
    first, stop = await admin.time_bounds(at, options.beginTimestamp, options.endTimestamp)
    form = BodyFormat(options.charsetName, options.printBody)
    counts: Counter[str] = Counter()
    async for page in admin.read_queue(at, first, stop, tags=options.subExpression):
        counts.update(tag for stored in page.records if (tag := stored.property_map().get("TAGS", "").strip()))
        if options.printMsg and page.status == FOUND:
            yield Output(_page_text(page, at, form), _page_data(page, at))
    if options.calculate:
        text = lines(f"Tag: {tag:<30} Count: {count}" for tag, count in counts.most_common())
        yield Output(text, {"tags": dict(counts.most_common())})


@COMMANDS.add(
    "consumeMessage",
    TOPIC,
    Option("b", "brokerName", "Broker name; needed with -i.", metavar="NAME"),
    Option("i", "queueId", "Only this queue.", _number, metavar="N"),
    Option("o", "offset", "With -i: first offset.", _number, metavar="N"),
    Option("g", "consumerGroup", "Group in whose name to read.", metavar="NAME"),
    Option("s", "beginTimestamp", BEGIN.help, _time_ms, metavar="TIME"),
    END,
    Option("c", "MessageNumber", "Maximum number of messages.", _positive, str(COUNT), "N"),
)
async def consume_messages(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print the oldest messages of a topic or queue. Despite its name, it commits nothing."""
    _check_consume(options)
    async for output in _with_range_note(_oldest_messages(admin, options), options, "-s"):
        yield output


async def _oldest_messages(admin: Admin, options: Options) -> AsyncIterator[Output]:
    if options.queueId is not None:
        at = await admin.locate_queue(options.topic, options.brokerName, options.queueId)
        async for output in _consume_queue(admin, options, at):
            yield output
        return
    left = options.MessageNumber
    for at in await admin.locate_queues(options.topic):
        if left == 0:
            return
        first, stop = await admin.time_bounds(at, options.beginTimestamp, options.endTimestamp)
        is_limited = stop - first > left
        if is_limited and not options.json:
            yield Output(f"The older {left} message of the {at.queue.queue_id} queue will be provided\n", None)
        async for output in _consume_range(admin, options, at, first, first + left if is_limited else stop + 1):
            yield output
        left = 0 if is_limited else left - (stop - first)


async def _consume_queue(admin: Admin, options: Options, at: QueueServer) -> AsyncIterator[Output]:
    first, stop = await admin.time_bounds(at, options.beginTimestamp, options.endTimestamp)
    offset = options.offset or 0
    if offset > stop:
        text = f"{message_queue(at.queue)} no matched msg, offset={offset}\n"
        yield Output(text, [])
        return
    first = max(first, offset)
    is_limited = stop - first > options.MessageNumber
    if is_limited and not options.json:
        yield Output(f"The oldler {options.MessageNumber} message will be provided\n", None)  # spelt as Java spells it
    end = first + options.MessageNumber if is_limited else stop + 1
    async for output in _consume_range(admin, options, at, first, end):
        yield output


async def _consume_range(
    admin: Admin, options: Options, at: QueueServer, first: int, stop: int
) -> AsyncIterator[Output]:
    """Print the messages from one offset to another; beyond the end of the queue, the status of the last pull."""
    group = options.consumerGroup or TOOLS_GROUP
    async for page in admin.read_queue(at, first, stop, group=group):
        text = _page_text(page, at, BodyFormat())
        yield Output(f"Consume ok\n{text}" if page.status == FOUND else text, _page_data(page, at))


async def _with_range_note(
    outputs: AsyncIterator[Output], options: Options, begin_option: str
) -> AsyncIterator[Output]:
    """Yield outputs; if none of them has a message, a note that names the time range that excludes some."""
    has_messages = False
    async for output in outputs:
        has_messages = has_messages or (isinstance(output.data, list) and bool(output.data))
        yield output
    begin_ms, end_ms = options.beginTimestamp, options.endTimestamp
    given = [name for name, time_ms in ((begin_option, begin_ms), ("-e", end_ms)) if time_ms is not None]
    if given and not has_messages:
        begin = "the beginning" if begin_ms is None else time_text(begin_ms)
        end = "now" if end_ms is None else time_text(end_ms)
        note = f"No message stored from {begin} to {end}. Remove {' and '.join(given)} to print all store times."
        yield Output("", [], notes=(note,))


def _check_consume(options: Options) -> None:
    now_ms = SYSTEM_CLOCK.now_ms()
    begin_ms, end_ms = options.beginTimestamp, options.endTimestamp
    if options.queueId is not None and options.brokerName is None:
        raise UsageError("--queueId", str(options.queueId), "needs --brokerName")
    if options.offset is not None and options.queueId is None:
        raise UsageError("--offset", str(options.offset), "needs --queueId")
    for name, time_ms in (("--beginTimestamp", begin_ms), ("--endTimestamp", end_ms)):
        if time_ms is not None and time_ms > now_ms:
            raise UsageError(name, str(time_ms), "in the future; expected an earlier time")
    if begin_ms is not None and end_ms is not None and begin_ms > end_ms:
        raise UsageError("--beginTimestamp", str(begin_ms), "after --endTimestamp; expected an earlier time")


def _page_text(page: QueuePage, at: QueueServer, form: BodyFormat) -> str:
    queue = message_queue(at.queue)
    if page.status == FOUND:
        return lines(_message_text(page, number, at.queue, form) for number in range(len(page.records)))
    outcome = "no matched msg" if page.status == NO_MATCHED_MSG else "print msg finished"
    return f"{queue} {outcome}. status={page.status}, offset={page.next_offset}\n"


def _message_text(page: QueuePage, number: int, queue: MessageQueue, form: BodyFormat) -> str:
    stored = page.records[number]
    message = to_message(stored, queue.broker)
    # Java's pull consumers add these to a message.
    table = {**message.properties, "MIN_OFFSET": str(page.min_offset), "MAX_OFFSET": str(page.max_offset)}
    text = message_text.record_text(stored, queue.broker, table, message.offset_message_id)
    body = message.body.decode(form.charset, "replace") if form.is_printed else "NOT PRINT BODY"
    return f"MSGID: {message.message_id} {text} BODY: {body}"


def _page_data(page: QueuePage, at: QueueServer) -> Any:
    return [to_message(stored, at.queue.broker) for stored in page.records]
