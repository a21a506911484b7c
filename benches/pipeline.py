"""Traces to journeys at scale: how many trace records a second go through the job, and what the tables then weigh.

    python benches/pipeline.py --messages 10000000 --hours 24 --batches 10 [--directory DIR] [--jobs trace] [--late 5]

Each message leaves five records (a send, and a consumption of two groups), so 10 million messages are 50 million events. They are
made as trace messages of 30 records (not measured), read by a stream of files in place of a broker, decoded, appended and
aggregated as by `ariane pipeline run`. CPU seconds are those of the whole tree: the JVM and Python's workers.

`--jobs trace traffic health` joined by commas also reads the messages themselves (one record each). `--late N` then starts the
jobs again, on a broker in this process, sends one late consumption of a bucket in the middle, N times, and measures each until all
tables contain it. The CPU seconds contain those of the idle broker and of the queries' requests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from ariane.blocking import Producer
from ariane.clock import SYSTEM_CLOCK
from ariane.model.topic import TRACE_TOPIC
from ariane.pipeline import jobs, round_pacing, run
from ariane.pipeline.publishing import table_publisher
from ariane.pipeline.source_reader import SourceStream
from ariane.pipeline.spark_session import get_or_create_session
from ariane.tables import table_store
from ariane.testing import LocalCluster
from servers import tree_cpu_s

BODY_MESSAGES = 6  # 30 records, about 4 KB: what clients batch
RECORDS = 5
BEGIN = "begin.json"  # file with the first ms of the messages
# SQL: the unique id of message x, of a client whose month had lasted `ms`; and its five records.
MS = "(x * {span_ms} div {messages})"
MESSAGE_ID = "concat('0A000001', '1F40', '18B4AAC2', lpad(hex({ms}), 8, '0'), lpad(hex(x % 65536), 4, '0'))"
RECORD = r"""concat(
  'Pub\u0001', t, '\u0001DefaultRegion\u0001orders\u0001T', x % 10, '\u0001', id, '\u0001new\u0001order-', x,
  '\u000110.0.0.2:10911\u00011024\u0001', 1 + x % 7, '\u00010\u00010A00000200002A9F', lpad(hex(x * 1200), 16, '0'),
  '\u0001true\u0002',
  {consumptions})"""
CONSUMPTION = r"""
  'SubBefore\u0001', t + {after}, '\u0001null\u0001{group}\u0001', id, '{n}\u0001', id, '\u00010\u0001order-', x, '\u0002',
  'SubAfter\u0001', id, '{n}\u0001', id, '\u0001', 2 + x % 30, '\u0001true\u0001order-', x, '\u00010\u0001',
  t + {after} + 2 + x % 30, '\u0001{group}\u0002'"""


def generate(spark: Any, root: Path, messages: int, hours: int, batches: int) -> None:
    """Trace messages and their records as files, `batches` of each, in the order of time."""
    begin_ms, month_ms = begin_of(spark, root, hours)
    ms = f"({begin_ms} + {MS.format(span_ms=hours * 3_600_000, messages=messages)})"
    parts = ",".join(
        CONSUMPTION.format(group=group, after=5 + 3 * n, n=n) for n, group in enumerate(("billing", "stock"))
    )
    record = RECORD.format(consumptions=parts).replace("id,", f"{MESSAGE_ID.format(ms=ms)},")
    record = record.replace("t,", f"({month_ms} + {ms}),").replace("t +", f"{month_ms} + {ms} +")
    for number in range(batches):
        first, last = (messages // BODY_MESSAGES * at // batches for at in (number, number + 1))
        texts = f"transform(sequence(id * {BODY_MESSAGES}, id * {BODY_MESSAGES} + {BODY_MESSAGES - 1}), x -> {record})"
        last_x = f"(id * {BODY_MESSAGES} + {BODY_MESSAGES - 1})"
        frame = spark.range(first, last, 1, 1).selectExpr(
            f"encode(concat_ws('', {texts}), 'UTF-8') AS body",
            "'broker-a' AS broker", "int(id % 4) AS queue_id", "id div 4 AS queue_offset",
            f"timestamp_millis({month_ms} + {ms.replace('x', last_x)} + 500) AS store_timestamp",
            "'10.0.0.9:5000' AS born_host",
        )  # fmt: skip
        frame.coalesce(1).write.mode("append").parquet(str(root / jobs.TRACES.name))
        ids = f"{MESSAGE_ID.format(ms=ms)}".replace("x ", "id ").replace("x)", "id)").replace("(x", "(id")
        stored = spark.range(first * BODY_MESSAGES, last * BODY_MESSAGES, 1, 1).selectExpr(
            "'orders' AS topic", "'broker-a' AS broker", "int(id % 4) AS queue_id", "id div 4 AS queue_offset",
            "id * 1200 AS commit_log_offset", f"{ids} AS message_id",
            "concat('0A00000200002A9F', lpad(hex(id * 1200), 16, '0')) AS offset_message_id",
            "concat('order-', id) AS keys", "concat('T', id % 10) AS tags", f"map('UNIQ_KEY', {ids}) AS properties",
            "1024 AS body_length", f"timestamp_millis({month_ms} + {ms.replace('x', 'id')}) AS born_timestamp",
            f"timestamp_millis({month_ms} + {ms.replace('x', 'id')} + 1) AS store_timestamp",
            "'10.0.0.9:5000' AS born_host", "'10.0.0.2:10911' AS store_host", "0 AS reconsume_times", "0 AS sys_flag",
            "repeat('b', 1024) AS body",
        )  # fmt: skip
        stored.coalesce(1).write.mode("append").parquet(str(root / jobs.RECORDS.name))


class Meter:
    """CPU and wall time between two readings."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), tree_cpu_s()

    def read(self) -> dict[str, float]:
        """Return seconds and CPU seconds since the last reading."""
        before, self._began = self._began, (time.perf_counter(), tree_cpu_s())
        return {"s": round(self._began[0] - before[0], 2), "cpu_s": round(self._began[1] - before[1], 2)}


class Rounds(run.SilentListener):
    """Measures the reading of the sources and each table; `is_quiet` is set by a round without changes."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.steps: dict[str, dict[str, float]] = {}
        self.quiet_rounds = 0

    def on_tables_published(self, progress: run.JobProgress) -> None:
        self._add(progress.rebuilt[0].table.name)
        self.quiet_rounds = 0

    def on_round(self, progress: run.JobProgress) -> None:
        self._add("round")
        self.quiet_rounds = 0 if progress.rebuilt else self.quiet_rounds + 1

    def _add(self, name: str) -> None:
        step, former = self.meter.read(), self.steps.get(name, {})
        self.steps[name] = {key: round(value + former.get(key, 0), 2) for key, value in step.items()}


def measure_late(spark: Any, root: Path, given: argparse.Namespace, job: Any) -> list[dict[str, Any]]:
    """Add one late consumption at a time to running jobs, and return the cost until all tables contain it."""
    home, stop, rounds = root / "tables", threading.Event(), Rounds()
    shutil.rmtree(home / "checkpoint", ignore_errors=True)  # a broker has offsets of another kind
    with contextlib.ExitStack() as resources:
        servers = resources.enter_context(LocalCluster(root / "servers", trace_topic_enable=True))
        producer = resources.enter_context(Producer(servers.namesrv, group="late", trace=False))
        options = {"namesrv": servers.namesrv, "minOffsetsPerTrigger": str(round_pacing.MIN_BATCH_MESSAGES)}
        streams = {
            source.name: run.read_stream(spark, source, options, rounds=round_pacing.round_file(home))
            for source in job.sources
        }
        runner = run.JobRunner(spark=spark, job=job, streams=streams, home=home, settings=run.RunSettings(), stop=stop)
        thread = threading.Thread(target=runner.run, args=(rounds,))
        thread.start()
        resources.callback(thread.join)
        resources.callback(stop.set)
        while rounds.quiet_rounds < 3:
            time.sleep(0.2)
        return [
            measure_event(spark, given, job, (home, producer, rounds, thread), number) for number in range(given.late)
        ]


def measure_event(
    spark: Any,
    given: argparse.Namespace,
    job: Any,
    running: tuple[Path, Producer, Rounds, threading.Thread],
    number: int,
) -> dict[str, Any]:
    """Send one late consumption, and return the cost until all tables contain it."""
    home, producer, rounds, thread = running
    # Not among the first messages of its minute, which are the examples of their groups in `health`.
    x = given.messages // 2 + given.messages // 100 + number * 7
    text = late_record(spark, begin_of(spark, home.parent, given.hours), given, x)
    time.sleep(given.pause)
    versions = {table.name: table_store.read_version(home, table) for table in job.tables}
    meter, began = Meter(), time.perf_counter()
    rounds.steps, rounds.meter, rounds.quiet_rounds = {}, Meter(), 0
    producer.send(TRACE_TOPIC, text.encode())
    seen: dict[str, float] = {}
    expected = {table.name for table in job.tables} & {"journeys", "health", "traffic"}
    while not (expected <= seen.keys() and rounds.quiet_rounds >= 1):
        time.sleep(0.05)
        for table in job.tables:
            if table.name not in seen and table_store.read_version(home, table) != versions[table.name]:
                seen[table.name] = round(time.perf_counter() - began, 1)
        if not thread.is_alive():
            raise SystemExit("the jobs ended")
    total = meter.read()
    written = {
        table.name: sum(
            file.bytes for file in now.files if (former := versions[table.name]) is None or file not in former.files
        )
        for table in job.tables
        if (now := table_store.read_version(home, table)) is not None
    }
    result = {**total, "visible_s": seen, "steps": rounds.steps, "bytes": sum(written.values())}
    print(json.dumps(result), flush=True)
    return result


def late_record(spark: Any, begin: tuple[int, int], given: argparse.Namespace, x: int) -> str:
    """Return the records of a late consumption of message x."""
    begin_ms, month_ms = begin
    ms = f"({begin_ms} + {MS.format(span_ms=given.hours * 3_600_000, messages=given.messages)})"
    record = CONSUMPTION.format(group="audit", after=60_000, n=9).replace("id,", f"{MESSAGE_ID.format(ms=ms)},")
    record = record.replace("t +", f"{month_ms} + {ms} +")
    (text,) = spark.sql(f"SELECT bigint({x}) AS x").selectExpr(f"concat_ws('', {record})").first()
    return str(text)


def begin_of(spark: Any, root: Path, hours: int) -> tuple[int, int]:
    """Return the first ms of the messages since the beginning of the month, and that beginning.

    The first call stores them in `root`: late events follow the generated ones by hours, or are sent by another run.
    """
    path = root / BEGIN
    if not path.exists():
        month_ms = spark.sql("SELECT unix_millis(date_trunc('month', current_timestamp()))").first()[0]
        begin_ms = max(month_ms, SYSTEM_CLOCK.now_ms() // 3_600_000 * 3_600_000 - hours * 3_600_000) - month_ms
        path.write_text(json.dumps([begin_ms, month_ms]))
    begin_ms, month_ms = json.loads(path.read_text())
    return begin_ms, month_ms


def open_streams(spark: Any, root: Path, job: Any) -> dict[str, Any]:
    """Return the files of each source as a stream, one file per micro-batch."""
    return {
        source.name: SourceStream(
            spark.readStream.schema(
                spark.read.parquet(str(root / source.name)).schema
                if source.name == jobs.RECORDS.name
                else source.schema
            )
            .option("maxFilesPerTrigger", 1)
            .parquet(str(root / source.name))
        )
        for source in job.sources
    }  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--messages", type=int, default=600_000)
    options.add_argument("--hours", type=int, default=6, help="over which they were sent")
    options.add_argument("--batches", type=int, default=4)
    options.add_argument("--jobs", default="trace", help="joined by commas")
    options.add_argument("--late", type=int, default=0, help="late events, one after the other")
    options.add_argument("--pause", type=float, default=20.0, help="seconds before a late event")
    options.add_argument("--directory", type=Path)
    options.add_argument("--conf", action="append", default=[], help="setting of Spark, KEY=VALUE")
    given = options.parse_args()
    root = given.directory or Path(tempfile.mkdtemp(prefix="ariane-pipeline-"))
    home = root / "tables"
    home.mkdir(parents=True, exist_ok=True)
    conf = dict(entry.split("=", 1) for entry in given.conf)
    spark = get_or_create_session("ariane bench", "local[2]", long_running=True, conf=conf)
    result: dict[str, Any] = {"jobs": given.jobs, "batches": given.batches}
    resources = contextlib.ExitStack()
    try:
        if not (root / jobs.TRACES.name).exists():
            generate(spark, root, given.messages, given.hours, given.batches)
        job = jobs.combine_jobs(tuple(given.jobs.split(",")))
        events = given.messages // BODY_MESSAGES * BODY_MESSAGES * RECORDS
        rounds, whole = Rounds(), Meter()
        resources.enter_context(table_publisher.lock_tables(home, job.tables))
        streams, stop = open_streams(spark, root, job), threading.Event()
        run.JobRunner(
            spark=spark, job=job, streams=streams, home=home, settings=run.RunSettings(once=True), stop=stop
        ).run(rounds)
        total = whole.read()
        rounds._add("maintenance")
        result |= {"events": events, **total, "us_per_event": round(total["cpu_s"] / events * 1e6, 1)}
        result["steps"] = rounds.steps
        print(json.dumps(result), flush=True)
        if given.late:
            result["late"] = measure_late(spark, root, given, job)
        result["tables"] = {
            table.name: {"rows": now.rows, "files": len(now.files), "bytes": sum(file.bytes for file in now.files)}
            for table in job.tables
            if (now := table_store.read_version(home, table)) is not None
        }
        print(json.dumps(result, indent=1))
    finally:
        resources.close()
        with contextlib.suppress(Exception):
            spark.stop()
        if not given.directory:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
