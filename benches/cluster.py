"""Sends and pulls of one and two brokers, with and without a slave, ours and Java's in the same run.

    python benches/cluster.py [--rounds 3] [--seconds 3] [--layouts NAME …] [--short] [--out FILE] [--page FILE]
    python benches/cluster.py --table [--out FILE] [--page FILE]

    one        a master                     one-slave   a master and a slave, ASYNC_MASTER
    two        two masters, loaded at once  one-sync    a master and a slave, SYNC_MASTER: a send waits for the slave
                                            two-sync    two of these

A layout of one server runs at a time, in turn with the others; each has a fresh store. Printed are medians over the rounds: sends
and pulls per second of all masters together, CPU time of all brokers per message, and the ratios to Java. `--out` writes the result
as JSON and retains other layouts of an earlier result, so that layouts can be measured one by one; `--page` writes the table into a
page; `--table` prints that of an existing result. Load and brokers share the cores: only ratios mean something.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import load_program
import page
from ariane.testing import java
from broker import available, rotated
from figures import JAVA, OURS
from load_program import LoadProgram, finished
from machine import describe_machine, load_average, versions
from servers import HERE, IMPLEMENTATIONS, Running, broker_process, cpu_s, first_message

HEAP = ("-Xms1g", "-Xmx1g")  # four Java brokers run at once
QUEUES, IN_FLIGHT, SIZE = 4, 128, 128
WARM_UP_S = {JAVA: 20.0}  # of sends: Java compiles meanwhile
WARM_UP_OURS_S = 2.0
TOPIC = "ClusterBench"
RESULT = HERE / "results" / "cluster.json"
BEGIN, END = "<!-- clusters: written by benches/cluster.py --page, not by hand -->", "<!-- end of clusters -->"
EXPECTED = 2  # rate of native kernels : Java


class Layout(NamedTuple):
    """Brokers of one measurement."""

    masters: int
    role: str
    has_slave: bool


LAYOUTS = {
    "one": Layout(1, "ASYNC_MASTER", False),
    "one-slave": Layout(1, "ASYNC_MASTER", True),
    "one-sync": Layout(1, "SYNC_MASTER", True),
    "two": Layout(2, "ASYNC_MASTER", False),
    "two-sync": Layout(2, "SYNC_MASTER", True),
}
TITLES = {
    "one": "one master",
    "one-slave": "a master and a slave, ASYNC_MASTER",
    "one-sync": "a master and a slave, SYNC_MASTER",
    "two": "two masters",
    "two-sync": "two masters with a slave each, SYNC_MASTER",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--servers", nargs="*", default=(JAVA, *IMPLEMENTATIONS), choices=(JAVA, *IMPLEMENTATIONS))
    parser.add_argument("--layouts", nargs="*", default=list(LAYOUTS), choices=list(LAYOUTS))
    parser.add_argument("--short", action="store_true", help="one round of a second, and no warm-up")
    parser.add_argument("--dir", type=Path, help="where the stores go (default: the temporary directory)")
    parser.add_argument("--load-program", type=Path, help="path of ariane-load (default: build it)")
    parser.add_argument("--out", type=Path, help="write the result there; with --table read it (default: results/)")
    parser.add_argument("--page", type=Path, help="write the table into this page")
    parser.add_argument("--table", action="store_true", help="print the table of an existing result")
    args = parser.parse_args()
    if args.short:
        args.rounds, args.seconds = 1, 1.0
    if args.table:
        result = json.loads((args.out or RESULT).read_text())
    else:
        if JAVA in args.servers and (reason := java.available()):
            raise SystemExit(f"this bench needs the Java peers: {reason}")
        result = run(args)
        if args.out:
            earlier = json.loads(args.out.read_text()) if args.out.exists() else {}
            result = {layout: values for layout, values in {**earlier, **result}.items() if layout in LAYOUTS}
            result = dict(sorted(result.items(), key=lambda item: list(LAYOUTS).index(item[0])))
            args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    if args.page:
        args.page.write_text(page.replace_between(args.page.read_text(), BEGIN, END, table(result)))


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of each layout, with what they were measured on."""
    servers, skipped = available(args.servers)
    program = args.load_program or load_program.build()
    machine, programs = describe_machine(Path(args.dir or tempfile.gettempdir())), versions()
    result = {}
    for name in args.layouts:
        began, average = datetime.now(UTC), load_average()
        figures: dict[str, dict[str, list[float]]] = {server: defaultdict(list) for server in servers}
        for turn in range(args.rounds):
            for server in rotated(list(servers), turn):
                warm_up_s = 0.0 if args.short else WARM_UP_S.get(server, WARM_UP_OURS_S)
                with tempfile.TemporaryDirectory(prefix="ariane-bench-", dir=args.dir) as home:
                    values = measure(server, LAYOUTS[name], Path(home), program, args.seconds, warm_up_s)
                for figure, value in values.items():
                    print(f"{name:9} {server:6} {figure:12} {value:12,.2f}", flush=True)
                    figures[server][figure].append(value)
        result[name] = {
            "measured": began.isoformat(timespec="seconds"),
            "rounds": args.rounds,
            "seconds": args.seconds,
            "machine": {**machine, "load_average_before": average},
            "versions": programs,
            "servers": servers,
            "skipped": skipped,
            "figures": figures,
        }
    return result


def measure(
    server: str, layout: Layout, home: Path, program: Path, seconds: float, warm_up_s: float
) -> dict[str, float]:
    """Return the rates of all masters together, and the CPU time of all brokers per message in microseconds."""
    with brokers(server, layout, home) as (masters, pids):
        loads = [LoadProgram(program, master) for master in masters]
        sending = ("--topic", TOPIC, "--create-topic", "--queues", QUEUES, "--size", SIZE, "--in-flight", IN_FLIGHT)
        if warm_up_s:
            together(loads, "send", *sending, "--duration", warm_up_s)
        values = {}
        for mode, options in (
            ("send", sending),
            ("pull", ("--topic", TOPIC, "--queues", QUEUES, "--repeat")),
        ):
            os.sync()  # so that no load waits for pages that the one before it wrote
            before = sum(map(cpu_s, pids))
            reports = together(loads, mode, *options, "--duration", seconds)
            values[f"{mode}s/s"] = sum(report["rate"] for report in reports)
            messages = sum(report["messages"] for report in reports)
            values[f"{mode} cpu us"] = (sum(map(cpu_s, pids)) - before) / messages * 1e6
        return values


def together(loads: list[LoadProgram], mode: str, *options: object) -> list[load_program.Report]:
    """Run a load on all masters at once, and return the reports."""
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(load.started(mode, *options, has_pid=False)) for load in loads]
        return [finished(process, mode) for process in processes]


@contextlib.contextmanager
def brokers(server: str, layout: Layout, home: Path) -> Iterator[tuple[list[Running], list[int]]]:
    """Run a name server of Java and the brokers of a layout; return the masters, and the pids of all brokers."""
    with contextlib.ExitStack() as stack:
        namesrv = stack.enter_context(java.name_server(home / "namesrv")).addr
        masters, pids = [], []
        for number in range(layout.masters):
            names = {"brokerName": f"broker-{number}"}
            port = java.free_port()

            def start(role: str, broker_id: int, port: int, names: dict[str, str] = names) -> int:
                place = home / f"{names['brokerName']}-{broker_id}"
                place.mkdir()
                settings = {**names, "brokerRole": role, "brokerId": str(broker_id)}
                return stack.enter_context(broker_process(server, namesrv, place, port, settings, HEAP))

            pids.append(start(layout.role, 0, port))
            if layout.has_slave:
                pids.append(start("SLAVE", 1, java.free_port()))
            # Of a synchronous master: answered as stored only when the slave has it.
            start_s = first_message(f"127.0.0.1:{port}", time.perf_counter())
            masters.append(Running(server, f"127.0.0.1:{port}", pids[0], start_s, namesrv))
        yield masters, pids


def table(result: dict[str, Any]) -> str:
    """Return setting and medians as Markdown, with ratios to Java."""
    last = list(result.values())[-1]
    machine, programs = last["machine"], last["versions"]
    loads = ", ".join(str(layout["machine"]["load_average_before"]) for layout in result.values())
    versions_text = ", ".join(f"{name} {version}" for name, version in programs.items())
    setting = (
        f"Measured {last['measured'][:10]}, {last['rounds']} rounds, {last['seconds']:g} s per measurement; medians. Bold"
        f" ratios of the native kernels miss the expected {EXPECTED}. {machine['processor']}, {machine['cores']} cores, load"
        f" average before each layout: {loads}. Versions: {versions_text}."
    )
    lines = [["", "broker", "sends/s", ": Java", "CPU of all brokers, µs", "pulls/s", ": Java", "CPU, µs"]]
    for name, layout in result.items():
        medians = {
            server: {figure: statistics.median(values) for figure, values in figures.items()}
            for server, figures in layout["figures"].items()
        }
        for server in (name for name in (*OURS, JAVA) if name in medians):
            figures = medians[server]
            cells = [TITLES[name], page.TITLES[server]]
            for mode in ("send", "pull"):
                rate, cpu = figures[f"{mode}s/s"], figures[f"{mode} cpu us"]
                ratio = rate / medians[JAVA][f"{mode}s/s"] if JAVA in medians and server != JAVA else None
                cells += [f"{rate:,.0f}", _ratio(server, ratio), f"{cpu:.2f}"]
            lines.append(cells)
    return f"{setting}\n\n{page.markdown(lines)}"


def _ratio(server: str, ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"**{ratio:.2f}**" if server == OURS[0] and ratio < EXPECTED else f"{ratio:.2f}"


if __name__ == "__main__":
    main()
