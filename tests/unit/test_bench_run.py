"""Order of a benchmark: when queues count as shared, one-way messages that were not stored, and the outcome."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace

import pytest
from client_script import QUEUE
from test_bench_measurements import plan

from ariane.bench import bench_run
from ariane.bench.bench_plan import BenchMode, BenchPlan, SendMethod
from ariane.bench.bench_run import BenchProgress, BenchResult, BenchRun, TopicState
from ariane.bench.environment import BrokerFacts, HostFacts, describe_host
from ariane.bench.measurements import WorkerReport, combine
from ariane.cli.messages import bench_output
from ariane.errors import ConnectionLost

HOST = HostFacts(
    name="h", system="Linux 6", cpus=2, cpu_model="CPU", memory_bytes=None, load_average=None, ariane="1", python="3"
)
BROKER = BrokerFacts(
    name="a", cluster="c", addr="a:1", version="V4_9_4", is_ariane=False, flush_mode="SYNC_FLUSH", role="ASYNC_MASTER"
)


def result(whole: BenchPlan, *reports: WorkerReport, **more: object) -> BenchResult:
    values: dict[str, object] = {
        "plan": whole, "host": HOST, "brokers": (BROKER,), "queues": 8, "is_topic_created": False,
        "throughputs": tuple(combine([report]) for report in reports), **more,
    }  # fmt: skip
    return BenchResult(**values)  # type: ignore[arg-type]


def send_report(errors: int = 0) -> WorkerReport:
    report = WorkerReport(role="send", completed=2)
    for number in range(2):
        report.on_measured(number, number + 1.5, 1024 * 1024)
        report.latency.record(1.5)
    for _ in range(errors):
        report.errors.record(ConnectionLost("a:1", "refused"))
    return report


@pytest.mark.parametrize(
    ("assigned", "is_shared"),
    [([8], True), ([8, 0], False), ([4, 4], True), ([5, 3], False), ([3, 3, 2], True), ([4, 3], False)],
)
def test_queues_are_shared_when_each_member_has_its_part(assigned: list[int], is_shared: bool) -> None:
    assert bench_run._is_shared(assigned, 8) is is_shared


def test_more_consumers_than_queues_are_shared() -> None:
    assert bench_run._is_shared([1, 1, 0], 2)
    assert not bench_run._is_shared([2, 0, 0], 3)


def test_one_way_messages_that_are_not_stored_are_missing(monkeypatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(bench_run, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    monkeypatch.setattr(bench_run, "POLL_S", 0.0)
    monkeypatch.setattr(bench_run, "_completed", lambda processes: 10)

    class Reader:
        ends = itertools.chain([100, 104], itertools.repeat(107))

        async def bounds(self, queue):
            return 0, next(self.ends)

    async def work() -> int:
        run = BenchRun(
            plan(method=SendMethod.ONE_WAY), queues=None, on_progress=print, on_note=print, stop=asyncio.Event()
        )
        await run._wait_stored(Reader(), TopicState({QUEUE: (0, 100)}, False))
        return run._missing

    assert asyncio.run(work()) == 3


def test_the_text_has_host_versions_flush_mode_and_figures() -> None:
    lines = list(bench_output.result_lines(result(plan(messages=2), send_report())))
    assert lines[:7] == [
        "send · topic T · 8 queues",
        "host    h: 2 CPUs, load unknown, Linux 6",
        "        CPU",
        "client  ariane 1, 3",
        "broker  a a:1: Apache V4_9_4, SYNC_FLUSH, ASYNC_MASTER",
        "load    1 sender, async, 256 in flight each",
        "        2 messages, 0 of them warm-up; 128 bytes, as fast as possible",
    ]
    assert lines[9].split() == ["send", "2", "1", "0.8", "1.50", "1.50", "1.50", "1.50", "1.50"]
    assert lines[-1] == "send: latency of a message from the call to the acknowledgement"
    assert max(map(len, lines)) <= 80


def test_nothing_that_failed_is_hidden() -> None:
    whole = plan(BenchMode.BOTH, rate=500.0)
    failed = result(
        whole, send_report(errors=3), missing=2, worker_errors=("send client 2: ended",), is_interrupted=True
    )
    text = "\n".join(bench_output.result_lines(failed))
    for part in (
        "send: 3 failed: ConnectionLost: connection to a:1: refused",
        "2 messages did not arrive",
        "no measurements: send client 2: ended",
        "Interrupted: these are the measurements until then.",
        "from when it was due (--rate)",
        "500 messages/s",
    ):
        assert part in text
    assert (failed.failed, failed.is_successful) == (5, False)
    assert result(whole, send_report()).is_successful
    assert not result(whole, send_report(), worker_errors=("x",)).is_successful


def test_progress_is_one_line() -> None:
    assert bench_output.progress_text(BenchProgress(5, 3, 0, 1000)) == "sent 5, received 3 of 1,000"
    assert bench_output.progress_text(BenchProgress(None, 3, 2, 10)) == "received 3 of 10, 2 failed"
    rate = bench_output.ProgressRate()
    assert rate.update(0, 10.0) is None
    assert rate.update(100, 11.0) == 100.0
    assert rate.update(200, 20.0) == pytest.approx(
        100 / 9
    )  # only the last seconds count, once there are enough samples


def test_the_host_is_described() -> None:
    host = describe_host()
    assert host.cpus > 0 and host.cpu_model and host.ariane and "3." in host.python
