"""A slave copies a large topic table page by page, and nothing if it is up to date."""

from __future__ import annotations

import asyncio
import inspect

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.replication import topic_pages
from ariane.broker.replication.topic_pages import PAGE_TOPICS
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.model.topic import DataVersion, TopicConfig, TopicDeletion
from ariane.net.connection import Reply
from ariane.net.shared_replies import SharedReplies
from ariane.protocol import fastjson
from ariane.protocol.command import Command
from ariane.protocol.requests.routing import MasterTopicTable, TopicPageRequest, TopicTable

DELETED = {"gone": TopicDeletion(below=100, store_ms=1)}


def topics(count: int, version: int = 7) -> TopicRegistry:
    table = {f"T{number}": TopicConfig(topic_name=f"T{number}") for number in range(count)}
    return TopicRegistry(
        TopicTable(DataVersion(version, 1), table), BrokerConfig(broker_name="broker-a"), now_ms=lambda: 2
    )


class Master:
    """Answers as our master, or as Java's: whole tables only."""

    def __init__(self, table: TopicRegistry, *, is_java: bool = False) -> None:
        self.table = table
        self.sizes: list[int] = []
        self.after_page = lambda: None
        self._is_java = is_java

    async def ask(self, request: TopicPageRequest) -> Command:
        page_request = TopicPageRequest() if self._is_java else request
        handled = topic_pages.reply(self.table, {} if self._is_java else DELETED, page_request, SharedReplies())
        reply = await handled if inspect.isawaitable(handled) else handled
        assert isinstance(reply, Reply) and isinstance(reply.body, bytes)
        self.sizes.append(len(fastjson.decode(reply.body, MasterTopicTable).topic_config_table))
        self.after_page()
        return Command(0, fields=dict(reply.fields or {}), body=reply.body)


def copied(master: Master, slave: TopicRegistry) -> MasterTopicTable:
    return asyncio.run(topic_pages.fetch(slave, master.ask))


def test_a_large_table_is_copied_in_pages_and_only_once() -> None:
    master, slave = Master(topics(3 * PAGE_TOPICS)), topics(0, version=1)
    table = copied(master, slave)
    slave.replace(table)
    assert slave.table() == master.table.table()
    assert table.deleted_topics == DELETED
    assert len(master.sizes) == 4 and max(master.sizes) == PAGE_TOPICS
    master.sizes.clear()
    assert copied(master, slave) == MasterTopicTable(master.table.version, {}, DELETED)
    assert master.sizes == [0]


def test_the_whole_table_of_a_java_master_is_copied_unless_unchanged() -> None:
    master, slave = Master(topics(3 * PAGE_TOPICS), is_java=True), topics(0, version=1)
    slave.replace(copied(master, slave))
    assert slave.table() == master.table.table()
    assert copied(master, slave).topic_config_table == {}


def test_a_topic_deleted_between_two_pages_affects_no_other_topic() -> None:
    master, slave = Master(topics(3 * PAGE_TOPICS)), topics(3 * PAGE_TOPICS, version=1)

    def delete_once() -> None:
        master.after_page = lambda: None
        master.table.delete("T0")  # all later topics move up: the pages lack one

    master.after_page = delete_once
    slave.replace(copied(master, slave))
    assert set(slave.names()) >= set(master.table.names())
    assert slave.version != master.table.version  # so that the next round copies again
    slave.replace(copied(master, slave))
    assert slave.table() == master.table.table()


def test_tools_receive_the_whole_table_in_javas_format() -> None:
    for count in (1, 2 * PAGE_TOPICS):
        master = topics(count)

        async def whole(master: TopicRegistry = master) -> Reply:
            handled = topic_pages.reply(master, DELETED, TopicPageRequest(), SharedReplies())
            return await handled if inspect.isawaitable(handled) else handled

        table = master.table()
        expected = MasterTopicTable(table.data_version, table.topic_config_table, DELETED)
        assert asyncio.run(whole()).body == fastjson.write(expected)
