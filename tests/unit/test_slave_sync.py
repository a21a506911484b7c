"""Topic and deletion tables that a slave copies from its master."""

from __future__ import annotations

import asyncio
import inspect
from typing import ClassVar, cast

import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.lifecycle.persistent_state import PersistentState
from ariane.broker.lifecycle.topic_deletion import TopicRemover
from ariane.broker.replication import slave_sync, topic_pages
from ariane.broker.state.loading.saved_state import SavedState
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.errors import ReplyError
from ariane.model.topic import TopicConfig, TopicDeletion
from ariane.net.connection import Peer, Reply
from ariane.net.shared_replies import SharedReplies
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.routing import TopicTable
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store
from ariane.testing.disk import FakeDisk

CONFIG = BrokerConfig(broker_name="broker-a", store_path_root_dir="/store")
STORE = StoreConfig(root="/store", commit_log_size=4096, consume_queue_size=200)


class Master:
    """The connections of a slave to a master that answers for its topics only."""

    def __init__(self, *names: str) -> None:
        self.topics = TopicRegistry(TopicTable(), CONFIG, now_ms=lambda: 2)
        self.deletions: dict[str, TopicDeletion] = {}
        for name in names:
            self.topics.put(TopicConfig(topic_name=name))

    async def request_ok(self, addr: str, code: int, header: object = None) -> Command:
        if code != RequestCode.GET_ALL_TOPIC_CONFIG:
            raise ReplyError(1, "not asked for here", addr)
        handled = topic_pages.reply(self.topics, self.deletions, header, SharedReplies())  # type: ignore[arg-type]
        reply = await handled if inspect.isawaitable(handled) else handled
        return Command(0, fields=dict(reply.fields or {}), body=reply.body)  # type: ignore[union-attr, arg-type]

    async def request(self, addr: str, code: int) -> Command:
        raise ReplyError(1, "not asked for here", addr)


class Slave:
    """The tables and the store of a slave on one disk."""

    def __init__(self) -> None:
        self.disk = FakeDisk()
        self.is_following = False
        saved = SavedState(self.disk, CONFIG.config_dir)
        self.store: MessageStore = open_store(STORE, self.disk, store_host=bytes(8), deletions=saved.load)
        self.tables = PersistentState(CONFIG, self.disk, saved, None, lambda: 5, lambda: 0.0)  # type: ignore[arg-type]
        stats = BrokerStats("c", detail=True, fall_recorded=True, drop_unused=False, now_ms=lambda: 0.0)
        self.remover = TopicRemover(tables=self.tables, store=self.store, stats=stats)

    def follows_changes(self) -> bool:
        return self.is_following

    def copy(self, master: Master) -> None:
        copier = slave_sync.TableCopier(
            peers=master,  # type: ignore[arg-type]
            state=self.tables,
            remover=self.remover,
            member=self,
        )
        asyncio.run(copier.copy("10.0.0.1:10911"))

    def put(self, topic: str, count: int, queue_id: int = 0) -> None:
        for _ in range(count):
            self.store.put(RecordDraft(topic=topic, queue_id=queue_id, body=bytes(900), born_ms=1, born_host=bytes(8)))
        self.store.dispatch_pending()
        self.store.flush()
        self.store.write_checkpoint()

    def drop_oldest_file(self) -> None:
        removal = self.store.retention.begin_log_removal(self.store.retention.log_files()[0])
        assert removal is not None
        removal.run()


class InvalidMaster(Master):
    """A master with values that no client may send."""

    BODIES: ClassVar = {
        RequestCode.GET_ALL_CONSUMER_OFFSET: b'{"offsetTable":{"T@G":{0:-5,1:99999999999999999999,2:7}}}',
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: b'{"dataVersion":{"counter":9},'
        b'"subscriptionGroupTable":{"G":{"groupName":"G"},"a@b":{"groupName":"a@b"}}}',
    }

    async def request_ok(self, addr: str, code: int, header: object = None) -> Command:
        body = self.BODIES.get(code)
        return Command(0, body=body) if body is not None else await super().request_ok(addr, code, header)


def test_invalid_entries_of_a_master_are_not_copied(caplog: pytest.LogCaptureFixture) -> None:
    slave = Slave()
    slave.copy(InvalidMaster("A"))
    assert slave.tables.offsets.table().offset_table == {"T@G": {2: 7}}
    assert list(slave.tables.groups.table().subscription_group_table) == ["G"]
    texts = [record.getMessage() for record in caplog.records if "invalid" in record.getMessage()]
    assert [text.partition(" of the master")[0] for text in texts] == [
        "Not copying 2 invalid consumer offsets", "Not copying 1 invalid consumer groups",
    ]  # fmt: skip


def test_no_copy_undoes_changes_that_the_master_has_sent() -> None:
    """Also a copy that was requested before."""
    master, slave = Master("A"), Slave()
    former = slave.tables.topics.table()
    plain = master.request_ok

    async def late(addr: str, code: int, header: object = None) -> Command:
        answer = await plain(addr, code, header)
        slave.is_following = True
        return answer

    master.request_ok = late  # type: ignore[method-assign]
    slave.copy(master)
    assert slave.tables.topics.table() == former
    slave.is_following = False
    master.request_ok = plain  # type: ignore[method-assign]
    slave.copy(master)
    assert "A" in slave.tables.topics.names()


def test_a_deletion_older_than_the_slaves_log_removes_no_topic() -> None:
    master, copy = Master("A", "B"), Slave()
    copy.copy(master)
    copy.put("A", 10)
    copy.tables.offsets.commit("G", "B", 0, 7)
    copy.drop_oldest_file()
    master.deletions["B"] = TopicDeletion(below=4096, store_ms=1)  # deleted long ago, created again since
    for _ in range(2):
        copy.copy(master)
        assert set(copy.tables.topics.names()) == set(master.topics.names())
        assert copy.tables.offsets.get("G", "B", 0) == 7


def test_a_topic_recreated_before_the_slave_copies_its_deletion_is_retained() -> None:
    master, copy = Master("A", "B"), Slave()
    copy.copy(master)
    copy.put("B", 2)
    master.deletions["B"] = TopicDeletion(below=copy.store.commit_log_max, store_ms=copy.store.last_ms)
    copy.copy(master)
    assert set(copy.tables.topics.names()) == set(master.topics.names())
    assert copy.store.max_offset("B", 0) == 0


def test_many_deletions_need_one_flush_of_the_change_log() -> None:
    master, copy = Master("A"), Slave()
    copy.copy(master)
    master.deletions = {f"T{number}": TopicDeletion(below=5000 + number, store_ms=1) for number in range(100)}
    flushed: list[str] = []
    copy.disk.fail = lambda kind, path: flushed.append(path) if kind == "fsync" else None
    copy.copy(master)
    assert len(flushed) <= 2
    assert len(copy.store.deletions) == 100
    repeated = SavedState(copy.disk.after_kill(), CONFIG.config_dir)
    assert len(repeated.load()) == 100


def test_only_recreated_queues_survive_a_deletion() -> None:
    master, copy = Master("A"), Slave()
    copy.put("A", 2, queue_id=1)
    below, last_ms = copy.store.commit_log_max, copy.store.last_ms
    copy.put("A", 1, queue_id=0)
    master.deletions["A"] = TopicDeletion(below=below, store_ms=last_ms)
    copy.copy(master)
    assert copy.store.max_offset("A", 0) == 1
    assert copy.store.max_offset("A", 1) == 0


def test_a_slave_deletes_no_messages_of_topics_not_copied_yet() -> None:
    peer = cast(Peer, None)
    reply = slave_sync.reject_handlers()[RequestCode.CLEAN_UNUSED_TOPIC](Command(RequestCode.CLEAN_UNUSED_TOPIC), peer)
    assert isinstance(reply, Reply) and reply.code == ResponseCode.SUCCESS
