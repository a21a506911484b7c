"""A broker with a slow or failing disk: sends are rejected with code 2 until the disk recovers, pulls continue.

In synchronous mode sends time out with their ids, and after a failed fsync they are refused without.
"""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BrokerConfig
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.messaging import SUBSCRIPTION, PullMessage, SendMessage
from ariane.store.disk.files import SystemDisk


class Call(Protocol):
    """Sends a message to the broker, or pulls."""

    def __call__(self, send: bool, properties: str | None = None) -> Awaitable[Command]: ...


class SlowDisk(SystemDisk):
    """Disk that delays the next write by `next_write_s`, blocks every fsync while `may_flush` is not set, and fails those of the
    commit log if `fails`."""

    def __init__(self) -> None:
        self.next_write_s = 0.0
        self.may_flush = threading.Event()
        self.may_flush.set()
        self.fails = False
        self.log_handles: set[int] = set()

    def open(self, path: str) -> int:
        handle = super().open(path)
        if "/commitlog/" in path:
            self.log_handles.add(handle)
        return handle

    def pwrite(self, handle: int, data: bytes, offset: int) -> None:
        wait_s, self.next_write_s = self.next_write_s, 0.0
        time.sleep(wait_s)
        super().pwrite(handle, data, offset)

    def fsync(self, handle: int) -> None:
        self.may_flush.wait(20)
        if self.fails and handle in self.log_handles:
            raise OSError(errno.EIO, "Input/output error")
        super().fsync(handle)


def on_disk(path: Path, work: Callable[[SlowDisk, Call], Awaitable[None]], **settings: object) -> None:
    async def run() -> None:
        disk = SlowDisk()
        values = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20_000, **settings}
        config = BrokerConfig(
            broker_name="broker-a", broker_ip1="127.0.0.1", bind_address="127.0.0.1", listen_port=0, namesrv_addr="",
            store_path_root_dir=str(path), **values,  # type: ignore[arg-type]
        )  # fmt: skip
        async with Broker(config, disk=disk) as broker, ConnectionPool() as peers:

            async def call(send: bool, properties: str | None = None) -> Command:
                if send:
                    header = SendMessage("P", "T", "TBW102", 4, 0, 0, 1, 0, properties)
                    return await peers.request(broker.addr, RequestCode.SEND_MESSAGE_V2, header, b"x" * 500)
                pull = PullMessage("G", "T", 0, 0, 32, SUBSCRIPTION, 0, 0, "*", 0, None)
                return await peers.request(broker.addr, RequestCode.PULL_MESSAGE, pull)

            try:
                await work(disk, call)
            finally:
                disk.may_flush.set()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_sends_are_rejected_after_a_slow_write(tmp_path: Path) -> None:
    async def work(disk: SlowDisk, call: Call) -> None:
        assert (await call(True)).code == 0
        disk.next_write_s = 0.5
        assert (await call(True)).code == 0
        refused = await call(True)
        assert (refused.code, str(refused.remark)[:15]) == (2, "[REJECTREQUEST]")
        assert (await call(False)).code == 0
        await asyncio.sleep(0.6)
        assert (await call(True)).code == 0

    on_disk(tmp_path, work, os_page_cache_busy_time_out_mills=200)


def test_sends_are_rejected_while_a_flush_is_stuck(tmp_path: Path) -> None:
    async def work(disk: SlowDisk, call: Call) -> None:
        disk.may_flush.clear()
        for _ in range(1_000):
            answer = await call(True)
            if answer.code:
                break
            await asyncio.sleep(0.005)
        assert (answer.code, "are not flushed yet" in str(answer.remark)) == (2, True)
        assert (await call(False)).code == 0
        disk.may_flush.set()
        while (await call(True)).code:
            await asyncio.sleep(0.01)

    on_disk(tmp_path, work, flush_behind_max=2_000, flush_interval_commit_log=20)


def test_synchronous_sends_time_out_with_their_ids_and_fail_without(tmp_path: Path) -> None:
    # A delayed message takes the path of single messages, the other one that of runs.
    kinds = (None, "DELAY\x011")

    async def work(disk: SlowDisk, call: Call) -> None:
        for properties in kinds:  # creates the topics, which are flushed too
            while (await call(True, properties)).code:
                await asyncio.sleep(0.01)
        disk.may_flush.clear()
        for answer in await asyncio.gather(*[call(True, properties) for properties in kinds]):
            assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
            assert len(answer.field_map()["msgId"]) == 32
        disk.may_flush.set()
        for properties in kinds:
            while (await call(True, properties)).code:
                await asyncio.sleep(0.01)
        disk.fails = True
        for answer in await asyncio.gather(*[call(True, properties) for properties in kinds]):
            assert (answer.code, "msgId" in answer.field_map()) == (ResponseCode.SERVICE_NOT_AVAILABLE, False)
            assert "commitlog" in str(answer.remark)
        assert (await call(True)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (await call(False)).code == 0

    on_disk(tmp_path, work, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=200)
