"""The cost of TLS: CPU time of a broker per message, plain and encrypted, for our implementations and Java's broker.

    python benches/broker.py --tls [--rounds 3] [--servers NAME …] [--short] [--json] [--out FILE]

All servers accept both kinds of connections, with their test certificates. Each round sends to each server plain, then encrypted:

    pipelined   one connection of a Python client, WINDOW requests in flight
    java        the benchmark Producer of Java's client, with -Dtls.enable=true if encrypted

Clients limit the rates, so CPU times per message are compared: medians over the rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import statistics
import tempfile
import time
from argparse import Namespace
from collections import defaultdict
from pathlib import Path

from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.messaging import SendMessage
from ariane.testing import java
from figures import JAVA
from java_clients import Topic, produced
from machine import load_average
from servers import Running, cpu_s, make_topic, started

TOPIC = Topic("Encrypted", 8)
BODY = b"x" * 128
WINDOW = 256
MESSAGES, JAVA_WARM_S, JAVA_S = 60_000, 10.0, 10.0
SHORT = 10  # --short divides these
LOADS = ("pipelined", "java")


def trusting() -> ssl.SSLContext:
    """Return the context of a client that accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def send_pipelined(running: Running, tls: ssl.SSLContext | None, count: int) -> float:
    """Return the CPU time of the broker per message in µs."""
    async with ConnectionPool(tls=tls) as pool:
        connection = await pool.connect(running.addr)
        headers = [
            encode_header(SendMessage("bench", TOPIC.name, "TBW102", 4, queue, 0, int(time.time() * 1000), 0))
            for queue in range(TOPIC.queues)
        ]

        async def send(messages: int) -> None:
            for first in range(0, messages, WINDOW):
                pending = [
                    connection.request_nowait(
                        RequestCode.SEND_MESSAGE_V2, headers[number % TOPIC.queues], BODY, timeout_ms=60_000
                    )
                    for number in range(first, min(first + WINDOW, messages))
                ]
                for response in await asyncio.gather(*pending):
                    if response.code != ResponseCode.SUCCESS:
                        raise SystemExit(f"{running.server} refused a message: {response.remark}")

        await send(count // 5)  # warm-up
        before = cpu_s(running.pid)
        await send(count)
        return (cpu_s(running.pid) - before) / count * 1e6


def measure(args: Namespace) -> dict[str, object]:
    """Measure all servers and return the result; print its figures."""
    if reason := java.available():
        raise SystemExit(f"this bench needs the Java peers: {reason}")
    shorter = SHORT if args.short else 1
    costs: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    average = load_average()
    with tempfile.TemporaryDirectory(prefix="ariane-bench-", dir=args.dir) as home, contextlib.ExitStack() as stack:
        running = []
        for server in args.servers:
            place = Path(home) / server
            place.mkdir()
            namesrv = stack.enter_context(java.name_server(place / "namesrv")).addr
            running.append(stack.enter_context(started(server, namesrv, place)))
            make_topic(running[-1].addr, TOPIC.name, TOPIC.queues)
        time.sleep(2)  # the registration of the topics
        for _ in range(args.rounds):
            for broker in running:
                for kind, tls in (("plain", None), ("tls", trusting())):
                    cost = asyncio.run(send_pipelined(broker, tls, MESSAGES // shorter))
                    costs["pipelined", broker.server, kind].append(cost)
                    options = ["-s", str(len(BODY)), "-w", "8"]
                    jvm = ("-Dtls.enable=true",) if tls else ()
                    _, cost = produced(broker, TOPIC, options, JAVA_WARM_S / shorter, JAVA_S / shorter, jvm)
                    costs["java", broker.server, kind].append(cost)
    medians = {key: statistics.median(values) for key, values in costs.items()}
    print_table(medians, args.servers)
    return {
        "load_average_before": average,
        "rounds": args.rounds,
        "cpu_us": {" ".join(key): round(value, 2) for key, value in medians.items()},
    }


def print_table(medians: dict[tuple[str, str, str], float], servers: list[str]) -> None:
    """Print CPU times per message, the cost of TLS, and how many times as much Java's broker takes."""
    print(f"{'load':<11}{'server':<9}{'plain µs':>9}{'TLS µs':>9}{'cost µs':>9}{'Java TLS / TLS':>16}")
    for load in LOADS:
        for server in servers:
            plain, tls = medians[load, server, "plain"], medians[load, server, "tls"]
            ratio = medians[load, JAVA, "tls"] / tls if JAVA in servers else float("nan")
            print(f"{load:<11}{server:<9}{plain:>9.1f}{tls:>9.1f}{tls - plain:>9.1f}{ratio:>16.2f}")


def write(args: Namespace) -> None:
    """Measure, and write or print the result as the options say."""
    result = measure(args)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    if args.json:
        print(json.dumps(result))
