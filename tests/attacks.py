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

import msgspec

from ariane.protocol import command
from ariane.protocol.codes import RequestCode
from ariane.protocol.records import batch
from ariane.protocol.requests.messaging import SUBSCRIPTION, SUSPEND
from hostile_values import NASTY, structs

PortName = Literal["broker", "names", "replication", "console", "metrics"]

ATTACK_S = float(os.environ.get("ARIANE_ATTACK_S", "0.4"))
RECONNECTS_MAX = 20
READ_MAX = 1 << 16
CLIENT_HELLO_HEAD = bytes.fromhex("1603010200010001fc0303")
BROKER_LISTS = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
)
NAME_SERVER_LISTS = (
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_TOPICS_BY_CLUSTER,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    RequestCode.GET_UNIT_TOPIC_LIST,
)
FORM = "Content-Type: application/x-www-form-urlencoded\r\n"
ENDLESS = f"{FORM}Transfer-Encoding: chunked\r\n\r\n".encode()


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
    renegotiates: bool = False
    """Whether OpenSSL's program, in place of a connection of this one, requests handshakes."""


def request(code: int, fields: dict[str, str] | None = None, body: bytes = b"", *, opaque: int = 1) -> bytes:
    return b"".join(command.encode(code, opaque=opaque, flag=0, fields=fields, body=body))


def noise(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)


def framed(header: bytes, body: bytes = b"", *, form: int = 0) -> bytes:
    """Return a frame whose header is JSON (form 0) or binary (1)."""
    return (
        (4 + len(header) + len(body)).to_bytes(4, "big") + (form << 24 | len(header)).to_bytes(4, "big") + header + body
    )


def header_of(size: int) -> bytes:
    return b'{"code":10,"opaque":1,"remark":"' + b"x" * size + b'"}'


def groups(number: int, count: int, expression: str = "") -> bytes:
    """Return a heartbeat of consumers, with a subscription each if there is an expression."""
    subscriptions = (
        [{"topic": "TBW102", "expressionType": "SQL92", "subString": expression, "subVersion": 1}] if expression else []
    )
    consumers = [{"groupName": f"attack-{number}-{one}", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                  "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False, "subscriptionDataSet": subscriptions}
                 for one in range(count)]  # fmt: skip
    return json.dumps({"clientID": f"attack-{number}", "consumerDataSet": consumers, "producerDataSet": []}).encode()


def registration(topics: int) -> bytes:
    """Return a registration whose table expands a hundredfold."""
    table = b"".join(len(text).to_bytes(4, "big") + text for text in [b"attack-topic 4 4 6 SINGLE_TAG"] * topics)
    version = b'{"counter":1,"timestamp":1}'
    return register(zlib.compress(len(version).to_bytes(4, "big") + version + topics.to_bytes(4, "big") + table))


def register(body: bytes, broker_id: int = 0) -> bytes:
    """Return a registration with a compressed body."""
    fields = {"brokerName": "attack", "brokerAddr": f"127.0.0.1:{broker_id + 1}", "clusterName": "C", "haServerAddr": "127.0.0.1:2",
              "brokerId": str(broker_id), "compressed": "true", "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF)}  # fmt: skip
    return request(RequestCode.REGISTER_BROKER, fields, body)


def send(number: int, code: int = RequestCode.SEND_MESSAGE_V2, properties: str = "", body: bytes = bytes(100)) -> bytes:
    """Return a send that creates a topic."""
    is_batch = "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false"
    fields = {"a": "attack", "b": f"AttackTopic{number}", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0",
              "i": properties, "j": "0", "k": "false", "m": is_batch}  # fmt: skip
    return request(code, fields, body)


def repeated_properties(number: int) -> bytes:
    """Return a batch of 100 kB whose messages would be stored with 150 MB of properties."""
    body = batch.encode([batch.BatchEntry(0, b"", "")] * 5000)
    return send(number, RequestCode.SEND_BATCH_MESSAGE, "name\x01" + "x" * 30_000 + "\x02", body)


def pull(number: int, expression: str = "*", body: bytes = b"") -> bytes:
    """Return a pull that the broker may hold."""
    fields = {"consumerGroup": f"attack-{number}", "topic": "TBW102", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
              "sysFlag": str(SUSPEND | SUBSCRIPTION), "commitOffset": "0", "suspendTimeoutMillis": "60000", "subVersion": "1",
              "subscription": expression, "expressionType": "TAG" if expression == "*" else "SQL92"}  # fmt: skip
    return request(RequestCode.PULL_MESSAGE, fields, body)


def statistics(number: int) -> bytes:
    """Return requests for the statistics of a topic with as many queues as there can be."""
    topic = f"AttackQueues{number}"
    fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "65536", "writeQueueNums": "65536", "perm": "6",
              "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip
    return (
        request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        + request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}) * 3
    )


def locks(number: int) -> bytes:
    queues = [{"topic": "TBW102", "brokerName": "broker-a", "queueId": queue} for queue in range(2000)]
    body = {"consumerGroup": f"attack-{number}", "clientId": f"attack-{number}", "mqSet": queues}
    return request(RequestCode.LOCK_BATCH_MQ, body=json.dumps(body).encode())


def offsets(number: int) -> bytes:
    fields = {"topic": "TBW102", "queueId": "0", "commitOffset": "1"}
    named = ({**fields, "consumerGroup": f"attack-{number}-{one}"} for one in range(300))
    return b"".join(request(RequestCode.UPDATE_CONSUMER_OFFSET, each) for each in named)


def key_values(number: int) -> bytes:
    pairs = ({"namespace": f"attack-{number}", "key": str(one), "value": "x" * 1000} for one in range(30))
    return b"".join(request(RequestCode.PUT_KV_CONFIG, pair) for pair in pairs)


def unknown_transactions(number: int) -> bytes:
    fields = {
        "producerGroup": "attack",
        "tranStateTableOffset": str(number),
        "commitLogOffset": str(number),
        "commitOrRollback": "8",
    }
    return request(RequestCode.END_TRANSACTION, fields) * 300


def lists(*codes: RequestCode) -> bytes:
    return b"".join(request(code, {"cluster": "DefaultCluster"}) for code in codes)


def hostile_values(number: int) -> bytes:
    """Return a request of each code, with a hostile value in each field that any request has, and as its body."""
    names = sorted({field.encode_name for kind in structs() for field in msgspec.structs.fields(kind)})
    values = (NASTY[(number + code) % len(NASTY)] for code in RequestCode)
    pairs = [(value[:40].decode("utf-8", "replace"), value) for value in values]
    return b"".join(
        request(code, dict.fromkeys(names, text), value) for code, (text, value) in zip(RequestCode, pairs, strict=True)
    )


def http(head: str, body: bytes = b"") -> bytes:
    return f"{head} HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode() + body


def chunk(size: int) -> bytes:
    return f"{size:x}\r\n".encode() + b"a" * size + b"\r\n"


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
    "renegotiation": Attack("broker", 4, renegotiates=True, reconnects=True),
    "unfinished frames inside of TLS": Attack("broker", 20, lambda number: b"\x00\xff\x00\x00" + bytes(500_000), tls=True),
    "a flood inside of TLS": Attack("broker", 8, lambda number: request(9999) * 300, times=5, tls=True),
    "unread responses inside of TLS": Attack(
        "broker", 10, lambda number: request(RequestCode.GET_ALL_TOPIC_CONFIG) * 50, tls=True, reads=False
    ),
    # Connections
    "silent connections": Attack("broker", 300),
    "resets": Attack("broker", 20, lambda number: b"\x00", resets=True, reconnects=True),
    "silent slaves": Attack("replication", 100),
    "nonsense of slaves": Attack("replication", 20, lambda number: noise(number, 100), reconnects=True),
    "slaves that read nothing": Attack("replication", 20, lambda number: bytes(8), reads=False),
    # Frames
    "garbage": Attack("broker", 50, lambda number: b"\x00" + noise(number, 1000), reconnects=True),
    "HTTP at the broker": Attack("broker", 50, lambda number: http("GET /", b"\r\n"), reconnects=True),
    "frames of impossible sizes": Attack("broker", 20, lambda number: b"\x01\xff\xff\xff" + bytes(100), reconnects=True),
    "unfinished frames": Attack("broker", 40, lambda number: b"\x00\xff\x00\x00" + bytes(500_000)),
    "dripping frames": Attack("broker", 50, lambda number: request(RequestCode.HEART_BEAT, body=bytes(100)), drips=True),
    "huge headers": Attack("broker", 8, lambda number: framed(header_of(300_000)), times=3),
    "nested headers": Attack("broker", 8, lambda number: framed(b'{"extFields":' * 3000 + b"{}" + b"}" * 3000), times=10),
    "headers that are not JSON": Attack("broker", 8, lambda number: framed(b"{code:1,'extFields':{a:" * 2000), times=10),
    "keys nested in keys": Attack("broker", 8, lambda number: framed(b"{" * 70 + b'"a":1}' + b":1}" * 69), times=10),
    "binary headers of nonsense": Attack("broker", 8, lambda number: framed(noise(number, 200), form=1) * 20, reconnects=True),
    "headers of 15 MB": Attack("broker", 2, lambda number: framed(header_of(15_000_000))),
    # Requests
    "hostile values": Attack("broker", 8, hostile_values),
    "hostile values at the name server": Attack("names", 8, hostile_values),
    "a flood of requests": Attack("broker", 8, lambda number: request(9999) * 300, times=5),
    "a flood of heartbeats": Attack("broker", 2, lambda number: request(34, body=groups(number, 200)), times=3),
    "heartbeats with broken expressions": Attack(
        "broker", 2, lambda number: request(34, body=groups(number, 100, "a = = 1")), times=3
    ),
    "sends that create topics": Attack("broker", 50, send),
    "batches that repeat their properties": Attack("broker", 4, repeated_properties, times=5),
    "batches of nonsense": Attack(
        "broker", 8, lambda number: send(0, RequestCode.SEND_BATCH_MESSAGE, "", noise(number, 5000)), times=20
    ),
    "statistics of many queues": Attack("broker", 2, statistics),
    "large bodies of pulls": Attack("broker", 8, lambda number: pull(number, body=bytes(1 << 20)), times=4),
    "long expressions of pulls": Attack("broker", 8, lambda number: pull(number, "-0"[number % 2] * 16_000), times=10),
    "locks of many queues": Attack("broker", 4, locks, times=5),
    "offsets of many groups": Attack("broker", 4, offsets),
    "ends of unknown transactions": Attack("broker", 4, unknown_transactions, times=2),
    "large lists": Attack("broker", 8, lambda number: lists(*BROKER_LISTS) * 30),
    "registrations that expand": Attack("names", 4, lambda number: registration(20_000), times=2),
    "registrations of nonsense": Attack(
        "names", 8, lambda number: register(noise(number, 1000)) + register(zlib.compress(noise(number, 1000)))
    ),
    "brokers with many addresses": Attack("names", 2, lambda number: b"".join(register(b"", one) for one in range(300))),
    "pairs of keys and values": Attack("names", 4, key_values),
    "large lists of the name server": Attack("names", 8, lambda number: lists(*NAME_SERVER_LISTS) * 30),
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
    "endless bodies at the console": Attack(
        "console", 8, lambda number: http("POST /login", ENDLESS) + chunk(50_000) * 20, times=5
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
    if attack.renegotiates:
        await renegotiate(port)
        return
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


async def renegotiate(port: int) -> None:
    """Request handshakes on a connection of TLS 1.2 until the server ends it; Python's TLS cannot do that."""
    arguments = ["s_client", "-tls1_2", "-connect", f"127.0.0.1:{port}"]
    quiet = asyncio.subprocess.DEVNULL
    client = await asyncio.create_subprocess_exec(
        "openssl", *arguments, stdin=asyncio.subprocess.PIPE, stdout=quiet, stderr=quiet
    )
    assert client.stdin is not None
    try:
        while client.returncode is None:
            client.stdin.write(b"R\n")
            await asyncio.sleep(0.01)
    finally:
        if client.returncode is None:
            client.kill()
        await client.wait()


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
