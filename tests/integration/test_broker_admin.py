"""Administration of a broker over its socket: settings at run time, queues, offsets, cleaning."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BrokerConfig
from ariane.errors import ConnectionLost
from ariane.model.topic import SubscriptionGroupConfig
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson, java_properties
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import properties
from ariane.protocol.requests.admin import CreateTopic, DelayOffsetTable, GroupName, TopicRef
from ariane.protocol.requests.brokers import (
    CloneOffsets,
    Corrections,
    FilterServer,
    GroupList,
    ProducerTable,
    QueryCorrection,
    QueryQueue,
    QueueEntries,
)
from ariane.protocol.requests.clients import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from ariane.protocol.requests.messaging import (
    QueryConsumerOffset,
    QueueRef,
    SendMessage,
    UpdateConsumerOffset,
)
from ariane.protocol.requests.routing import RouteRequest, TopicList

SMALL = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 20_000}


def config(path: Path, **settings: object) -> BrokerConfig:
    values = {**SMALL, "broker_name": "broker-a", "broker_ip1": "127.0.0.1", "listen_port": 0, **settings}
    return BrokerConfig(
        store_path_root_dir=str(path),
        bind_address="127.0.0.1",
        **{"namesrv_addr": "", **values},  # type: ignore[arg-type]
    )


class Client:
    def __init__(self, peers: ConnectionPool, addr: str) -> None:
        self.addr = addr
        self.peers = peers

    async def call(self, code: int, header: object = None, body: bytes = b"") -> Command:
        return await self.peers.request(self.addr, code, header, body, timeout_ms=5000)  # type: ignore[arg-type]

    async def ok(self, code: int, header: object = None, body: bytes = b"") -> Command:
        answer = await self.call(code, header, body)
        assert answer.code == 0, answer.remark
        return answer

    async def send(self, topic: str = "T", queue_id: int = 0, body: bytes = b"x", **own: str) -> Command:
        header = SendMessage("P", topic, "TBW102", 4, queue_id, 0, 1, 0, properties.encode(own) if own else None)
        return await self.call(RequestCode.SEND_MESSAGE_V2, header, body)

    async def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        await self.ok(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset(group, topic, queue_id, offset))

    async def offset(self, group: str, topic: str, queue_id: int) -> int | None:
        answer = await self.call(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffset(group, topic, queue_id))
        return int(answer.field_map()["offset"]) if answer.code == 0 else None

    async def update(self, text: str) -> Command:
        return await self.call(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())

    async def settings(self) -> tuple[dict[str, str], dict[str, int]]:
        answer = await self.ok(RequestCode.GET_BROKER_CONFIG)
        return java_properties.parse(answer.body.decode()), json.loads(answer.field_map()["version"])


def against_broker(
    settings: BrokerConfig, work: Callable[[Client], Awaitable[None]], config_file: Path | None = None
) -> None:
    async def run() -> None:
        file = str(config_file) if config_file else None
        async with Broker(settings, config_file=file) as broker, ConnectionPool() as peers:
            await work(Client(peers, broker.addr))

    asyncio.run(asyncio.wait_for(run(), 60))


def test_settings_change_at_run_time_and_are_saved(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# mine\nbrokerName=broker-a\ntraceOn=true\n")

    async def work(client: Client) -> None:
        settings_text, version = await client.settings()
        assert (settings_text["traceOn"], version["counter"]) == ("true", 0)
        assert (await client.update("traceOn=false\nmaxMessageSize=4\nautoCreateSubscriptionGroup = false\n")).code == 0
        settings_text, version = await client.settings()
        assert (settings_text["traceOn"], settings_text["maxMessageSize"], version["counter"]) == ("false", "4", 1)
        sent = await client.send(body=b"1234")
        assert (sent.code, sent.field_map()["TRACE_ON"]) == (0, "false")
        assert (await client.send(body=b"12345")).code == ResponseCode.MESSAGE_ILLEGAL
        assert file.read_text() == (
            "# mine\nbrokerName=broker-a\ntraceOn=false\nmaxMessageSize=4\nautoCreateSubscriptionGroup=false\n"
        )
        assert (tmp_path / "broker.conf.bak").read_text() == "# mine\nbrokerName=broker-a\ntraceOn=true\n"

    against_broker(config(tmp_path / "store"), work, file)


def test_a_rejected_change_has_no_effect(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=broker-a\n")

    async def work(client: Client) -> None:
        before = await client.settings()
        refused = await client.update("traceOn=false\nstorePathRootDir=/elsewhere\n")
        assert (refused.code, "storePathRootDir" in str(refused.remark)) == (1, True)
        assert (await client.update("traceOn=\\u12\n")).code == 1
        assert await client.settings() == before
        assert file.read_text() == "brokerName=broker-a\n"
        file.unlink()
        refused = await client.update("traceOn=false\n")
        assert (refused.code, "no setting was changed" in str(refused.remark)) == (1, True)
        assert await client.settings() == before

    against_broker(config(tmp_path / "store"), work, file)


def test_a_change_completes_after_its_client_disconnects(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=broker-a\n")

    async def work(client: Client) -> None:
        async with ConnectionPool() as others:
            connection = await others.connect(client.addr)
            request = connection.request_nowait(
                RequestCode.UPDATE_BROKER_CONFIG, body=b"traceOn=false", timeout_ms=1000
            )
            connection.close()
            with pytest.raises(ConnectionLost):
                await request
        while "traceOn=false" not in file.read_text() or (await client.settings())[0]["traceOn"] == "true":
            await asyncio.sleep(0.01)

    against_broker(config(tmp_path / "store"), work, file)


def test_a_change_without_a_configuration_file_is_reported_as_temporary(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        answer = await client.update("traceOn=false\n")
        assert (answer.code, "until the broker stops" in str(answer.remark)) == (0, True)
        assert (await client.settings())[0]["traceOn"] == "false"

    against_broker(config(tmp_path), work)


def test_sends_create_topics_only_while_auto_creation_is_enabled(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.update("autoCreateTopicEnable=false\n")
        assert (await client.send("New")).code == ResponseCode.TOPIC_NOT_EXIST
        await client.update("autoCreateTopicEnable=true\n")
        assert (await client.send("New")).code == 0

    against_broker(config(tmp_path), work)


def test_a_revoked_permission_is_registered_with_the_name_server(tmp_path: Path) -> None:
    async def run() -> None:
        names = NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv.json"))
        async with NameServer(names) as name_server:
            namesrv = f"127.0.0.1:{name_server.addr.rpartition(':')[2]}"
            async with Broker(config(tmp_path / "s", namesrv_addr=namesrv)) as broker, ConnectionPool() as peers:
                client = Client(peers, broker.addr)
                await client.send()
                await client.ok(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4")
                route = await peers.request(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest("T"))
                assert json.loads(route.body)["queueDatas"][0]["perm"] == 4

    asyncio.run(asyncio.wait_for(run(), 60))


def test_limits_change_while_the_broker_runs(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        assert (await client.update("serverConnectionsMax=1\n")).code == 0
        async with ConnectionPool() as others:
            with pytest.raises(ConnectionLost):
                await Client(others, client.addr).send()

    against_broker(config(tmp_path), work)


def test_groups_of_a_topic_are_listed_whether_online_or_offline(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        consumer = ConsumerData(group_name="Online", subscription_data_set=(SubscriptionData(topic="T"),))
        await client.ok(
            RequestCode.HEART_BEAT, body=fastjson.write(HeartbeatData("c", (consumer,), (ProducerData("P"),)))
        )
        await client.commit("Gone", "T", 0, 3)
        await client.commit("Other", "U", 0, 3)
        answer = await client.ok(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicRef("T"))
        assert fastjson.decode(answer.body, GroupList).group_list == ("Gone", "Online")
        table = fastjson.decode((await client.ok(RequestCode.GET_ALL_PRODUCER_INFO)).body, ProducerTable)
        (item,) = table.data["P"]
        assert (item.client_id, item.remote_ip[:11]) == ("c", "/127.0.0.1:")
        assert item.last_update_ms > 1_600_000_000_000

    against_broker(config(tmp_path), work)


def test_system_topics_include_broker_specific_topics(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        answer = await client.ok(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        topics = fastjson.decode(answer.body, TopicList).topic_list
        assert {"broker-a", "DefaultCluster", "TBW102", "MY_TRACES", "RMQ_SYS_TRANS_HALF_TOPIC"} <= set(topics)

    against_broker(config(tmp_path, trace_topic_enable=True, msg_trace_topic_name="MY_TRACES"), work)


def test_a_topic_with_the_name_of_the_broker_is_rejected_with_the_reason(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        answer = await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopic("broker-a", "TBW102", 4, 4, 6))
        reason = "the topic[broker-a] is conflict with system topic: it is the name of this broker"
        assert (answer.code, answer.remark) == (1, reason)

    against_broker(config(tmp_path), work)


def test_consume_queue_entries_are_listed_with_filter_results(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        for tag in ("a", "b", "a"):
            await client.send(TAGS=tag)
        subscription = SubscriptionData(topic="T", sub_string="a", code_set=frozenset({97}), tags_set=frozenset({"a"}))
        consumer = ConsumerData(group_name="G", subscription_data_set=(subscription,))
        await client.ok(RequestCode.HEART_BEAT, body=fastjson.write(HeartbeatData("c", (consumer,))))
        query = RequestCode.QUERY_CONSUME_QUEUE
        body = fastjson.decode((await client.ok(query, QueryQueue("T", 0, 1, 10))).body, QueueEntries)
        assert (body.min_queue_index, body.max_queue_index) == (0, 3)
        assert [(item.tags_code, item.eval) for item in body.queue_data] == [(98, False), (97, False)]
        assert body.queue_data[0].physic_offset + body.queue_data[0].physic_size == body.queue_data[1].physic_offset
        body = fastjson.decode((await client.ok(query, QueryQueue("T", 0, 0, 2, "G"))).body, QueueEntries)
        assert [item.eval for item in body.queue_data] == [True, False]
        assert body.subscription_data is not None and body.subscription_data.sub_string == "a"
        beyond = await client.ok(query, QueryQueue("T", 0, 3, 1))
        assert (fastjson.decode(beyond.body, QueueEntries).queue_data, "out of range" in str(beyond.remark)) == (
            (),
            True,
        )
        for wrong in (QueryQueue("T", 7, 0, 1), QueryQueue("None", 0, 0, 1), QueryQueue("T", 0, 0, 9999)):
            assert (await client.call(query, wrong)).code == 1

    against_broker(config(tmp_path), work)


def test_offsets_are_cloned_for_one_or_all_topics(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        clone = RequestCode.CLONE_GROUP_OFFSET
        for topic in ("T", "U"):
            await client.send(topic)
            await client.commit("Old", topic, 0, 1)
        await client.commit("Old", "Deleted", 0, 1)
        await client.commit("New", "T", 2, 7)
        await client.ok(clone, CloneOffsets("Old", "New", "T", offline=True))
        assert [await client.offset("New", "T", queue) for queue in (0, 2)] == [
            1,
            0,
        ]  # 0: it has none of its own any more
        answer = await client.ok(RequestCode.GET_ALL_CONSUMER_OFFSET)
        assert "U@New" not in answer.body.decode()
        await client.ok(clone, CloneOffsets("Old", "New"))
        text = (await client.ok(RequestCode.GET_ALL_CONSUMER_OFFSET)).body.decode()
        assert json.loads(text)["offsetTable"]["U@New"] == {"0": 1}
        assert "Deleted@New" not in text
        nothing = await client.ok(clone, CloneOffsets("Nobody", "New"))
        assert "nothing to clone" in str(nothing.remark)
        assert (await client.call(clone, CloneOffsets("Old", "bad/name"))).code == 1

    against_broker(config(tmp_path), work)


def test_query_correction_offset_does_not_modify_offsets(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        for _ in range(5):
            await client.send()
        await client.send(queue_id=1)
        for group, offset in (("A", 4), ("B", 2), ("Slow", 1)):
            await client.commit(group, "T", 0, offset)
        await client.commit("A", "T", 1, 1)
        before = (await client.ok(RequestCode.GET_ALL_CONSUMER_OFFSET)).body
        code = RequestCode.QUERY_CORRECTION_OFFSET
        answer = await client.ok(code, QueryCorrection("A", "T", "Slow"))
        assert fastjson.decode(answer.body, Corrections).correction_offsets == {0: 2, 1: 1}
        answer = await client.ok(code, QueryCorrection("Slow", "T", "Slow"))
        assert fastjson.decode(answer.body, Corrections).correction_offsets == {0: 2**63 - 1, 1: 1}
        assert (await client.ok(RequestCode.GET_ALL_CONSUMER_OFFSET)).body == before

    against_broker(config(tmp_path), work)


def test_delay_offsets_are_those_of_the_levels(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        async def table() -> dict[int, int]:
            answer = await client.ok(RequestCode.GET_ALL_DELAY_OFFSET)
            return fastjson.decode(answer.body, DelayOffsetTable).offset_table

        assert await table() == {}
        assert (await client.send(DELAY="1")).code == 0
        while await table() != {1: 1}:
            await asyncio.sleep(0.05)

    against_broker(config(tmp_path), work)


def test_filter_servers_are_registered_with_the_name_server(tmp_path: Path) -> None:
    async def run() -> None:
        names = NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv.json"))
        async with NameServer(names) as name_server:
            namesrv = f"127.0.0.1:{name_server.addr.rpartition(':')[2]}"
            async with Broker(config(tmp_path / "s", namesrv_addr=namesrv)) as broker, ConnectionPool() as peers:
                client = Client(peers, broker.addr)
                answer = await client.ok(RequestCode.REGISTER_FILTER_SERVER, FilterServer("10.0.0.1:30000"))
                assert answer.field_map() == {"brokerName": "broker-a", "brokerId": "0"}
                assert (await client.call(RequestCode.REGISTER_FILTER_SERVER, FilterServer("nowhere"))).code == 1
                await client.ok(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4")
                await client.send("T")
                route = await peers.request(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest("TBW102"))
                assert json.loads(route.body)["filterServerTable"] == {broker.addr: ["10.0.0.1:30000"]}

    asyncio.run(asyncio.wait_for(run(), 60))


def test_queues_of_deleted_topics_are_removed(tmp_path: Path) -> None:
    async def first(client: Client) -> None:
        await client.send("Gone")
        await client.send("Kept")

    async def second(client: Client) -> None:
        await client.ok(RequestCode.CLEAN_UNUSED_TOPIC)
        queues = tmp_path / "consumequeue"
        assert sorted(path.name for path in queues.iterdir()) == ["Kept"]

    against_broker(config(tmp_path), first)
    topics = json.loads((tmp_path / "config" / "topics.json").read_text())
    del topics["topicConfigTable"]["Gone"]
    (tmp_path / "config" / "topics.json").write_text(json.dumps(topics))
    (tmp_path / "config" / "topics.json.bak").unlink(missing_ok=True)
    against_broker(config(tmp_path), second)


def test_queues_without_a_message_in_the_log_are_removed(tmp_path: Path) -> None:
    async def first(client: Client) -> None:
        await client.send("Old")
        await client.send("Both", 0)
        await client.send("Both", 1)
        for _ in range(4):
            await client.send("Both", 1, b"x" * 20_000)

    async def second(client: Client) -> None:
        await client.ok(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
        queues = tmp_path / "consumequeue"
        assert sorted(str(path.relative_to(queues)) for path in queues.glob("*/*")) == ["Both/1"]
        answer = await client.ok(RequestCode.GET_MAX_OFFSET, QueueRef("Both", 1))
        assert int(answer.field_map()["offset"]) == 5
        assert (await client.send("Old")).field_map()["queueOffset"] == "0"

    against_broker(config(tmp_path), first)
    logs = sorted((tmp_path / "commitlog").iterdir())
    assert len(logs) > 1
    logs[0].unlink()
    against_broker(config(tmp_path), second)


def test_topic_and_group_configuration_is_returned_in_the_5_x_format(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.ok(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopic("T", "TBW102", 3, 4, 6))
        group = SubscriptionGroupConfig(group_name="G", retry_max_times=3, consume_enable=False)
        await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=fastjson.write(group))
        topic = json.loads((await client.ok(RequestCode.GET_TOPIC_CONFIG, TopicRef("T"))).body)
        assert topic == {
            "attributes": {}, "order": False, "perm": 6, "readQueueNums": 3, "topicFilterType": "SINGLE_TAG",
            "topicName": "T", "topicSysFlag": 0, "writeQueueNums": 4,
        }  # fmt: skip
        shown = json.loads((await client.ok(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupName("G"))).body)
        assert (shown["groupName"], shown["retryMaxTimes"], shown["consumeEnable"]) == ("G", 3, False)
        assert (shown["consumeTimeoutMinute"], shown["groupRetryPolicy"]) == (15, {"type": "CUSTOMIZED"})
        missing = await client.call(RequestCode.GET_TOPIC_CONFIG, TopicRef("Nowhere"))
        assert missing.code == ResponseCode.TOPIC_NOT_EXIST
        missing = await client.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupName("Nobody"))
        assert (missing.code, "No group in this broker" in str(missing.remark)) == (ResponseCode.SYSTEM_ERROR, True)

    against_broker(config(tmp_path), work)
