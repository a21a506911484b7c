"""The loads of `broker.py`. Each is prepared once per broker and then measured in every round, on the same topics.

prepare   create the topic and the files of its queues, or fill a backlog; learn about what rate to expect
measure   as many messages as take about the wanted number of seconds; figures by name
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import java_clients
from load_program import LoadProgram, finished, load_figures
from servers import HERE, Running, cpu_s, machine_cpu_s, make_topic, thread_cpu_s

LOG_BYTES_MAX = (
    512 << 20
)  # of the records of one measurement: a fast broker would fill the page cache with unwritten data
RECORD_OVERHEAD = 200  # bytes of a record without its body, about
BACKLOG_QUEUES = 16
BATCH = 32
WRITES_PER_S = 10_000  # next to a consumer
AHEAD_S = 0.5  # how long a load runs before another one next to it is measured
GROWTH_MAX = 8  # times the messages that were readable per second
CONSUMER_LIMIT_S = 300
QUIET_STEP_S, QUIET_SHARE, QUIET_LIMIT_S = 0.2, 0.15, 10.0  # CPU time of idle brokers, share of one core

Figures = dict[str, float]


class Sizes(NamedTuple):
    """How much of each; a short run takes less."""

    seconds: float = 4.0  # of a measurement
    backlog_128: int = 1_000_000  # messages, read again and again
    backlog_1024: int = 300_000
    keys: int = 1_000_000  # messages under the queries
    queries: int = 5_000
    client_warm_up: float = 8.0  # seconds, of each Java producer: its JVM is a new one


class Bench:
    """One running broker with what the loads have learned about it."""

    def __init__(self, running: Running, program: LoadProgram, sizes: Sizes) -> None:
        self.running = running
        self.program = program
        self.sizes = sizes
        self.rates: dict[str, float] = {}  # messages per second of the last run of each load
        self._backlogs: dict[int, java_clients.Topic] = {}  # by size of a body

    def backlog(self, size: int) -> java_clients.Topic:
        """Return a topic with a backlog, filled by the first caller."""
        topic = java_clients.Topic(f"Backlog-{size}", BACKLOG_QUEUES)
        if size not in self._backlogs:
            messages = self.backlog_size(size)
            to = ("--topic", topic.name, "--create-topic", "--queues", topic.queues, "--size", size)
            self.program.run("send", *to, "--code", 320, "--batch", BATCH, "--messages", messages, "--readable")
            self._backlogs[size] = topic
        return topic

    def backlog_size(self, size: int) -> int:
        """Return the messages of a backlog, a multiple of a batch."""
        return (self.sizes.backlog_128 if size == 128 else self.sizes.backlog_1024) // BATCH * BATCH


class Stage(IntEnum):
    """Loads that take turns in the rounds. Stages follow each other: the files of many queues slow a Java broker down for good."""

    PLAIN = 0
    QUEUES_1000 = 1
    QUEUES_10000 = 2
    SYNC_FLUSH = 3  # on brokers of its own, which flush synchronously


class Load(Protocol):
    """One way to load a broker."""

    name: str
    stage: Stage
    has_own_warm_up: bool
    """Whether each measurement warms up by itself: it is left out of the unmeasured round."""

    def prepare(self, bench: Bench) -> None: ...

    def measure(self, bench: Bench) -> Figures: ...


class AsyncLoad:
    """A load on a broker that flushes asynchronously, and that is warmed up by the unmeasured round."""

    stage = Stage.PLAIN
    has_own_warm_up = False

    def __init__(self, name: str) -> None:
        self.name = name

    def prepare(self, bench: Bench) -> None:
        """Nothing to prepare."""


class PipelinedSends(AsyncLoad):
    """One connection, a number of sends in flight, queues in turn; until consumers can read the last message."""

    def __init__(
        self, name: str, size: int, *, queues: int = 4, in_flight: int = 128, stage: Stage = Stage.PLAIN
    ) -> None:
        super().__init__(name)
        self.stage = stage
        self._size = size
        self._queues = queues
        self._in_flight = in_flight

    def prepare(self, bench: Bench) -> None:
        self._run(bench, max(2 * self._queues, 20 * self._in_flight), "--create-topic")

    def measure(self, bench: Bench) -> Figures:
        most = LOG_BYTES_MAX // (self._size + RECORD_OVERHEAD)
        messages = min(int(bench.rates[self.name] * bench.sizes.seconds), most)
        return load_figures(self.name, self._run(bench, max(self._queues, 100, messages)))

    def _run(self, bench: Bench, messages: int, *options: str) -> dict[str, Any]:
        to = ("--topic", f"T-{self.name}", "--queues", self._queues, "--size", self._size)
        how = ("--in-flight", self._in_flight, "--messages", messages, "--readable", *options)
        report = bench.program.run("send", *to, *how)
        # A run of few messages takes most of its time to ask whether each queue is readable: the next one is longer.
        bench.rates[self.name] = min(report["rate"], GROWTH_MAX * report["readable_rate"])
        return report


class FullLoad(AsyncLoad):
    """Four connections with 64 sends in flight each: what the threads of the broker and the cores do meanwhile."""

    def measure(self, bench: Bench) -> Figures:
        name, pid, seconds = self.name, bench.running.pid, bench.sizes.seconds
        options = ("--topic", f"T-{name}", "--create-topic", "--connections", 4, "--in-flight", 64)
        timing = ("--warm-up", AHEAD_S, "--duration", seconds)
        with bench.program.started("send", *options, *timing) as process:
            time.sleep(2 * AHEAD_S)
            began, threads, (total, idle) = time.perf_counter(), thread_cpu_s(pid), machine_cpu_s()
            time.sleep(max(0.2, seconds - 2 * AHEAD_S))
            took = time.perf_counter() - began
            shares = thread_shares(threads, thread_cpu_s(pid), took)
            total_after, idle_after = machine_cpu_s()
            report = finished(process, bench.running.server)
        idle_share = (idle_after - idle) / (total_after - total)
        return {
            **load_figures(name, report),
            f"{name} busiest thread %": shares[0],
            f"{name} second thread %": shares[1] if len(shares) > 1 else 0.0,
            f"{name} all threads %": sum(shares),
            f"{name} idle cores": idle_share * (os.cpu_count() or 1),
        }


def thread_shares(before: dict[str, float], after: dict[str, float], seconds: float) -> list[float]:
    """Return the share of one core in percent that each thread has used, the largest first."""
    used = (cpu - before.get(name, 0.0) for name, cpu in after.items())
    return sorted((100 * cpu / seconds for cpu in used), reverse=True)


class PulledBacklog(AsyncLoad):
    """One connection with a pull in flight on each of 16 queues; on request while another one writes at a fixed rate."""

    def __init__(self, name: str, size: int, *, has_writer: bool = False) -> None:
        super().__init__(name)
        self._size = size
        self._has_writer = has_writer

    def prepare(self, bench: Bench) -> None:
        bench.backlog(self._size)

    def measure(self, bench: Bench) -> Figures:
        topic, seconds = bench.backlog(self._size), bench.sizes.seconds
        reading = ("--topic", topic.name, "--queues", topic.queues, "--repeat", "--duration", seconds)
        if not self._has_writer:
            return load_figures(self.name, bench.program.run("pull", *reading))
        writing = ("--topic", f"T-{self.name}", "--create-topic", "--size", self._size, "--rate", WRITES_PER_S)
        with bench.program.started("send", *writing, "--duration", seconds + 4 * AHEAD_S, has_pid=False) as writer:
            time.sleep(AHEAD_S)
            figures = load_figures(self.name, bench.program.run("pull", *reading))
            written = finished(writer, bench.running.server)
        del figures[f"{self.name} cpu us"]  # it serves both
        return {
            **figures,
            f"{self.name} writes/s": written["rate"],
            f"{self.name} p99 of writes ms": written["latency_us"]["p99"] / 1000,
        }


class SendsWithReader(AsyncLoad):
    """Pipelined sends while another connection reads a backlog again and again."""

    def prepare(self, bench: Bench) -> None:
        bench.backlog(128)

    def measure(self, bench: Bench) -> Figures:
        topic, seconds = bench.backlog(128), bench.sizes.seconds
        reading = ("--topic", topic.name, "--queues", topic.queues, "--repeat", "--duration", seconds + 4 * AHEAD_S)
        with bench.program.started("pull", *reading, has_pid=False) as reader:
            time.sleep(AHEAD_S)
            sending = ("--topic", f"T-{self.name}", "--create-topic", "--duration", seconds)
            figures = load_figures(self.name, bench.program.run("send", *sending, has_pid=False))
            read = finished(reader, bench.running.server)
        return {**figures, f"{self.name} reads/s": read["rate"]}


class JavaProducer(AsyncLoad):
    """The benchmark Producer of rocketmq-example."""

    has_own_warm_up = True

    def __init__(self, name: str, size: int, threads: int) -> None:
        super().__init__(name)
        self._options = ["-w", str(threads), "-s", str(size)]
        self._topic = java_clients.Topic(f"T-{name}", 4)

    def prepare(self, bench: Bench) -> None:
        make_topic(bench.running.addr, self._topic.name, self._topic.queues)

    def measure(self, bench: Bench) -> Figures:
        sizes = bench.sizes
        rate, used = java_clients.produced(
            bench.running, self._topic, self._options, sizes.client_warm_up, sizes.seconds
        )
        return {f"{self.name} msg/s": rate, f"{self.name} cpu us": used}


class JavaConsumer(AsyncLoad):
    """The benchmark Consumer of rocketmq-example in a backlog; its rate between 20 % and 90 % of it."""

    has_own_warm_up = True

    def prepare(self, bench: Bench) -> None:
        bench.backlog(128)

    def measure(self, bench: Bench) -> Figures:
        topic, count = bench.backlog(128), bench.backlog_size(128)
        rate, used = java_clients.consumed(bench.running, topic, count, CONSUMER_LIMIT_S)
        return {f"{self.name} msg/s": rate, f"{self.name} cpu us": used}


class KeyQueries(AsyncLoad):
    """Queries by key, 16 in flight, each for one of all keys."""

    def prepare(self, bench: Bench) -> None:
        make_topic(bench.running.addr, "Keys", 8)
        options = ["--topic", "Keys", "--queues", 8, "--count", bench.sizes.keys, "--size", 16, "--keys"]
        program("filling.py", bench.running, options, has_pid=False)

    def measure(self, bench: Bench) -> Figures:
        options = ["--topic", "Keys", "--keys", bench.sizes.keys, "--count", bench.sizes.queries]
        result = program("keys.py", bench.running, options)
        return {
            f"{self.name} query/s": result["per_second"],
            f"{self.name} p50 ms": result["p50_ms"],
            f"{self.name} p99 ms": result["p99_ms"],
            f"{self.name} cpu us": result["cpu_us"],
        }


def program(name: str, running: Running, options: list[Any], *, has_pid: bool = True) -> dict[str, float]:
    """Run a load program of this directory and return the result in its last line."""
    command = [sys.executable, str(HERE / name), running.addr, *map(str, options)]
    if has_pid:
        command += ["--pid", str(running.pid)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[1:])} against the {running.server} broker ended with {done.returncode}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


LOADS: tuple[Load, ...] = (
    PipelinedSends("pipelined-128", 128),
    PipelinedSends("pipelined-1024", 1024),
    PipelinedSends("queues-1", 128, queues=1),
    PipelinedSends("queues-64", 128, queues=64),
    PipelinedSends("queues-1000", 128, queues=1_000, stage=Stage.QUEUES_1000),
    PipelinedSends("queues-10000", 128, queues=10_000, stage=Stage.QUEUES_10000),
    FullLoad("full-load"),
    JavaProducer("java-64-128", 128, threads=64),
    JavaProducer("java-64-1024", 1024, threads=64),
    JavaProducer("java-1-128", 128, threads=1),
    JavaProducer("java-1-1024", 1024, threads=1),
    PulledBacklog("pull-128", 128),
    PulledBacklog("pull-1024", 1024),
    PulledBacklog("pull-writer-128", 128, has_writer=True),
    PulledBacklog("pull-writer-1024", 1024, has_writer=True),
    JavaConsumer("java-consumer-128"),
    SendsWithReader("send-with-reader"),
    KeyQueries("keys"),
    PipelinedSends("sync-1-128", 128, in_flight=1, stage=Stage.SYNC_FLUSH),
    PipelinedSends("sync-64-128", 128, in_flight=64, stage=Stage.SYNC_FLUSH),
    PipelinedSends("sync-64-1024", 1024, in_flight=64, stage=Stage.SYNC_FLUSH),
    PipelinedSends("sync-1024-128", 128, in_flight=1024, stage=Stage.SYNC_FLUSH),
)
QUICK = (
    "pipelined-128",
    "pipelined-1024",
    "queues-64",
    "queues-1000",
    "queues-10000",
    "full-load",
    "java-64-128",
    "pull-128",
    "pull-1024",
    "sync-64-128",
)


def choose(names: list[str] | None) -> list[Load]:
    """Return the loads with these names, or whose names begin so; all without names."""
    if names is None:
        return list(LOADS)
    chosen: set[str] = set()
    for name in names:
        exact = {load.name for load in LOADS if load.name == name}
        matching = exact or {load.name for load in LOADS if load.name.startswith(name)}
        if not matching:
            raise SystemExit(f"Unknown load {name}; expected one of {', '.join(load.name for load in LOADS)}.")
        chosen |= matching
    return [load for load in LOADS if load.name in chosen]


def quiet(pids: list[int]) -> None:
    """Wait until all brokers have nothing left to do, and write all dirty pages: no load pays for the one before.

    A Java broker with the files of many queues is never idle, so the wait has a limit.
    """
    deadline = time.monotonic() + QUIET_LIMIT_S
    while time.monotonic() < deadline:
        used = sum(map(cpu_s, pids))
        time.sleep(QUIET_STEP_S)
        if sum(map(cpu_s, pids)) - used <= QUIET_SHARE * QUIET_STEP_S:
            break
    os.sync()
