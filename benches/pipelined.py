"""Load over one connection: many sends under way at once, straight to a broker.

    python benches/pipelined.py 127.0.0.1:10911 --count 200000 --depth 128 --size 128

The same bytes go to whichever broker listens there, and every answer is checked for code 0. The loader prepares its frames
and looks at nothing of an answer but length, code and opaque, so that what is measured is the broker. The last line
is JSON: sent, seconds, per_second, and the p50 and p99 of the time from a frame's write to its answer, in ms.
"""

from __future__ import annotations

import argparse
import json
import socket
import time

from ariane.protocol import command
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests import fields
from ariane.protocol.requests.messaging import SendMessage

OPAQUE = 1_000_000_000  # ten digits, so that it can be replaced in place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("addr", help="host:port of the broker")
    parser.add_argument("--topic", default="Pipelined")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--depth", type=int, default=128, help="sends under way at once")
    parser.add_argument("--size", type=int, default=128, help="bytes of a body")
    parser.add_argument("--queues", type=int, default=4)
    args = parser.parse_args()
    host, _, port = args.addr.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        frames = [template(args.topic, queue, args.queues, args.size) for queue in range(args.queues)]
        drive(connection, frames, args.queues, 1)  # the topic is made before the clock runs
        began = time.perf_counter()
        latencies = drive(connection, frames, args.count, args.depth)
        seconds = time.perf_counter() - began
    latencies.sort()
    result = {
        "sent": args.count,
        "seconds": round(seconds, 3),
        "per_second": round(args.count / seconds),
        "p50_ms": round(latencies[len(latencies) // 2] * 1000, 3),
        "p99_ms": round(latencies[len(latencies) * 99 // 100] * 1000, 3),
    }
    print(json.dumps(result))


def template(topic: str, queue: int, queues: int, size: int) -> tuple[bytes, bytes]:
    """A send frame, cut where its opaque stands."""
    header = SendMessage(
        producer_group="pipelined",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=queues,
        queue_id=queue,
        sys_flag=0,
        born_ms=int(time.time() * 1000),
        flag=0,
        properties="KEYS\x01bench\x02UNIQ_KEY\x017F0000010A9F18B4AAC2000000000000\x02WAIT\x01true\x02TAGS\x01TagA",
        reconsume_times=0,
    )
    code = RequestCode.SEND_MESSAGE_V2
    frame = b"".join(command.encode(code, opaque=OPAQUE, flag=0, fields=fields(header), body=b"x" * size))
    before, _, after = frame.partition(str(OPAQUE).encode())
    return before, after


def drive(connection: socket.socket, frames: list[tuple[bytes, bytes]], count: int, depth: int) -> list[float]:
    """Send `count` frames, never more than `depth` unanswered; the time each took, in seconds."""
    sent_at: dict[int, float] = {}
    latencies: list[float] = []
    rest = b""
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
        data = connection.recv(262144)
        if not data:
            raise SystemExit(f"the broker closed the connection after {len(latencies)} answers")
        now = time.perf_counter()
        rest += data
        at = 0
        while len(rest) - at >= 4:
            end = at + 4 + int.from_bytes(rest[at : at + 4], "big")
            if end > len(rest):
                break
            latencies.append(now - sent_at.pop(accepted(rest[at:end])))
            at = end
        rest = rest[at:]
    return latencies


def accepted(frame: bytes) -> int:
    """The opaque of an answer that says SUCCESS; ends the run at any other answer."""
    if b'"code":0,' not in frame:
        raise SystemExit(f"refused: {frame[8:]!r}")
    at = frame.index(b'"opaque":') + 9
    return int(frame[at : at + 10])


if __name__ == "__main__":
    main()
