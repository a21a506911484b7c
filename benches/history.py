"""Cost of the pipeline by the history of its tables: 1, 10 and 100 million events, one million of them computed.

    python benches/history.py [--sizes 1,10,100,1] [--updates 20] [--late 6] [--directory DIR] [--out FILE] [--page FILE]

`pipeline.py` computes an hour of 1 M events with the jobs trace, traffic and health; the other hours are copies of it
(`copied_hours`). Each size is measured by a process and JVM of its own, in the same order: opening the tables, commits, updates of
one bucket of the computed hour and of one in the middle of the history, a backlog in new buckets, maintenance, and late events with
streams and a broker until all tables contain them. An update is one late consumption in a micro-batch of its own, and the tables
that change with it. CPU seconds are those of the driver, its JVM and its workers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

import copied_hours
import page
import pipeline
from ariane.clock import SYSTEM_CLOCK
from ariane.pipeline import jobs, maintenance, run
from ariane.pipeline.publishing import decoded_batches, incremental, staged_tables, table_publisher
from ariane.pipeline.spark_session import get_or_create_session
from ariane.tables import TRACE_EVENTS
from ariane.tables.table_format import TableVersion
from ariane.tables.table_store import read_version
from servers import descendants, memory_mib

JOB = jobs.combine_jobs(("trace", "traffic", "health"))
MESSAGES, BATCHES = 200_000, 24  # of the computed hour; each message has five events
NEW_MESSAGES, NEW_BATCHES, NEW = 40_000, 2, "new"  # of the backlog, and its directory
WARM_UP = 8  # updates until the median is taken
MAINTENANCE_UPDATES = 10  # between two rounds of maintenance
COMMITS = 20
BEGIN = "<!-- growth: written by benches/history.py --page, not by hand -->"
END = "<!-- end of growth -->"


# --- tables ---


def build(root: Path, sizes: list[int], copies: int) -> None:
    """Write the tables of each size, and the events of the backlog. Directories that exist are used as they are."""
    computed, new = root / "1", root / NEW
    if not computed.exists():
        computed.mkdir(parents=True)
        new.mkdir()
        begin_ms, month_ms = copied_hours.last_hour(SYSTEM_CLOCK.now_ms(), max(sizes))
        for directory, ms in ((computed, begin_ms), (new, begin_ms + copied_hours.HOUR_MS)):
            (directory / pipeline.BEGIN).write_text(json.dumps([ms, month_ms]))
        command = [sys.executable, pipeline.__file__, "--directory", str(computed), "--hours", "1"]
        command += ["--jobs", JOB.name.replace("+", ","), "--messages", str(MESSAGES), "--batches", str(BATCHES)]
        subprocess.run(command, check=True)
    spark = get_or_create_session("ariane bench", "local[2]", long_running=True)
    if not (new / jobs.TRACES.name).exists():
        pipeline.generate(spark, new, NEW_MESSAGES, 1, NEW_BATCHES)
    former = 1
    for size in sorted({*sizes} - {1}):
        if not (root / str(size)).exists():
            began_s = time.monotonic()
            copy_tables(root / str(former), root / str(size))
            home = root / str(size) / "tables"
            with table_publisher.lock_tables(home, JOB.tables):
                for append, numbers in (
                    (copied_hours.append_copies, range(former, min(size, copies))),
                    (copied_hours.append_links, range(max(former, copies), size)),
                ):
                    append(home, computed / "tables", JOB, numbers, SYSTEM_CLOCK.now_ms())
                maintenance.maintain(spark, home, JOB, run.KEEP_DAYS, SYSTEM_CLOCK.now_ms())
            print(json.dumps({"size": size, "built_s": round(time.monotonic() - began_s)}), flush=True)
        former = size
    spark.stop()


def copy_tables(source: Path, target: Path) -> None:
    """Copy the tables of a size. Their files are never modified, so links are enough."""
    target.mkdir(parents=True)
    os.link(source / pipeline.BEGIN, target / pipeline.BEGIN)
    others = shutil.ignore_patterns("checkpoint", "LOCK")
    shutil.copytree(source / "tables", target / "tables", copy_function=os.link, ignore=others)


# --- measuring ---


class Updates:
    """Late consumptions, each a micro-batch of its own, without streams."""

    def __init__(self, spark: Any, root: Path) -> None:
        self._spark = spark
        self._home = root / "tables"
        self._begin = pipeline.begin_of(spark, root, 1)
        self._staged = staged_tables.StagedTables(spark, self._home)
        self._count = 0  # of micro-batches

    def update(self, x: int, hours: int = 0) -> dict[str, Any]:
        """Add a consumption of message x of the hour that is some hours before the computed one; return the cost."""
        begin_ms, month_ms = self._begin
        given = argparse.Namespace(hours=1, messages=MESSAGES)
        begin = (begin_ms - hours * copied_hours.HOUR_MS, month_ms)
        text = pipeline.late_record(self._spark, begin, given, x)
        row = {
            "body": text.encode(), "broker": "late", "queue_id": 0, "queue_offset": self._count,
            "store_timestamp": datetime.now(UTC), "born_host": "10.0.0.9:5000", "properties": {},
        }  # fmt: skip
        meter, python_s = pipeline.Meter(), time.process_time()
        messages = pa.Table.from_pylist([row], schema=MESSAGE)
        rows = decoded_batches.rows_of_tables(messages.to_batches(), jobs.TRACES.decode, jobs.TRACES.tables)
        assert rows is not None
        for table in jobs.TRACES.tables:
            table_publisher.append_batch(
                rows[table.name], self._home, table, "traces updates", self._count, SYSTEM_CLOCK.now_ms()
            )
        self._count += 1
        steps = {"micro-batch": meter.read()["cpu_s"]} | self.round(meter)
        python_s = time.process_time() - python_s
        return {"cpu_s": round(sum(steps.values()), 2), "python_s": round(python_s, 2), "steps": steps}

    def round(self, meter: pipeline.Meter) -> dict[str, float]:
        """Compute what has changed; return the CPU time by table."""
        steps = {}
        bases = [table for source in JOB.sources for table in source.tables]
        pinned = incremental.current_versions(self._home, bases)
        for table in JOB.incremental_tables:
            now_ms = SYSTEM_CLOCK.now_ms()
            if incremental.rebuild_changed(self._spark, self._home, table, now_ms, pinned, self._staged):
                steps[table.table.name] = meter.read()["cpu_s"]
        return steps


MESSAGE = pa.schema([
    ("body", pa.binary()), ("broker", pa.string()), ("queue_id", pa.int32()), ("queue_offset", pa.int64()),
    ("store_timestamp", pa.timestamp("us", tz="UTC")), ("born_host", pa.string()),
    ("properties", pa.map_(pa.string(), pa.string())),
])  # fmt: skip


def measure(root: Path, new: Path, copies: int, updates: int, late: int) -> dict[str, Any]:
    """Return the costs of one size, measured on a copy of its tables."""
    home = root / "tables"
    result: dict[str, Any] = {"load_average": os.getloadavg()[1]}
    versions = [version for table in JOB.tables if (version := read_version(home, table)) is not None]
    files = [file for version in versions for file in version.files]
    result |= {"events": version_of(home).rows, "files": len(files), "bytes": sum(file.bytes for file in files)}
    result["open_ms"] = median_ms(lambda: [read_version(home, table) for table in JOB.tables])
    spark = get_or_create_session("ariane bench", "local[2]", long_running=True)
    try:
        with table_publisher.lock_tables(home, JOB.tables):
            applied = version_of(home).applied
            nothing = table_publisher.TableChange(applied=applied)
            result["commit_ms"] = median_ms(
                lambda: table_publisher.commit(home, TRACE_EVENTS, nothing, SYSTEM_CLOCK.now_ms())
            )
            adding = Updates(spark, root)
            if changed := adding.round(pipeline.Meter()):
                raise SystemExit(f"Tables with a history were computed again: {changed}; expected no change.")
            result["updates"], result["maintenance"] = [], []
            for number in range(updates):
                x = MESSAGES // 2 + MESSAGES // 100 + 3 + number * 7
                result["updates"].append(adding.update(x))
                print(json.dumps(result["updates"][-1]), flush=True)
                if number % MAINTENANCE_UPDATES == MAINTENANCE_UPDATES - 1:
                    meter = pipeline.Meter()
                    maintenance.maintain(spark, home, JOB, run.KEEP_DAYS, SYSTEM_CLOCK.now_ms())
                    result["maintenance"].append(meter.read()["cpu_s"])
            hours = min(result["events"] // (MESSAGES * pipeline.RECORDS), copies) // 2
            result["earlier"] = [adding.update(MESSAGES // 2 + number * 7, hours) for number in range(5)]
            result["memory_mib"] = {name: memory_mib(pid)["VmHWM"] for name, pid in processes().items()}
            result["backlog"] = backlog(spark, home, new)
            meter = pipeline.Meter()
            maintenance.maintain(spark, home, JOB, run.KEEP_DAYS, SYSTEM_CLOCK.now_ms())
            result["idle_maintenance"] = meter.read()["cpu_s"]
            given = argparse.Namespace(hours=1, messages=MESSAGES, late=late, pause=5.0)
            result["late"] = pipeline.measure_late(spark, root, given, JOB) if late else []
    finally:
        spark.stop()
    return result | {"load_average_after": os.getloadavg()[1]}


def version_of(home: Path) -> TableVersion:
    version = read_version(home, TRACE_EVENTS)
    assert version is not None
    return version


def median_ms(work: Callable[[], object]) -> float:
    """Return the CPU time of this process."""
    spent = []
    for _ in range(COMMITS):
        began_s = time.process_time()
        work()
        spent.append((time.process_time() - began_s) * 1000)
    return round(statistics.median(spent), 1)


def processes() -> dict[str, int]:
    """Return the driver's processes by name."""
    names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in descendants(os.getpid())}
    return {"python": os.getpid(), **{name: pid for pid, name in names.items() if name == "java"}}


def backlog(spark: Any, home: Path, new: Path) -> dict[str, Any]:
    """Read new events from files, and compute all tables."""
    shutil.rmtree(home / "checkpoint", ignore_errors=True)
    rounds = pipeline.Rounds()
    streams, stop = pipeline.open_streams(spark, new, JOB), threading.Event()
    settings = run.RunSettings(once=True)
    run.JobRunner(spark=spark, job=JOB, streams=streams, home=home, settings=settings, stop=stop).run(rounds)
    return rounds.steps


# --- result ---


def summary(result: dict[str, Any]) -> dict[str, float]:
    """Return the rows of the page's table for one size."""
    updates, first = result["updates"], result["updates"][0]["cpu_s"]
    later, events = updates[WARM_UP:], NEW_MESSAGES * pipeline.RECORDS
    backlog_s = sum(step["cpu_s"] for name, step in result["backlog"].items())
    values = {
        "files in all lists": result["files"],
        "MB": result["bytes"] / 1e6,
        "reading all lists again, ms": result["open_ms"],
        "a commit without rows, ms": result["commit_ms"],
        "an update of a bucket, CPU-s": median(later, "cpu_s"),
        "of that, the driver's Python": median(later, "python_s"),
        "the first update": first,
        "an update that takes an example, in another hour": median(result["earlier"], "cpu_s"),
        "maintenance without a merge": result["idle_maintenance"],
        f"an event of {events:,} new ones, CPU-µs": backlog_s / events * 1e6,
        "memory of the driver's Python, MiB": result["memory_mib"]["python"],
        "memory of its JVM, MiB": result["memory_mib"]["java"],
    }
    if late := result["late"][1:]:  # the first one starts the streams' frames
        values["a late event with streams, CPU-s"] = median(late, "cpu_s")
        for name in ("journeys", "health"):
            values[f"visible in {name}, s"] = statistics.median(event["visible_s"][name] for event in late)
    return values | {"load average": result["load_average"]}


def median(events: list[dict[str, Any]], name: str) -> float:
    return statistics.median(event[name] for event in events)


def table(results: list[dict[str, Any]]) -> str:
    """Return the sizes as a Markdown table, in the order in which they were measured."""
    summaries = [summary(result) for result in results]
    head = ["events", *(f"{result['events'] / 1e6:.0f} M" for result in results)]
    rows = [[name, *(page.short(values[name]) for values in summaries)] for name in summaries[0]]
    return page.markdown([head, *rows])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sizes", default="1,10,100,1", help="M events, in the order of measuring")
    options.add_argument("--copies", type=int, default=1000, help="M events with rows of their own; others are links")
    options.add_argument("--updates", type=int, default=20, help="of a bucket of the computed hour")
    options.add_argument("--first-updates", type=int, default=100, help="the same, of the first size")
    options.add_argument("--late", type=int, default=6, help="late events with streams")
    options.add_argument("--directory", type=Path, help="of the tables, which are kept")
    options.add_argument("--out", type=Path)
    options.add_argument("--page", type=Path)
    options.add_argument("--measure", type=Path, help=argparse.SUPPRESS)  # the process of one size
    given = options.parse_args()
    if given.measure:
        result = measure(given.measure, given.directory / NEW, given.copies, given.updates, given.late)
        given.out.write_text(json.dumps(result))
        return
    sizes = [int(text) for text in given.sizes.split(",")]
    with ExitStack() as resources:
        root = given.directory or Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="ariane-history-")))
        build(root, sizes, given.copies)
        results = []
        for number, size in enumerate(sizes):
            with tempfile.TemporaryDirectory(dir=root) as name:
                measured, out = Path(name, "root"), Path(name, "result.json")
                copy_tables(root / str(size), measured)
                arguments = {
                    "--directory": root, "--measure": measured, "--out": out, "--copies": given.copies, "--late": given.late,
                    "--updates": given.updates if number else given.first_updates,
                }  # fmt: skip
                command = [sys.executable, __file__, *(str(part) for entry in arguments.items() for part in entry)]
                subprocess.run(command, check=True)
                results.append(json.loads(out.read_text()))
            print(json.dumps(results[-1]), flush=True)
    print(table(results))
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")
    if given.page:
        text = page.replace_between(given.page.read_text(), BEGIN, END, table(results))
        given.page.write_text(text)


if __name__ == "__main__":
    main()
