"""The name server over its socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ariane.errors import ConfigError
from ariane.model.topic import DataVersion, TopicConfig
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.kv_store import KvStore
from ariane.nameserver.server import NameServer
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.routing import (
    BrokerRef,
    KvKey,
    KvNamespace,
    PutKv,
    RegisterBroker,
    RegisterBrokerBody,
    RouteRequest,
    TopicTable,
)

Call = Callable[..., Awaitable[Command]]


def against_name_server(path: Path, work: Callable[[Call, str], Awaitable[None]]) -> None:
    config = NameServerConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(path / "kv.json"))

    async def run() -> None:
        async with NameServer(config) as server, ConnectionPool() as peers:

            async def call(code: int, header: object = None, body: bytes = b"") -> Command:
                return await peers.request(server.addr, code, header, body)  # type: ignore[arg-type]

            await work(call, server.addr)

    asyncio.run(asyncio.wait_for(run(), 30))


REGISTER = RegisterBroker("broker-a", "10.0.0.1:10911", "C", "10.0.0.1:10912", 0)


def registration(version: int = 1) -> bytes:
    topics = TopicTable(DataVersion(version, 1), {"T": TopicConfig(topic_name="T", read_queue_nums=4)})
    return fastjson.write(RegisterBrokerBody(topic_config_serialize_wrapper=topics))


def test_a_broker_is_registered_routed_and_removed_with_its_connection(tmp_path: Path) -> None:
    async def work(call: Call, addr: str) -> None:
        async with ConnectionPool() as broker:
            await broker.request_ok(addr, RequestCode.REGISTER_BROKER, REGISTER, registration())
            answer = await call(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest("T"))
            assert json.loads(answer.body)["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:10911"}
        while (await call(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest("T"))).code == 0:
            await asyncio.sleep(0.01)
        answer = await call(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest("T"))
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST

    against_name_server(tmp_path, work)


def test_a_peer_with_many_brokers_causes_one_line_when_it_leaves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(call: Call, addr: str) -> None:
        async with ConnectionPool() as peer:
            for number in range(1, 30):
                many = RegisterBroker("broker-a", f"10.0.0.{number}:10911", "C", "10.0.0.1:10912", number)
                await peer.request_ok(addr, RequestCode.REGISTER_BROKER, many, registration(number))
        while (await call(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest("T"))).code == 0:
            await asyncio.sleep(0.01)

    against_name_server(tmp_path, work)
    (line,) = (record.getMessage() for record in caplog.records if "Removed" in record.getMessage())
    assert line.startswith("Removed broker 10.0.0.1:10911, 10.0.0.2:10911, ")
    assert line.endswith("10.0.0.5:10911 and 24 more: its connection closed")


@pytest.mark.usefixtures("untimed_ticks")
def test_brokers_and_operators_are_served_beyond_a_rate(tmp_path: Path) -> None:
    """Clients would have all brokers removed from the routes, and the limit could not be raised."""

    async def work(call: Call, addr: str) -> None:
        await call(RequestCode.UPDATE_NAMESRV_CONFIG, None, b"serverRequestsPerSecond=1")
        async with ConnectionPool() as client:
            reads = [client.request(addr, RequestCode.GET_BROKER_CLUSTER_INFO) for _ in range(100)]
            assert {answer.code for answer in await asyncio.gather(*reads)} == {0, ResponseCode.SYSTEM_BUSY}
        # All in one batch: nothing more is read from the connection afterwards, until the rate allows it.
        answers = await asyncio.gather(
            call(RequestCode.REGISTER_BROKER, REGISTER, registration()),
            call(RequestCode.UPDATE_NAMESRV_CONFIG, None, b"serverRequestsPerSecond=0"),
        )
        assert [answer.code for answer in answers] == [0, 0]

    against_name_server(tmp_path, work)


def test_cluster_info_has_unquoted_number_keys(tmp_path: Path) -> None:
    async def work(call: Call, addr: str) -> None:
        await call(RequestCode.REGISTER_BROKER, REGISTER, registration())
        answer = await call(RequestCode.GET_BROKER_CLUSTER_INFO)
        assert b'"brokerAddrs":{0:"10.0.0.1:10911"}' in answer.body

    against_name_server(tmp_path, work)


def test_query_data_version_reports_whether_to_register(tmp_path: Path) -> None:
    reference = BrokerRef("broker-a", "10.0.0.1:10911", "C", 0)

    async def work(call: Call, addr: str) -> None:
        version = fastjson.write(DataVersion(1, 1))
        first = await call(RequestCode.QUERY_DATA_VERSION, reference, version)
        assert (first.field_map(), first.body) == ({"changed": "true"}, b"")
        await call(RequestCode.REGISTER_BROKER, REGISTER, registration())
        second = await call(RequestCode.QUERY_DATA_VERSION, reference, version)
        assert (second.field_map(), second.body) == ({"changed": "false"}, version)

    against_name_server(tmp_path, work)


def test_kv_values_survive_a_restart_and_ordered_topics_are_sent_to_brokers(tmp_path: Path) -> None:
    async def put(call: Call, addr: str) -> None:
        assert (await call(RequestCode.GET_KV_CONFIG, KvKey("NS", "k"))).code == ResponseCode.QUERY_NOT_FOUND
        assert (await call(RequestCode.PUT_KV_CONFIG, PutKv("NS", "k", "v"))).code == 0
        assert (await call(RequestCode.PUT_KV_CONFIG, PutKv("ORDER_TOPIC_CONFIG", "T", "broker-a:4"))).code == 0

    async def get(call: Call, addr: str) -> None:
        assert (await call(RequestCode.GET_KV_CONFIG, KvKey("NS", "k"))).field_map() == {"value": "v"}
        assert (await call(RequestCode.GET_KVLIST_BY_NAMESPACE, KvNamespace("NS"))).body == b'{"table":{"k":"v"}}'
        answer = await call(RequestCode.REGISTER_BROKER, REGISTER, registration())
        assert answer.body == b'{"table":{"T":"broker-a:4"}}'
        await call(RequestCode.DELETE_KV_CONFIG, KvKey("NS", "k"))
        assert (await call(RequestCode.GET_KV_CONFIG, KvKey("NS", "k"))).code == ResponseCode.QUERY_NOT_FOUND

    against_name_server(tmp_path, put)
    against_name_server(tmp_path, get)


def test_a_damaged_kv_file_falls_back_to_its_backup_or_prevents_the_start(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"

    async def put_twice() -> None:
        table = KvStore(path)
        for value in ("1", "2"):
            table.put("NS", "k", value)
            await table.wait_saved()
        table.close()

    asyncio.run(put_twice())
    path.write_text("{")
    assert KvStore(path).get("NS", "k") == "1"
    (tmp_path / "kv.json.bak").write_text("{")
    with pytest.raises(ConfigError, match=r"kv\.json"):
        KvStore(path)


def test_settings_are_readable_but_paths_are_not_writable(tmp_path: Path) -> None:
    async def work(call: Call, addr: str) -> None:
        assert b"orderMessageEnable=false\n" in (await call(RequestCode.GET_NAMESRV_CONFIG)).body
        assert (await call(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true")).code == 0
        assert b"orderMessageEnable=true\n" in (await call(RequestCode.GET_NAMESRV_CONFIG)).body
        refused = await call(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"kvConfigPath=/tmp/other")
        assert (refused.code, "kvConfigPath" in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)

    against_name_server(tmp_path, work)


def test_an_unknown_request_code_gets_an_error_response(tmp_path: Path) -> None:
    async def work(call: Call, addr: str) -> None:
        answer = await call(9999)
        assert (answer.code, answer.remark) == (
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            " request type 9999 not supported",
        )

    against_name_server(tmp_path, work)


@pytest.mark.parametrize("addr", ["no-port", "", "h:0"])
def test_a_registration_with_an_invalid_address_is_rejected(tmp_path: Path, addr: str) -> None:
    async def work(call: Call, _: str) -> None:
        header = RegisterBroker("broker-a", addr, "C", "", 0)
        assert (await call(RequestCode.REGISTER_BROKER, header, registration())).code == ResponseCode.SYSTEM_ERROR

    against_name_server(tmp_path, work)
