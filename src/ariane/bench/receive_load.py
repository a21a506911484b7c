"""Consumers and repliers: count what arrives, and how long it took since it was sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ariane.bench.bench_body import parse_stamp
from ariane.bench.bench_plan import WorkerPlan, share
from ariane.bench.measurements import Bitmap, WorkerReport
from ariane.client.instance.send_types import SendResult
from ariane.errors import ArianeError
from ariane.model.message import MessageQueue, ReceivedMessage

REPLY = b"reply"


class ConsumeLoad:
    """Listener of a consumer that counts messages. Messages of other runs are ignored if the bodies identify the run.

    Messages that were fetched earlier are not counted before the event `started`.
    """

    def __init__(
        self,
        work: WorkerPlan,
        report: WorkerReport,
        started: asyncio.Event,
        is_assigned: Callable[[MessageQueue], bool],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        plan = work.plan
        self._plan = plan  # of the whole run
        self._report = report  # receives the measurements
        self._monotonic = monotonic  # clock, in seconds
        # Identifies the messages of this run in mode both; None in mode consume, which counts all messages.
        self._run_id = bytes.fromhex(plan.run_id) if plan.has_stamps else None
        # The first messages of each sender (mode both), or of this consumer, are not measured.
        self._sender_warm_ups = [share(plan.warm_up, number, plan.clients) for number in range(plan.clients)]
        self._warm_up = work.warm_up  # of this consumer
        self._received: dict[int, Bitmap] = {}  # by the number of the sender
        self._started = started
        self._is_assigned = is_assigned  # whether a queue is assigned to this consumer
        self._previous_s: float | None = None  # when the previous message arrived; at first, when the load was started

    async def __call__(self, messages: Sequence[ReceivedMessage]) -> None:
        if not self._started.is_set():
            await self._started.wait()
            # Queues that were reassigned meanwhile: another consumer receives these messages.
            messages = [message for message in messages if self._is_assigned(message.queue)]
        if self._previous_s is None:
            self._previous_s = self._monotonic()
        now_s = self._monotonic()
        for message in messages:
            if self._run_id is None:
                self._count(message, self._previous_s, now_s)
            else:
                self._count_stamped(message, self._run_id, now_s)
        self._previous_s = now_s

    def finish(self) -> None:
        """Complete the report."""
        self._report.received = {sender: bitmap.encode() for sender, bitmap in self._received.items()}

    def _count(self, message: ReceivedMessage, previous_s: float, now_s: float) -> None:
        self._report.completed += 1
        if self._report.completed > self._warm_up:
            self._report.on_measured(previous_s, now_s, len(message.body))

    def _count_stamped(self, message: ReceivedMessage, run_id: bytes, now_s: float) -> None:
        stamp = parse_stamp(message.body, run_id)
        if stamp is None or stamp.sender >= self._plan.clients:
            return
        if not self._received.setdefault(stamp.sender, Bitmap()).add(stamp.sequence):
            self._report.duplicates += 1
            return
        self._report.completed += 1
        if stamp.sequence >= self._sender_warm_ups[stamp.sender]:
            self._report.on_measured(stamp.sent_s, now_s, len(message.body))
            self._report.latency.record((now_s - stamp.sent_s) * 1000)


class ReplyProducer(Protocol):
    """Replies to requests: `ariane.client.Producer`, or a script in tests."""

    async def reply(self, request: ReceivedMessage, body: bytes) -> SendResult: ...


class ReplyLoad:
    """Listener that replies to every request, and reports the number of replies and the failures."""

    def __init__(self, producer: ReplyProducer, report: WorkerReport) -> None:
        self._producer = producer
        self._report = report

    async def __call__(self, messages: Sequence[ReceivedMessage]) -> None:
        await asyncio.gather(*map(self._reply, messages))

    async def _reply(self, request: ReceivedMessage) -> None:
        try:
            await self._producer.reply(request, REPLY)
        except ArianeError as error:
            self._report.errors.record(error)
        else:
            self._report.completed += 1
