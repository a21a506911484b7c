"""A broker as a member of a set: what it may answer, what it asks of the record, and what it answers to other members."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.failover.disk_probe import DiskProbe
from ariane.broker.failover.failover_settings import (
    check_settings,
    lease_times,
    members_of,
    probe_interval_s,
    role_config,
)
from ariane.broker.replication.member_identity import MemberIdentity
from ariane.broker.replication.membership import Membership, ha_addr, refuse_member_request
from ariane.broker.replication.replication import ReplicationFeed
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.clock import Clock
from ariane.errors import ConfigError, ProtocolError, StoreError
from ariane.failover.agent import FailoverAgent
from ariane.failover.coordination import RecordSnapshot, WriteOutcome, WriteResult
from ariane.failover.decisions import decide
from ariane.failover.leader_record import InSyncMember, LeaderRecord
from ariane.failover.member_state import (
    EndsCompared,
    HandOver,
    HigherEpoch,
    LeaseTimes,
    MemberEnd,
    MemberRole,
    MemberState,
    ReleaseLease,
    RenewLease,
    ServiceAnswered,
    SwapRecord,
)
from ariane.model import host
from ariane.net.connection import Reply
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records.member_stream import Hello
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.failover import MemberAnswer, MemberRequest
from ariane.store.disk.files import Usage
from ariane.store.log.epochs import Epoch, open_epochs
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store
from ariane.testing.disk import FakeDisk

A, B, C = (InSyncMember(name, "1") for name in "abc")
HOST = host.pack("127.0.0.1", 10911)
EPOCH = 4
TIMES = LeaseTimes()


class ManualClock:
    """CLOCK_BOOTTIME and the monotonic clock of one member."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def boottime(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Supervisor:
    """Notes requests, and stores promises at once."""

    has_room = True

    def __init__(self, epochs: Any) -> None:
        self.epochs = epochs
        self.diverged: list[int] = []
        self.successors: list[str] = []

    async def accept_fence(self, epoch: int) -> None:
        if epoch > self.epochs.promised:
            self.epochs.promise(epoch)

    def on_diverged(self, common: int) -> None:
        self.diverged.append(common)

    def on_disjoint(self, common: int, start: int) -> None:
        self.diverged.append(-start)

    def hand_over(self, successor: str) -> None:
        self.successors.append(successor)

    def accept_loss(self) -> None:
        self.successors.append("me")


class Replica:
    """Takes the actions of the agent."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


class Master:
    """A master of epoch 4 with a store, whose record lists some members."""

    def __init__(self, *members: InSyncMember, records: int = 3, **settings: Any) -> None:
        self.clock = ManualClock()
        self.disk = FakeDisk()
        config = StoreConfig(root="/store", commit_log_size=4096, consume_queue_size=100, confirmed_reads=True)
        self.store: MessageStore = open_store(config, self.disk, store_host=HOST)
        for _ in range(records):
            self.put()
        self.epochs = open_epochs(self.disk, "/store", self.store.commit_log_max)
        self.epochs.begin(Epoch(EPOCH, self.store.commit_log_max, "a"))
        self.agent = FailoverAgent(
            MemberState(
                me=A, nonce="n", times=TIMES, started_at=0.0, epoch=EPOCH, epoch_at=0.0, role=MemberRole.MASTER,
                deadline=self.clock.now_s + 8, snapshot=snapshot("a", EPOCH, members or (A, B, C)), request_at=1e9,
            ),
            service=cast(Any, None), replica=cast(Any, Replica()), clock=self.clock,
        )  # fmt: skip
        self.supervisor = Supervisor(self.epochs)
        self.membership = Membership(
            identity=MemberIdentity(self.disk, "/store", A),
            epoch=EPOCH,
            agent=self.agent,
            supervisor=self.supervisor,
            addresses={"a": "h:1", "b": "h:2", "c": "h:3"},
            clock=self.clock,
        )
        self.membership.attach(self.epochs, self.store)
        broker = BrokerConfig(broker_role="SYNC_MASTER", confirmed_reads=True, **settings)
        self.feed = ReplicationFeed(
            broker, self.store, epochs=self.epochs, membership=self.membership, clock=cast(Clock, self.clock)
        )

    def put(self) -> int:
        self.store.put(RecordDraft(topic="T", queue_id=0, body=b"x", born_ms=1, born_host=HOST))
        return self.store.commit_log_max

    def report(self, member: InSyncMember) -> None:
        self.feed._in_sync.on_report(member, self.store.commit_log_max)
        self.feed._update()

    def pass_time(self, seconds: float) -> None:
        self.clock.now_s += seconds
        asyncio.run(self.feed.update_in_sync_set())

    def answer_swap(self, outcome: WriteOutcome) -> None:
        """Let the coordination service answer the swap in flight."""
        swap = self.agent.state.open_write
        assert isinstance(swap, SwapRecord)
        stored = RecordSnapshot(swap.record, "v2", "lease") if outcome is WriteOutcome.DONE else swap.expected
        self.agent.observe(ServiceAnswered(swap, WriteResult(outcome, stored)))

    @property
    def required(self) -> frozenset[InSyncMember]:
        return self.feed._in_sync.required


def snapshot(holder: str, epoch: int, members: tuple[InSyncMember, ...], token: str = "n.0") -> RecordSnapshot:
    record = LeaderRecord(holder=holder, epoch=epoch, in_sync=members, set_version=1, token=token)
    return RecordSnapshot(record, "v1", "lease")


def member_request(membership: Membership, *fields: Any) -> MemberAnswer:
    command = Command(RequestCode.MEMBER_REQUEST, 1, 0, fields=encode_header(MemberRequest(*fields)))
    reply = asyncio.run(membership.answer(command, cast(Any, None)))
    assert isinstance(reply, Reply)
    assert isinstance(reply.body, bytes)
    return msgspec.json.decode(reply.body, type=MemberAnswer)


def test_answers_end_with_the_deadline_and_with_the_epoch() -> None:
    master = Master()
    assert master.membership.may_answer()
    master.clock.now_s += 7.9
    assert master.membership.may_answer()
    master.clock.now_s += 0.2
    assert not master.membership.may_answer()
    master.clock.now_s -= 8
    master.agent.observe(HigherEpoch(EPOCH + 1))
    assert not master.membership.may_answer()
    master.membership.parting_until = master.clock.now_s + 0.05
    assert master.membership.may_answer(), "held pulls are answered before the connections are reset"
    master.clock.now_s += 0.06
    assert not master.membership.may_answer()


def test_a_record_is_confirmed_by_the_whole_stored_set_only() -> None:
    async def work() -> None:
        master = Master()
        master.feed.notify_appended()
        waiter = master.feed.wait_replicated(master.put())
        flushed = master.feed.wait_flushed(master.store.commit_log_max)
        master.feed.notify_appended()
        master.report(B)
        assert not waiter.done()
        assert master.store.replication_source.confirmed == 0
        master.report(C)
        assert waiter.result() is ResponseCode.SUCCESS
        assert flushed.result() is True
        assert master.store.replication_source.confirmed == master.store.commit_log_max

    asyncio.run(work())


def test_a_member_leaves_the_record_before_anything_is_confirmed_without_it() -> None:
    master = Master()
    for member in (B, C):
        master.report(member)
    end = master.put()
    master.feed.notify_appended()
    master.report(B)
    master.pass_time(1.6)
    master.feed.notify_appended()
    master.pass_time(1.6)
    assert isinstance(master.agent.state.open_write, SwapRecord)
    assert master.required == {A, B, C}, "the swap may fail"
    assert (master.store.replication_source.confirmed or 0) < end
    master.answer_swap(WriteOutcome.UNKNOWN)
    master.pass_time(0.2)
    assert (master.store.replication_source.confirmed or 0) < end
    master.answer_swap(WriteOutcome.DONE)
    master.pass_time(0.2)
    assert master.required == {A, B}
    assert master.store.replication_source.confirmed == end


def test_a_refused_swap_is_proposed_again() -> None:
    master = Master(A)
    master.feed.notify_appended()
    master.report(B)
    assert isinstance(master.agent.state.open_write, SwapRecord)
    assert master.required == {A, B}
    master.answer_swap(WriteOutcome.REFUSED)
    master.pass_time(0.2)
    # The version that the refusal showed is the one that it expected: the write may still be applied.
    assert B in master.required
    master.answer_swap(WriteOutcome.DONE)
    master.pass_time(0.2)
    assert master.feed.in_sync_size == 2


def test_a_set_that_is_too_small_confirms_nothing() -> None:
    master = Master(A, min_in_sync_replicas=2)
    end = master.put()
    master.feed.notify_appended()
    master.pass_time(0.2)
    assert master.store.refusal is not None
    assert master.feed.acknowledged_offset < end


def test_a_master_that_is_alone_refuses_sends_and_leaves_the_record_as_it_is() -> None:
    master = Master(min_in_sync_replicas=2)
    for member in (B, C):
        master.report(member)
    master.put()
    master.feed.notify_appended()
    for _ in range(2):
        master.pass_time(1.6)
    assert master.agent.state.open_write is None, "B and C have everything acknowledged, and may lead"
    assert master.store.refusal is not None
    master.report(C)
    assert isinstance(master.agent.state.open_write, SwapRecord)
    assert master.agent.state.open_write.record.in_sync == (A, C)
    assert master.store.refusal is None


def test_waits_of_an_epoch_fail_with_it() -> None:
    async def work() -> None:
        master = Master()
        waiter = master.feed.wait_replicated(master.put())
        master.feed.fail_waiters(StoreError("epoch 4 is over"))
        with pytest.raises(StoreError, match="epoch 4"):
            waiter.result()

    asyncio.run(work())


def test_nothing_is_confirmed_while_a_master_parts() -> None:
    """The outcome of a swap that is open then is never taken: it may have been applied."""
    master = Master(A)
    master.feed.notify_appended()
    confirmed = master.store.replication_source.confirmed
    master.report(B)
    assert isinstance(master.agent.state.open_write, SwapRecord)
    end = master.put()
    master.agent.observe(HigherEpoch(EPOCH + 1))
    master.feed.fail_waiters(StoreError("epoch 4 is over"))
    master.feed._in_sync.on_disconnect(B)
    master.pass_time(0.02)
    master.feed.notify_appended()
    assert master.store.replication_source.confirmed == confirmed
    assert master.feed.acknowledged_offset < end


def test_requests_of_members() -> None:
    master = Master()
    answer = member_request(master.membership, "end", "b", EPOCH)
    assert (answer.member, answer.last_epoch, answer.promised) == ("a", EPOCH, EPOCH)
    assert answer.end == master.store.commit_log_max
    assert answer.refusal == "its role is M"
    assert not member_request(master.membership, "failsafe", "b", EPOCH).agrees
    assert member_request(master.membership, "handover", "b", EPOCH).agrees
    assert not member_request(master.membership, "handover", "d", EPOCH).agrees, "the record does not list it"
    assert master.supervisor.successors == ["b"]
    assert member_request(master.membership, "fence", "b", EPOCH + 2).promised == EPOCH + 2
    assert member_request(master.membership, "fence", "stray", EPOCH + 9).promised == EPOCH + 2
    master.clock.now_s += 9
    assert not member_request(master.membership, "handover", "b", EPOCH).agrees
    master.agent.state = msgspec.structs.replace(master.agent.state, snapshot=None)
    assert not member_request(master.membership, "handover", "b", EPOCH).agrees, "it has not read the record yet"
    reply = refuse_member_request(cast(Any, None), cast(Any, None))
    assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_an_epoch_that_a_member_names_is_not_stored_before_the_record_has_it() -> None:
    """A directory of another set that promised epoch 50 there would exclude every member for good."""
    master = Master()
    master.feed._refusal(hello := Hello(member="b", incarnation="1", end=0, promised=50))
    master.membership.observe_epoch(50)
    assert (master.agent.state.role, master.agent.state.epoch) == (MemberRole.MASTER, EPOCH)
    assert isinstance(master.agent._request, RenewLease), "its answer shows whether another member leads"
    assert "accepted epoch 50" in master.feed._refusal(hello)
    assert "lacks stray" in master.feed._refusal(Hello(member="stray", incarnation="1", end=0))
    with pytest.raises(ProtocolError, match="names epoch 50"):
        master.membership.check_epoch(50)


def test_a_hand_over_releases_the_lease_for_the_successor() -> None:
    state = Master().agent.state
    decision = decide(state, HandOver("b"), 101.0)
    release = next(action for action in decision.actions if isinstance(action, ReleaseLease))
    assert release.record.successor == "b"
    assert decision.state.role is MemberRole.FOLLOWER
    assert decision.state.backoff_until == 101.0 + TIMES.ttl_s
    assert decide(decision.state, HandOver("c"), 101.0).actions == ()


def test_a_successor_does_not_wait_for_an_equal_member() -> None:
    record = msgspec.structs.replace(snapshot("a", EPOCH, (A, B, C)).record, successor="b")
    follower = MemberState(
        me=B, nonce="m", times=TIMES, started_at=0.0, epoch=EPOCH, epoch_at=0.0, role=MemberRole.FOLLOWER,
        snapshot=RecordSnapshot(record, "v2", ""), free_since=100.0,
    )  # fmt: skip
    ends = EndsCompared((MemberEnd(EPOCH, 50, "b"), MemberEnd(EPOCH, 50, "c")))
    assert decide(follower, ends, 100.0).state.role is MemberRole.CANDIDATE
    unnamed = msgspec.structs.replace(
        follower, snapshot=msgspec.structs.replace(snapshot("a", EPOCH, (A, B, C)), lease="")
    )
    assert decide(unnamed, ends, 100.0).state.role is MemberRole.FOLLOWER


def test_a_probe_that_fails_keeps_its_age() -> None:
    disk, now = FakeDisk(), [5.0]
    disk.make_dirs("/store/commitlog")
    directories = "/store", "/store/commitlog"
    probe = DiskProbe(disk, directories, interval_s=1, full_above=90, now=lambda: now[0])
    now[0] = 7.0
    probe.probe()
    assert (probe.completed_at, probe.is_full) == (7.0, False)
    disk.used = Usage(100, 9)
    probe.probe()
    assert probe.is_full

    def fail(kind: str, path: str) -> None:
        raise OSError(5, "I/O error", path)

    now[0], disk.fail = 9.0, fail
    with pytest.raises(OSError, match="I/O error"):
        probe.probe()
    assert probe.completed_at == 7.0


GOOD: dict[str, Any] = {
    "failover_endpoints": "http://h:2379",
    "failover_members": "a=h:10911; b=h:10921",
    "member_name": "a",
    "broker_role": "SYNC_MASTER",
    "broker_id": 1,
}


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"member_name": ""}, "memberName"),
        ({"member_name": "d"}, "failoverMembers"),
        ({"failover_members": "a=h"}, "failoverMembers"),
        ({"failover_members": "a=h:1;a=h:2"}, "failoverMembers"),
        ({"failover_members": "a=h:1;b c=h:2"}, "failoverMembers"),
        ({"broker_role": "ASYNC_MASTER"}, "brokerRole"),
        ({"broker_id": 0}, "brokerId"),
        ({"listen_port": 0}, "listenPort"),
    ],
)
def test_settings_of_failover(settings: dict[str, Any], key: str) -> None:
    config = BrokerConfig(**GOOD)
    check_settings(config)
    assert members_of(config) == {"a": "h:10911", "b": "h:10921"}
    with pytest.raises(ConfigError, match=key):
        check_settings(BrokerConfig(**{**GOOD, **settings}))


def test_roles_and_times() -> None:
    config = BrokerConfig(**GOOD).validate()
    assert config.broker_id == 1
    assert (role_config(config, leads=True).broker_id, role_config(config, leads=True).broker_role) == (
        0,
        "SYNC_MASTER",
    )
    slave = role_config(config, leads=False).validate()
    assert (slave.broker_id, slave.is_slave, slave.confirmed_reads) == (1, True, True)
    assert (probe_interval_s(config), lease_times(config).disk_limit_s) == (10 / 3 / 4, 10 / 3)
    slow = msgspec.structs.replace(config, failover_probe_interval=5_000, failover_probe_limit=20_000)
    assert (probe_interval_s(slow), lease_times(slow).disk_limit_s) == (5.0, 20.0)
    with pytest.raises(ConfigError, match="at most half of failoverProbeLimit, which is 8000 ms"):
        check_settings(msgspec.structs.replace(slow, failover_probe_limit=8_000))
    for ttl_s in (3, 10, 300):
        assert lease_times(msgspec.structs.replace(config, failover_ttl=ttl_s)).ttl_s == ttl_s
    assert ha_addr("10.0.0.1:10911") == "10.0.0.1:10912"


def test_commits_beyond_the_end_are_refused_and_backward_ones_are_counted() -> None:
    offsets = ConsumerOffsets()
    assert offsets.commit_consumed("g", "T", 0, 99), "without failover, as in Java"
    offsets.end_of = lambda topic, queue_id: 100
    assert not offsets.commit_consumed("g", "T", 0, 101)
    assert offsets.get("g", "T", 0) == 99
    assert offsets.commit_consumed("g", "T", 0, 100)
    assert offsets.commit_consumed("g", "T", 0, 7)
    assert (offsets.refused, offsets.backward, offsets.get("g", "T", 0)) == (1, 1, 7)
