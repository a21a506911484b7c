"""A broker that deletes expired files: responses to its clients during the deletion and afterwards."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BrokerConfig
from ariane.errors import ReplyError
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.records import properties, record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import (
    SUBSCRIPTION,
    OffsetResponse,
    PullMessage,
    PullMessageResponse,
    QueueRef,
    SendMessage,
)
from ariane.store.disk.files import SystemDisk, Usage

HOUR_S = 3600


class FillingDisk(SystemDisk):
    """The system disk with a usage that the test sets."""

    used = 10

    def usage(self, path: str) -> Usage:
        return Usage(100, 100 - self.used)


def config(path: Path, **settings: object) -> BrokerConfig:
    values: dict[str, object] = {
        "mapped_file_size_commit_log": 4096,
        "mapped_file_size_consume_queue": 200,
        "broker_name": "broker-a",
        "broker_ip1": "127.0.0.1",
        "bind_address": "127.0.0.1",
        "listen_port": 0,
        "delete_when": "",
        "delete_commit_log_files_interval": 0,
        "flush_interval_commit_log": 10,
        "flush_interval_consume_queue": 10,
        **settings,
    }
    return BrokerConfig(store_path_root_dir=str(path), namesrv_addr="", **values)  # type: ignore[arg-type]


async def recorded(broker: Broker) -> None:
    """Wait until the checkpoint covers the whole log, so that all files but the last can be deleted."""
    async with asyncio.timeout(30):
        while broker._store._checkpoints._file.durable.safe_offset != broker._store.commit_log_max:
            await asyncio.sleep(0.01)


async def send(peers: ConnectionPool, addr: str) -> int:
    header = SendMessage("P", "T", "TBW102", 1, 0, 0, 1, 0, properties.encode({"KEYS": "k"}))
    return (await peers.request(addr, RequestCode.SEND_MESSAGE_V2, header, bytes(400))).code


async def pull(peers: ConnectionPool, addr: str, offset: int) -> tuple[int, PullMessageResponse]:
    header = PullMessage("G", "T", 0, offset, 32, SUBSCRIPTION, 0, 0, "*", 0, None)
    answer = await peers.request(addr, RequestCode.PULL_MESSAGE, header)
    return answer.code, decode_header(answer, PullMessageResponse)


def files(path: Path, part: str) -> list[Path]:
    return sorted((path / part).iterdir())


def test_expired_files_are_deleted_on_request_and_minimum_offsets_advance(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            Broker(config(tmp_path, file_reserved_time=1), disk=FillingDisk()) as broker,
            ConnectionPool() as peers,
        ):
            for _ in range(60):
                assert await send(peers, broker.addr) == 0
            await recorded(broker)
            logs = files(tmp_path, "commitlog")
            assert len(logs) > 5
            for path in logs[:4]:
                state = path.stat()
                os.utime(path, (state.st_atime, state.st_mtime - 2 * HOUR_S))
            await broker._cleaner.run()
            assert files(tmp_path, "commitlog") == logs, "it is not the hour"
            await peers.request_ok(broker.addr, RequestCode.DELETE_EXPIRED_COMMITLOG)
            await broker._cleaner.run()
            assert files(tmp_path, "commitlog") == logs[4:]
            assert files(tmp_path, "consumequeue/T/0")[0].name != "0" * 20
            queue = QueueRef("T", 0)
            first = decode_header(
                await peers.request_ok(broker.addr, RequestCode.GET_MIN_OFFSET, queue), OffsetResponse
            ).offset
            assert first > 0
            code, answer = await pull(peers, broker.addr, 0)
            assert (code, answer.next_begin_offset, answer.min_offset) == (21, first, first)
            assert (await pull(peers, broker.addr, first))[0] == ResponseCode.SUCCESS

    asyncio.run(asyncio.wait_for(run(), 60))


def test_timers_survive_the_deletion_of_their_files(tmp_path: Path) -> None:
    async def run() -> None:
        disk = FillingDisk()
        async with Broker(config(tmp_path), disk=disk) as broker, ConnectionPool() as peers:
            store = broker._store
            for number in range(6):
                own = properties.encode({"TIMER_DELAY_MS": "4000", "KEYS": "k"})
                header = SendMessage("P", "T", "TBW102", 1, 0, 0, 1, 0, own)
                assert (await peers.request(broker.addr, RequestCode.SEND_MESSAGE_V2, header, b"%d" % number)).code == 0
            for _ in range(60):
                assert await send(peers, broker.addr) == 0
            await recorded(broker)
            disk.used = 88
            await broker._cleaner.run()
            assert store.commit_log_min > 4096
            assert store.read_queue_record("rmq_sys_wheel_timer", 0, 0) is None
            assert store.max_offset("rmq_sys_wheel_timer", 0) == 12
        # A start knows that the first six are delivered by the others, and only those.
        async with Broker(config(tmp_path), disk=disk) as broker:
            store = broker._store
            async with asyncio.timeout(20):
                while store.max_offset("T", 0) < 66:
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.3)
            late = [record.decode(data).body for data in store.get("T", 0, 60, 32).records]
            assert late == [b"%d" % number for number in range(6)]
            assert store.delayed.timer_count == 0

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_nearly_full_disk_expires_files_early_and_rejects_only_sends(tmp_path: Path) -> None:
    async def run() -> None:
        disk = FillingDisk()
        async with Broker(config(tmp_path), disk=disk) as broker, ConnectionPool() as peers:
            for _ in range(60):
                assert await send(peers, broker.addr) == 0
            await recorded(broker)
            count = len(files(tmp_path, "commitlog"))
            disk.used = 85
            await broker._cleaner.run()
            assert len(files(tmp_path, "commitlog")) == count
            disk.used = 91
            await broker._cleaner.check_disk_space()
            await broker._cleaner.run()
            assert len(files(tmp_path, "commitlog")) == max(1, count - 10)
            assert await send(peers, broker.addr) == ResponseCode.SERVICE_NOT_AVAILABLE
            header = SendMessage("P", "T", "TBW102", 1, 0, 0, 1, 0, None)
            try:
                await peers.request_ok(broker.addr, RequestCode.SEND_MESSAGE_V2, header, b"x")
                raise AssertionError("it was taken")
            except ReplyError as error:
                assert "CL:  0.91 CQ:  0.91 INDEX:  0.91" in str(error)
            # Offset 0 was removed. OFFSET_MOVED_EVENT cannot be stored, but the consumer continues.
            code, answer = await pull(peers, broker.addr, 0)
            assert code == ResponseCode.PULL_OFFSET_MOVED
            assert (await pull(peers, broker.addr, answer.next_begin_offset))[0] == ResponseCode.SUCCESS
            disk.used = 90
            await broker._cleaner.check_disk_space()
            assert await send(peers, broker.addr) == 0

    asyncio.run(asyncio.wait_for(run(), 60))
