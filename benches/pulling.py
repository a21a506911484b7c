"""Load over one connection: a pull in flight on every queue of a topic; responses are counted and discarded.

    python benches/pulling.py 127.0.0.1:10911 --topic T --queues 16 [--count N] [--again SECONDS] [--pid PID]

Reads every queue from 0 to its end (or up to N messages); each pull starts where the previous one ended, with 32 messages at
most. Only length, code, opaque and nextBeginOffset of a response are parsed. `--again` starts over at each end until the given
number of seconds has passed: a backlog that is read while another load is measured. The last line is JSON: messages, bytes,
seconds, per_second, p50_ms and p99_ms of a pull, and with the broker's PID its CPU time per message in µs.
"""

from __future__ import annotations

import argparse
import json
import time
from struct import Struct

from answers import OPAQUE, Answers, connected, number, percentile
from ariane.protocol import command
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.messaging import SUBSCRIPTION, PullMessage
from servers import cpu_s

OFFSET = 100_000_000_000_000_000  # placeholder with the number of digits of the real offset
AT_ONCE = 32
PREFIX = Struct(">iI")  # length, form 0 and header size
NEXT = b'"nextBeginOffset":"'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("addr", help="host:port of the broker")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="pulling")
    parser.add_argument("--queues", type=int, required=True)
    parser.add_argument("--count", type=int, help="stop after this many messages")
    parser.add_argument(
        "--again", type=float, default=0.0, metavar="SECONDS", help="repeat the reading for this many seconds"
    )
    parser.add_argument("--pid", type=int, help="the broker's process id")
    args = parser.parse_args()
    used = cpu_s(args.pid) if args.pid else 0.0
    began = time.perf_counter()
    messages, size, took = drive(args.addr, args.topic, args.group, args.queues, began + args.again, args.count)
    seconds = time.perf_counter() - began
    used = cpu_s(args.pid) - used if args.pid else 0.0
    if not messages:
        raise SystemExit(f"{args.topic} contains no message in its queues 0 to {args.queues - 1}")
    took.sort()
    result = {
        "messages": messages,
        "bytes": size,
        "seconds": round(seconds, 3),
        "per_second": round(messages / seconds),
        "p50_ms": round(percentile(took, 50) * 1000, 3),
        "p99_ms": round(percentile(took, 99) * 1000, 3),
    }
    if args.pid:
        result["cpu_us"] = round(used / messages * 1e6, 3)
    print(json.dumps(result))


def template(topic: str, group: str, queue: int) -> bytes:
    """Return the header of a pull as a format for offset and opaque."""
    asked = PullMessage(group, topic, queue, OFFSET, AT_ONCE, SUBSCRIPTION, 0, 0, "*", 0, None)
    frame = b"".join(command.encode(RequestCode.PULL_MESSAGE, opaque=OPAQUE, flag=0, fields=encode_header(asked)))
    header = frame[PREFIX.size :].replace(b"%", b"%%")
    return header.replace(b"%d" % OFFSET, b"%d").replace(b"%d" % OPAQUE, b"%d")


def pull(header: bytes, offset: int, opaque: int) -> bytes:
    """Return the frame of a pull at an offset."""
    text = header % (offset, opaque)
    return PREFIX.pack(4 + len(text), len(text)) + text


def drive(
    addr: str, topic: str, group: str, queues: int, until: float, most: int | None
) -> tuple[int, int, list[float]]:
    """Return messages and bytes read, and the duration of each pull in seconds."""
    headers = [template(topic, group, queue) for queue in range(queues)]
    offsets = [0] * queues
    asked_at = [0.0] * queues
    due = list(range(queues))
    under_way = messages = size = 0
    took: list[float] = []
    with connected(addr) as connection:
        answers = Answers(connection)
        while due or under_way:
            if due:
                now = time.perf_counter()
                batch = []
                for queue in due:
                    batch.append(pull(headers[queue], offsets[queue], OPAQUE + queue))
                    asked_at[queue] = now
                connection.sendall(b"".join(batch))
                under_way += len(due)
                due.clear()
            for header, body in answers.read():
                under_way -= 1
                queue = number(header, b'"opaque":') - OPAQUE
                now = time.perf_counter()
                took.append(now - asked_at[queue])
                if b'"code":0,' in header:
                    after_it = number(header, NEXT)
                    messages += after_it - offsets[queue]
                    size += len(body)
                    offsets[queue] = after_it
                    if most is None or messages < most:
                        due.append(queue)
                elif b'"code":19,' in header:  # PULL_NOT_FOUND: the end of the queue
                    if offsets[queue] and now < until:
                        offsets[queue] = 0
                        due.append(queue)
                else:
                    raise SystemExit(f"queue {queue} at {offsets[queue]}: {header!r}")
    return messages, size, took


if __name__ == "__main__":
    main()
