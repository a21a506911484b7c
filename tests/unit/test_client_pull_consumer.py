"""Pull consumer against scripted brokers: its requests, the offset of the next pull, filters and errors."""

from __future__ import annotations

import asyncio

import pytest
from client_script import QUEUE, Script, delivery_services, instance, message, name_server, raising, route
from test_client_fetcher import answer, stored

from ariane.client import PullConsumer, Sql
from ariane.client.consuming.process_queue import ProcessQueue
from ariane.client.delivery.polling_delivery import PollingDelivery
from ariane.client.instance.hooks import ConsumeFinished, ConsumeReturn, ConsumeStarted
from ariane.errors import ClientClosed, ConfigError, ConnectionLost, ReplyError, RouteNotFound
from ariane.model.message import MessageQueue
from ariane.protocol.codes import VERSION, RequestCode
from ariane.protocol.command import Command
from ariane.testing.clock import FakeClock

PULL = RequestCode.PULL_MESSAGE


def pulling(*answers: object, use=None, version=VERSION, hooks=(), **arguments: object):
    """Pull once per answer. Return the results and the requests."""
    rest = list(answers)
    script = Script(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: name_server({"T": route("a", queues=2)}),
            PULL: lambda asked: rest.pop(0),
            RequestCode.HEART_BEAT: lambda asked: Command(0, version=version),
            RequestCode.GET_MIN_OFFSET: lambda asked: Command(0, fields={"offset": "3"}),
            RequestCode.GET_MAX_OFFSET: lambda asked: Command(0, fields={"offset": "9"}),
        }
    )

    async def work():
        async with PullConsumer(instance(script), hooks=hooks) as consumer:
            if use is not None:
                return await use(consumer)
            return [await consumer.pull(QUEUE, 5, **arguments) for _ in answers]

    return asyncio.run(work()), script


def test_messages_and_the_next_offset_are_returned() -> None:
    ((first, second), script) = pulling(
        answer(0, 7, stored(5, body=b"x"), stored(6)), answer(20, 9), max_messages=2, can_wait=False
    )
    assert (
        [sent_message.queue_offset for sent_message in first.messages],
        first.next_offset,
        first.is_offset_moved,
    ) == (
        [5, 6],
        7,
        False,
    )
    assert (second.messages, second.next_offset) == ([], 9)
    asked = script.of(PULL)[0]
    assert asked.addr == "a:1"
    expected = {
        "consumerGroup": "TOOLS_CONSUMER", "topic": "T", "queueId": "0", "queueOffset": "5", "maxMsgNums": "2",
        "sysFlag": "4", "suspendTimeoutMillis": "0", "subscription": "*", "expressionType": "TAG",
    }  # fmt: skip
    assert {name: asked.fields[name] for name in expected} == expected


def test_a_pull_may_wait_and_follows_the_suggested_server() -> None:
    _, script = pulling(answer(19, 5, broker_id=1), answer(19, 5))
    first, second = script.of(PULL)
    assert (first.fields["sysFlag"], first.fields["suspendTimeoutMillis"]) == ("6", "15000")
    assert first.fields["subVersion"] == second.fields["subVersion"]


def test_tags_are_compared_again() -> None:
    ((result,), script) = pulling(answer(0, 7, stored(5, TAGS="AaAa"), stored(6, TAGS="BBBB")), expression="AaAa || C")
    assert [sent_message.queue_offset for sent_message in result.messages] == [5]
    assert script.of(PULL)[0].fields["subscription"] == "AaAa || C"


def test_an_sql_expression_needs_a_broker_that_supports_it() -> None:
    with pytest.raises(ConnectionLost, match="does not support SQL92"):
        pulling(answer(19, 5), expression=Sql("a > 1"), version=231)
    _, script = pulling(answer(19, 5), expression=Sql("a > 1"))
    assert script.of(PULL)[0].fields["expressionType"] == "SQL92"
    with pytest.raises(ConfigError, match="the SQL92 expression is empty"):
        pulling(answer(19, 5), expression=Sql(" "))


def test_a_moved_offset_is_part_of_the_result() -> None:
    ((result,), _) = pulling(answer(21, 100))
    assert (result.is_offset_moved, result.next_offset, result.messages) == (True, 100, [])


def test_errors_of_the_broker_are_raised() -> None:
    with pytest.raises(ReplyError, match="no permission"):
        pulling(Command(16, remark="no permission"))


def test_a_lost_connection_refreshes_the_route() -> None:
    script = Script(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: name_server({"T": route("a")}),
            PULL: raising(ConnectionLost("a:1", "refused")),
        }
    )

    async def work() -> None:
        async with PullConsumer(instance(script)) as consumer:
            for _ in range(2):
                with pytest.raises(ConnectionLost):
                    await consumer.pull(QUEUE, 0)

    asyncio.run(work())
    assert len(script.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 3  # once at first, then after each loss


def test_queues_and_bounds() -> None:
    async def use(consumer: PullConsumer):
        assert await consumer.queues_of("T") == [QUEUE, MessageQueue("T", "a", 1)]
        with pytest.raises(RouteNotFound):
            await consumer.queues_of("nothing")
        with pytest.raises(ConfigError, match="expected a datetime with a time zone, not int"):
            await consumer.offset_for_time(QUEUE, 1_700_000_000)
        return await consumer.bounds(QUEUE)

    assert pulling(use=use)[0] == (3, 9)


def test_pulled_messages_are_announced_as_consumed_in_no_time() -> None:
    events: list[ConsumeStarted | ConsumeFinished] = []

    async def use(consumer: PullConsumer) -> None:
        await consumer.pull(QUEUE, 5)
        await consumer.pull(QUEUE, 6)

    pulling(answer(0, 6, stored(5, body=b"x")), answer(19, 6), use=use, hooks=[events.append])
    started, finished = events
    assert isinstance(started, ConsumeStarted)
    assert (started.group, [item.queue_offset for item in started.messages]) == ("TOOLS_CONSUMER", [5])
    assert isinstance(finished, ConsumeFinished)
    assert (finished.started, finished.outcome, finished.cost_ms) == (started, ConsumeReturn.SUCCESS, 0)


def test_a_closed_consumer_and_invalid_arguments_are_errors() -> None:
    consumer = PullConsumer("ns:1")
    with pytest.raises(ClientClosed):
        asyncio.run(consumer.pull(QUEUE, 0))
    with pytest.raises(ConfigError, match="max_messages"):
        pulling(answer(19, 5), max_messages=0)
    with pytest.raises(ConfigError, match="namesrv"):
        PullConsumer("")


def test_the_position_of_a_polled_queue_is_after_the_taken_messages() -> None:
    async def play() -> None:
        delivery, queue = PollingDelivery(delivery_services(FakeClock(is_auto=True))), ProcessQueue(QUEUE, 5)
        assert delivery.fetched.position(queue) == 5
        messages = [message(6), message(8)]  # a filter skipped 5, 7 and 9
        queue.tracker.add(messages, 10)
        delivery.on_messages(queue, messages)
        assert delivery.fetched.position(queue) == 6
        await delivery.take(1, ())
        assert delivery.fetched.position(queue) == 8
        await delivery.take(1, ())
        assert delivery.fetched.position(queue) == 10

    asyncio.run(play())
