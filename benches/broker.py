"""Two brokers under the same load: Java's 4.9.4 and ours, in turn, on fresh stores.

    python benches/broker.py [--rounds 3] [--seconds 20] [--only pipelined-128 …] [--json] [--out FILE]

Each round starts each broker once (the order alternates), measures start to first accepted message, drives it with
  pipelined-SIZE     benches/pipelined.py: one connection, 128 sends under way
  java-THREADS-SIZE  the benchmark Producer of rocketmq-example with the 4.9.4 client (the newest example jar on Maven
                     Central is 4.7.0; the program is the same, the client it runs on is 4.9.4's)
and reads the broker's peak resident memory at the end. Printed are medians over the rounds, the spread between them, and the
ratio ours / Java of the medians; `--json` prints the whole result as the last line. Both brokers register with one Java
name server, flush asynchronously, and run on the same cores as the load: only ratios mean something.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ariane.errors import ArianeError
from ariane.net.client import Connections
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.messaging import SendMessage
from ariane.testing import java

HERE = Path(__file__).resolve().parent
SERVERS = ("java", "ariane")
PIPELINED_COUNT = {128: 300_000, 1024: 150_000}
JAVA_HEAP = ("-Xms4g", "-Xmx4g")  # as in the runbroker.sh that ships for small machines
LINE = re.compile(r"Send TPS: (\d+)")
PRINT_EVERY_S = 10  # of the Java producer


class Load(NamedTuple):
    name: str
    threads: int  # 0: pipelined over one connection
    size: int


LOADS = (
    Load("pipelined-128", 0, 128),
    Load("pipelined-1024", 0, 1024),
    Load("java-64-128", 64, 128),
    Load("java-64-1024", 64, 1024),
    Load("java-1-128", 1, 128),
    Load("java-1-1024", 1, 1024),
)


class Running(NamedTuple):
    addr: str
    pid: int
    start_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=20, help="how long a Java producer runs; the first 10 s warm up")
    parser.add_argument("--only", nargs="*", default=None, help="names of loads")
    parser.add_argument("--json", action="store_true", help="print the result as the last line")
    parser.add_argument("--out", type=Path, help="write the result there too")
    args = parser.parse_args()
    if reason := java.available():
        raise SystemExit(f"this bench needs the Java peers: {reason}")
    loads = [load for load in LOADS if args.only is None or load.name in args.only]
    measured: dict[str, dict[str, list[float]]] = {server: {} for server in SERVERS}
    with (
        tempfile.TemporaryDirectory(prefix="ariane-bench-") as home,
        java.name_server(Path(home) / "namesrv") as name_server,
    ):
        for number in range(args.rounds):
            for server in SERVERS if number % 2 == 0 else SERVERS[::-1]:
                for name, value in measure(server, name_server.addr, Path(home), loads, args.seconds).items():
                    measured[server].setdefault(name, []).append(value)
                    print(f"round {number + 1} {server:6} {name:18} {value:12,.1f}", file=sys.stderr)
    result = summary(measured, args.rounds)
    print(table(result))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    if args.json:
        print(json.dumps(result))


def measure(server: str, namesrv: str, home: Path, loads: list[Load], seconds: int) -> dict[str, float]:
    """One start of one broker: every figure by its name."""
    with tempfile.TemporaryDirectory(dir=home) as place, started(server, namesrv, Path(place)) as running:
        figures = {"start_s": running.start_s}
        for load in loads:
            if load.threads:
                figures[f"{load.name} msg/s"] = java_producer(namesrv, load, seconds)
            else:
                figures |= pipelined(running.addr, load)
        memory = peak_memory_mib(running.pid)
        figures["peak RSS MiB"] = memory["VmHWM"]
        figures["RSS without files MiB"] = memory["RssAnon"]
        return figures


@contextlib.contextmanager
def started(server: str, namesrv: str, place: Path) -> Iterator[Running]:
    """A broker with a fresh store, from its spawn to its first accepted message."""
    port = java.free_port()
    began = time.perf_counter()
    if server == "java":
        with java.broker(place, namesrv, port=port, jvm_args=JAVA_HEAP, wait=False) as broker:
            yield Running(broker.addr, broker.pid, first_message(broker.addr, began))
        return
    settings = {
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "listenPort": str(port),
        "namesrvAddr": namesrv,
        "storePathRootDir": str(place / "store"),
    }
    conf = place / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    process = subprocess.Popen([sys.executable, "-m", "ariane.cli", "broker", "-c", str(conf)])
    try:
        yield Running(f"127.0.0.1:{port}", process.pid, first_message(f"127.0.0.1:{port}", began))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def first_message(addr: str, began: float) -> float:
    """Seconds from `began` until the broker has accepted a message."""
    header = SendMessage("bench", "FirstMessage", "TBW102", 1, 0, 0, int(time.time() * 1000), 0)

    async def attempt() -> None:
        async with Connections() as peers:
            await peers.ask(addr, RequestCode.SEND_MESSAGE_V2, header, b"first", timeout_ms=1000)

    while time.perf_counter() - began < 60:
        try:
            asyncio.run(attempt())
            return time.perf_counter() - began
        except ArianeError:
            time.sleep(0.02)
    raise SystemExit(f"the broker at {addr} accepted nothing within 60 s")


def pipelined(addr: str, load: Load) -> dict[str, float]:
    command = [sys.executable, str(HERE / "pipelined.py"), addr, "--size", str(load.size)]
    command += ["--count", str(PIPELINED_COUNT[load.size]), "--topic", f"Pipelined{load.size}"]
    subprocess.run(
        [*command[:-4], "--count", "20000", "--topic", f"Pipelined{load.size}"], check=True, stdout=subprocess.DEVNULL
    )
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result = json.loads(done.stdout.splitlines()[-1])
    return {f"{load.name} msg/s": result["per_second"], f"{load.name} p99 ms": result["p99_ms"]}


def java_producer(namesrv: str, load: Load, seconds: int) -> float:
    """The median of the lines that the Java producer prints after its first."""
    args = ["-n", namesrv, "-w", str(load.threads), "-s", str(load.size)]
    with java.start("org.apache.rocketmq.example.benchmark.Producer", args) as producer:
        deadline = time.monotonic() + max(seconds, 2 * PRINT_EVERY_S) + 5
        rates = []
        for line in producer.lines(deadline):
            if match := LINE.search(line):
                rates.append(float(match.group(1)))
    if len(rates) < 2:
        raise SystemExit(f"the Java producer printed {len(rates)} rates, at least 2 are needed")
    return statistics.median(rates[1:])


def peak_memory_mib(pid: int) -> dict[str, float]:
    status = Path(f"/proc/{pid}/status").read_text()
    return {name: int(value) / 1024 for name, value in re.findall(r"^(VmHWM|RssAnon):\s+(\d+) kB", status, re.M)}


def summary(measured: dict[str, dict[str, list[float]]], rounds: int) -> dict[str, object]:
    """Medians, spread and ratios by figure."""
    figures = {}
    for name in measured["ariane"]:
        ours, theirs = measured["ariane"][name], measured["java"][name]
        figures[name] = {
            "ariane": statistics.median(ours),
            "java": statistics.median(theirs),
            "ratio": round(statistics.median(ours) / statistics.median(theirs), 3),
            "ariane_rounds": ours,
            "java_rounds": theirs,
        }
    return {"rounds": rounds, "cores": os.cpu_count(), "figures": figures}


def table(result: dict[str, object]) -> str:
    figures = result["figures"]
    assert isinstance(figures, dict)
    lines = [f"{'':26} {'ariane':>12} {'java 4.9.4':>12} {'ratio':>7}   spread ariane | java"]
    for name, figure in figures.items():
        spread = " | ".join(
            f"{min(figure[rounds]):,.1f}…{max(figure[rounds]):,.1f}" for rounds in ("ariane_rounds", "java_rounds")
        )
        lines.append(f"{name:26} {figure['ariane']:12,.2f} {figure['java']:12,.2f} {figure['ratio']:7.2f}   {spread}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
