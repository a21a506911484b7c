"""TLS: rates and CPU time of brokers, plain and encrypted, for our implementations and Java's broker in the same run.

    python benches/broker.py --tls [--rounds 3] [--servers NAME …] [--short] [--json] [--out FILE]

All servers accept both kinds of connections, with their test certificates. Each round sends to each server plain, then encrypted:

    pipelined   ariane-load, built with --features tls: one connection, 128 sends of 128 B in flight, 8 queues
    java        the benchmark Producer of Java's client, 64 threads, with -Dtls.enable=true if encrypted

The cost of TLS is the median over the rounds of encrypted minus plain: both are measured within the same minute.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import load_program
from ariane.testing import java
from figures import JAVA
from java_clients import Topic, produced
from load_program import LoadProgram
from machine import load_average, versions
from servers import Running, make_topic, started

TOPIC = Topic("Encrypted", 8)
SIZE = 128
WARM_S, MEASURED_S, JAVA_WARM_S, JAVA_S = 20.0, 4.0, 10.0, 10.0
SHORT = 10  # --short divides these
KINDS = ("plain", "tls")
EXPECTED = {"pipelined": 3.0, "java": 1.3}  # rate with TLS : Java's, of the native kernels

Key = tuple[str, str, str]  # load, server, kind


class Measured(NamedTuple):
    """One measurement."""

    rate: float  # messages per second
    cpu_us: float  # of the broker, per message


def send_pipelined(program: LoadProgram, kind: str, seconds: float) -> Measured:
    encrypted = ("--tls",) if kind == "tls" else ()
    shape = ("--topic", TOPIC.name, "--queues", TOPIC.queues, "--size", SIZE)
    report = program.run("send", *shape, "--duration", seconds, *encrypted)
    return Measured(report["rate"], report["broker_cpu_us"])


def send_by_java(running: Running, kind: str, shorter: float) -> Measured:
    jvm = ("-Dtls.enable=true",) if kind == "tls" else ()
    options = ["-s", str(SIZE), "-w", "64"]
    return Measured(*produced(running, TOPIC, options, JAVA_WARM_S / shorter, JAVA_S / shorter, jvm))


def measure(args: Namespace) -> dict[str, Any]:
    """Measure all servers and return the result; print its figures."""
    if reason := java.available():
        raise SystemExit(f"this bench needs the Java peers: {reason}")
    shorter = SHORT if args.short else 1
    rounds: dict[Key, list[Measured]] = defaultdict(list)
    average = load_average()
    path = args.load_program or load_program.build("tls")
    with tempfile.TemporaryDirectory(prefix="ariane-bench-", dir=args.dir) as home, contextlib.ExitStack() as stack:
        brokers = []
        for server in args.servers:
            place = Path(home) / server
            place.mkdir()
            # With explicit arguments a Java server accepts TLS, which an encrypted client needs here, too.
            namesrv = stack.enter_context(java.name_server(place / "namesrv", jvm_args=java.quick_start())).addr
            brokers.append(stack.enter_context(started(server, namesrv, place)))
            make_topic(brokers[-1].addr, TOPIC.name, TOPIC.queues)
        time.sleep(2)  # the registration of the topics
        for running in brokers:
            for kind in KINDS:
                send_pipelined(LoadProgram(path, running), kind, WARM_S / shorter)
        for number in range(args.rounds):
            for running in brokers[number % len(brokers) :] + brokers[: number % len(brokers)]:
                for kind in KINDS:
                    sent = send_pipelined(LoadProgram(path, running), kind, MEASURED_S / shorter)
                    rounds["pipelined", running.server, kind].append(sent)
                    rounds["java", running.server, kind].append(send_by_java(running, kind, shorter))
                    last = [(load, *rounds[load, running.server, kind][-1]) for load in EXPECTED]
                    print(f"round {number + 1} of {args.rounds}: {running.server} {kind} {last}", file=sys.stderr)
    print("\n".join(table(rounds, args.servers)))
    return {
        "load_average_before": average,
        "versions": versions(),
        "rounds": {" ".join(key): [measured._asdict() for measured in values] for key, values in rounds.items()},
    }


def table(rounds: Mapping[Key, list[Measured]], servers: list[str]) -> list[str]:
    """Return lines of medians: rates, their ratio to Java's, and CPU times per message with the cost of TLS."""
    titles = f"{'plain/s':>10}{'TLS/s':>10}{': Java TLS':>11}{'expected':>9}{'plain µs':>9}{'TLS µs':>8}{'cost µs':>8}"
    lines = [f"{'load':<10}{'server':<8}" + titles]
    for load, least in EXPECTED.items():
        for server in servers:
            plain, tls = (rounds[load, server, kind] for kind in KINDS)
            ratio = rate(tls) / rate(rounds[load, JAVA, "tls"]) if JAVA in servers else float("nan")
            expected = "" if server != "native" else f">= {least:g}"
            costs = [after.cpu_us - before.cpu_us for before, after in zip(plain, tls, strict=True)]
            lines.append(
                f"{load:<10}{server:<8}{rate(plain):>10,.0f}{rate(tls):>10,.0f}{ratio:>11.2f}{expected:>9}"
                f"{cpu_us(plain):>9.2f}{cpu_us(tls):>8.2f}{statistics.median(costs):>8.2f}"
            )
    return lines


def rate(values: list[Measured]) -> float:
    return statistics.median(measured.rate for measured in values)


def cpu_us(values: list[Measured]) -> float:
    return statistics.median(measured.cpu_us for measured in values)
