"""Pulls served together give the bytes of pulls served one by one: the same responses, statistics and offsets, whatever arrives.

Handlers and store of a broker on a fake disk, behind a connection without a socket. Frames are plain pulls, pulls that need a
decision, sends, changes of the broker's state, and damaged ones, in JSON and ROCKETMQ headers, cut into reads at any byte.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_send_turn import Collected, CountingTurns, Undelayed, refuse, send_frame, settle

from ariane.broker.config.broker_config import BrokerConfig, to_store_config
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.delivery.post_store import PostStoreDispatcher
from ariane.broker.handlers.reading.pull import PullHandler
from ariane.broker.handlers.reading.pull_filter import PullFilterBuilder
from ariane.broker.handlers.reading.pull_turns import PullTurns
from ariane.broker.handlers.sending.send import SendHandler
from ariane.broker.handlers.sending.send_target import SendTargets
from ariane.broker.handlers.sending.send_turns import SendTurns
from ariane.broker.lifecycle.write_protection import WriteProtection
from ariane.broker.replication.replication import ReplicationFeed
from ariane.broker.state.consumer_filters import ConsumerFilters, FilterTable
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.group_members import GroupMembers, Member
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.filter.bloom import Bloom
from ariane.kernels.pulls.pull_turn import PULL_CODES
from ariane.kernels.sends.send_turn import SEND_CODES
from ariane.model import host
from ariane.model.hashes import java_hash
from ariane.model.topic import PERM_WRITE, SubscriptionGroupConfig, TopicConfig
from ariane.net.connection import BATCH_BYTES_MAX, Connection, Reply
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.replies import Peer
from ariane.net.turn_router import TurnRouter
from ariane.protocol import command as commands
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.frame import BINARY_FORM, JSON_FORM, FrameReader
from ariane.protocol.records import properties
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.admin import SubscriptionGroupTable
from ariane.protocol.requests.clients import ConsumerData, SubscriptionData
from ariane.protocol.requests.messaging import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND, PullMessage
from ariane.protocol.requests.routing import TopicTable
from ariane.store.message_store import RecordDraft, open_store
from ariane.testing.clock import FakeClock
from ariane.testing.disk import FakeDisk

pytestmark = pytest.mark.usefixtures("untimed_ticks")

CHANGE = 105  # code of the frames that change the broker's state
HERE = host.pack("127.0.0.1", 10911)


class Outcome(NamedTuple):
    """What a broker did with its requests."""

    responses: bytes
    is_closed: bool
    files: dict[str, bytes]
    offsets: dict[str, dict[int, int]]  # committed
    groups: list[str]
    statistics: dict[str, Any]
    held: int  # pulls that were held when the last read had been served
    together: int  # requests that were served together


class FakeBroker:
    """The parts of a broker that serve sends and pulls."""

    def __init__(self, *, message_size: int = 5, has_pending_changes: bool = False, **config: Any) -> None:
        self.clock, self.disk = FakeClock(), FakeDisk()
        members: dict[str, Any] = {
            "broker_name": "b", "store_path_root_dir": "/store", "mapped_file_size_commit_log": 40_000 + 1000 * message_size,
            "mapped_file_size_consume_queue": 60_000, "max_hash_slot_num": 100, "max_index_num": 400,
            "enable_property_filter": True,
        }  # fmt: skip
        self.config = BrokerConfig(**members | config)
        self.settings = DynamicConfig(self.config, 0)
        self.stats = BrokerStats("C", timer=lambda: 0.0, now_ms=lambda: 0.0)
        self.store = open_store(to_store_config(self.config), self.disk, now_ms=self.clock.now_ms, store_host=HERE)
        self.topics = TopicRegistry(TopicTable(), self.config, now_ms=self.clock.now_ms)
        self.groups = GroupRegistry(SubscriptionGroupTable(), auto_create=True, now_ms=self.clock.now_ms)
        self.offsets, self.members = ConsumerOffsets(), GroupMembers()
        self.sql_filters = ConsumerFilters(FilterTable(), Bloom.sized(20, 32), keep_ms=1000, now_ms=self.clock.now_ms)
        self.limits = ServerLimits()
        self.changes = SimpleNamespace(has_pending=has_pending_changes)
        feed = ReplicationFeed(self.config, self.store)
        self.dispatcher = PostStoreDispatcher(
            settings=self.settings, store=self.store, stats=self.stats, feed=feed, clock=self.clock
        )
        self._fill(message_size)

    def _fill(self, message_size: int) -> None:
        for name in ("T", "U", "%RETRY%G"):
            self.create_topic(name)
        self.groups.put(SubscriptionGroupConfig(group_name="Off", consume_enable=False))
        self.groups.put(SubscriptionGroupConfig(group_name="G", broker_id=7, which_broker_when_consume_slowly=3))
        self.heartbeat(1, "a || b")
        for number in range(200):
            queue_id = (0, 3, 3, 0, 1)[number % 5] if number < 20 else (0, 3)[number % 2]
            tag = ("a", "b", "c", "")[number % 4]
            self.store.put(
                RecordDraft(
                    topic="T" if number % 9 else "U", queue_id=queue_id, body=b"x" * (number % 7 * message_size),
                    born_ms=1, born_host=HERE, tags=tag, properties=properties.encode({"TAGS": tag, "n": str(number)}),
                )
            )  # fmt: skip
            self.clock.advance(0.01)
        flush = self.store.begin_flush()
        assert flush is not None
        flush.run()
        self.store.end_flush(flush, None)
        self.store.dispatch_pending()

    def router(self) -> TurnRouter:
        """Return the fast paths of sends and pulls."""
        sends = SendTurns(
            settings=self.settings, topics=self.topics, store=self.store, store_host=HERE, listener=self.dispatcher,
            durability=SimpleNamespace(wait_flushed=lambda end: None), stats=self.stats, limits=self.limits,
            protection=WriteProtection(settings=self.settings, store=self.store, clock=self.clock),
            changes=self.changes, clock=self.clock,
        )  # fmt: skip
        pulls = PullTurns(
            settings=self.settings, filters=self._filter_builder(), offsets=self.offsets, store=self.store,
            stats=self.stats, limits=self.limits, changes=self.changes, clock=self.clock,
        )  # fmt: skip
        return TurnRouter({**dict.fromkeys(SEND_CODES, sends), **dict.fromkeys(PULL_CODES, pulls)})

    def handlers(self) -> Mapping[int, Any]:
        send = SendHandler(
            settings=self.settings,
            targets=SendTargets(settings=self.settings, topics=self.topics, groups=self.groups, clock=self.clock),
            store=self.store,
            store_host=HERE,
            delays=Undelayed(self.dispatcher),
            durability=SimpleNamespace(wait_flushed=lambda end: None),
            transactions=SimpleNamespace(redirect=lambda draft, property_map: draft),  # type: ignore[arg-type]
            recalls=SimpleNamespace(cancel=refuse),  # type: ignore[arg-type]
            stats=self.stats,
        )
        pull = PullHandler(
            settings=self.settings, filters=self._filter_builder(), groups=self.groups, offsets=self.offsets,
            store=self.store, store_host=HERE, waiters=self.dispatcher.pull_waiters, listener=self.dispatcher,
            stats=self.stats, clock=self.clock,
        )  # fmt: skip
        return {
            10: send.send_v1, 310: send.send, 320: send.send, 11: pull.pull, 361: pull.pull, CHANGE: self._change,
        }  # fmt: skip

    def _filter_builder(self) -> PullFilterBuilder:
        return PullFilterBuilder(
            settings=self.settings, topics=self.topics, groups=self.groups, members=self.members,
            filters=self.sql_filters,
        )  # fmt: skip

    # --- changes ---

    def _change(self, command: Command, peer: Peer) -> Reply:
        CHANGES[command.field_map()["change"]](self)
        return Reply()

    def create_topic(self, name: str, **members: Any) -> None:
        values: dict[str, Any] = {"read_queue_nums": 4, "write_queue_nums": 4} | members
        self.topics.put(TopicConfig(topic_name=name, **values))

    def delete_topic(self) -> None:
        self.topics.delete("T")
        self.store.delete_topic("T")
        self.offsets.remove_topic("T")

    def heartbeat(self, version: int, expression: str, *, kind: str = "TAG", model: str = "CLUSTERING") -> None:
        tags = frozenset(tag.strip() for tag in expression.split("||"))
        subscriptions = (
            SubscriptionData(topic="T", sub_string=expression, sub_version=version, expression_type=kind, tags_set=tags,
                             code_set=frozenset(map(java_hash, tags))),
            SubscriptionData(topic="U", sub_version=version),
            SubscriptionData(topic="%RETRY%G", sub_version=version),
        )  # fmt: skip
        data = ConsumerData(group_name="G", message_model=model, subscription_data_set=subscriptions)
        self.members.heartbeat_consumer(data, Member("c", 1, "10.1.2.3:4567", "JAVA", 401, 0.0))
        self.sql_filters.register("G", subscriptions)

    def set(self, **values: Any) -> None:
        self.settings.apply(msgspec.structs.replace(self.settings.current, **values), 0)

    def set_group(self, **values: Any) -> None:
        self.groups.put(SubscriptionGroupConfig(group_name="G", **values))


CHANGES: dict[str, Callable[[FakeBroker], object]] = {
    "forbid reading the topic": lambda broker: broker.create_topic("T", perm=PERM_WRITE),
    "allow reading the topic": lambda broker: broker.create_topic("T"),
    "fewer queues": lambda broker: broker.create_topic("T", read_queue_nums=1),
    "delete the topic": FakeBroker.delete_topic,
    "disable the group": lambda broker: broker.set_group(consume_enable=False),
    "enable the group": lambda broker: broker.set_group(consume_enable=True),
    "forbid broadcasting": lambda broker: broker.set_group(consume_broadcast_enable=False),
    "delete the group": lambda broker: broker.groups.delete("G"),
    "other tags": lambda broker: broker.heartbeat(2, "b"),
    "all tags": lambda broker: broker.heartbeat(3, "*"),
    "an expression": lambda broker: broker.heartbeat(4, "n > '100'", kind="SQL92"),
    "a broadcasting member": lambda broker: broker.heartbeat(4, "c", model="BROADCASTING"),
    "no member": lambda broker: broker.members.remove_consumer("G", 1),
    "forbid reading the broker": lambda broker: broker.set(broker_permission=PERM_WRITE),
    "allow reading the broker": lambda broker: broker.set(broker_permission=6),
    "suggest slaves": lambda broker: broker.set(slave_read_enable=True),
    "filter retried messages": lambda broker: broker.set(filter_support_retry=True),
}
# These change nothing unless another change came before.
CONDITIONAL = {
    "allow reading the topic",
    "allow reading the broker",
    "enable the group",
    "delete the group",  # created again by the next pull
    "forbid broadcasting",
    "filter retried messages",
}


def serve(reads: list[bytes], *, together: bool, **config: Any) -> Outcome:
    """Return the outcome of a new broker that received `reads` on one connection."""

    async def scenario() -> Outcome:
        random.seed(0)  # a broker chooses the queue of some sends at random
        broker = FakeBroker(**config)
        counted = CountingTurns(broker.router())  # type: ignore[arg-type]
        turns = counted if together else None
        connection = Connection(1, broker.handlers(), is_server=True, limits=broker.limits, turns=turns)
        transport = Collected()
        connection.connection_made(transport)  # type: ignore[arg-type]
        for read in reads:
            if not transport.is_closed:
                connection.data_received(read)
            await settle()
        held = len(broker.dispatcher.pull_waiters)
        assert broker.limits.in_flight >= held
        connection.connection_lost(None)
        await settle()
        assert broker.limits.in_flight == 0
        broker.store.close()
        return Outcome(
            transport.written,
            transport.is_closed,
            {path: bytes(broker.disk.contents(path)) for path in broker.disk.paths()},
            broker.offsets.table().offset_table,
            sorted(broker.groups.table().subscription_group_table),
            statistics(broker.stats),
            held,
            counted.requests,
        )

    return asyncio.run(scenario())


def statistics(stats: BrokerStats) -> dict[str, Any]:
    """Return all that a broker counted."""
    counted: dict[str, Any] = {
        name: {key: (item.times, item.count, item.size) for key, item in view.items}
        for name, view in stats.views.items()
    }
    counted |= {name: moments.values() for name, moments in stats.moments.items()}
    store = stats.store_stats
    return counted | {
        "store": (store.found, store.missed, store.transferred, store.get_s, store.fast_puts, store.failed_puts),
        "gets": store.get_counts(),
    }


def assert_same(reads: list[bytes], **config: Any) -> int:
    """Return how many requests were served together."""
    together, alone = (serve(reads, together=together, **config) for together in (True, False))
    assert together._replace(together=0) == alone._replace(together=0)
    assert alone.together == 0
    return together.together


# --- frames ---


def pull_frame(
    opaque: int = 1,
    *,
    code: int = RequestCode.PULL_MESSAGE,
    form: int = JSON_FORM,
    command_flag: int = 0,
    more: Mapping[str, str] | None = None,
    **members: Any,
) -> bytes:
    """Return the frame of a pull as a client encodes it; `more` are further extFields."""
    header = PullMessage(
        consumer_group="G", topic="T", queue_id=0, queue_offset=0, max_msg_nums=32, sys_flag=0, sub_version=1
    )
    fields = {**encode_header(msgspec.structs.replace(header, **members)), **(more or {})}
    return b"".join(commands.encode(code, opaque=opaque, flag=command_flag, fields=fields, form=form))


def change_frame(change: str) -> bytes:
    return b"".join(commands.encode(CHANGE, opaque=7, flag=0, fields={"change": change}))


OFFSETS = st.sampled_from([0, 0, 1, 5, 8, 70, 95, 100, 101, -1, 2**31, 2**63 - 1, -(2**63)])
MEMBERS = st.fixed_dictionaries(
    {},
    optional={
        "consumer_group": st.sampled_from(["G", "G", "Off", "New", "TOOLS_CONSUMER", "ä", "a@b", "x" * 272, ""]),
        "topic": st.sampled_from(["T", "T", "U", "%RETRY%G", "None", "SCHEDULE_TOPIC_XXXX", ""]),
        "queue_id": st.integers(-1, 5),
        "queue_offset": OFFSETS,
        "commit_offset": OFFSETS,
        "max_msg_nums": st.sampled_from([-1, 0, 1, 2, 32, 33, 2**31 - 1]),
        "sys_flag": st.integers(0, 31) | st.sampled_from([-1, 64]),
        "suspend_timeout_millis": st.sampled_from([0, -1, 1_000_000]),
        "subscription": st.none() | st.sampled_from(["*", "a", "a || b", "", "n > '50'", "\0", "é😀", "a" * 17_000]),
        "sub_version": st.integers(0, 5),
        "expression_type": st.none() | st.sampled_from(["TAG", "SQL92", "OTHER", "", "x" * 65]),
    },
)
FORMS = st.sampled_from([JSON_FORM, JSON_FORM, BINARY_FORM])
FURTHER = st.none() | st.dictionaries(
    st.sampled_from(["bname", "lo", "queueId", "x"]), st.sampled_from(["0", "1", "true", '"'])
)
PULLS = st.builds(
    lambda members, **values: pull_frame(**values, **members),
    MEMBERS,
    opaque=st.integers(-(2**31), 2**31 - 1),
    code=st.sampled_from([11, 11, 361]),
    form=FORMS,
    command_flag=st.sampled_from([0, 0, 0, 0, 2, 1, 4]),
    more=FURTHER,
)
PLAIN = st.builds(
    pull_frame,
    opaque=st.integers(0, 99),
    form=FORMS,
    queue_id=st.sampled_from([0, 1, 3]),
    queue_offset=st.sampled_from([0, 0, 1, 5, 70]),
    sys_flag=st.sampled_from([0, COMMIT_OFFSET, SUBSCRIPTION, SUBSCRIPTION | COMMIT_OFFSET | SUSPEND]),
    subscription=st.sampled_from(["*", "a", "a || b"]),
    commit_offset=st.integers(-1, 5),
)
SENDS = st.builds(send_frame, opaque=st.integers(0, 99), queue_id=st.integers(0, 3), body=st.binary(max_size=40))
OTHERS = st.builds(change_frame, st.sampled_from(sorted(CHANGES)))
DAMAGED = st.builds(
    lambda frame, at, byte: frame[: at % len(frame)] + bytes((byte,)) + frame[at % len(frame) + 1 :],
    PULLS | PLAIN,
    st.integers(0, 10_000),
    st.integers(0, 255),
)
FRAMES = st.lists(st.one_of(PLAIN, PLAIN, PULLS, PULLS, SENDS, OTHERS, DAMAGED), min_size=1, max_size=14)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FRAMES, st.lists(st.integers(0, 5000), max_size=3))
def test_any_stream_has_the_same_outcome(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frames)
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    assert_same([stream[start:end] for start, end in itertools.pairwise(places)])


@pytest.mark.parametrize("form", [JSON_FORM, BINARY_FORM])
@pytest.mark.parametrize("code", PULL_CODES)
def test_usual_pulls_are_served_together(code: int, form: int) -> None:
    frames = [pull_frame(opaque, code=code, form=form, queue_id=(0, 1, 3)[opaque % 3]) for opaque in range(20)]
    assert assert_same([b"".join(frames)]) == 20


def test_pulls_and_sends_of_one_read_are_each_served_together() -> None:
    frames = [frame for opaque in range(10) for frame in (pull_frame(opaque), send_frame(opaque))]
    assert assert_same([b"".join(frames)]) == 20


def test_offsets_are_committed_on_the_way() -> None:
    frames = [pull_frame(n, queue_id=n, sys_flag=COMMIT_OFFSET, commit_offset=n + 2) for n in (0, 1)]
    outcome = serve(frames, together=True)
    assert (outcome.offsets, outcome.together) == ({"T@G": {0: 2, 1: 3}}, 2)
    assert_same([b"".join(frames)])


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_takes_effect_with_the_next_pull(change: str) -> None:
    pulls = [
        pull_frame(1, queue_id=3),
        pull_frame(2, queue_id=3, sys_flag=SUBSCRIPTION, subscription="a"),
        pull_frame(3, queue_id=3, topic="U"),
        pull_frame(4, queue_id=3, sub_version=2),
    ]
    before = serve([b"".join(pulls)], together=True)
    assert before.together == 3  # the last is newer than the heartbeat
    reads = [b"".join([*pulls, change_frame(change), *pulls])]
    assert_same(reads)
    if change not in CONDITIONAL:
        responses = list(FrameReader().feed(serve(reads, together=True).responses))
        texts = [(frame.header, frame.body) for frame in responses]
        assert texts[:4] != texts[5:]


def test_a_deleted_and_created_topic_has_no_messages() -> None:
    changes = [change_frame("delete the topic"), change_frame("allow reading the topic")]
    frames = [pull_frame(1, sys_flag=SUBSCRIPTION), *changes, pull_frame(2, sys_flag=SUBSCRIPTION)]
    assert_same([b"".join(frames)])
    assert serve([b"".join(frames)], together=True).together == 1


def test_a_pull_that_finds_nothing_is_held_between_plain_ones() -> None:
    at_end = pull_frame(2, queue_id=1, queue_offset=3, sys_flag=SUSPEND, suspend_timeout_millis=1_000_000)
    reads = [b"".join([pull_frame(1), at_end, pull_frame(3)])]
    assert assert_same(reads) == 2
    assert serve(reads, together=True).held == 1
    reads.append(send_frame(4, queue_id=1, property_text="TAGS\x01b"))
    assert assert_same(reads) == 3
    outcome = serve(reads, together=True)
    assert (outcome.held, outcome.responses.count(b'"remark":"FOUND"')) == (0, 3)


def test_pulls_wait_for_changes_that_are_not_durable() -> None:
    assert assert_same([pull_frame()], flush_disk_type="SYNC_FLUSH", has_pending_changes=True) == 0
    assert assert_same([pull_frame()], flush_disk_type="SYNC_FLUSH") == 1


def test_a_turn_ends_at_the_bound_of_a_batch() -> None:
    frames = [pull_frame(opaque, queue_id=3, sys_flag=SUBSCRIPTION, subscription="*") for opaque in range(100)]

    async def scenario() -> list[int]:
        broker = FakeBroker(message_size=300)
        connection = Connection(1, broker.handlers(), is_server=True, limits=broker.limits, turns=broker.router())
        transport = Collected()
        connection.connection_made(transport)  # type: ignore[arg-type]
        connection.data_received(b"".join(frames))
        sizes = [len(transport.written)]
        while transport.written.count(b'"remark":"FOUND"') < len(frames):
            await asyncio.sleep(0)
            sizes.append(len(transport.written))
        broker.store.close()
        return [size for size in (b - a for a, b in itertools.pairwise([0, *sizes])) if size]

    sizes = asyncio.run(scenario())
    response = sum(sizes) // len(frames)
    assert len(sizes) > 10
    assert all(BATCH_BYTES_MAX <= size < BATCH_BYTES_MAX + 2 * response for size in sizes[:-1])
    assert_same([b"".join(frames)], message_size=300)


class UnreadResponses(Collected):
    """A transport whose peer reads only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.unread = self.high = 0
        self.protocol: Connection | None = None

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self.unread

    def write(self, data: bytes) -> None:
        super().write(data)
        self.unread += len(data)
        if self.unread > self.high and self.protocol is not None:
            self.protocol.pause_writing()

    def read(self) -> None:
        self.unread = 0
        if self.protocol is not None:
            self.protocol.resume_writing()


def test_a_peer_that_does_not_read_is_not_served() -> None:
    frames = [pull_frame(opaque, queue_id=3, sys_flag=SUBSCRIPTION, subscription="*") for opaque in range(100)]

    async def scenario() -> int:
        broker = FakeBroker(message_size=300)
        broker.limits.connection_unread_max = 200_000
        transport = UnreadResponses()
        transport.protocol = Connection(
            1, broker.handlers(), is_server=True, limits=broker.limits, turns=broker.router()
        )
        transport.protocol.connection_made(transport)  # type: ignore[arg-type]
        transport.protocol.data_received(b"".join(frames[:50]))
        await settle()
        transport.protocol.data_received(b"".join(frames[50:]))
        await settle()
        pauses = 0
        while transport.written.count(b'"remark":"FOUND"') < len(frames):
            assert 200_000 < transport.unread < 200_000 + 2 * BATCH_BYTES_MAX
            pauses += 1
            transport.read()
            await settle()
        transport.protocol.connection_lost(None)
        broker.store.close()
        return pauses

    assert asyncio.run(scenario()) > 5


def test_a_broker_without_room_for_offsets_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ariane.broker.state.consumer_offsets.QUEUES_MAX", 1)
    frames = [pull_frame(n, queue_id=n, sys_flag=COMMIT_OFFSET, commit_offset=1) for n in (0, 1, 0)]
    assert assert_same([b"".join(frames)]) == 2


def test_a_read_error_is_the_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(disk: FakeDisk, handle: int, size: int, offset: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(FakeDisk, "map", lambda disk, handle, size: None)
    monkeypatch.setattr(FakeDisk, "pread", fail)
    together = serve([pull_frame()], together=True)
    assert (b"Input/output error" in together.responses, together.together) == (True, 0)


def test_few_plans_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ariane.broker.handlers.reading.pull_turns.PLANS_MAX", 3)
    monkeypatch.setattr("ariane.broker.handlers.reading.pull_turns.PLANS_CHARS_MAX", 30)
    texts = ["a" * 9, "a" * 12, "a", "*", "b", "c", "a" * 31]
    frames = [
        pull_frame(n, sys_flag=SUBSCRIPTION, subscription=f"a || b || c || {text}") for n, text in enumerate(texts * 2)
    ]
    assert assert_same([b"".join(frames)]) == len(frames)


def random_frame(rng: random.Random) -> bytes:
    """Return a frame of a broker's usual day: most pulls are plain, and find messages."""
    kind = rng.random()
    if kind < 0.08:
        return change_frame(rng.choice(sorted(CHANGES)))
    if kind < 0.2:
        return send_frame(rng.randrange(100), queue_id=rng.randrange(4), property_text=f"TAGS\x01{rng.choice('abc')}")
    return pull_frame(
        rng.randrange(100),
        code=rng.choice(PULL_CODES),
        form=rng.choice((JSON_FORM, JSON_FORM, BINARY_FORM)),
        consumer_group=rng.choice(("G", "G", "G", "New", "TOOLS_CONSUMER")),
        topic=rng.choice(("T", "T", "T", "U")),
        queue_id=rng.choice((0, 0, 1, 3, 3, 4)),
        queue_offset=rng.choice((0, 0, 1, 2, 5, 50, 70, 90)),
        commit_offset=rng.choice((-1, 0, 0, 4)),
        max_msg_nums=rng.choice((1, 2, 32, 32)),
        sys_flag=rng.choice((0, COMMIT_OFFSET, SUBSCRIPTION, SUBSCRIPTION | COMMIT_OFFSET, 7)),
        subscription=rng.choice(("*", "a", "a || b", "n > '50'")),
        sub_version=rng.choice((0, 1, 1, 2, 3)),
        expression_type=rng.choice((None, "TAG", "SQL92")) if rng.random() < 0.2 else None,
    )


@pytest.mark.parametrize("seed", range(20))
def test_usual_streams_have_the_same_outcome(seed: int) -> None:
    rng = random.Random(seed)
    reads = [b"".join(random_frame(rng) for _ in range(rng.randrange(1, 20))) for _ in range(8)]
    assert assert_same(reads) > 5


def test_a_queue_that_a_topic_no_longer_has_is_not_read() -> None:
    frames = [pull_frame(1), change_frame("fewer queues"), pull_frame(2), pull_frame(3, queue_id=3)]
    assert assert_same([b"".join(frames)]) == 2
