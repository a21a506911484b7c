"""Two brokers under the same load: Java's 4.9.4 and ours, in turn, on fresh stores.

    python benches/broker.py [--rounds 3] [--only NAME …] [--short] [--seconds 20] [--json] [--out FILE] [sizes, see --help]

Each round starts each broker once for each way of flushing (the order alternates), measures start to first accepted message,
drives it with the loads below, and reads its peak resident memory at the end. `--only` takes names of loads or the beginning
of such names. Printed are medians over the rounds, the ratio ours / Java of the medians, what is expected of it, and the
spread; `--json` prints the whole result as the last line. Both brokers register with one Java name server, flush asynchronously
(sync-…: synchronously), and run on the same cores as the load: only ratios mean something, and of those the ones of CPU time per
message (`cpu us`, of the broker's process) vary little if the machine does other work at the same time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import java_clients
from ariane.testing import java
from servers import HERE, Running, make_topic, memory_mib, started

SERVERS = ("java", "ariane")
SHORT = 20  # --short divides counts by this
SYNC_FLUSH = {"flushDiskType": "SYNC_FLUSH"}

Figures = dict[str, float]


class Sizes(NamedTuple):
    """How much of each; a short run takes less. One round of all loads and both brokers takes about 12 min with these on two
    cores."""

    sends_128: int = 300_000
    sends_1024: int = 150_000
    sends_queues: int = 200_000  # to 1 and 64 queues
    sends_many_queues: int = 60_000  # to 1,000 and 10,000 queues: consumers of the Java broker wait minutes for more
    sends_sync: int = 50_000
    sends_sync_single: int = 5_000  # one in flight: each waits for its own flush
    backlog_128: int = 1_000_000  # to be consumed
    backlog_1024: int = 300_000
    keys: int = 10_000_000  # messages under the queries
    queries: int = 5_000


class Bench(NamedTuple):
    """What a load is measured with."""

    running: Running
    sizes: Sizes
    seconds: int  # that a Java producer runs


class Load(NamedTuple):
    name: str
    measure: Callable[[Bench, str], Figures]
    sync: bool = False


# ------------------------------------------------------------------------------------------------------------------- loads


def pipelined(depth: int, size: int, count: str, queues: int = 4) -> Callable[[Bench, str], Figures]:
    """benches/pipelined.py: one connection, `depth` sends in flight."""

    def measure(bench: Bench, name: str) -> Figures:
        topic = f"T-{name}"
        make_topic(bench.running.addr, topic, queues)
        sends = getattr(bench.sizes, count)
        return send_figures(name, pipelined_run(bench, topic, depth, size, sends, queues))

    return measure


def pipelined_run(bench: Bench, topic: str, depth: int, size: int, sends: int, queues: int) -> dict[str, float]:
    warm = max(2 * queues, sends // 10)  # every queue has its file before the clock runs
    args = ["--topic", topic, "--depth", depth, "--size", size, "--count", sends, "--queues", queues, "--warm", warm]
    return program("pipelined.py", bench.running, args)


def send_figures(name: str, result: dict[str, float]) -> Figures:
    return {
        f"{name} msg/s": result["per_second"],
        f"{name} readable/s": result["readable_per_second"],
        f"{name} p99 ms": result["p99_ms"],
        f"{name} cpu us": result["cpu_us"],
    }


def java_producer(threads: int, size: int) -> Callable[[Bench, str], Figures]:
    def measure(bench: Bench, name: str) -> Figures:
        rate, used = java_clients.produced(bench.running, threads, size, bench.seconds)
        return {f"{name} msg/s": rate, f"{name} cpu us": used}

    return measure


def pulled(size: int, count: str) -> Callable[[Bench, str], Figures]:
    """benches/pulling.py over a backlog: one connection, a pull in flight on each of 16 queues."""

    def measure(bench: Bench, name: str) -> Figures:
        topic = filled(bench, name, size, getattr(bench.sizes, count), 16)
        args = ["--topic", topic, "--queues", 16]
        program("pulling.py", bench.running, [*args, "--group", "warm"])
        result = program("pulling.py", bench.running, args)
        return {
            f"{name} msg/s": result["per_second"],
            f"{name} p99 ms": result["p99_ms"],
            f"{name} cpu us": result["cpu_us"],
        }

    return measure


def java_consumer(bench: Bench, name: str) -> Figures:
    """The benchmark Consumer over a backlog."""
    count = bench.sizes.backlog_128
    topic = filled(bench, name, 128, count, 16)
    rate, used = java_clients.consumed(bench.running, topic, 16, count, patience_s=300)
    return {f"{name} msg/s": rate, f"{name} cpu us": used}


def send_with_reader(bench: Bench, name: str) -> Figures:
    """Pipelined sends while another connection reads a backlog again and again."""
    backlog = filled(bench, name, 128, bench.sizes.backlog_128, 16)
    make_topic(bench.running.addr, f"{name}-sent", 4)
    reading = [sys.executable, str(HERE / "pulling.py"), bench.running.addr, "--topic", backlog, "--queues", "16"]
    with subprocess.Popen([*reading, "--again", "3600"], stdout=subprocess.DEVNULL) as reader:
        try:
            result = pipelined_run(bench, f"{name}-sent", 128, 128, bench.sizes.sends_128, 4)
            if reader.poll() is not None:
                raise SystemExit(f"the reader of the backlog ended with {reader.returncode}")
        finally:
            reader.terminate()
    # CPU time serves both here, so neither has a figure of its own.
    return {f"{name} msg/s": result["per_second"], f"{name} p99 ms": result["p99_ms"]}


def queried(bench: Bench, name: str) -> Figures:
    """benches/keys.py: one connection, 16 queries in flight, each for one of all keys."""
    count = bench.sizes.keys
    topic = filled(bench, name, 16, count, 8, "--keys")
    args = ["--topic", topic, "--keys", count, "--count", bench.sizes.queries]
    result = program("keys.py", bench.running, args)
    return {
        f"{name} query/s": result["per_second"],
        f"{name} p99 ms": result["p99_ms"],
        f"{name} cpu us": result["cpu_us"],
    }


def filled(bench: Bench, name: str, size: int, count: int, queues: int, *more: str) -> str:
    """A topic with that many messages."""
    topic = f"T-{name}"
    make_topic(bench.running.addr, topic, queues)
    program(
        "filling.py", bench.running, ["--topic", topic, "--queues", queues, "--count", count, "--size", size, *more], ""
    )
    return topic


def program(name: str, running: Running, args: list[Any], pid: str = "--pid") -> dict[str, float]:
    """The result that a load program of this directory prints as its last line."""
    command = [sys.executable, str(HERE / name), running.addr, *map(str, args)]
    if pid:
        command += [pid, str(running.pid)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[1:])} against the {running.server} broker ended with {done.returncode}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


LOADS = (
    Load("pipelined-128", pipelined(128, 128, "sends_128")),
    Load("pipelined-1024", pipelined(128, 1024, "sends_1024")),
    Load("java-64-128", java_producer(64, 128)),
    Load("java-64-1024", java_producer(64, 1024)),
    Load("java-1-128", java_producer(1, 128)),
    Load("java-1-1024", java_producer(1, 1024)),
    Load("queues-1", pipelined(128, 128, "sends_queues", 1)),
    Load("queues-64", pipelined(128, 128, "sends_queues", 64)),
    Load("queues-1000", pipelined(128, 128, "sends_many_queues", 1_000)),
    Load("queues-10000", pipelined(128, 128, "sends_many_queues", 10_000)),
    Load("pull-128", pulled(128, "backlog_128")),
    Load("pull-1024", pulled(1024, "backlog_1024")),
    Load("java-consumer-128", java_consumer),
    Load("send-with-reader", send_with_reader),
    Load("keys", queried),
    Load("sync-1-128", pipelined(1, 128, "sends_sync_single"), sync=True),
    Load("sync-64-128", pipelined(64, 128, "sends_sync"), sync=True),
    Load("sync-64-1024", pipelined(64, 1024, "sends_sync"), sync=True),
    Load("sync-1024-128", pipelined(1024, 128, "sends_sync"), sync=True),
)

# What the ratio ours / Java of a figure should be: the beginning and the end of its name, at least or at most, how much.
GOALS = (
    ("pipelined-", " msg/s", ">=", 1.5),
    ("java-consumer-", " msg/s", ">=", 1.2),
    ("java-", " msg/s", ">=", 1.3),
    ("queues-", " msg/s", ">=", 1.5),
    ("pull-", " msg/s", ">=", 1.2),
    ("send-with-reader", " msg/s", ">=", 1.5),
    ("sync-", " msg/s", ">=", 1.2),
    ("", " p99 ms", "<=", 0.7),
    ("peak RSS", " MiB", "<=", 1 / 8),
)
FLAT = 0.1  # cost per message may differ so much between 1 and 10,000 queues


# ------------------------------------------------------------------------------------------------------------------ the run


def main() -> None:
    args = arguments()
    if reason := java.available():
        raise SystemExit(f"this bench needs the Java peers: {reason}")
    loads = chosen(args.only)
    sizes = Sizes(**{name: getattr(args, name) for name in Sizes._fields})
    if args.short:
        sizes = Sizes(*(max(1, size // SHORT) for size in sizes))
    measured: dict[str, dict[str, list[float]]] = {server: {} for server in SERVERS}
    with (
        tempfile.TemporaryDirectory(prefix="ariane-bench-", dir=args.dir) as home,
        java.name_server(Path(home) / "namesrv") as name_server,
    ):
        for turn in range(args.rounds):
            print(f"round {turn + 1} of {args.rounds}", file=sys.stderr)
            for server in SERVERS if turn % 2 == 0 else SERVERS[::-1]:
                for name, value in measure(server, name_server.addr, Path(home), loads, sizes, args.seconds).items():
                    measured[server].setdefault(name, []).append(value)
    result = summary(measured, args.rounds, sizes)
    print(table(result))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    if args.json:
        print(json.dumps(result))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=20, help="how long a Java producer runs; the first 10 s warm up")
    parser.add_argument("--only", nargs="*", default=None, metavar="NAME", help="loads, or how their names begin")
    parser.add_argument("--short", action="store_true", help=f"all sizes divided by {SHORT}")
    parser.add_argument("--dir", type=Path, default=None, help="where the stores go (default: the temporary directory)")
    parser.add_argument("--json", action="store_true", help="print the result as the last line")
    parser.add_argument("--out", type=Path, help="write the result there too")
    for name, default in Sizes._field_defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, metavar="N")
    return parser.parse_args()


def chosen(names: list[str] | None) -> list[Load]:
    if names is None:
        return list(LOADS)
    found: list[Load] = []
    for name in names:
        of_it = [load for load in LOADS if load.name == name] or [load for load in LOADS if load.name.startswith(name)]
        if not of_it:
            raise SystemExit(f"no load is called {name}; there are {', '.join(load.name for load in LOADS)}")
        found += of_it
    return [load for load in LOADS if load in found]


def measure(server: str, namesrv: str, home: Path, loads: list[Load], sizes: Sizes, seconds: int) -> Figures:
    """One round of one broker: every figure by its name."""
    figures: Figures = {}
    for sync in (False, True):
        wanted = [load for load in loads if load.sync is sync]
        if not wanted:
            continue
        with (
            tempfile.TemporaryDirectory(dir=home) as place,
            started(server, namesrv, Path(place), SYNC_FLUSH if sync else None) as running,
        ):
            if not sync:
                figures["start_s"] = running.start_s
            for load in wanted:
                found = load.measure(Bench(running, sizes, seconds), load.name)
                for name, value in found.items():
                    print(f"{server:6} {name:32} {value:12,.2f}", file=sys.stderr)
                figures |= found
            memory = memory_mib(running.pid)
            kind = ", sync flush" if sync else ""
            figures[f"peak RSS{kind} MiB"] = memory["VmHWM"]
            figures[f"RSS without files{kind} MiB"] = memory["RssAnon"]
    one, many = figures.get("queues-1 cpu us"), figures.get("queues-10000 cpu us")
    if one and many:
        figures["cost at 10,000 queues / at 1"] = many / one
    return figures


# --------------------------------------------------------------------------------------------------------------- the result


def summary(measured: dict[str, dict[str, list[float]]], rounds: int, sizes: Sizes) -> dict[str, Any]:
    """Medians, spread and ratios by figure."""
    figures = {}
    for name in measured["ariane"]:
        ours, theirs = measured["ariane"][name], measured["java"][name]
        java_median = statistics.median(theirs)
        if not java_median:
            raise SystemExit(
                f"{name}: nothing was measured of the Java broker, whose CPU time comes in ticks: take larger sizes"
            )
        ratio = statistics.median(ours) / java_median
        figures[name] = {
            "ariane": statistics.median(ours),
            "java": java_median,
            "ratio": round(ratio, 3),
            **expectation(name, ratio, statistics.median(ours)),
            "ariane_rounds": ours,
            "java_rounds": theirs,
        }
    return {"rounds": rounds, "cores": os.cpu_count(), "sizes": sizes._asdict(), "figures": figures}


def expectation(name: str, ratio: float, ours: float) -> dict[str, Any]:
    """What is expected of a figure, and whether it is so; empty where nothing is."""
    if name.startswith("cost at 10,000"):
        return {"expected": f"1 ± {FLAT}", "reached": abs(ours - 1) <= FLAT}
    for begin, end, sign, bound in GOALS:
        if name.startswith(begin) and name.endswith(end):
            return {
                "expected": f"{sign} {bound:g}",
                "reached": ratio >= bound if sign == ">=" else ratio <= bound,
            }
    return {}


def table(result: dict[str, Any]) -> str:
    lines = [f"{'':32} {'ariane':>12} {'java 4.9.4':>12} {'ratio':>7} {'expected':>9}          spread ariane | java"]
    for name, figure in result["figures"].items():
        spread = " | ".join(
            f"{min(figure[rounds]):,.1f}…{max(figure[rounds]):,.1f}" for rounds in ("ariane_rounds", "java_rounds")
        )
        reached = "" if figure.get("reached", True) else "SHORT"
        lines.append(
            f"{name:32} {figure['ariane']:12,.2f} {figure['java']:12,.2f} {figure['ratio']:7.2f}"
            f" {figure.get('expected', ''):>9} {reached:6}   {spread}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
