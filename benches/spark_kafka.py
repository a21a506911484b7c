"""Compares the Spark connector with Spark's own source and sink for Kafka: rows per CPU second, and the servers' CPU time.

    python benches/spark_kafka.py [--rows 1000000] [--size 128] [--rounds 3] [--only NAME …] [--merge] [--out FILE] [--page FILE]
    python benches/spark_kafka.py --table [--out FILE] [--page FILE]

Both brokers hold the same number of messages with the same keys and bodies, in as many queues as partitions. A round has all
measurements, each on one system after the other, in changing order. The first rounds are not measured: the JVM compiles. CPU time
is that of Spark: the driver's JVM and the Python workers, without the servers, whose CPU time is reported separately. The session
has the optional jar, with which Spark reads columns, and compiled modules of Spark. All of this runs twice, with native kernels and
with Python's, with a session and servers of their own. `--only` with `--merge` replaces single rows of a result. Spark ends Python
processes that were idle for a minute, so rows that are measured together may pay for their start.

  six columns     the columns that both have and most jobs need: topic, queue, offset, key, body, time
  six, selected   the same six by a select, without a schema, which the jar for column pruning passes on
  seven columns   those of Kafka's source, all of them; here `flag` stands for its timestampType
  all columns     31 columns here, seven of Kafka
  count           count()
  count, one      the same with a schema of one column
  stream          AvailableNow, seven columns, one micro-batch
  stream, all     the same with all columns
  write           rows with key and body from Spark's range into a topic
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ariane
import kafka_broker
import page
from ariane.kernels import implementation
from ariane.spark import pruning_jar
from ariane.spark.records.record_columns import COLUMNS
from machine import describe_machine, load_average, versions
from servers import HERE, TICK_S, cpu_s, descendants, environment, make_topic, tree_cpu_s
from spark import finished, into_nothing, served, session

RESULT = HERE / "results" / "spark_kafka.json"
BEGIN = "<!-- spark: written by benches/spark_kafka.py --page, not by hand -->"
END = "<!-- end of spark -->"
TOPIC, WRITTEN = "orders", "written"
PARTITIONS = 4
ATTEMPTS = 5
SIX = ("topic", "queue_id", "queue_offset", "keys", "body", "store_timestamp")
KAFKA_SIX = ("topic", "partition", "offset", "key", "value", "timestamp")
OURS, KAFKA = "ariane", "kafka"
IMPLEMENTATIONS = ("native", "python")
# measurement → how our source gets to know the columns; only the last of these needs the optional jar
ALL, SCHEMA, JAR = "all columns", "schema", "select, with the jar"
VARIANTS = {
    "six columns": SCHEMA,
    "six, selected": JAR,
    "seven columns": SCHEMA,
    "all columns": ALL,
    "count": JAR,
    "count, one": SCHEMA,
    "stream": SCHEMA,
    "stream, all": ALL,
    "write": ALL,
}
# measurement → expected ratio of rows per CPU second to Kafka's, with native kernels; half of it is expected with Python's
EXPECTED = {
    "six columns": 1.2,
    "six, selected": 1.2,
    "seven columns": 1.0,
    "all columns": 0.7,
    "count": 0.7,
    "count, one": 0.7,
    "stream": 1.0,
    "stream, all": 0.7,
    "write": 1.0,
}


class System(NamedTuple):
    """One of the compared systems: how to read and write it, and its server."""

    name: str
    server_pid: int
    source: str
    read_options: dict[str, str]
    write_options: dict[str, str]
    names: dict[str, str]  # columns of the written frame by their meaning
    columns: dict[str, str]  # measurement → DDL of the read columns; absent: all columns
    select: dict[str, tuple[str, ...]]  # the same for a source that has one schema


class Cost(NamedTuple):
    """What one run cost."""

    spark_s: float
    server_s: float
    wall_s: float


class Bench:
    """The session and the sizes of all measurements."""

    def __init__(self, args: argparse.Namespace, place: Path, spark: Any) -> None:
        self.rows, self.size, self.place, self.spark = args.rows, args.size, place, spark
        self.turn = 0

    def messages(self, names: dict[str, str]) -> Any:
        """Return a frame of keys and bodies; all rows differ."""
        body = f"rpad(concat('{{\"order\": ', id, ', \"customer\": \"'), {self.size}, 'abcdefghijklmnopqrstuvwxyz')"
        frame = self.spark.range(0, self.rows, 1, PARTITIONS)
        return frame.selectExpr(f"concat('order-', id) AS {names['key']}", f"CAST({body} AS BINARY) AS {names['body']}")

    def frame(self, system: System, name: str, *, stream: bool = False) -> Any:
        reader = (self.spark.readStream if stream else self.spark.read).format(system.source)
        reader = reader.options(**system.read_options)
        if name in system.columns:
            reader = reader.schema(system.columns[name])
        frame = reader.load()
        return frame.select(*system.select[name]) if name in system.select else frame

    def read(self, system: System, name: str) -> None:
        into_nothing(self.frame(system, name))

    def count(self, system: System, name: str) -> None:
        rows = self.frame(system, name).count()
        if rows != self.rows:
            raise SystemExit(f"{system.name}: {rows} of {self.rows} rows were counted")

    def stream(self, system: System, name: str) -> None:
        self.turn += 1
        writing = self.frame(system, name, stream=True).writeStream.format("noop")
        writing = writing.option("checkpointLocation", str(self.place / f"checkpoint-{self.turn}"))
        query = writing.trigger(availableNow=True).start()
        finished(query)
        rows = sum(progress["numInputRows"] for progress in query.recentProgress)
        if rows != self.rows:
            raise SystemExit(f"{system.name}: the stream read {rows} of {self.rows} rows")

    def write(self, system: System, name: str) -> None:
        frame = self.messages(system.names)
        frame.write.format(system.source).options(**system.write_options, topic=WRITTEN).mode("append").save()


MEASURES: dict[str, Callable[[Bench, System, str], None]] = {
    "six columns": Bench.read,
    "six, selected": Bench.read,
    "seven columns": Bench.read,
    "all columns": Bench.read,
    "count": Bench.count,
    "count, one": Bench.count,
    "stream": Bench.stream,
    "stream, all": Bench.stream,
    "write": Bench.write,
}


def main() -> None:
    args = arguments()
    if args.child:
        args.out.write_text(json.dumps(measured(args), indent=1) + "\n")
        return
    if args.table:
        results = json.loads((args.out or RESULT).read_text())
    else:
        results = [measured_by(name) for name in args.implementations]
        if args.merge:
            results = merged(json.loads((args.out or RESULT).read_text()), results)
        if args.out:
            args.out.write_text(json.dumps(results, indent=1) + "\n")
    tables = "\n\n".join(map(table, results))
    print(tables)
    if args.page:
        args.page.write_text(page.replace_between(args.page.read_text(), BEGIN, END, tables))


def measured_by(implementation: str) -> dict[str, Any]:
    """Return the result of a process of its own, whose kernels and JVM are its own, with the arguments of this one."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "result.json")
        command = [sys.executable, __file__, *sys.argv[1:], "--child", "--out", str(out)]
        subprocess.run(command, env=environment(implementation), check=True)
        return json.loads(out.read_text())


def merged(earlier: list[dict[str, Any]], results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the earlier results with the rows of `results`. The load is the highest of all runs, everything else the newest."""
    by_kernels = {result["implementation"].split()[0]: result for result in earlier}
    for result in results:
        name = result["implementation"].split()[0]
        if (before := by_kernels.get(name)) is not None:
            if before["sizes"] != result["sizes"]:
                raise SystemExit(f"--merge: earlier sizes {before['sizes']}, now {result['sizes']}: give the same ones")
            costs = {**before["costs"], **result["costs"]}
            result["costs"] = {measure: costs[measure] for measure in MEASURES if measure in costs}
            result["load_before"] = max(before["load_before"], result["load_before"])
        by_kernels[name] = result
    return list(by_kernels.values())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="number of messages in each topic")
    parser.add_argument("--size", type=int, default=128, help="bytes of a body")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=4, help="rounds that are not measured")
    parser.add_argument("--cores", type=int, default=2, help="number of concurrent tasks")
    parser.add_argument("--only", nargs="+", choices=list(MEASURES), help="only these measurements")
    parser.add_argument("--ours", action="store_true", help="without Kafka")
    parser.add_argument("--properties", nargs="*", default=[], help="NAME=VALUE of the configuration of our broker")
    parser.add_argument(
        "--no-jar", action="store_true", help="without the optional jar: no column pruning, rows instead of columns"
    )
    parser.add_argument("--implementations", nargs="+", choices=IMPLEMENTATIONS, default=IMPLEMENTATIONS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="write the results to this file")
    parser.add_argument("--merge", action="store_true", help="replace only the measured rows of the results in --out")
    parser.add_argument("--page", type=Path, help="write the table into this page")
    parser.add_argument("--table", action="store_true", help="print the table of the last result")
    return parser.parse_args()


def measured(args: argparse.Namespace) -> dict[str, Any]:
    jars = kafka_broker.fetch_jars()
    compileall.compile_dir(Path(ariane.__file__).parent, quiet=1)  # as pip leaves it; Spark starts new Python processes
    load = load_average()
    costs: dict[str, dict[str, list[Cost]]] = {}
    with tempfile.TemporaryDirectory(prefix="ariane-kafka-") as name, contextlib.ExitStack() as stack:
        place = Path(name)
        paths = [*map(str, kafka_broker.connector_jars(jars)), *([] if args.no_jar else [pruning_jar()])]
        settings = {"spark.jars": ",".join(paths)}
        spark = stack.enter_context(session(args.cores, settings))
        bench = Bench(args, place, spark)
        systems = list(stack.enter_context(running(args, place, jars)))
        pids = [system.server_pid for system in systems]
        for system in systems:
            frame = bench.messages(system.names)
            frame.write.format(system.source).options(**system.write_options, topic=TOPIC).mode("append").save()
        for number in range(args.warm_up + args.rounds):
            for measure in args.only or MEASURES:
                for system in systems if number % 2 else systems[::-1]:
                    cost = run(partial(MEASURES[measure], bench, system, measure), system, pids)
                    print(number, measure, system.name, *(round(value, 2) for value in cost), file=sys.stderr)
                    if number >= args.warm_up:
                        costs.setdefault(measure, {}).setdefault(system.name, []).append(cost)
    sizes = {"rows": args.rows, "size": args.size, "rounds": args.rounds, "cores": args.cores}
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": describe_machine(Path(tempfile.gettempdir())),
        "load_before": load,
        "versions": {**versions(), **kafka_broker.versions(jars), "spark": spark_version()},
        "implementation": implementation.selected().description,
        "sizes": sizes,
        "costs": costs,
    }


def run(action: Callable[[], None], system: System, server_pids: list[int]) -> Cost:
    """Return the cost of `action`. It is repeated if a process that ran before has ended, because its CPU time may be lost."""
    for _ in range(ATTEMPTS):
        before = set(descendants(os.getpid()))
        cost = run_once(action, system, server_pids)
        if before <= set(descendants(os.getpid())):
            return cost
    raise SystemExit(f"a process of Spark ended in each of {ATTEMPTS} measurements")


def run_once(action: Callable[[], None], system: System, server_pids: list[int]) -> Cost:
    """Return the CPU times of Spark and of the system's server, and the wall time of `action`."""

    def servers_s() -> float:
        return sum(map(cpu_s, server_pids))

    server, others = cpu_s(system.server_pid), servers_s()
    all_s, began = tree_cpu_s(), time.perf_counter()
    action()
    wall_s = time.perf_counter() - began
    spark_s = tree_cpu_s() - all_s - (servers_s() - others)
    return Cost(max(spark_s, TICK_S), cpu_s(system.server_pid) - server, wall_s)


@contextlib.contextmanager
def running(args: argparse.Namespace, place: Path, jars: Path) -> Iterator[Iterator[System]]:
    """Run both brokers, with an empty topic."""
    with contextlib.ExitStack() as stack:
        properties = dict(text.split("=", 1) for text in args.properties)
        ours = stack.enter_context(served(place / "ours", properties))
        for topic in (TOPIC, WRITTEN):
            make_topic(ours.addr, topic, PARTITIONS)
        systems = [our_system(ours.namesrv, ours.pid)]
        if not args.ours:
            kafka = stack.enter_context(kafka_broker.started(jars, place / "kafka", PARTITIONS))
            systems.append(kafka_system(kafka.addr, kafka.pid))
        yield iter(systems)


def our_system(namesrv: str, pid: int) -> System:
    def ddl(names: tuple[str, ...]) -> str:
        return ", ".join(f"{name} {COLUMNS[name][1]}" for name in names)

    access = {"namesrv": namesrv}
    six, seven = ddl(SIX), ddl((*SIX, "flag"))
    columns = {"six columns": six, "seven columns": seven, "count, one": ddl(("queue_offset",)), "stream": seven}
    return System(
        OURS, pid, "rocketmq", {**access, "topic": TOPIC}, access, {"key": "keys", "body": "body"}, columns,
        {"six, selected": SIX},
    )  # fmt: skip


def kafka_system(addr: str, pid: int) -> System:
    access = {"kafka.bootstrap.servers": addr}
    read_options = {**access, "subscribe": TOPIC, "startingOffsets": "earliest"}
    names = {"key": "key", "body": "value"}
    return System(
        KAFKA, pid, "kafka", read_options, access, names, {}, dict.fromkeys(("six columns", "six, selected"), KAFKA_SIX)
    )


def spark_version() -> str:
    from pyspark import __version__

    return __version__


# --- the table ---


def table(result: dict[str, Any]) -> str:
    """Return the Markdown table of a result."""
    sizes, machine = result["sizes"], result["machine"]
    share = 0.5 if result["implementation"].startswith("python") else 1.0
    head = (
        f"{result['date']}, {sizes['rows']:,} messages of {sizes['size']} B, {PARTITIONS} queues and partitions, "
        f"{sizes['rounds']} rounds after the warm-up, {sizes['cores']} tasks, {machine['cores']} cores, load average before the "
        f"start {result['load_before']}; kernels: {result['implementation']}; "
    )
    names = ("", "columns by", "rows per Spark CPU-s, Ariane", "Kafka", "ratio (pairs)", "expected")
    names = (*names, "wall time, Ariane : Kafka", "server CPU, µs per row, Ariane", "Kafka")
    lines = ["| " + " | ".join(names) + " |", "|---|---" + "|---:" * (len(names) - 2) + "|"]
    head += ", ".join(f"{name} {text}" for name, text in result["versions"].items()) + "."
    for measure, by_name in result["costs"].items():
        costs = {name: [Cost(*cost) for cost in found] for name, found in by_name.items()}
        lines.append(row(measure, costs, sizes["rows"], EXPECTED[measure] * share))
    return f"{head}\n\n" + "\n".join(lines)


def row(measure: str, costs: dict[str, list[Cost]], rows: int, expected: float) -> str:
    def rate(name: str) -> str:
        return f"{rows / statistics.median(cost.spark_s for cost in costs[name]):,.0f}" if name in costs else ""

    def server(name: str) -> str:
        return f"{statistics.median(cost.server_s for cost in costs[name]) / rows * 1e6:.2f}" if name in costs else ""

    ratio = wall = ""
    if KAFKA in costs:
        pairs = list(zip(costs[OURS], costs[KAFKA], strict=True))
        ratios = sorted(kafka.spark_s / ours.spark_s for ours, kafka in pairs)
        middle = statistics.median(ratios)
        mark = "**" if middle < expected else ""
        ratio = f"{mark}{middle:.2f}{mark} ({ratios[0]:.2f}–{ratios[-1]:.2f})"
        wall = f"{statistics.median(ours.wall_s / kafka.wall_s for ours, kafka in pairs):.2f}"
    cells = (measure, VARIANTS[measure], rate(OURS), rate(KAFKA), ratio, f"≥ {expected:g}", wall)
    cells = (*cells, server(OURS), server(KAFKA))
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
