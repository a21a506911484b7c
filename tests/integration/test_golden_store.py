"""A store directory of a Java 4.9.4 broker is opened, and all its messages are readable."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

import java_store
from ariane.broker.state.saved import json_documents
from ariane.model import host, ids
from ariane.protocol.records import compression, record
from ariane.protocol.requests.admin import ConsumerOffsetTable, SubscriptionGroupTable
from ariane.protocol.requests.routing import TopicTable
from ariane.store.disk.files import SystemDisk
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store

DATA = Path(__file__).parents[1] / "data"
HOST = host.pack("127.0.0.1", 10911)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return java_store.unpack(tmp_path)


def opened(root: Path) -> MessageStore:
    return open_store(StoreConfig(root=str(root), commit_log_size=65536, consume_queue_size=1000), store_host=HOST)


def messages(store: MessageStore) -> dict[str, record.Record]:
    """Return the records of topic T by offset message id, read queue by queue as consumers do."""
    results = {}
    for queue_id in store.topics()["T"]:
        offset = store.min_offset("T", queue_id)
        while offset < store.max_offset("T", queue_id):
            result = store.get("T", queue_id, offset, 32)
            for data in result.records:
                item = record.decode(data)
                results[ids.offset_message_id(item.store_host, item.offset)] = item
            offset = result.next_offset
    return results


@pytest.mark.parametrize("is_clean", [True, False])
def test_every_message_is_readable(root: Path, is_clean: bool) -> None:
    expected = {item["offsetMsgId"]: item for item in map(json.loads, (DATA / "store.json").read_text().splitlines())}
    if not is_clean:
        (root / "abort").touch()
    store = opened(root)
    result = messages(store)
    assert result.keys() == expected.keys()
    for offset_id, item in result.items():
        java = expected[offset_id]
        assert item.crc_is_right()
        assert (item.queue_id, item.queue_offset, item.store_ms) == (
            java["queueId"],
            java["queueOffset"],
            java["storeTimestamp"],
        )
        assert compression.decompress(item.body, item.sys_flag) == base64.b64decode(java["body"])
        assert item.property_map()["UNIQ_KEY"] == java["msgId"]
    store.close()


def test_new_messages_are_appended_after_those_of_java(root: Path) -> None:
    store = opened(root)
    before = store.max_offset("T", 0)
    placed = store.put(RecordDraft(topic="T", queue_id=0, body=b"ours", born_ms=1, born_host=HOST))
    assert placed.queue_offset == before
    store.dispatch_pending()
    count = len(messages(store))
    store.close()
    repeated = opened(root)
    assert len(messages(repeated)) == count
    assert record.decode(repeated.get("T", 0, before, 1).records[0]).body == b"ours"
    repeated.close()


def test_java_configuration_tables_are_loaded(root: Path) -> None:
    disk, config = SystemDisk(), str(root / "config")
    assert (
        json_documents.load(disk, config, json_documents.TOPICS, TopicTable).topic_config_table["T"].write_queue_nums
        == 4
    )
    groups = json_documents.load(disk, config, json_documents.GROUPS, SubscriptionGroupTable).subscription_group_table
    assert groups["G"].retry_max_times == 16
    offsets = json_documents.load(disk, config, json_documents.OFFSETS, ConsumerOffsetTable).offset_table["T@G"]
    assert sum(offsets.values()) == 193
