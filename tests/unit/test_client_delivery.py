"""Outcome of listener calls and its effect on the messages, in concurrent and orderly delivery."""

from __future__ import annotations

import asyncio
import threading

import pytest
from client_script import QUEUE, PausingClock, Script, instance, invoker, message, name_server, route

from ariane.client.consuming.offset_store import OffsetStore
from ariane.client.consuming.process_queue import ProcessQueue
from ariane.client.delivery.concurrent_delivery import ConcurrentDelivery
from ariane.client.delivery.listener_invoker import ReconsumeLater
from ariane.client.delivery.orderly_delivery import OrderlyDelivery
from ariane.client.delivery.send_back import SendBack
from ariane.client.instance.hooks import ConsumeFinished, ConsumeReturn, ConsumeStarted
from ariane.client.instance.settings import ConsumerSettings, ProducerSettings
from ariane.client.sending.sender import MessageSender
from ariane.errors import ConnectionLost
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.records import properties
from ariane.testing.clock import FakeClock
from ariane.testing.virtual.virtual_time import VirtualClock, VirtualLoop

BACK, SEND = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2


def outcome_of(listener, *, hooks=(), timeout_ms=60_000):
    async def play():
        listening = invoker(listener, hooks, consume_timeout=timeout_ms / 1000, concurrency=2)
        try:
            return await listening.invoke(QUEUE, [message(0), message(1)])
        finally:
            listening.close()

    return asyncio.run(play())


async def good(messages) -> None:
    pass


async def bad(messages) -> None:
    raise ValueError("no")


async def later(messages) -> None:
    raise ReconsumeLater("busy", delay_level=4)


async def endless(messages) -> None:
    await asyncio.Event().wait()


async def cancelled_inside(messages) -> None:
    raise asyncio.CancelledError


async def own_timeout(messages) -> None:
    raise TimeoutError("a database's, not ours")


@pytest.mark.parametrize(
    ("listener", "kind", "level"),
    [
        (good, ConsumeReturn.SUCCESS, 0),
        (bad, ConsumeReturn.EXCEPTION, 0),
        (later, ConsumeReturn.FAILED, 4),
        (cancelled_inside, ConsumeReturn.EXCEPTION, 0),
        (own_timeout, ConsumeReturn.EXCEPTION, 0),
    ],
)
def test_the_outcome_of_a_call_follows_from_how_it_ends(listener, kind, level):
    assert outcome_of(listener)[:2] == (kind, level)


def test_a_call_that_takes_too_long_is_cancelled():
    assert outcome_of(endless, timeout_ms=1).status is ConsumeReturn.TIME_OUT


def test_a_listener_that_waits_sees_results_and_errors_of_what_it_awaits():
    seen = []

    async def listener(messages) -> None:
        await asyncio.sleep(0)
        failing = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(failing.set_exception, ValueError("inner"))
        try:
            await failing
        except ValueError as error:
            seen.append(str(error))
        seen.append(await asyncio.sleep(0.001, "result"))

    assert outcome_of(listener).is_success
    assert seen == ["inner", "result"]


def test_a_cancelled_call_ends_the_listener_that_waits():
    ended = []

    async def listener(messages) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    async def play():
        call = asyncio.ensure_future(invoker(listener, consume_timeout=60).invoke(QUEUE, [message(0)]))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(play())
    assert ended == [True]


@pytest.mark.parametrize("pause_at", range(6))
def test_the_recorded_interval_of_a_call_contains_it_despite_process_pauses(pause_at):
    clock, events, called = PausingClock(pause_at), [], []

    async def listener(messages) -> None:
        called.append(clock.time_ms)
        clock.advance_ms(3.2)
        called.append(clock.time_ms)

    async def play():
        listening = invoker(listener, (events.append,), clock=clock, consume_timeout=1)
        await listening.invoke(QUEUE, [message(0)])

    asyncio.run(play())
    (before, after), (began, ended) = events, called
    assert before.started_ms <= began
    assert ended < after.ended_ms + 1
    assert after.ended_ms - after.cost_ms < began + 1, "the end less the cost is not after the beginning"


def test_a_plain_function_runs_in_a_thread():
    seen = []
    assert outcome_of(lambda messages: seen.append(threading.current_thread())).is_success
    assert seen[0] is not threading.main_thread()


def test_a_call_pending_for_a_thread_does_not_time_out():
    released = threading.Event()
    called = []

    def listener(messages):
        called.append(messages[0].queue_offset)
        if messages[0].queue_offset == 0:
            assert released.wait(30)

    async def play():
        listening = invoker(listener, consume_timeout=0.02)
        try:
            first = asyncio.ensure_future(listening.invoke(QUEUE, [message(0)]))
            second = asyncio.ensure_future(listening.invoke(QUEUE, [message(1)]))
            assert (await first).status is ConsumeReturn.TIME_OUT
            done, _ = await asyncio.wait([second], timeout=0.1)
            assert not done and called == [0]
            released.set()
            assert (await second).is_success
            assert called == [0, 1]
        finally:
            released.set()
            listening.close()

    asyncio.run(play())


def test_an_object_with_an_async_call_runs_in_the_loop():
    class Listener:
        async def __call__(self, messages) -> None:
            assert threading.current_thread() is threading.main_thread()

    assert outcome_of(Listener()).is_success


def test_hooks_see_before_and_after_with_one_request_id():
    reported = []
    outcome_of(bad, hooks=(reported.append,))
    before, after = reported
    assert isinstance(before, ConsumeStarted)
    assert isinstance(after, ConsumeFinished)
    assert after.started is before
    assert after.outcome is ConsumeReturn.EXCEPTION
    assert [sent_message.queue_offset for sent_message in before.messages] == [0, 1]


class Stage:
    """Listeners over one queue with messages 0 … 4, and a broker that is a script."""

    def __init__(self, kind, listener, *, back=0, copy=0, times_max=16, **settings) -> None:
        self.clock = FakeClock(is_auto=True)
        answers = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: name_server({"T": route("a"), "%RETRY%g": route("a", queues=1)}),
            BACK: self._answer(back, {}),
            SEND: self._answer(copy, {"msgId": "O", "queueId": "0", "queueOffset": "0"}),
        }
        self.peers = Script(answers)
        self.settings = ConsumerSettings(max_reconsume_times=times_max, **settings)
        self.kind, self.listener = kind, listener
        self.queue = ProcessQueue(QUEUE, 0)

    @staticmethod
    def _answer(code, table):
        def answer(asked):
            if isinstance(code, Exception):
                raise code
            return Command(code, fields=table)

        return answer

    def play(self, until, messages=None) -> Stage:
        async def run():
            client = instance(self.peers, self.clock)
            await client.routes.subscribe_queues("T")
            self.offsets = OffsetStore(self.peers, client.routes, "g", timeout_ms=1)
            listening = invoker(self.listener, clock=self.clock)
            sender = MessageSender(client, "CLIENT_INNER_PRODUCER", ProducerSettings())
            back = SendBack(self.peers, client.routes, sender, "g", max(self.settings.max_reconsume_times, 0))
            listeners = self.kind(listening, self.offsets, back, self.settings, self.clock)
            listeners.start()
            self.queue.set_locked(self.clock.monotonic() + 1e9)
            listeners.on_assigned(self.queue)
            pulled = messages or [message(offset) for offset in range(5)]
            self.queue.tracker.add(pulled, pulled[-1].queue_offset + 1)
            listeners.on_messages(self.queue, pulled)
            self.listeners = listeners
            try:
                async with asyncio.timeout(5):
                    while not until(self):
                        await asyncio.sleep(0)
            finally:
                await listeners.close(0)

        asyncio.run(run())
        return self

    @property
    def offset(self):
        return self.offsets.consumed(QUEUE)


def all_done(stage: Stage) -> bool:
    return len(stage.queue.tracker) == 0


KINDS = [ConcurrentDelivery, OrderlyDelivery]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 10])
def test_every_message_reaches_the_listener_and_the_offset_follows(kind, size):
    calls = []

    async def listener(messages):
        calls.append([sent_message.queue_offset for sent_message in messages])

    stage = Stage(kind, listener, consume_batch_max=size).play(all_done)
    assert stage.offset == 5
    assert [offset for call in calls for offset in call] == [0, 1, 2, 3, 4]
    assert max(map(len, calls)) == min(size, 5)


def failing_on(*offsets, times=1):
    """A listener that fails `times` times on each of `offsets`, and what it saw."""
    remaining = dict.fromkeys(offsets, times)
    seen = []

    async def listener(messages):
        for sent_message in messages:
            seen.append((sent_message.queue_offset, sent_message.reconsume_times))
            if remaining.get(sent_message.queue_offset):
                remaining[sent_message.queue_offset] -= 1
                raise ReconsumeLater("not now", delay_level=2)

    return listener, seen


def test_failed_messages_are_sent_back_and_count_as_consumed():
    listener, _ = failing_on(2)
    stage = Stage(ConcurrentDelivery, listener).play(all_done)
    (request,) = stage.peers.of(BACK)
    assert request.addr == "a:1"
    assert request.fields == {
        "offset": "2000",
        "group": "g",
        "delayLevel": "2",
        "originMsgId": "ID2",
        "originTopic": "T",
        "unitMode": "false",
        "maxReconsumeTimes": "16",
    }
    assert stage.offset == 5


def test_a_copy_is_sent_to_the_retry_topic_if_sending_back_fails():
    listener, _ = failing_on(2)
    stage = Stage(ConcurrentDelivery, listener, back=ConnectionLost("a:1", "reset")).play(all_done)
    (copy,) = stage.peers.of(SEND)
    assert (copy.fields["b"], copy.fields["j"], copy.fields["l"]) == ("%RETRY%g", "1", "16")
    table = properties.decode(copy.fields["i"])
    assert table == {"ORIGIN_MESSAGE_ID": "ID2", "RETRY_TOPIC": "T", "DELAY": "3"}
    assert copy.body == b"2"


def test_a_copy_of_a_dead_letter_has_used_up_its_attempts():
    listener, _ = failing_on()
    messages = [message(0, body_error="no JSON")]
    stage = Stage(ConcurrentDelivery, listener, back=ConnectionLost("a:1", "reset")).play(all_done, messages)
    (copy,) = stage.peers.of(SEND)
    assert (copy.fields["b"], copy.fields["j"], copy.fields["l"]) == ("%RETRY%g", "16", "16")


@pytest.mark.parametrize("back", [Command(3).code, ConnectionLost("a:1", "reset")])
def test_a_message_that_no_broker_accepts_is_retried_locally(back):
    listener, seen = failing_on(2)
    stage = Stage(ConcurrentDelivery, listener, back=back, copy=13).play(all_done)
    assert (2, 0) in seen
    assert (2, 1) in seen
    assert stage.offset == 5
    assert stage.clock.elapsed_ms == 5000  # local_retry_delay
    assert bool(stage.peers.of(SEND)) == (back != 3)  # code 3: no broker feature, so no copy either


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2])
def test_the_rate_of_messages_is_limited(kind, size):
    times = []

    async def listener(messages):
        times.append((stage.clock.elapsed_ms, len(messages)))

    stage = Stage(kind, listener, rate_max=2, consume_batch_max=size, concurrency=1)
    stage.play(all_done)
    assert times == ([(500 * number, 1) for number in range(5)] if size == 1 else [(0, 2), (1000, 2), (2000, 1)])


def test_no_offset_passes_a_locally_retried_message():
    listener, _ = failing_on(2, times=10**6)
    stage = Stage(ConcurrentDelivery, listener, back=3).play(lambda stage: len(stage.peers.of(BACK)) >= 5)
    assert stage.offset == 2


def test_a_call_that_ends_after_the_revocation_does_not_count():
    async def play():
        release = asyncio.Event()
        called = asyncio.Event()

        async def listener(messages):
            called.set()
            await release.wait()
            raise ValueError("no")

        stage = Stage(ConcurrentDelivery, listener)
        offsets = OffsetStore(stage.peers, None, "g", timeout_ms=1)
        listening = invoker(listener, clock=stage.clock)
        listeners = ConcurrentDelivery(listening, offsets, None, ConsumerSettings(), stage.clock)
        listeners.start()
        stage.queue.tracker.add([message(0)], 1)
        listeners.on_messages(stage.queue, [message(0)])
        await called.wait()
        await listeners.on_revoked(stage.queue)
        release.set()
        await listeners.close(5)
        assert offsets.consumed(QUEUE) is None

    asyncio.run(play())


def test_closing_waits_for_running_calls_and_starts_no_new_one():
    async def play():
        release, called, ended = asyncio.Event(), asyncio.Event(), []

        async def listener(messages):
            called.set()
            await release.wait()
            ended.append(messages[0].queue_offset)

        stage = Stage(ConcurrentDelivery, listener)
        offsets = OffsetStore(stage.peers, None, "g", timeout_ms=1)
        listening = invoker(listener, clock=stage.clock)
        listeners = ConcurrentDelivery(listening, offsets, None, ConsumerSettings(concurrency=1), stage.clock)
        listeners.start()
        stage.queue.tracker.add([message(0), message(1)], 2)
        listeners.on_messages(stage.queue, [message(0), message(1)])
        await called.wait()
        closing = asyncio.ensure_future(listeners.close(5))
        await asyncio.sleep(0)
        release.set()
        await closing
        assert ended == [0]
        assert offsets.consumed(QUEUE) == 1

    asyncio.run(play())


def test_an_orderly_queue_repeats_the_failed_message():
    listener, seen = failing_on(2, times=2)
    stage = Stage(OrderlyDelivery, listener, times_max=-1).play(all_done)
    assert seen == [(0, 0), (1, 0), (2, 0), (2, 1), (2, 2), (3, 0), (4, 0)]
    assert stage.offset == 5
    assert stage.clock.elapsed_ms == 2000  # suspend_queue_time, twice


def test_an_orderly_message_is_sent_to_the_retry_topic_after_its_last_attempt():
    listener, seen = failing_on(2, times=10**6)
    stage = Stage(OrderlyDelivery, listener, times_max=1).play(all_done)
    assert [item for item in seen if item[0] == 2] == [(2, 0), (2, 1)]
    (copy,) = stage.peers.of(SEND)
    assert (copy.fields["b"], copy.fields["j"], copy.fields["l"]) == ("%RETRY%g", "2", "1")
    assert stage.offset == 5


def test_an_orderly_queue_without_its_lock_does_not_call_the_listener():
    async def play():
        called = []

        async def listener(messages):
            called.append(messages)

        clock = FakeClock(is_auto=True)
        queue = ProcessQueue(QUEUE, 0)
        queue.tracker.add([message(0)], 1)
        listening = invoker(listener, clock=clock, consume_timeout=1)
        offsets = OffsetStore(Script({}), None, "g", timeout_ms=1)
        listeners = OrderlyDelivery(listening, offsets, None, ConsumerSettings(), clock)
        listeners.on_assigned(queue)
        for _ in range(20):
            await asyncio.sleep(0)
        assert called == []
        queue.set_locked(clock.monotonic())
        async with asyncio.timeout(5):
            while not called:
                await asyncio.sleep(0)
        await listeners.close(1)

    asyncio.run(play())


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_attempt_is_logged_as_a_dead_letter(kind, caplog):
    listener, _ = failing_on(0, 1, times=9)
    pulled = [message(0), message(1, reconsume_times=3)]
    Stage(kind, listener, times_max=3).play(all_done, pulled)
    texts = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    last = "Message ID1 (keys -, offset 1 of T at a:0, attempt 4) becomes a dead letter of group g: it failed 4 times"
    assert last in texts
    # An orderly queue counts the failures of the first message itself, up to its last attempt.
    assert len(texts) == (1 if kind is ConcurrentDelivery else 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_with_an_unreadable_body_becomes_a_dead_letter(kind, caplog):
    seen = []

    async def listener(messages):
        seen.extend(sent_message.queue_offset for sent_message in messages)

    pulled = [message(0), message(1, sys_flag=0x101, body_error="the body compressed with LZ4 is broken"), message(2)]
    stage = Stage(kind, listener, consume_batch_max=3).play(all_done, pulled)
    (request,) = stage.peers.of(BACK)
    assert (request.fields["delayLevel"], request.fields["originMsgId"]) == ("-1", "ID1")
    text = "Sending message ID1 (keys -, offset 1 of T at a:0, attempt 1) "
    assert text in caplog.text
    assert (
        "to the dead-letter topic of group g, with its body as stored: the body compressed with LZ4 is broken"
        in caplog.text
    )
    assert seen == [0, 2]
    assert stage.offset == 3


class Orderly:
    """An orderly queue with one message, in virtual time; locked for 30 s."""

    def __init__(self, listener, hooks=(), **settings) -> None:
        self.loop = VirtualLoop()
        clock = VirtualClock(self.loop)
        self.queue = ProcessQueue(QUEUE, 0)
        self.queue.tracker.add([message(0)], 1)
        self.queue.set_locked(0.0)
        self.offsets = OffsetStore(Script({}), None, "g", timeout_ms=1)
        self.listening = invoker(listener, hooks, clock=clock, consume_timeout=3_600, **settings)
        self.listeners = OrderlyDelivery(self.listening, self.offsets, None, ConsumerSettings(), clock)

    def play(self, act) -> Orderly:
        async def run():
            self.listeners.on_assigned(self.queue)
            await act()
            await self.listeners.close(0)

        self.loop.run_until_complete(run())
        self.loop.close()
        return self


def test_an_orderly_queue_is_revoked_only_after_its_listener_has_ended():
    ended = []

    async def listener(messages):
        await asyncio.sleep(100)
        ended.append(messages[0].queue_offset)

    async def act():
        await asyncio.sleep(1)
        await orderly.listeners.on_revoked(orderly.queue)
        assert ended == [0]

    orderly = Orderly(listener)
    orderly.play(act)


def test_messages_consumed_after_the_lock_expired_are_not_committed():
    async def listener(messages):
        await asyncio.sleep(31)

    orderly = Orderly(listener).play(lambda: asyncio.sleep(40))
    assert orderly.offsets.consumed(QUEUE) is None
    assert Orderly(good).play(lambda: asyncio.sleep(40)).offsets.consumed(QUEUE) == 1


def test_the_listener_is_not_called_if_the_lock_expires_during_a_hook():
    called, reported = [], []

    async def listener(messages):
        called.append(messages)

    async def slow(event):
        reported.append(event)
        await asyncio.sleep(31)

    Orderly(listener, hooks=[slow]).play(lambda: asyncio.sleep(90))
    assert called == []
    assert [item.outcome for item in reported if isinstance(item, ConsumeFinished)] == [ConsumeReturn.FAILED]


def test_an_orderly_listener_in_a_thread_is_waited_for():
    released = threading.Event()

    async def play():
        listening = invoker(lambda messages: released.wait(30), consume_timeout=0.001, is_orderly=True)
        call = asyncio.ensure_future(listening.invoke_once([message(0)]))
        try:
            done, _ = await asyncio.wait([call], timeout=0.05)
            assert not done
        finally:
            released.set()
            await asyncio.wait([call])
            listening.close()

    asyncio.run(play())


def test_a_queue_whose_thread_outlives_closing_is_marked_abandoned():
    released = threading.Event()

    async def play():
        queue = ProcessQueue(QUEUE, 0)
        queue.tracker.add([message(0)], 1)
        queue.set_locked(0.0)
        begun = threading.Event()

        def listener(messages):
            begun.set()
            released.wait(30)

        listening = invoker(listener)
        offsets = OffsetStore(Script({}), None, "g", timeout_ms=1)
        queue.set_locked(FakeClock(is_auto=True).monotonic())
        listeners = OrderlyDelivery(listening, offsets, None, ConsumerSettings(), FakeClock(is_auto=True))
        listeners.on_assigned(queue)
        await asyncio.to_thread(begun.wait, 30)
        try:
            await listeners.close(0)
            assert queue.is_abandoned
            assert offsets.consumed(QUEUE) is None
        finally:
            released.set()

    asyncio.run(play())
