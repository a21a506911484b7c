"""Polling delivery: polled messages, what acknowledges them, and the events, spans and offsets that follow."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

from client_script import QUEUE, delivery_services, message

from ariane.client.consuming.process_queue import ProcessQueue
from ariane.client.delivery.polling_delivery import PollingDelivery
from ariane.client.instance.hooks import ConsumeFinished, ConsumeReturn, ConsumeStarted
from ariane.model.message import MessageQueue
from ariane.payloads import Json
from ariane.testing.clock import FakeClock

OTHER = MessageQueue("T", "a", 1)


class Stage:
    """A polling delivery with messages 0 … 4 of one queue, and of another one if `also` is set."""

    def __init__(self, *, also: bool = False, hook=None) -> None:
        self.clock = FakeClock()
        self.events: list[ConsumeStarted | ConsumeFinished] = []
        self.spans: list[str] = []
        self.services = delivery_services(self.clock, hooks=[hook or self.events.append], telemetry=self)
        self.delivery = PollingDelivery(self.services)
        self.queue = self.fill(QUEUE)
        self.other = self.fill(OTHER) if also else None

    def fill(self, queue: MessageQueue) -> ProcessQueue:
        process_queue = ProcessQueue(queue, 0)
        messages = [message(offset, queue=queue) for offset in range(5)]
        process_queue.tracker.add(messages, 5)
        self.delivery.on_messages(process_queue, messages)
        return process_queue

    @contextmanager
    def processing(self, group, messages):
        self.spans.append(f"open {len(messages)}")
        yield
        self.spans.append("closed")

    @property
    def outcomes(self) -> list[tuple[int, ConsumeReturn, int]]:
        finished = [event for event in self.events if isinstance(event, ConsumeFinished)]
        return [(len(event.started.messages), event.outcome, event.cost_ms) for event in finished]


def test_a_poll_is_announced_and_finished_by_its_acknowledgement():
    async def play():
        stage = Stage()
        assert len(await stage.delivery.take(3, ())) == 3
        (started,) = stage.events
        assert (started.queue, [item.queue_offset for item in started.messages]) == (QUEUE, [0, 1, 2])
        assert stage.spans == ["open 3"]
        stage.clock.advance(2)
        await stage.delivery.acknowledge()
        assert stage.events[1].started is started
        assert stage.outcomes == [(3, ConsumeReturn.SUCCESS, 2_000)]
        assert stage.spans == ["open 3", "closed"]
        assert stage.services.offsets.consumed(QUEUE) == 3
        assert stage.services.rates.status("T").consume_ok_tps > 0

    asyncio.run(play())


def test_an_explicit_commit_acknowledges_the_messages_below_its_offsets():
    async def play():
        stage = Stage(also=True)
        await stage.delivery.take(4, ())
        await stage.delivery.take(4, ())
        await stage.delivery.acknowledge({QUEUE: 2})
        assert (len(stage.queue.tracker), len(stage.other.tracker)) == (3, 5)
        assert stage.outcomes == []
        await stage.delivery.acknowledge({QUEUE: 4})
        assert len(stage.queue.tracker) == 1
        assert stage.outcomes == [(4, ConsumeReturn.SUCCESS, 0)]
        assert stage.services.offsets.consumed(OTHER) is None

    asyncio.run(play())


def test_messages_of_a_revoked_queue_count_as_failed():
    async def play():
        stage = Stage()
        await stage.delivery.take(3, ())
        await stage.delivery.on_revoked(stage.queue)
        assert stage.outcomes == [(3, ConsumeReturn.FAILED, 0)]
        assert await stage.delivery.take(3, ()) == []
        await stage.delivery.acknowledge()
        assert stage.services.offsets.consumed(QUEUE) is None

    asyncio.run(play())


def test_closing_finishes_polled_messages_without_consuming_them():
    async def play():
        stage = Stage()
        await stage.delivery.take(1, ())
        await stage.delivery.close(0)
        assert stage.outcomes == [(1, ConsumeReturn.FAILED, 0)]
        assert stage.spans[-1] == "closed"
        assert stage.services.offsets.consumed(QUEUE) is None

    asyncio.run(play())


def test_a_poll_that_is_cancelled_during_a_hook_returns_its_messages():
    async def play():
        async def slow(event):
            finished.append(event) if isinstance(event, ConsumeFinished) else await asyncio.Event().wait()

        finished: list[ConsumeFinished] = []

        stage = Stage(hook=slow)
        poll = asyncio.ensure_future(stage.delivery.take(2, ()))
        await asyncio.sleep(0)
        assert stage.delivery.fetched.position(stage.queue) == 2
        poll.cancel()
        await asyncio.wait([poll])
        assert stage.delivery.fetched.position(stage.queue) == 0
        assert [event.outcome for event in finished] == [ConsumeReturn.FAILED]

    asyncio.run(play())


def test_a_paused_queue_is_passed_over():
    async def play():
        stage = Stage(also=True)
        assert {item.queue for item in await stage.delivery.take(5, {QUEUE})} == {OTHER}
        assert await stage.delivery.take(5, {QUEUE}) == []

    asyncio.run(play())


def test_messages_that_cannot_be_decoded_become_dead_letters_before_a_poll():
    class Brokers:
        """Refuse the first attempt."""

        def __init__(self) -> None:
            self.calls: list[tuple[int, int]] = []

        async def send_back(self, failed, delay_level):
            self.calls.append((failed.queue_offset, delay_level))
            return len(self.calls) > 1

    async def play():
        clock, brokers = FakeClock(is_auto=True), Brokers()
        services = delivery_services(clock, send_back=brokers, payload=Json())
        delivery, queue = PollingDelivery(services), ProcessQueue(QUEUE, 0)
        messages = [message(0, body_error="no JSON"), message(1)]
        queue.tracker.add(messages, 2)
        delivery.on_messages(queue, messages)
        assert [item.queue_offset for item in await delivery.take(5, ())] == [1]
        await delivery.acknowledge()
        assert services.offsets.consumed(QUEUE) == 0  # nothing passes the first message yet
        async with asyncio.timeout(5):
            while len(queue.tracker):
                await asyncio.sleep(0)
        assert brokers.calls == [(0, -1), (0, -1)]
        assert services.offsets.consumed(QUEUE) == 2
        await delivery.close(0)

    asyncio.run(play())


def test_without_a_codec_a_message_that_cannot_be_expanded_is_polled():
    async def play():
        services = delivery_services(FakeClock())
        delivery, queue = PollingDelivery(services), ProcessQueue(QUEUE, 0)
        queue.tracker.add([message(0, body_error="broken")], 1)
        delivery.on_messages(queue, [message(0, body_error="broken")])
        (polled,) = await delivery.take(5, ())
        assert polled.body_error == "broken"

    asyncio.run(play())
