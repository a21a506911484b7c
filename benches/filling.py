"""Fill a topic fast: batches over one connection, each message with a key of its own if that is wanted.

    python benches/filling.py 127.0.0.1:10911 --topic T --queues 16 --count 1000000 --size 128 [--keys] [--first 0]

Message n goes to some queue with KEYS `k<n>`. It ends when all of the topic can be read (Java derives queues behind the log; the
topic is taken to hold `--first` messages before). The last line is JSON: sent, seconds, per_second. Nothing here is a figure
of the bench: it makes the backlog that others are measured on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from struct import Struct

from answers import OPAQUE, Answers, accepted, connected
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import command
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests import decode_header, encode_header
from ariane.protocol.requests.messaging import OffsetResponse, QueueRef, SendMessage

BATCH_BYTES = 100_000
DEPTH = 4
PATIENCE_S = 600
ENTRY = Struct(">iiiii")  # size, magic, crc, flag, body size: Java and Ariane check size and body size only


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("addr", help="host:port of the broker")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--size", type=int, default=128, help="bytes of a body")
    parser.add_argument("--keys", action="store_true", help="a key on every message")
    parser.add_argument("--first", type=int, default=0, help="number of the first message")
    args = parser.parse_args()
    began = time.perf_counter()
    drive(args.addr, args.topic, args.queues, args.count, args.size, args.keys, args.first)
    asyncio.run(until_readable(args.addr, args.topic, args.queues, args.first + args.count))
    seconds = time.perf_counter() - began
    result = {"sent": args.count, "seconds": round(seconds, 3), "per_second": round(args.count / seconds)}
    print(json.dumps(result))


def drive(addr: str, topic: str, queues: int, count: int, size: int, keys: bool, first: int) -> None:
    at_once = max(1, BATCH_BYTES // (size + 40))
    with connected(addr) as connection:
        answers = Answers(connection)
        sent = turn = under_way = 0
        while sent < count or under_way:
            while sent < count and under_way < DEPTH:
                take = min(at_once, count - sent)
                connection.sendall(frame(topic, turn % queues, batch(first + sent, take, size, keys), turn))
                sent += take
                turn += 1
                under_way += 1
            for header, _ in answers.read():
                accepted(header)
                under_way -= 1


async def until_readable(addr: str, topic: str, queues: int, count: int) -> None:
    async with ConnectionPool() as peers:
        for _ in range(PATIENCE_S * 10):
            there = 0
            for queue in range(queues):
                answer = await peers.request_ok(
                    addr, RequestCode.GET_MAX_OFFSET, QueueRef(topic, queue), timeout_ms=30_000
                )
                there += decode_header(answer, OffsetResponse).offset
            if there >= count:
                return
            await asyncio.sleep(0.1)
    raise SystemExit(f"{there} of {count} messages of {topic} can be read after {PATIENCE_S} s")


def batch(first: int, count: int, size: int, keys: bool) -> bytes:
    body = b"x" * size
    parts = []
    for n in range(first, first + count):
        properties = b"KEYS\x01k%d" % n if keys else b"TAGS\x01TagA"
        start = ENTRY.pack(ENTRY.size + 2 + size + len(properties), 0, 0, 0, size)
        parts.append(b"%b%b%b%b" % (start, body, len(properties).to_bytes(2, "big"), properties))
    return b"".join(parts)


def frame(topic: str, queue: int, body: bytes, turn: int) -> bytes:
    header = SendMessage("filling", topic, "TBW102", 8, queue, 0, int(time.time() * 1000), 0, batch=True)
    code = RequestCode.SEND_BATCH_MESSAGE
    return b"".join(command.encode(code, opaque=OPAQUE + turn, flag=0, fields=encode_header(header), body=body))


if __name__ == "__main__":
    main()
