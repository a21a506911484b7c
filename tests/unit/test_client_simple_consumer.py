"""Simple consumer against scripted brokers: what it asks, in which order, and what becomes of the messages."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable

import pytest
from client_script import Asked, Script, instance, name_server, raising, route
from test_client_fetcher import stored

from ariane.client import PoppedMessage, ReconsumeLater, SimpleConsumer, Sql
from ariane.client.instance.hooks import ConsumeFinished, ConsumeReturn, ConsumeStarted
from ariane.client.instance.namespace import Namespace
from ariane.client.instance.settings import ConsumerSettings
from ariane.errors import (
    ClientClosed,
    ConfigError,
    ConnectionLost,
    DeliveryExpired,
    PopUnsupported,
    ReplyError,
    RouteNotFound,
)
from ariane.payloads import Json
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import record
from ariane.testing.clock import FakeClock

POP, ACK, BATCH_ACK = RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE
CHANGE, SEND_BACK = RequestCode.CHANGE_MESSAGE_INVISIBLETIME, RequestCode.CONSUMER_SEND_MSG_BACK
EMPTY = Command(ResponseCode.POLLING_TIMEOUT)


def taken(*records: bytes, pop_time: int = 1_000) -> Command:
    offsets = ",".join(str(record.queue_offset(data)) for data in records)
    first = offsets.split(",", maxsplit=1)[0]
    fields = {"popTime": str(pop_time), "invisibleTime": "30000", "reviveQid": "0", "restNum": "0"}
    infos = {"startOffsetInfo": f"0 0 {first}", "msgOffsetInfo": f"0 0 {offsets}"}
    return Command(0, fields={**fields, **infos}, body=b"".join(records))


class Stage(Script):
    """Brokers with topics. `answers` by broker are those to POP_MESSAGE; later ones are empty, when a parked one's time is over."""

    def __init__(self, answers: dict[str, list[Command | Exception]], *, brokers: str = "a", topics: str = "T") -> None:
        super().__init__(
            {
                RequestCode.GET_ROUTEINFO_BY_TOPIC: name_server({topic: route(*brokers) for topic in topics}),
                POP: self._pop,
                ACK: lambda asked: Command(0),
                BATCH_ACK: lambda asked: Command(0),
                CHANGE: lambda asked: Command(
                    0, fields={"popTime": "2000", "invisibleTime": asked.fields["invisibleTime"], "reviveQid": "0"}
                ),
                SEND_BACK: lambda asked: Command(0),
                RequestCode.UNREGISTER_CLIENT: lambda asked: Command(0),
                RequestCode.CHECK_CLIENT_CONFIG: lambda asked: Command(0),
            }
        )
        self.clock = FakeClock(is_auto=True)
        self.events: list[ConsumeStarted | ConsumeFinished] = []
        self._pops = answers

    def _pop(self, asked: Asked) -> Command:
        answers = self._pops.get(asked.addr[0], [])
        answer = answers.pop(0) if answers else EMPTY
        if answer is EMPTY:
            self.clock.advance_ms(int(asked.fields["pollTime"]))
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def outcomes(self) -> list[tuple[int, ConsumeReturn]]:
        ends = [event for event in self.events if isinstance(event, ConsumeFinished)]
        return [(event.started.messages[0].queue_offset, event.outcome) for event in ends]

    def run(
        self, use: Callable[[SimpleConsumer], Awaitable[object]], topics: object = "T", **arguments: object
    ) -> None:
        async def play() -> None:
            arguments.setdefault("start", "first")
            own = SimpleConsumer(instance(self, self.clock), "g", topics, hooks=[self.events.append], **arguments)
            async with own as consumer:
                await use(consumer)

        asyncio.run(play())


def offsets(messages) -> list[int]:
    return [message.queue_offset for message in messages]


async def settled() -> None:
    """Let tasks in the background run."""
    for _ in range(10):
        await asyncio.sleep(0)


# --- receive ---


def test_messages_of_all_queues_are_asked_for_with_the_subscription() -> None:
    stage = Stage({"a": [taken(stored(5, body=b"x", TAGS="x"))]})

    async def use(consumer: SimpleConsumer) -> None:
        (message,) = await consumer.receive(8, invisible=12, timeout=4)
        assert (message.body, message.topic, message.attempt, message.is_pending) == (b"x", "T", 1, True)
        assert message.queue.broker == "a"

    stage.run(use, {"T": "x || y"}, start="last")
    (asked,) = stage.of(POP)
    expected = {
        "consumerGroup": "g", "topic": "T", "queueId": "-1", "maxMsgNums": "8", "invisibleTime": "12000",
        "pollTime": "4000", "initMode": "1", "expType": "TAG", "exp": "x || y", "order": "false",
    }  # fmt: skip
    assert {name: asked.fields[name] for name in expected} == expected
    assert asked.timeout_ms == 7_000


def test_sources_take_turns_and_the_last_one_waits_a_slice() -> None:
    stage = Stage({"a": [taken(stored(1)), taken(stored(3))], "b": [taken(stored(2))]}, brokers="ab")

    async def use(consumer: SimpleConsumer) -> None:
        received = [await consumer.receive() for _ in range(3)]
        assert sorted(offset for messages in received for offset in offsets(messages)) == [1, 2, 3]
        brokers = [messages[0].queue.broker for messages in received]
        assert brokers in (["a", "b", "a"], ["b", "a", "a"])
        del stage.asked[:]
        assert await consumer.receive(timeout=2) == []

    stage.run(use)
    polls = [(asked.addr, asked.fields["pollTime"]) for asked in stage.of(POP)]
    (first, none), (second, slice_ms), (third, _), (fourth, _) = polls[:4]
    assert {first, second} == {"a:1", "b:1"}
    assert (none, slice_ms) == ("0", "1000")
    assert (third, fourth) == (second, first)  # another one waits the next time


def test_a_broker_that_does_not_respond_does_not_stop_the_others() -> None:
    stage = Stage(
        {"a": [ConnectionLost("a:1", "refused")] * 9, "b": [taken(stored(offset)) for offset in range(5)]}, brokers="ab"
    )

    async def use(consumer: SimpleConsumer) -> None:
        assert [offsets(await consumer.receive()) for _ in range(5)] == [[0], [1], [2], [3], [4]]
        assert len([asked for asked in stage.of(POP) if asked.addr == "a:1"]) == 1  # it is suspended for a while
        assert len(stage.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)) > 1
        assert await consumer.receive(timeout=30) == []

    stage.run(use)
    assert 2 < len([asked for asked in stage.of(POP) if asked.addr == "a:1"]) < 9


def test_without_any_broker_the_error_is_raised_when_the_time_is_over() -> None:
    stage = Stage({"a": [ConnectionLost("a:1", "refused")] * 99})

    async def use(consumer: SimpleConsumer) -> None:
        began = stage.clock.monotonic()
        with pytest.raises(ConnectionLost, match="a:1: refused"):
            await consumer.receive(timeout=5)
        assert 5 <= stage.clock.monotonic() - began < 16

    stage.run(use)


def test_a_topic_without_a_route_is_an_error_and_is_looked_for_again() -> None:
    stage = Stage({})

    async def use(consumer: SimpleConsumer) -> None:
        with pytest.raises(RouteNotFound, match="no route for topic N: no broker with readable queues"):
            await consumer.receive(timeout=2)
        stage.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = name_server({"N": route("a")})
        stage._pops["a"] = [taken(stored(1, topic=b"N"))]
        assert offsets(await consumer.receive(timeout=9)) == [1]

    stage.run(use, "N")


def test_a_broker_without_pop_is_an_error_that_says_what_to_use() -> None:
    stage = Stage(
        {"a": [Command(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=" request type 200050 not supported")]}
    )

    async def use(consumer: SimpleConsumer) -> None:
        with pytest.raises(PopUnsupported, match=r"a:1 does not serve POP .* use Consumer, PushConsumer") as raised:
            await consumer.receive()
        assert isinstance(raised.value, ReplyError)

    stage.run(use)


def test_a_permanent_error_is_raised_and_a_transient_one_is_not() -> None:
    stage = Stage(
        {
            "a": [
                Command(ResponseCode.SYSTEM_BUSY),
                Command(ResponseCode.POLLING_FULL),
                Command(16, remark="no permission"),
            ]
        }
    )

    async def use(consumer: SimpleConsumer) -> None:
        with pytest.raises(ReplyError, match="no permission"):
            await consumer.receive()

    stage.run(use)
    assert len(stage.of(POP)) == 3


def test_a_broker_that_does_not_know_the_group_gets_a_heartbeat() -> None:
    stage = Stage({"a": [Command(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST), taken(stored(1))]})

    async def use(consumer: SimpleConsumer) -> None:
        before = len(stage.of(RequestCode.HEART_BEAT))
        assert offsets(await consumer.receive()) == [1]
        assert len(stage.of(RequestCode.HEART_BEAT)) == before + 1

    stage.run(use)


def test_a_broker_that_does_not_wait_is_not_asked_without_a_pause() -> None:
    stage = Stage({"a": [Command(ResponseCode.POLLING_TIMEOUT) for _ in range(1_000)]})

    async def use(consumer: SimpleConsumer) -> None:
        assert await consumer.receive(timeout=1) == []

    stage.run(use)
    assert len(stage.of(POP)) <= 11


def test_heartbeats_name_an_active_member() -> None:
    stage = Stage({})

    async def use(consumer: SimpleConsumer) -> None:
        await consumer.subscribe("U", Sql("a > 1"))
        await consumer.unsubscribe("T")

    stage.run(use, topics="T")
    (first, *_, last) = (json.loads(asked.body)["consumerDataSet"] for asked in stage.of(RequestCode.HEART_BEAT))
    assert (first[0]["consumeType"], first[0]["consumeFromWhere"]) == ("CONSUME_ACTIVELY", "CONSUME_FROM_LAST_OFFSET")
    assert [subscription["topic"] for subscription in last[0]["subscriptionDataSet"]] == ["U"]


# --- acknowledge ---


def test_one_message_and_several_are_acknowledged_by_one_request_each() -> None:
    stage = Stage({"a": [taken(stored(5), stored(6), stored(7))]})

    async def use(consumer: SimpleConsumer) -> None:
        first, *others = await consumer.receive()
        await first.ack()
        await consumer.ack(others)
        assert not any(message.is_pending for message in (first, *others))
        await first.ack()  # logged, without effect

    stage.run(use)
    (single,), (batch,) = stage.of(ACK), stage.of(BATCH_ACK)
    assert single.fields == {
        "consumerGroup": "g", "topic": "T", "queueId": "0", "extraInfo": "5 1000 30000 0 0 a 0 5", "offset": "5",
    }  # fmt: skip
    ack = {"c": "g", "t": "T", "q": 0, "so": 5, "pt": 1000, "b": "BgA=", "r": "0", "rq": 0, "it": 30000}
    body = json.loads(batch.body)
    assert body["brokerName"] == "a"
    assert [{**one, "b": one["b"].rstrip("A=")} for one in body["acks"]] == [{**ack, "b": "Bg"}]
    assert stage.outcomes == [(5, ConsumeReturn.SUCCESS), (6, ConsumeReturn.SUCCESS), (7, ConsumeReturn.SUCCESS)]


def test_a_retry_is_acknowledged_in_its_own_topic() -> None:
    again = stored(5, topic=b"T", POP_CK="5 1000 30000 3 1 a 0 5")
    stage = Stage({"a": [taken(again)]})

    async def use(consumer: SimpleConsumer) -> None:
        (message,) = await consumer.receive()
        assert (message.topic, message.queue.topic, "POP_CK" in message.properties) == ("T", "%RETRY%g_T", False)
        await message.ack()

    stage.run(use)
    (asked,) = stage.of(ACK)
    assert (asked.fields["topic"], asked.fields["extraInfo"]) == ("%RETRY%g_T", "5 1000 30000 3 1 a 0 5")


def test_a_failed_acknowledgement_leaves_its_messages_pending_and_does_not_stop_others() -> None:
    stage = Stage({"a": [taken(stored(1))], "b": [taken(stored(2))]}, brokers="ab")
    stage.answers[ACK] = lambda asked: (
        Command(0) if asked.addr == "b:1" else raising(ConnectionLost("a:1", "refused"))(asked)
    )

    async def use(consumer: SimpleConsumer) -> None:
        messages = [*await consumer.receive(), *await consumer.receive()]
        with pytest.raises(ConnectionLost):
            await consumer.ack(messages)
        assert {message.queue.broker: message.is_pending for message in messages} == {"a": True, "b": False}

    stage.run(use)


def test_a_change_of_the_invisible_time_continues_the_delivery() -> None:
    stage = Stage({"a": [taken(stored(5))]})

    async def use(consumer: SimpleConsumer) -> None:
        (message,) = await consumer.receive(invisible=30)
        await message.change_invisible(60)
        stage.clock.advance(40)
        await settled()
        await message.ack()

    stage.run(use)
    (change,), (ack,) = stage.of(CHANGE), stage.of(ACK)
    assert (change.fields["extraInfo"], change.fields["invisibleTime"]) == ("5 1000 30000 0 0 a 0 5", "60000")
    assert ack.fields["extraInfo"] == "5 2000 60000 0 0 a 0 5"
    assert stage.outcomes == [(5, ConsumeReturn.SUCCESS)]


def test_a_late_acknowledgement_is_sent_and_raised() -> None:
    """It counts if no other member has received the message meanwhile."""
    stage = Stage({"a": [taken(stored(5), stored(6))]})

    async def use(consumer: SimpleConsumer) -> None:
        first, second = await consumer.receive(invisible=30)
        stage.clock.advance(31)
        await settled()
        assert not first.is_pending
        with pytest.raises(
            DeliveryExpired, match="acknowledged after its invisible time .2 messages in all."
        ) as raised:
            await consumer.ack([first, second])
        assert raised.value.message_id == first.message_id
        for call in (second.change_invisible(5), second.reject()):
            await call  # acknowledged before: logged, without effect

    stage.run(use)
    assert len(stage.of(BATCH_ACK)) == 1
    assert stage.of(CHANGE) == []
    assert stage.outcomes == [(5, ConsumeReturn.TIME_OUT), (6, ConsumeReturn.TIME_OUT)]


@pytest.mark.parametrize("answer", [Command(ResponseCode.NO_MESSAGE), Command(0, fields={"popTime": "1000"})])
def test_a_change_of_a_delivery_that_has_ended_is_an_error(answer: Command) -> None:
    stage = Stage({"a": [taken(stored(5))]})
    stage.answers[CHANGE] = lambda asked: answer

    async def use(consumer: SimpleConsumer) -> None:
        (message,) = await consumer.receive()
        for _ in range(2):
            with pytest.raises(DeliveryExpired):
                await message.change_invisible(60)

    stage.run(use)
    assert len(stage.of(CHANGE)) == 1


def test_a_message_that_the_broker_removed_is_an_error() -> None:
    stage = Stage({"a": [taken(stored(5))]})
    stage.answers[ACK] = lambda asked: Command(ResponseCode.NO_MESSAGE, remark="offset is illegal")

    async def use(consumer: SimpleConsumer) -> None:
        (message,) = await consumer.receive()
        with pytest.raises(DeliveryExpired, match="the message was removed"):
            await message.ack()

    stage.run(use)


# --- messages that the application does not receive ---


def test_messages_with_other_tags_are_acknowledged() -> None:
    stage = Stage({"a": [taken(stored(5, TAGS="AaAa"), stored(6, TAGS="BBBB"))]})  # the same hash

    async def use(consumer: SimpleConsumer) -> None:
        assert offsets(await consumer.receive()) == [5]
        await settled()

    stage.run(use, {"T": "AaAa"})
    assert [asked.fields["offset"] for asked in stage.of(ACK)] == ["6"]


def test_a_message_that_was_delivered_too_often_becomes_a_dead_letter() -> None:
    often = record.with_more_reconsume_times(stored(5), 2)
    stage = Stage({"a": [taken(often, record.with_more_reconsume_times(stored(6), 1))]})

    async def use(consumer: SimpleConsumer) -> None:
        (message,) = await consumer.receive()
        assert (message.queue_offset, message.attempt) == (6, 2)
        await settled()

    stage.run(use, settings=ConsumerSettings(max_reconsume_times=1))
    (dead,), (ack,) = stage.of(SEND_BACK), stage.of(ACK)
    assert (dead.fields["offset"], dead.fields["delayLevel"], ack.fields["offset"]) == ("500", "-1", "5")
    assert stage.outcomes == [(6, ConsumeReturn.FAILED)]  # left when the consumer closed


def test_a_payload_that_cannot_be_decoded_becomes_a_dead_letter() -> None:
    stage = Stage({"a": [taken(stored(5, body=b"{"), stored(6, body=b"7"))]})

    async def use(consumer: SimpleConsumer) -> None:
        (message,) = await consumer.receive()
        assert message.payload == 7
        await message.reject()
        await settled()

    stage.run(use, payload=Json(int))
    assert sorted(asked.fields["offset"] for asked in stage.of(SEND_BACK)) == ["500", "600"]
    assert stage.outcomes == [(6, ConsumeReturn.FAILED)]


# --- cancellation and closing ---


class Parking(Stage):
    """Brokers whose answer to POP_MESSAGE arrives when `arrived` is set."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.arrived = asyncio.Event()

    async def request(self, addr, code, header=None, body=b"", *, timeout_ms=3000.0) -> Command:
        if code == POP:
            await self.arrived.wait()
        return await super().request(addr, code, header, body, timeout_ms=timeout_ms)


def test_messages_that_arrive_after_a_cancellation_are_made_visible_at_once() -> None:
    stage = Parking({"a": [taken(stored(5))]})

    async def use(consumer: SimpleConsumer) -> None:
        receiving = asyncio.create_task(consumer.receive())
        await settled()
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        stage.arrived.set()
        await settled()

    stage.run(use)
    assert [asked.fields["invisibleTime"] for asked in stage.of(CHANGE)] == ["0"]


def test_closing_ends_a_waiting_call() -> None:
    stage = Parking({})
    receiving: list[asyncio.Task[object]] = []

    async def use(consumer: SimpleConsumer) -> None:
        receiving.append(asyncio.create_task(consumer.receive()))
        await settled()

    async def play() -> None:
        consumer = SimpleConsumer(instance(stage, stage.clock), "g", "T")
        async with consumer:
            await use(consumer)
        with pytest.raises(ClientClosed, match="closed while it waited"):
            await receiving[0]
        with pytest.raises(ClientClosed):
            await consumer.receive()

    asyncio.run(play())


def test_names_have_the_namespace_on_the_wire() -> None:
    """Also inside the names of retry topics, and in the body of a batch."""
    again = stored(5, topic=b"ns%T", POP_CK="5 1000 30000 3 1 a 0 5")
    stage = Stage({"a": [taken(again), taken(stored(6, topic=b"ns%T"), stored(7, topic=b"ns%T"))]})

    async def play() -> None:
        shared = instance(stage, stage.clock)
        shared.namespace = Namespace("ns")
        async with SimpleConsumer(shared, "g", "T") as consumer:
            (message,) = await consumer.receive()
            assert (message.topic, message.queue.topic) == ("T", "%RETRY%g_T")
            await message.ack()
            await consumer.ack(await consumer.receive())

    asyncio.run(play())
    assert stage.of(ACK)[0].fields["topic"] == "%RETRY%ns%g_ns%T"
    (ack,) = json.loads(stage.of(BATCH_ACK)[0].body)["acks"]
    assert (ack["c"], ack["t"]) == ("ns%g", "ns%T")


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"max_messages": 33}, "max_messages"),
        ({"invisible": 0}, "invisible"),
        ({"timeout": -1}, "timeout"),
    ],
)
def test_invalid_arguments_are_errors(arguments: dict[str, float], key: str) -> None:
    async def use(consumer: SimpleConsumer) -> None:
        with pytest.raises(ConfigError, match=key):
            await consumer.receive(**arguments)

    Stage({}).run(use)


def test_what_the_protocol_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match='choose "first" or "last"'):
        SimpleConsumer("ns:1", "g", "T", start=17)
    with pytest.raises(ConfigError, match="message_model"):
        SimpleConsumer("ns:1", "g", "T", settings=ConsumerSettings(message_model="broadcasting", offsets_dir="x"))
    with pytest.raises(ConfigError, match="no topic"):
        SimpleConsumer("ns:1", "g", [])


# --- push ---


async def pushed(consumer: SimpleConsumer, listener: Callable[..., object], seconds: float, clock: FakeClock) -> None:
    """Let a listener have messages for some seconds."""
    pushing = asyncio.create_task(consumer.push(listener, invisible=12))
    until = clock.monotonic() + seconds
    while clock.monotonic() < until and not pushing.done():
        await asyncio.sleep(0)
    pushing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await pushing


def test_a_listener_gets_what_its_calls_have_room_for_and_acknowledges_by_returning() -> None:
    stage = Stage({"a": [taken(*(stored(offset) for offset in range(5)))]})
    calls: list[list[int]] = []

    async def listener(messages: list[PoppedMessage]) -> None:
        calls.append(offsets(messages))

    async def use(consumer: SimpleConsumer) -> None:
        await pushed(consumer, listener, 30, stage.clock)

    settings = ConsumerSettings(consume_batch_max=2, concurrency=3)
    stage.run(use, settings=settings)
    assert sorted(calls) == [[0, 1], [2, 3], [4]]
    assert {asked.fields["maxMsgNums"] for asked in stage.of(POP)} == {"6"}
    assert sorted(stage.outcomes) == [(offset, ConsumeReturn.SUCCESS) for offset in range(5)]
    assert len(stage.of(ACK)) + len(stage.of(BATCH_ACK)) == 3


def test_a_message_whose_listener_fails_is_visible_again_after_its_delay_or_a_dead_letter() -> None:
    often = record.with_more_reconsume_times(stored(2), 1)
    stage = Stage({"a": [taken(stored(1), often, stored(3), stored(4))]})

    async def listener(messages: list[PoppedMessage]) -> None:
        match messages[0].queue_offset:
            case 3:
                raise ReconsumeLater("busy", delay_level=1)
            case 4:
                raise ReconsumeLater("never", delay_level=-1)
        raise ValueError("no")

    async def use(consumer: SimpleConsumer) -> None:
        await pushed(consumer, listener, 5, stage.clock)

    stage.run(use)
    delays = {asked.fields["offset"]: asked.fields["invisibleTime"] for asked in stage.of(CHANGE)}
    assert delays == {"1": "10000", "2": "30000", "3": "1000"}
    assert [asked.fields["delayLevel"] for asked in stage.of(SEND_BACK)] == ["-1"]
    assert [asked.fields["offset"] for asked in stage.of(ACK)] == ["4"]


def test_messages_stay_invisible_while_the_listener_works_and_are_acknowledged_by_their_last_handle() -> None:
    stage = Stage({"a": [taken(stored(1))]})

    async def use(consumer: SimpleConsumer) -> None:
        async def listener(messages: list[PoppedMessage]) -> None:
            until = stage.clock.monotonic() + 14  # longer than the messages are invisible
            while stage.clock.monotonic() < until:
                await asyncio.sleep(0)

        await pushed(consumer, listener, 60, stage.clock)

    stage.run(use)
    assert {asked.fields["invisibleTime"] for asked in stage.of(CHANGE)} == {"12000"}
    (acknowledged,) = stage.of(ACK)
    assert acknowledged.fields["extraInfo"].split()[1] == "2000"  # of the answer to a change
    assert stage.outcomes == [(1, ConsumeReturn.SUCCESS)]


def test_calls_that_have_begun_end_before_push_does_and_permanent_errors_are_raised() -> None:
    stage = Stage({"a": [taken(stored(1)), Command(16, remark="no permission")]})
    ended: list[int] = []

    async def use(consumer: SimpleConsumer) -> None:
        async def listener(messages: list[PoppedMessage]) -> None:
            await settled()
            ended.extend(offsets(messages))

        with pytest.raises(ReplyError, match="no permission"):
            await consumer.push(listener)
        assert ended == [1]

    stage.run(use)
    assert len(stage.of(ACK)) == 1
