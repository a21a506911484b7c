"""Consumer: loops over messages, what settles a message, and what becomes of it, in virtual time and without a broker."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager, suppress
from typing import NamedTuple

import pytest
from client_script import QUEUE, delivery_services, message

from ariane.client.consumer import Consumer, ConsumerLoop, _Batches, _Messages
from ariane.client.consuming.group_options import Assignment
from ariane.client.consuming.process_queue import ProcessQueue
from ariane.client.delivery.iterator_delivery import IteratorDelivery
from ariane.client.delivery.send_back import RetryLocally
from ariane.client.instance.hooks import ConsumeFinished, ConsumeReturn, ConsumeStarted
from ariane.client.instance.settings import ConsumerSettings
from ariane.errors import ClientClosed, ConfigError
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.testing.virtual.virtual_time import VirtualClock, VirtualLoop

OTHER = MessageQueue("T", "a", 1)


class SentBack(NamedTuple):
    """A message that was sent back, when, and at which level; `copy` for one to the retry topic."""

    offset: int
    level: int | str
    at: float


class Broker:
    """A send-back strategy that records; `accepts` is its answer, `takes_s` its duration."""

    def __init__(self) -> None:
        self.sent_back: list[SentBack] = []
        self.accepts = True
        self.takes_s = 0.0

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        return await self._record(message, delay_level)

    async def send_copy(self, message: ReceivedMessage) -> bool:
        return await self._record(message, "copy")

    async def _record(self, message: ReceivedMessage, level: int | str) -> bool:
        await asyncio.sleep(self.takes_s)
        self.sent_back.append(SentBack(message.queue_offset, level, asyncio.get_running_loop().time()))
        return self.accepts


class Stage:
    """A consumer's delivery in virtual time, with one queue of messages 0 … 4; `play` runs a test in it."""

    def __init__(self, *, hooks=(), orderly: bool = False, assignment=Assignment.SHARED, **settings) -> None:
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.broker = Broker()
        self.paused: set[MessageQueue] = set()
        self.events: list[ConsumeStarted | ConsumeFinished] = []
        self.spans: list[str] = []
        self.settings = ConsumerSettings(**settings)
        self.services = delivery_services(
            self.clock,
            hooks=[self.events.append, *hooks],
            send_back=self.broker,
            is_orderly=orderly,
            assignment=assignment,
            settings=self.settings,
        )

    def play(self, act) -> Stage:
        async def run() -> None:
            self.delivery = IteratorDelivery(self.services, self.paused.__contains__)
            self.delivery.start()
            self.queue = self.fill(QUEUE)
            before = asyncio.all_tasks()
            await act(self)
            self.delivery.stop(gives_up=True)
            await self.delivery.close(0)
            assert asyncio.all_tasks() - before == set(), "a task outlived its consumer"

        try:
            self.loop.run_until_complete(run())
        finally:
            self.loop.close()
        return self

    def fill(self, queue: MessageQueue, messages: list[ReceivedMessage] | None = None) -> ProcessQueue:
        process_queue = ProcessQueue(queue, 0)
        process_queue.set_locked(self.clock.monotonic() + 1e9)
        fetched = messages or [message(offset, queue=queue) for offset in range(5)]
        process_queue.tracker.add(fetched, fetched[-1].queue_offset + 1)
        self.delivery.on_messages(process_queue, fetched)
        return process_queue

    def messages(self, *, auto: bool = True):
        return _Messages(self._loop(1, 0, auto))

    def batches(self, count: int, linger_s: float = 0, *, auto: bool = True):
        return _Batches(self._loop(count, linger_s, auto))

    def _loop(self, count: int, linger_s: float, auto: bool) -> ConsumerLoop:
        return ConsumerLoop(self.delivery, self, "g", count, linger_s, acknowledge=auto)

    @contextmanager
    def processing(self, group, messages):
        self.spans.append(f"open {[item.queue_offset for item in messages]}")
        yield
        self.spans.append("closed")

    @property
    def offset(self) -> int | None:
        return self.services.offsets.consumed(QUEUE)

    @property
    def outcomes(self) -> list[tuple[int, ConsumeReturn]]:
        return [
            (event.started.messages[0].queue_offset, event.outcome)
            for event in self.events
            if isinstance(event, ConsumeFinished)
        ]


def test_asking_for_the_next_message_acknowledges_the_last_one():
    async def act(stage):
        seen = []
        async for item in stage.messages():
            assert stage.offset == (item.queue_offset or None)
            seen.append((item.queue_offset, item.attempt, item.is_pending))
            if item.queue_offset == 4:
                stage.delivery.stop()
        assert seen == [(offset, 1, True) for offset in range(5)]

    stage = Stage().play(act)
    assert stage.offset == 5
    assert stage.outcomes == [(offset, ConsumeReturn.SUCCESS) for offset in range(5)]
    assert stage.broker.sent_back == []
    assert stage.spans == [text for offset in range(5) for text in (f"open [{offset}]", "closed")]


def test_an_exception_that_leaves_the_loop_sends_its_message_back():
    async def act(stage):
        with suppress(ValueError):
            async for item in stage.messages():
                if item.queue_offset == 1:
                    raise ValueError
        await asyncio.sleep(1)
        assert stage.broker.sent_back == [SentBack(1, 0, 0)]
        async for item in stage.messages():  # another loop continues
            assert item.queue_offset == 2
            await item.ack()
            break
        assert stage.offset == 3

    stage = Stage().play(act)
    assert stage.spans == ["open [0]", "closed", "open [1]", "closed", "open [2]", "closed"]
    assert stage.outcomes == [(0, ConsumeReturn.SUCCESS), (1, ConsumeReturn.FAILED), (2, ConsumeReturn.SUCCESS)]


def test_a_closing_consumer_leaves_the_message_of_an_ended_loop_to_the_next_owner():
    async def act(stage):
        async for _ in stage.messages():
            break
        stage.delivery.stop(gives_up=True)  # what leaving `async with` does
        await stage.delivery.close(10)
        assert stage.loop.time() == 0

    stage = Stage().play(act)
    assert stage.broker.sent_back == []
    assert stage.offset is None
    assert stage.outcomes == [(0, ConsumeReturn.FAILED)]


def test_a_consumer_that_an_exception_closes_sends_the_message_back():
    async def act(stage):
        stage.broker.takes_s = 2
        with suppress(ValueError):
            async for _ in stage.messages():
                raise ValueError
        stage.delivery.stop()
        await stage.delivery.close(10)

    stage = Stage().play(act)
    assert stage.broker.sent_back == [SentBack(0, 0, 2)]
    assert stage.offset == 1


def test_messages_are_settled_one_by_one_and_the_offset_follows_the_first_pending_one():
    async def act(stage):
        received = []
        async for item in stage.messages(auto=False):
            received.append(item)
            if len(received) == 5:
                break
        zero, one, two, three, four = received
        await one.ack()
        assert stage.offset == 0
        await zero.retry(delay_level=2)
        assert stage.offset == 2
        await four.ack()
        await two.reject()
        assert stage.offset == 3
        await three.ack()
        assert stage.offset == 5
        assert not three.is_pending

    stage = Stage().play(act)
    assert stage.broker.sent_back == [SentBack(0, 2, 0), SentBack(2, -1, 0)]
    assert dict(stage.outcomes) == dict.fromkeys((1, 3, 4), ConsumeReturn.SUCCESS) | dict.fromkeys(
        (0, 2), ConsumeReturn.FAILED
    )


def test_repeated_settlements_are_harmless_and_logged(caplog):
    async def act(stage):
        async for item in stage.messages(auto=False):
            await item.ack()
            await item.retry()
            await item.reject()
            break

    with caplog.at_level(logging.WARNING):
        stage = Stage().play(act)
    assert (stage.offset, stage.broker.sent_back) == (1, [])
    assert len([line for line in caplog.messages if "it was acknowledged before" in line]) == 2
    assert "message ID0 (keys -, offset 0 of T at a:0, attempt 1)" in caplog.text


@pytest.mark.parametrize("level", [-1, -2, 19, True, "3"])
def test_a_wrong_delay_level_is_refused_and_settles_nothing(level):
    async def act(stage):
        async for item in stage.messages(auto=False):
            with pytest.raises(ConfigError, match="delay_level"):
                await item.retry(delay_level=level)
            assert item.is_pending
            break

    Stage().play(act)


def test_a_message_of_a_revoked_queue_does_not_count(caplog):
    async def act(stage):
        async for item in stage.messages(auto=False):
            await stage.delivery.on_revoked(stage.queue)
            await item.ack()
            break
        assert len(stage.delivery.fetched) == 0

    stage = Stage().play(act)
    assert stage.offset is None
    assert "does not count: its queue was revoked" in caplog.text


@pytest.mark.parametrize("ends", ["never", "late"])
def test_a_message_that_is_not_settled_in_time_is_sent_back(ends, caplog):
    async def act(stage):
        async for item in stage.messages(auto=False):
            await asyncio.sleep(59.9)
            assert stage.broker.sent_back == []
            await asyncio.sleep(0.2)
            assert stage.broker.sent_back == [SentBack(0, 0, 60)]
            if ends == "late":
                await item.ack()
            break
        assert stage.offset == 1

    stage = Stage(consume_timeout=60).play(act)
    assert stage.outcomes == [(0, ConsumeReturn.TIME_OUT)]
    assert ("it was timed out before" in caplog.text) == (ends == "late")


def test_deadlines_are_those_of_each_message():
    async def act(stage):
        taken = []
        async for item in stage.messages(auto=False):
            taken.append(item)
            await asyncio.sleep(20)
            if len(taken) == 3:
                break
        await taken[1].ack()
        await asyncio.sleep(60)

    stage = Stage(consume_timeout=60).play(act)
    assert stage.broker.sent_back == [SentBack(0, 0, 60), SentBack(2, 0, 100)]


def test_a_message_that_no_broker_accepts_is_delivered_again_after_a_pause():
    async def act(stage):
        stage.broker.accepts = False
        seen = []
        async for item in stage.messages(auto=False):
            seen.append((item.queue_offset, item.attempt, stage.loop.time()))
            if item.queue_offset == 0 and item.attempt == 1:
                await item.retry()
            else:
                await item.ack()
            if len(seen) == 6:
                break
        assert seen[0] == (0, 1, 0)
        assert seen[5] == (0, 2, 5)
        assert stage.offset == 5

    Stage(local_retry_delay=5).play(act)


def test_assigned_queues_are_retried_by_the_client_and_end_as_dead_letters():
    async def play():
        broker = Broker()
        local = RetryLocally(broker, 2)
        assert not await local.send_back(message(0, reconsume_times=1), 3)
        assert broker.sent_back == []
        assert await local.send_back(message(0, reconsume_times=2), 3)
        assert await local.send_back(message(1), -1)
        assert await local.send_copy(message(2))
        assert [(item.offset, item.level) for item in broker.sent_back] == [(0, -1), (1, -1), (2, -1)]

    asyncio.run(play())


def test_loops_share_the_messages_and_acknowledge_their_own():
    async def act(stage):
        seen = {}

        async def loop(number, pause_s):
            async for item in stage.messages():
                seen[item.queue_offset] = number
                await asyncio.sleep(pause_s)

        loops = [asyncio.ensure_future(loop(0, 1)), asyncio.ensure_future(loop(1, 10))]
        await asyncio.sleep(5)
        assert seen == {0: 0, 1: 1, 2: 0, 3: 0, 4: 0}
        assert stage.offset == 1  # 1 is still in its loop
        stage.delivery.stop()
        await stage.delivery.close(30)
        await asyncio.wait(loops)
        assert stage.loop.time() == 10
        assert [task.exception() for task in loops] == [None, None]

    assert Stage().play(act).offset == 5


def test_closing_waits_for_unacknowledged_messages_up_to_its_timeout(caplog):
    async def act(stage):
        async for item in stage.messages(auto=False):
            if item.queue_offset == 0:
                continue
            break
        await asyncio.sleep(1)
        await stage.delivery.close(7)
        assert stage.loop.time() == 8
        await item.ack()

    stage = Stage().play(act)
    assert stage.offset is None
    assert "2 messages of group g were not acknowledged within 7.0 s of closing" in caplog.text
    assert "it was left when its consumer closed before" in caplog.text
    assert stage.outcomes == [(0, ConsumeReturn.FAILED), (1, ConsumeReturn.FAILED)]


def test_a_cancelled_loop_loses_and_commits_nothing():
    async def act(stage):
        async def loop():
            async for _ in stage.messages():
                pass

        task = asyncio.ensure_future(loop())
        await asyncio.sleep(1)
        assert stage.offset == 5
        task.cancel()
        await asyncio.wait([task])
        stage.queue.tracker.add([message(5)], 6)
        stage.delivery.on_messages(stage.queue, [message(5)])
        async for item in stage.messages():
            assert item.queue_offset == 5
            break

    assert Stage().play(act).offset == 5


def test_a_message_taken_by_a_loop_that_is_cancelled_during_a_hook_is_put_back():
    async def act(stage):
        task = asyncio.ensure_future(anext(stage.messages()))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        assert stage.delivery.fetched.position(stage.queue) == 0
        assert stage.broker.sent_back == []

    async def slow(event):
        if isinstance(event, ConsumeStarted):
            await asyncio.sleep(10)

    stage = Stage(hooks=[slow]).play(act)
    assert stage.outcomes == [(0, ConsumeReturn.FAILED)]


def test_a_message_whose_queue_is_revoked_during_a_hook_is_not_delivered():
    async def act(stage):
        with suppress(TimeoutError):
            async with asyncio.timeout(30):
                async for _ in stage.messages():
                    raise AssertionError("delivered")

    async def slow(event):
        if isinstance(event, ConsumeStarted):
            await stage.delivery.on_revoked(stage.queue)

    stage = Stage(hooks=[slow])
    assert stage.play(act).outcomes == [(0, ConsumeReturn.FAILED)]


def test_a_cancelled_retry_delivers_the_message_again():
    async def act(stage):
        stage.broker.takes_s = 100
        async for item in stage.messages(auto=False):
            retrying = asyncio.ensure_future(item.retry())
            await asyncio.sleep(1)
            retrying.cancel()
            await asyncio.wait([retrying])
            break
        await asyncio.sleep(5)
        assert stage.delivery.fetched.position(stage.queue) == 0
        assert stage.offset is None

    Stage(local_retry_delay=5).play(act)


def test_batches_come_from_all_queues_and_are_acknowledged_together():
    async def act(stage):
        stage.fill(OTHER)
        sizes = []
        async for batch in stage.batches(7):
            assert stage.offset in (None, 5)
            sizes.append(len(batch))
            if len(sizes) == 2:
                stage.delivery.stop()
        assert sizes == [7, 3]

    stage = Stage().play(act)
    assert (stage.offset, stage.services.offsets.consumed(OTHER)) == (5, 5)


def test_a_batch_waits_for_more_messages_after_its_first():
    async def act(stage):
        async def later():
            await asyncio.sleep(3)
            stage.queue.tracker.add([message(5), message(6)], 7)
            stage.delivery.on_messages(stage.queue, [message(5), message(6)])

        filling = asyncio.ensure_future(later())
        batches = stage.batches(6, 10)
        assert [item.queue_offset for item in await anext(batches)] == [0, 1, 2, 3, 4, 5]
        assert stage.loop.time() == 3
        assert [item.queue_offset for item in await anext(batches)] == [6]
        assert stage.loop.time() == 13
        await filling

    Stage().play(act)


def test_a_paused_queue_is_passed_over():
    async def act(stage):
        stage.fill(OTHER)
        stage.paused.add(QUEUE)
        async for item in stage.messages():
            assert item.queue == OTHER
            if item.queue_offset == 4:
                break

    Stage().play(act)


def test_the_rate_is_limited_over_all_loops():
    async def act(stage):
        times = []

        async def loop():
            async for _ in stage.messages():
                times.append(stage.loop.time())

        loops = [asyncio.ensure_future(loop()) for _ in range(2)]
        await asyncio.sleep(10)
        stage.delivery.stop()
        await asyncio.wait(loops)
        assert times == pytest.approx([0, 0.5, 1, 1.5, 2])

    Stage(rate_max=2).play(act)


def test_unreadable_messages_become_dead_letters_without_being_delivered():
    async def act(stage):
        unreadable = message(1, queue=OTHER, sys_flag=0x101, body_error="the body compressed with LZ4 is broken")
        stage.paused.add(QUEUE)
        stage.fill(OTHER, [message(0, queue=OTHER), unreadable, message(2, queue=OTHER)])
        seen = []
        async for item in stage.messages():
            seen.append(item.queue_offset)
            if item.queue_offset == 2:
                stage.delivery.stop()
        assert seen == [0, 2]

    stage = Stage().play(act)
    assert stage.broker.sent_back == [SentBack(1, -1, 0)]
    assert stage.services.offsets.consumed(OTHER) == 3
    assert [offset for offset, _ in stage.outcomes] == [0, 2]


# --- orderly ---


def test_an_orderly_queue_has_one_message_at_a_time():
    async def act(stage):
        first = await anext(stage.messages(auto=False))
        waiting = asyncio.ensure_future(anext(stage.messages(auto=False)))
        await asyncio.sleep(5)
        assert not waiting.done()
        stage.fill(OTHER)
        await asyncio.sleep(0.1)
        assert (await waiting).queue == OTHER
        waiting = asyncio.ensure_future(anext(stage.messages(auto=False)))
        await first.ack()
        assert ((await waiting).queue, (await waiting).queue_offset) == (QUEUE, 1)

    Stage(orderly=True).play(act)


def test_a_failed_orderly_message_repeats_after_a_pause_before_the_next_one():
    async def act(stage):
        seen = []
        async for item in stage.messages(auto=False):
            seen.append((item.queue_offset, item.attempt, stage.loop.time()))
            if item.queue_offset == 1 and item.attempt < 3:
                await item.retry()
            else:
                await item.ack()
            if len(seen) == 5:
                break
        assert seen == [(0, 1, 0), (1, 1, 0), (1, 2, 2), (1, 3, 4), (2, 1, 4)]

    stage = Stage(orderly=True, suspend_queue_time=2).play(act)
    assert stage.broker.sent_back == []


def test_an_orderly_message_is_sent_to_the_retry_topic_after_its_last_attempt():
    async def act(stage):
        async for item in stage.messages(auto=False):
            if item.queue_offset:
                break
            await item.retry()
        assert stage.offset == 1

    stage = Stage(orderly=True, max_reconsume_times=1, suspend_queue_time=1).play(act)
    assert stage.broker.sent_back == [SentBack(0, "copy", 1)]


def test_an_orderly_queue_without_its_lock_is_not_delivered_and_not_acknowledged():
    async def act(stage):
        item = await anext(stage.messages(auto=False))
        stage.queue.locked_until = stage.clock.monotonic()
        await item.ack()
        assert stage.offset is None
        waiting = asyncio.ensure_future(anext(stage.messages(auto=False)))
        await asyncio.sleep(5)
        assert not waiting.done()
        stage.queue.set_locked(stage.clock.monotonic())
        again = await waiting
        assert (again.queue_offset, again.attempt) == (0, 2)

    Stage(orderly=True).play(act)


def test_a_revoked_orderly_queue_is_dropped_when_its_message_is_settled():
    async def act(stage):
        item = await anext(stage.messages(auto=False))
        revoking = asyncio.ensure_future(stage.delivery.on_revoked(stage.queue))
        await asyncio.sleep(100)
        assert not revoking.done()
        await item.ack()
        await revoking
        assert stage.loop.time() == 100
        assert stage.queue.is_dropped

    assert Stage(orderly=True).play(act).offset == 1


def test_an_orderly_batch_has_one_message_of_each_queue():
    async def act(stage):
        stage.fill(OTHER)
        batch = await anext(stage.batches(10))
        assert sorted((item.queue.queue_id, item.queue_offset) for item in batch) == [(0, 0), (1, 0)]

    Stage(orderly=True).play(act)


# --- constructor ---


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"ack": "later"}, "expected 'auto' or 'manual'"),
        ({"subscriptions": {}}, "no topic"),
        ({"orderly": 1}, "expected bool"),
        ({"settings": ConsumerSettings(message_model="broadcasting")}, "without subscriptions"),
        (
            {"subscriptions": {"T": "*"}, "settings": ConsumerSettings(message_model="broadcasting")},
            "finds its offsets file by this name",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments, said):
    with pytest.raises(ConfigError) as caught:
        Consumer("127.0.0.1:1", "g", **arguments)
    assert said in str(caught.value)


def test_a_consumer_that_is_not_open_has_no_messages():
    async def play():
        consumer = Consumer("127.0.0.1:1", "g", {"T": "*"})
        consumer.stop()
        with pytest.raises(ClientClosed):
            aiter(consumer)
        with pytest.raises(ClientClosed):
            consumer.batches()
        with pytest.raises(ConfigError, match="max_messages"):
            consumer.batches(0)

    asyncio.run(play())
