"""The change log and the documents of config/: recovery at start from files of the previous process or of Java."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging

import msgspec
import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.state.loading.saved_state import SavedState
from ariane.broker.state.saved import change_log, change_records, json_documents
from ariane.broker.state.saved.change_records import MessagesAcknowledged, TopicPut
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.errors import ReplyError, StoreError, StoreFull
from ariane.model import host
from ariane.model.topic import DataVersion, SubscriptionGroupConfig, TopicConfig, TopicDeletion
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.tasks import BackgroundTasks
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.records import properties, record
from ariane.protocol.requests.admin import (
    ConsumerOffsetTable,
    CreateTopic,
    DelayOffsetTable,
    DeleteGroup,
    SubscriptionGroupTable,
    TopicRef,
)
from ariane.protocol.requests.messaging import (
    PullMessage,
    QueryConsumerOffset,
    QueryMessage,
    QueueRef,
    SendMessage,
    UpdateConsumerOffset,
)
from ariane.protocol.requests.routing import TopicTable
from ariane.store.log.deletions import Deletions
from ariane.store.message_store import RecordDraft, StoreConfig, open_store
from ariane.testing.disk import FakeDisk, SurvivingData
from ariane.testing.virtual.virtual_cluster import VirtualCluster, virtual_cluster
from ariane.testing.virtual.virtual_time import VirtualLoop

CONFIG_DIR = "/store/config"
TOPICS = f"{CONFIG_DIR}/topics.json"


def write(disk: FakeDisk, path: str, data: bytes) -> None:
    disk.make_dirs(path.rpartition("/")[0])
    if disk.size(path) is not None:
        disk.remove(path)
    handle = disk.create(path, 0)
    disk.pwrite(handle, data, 0)
    disk.close(handle)


def topics_json(*names: str) -> bytes:
    return json_documents.encode(TopicTable(DataVersion(3, 5), {name: TopicConfig(topic_name=name) for name in names}))


def topics_of(disk: FakeDisk) -> set[str]:
    state = SavedState(disk, CONFIG_DIR)
    state.load()
    return set(state.topics.topic_config_table)


def in_broker(scenario, **settings):
    with virtual_cluster(**settings) as world:
        world.run(scenario(world))


BROKER = "10.0.0.2:10911"


async def ask(world: VirtualCluster, code: int, header: msgspec.Struct | None, body: bytes = b"") -> Command:
    """Send one request to the broker. Raises ReplyError if it is refused."""

    async def send_request() -> Command:
        async with ConnectionPool() as peers:
            return await peers.request_ok(BROKER, code, header, body)

    return await world.process("tool").start(send_request())


async def create(world: VirtualCluster, *names: str) -> None:
    for name in names:
        await ask(world, RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopic(name, "TBW102", 16, 16, 6))


async def send(world: VirtualCluster, topic: str, body: bytes, key: str = "k") -> None:
    own = properties.encode({"KEYS": key})
    await ask(world, RequestCode.SEND_MESSAGE_V2, SendMessage("P", topic, "TBW102", 4, 0, 0, 1, 0, own), body)


async def commit(world: VirtualCluster, group: str, topic: str, offset: int) -> None:
    await ask(world, RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset(group, topic, 0, offset))


async def committed(world: VirtualCluster, group: str, topic: str) -> int | None:
    try:
        answer = await ask(world, RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffset(group, topic, 0))
    except ReplyError:
        return None
    return int(answer.field_map()["offset"])


async def messages(world: VirtualCluster, topic: str) -> list[bytes]:
    """Bodies in queue 0 of a topic that consumers can read."""
    bodies: list[bytes] = []
    end = int((await ask(world, RequestCode.GET_MAX_OFFSET, QueueRef(topic, 0))).field_map()["offset"])
    while len(bodies) < end:
        header = PullMessage("reader", topic, 0, len(bodies), 32, 4, 0, 0, "*", 0, "TAG")
        answer = await ask(world, RequestCode.PULL_MESSAGE, header)
        bodies += [stored_record.body for stored_record in record.decode_all(answer.body)]
    return bodies


def test_2708_a_commit_of_minus_one_changes_nothing():
    """apache/rocketmq#2708: clients that cannot read their offset commit -1; Java's broker stores it, and all is consumed again."""

    async def scenario(world: VirtualCluster) -> None:
        await world.start()
        await create(world, "orders")
        await commit(world, "g", "orders", 7)
        with pytest.raises(ReplyError, match="Invalid commitOffset -1"):
            await commit(world, "g", "orders", -1)
        assert await committed(world, "g", "orders") == 7

    in_broker(scenario)


# --- the log ---


def test_encoding_in_slices_equals_encoding_at_once() -> None:
    for document in (
        TopicTable(DataVersion(1, 2), {name: TopicConfig(topic_name=name) for name in ("a", 'b"', "c")}),
        TopicTable(),
        ConsumerOffsetTable({"T@G": {0: 1, 3: 2}, "U@G": {}}),
        SubscriptionGroupTable(),
    ):
        assert json_documents.encode(document) == fastjson.write(document, pretty=True)


def test_a_truncated_line_is_ignored_and_a_corrupt_line_affects_no_other(caplog) -> None:
    disk = FakeDisk()
    lines = [
        change_records.encode(
            change_records.ChangeEntry(n, TopicPut(TopicConfig(topic_name=f"T{n}"), DataVersion(n, 1)))
        )
        for n in (1, 2, 3, 4)
    ]
    lines[1] = lines[1].replace(b"T2", b"T7")
    write(disk, f"{CONFIG_DIR}/changes.{1:020d}", b"".join(lines)[:-5])
    assert topics_of(disk) == {"T1", "T3"}
    assert f"{len(lines[1])} bytes at offset {len(lines[0])}" in caplog.text
    assert "was interrupted" in caplog.text


def test_a_newer_document_of_java_is_used_and_missing_changes_are_reported(caplog) -> None:
    async def scenario(world: VirtualCluster) -> None:
        await world.start()
        await create(world, "A")
        await asyncio.sleep(5)
        await create(world, "B")
        world.broker.kill()
        write(world.disk, TOPICS, topics_json("A", "J"))
        await world.broker.start()
        stored = topics_of(world.disk)
        assert {"A", "J"} <= stored and "B" not in stored

    in_broker(scenario)
    assert "was written by another program" in caplog.text and '"topicName":"B"' in caplog.text


def test_documents_are_complete_after_an_orderly_stop() -> None:
    async def scenario(world: VirtualCluster) -> None:
        await world.start()
        await create(world, "A")
        await world.broker.stop()
        table = json_documents.load(world.disk, CONFIG_DIR, json_documents.TOPICS, TopicTable)
        assert table.topic_config_table["A"].write_queue_nums == 16

    in_broker(scenario)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_topic_survives_a_kill_right_after_its_response(flush: str) -> None:
    async def scenario(world: VirtualCluster) -> None:
        await world.start()
        await create(world, "A")
        if flush == "SYNC_FLUSH":
            world.broker.lose_power()
        else:
            world.broker.kill()
        assert "A" in topics_of(world.disk)

    in_broker(scenario, flush_disk_type=flush)


def test_the_change_log_stays_small(caplog) -> None:
    async def scenario(world: VirtualCluster) -> None:
        await world.start()
        for number in range(200):
            await create(world, f"T{number}")
            await asyncio.sleep(0.5)
        await asyncio.sleep(5)
        remaining = [path for path in world.disk.paths() if "/config/changes." in path]
        assert len(remaining) <= 2
        assert sum(world.disk.size(path) or 0 for path in remaining) < 5_000

    in_broker(scenario)


def test_a_topic_is_rejected_while_the_disk_is_full_and_accepted_afterwards() -> None:
    def full(kind: str, path: str) -> None:
        if "/config/" in path and kind in ("write", "create"):
            raise OSError(errno.ENOSPC, "no space left on device", path)

    async def scenario(world: VirtualCluster) -> None:
        await world.start()
        world.disk.fail = full
        with pytest.raises(ReplyError, match="No room to write"):
            await create(world, "A")
        world.disk.fail = lambda kind, path: None
        await create(world, "A")
        world.broker.kill()
        assert "A" in topics_of(world.disk)

    in_broker(scenario)


# --- documents at a start ---


@pytest.mark.parametrize("content", [b"", b"\0" * 300, b'{"topicConfigTable":{"A":'])
def test_an_unreadable_document_is_replaced_by_its_bak_and_logged_as_an_error(content: bytes, caplog) -> None:
    disk = FakeDisk()
    write(disk, TOPICS, content)
    write(disk, f"{TOPICS}.bak", topics_json("A"))
    assert topics_of(disk) == {"A"}
    assert any(
        stored_record.levelno == logging.ERROR and TOPICS in stored_record.getMessage()
        for stored_record in caplog.records
    )
    json_documents.save(disk, CONFIG_DIR, json_documents.TOPICS, topics_json("A", "B"))
    assert topics_of(disk) == {"A", "B"}
    assert disk.contents(f"{TOPICS}.damaged") == content
    disk.remove(TOPICS)
    assert topics_of(disk) == {"A"}


def test_a_missing_document_is_restored_from_its_bak_and_reported(caplog) -> None:
    disk = FakeDisk()
    write(disk, f"{TOPICS}.bak", topics_json("A"))
    assert topics_of(disk) == {"A"}
    assert "is missing; using" in caplog.text


@pytest.mark.parametrize("name", [json_documents.TOPICS, json_documents.GROUPS, json_documents.OFFSETS])
@pytest.mark.parametrize("bak", [None, b"", b"{"])
def test_an_empty_document_without_a_valid_bak_prevents_the_start(name: str, bak: bytes | None) -> None:
    disk = FakeDisk()
    write(disk, f"{CONFIG_DIR}/{name}", b"")
    if bak is not None:
        write(disk, f"{CONFIG_DIR}/{name}.bak", bak)
    with pytest.raises(StoreError, match=f"{name}.*is empty.*restore a copy"):
        SavedState(disk, CONFIG_DIR).load()


def test_a_directory_in_place_of_a_document_prevents_the_start() -> None:
    disk = FakeDisk()
    disk.make_dirs(TOPICS)
    with pytest.raises(StoreError, match=r"topics\.json is a directory, .*move the directory away"):
        SavedState(disk, CONFIG_DIR).load()


def test_a_removed_document_prevents_the_start() -> None:
    async def scenario(world: VirtualCluster) -> None:
        await world.start()
        await create(world, "A")
        await world.broker.stop()
        for path in (TOPICS, f"{TOPICS}.bak"):
            if world.disk.size(path) is not None:
                world.disk.remove(path)
        with pytest.raises(StoreError, match=r"topics\.json is missing"):
            await world.broker.start()

    in_broker(scenario)


def test_corrupt_queue_locks_do_not_prevent_the_start(caplog) -> None:
    disk = FakeDisk()
    write(disk, f"{CONFIG_DIR}/{json_documents.LOCKS}", b"")
    SavedState(disk, CONFIG_DIR).load()
    assert "starting without its content" in caplog.text


# --- bounds ---


def test_auto_creation_of_topics_is_bounded_but_tools_may_exceed_it() -> None:
    topics = TopicRegistry(TopicTable(), BrokerConfig(broker_name="broker-a", server_topics_max=16), now_ms=lambda: 1)
    with pytest.raises(ReplyError, match="create it with updateTopic"):
        for number in range(12):
            topics.create_from_template("TBW102", f"T{number}", 4)
    topics.put(TopicConfig(topic_name="by-hand"))


def test_the_change_log_is_bounded_while_documents_cannot_be_written(monkeypatch) -> None:
    monkeypatch.setattr(change_log, "LOG_BYTES_MAX", 2_000)
    disk = FakeDisk()
    log = change_log.ChangeLog(disk, CONFIG_DIR, change_records.load(disk, CONFIG_DIR), None, is_sync=False)  # type: ignore[arg-type]
    with pytest.raises(StoreFull, match="change log in /store/config has"):
        for number in range(100):
            log.append(TopicPut(TopicConfig(topic_name=f"T{number}"), DataVersion()))
    content = change_records.SavedDocument(crc=1, n=log.last_n)
    log.rotate()
    log.record_document(json_documents.TOPICS, content)  # what makes room is not refused for lack of room
    log.remove_covered(json_documents.TOPICS, content)
    log.append(TopicPut(TopicConfig(topic_name="A"), DataVersion()))


def test_changes_that_are_appended_together_are_one_write_all_or_none() -> None:
    disk = FakeDisk()
    log = change_log.ChangeLog(disk, CONFIG_DIR, change_records.load(disk, CONFIG_DIR), None, is_sync=False)  # type: ignore[arg-type]
    acks = [MessagesAcknowledged("G", "T", queue_id, (7,)) for queue_id in range(3)]
    assert log.append(acks[0]) == 1
    writes: list[str] = []
    disk.fail = lambda kind, path: writes.append(path) if kind == "write" else None
    assert log.append(*acks) == 4
    assert len(writes) == 1

    def refuse(kind: str, path: str) -> None:
        if kind == "write":
            raise OSError(errno.EIO, "I/O error", path)

    disk.fail = refuse
    with pytest.raises(StoreError):
        log.append(*acks)
    disk.fail = lambda kind, path: None
    assert log.append(acks[2]) == 5
    loaded = change_records.load(disk, CONFIG_DIR)
    assert [(entry.n, entry.change) for entry in loaded.entries] == list(enumerate([acks[0], *acks, acks[2]], 1))


def test_a_new_change_log_directory_is_durable_before_its_first_change() -> None:
    synced: list[str] = []
    disk = FakeDisk()
    disk.fail = lambda kind, path: synced.append(path) if kind == "fsync_dir" else None
    log = change_log.ChangeLog(disk, CONFIG_DIR, change_records.load(disk, CONFIG_DIR), None, is_sync=True)  # type: ignore[arg-type]
    log.append(TopicPut(TopicConfig(topic_name="A"), DataVersion()))
    log.flush_blocking()
    assert {"/store", CONFIG_DIR} <= set(synced)


def test_a_failing_periodic_save_logs_one_line_and_backs_off(caplog) -> None:
    loop = VirtualLoop()
    tries: list[float] = []

    async def save() -> None:
        tries.append(loop.time())
        if len(tries) < 9:
            raise OSError(errno.ENOSPC, "No space left on device", TOPICS)

    async def scenario() -> None:
        tasks = BackgroundTasks("broker")
        tasks.repeat(5, save, "save the consumer offsets")
        await asyncio.sleep(600)
        await tasks.close()

    loop.run_until_complete(scenario())
    loop.close()
    pauses = [round(after - before) for before, after in itertools.pairwise(tries)]
    assert pauses[:9] == [10, 20, 40, 60, 60, 60, 60, 60, 5]
    lines = [
        stored_record for stored_record in caplog.records if "save the consumer offsets" in stored_record.getMessage()
    ]
    assert len(lines) == 9  # eight failures, and that it works again
    assert all(stored_record.exc_info is None and "\n" not in stored_record.getMessage() for stored_record in lines)
    assert "No space left on device" in lines[0].getMessage() and "10 s" in lines[0].getMessage()


# --- deletions ---


def test_a_deleted_topic_stays_deleted_after_a_kill_and_a_full_queue_rebuild() -> None:
    async def scenario(world: VirtualCluster) -> None:
        await world.start()
        await send(world, "A", b"old", key="k")
        await commit(world, "G", "A", 1)
        await asyncio.sleep(10)
        await ask(world, RequestCode.DELETE_TOPIC_IN_BROKER, TopicRef("A"))
        world.broker.kill()
        for path in world.disk.paths():
            if "/consumequeue/" in path or path.endswith("/checkpoint"):
                world.disk.remove(path)
        await world.broker.start()
        assert await messages(world, "A") == []
        await send(world, "A", b"new", key="k")
        await asyncio.sleep(1)
        assert await messages(world, "A") == [b"new"]
        assert await committed(world, "G", "A") in (None, 0)
        result = await ask(world, RequestCode.QUERY_MESSAGE, QueryMessage("A", "k", 32, 0, 1 << 62))
        assert b"new" in result.body and b"old" not in result.body

    in_broker(scenario)


def test_the_only_topic_stays_deleted_after_an_orderly_stop() -> None:
    async def scenario(world: VirtualCluster) -> None:
        await world.start()
        await send(world, "A", b"old")
        await asyncio.sleep(10)
        await ask(world, RequestCode.DELETE_TOPIC_IN_BROKER, TopicRef("A"))
        await world.broker.stop()
        assert not [path for path in world.disk.paths() if "/consumequeue/" in path]
        await world.broker.start()
        await create(world, "A")
        assert await messages(world, "A") == []

    in_broker(scenario)


def test_offsets_for_a_deleted_topic_are_not_committed_to_its_recreated_successor() -> None:
    async def scenario(world: VirtualCluster) -> None:
        await world.start()
        for number in range(3):
            await send(world, "A", b"%d" % number)
        await ask(world, RequestCode.DELETE_TOPIC_IN_BROKER, TopicRef("A"))
        await send(world, "A", b"new")
        with pytest.raises(ReplyError, match="the topic was deleted"):
            await commit(world, "G", "A", 3)
        await commit(world, "G", "A", 1)

    in_broker(scenario)


def test_a_deleted_group_stays_deleted_with_its_offsets() -> None:
    async def scenario(world: VirtualCluster) -> None:
        await world.start()
        await send(world, "A", b"one")
        group = fastjson.write(SubscriptionGroupConfig(group_name="G"))
        await ask(world, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group)
        await commit(world, "G", "A", 1)
        await asyncio.sleep(10)
        await ask(world, RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup("G", remove_offset=True))
        world.broker.kill()
        state = SavedState(world.disk, CONFIG_DIR)
        state.load()
        assert "G" not in state.groups.subscription_group_table and not state.offsets.offset_table

    in_broker(scenario)


def test_a_deletion_record_is_removed_when_the_log_has_no_message_of_the_topic() -> None:
    deletions = Deletions({"A": TopicDeletion(below=100, store_ms=5), "B": TopicDeletion(below=300, store_ms=6)})
    assert deletions.drop_before(99) == 0
    assert deletions.drop_before(200) == 1
    assert set(deletions.to_table()) == {"B"}


def test_a_slave_deletes_topics_deleted_at_its_master() -> None:
    deletions = Deletions()
    host_bytes = host.pack("127.0.0.1", 10911)
    config = StoreConfig(root="/store", commit_log_size=4096, consume_queue_size=200)
    master = open_store(config, FakeDisk(), store_host=host_bytes)
    slave = open_store(
        msgspec.structs.replace(config, follower=True),
        FakeDisk(),
        store_host=host_bytes,
        deletions=lambda: deletions,
    )
    replica = slave.follow_master()

    def put(body: bytes) -> None:
        master.put(
            RecordDraft(topic="A", queue_id=0, body=body, born_ms=1, born_host=host_bytes, tags="", properties="")
        )

    def copy() -> None:
        data = master.replication_source.read(replica.received, 4096)
        if data:
            replica.append(replica.received, data)
        slave.dispatch_pending()

    put(b"old")
    copy()
    put(b"old, not copied yet")
    deletion = master.deletion_of("A")
    assert deletion is not None
    master.delete_topic("A")
    slave.apply_deletion("A", deletion)
    assert slave.max_offset("A", 0) == 0
    put(b"new")
    copy()
    result = slave.get("A", 0, 0, 32)
    assert [record.decode(stored_record).body for stored_record in result.records] == [b"new"]


# --- what answers wait for ---


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_send_is_acknowledged_only_after_the_topic_it_created_is_durable(flush: str) -> None:
    async def scenario(world: VirtualCluster) -> None:
        await world.start()
        first, second = asyncio.create_task(send(world, "A", b"one")), asyncio.create_task(send(world, "A", b"two"))
        await asyncio.wait((first, second), return_when=asyncio.FIRST_COMPLETED)
        if flush == "SYNC_FLUSH":
            world.broker.lose_power(SurvivingData.NONE)
        else:
            world.broker.kill()
        sent = [body for task, body in ((first, b"one"), (second, b"two")) if task.done()]
        await asyncio.gather(first, second, return_exceptions=True)
        await world.broker.start()
        assert set(sent) <= set(await messages(world, "A"))

    in_broker(scenario, flush_disk_type=flush)


def test_in_sync_flush_a_failed_flush_rejects_the_change_and_all_later_ones() -> None:
    def fail(kind: str, path: str) -> None:
        if kind == "fsync" and "/config/changes." in path:
            raise OSError(errno.EIO, "input/output error", path)

    async def scenario(world: VirtualCluster) -> None:
        await world.start()
        await create(world, "A")
        world.disk.fail = fail
        for name in ("B", "C"):
            with pytest.raises(ReplyError, match="Cannot flush"):
                await create(world, name)
        with pytest.raises(ReplyError, match="Cannot flush"):
            await send(world, "A", b"one")
        assert await messages(world, "A") == [b"one"]
        world.disk.fail = lambda kind, path: None
        await commit(world, "G", "A", 1)
        await asyncio.sleep(10)
        assert b'"A@G":{0:1}' in world.disk.contents(f"{CONFIG_DIR}/{json_documents.OFFSETS}").replace(
            b"\t", b""
        ).replace(b"\n", b"")

    in_broker(scenario, flush_disk_type="SYNC_FLUSH")


# --- removed from outside ---


@pytest.mark.parametrize("place", ["/store", CONFIG_DIR])
def test_a_file_in_place_of_a_directory_prevents_the_start_and_states_the_fix(place: str) -> None:
    async def scenario(world: VirtualCluster) -> None:
        world.disk.make_dirs(place.rpartition("/")[0])
        world.disk.put_file(place)
        await world.name_server.start()
        with pytest.raises(StoreError, match=rf"{place}: .*in place of a directory: move it away"):
            await world.broker.start()

    in_broker(scenario)


def test_a_config_directory_that_cannot_be_created_prevents_the_start() -> None:
    def broken_link(kind: str, path: str) -> None:
        if kind == "create" and path.startswith(f"{CONFIG_DIR}/"):
            raise FileExistsError(errno.EEXIST, "File exists", CONFIG_DIR)

    async def scenario(world: VirtualCluster) -> None:
        world.disk.fail = broken_link
        await world.name_server.start()
        with pytest.raises(StoreError, match=rf"{CONFIG_DIR}: File exists.*broken link"):
            await world.broker.start()

    in_broker(scenario)


FLUSH_MODES = pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])


def remove_config(disk: FakeDisk) -> None:
    disk.remove_tree(CONFIG_DIR)


def remove_change_log(disk: FakeDisk) -> None:
    for path in disk.paths():
        if path.startswith(f"{CONFIG_DIR}/{change_records.PREFIX}"):
            disk.remove(path)


def remove_topics(disk: FakeDisk) -> None:
    for path in disk.paths():
        if path.startswith(TOPICS):
            disk.remove(path)


def replace_by_copy(disk: FakeDisk) -> None:
    """As `cp -r config copy; rm -r config; mv copy config`."""
    copies = {path: bytes(disk.contents(path)) for path in disk.paths() if path.startswith(f"{CONFIG_DIR}/")}
    disk.remove_tree(CONFIG_DIR)
    disk.make_dirs(CONFIG_DIR)
    for path, data in copies.items():
        disk.put_file(path, data)


REMOVALS = pytest.mark.parametrize("remove", [remove_config, remove_change_log, remove_topics, replace_by_copy])


def removal_lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [
        stored_record
        for stored_record in caplog.records
        if "removed while the broker runs" in stored_record.getMessage()
    ]


async def start_with_state(world: VirtualCluster) -> None:
    """Start, with a topic of 16 queues and an offset in the documents."""
    await world.start()
    await create(world, "A")
    await send(world, "A", b"one")
    await commit(world, "G", "A", 1)
    await asyncio.sleep(10)


async def check_state(world: VirtualCluster, *names: str) -> None:
    topics = json_documents.load(world.disk, CONFIG_DIR, json_documents.TOPICS, TopicTable).topic_config_table
    assert {"A", *names} <= set(topics) and topics["A"].write_queue_nums == 16
    await world.broker.start()
    assert await messages(world, "A") == [b"one"]
    assert await committed(world, "G", "A") == 1


@FLUSH_MODES
@REMOVALS
def test_a_removed_configuration_is_rewritten_from_memory(remove, flush: str, caplog) -> None:
    async def scenario(world: VirtualCluster) -> None:
        await start_with_state(world)
        remove(world.disk)
        await asyncio.sleep(1)  # the flush of the change log notices it; nothing else changes meanwhile
        (line,) = removal_lines(caplog)
        assert line.levelno == logging.ERROR and line.notice and CONFIG_DIR in line.getMessage()
        await create(world, "B")
        await asyncio.sleep(0.6)
        world.broker.lose_power(SurvivingData.NONE)
        assert {"A", "B"} <= topics_of(world.disk)
        await check_state(world)
        assert len(removal_lines(caplog)) == 1

    in_broker(scenario, flush_disk_type=flush)


@REMOVALS
def test_a_stop_right_after_a_removal_writes_all_documents(remove) -> None:
    async def scenario(world: VirtualCluster) -> None:
        await start_with_state(world)
        before = {path for path in world.disk.paths() if path.endswith(".json") and "/config/" in path}
        remove(world.disk)
        await world.broker.stop()
        assert before <= set(world.disk.paths())
        await check_state(world)

    in_broker(scenario)


def test_removed_delay_level_offsets_are_rewritten() -> None:
    async def scenario(world: VirtualCluster) -> None:
        write(world.disk, f"{CONFIG_DIR}/{json_documents.DELAY_OFFSETS}", b'{"offsetTable":{3:7}}')
        await start_with_state(world)
        positions = json_documents.load(world.disk, CONFIG_DIR, json_documents.DELAY_OFFSETS, DelayOffsetTable)
        remove_config(world.disk)
        await asyncio.sleep(1)
        assert positions.offset_table
        assert json_documents.load(world.disk, CONFIG_DIR, json_documents.DELAY_OFFSETS, DelayOffsetTable) == positions

    in_broker(scenario)


@REMOVALS
def test_in_sync_flush_a_change_after_a_removal_is_acknowledged_once_it_is_durable(remove) -> None:
    async def scenario(world: VirtualCluster) -> None:
        await start_with_state(world)
        remove(world.disk)
        await create(world, "B")
        world.broker.lose_power(SurvivingData.NONE)
        if remove is remove_topics:  # the change log is on the disk; only the lost document was not noticed
            assert b'"B"' in b"".join(
                world.disk.contents(path) for path in world.disk.paths() if change_records.PREFIX in path
            )
        else:
            await check_state(world, "B")

    in_broker(scenario, flush_disk_type="SYNC_FLUSH")


def test_a_topic_deleted_right_after_a_removal_stays_deleted() -> None:
    async def scenario(world: VirtualCluster) -> None:
        await start_with_state(world)
        await send(world, "D", b"old")
        remove_config(world.disk)
        await ask(world, RequestCode.DELETE_TOPIC_IN_BROKER, TopicRef("D"))
        entries = change_records.load(world.disk, CONFIG_DIR).entries
        assert [entry.change.name for entry in entries if isinstance(entry.change, change_records.TopicDeleted)] == [
            "D"
        ]
        await asyncio.sleep(1)
        world.broker.lose_power(SurvivingData.NONE)
        await check_state(world)
        await create(world, "D")
        assert await messages(world, "D") == []

    in_broker(scenario)


def test_a_start_without_the_removed_documents_is_rejected() -> None:
    """Power fails after the new change log was created, before the documents are written."""

    def no_document(kind: str, path: str) -> None:
        if kind == "create" and ".json" in path:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    async def scenario(world: VirtualCluster) -> None:
        await start_with_state(world)
        remove_config(world.disk)
        world.disk.fail = no_document
        await asyncio.sleep(1)
        world.broker.kill()
        with pytest.raises(StoreError, match="is missing, and so is its .bak"):
            await world.broker.start()

    in_broker(scenario)


@FLUSH_MODES
@pytest.mark.parametrize("broken", ["directory", "document"])
def test_changes_are_rejected_until_a_restart_if_the_configuration_cannot_be_rewritten(
    broken: str, flush: str, caplog
) -> None:
    def fail(kind: str, path: str) -> None:
        if kind == "create" and "/config/" in path and (broken == "directory" or ".json" in path):
            raise OSError(errno.EROFS, "Read-only file system", path)

    async def scenario(world: VirtualCluster) -> None:
        await start_with_state(world)
        remove_config(world.disk)
        world.disk.fail = fail
        await asyncio.sleep(1)
        for name in ("B", "C"):
            with pytest.raises(ReplyError, match=r"removed while the broker runs.*Read-only file system"):
                await create(world, name)
        assert await messages(world, "A") == [b"one"]
        critical = [stored_record for stored_record in caplog.records if stored_record.levelno == logging.CRITICAL]
        assert len(critical) == 1 and critical[0].notice
        await asyncio.sleep(60)
        assert [
            stored_record for stored_record in caplog.records if stored_record.levelno == logging.CRITICAL
        ] == critical
        world.disk.fail = lambda kind, path: None
        await world.broker.stop()
        await check_state(world)

    in_broker(scenario, flush_disk_type=flush)


def test_in_sync_flush_a_pending_change_fails_if_a_removed_file_cannot_be_rewritten() -> None:
    def fail(kind: str, path: str) -> None:
        if kind == "create" and "/config/" in path:
            raise OSError(errno.EROFS, "Read-only file system", path)

    async def scenario(world: VirtualCluster) -> None:
        await start_with_state(world)
        remove_config(world.disk)
        world.disk.fail = fail
        with pytest.raises(ReplyError, match="Read-only file system"):
            await create(world, "B")

    in_broker(scenario, flush_disk_type="SYNC_FLUSH")


def test_a_document_restored_from_its_bak_at_start_does_not_count_as_removed(caplog) -> None:
    async def scenario(world: VirtualCluster) -> None:
        await start_with_state(world)
        await world.broker.stop()
        world.disk.rename(TOPICS, f"{TOPICS}.bak")
        await world.broker.start()
        await asyncio.sleep(2)
        assert not removal_lines(caplog)

    in_broker(scenario)
