"""Lag end to end: a slave serves a backlog, a console's TPS is 0, and the report shows the actual rate.

Master, slave, consumer and collector run in a thread; samples go to the topic, Spark builds the table, the report reads it.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

from ariane.client.instance.settings import ConsumerSettings
from ariane.client.producer import Producer
from ariane.client.push_consumer import PushConsumer
from ariane.clock import SYSTEM_CLOCK
from ariane.metrics_collector import publisher
from ariane.metrics_collector.sample import GroupProgress
from ariane.model.message import Message, ReceivedMessage
from ariane.pipeline import jobs, run
from ariane.reports import lag_report
from ariane.reports.report import Report, Table, Value
from ariane.reports.tables.table_views import open_views, query, whole_table
from ariane.tables import SAMPLES_REJECTS
from ariane.tables.declarations.samples import WINDOW_MS
from ariane.testing import AsyncLocalCluster
from table_contract_checks import check_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

BACKLOG = 12_000  # at 60 a second more than three minutes
LIMIT_S = 180.0
SERVED_S = 15.0  # of a minute in which the master has handed out nothing: clients commit every 5 s


class ServedBacklog(NamedTuple):
    """A cluster whose slave alone serves the group, the minute in which it does, and the group's progress in each round."""

    namesrv: str
    minute_ms: int
    progress: list[GroupProgress]

    def consumed_tps(self) -> float:
        """Return the rate of the minute by committed offsets: of each queue over the rounds that ended in it, then summed."""
        total = 0.0
        for queue in range(len(self.progress[0].queues)):
            messages, ms = 0, 0
            for before, after in itertools.pairwise(self.progress):
                if after.at_ms // WINDOW_MS * WINDOW_MS == self.minute_ms:
                    messages += after.queues[queue][1] - before.queues[queue][1]
                    ms += after.at_ms - before.at_ms
            total += 1000 * messages / ms
        return total


class Watched:
    """Signals `ready` once the master has reported no deliveries for long enough while the slave delivers."""

    def __init__(self, ready: Callable[[ServedBacklog], None], namesrv: str) -> None:
        self._ready = ready
        self._namesrv = namesrv
        self._since_ms: int | None = None
        self._progress: list[GroupProgress] = []

    def look(self, done: publisher.PollingRound) -> None:
        now_ms = SYSTEM_CLOCK.now_ms()
        for sample in done.samples:
            if sample.broker_id == 0:
                self._progress += (group for group in sample.groups if (group.topic, group.group) == ("T", "G"))
        tps = {
            sample.broker_id: counter.tps
            for sample in done.samples
            for counter in sample.counters
            if (counter.name, counter.topic, counter.group) == ("GROUP_GET_NUMS", "T", "G")
        }
        if tps.get(0) != 0 or not tps.get(1):
            self._since_ms = None
            return
        self._since_ms = self._since_ms or now_ms
        begin_ms = max(self._since_ms, now_ms // WINDOW_MS * WINDOW_MS)
        if now_ms - begin_ms >= SERVED_S * 1000 and not done.pending:
            self._ready(ServedBacklog(self._namesrv, now_ms // WINDOW_MS * WINDOW_MS, self._progress))


@contextmanager
def backlog_served_by_the_slave(home: Path) -> Iterator[ServedBacklog]:
    """Yield a cluster in this state whose sample topic records it."""
    ready: list[ServedBacklog] = []
    notified, stop = threading.Event(), threading.Event()
    faults: list[BaseException] = []

    def is_ready(served: ServedBacklog) -> None:
        ready.append(served)
        notified.set()

    async def slow(messages: Sequence[ReceivedMessage]) -> None:
        await asyncio.sleep(0.05)

    async def work() -> None:
        # All of it shares a loop: a broker that refuses when it is busy would refuse its own producer.
        settings = {
            "slave_read_enable": True,
            "access_message_in_memory_max_ratio": 0,
            "broker_fast_failure_enable": False,
        }
        async with AsyncLocalCluster(home, **settings, slaves=1) as servers:
            async with Producer(servers.namesrv, "P") as producer:
                for _ in range(BACKLOG // 200):
                    await asyncio.gather(*(producer.send(Message(topic="T", body=b"x" * 50)) for _ in range(200)))
            one_by_one = ConsumerSettings(concurrency=3, cached_max=32)
            async with PushConsumer(servers.namesrv, "G", {"T": "*"}, slow, start="first", settings=one_by_one):
                ended = asyncio.Event()
                watched = Watched(is_ready, servers.namesrv)
                options = publisher.CollectorOptions(interval_s=2.0)
                collector = asyncio.create_task(
                    publisher.run_collector(servers.namesrv, options, on_round=watched.look, stop=ended)
                )
                await asyncio.to_thread(notified.wait, LIMIT_S)
                ended.set()
                await collector
                await asyncio.to_thread(stop.wait, LIMIT_S)

    def main() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:  # raised again in the test's thread
            faults.append(error)
            notified.set()

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    try:
        assert notified.wait(LIMIT_S), "the slave does not serve the group alone"
        if ready:
            yield ready[0]
    finally:
        stop.set()
        thread.join(30)
    if faults:
        raise faults[0]


def row_of(report: Report, title: str) -> dict[str, Value]:
    (result,) = (part for part in report.sections if isinstance(part, Table) and part.title == title)
    (row,) = (row for row in result.rows if row[:2] == ("G", "T"))
    return dict(zip((field.name for field in result.columns), row, strict=True))


@pytest.mark.long(
    "tests/spark/test_pipeline_lag.py::test_a_backlog_served_by_a_slave_has_its_rates_and_forecast",
    "tests/integration/test_replication.py::test_slow_consumers_are_redirected_to_a_slave_where_allowed",
)
def test_the_report_shows_the_tps_that_a_console_shows_as_zero(spark: SparkSession, tmp_path: Path) -> None:
    home = tmp_path / "tables"
    with backlog_served_by_the_slave(tmp_path) as served:
        run.run(jobs.JOBS["lag"], {"namesrv": served.namesrv}, home, settings=run.RunSettings(once=True))
    assert {"samples_brokers", "samples_queues", "samples_counters", "consumption"} <= set(check_home(home))
    now_ms = SYSTEM_CLOCK.now_ms()
    with open_views(home, whole_table(SAMPLES_REJECTS)) as sql:
        assert query(sql, "SELECT * FROM samples_rejects") == []
    # This minute alone: the one in which the master served the first pulls is not in it.
    until_ms = served.minute_ms + WINDOW_MS - 1
    report = lag_report.report(home, since_ms=served.minute_ms, until_ms=until_ms, now_ms=now_ms)
    truth, console = row_of(report, "Groups"), row_of(report, "Misleading TPS in consoles")

    assert console["TPS in consoles"] == 0.0
    confirmed, remaining = truth["consumed"], truth["lag"]
    assert isinstance(confirmed, float) and confirmed > 0
    assert confirmed == pytest.approx(served.consumed_tps(), rel=1e-6)
    assert truth["by slaves"] == 100.0
    assert isinstance(remaining, int) and 0 < remaining < BACKLOG
    assert isinstance(truth["change"], int) and truth["change"] < 0
    assert truth["in"] == 0.0
    assert truth["ETA"] == pytest.approx(1000 * remaining / confirmed, rel=0.01)
    assert isinstance(truth["oldest"], int) and truth["oldest"] > 60_000
    assert truth["remarks"] == ""
    assert report.warnings == ()
