"""The gRPC port: our broker with each transport and the proxy of RocketMQ 5.3.3 with its broker (local mode), in the same run.

    python benches/grpc_port.py [--rounds 2] [--seconds 8] [--warm-up 20] [--servers native java] [--out FILE] [--page FILE]

All servers run at once, on fresh stores; in each round, each load goes to one after the other. Loads, of 128 B to 8 queues:

    send      the native load program (`native/core/examples/grpc_load.rs`), 256 sends in flight on one connection
    official  the official Java client 5.2.0, 64 asynchronous sends in flight, in a process that warms up first
    ack       the official Java client, 4 threads that receive 32 messages and acknowledge them at once, of what was sent before

CPU time is that of the whole process of a server, per message. Java's writes no traces; `native-traced` writes those of its
clients. The first round warms up: Java's server compiles its code while it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import page
from ariane.errors import ArianeError
from ariane.testing import java
from load_program import NATIVE
from machine import describe_machine, load_average, versions
from servers import HERE, PATIENT, broker_process, cpu_s, make_topic, memory_mib

TRANSPORTS: Mapping[str, Mapping[str, str]] = {
    "native": {"grpcTransport": "native", "grpcTraceEnable": "false"},
    "native-traced": {"grpcTransport": "native"},
    "aio": {"grpcTransport": "aio", "grpcTraceEnable": "false"},
}
JAVA = "java"
SERVERS = (*TRANSPORTS, JAVA)
TITLES = {
    "send": "sends, native program",
    "official": "sends, official client",
    "ack": "received and acknowledged, official client",
}
BEGIN, END = "<!-- gRPC port: written by benches/grpc_port.py --page, not by hand -->", "<!-- end of gRPC port -->"
POM = HERE / "rocketmq5" / "pom.xml"
PROXY = "org.apache.rocketmq.proxy.ProxyStartup"
PROXY_HEAP = ("-Xms1g", "-Xmx1g")
# By default a 5.x broker compares 38 MB of timers with their file each second, and spins for 3 s until it writes metrics.
QUIET = {"timerFlushIntervalMs": "60000", "transactionMetricFlushInterval": "100"}
CLIENT_HEAP = ("-Xms512m", "-Xmx512m")
TOPIC, QUEUES = "Load", 8
IN_FLIGHT, OFFICIAL_IN_FLIGHT, RECEIVING = 256, 64, 4
START_S = 60.0
FIGURES = ("rate", "p50_ms", "p99_ms", "server_cpu_us", "client_cpu_us")


class Server(NamedTuple):
    """A server of the clients of RocketMQ 5."""

    name: str
    addr: str
    """Of its gRPC port."""
    pid: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=SERVERS)
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0, help="of a measurement")
    parser.add_argument("--warm-up", type=float, default=30.0, help="seconds of each load for the Java server, once")
    parser.add_argument("--dir", type=Path, help="directory for the stores")
    parser.add_argument("--out", type=Path, help="file for the result")
    parser.add_argument("--page", type=Path, help="page that receives the table")
    args = parser.parse_args()
    result = measure(args)
    print(table(result))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    if args.page:
        args.page.write_text(page.replace_between(args.page.read_text(), BEGIN, END, table(result)))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all servers and return the result."""
    average, program, jars = load_average(), build_load_program(), fetch_jars()
    rounds: dict[str, dict[str, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
    memory = {}
    with tempfile.TemporaryDirectory(prefix="ariane-bench-", dir=args.dir) as home, contextlib.ExitStack() as stack:
        servers = [stack.enter_context(started(name, Path(home) / name, jars)) for name in args.servers]
        clients = Clients(program, jars)
        for number in range(args.rounds + 1):
            for server in servers[:: -1 if number % 2 else 1]:
                for load in args.loads:
                    is_compiling = server.name == JAVA and not number
                    seconds = args.warm_up if is_compiling else args.seconds
                    figures = LOADS[load](clients, server, seconds)
                    print(f"round {number} {load:9}{server.name:14}{figures}", file=sys.stderr)
                    if number:  # the first one warms up
                        rounds[load][server.name].append(figures)
        for server in servers:
            memory[server.name] = memory_mib(server.pid)
        machine = describe_machine(Path(home))
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "load_average_before": average,
        "machine": machine,
        "versions": {**versions(), "rocketmq": "5.3.3"},
        "rounds": rounds,
        "memory_mib": memory,
    }


def table(result: Mapping[str, Any]) -> str:
    """Return medians and their ratios to Java, with the setting."""
    lines = [
        [
            "",
            "server",
            "messages/s",
            ": Java",
            "p50, p99 ms",
            "server CPU, µs",
            ": Java",
            "client CPU, µs",
            "memory, MiB",
        ]
    ]
    for load, by_server in result["rounds"].items():
        medians = {
            server: {name: statistics.median(figures[name] for figures in rounds) for name in FIGURES}
            for server, rounds in by_server.items()
        }
        for server, figures in sorted(medians.items(), key=lambda item: SERVERS.index(item[0])):
            java = medians.get(JAVA, {}) if server != JAVA else {}
            ratios = [f"{figures[name] / java[name]:.2f}" if java else "" for name in ("rate", "server_cpu_us")]
            memory = result["memory_mib"][server]["VmRSS"]
            latency = f"{figures['p50_ms']:.1f}, {figures['p99_ms']:.1f}"
            cells = [TITLES[load], server, f"{figures['rate']:,.0f}", ratios[0], latency]
            lines.append(
                [
                    *cells,
                    f"{figures['server_cpu_us']:.0f}",
                    ratios[1],
                    f"{figures['client_cpu_us']:.0f}",
                    f"{memory:,.0f}",
                ]
            )
    machine, versions = result["machine"], result["versions"]
    setting = (
        f"Measured {result['date']}, medians of {len(next(iter(by_server.values())))} rounds. {machine['processor']}, "
        f"{machine['cores']} cores shared with the clients, load average before {result['load_average_before']:.2f}. "
        f"Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}."
    )
    return f"{setting}\n\n{page.markdown(lines)}"


# --- loads ---


class Clients(NamedTuple):
    """The programs that load a server."""

    program: Path
    jars: Path

    def send(self, server: Server, seconds: float) -> dict[str, float]:
        """Send with the native load program."""
        command = [str(self.program), "send", server.addr, TOPIC, str(IN_FLIGHT), str(round(seconds)), "128", "1"]
        before, own = cpu_s(server.pid), children_cpu_s()
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        report = json.loads(done.stdout)
        if report["statuses"]:
            raise SystemExit(f"{server.name} has refused sends: {report['statuses']}")
        return figures_of(report, cpu_s(server.pid) - before, children_cpu_s() - own)

    def official(self, server: Server, seconds: float) -> dict[str, float]:
        """Send with the official client."""
        return self._run_official("send", server, OFFICIAL_IN_FLIGHT, seconds)

    def ack(self, server: Server, seconds: float) -> dict[str, float]:
        """Receive and acknowledge with the official client."""
        return self._run_official("consume", server, RECEIVING, seconds)

    def _run_official(self, kind: str, server: Server, in_flight: int, seconds: float) -> dict[str, float]:
        (client,) = self.jars.glob("rocketmq-client-java-5*.jar")
        command = ["java", *CLIENT_HEAP, "-cp", str(client), str(HERE / "rocketmq5" / "Load.java")]
        arguments = [kind, server.addr, TOPIC, str(in_flight), str(seconds), str(seconds)]
        with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("measuring"):
                    before = cpu_s(server.pid)
                elif line.startswith("{"):
                    used, report = cpu_s(server.pid) - before, json.loads(line)
        if process.returncode:
            raise SystemExit(f"the official client at {server.name}: exit status {process.returncode}")
        return figures_of(report, used, report["cpu_s"])


LOADS = {"send": Clients.send, "official": Clients.official, "ack": Clients.ack}


def figures_of(report: Mapping[str, float], server_s: float, client_s: float) -> dict[str, float]:
    """Return rate, latencies in ms, and CPU times per message in µs."""
    messages = report["messages"]
    times = {"server_cpu_us": server_s / messages * 1e6, "client_cpu_us": client_s / messages * 1e6}
    return {"rate": report["rate"], "p50_ms": report["p50_us"] / 1000, "p99_ms": report["p99_us"] / 1000, **times}


def children_cpu_s() -> float:
    """Return the CPU time of programs that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def build_load_program() -> Path:
    """Build the native load program, and return its path."""
    command = ["cargo", "build", "--release", "--locked", "-p", "ariane-native", "--features", "grpc"]
    command += ["--example", "grpc_load", "--message-format", "json"]
    built = subprocess.run(command, cwd=NATIVE, stdout=subprocess.PIPE, text=True, check=True)
    artifacts = [json.loads(line) for line in built.stdout.splitlines()]
    return Path(next(a["executable"] for a in artifacts if a.get("executable")))


# --- servers ---


@contextlib.contextmanager
def started(name: str, place: Path, jars: Path) -> Iterator[Server]:
    """Run a server with the topic."""
    place.mkdir()
    port, grpc_port = java.free_port(), java.free_port()
    running = proxy_process if name == JAVA else our_process
    with running(name, place, (port, grpc_port), jars) as pid:
        deadline = time.monotonic() + START_S
        for addr in (f"127.0.0.1:{port}", f"127.0.0.1:{grpc_port}"):
            await_port(addr, deadline)
        while True:
            try:
                make_topic(f"127.0.0.1:{port}", TOPIC, QUEUES)
                break
            except ArianeError:
                if time.monotonic() > deadline:
                    raise
        yield Server(name, f"127.0.0.1:{grpc_port}", pid)


def our_process(name: str, place: Path, ports: tuple[int, int], jars: Path) -> contextlib.AbstractContextManager[int]:
    """Run a broker of ours."""
    settings = {"grpcServerEnable": "true", "grpcServerPort": str(ports[1]), **TRANSPORTS[name]}
    return broker_process("native", "", place, ports[0], settings)


@contextlib.contextmanager
def proxy_process(name: str, place: Path, ports: tuple[int, int], jars: Path) -> Iterator[int]:
    """Run a Java proxy with its broker in one process, and a name server."""
    if reason := java.V5.available():
        raise SystemExit(f"this bench needs the Java peers: {reason}")
    settings = {
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "listenPort": str(ports[0]),
        "storePathRootDir": str(place / "store"),
        **PATIENT,
        **QUIET,
    }
    proxy = {
        "rocketMQClusterName": "DefaultCluster",
        "grpcServerPort": ports[1],
        "remotingListenPort": java.free_port(),
    }
    (place / "broker.conf").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    (place / "proxy.json").write_text(json.dumps(proxy))
    paths = ":".join(str(jar) for jar in sorted(jars.glob("*.jar")) if "client-java" not in jar.name)
    homes = [f"-Drocketmq.home.dir={place}", f"-Duser.home={place}"]
    files = ["-bc", str(place / "broker.conf"), "-pc", str(place / "proxy.json")]
    with java.V5.name_server(place / "namesrv") as names, (place / "output.log").open("w") as output:
        command = ["java", *PROXY_HEAP, *homes, "-cp", paths, PROXY, "-pm", "local", "-n", names.addr, *files]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=place)
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(START_S)


def fetch_jars() -> Path:
    """Return the directory of the jars of proxy and client, fetched once from Maven Central."""
    root = Path(os.environ.get("ARIANE_PEERS_DIR", Path.home() / ".cache" / "ariane" / "peers"))
    jars = root / "rocketmq-proxy-5.3.3"
    if not (jars / "complete").exists():
        maven = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        subprocess.run([*maven, f"-Dproject.build.directory={jars / 'target'}"], check=True)
        (jars / "complete").touch()
    return jars


def await_port(addr: str, deadline: float) -> None:
    """Wait until a server listens."""
    host, _, port = addr.rpartition(":")
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"no server listens at {addr} within {START_S} s")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
