"""Loads of a benchmark with scripted clients: windows, due times, warm-up, one-way, batches, failures, consumers, repliers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from client_script import QUEUE, message
from test_bench_measurements import RUN, plan

from ariane.bench.bench_body import BodyFactory
from ariane.bench.bench_plan import BenchMode, BenchPlan, Role, SendMethod, WorkerPlan
from ariane.bench.measurements import WorkerReport, unique_received
from ariane.bench.receive_load import ConsumeLoad, ReplyLoad
from ariane.bench.send_load import Pace, SendLoad
from ariane.client.instance.send_types import SendResult, SendStatus
from ariane.errors import ConnectionLost, MessageRefused
from ariane.model.message import Message, MessageQueue, ReceivedMessage


def result(status: SendStatus = SendStatus.SEND_OK) -> SendResult:
    return SendResult(
        status=status, message_id="", offset_message_id="", queue=QUEUE, queue_offset=0, transaction_id=None,
        region="", trace_on=False,
    )  # fmt: skip


class ScriptedProducer:
    """Completes each send after a few ticks; counts the sends in flight."""

    def __init__(self, status: SendStatus = SendStatus.SEND_OK, fail: Callable[[int], bool] = lambda _: False) -> None:
        self.units: list[int] = []
        self.in_flight = self.in_flight_max = 0
        self._status = status
        self._fail = fail

    async def _complete(self, count: int) -> SendResult:
        number = len(self.units)
        self.units.append(count)
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight, self.in_flight_max)
        for _ in range(3):
            await asyncio.sleep(0)
        self.in_flight -= 1
        if self._fail(number):
            raise ConnectionLost("a:1", "refused")
        return result(self._status)

    async def send(self, message: Message) -> SendResult:
        return await self._complete(1)

    async def send_batch(self, messages: list[Message]) -> SendResult:
        return await self._complete(len(messages))

    async def send_one_way(self, message: Message) -> None:
        self.units.append(1)

    async def request(self, message: Message) -> ReceivedMessage:
        await self._complete(1)
        return received(b"reply")

    async def reply(self, request: ReceivedMessage, body: bytes) -> SendResult:
        if request.body == b"no request":
            raise MessageRefused("not a request")
        return await self._complete(1)


def received(body: bytes, queue: MessageQueue = QUEUE) -> ReceivedMessage:
    return message(1, queue=queue, body=body)


def run_load(producer: ScriptedProducer, whole: BenchPlan, *, stop_after: int | None = None) -> WorkerReport:
    (work,) = (worker for worker in whole.workers() if worker.role in (Role.SEND, Role.REQUEST))
    report = WorkerReport(role=work.role)

    async def work_all() -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(SendLoad(work, producer, report, stop).run())
        while not running.done():
            if stop_after is not None and len(producer.units) >= stop_after:
                stop.set()
            await asyncio.sleep(0)
        await running

    asyncio.run(work_all())
    return report


@pytest.mark.parametrize(
    ("more", "in_flight", "units", "latencies"),
    [
        ({"method": SendMethod.SYNC}, 1, [1] * 100, 90),
        ({"method": SendMethod.ASYNC, "in_flight": 7}, 7, [1] * 100, 90),
        ({"method": SendMethod.BATCH, "batch": 30, "in_flight": 2}, 2, [30, 30, 30, 10], 3),
        ({"method": SendMethod.ONE_WAY}, 0, [1] * 100, 0),
        ({"mode": BenchMode.REQUEST, "in_flight": 5}, 5, [1] * 100, 90),
    ],
)
def test_each_method_sends_everything_and_measures_after_the_warm_up(more, in_flight, units, latencies) -> None:
    producer = ScriptedProducer()
    report = run_load(producer, plan(messages=100, warm_up=10, **more))
    assert (producer.in_flight_max, producer.units) == (in_flight, units)
    measured = 70 if more.get("batch") else 90  # the first batch contains messages of the warm-up
    assert (report.completed, report.messages, report.bytes) == (100, measured, measured * 128)
    assert report.latency.count == latencies
    assert report.errors.count == 0
    assert report.first_s <= report.last_s


def test_failures_are_counted_and_not_measured() -> None:
    report = run_load(ScriptedProducer(fail=lambda number: number % 4 == 0), plan(messages=100, in_flight=3))
    assert (report.errors.count, report.completed, report.latency.count) == (25, 75, 75)
    assert report.errors.kinds["ConnectionLost"].example == "connection to a:1: refused"
    batches = run_load(
        ScriptedProducer(fail=lambda number: number == 3),
        plan(messages=100, method=SendMethod.BATCH, batch=30, in_flight=1),
    )
    assert batches.errors.count == 10


def test_late_flushes_are_counted_by_status() -> None:
    report = run_load(ScriptedProducer(SendStatus.FLUSH_DISK_TIMEOUT), plan(messages=5, in_flight=1))
    assert (report.late_statuses, report.completed) == ({"FLUSH_DISK_TIMEOUT": 5}, 5)


def test_a_stopped_load_awaits_what_is_in_flight() -> None:
    producer = ScriptedProducer()
    report = run_load(producer, plan(messages=100_000, in_flight=8), stop_after=20)
    assert 20 <= report.completed == len(producer.units) < 100
    assert producer.in_flight == 0


def test_due_times_do_not_depend_on_when_the_load_asks() -> None:
    class Clock:
        now_s = 100.0

        def __call__(self) -> float:
            self.now_s += 0.001
            return self.now_s

    async def work() -> None:
        clock = Clock()
        pace = Pace(100.0, clock)
        start_s = clock.now_s
        assert await pace.wait_due(0) == start_s
        assert await pace.wait_due(1) == pytest.approx(start_s + 0.01)
        clock.now_s += 60  # the cluster stalls
        assert await pace.wait_due(2) == pytest.approx(start_s + 0.02)
        assert clock.now_s > start_s + 60
        assert await Pace(None, clock).wait_due(7) == clock.now_s

    asyncio.run(work())


def test_with_a_rate_a_stall_counts_for_every_message_that_was_due() -> None:
    class Stalling(ScriptedProducer):
        async def _complete(self, count: int) -> SendResult:
            if not self.units:
                time.sleep(0.05)
            return await super()._complete(count)

    slow = run_load(Stalling(), plan(messages=10, method=SendMethod.SYNC, rate=1_000.0)).latency
    assert slow.count == 10
    assert (slow.percentile(50) or 0) > 40  # due within 10 ms, all complete after 50 ms
    closed = run_load(Stalling(), plan(messages=10, method=SendMethod.SYNC)).latency
    assert (closed.percentile(50) or 0) < (slow.percentile(50) or 0)


def consume(whole: BenchPlan, *calls: list[bytes]) -> WorkerReport:
    work = next(worker for worker in whole.workers() if worker.role is Role.CONSUME)
    return consume_as(work, *calls)


def consume_as(work: WorkerPlan, *calls: list[bytes]) -> WorkerReport:
    report = WorkerReport(role="consume")

    async def work_all() -> None:
        started = asyncio.Event()
        times = iter(range(1_000, 2_000))
        listener = ConsumeLoad(work, report, started, lambda queue: queue == QUEUE, lambda: float(next(times)))
        first = asyncio.create_task(listener([*map(received, calls[0]), received(b"x", MessageQueue("T", "a", 9))]))
        await asyncio.sleep(0)
        assert report.completed == 0  # fetched before the start
        started.set()
        await first
        for bodies in calls[1:]:
            await listener([received(body) for body in bodies])
        listener.finish()

    asyncio.run(work_all())
    return report


def test_a_consumer_measures_from_the_message_before_the_first_measured_one() -> None:
    report = consume(plan(BenchMode.CONSUME, warm_up=2), [b"xx"], [b"xx", b"xx"], [b"xx"])
    assert (report.completed, report.messages, report.bytes) == (4, 2, 4)
    assert (report.first_s, report.last_s) == (1001.0, 1003.0)
    assert report.latency.count == 0


def test_a_consumer_of_this_run_measures_the_way_from_the_sender() -> None:
    both = plan(BenchMode.BOTH, clients=2, warm_up=2)  # one message of each sender
    bodies = [BodyFactory(30, RUN, sender) for sender in (0, 1, 2)]
    report = consume(
        both,
        [
            bodies[0].make(990.0, 0),
            bodies[0].make(991.0, 1),
            b"of another program",
            BodyFactory(30, bytes(8), 0).make(1.0, 5),
        ],
        [bodies[1].make(992.0, 1), bodies[0].make(991.0, 1), bodies[2].make(993.0, 1)],
    )
    assert (report.completed, report.messages, report.duplicates) == (3, 2, 1)
    assert (report.first_s, report.last_s) == (991.0, 1002.0)
    assert (report.latency.min_ms, report.latency.max_ms) == (10_000.0, 10_000.0)
    assert unique_received([report]) == 3


def test_a_replier_replies_to_all_and_counts_failures() -> None:
    report, producer = WorkerReport(role="reply"), ScriptedProducer()
    asyncio.run(ReplyLoad(producer, report)([received(b"a"), received(b"no request"), received(b"b")]))
    assert (report.completed, report.errors.count, producer.in_flight_max) == (2, 1, 2)
