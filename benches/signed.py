"""Access control: rates and CPU time of brokers without and with it, for our implementations and Java's broker in the same run.

    python benches/broker.py --signed [--rounds 3] [--servers NAME …] [--short] [--json] [--out FILE]

Each server runs twice, once with `aclEnable=true` and an account in plain_acl.yml. Each round sends to both and pulls from both,
one right after the other, in the other order in every second round; `ariane-load --account` signs each request for the second:

    send    one connection, 128 sends in flight, 4 queues
    pull    one connection, a pull of 32 messages in flight on each of 4 queues, from the page cache

The share is the median over the rounds of the rate with access control divided by the rate without: both are measured within the
same minute. The share of CPU time, without divided by with, is more reliable on a machine with other work.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import sys
import tempfile
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import load_program
from ariane.protocol.signing import Credentials
from ariane.testing import java
from figures import JAVA
from load_program import LoadProgram, Report
from machine import load_average, versions
from servers import started

ACCOUNT = Credentials("some-account", "some-secret")
ACCOUNTS = f"accounts:\n- {{accessKey: {ACCOUNT.access_key}, secretKey: {ACCOUNT.secret_key}, admin: true}}\n"
KINDS = ("plain", "signed")
MESSAGES = {
    128: 300_000,
    1024: 100_000,
}  # of a measurement and of a backlog, by size: not more than the page cache takes
WARM_UP, PULLED_S = 2, 3.0  # measurements of sends, seconds
SHORT = 10  # --short divides these
QUEUES = 4
EXPECTED = 0.7  # of the rate without access control, of the native kernels

Key = tuple[str, str, str]  # load, server, kind


class Measured(NamedTuple):
    """One measurement."""

    rate: float  # messages per second
    cpu_us: float  # of the broker, per message


class Target(NamedTuple):
    """A broker, with the load program for it."""

    server: str
    kind: str
    program: LoadProgram

    def run(self, mode: str, topic: str, *options: object) -> Report:
        account = ("--account", f"{ACCOUNT.access_key}:{ACCOUNT.secret_key}") if self.kind == "signed" else ()
        return self.program.run(mode, "--topic", topic, "--queues", QUEUES, *options, *account)


def measure(args: Namespace) -> dict[str, Any]:
    """Measure all servers and return the result; print its figures."""
    if JAVA in args.servers and (reason := java.available()):
        raise SystemExit(f"this bench needs the Java peers: {reason}")
    shorter = SHORT if args.short else 1
    rounds: dict[Key, list[Measured]] = defaultdict(list)
    average = load_average()
    path = args.load_program or load_program.build()
    with tempfile.TemporaryDirectory(prefix="ariane-bench-", dir=args.dir) as home, contextlib.ExitStack() as stack:
        pairs = [
            [stack.enter_context(running(server, kind, Path(home), path)) for kind in KINDS] for server in args.servers
        ]
        for target in itertools.chain(*pairs):
            prepare(target, shorter)
        for number in range(args.rounds):
            for pair in pairs[number % len(pairs) :] + pairs[: number % len(pairs)]:
                for size in MESSAGES:
                    for mode, load in (("send", send), ("pull", pull)):
                        for target in pair[:: -1 if number % 2 else 1]:
                            report = load(target, size, shorter)
                            measured = Measured(report["rate"], report["broker_cpu_us"])
                            rounds[f"{mode} {size} B", target.server, target.kind].append(measured)
                print(f"round {number + 1} of {args.rounds}: {pair[0].server}", file=sys.stderr)
    print("\n".join(table(rounds)))
    return {
        "load_average_before": average,
        "versions": versions(),
        "rounds": {" ".join(key): [measured._asdict() for measured in values] for key, values in rounds.items()},
    }


@contextlib.contextmanager
def running(server: str, kind: str, home: Path, path: Path) -> Iterator[Target]:
    """Run a broker without or with access control."""
    place = home / f"{server}-{kind}"
    (place / "conf").mkdir(parents=True)
    (place / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    namesrv = java.name_server(place / "namesrv") if server == JAVA else contextlib.nullcontext()
    settings = {"rocketmqHome": str(place), "aclEnable": str(kind == "signed").lower()}
    with namesrv as names, started(server, names.addr if names else "", place, settings, account=ACCOUNT) as broker:
        yield Target(server, kind, LoadProgram(path, broker))


def prepare(target: Target, shorter: int) -> None:
    """Create the topics, fill the backlogs, and warm up."""
    for size, messages in MESSAGES.items():
        for topic in (f"sent-{size}", f"pulled-{size}"):
            target.run("send", topic, "--create-topic", "--size", size, "--messages", WARM_UP * messages // shorter)
        pull(target, size, shorter)


def send(target: Target, size: int, shorter: int) -> Report:
    return target.run("send", f"sent-{size}", "--size", size, "--messages", MESSAGES[size] // shorter)


def pull(target: Target, size: int, shorter: int) -> Report:
    return target.run("pull", f"pulled-{size}", "--repeat", "--duration", PULLED_S / shorter)


def table(rounds: Mapping[Key, list[Measured]]) -> list[str]:
    """Return lines of medians: rates, CPU times per message, and the shares of what they are without access control."""
    lines = [
        f"{'load':<14}{'server':<8}{'plain/s':>11}{'signed/s':>11}{'share':>7}{'expected':>9}"
        f"{'plain µs':>10}{'signed µs':>10}{'share':>7}"
    ]
    for load, server, kind in rounds:
        if kind == KINDS[0]:
            plain, signed = (rounds[load, server, kind] for kind in KINDS)
            rate = statistics.median(after.rate / before.rate for before, after in zip(plain, signed, strict=True))
            cpu = statistics.median(before.cpu_us / after.cpu_us for before, after in zip(plain, signed, strict=True))
            expected = f">= {EXPECTED:.0%}" if server == "native" else ""
            rates, costs = (
                [statistics.median(getattr(m, name) for m in ms) for ms in (plain, signed)] for name in Measured._fields
            )
            lines.append(
                f"{load:<14}{server:<8}{rates[0]:>11,.0f}{rates[1]:>11,.0f}{rate:>7.0%}{expected:>9}"
                f"{costs[0]:>10.2f}{costs[1]:>10.2f}{cpu:>7.0%}"
            )
    return lines
