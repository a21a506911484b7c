"""Senders and requesters: keep a number of sends in flight, at a fixed rate or as fast as responses arrive.

    without a rate   closed loop: a lane sends its next message when the previous one is complete; latency from the call
    with a rate      message n is due at start + n / rate, whether or not the cluster keeps up; latency from when it was due

Measured from the call, a stall of one second would be one slow message, although with a rate all messages of that second are
late (coordinated omission).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from ariane.bench.bench_body import BodyFactory
from ariane.bench.bench_plan import Role, SendMethod, WorkerPlan
from ariane.bench.measurements import WorkerReport
from ariane.client.instance.send_types import SendResult, SendStatus
from ariane.errors import ArianeError
from ariane.model.message import Message, ReceivedMessage

SPIN_S = 0.001  # timers are precise to a millisecond; the rest of a pause is spent yielding
TICK_BYTES = 64 * 1024  # of one-way messages per tick of the event loop: requests of a tick are buffered until its end


class LoadProducer(Protocol):
    """Sends messages: `ariane.client.Producer`, or a script in tests."""

    async def send(self, message: Message) -> SendResult: ...

    async def send_batch(self, messages: list[Message]) -> SendResult: ...

    async def send_one_way(self, message: Message) -> None: ...

    async def request(self, message: Message) -> ReceivedMessage: ...


class Pace:
    """Due times of messages; without a rate, every message is due immediately. Lanes wait for their turn one after another."""

    def __init__(self, rate: float | None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._monotonic = monotonic
        self._start_s = monotonic()
        self._turn = asyncio.Lock()

    async def wait_due(self, number: int) -> float:
        """Wait until message `number` is due. Return that time; it is in the past if the load is late."""
        if self._rate is None:
            return self._monotonic()
        due_s = self._start_s + number / self._rate
        async with self._turn:
            pause_s = due_s - self._monotonic() - SPIN_S
            if pause_s > 0:
                await asyncio.sleep(pause_s)
            while self._monotonic() < due_s:  # noqa: ASYNC110 - no event announces that a time has come
                await asyncio.sleep(0)
        return due_s


class SendLoad:
    """Sends the messages of one client until `stop` is set; messages in flight are awaited."""

    def __init__(self, work: WorkerPlan, producer: LoadProducer, report: WorkerReport, stop: asyncio.Event) -> None:
        plan = work.plan
        self._work = work  # what to send, and how
        self._producer = producer  # sends the messages
        self._report = report  # receives the measurements
        self._stop = stop
        run_id = bytes.fromhex(plan.run_id) if plan.has_stamps else None
        # Random bytes; with a run id also what consumers need to measure.
        self._bodies = BodyFactory(plan.size, run_id, work.number)
        self._is_request = work.role is Role.REQUEST  # whether replies are awaited, not only acknowledgements
        # A lane sends one unit after another; a unit is a message, or a batch.
        self._unit = plan.batch if plan.method is SendMethod.BATCH and not self._is_request else 1
        is_single = not self._is_request and plan.method in (SendMethod.SYNC, SendMethod.ONE_WAY)
        self._lanes = 1 if is_single else plan.in_flight  # number of units in flight
        self._tick = max(1, TICK_BYTES // plan.size)  # one-way messages per tick of the event loop

    async def run(self) -> None:
        """Send all messages, or those until `stop` is set."""
        pace = Pace(self._work.rate)
        firsts = iter(range(0, self._work.messages, self._unit))
        async with asyncio.TaskGroup() as lanes:
            for _ in range(min(self._lanes, -(-self._work.messages // self._unit))):
                lanes.create_task(self._run_lane(firsts.__next__, pace))

    async def _run_lane(self, next_first: Callable[[], int], pace: Pace) -> None:
        while not self._stop.is_set():
            try:
                first = next_first()
            except StopIteration:
                return
            count = min(self._unit, self._work.messages - first)
            due_s = await pace.wait_due(first)
            try:
                await self._send(first, count, due_s)
            except ArianeError as error:
                self._report.errors.record(error, count)
                await asyncio.sleep(0)  # an error that needs no response must not keep the loop from working
                continue
            end_s = time.monotonic()
            self._report.completed += count
            # A unit is measured unless it contains messages of the warm-up.
            if first >= self._work.warm_up:
                for _ in range(count):
                    self._report.on_measured(due_s, end_s, self._work.plan.size)
                if self._work.plan.method is not SendMethod.ONE_WAY or self._is_request:
                    self._report.latency.record((end_s - due_s) * 1000)

    async def _send(self, first: int, count: int, due_s: float) -> None:
        messages = [
            Message(topic=self._work.plan.topic, body=self._bodies.make(due_s, first + number))
            for number in range(count)
        ]
        if self._is_request:
            await self._producer.request(messages[0])
        elif self._work.plan.method is SendMethod.ONE_WAY:
            await self._producer.send_one_way(messages[0])
            if first % self._tick == 0:
                await asyncio.sleep(0)
        elif self._unit > 1:
            self._count_status(await self._producer.send_batch(messages), count)
        else:
            self._count_status(await self._producer.send(messages[0]), count)

    def _count_status(self, result: SendResult, count: int) -> None:
        if result.status is not SendStatus.SEND_OK:
            late = self._report.late_statuses
            late[result.status.name] = late.get(result.status.name, 0) + count
