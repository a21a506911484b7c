"""The same requests are sent to a Java broker and to ours, and the responses are compared field by field.

Both brokers have the same name, an empty store and their own name server; one client talks to each. Values that must differ (ports,
times, machine sizes) are normalized before the comparison; intended differences are listed in DIFFERENT with a reason, and in
docs/compatibility.md. An unlisted difference fails, and so does a listed one that no longer exists.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ariane.errors import ArianeError, RequestTimeout
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.records import batch, record
from ariane.testing import LocalCluster, java


class Step(NamedTuple):
    """One request.

    `records`: the response body contains records. `volatile`: members that differ in every run. `stored`: topic, queue and number
    of messages to wait for afterwards: dispatch and delays take a moment, and later answers depend on them.
    """

    name: str
    code: int
    fields: Mapping[str, str] = {}
    body: bytes = b""
    records: bool = False
    volatile: tuple[str, ...] = ()
    stored: tuple[str, int, int] | None = None


STORED_S = 60.0

TIMES = ("timestamp", "bornTimestamp", "storeTimestamp", "lastUpdateTimestamp", "lastTimestamp")


TIME_SPAN = ("minTimeStamp", "maxTimeStamp", "consumeTimeStamp", "delayTime")
TIME_SPAN += tuple(f"{name}Str" for name in TIME_SPAN)


def send(name: str, topic: str, body: bytes = b"hello", *, queue: int = 0, code: int = 310, **properties: str) -> Step:
    text = "\x02".join(f"{key}\x01{value}" for key, value in properties.items())
    fields = {
        "a": "P", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": "1700000000000", "h": "3",
        "i": text, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return Step(name, code, fields, body)


def pull(name: str, topic: str, offset: int, *, queue: int = 0, flag: int = 4, **more: str) -> Step:
    fields = {
        "consumerGroup": "G", "topic": topic, "queueId": str(queue), "queueOffset": str(offset), "maxMsgNums": "32",
        "sysFlag": str(flag), "commitOffset": "0", "suspendTimeoutMillis": "100", "subscription": "*", "subVersion": "0",
        **more,
    }  # fmt: skip
    return Step(name, 11, fields, records=True)


def ask(name: str, code: int, volatile: tuple[str, ...] = (), **fields: str) -> Step:
    return Step(name, code, fields, volatile=volatile)


def tell(name: str, code: int, body: Any, **fields: str) -> Step:
    return Step(name, code, fields, json.dumps(body).encode())


BATCH = Step(
    "send a batch", 320,
    {"a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0", "i": "WAIT\x01true",
     "j": "0", "k": "false", "m": "true"},
    batch.encode([batch.BatchEntry(0, b"m%d" % n, f"UNIQ_KEY\x01B{n}\x02KEYS\x01kb") for n in range(3)]),
)  # fmt: skip
QUEUE = {"topic": "T", "brokerName": "broker-a", "queueId": 0}
HEARTBEAT = {
    "clientID": "c1@1",
    "producerDataSet": [{"groupName": "P"}],
    "consumerDataSet": [
        {
            "groupName": "G", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False,
            "subscriptionDataSet": [
                {"topic": "T", "subString": "*", "subVersion": 5, "expressionType": "TAG", "tagsSet": [], "codeSet": []}
            ],
        }
    ],
}  # fmt: skip

STEPS = [
    # sends
    send("send", "T", KEYS="k1", TAGS="a", UNIQ_KEY="AC110001000000000000000000000001"),
    send("send to a queue", "T", queue=2, TAGS="b"),
    send("send an empty body", "T", b""),
    send("send to a queue that is none", "T", queue=9),
    send("send to no topic", ""),
    send("send to a topic with bad characters", "a/b"),
    send("send to a topic that is too long", "x" * 128),
    send("send to a system topic", "SCHEDULE_TOPIC_XXXX"),
    send("send properties that are too long", "T", k="v" * 32_760),
    send("send a body that is too long", "T", b"x" * (4 * 1024 * 1024 + 1)),
    BATCH._replace(stored=("T", 1, 3)),
    send("send to the retry topic of a group", "%RETRY%G", DELAY="1")._replace(stored=("%RETRY%G", 0, 1)),
    # pulls
    pull("pull", "T", 0),
    pull("pull the batch", "T", 0, queue=1),
    pull("pull by tag", "T", 0, queue=2, subscription="a"),
    pull("pull at the end", "T", 2),
    pull("pull behind the end", "T", 9),
    pull("pull from a queue that is none", "T", 0, queue=9),
    pull("pull from a queue without messages", "T", 0, queue=3),
    pull("pull from an unknown topic", "Nowhere", 0),
    pull("pull with the subscription of a group that is away", "T", 0, flag=0),
    pull("pull by SQL", "T", 0, expressionType="SQL92", subscription="a > 1"),
    # clients
    tell("heartbeat", 34, HEARTBEAT),
    pull("pull with the subscription of the group", "T", 0, flag=0, subVersion="5"),
    pull("pull with a newer subscription", "T", 0, flag=0, subVersion="6"),
    pull("pull a topic that the group has not", "TBW102", 0, flag=0),
    ask("members", 38, consumerGroup="G"),
    ask("members of an unknown group", 38, consumerGroup="Nobody"),
    ask("connections of a group", 203, ("clientAddr", "version", "subVersion"), consumerGroup="G"),
    ask("connections of an unknown group", 203, consumerGroup="Nobody"),
    ask("connections of producers", 204, ("clientAddr", "version"), producerGroup="P"),
    ask("connections of unknown producers", 204, producerGroup="Nobody"),
    ask("all producers", 328, ("remoteIP", "lastUpdateTimestamp", "version")),
    tell("lock", 41, {"consumerGroup": "G", "clientId": "c1@1", "mqSet": [QUEUE]}),
    tell("lock what another has", 41, {"consumerGroup": "G", "clientId": "c2@1", "mqSet": [QUEUE]}),
    tell("unlock", 42, {"consumerGroup": "G", "clientId": "c1@1", "mqSet": [QUEUE]}),
    tell(
        "check a tag subscription",
        46,
        {
            "clientId": "c1@1",
            "group": "G",
            "subscriptionData": {"topic": "T", "subString": "a", "expressionType": "TAG"},
        },
    ),
    tell(
        "check an SQL subscription",
        46,
        {
            "clientId": "c1@1",
            "group": "G",
            "subscriptionData": {"topic": "T", "subString": "a > 1", "expressionType": "SQL92"},
        },
    ),
    # offsets
    ask("offset of a group that has none", 14, consumerGroup="G", topic="T", queueId="0"),
    ask("commit an offset", 15, consumerGroup="G", topic="T", queueId="0", commitOffset="1"),
    ask("offset", 14, consumerGroup="G", topic="T", queueId="0"),
    ask("max offset", 30, topic="T", queueId="0"),
    ask("max offset of an unknown topic", 30, topic="Nowhere", queueId="0"),
    ask("min offset", 31, topic="T", queueId="0"),
    ask("offset before all times", 29, topic="T", queueId="0", timestamp="1"),
    ask("offset after all times", 29, topic="T", queueId="0", timestamp="9999999999999"),
    ask("earliest time of a queue without messages", 32, topic="T", queueId="3"),
    ask("all offsets", 43),
    ask("delay offsets", 45),
    # by id and key
    Step("record by its place", 33, {"offset": "0"}, records=True),
    ask("record at a place that is none", 33, offset="5"),
    Step(
        "query by key",
        12,
        {
            "topic": "T",
            "key": "k1",
            "maxNum": "32",
            "beginTimestamp": "0",
            "endTimestamp": "9223372036854775807",
            "_UNIQUE_KEY_QUERY": "false",
        },
        records=True,
        volatile=("indexLastUpdateTimestamp",),
    ),
    Step(
        "query by unique key",
        12,
        {
            "topic": "T",
            "key": "AC110001000000000000000000000001",
            "maxNum": "32",
            "beginTimestamp": "0",
            "endTimestamp": "9223372036854775807",
            "_UNIQUE_KEY_QUERY": "true",
        },
        records=True,
        volatile=("indexLastUpdateTimestamp",),
    ),
    ask(
        "query a key that does not exist",
        12,
        topic="T",
        key="none",
        maxNum="32",
        beginTimestamp="0",
        endTimestamp="9223372036854775807",
        _UNIQUE_KEY_QUERY="false",
    ),
    # topics and groups
    ask(
        "create a topic",
        17,
        topic="New",
        defaultTopic="TBW102",
        readQueueNums="3",
        writeQueueNums="2",
        perm="6",
        topicFilterType="SINGLE_TAG",
        topicSysFlag="0",
        order="false",
    ),
    ask(
        "create a system topic",
        17,
        topic="TBW102",
        defaultTopic="TBW102",
        readQueueNums="3",
        writeQueueNums="2",
        perm="6",
        topicFilterType="SINGLE_TAG",
    ),
    ask(
        "create a topic with bad characters",
        17,
        topic="a/b",
        defaultTopic="TBW102",
        readQueueNums="3",
        writeQueueNums="2",
        perm="6",
        topicFilterType="SINGLE_TAG",
    ),
    tell("create a group", 200, {"groupName": "G2", "retryMaxTimes": 3, "consumeEnable": True}),
    ask("all topics", 21, ("counter", "timestamp")),
    ask("all groups", 201, ("counter", "timestamp")),
    ask("topic statistics", 202, ("lastUpdateTimestamp",), topic="T"),
    ask("topic statistics of an unknown topic", 202, topic="Nowhere"),
    ask("consume statistics", 208, ("lastTimestamp", "consumeTps"), consumerGroup="G"),
    ask("consume statistics of an unknown group", 208, consumerGroup="Nobody"),
    ask(
        "consume statistics of all groups",
        317,
        ("lastTimestamp", "consumeTps", "totalDiff", "brokerAddr"),
        isOrder="false",
    ),
    ask("time span", 303, TIME_SPAN, topic="T", group="G"),
    ask("who consumes a topic", 300, topic="T"),
    ask("system topics", 305),
    ask("statistics that are none", 315, statsName="TOPIC_PUT_NUMS", statsKey="Nowhere"),
    ask("consume queue", 321, topic="T", queueId="0", index="0", count="10", consumerGroup="G"),
    ask("consume queue beyond its end", 321, topic="T", queueId="0", index="99", count="10"),
    ask("correction of offsets", 308, topic="T", compareGroup="G"),
    ask("clone offsets", 314, srcGroup="G", destGroup="G3", topic="T", offline="false"),
    ask("offset of the clone", 14, consumerGroup="G3", topic="T", queueId="0"),
    ask("clean expired queues", 306),
    ask("clean unused topics", 316),
    ask("delete expired log files", 329),
    ask("register a filter server", 301, filterServerAddr="127.0.0.1:1"),
    # through the broker to a client
    ask("running info of a client that is away", 307, consumerGroup="G", clientId="nobody@1", jstackEnable="false"),
    ask(
        "consume directly at a client that is away",
        309,
        consumerGroup="G",
        clientId="nobody@1",
        msgId="7F00000100002A9F0000000000000000",
        brokerName="broker-a",
    ),
    ask("reset offsets of a group that is away", 222, topic="T", group="Nobody", timestamp="1", isForce="true"),
    ask("status of a group that is away", 223, topic="T", group="Nobody"),
    # retries, transactions
    ask(
        "send back",
        36,
        offset="0",
        group="G",
        delayLevel="1",
        originMsgId="x",
        originTopic="T",
        unitMode="false",
        maxReconsumeTimes="16",
    )._replace(stored=("%RETRY%G", 0, 2)),
    ask("send back what is not there", 36, offset="5", group="G", delayLevel="1"),
    pull("pull what was said of moved offsets", "OFFSET_MOVED_EVENT", 0)._replace(volatile=("born",)),
    pull("pull what is delayed", "SCHEDULE_TOPIC_XXXX", 0),
    send("half message", "T", TRAN_MSG="true", PGROUP="P", UNIQ_KEY="H1"),
    pull("pull half messages", "RMQ_SYS_TRANS_HALF_TOPIC", 0),
    ask(
        "end a transaction of another group",
        37,
        producerGroup="Other",
        tranStateTableOffset="0",
        commitLogOffset="0",
        commitOrRollback="8",
        fromTransactionCheck="false",
        msgId="H1",
    ),
    ask("resume the check of a record other than a half message", 323, msgId="7F00000100002A9F0000000000000000"),
    # settings, ACL
    ask("update an ACL account without ACL", 50, accessKey="a", secretKey="12345678", admin="false"),
    ask("delete an ACL account without ACL", 51, accessKey="a"),
    ask("white addresses without ACL", 53, globalWhiteAddrs="127.0.0.1"),
    # leaving
    ask("leave", 35, clientID="c1@1", producerGroup="P", consumerGroup="G"),
    ask("members after leaving", 38, consumerGroup="G"),
    ask("delete a group", 207, groupName="G2", removeOffset="true"),
    ask("delete a topic", 215, topic="New"),
    *(ask(f"code {code}, which nobody serves", code) for code in (13, 22, 23, 27, 209, 210, 211, 212, 213, 214, 9999)),
]

# Steps whose answers differ on purpose: what differs, and why.
DIFFERENT: dict[str, tuple[str, str]] = {
    "query by key": ("truncated None → 'false'", "the answer says whether it was cut"),
    "query by unique key": ("truncated None → 'false'", "the answer says whether it was cut"),
    "query a key that does not exist": (
        "indexLastUpdatePhyoffset",
        "tells how far the index is, as when something is found",
    ),
    "all topics": ("rmq_sys_wheel_timer", "the topic of timers"),
    "system topics": ("rmq_sys_wheel_timer", "the topic of timers"),
    "consume queue": ("'eval': True", "tells what the group's filter says of every entry"),
    "consume queue beyond its end": ("maxQueueIndex", "an index out of range is answered with the queue's bounds"),
    "pull half messages": ("code 17 → 0", "the half topic is there from the start, not from the first check round on"),
    "resume the check of a record other than a half message": ("code 0 → 1", "only half messages are checked again"),
}


class Answer(NamedTuple):
    """Return the response in a form that is comparable between two servers."""

    code: int | str
    fields: dict[str, str] | None
    body: Any


@contextlib.contextmanager
def java_broker(home: Path) -> Iterator[str]:
    with java.name_server(home / "namesrv") as names, java.broker(home / "broker", names.addr) as broker:
        yield broker.addr


@contextlib.contextmanager
def our_broker(home: Path) -> Iterator[str]:
    with LocalCluster(home) as servers:
        yield servers.broker.addr


async def answers(addr: str) -> dict[str, Answer]:
    results = {}
    async with ConnectionPool() as peers:
        for step in STEPS:
            results[step.name] = await answer(peers, addr, step)
            if step.stored is not None:
                await until_stored(peers, addr, *step.stored)
    return results


async def until_stored(peers: ConnectionPool, addr: str, topic: str, queue: int, count: int) -> None:
    """Wait until the queue has so many messages."""
    connection = await peers.connect(addr)
    async with asyncio.timeout(STORED_S):
        while True:
            end = await connection.request(30, {"topic": topic, "queueId": str(queue)}, b"", timeout_ms=5000)
            if int(end.field_map().get("offset", 0)) >= count:
                return
            await asyncio.sleep(0.05)


async def answer(peers: ConnectionPool, addr: str, step: Step) -> Answer:
    connection = await peers.connect(addr)
    try:
        result = await connection.request(step.code, dict(step.fields), step.body, timeout_ms=5000)
    except RequestTimeout:
        return Answer("no answer", None, None)
    except ArianeError as error:
        return Answer(type(error).__name__, None, None)
    port = addr.rpartition(":")[2]
    fields = result.field_map()
    kept = {name: _same(value, port) for name, value in fields.items() if name not in step.volatile}
    return Answer(result.code, kept, _body(result.body, step, port) if result.body else None)


def _body(data: bytes, step: Step, port: str) -> Any:
    if step.records:
        with contextlib.suppress(ArianeError):
            records = [_record(stored_record, port) for stored_record in record.decode_all(data)]
            return [
                {name: value for name, value in stored_record.items() if name not in step.volatile}
                for stored_record in records
            ]
    try:
        return _plain(fastjson.read(data), step.volatile, port)
    except ArianeError:
        return sorted(_same(data.decode(), port).splitlines())


def _record(one: record.Record, port: str) -> dict[str, Any]:
    properties = {name: _same(value, port) for name, value in one.property_map().items()}
    return {
        "topic": one.topic, "queue": one.queue_id, "number": one.queue_offset, "at": one.offset, "size": one.size,
        "flag": one.flag, "sys flag": one.sys_flag, "born": one.born_ms, "body": one.body, "crc": one.body_crc,
        "reconsumed": one.reconsume_times, "prepared": one.prepared_offset, "properties": properties,
    }  # fmt: skip


def _plain(value: Any, volatile: tuple[str, ...], port: str) -> Any:
    if isinstance(value, dict):
        return {
            _same(str(key), port): _plain(item, volatile, port) for key, item in value.items() if key not in volatile
        }
    if isinstance(value, list):
        return sorted((_plain(item, volatile, port) for item in value), key=repr)
    return _same(value, port) if isinstance(value, str) else value


def _same(text: str, port: str) -> str:
    """Replace ports, and message ids that contain them, by constants."""
    text = text.replace(f":{port}", ":PORT")
    return re.sub(rf"7F000001{int(port):08X}", "7F000001PORT", text)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Answer], dict[str, Answer]]:
    home = tmp_path_factory.mktemp("differential")
    with java_broker(home / "java") as theirs:
        expected = asyncio.run(answers(theirs))
    with our_broker(home / "ours") as ours:
        result = asyncio.run(answers(ours))
    return expected, result


def difference(expected: Answer, got: Answer) -> str:
    """Return a description of the differences; empty if there are none."""
    results = []
    if expected.code != got.code:
        results.append(f"code {expected.code} → {got.code}")
    for name in sorted({*(expected.fields or {}), *(got.fields or {})}):
        pair = (expected.fields or {}).get(name), (got.fields or {}).get(name)
        if pair[0] != pair[1]:
            results.append(f"{name} {pair[0]!r} → {pair[1]!r}")
    if expected.body != got.body:
        results.append(f"body {expected.body!r} → {got.body!r}")
    return "; ".join(results)


@pytest.mark.parametrize("name", [step.name for step in STEPS])
def test_responses_match_java(name: str, both: tuple[dict[str, Answer], dict[str, Answer]]) -> None:
    result = difference(both[0][name], both[1][name])
    if name in DIFFERENT:
        assert result, f"no longer different: take {name!r} out of DIFFERENT and of docs/compatibility.md"
        assert re.search(DIFFERENT[name][0], result), result
    else:
        assert not result, result


def test_every_difference_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs/compatibility.md").read_text()
    for name, (_, reason) in DIFFERENT.items():
        assert f"| {name} |" in text, f"{name}: {reason}"
