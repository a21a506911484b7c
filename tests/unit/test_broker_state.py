"""State of the broker except messages: topics, groups, offsets, members, locks. No clock, no socket."""

from __future__ import annotations

from typing import Any

import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.state import consumer_offsets as offsets_module
from ariane.broker.state import group_members as members_module
from ariane.broker.state import queue_locks as locks_module
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.group_members import ConsumerGroup, GroupMembers, Member
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.queue_locks import LOCK_LIVE_MS, LockTable, QueueLocks
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.errors import ProtocolError, ReplyError
from ariane.model.message import MessageQueue
from ariane.model.topic import QUEUES_MAX, TopicConfig
from ariane.protocol import fastjson
from ariane.protocol.requests.admin import ConsumerOffsetTable, SubscriptionGroupTable
from ariane.protocol.requests.clients import ConsumerData, SubscriptionData, WireQueue
from ariane.protocol.requests.routing import TopicTable

CONFIG = BrokerConfig(broker_name="broker-a")
QUEUE = MessageQueue("T", "broker-a", 0)
OTHER = MessageQueue("T", "broker-a", 1)


def topics(config: BrokerConfig = CONFIG) -> TopicRegistry:
    return TopicRegistry(TopicTable(), config, now_ms=lambda: 1000)


def member(peer_id: int, client_id: str = "c1", seen_ms: float = 0) -> Member:
    return Member(client_id, peer_id, f"127.0.0.1:{peer_id}", "JAVA", 401, seen_ms)


def consumer(group: str, *subscriptions: SubscriptionData) -> ConsumerData:
    return ConsumerData(group_name=group, subscription_data_set=subscriptions)


def test_an_auto_created_topic_gets_the_smaller_number_of_queues_without_the_inherit_bit() -> None:
    table = topics()
    four = table.create_from_template("TBW102", "T", 4)
    config = table.create_from_template("TBW102", "U", 100)
    assert four is not None and config is not None
    assert (four.read_queue_nums, four.write_queue_nums, four.perm) == (4, 4, 6)
    assert config.write_queue_nums == 8
    assert table.get("T") == four


def test_an_auto_created_topic_has_at_least_one_queue() -> None:
    config = topics().create_from_template("TBW102", "T", 0)
    assert config is not None and config.write_queue_nums == 1


@pytest.mark.parametrize("template", ["OFFSET_MOVED_EVENT", "unknown"])
def test_only_a_topic_with_the_inherit_bit_is_a_template(template: str) -> None:
    assert topics().create_from_template(template, "T", 4) is None


def test_there_is_no_template_topic_without_auto_creation() -> None:
    stored = TopicTable(topic_config_table={"TBW102": TopicConfig(topic_name="TBW102", perm=7)})
    config = BrokerConfig(broker_name="broker-a", auto_create_topic_enable=False)
    assert TopicRegistry(stored, config, now_ms=lambda: 0).create_from_template("TBW102", "T", 4) is None


def test_each_topic_change_increments_the_version_and_is_notified() -> None:
    table = topics()
    reported = []
    table.on_table_change = lambda: reported.append(table.table().data_version.counter)
    table.put(TopicConfig(topic_name="T"))
    table.delete("T")
    table.delete("T")
    assert reported == [1, 2]


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 128, "a/b"])
def test_a_topic_name_that_is_no_valid_path_is_rejected(name: str) -> None:
    with pytest.raises(ReplyError):
        topics().put(TopicConfig(topic_name=name))


def test_an_implausible_number_of_queues_is_rejected() -> None:
    with pytest.raises(ReplyError, match="readQueueNums"):
        topics().put(TopicConfig(topic_name="T", read_queue_nums=QUEUES_MAX + 1))


def test_a_full_topic_table_rejects_new_topics_except_those_of_consumers() -> None:
    table = topics()
    number = table.limits.topics_max = len(table.names())
    with pytest.raises(ReplyError, match=f"topic T not created: this broker has {number} topics"):
        table.put(TopicConfig(topic_name="T"))
    table.put(TopicConfig(topic_name="TBW102", perm=7))  # an existing topic can be changed
    table.get_or_create_internal("%RETRY%g", 1)
    assert table.get("%RETRY%g") is not None


def test_each_change_lists_its_topics() -> None:
    table = topics()
    changes: list[object] = []
    table.on_topics_change = changes.append
    table.put(TopicConfig(topic_name="T"))
    table.put(TopicConfig(topic_name="U"))
    table.mark_ordered({"T": "broker-a:4", "unknown": "broker-a:1"})
    table.mark_ordered({"U": "broker-a:4"})
    table.delete("T")
    table.bump_version()
    assert changes == [["T"], ["U"], ["T"], ["T", "U"], ["T"], None]


def test_order_flags_follow_the_name_server() -> None:
    table = topics()
    table.put(TopicConfig(topic_name="T"))
    table.mark_ordered({"T": "broker-a:4"})
    assert table.get("T") == TopicConfig(topic_name="T", order=True)
    version = table.table().data_version
    table.mark_ordered({"T": "broker-a:4"})
    assert table.table().data_version == version
    table.mark_ordered({})
    assert table.get("T") == TopicConfig(topic_name="T")


def test_groups_are_auto_created_only_if_enabled() -> None:
    closed = GroupRegistry(SubscriptionGroupTable(), auto_create=False, now_ms=lambda: 0)
    assert closed.get_or_create("G") is None
    assert closed.get_or_create("CID_RMQ_SYS_TRANS") is not None
    assert closed.get_or_create("TOOLS_CONSUMER") is not None
    opened = GroupRegistry(SubscriptionGroupTable(), auto_create=True, now_ms=lambda: 0)
    config = opened.get_or_create("G")
    assert config is not None and config.retry_max_times == 16


def test_offsets_round_trip_and_are_removed_by_topic_and_group() -> None:
    offsets = ConsumerOffsets()
    offsets.commit("G", "T", 0, 12)
    offsets.commit("G", "T", 1, 9)
    offsets.commit("H", "T", 0, 3)
    offsets.commit("G", "TG", 0, 5)
    text = fastjson.write(offsets.table(), pretty=True)
    repeated = ConsumerOffsets(fastjson.decode(text, ConsumerOffsetTable))
    assert repeated.get("G", "T", 1) == 9
    assert repeated.get("G", "T", 7) is None
    repeated.remove_group("G")
    assert repeated.get("G", "T", 0) is None
    assert repeated.get("G", "TG", 0) is None
    assert repeated.get("H", "T", 0) == 3
    repeated.remove_topic("T")
    assert repeated.table() == ConsumerOffsetTable({})


def test_the_offsets_file_has_the_format_of_java() -> None:
    offsets = ConsumerOffsets()
    offsets.commit("G", "T", 0, 12)
    assert fastjson.write(offsets.table()) == b'{"offsetTable":{"T@G":{0:12}}}'


def test_a_lock_has_one_owner_until_it_expires() -> None:
    locks = QueueLocks()
    assert locks.lock("G", "c1", [QUEUE, OTHER], 0) == [QUEUE, OTHER]
    assert locks.lock("G", "c2", [QUEUE], LOCK_LIVE_MS) == []
    assert locks.lock("H", "c2", [QUEUE], 0) == [QUEUE]
    assert locks.lock("G", "c2", [QUEUE], LOCK_LIVE_MS + 1) == [QUEUE]
    assert locks.lock("G", "c1", [QUEUE, OTHER], LOCK_LIVE_MS + 1) == [OTHER]


def test_only_the_owner_can_unlock() -> None:
    locks = QueueLocks()
    locks.lock("G", "c1", [QUEUE], 0)
    locks.unlock("G", "c2", [QUEUE])
    assert locks.lock("G", "c2", [QUEUE], 1) == []
    locks.unlock("G", "c1", [QUEUE])
    assert locks.lock("G", "c2", [QUEUE], 1) == [QUEUE]


def test_locks_survive_a_restart() -> None:
    locks = QueueLocks()
    locks.lock("G", "c1", [QUEUE, OTHER], 0)
    locks.lock("H", "c2", [QUEUE], 0)
    locks.unlock("G", "c1", [OTHER])
    saved = fastjson.decode(fastjson.write(locks.table()), LockTable)
    locks = QueueLocks(saved, now_ms=1_000)
    assert locks.lock("G", "c2", [QUEUE, OTHER], 1_000 + LOCK_LIVE_MS) == [OTHER]
    assert locks.lock("H", "c2", [QUEUE], 1_000) == [QUEUE]
    assert locks.lock("G", "c2", [QUEUE], 1_001 + LOCK_LIVE_MS) == [QUEUE]


def test_lock_changes_are_recorded_when_the_owner_changes() -> None:
    recorded: list[object] = []
    locks = QueueLocks(record=recorded.append)
    took = []
    for act in (
        lambda: locks.lock("G", "c1", [QUEUE], 0),
        lambda: locks.lock("G", "c1", [QUEUE], 1),  # renewed
        lambda: locks.lock("G", "c2", [QUEUE], 2),  # refused
        lambda: locks.unlock("G", "c2", [QUEUE]),
        lambda: locks.unlock("G", "c1", [QUEUE]),
        lambda: locks.lock("G", "c2", [QUEUE], 3),
        lambda: locks.lock("G", "c1", [QUEUE], 4 + LOCK_LIVE_MS),  # expired
        lambda: locks.remove_expired(6 + 2 * LOCK_LIVE_MS),
    ):
        recorded.clear()
        act()
        took.append(bool(recorded))
    assert took == [True, False, False, False, True, True, True, True]


def test_a_new_member_or_topic_is_a_change_but_a_new_version_is_not() -> None:
    members = GroupMembers()
    first = consumer("G", SubscriptionData(topic="T", sub_version=1))
    assert members.heartbeat_consumer(first, member(1))
    assert not members.heartbeat_consumer(first, member(1))
    assert not members.heartbeat_consumer(consumer("G", SubscriptionData(topic="T", sub_version=2)), member(1))
    two = consumer("G", SubscriptionData(topic="T", sub_version=2), SubscriptionData(topic="U", sub_version=1))
    assert members.heartbeat_consumer(two, member(1))
    assert members.heartbeat_consumer(first, member(2, "c2"))


def test_an_older_subscription_does_not_replace_a_newer_one() -> None:
    members = GroupMembers()
    members.heartbeat_consumer(consumer("G", SubscriptionData(topic="T", sub_version=5, sub_string="a")), member(1))
    members.heartbeat_consumer(consumer("G", SubscriptionData(topic="T", sub_version=4, sub_string="b")), member(1))
    subscription = members.subscription("G", "T")
    assert subscription is not None and subscription.sub_string == "a"


def test_a_lost_connection_is_removed_from_its_groups_and_empty_groups_are_removed() -> None:
    members = GroupMembers()
    members.heartbeat_consumer(consumer("G"), member(1))
    members.heartbeat_consumer(consumer("G"), member(2, "c2"))
    members.heartbeat_consumer(consumer("H"), member(1))
    members.heartbeat_producer("P", member(1))
    assert sorted(members.remove_peer(1)) == ["G", "H"]
    assert members.client_ids("G") == ["c2"]
    assert members.client_ids("H") == []
    assert members.producers == {}


def test_expired_members_are_returned_by_connection() -> None:
    members = GroupMembers()
    members.heartbeat_consumer(consumer("G"), member(1, seen_ms=0))
    members.heartbeat_consumer(consumer("G"), member(2, seen_ms=100_000))
    assert members.expired_peers(120_001) == {1}


def test_clients_are_found_among_consumers_and_producers() -> None:
    members = GroupMembers()
    assert members.find_consumer("G", "c1") is None and members.find_producer("c1") is None
    members.heartbeat_consumer(consumer("G"), member(1, seen_ms=5))
    members.heartbeat_consumer(consumer("G"), member(2, seen_ms=9))  # the same client, connected once more
    members.heartbeat_consumer(consumer("G"), member(3, "c2"))
    result = members.find_consumer("G", "c1")
    assert result is not None and result.peer_id == 2
    assert sorted(item.peer_id for item in members.consumer_members("G")) == [2, 3]


def test_a_producer_is_found_while_any_of_its_groups_is_registered() -> None:
    members = GroupMembers()
    for group in ("A", "B"):
        members.heartbeat_producer(group, member(1))
    members.remove_producer("B", 1)
    result = members.find_producer("c1")
    assert result is not None and result.peer_id == 1
    members.heartbeat_producer("A", member(2))
    members.remove_peer(2)
    result = members.find_producer("c1")
    assert result is not None and result.peer_id == 1
    members.heartbeat_producer("A", member(1, "renamed"))
    assert members.find_producer("c1") is None
    members.remove_peer(1)
    assert members.find_producer("renamed") is None
    assert members._producer_of == {}


def test_the_number_of_groups_per_connection_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members_module, "CONNECTION_GROUPS_MAX", 3)
    table = GroupMembers()
    for number in range(3):
        table.heartbeat_consumer(consumer(f"G{number}"), member(1))
    with pytest.raises(ReplyError, match="3 groups"):
        table.heartbeat_consumer(consumer("G3"), member(1))
    with pytest.raises(ReplyError, match="3 groups"):
        table.heartbeat_producer("P", member(1))
    table.heartbeat_consumer(consumer("G0"), member(1))  # a renewal
    table.heartbeat_consumer(consumer("G3"), member(2))
    table.remove_consumer("G1", 1)
    table.heartbeat_producer("P", member(1))
    assert "G1" not in table.consumers and set(table.producers) == {"P"}
    table.remove_peer(1)
    assert set(table.consumers) == {"G3"}
    table.heartbeat_consumer(consumer("G9"), member(1))


def test_the_number_of_memberships_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members_module, "MEMBERSHIPS_MAX", 2)
    table = GroupMembers()
    table.heartbeat_consumer(consumer("G"), member(1))
    table.heartbeat_producer("P", member(1))
    with pytest.raises(ReplyError, match="2 members"):
        table.heartbeat_consumer(consumer("G"), member(2))
    table.remove_peer(1)
    table.heartbeat_consumer(consumer("G"), member(2))


def test_the_total_size_of_subscriptions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members_module, "SUBSCRIPTION_CHARS_MAX", 100)
    table = GroupMembers()
    long = SubscriptionData(topic="T", sub_string="x" * 80)
    table.heartbeat_consumer(consumer("A", long), member(1))
    with pytest.raises(ReplyError, match="100 characters"):
        table.heartbeat_consumer(consumer("B", long), member(1))
    assert set(table.consumers) == {"A"}
    table.remove_consumer("A", 1)
    table.heartbeat_consumer(consumer("B", long), member(1))


def test_a_full_subscription_table_accepts_heartbeats_of_existing_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise other clients could make every consumer expire after two minutes."""
    monkeypatch.setattr(members_module, "SUBSCRIPTION_CHARS_MAX", 100)
    table = GroupMembers()
    subscription = SubscriptionData(topic="T", sub_string="x" * 50)
    table.heartbeat_consumer(consumer("A", subscription), member(1))
    table.heartbeat_consumer(consumer("B", SubscriptionData(topic="T", sub_string="x" * 48)), member(2))
    table.heartbeat_consumer(consumer("A", subscription), member(1, seen_ms=9))
    assert table.consumers["A"].members[1].seen_ms == 9
    with pytest.raises(ReplyError, match="100 characters"):
        table.heartbeat_consumer(consumer("A", SubscriptionData(topic="T", sub_string="x" * 60)), member(1))


def test_a_retained_newer_subscription_counts_towards_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members_module, "SUBSCRIPTION_CHARS_MAX", 100)
    table = GroupMembers()
    table.heartbeat_consumer(consumer("A", SubscriptionData(topic="T", sub_string="x" * 80, sub_version=2)), member(1))
    table.heartbeat_consumer(consumer("A", SubscriptionData(topic="T", sub_version=1)), member(1))
    assert table.consumers["A"].subscriptions["T"].sub_string == "x" * 80
    with pytest.raises(ReplyError, match="100 characters"):
        table.heartbeat_consumer(consumer("B", SubscriptionData(topic="T", sub_string="x" * 80)), member(1))


def test_the_cost_of_a_lost_connection_depends_only_on_its_own_groups() -> None:
    """The cost must not grow with the number of all groups: any peer can open and close connections."""

    class Counted(dict[str, ConsumerGroup]):
        looked_at = 0

        def get(self, *args: Any) -> Any:
            self.looked_at += 1
            return super().get(*args)

    table = GroupMembers()
    table.consumers = groups = Counted()
    for number in range(1000):
        table.heartbeat_consumer(consumer(f"G{number}"), member(1))
    table.heartbeat_consumer(consumer("G"), member(2))
    groups.looked_at = 0
    assert table.remove_peer(2) == ["G"]
    assert groups.looked_at < 10


def test_queue_locks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks_module, "LOCKS_MAX", 1)
    locks = QueueLocks()
    assert locks.lock("G", "c", [QUEUE], 0) == [QUEUE]
    with pytest.raises(ReplyError, match="1 queue locks"):
        locks.lock("G2", "c", [OTHER], 0)
    locks.unlock("G", "c", [QUEUE])
    assert locks.lock("G2", "c", [OTHER], 0) == [OTHER]
    locks.remove_expired(LOCK_LIVE_MS + 1)
    assert locks.lock("G", "c", [QUEUE], LOCK_LIVE_MS + 1) == [QUEUE]


def test_the_queue_locks_of_a_group_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks_module, "GROUP_LOCKS_MAX", 1)
    locks = QueueLocks()
    with pytest.raises(ReplyError, match="G has 1 queue locks"):
        locks.lock("G", "c", [QUEUE, OTHER], 0)
    assert locks.lock("G2", "c", [OTHER], 0) == [OTHER]


def test_a_table_of_queue_locks_is_that_of_its_moment() -> None:
    locks = QueueLocks()
    locks.lock("G", "c", [QUEUE], 0)
    table = locks.table()
    locks.unlock("G", "c", [QUEUE])
    locks.lock("G2", "c", [OTHER], 0)
    assert dict(table.lock_table) == {"G": {"c": (WireQueue.of(QUEUE),)}}


def test_a_group_is_auto_created_only_with_a_valid_name() -> None:
    groups = GroupRegistry(SubscriptionGroupTable(), auto_create=True, now_ms=lambda: 0)
    for name in ("", " ", "x" * 256, "a\x01", "a@b", "a/b"):
        with pytest.raises(ProtocolError, match="Invalid consumerGroup"):
            groups.get_or_create(name)
    assert groups.get_or_create("a.b") is not None


def test_stored_offsets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_module, "QUEUES_MAX", 3)
    offsets = ConsumerOffsets(ConsumerOffsetTable({"T@G": {0: 1}}))
    offsets.commit("G", "T", 1, 1)
    assert offsets.clone("G", "H", "Other") is False
    offsets.commit("H", "T", 0, 1)
    with pytest.raises(ReplyError, match="3 queues"):
        offsets.commit("H", "T", 1, 1)
    with pytest.raises(ReplyError, match="3 queues"):
        offsets.commit("I", "T", 1, 1)
    assert offsets.groups_of("T") == {"G", "H"}
    offsets.commit("H", "T", 0, 2)  # a queue that is known
    offsets.remove_group("H")
    offsets.commit("I", "T", 0, 1)
    offsets.remove_topic("T")
    for queue_id in range(3):
        offsets.commit("G", "T", queue_id, 1)
