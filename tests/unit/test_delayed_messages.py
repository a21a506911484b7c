"""Delayed messages for operators with scripted brokers: what is pending, and why a message cannot be cancelled."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import msgspec
import pytest

from ariane.cluster.admin import Admin
from ariane.cluster.messages.delayed_messages import DelayedFilter
from ariane.cluster.messages.message_query import is_offset_id
from ariane.errors import ArianeError, ConnectionLost, NotFound, ReplyError, ServerUnavailable
from ariane.model import host, ids
from ariane.model.message import COMPRESSED, REAL_QID, REAL_TOPIC, TIMER_OUT_MS, UNIQ_KEY
from ariane.model.topic import SCHEDULE_TOPIC, TIMER_TOPIC, TopicConfig
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import properties, record
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.admin import DelayOffsetTable
from ariane.protocol.requests.brokers import QueueEntries, QueueEntry
from ariane.protocol.requests.messaging import OffsetResponse, PullMessageResponse
from ariane.protocol.requests.routing import BrokerData, ClusterInfo, KvTableBody, TopicTable

MASTER = "127.0.0.1:10911"
NAMESRV = "127.0.0.1:9876"
STORED_MS = 1_000_000
FAR_MS = 4_000_000_000_000  # due long after any run of this test
KEY = "7F0000011A2B18B4AAC2000000000007"


def stored(
    topic: str, queue_id: int, number: int, key: str, due: str = "", *, body: bytes = b"x", sys_flag: int = 0
) -> bytes:
    table = {UNIQ_KEY: key, REAL_TOPIC: "orders", REAL_QID: "0"} | ({TIMER_OUT_MS: due} if due else {})
    return record.encode(
        topic.encode(), body, properties.encode(table).encode(), queue_id=queue_id, queue_offset=number,
        offset=number * 1000, born_ms=1, born_host=host.pack("127.0.0.1", 1), store_ms=STORED_MS,
        store_host=host.pack("127.0.0.1", 10911), sys_flag=sys_flag,
    )  # fmt: skip


class ScriptedBroker:
    """A name server and a master with messages of level 2 (5 s), and timers.

    Args:
        levels: Number of messages of the level; the first `delivered` are delivered.
        delivered: Position of the level.
        timers: Due times of the timers; None: the broker has no timer topic.
        cancelled: Numbers of cancelled timers.
        recall_code: Response code to RECALL_MESSAGE.
        body: Body of every message, as it is stored.
        sys_flag: Flags of every message.
        due_text: Due time in the properties of every timer; empty: that of its entry.
    """

    def __init__(
        self,
        *,
        levels: int = 0,
        delivered: int = 0,
        timers: list[int] | None = None,
        cancelled: tuple[int, ...] = (),
        recall_code: int = ResponseCode.SUCCESS,
        body: bytes = b"x",
        sys_flag: int = 0,
        due_text: str = "",
    ) -> None:
        self.levels, self.delivered, self.timers, self.cancelled = levels, delivered, timers, cancelled
        self.recall_code = recall_code
        self.body, self.sys_flag, self.due_text = body, sys_flag, due_text
        self.recalled: list[Any] = []
        self.is_down = False
        self.trace_route_code = ResponseCode.TOPIC_NOT_EXIST

    async def request(
        self, addr: str, code: int, header: Any = None, body: bytes = b"", *, timeout_ms: float = 0
    ) -> Command:
        if code == RequestCode.GET_BROKER_CLUSTER_INFO:
            broker = BrokerData({0: MASTER}, "b", "c")
            return self._answer(body=msgspec.json.encode(ClusterInfo({"b": broker}, {"c": ("b",)})))
        if self.is_down:
            raise ConnectionLost(addr, "refused")
        topic, queue_id = getattr(header, "topic", ""), getattr(header, "queue_id", 0)
        match code:
            case RequestCode.GET_BROKER_CONFIG:
                return self._answer(body=b"messageDelayLevel=1s 5s\n")
            case RequestCode.GET_ALL_DELAY_OFFSET:
                return self._answer(body=fastjson.write(DelayOffsetTable({2: self.delivered})))
            case RequestCode.GET_ALL_TOPIC_CONFIG:
                topics = {SCHEDULE_TOPIC} | ({TIMER_TOPIC} if self.timers is not None else set())
                table = TopicTable(topic_config_table={name: TopicConfig(topic_name=name) for name in topics})
                return self._answer(body=fastjson.write(table))
            case RequestCode.GET_BROKER_RUNTIME_INFO:
                return self._answer(body=fastjson.write(KvTableBody({"brokerVersionDesc": "V4_9_4"})))
            case RequestCode.GET_MIN_OFFSET:
                return self._answer(OffsetResponse(0))
            case RequestCode.GET_MAX_OFFSET:
                return self._answer(OffsetResponse(self._size(topic, queue_id)))
            case RequestCode.PULL_MESSAGE:
                stop = min(header.queue_offset + header.max_msg_nums, self.levels)
                records = [self._level(number) for number in range(header.queue_offset, stop)]
                return self._answer(PullMessageResponse(0, stop, 0, self.levels), b"".join(records))
            case RequestCode.QUERY_CONSUME_QUEUE:
                codes = self.cancelled if queue_id else (self.timers or ())
                entries = tuple(QueueEntry(physic_offset=n * 1000, tags_code=code) for n, code in enumerate(codes))
                return self._answer(body=fastjson.write(QueueEntries(queue_data=entries[header.index :])))
            case RequestCode.VIEW_MESSAGE_BY_ID:
                return self._answer(body=self._timer(header.offset // 1000))
            case RequestCode.QUERY_MESSAGE:
                return self._query(topic, header.key)
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return Command(self.trace_route_code, remark="no route")
            case RequestCode.RECALL_MESSAGE:
                self.recalled.append(header)
                return Command(self.recall_code, remark="unknown request code")
        raise AssertionError(f"unexpected request {code}")

    async def request_ok(self, addr: str, code: int, header: Any = None, body: bytes = b"", **options: Any) -> Command:
        answer = await self.request(addr, code, header, body, **options)
        if answer.code != ResponseCode.SUCCESS:
            raise ReplyError(answer.code, answer.remark, addr)
        return answer

    def _size(self, topic: str, queue_id: int) -> int:
        if topic == SCHEDULE_TOPIC:
            return self.levels if queue_id == 1 else 0
        return len(self.cancelled) if queue_id else len(self.timers or ())

    def _timer(self, number: int) -> bytes:
        due = self.due_text or str((self.timers or [])[number])
        return stored(TIMER_TOPIC, 0, number, f"T{number}", due, body=self.body, sys_flag=self.sys_flag)

    def _level(self, number: int) -> bytes:
        return stored(SCHEDULE_TOPIC, 1, number, f"L{number}", body=self.body, sys_flag=self.sys_flag)

    def _query(self, topic: str, key: str) -> Command:
        if topic == TIMER_TOPIC and self.timers and key[:1] == "T":
            return self._answer(body=self._timer(int(key[1:])))
        if topic == SCHEDULE_TOPIC and key[:1] == "L":
            return self._answer(body=self._level(int(key[1:])))
        return Command(ResponseCode.QUERY_NOT_FOUND)

    def _answer(self, header: Any = None, body: bytes = b"") -> Command:
        fields = {} if header is None else encode_header(header)
        return Command(ResponseCode.SUCCESS, fields=fields, body=body)


def admin_of(broker: ScriptedBroker, *, is_dry_run: bool = False) -> Admin:
    return Admin(NAMESRV, peers=broker, is_dry_run=is_dry_run)  # type: ignore[arg-type]


def keys(broker: ScriptedBroker, selection: DelayedFilter | None = None, limit: int = 100) -> tuple[list[str], bool]:
    found = asyncio.run(admin_of(broker).list_delayed(selection, limit=limit))
    assert found.unavailable == ()
    return [delayed.message.message_id for delayed in found.messages], found.is_truncated


def test_messages_of_a_level_are_pending_from_its_position_on() -> None:
    broker = ScriptedBroker(levels=40, delivered=2)
    pending, is_truncated = keys(broker)
    assert (sorted(pending), is_truncated) == (sorted(f"L{number}" for number in range(2, 40)), False)
    (first, *_) = asyncio.run(admin_of(broker).list_delayed()).messages
    assert (first.due_ms, first.level, first.topic) == (STORED_MS + 5_000, 2, "orders")


def test_timers_are_pending_unless_they_are_due_or_cancelled() -> None:
    broker = ScriptedBroker(timers=[FAR_MS + 3, 1_000_000_000_001, FAR_MS + 1, FAR_MS + 2], cancelled=(3,))
    assert keys(broker) == (["T2", "T0"], False)
    assert keys(broker, DelayedFilter(due_until_ms=FAR_MS + 1)) == (["T2"], False)
    assert keys(broker, DelayedFilter(topic="other")) == ([], False)
    assert keys(broker, limit=1) == (["T2"], True)


def test_a_list_has_no_bodies_and_keeps_the_first_due_of_each_limit() -> None:
    broker = ScriptedBroker(levels=40, timers=[FAR_MS], body=zlib.compress(bytes(100_000)), sys_flag=COMPRESSED)
    found = asyncio.run(admin_of(broker).list_delayed(limit=3))
    assert (len(found.messages), found.is_truncated) == (3, True)
    everything = asyncio.run(admin_of(broker).list_delayed()).messages
    assert len(everything) == 41
    assert {(delayed.message.body, delayed.message.sys_flag) for delayed in everything} == {(b"", 0)}
    assert all(delayed.message.stored_size > len(broker.body) for delayed in everything)
    single = asyncio.run(admin_of(broker).find_delayed("T0")).message
    assert (single.body, single.body_error) == (bytes(100_000), "")


@pytest.mark.parametrize("due", ["²", "9" * 4301])
def test_a_message_in_the_timer_topic_without_a_readable_due_time_is_not_pending(due: str) -> None:
    broker = ScriptedBroker(timers=[FAR_MS], due_text=due)
    with pytest.raises(NotFound, match="no pending delayed message T0"):
        asyncio.run(admin_of(broker).find_delayed("T0"))


def test_a_broker_without_timers_is_not_asked_for_their_queue() -> None:
    assert keys(ScriptedBroker(levels=1)) == (["L0"], False)


def test_timers_without_due_times_are_reported_instead_of_omitted() -> None:
    found = asyncio.run(admin_of(ScriptedBroker(timers=[FAR_MS, 2_598_919])).list_delayed())
    assert found.messages == []
    assert "without due times (Apache 5.x)" in found.unavailable[0].reason


def test_a_broker_that_does_not_respond_is_part_of_the_result() -> None:
    broker = ScriptedBroker(levels=1)
    broker.is_down = True
    found = asyncio.run(admin_of(broker).list_delayed())
    assert (found.messages, [missing.addr for missing in found.unavailable]) == ([], [MASTER])
    with pytest.raises(ServerUnavailable, match="without a response: b 127"):
        asyncio.run(admin_of(broker).find_delayed("T0"))


def test_a_timer_is_cancelled_by_the_handle_that_5x_brokers_understand_too() -> None:
    broker = ScriptedBroker(timers=[FAR_MS])
    asyncio.run(admin_of(broker, is_dry_run=True).cancel_delayed("T0"))
    assert broker.recalled == []
    asyncio.run(admin_of(broker).cancel_delayed("T0"))
    assert [header.recall_handle for header in broker.recalled] == [ids.recall_handle("orders", "b", FAR_MS, "T0")]
    assert broker.recalled[0].topic == "orders"


def test_a_cancellation_that_cannot_be_traced_is_reported() -> None:
    for code, notes in (
        (ResponseCode.TOPIC_NOT_EXIST, 0),  # a cluster without traces
        (ResponseCode.SYSTEM_BUSY, 1),
    ):
        broker = ScriptedBroker(timers=[FAR_MS])
        broker.trace_route_code = code
        admin = admin_of(broker)
        assert asyncio.run(admin.cancel_delayed("T0")).topic == "orders"
        assert [note.startswith("Could not trace the cancellation of T0: ") for note in admin.notes] == [True] * notes


def test_a_broker_without_recall_is_named_with_its_version() -> None:
    broker = ScriptedBroker(timers=[FAR_MS], recall_code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    with pytest.raises(
        ArianeError, match=r"b 127.0.0.1:10911 runs V4_9_4, which does not support RECALL_MESSAGE \(370\)"
    ):
        asyncio.run(admin_of(broker).cancel_delayed("T0"))


def test_a_message_of_a_level_cannot_be_cancelled() -> None:
    broker = ScriptedBroker(levels=2, delivered=1)
    with pytest.raises(ArianeError, match=r"delay level 2 and cannot be cancelled.*V4_9_4"):
        asyncio.run(admin_of(broker).cancel_delayed("L1"))
    with pytest.raises(NotFound, match="no pending delayed message L0"):  # delivered
        asyncio.run(admin_of(broker).cancel_delayed("L0"))


@pytest.mark.parametrize(
    ("message_id", "expected"),
    [
        (ids.offset_message_id(host.pack("10.0.0.5", 10911), 4711), True),
        (ids.offset_message_id(host.pack("2001:db8::1", 10911), 4711), True),
        (KEY, False),
        ("20010DB8000000000000000000000001" + KEY[8:], False),  # unique key of a client with an IPv6 address
        ("ORDER-17", False),
    ],
)
def test_offset_ids_differ_from_unique_keys_by_their_port(message_id: str, expected: bool) -> None:
    assert is_offset_id(message_id) is expected
