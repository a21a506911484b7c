"""Attacks on the ports of a cluster, each bounded in connections and time: a table, and the program that performs them.

    python tests/attacks.py < names          performs each attack that is named on a line, and prints its name when it is over

The first line of the input is a JSON object of the ports. `ARIANE_ATTACK_S` is the duration of each.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import ssl
import sys
import zlib
from collections.abc import Callable
from typing import Literal, NamedTuple

from ariane.protocol import command
from ariane.protocol.codes import RequestCode

PortName = Literal["broker", "names", "replication", "console", "metrics"]

ATTACK_S = float(os.environ.get("ARIANE_ATTACK_S", "0.4"))
RECONNECTS_MAX = 20
READ_MAX = 1 << 16
CLIENT_HELLO_HEAD = bytes.fromhex("1603010200010001fc0303")
FORM = "Content-Type: application/x-www-form-urlencoded\r\n"


class Attack(NamedTuple):
    """What the connections of an attack do: send, read or not, and stay until the time is over."""

    port: PortName
    connections: int
    data: Callable[[int], bytes] = lambda number: b""
    """What the connection with this number sends."""
    times: int = 1
    """How often."""
    reads: bool = True
    reconnects: bool = False
    """Whether a connection that ended is followed by another one."""
    tls: bool = False
    drips: bool = False
    """Whether single bytes are sent, with pauses."""
    resets: bool = False
    """Whether the connection is reset as soon as everything is sent."""


def request(code: int, fields: dict[str, str] | None = None, body: bytes = b"", *, opaque: int = 1) -> bytes:
    return b"".join(command.encode(code, opaque=opaque, flag=0, fields=fields, body=body))


def noise(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)


def framed(header: bytes, body: bytes = b"") -> bytes:
    return (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


def groups(number: int, count: int) -> bytes:
    consumers = [{"groupName": f"attack-{number}-{one}", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                  "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False, "subscriptionDataSet": []}
                 for one in range(count)]  # fmt: skip
    return json.dumps({"clientID": f"attack-{number}", "consumerDataSet": consumers, "producerDataSet": []}).encode()


def registration(topics: int) -> bytes:
    """Return a registration whose table expands a hundredfold."""
    table = b"".join(len(text).to_bytes(4, "big") + text for text in [b"attack-topic 4 4 6 SINGLE_TAG"] * topics)
    version = b'{"counter":1,"timestamp":1}'
    body = zlib.compress(len(version).to_bytes(4, "big") + version + topics.to_bytes(4, "big") + table)
    fields = {"brokerName": "attack", "brokerAddr": "127.0.0.1:1", "clusterName": "C", "haServerAddr": "127.0.0.1:2",
              "brokerId": "0", "compressed": "true", "bodyCrc32": str(zlib.crc32(body))}  # fmt: skip
    return request(RequestCode.REGISTER_BROKER, fields, body)


def send(number: int) -> bytes:
    """Return a send that creates a topic."""
    fields = {"a": "attack", "b": f"AttackTopic{number}", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": "",
              "j": "0", "k": "false"}  # fmt: skip
    return request(RequestCode.SEND_MESSAGE_V2, fields, bytes(100))


def http(head: str, body: bytes = b"") -> bytes:
    return f"{head} HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode() + body


def log_in(number: int) -> bytes:
    form = f"name=user{number}&password=wrong-password-{number}".encode()
    return http("POST /login", f"{FORM}Content-Length: {len(form)}\r\n\r\n".encode() + form)


ATTACKS: dict[str, Attack] = {
    # TLS
    "half handshakes": Attack("broker", 300, lambda number: CLIENT_HELLO_HEAD),
    "half handshakes at the name server": Attack("names", 300, lambda number: CLIENT_HELLO_HEAD),
    "garbage as a handshake": Attack("broker", 20, lambda number: b"\x16" + noise(number, 300), reconnects=True),
    "oversize records": Attack(
        "broker", 20, lambda number: bytes.fromhex("1603014801") + noise(number, 20_000), reconnects=True
    ),
    "complete handshakes": Attack("broker", 4, tls=True, resets=True, reconnects=True),
    "garbage inside of TLS": Attack("broker", 4, lambda number: noise(number, 1000), tls=True, reconnects=True),
    # Connections
    "silent connections": Attack("broker", 300),
    "resets": Attack("broker", 20, lambda number: b"\x00", resets=True, reconnects=True),
    "silent slaves": Attack("replication", 100),
    "nonsense of slaves": Attack("replication", 20, lambda number: noise(number, 100), reconnects=True),
    # Frames
    "garbage": Attack("broker", 50, lambda number: b"\x00" + noise(number, 1000), reconnects=True),
    "HTTP at the broker": Attack("broker", 50, lambda number: http("GET /", b"\r\n"), reconnects=True),
    "frames of impossible sizes": Attack("broker", 20, lambda number: b"\x01\xff\xff\xff" + bytes(100), reconnects=True),
    "unfinished frames": Attack("broker", 40, lambda number: b"\x00\xff\x00\x00" + bytes(500_000)),
    "dripping frames": Attack("broker", 50, lambda number: request(RequestCode.HEART_BEAT, body=bytes(100)), drips=True),
    "huge headers": Attack("broker", 8, lambda number: framed(b'{"code":10,"remark":"' + b"x" * 300_000 + b'"}'), times=3),
    "nested headers": Attack("broker", 8, lambda number: framed(b'{"extFields":' * 3000 + b"{}" + b"}" * 3000), times=10),
    "headers that are not JSON": Attack("broker", 8, lambda number: framed(b"{code:1,'extFields':{a:" * 2000), times=10),
    # Requests
    "a flood of requests": Attack("broker", 8, lambda number: request(9999) * 300, times=5),
    "a flood of heartbeats": Attack("broker", 2, lambda number: request(34, body=groups(number, 200)), times=3),
    "sends that create topics": Attack("broker", 50, send),
    "registrations that expand": Attack("names", 4, lambda number: registration(20_000), times=2),
    "a flood at the name server": Attack("names", 8, lambda number: request(105, {"topic": "None"}) * 300, times=5),
    # Responses
    "unread responses": Attack("broker", 10, lambda number: request(RequestCode.GET_ALL_TOPIC_CONFIG) * 50, reads=False),
    "unread responses of the name server": Attack("names", 20, lambda number: request(206) * 200, reads=False),
    # HTTP
    "slow requests at the console": Attack("console", 100, lambda number: http("GET /topics", b"X-A: ")),
    "dripping requests at the console": Attack("console", 50, lambda number: http("GET /topics", b"X-A: 1"), drips=True),
    "half bodies at the console": Attack(
        "console", 100, lambda number: http("POST /login", f"{FORM}Content-Length: 1000\r\n\r\nname=a".encode())
    ),
    "huge headers at the console": Attack("console", 8, lambda number: http("GET /", b"X-A: " + b"x" * 200_000), reconnects=True),
    "wrong log-ins": Attack("console", 16, log_in, times=2),
    "many sessions": Attack("console", 8, lambda number: http("GET /login", b"\r\n") * 4, reconnects=True),
    "slow requests at the metrics": Attack("metrics", 64, lambda number: http("GET /metrics", b"X-A: ")),
}  # fmt: skip


async def perform(attack: Attack, port: int) -> None:
    """Perform an attack until its time is over."""
    end = asyncio.get_running_loop().time() + ATTACK_S
    await asyncio.gather(*(connect_until(end, attack, port, number) for number in range(attack.connections)))


async def connect_until(end: float, attack: Attack, port: int, number: int) -> None:
    for _ in range(RECONNECTS_MAX if attack.reconnects else 1):
        if asyncio.get_running_loop().time() >= end:
            return
        with contextlib.suppress(OSError, TimeoutError, ssl.SSLError):
            async with asyncio.timeout_at(end):
                await one_connection(attack, port, number)


async def one_connection(attack: Attack, port: int, number: int) -> None:
    """Connect, send, and read until the server ends the connection."""
    context = trusting() if attack.tls else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, limit=READ_MAX)
    try:
        data = attack.data(number)
        for _ in range(attack.times):
            if attack.drips:
                for byte in data:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.02)
            else:
                writer.write(data)
        if attack.resets:
            return
        if attack.reads:
            while await reader.read(READ_MAX):
                pass
        else:
            await asyncio.Event().wait()
    finally:
        writer.transport.abort()


def trusting() -> ssl.SSLContext:
    """Return a context that verifies nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def main() -> None:
    ports = json.loads(sys.stdin.readline())
    print("ready", flush=True)
    for line in sys.stdin:
        attack = ATTACKS[line.strip()]
        asyncio.run(perform(attack, ports[attack.port]))
        print(line.strip(), flush=True)


if __name__ == "__main__":
    main()
