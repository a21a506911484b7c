"""`ariane cat`: reads messages of a topic and writes them to standard output.

    without --group   PullConsumer: a task per queue ─→ batches ─→ filter by key ─→ ByteOutput     nothing is committed
    with --group      LitePullConsumer ─────────────→ batches ─────────────────→ ByteOutput ─→ commit

A message counts as consumed once it was written: what a closed pipe or Ctrl-C kept from the reader is not committed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from enum import Enum
from typing import Literal

import msgspec
import typer

from ariane.cli.messages.byte_streams import ByteOutput, WriteInterrupted
from ariane.cli.messages.message_format import Formatter
from ariane.cli.options.queue_selection import QueueName, select_queues
from ariane.client.consuming.subscriptions import Sql, subscription_data
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.settings import ConsumerSettings
from ariane.client.lite_pull_consumer import LitePullConsumer
from ariane.client.pull_consumer import PullConsumer
from ariane.errors import ArianeError, UsageError
from ariane.filter import tags
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.protocol.client_rules.transient import RETRY_BACKOFF, is_transient

BATCH_MAX = 32  # messages per pull; brokers return no more from memory
BATCHES_MAX = 64  # batches that were pulled and not written yet
IDLE_S = 0.2  # how often a closed pipe is noticed while no message arrives
COMMIT_S = 1
WAIT_S = 1.0  # for a slave that lags
PATIENCE_S = 30.0  # with --exit-at-end: how long a broker may be unavailable, or a group without a queue


class Anchor(Enum):
    """Start positions without a number."""

    BEGINNING = "beginning"
    END = "end"


class ConsumePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to read, as the command line says."""

    topic: str  # topic to read
    group: str | None = None  # consumer group to join; None to read without one
    queues: tuple[QueueName, ...] = ()  # queues to read; empty: all
    start: Anchor | int = Anchor.BEGINNING  # first offset of each queue; a negative number counts from the end
    since_ms: int | None = None  # start at this store time instead, in ms since the epoch
    expression: str | Sql = tags.ALL  # filter of the broker
    key: str | None = None  # only messages with this key
    count: int | None = None  # maximum number of messages
    exit_at_end: bool = False  # whether to end at the offsets where the queues ended at the start


class MessageOutput:
    """Writes messages in one format; counts them and applies the filter by key."""

    def __init__(self, output: ByteOutput, formatter: Formatter, plan: ConsumePlan) -> None:
        self._output = output
        self._format = formatter
        self._key = plan.key
        # A group that has stored offsets continues there: a filter would skip, and commit, older messages.
        self._since_ms = plan.since_ms if plan.group is None else None
        self._remaining = plan.count

    @property
    def remaining(self) -> int:
        """How many of the next messages to fetch at most."""
        return BATCH_MAX if self._remaining is None else min(BATCH_MAX, self._remaining)

    @property
    def is_complete(self) -> bool:
        """Whether the requested number of messages was written."""
        return self._remaining == 0

    def check_reader(self) -> None:
        """Raise BrokenPipeError if the reader has closed the pipe."""
        self._output.check_reader()

    async def write(self, messages: Sequence[ReceivedMessage]) -> None:
        """Write the selected ones of these messages. Raise BrokenPipeError or WriteInterrupted if that is not possible."""
        selected = [message for message in messages if self._is_selected(message)][: self._remaining]
        for message in selected:
            if message.body_error:
                warn(f"offset {message.queue_offset} of {message.queue}: {message.body_error}; printed as it is stored")
        await self._output.write(b"".join(map(self._format, selected)))
        if self._remaining is not None:
            self._remaining -= len(selected)

    def _is_selected(self, message: ReceivedMessage) -> bool:
        if self._key is not None and self._key not in message.keys:
            return False
        # The offset for a time may be that of an earlier message: brokers search to the nearest one.
        return self._since_ms is None or message.store_ms >= self._since_ms


def warn(text: str) -> None:
    """Print a warning on standard error."""
    typer.echo(f"Warning: {text}", err=True)


async def consume(instance: ClientInstance, plan: ConsumePlan, output: MessageOutput, stop: asyncio.Event) -> None:
    """Write messages until the plan is fulfilled or `stop` is set.

    Raises:
        BrokenPipeError: the reader has closed the pipe.
        UsageError: a queue or offset does not exist.
        ArianeError: the topic does not exist, or a server rejected a request.
    """
    if plan.group is None:
        async with PullConsumer(instance) as consumer:
            ranges = await _offset_ranges(consumer, plan)
            if isinstance(plan.expression, Sql):
                # A broker that does not filter by SQL92 would otherwise look like one that is unavailable for a moment.
                subscription = subscription_data(plan.topic, plan.expression, instance.clock.now_ms())
                await instance.check_subscription(consumer.group, subscription)
            await _write_batches(_QueueBatches(consumer, plan, ranges).batches(), output, stop)
    else:
        await instance.routes.subscribe_queues(plan.topic)  # a consumer would wait for a topic that does not exist
        anchor: Literal["first", "last"] = "last" if plan.start is Anchor.END else "first"
        start = anchor if plan.since_ms is None else _at(plan.since_ms)
        subscriptions = {plan.topic: plan.expression}
        settings = ConsumerSettings(commit_interval=COMMIT_S)
        async with LitePullConsumer(
            instance, plan.group, subscriptions=subscriptions, start=start, settings=settings
        ) as member:
            # Each poll commits the messages of the previous one. The last ones remain, unless they could not be written.
            if await _write_batches(_poll_batches(member, plan, output), output, stop):
                await member.commit()


async def _write_batches(
    batches: AsyncGenerator[Sequence[ReceivedMessage], None], output: MessageOutput, stop: asyncio.Event
) -> bool:
    """Write batches until the last one, until the output is complete or until `stop` is set.

    There is an empty batch at least every IDLE_S seconds. Return whether the last one was written completely.
    """
    async with aclosing(batches):
        async for messages in batches:
            if messages:
                try:
                    await output.write(messages)
                except WriteInterrupted:
                    return False
            else:
                output.check_reader()
            if stop.is_set() or output.is_complete:
                break
    return True


def _at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


# --- without a group ---


async def _offset_ranges(consumer: PullConsumer, plan: ConsumePlan) -> dict[MessageQueue, tuple[int, int]]:
    """Return the first offset to read of each queue, and the offset at which it ends now."""
    queues = select_queues(await consumer.queues_of(plan.topic), plan.queues)
    bounds = await asyncio.gather(*map(consumer.bounds, queues))
    ranges = {}
    for queue, (first, end) in zip(queues, bounds, strict=True):
        if plan.since_ms is not None:
            start = max(first, min(end, await consumer.offset_for_time(queue, _at(plan.since_ms))))
        else:
            start = _start_offset(queue, plan.start, max(0, first), end)
        ranges[queue] = (start, end)
    return ranges


def _start_offset(queue: MessageQueue, start: Anchor | int, first: int, end: int) -> int:
    if isinstance(start, Anchor):
        return first if start is Anchor.BEGINNING else end
    if start < 0:
        return max(first, end + start)
    if not first <= start <= end:
        fix = (
            f"{queue.broker}:{queue.queue_id} has offsets {first} to {end}; choose one of these, or a queue by --queue"
        )
        raise UsageError("--offset", start, fix)
    return start


class _QueueBatches:
    """Reads queues concurrently; each queue in its order."""

    def __init__(
        self, consumer: PullConsumer, plan: ConsumePlan, ranges: Mapping[MessageQueue, tuple[int, int]]
    ) -> None:
        self._consumer = consumer
        self._plan = plan
        self._ranges = ranges
        self._pulled: asyncio.Queue[list[ReceivedMessage]] = asyncio.Queue(BATCHES_MAX)

    async def batches(self) -> AsyncGenerator[Sequence[ReceivedMessage], None]:
        readers = {asyncio.ensure_future(self._read(queue, *bounds)) for queue, bounds in self._ranges.items()}
        try:
            while True:
                try:
                    async with asyncio.timeout(IDLE_S):
                        batch = await self._pulled.get()
                except TimeoutError:
                    batch = []
                yield batch
                for reader in readers:
                    if reader.done():
                        reader.result()  # raises what the reader raised
                if self._pulled.empty() and all(reader.done() for reader in readers):
                    return
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def _read(self, queue: MessageQueue, offset: int, end: int) -> None:
        """Pull one queue from `offset`, with --exit-at-end to `end`."""
        must_end = self._plan.exit_at_end
        outage = _Outage(queue, PATIENCE_S if must_end else None)
        while not (must_end and offset >= end):
            try:
                result = await self._consumer.pull(
                    queue, offset, expression=self._plan.expression, max_messages=BATCH_MAX, can_wait=not must_end
                )
            except ArianeError as error:
                await asyncio.sleep(outage.on_error(error))
                continue
            outage.on_success()
            if result.is_offset_moved and result.next_offset != offset:
                warn(
                    f"{queue.broker}:{queue.queue_id} no longer has offset {offset}; continuing at {result.next_offset}"
                )
            messages = [message for message in result.messages if not must_end or message.queue_offset < end]
            if messages:
                await self._pulled.put(messages)
            elif result.next_offset == offset and must_end:
                # A slave that lags, or a broker that is removing files, responds immediately.
                await asyncio.sleep(WAIT_S)
            offset = result.next_offset


class _Outage:
    """Decides how long errors of one queue are retried, and reports the first one of an outage."""

    def __init__(self, queue: MessageQueue, patience_s: float | None) -> None:
        self._queue = queue
        self._patience_s = patience_s
        self._since_s: float | None = None
        self._failures = 0  # in a row

    def on_error(self, error: ArianeError) -> float:
        """Return the seconds until the next attempt; raise the error if it is permanent or lasts too long."""
        now_s = time.monotonic()
        if not is_transient(error):
            raise error
        if self._since_s is None:
            self._since_s = now_s
            warn(f"{self._queue.broker}:{self._queue.queue_id}: {error}; retrying")
        elif self._patience_s is not None and now_s - self._since_s > self._patience_s:
            raise error
        self._failures += 1
        return RETRY_BACKOFF.delay_s(self._failures)

    def on_success(self) -> None:
        self._failures = 0
        if self._since_s is not None:
            self._since_s = None
            warn(f"{self._queue.broker}:{self._queue.queue_id} responds again")


# --- as a group ---


async def _poll_batches(
    member: LitePullConsumer, plan: ConsumePlan, output: MessageOutput
) -> AsyncGenerator[Sequence[ReceivedMessage], None]:
    """Poll as a member of a group; with --exit-at-end until all assigned queues are read."""
    ends = {}
    if plan.exit_at_end:
        ends = {queue: (await member.bounds(queue))[1] for queue in await member.queues_of(plan.topic)}
    started_s = time.monotonic()
    while True:
        batch = await member.poll(max_messages=output.remaining, timeout=IDLE_S)
        yield batch
        if batch or not plan.exit_at_end:
            continue
        assigned = member.queues
        if assigned and all((member.position(queue) or 0) >= ends.get(queue, 0) for queue in assigned):
            return
        if not assigned and time.monotonic() - started_s > PATIENCE_S:
            warn(f"no queue was assigned within {PATIENCE_S:.0f} s: the group has more members than queues")
            return
