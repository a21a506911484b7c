"""A config directory that is removed, moved or replaced by a copy while the broker runs: no state is lost."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ariane.broker.broker import Broker
from ariane.broker.config import BrokerConfig
from ariane.errors import StoreError
from ariane.net.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.admin import CreateTopic
from ariane.protocol.requests.messaging import QueryConsumerOffset, UpdateConsumerOffset
from ariane.store.files import SystemDisk

DOCUMENTS = ("topics.json", "consumerOffset.json")


def settings(path: Path) -> BrokerConfig:
    return BrokerConfig(
        broker_name="broker-a", broker_ip1="127.0.0.1", bind_address="127.0.0.1", listen_port=0, namesrv_addr="",
        mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20_000, flush_consumer_offset_interval=100,
        flush_disk_type="SYNC_FLUSH", store_path_root_dir=str(path / "store"),
    )  # fmt: skip


def remove(directory: Path) -> None:
    shutil.rmtree(directory)


def move_away(directory: Path) -> None:
    directory.rename(directory.with_name("moved"))


def replace_by_copy(directory: Path) -> None:
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    shutil.rmtree(directory)
    copy.rename(directory)


def put_a_file(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.touch()


async def create(peers: ConnectionPool, broker: Broker, name: str) -> None:
    await peers.request_ok(broker.addr, RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopic(name, "TBW102", 16, 16, 6))


async def start_with_state(peers: ConnectionPool, broker: Broker, config: Path) -> None:
    await create(peers, broker, "A")
    await peers.request_ok(broker.addr, RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("G", "A", 0, 0))
    async with asyncio.timeout(20):
        while not all((config / name).exists() for name in DOCUMENTS):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("take", [remove, move_away, replace_by_copy])
@pytest.mark.parametrize("stop_at_once", [False, True])
def test_a_removed_config_directory_is_rewritten(
    tmp_path: Path, take: Callable[[Path], None], *, stop_at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "store" / "config"

    async def run() -> None:
        async with ConnectionPool() as peers:
            async with Broker(settings(tmp_path)) as broker:
                await start_with_state(peers, broker, config)
                take(config)
                if not stop_at_once:
                    await create(peers, broker, "B")  # answered when the documents, or the new change log, hold it
                    assert any('"B"' in file.read_text() for file in config.iterdir())
            assert all((config / name).exists() for name in DOCUMENTS)
            async with Broker(settings(tmp_path)) as broker:
                offset = await peers.request_ok(
                    broker.addr, RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffset("G", "A", 0)
                )
                assert offset.field_map()["offset"] == "0"
                assert '"A"' in (config / "topics.json").read_text()

    asyncio.run(asyncio.wait_for(run(), 60))
    notices = [record.getMessage() for record in caplog.records if getattr(record, "notice", False)]
    assert len(notices) == 1 and "was removed while the broker runs" in notices[0]


def test_changes_are_rejected_if_a_file_replaces_the_config_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "store" / "config"

    async def run() -> None:
        async with ConnectionPool() as peers:
            async with Broker(settings(tmp_path)) as broker:
                await start_with_state(peers, broker, config)
                put_a_file(config)
                answer = await peers.request(
                    broker.addr, RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopic("B", "TBW102", 16, 16, 6)
                )
                assert answer.code != 0 and "removed while the broker runs" in str(answer.remark)
                config.unlink()
            assert all((config / name).exists() for name in DOCUMENTS)

    asyncio.run(asyncio.wait_for(run(), 60))
    notices = [record.getMessage() for record in caplog.records if getattr(record, "notice", False)]
    assert len(notices) == 1 and "cannot be written again (File exists)" in notices[0]


def test_a_file_or_broken_link_instead_of_a_directory_prevents_the_start(tmp_path: Path) -> None:
    async def start() -> None:
        async with Broker(settings(tmp_path)):
            pass

    store = tmp_path / "store"
    store.touch()
    with pytest.raises(StoreError, match=f"{store}: .*move it away"):
        asyncio.run(start())
    store.unlink()
    store.mkdir()
    (store / "config").touch()
    with pytest.raises(StoreError, match=f"{store}/config: .*move it away"):
        asyncio.run(start())
    (store / "config").unlink()
    (store / "config").symlink_to(tmp_path / "missing")
    with pytest.raises(StoreError, match=f"{store}/config: .*broken link"):
        asyncio.run(start())


def test_a_moved_or_replaced_file_is_detected(tmp_path: Path) -> None:
    disk, path = SystemDisk(), str(tmp_path / "f")
    handle = disk.create(path, 0)
    assert disk.is_at(handle, path)
    disk.rename(path, f"{path}.moved")
    assert not disk.is_at(handle, path)
    other = disk.create(path, 0)
    assert not disk.is_at(handle, path)
    assert not disk.is_at(handle, f"{path}/below")
    disk.close(handle)
    disk.close(other)
