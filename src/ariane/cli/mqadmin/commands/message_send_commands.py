"""Commands that send messages, and measure how long brokers take to respond. Reference: admin-and-dashboard 1.5, 1.6."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime

from ariane.cli.mqadmin import message_text
from ariane.cli.mqadmin.command import TOPIC, CommandList, Option, Options, Output
from ariane.cli.mqadmin.option_values import whole_number, yes_or_no
from ariane.cli.mqadmin.value_text import boolean, time_s
from ariane.clock import SYSTEM_CLOCK
from ariane.cluster.admin import Admin
from ariane.cluster.connection import BrokerServer, BrokerUnavailable
from ariane.cluster.messages.message_sending import TimedSend
from ariane.errors import ArianeError, UsageError
from ariane.model.message import Message, MessageQueue

SEND_ROW = "{:<32}  {:<4}  {:<20}    {}\n"
RT_ROW = "{:<24}  {:<24}  {:<8}  {:<16}  {:<16}\n"
RT_HEADER = "{:<24}  {:<24}  {:<4}  {:<8}  {:<8}\n"
HELLO = b"hello jodie"  # what Java's sendMsgStatus repeats
WARM_UP_BYTES = 16


AMOUNT = Option("a", "amount", "Number of messages.", whole_number(1), "100", "N")

SIZE = Option("s", "size", "Size of a body in bytes.", whole_number(1), "128", "BYTES")

COMMANDS = CommandList()


@COMMANDS.add(
    "sendMessage",
    TOPIC,
    Option("p", "body", "Body, as UTF-8.", is_required=True, metavar="TEXT"),
    Option("k", "key", "Business keys, separated by spaces.", metavar="KEYS"),
    Option("c", "tags", "Tag.", metavar="TAG"),
    Option("b", "broker", "Broker name; needed with -i.", metavar="NAME"),
    Option("i", "qid", "Queue id.", whole_number(0), metavar="N"),
    Option("m", "msgTraceEnable", "Send a trace record, too.", yes_or_no, "false", "true|false"),
    is_change=True,
)
async def send_message(admin: Admin, options: Options) -> AsyncIterator[Output]:
    if options.qid is not None and options.broker is None:
        raise UsageError("--qid", str(options.qid), "needs --broker: broker name must be set if the queue is chosen")
    message = Message(
        topic=options.topic, body=options.body.encode(), keys=(options.key or "").split(), tags=options.tags or ""
    )
    queue = None if options.qid is None else MessageQueue(options.topic, options.broker, options.qid)
    header = SEND_ROW.format("#Broker Name", "#QID", "#Send Result", "#MsgId")
    result = await admin.send_message(message, queue=queue, trace=options.msgTraceEnable, may_create=True)
    if result is not None:
        row = SEND_ROW.format(result.queue.broker, result.queue.queue_id, result.status.name, result.message_id)
        yield Output(header + row, result)


@COMMANDS.add(
    "sendMsgStatus",
    Option("b", "brokerName", "Broker name.", is_required=True, metavar="NAME"),
    Option("s", "messageSize", "Size of a body in bytes.", whole_number(1), "128", "BYTES"),
    Option("c", "count", "Number of messages.", whole_number(1), "50", "N"),
    is_change=True,
)
async def send_status(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Send messages to the topic named like a broker, and print the response time of each."""
    topic = options.brokerName
    (server,) = await admin.select_brokers(broker=topic)
    body = HELLO * -(-options.messageSize // len(HELLO))
    warm_up = HELLO * -(-WARM_UP_BYTES // len(HELLO))
    if not admin.is_dry_run:
        async for timed in admin.measure_sends(topic, warm_up, 1, group="PID_SMSC"):
            _raise_failure(timed, server)
    async for timed in admin.measure_sends(topic, body, options.count, group="PID_SMSC"):
        result = _raise_failure(timed, server)
        assert result.result is not None
        text = f"rt={timed.took_ms}ms, SendResult={message_text.send_result(result.result)}\n"
        yield Output(text, {"tookMs": timed.took_ms, "result": timed.result})


@COMMANDS.add("checkMsgSendRT", TOPIC, AMOUNT, SIZE, is_change=True)
async def check_send_time(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Send messages to the queues of a topic in turn, and print the response time of each and their mean."""
    header = SEND_ROW.format("#Broker Name", "#QID", "#Send Result", "#RT")
    times_ms: list[int] = []
    failed = 0
    async for timed in admin.measure_sends(options.topic, b"a" * options.size, options.amount, by_queue=True):
        assert timed.queue is not None
        row = SEND_ROW.format(timed.queue.broker, timed.queue.queue_id, boolean(timed.error is None), timed.took_ms)
        notes = () if timed.error is None else (f"Queue {timed.queue.queue_id} on {timed.queue.broker}: {timed.error}",)
        failed += timed.error is not None
        data = {"queue": timed.queue, "tookMs": timed.took_ms, "error": timed.error}
        yield Output(row if times_ms else header + row, data, notes=notes)
        times_ms.append(timed.took_ms)
    if admin.is_dry_run:
        return
    mean = _mean_after_first(times_ms)
    yield Output(f"Avg RT: {_two_decimals(mean)}\n", {"meanMs": mean})
    if failed:
        raise ArianeError(f"{failed} of {len(times_ms)} messages were not sent")


@COMMANDS.add(
    "clusterRT",
    AMOUNT,
    SIZE,
    Option("c", "cluster", "Only this cluster.", metavar="NAME"),
    Option("p", "printLog", "Print lines for a log.", yes_or_no, "false", "true|false"),
    Option("m", "machineRoom", "Name of the machine room in these lines.", default="noname", metavar="NAME"),
    Option("i", "interval", "Seconds between two rounds.", whole_number(1), "10", "SECONDS"),
    is_change=True,
)
async def cluster_send_time(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print the mean response time of every broker, again and again."""
    is_first = True
    while True:
        servers = await admin.select_brokers(cluster=options.cluster)
        for server in servers:
            try:
                series = [
                    timed async for timed in admin.measure_sends(server.broker, b"a" * options.size, options.amount)
                ]
            except ArianeError as error:
                unknown = {"cluster": server.cluster, "broker": server.broker, "meanMs": None}
                yield Output("", unknown, (BrokerUnavailable(server.broker, server.addr, str(error)),))
                continue
            if admin.is_dry_run:
                continue
            yield _cluster_output(options, server, series, is_first=is_first)
            is_first = False
        if admin.is_dry_run:
            return
        await asyncio.sleep(options.interval)


def _cluster_output(options: Options, server: BrokerServer, series: list[TimedSend], *, is_first: bool) -> Output:
    mean = _mean_after_first([timed.took_ms for timed in series])
    failed = sum(timed.error is not None for timed in series)
    done = len(series) - failed
    if options.printLog:
        rounded = "unknown" if mean is None else int(mean + 0.5)
        text = f"{time_s(SYSTEM_CLOCK.now_ms())}|{options.machineRoom}|{server.cluster}|{server.broker}|{rounded}\n"
    else:
        header = RT_HEADER.format("#Cluster Name", "#Broker Name", "#RT", "#successCount", "#failCount")
        text = RT_ROW.format(server.cluster, server.broker, _two_decimals(mean), done, failed)
        text = header + text if is_first else text
    data = {
        "cluster": server.cluster,
        "broker": server.broker,
        "meanMs": mean,
        "successCount": done,
        "failCount": failed,
        "at": datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000).astimezone(),
    }
    reasons = {timed.error for timed in series if timed.error is not None}
    return Output(text, data, notes=tuple(f"{server.broker}: {reason}" for reason in sorted(reasons)))


def _raise_failure(timed: TimedSend, server: BrokerServer) -> TimedSend:
    if timed.error is not None:
        raise ArianeError(f"{server.broker} {server.addr}: {timed.error}")
    return timed


def _mean_after_first(times_ms: list[int]) -> float | None:
    """Return the mean without the first, which includes the connect; None for fewer than two."""
    return sum(times_ms[1:]) / (len(times_ms) - 1) if len(times_ms) > 1 else None


def _two_decimals(mean: float | None) -> str:
    return "unknown" if mean is None else f"{mean:.2f}"
