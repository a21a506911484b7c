"""Sends served together give the bytes of sends served one by one: the same files, the same responses, whatever arrives.

Handlers and store of a broker on a fake disk, behind a connection without a socket. Frames are plain sends, sends that need a
decision, other requests, and damaged ones, in JSON and ROCKETMQ headers, cut into reads at any byte.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ariane.broker.config.broker_config import BrokerConfig, to_store_config
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.delivery.post_store import PostStoreDispatcher
from ariane.broker.handlers.sending.send import SendHandler
from ariane.broker.handlers.sending.send_target import SendTargets
from ariane.broker.handlers.sending.send_turns import SendTurns
from ariane.broker.lifecycle.offset_waiters import OffsetWaiter
from ariane.broker.lifecycle.write_protection import WriteProtection
from ariane.broker.replication.replication import ReplicationFeed
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.errors import ProtocolError, ReplyError
from ariane.model import host
from ariane.model.topic import TopicConfig
from ariane.net.connection import Connection, Reply
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.replies import Peer, ServedTurn
from ariane.protocol import command as commands
from ariane.protocol.codes import RequestCode
from ariane.protocol.frame import BINARY_FORM, JSON_FORM
from ariane.protocol.records import batch
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.admin import SubscriptionGroupTable
from ariane.protocol.requests.messaging import LONG_NAMES, SendMessage
from ariane.protocol.requests.routing import TopicTable
from ariane.store.message_store import open_store
from ariane.testing.clock import FakeClock
from ariane.testing.disk import FakeDisk

pytestmark = pytest.mark.usefixtures("untimed_ticks")

BORN_MS = 1_700_000_000_000


class Collected:
    """A transport that collects what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("10.1.2.3", 4567) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True


class Outcome(NamedTuple):
    """What a broker did with its requests."""

    responses: bytes
    is_closed: bool
    files: dict[str, bytes]
    topic_put: list[Any]  # messages, bytes and sends by topic
    together: int  # sends that were served together


class Undelayed:
    """No delays and no transactions: a send with either is refused, which only the handler of single sends does."""

    def __init__(self, dispatcher: PostStoreDispatcher) -> None:
        self.on_stored = dispatcher.on_stored

    def schedule(self, draft: Any, property_map: dict[str, str]) -> Any:
        if "DELAY" in property_map:
            raise ProtocolError("delayed")
        return draft


def serve(reads: list[bytes], *, together: bool, flushed: bool | None = None, room: int | None = None) -> Outcome:
    """Return the outcome of a new broker that received `reads` on one connection.

    Args:
        together: Whether runs of plain sends are served together.
        flushed: Outcome of each flush in synchronous mode; None: asynchronous mode.
        room: Bytes of log that the disk takes.
    """

    random.seed(0)  # a broker chooses the queue of some sends at random

    async def scenario() -> Outcome:
        clock, disk, stats = FakeClock(), FakeDisk(), BrokerStats("C", timer=lambda: 0.0, now_ms=lambda: 0.0)
        config = BrokerConfig(
            broker_name="b", store_path_root_dir="/store", mapped_file_size_commit_log=40_000,
            mapped_file_size_consume_queue=60_000, max_hash_slot_num=100, max_index_num=400, max_message_size=3000,
        )  # fmt: skip
        values, here = DynamicConfig(config, 0), host.pack("127.0.0.1", 10911)
        store = open_store(to_store_config(config), disk, now_ms=clock.now_ms, store_host=here)
        topics = TopicRegistry(TopicTable(), config, now_ms=clock.now_ms)
        for name, kind in (("T", "SINGLE_TAG"), ("Many", "MULTI_TAG"), ("%RETRY%G", "SINGLE_TAG")):
            topics.put(TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4, topic_filter_type=kind))
        groups = GroupRegistry(SubscriptionGroupTable(), auto_create=True, now_ms=clock.now_ms)
        feed = ReplicationFeed(config, store)
        dispatcher = PostStoreDispatcher(settings=values, store=store, stats=stats, feed=feed, clock=clock)
        durability: Any = SimpleNamespace(wait_flushed=lambda end: None if flushed is None else finishing(flushed))
        handler = SendHandler(
            settings=values,
            targets=SendTargets(settings=values, topics=topics, groups=groups, clock=clock),
            store=store,
            store_host=here,
            delays=Undelayed(dispatcher),
            durability=durability,
            transactions=SimpleNamespace(redirect=lambda draft, property_map: draft),  # type: ignore[arg-type]
            recalls=SimpleNamespace(cancel=refuse),  # type: ignore[arg-type]
            stats=stats,
        )
        limits = ServerLimits()
        turns = SendTurns(
            settings=values,
            topics=topics,
            store=store,
            store_host=here,
            listener=dispatcher,
            durability=durability,
            stats=stats,
            limits=limits,
            protection=WriteProtection(settings=values, store=store, clock=clock),
            changes=SimpleNamespace(has_pending=False),
            clock=clock,
        )
        handlers: Any = {10: handler.send_v1, 310: handler.send, 320: handler.send, 105: lambda command, peer: Reply()}
        counted = CountingTurns(turns)
        connection = Connection(1, handlers, is_server=True, limits=limits, turns=counted if together else None)
        transport = Collected()
        connection.connection_made(transport)  # type: ignore[arg-type]
        if room is not None:
            disk.room = room
        for read in reads:
            if not transport.is_closed:
                connection.data_received(read)
            await settle()
        assert limits.in_flight == 0
        connection.connection_lost(None)
        await settle()
        disk.room = None
        store.close()
        files = {path: bytes(disk.contents(path)) for path in disk.paths()}
        put = [(key, item.count, item.size, item.times) for key, item in stats._topic_put]
        return Outcome(transport.written, transport.is_closed, files, put, counted.requests)

    return asyncio.run(scenario())


class CountingTurns:
    """Counts the requests that are served together."""

    def __init__(self, turns: SendTurns) -> None:
        self.requests = 0
        self._turns = turns

    def serve(self, data: bytes, position: int, peer: Peer, waited_s: float) -> ServedTurn | None:
        turn = self._turns.serve(data, position, peer, waited_s)
        self.requests += turn.requests if turn else 0
        return turn


def refuse(*_: object) -> Any:
    raise ReplyError(1, "no such timer")


def finishing(result: bool) -> OffsetWaiter[bool]:
    """Return a wait that ends in the next tick."""
    waiter: OffsetWaiter[bool] = OffsetWaiter(0, 1.0, 1.0)
    asyncio.get_running_loop().call_soon(waiter.finish, result)
    return waiter


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


# --- frames ---


def send_frame(
    opaque: int = 1,
    *,
    code: int = RequestCode.SEND_MESSAGE_V2,
    form: int = JSON_FORM,
    command_flag: int = 0,
    body: bytes = b"hello",
    property_text: str = "UNIQ_KEY\x017F00000100002A139A55000000000001\x02WAIT\x01true\x02TAGS\x01a",
    **members: Any,
) -> bytes:
    """Return the frame of a send as a client encodes it."""
    header = SendMessage(
        producer_group="P", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0, sys_flag=0,
        born_ms=BORN_MS, flag=0, properties=property_text,
    )  # fmt: skip
    fields = encode_header(msgspec.structs.replace(header, **members))
    if code == RequestCode.SEND_MESSAGE:
        long_names = {short: name for name, short in LONG_NAMES.items()}
        fields = {long_names[name]: value for name, value in fields.items()}
    return b"".join(commands.encode(code, opaque=opaque, flag=command_flag, fields=fields, body=body, form=form))


def outcomes(reads: list[bytes], **config: Any) -> tuple[Outcome, Outcome]:
    return serve(reads, together=True, **config), serve(reads, together=False, **config)


def assert_same(reads: list[bytes], **config: Any) -> int:
    """Return how many sends were served together."""
    together, alone = outcomes(reads, **config)
    assert together._replace(together=0) == alone
    return together.together


NAMES = st.sampled_from(
    [
        "UNIQ_KEY",
        "KEYS",
        "TAGS",
        "WAIT",
        "CLUSTER",
        "DELAY",
        "TRAN_MSG",
        "__STARTDELIVERTIME",
        "TIMER_DEL_UNIQKEY",
        "x",
        "ä",
        "",
    ]
)
VALUES = st.sampled_from(
    ["true", "false", "a", "k1 k2 k1", "  k", "7F00000100002A139A5500000000000A", "é€😀", "a\x01b", '"\\', "0", ""]
)
PROPERTY_TEXTS = st.one_of(
    st.none(),
    st.lists(st.tuples(NAMES, VALUES), max_size=5).map(
        lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs)
    ),
    st.lists(st.sampled_from(["TAGS", "\x01", "\x02", "a", "KEYS\x01k", "é"]), max_size=8).map("".join),
)
BATCHES = st.lists(
    st.tuples(st.integers(0, 3), st.binary(max_size=20), PROPERTY_TEXTS.map(lambda text: text or "")), max_size=4
).map(lambda entries: batch.encode([batch.BatchEntry(*entry) for entry in entries]))
MEMBERS = st.fixed_dictionaries(
    {},
    optional={
        "topic": st.sampled_from(["T", "T", "T", "Many", "%RETRY%G", "None", "SCHEDULE_TOPIC_XXXX", "Ü"]),
        "queue_id": st.integers(-2, 5),
        "sys_flag": st.sampled_from([0, 1, 4, 8, 12, 16, 32, 49, -1]),
        "flag": st.integers(-(2**31), 2**31 - 1),
        "born_ms": st.sampled_from([0, -1, 2**63 - 1]),
        "reconsume_times": st.none() | st.integers(0, 20),
        "batch": st.booleans(),
        "unit_mode": st.booleans(),
        "producer_group": st.sampled_from(["P", "ä", "x" * 272]),
    },
)
SENDS = st.builds(
    lambda members, **values: send_frame(**values, **members),
    MEMBERS,
    opaque=st.integers(-(2**31), 2**31 - 1),
    code=st.sampled_from([10, 310, 310, 320]),
    form=st.sampled_from([JSON_FORM, JSON_FORM, BINARY_FORM]),
    command_flag=st.sampled_from([0, 0, 0, 2, 1, 3]),
    body=st.one_of(st.binary(max_size=40), BATCHES, st.sampled_from([2990, 3001]).map(bytes)),
    property_text=PROPERTY_TEXTS,
)
PLAIN = st.builds(send_frame, opaque=st.integers(0, 99), queue_id=st.integers(0, 3), body=st.binary(max_size=40))
OTHERS = st.sampled_from(
    [b"".join(commands.encode(105, opaque=5, flag=0)), b"".join(commands.encode(999, opaque=5, flag=0))]
)
DAMAGED = st.builds(
    lambda frame, at, byte: frame[: at % len(frame)] + bytes((byte,)) + frame[at % len(frame) + 1 :],
    SENDS,
    st.integers(0, 10_000),
    st.integers(0, 255),
)
FRAMES = st.lists(st.one_of(PLAIN, PLAIN, SENDS, SENDS, OTHERS, DAMAGED), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FRAMES, st.lists(st.integers(0, 5000), max_size=3))
def test_any_stream_has_the_same_outcome(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frames)
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    assert_same([stream[start:end] for start, end in itertools.pairwise(places)])


@pytest.mark.parametrize("form", [JSON_FORM, BINARY_FORM])
@pytest.mark.parametrize("code", [10, 310, 320])
def test_usual_sends_are_served_together(code: int, form: int) -> None:
    frames = [send_frame(opaque, code=code, form=form, queue_id=opaque % 4) for opaque in range(100)]
    assert assert_same([b"".join(frames)]) == 100


def test_batches_are_served_together() -> None:
    body = batch.encode([batch.BatchEntry(1, b"a", "KEYS\x01k"), batch.BatchEntry(2, b"b", "TAGS\x01t")])
    frames = [send_frame(opaque, code=320, batch=True, body=body) for opaque in range(10)]
    assert assert_same([b"".join(frames)]) == 10


def test_messages_of_a_batch_keep_their_own_ids() -> None:
    """Java 5.x clients give the batch an id, too."""
    body = batch.encode([batch.BatchEntry(0, b"a", "UNIQ_KEY\x01A"), batch.BatchEntry(0, b"b", "TAGS\x01t")])
    frame = send_frame(code=320, batch=True, body=body, property_text="UNIQ_KEY\x01BATCH\x02x\x01y")
    assert assert_same([frame]) == 1
    for together in (True, False):
        log = b"".join(serve([frame], together=together).files.values())
        assert b"UNIQ_KEY\x01A" in log
        assert b"x\x01y" in log
        assert b"BATCH" not in log


def test_an_unusual_frame_does_not_affect_the_others() -> None:
    delayed = send_frame(5, property_text="DELAY\x013")
    frames = [send_frame(1), send_frame(2), delayed, send_frame(3), send_frame(4)]
    assert assert_same([b"".join(frames)]) == 4


def test_a_run_ends_with_the_file_of_the_log() -> None:
    frames = [send_frame(opaque, body=bytes(900)) for opaque in range(120)]
    assert assert_same([b"".join(frames)]) > 100


@pytest.mark.parametrize("flushed", [True, False])
def test_synchronous_sends_wait_together(flushed: bool) -> None:
    frames = [send_frame(opaque) for opaque in range(20)] + [send_frame(30, command_flag=2)]
    assert assert_same([b"".join(frames)], flushed=flushed) == 21


def test_a_batch_that_repeats_long_properties_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "STORED_MAX", 20_000)
    body = batch.encode([batch.BatchEntry(0, b"", "")] * 10)
    fits, exceeds = (
        send_frame(code=320, batch=True, body=body, property_text=f"x\x01{'v' * size}") for size in (1_900, 2_000)
    )
    outcome = serve([fits, exceeds], together=False)
    assert outcome.responses.count(b'"code":0,') == outcome.responses.count(b'"code":13,') == 1
    assert b"more than 20000 bytes" in outcome.responses


def test_a_full_disk_refuses_each_send() -> None:
    frames = [send_frame(opaque) for opaque in range(5)]
    together, alone = outcomes([b"".join(frames)], room=600)
    assert together.responses.count(b'"code":14') == alone.responses.count(b'"code":14') > 0
