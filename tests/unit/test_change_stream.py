"""The state of members follows that of their leader: changes in one sequence with the log, snapshots, any interruption."""

from __future__ import annotations

import asyncio
import errno
import random
from concurrent.futures import Executor, Future
from typing import Any

import msgspec
import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.lifecycle.persistent_state import PersistentState
from ariane.broker.replication import change_stream, state_changes
from ariane.broker.replication.change_follower import ChangeFollower
from ariane.broker.replication.change_stream import ChangeCursor, ChangeStream
from ariane.broker.replication.state_changes import OffsetsCommitted
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.loading.saved_state import SavedState
from ariane.broker.state.pop_table import QueueKey
from ariane.broker.state.saved.change_records import (
    MessageHidden,
    MessagesAcknowledged,
    MessagesReturned,
    MessagesTaken,
    PopRestarted,
    RequestModePut,
)
from ariane.errors import ProtocolError, StoreError
from ariane.model.message import MessageQueue
from ariane.model.topic import SubscriptionGroupConfig, TopicConfig, TopicDeletion
from ariane.protocol.records.member_stream import NO_CHANGES, ChangePosition
from ariane.protocol.requests.pop import RequestMode
from ariane.testing.disk import FakeDisk

CONFIG = BrokerConfig(broker_name="broker-a", store_path_root_dir="/store")


class Inline(Executor):
    """Runs work at once."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Tables:
    """The tables of one broker on a disk in memory, without a store."""

    def __init__(self, disk: FakeDisk | None = None) -> None:
        self.disk = disk or FakeDisk()
        saved = SavedState(self.disk, CONFIG.config_dir)
        saved.load()
        self.state = PersistentState(CONFIG, self.disk, saved, Inline(), lambda: 5, lambda: 0.0)

    def apply_master_deletions(self, deletions: dict[str, TopicDeletion]) -> None:
        new = {name: deletion for name, deletion in deletions.items() if self.state.deletions.is_later(name, deletion)}
        if new:
            self.state.apply_master_deletions(new)

    def content(self) -> dict[str, object]:
        state = self.state
        return {
            "topics": state.topics.table(),
            "groups": state.groups.table(),
            "offsets": {pair: queues for pair, queues in state.offsets.table().offset_table.items() if queues},
            "locks": {
                (group, queue): client
                for group, owners in state.locks.table().lock_table.items()
                for client, queues in owners.items()
                for queue in queues
            },
            "deletions": state.deletions.to_table(),
            "pop": state.pop.document(),
            "modes": {(mode.topic, mode.consumer_group): mode for mode in state.request_modes.modes()},
        }


class Leader(Tables):
    """A leader whose log is only its end."""

    def __init__(self, tail_bytes: int = 1 << 20) -> None:
        super().__init__()
        self.log_end = 0
        self.stream = ChangeStream(self.state, lambda: self.log_end, tail_bytes)
        self.state.on_change = self.stream.append

    def lock(self, group: str, client_id: str, *queue_ids: int) -> None:
        queues = [MessageQueue("T", "broker-a", queue_id) for queue_id in queue_ids]
        self.state.locks.lock(group, client_id, queues, 0.0)


class Member(Tables):
    """A member that receives one frame at a time."""

    def __init__(self, leader: Leader, disk: FakeDisk | None = None) -> None:
        super().__init__(disk)
        self.follower = ChangeFollower(self.state, self, lambda: 0.0)  # type: ignore[arg-type]
        self.leader = leader
        self.log_end = 0
        self.cursor: ChangeCursor | None = None

    def connect(self) -> None:
        self.disconnect()
        self.cursor = self.leader.stream.connect(self.follower.position)
        self.follower.begin(self.leader.stream.position)

    def disconnect(self) -> None:
        if self.cursor is not None:
            self.leader.stream.disconnect(self.cursor)
            self.cursor = None

    def receive(self) -> bool:
        """Receive what is next: changes, or the log up to the next ones."""
        assert self.cursor is not None
        frame = self.cursor.take(self.log_end)
        if frame is None:
            position = self.cursor.next_position
            former, self.log_end = self.log_end, self.leader.log_end if position is None else position
            return self.log_end > former
        assert frame.position <= self.log_end
        self.follower.apply(frame.data)
        return True

    def save(self) -> None:
        if self.follower.has_unsaved:
            asyncio.run(self.follower.save())

    def catch_up(self) -> None:
        self.leader.stream.collect_offsets()
        while self.receive():
            self.leader.stream.collect_offsets()
        self.save()

    def has_state_of(self, leader: Leader) -> bool:
        return self.content() == leader.content()


def pair() -> tuple[Leader, Member]:
    leader = Leader()
    member = Member(leader)
    member.connect()
    member.catch_up()
    return leader, member


def test_a_new_topic_is_known_to_the_promoted_member() -> None:
    """helm#33: topics that were created since the last copy were forgotten after a switch."""
    leader, member = pair()
    leader.state.topics.put(TopicConfig(topic_name="New", read_queue_nums=3, write_queue_nums=3))
    leader.state.groups.put(SubscriptionGroupConfig(group_name="G", retry_max_times=3))
    assert member.receive()
    assert member.follower.reported == leader.stream.last
    promoted = Tables(member.disk.after_kill())
    assert promoted.state.topics.get("New") == leader.state.topics.get("New")
    assert promoted.state.groups.get("G") == leader.state.groups.get("G")
    assert promoted.state.topics.version == leader.state.topics.version


def test_the_owner_of_a_queue_holds_it_at_the_promoted_member() -> None:
    leader, member = pair()
    leader.lock("G", "c1", 0, 1)
    leader.lock("G", "c2", 2)
    leader.state.locks.unlock("G", "c1", [MessageQueue("T", "broker-a", 1)])
    member.catch_up()
    locks = Tables(member.disk.after_kill()).state.locks
    queues = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(3)]
    assert locks.lock("G", "c3", queues, 59_999.0) == [queues[1]]
    assert locks.lock("G", "c3", queues, 60_001.0) == queues


def test_removed_offsets_are_removed_at_the_member() -> None:
    leader, member = pair()
    state = leader.state
    for topic in ("A", "B"):
        for group in ("G", "H"):
            state.offsets.commit(group, topic, 0, 7)
    member.catch_up()
    assert member.content()["offsets"] == {"A@G": {0: 7}, "A@H": {0: 7}, "B@G": {0: 7}, "B@H": {0: 7}}
    state.offsets.commit("G", "A", 0, 9)  # removed before it is sent
    state.delete_topic("A", TopicDeletion(1, 1))
    state.groups.delete("H", offsets=True)
    state.offsets.remove_group("H")
    state.offsets.commit("G", "A", 0, 1)
    state.offsets.commit("X", "B", 0, 4)
    assert state.offsets.clone("X", "G", "B")
    member.catch_up()
    assert member.content()["offsets"] == {"A@G": {0: 1}, "B@G": {0: 4}, "B@X": {0: 4}}
    assert member.has_state_of(leader)


def test_offsets_follow_the_messages_that_they_are_beyond() -> None:
    """A promoted member has no offset beyond the end of its log: new messages would be skipped."""
    leader, member = pair()
    leader.log_end = 1000
    leader.state.offsets.commit("G", "T", 0, 5)
    leader.stream.collect_offsets()
    assert member.cursor is not None
    assert member.cursor.take(999) is None
    assert member.cursor.next_position == 1000
    assert member.cursor.take(1000) is not None


def test_offsets_beyond_a_lost_end_of_the_log_are_set_back() -> None:
    state = Leader().state
    for queue_id, offset in enumerate((3, 5, 9)):
        state.offsets.commit("G", "T", queue_id, offset)
        state.record_pop(MessagesTaken("P", "T", queue_id, tuple(range(offset)), 1, 2, offset))
    state.limit_offsets(lambda topic, queue_id: 5)
    assert state.offsets.queue_offsets("G", "T") == {0: 3, 1: 5, 2: 5}
    assert [(queue.next, list(queue.taken)) for queue in state.pop.queues_of("P", "T")] == [
        (3, [0, 1, 2]), (5, [0, 1, 2, 3, 4]), (5, [0, 1, 2, 3, 4]),
    ]  # fmt: skip


def test_commits_are_coalesced_by_group_and_queue() -> None:
    leader, member = pair()
    first = leader.stream.last
    for offset in range(1000):
        for queue_id in range(4):
            leader.state.offsets.commit("G", "T", queue_id, offset)
    assert leader.stream.collect_offsets()
    assert leader.stream.last == first + 1
    assert not leader.stream.collect_offsets()
    assert leader.stream.awaited == first  # no answer waits for it
    entry = leader.stream.get(first + 1)
    assert entry is not None
    assert len(entry.data) < 100
    leader.state.offsets.commit("G", "T", 0, 999)  # as before: not a change
    member.catch_up()
    assert leader.stream.last == first + 1
    assert member.has_state_of(leader)


def test_memory_is_bounded_and_a_late_member_gets_a_snapshot() -> None:
    leader = Leader(tail_bytes=2_000)
    member = Member(leader)
    member.connect()
    member.catch_up()
    for number in range(200):
        leader.state.topics.put(TopicConfig(topic_name=f"T{number}"))
        leader.state.offsets.commit("G", f"T{number}", 0, number)
        leader.stream.collect_offsets()
    assert sum(len(change.data) for change in leader.stream._tail.values()) <= 2_000
    # While no member has received everything, offsets are not added but replaced.
    assert not leader.stream.collect_offsets()
    member.catch_up()
    assert member.has_state_of(leader)


def test_a_snapshot_is_reported_once_it_is_stored() -> None:
    leader = Leader()
    leader.state.topics.put(TopicConfig(topic_name="A"))
    leader.lock("G", "c", 0)
    member = Member(leader)
    member.connect()
    while member.receive():
        pass
    assert member.follower.reported == NO_CHANGES
    assert member.follower.position == ChangePosition()
    member.save()
    assert member.follower.reported == leader.stream.last
    promoted = Tables(member.disk.after_kill())
    assert promoted.content() == leader.content()


def test_a_snapshot_that_cannot_be_stored_is_taken_again() -> None:
    leader = Leader()
    leader.state.topics.put(TopicConfig(topic_name="A"))
    member = Member(leader)
    member.connect()
    while member.receive():
        pass

    def full(kind: str, path: str) -> None:
        if path.endswith("topics.json.tmp"):
            raise OSError(errno.EIO, "broken", path)

    member.disk.fail = full
    with pytest.raises(StoreError, match="topics.json"):
        member.save()
    assert member.follower.reported == NO_CHANGES
    member.disk.fail = lambda kind, path: None
    member.connect()
    assert member.follower.position == ChangePosition()
    member.catch_up()
    assert member.follower.reported == leader.stream.last
    assert Tables(member.disk.after_kill()).content() == leader.content()


def test_a_former_leader_takes_over_the_tables_of_its_successor() -> None:
    """apache/rocketmq#7790: the offsets of the former master must not come back."""
    former, leader = Leader(), Leader()
    former.state.topics.put(TopicConfig(topic_name="Unconfirmed"))
    former.state.offsets.commit("G", "T", 0, 100)
    former.lock("G", "c1", 0)
    leader.state.offsets.commit("G", "T", 0, 7)
    asyncio.run(former.state.save())
    member = Member(leader, former.disk.after_kill())
    assert member.state.offsets.get("G", "T", 0) == 100
    member.connect()
    member.catch_up()
    assert member.has_state_of(leader)


def test_large_tables_are_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_changes, "PART_ENTRIES", 3)
    monkeypatch.setattr(state_changes, "PART_QUEUES", 5)
    monkeypatch.setattr(change_stream, "FRAME_BYTES", 300)
    monkeypatch.setattr(change_stream, "LOCKED_QUEUES", 2)
    leader, member = Leader(), None
    for number in range(20):
        leader.state.topics.put(TopicConfig(topic_name=f"T{number}"))
        leader.state.groups.put(SubscriptionGroupConfig(group_name=f"G{number}"))
        leader.state.delete_topic(f"D{number}", TopicDeletion(number + 1, 1))
        for queue_id in range(number % 4):
            leader.state.offsets.commit("G", f"T{number}", queue_id, number)
    leader.lock("G", "c", *range(7))
    member = Member(leader)
    member.connect()
    member.catch_up()
    leader.lock("H", "c", *range(7))
    member.catch_up()
    assert member.has_state_of(leader)


def test_what_does_not_follow_is_refused() -> None:
    leader, member = pair()
    put = OffsetsCommitted({"T@G": {0: 1}})
    with pytest.raises(ProtocolError, match="Change 9 of the leader does not follow change"):
        member.follower.apply(state_changes.join([state_changes.encode(9, put)]))
    for data in (b"", b"{}", b"[[1]]", b'[[1,{"type":"unknown"}]]', b"[[1,2]]"):
        with pytest.raises(ProtocolError, match="Invalid changes"):
            member.follower.apply(data)
    member.follower.begin(ChangePosition("other", 1))
    assert member.follower.position == ChangePosition()
    with pytest.raises(ProtocolError, match="does not follow"):
        member.follower.apply(state_changes.join([state_changes.encode(2, put)]))
    with pytest.raises(ProtocolError, match="without the first part"):
        member.follower.apply(state_changes.join([state_changes.encode(2, state_changes.SnapshotPart())]))


# --- any order of changes, frames, lost connections, restarts and snapshots ---


class World:
    """A leader and two members."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.leader = Leader(tail_bytes=self.rng.choice((300, 3_000, 1 << 20)))
        self.members = [Member(self.leader), Member(self.leader)]
        self.snapshots = self.continued = 0

    def name(self, kind: str) -> str:
        return f"{kind}{self.rng.randrange(3)}"

    def change(self) -> None:
        rng, state = self.rng, self.leader.state
        topic, group = self.name("T"), self.name("G")
        queues = [MessageQueue(topic, "broker-a", queue_id) for queue_id in range(rng.randint(1, 3))]
        kind = rng.randrange(14)
        if kind == 0:
            queue_nums = rng.randint(1, 9)
            state.topics.put(TopicConfig(topic_name=topic, read_queue_nums=queue_nums, write_queue_nums=queue_nums))
        elif kind == 1:
            state.groups.put(SubscriptionGroupConfig(group_name=group, retry_max_times=rng.randint(0, 9)))
        elif kind == 2:
            state.delete_topic(topic, TopicDeletion(self.leader.log_end + 1, self.leader.log_end))
        elif kind == 3:
            offsets = rng.random() < 0.5
            state.groups.delete(group, offsets=offsets)
            if offsets:
                state.offsets.remove_group(group)
                state.pop.remove_group(group)
        elif kind == 4:
            state.offsets.clone(group, self.name("G"), topic)
        elif kind == 5:
            state.locks.lock(group, self.name("c"), queues, 0.0)
        elif kind == 6:
            state.locks.unlock(group, self.name("c"), queues)
        elif kind == 7:
            state.locks.remove_expired(rng.choice((0.0, 1e9)))
        elif kind == 8:
            mode = RequestMode(topic=topic, consumer_group=group, mode=rng.choice(("POP", "PULL")))
            state.record(RequestModePut(mode))
            state.request_modes.put(mode)
        elif kind == 9:
            queue = state.pop.get(QueueKey(group, topic, 0))
            first = 0 if queue is None else queue.next
            taken = tuple(range(first, first + rng.randint(1, 3)))
            state.record_pop(MessagesTaken(group, topic, 0, taken, 1, 2, taken[-1] + 1))
        elif kind == 10:
            state.record_pop(MessagesAcknowledged(group, topic, 0, (rng.randrange(12),)))
        elif kind == 11:
            state.record_pop(MessageHidden(group, topic, 0, rng.randrange(12), 3, rng.randrange(4, 9)))
        elif kind == 12:
            state.record_pop(MessagesReturned(group, topic, 0, (rng.randrange(12),), 5))
        elif kind == 13 and rng.random() < 0.2:
            state.record_pop(PopRestarted(group, topic, 0, rng.randrange(9)))
        self.leader.log_end += rng.randint(0, 50)

    def commit(self) -> None:
        for _ in range(self.rng.randint(1, 5)):
            self.leader.state.offsets.commit(
                self.name("G"), self.name("T"), self.rng.randrange(3), self.rng.randrange(99)
            )

    def step(self) -> None:
        member = self.rng.choice(self.members)
        action = self.rng.choice(
            ("change", "change", "commit", "collect", "receive", "receive", "save", "lose", "restart")
        )
        if action == "change":
            self.change()
        elif action == "commit":
            self.commit()
        elif action == "collect":
            self.leader.stream.collect_offsets()
        elif action == "receive":
            if member.cursor is None:
                self.connect(member)
            member.receive()
        elif action == "save":
            member.save()
        elif action == "lose":
            member.disconnect()
        elif self.rng.random() < 0.2:
            member.disconnect()
            restarted = Member(self.leader, member.disk.after_kill())
            self.members[self.members.index(member)] = restarted

    def connect(self, member: Member) -> None:
        if member.follower.position == ChangePosition():
            self.snapshots += 1
        else:
            self.continued += 1
        member.connect()

    def settle(self) -> None:
        for member in self.members:
            if member.cursor is None:
                self.connect(member)
            member.catch_up()
        for member in self.members:
            assert member.follower.reported == self.leader.stream.last
            assert member.has_state_of(self.leader)
            promoted = Tables(member.disk.after_kill()).content()
            wanted = self.leader.content()
            del promoted["offsets"], wanted["offsets"]  # those are stored periodically
            assert promoted == wanted


def run(seeds: int) -> tuple[int, int]:
    snapshots = continued = 0
    for seed in range(seeds):
        world = World(seed)
        for _ in range(4):
            for _ in range(40):
                world.step()
            world.settle()
        snapshots, continued = snapshots + world.snapshots, continued + world.continued
    return snapshots, continued


def test_any_interleaving_ends_with_equal_states() -> None:
    snapshots, continued = run(40)
    assert snapshots > 100
    assert continued > 100


def _remove_on_leaders_only(self: ConsumerOffsets, keys: list[str]) -> None:
    if self._changed is not None:
        REMOVE(self, keys)


def _remove_and_send_later(self: ConsumerOffsets, keys: list[str]) -> None:
    changed, self._changed = self._changed, None
    REMOVE(self, keys)
    self._changed = changed


REMOVE = ConsumerOffsets._remove
PLANTED = {
    "removed offsets stay": (ConsumerOffsets, "_remove", _remove_on_leaders_only),
    "removed offsets are sent later": (ConsumerOffsets, "_remove", _remove_and_send_later),
    "a trimmed tail counts as complete": (ChangeStream, "has", lambda self, number: True),
    "locks are not sent": (PersistentState, "record_lock", lambda self, change: self.change_log.append(change)),
    "a snapshot merges": (ConsumerOffsets, "replace", lambda self, table: self.merge(table)),
}


@pytest.mark.parametrize("fault", sorted(PLANTED))
def test_planted_faults_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, replacement = PLANTED[fault]
    monkeypatch.setattr(owner, name, replacement)
    with pytest.raises((AssertionError, ProtocolError)):
        run(20)


def test_the_json_of_changes_is_that_of_the_change_log() -> None:
    change = OffsetsCommitted({"T@G": {0: 5, 3: 7}})
    data = state_changes.join([state_changes.encode(4, change)])
    assert data == b'[[4,{"type":"committed","offsets":{"T@G":{"0":5,"3":7}}}]]'
    assert state_changes.decode(data) == [state_changes.NumberedChange(4, change)]
    assert msgspec.json.decode(data)
