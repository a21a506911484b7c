"""The command on entries of consume queues. Reference: admin-and-dashboard 1.3."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ariane.cli.mqadmin.command import TOPIC, CommandList, Option, Options, Output
from ariane.cli.mqadmin.option_values import whole_number
from ariane.cli.mqadmin.value_text import boolean
from ariane.cluster.admin import Admin
from ariane.protocol import fastjson
from ariane.protocol.requests.brokers import QueryQueue, QueueEntry

BLOCK_END = "=" * 38 + "\n"


_number = whole_number(0, "number")


COMMANDS = CommandList()


@COMMANDS.add(
    "queryCq",
    TOPIC,
    Option("q", "queue", "Queue id.", _number, metavar="N", is_required=True),
    Option("i", "index", "Index of the first entry.", _number, metavar="N", is_required=True),
    Option("c", "count", "Number of entries.", _number, 10, "N"),
    Option("b", "broker", "Broker: HOST:PORT or name; otherwise the first of the route.", metavar="ADDR"),
    Option("g", "consumer", "Consumer group whose subscription is checked.", metavar="NAME"),
)
async def query_cq(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print entries of a consume queue, and whether a group would receive each."""
    addr = None
    if options.broker:
        addr = (await admin.select_brokers(broker=options.broker))[0].addr
    request = QueryQueue(options.topic, options.queue, options.index, options.count, options.consumer)
    entries = await admin.query_queue(request, addr=addr)
    text = ""
    if entries.subscription_data is not None:
        text += f"Subscription data: \n{fastjson.write(entries.subscription_data, pretty=True).decode()}\n{BLOCK_END}"
    if entries.filter_data is not None:
        text += f"Filter data: \n{entries.filter_data}\n{BLOCK_END}"
    text += f"Queue data: \nmax: {entries.max_queue_index}, min: {entries.min_queue_index}\n{BLOCK_END}"
    for index, entry in enumerate(entries.queue_data, options.index):
        text += f"idx: {index}\n{_entry(entry)}\n{BLOCK_END}"
    yield Output(text, entries)


def _entry(entry: QueueEntry) -> str:
    texts = (
        f"extendDataJson='{_or_null(entry.extend_data_json)}'",
        f"bitMap='{_or_null(entry.bit_map)}'",
        f"eval={boolean(entry.eval)}",
        f"msg='{_or_null(entry.msg)}'",
    )
    numbers = f"physicOffset={entry.physic_offset}, physicSize={entry.physic_size}, tagsCode={entry.tags_code}"
    return f"ConsumeQueueData{{{numbers}, {', '.join(texts)}}}"


def _or_null(text: str | None) -> str:
    return "null" if text is None else text
