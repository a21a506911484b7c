"""Attacks on the ports of a cluster, and what their connections send. `attacker` performs them.

docs/limits.md lists the property tests that they replay; tests/style/test_limits_page.py compares.
"""

from __future__ import annotations

import functools
import json
import random
import zlib

import msgspec

from ariane.model.topic import DataVersion, TopicConfig
from ariane.protocol import command, fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import ONE_WAY
from ariane.protocol.records import batch, member_stream
from ariane.protocol.records.member_stream import HELLO, ChangePosition, Hello, MemberReport
from ariane.protocol.requests.messaging import SUBSCRIPTION, SUSPEND
from ariane.protocol.requests.routing import RegisterBrokerBody, TopicTable
from attack import Attack, noise
from hostile_values import NASTY, structs
from http2_attacks import HTTP2

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


def request(code: int, fields: dict[str, str] | None = None, body: bytes = b"", *, flag: int = 0) -> bytes:
    return b"".join(command.encode(code, opaque=1, flag=flag, fields=fields, body=body))


def damaged(number: int, data: bytes) -> bytes:
    """Return data with pieces removed, duplicated or replaced, as the property tests change it."""
    rng = random.Random(number)
    for _ in range(rng.randint(1, 4)):
        position = rng.randint(0, len(data))
        end = rng.randint(position, min(len(data), position + 40))
        piece = rng.choice((rng.choice(NASTY), rng.randbytes(8), data[position:end] * 2))
        data = data[:position] + piece + data[end:]
    return data


def half_handshake(number: int) -> bytes:
    return CLIENT_HELLO_HEAD


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


def loose_heartbeat(number: int) -> bytes:
    """Return a heartbeat whose body is fastjson's dialect of JSON."""
    return request(34, body=b"{clientID:'a',consumerDataSet:[" + b"{groupName:'g'}," * 20_000)


def many_addresses(number: int) -> bytes:
    return b"".join(register(b"", broker_id) for broker_id in range(300))


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


def send(
    topic: str,
    code: int = RequestCode.SEND_MESSAGE_V2,
    properties: str = "",
    body: bytes = bytes(100),
    *,
    flag: int = 0,
) -> bytes:
    """Return a send, which creates the topic."""
    is_batch = "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false"
    fields = {"a": "attack", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0",
              "i": properties, "j": "0", "k": "false", "m": is_batch}  # fmt: skip
    return request(code, fields, body, flag=flag)


def send_batch(body: bytes, properties: str = "") -> bytes:
    return send("AttackBatches", RequestCode.SEND_BATCH_MESSAGE, properties, body)


def repeated_properties(number: int) -> bytes:
    """Return a batch of 100 kB whose messages would be stored with 150 MB of properties."""
    body = batch.encode([batch.BatchEntry(0, b"", "")] * 5000)
    return send_batch(body, "name\x01" + "x" * 30_000 + "\x02")


def damaged_batches(number: int) -> bytes:
    body = batch.encode([batch.BatchEntry(1, b"body", "a\x01b"), batch.BatchEntry(0, b"", "")])
    bodies = (damaged(number * 50 + one, body) for one in range(50))
    return b"".join(map(send_batch, bodies))


def pull(number: int, expression: str = "*", body: bytes = b"", *, topic: str = "TBW102") -> bytes:
    """Return a pull that the broker may hold."""
    fields = {"consumerGroup": f"attack-{number}", "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
              "sysFlag": str(SUSPEND | SUBSCRIPTION), "commitOffset": "0", "suspendTimeoutMillis": "60000", "subVersion": "1",
              "subscription": expression, "expressionType": "TAG" if expression == "*" else "SQL92"}  # fmt: skip
    return request(RequestCode.PULL_MESSAGE, fields, body)


def held_pulls(number: int) -> bytes:
    """Return pulls of an empty topic, and a message that ends all of them at once."""
    topic = f"AttackHeld{number}"
    return create_topic(topic) + pull(number, topic=topic) * 2000 + send(topic)


def pulls_of_large_messages(number: int) -> bytes:
    topic = f"AttackLarge{number}"
    return send(topic, body=bytes(100_000)) * 10 + pull(number, topic=topic) * 300


def create_topic(topic: str, queues: int = 4) -> bytes:
    fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6",
              "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip
    return request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


def statistics(number: int) -> bytes:
    """Return requests for the statistics of a topic with as many queues as there can be."""
    topic = f"AttackQueues{number}"
    return create_topic(topic, 65536) + request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}) * 3


def pop(code: int, topic: str, group: str) -> bytes:
    """Return a POP_MESSAGE or NOTIFICATION that the broker holds if all queues of the topic are empty."""
    fields = {"consumerGroup": group, "topic": topic, "queueId": "-1", "maxMsgNums": "32", "invisibleTime": "10000",
              "pollTime": "60000", "bornTime": "0", "initMode": "0", "order": "false"}  # fmt: skip
    return request(code, fields)


def held_pops(number: int, code: int) -> bytes:
    """Return requests of many groups, a few of each."""
    return b"".join(pop(code, "TBW102", f"attack-{number}-{one}") * 4 for one in range(50))


def ended_pops(number: int) -> bytes:
    """Return requests of many groups for an empty topic, and a message that ends all of them at once."""
    topic = f"AttackPop{number}"
    pops = (pop(RequestCode.POP_MESSAGE, topic, f"attack-{one}") for one in range(1000))
    return create_topic(topic) + b"".join(pops) + send(topic)


def pops_of_many_queues(number: int) -> bytes:
    topic = f"AttackQueues{number}"
    return create_topic(topic, 65536) + b"".join(
        pop(code, topic, f"attack-{number}") for code in (RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION)
    )


def locks(number: int) -> bytes:
    queues = [{"topic": "TBW102", "brokerName": "broker-a", "queueId": queue} for queue in range(2000)]
    body = {"consumerGroup": f"attack-{number}", "clientId": f"attack-{number}", "mqSet": queues}
    return request(RequestCode.LOCK_BATCH_MQ, body=json.dumps(body).encode())


def offsets(number: int) -> bytes:
    fields = {"topic": "TBW102", "queueId": "0", "commitOffset": "1"}
    named = ({**fields, "consumerGroup": f"attack-{number}-{one}"} for one in range(300))
    return b"".join(request(RequestCode.UPDATE_CONSUMER_OFFSET, each) for each in named)


def damaged_registrations(number: int) -> bytes:
    """Return registrations whose plain bodies have members missing, repeated or replaced."""
    fields = {"brokerName": "attack", "brokerAddr": "127.0.0.1:1", "clusterName": "C", "haServerAddr": "127.0.0.1:2",
              "brokerId": "0", "compressed": "false", "bodyCrc32": "0"}  # fmt: skip
    table = TopicTable(DataVersion(1, 1), {"T": TopicConfig(topic_name="T")})
    body = fastjson.write(RegisterBrokerBody(("127.0.0.1:3",), table))
    bodies = (damaged(number * 50 + one, body) for one in range(50))
    return b"".join(request(RequestCode.REGISTER_BROKER, fields, each) for each in bodies)


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


def large_lists(number: int) -> bytes:
    """Return requests for the lists of a broker. The first ones add to these."""
    topics = b"".join(create_topic(f"AttackList{number}-{one}") for one in range(100)) if number < 8 else b""
    return topics + (offsets(number) if number < 8 else b"") + lists(*BROKER_LISTS) * 30


def large_lists_of_names(number: int) -> bytes:
    """Return requests for the lists of a name server. The first ones add to these."""
    return (registration(2_000) if number < 8 else b"") + lists(*NAME_SERVER_LISTS) * 30


@functools.cache
def field_names() -> list[str]:
    return sorted({field.encode_name for kind in structs() for field in msgspec.structs.fields(kind)})


def hostile_values(number: int) -> bytes:
    """Return a request of each code, with a hostile value in each field that any request has, and as its body."""
    names = field_names()
    values = (NASTY[(number + code) % len(NASTY)] for code in RequestCode)
    pairs = [(value[:40].decode("utf-8", "replace"), value) for value in values]
    return b"".join(
        request(code, dict.fromkeys(names, text), value) for code, (text, value) in zip(RequestCode, pairs, strict=True)
    )


def damaged_frames(number: int) -> bytes:
    """Return a frame of each serialization in turn, damaged."""
    frame = b"".join(
        command.encode(11, opaque=3, flag=0, fields={"a": "b", "c": "d"}, remark="r", body=b"body", form=number % 2)
    )
    return damaged(number, frame)


# --- replication ---


def greeting(number: int) -> bytes:
    """Return the greeting of a member that has nothing."""
    hello = Hello(member=f"attack-{number}", incarnation="1", end=0, changes=ChangePosition())
    return opening(msgspec.json.encode(hello))


def opening(hello: bytes) -> bytes:
    fields = {"brokerName": "broker-a", HELLO: hello.decode("utf-8", "replace")}
    return member_stream.MAGIC + member_stream.encode_sized(json.dumps(fields).encode())


def hostile_greeting(number: int) -> bytes:
    """Return a damaged greeting: of its stream in every other connection, of its JSON in the others."""
    if number % 2:
        return damaged(number, greeting(number))
    epochs = [[one, one, "x" * 100] for one in range(900)]
    hello = {"member": f"attack-{number}", "incarnation": "1", "end": number % 5, "promised": 1, "epochs": epochs}
    return opening(damaged(number, json.dumps(hello).encode()))


def hostile_reports(number: int) -> bytes:
    report = member_stream.encode_report(MemberReport(0, 0, 0, member_stream.NO_CHANGES))
    return greeting(number) + report * 1000 + damaged(number, report)


# --- HTTP ---


def http(head: str, body: bytes = b"") -> bytes:
    return f"{head} HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode() + body


def chunk(size: int) -> bytes:
    return f"{size:x}\r\n".encode() + b"a" * size + b"\r\n"


def half_body(number: int) -> bytes:
    return http("POST /login", f"{FORM}Content-Length: 1000\r\n\r\nname=a".encode())


def log_in(number: int) -> bytes:
    form = f"name=user{number}&password=wrong-password-{number}".encode()
    return http("POST /login", f"{FORM}Content-Length: {len(form)}\r\n\r\n".encode() + form)


TLS: dict[str, Attack] = {
    "half handshakes": Attack("broker", 1000, half_handshake),
    "half handshakes at the name server": Attack("names", 300, half_handshake),
    "garbage as a handshake": Attack("broker", 20, lambda number: b"\x16" + noise(number, 300), reconnects=True),
    "oversize records": Attack(
        "broker", 20, lambda number: bytes.fromhex("1603014801") + noise(number, 20_000), reconnects=True
    ),
    "complete handshakes": Attack("broker", 4, tls=True, resets=True, reconnects=True),
    "garbage inside of TLS": Attack("broker", 4, lambda number: noise(number, 1000), tls=True, reconnects=True),
    "renegotiation": Attack("broker", 4, renegotiates=True, reconnects=True),
    "unfinished frames inside of TLS": Attack("broker", 20, lambda number: b"\x00\xff\x00\x00" + bytes(500_000), tls=True),
    "a flood inside of TLS": Attack("broker", 8, lambda number: request(9999) * 300, repeats=True, tls=True),
    "unread responses inside of TLS": Attack(
        "broker", 10, lambda number: request(RequestCode.GET_ALL_TOPIC_CONFIG) * 50, tls=True, reads=False
    ),
    "half handshakes of slaves": Attack("replication", 300, half_handshake),
}  # fmt: skip
CONNECTIONS: dict[str, Attack] = {
    "silent connections": Attack("broker", 300),
    "resets": Attack("broker", 20, lambda number: b"\x00", resets=True, reconnects=True),
    "silent slaves": Attack("replication", 100),
    "nonsense of slaves": Attack("replication", 20, lambda number: noise(number, 100), reconnects=True),
    "slaves that read nothing": Attack("replication", 20, lambda number: bytes(8), reads=False),
    "hostile greetings of members": Attack("replication", 16, hostile_greeting, reconnects=True),
    "hostile reports of members": Attack("replication", 16, hostile_reports, reconnects=True),
    "members that request all state": Attack("replication", 16, greeting, reconnects=True, resets=True),
    "members that read nothing": Attack("replication", 16, greeting, reads=False),
}  # fmt: skip
FRAMES: dict[str, Attack] = {
    "garbage": Attack("broker", 50, lambda number: b"\x00" + noise(number, 1000), reconnects=True),
    "HTTP at the broker": Attack("broker", 50, lambda number: http("GET /", b"\r\n"), reconnects=True),
    "frames of impossible sizes": Attack("broker", 20, lambda number: b"\x01\xff\xff\xff" + bytes(100), reconnects=True),
    "unfinished frames": Attack("broker", 40, lambda number: b"\x00\xff\x00\x00" + bytes(500_000)),
    "dripping frames": Attack("broker", 50, lambda number: request(RequestCode.HEART_BEAT, body=bytes(100)), drips=True),
    "damaged frames": Attack("broker", 16, damaged_frames, reconnects=True),
    "huge headers": Attack("broker", 8, lambda number: framed(header_of(300_000)), repeats=True),
    "nested headers": Attack("broker", 8, lambda number: framed(b'{"extFields":' * 3000 + b"{}" + b"}" * 3000), repeats=True),
    "headers that are not JSON": Attack("broker", 8, lambda number: framed(b"{code:1,'extFields':{a:" * 2000), repeats=True),
    "keys nested in keys": Attack("broker", 8, lambda number: framed(b"{" * 70 + b'"a":1}' + b":1}" * 69), repeats=True),
    "binary headers of nonsense": Attack("broker", 8, lambda number: framed(noise(number, 200), form=1) * 20, reconnects=True),
    "headers of 15 MB": Attack("broker", 2, lambda number: framed(header_of(15_000_000)), repeats=True),
}  # fmt: skip
REQUESTS: dict[str, Attack] = {
    "hostile values": Attack("broker", 8, hostile_values, repeats=True),
    "a flood of requests": Attack("broker", 8, lambda number: request(9999) * 300, repeats=True),
    "a flood of requests without responses": Attack(
        "broker", 8, lambda number: send(f"AttackFlood{number % 8}", flag=ONE_WAY) * 300, repeats=True
    ),
    "a flood of heartbeats": Attack("broker", 2, lambda number: request(34, body=groups(number, 200)), repeats=True),
    "heartbeats with broken expressions": Attack(
        "broker", 2, lambda number: request(34, body=groups(number, 100, "a = = 1")), repeats=True
    ),
    "bodies that are not JSON": Attack("broker", 4, loose_heartbeat, repeats=True),
    "sends that create topics": Attack("broker", 50, lambda number: send(f"AttackTopic{number}"), repeats=True),
    "batches that repeat their properties": Attack("broker", 4, repeated_properties, repeats=True),
    "batches of nonsense": Attack(
        "broker", 8, lambda number: send_batch(noise(number, 5000)), repeats=True
    ),
    "damaged batches": Attack("broker", 8, damaged_batches, repeats=True),
    "statistics of many queues": Attack("broker", 2, statistics, repeats=True),
    "locks of many queues": Attack("broker", 4, locks, repeats=True),
    "offsets of many groups": Attack("broker", 4, offsets, repeats=True),
    "ends of unknown transactions": Attack("broker", 4, unknown_transactions, repeats=True),
}  # fmt: skip
HELD_REQUESTS: dict[str, Attack] = {
    "large bodies of pulls": Attack("broker", 8, lambda number: pull(number, body=bytes(1 << 20)), repeats=True),
    "long expressions of pulls": Attack("broker", 8, lambda number: pull(number, "-0"[number % 2] * 16_000), repeats=True),
    "held pulls that a message ends": Attack("broker", 8, held_pulls, repeats=True),
    "pulls of messages that are not read": Attack("broker", 10, pulls_of_large_messages, reads=False),
    "held requests of POP": Attack("broker", 8, lambda number: held_pops(number, RequestCode.POP_MESSAGE), repeats=True),
    "held notifications": Attack("broker", 8, lambda number: held_pops(number, RequestCode.NOTIFICATION), repeats=True),
    "held requests of POP that a message ends": Attack("broker", 8, ended_pops, repeats=True),
    "POP from many queues": Attack("broker", 2, pops_of_many_queues, repeats=True),
}  # fmt: skip
NAME_SERVER: dict[str, Attack] = {
    "hostile values at the name server": Attack("names", 8, hostile_values, repeats=True),
    "registrations that expand": Attack("names", 4, lambda number: registration(20_000), repeats=True),
    "damaged registrations": Attack("names", 8, damaged_registrations, repeats=True),
    "registrations of nonsense": Attack(
        "names", 8, lambda number: register(noise(number, 1000)) + register(zlib.compress(noise(number, 1000))), repeats=True
    ),
    "brokers with many addresses": Attack("names", 2, many_addresses, repeats=True),
    "pairs of keys and values": Attack("names", 4, key_values, repeats=True),
    "large lists of the name server": Attack("names", 8, large_lists_of_names, repeats=True),
    "a flood at the name server": Attack("names", 8, lambda number: request(105, {"topic": "None"}) * 300, repeats=True),
}  # fmt: skip
RESPONSES: dict[str, Attack] = {
    "large lists": Attack("broker", 8, large_lists, repeats=True),
    "unread responses": Attack("broker", 10, lambda number: request(RequestCode.GET_ALL_TOPIC_CONFIG) * 50, reads=False),
    "unread responses of the name server": Attack("names", 20, lambda number: request(206) * 200, reads=False),
}  # fmt: skip
HTTP: dict[str, Attack] = {
    "half handshakes at the console": Attack("console", 300, half_handshake),
    "garbage as a handshake at the console": Attack("console", 20, lambda number: b"\x16" + noise(number, 300), reconnects=True),
    "complete handshakes at the console": Attack("console", 4, tls=True, resets=True, reconnects=True),
    "garbage inside of TLS at the console": Attack("console", 4, lambda number: noise(number, 1000), tls=True, reconnects=True),
    "half bodies inside of TLS at the console": Attack("console", 200, half_body, tls=True),
    "half handshakes at the metrics": Attack("metrics", 300, half_handshake),
    "garbage as a handshake at the metrics": Attack("metrics", 20, lambda number: b"\x16" + noise(number, 300), reconnects=True),
    "complete handshakes at the metrics": Attack("metrics", 4, tls=True, resets=True, reconnects=True),
    "slow requests inside of TLS at the metrics": Attack("metrics", 64, lambda number: http("GET /metrics", b"X-A: "), tls=True),
    "slow requests at the console": Attack("console", 100, lambda number: http("GET /topics", b"X-A: ")),
    "dripping requests at the console": Attack("console", 50, lambda number: http("GET /topics", b"X-A: 1"), drips=True),
    "half bodies at the console": Attack("console", 1000, half_body),
    "endless bodies at the console": Attack(
        "console", 8, lambda number: http("POST /login", ENDLESS) + chunk(50_000) * 20, repeats=True
    ),
    "huge headers at the console": Attack("console", 8, lambda number: http("GET /", b"X-A: " + b"x" * 200_000), reconnects=True),
    "wrong log-ins": Attack("console", 16, log_in, repeats=True),
    "many sessions": Attack("console", 8, lambda number: http("GET /login", b"\r\n") * 4, reconnects=True),
    "slow requests at the metrics": Attack("metrics", 64, lambda number: http("GET /metrics", b"X-A: ")),
    "slow requests inside of TLS at the console": Attack("console", 100, lambda number: http("GET /topics", b"X-A: "), tls=True),
    "wrong log-ins inside of TLS": Attack("console", 16, log_in, repeats=True, tls=True),
}  # fmt: skip

# The attacks of a family share their servers in the short form.
FAMILIES = {
    "TLS": TLS,
    "connections": CONNECTIONS,
    "frames": FRAMES,
    "requests": REQUESTS,
    "held requests": HELD_REQUESTS,
    "name server": NAME_SERVER,
    "responses": RESPONSES,
    "HTTP": HTTP,
    "HTTP/2": HTTP2,
}
ATTACKS = {name: attack for family in FAMILIES.values() for name, attack in family.items()}
