"""Demo traffic: orders of three steps, sent in order, consumed in order by two groups, traced all the way.

`judged` sends ORDERS orders, waits until both groups and the pipeline have everything, and gives the verdict; `endless` goes
on until told to stop and says every few seconds how it stands. What counts and what is a fault: `demo_ledger`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path

import typer

from ariane.cli.demo_tracker import STEPS, DemoTracker, build_report, verify
from ariane.client.producer import Producer
from ariane.client.push_consumer import PushConsumer
from ariane.client.settings import TraceSettings
from ariane.clock import SYSTEM_CLOCK
from ariane.cluster import topic_admin
from ariane.errors import ArianeError
from ariane.model import ids
from ariane.model.message import Message, ReceivedMessage
from ariane.net.connection_pool import ConnectionPool
from ariane.reports import table_views
from ariane.tables import JOURNEYS, published

TOPIC = "orders"
QUEUES = 4
GROUPS = ("stock", "billing")
ORDERS = 1_000
AT_ONCE = 32  # orders on their way at the same time
STEP_S = 0.05  # between the steps of an order: long enough to watch, and to kill the broker meanwhile
SAY_EVERY_S = 2.0
RETRY_S = 0.2
SEND_S = 120.0  # a broker that was killed is back long before
CONSUME_S = 120.0
JOURNEYS_S = 300.0  # Spark's first start included
TRACED = TraceSettings(when_full="block", retries=100, close_wait_ms=60_000)

Say = Callable[[str], None]


async def run_once_and_verify(namesrv: str, tables: Path | None, say: Say) -> None:
    """The whole demo. Prints the report as the last line; exit status 1 when something is not as it has to be."""
    ledger = DemoTracker(GROUPS)
    async with AsyncExitStack() as clients:
        producer = await _open_clients(clients, namesrv, ledger)
        say(f"sending   {ORDERS:,} orders of {len(STEPS)} steps")
        await _while_saying(_send_orders(producer, ledger, range(ORDERS)), ledger, say)
        complete = await _until(lambda: ledger.lost == 0, CONSUME_S)
        say(f"consumed  {ledger.consumed_count:,}" + ("" if complete else f", {ledger.lost} are missing"))
    expected = ORDERS * len(STEPS) * len(GROUPS)
    journeys = None
    if tables is not None:
        say("pipeline  waiting for the journeys")
        await _until(lambda: (_journeys(tables) or 0) >= expected, JOURNEYS_S)
        journeys = _journeys(tables)
    made = build_report(ledger, journeys)
    wrong = verify(made, ORDERS, len(GROUPS))
    for fault in wrong:
        typer.echo(f"ariane: {fault}", err=True)
    if tables is None:
        typer.echo("ariane: journeys are computed by Spark, which needs Java (see above)", err=True)
    typer.echo(json.dumps(asdict(made), separators=(",", ":")))
    if wrong:
        raise typer.Exit(1)


async def run_forever(namesrv: str, tables: Path | None, say: Say, stop: asyncio.Event) -> None:
    """Orders for ever, a few a second."""
    ledger = DemoTracker(GROUPS)
    async with AsyncExitStack() as clients:
        producer = await _open_clients(clients, namesrv, ledger)
        say("demo      sending orders; Ctrl-C stops everything")
        sending = asyncio.ensure_future(_send_for_ever(producer, ledger))
        while not stop.is_set() and not sending.done():
            await asyncio.wait([asyncio.ensure_future(stop.wait()), sending], timeout=SAY_EVERY_S)
            shown = _journeys(tables) if tables is not None else None
            say(_standing(ledger) + ("" if shown is None else f"  journeys {shown:,}"))
        sending.cancel()
        await asyncio.wait([sending])
    say("stopping")


async def _open_clients(clients: AsyncExitStack, namesrv: str, ledger: DemoTracker) -> Producer:
    """A producer and a consumer of each group. The topic is made first, so that nobody waits for a route to it."""
    async with ConnectionPool() as peers:
        await topic_admin.create_topic(peers, namesrv, TOPIC, QUEUES)
    producer = await clients.enter_async_context(Producer("shop", namesrv, trace=TRACED))
    for group in GROUPS:
        await clients.enter_async_context(_consumer(group, namesrv, ledger))
    return producer


def _consumer(group: str, namesrv: str, ledger: DemoTracker) -> PushConsumer:
    async def listener(messages: Sequence[ReceivedMessage]) -> None:
        for message in messages:
            number = message.keys[0].removeprefix("ORDER-")
            ledger.on_consumed(group, int(number), message.body.decode(), time.monotonic())

    return PushConsumer(group, namesrv, {TOPIC: "*"}, listener, start="first", orderly=True, trace=TRACED)


async def _send_orders(producer: Producer, ledger: DemoTracker, orders: range) -> None:
    """Each order's steps one after another, AT_ONCE orders side by side."""
    left = iter(orders)

    async def worker() -> None:
        for order in left:
            await _send_order(producer, ledger, order)

    async with asyncio.TaskGroup() as workers:
        for _ in range(AT_ONCE):
            workers.create_task(worker())


async def _send_for_ever(producer: Producer, ledger: DemoTracker) -> None:
    order = 0
    while True:
        await _send_order(producer, ledger, order)
        order += 1
        await asyncio.sleep(RETRY_S)


_make_id = ids.unique_ids(SYSTEM_CLOCK.now_ms, ip="127.0.0.1")


async def _send_order(producer: Producer, ledger: DemoTracker, order: int) -> None:
    """A step is sent again, under the same id, until a broker has acknowledged it."""
    key = f"ORDER-{order}"
    for step in STEPS:
        message = Message(topic=TOPIC, body=step.encode(), tags=step, keys=[key], message_id=_make_id())
        ledger.on_send(order, step, time.monotonic())
        async with asyncio.timeout(SEND_S):
            while True:
                try:
                    await producer.send(message, order_key=key)
                    break
                except ArianeError:
                    await asyncio.sleep(RETRY_S)
        ledger.on_acknowledged(order, step)
        await asyncio.sleep(STEP_S)


async def _while_saying(work: Awaitable[None], ledger: DemoTracker, say: Say) -> None:
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait([task], timeout=SAY_EVERY_S)
        say(_standing(ledger))
    task.result()


async def _until(reached: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not reached() and time.monotonic() < deadline:  # noqa: ASYNC110 - what is waited for lies in files
        await asyncio.sleep(0.1)
    return reached()


def _standing(ledger: DemoTracker) -> str:
    wait = ledger.produce_to_consume_ms()
    times = "" if wait["p50"] is None else f"  produce to consume p50 {wait['p50']:.1f} ms, p99 {wait['p99']:.1f} ms"
    behind = ledger.sent_count * len(GROUPS) - ledger.consumed_count
    return f"demo      sent {ledger.sent_count:,}  consumed {ledger.consumed_count:,}  behind {max(behind, 0):,}{times}"


def _journeys(tables: Path) -> int | None:
    """Rows of the published journeys whose message was sent and consumed; None before the first."""
    if published.current(tables, JOURNEYS) is None:
        return None
    with table_views.open_views(tables, table_views.whole_table(JOURNEYS)) as sql:
        question = (
            "SELECT count(*) AS n FROM journeys WHERE consumer_group IS NOT NULL AND sent_at IS NOT NULL AND topic = $1"
        )
        return int(table_views.query(sql, question, [TOPIC])[0]["n"])
