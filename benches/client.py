"""The Python client and the Java 4.9.4 client at the same broker of ours, in turn.

    python benches/client.py [--rounds 3] [--quick] [--out FILE] [--page benches/README.md]
    python benches/client.py --table [--out FILE] [--page FILE]

    broker and name server → backlog → rounds: load by load, client by client

Each load is a process of its own (`python_client.py`, `JavaClient.java`), which warms up first. The order of the clients changes
with each round. Printed are medians over the rounds, the spread, the ratio to Java, and what is expected; `--out` writes the
result as JSON, `--page` also the table into a page. A paced load sends at a rate with traces; counted are the records that its
trace topic holds in the end. Clients and broker share the cores: only ratios mean something.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import page
from ariane import PullConsumer
from ariane.model.trace_event import PublishEvent
from ariane.protocol import trace_codec
from ariane.testing import java
from java_clients import CLIENT_JVM
from machine import describe_machine, load_average, versions
from servers import HERE, Running, describe_implementation, make_topic, started

PYTHON, JAVA = "python", "java"
RESULT, PAGE = HERE / "results" / "client.json", HERE / "README.md"
BEGIN, END = "<!-- clients: written by benches/client.py --page, not by hand -->", "<!-- end of clients -->"
QUEUES = 8
LIMIT_S = 300  # for one load
PACED_RATE = 20_000

Figures = dict[str, float]
Rounds = dict[str, dict[str, list[float]]]  # client → figure → value of each round


class Sizes(NamedTuple):
    seconds: float  # of a measurement
    java_warm: float  # seconds until a JVM is measured
    backlog: int  # messages that consumers read
    paced: float  # seconds of a paced load


FULL, QUICK = Sizes(3, 4, 300_000, 6), Sizes(2, 3, 150_000, 3)


class Row(NamedTuple):
    """A line of the table."""

    figure: str
    label: str
    form: str
    expected: str = ""
    is_reached: Callable[[Figures, Figures], bool] = lambda ours, javas: True  # by medians of Python and Java


def at_least(figure: str, share: float) -> Callable[[Figures, Figures], bool]:
    return lambda ours, javas: ours[figure] >= share * javas.get(figure, 0)


def at_most(figure: str, share: float) -> Callable[[Figures, Figures], bool]:
    return lambda ours, javas: ours[figure] <= share * javas.get(figure, float("inf"))


def as_fast_as(figure: str, rate: float) -> Callable[[Figures, Figures], bool]:
    return lambda ours, javas: ours[figure] >= rate


def nothing_lost(figure: str) -> Callable[[Figures, Figures], bool]:
    return lambda ours, javas: ours[figure] == 0


ROWS = (
    Row("sends-64 msg/s", "64 sends in flight, messages/s", ",.0f", "≥ 0.8 of Java", at_least("sends-64 msg/s", 0.8)),
    Row("sends-64 cpu us", "CPU time of the client per message, µs", ".1f"),
    Row("sends-1 p50 ms", "one at a time, p50, ms", ".3f", "≤ 1.3 of Java", at_most("sends-1 p50 ms", 1.3)),
    Row("sends-1 p99 ms", "one at a time, p99, ms", ".3f", "≤ 1.3 of Java", at_most("sends-1 p99 ms", 1.3)),
    Row("consume-1 msg/s", "push consumer, 1 per call, messages/s", ",.0f", "≥ 60,000", as_fast_as("consume-1 msg/s", 60_000)),
    Row("consume-1 cpu us", "CPU time of the client per message, µs", ".1f"),
    Row("consume-32 msg/s", "push consumer, 32 per call, messages/s", ",.0f", "≥ 60,000", as_fast_as("consume-32 msg/s", 60_000)),
    Row("consume-32 cpu us", "CPU time of the client per message, µs", ".1f"),
    Row("traced-64 msg/s", "64 sends in flight with traces, messages/s", ",.0f"),
    Row("traced-64 cpu us", "CPU time of the client per message, µs", ".1f"),
    Row("traced : untraced", "rate with traces : rate without", ".2f", "≥ 0.9", as_fast_as("traced : untraced", 0.9)),
    Row("paced-drop msg/s", f"{PACED_RATE:,} sends/s with traces, `drop`: messages/s", ",.0f"),
    Row("paced-drop lost %", "trace records lost, %", ".2f"),
    Row("paced-block msg/s", f"{PACED_RATE:,} sends/s with traces, `block`: messages/s", ",.0f"),
    Row("paced-block lost %", "trace records lost, %", ".2f", "0", nothing_lost("paced-block lost %")),
    Row("paced-spill msg/s", f"{PACED_RATE:,} sends/s with traces, `spill`: messages/s", ",.0f"),
    Row("paced-spill lost %", "trace records lost, %", ".2f", "0", nothing_lost("paced-spill lost %")),
)  # fmt: skip


def main() -> None:
    args = arguments()
    if args.table:
        result = json.loads((args.out or RESULT).read_text())
        print(table(result))
    else:
        result = run(args)
        print(table(result))
        if args.out:
            args.out.write_text(json.dumps(result, indent=1) + "\n")
    if args.page:
        args.page.write_text(page.replace_between(args.page.read_text(), BEGIN, END, table(result)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, help="default: 3, with --quick 1")
    parser.add_argument("--quick", action="store_true", help="one round of shorter measurements, less than 2 minutes")
    parser.add_argument("--clients", nargs="*", default=(PYTHON, JAVA), choices=(PYTHON, JAVA), help="default: both")
    parser.add_argument(
        "--only", nargs="*", metavar="LOAD", help="how the names of loads begin: sends, consume, traced, paced"
    )
    parser.add_argument("--out", type=Path, help="write the result there; with --table read it (default: results/)")
    parser.add_argument("--page", type=Path, help=f"write the table into this page, such as {PAGE.name}")
    parser.add_argument("--table", action="store_true", help="print the table of an existing result")
    return parser.parse_args()


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure everything and return the result."""
    if reason := java.available():
        raise SystemExit(f"this bench needs the Java peers: {reason}")
    sizes, rounds = (QUICK, args.rounds or 1) if args.quick else (FULL, args.rounds or 3)
    began, average = datetime.now(UTC), load_average()
    description, reason = describe_implementation("native")
    if reason:
        raise SystemExit(f"this bench runs the broker with native kernels: {reason}")
    with tempfile.TemporaryDirectory(prefix="ariane-bench-") as scratch:
        home = Path(scratch)
        with java.name_server(home / "namesrv") as namesrv, started("native", namesrv.addr, home) as broker:
            session = Session(broker, sizes, args.clients, args.only)
            session.measure(rounds)
    return {
        "measured": began.isoformat(timespec="seconds"),
        "minutes": round((datetime.now(UTC) - began).total_seconds() / 60, 1),
        "rounds": rounds,
        "sizes": sizes._asdict(),
        "machine": {**describe_machine(Path(tempfile.gettempdir())), "load_average_before": average},
        "versions": versions(),
        "broker": description,
        "figures": summarize(session.rounds),
    }


class Session:
    """Runs the loads of both clients at one broker and collects the figures of the rounds."""

    def __init__(self, broker: Running, sizes: Sizes, clients: list[str], only: list[str] | None) -> None:
        self.rounds: Rounds = {client: {} for client in clients}
        self._broker = broker
        self._sizes = sizes
        self._only = only  # how the names of loads begin; None: all loads
        self._trace_topics = 0  # each paced load has one of its own

    def measure(self, rounds: int) -> None:
        """Measure all loads in each round."""
        for topic in ("sends", "backlog"):
            make_topic(self._broker.addr, topic, QUEUES)
        if self._is_wanted("consume"):
            self._run(PYTHON, "fill", topic="backlog", count=self._sizes.backlog)
        for turn in range(rounds):
            for load in (self._sends, self._consume, self._paced):
                for client in list(self.rounds)[:: -1 if turn % 2 else 1]:
                    load(client)

    def _sends(self, client: str) -> None:
        sizes = {
            "topic": "sends",
            "warm": self._sizes.java_warm if client == JAVA else 1,
            "seconds": self._sizes.seconds,
        }
        for name, in_flight, trace in (("sends-64", 64, {}), ("traced-64", 64, {"trace": "drop"}), ("sends-1", 1, {})):
            if self._is_wanted(name):
                self._add(client, name, self._run(client, "sends", in_flight=in_flight, **sizes, **trace))
        figures = self.rounds[client]
        if "traced-64 msg/s" in figures and "sends-64 msg/s" in figures:
            ratio = figures["traced-64 msg/s"][-1] / figures["sends-64 msg/s"][-1]
            figures.setdefault("traced : untraced", []).append(ratio)

    def _consume(self, client: str) -> None:
        for batch in (1, 32):
            if self._is_wanted(f"consume-{batch}"):
                figures = self._run(client, "consume", topic="backlog", count=self._sizes.backlog, batch=batch)
                self._add(client, f"consume-{batch}", figures)

    def _paced(self, client: str) -> None:
        for policy in ("drop", "block", "spill") if client == PYTHON else ("drop",):  # Java's client has no other
            if not self._is_wanted(f"paced-{policy}"):
                continue
            self._trace_topics += 1
            topic = f"traces-{self._trace_topics}"
            make_topic(self._broker.addr, topic, 1)
            options = {"topic": "sends", "rate": PACED_RATE, "seconds": self._sizes.paced, "trace": policy}
            figures = self._run(client, "paced", trace_topic=topic, **options)
            sent, stored = figures.pop("sent"), asyncio.run(stored_records(self._broker.namesrv, topic))
            kept = {"msg/s": figures["msg/s"], "sent": sent, "stored": stored, "lost %": (sent - stored) / sent * 100}
            self._add(client, f"paced-{policy}", kept)

    def _is_wanted(self, load: str) -> bool:
        return self._only is None or any(load.startswith(name) for name in self._only)

    def _run(self, client: str, mode: str, **options: object) -> Figures:
        args = [mode, self._broker.namesrv, *(f"{name}={value}" for name, value in options.items())]
        if client == JAVA:
            lines = java.run(str(HERE / "JavaClient.java"), args, timeout_s=LIMIT_S, jvm_args=CLIENT_JVM)
            (figures,) = java.events(lines)
            return figures  # type: ignore[no-any-return]
        command = [sys.executable, str(HERE / "python_client.py"), *args]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S)
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    def _add(self, client: str, load: str, figures: Figures) -> None:
        for name, value in figures.items():
            print(f"{client:6} {load + ' ' + name:28} {value:12,.2f}", file=sys.stderr)
            self.rounds[client].setdefault(f"{load} {name}", []).append(value)


async def stored_records(namesrv: str, topic: str) -> int:
    """Return the number of Pub records in a trace topic."""
    records = 0
    async with PullConsumer(namesrv) as consumer:
        for queue in await consumer.queues_of(topic):
            offset, end = await consumer.bounds(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                for message in result.messages:
                    events, _ = trace_codec.decode(message.body)
                    records += sum(isinstance(event, PublishEvent) for event in events)
                offset = result.next_offset
    return records


def summarize(rounds: Rounds) -> dict[str, dict[str, dict[str, Any]]]:
    """Return median, least and most of each figure and client."""
    names = dict.fromkeys(name for figures in rounds.values() for name in figures)
    return {
        name: {
            client: {
                "median": statistics.median(values), "least": min(values), "most": max(values), "rounds": values
            }
            for client, figures in rounds.items()
            if (values := figures.get(name))
        }
        for name in names
    }  # fmt: skip


def table(result: dict[str, Any]) -> str:
    """Return setting and figures as Markdown."""
    machine, figures = result["machine"], result["figures"]
    medians = {
        client: {name: by_client[client]["median"] for name, by_client in figures.items() if client in by_client}
        for client in (PYTHON, JAVA)
    }
    lines = [["", "Python", "Java 4.9.4", "Python : Java", "expected"]]
    for row in ROWS:
        if row.figure not in medians[PYTHON]:
            continue
        ours, javas = medians[PYTHON][row.figure], medians[JAVA].get(row.figure)
        ratio = f"{ours / javas:.2f}" if javas and not row.figure.endswith("lost %") else ""
        expected = row.expected
        if expected and not row.is_reached(medians[PYTHON], medians[JAVA]):
            expected = f"**missed**: {expected}"
        cells = [with_spread(figures[row.figure].get(client), row.form) for client in (PYTHON, JAVA)]
        lines.append([row.label, *cells, ratio, expected])
    rounds = "1 round" if result["rounds"] == 1 else f"{result['rounds']} rounds"
    setting = (
        f"Measured {result['measured'][:10]}, {rounds}; medians, in parentheses the range. {machine['processor']},"
        f" {machine['cores']} cores, load average before the start: {machine['load_average_before']}. Broker: {result['broker']}."
    )
    return f"{setting}\n\n{page.markdown(lines)}"


def with_spread(values: dict[str, Any] | None, form: str) -> str:
    if values is None:
        return ""
    median, least, most = (format(values[name], form) for name in ("median", "least", "most"))
    return median if least == most else f"{median} ({least}–{most})"


if __name__ == "__main__":
    main()
