"""The same admin requests to a Java 4.9.4 broker and to ours return the same responses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ariane.net.connection import Connection
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.clients import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from ariane.protocol.requests.messaging import SendMessage, UpdateConsumerOffset
from ariane.testing import AsyncLocalCluster, java


def table(body: bytes) -> Any:
    return fastjson.read(body)


def entries(body: bytes) -> Any:
    """A Java broker returns filter results of an entry only if extended consume queues are enabled."""
    result = fastjson.read(body)
    passing = [item.pop("eval") for item in result["queueData"]]
    assert not any(passing) or "subscriptionData" in result
    return result


def producers(body: bytes) -> Any:
    result = fastjson.read(body)
    for item in result["data"]["P"]:
        assert item.pop("remoteIP").startswith("/127.0.0.1:")
        assert item.pop("lastUpdateTimestamp") > 1_600_000_000_000
    return result


Shape = Callable[[bytes], Any]

# Code, extFields, what of the body has to be the same.
QUESTIONS: list[tuple[RequestCode, dict[str, str], Shape]] = [
    (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"}, lambda body: sorted(table(body)["groupList"])),
    (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "None"}, table),
    (RequestCode.GET_ALL_DELAY_OFFSET, {}, table),
    (RequestCode.GET_ALL_PRODUCER_INFO, {}, producers),
    (RequestCode.QUERY_CORRECTION_OFFSET, {"topic": "T", "compareGroup": "Slow"}, table),
    (RequestCode.QUERY_CORRECTION_OFFSET, {"topic": "T", "compareGroup": "G"}, table),
    (RequestCode.QUERY_CONSUME_QUEUE, {"topic": "T", "queueId": "0", "index": "1", "count": "2"}, entries),
    (RequestCode.QUERY_CONSUME_QUEUE,
     {"topic": "T", "queueId": "0", "index": "0", "count": "9", "consumerGroup": "G"}, entries),
    (RequestCode.QUERY_CONSUME_QUEUE,
     {"topic": "T", "queueId": "0", "index": "0", "count": "1", "consumerGroup": "Away"}, entries),
    (RequestCode.QUERY_CONSUME_QUEUE, {"topic": "T", "queueId": "9", "index": "0", "count": "1"}, lambda body: body),
    (RequestCode.CLONE_GROUP_OFFSET,
     {"srcGroup": "G", "destGroup": "H", "topic": "T", "offline": "true"}, lambda body: body),
    (RequestCode.GET_ALL_CONSUMER_OFFSET, {}, table),
    (RequestCode.REGISTER_FILTER_SERVER, {"filterServerAddr": "127.0.0.1:1"}, lambda body: body),
    (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, {}, lambda body: body),
    (RequestCode.CLEAN_UNUSED_TOPIC, {}, lambda body: body),
]  # fmt: skip


async def asked(connection: Connection, code: int, header: dict[str, str], body: bytes = b"") -> Command:
    return await connection.request(code, header, body, timeout_ms=5000)


async def prepare(connection: Connection) -> None:
    """Send tagged messages, start an online group and commit offsets of two groups."""
    for tag in ("a", "b", "a"):
        header = SendMessage("P", "T", "TBW102", 4, 0, 0, 1, 0, f"TAGS\x01{tag}\x02WAIT\x01true")
        sent = await asked(connection, RequestCode.SEND_MESSAGE_V2, encode_header(header), b"body")
        assert sent.code == 0, sent.remark
    subscription = SubscriptionData(
        topic="T", sub_string="a", code_set=frozenset({97}), tags_set=frozenset({"a"}), sub_version=7
    )
    consumer = ConsumerData(group_name="G", subscription_data_set=(subscription,))
    beat = HeartbeatData("client-1", (consumer,), (ProducerData("P"),))
    await asked(connection, RequestCode.HEART_BEAT, {}, fastjson.write(beat))
    for group, offset in (("G", 2), ("Slow", 1), ("Other", 3)):
        await asked(
            connection, RequestCode.UPDATE_CONSUMER_OFFSET, encode_header(UpdateConsumerOffset(group, "T", 0, offset))
        )
    await asyncio.sleep(0.5)  # a Java broker lists a message in its queue a moment after it has answered


def test_administration_responses_match_java(tmp_path: Path) -> None:
    async def work(addr: str) -> None:
        async with AsyncLocalCluster(tmp_path / "ours") as servers, ConnectionPool() as peers:
            theirs, ours = await peers.connect(addr), await peers.connect(servers.broker.addr)
            await prepare(theirs)
            await prepare(ours)
            for code, header, shape in QUESTIONS:
                expected, answer = await asked(theirs, code, header), await asked(ours, code, header)
                reported = (code.name, header)
                assert (reported, answer.code, answer.field_map()) == (reported, expected.code, expected.field_map())
                assert (reported, bool(answer.body)) == (reported, bool(expected.body))
                assert (reported, shape(answer.body)) == (reported, shape(expected.body))
            known, reported = (
                await asked(theirs, RequestCode.GET_BROKER_CONFIG, {}),
                await asked(ours, RequestCode.GET_BROKER_CONFIG, {}),
            )
            versions = [json.loads(request.field_map()["version"]).keys() for request in (known, reported)]
            assert versions[0] == versions[1]

    with java.name_server(tmp_path / "ns") as ns, java.broker(tmp_path / "java", ns.addr) as broker:
        asyncio.run(asyncio.wait_for(work(broker.addr), 120))
