"""The broker over its socket: the responses that clients rely on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BrokerConfig
from ariane.model import ids
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.net.connection import Peer, Reply
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import batch, properties, record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.admin import CreateTopic, TopicRef
from ariane.protocol.requests.clients import (
    ConsumerData,
    ConsumerList,
    GroupRef,
    HeartbeatData,
    LockBatch,
    LockBatchResponse,
    SubscriptionData,
    UnregisterClient,
    WireQueue,
)
from ariane.protocol.requests.messaging import (
    COMMIT_OFFSET,
    SUBSCRIPTION,
    SUSPEND,
    OffsetResponse,
    PullMessage,
    PullMessageResponse,
    QueryConsumerOffset,
    QueueRef,
    SearchOffset,
    SendMessage,
    SendMessageResponse,
    UpdateConsumerOffset,
    ViewMessage,
)
from ariane.protocol.requests.routing import RouteRequest

SMALL = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20_000}


def config(path: Path, **settings: object) -> BrokerConfig:
    values = {**SMALL, "broker_name": "broker-a", "broker_ip1": "127.0.0.1", "listen_port": 0, **settings}
    return BrokerConfig(store_path_root_dir=str(path), namesrv_addr="", **values)  # type: ignore[arg-type]


class Client:
    """Client of one broker that sends single requests."""

    def __init__(self, peers: ConnectionPool, addr: str) -> None:
        self.addr = addr
        self._peers = peers

    async def call(self, code: int, header: object = None, body: bytes = b"", timeout_ms: float = 3000) -> Command:
        return await self._peers.request(self.addr, code, header, body, timeout_ms=timeout_ms)  # type: ignore[arg-type]

    async def send(self, topic: str = "T", body: bytes = b"hello", queue_id: int = 0, **own: str) -> Command:
        header = SendMessage("P", topic, "TBW102", 4, queue_id, 0, 1234, 7, properties.encode(own) if own else None)
        return await self.call(RequestCode.SEND_MESSAGE_V2, header, body)

    async def pull(
        self,
        offset: int = 0,
        *,
        topic: str = "T",
        queue_id: int = 0,
        flag: int = SUBSCRIPTION,
        expression: str | None = "*",
        hold_ms: int = 0,
        commit: int = 0,
        most: int = 32,
    ) -> Command:
        header = PullMessage("G", topic, queue_id, offset, most, flag, commit, hold_ms, expression, 0, None)
        return await self.call(RequestCode.PULL_MESSAGE, header, timeout_ms=hold_ms + 3000)

    async def heartbeat(self, client_id: str, *topics: SubscriptionData) -> Command:
        data = HeartbeatData(client_id, (ConsumerData(group_name="G", subscription_data_set=topics),))
        return await self.call(RequestCode.HEART_BEAT, body=fastjson.write(data))


def against_broker(
    settings: BrokerConfig,
    work: Callable[[Client], Awaitable[None]],
    handlers: dict[int, Callable[[Command, Peer], Reply | None]] | None = None,
) -> None:
    async def run() -> None:
        async with Broker(settings) as broker, ConnectionPool(handlers or {}) as peers:
            await work(Client(peers, broker.addr))

    asyncio.run(asyncio.wait_for(run(), 60))


def bodies(answer: Command) -> list[bytes]:
    return [stored_record.body for stored_record in record.decode_all(answer.body)]


def test_a_message_is_stored_and_pulled_unchanged(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        sent = await client.send(KEYS="k1", TAGS="a", UNIQ_KEY="U", WAIT="true")
        assert sent.code == 0
        placed = decode_header(sent, SendMessageResponse)
        assert (placed.queue_id, placed.queue_offset, placed.region, placed.trace_on) == (0, 0, "DefaultRegion", True)
        assert ids.parse_offset_message_id(placed.message_id) == (client.addr, 0)
        answer = await client.pull()
        assert decode_header(answer, PullMessageResponse) == PullMessageResponse(0, 1, 0, 1)
        assert (answer.code, answer.remark) == (0, "FOUND")
        (item,) = record.decode_all(answer.body)
        assert (item.body, item.topic, item.flag, item.born_ms) == (b"hello", "T", 7, 1234)
        assert item.property_map() == {"KEYS": "k1", "TAGS": "a", "UNIQ_KEY": "U", "CLUSTER": "DefaultCluster"}

    against_broker(config(tmp_path), work)


def test_code_10_with_long_header_names_sends_a_message(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        connection = await client._peers.connect(client.addr)
        header = {
            "producerGroup": "P", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "3",
            "sysFlag": "0", "bornTimestamp": "5", "flag": "0", "properties": "TAGS\x01x",
        }  # fmt: skip
        sent = await connection.request(RequestCode.SEND_MESSAGE, header, b"long", timeout_ms=3000)
        assert (sent.code, decode_header(sent, SendMessageResponse).queue_id) == (0, 3)
        assert bodies(await client.pull(queue_id=3)) == [b"long"]

    against_broker(config(tmp_path), work)


def test_a_batch_is_stored_at_consecutive_offsets(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        entries = [batch.BatchEntry(number, b"m%d" % number, f"UNIQ_KEY\x01U{number}") for number in range(3)]
        header = SendMessage("P", "T", "TBW102", 4, 1, 0, 9, 0, "WAIT\x01true", batch=True)
        sent = await client.call(RequestCode.SEND_BATCH_MESSAGE, header, batch.encode(entries))
        answer = decode_header(sent, SendMessageResponse)
        assert (sent.code, answer.queue_offset, len(answer.message_id.split(","))) == (0, 0, 3)
        records = list(record.decode_all((await client.pull(queue_id=1)).body))
        assert [(stored_record.body, stored_record.flag, stored_record.queue_offset) for stored_record in records] == [
            (b"m0", 0, 0),
            (b"m1", 1, 1),
            (b"m2", 2, 2),
        ]
        assert records[2].property_map() == {"UNIQ_KEY": "U2", "CLUSTER": "DefaultCluster", "WAIT": "true"}

    against_broker(config(tmp_path), work)


def test_a_batch_that_repeats_long_properties_too_often_is_refused_before_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    join = properties.join

    def counted(property_map: dict[str, str]) -> str:
        built.append(len(property_map))
        return join(property_map)

    monkeypatch.setattr(properties, "join", counted)

    async def work(client: Client) -> None:
        for text, code in (
            ("name\x01" + "x" * 30_000, ResponseCode.MESSAGE_ILLEGAL),
            ("name\x01x", ResponseCode.SUCCESS),
        ):
            header = SendMessage("P", "T", "TBW102", 4, 1, 0, 9, 0, text, batch=True)
            body = batch.encode([batch.BatchEntry(0, b"", "")] * 3000)
            sent = await client.call(RequestCode.SEND_BATCH_MESSAGE, header, body)
            assert sent.code == code
            if code:
                assert "with the properties of the request" in (sent.remark or "")
                assert len(built) < 10

    against_broker(config(tmp_path), work)


@pytest.mark.parametrize(
    ("topic", "body", "queue_id", "own", "code"),
    [
        ("a/b", b"x", 0, {}, ResponseCode.SYSTEM_ERROR),
        ("", b"x", 0, {}, ResponseCode.SYSTEM_ERROR),
        ("T", b"x", 99, {}, ResponseCode.SYSTEM_ERROR),
        ("SCHEDULE_TOPIC_XXXX", b"x", 0, {}, ResponseCode.NO_PERMISSION),
        ("T", b"x" * (4 * 1024 * 1024 + 1), 0, {}, ResponseCode.MESSAGE_ILLEGAL),
        ("T", b"x", 0, {"k": "v" * 32767}, ResponseCode.MESSAGE_ILLEGAL),
        ("T", b"x", 0, {"DELAY": "x"}, ResponseCode.MESSAGE_ILLEGAL),
        ("T", b"x", 0, {"__STARTDELIVERTIME": "9999999999999"}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
def test_invalid_messages_are_rejected_with_a_reason(
    tmp_path: Path, topic: str, body: bytes, queue_id: int, own: dict[str, str], code: int
) -> None:
    async def work(client: Client) -> None:
        answer = await client.send(topic, body, queue_id, **own)
        assert answer.code == code
        assert answer.remark
        assert answer.field_map()["TRACE_ON"] == "true"

    against_broker(config(tmp_path, mapped_file_size_commit_log=1 << 24), work)


def test_an_unknown_topic_is_named_when_auto_creation_is_disabled(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        answer = await client.send("New")
        assert (answer.code, "New" in (answer.remark or "")) == (ResponseCode.TOPIC_NOT_EXIST, True)
        assert (await client.pull(topic="New")).code == ResponseCode.TOPIC_NOT_EXIST

    against_broker(config(tmp_path, auto_create_topic_enable=False), work)


def test_a_missing_header_field_is_reported_by_name(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        answer = await client.call(RequestCode.GET_MAX_OFFSET, TopicRef("T"))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "queueId" in (answer.remark or "")

    against_broker(config(tmp_path), work)


def test_a_pull_waits_until_a_matching_message_arrives(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.send(TAGS="other")
        pending = asyncio.ensure_future(
            client.pull(1, flag=SUBSCRIPTION | SUSPEND, expression="a || b", hold_ms=20_000)
        )
        await asyncio.sleep(0)  # the pull is sent first: it would not wait after a message that does not match
        await client.send(TAGS="other", body=b"no")
        await asyncio.sleep(0.05)
        assert not pending.done()
        await client.send(TAGS="b", body=b"yes")
        answer = await asyncio.wait_for(pending, 5)
        assert (answer.code, bodies(answer)) == (0, [b"yes"])
        assert decode_header(answer, PullMessageResponse).next_begin_offset == 3

    against_broker(config(tmp_path), work)


def test_a_pending_pull_is_answered_after_its_timeout(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.send()
        answer = await client.pull(1, flag=SUBSCRIPTION | SUSPEND, hold_ms=50)
        assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE")

    against_broker(config(tmp_path), work)


@pytest.mark.parametrize(
    ("offset", "code", "next_offset"),
    [(1, ResponseCode.PULL_NOT_FOUND, 1), (9, ResponseCode.PULL_OFFSET_MOVED, 1)],
)
def test_an_offset_beyond_the_end_is_corrected(tmp_path: Path, offset: int, code: int, next_offset: int) -> None:
    async def work(client: Client) -> None:
        await client.send()
        answer = await client.pull(offset)
        assert (answer.code, decode_header(answer, PullMessageResponse).next_begin_offset) == (code, next_offset)
        moved = bodies(await client.pull(0, topic="OFFSET_MOVED_EVENT"))
        reported = [json.loads(body) for body in moved]
        assert [item["offsetRequest"] for item in reported] == ([9] if offset == 9 else [])

    against_broker(config(tmp_path), work)


def test_a_pull_without_a_matching_tag_returns_pull_retry_immediately(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.send(TAGS="a")
        answer = await client.pull(expression="b")
        assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
        assert decode_header(answer, PullMessageResponse).next_begin_offset == 1

    against_broker(config(tmp_path), work)


def test_a_pull_returns_at_least_one_and_at_most_the_requested_messages(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        for number in range(40):
            await client.send(body=b"%d" % number)
        await client.send(body=b"x" * 300_000)
        assert len(bodies(await client.pull(most=5))) == 5
        assert len(bodies(await client.pull(most=100))) == 32
        assert bodies(await client.pull(40)) == [b"x" * 300_000]

    against_broker(config(tmp_path, max_transfer_count_on_message_in_memory=32), work)


def test_a_pull_without_a_subscription_requires_an_online_group(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.send()
        assert (await client.pull(flag=0)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await client.heartbeat("c1", SubscriptionData(topic="U", sub_version=1))
        assert (await client.pull(flag=0)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await client.heartbeat("c1", SubscriptionData(topic="T", sub_version=1))
        assert bodies(await client.pull(flag=0)) == [b"hello"]
        newer = PullMessage("G", "T", 0, 0, 32, 0, sub_version=2)
        assert (await client.call(RequestCode.PULL_MESSAGE, newer)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST

    against_broker(config(tmp_path), work)


def test_offsets_survive_a_restart(tmp_path: Path) -> None:
    ask = QueryConsumerOffset("G", "T", 0)

    async def commit(client: Client) -> None:
        for _ in range(3):
            await client.send()
        assert decode_header(await client.call(RequestCode.QUERY_CONSUMER_OFFSET, ask), OffsetResponse).offset == 0
        await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("G", "T", 0, 1))
        await client.pull(2, flag=SUBSCRIPTION | COMMIT_OFFSET, commit=2)

    async def look(client: Client) -> None:
        assert decode_header(await client.call(RequestCode.QUERY_CONSUMER_OFFSET, ask), OffsetResponse).offset == 2
        assert len(bodies(await client.pull())) == 3

    against_broker(config(tmp_path), commit)
    assert json.loads((tmp_path / "config" / "topics.json").read_text())["topicConfigTable"]["T"]["writeQueueNums"] == 4
    against_broker(config(tmp_path), look)


def test_queue_bounds_and_offsets_by_time(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        for _ in range(3):
            await client.send()
        queue = QueueRef("T", 0)
        assert decode_header(await client.call(RequestCode.GET_MAX_OFFSET, queue), OffsetResponse).offset == 3
        assert decode_header(await client.call(RequestCode.GET_MIN_OFFSET, queue), OffsetResponse).offset == 0
        assert (
            decode_header(await client.call(RequestCode.GET_MAX_OFFSET, QueueRef("none", 0)), OffsetResponse).offset
            == 0
        )
        late = SearchOffset("T", 0, 2**50)
        assert (
            decode_header(await client.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, late), OffsetResponse).offset == 2
        )
        earliest = await client.call(RequestCode.GET_EARLIEST_MSG_STORETIME, queue)
        assert int(earliest.field_map()["timestamp"]) > 0
        none = await client.call(RequestCode.GET_EARLIEST_MSG_STORETIME, QueueRef("T", 3))
        assert none.field_map() == {"timestamp": "-1"}

    against_broker(config(tmp_path), work)


def test_a_message_is_viewed_only_by_the_exact_offset_in_its_id(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.send()
        sent = decode_header(await client.send(body=b"second"), SendMessageResponse)
        _, offset = ids.parse_offset_message_id(sent.message_id)
        result = await client.call(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(offset))
        assert record.decode(result.body).body == b"second"
        for wrong in (offset + 1, -1, 2**40):
            answer = await client.call(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(wrong))
            assert answer.code == ResponseCode.SYSTEM_ERROR

    against_broker(config(tmp_path), work)


def test_members_are_notified_when_a_consumer_joins_or_leaves(tmp_path: Path) -> None:
    reported: list[str] = []

    def notified(command: Command, peer: Peer) -> None:
        reported.append(decode_header(command, GroupRef).consumer_group)

    async def work(client: Client) -> None:
        subscription = SubscriptionData(topic="T", sub_version=1)
        await client.heartbeat("c1", subscription)
        async with ConnectionPool() as others:
            second = Client(others, client.addr)
            await second.heartbeat("c2", subscription)
            answer = await client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupRef("G"))
            assert fastjson.decode(answer.body, ConsumerList).consumer_id_list == ("c1", "c2")
        while len(reported) < 3:
            await asyncio.sleep(0.01)
        answer = await client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupRef("G"))
        assert fastjson.decode(answer.body, ConsumerList).consumer_id_list == ("c1",)
        await client.call(RequestCode.UNREGISTER_CLIENT, UnregisterClient("c1", None, "G"))
        answer = await client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupRef("G"))
        assert answer.code == ResponseCode.SYSTEM_ERROR

    against_broker(config(tmp_path), work, {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: notified})
    assert set(reported) == {"G"}


def test_a_queue_is_locked_by_one_client(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        queue = WireQueue("broker-a", 0, "T")
        response = await client.call(RequestCode.LOCK_BATCH_MQ, body=fastjson.write(LockBatch("c1", "G", (queue,))))
        assert fastjson.decode(response.body, LockBatchResponse).locked == (queue,)
        other = fastjson.write(LockBatch("c2", "G", (queue,)))
        assert (
            fastjson.decode((await client.call(RequestCode.LOCK_BATCH_MQ, body=other)).body, LockBatchResponse).locked
            == ()
        )
        await client.call(RequestCode.UNLOCK_BATCH_MQ, body=fastjson.write(LockBatch("c1", "G", (queue,))))
        repeated = await client.call(RequestCode.LOCK_BATCH_MQ, body=other)
        assert fastjson.decode(repeated.body, LockBatchResponse).locked == (queue,)

    against_broker(config(tmp_path), work)


def test_tools_create_and_delete_a_topic(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        header = CreateTopic("Made", "TBW102", 2, 2, 6)
        assert (await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == 0
        assert (await client.send("Made", queue_id=1)).code == 0
        assert (await client.send("Made", queue_id=2)).code == ResponseCode.SYSTEM_ERROR
        assert (await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRef("Made"))).code == 0
        assert (await client.pull(topic="Made", queue_id=1)).code == ResponseCode.TOPIC_NOT_EXIST
        for own in ("TBW102", "broker-a", "../x"):
            answer = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRef(own))
            assert answer.code == ResponseCode.SYSTEM_ERROR

    against_broker(config(tmp_path), work)


def test_with_sync_flush_concurrent_sends_share_a_flush_and_are_readable_once_answered(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        answers = await asyncio.gather(*(client.send(body=b"%d" % number) for number in range(64)))
        assert {answer.code for answer in answers} == {0}
        assert len(bodies(await client.pull(most=64))) == 64

    against_broker(config(tmp_path, flush_disk_type="SYNC_FLUSH"), work)


def test_with_sync_flush_a_one_way_message_is_flushed_and_readable(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        assert (await client.send(WAIT="false")).code == 0
        assert bodies(await client.pull(flag=SUBSCRIPTION | SUSPEND, hold_ms=2000)) == [b"hello"]

    against_broker(config(tmp_path, flush_disk_type="SYNC_FLUSH"), work)


def test_the_broker_registers_with_every_running_name_server(tmp_path: Path) -> None:
    def name_server(name: str) -> NameServer:
        settings = NameServerConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / name))
        return NameServer(settings)

    async def run() -> None:
        async with name_server("a") as first, name_server("b") as second, ConnectionPool() as peers:
            addrs = ["127.0.0.1:1", first.addr, second.addr]
            settings = msgspec.structs.replace(config(tmp_path / "store"), namesrv_addr=";".join(addrs))
            async with Broker(settings) as broker:
                await Client(peers, broker.addr).send("New")
                for addr in addrs[1:]:
                    route = RouteRequest("New")
                    while (await peers.request(addr, RequestCode.GET_ROUTEINFO_BY_TOPIC, route)).code:
                        await asyncio.sleep(0.01)
            for addr in addrs[1:]:
                gone = await peers.request(addr, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest("New"))
                assert gone.code == ResponseCode.TOPIC_NOT_EXIST

    asyncio.run(asyncio.wait_for(run(), 30))


def test_properties_are_stored_unchanged_even_with_a_separator_in_a_value(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        header = SendMessage("P", "T", "TBW102", 4, 0, 0, 1, 0, "odd\x01a\x01b\x02k\x01v\x02")
        assert (await client.call(RequestCode.SEND_MESSAGE_V2, header, b"x")).code == 0
        (item,) = record.decode_all((await client.pull()).body)
        assert item.property_map() == {"odd": "a\x01b", "k": "v", "CLUSTER": "DefaultCluster"}

    against_broker(config(tmp_path), work)
