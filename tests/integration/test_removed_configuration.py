"""A config directory that is removed, moved or replaced: no state is lost while the broker runs, and no start ignores it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BrokerConfig
from ariane.errors import StoreError
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.admin import ConsumerOffsetTable, CreateTopic
from ariane.protocol.requests.messaging import QueryConsumerOffset, QueueRef, SendMessage, UpdateConsumerOffset
from ariane.protocol.requests.routing import KvTableBody
from ariane.store.disk.files import SystemDisk

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


async def send(peers: ConnectionPool, broker: Broker, topic: str, queue_id: int) -> None:
    header = SendMessage("P", topic, "TBW102", 4, queue_id, 0, 1, 0, "")
    await peers.request_ok(broker.addr, RequestCode.SEND_MESSAGE_V2, header, b"body")


async def write_messages(path: Path) -> None:
    async with ConnectionPool() as peers, Broker(settings(path)) as broker:
        await create(peers, broker, "A")
        for queue_id in (0, 2):
            await send(peers, broker, "A", queue_id)
        await send(peers, broker, "%RETRY%G", 0)


async def start(path: Path, *, restore: bool = False) -> tuple[list[str], int]:
    """Return the topics of a started broker, and the number of messages in queue 2 of topic A."""
    async with ConnectionPool() as peers, Broker(settings(path), restore_topics=restore) as broker:
        topics = broker.services.state.topics
        header = QueueRef("A", 2)
        end = await peers.request_ok(broker.addr, RequestCode.GET_MAX_OFFSET, header)
        names = [name for name in topics.names() if name in ("A", "%RETRY%G")]
        return names, int(end.field_map()["offset"])


@pytest.mark.parametrize("removed", ["directory", "files"])
def test_a_start_without_its_configuration_is_refused_until_topics_are_restored(
    tmp_path: Path, removed: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker started without a line: topics and groups were gone, and 1,600 messages could not be read."""
    config = tmp_path / "store" / "config"
    asyncio.run(write_messages(tmp_path))
    if removed == "directory":
        shutil.rmtree(config)
    else:
        for file in config.iterdir():
            file.unlink()
    for _ in range(2):  # a refusal changes nothing
        with pytest.raises(StoreError, match="has messages of 2 topics .*--restore-topics"):
            asyncio.run(start(tmp_path))
    assert not config.exists() or not list(config.iterdir())
    assert sorted(asyncio.run(start(tmp_path, restore=True))[0]) == ["%RETRY%G", "A"]
    assert "Restored 2 topics" in caplog.text
    names, end = asyncio.run(start(tmp_path))
    assert (sorted(names), end) == (["%RETRY%G", "A"], 1)
    table = json.loads((config / "topics.json").read_text())["topicConfigTable"]
    assert (table["A"]["readQueueNums"], table["A"]["perm"]) == (3, 6)
    assert '"G"' in (config / "subscriptionGroup.json").read_text()


def test_an_invalid_offset_is_not_served(tmp_path: Path) -> None:
    """An offset of -5 in consumerOffset.json was returned to consumers."""
    path = tmp_path / "store" / "config" / "consumerOffset.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"offsetTable":{"A@G":{0:-5,1:99999999999999999999,2:7}}}')

    async def run() -> None:
        async with ConnectionPool() as peers, Broker(settings(tmp_path)) as broker:
            answer = await peers.request_ok(broker.addr, RequestCode.GET_ALL_CONSUMER_OFFSET)
            assert fastjson.decode(answer.body, ConsumerOffsetTable).offset_table == {"A@G": {2: 7}}
            answer = await peers.request_ok(broker.addr, RequestCode.GET_BROKER_RUNTIME_INFO)
            assert fastjson.decode(answer.body, KvTableBody).table["droppedStateEntries"] == "2"

    asyncio.run(run())
    assert "-5" not in path.read_text()
    (retained,) = path.parent.glob("consumerOffset.json.invalid-*")
    assert "-5" in retained.read_text()


def test_a_store_of_java_without_a_configuration_starts_with_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(write_messages(tmp_path))
    shutil.rmtree(tmp_path / "store" / "config")
    (tmp_path / "store" / "checkpoint").write_bytes(bytes(4096))  # which has no part of ours
    assert asyncio.run(start(tmp_path))[0] == []
    assert "has messages of 2 topics" in caplog.text


def test_an_empty_store_starts_without_a_configuration(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert asyncio.run(start(tmp_path)) == ([], 0)
        shutil.rmtree(tmp_path / "store" / "config")
    assert "has messages" not in caplog.text


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
