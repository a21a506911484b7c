"""Delivery at a time: what a million pending messages cost, and how late they are.

    python benches/timers.py [--pending 1000000] [--rate 5000] [--seconds 10] [--burst 100000] [--json]

One broker of ours in a process of its own, on a fresh store, driven over one connection with 128 sends in flight:
  accept      a timed message against a plain one (ratio of times, rounds interleaved)
  pending     resident memory before and after N messages that are due in hours
  steady      `rate` messages due each second: lateness (store time of the delivered message - due time)
  burst       `burst` messages due within one second: time from the first due to the last delivered
Steady and burst run while the million is pending. 4.9.4 has no such timers to compare with; its levels poll every 100 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ariane.errors import ArianeError
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode
from ariane.protocol.records import record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import SUBSCRIPTION, OffsetResponse, PullMessage, QueueRef, SendMessage
from ariane.testing import java

BODY = b"x" * 128
UNDER_WAY = 128
HOUR_MS = 3_600_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=5_000)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--burst", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="print the result as the last line")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ariane-bench-") as place:
        port = java.free_port()
        conf = Path(place) / "broker.conf"
        conf.write_text(
            f"brokerName=broker-a\nbrokerIP1=127.0.0.1\nlistenPort={port}\nstorePathRootDir={place}/store\n"
        )
        process = subprocess.Popen([sys.executable, "-m", "ariane.cli", "broker", "-c", str(conf)])
        try:
            result = asyncio.run(measure(f"127.0.0.1:{port}", process.pid, args))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    for name, value in result.items():
        print(f"{name:34} {value:12,.2f}")
    if args.json:
        print(json.dumps(result))


async def measure(addr: str, pid: int, args: argparse.Namespace) -> dict[str, float]:
    async with ConnectionPool() as peers:
        await ready(peers, addr)
        result = await accept(peers, addr)
        before = memory_mib(pid)
        began = time.perf_counter()
        far_ms = now_ms() + 2 * HOUR_MS
        await send(peers, addr, "Far", [far_ms + n * 37 % (10 * HOUR_MS) for n in range(args.pending)])
        result["pending: sends/s"] = args.pending / (time.perf_counter() - began)
        await asyncio.sleep(3)
        result["pending: RSS growth MiB"] = memory_mib(pid) - before
        result |= await steady(peers, addr, args.rate, args.seconds)
        result |= await burst(peers, addr, args.burst)
        return result


async def accept(peers: ConnectionPool, addr: str, count: int = 20_000, rounds: int = 5) -> dict[str, float]:
    plain, timed = [], []
    for _ in range(rounds):
        for costs, due_ms in ((plain, 0), (timed, now_ms() + HOUR_MS)):
            began = time.perf_counter()
            await send(peers, addr, "Accept", [due_ms] * count)
            costs.append((time.perf_counter() - began) / count * 1e6)
    return {
        "accept: plain us": statistics.median(plain),
        "accept: timed us": statistics.median(timed),
        "accept: ratio": statistics.median(timed) / statistics.median(plain),
    }


async def steady(peers: ConnectionPool, addr: str, rate: int, seconds: int) -> dict[str, float]:
    start_ms = now_ms() + max(5000, rate * seconds // 5)
    due = [start_ms + n * 1000 // rate for n in range(rate * seconds)]
    await send(peers, addr, "Steady", due)
    late = sorted(stored - due_ms for stored, due_ms in await delivered(peers, addr, "Steady", len(due)))
    return {
        "steady: late p50 ms": late[len(late) // 2],
        "steady: late p99 ms": late[len(late) * 99 // 100],
        "steady: late max ms": late[-1],
        "steady: early": sum(one < 0 for one in late),
    }


async def burst(peers: ConnectionPool, addr: str, count: int) -> dict[str, float]:
    start_ms = now_ms() + max(5000, count // 10)
    await send(peers, addr, "Burst", [start_ms + n * 1000 // count for n in range(count)])
    found = await delivered(peers, addr, "Burst", count)
    return {
        "burst: drained after s": (max(stored for stored, _ in found) - start_ms) / 1000,
        "burst: early": sum(stored < due_ms for stored, due_ms in found),
    }


async def send(peers: ConnectionPool, addr: str, topic: str, due: list[int]) -> None:
    """Send one message for each delivery time (0: no delay), with the time as its body."""
    connection = await peers.connect(addr)
    numbers = iter(due)

    async def one_after_another() -> None:
        for due_ms in numbers:
            properties = f"__STARTDELIVERTIME\x01{due_ms}" if due_ms else "a\x01b"
            header = SendMessage("bench", topic, "TBW102", 1, 0, 0, 1, 0, properties)
            answer = await connection.request(
                RequestCode.SEND_MESSAGE_V2, header, b"%d" % due_ms + BODY[13:], timeout_ms=60_000
            )
            if answer.code:
                raise SystemExit(f"send answered {answer.code}: {answer.remark}")

    await asyncio.gather(*(one_after_another() for _ in range(UNDER_WAY)))


async def delivered(peers: ConnectionPool, addr: str, topic: str, count: int) -> list[tuple[int, int]]:
    """Store time and due time of every message, once all are there. Nothing is pulled before: the machine is the broker's."""
    while True:
        answer = await peers.request_ok(addr, RequestCode.GET_MAX_OFFSET, QueueRef(topic, 0), timeout_ms=60_000)
        if decode_header(answer, OffsetResponse).offset >= count:
            break
        await asyncio.sleep(0.5)
    found: list[tuple[int, int]] = []
    while len(found) < count:
        header = PullMessage("G", topic, 0, len(found), 32, SUBSCRIPTION, 0, 0, "*", 0, None)
        answer = await peers.request_ok(addr, RequestCode.PULL_MESSAGE, header, timeout_ms=60_000)
        found += [(one.store_ms, int(one.body[:13])) for one in record.decode_all(answer.body)]
    return found


async def ready(peers: ConnectionPool, addr: str) -> None:
    for _ in range(200):
        try:
            await peers.connect(addr)
            return
        except ArianeError:
            await asyncio.sleep(0.1)
    raise SystemExit("the broker did not start")


def memory_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    main()
