"""Writers of tables are killed at random moments, without Spark, while another process reads: in a directory, in S3 and in HDFS.

A writer appends batches to `traffic`, and after each of them replaces all rows of a table computed from it; it merges small files
and deletes replaced ones. In S3 the commits of some writers arrive late, while a successor goes on: one of the two is refused.

    ARIANE_KILLS=500 pytest -s tests/crash/test_table_kills.py       the long form
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")
pytest.importorskip("deltalake", reason="needs deltalake: pip install 'ariane[objectstore]'")

import duckdb
import pyarrow as pa

import ci_form
import object_store
import table_stores
from ariane.clock import SYSTEM_CLOCK
from ariane.errors import StoreError
from ariane.pipeline.publishing import table_publisher
from ariane.pipeline.publishing.table_publisher import TableChange
from ariane.reports.tables import table_views
from ariane.tables import TRAFFIC, arrow_types, delta_log, directory_tables, object_tables, table_format, table_store
from ariane.tables.table_home import Home, object_home

KILLS = ci_form.number("ARIANE_KILLS", short=6, long=20)
SEED = int(os.environ.get("ARIANE_SEED", "0")) or time.time_ns() % 1_000_000
T0 = datetime(2026, 11, 21, 10, tzinfo=UTC)
BUCKETS = ("2026-11-21T1000", "2026-11-21.%RETRY%a b", "unknown-07")
QUERY = "traces 1"
TOTALS = TRAFFIC._replace(name="totals")  # one row per bucket: the number of batches
RETENTION_S = 10
REFUSED = 3  # exit code
DEADLINE_S = 120
FOUND_S = 600  # for the planted fault
STALL_S = object_store.STALL_S
PROCESSES = get_context("forkserver")  # a writer starts in a fraction of the time that its imports take
PRELOADED = (
    "ariane.pipeline.publishing.table_publisher",
    "ariane.reports.tables.table_views",
    "deltalake",
    "duckdb",
    "pyarrow.dataset",
    "pytest",
)
PROCESSES.set_forkserver_preload([*PRELOADED])

pytestmark = pytest.mark.timeout(300 + 20 * KILLS)


def rows(bucket: str, minute: int, messages: int) -> pa.Table:
    row = {"minute": T0 + timedelta(minutes=minute), "direction": "out", "topic": bucket, "messages": messages}
    return pa.Table.from_pylist([dict.fromkeys(TRAFFIC.column_names) | row], arrow_types.arrow_schema(TRAFFIC))


def write_on(home: Home, checkpoint: Path, environment: dict[str, str]) -> None:
    """Run the process to kill: append batches to the tables, from the one that the checkpoint names."""
    os.environ.update(environment)
    with pytest.MonkeyPatch.context() as patch:
        for module in (directory_tables, delta_log):
            patch.setattr(module, "RETIRED_RETENTION_MS", RETENTION_S * 1000)
        retention = dict.fromkeys(
            ("delta.deletedFileRetentionDuration", "delta.logRetentionDuration"), f"interval {RETENTION_S} seconds"
        )
        patch.setattr(object_tables, "_CONFIGURATION", {**object_tables._CONFIGURATION, **retention})
        try:
            with table_publisher.lock_tables(home, [TRAFFIC, TOTALS]):
                while True:
                    batch = int(checkpoint.read_text()) if checkpoint.exists() else 0
                    for _ in _write_batch(home, batch):
                        with steps_file(checkpoint).open("ab") as steps:
                            steps.write(b".")
                    table_format.replace_file(checkpoint, b"%d" % (batch + 1))
        except StoreError as error:
            if "another pipeline is writing" in str(error):
                os._exit(REFUSED)
            raise


def steps_file(checkpoint: Path) -> Path:
    """Return the file that has one byte per step of all writers: a commit, or its repetition that does nothing."""
    return checkpoint.with_name("steps")


def _write_batch(home: Home, batch: int) -> Iterator[None]:
    now_ms = SYSTEM_CLOCK.now_ms()
    appended = {bucket: rows(bucket, batch, batch + 1) for bucket in BUCKETS}
    applied = table_publisher.append_batch(appended, home, TRAFFIC, QUERY, batch, now_ms).applied[QUERY]
    yield
    totals = {bucket: rows(bucket, 0, applied + 1) for bucket in BUCKETS}
    change = TableChange(rows=(totals,), applied={TRAFFIC.name: applied}, replaced=BUCKETS)
    table_publisher.commit(home, TOTALS, change, now_ms)
    yield
    if batch % 4 == 3:
        _merge(home, BUCKETS[batch // 4 % len(BUCKETS)], now_ms)
    if batch % 5 == 4:
        for table in (TRAFFIC, TOTALS):
            table_publisher.remove_retired(home, table, now_ms)


def _merge(home: Home, bucket: str, now_ms: int) -> None:
    """Compact a bucket, as `table_publisher.compact` does with Spark."""
    with table_publisher.exclusive_change(home, TRAFFIC):
        former = table_store.read_version(home, TRAFFIC)
        assert former is not None
        merged = {file.path: file for file in former.files if file.bucket == bucket}
        dataset = table_store.open_store(home).open_dataset(TRAFFIC, list(merged.values()))
        change = TableChange(
            rows=({bucket: dataset.to_table()},), applied=former.applied, replaced=merged, as_of_ms=former.as_of_ms,
            added_version=max(file.added_version for file in merged.values()),
        )  # fmt: skip
        table_publisher.commit(home, TRAFFIC, change, now_ms)


class Reader:
    """A reader of both tables. Each look raises AssertionError if a version is incomplete, or older than one seen before."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._version = 0
        self.batches = 0
        self.looks = 0

    def look(self) -> None:
        began_s = time.monotonic()
        try:
            version = table_store.read_version(self._home, TRAFFIC)
            # The computed table first: what is read later is not older.
            parts = [table_views.whole_table(table) for table in (TOTALS, TRAFFIC)]
            with table_views.open_views(self._home, *parts) as sql:
                computed = table_views.query(sql, "SELECT topic, messages FROM totals ORDER BY topic")
                appended = table_views.query(
                    sql,
                    "SELECT topic, count(*) AS rows, count(DISTINCT minute) AS minutes, sum(messages) AS sum "
                    "FROM traffic GROUP BY ALL",
                )
        except (StoreError, OSError, duckdb.Error):
            if time.monotonic() - began_s < RETENTION_S * 0.9:  # otherwise its files may have been deleted
                raise
            return
        if version is not None:
            assert version.version >= self._version, "an older version came back"
            assert version.rows == len(BUCKETS) * (version.applied[QUERY] + 1), (
                "rows and progress are of different versions"
            )
            self._version = version.version
        counts = {row["rows"] for row in appended} or {0}
        assert len(appended) in (0, len(BUCKETS)), appended
        assert len(counts) == 1, f"a part of a change is visible: {appended}"
        (count,) = counts
        assert all(row["minutes"] == count and row["sum"] == count * (count + 1) // 2 for row in appended), appended
        assert count >= self.batches, "rows have gone"
        assert version is None or count * len(BUCKETS) >= version.rows, "rows have gone"
        totals = {row["messages"] for row in computed} or {0}
        assert len(computed) in (0, len(BUCKETS)), computed
        assert len(totals) == 1, f"a part of a change is visible: {computed}"
        assert max(totals) <= count, f"{computed} is of rows that {appended} has not"
        self.batches = count
        self.looks += 1


def read_on(home: Home, environment: dict[str, str], results: Connection) -> None:
    """Look until the other end sends something. Send the number of looks, or what was wrong."""
    os.environ.update(environment)
    reader = Reader(home)
    try:
        while not results.poll():
            reader.look()
            time.sleep(0.2)  # a store of one thread serves the writers, too
        results.send(reader.looks)
    except (AssertionError, StoreError, OSError, duckdb.Error) as error:
        results.send(f"{type(error).__name__}: {error}")


class Place(NamedTuple):
    """Where the tables are: `home(n)` as the machine of writer n has it."""

    home: Callable[[int], Home]
    environment: dict[str, str]
    is_store: bool


@pytest.fixture(params=["directory", *table_stores.STORES])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "directory":
        (tmp_path / "tables").mkdir()
        yield Place(lambda _: tmp_path / "tables", {}, False)
        return
    with table_stores.table_store(request.param, tmp_path / "store") as uri:
        yield store_place(tmp_path, uri)


def store_place(tmp_path: Path, uri: str) -> Place:
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    home = f"{uri}/{tmp_path.name}"
    return Place(lambda number: object_home(home, tmp_path / f"machine-{number}"), environment, True)


class Killing:
    """Writers that are killed one after the other, and what became of them."""

    def __init__(self, place: Place, checkpoint: Path, seed: int) -> None:
        self._place = place
        self._checkpoint = checkpoint
        self._chance = random.Random(seed)
        self._started = 0
        self.done: Counter[str] = Counter()

    def start(self, *, is_stalled: bool = False) -> Any:
        """Start a writer, in a store as if on another machine than the one before."""
        environment = self._place.environment | ({"AWS_ACCESS_KEY_ID": object_store.STALLED_KEY} if is_stalled else {})
        values = (self._place.home(self._started), self._checkpoint, environment)
        self._started += 1
        writer = PROCESSES.Process(target=write_on, args=values, daemon=True)
        writer.start()
        return writer

    def _steps(self) -> int:
        file = steps_file(self._checkpoint)
        return file.stat().st_size if file.exists() else 0

    def kill_some(self) -> None:
        """Start a writer and kill it; in a store sometimes two: the commits of the first one stall."""
        writers = []
        if self._place.is_store and self._chance.random() < 0.2:
            writers.append(self.start(is_stalled=True))
            time.sleep(self._chance.uniform(0, STALL_S))
        writers.append(self.start())
        # Counted in steps, so that a slow machine has as many; in none of them the writer is killed while it starts.
        steps, deadline = self._steps() + self._chance.randrange(5), time.monotonic() + DEADLINE_S
        while self._steps() < steps and writers[-1].is_alive():
            assert time.monotonic() < deadline, "a writer does nothing"
            time.sleep(0.01)
        time.sleep(self._chance.uniform(0, 0.5))
        for writer in writers:
            writer.kill()
            writer.join()
            assert writer.exitcode in (-signal.SIGKILL, REFUSED), f"a writer failed: exit code {writer.exitcode}"
            self.done["refused" if writer.exitcode == REFUSED else "killed"] += 1


def test_each_row_is_there_once_after_kills(place: Place, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    killing = Killing(place, tmp_path / "checkpoint", SEED)
    (results, ours) = PROCESSES.Pipe()
    looking = PROCESSES.Process(target=read_on, args=(place.home(0), place.environment, results), daemon=True)
    looking.start()
    reader = Reader(place.home(0))
    try:
        while killing.done["killed"] < KILLS:
            killing.kill_some()
            assert not ours.poll(), ours.recv()
        reader.look()
        # A last writer repeats what is not complete, and goes on.
        before, writer, deadline = reader.batches, killing.start(), time.monotonic() + DEADLINE_S
        while reader.batches < before + 2:
            assert writer.is_alive(), f"a writer failed: exit code {writer.exitcode}"
            assert time.monotonic() < deadline, "the last writer does nothing"
            reader.look()
        writer.kill()
        ours.send("end")
        looks = ours.recv()
        assert isinstance(looks, int), looks
    finally:
        looking.kill()
    assert looks > 0
    assert reader.batches >= KILLS // 10
    print(f"{dict(killing.done)}, {reader.batches} batches, {looks} looks of another process")


@pytest.mark.skipif(KILLS < 20, reason="needs ARIANE_KILLS=20 or more: chance decides how soon the fault is found")
def test_a_commit_without_its_condition_is_found(tmp_path: Path) -> None:
    """A planted fault: the store replaces a commit that another writer has put."""
    pytest.importorskip("moto", reason="needs moto: pip install 'moto[server]'")
    with object_store.object_store(is_conditional=False):
        place = store_place(tmp_path, f"s3://{object_store.BUCKET}")
        killing, reader = Killing(place, tmp_path / "checkpoint", SEED), Reader(place.home(0))
        writers, deadline = [killing.start(is_stalled=True), killing.start()], time.monotonic() + FOUND_S
        try:
            with pytest.raises((AssertionError, StoreError)) as found:
                while time.monotonic() < deadline:
                    reader.look()
                    for number, writer in enumerate(writers):
                        if not writer.is_alive():  # refused
                            writers[number] = killing.start(is_stalled=number == 0)
        finally:
            for writer in writers:
                writer.kill()
    print(found.value)
