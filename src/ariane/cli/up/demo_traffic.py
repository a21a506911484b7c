"""Generates demo traffic: orders of three steps, sent in order, consumed in order by two groups, and traced.

`run_once_and_verify` sends ORDERS orders, waits until both groups and the pipeline have processed them, and verifies the
outcome; `run_forever` sends until it is stopped and prints its state every few seconds, with the traffic of `demo_scenarios`.
Faults: `demo_tracker`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict

import typer

from ariane.cli.up.demo_scenarios import run_scenarios
from ariane.cli.up.demo_tracker import STEPS, DemoTracker, build_report, verify
from ariane.client.instance.hooks import SendHook
from ariane.client.instance.settings import ClientSettings, TraceSettings
from ariane.client.producer import Producer
from ariane.client.push_consumer import PushConsumer
from ariane.clock import SYSTEM_CLOCK
from ariane.cluster.admin import Admin
from ariane.errors import ArianeError
from ariane.model import ids
from ariane.model.message import Message, ReceivedMessage
from ariane.net.tasks import BackgroundTasks
from ariane.reports.tables import table_views
from ariane.tables import JOURNEYS, table_store
from ariane.tables.table_home import Home

TOPIC = "orders"
QUEUES = 4
GROUPS = ("stock", "billing")
ORDERS = 1_000
CONCURRENT_ORDERS = 32  # sent concurrently
STEP_S = 0.05  # between the steps of an order: long enough to watch, or to kill the broker
STATUS_INTERVAL_S = 2.0
RETRY_S = 0.2
# Time limits: a killed broker restarts much faster; the first start of Spark may take minutes.
SEND_S = 120.0
CONSUME_S = 120.0
JOURNEYS_S = 300.0
# No trace may be lost, even while the broker is killed: the outcome is verified to the last journey.
TRACED = TraceSettings(when_full="block", retries=100, close_timeout=60)

PrintLine = Callable[[str], None]


async def run_once_and_verify(namesrv: str, client: ClientSettings, tables: Home | None, print_line: PrintLine) -> None:
    """Send ORDERS orders, wait for the consumers and the pipeline, and print the report as the last line.

    Raises:
        typer.Exit: status 1, the outcome is not as expected.
    """
    tracker = DemoTracker(GROUPS)
    async with AsyncExitStack() as clients:
        producer = await open_clients(clients, namesrv, client, tracker)
        print_line(f"sending   {ORDERS:,} orders of {len(STEPS)} steps (p50, p99: from send to consume)")
        await _run_with_status(_send_orders(producer, tracker, range(ORDERS)), tracker, print_line)
        complete = await until(lambda: tracker.lost == 0, CONSUME_S)
        print_line(f"consumed  {tracker.consumed_count:,}" + ("" if complete else f", {tracker.lost} missing"))
    expected = ORDERS * len(STEPS) * len(GROUPS)
    journeys = None
    if tables is not None:
        print_line("pipeline  waiting for the journeys")
        await until(lambda: (_journeys(tables) or 0) >= expected, JOURNEYS_S)
        journeys = _journeys(tables)
    report = build_report(tracker, journeys)
    faults = verify(report, ORDERS, len(GROUPS))
    for fault in faults:
        typer.echo(f"Error: {fault}", err=True)
    if tables is None:
        typer.echo("Warning: no journeys without Spark, which requires Java (see above)", err=True)
    typer.echo(json.dumps(asdict(report), separators=(",", ":")))
    if faults:
        raise typer.Exit(1)


async def run_forever(
    namesrv: str, client: ClientSettings, tables: Home | None, print_line: PrintLine, stop: asyncio.Event
) -> None:
    """Send a few orders per second, and the messages of the scenarios, until `stop` is set."""
    tracker = DemoTracker(GROUPS)
    async with AsyncExitStack() as clients:
        producer = await open_clients(clients, namesrv, client, tracker)
        scenarios = BackgroundTasks("demo")
        clients.push_async_callback(scenarios.close)
        scenarios.start(run_scenarios(namesrv, client), "scenarios")
        print_line("demo      orders; p50, p99: from send to consume; press Ctrl-C to stop")
        sending = asyncio.ensure_future(send_endlessly(producer, tracker, concurrency=1))
        journeys = None
        while not stop.is_set() and not sending.done():
            await asyncio.wait([asyncio.ensure_future(stop.wait()), sending], timeout=STATUS_INTERVAL_S)
            print_line(_status_line(tracker))
            published = None if tables is None else _journeys(tables)
            if published is not None and published != journeys:
                print_line(f"pipeline  journeys {published:,}")
            journeys = published
        sending.cancel()
        await asyncio.wait([sending])
    print_line("stopping")


async def open_clients(
    clients: AsyncExitStack,
    namesrv: str,
    client: ClientSettings,
    tracker: DemoTracker,
    *,
    hooks: Sequence[SendHook] = (),
) -> Producer:
    """Open a producer and a consumer per group. The topic is created first: clients would wait for its route."""
    async with Admin(namesrv, client=client) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES)
    producer = await clients.enter_async_context(Producer(namesrv, "shop", client=client, hooks=hooks, trace=TRACED))
    for group in GROUPS:
        await clients.enter_async_context(_consumer(group, namesrv, client, tracker))
    return producer


def _consumer(group: str, namesrv: str, client: ClientSettings, tracker: DemoTracker) -> PushConsumer:
    async def listener(messages: Sequence[ReceivedMessage]) -> None:
        for message in messages:
            order = message.keys[0].removeprefix("ORDER-")
            tracker.on_consumed(group, int(order), message.body.decode(), time.monotonic())

    # From the first message: sends may begin before the group has its queues.
    return PushConsumer(
        namesrv, group, {TOPIC: "*"}, listener, start="first", orderly=True, client=client, trace=TRACED
    )


async def _send_orders(producer: Producer, tracker: DemoTracker, orders: range) -> None:
    """Send the steps of each order one after another, of CONCURRENT_ORDERS orders at a time."""
    # One iterator for all workers: each order is sent by one of them, so that its steps stay in order.
    remaining = iter(orders)

    async def worker() -> None:
        for order in remaining:
            await _send_order(producer, tracker, order)

    async with asyncio.TaskGroup() as workers:
        for _ in range(CONCURRENT_ORDERS):
            workers.create_task(worker())


async def send_endlessly(producer: Producer, tracker: DemoTracker, *, concurrency: int) -> None:
    """Send orders, `concurrency` at a time, with a pause after each."""
    orders = itertools.count()

    async def worker() -> None:
        for order in orders:
            await _send_order(producer, tracker, order)
            await asyncio.sleep(RETRY_S)

    async with asyncio.TaskGroup() as workers:
        for _ in range(concurrency):
            workers.create_task(worker())


_make_id = ids.unique_ids(SYSTEM_CLOCK.now_ms, ip="127.0.0.1")


async def _send_order(producer: Producer, tracker: DemoTracker, order: int) -> None:
    """Send the steps of an order; retry each, under the same id, until a broker acknowledges it."""
    key = f"ORDER-{order}"
    for step in STEPS:
        # The id is chosen here and reused by each retry: a step that was stored twice is then recognised as one.
        message = Message(topic=TOPIC, body=step.encode(), tags=step, keys=[key], message_id=_make_id())
        tracker.on_send(order, step, time.monotonic())
        async with asyncio.timeout(SEND_S):
            while True:
                try:
                    # The key selects the queue: the steps of an order stay in order.
                    await producer.send(message, order_key=key)
                    break
                except ArianeError:
                    await asyncio.sleep(RETRY_S)
        tracker.on_acknowledged(order, step)
        await asyncio.sleep(STEP_S)


async def _run_with_status(work: Awaitable[None], tracker: DemoTracker, print_line: PrintLine) -> None:
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait([task], timeout=STATUS_INTERVAL_S)
        print_line(_status_line(tracker))
    task.result()


async def until(reached: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not reached() and time.monotonic() < deadline:  # noqa: ASYNC110 - the condition is the state of files
        await asyncio.sleep(0.1)
    return reached()


def _status_line(tracker: DemoTracker) -> str:
    latency = tracker.produce_to_consume_ms()
    times = "" if latency["p50"] is None else f"  p50 {latency['p50']:.1f} p99 {latency['p99']:.1f} ms"
    pending = tracker.sent_count * len(GROUPS) - tracker.consumed_count
    return f"demo      sent {tracker.sent_count:,}  consumed {tracker.consumed_count:,}  pending {max(pending, 0):,}{times}"


def _journeys(tables: Home) -> int | None:
    """Return the number of published journeys that were sent and consumed; None before the first publication."""
    if table_store.read_version(tables, JOURNEYS) is None:
        return None
    with table_views.open_views(tables, table_views.whole_table(JOURNEYS)) as sql:
        statement = (
            "SELECT count(*) AS n FROM journeys WHERE consumer_group IS NOT NULL AND sent_at IS NOT NULL AND topic = $1"
        )
        return int(table_views.query(sql, statement, [TOPIC])[0]["n"])
