"""Queries by key: looks up messages by keys drawn at random among N, several queries in flight.

    python benches/keys.py 127.0.0.1:10911 --topic T --keys 10000000 [--count 5000] [--depth 16] [--pid PID]

Keys are those of `filling.py --keys`. Before the clock runs, the last key is asked for until it is found: both brokers make
their index behind the log, and that wait is printed too. An answer that does not hold its key ends the run. The last line is
JSON: queries, per_second, p50_ms, p99_ms, indexed_after_s, and with the broker's PID its CPU time per query in µs.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import time

from answers import OPAQUE, Answers, connected, number, percentile
from ariane.protocol import command
from ariane.protocol.codes import RequestCode
from servers import cpu_s

HOUR_MS = 3_600_000
FOUND_MAX = 32
PATIENCE_S = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("addr", help="host:port of the broker")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--keys", type=int, required=True, help="how many there are")
    parser.add_argument("--count", type=int, default=5_000)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--seed", type=int, default=494)
    parser.add_argument("--pid", type=int, help="the broker's")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    with connected(args.addr) as connection:
        waited_s = until_indexed(connection, args.topic, args.keys - 1)
        drive(connection, args.topic, [chance.randrange(args.keys) for _ in range(args.count // 10 or 1)], args.depth)
        wanted = [chance.randrange(args.keys) for _ in range(args.count)]
        used = cpu_s(args.pid) if args.pid else 0.0
        began = time.perf_counter()
        took = drive(connection, args.topic, wanted, args.depth)
        seconds = time.perf_counter() - began
        used = cpu_s(args.pid) - used if args.pid else 0.0
    took.sort()
    result = {
        "queries": args.count,
        "per_second": round(args.count / seconds),
        "p50_ms": round(percentile(took, 50) * 1000, 3),
        "p99_ms": round(percentile(took, 99) * 1000, 3),
        "indexed_after_s": round(waited_s, 2),
    }
    if args.pid:
        result["cpu_us"] = round(used / args.count * 1e6, 2)
    print(json.dumps(result))


def query(topic: str, key: int, turn: int) -> bytes:
    header = {
        "topic": topic,
        "key": f"k{key}",
        "maxNum": str(FOUND_MAX),
        "beginTimestamp": "0",
        "endTimestamp": str(int(time.time() * 1000) + HOUR_MS),
    }
    return b"".join(command.encode(RequestCode.QUERY_MESSAGE, opaque=OPAQUE + turn, flag=0, fields=header))


def until_indexed(connection: socket.socket, topic: str, last: int) -> float:
    """Seconds until the last message is found by its key."""
    answers = Answers(connection)
    began = time.perf_counter()
    while time.perf_counter() - began < PATIENCE_S:
        connection.sendall(query(topic, last, 0))
        found = list(answers.read())
        while not found:
            found = list(answers.read())
        (header, body) = found[0]
        if b'"code":0,' in header and b"k%d" % last in body:
            return time.perf_counter() - began
        if b'"code":22,' not in header:  # QUERY_NOT_FOUND
            raise SystemExit(f"the query for k{last} was refused: {header!r}")
        time.sleep(0.05)
    raise SystemExit(f"k{last} is not in the index after {PATIENCE_S} s")


def drive(connection: socket.socket, topic: str, wanted: list[int], depth: int) -> list[float]:
    """Ask for every key; how long each answer took, in seconds."""
    answers = Answers(connection)
    asked_at: dict[int, float] = {}
    took: list[float] = []
    asked = 0
    while len(took) < len(wanted):
        batch = []
        now = time.perf_counter()
        while asked < len(wanted) and len(asked_at) < depth:
            asked_at[asked] = now
            batch.append(query(topic, wanted[asked], asked))
            asked += 1
        if batch:
            connection.sendall(b"".join(batch))
        for header, body in answers.read():
            turn = number(header, b'"opaque":') - OPAQUE
            if b'"code":0,' not in header or b"k%d" % wanted[turn] not in body:
                raise SystemExit(f"k{wanted[turn]} was not found: {header!r}")
            took.append(time.perf_counter() - asked_at.pop(turn))
    return took


if __name__ == "__main__":
    main()
