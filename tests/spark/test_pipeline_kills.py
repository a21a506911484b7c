"""The pipeline or one of its Python workers is killed at random moments while others read its tables: every read returns a complete
version, and finally every row exists exactly once. ARIANE_KILLS sets the number of kills, most of them of workers.

`crash/test_table_kills.py` kills writers without Spark, which takes a fraction of the time.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import trace_frames as frames
from trace_frames import after, before, pub

import ci_form
import spark_classes
import table_stores
from ariane.pipeline import jobs, run, source_reader
from ariane.pipeline.publishing import decoded_batches, table_publisher
from ariane.reports.tables import table_views
from ariane.tables import JOURNEYS, TRACE_EVENTS, TableSchema, table_store
from ariane.tables.table_home import Home, object_home

KILLS = ci_form.number("ARIANE_KILLS", short=1, long=20)
FILES_PER_KILL = 1
EXTRA_FILES = 3  # read after the last kill
# Most files are merged between two kills: otherwise each look of the reader opens all of them.
MAINTENANCE_INTERVAL_S = 10.0
DRIVER_SHARE = 0.15  # of the kills: a driver takes up to two minutes until its first batch, on a busy machine
LOOK_PAUSE_S = 1.0  # between looks of the reader: each one takes most of a CPU-second in the server of a store
KILL_PAUSE_S = 8.0  # at most, between kills: a task fails for good with its fourth worker
MESSAGES = 5  # of a file, each with the traces of a send and of a consumption
RECORDS = 3  # of a message

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900 + 120 * KILLS)]


def home_of(text: str, local: Path) -> Home:
    return object_home(text, local) if "://" in text else Path(text)


def job(inbox: str, home_text: str, local: str) -> None:
    """Run the process to kill: the trace job over a stream of files, one file per batch."""
    from ariane.pipeline.spark_session import get_or_create_session

    home = home_of(home_text, Path(local))
    run.MAINTENANCE_INTERVAL_S = MAINTENANCE_INTERVAL_S
    decoded_batches.MAX_MESSAGES = 0  # tasks decode, in workers that are killed
    # A task whose worker is killed is tried again.
    spark = get_or_create_session("ariane kill test", "local[2,4]", conf=spark_classes.SESSION_SETTINGS)
    trace = jobs.JOBS["trace"]
    trace = trace._replace(
        incremental_tables=tuple(fold for fold in trace.incremental_tables if fold.table == JOURNEYS)
    )
    messages = spark.readStream.schema(jobs.TRACES.schema).option("maxFilesPerTrigger", 1).parquet(inbox)
    with table_publisher.lock_tables(home, trace.tables):
        settings = run.RunSettings(interval_s=0.1, keep_days=36_500)
        streams, stop = {"traces": source_reader.SourceStream(messages)}, threading.Event()
        runner = run.JobRunner(spark=spark, job=trace, streams=streams, home=home, settings=settings, stop=stop)
        runner.run(run.SilentListener())


class Reader:
    """A reader that continuously reads the published tables."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._seen = 0
        self.reads = 0

    def look(self) -> int:
        """Return the number of events; assert that each exists once and that none has disappeared."""
        now = table_store.read_version(self._home, TRACE_EVENTS)
        with table_views.open_views(
            self._home, table_views.whole_table(TRACE_EVENTS), table_views.whole_table(JOURNEYS)
        ) as sql:
            position = "trace_broker, trace_queue_id, trace_queue_offset, record_index"
            (events,) = table_views.query(
                sql, f"SELECT count(*) AS rows, count(DISTINCT ({position})) AS records FROM trace_events"
            )
            (journeys,) = table_views.query(
                sql, "SELECT count(*) AS rows, count(DISTINCT (message_id, consumer_group)) AS pairs FROM journeys"
            )
        assert events["rows"] == events["records"], "a record is in the table twice"
        assert journeys["rows"] == journeys["pairs"], "a journey is in the table twice"
        assert events["rows"] >= self._seen, "rows have gone"
        assert now is None or events["rows"] >= now.rows
        self._seen = events["rows"]
        self.reads += 1
        return self._seen

    def look_until(self, stop: threading.Event) -> None:
        while not stop.wait(LOOK_PAUSE_S):
            self.look()


@pytest.fixture(params=["directory", *table_stores.STORES])
def home_text(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "directory":
        (tmp_path / "tables").mkdir()
        yield str(tmp_path / "tables")
        return
    if KILLS < 2:
        pytest.skip("needs ARIANE_KILLS=2 or more: test_table_kills kills writers of a store in each run")
    with table_stores.table_store(request.param, tmp_path / "store") as uri:
        yield f"{uri}/tables"


@pytest.mark.long(
    "tests/crash/test_table_kills.py::test_each_row_is_there_once_after_kills",
    "tests/spark/test_pipeline_run.py::test_a_batch_repeated_after_a_crash_is_stored_once",
)
def test_readers_see_complete_versions_without_losses_or_duplicates(tmp_path: Path, home_text: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    inbox, home = tmp_path / "inbox", home_of(home_text, tmp_path)
    inbox.mkdir()
    count = KILLS * FILES_PER_KILL + EXTRA_FILES
    for number in range(count):
        bodies = []
        for offset in range(MESSAGES):
            item = f"M{number}-{offset}"
            bodies.append(frames.body([pub(item), before(item, f"R-{item}", 10), after(item, f"R-{item}", 17)]))
        rows = [frames.message(body, number * MESSAGES + offset) for offset, body in enumerate(bodies)]
        # Not by a session of Spark, which would compete with the job.
        pq.write_table(frames.messages(rows), inbox / f"{number}.parquet")
    reader, stop, killing = Reader(home), threading.Event(), Killing(inbox, home, tmp_path, count * MESSAGES, chance)
    with ThreadPoolExecutor(1) as threads:
        looking = threads.submit(reader.look_until, stop)
        try:
            while killing.kill_some():
                assert not looking.done(), looking.result()
                print(f"killed {dict(killing.done)}, {reader.reads} reads", flush=True)
        finally:
            stop.set()
        looking.result()
    assert reader.look() == count * MESSAGES * RECORDS
    with table_views.open_views(home, table_views.whole_table(JOURNEYS)) as sql:
        results = table_views.query(sql, "SELECT result, count(*) AS messages FROM journeys GROUP BY ALL")
    assert results == [{"result": "success", "messages": count * MESSAGES}]
    print(f"killed {dict(killing.done)}, {reader.reads} reads, {table_store.read_version(home, TRACE_EVENTS)!r:.80}")


class Killing:
    """Drivers one after the other, their kills and those of their workers."""

    def __init__(self, inbox: Path, home: Home, local: Path, messages: int, chance: random.Random) -> None:
        self._arguments = (str(inbox), str(home), str(local))
        self._home = home
        self._messages = messages
        self._chance = chance
        self._deadline = time.monotonic() + 600 + 60 * KILLS
        self.done: Counter[str] = Counter()

    def kill_some(self) -> bool:
        """Start a driver, kill workers and then the driver. Return False if the driver is the last one and has read everything."""
        running = subprocess.Popen(
            [sys.executable, __file__, *self._arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
        )
        total = self._messages * RECORDS
        try:
            # Until it has done something since its start, and then for random moments longer.
            before_it = row_count(self._home, TRACE_EVENTS)
            self._wait(running, lambda: before_it == total or row_count(self._home, TRACE_EVENTS) > before_it)
            while self.done.total() < KILLS:
                time.sleep(self._chance.uniform(0, KILL_PAUSE_S))
                # The next batch starts some workers.
                self._wait(running, lambda: workers(running.pid) or row_count(self._home, TRACE_EVENTS) == total)
                pids = workers(running.pid)
                if not self.done or not pids or self._chance.random() < DRIVER_SHARE:
                    self.done["driver"] += 1
                    return True
                os.kill(self._chance.choice(pids), signal.SIGKILL)
                self.done["worker"] += 1
            self._wait(running, lambda: row_count(self._home, TRACE_EVENTS) == total)
            self._wait(running, lambda: row_count(self._home, JOURNEYS) == self._messages)
            return False
        finally:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()

    def _wait(self, running: subprocess.Popen[bytes], condition: Callable[[], object]) -> None:
        while not condition():
            assert running.poll() is None, "the job ended by itself"
            assert time.monotonic() < self._deadline, "the job does nothing"
            time.sleep(0.2)


def workers(driver: int) -> list[int]:
    """Return the Python workers of a driver, which is the first process of its session: also those whose daemon was killed."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if os.getsid(int(path.parent.name)) == driver and "pyspark.worker" in path.read_text():
                pids.append(int(path.parent.name))
    return pids


def row_count(home: Home, table: TableSchema) -> int:
    version = table_store.read_version(home, table)
    return version.rows if version else 0


if __name__ == "__main__":
    job(*sys.argv[1:])
