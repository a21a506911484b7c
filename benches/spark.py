"""Measures the cost of the Spark sources: rows per CPU second, memory of a task, planning, micro-batches.

    python benches/spark.py [--rows 4000000] [--broker-rows 3000000] [--queues 10000] [--rounds 3] [--only NAME …] [--json]
        [--out FILE]

  batch-files     format("rocketmq-store"), eleven columns, discarded; with and without the CRC of every body
  ready-batches   what of this is Spark's: a source that yields one batch of eleven columns again and again, which costs it nothing
  stream-files    the same without CRC as a stream (AvailableNow), micro-batches of a million rows
  batch-broker    format("rocketmq") from Ariane's broker in its own process; its CPU time is reported separately
  memory          peak resident memory of the Python workers, with the default chunkBytes and sixteen times as much
  planning        partitions() of format("rocketmq") for a topic of many queues, on a live broker
  micro-batch     ms of a micro-batch that reads almost nothing

A row is a record of 218 bytes on average, as in the measurements on which the design is based. CPU time is that of the process
tree: this process, the JVM, all Python workers (`servers.cpu_s`, including terminated children). One task at a time unless
`--cores` is set. Every figure is the median of the rounds, without a first one in which the JVM compiles.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import load_program
from ariane.model import host
from ariane.pipeline.spark_session import SETTINGS
from ariane.protocol.records import record
from ariane.spark import RocketMQSource, StoreSource, interpreter
from ariane.spark.store.log_task import COLUMNS
from ariane.store.log import checkpoint as checkpoints
from ariane.testing import java
from load_program import LoadProgram
from loads import program
from servers import TICK_S, Running, cpu_s, descendants, make_topic, memory_mib, started, tree_cpu_s

HOST = host.pack("127.0.0.1", 10911)
SEGMENT = 1 << 30
TOPIC = "orders"
QUEUES = 16
ELEVEN = (
    "topic", "queue_id", "queue_offset", "commit_log_offset", "body", "keys", "tags", "message_id", "born_timestamp",
    "store_timestamp", "born_host",
)  # fmt: skip
MICRO_BATCH = 1_000_000  # rows
TINY_BATCHES = 20
PATIENCE_S = 900
EXPECTED = {  # targets: figure → minimum or maximum
    "batch-files, no CRC rows/CPU-s": (">=", 1_000_000),
    "stream-files rows/CPU-s": (">=", 700_000),
    "planning s": ("<=", 2.0),
}

Figures = dict[str, float]


class Bench:
    """State shared by the measurements."""

    def __init__(self, args: argparse.Namespace, place: Path, spark: Any) -> None:
        self.args, self.place, self.spark = args, place, spark
        self.store = place / "store"
        self.turn = 0

    def files(self, *columns: str, stream: bool = False, **options: Any) -> Any:
        reader = self.spark.readStream if stream else self.spark.read
        ddl = ", ".join(f"{name} {COLUMNS[name][1]}" for name in columns or ELEVEN)
        return reader.format("rocketmq-store").options(**options).schema(ddl).load(str(self.store))

    def checkpoint(self) -> str:
        self.turn += 1
        return str(self.place / f"checkpoint-{self.turn}")


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="ariane-bench-", dir=args.dir) as name, session(args.cores) as spark:
        bench = Bench(args, Path(name), spark)
        filled(bench.store, args.rows)
        measured: dict[str, list[float]] = {}
        for measure in [MEASURES[one] for one in args.only or MEASURES]:
            for figure, values in measure(bench).items():
                measured[figure] = values
                print(f"{figure:44} {values}", file=sys.stderr)
    result = summary(measured, args)
    print(table(result))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    if args.json:
        print(json.dumps(result))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_000_000, help="number of records in the store files")
    parser.add_argument("--broker-rows", type=int, default=3_000_000, help="number of messages of the live broker")
    parser.add_argument("--queues", type=int, default=10_000, help="queues of the planned topic")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=1, help="number of concurrent tasks")
    parser.add_argument("--only", nargs="+", choices=list(MEASURES), help="only these measurements")
    parser.add_argument(
        "--dir", type=Path, default=None, help="where the store goes (default: the temporary directory)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as the last line")
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    return parser.parse_args()


# --- measurements ------------------------------------------------------------------------------------------------------


def batch_files(bench: Bench) -> dict[str, list[float]]:
    found = {}
    for name, options in (("batch-files", {}), ("batch-files, no CRC", {"checkCrc": "false"})):
        frame = bench.files(**options)
        found |= rated(name, bench.args, lambda frame=frame: into_nothing(frame))
    return found


def ready_batches(bench: Bench) -> dict[str, list[float]]:
    bench.spark.dataSource.register(ReadySource)
    frame = bench.spark.read.format("ready-batches").options(store=str(bench.store), rows=bench.args.rows)
    ddl = ", ".join(f"{name} {COLUMNS[name][1]}" for name in ELEVEN)
    return rated("ready-batches", bench.args, lambda: into_nothing(frame.schema(ddl).load()))


class ReadySource(DataSource):
    """A source whose rows are ready before it is read. Option `store` has them, option `rows` is their number."""

    @classmethod
    def name(cls) -> str:
        return "ready-batches"

    def reader(self, schema: Any) -> DataSourceReader:
        return ReadyReader(self.options, schema.fieldNames())


class ReadyReader(DataSourceReader):
    """Yields the first batch of a store until the number of rows is reached."""

    def __init__(self, options: Any, columns: list[str]) -> None:
        self.store, self.rows = options["store"], int(options["rows"])
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from ariane.spark.store import commit_log, log_task, store_options

        log = commit_log.find_log(self.store)
        first, *_ = log_task.plan_ranges(log, log.start, log.end, log.file_size)
        batch = next(log_task.read_rows(first, store_options.parse({"path": self.store}), self.columns, log.file_size))
        for position in range(0, self.rows, batch.num_rows):
            yield batch.slice(0, self.rows - position)


def stream_files(bench: Bench) -> dict[str, list[float]]:
    size = sum(record_bytes(bench.store))

    def run() -> None:
        frame = bench.files(
            stream=True, maxBytesPerTrigger=max(size * MICRO_BATCH // bench.args.rows, 65536), checkCrc="false"
        )
        writing = frame.writeStream.format("noop").option("checkpointLocation", bench.checkpoint())
        query = writing.trigger(availableNow=True).start()
        finished(query)
        rows = sum(one["numInputRows"] for one in query.recentProgress)
        if rows != bench.args.rows:
            raise SystemExit(f"the stream read {rows} of {bench.args.rows} rows")

    return rated("stream-files", bench.args, run)


def batch_broker(bench: Bench) -> dict[str, list[float]]:
    rows = bench.args.broker_rows
    with served(bench.place / "broker") as running:
        make_topic(running.addr, TOPIC, QUEUES)
        fill = ["--topic", TOPIC, "--queues", QUEUES, "--count", rows, "--size", 100, "--keys"]
        program("filling.py", running, fill, has_pid=False)
        ddl = ", ".join(f"{name} {COLUMNS[name][1]}" for name in ELEVEN)
        reading = bench.spark.read.format("rocketmq").option("namesrv", running.namesrv).option("topic", TOPIC)
        frame = reading.schema(ddl).load()
        before = cpu_s(running.pid)
        found = rated("batch-broker", bench.args, lambda: into_nothing(frame), rows, excluded_pid=running.pid)
        used = cpu_s(running.pid) - before
    return found | {"batch-broker broker CPU us/row": [used / (rows * (bench.args.rounds + 1)) * 1e6]}


def memory(bench: Bench) -> dict[str, list[float]]:
    found = {}
    for name, times in (("as it is", 1), ("x 16", 16)):
        frame = bench.files(chunkBytes=1536 * 1024 * times)
        into_nothing(frame.limit(1))
        peaks = []
        for _ in range(bench.args.rounds):
            with watched() as peak:
                into_nothing(frame)
            peaks.append(max(peak.values(), default=0.0))
        found[f"memory, chunkBytes {name}, MiB of a worker"] = peaks
    return found


def planning(bench: Bench) -> dict[str, list[float]]:
    with served(bench.place / "planned") as running:
        make_topic(running.addr, TOPIC, bench.args.queues)
        # A queue without messages has nothing to plan.
        queues = ["--queues", bench.args.queues, "--messages", bench.args.queues]
        loader = LoadProgram(load_program.build(), running)
        loader.run("send", "--topic", TOPIC, *queues, "--size", 16, "--readable", has_pid=False)
        source = RocketMQSource({"namesrv": running.namesrv, "topic": TOPIC, "failOnDataLoss": "false"})
        reader = source.reader(bench.spark.createDataFrame([], "body BINARY").schema)
        seconds = []
        for _ in range(bench.args.rounds):
            began = time.perf_counter()
            planned = len(reader.partitions())
            seconds.append(time.perf_counter() - began)
            if planned != bench.args.queues:
                raise SystemExit(f"{planned} of {bench.args.queues} queues were planned")
    return {"planning s": seconds}


def micro_batch(bench: Bench) -> dict[str, list[float]]:
    size = sum(record_bytes(bench.store))
    found = []
    for _ in range(bench.args.rounds):
        frame = bench.files(
            "position", stream=True, maxBytesPerTrigger=65536, startingPosition=size - TINY_BATCHES * 65536
        )
        writing = frame.writeStream.format("noop").option("checkpointLocation", bench.checkpoint())
        query = writing.trigger(availableNow=True).start()
        finished(query)
        found.append(statistics.median(one["durationMs"]["triggerExecution"] for one in query.recentProgress[2:-1]))
    return {"micro-batch ms": found}


MEASURES: dict[str, Callable[[Bench], dict[str, list[float]]]] = {
    "batch-files": batch_files,
    "ready-batches": ready_batches,
    "stream-files": stream_files,
    "batch-broker": batch_broker,
    "memory": memory,
    "planning": planning,
    "micro-batch": micro_batch,
}


# --- set-up -----------------------------------------------------------------------------------------------------------


def rated(
    name: str, args: argparse.Namespace, run: Callable[[], None], rows: int = 0, excluded_pid: int | None = None
) -> dict[str, list[float]]:
    """Measure the rates of `run`, which reads `rows` rows (default: the whole store), without the CPU time of `excluded_pid`."""
    rows = rows or args.rows

    def used_s() -> float:
        return tree_cpu_s() - (cpu_s(excluded_pid) if excluded_pid else 0.0)

    run()
    by_cpu, by_wall = [], []
    for _ in range(args.rounds):
        cpu, began = used_s(), time.perf_counter()
        run()
        by_wall.append(rows / (time.perf_counter() - began))
        by_cpu.append(rows / max(used_s() - cpu, TICK_S))
    return {f"{name} rows/CPU-s": by_cpu, f"{name} rows/s": by_wall}


def into_nothing(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def finished(query: Any) -> None:
    if not query.awaitTermination(PATIENCE_S):
        query.stop()
        raise SystemExit(f"a query did not finish within {PATIENCE_S} s")


@contextlib.contextmanager
def session(cores: int, settings: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Return a session configured as for long jobs: both compilers, Spark's own collector, compiled modules of Spark."""
    import pyspark
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("bench").master(f"local[{cores}]")
    local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    for key, value in {**SETTINGS, **local, **(settings or {})}.items():
        builder = builder.config(key, value)
    with interpreter.compiled_modules(Path(pyspark.__file__).parent):
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(StoreSource)
    spark.dataSource.register(RocketMQSource)
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def served(place: Path, properties: Mapping[str, str] | None = None) -> Iterator[Running]:
    """Start Ariane's name server and broker, each in its own process."""
    port = java.free_port()
    place.mkdir()
    conf = place / "namesrv.conf"
    conf.write_text(f"bindAddress=127.0.0.1\nlistenPort={port}\nkvConfigPath={place / 'kvConfig.json'}\n")
    command = [sys.executable, "-m", "ariane.cli", "namesrv", "-c", str(conf), "--log", str(place / "namesrv.log")]
    name_server = subprocess.Popen(command)
    try:
        with started(
            "ariane", f"127.0.0.1:{port}", place, {"bindAddress": "127.0.0.1", **(properties or {})}
        ) as running:
            yield running
    finally:
        name_server.send_signal(signal.SIGTERM)
        name_server.wait(60)


def filled(root: Path, count: int) -> None:
    """Write a store of `count` records as Ariane leaves it: log and checkpoint, without consume queues, which are not read here."""
    chance = random.Random(1)
    pool = b"".join(b'{"order": %d, "amount": %d}' % (n, chance.randrange(10**6)) for n in range(100))
    (root / "commitlog").mkdir(parents=True)
    at = number = 0
    while number < count:
        base, parts = at, []
        while number < count:
            properties = b"UNIQ_KEY\x01%032X\x02KEYS\x01order-%d\x02WAIT\x01true\x02TAGS\x01a" % (number, number)
            body = pool[number % 2000 : number % 2000 + 8 + number % 71]
            data = record.encode_v4(
                TOPIC.encode(), body, properties, number % QUEUES, number // QUEUES, at, 1_700_000_000_000 + number, HOST,
                1_700_000_000_000 + number, HOST, 0, 0, 0, 0,
            )  # fmt: skip
            if at - base + len(data) + record.FILLER_SIZE > SEGMENT:
                parts.append(record.filler(base + SEGMENT - at))
                at = base + SEGMENT
                break
            parts.append(data)
            at += len(data)
            number += 1
        with (root / "commitlog" / f"{base:020d}").open("wb") as file:
            file.writelines(parts)
            file.truncate(SEGMENT)
    (root / "checkpoint").write_bytes(checkpoints.encode(checkpoints.Checkpoint(safe_offset=at)))
    print(f"{count} records of {at / count:.0f} bytes", file=sys.stderr)


def record_bytes(root: Path) -> list[int]:
    """Return the bytes of the log in each of its files."""
    end = checkpoints.decode((root / "checkpoint").read_bytes()).safe_offset or 0
    return [min(SEGMENT, end - int(path.name)) for path in sorted((root / "commitlog").iterdir())]


@contextlib.contextmanager
def watched() -> Iterator[dict[int, float]]:
    """Return the peak resident memory (MiB) of the Python processes below the JVM."""
    peaks: dict[int, float] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            for pid in descendants(os.getpid())[1:]:
                with contextlib.suppress(OSError, KeyError):
                    if "python" in Path(f"/proc/{pid}/comm").read_text():
                        peaks[pid] = max(peaks.get(pid, 0.0), memory_mib(pid)["VmRSS"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peaks
    finally:
        done.set()
        watcher.join()


def summary(measured: dict[str, list[float]], args: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, values in measured.items():
        median = statistics.median(values)
        figures[name] = {"median": round(median, 3), "rounds": [round(value, 3) for value in values]}
        if name in EXPECTED:
            sign, bound = EXPECTED[name]
            is_reached = median >= bound if sign == ">=" else median <= bound
            figures[name] |= {"expected": f"{sign} {bound}", "reached": is_reached}
    sizes = {"rows": args.rows, "broker_rows": args.broker_rows, "queues": args.queues, "rounds": args.rounds}
    return {"cores": os.cpu_count(), "tasks": args.cores, "sizes": sizes, "figures": figures}


def table(result: dict[str, Any]) -> str:
    lines = []
    for name, figure in result["figures"].items():
        verdict = "" if figure.get("reached", True) else f"  SHORT: expected {figure['expected']}"
        lines.append(
            f"{name:44} {figure['median']:>16,.2f}   {min(figure['rounds']):,.2f} … {max(figure['rounds']):,.2f}{verdict}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
