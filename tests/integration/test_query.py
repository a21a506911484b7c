"""Message queries by key over the socket of a broker, and the use cases built on them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BROKER_SETTINGS, BrokerConfig
from ariane.cluster.admin import Admin
from ariane.errors import ConfigError, ConnectionLost, ReplyError, RouteNotFound
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import batch, properties, record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import (
    QueryMessage,
    QueryMessageResponse,
    SendMessage,
    SendMessageResponse,
    ViewMessage,
)
from ariane.testing import AsyncLocalCluster

EVER = (1 << 63) - 1
ID = "7F0000011A2B18B4AAC2000000050007"


def against_broker(path: Path, work: Callable[[ConnectionPool, str], Awaitable[None]], **settings: object) -> None:
    values = {"broker_name": "broker-a", "broker_ip1": "127.0.0.1", "listen_port": 0, "namesrv_addr": "", **settings}

    async def run() -> None:
        config = BrokerConfig(store_path_root_dir=str(path), **values)  # type: ignore[arg-type]
        async with Broker(config) as broker, ConnectionPool() as peers:
            await work(peers, broker.addr)

    asyncio.run(asyncio.wait_for(run(), 60))


async def send(
    peers: ConnectionPool, addr: str, body: bytes = b"b", topic: str = "T", **own: str
) -> SendMessageResponse:
    header = SendMessage("P", topic, "TBW102", 4, 0, 0, 1234, 0, properties.encode(own))
    return decode_header(await peers.request_ok(addr, RequestCode.SEND_MESSAGE_V2, header, body), SendMessageResponse)


async def query(peers: ConnectionPool, addr: str, key: str, most: int = 64, **more: object) -> Command:
    header = QueryMessage("T", key, most, *more.pop("window", (0, EVER)), **more)  # type: ignore[misc, arg-type]
    return await peers.request(addr, RequestCode.QUERY_MESSAGE, header)


def ids_of(answer: Command) -> list[str]:
    return [stored_record.property_map()["UNIQ_KEY"] for stored_record in record.decode_all(answer.body)]


def test_messages_are_found_by_key_and_by_unique_id(tmp_path: Path) -> None:
    async def work(peers: ConnectionPool, addr: str) -> None:
        await send(peers, addr, UNIQ_KEY=ID, KEYS="order-1 customer-2")
        await send(peers, addr, UNIQ_KEY=ID[:-1] + "8", KEYS="order-3 customer-2")
        for key, expected in (("order-1", 1), ("customer-2", 2), (ID, 1)):
            answer = await query(peers, addr, key)
            assert answer.code == ResponseCode.SUCCESS
            assert len(ids_of(answer)) == expected
            header = decode_header(answer, QueryMessageResponse)
            last = list(record.decode_all((await query(peers, addr, "order-3")).body))[-1]
            assert header == QueryMessageResponse(last.store_ms, last.offset, False)
        nothing = await query(peers, addr, "order")
        assert nothing.code == ResponseCode.QUERY_NOT_FOUND
        assert "order" in (nothing.remark or "")
        assert nothing.body == b""

    against_broker(tmp_path, work)
    against_broker(tmp_path, found_again)


async def found_again(peers: ConnectionPool, addr: str) -> None:
    """After a restart."""
    assert ids_of(await query(peers, addr, "order-1")) == [ID]


def test_records_of_a_batch_are_found(tmp_path: Path) -> None:
    async def work(peers: ConnectionPool, addr: str) -> None:
        entries = [
            batch.BatchEntry(0, b"body", properties.encode({"UNIQ_KEY": f"{ID[:-2]}{number:02X}", "KEYS": "k"}))
            for number in range(3)
        ]
        header = SendMessage("P", "T", "TBW102", 4, 0, 0, 1234, 0, "WAIT\x01true", batch=True)
        await peers.request_ok(addr, RequestCode.SEND_BATCH_MESSAGE, header, batch.encode(entries))
        assert len(ids_of(await query(peers, addr, "k"))) == 3

    against_broker(tmp_path, work)


def test_the_time_range_applies_to_keys_but_not_to_unique_ids(tmp_path: Path) -> None:
    """The client's clock is 1.2 s ahead, so its query starts 200 ms after the store time of the message."""

    async def work(peers: ConnectionPool, addr: str) -> None:
        await send(peers, addr, UNIQ_KEY=ID, KEYS="k")
        (item,) = record.decode_all((await query(peers, addr, "k")).body)
        ahead = (item.store_ms + 1200 - 1000, EVER)
        assert (await query(peers, addr, "k", window=ahead)).code == ResponseCode.QUERY_NOT_FOUND
        assert ids_of(await query(peers, addr, ID, 32, window=ahead, unique_key_query="true")) == [ID]
        assert ids_of(await query(peers, addr, ID, 32, window=ahead, unique_key_query="false")) == [ID]
        assert ids_of(await query(peers, addr, ID, 32, window=ahead)) == [ID]
        assert ids_of(await query(peers, addr, "k", window=(item.store_ms, item.store_ms))) == [ID]

    against_broker(tmp_path, work)


def test_a_truncated_response_is_marked_and_can_be_continued(tmp_path: Path) -> None:
    async def work(peers: ConnectionPool, addr: str) -> None:
        sent = [f"{ID[:-4]}{number:04X}" for number in range(150)]
        for item in sent:
            await send(peers, addr, UNIQ_KEY=item, KEYS="k")
        received: list[str] = []
        position = None
        sizes = []
        while True:
            answer = await query(peers, addr, "k", 1000, query_position=position)
            page = ids_of(answer)
            sizes.append(len(page))
            received = page + received
            header = decode_header(answer, QueryMessageResponse)
            assert header.truncated is (header.next_position is not None)
            if header.next_position is None:
                break
            assert "nextPosition" in (answer.remark or "")
            position = header.next_position
        assert received == sent
        assert sizes == [64, 64, 22]
        assert len(ids_of(await query(peers, addr, "k", 1000, unique_key_query="true"))) == 32
        assert len(ids_of(await query(peers, addr, "k", 5))) == 5
        wrong = await query(peers, addr, "k", query_position="here")
        assert wrong.code == ResponseCode.SYSTEM_ERROR
        assert "position" in (wrong.remark or "")

    against_broker(tmp_path, work)


def test_query_limits_are_configurable(tmp_path: Path) -> None:
    async def work(peers: ConnectionPool, addr: str) -> None:
        for number in range(9):
            await send(peers, addr, UNIQ_KEY=f"{ID[:-1]}{number}", KEYS="k")
        assert len(ids_of(await query(peers, addr, "k"))) == 7
        assert len(ids_of(await query(peers, addr, "k", unique_key_query="true"))) == 3

    against_broker(tmp_path, work, max_msgs_num_batch=7, default_query_max_num=3)
    for key in ("maxMsgsNumBatch", "defaultQueryMaxNum"):
        with pytest.raises(ConfigError, match=key):
            BROKER_SETTINGS.parse({key: "0"})
    assert "always indexes again" in BROKER_SETTINGS.parse({"messageIndexSafe": "true"})[1][0]


def test_a_query_without_an_index_reports_the_reason(tmp_path: Path) -> None:
    async def work(peers: ConnectionPool, addr: str) -> None:
        answer = await query(peers, addr, "k")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "messageIndexEnable" in (answer.remark or "")
        placed = await send(peers, addr, UNIQ_KEY=ID)
        view = ViewMessage(int(placed.message_id[16:], 16))
        assert (await peers.request(addr, RequestCode.VIEW_MESSAGE_BY_ID, view)).code == ResponseCode.SUCCESS

    against_broker(tmp_path, work, message_index_enable=False)
    assert not (tmp_path / "index").exists()


# --- use cases ---


def test_queries_cover_all_brokers_of_a_cluster(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncLocalCluster(tmp_path) as servers, ConnectionPool() as peers:
            namesrv, addr = servers.namesrv, servers.broker.addr
            admin = Admin(namesrv, peers=peers)
            placed = [
                await send(
                    peers, addr, UNIQ_KEY=f"{ID[:-4]}{number:04X}", KEYS=f"k Aa{number % 2}", body=b"%d" % number
                )
                for number in range(130)
            ]
            repeated = await send(peers, addr, UNIQ_KEY=ID[:-4] + "0005", KEYS="k", body=b"again")
            result = await admin.query_by_key("T", "k")
            assert (result.unavailable, result.truncated) == ((), {})
            assert [item.body for item in result.messages] == [*(b"%d" % number for number in range(130)), b"again"]
            assert result.messages[0].queue.broker == "broker-a"
            few = await admin.query_by_key("T", "k", messages_max=70)
            assert few.truncated == {"broker-a": "limited to the newest 70 messages"}
            assert few.messages == result.messages[-70:]
            half = await admin.query_by_key("T", "Aa1", end_ms=result.messages[-1].store_ms)
            assert len(half.messages) == 65
            late = await admin.query_by_key("T", "k", begin_ms=result.messages[-1].store_ms + 1)
            assert late == ([], (), {})

            unique = await admin.query_by_unique_key("T", ID[:-4] + "0005")
            assert unique.first is not None
            assert unique.first.body == b"5"
            assert [item.offset_message_id for item in unique.messages] == [placed[5].message_id, repeated.message_id]
            assert await admin.query_by_unique_key("T", ID[:-4] + "FFFF") == ([], (), {})

            item = await admin.view_by_offset_id(placed[7].message_id)
            assert (item.body, item.message_id) == (b"7", f"{ID[:-4]}0007")
            with pytest.raises(ReplyError, match="can not find message"):
                await admin.view_by_offset_id(placed[7].message_id[:-1] + "1")
            with pytest.raises(RouteNotFound, match="Nowhere"):
                await admin.query_by_key("Nowhere", "k")

    asyncio.run(asyncio.wait_for(run(), 60))


def test_an_unreachable_broker_is_reported_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with AsyncLocalCluster(tmp_path) as servers, ConnectionPool() as peers:
            namesrv, addr = servers.namesrv, servers.broker.addr
            await servers.create_topic("T")
            await send(peers, addr, UNIQ_KEY=ID)
            admin = Admin(namesrv, peers=peers)
            await admin.query_by_unique_key("T", ID)
            ask = peers.request

            async def request(to: str, code: int, *rest: object, **more: object) -> Command:
                if code == RequestCode.QUERY_MESSAGE:
                    raise ConnectionLost(to, "refused")
                return await ask(to, code, *rest, **more)  # type: ignore[arg-type]

            monkeypatch.setattr(peers, "request", request)
            result = await admin.query_by_unique_key("T", ID)
            assert result.first is None
            (missing,) = result.unavailable
            assert missing.broker == "broker-a"
            assert "refused" in missing.reason

    asyncio.run(asyncio.wait_for(run(), 60))
