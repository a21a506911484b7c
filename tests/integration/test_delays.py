"""Delays over a broker's socket: levels and times, to a consumer, and through a restart of the broker."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from ariane.broker.broker import Broker
from ariane.broker.config import BrokerConfig
from ariane.net.client import Connections
from ariane.protocol import properties, record
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.requests.messaging import SUBSCRIPTION, SUSPEND, PullMessage, SendMessage


def config(path: Path, **settings: object) -> BrokerConfig:
    return BrokerConfig(
        store_path_root_dir=str(path),
        namesrv_addr="",
        broker_name="broker-a",
        broker_ip1="127.0.0.1",
        bind_address="127.0.0.1",
        listen_port=0,
        message_delay_level="200s 1s",
        **settings,  # type: ignore[arg-type]
    )


async def send(peers: Connections, addr: str, body: bytes, **own: str) -> Command:
    header = SendMessage("P", "T", "TBW102", 1, 0, 0, 1234, 0, properties.encode(own))
    return await peers.request(addr, RequestCode.SEND_MESSAGE_V2, header, body, timeout_ms=3000)


async def pulled(peers: Connections, addr: str, count: int) -> list[record.Record]:
    """`count` messages of T, in the order of their arrival."""
    found: list[record.Record] = []
    while len(found) < count:
        header = PullMessage("G", "T", 0, len(found), 32, SUBSCRIPTION | SUSPEND, 0, 5000, "*", 0, None)
        answer = await peers.request(addr, RequestCode.PULL_MESSAGE, header, timeout_ms=8000)
        assert answer.code in (0, 19), (answer.code, answer.remark)
        found += record.decode_all(answer.body) if answer.code == 0 else []
    return found


def test_times_and_levels_reach_a_held_pull_in_order(tmp_path: Path) -> None:
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        asyncio.run(asyncio.wait_for(_in_order(tmp_path / flush, flush), 60))


async def _in_order(path: Path, flush: str) -> None:
    async with Broker(config(path, flush_disk_type=flush)) as broker, Connections() as peers:
        start_ms = time.time_ns() // 1_000_000
        for after_ms in (900, 300, 600):
            sent = await send(peers, broker.addr, b"%d" % after_ms, __STARTDELIVERTIME=str(start_ms + after_ms))
            assert sent.code == 0
        assert (await send(peers, broker.addr, b"level", DELAY="2")).code == 0
        assert (await send(peers, broker.addr, b"now", TIMER_DELIVER_MS="1")).code == 0
        found = await pulled(peers, broker.addr, 5)
        assert [one.body for one in found] == [b"now", b"300", b"600", b"900", b"level"]
        for one in found[1:4]:
            late_ms = one.store_ms - (start_ms + int(one.body))
            assert late_ms >= 0
        assert found[4].store_ms - start_ms >= 1000


def test_what_waits_survives_a_restart(tmp_path: Path) -> None:
    async def first() -> None:
        async with Broker(config(tmp_path)) as broker, Connections() as peers:
            await send(peers, broker.addr, b"timer", TIMER_DELAY_MS="1500")
            await send(peers, broker.addr, b"level", DELAY="2")
            await send(peers, broker.addr, b"soon", TIMER_DELAY_MS="1")
            assert [one.body for one in await pulled(peers, broker.addr, 1)] == [b"soon"]

    async def second() -> None:
        async with Broker(config(tmp_path, flush_delay_offset_interval=100)) as broker, Connections() as peers:
            assert [one.body for one in await pulled(peers, broker.addr, 3)] == [b"soon", b"level", b"timer"]
            await asyncio.sleep(1.5)
        assert json.loads((tmp_path / "config/delayOffset.json").read_text().replace("2:", '"2":')) == {
            "offsetTable": {"2": 1}
        }

    asyncio.run(asyncio.wait_for(first(), 60))
    asyncio.run(asyncio.wait_for(second(), 60))


def test_a_stop_in_order_saves_how_far_each_level_is(tmp_path: Path) -> None:
    """A Java broker that opens the store next delivers again whatever lies behind that position."""

    async def play() -> None:
        async with Broker(config(tmp_path)) as broker, Connections() as peers:
            for body in (b"1", b"2"):
                assert (await send(peers, broker.addr, body, DELAY="2")).code == 0
            await pulled(peers, broker.addr, 2)
            assert (await send(peers, broker.addr, b"waits", DELAY="1")).code == 0

    asyncio.run(asyncio.wait_for(play(), 60))
    saved = (tmp_path / "config/delayOffset.json").read_text().replace("2:", '"2":')
    assert json.loads(saved) == {"offsetTable": {"2": 2}}
