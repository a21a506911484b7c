"""The Java 4.9.4 broker and ours in both implementations under the same loads, in turn.

    python benches/broker.py [--rounds 3] [--quick] [--only NAME …] [--short] [--out FILE] [--page FILE] [sizes, see --help]
    python benches/broker.py --table [--out FILE] [--page FILE]

Servers: `native` and `python` are ours with ARIANE_IMPL=native and =python, `java` is 4.9.4. All run at the same time, one is
loaded. First those that flush asynchronously, then others that flush synchronously:

    start → warm up until settled → stages: prepare loads → unmeasured round → rounds: load by load, server by server

The order of the servers changes with each round. Printed are medians over the rounds, the ratios to Java, what is expected of them,
and the spread; `--out` writes the result as JSON, `--page` also the tables into a page of the documentation, and their plot;
`--table` prints the tables from an existing result. Load and brokers share the cores: only ratios mean something.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ariane
import encryption
import load_program
import page
import plot
import signed
from ariane.testing import java
from figures import JAVA, Rounds, summarize, text_table, with_costs
from in_process import measure_steps
from loads import QUICK, Bench, Figures, Load, Sizes, Stage, choose, quiet
from machine import describe_machine, load_average, versions
from servers import HERE, IMPLEMENTATIONS, describe_implementation, memory_mib, started
from warm_up import warm_up

SERVERS = (*IMPLEMENTATIONS, JAVA)
RESULT = HERE / "results" / "broker.json"
SHORT = 20  # --short divides sizes by this
SYNC_FLUSH = {"flushDiskType": "SYNC_FLUSH"}
WINDOW_S, WARM_UP_S = 5.0, 60.0  # of the warm-up


def main() -> None:
    args = arguments()
    if args.tls or args.signed:
        write(encryption.measure(args) if args.tls else signed.measure(args), args)
        return
    if args.table:
        result = json.loads((args.out or RESULT).read_text())
    else:
        result = run(args)
        if args.out:
            args.out.write_text(json.dumps(result, indent=1) + "\n")
    if args.page:
        args.page.write_text(page.replace_tables(args.page.read_text(), result))
        args.page.parent.joinpath(plot.FILE).write_text(plot.plot(result), encoding="utf-8")
    if args.table:
        print(page.tables(result))
    elif args.json:
        print(json.dumps(result))


def write(result: dict[str, Any], args: argparse.Namespace) -> None:
    """Write or print a result as the options say."""
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    if args.json:
        print(json.dumps(result))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--only", nargs="*", default=None, metavar="NAME", help="loads, or how their names begin")
    chosen.add_argument("--quick", action="store_true", help=f"the most important loads: {', '.join(QUICK)}")
    chosen.add_argument("--tls", action="store_true", help="rates and CPU time with TLS instead: encryption.py")
    chosen.add_argument("--signed", action="store_true", help="the same with access control instead: signed.py")
    parser.add_argument("--servers", nargs="*", default=SERVERS, choices=SERVERS, help="which ones (default: all)")
    parser.add_argument("--short", action="store_true", help=f"all sizes divided by {SHORT}, a warm-up of seconds")
    parser.add_argument("--dir", type=Path, default=None, help="where the stores go (default: the temporary directory)")
    parser.add_argument("--load-program", type=Path, help="path of ariane-load (default: build it)")
    parser.add_argument("--json", action="store_true", help="print the result as the last line")
    parser.add_argument("--out", type=Path, help="write the result there; with --table read it (default: results/)")
    parser.add_argument("--page", type=Path, help=f"write the tables into this page, a plot to {plot.FILE} next to it")
    parser.add_argument("--table", action="store_true", help="print the tables of an existing result")
    for name, default in Sizes._field_defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, metavar="N")
    return parser.parse_args()


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure everything and return the result; print its figures."""
    if JAVA in args.servers and (reason := java.available()):
        raise SystemExit(f"this bench needs the Java peers: {reason}")
    servers, skipped = available(args.servers)
    loads = choose(list(QUICK) if args.quick else args.only)
    sizes = Sizes(**{name: getattr(args, name) for name in Sizes._fields})
    if args.short:
        sizes = Sizes(*(type(size)(max(0.5, size / SHORT)) for size in sizes))
    began, average = datetime.now(UTC), load_average()
    with tempfile.TemporaryDirectory(prefix="ariane-bench-", dir=args.dir) as home:
        session = Session(servers, sizes, Path(home), args.load_program or load_program.build(), is_short=args.short)
        for is_sync in (False, True):
            session.measure(
                [load for load in loads if (load.stage == Stage.SYNC_FLUSH) is is_sync], args.rounds, is_sync=is_sync
            )
        session.measure_starts(args.rounds)
    ended = datetime.now(UTC)
    result = {
        "measured": began.isoformat(timespec="seconds"),
        "minutes": round((ended - began).total_seconds() / 60, 1),
        "rounds": args.rounds,
        "sizes": sizes._asdict(),
        "machine": {**describe_machine(Path(args.dir or tempfile.gettempdir())), "load_average_before": average},
        "versions": versions(),
        "servers": servers,
        "skipped": skipped,
        "warm_up": session.warm_ups,
        "warm_up_window_s": session.window_s,
        "figures": summarize(with_costs(session.rounds)),
        "steps": {server: measure_steps(server, is_short=args.short) for server in servers if server != JAVA},
    }
    print(text_table(result))
    for server, reason in skipped.items():
        print(f"{server}: skipped, {reason}")
    return result


def available(wanted: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the servers that can run with their descriptions, and why the others cannot."""
    servers, skipped = {}, {}
    for server in wanted:
        if server == JAVA:
            servers[server] = "RocketMQ 4.9.4"
            continue
        description, reason = describe_implementation(server)
        if reason:
            skipped[server] = reason
            print(f"{server}: skipped, {reason}", file=sys.stderr)
        else:
            servers[server] = description
    return servers, skipped


class Session:
    """Runs loads on all servers and collects the figures of the rounds."""

    def __init__(self, servers: dict[str, str], sizes: Sizes, home: Path, program: Path, *, is_short: bool) -> None:
        self.rounds: Rounds = {server: {} for server in servers}
        self.warm_ups: dict[str, dict[str, list[list[float]]]] = {server: {} for server in servers}
        self._sizes = sizes
        self._home = home
        self._program = program  # path of the load program
        self.window_s, self._warm_up_s = (1.0, 5.0) if is_short else (WINDOW_S, WARM_UP_S)

    def measure(self, loads: list[Load], rounds: int, *, is_sync: bool) -> None:
        """Measure the loads of one way of flushing."""
        if not loads:
            return
        with self._brokers(is_sync=is_sync) as benches:
            for server, bench in benches.items():
                self._warm_up(server, bench, is_sync=is_sync)
            for stage in sorted({load.stage for load in loads}):
                self._measure_stage([load for load in loads if load.stage == stage], rounds, benches)
            for server, bench in benches.items():
                memory, kind = memory_mib(bench.running.pid), ", sync flush" if is_sync else ""
                self._add(server, f"peak RSS{kind} MiB", memory["VmHWM"])
                self._add(server, f"RSS without files{kind} MiB", memory["RssAnon"])

    def _measure_stage(self, loads: list[Load], rounds: int, benches: dict[str, Bench]) -> None:
        for bench in benches.values():
            for load in loads:
                load.prepare(bench)
        for turn in range(-1, rounds):
            print(f"round {turn + 1} of {rounds}" if turn >= 0 else "unmeasured round", file=sys.stderr)
            self._round([load for load in loads if turn >= 0 or not load.has_own_warm_up], benches, turn)

    def measure_starts(self, rounds: int) -> None:
        """Measure the time from the start of a process to its first accepted message.

        Modules are compiled before, as pip does: PYTHONDONTWRITEBYTECODE would make each start compile those of a checkout.
        """
        compileall.compile_dir(Path(ariane.__file__).parent, quiet=1)
        for turn in range(rounds):
            for server in rotated(list(self.rounds), turn):
                with self._brokers(only=server) as benches:
                    self._add(server, "start s", benches[server].running.start_s)

    @contextlib.contextmanager
    def _brokers(self, *, is_sync: bool = False, only: str | None = None) -> Iterator[dict[str, Bench]]:
        """Run a broker of each server with a name server of its own: a Java client finds only this broker."""
        with contextlib.ExitStack() as stack:
            benches = {}
            for server in [only] if only else self.rounds:
                place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=self._home)))
                namesrv = stack.enter_context(java.name_server(place / "namesrv")).addr
                settings = SYNC_FLUSH if is_sync else None
                running = stack.enter_context(started(server, namesrv, place, settings))
                program = load_program.LoadProgram(self._program, running)
                benches[server] = Bench(running, program, self._sizes)
            yield benches

    def _warm_up(self, server: str, bench: Bench, *, is_sync: bool) -> None:
        windows = warm_up(bench.running, bench.program, self.window_s, self._warm_up_s)
        self.warm_ups[server]["sync" if is_sync else "async"] = [list(window) for window in windows]
        for number, window in enumerate(windows):
            seconds = (number + 1) * self.window_s
            print(
                f"{server:6} warm-up {seconds:3.0f} s {window.rate:12,.0f}/s, compiler {window.compiler:4.0%}",
                file=sys.stderr,
            )

    def _round(self, loads: list[Load], benches: dict[str, Bench], turn: int) -> None:
        figures: dict[str, Figures] = {server: {} for server in benches}
        for load in loads:
            for server in rotated(list(benches), turn):
                quiet([bench.running.pid for bench in benches.values()])
                values = load.measure(benches[server])
                figures[server] |= values
                for name, value in values.items():
                    print(f"{server:6} {name:32} {value:12,.2f}", file=sys.stderr)
        if turn < 0:
            return
        for server, values in figures.items():
            for name, value in values.items():
                self._add(server, name, value)

    def _add(self, server: str, name: str, value: float) -> None:
        self.rounds[server].setdefault(name, []).append(value)


def rotated(servers: list[str], turn: int) -> list[str]:
    """Return the servers in another order in each round."""
    first = turn % len(servers)
    return servers[first:] + servers[:first]


if __name__ == "__main__":
    main()
