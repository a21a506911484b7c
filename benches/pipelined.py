"""Load over one connection: many sends in flight, straight to a broker.

    python benches/pipelined.py 127.0.0.1:10911 --count 200000 --depth 128 --size 128 [--queues 4] [--warm 20000] [--pid PID]

The same bytes go to whichever broker listens there, and every answer is checked for code 0. The loader prepares its frames
and looks at nothing of an answer but length, code and opaque, so that what is measured is the broker. Queues take turns. The
last line is JSON: sent, seconds, per_second, readable_per_second, the p50 and p99 of the time from a frame's write to its answer
in ms, and with the broker's PID its CPU time per message in µs. `readable_per_second` and the CPU time count until consumers
can read the last message: Java answers long before that when there are many queues.
"""

from __future__ import annotations

import argparse
import json
import socket
import time

from answers import OPAQUE, Answers, accepted, connected, max_offset, percentile
from ariane.protocol import command
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.messaging import SendMessage
from servers import cpu_s

PATIENCE_S = 600
DEFAULT_TOPIC_QUEUES = 8  # an auto-created topic gets no more


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("addr", help="host:port of the broker")
    parser.add_argument("--topic", default="Pipelined")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--depth", type=int, default=128, help="number of sends in flight")
    parser.add_argument("--size", type=int, default=128, help="bytes of a body")
    parser.add_argument("--queues", type=int, default=4, help="a topic of more than 8 has to be there already")
    parser.add_argument("--warm", type=int, default=1, help="sends before the clock runs")
    parser.add_argument("--pid", type=int, help="the broker's")
    args = parser.parse_args()
    last_queue, warm = (args.count - 1) % args.queues, max(1, args.warm)
    with connected(args.addr) as connection:
        frames = [template(args.topic, queue, args.queues, args.size) for queue in range(args.queues)]
        drive(connection, frames[:1], 1, 1)  # makes the topic
        there = until_readable(connection, args.topic, 0, 0)
        there = until_readable(connection, args.topic, last_queue, 0) if last_queue else there
        drive(connection, frames, warm, args.depth if warm > 1 else 1)
        there += len(range(last_queue, warm, args.queues))
        until_readable(connection, args.topic, last_queue, there)
        used = cpu_s(args.pid) if args.pid else 0.0
        began = time.perf_counter()
        latencies = drive(connection, frames, args.count, args.depth)
        seconds = time.perf_counter() - began
        until_readable(connection, args.topic, last_queue, there + len(range(last_queue, args.count, args.queues)))
        readable_seconds = time.perf_counter() - began
        used = cpu_s(args.pid) - used if args.pid else 0.0
    latencies.sort()
    result = {
        "sent": args.count,
        "seconds": round(seconds, 3),
        "per_second": round(args.count / seconds),
        "readable_per_second": round(args.count / readable_seconds),
        "p50_ms": round(percentile(latencies, 50) * 1000, 3),
        "p99_ms": round(percentile(latencies, 99) * 1000, 3),
    }
    if args.pid:
        result["cpu_us"] = round(used / args.count * 1e6, 2)
    print(json.dumps(result))


def until_readable(connection: socket.socket, topic: str, queue: int, there: int) -> int:
    """Wait until a queue has so many messages that can be read; how many it has. Queues are derived in the order of the log,
    so the last message is the last of all."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := max_offset(connection, topic, queue)) < there:
        if time.monotonic() > deadline:
            raise SystemExit(f"queue {queue} of {topic} has {found} of {there} messages after {PATIENCE_S} s")
        time.sleep(0.005)
    return found


def template(topic: str, queue: int, queues: int, size: int) -> tuple[bytes, bytes]:
    """A send frame, cut where its opaque stands."""
    header = SendMessage(
        producer_group="pipelined",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=min(queues, DEFAULT_TOPIC_QUEUES),
        queue_id=queue,
        sys_flag=0,
        born_ms=int(time.time() * 1000),
        flag=0,
        properties="KEYS\x01bench\x02UNIQ_KEY\x017F0000010A9F18B4AAC2000000000000\x02WAIT\x01true\x02TAGS\x01TagA",
        reconsume_times=0,
    )
    code = RequestCode.SEND_MESSAGE_V2
    frame = b"".join(command.encode(code, opaque=OPAQUE, flag=0, fields=encode_header(header), body=b"x" * size))
    before, _, after = frame.partition(str(OPAQUE).encode())
    return before, after


def drive(connection: socket.socket, frames: list[tuple[bytes, bytes]], count: int, depth: int) -> list[float]:
    """Send `count` frames, never more than `depth` unanswered; the time each took, in seconds."""
    sent_at: dict[int, float] = {}
    latencies: list[float] = []
    answers = Answers(connection)
    sent = 0
    while len(latencies) < count:
        room = min(depth - len(sent_at), count - sent)
        if room > 0:
            now = time.perf_counter()
            batch = []
            for number in range(sent, sent + room):
                before, after = frames[number % len(frames)]
                batch.append(b"%b%d%b" % (before, OPAQUE + number, after))
                sent_at[OPAQUE + number] = now
            sent += room
            connection.sendall(b"".join(batch))
        for header, _ in answers.read():
            latencies.append(time.perf_counter() - sent_at.pop(accepted(header)))
    return latencies


if __name__ == "__main__":
    main()
