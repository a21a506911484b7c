"""Traces to journeys at scale: how many trace records a second go through the job, and what the tables then weigh.

    python benches/pipeline.py --messages 10000000 --hours 24 --batches 10 [--directory DIR] [--jobs trace]

Each message leaves five records (a send, and a consumption of two groups), so 10 million messages are 50 million events. They are
made as trace messages of 30 records (not measured), read by a stream of files in place of a broker, decoded, appended and
aggregated as by `ariane pipeline run`. CPU seconds are those of the whole tree: the JVM and Python's workers.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from ariane.clock import SYSTEM_CLOCK
from ariane.pipeline import jobs, run
from ariane.pipeline.spark_session import get_or_create_session
from ariane.tables import table_format
from servers import tree_cpu_s

BODY_MESSAGES = 6  # 30 records, about 4 KB: what clients batch
RECORDS = 5
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


def generate(spark: Any, place: Path, messages: int, hours: int, batches: int) -> None:
    """Trace messages as files, `batches` of them, in the order of time."""
    now_ms = SYSTEM_CLOCK.now_ms()
    month_ms = spark.sql("SELECT unix_millis(date_trunc('month', current_timestamp()))").first()[0]
    begin_ms = max(month_ms, now_ms - hours * 3_600_000) - month_ms
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
        frame.coalesce(1).write.mode("append").parquet(str(place))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--messages", type=int, default=600_000)
    options.add_argument("--hours", type=int, default=6, help="over which they were sent")
    options.add_argument("--batches", type=int, default=4)
    options.add_argument("--jobs", default="trace", help="joined by commas")
    options.add_argument("--directory", type=Path)
    given = options.parse_args()
    root = given.directory or Path(tempfile.mkdtemp(prefix="ariane-pipeline-"))
    home = root / "tables"
    home.mkdir(parents=True)
    spark = get_or_create_session("ariane bench", "local[2]", long_running=True)
    try:
        generate(spark, root / "inbox", given.messages, given.hours, given.batches)
        events = given.messages // BODY_MESSAGES * BODY_MESSAGES * RECORDS
        job = jobs.combine_jobs(tuple(given.jobs.split(",")))
        job = job._replace(sources=(jobs.TRACES,))
        messages = (
            spark.readStream.schema(jobs.TRACES.schema).option("maxFilesPerTrigger", 1).parquet(str(root / "inbox"))
        )
        marks: list[tuple[float, float]] = []

        def mark(*_: object) -> None:
            marks.append((time.perf_counter(), tree_cpu_s()))

        class Marks(run.SilentListener):
            def on_round(self, progress: run.JobProgress) -> None:
                mark()

        class Runner(run.JobRunner):
            def _round(self) -> run.JobProgress:
                mark()
                return super()._round()

        mark()
        settings, streams, stop = run.RunSettings(once=True), {"traces": messages}, threading.Event()
        Runner(spark=spark, job=job, streams=streams, home=home, settings=settings, stop=stop).run(Marks())
        mark()
        names = ("append", "fold", "tend")
        result: dict[str, Any] = {"events": events, "batches": given.batches, "jobs": given.jobs}
        for name, (began, cpu), (ended, cpu_end) in zip(names, marks, marks[1:], strict=False):
            result[name] = {
                "seconds": round(ended - began, 1),
                "events_per_s": round(events / (ended - began)),
                "events_per_cpu_s": round(events / max(cpu_end - cpu, 0.01)),
            }
        result["tables"] = {
            table.name: {"rows": now.rows, "files": len(now.files), "bytes": sum(file.bytes for file in now.files)}
            for table in job.tables
            if (now := table_format.read_version(home, table)) is not None
        }
        print(json.dumps(result, indent=1))
    finally:
        spark.stop()
        if not given.directory:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
