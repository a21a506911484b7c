"""Commands that look up messages, follow them to their consumers, and resend them. Reference: admin-and-dashboard 1.6."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from ariane.cli.mqadmin import message_text
from ariane.cli.mqadmin.command import TOPIC, CommandList, Option, Options, Output, lines
from ariane.cli.mqadmin.option_values import whole_number, yes_or_no
from ariane.cli.mqadmin.value_text import time_s
from ariane.cli.output.message_table import clock_remarks
from ariane.cluster.admin import Admin
from ariane.cluster.connection import BrokerUnavailable
from ariane.cluster.messages.message_query import QueryResult
from ariane.cluster.messages.message_tracking import MessageTrack, TraceRow
from ariane.errors import ArianeError, NotFound, UsageError
from ariane.model.message import UNIQ_KEY, MessageQueue, ReceivedMessage
from ariane.model.topic import TRACE_TOPIC

KEY_ROW = "{:<50} {:>4} {:>40} {}"
TRACE_LINE = "{:<10} {:<20} {:<20} {:<20} {:<10} {:<10}"

MESSAGE_ID = Option("i", "msgId", "Unique key or offset id; several separated by ','.", is_required=True, metavar="ID")
UNIQUE_KEY = Option("i", "msgId", "Unique key of the message.", is_required=True, metavar="ID")
CONSUMER_GROUP = Option("g", "consumerGroup", "With -d: consumer group of the client.", metavar="NAME")
CLIENT_ID = Option("d", "clientId", "With -g: let this client consume the message now.", metavar="ID")


class MessageView(NamedTuple):
    """A message and its consumers, for --json."""

    message: ReceivedMessage
    tracks: list[MessageTrack]
    track_error: str | None = None


COMMANDS = CommandList()


@COMMANDS.add(
    "queryMsgById",
    MESSAGE_ID,
    CONSUMER_GROUP,
    CLIENT_ID,
    Option("s", "sendMessage", "With true: send the message again.", yes_or_no, metavar="true"),
    Option("u", "unitName", "Unit of the sent message; accepted without effect.", metavar="NAME"),
    Option("t", "topic", "Topic of a unique key; by default, all are searched.", metavar="NAME"),
    is_change=True,
)
async def query_by_id(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print messages with their consumers, let a client consume them, or send them again."""
    _check_direct(options)
    missing = []
    for message_id in filter(None, map(str.strip, options.msgId.split(","))):
        matches = await admin.find_messages(message_id, options.topic)
        if matches.first is None:
            missing.append(matches.not_found("message", message_id))
        elif options.consumerGroup:
            yield await _consume_directly(admin, matches.first, options)
        elif options.sendMessage:
            result = await admin.resend(matches.first, matches.first.queue.topic)
            if result is not None:
                text = f"prepare resend msg. originalMsgId={message_id}{message_text.send_result(result)}"
                yield Output(text, {"originalMessageId": message_id, "result": result})
        elif options.sendMessage is None:
            yield await _view(admin, matches.first, matches, with_offset_id=True)
    if missing:
        raise missing[0] if len(missing) == 1 else ArianeError("; ".join(map(str, missing)))


@COMMANDS.add(
    "queryMsgByUniqueKey",
    UNIQUE_KEY,
    CONSUMER_GROUP,
    CLIENT_ID,
    TOPIC,
    Option("a", "showAll", "Print all messages with the key, not only the first.", is_flag=True),
    is_change=True,
)
async def query_by_unique_key(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print the message that was stored first, or all with a unique key."""
    _check_direct(options)
    result = await admin.query_by_unique_key(options.topic, options.msgId.strip())
    if result.first is None:
        raise result.not_found("message", options.msgId)
    if options.consumerGroup:
        yield await _consume_directly(admin, result.first, options)
        return
    for number, message in enumerate(result.messages if options.showAll else result.messages[:1]):
        yield await _view(admin, message, result, number=number)


@COMMANDS.add("queryMsgByKey", TOPIC, Option("k", "msgKey", "Business key.", is_required=True, metavar="KEY"))
async def query_by_key(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print unique key, queue and offset of every message with a business key."""
    result = await admin.query_by_key(options.topic, options.msgKey.strip())
    if result.first is None:
        raise result.not_found("message with key", options.msgKey)
    rows = [
        KEY_ROW.format(
            message.properties.get(UNIQ_KEY, "-"),
            message.queue.queue_id,
            message.queue_offset,
            message.offset_message_id,
        )
        for message in result.messages
    ]
    header = KEY_ROW.format("#Unique Key", "#QID", "#Offset", "#Offset ID")
    yield Output(lines([header, *rows]), result.messages, result.unavailable, _notes(result))


@COMMANDS.add(
    "queryMsgByOffset",
    TOPIC,
    Option("b", "brokerName", "Broker name.", is_required=True, metavar="NAME"),
    Option("i", "queueId", "Queue id.", whole_number(0), is_required=True, metavar="N"),
    Option("o", "offset", "Offset in the queue.", whole_number(0), is_required=True, metavar="N"),
)
async def query_by_offset(admin: Admin, options: Options) -> AsyncIterator[Output]:
    queue = MessageQueue(options.topic, options.brokerName, options.queueId)
    message = await admin.view_at(queue, options.offset)
    if message is None:
        raise NotFound("message at offset", f"{options.offset} of queue {queue.queue_id} on {queue.broker}")
    yield await _view(admin, message, QueryResult([message]), with_offset_id=True)


@COMMANDS.add(
    "queryMsgTraceById", UNIQUE_KEY, Option("t", "traceTopic", "Trace topic.", default=TRACE_TOPIC, metavar="NAME")
)
async def query_trace(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print the sends and consumptions that clients reported."""
    trace = await admin.query_trace(options.msgId.strip(), options.traceTopic)
    sent = [row for row in trace.rows if row.kind == "Pub"]
    text = "".join(_trace_table("#ProducerGroup", "#SendTime", [row]) for row in sent)
    for group in sorted({row.group for row in trace.rows if row.kind == "Sub"}):
        consumed = [row for row in trace.rows if row.kind == "Sub" and row.group == group]
        text += _trace_table("#ConsumerGroup", "#ConsumerTime", consumed)
    notes = () if trace.rows else (f"No trace of message {options.msgId} in topic {options.traceTopic}.",)
    yield Output(text, trace.rows, trace.unavailable, notes)


def _trace_table(group: str, time: str, rows: list[TraceRow]) -> str:
    header = TRACE_LINE.format("#Type", group, "#ClientHost", time, "#CostTimes", "#Status")
    table = [
        TRACE_LINE.format(
            row.kind, row.group, row.client_host, time_s(row.time_ms), f"{row.cost_ms}ms",
            "success" if row.is_success else "failed",
        )
        for row in rows
    ]  # fmt: skip
    return lines([header, *table, ""])


async def _view(
    admin: Admin, message: ReceivedMessage, found: QueryResult, *, with_offset_id: bool = False, number: int = 0
) -> Output:
    """Return a message with its consumers; without them if they cannot be determined."""
    shown = found._replace(messages=[message])
    tracks: list[MessageTrack] = []
    unavailable: tuple[BrokerUnavailable, ...] = found.unavailable
    error = None
    try:
        tracks, missing = await admin.track(message)
        unavailable += tuple(broker for broker in missing if broker not in unavailable)
    except ArianeError as failure:
        error = str(failure)
    path = message_text.write_body(message, number)
    rows = message_text.message_rows(message, path, with_offset_id=with_offset_id)
    end = "".join(map(message_text.track, tracks)) if tracks else "WARN: No Consumer"
    notes = _notes(shown) + (() if error is None else (f"The consumers of the message are unknown: {error}",))
    text = lines(rows) + ("" if error is not None else f"\n\n{end}")
    return Output(text, MessageView(message, tracks, error), unavailable, notes)


async def _consume_directly(admin: Admin, message: ReceivedMessage, options: Options) -> Output:
    result = await admin.consume_directly(message, options.consumerGroup, options.clientId)
    return Output("" if result is None else message_text.direct_consumption(result), result)


def _check_direct(options: Options) -> None:
    if bool(options.consumerGroup) != bool(options.clientId):
        missing = "--clientId" if options.consumerGroup else "--consumerGroup"
        raise UsageError(missing, None, "missing; specify both --consumerGroup and --clientId, or neither")


def _notes(found: QueryResult) -> tuple[str, ...]:
    truncated = (f"Broker {broker}: {reason}." for broker, reason in found.truncated.items())
    return (*truncated, *clock_remarks(found.messages))
