"""Fetch loop of one queue, against a scripted broker."""

from __future__ import annotations

import asyncio
import zlib

import lz4.frame
import pytest
import zstandard
from client_script import QUEUE, Script, fetch_context, instance, message, name_server, route

from ariane.client.consuming.group_options import GroupOptions
from ariane.client.consuming.offset_store import OffsetStore
from ariane.client.consuming.process_queue import ProcessQueue
from ariane.client.instance.settings import ConsumerSettings
from ariane.client.membership import fetcher as fetching
from ariane.client.membership.fetcher import run_fetch_loop
from ariane.errors import ConnectionLost, ProtocolError, RequestTimeout
from ariane.model import host
from ariane.protocol.codes import VERSION, RequestCode
from ariane.protocol.command import Command
from ariane.protocol.records import properties, record
from ariane.protocol.records.received_messages import is_unreadable
from ariane.protocol.requests.clients import SubscriptionData
from ariane.testing.clock import FakeClock

PULL = RequestCode.PULL_MESSAGE
HOST = host.pack("127.0.0.1", 10911)


def stored(offset: int, *, body: bytes = b"x", sys_flag: int = 0, topic: bytes = b"T", **table: str) -> bytes:
    return record.encode(
        topic, body, properties.encode(table).encode(), queue_id=0, queue_offset=offset, offset=offset * 100, born_ms=1,
        born_host=HOST, store_ms=2, store_host=HOST, sys_flag=sys_flag,
    )  # fmt: skip


def answer(code: int, next_offset: int, *records: bytes, broker_id: int = 0) -> Command:
    numbers = {"suggestWhichBrokerId": broker_id, "nextBeginOffset": next_offset, "minOffset": 0, "maxOffset": 9}
    return Command(code, fields={name: str(value) for name, value in numbers.items()}, body=b"".join(records))


class Play:
    """A fetch loop over scripted answers; it ends when they are used up."""

    def __init__(
        self, *answers, tags=frozenset(), orderly=False, settings=None, consumed=None, subscribed=True
    ) -> None:
        self.rest = list(answers)
        self.arrived: list[int] = []
        self.moved: list[int] = []
        self.refreshes: list[int] = []  # of the routes, after how many pulls
        self.clock = FakeClock(is_auto=True)
        self.peers = Script({RequestCode.GET_ROUTEINFO_BY_TOPIC: name_server({"T": route("a")}), PULL: self._answer})
        self.queue = ProcessQueue(QUEUE, 5)
        self.settings = settings or ConsumerSettings()
        self.subscription = SubscriptionData(topic="T", tags_set=tags, sub_version=77) if subscribed else None
        self.orderly = orderly
        self.offsets: OffsetStore
        self.consumed = consumed
        asyncio.run(self._run())

    def _answer(self, asked):
        item = self.rest.pop(0)
        if not self.rest:
            self.queue.revoke()
        if isinstance(item, Exception):
            raise item
        return item

    async def _run(self) -> None:
        client = instance(self.peers, self.clock)
        await client.routes.subscribe_queues("T")
        self.offsets = OffsetStore(self.peers, client.routes, "g", timeout_ms=3000)
        if self.consumed is not None:
            self.offsets.update(QUEUE, self.consumed)

        client.refresh_routes_soon = lambda: self.refreshes.append(len(self.asked))
        client.broker_version = lambda addr: VERSION  # known, so no heartbeat is needed to learn it
        context = fetch_context(
            client,
            options=GroupOptions(group="g", settings=self.settings, is_orderly=self.orderly),
            subscriptions={"T": self.subscription} if self.subscription else {},
            offsets=self.offsets,
            delivery=self,
        )
        async with asyncio.timeout(5):
            restart_at = await run_fetch_loop(self.queue, context)
        if restart_at is not None:
            self.moved.append(restart_at)

    def on_messages(self, process_queue, messages) -> None:
        self.arrived.extend(sent_message.queue_offset for sent_message in messages)

    @property
    def heartbeats(self) -> list[str]:
        return [request.addr for request in self.peers.of(RequestCode.HEART_BEAT)]

    @property
    def asked(self) -> list[int]:
        return [int(request.fields["queueOffset"]) for request in self.peers.of(PULL)]


END = answer(19, 99)


def test_the_next_pull_starts_after_the_received_messages():
    play = Play(answer(0, 7, stored(5), stored(6)), END)
    assert play.arrived == [5, 6]
    assert play.asked == [5, 7]


def test_the_pull_request_carries_offset_batch_size_and_subscription():
    play = Play(END)
    sent = play.peers.of(PULL)[0]
    assert sent.fields == {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "5",
        "maxMsgNums": "32",
        "sysFlag": "2",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subVersion": "77",
        "expressionType": "TAG",
    }
    assert sent.timeout_ms == 30_000


def test_a_pull_request_commits_the_consumed_offset():
    sent = Play(END, consumed=4).peers.of(PULL)[0]
    assert (sent.fields["sysFlag"], sent.fields["commitOffset"]) == ("3", "4")


def test_tags_are_compared_again_because_their_hashes_collide():
    # "Aa" and "BB" have the same Java hash
    play = Play(answer(0, 7, stored(5, TAGS="Aa"), stored(6, TAGS="BB")), END, tags=frozenset({"Aa"}))
    assert play.arrived == [5]


def test_skipped_messages_count_as_consumed():
    play = Play(answer(20, 8), answer(0, 10, stored(8, TAGS="x")), answer(19, 12), END, tags=frozenset({"A"}))
    assert play.asked == [5, 8, 10, 12]
    assert play.arrived == []
    assert play.offsets.consumed(QUEUE) == 12


def test_an_empty_pull_does_not_move_the_offset_past_pending_messages():
    play = Play(answer(0, 6, stored(5)), answer(19, 9), END)
    assert play.offsets.consumed(QUEUE) is None


def test_an_invalid_offset_restarts_the_queue_at_the_brokers_offset():
    play = Play(answer(21, 3), END)
    assert play.moved == [3]
    assert play.asked == [5]


@pytest.mark.parametrize("failure", [RequestTimeout("a:1", 30_000), ConnectionLost("a:1", "reset"), Command(1)])
def test_a_failed_pull_is_repeated_after_a_back_off(failure):
    play = Play(failure, failure, failure, END)
    assert play.asked == [5, 5, 5, 5]
    assert play.clock.elapsed_ms == pytest.approx(100 + 200 + 400)
    assert play.refreshes == ([] if isinstance(failure, Command) else [1, 2, 3]), "another broker may serve the queue"


@pytest.mark.parametrize("code", [24, 25, 26])
def test_a_broker_that_lost_the_group_gets_a_heartbeat(code):
    play = Play(Command(code, remark="who?"), END)
    assert play.heartbeats == ["a:1"]


def test_a_lagging_slave_is_not_pulled_in_a_busy_loop():
    play = Play(answer(20, 5), answer(20, 5), END)
    assert play.clock.elapsed_ms == 2000


def test_invalid_records_are_an_error_and_not_skipped():
    play = Play(answer(0, 7, stored(5), b"garbage"), END)
    assert play.arrived == []
    assert play.asked == [5, 5]


def test_an_orderly_queue_is_pulled_only_under_its_lock():
    play = Play.__new__(Play)
    play.__dict__.update(
        rest=[END], arrived=[], moved=[], heartbeats=[], clock=FakeClock(is_auto=True), orderly=True, consumed=None
    )
    play.peers = Script({RequestCode.GET_ROUTEINFO_BY_TOPIC: name_server({"T": route("a")}), PULL: play._answer})
    play.queue, play.settings = ProcessQueue(QUEUE, 5), ConsumerSettings()
    play.subscription = SubscriptionData(topic="T")
    slept = []

    async def sleep(seconds):
        slept.append(seconds)
        play.queue.set_locked(play.clock.monotonic())

    play.clock.sleep = sleep
    asyncio.run(play._run())
    assert slept == [1.0]
    assert play.asked == [5]
    assert play.clock.elapsed_ms == 0


def test_compressed_bodies_are_expanded():
    pulled = fetching.parse_pull_result(
        answer(0, 1, stored(0, body=zlib.compress(b"hello"), sys_flag=0x301)), QUEUE, frozenset()
    )
    assert pulled.messages[0].body == b"hello"
    assert not is_unreadable(pulled.messages[0])


@pytest.mark.parametrize(("body", "sys_flag"), [(b"broken", 0x301), (b"lz4", 0x101), (b"zstd", 0x201)])
def test_a_body_that_cannot_be_expanded_is_returned_as_stored_with_the_reason(body, sys_flag, caplog):
    pulled = fetching.parse_pull_result(
        answer(0, 1, stored(0, body=body, sys_flag=sys_flag, UNIQ_KEY="ID7")), QUEUE, frozenset()
    )
    (result,) = pulled.messages
    assert result.body == body
    assert is_unreadable(result)
    assert "body compressed with" in result.body_error
    assert f"Cannot read the body of message ID7 at offset 0 of {QUEUE}: {result.body_error}" in caplog.text


@pytest.mark.parametrize(("compress", "sys_flag"), [(lz4.frame.compress, 0x101), (zstandard.compress, 0x201)])
def test_bodies_of_5x_producers_are_read(compress, sys_flag):
    body = b"hello " * 5_000
    pulled = fetching.parse_pull_result(
        answer(0, 1, stored(0, body=compress(body), sys_flag=sys_flag)), QUEUE, frozenset()
    )
    (result,) = pulled.messages
    assert (result.body, result.sys_flag, result.body_error) == (body, 0, "")


def test_a_retried_message_has_its_original_topic_and_id():
    pulled = fetching.parse_pull_result(
        answer(0, 1, stored(0, topic=b"%RETRY%g", RETRY_TOPIC="orders", UNIQ_KEY="ID")), QUEUE, frozenset()
    )
    result = pulled.messages[0]
    assert (result.topic, result.message_id, result.queue) == ("orders", "ID", QUEUE)
    assert result.offset_message_id == "7F00000100002A9F0000000000000000"
    assert (result.born_host, result.store_ms) == ("127.0.0.1:10911", 2)


def test_a_response_without_required_fields_is_a_protocol_error():
    with pytest.raises(ProtocolError, match="suggestWhichBrokerId"):
        fetching.parse_pull_result(Command(0, fields={}), QUEUE, frozenset())


def test_a_full_queue_is_not_pulled_until_messages_are_consumed():
    async def play():
        queue = ProcessQueue(QUEUE, 0)
        queue.tracker.add([message(0), message(1)], 2)
        asked = 0

        def pull(_):
            nonlocal asked
            asked += 1
            queue.revoke()
            return END

        client = instance(Script({RequestCode.GET_ROUTEINFO_BY_TOPIC: name_server({"T": route("a")}), PULL: pull}))
        await client.routes.subscribe_queues("T")
        context = fetch_context(client, options=GroupOptions(group="g", settings=ConsumerSettings(cached_max=1)))
        task = asyncio.ensure_future(run_fetch_loop(queue, context))
        for _ in range(5):
            await asyncio.sleep(0)
        assert asked == 0
        queue.mark_consumed([message(0)])
        async with asyncio.timeout(5):
            await task
        assert asked == 1

    asyncio.run(play())
