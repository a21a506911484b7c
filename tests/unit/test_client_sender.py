"""Sender: number of attempts, their brokers and deadlines, and the error that is raised."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from client_script import PausingClock, Script, instance, name_server, raising, route

from ariane.client.instance.send_types import SendStatus
from ariane.client.instance.settings import ProducerSettings
from ariane.client.producer import Producer
from ariane.client.sending import send_codec
from ariane.client.sending.sender import MessageSender
from ariane.errors import ConfigError, ConnectionLost, MessageRefused, ReplyError, RequestTimeout, RouteNotFound
from ariane.model.message import Message, MessageQueue
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import properties
from ariane.protocol.requests.routing import BrokerData, QueueData, TopicRoute
from ariane.testing.clock import FakeClock

SEND = RequestCode.SEND_MESSAGE_V2
STORED = Command(0, fields={"msgId": "OFF", "queueId": "0", "queueOffset": "1"})
LATE = Command(10, fields={"msgId": "OFF", "queueId": "0", "queueOffset": "1"})


def script(*answers, brokers=("a", "b")) -> Script:
    """Gives `answers` to sends in turn; an exception among them is raised."""
    rest = list(answers)

    def answer(asked):
        item = rest.pop(0)
        if isinstance(item, Exception):
            raise item
        return item

    return Script({RequestCode.GET_ROUTEINFO_BY_TOPIC: name_server({"T": route(*brokers)}), SEND: answer})


def send(peers: Script, *, queue=None, clock=None, hooks=(), **settings):
    producer_settings = ProducerSettings(**settings)

    async def play():
        sender = MessageSender(instance(peers, clock), "g", producer_settings, hooks)
        return await sender.send(send_codec.prepare(Message(topic="T", body=b"x"), "ID", producer_settings), queue)

    return asyncio.run(play())


def brokers_asked(peers: Script) -> list[str]:
    return [request.addr for request in peers.of(SEND)]


def test_a_successful_send_is_one_request():
    peers = script(STORED)
    assert send(peers).queue_offset == 1
    assert len(brokers_asked(peers)) == 1


def test_a_failed_attempt_is_retried_at_another_broker():
    peers = script(ConnectionLost("x", "refused"), STORED)
    send(peers)
    assert sorted(brokers_asked(peers)) == ["a:1", "b:1"]


def test_the_last_error_is_raised_after_all_attempts():
    peers = script(ConnectionLost("x", "1"), Command(14, remark="2"), Command(1, remark="third"))
    with pytest.raises(ReplyError, match="third"):
        send(peers)
    assert len(brokers_asked(peers)) == 3


def with_slave(master: str, slave: str) -> TopicRoute:
    return TopicRoute((BrokerData({0: master, 1: slave}, "a"),), queue_datas=(QueueData("a", 6, 6, 0, 2),))


@pytest.mark.parametrize("failure", [ConnectionLost("a:1", "refused"), Command(14, remark="not the master")])
def test_a_send_waits_for_the_successor_of_its_only_broker(failure: Exception | Command):
    """At a switch of the master, a slave registers as master while the send has time left."""
    clock, topics = FakeClock(is_auto=True), {"T": with_slave("a:1", "b:1")}
    peers = script(*[failure] * 5, STORED)
    peers.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda asked: (
        (topics.update({"T": with_slave("b:1", "a:1")}) if clock.elapsed_ms > 1000 else None)
        or name_server(topics)(asked)
    )
    assert send(peers, clock=clock).queue_offset == 1
    assert brokers_asked(peers)[-1] == "b:1"
    assert clock.elapsed_ms < 3000


@pytest.mark.parametrize("addresses", [{0: "a:1", 1: "b:1"}, {0: "a:1"}])
def test_a_successor_is_awaited_from_any_route_of_its_only_broker(addresses: dict[int, str]):
    """The route may lack the killed master already, or be older than the registration of the slave."""
    clock = FakeClock(is_auto=True)
    queues = (QueueData("a", 6, 6, 0, 2),)
    topics = {"T": TopicRoute((BrokerData(addresses, "a"),), queue_datas=queues)}
    peers = script(ConnectionLost("a:1", "refused"), STORED)

    def routes(asked):
        answer = name_server(topics)(asked)
        topics["T"] = TopicRoute((BrokerData({1: "b:1"}, "a"),), queue_datas=queues)
        if clock.elapsed_ms > 400:
            topics["T"] = with_slave("b:1", "a:1")
        return answer

    peers.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = routes
    assert send(peers, clock=clock).queue_offset == 1
    assert brokers_asked(peers) == ["a:1", "b:1"]


def test_a_send_without_a_successor_ends_at_its_deadline():
    clock = FakeClock(is_auto=True)
    peers = script(*[ConnectionLost("a:1", "refused")] * 20)
    peers.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = name_server({"T": with_slave("a:1", "b:1")})
    with pytest.raises(ConnectionLost):
        send(peers, clock=clock)
    assert 3 <= len(brokers_asked(peers)) <= 5
    assert clock.elapsed_ms >= 3000


def test_a_failed_send_to_a_chosen_queue_fetches_the_routes_again():
    peers = script(ConnectionLost("x", "refused"))
    with pytest.raises(ConnectionLost):
        send(peers, queue=MessageQueue("T", "a", 0))


def test_a_permanent_error_ends_the_attempts():
    peers = script(Command(13, remark="too large"))
    with pytest.raises(ReplyError, match="too large"):
        send(peers)


def test_a_chosen_queue_has_one_attempt():
    peers = script(ConnectionLost("x", "refused"))
    with pytest.raises(ConnectionLost):
        # the route is not asked for by a send to a chosen queue: it came from a route
        send(peers, queue=MessageQueue("T", "a", 0))


def test_all_attempts_share_one_deadline():
    clock = FakeClock(is_auto=True)
    peers = script()

    def slow(asked):
        clock.advance_ms(2000)
        raise RequestTimeout(asked.addr, asked.timeout_ms)

    peers.answers[SEND] = slow
    with pytest.raises(RequestTimeout):
        send(peers, clock=clock)
    assert [round(request.timeout_ms) for request in peers.of(SEND)] == [3000, 1000]


def test_a_late_flush_is_a_result():
    peers = script(LATE)
    assert send(peers).status is SendStatus.FLUSH_DISK_TIMEOUT


def test_a_late_flush_is_retried_if_enabled_and_returned_if_the_retry_fails():
    peers = script(LATE, ReplyError(13, "no"))
    assert send(peers, retry_not_stored=True).status is SendStatus.FLUSH_DISK_TIMEOUT
    peers = script(LATE, STORED)
    assert send(peers, retry_not_stored=True).status is SendStatus.SEND_OK


def test_a_missing_route_is_an_immediate_error():
    peers = script()
    peers.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = name_server({})
    with pytest.raises(RouteNotFound):
        send(peers)


def test_in_flight_sends_are_bounded():
    under_way = most = 0

    async def play():
        nonlocal under_way, most
        settings = ProducerSettings(in_flight_max=3)
        peers = script()
        client = instance(peers)
        await client.routes.publish_queues("T", "TBW102", 4)

        class Slow:
            is_open = True

            async def request_nowait(self, *args, **more):
                nonlocal under_way, most
                under_way += 1
                most = max(most, under_way)
                await asyncio.sleep(0)
                under_way -= 1
                return STORED

        async def connect(addr):
            return Slow()

        peers.connect = connect
        sender = MessageSender(client, "g", settings)
        out = send_codec.prepare(Message(topic="T", body=b"x"), "ID", settings)
        results = await asyncio.gather(*(sender.send(out) for _ in range(20)))
        assert len(results) == 20

    asyncio.run(play())
    assert most == 3


def test_hooks_receive_responses_and_cannot_break_a_send():
    reported = []

    def broken(event):
        reported.append(event)
        raise RuntimeError("a hook's own fault")

    send(script(Command(14, remark="busy"), STORED), hooks=(broken, reported.append))
    first, second, third, fourth = reported
    assert first is second
    assert third is fourth
    assert first.refusal.code == 14
    assert first.result is None
    assert third.result.queue_offset == 1
    assert third.refusal is None


def test_a_missing_response_causes_no_event():
    reported = []
    send(script(ConnectionLost("x", "refused"), STORED), hooks=(reported.append,))
    assert len(reported) == 1


@pytest.mark.parametrize("pause_at", range(12))
def test_a_traced_send_interval_contains_the_store_time_despite_process_pauses(pause_at):
    """A record that ends before the broker stored the message contradicts every other record of its host."""
    clock, events, stored_at, told_at = PausingClock(pause_at), [], [], []
    peers = script()

    def store(asked):
        clock.advance_ms(0.4)
        stored_at.append(clock.time_ms)
        clock.advance_ms(0.2)
        return STORED

    peers.answers[SEND] = store
    send(peers, clock=clock, hooks=(events.append, lambda event: told_at.append(clock.time_ms)))
    (event,), (stored_ms,), (told_ms,) = events, stored_at, told_at
    # whole ms of the wall clock: the answer came before the end of the last one
    assert event.started_ms <= stored_ms < event.started_ms + event.cost_ms + 1
    assert event.started_ms + event.cost_ms <= told_ms, "a record states no end after it was written"


def test_the_send_cost_is_monotonic_if_the_wall_clock_is_set_back():
    clock, events = FakeClock(is_auto=True), []
    peers = script()

    def store(asked):
        clock.advance_ms(7)
        clock.wall_offset_ms = -5_000
        return STORED

    peers.answers[SEND] = store
    send(peers, clock=clock, hooks=(events.append,))
    assert events[0].cost_ms == 7


def producer_play(peers: Script, play, clock=None, **arguments):
    async def run():
        client = instance(peers, clock)
        peers.answers.setdefault(RequestCode.UNREGISTER_CLIENT, lambda asked: Command(0))
        async with Producer(client, "g", **arguments) as producer:
            return await play(producer)

    return asyncio.run(run())


def test_a_value_that_is_not_a_message_is_rejected():
    async def play(producer):
        for send_it in (producer.send, producer.send_one_way, producer.request):
            with pytest.raises(MessageRefused, match="5 is of type int: expected a Message"):
                await send_it(5)
        with pytest.raises(ConfigError, match="timeout = -1"):
            await producer.request(Message(topic="T", body=b"x"), timeout=-1)

    producer_play(script(), play)


@pytest.mark.parametrize(
    ("arguments", "fields", "said"),
    [
        ((Message(topic="T", body=b"x"), b"y"), {}, "body of a Message are its own"),
        ((Message(topic="T", body=b"x"),), {"keys": ["k"]}, "keys of a Message are its own"),
        (("T",), {}, r"no body for topic 'T': give send\('T', b'…'\)"),
        (("T", "text"), {}, "the body is of type str: encode it to bytes first"),
        (("T", b"x"), {"keys": "k"}, "give a list of keys"),
    ],
)
def test_arguments_that_do_not_make_a_message_are_rejected(arguments, fields, said):
    async def play(producer):
        for send_it in (producer.send, producer.send_one_way, producer.request):
            with pytest.raises(MessageRefused, match=said):
                await send_it(*arguments, **fields)

    producer_play(script(), play)


def test_a_topic_a_body_and_fields_are_a_message():
    async def play(producer):
        await producer.send("T", b"x", keys=["k1", "k2"], tags="a")
        with pytest.raises(TypeError, match="unknown argument key: a message has tags, keys"):
            await producer.send("T", b"x", key="k")

    peers = script(STORED)
    producer_play(peers, play)
    (request,) = peers.of(SEND)
    table = properties.decode(request.fields["i"])
    assert (request.body, table["KEYS"], table["TAGS"]) == (b"x", "k1 k2", "a")


def test_a_slow_broker_is_avoided_if_the_producer_wishes_so():
    clock = FakeClock()

    async def play(producer, sends):
        for _ in range(sends):
            await producer.send("T", b"x")

    def answers(slow):
        def answer(asked):
            clock.advance(1.0 if slow and asked.addr == "a:1" else 0.001)
            return STORED

        return Script({RequestCode.GET_ROUTEINFO_BY_TOPIC: name_server({"T": route("a", "b")}), SEND: answer})

    peers = answers(True)
    producer_play(
        peers, lambda producer: play(producer, 6), clock=clock, settings=ProducerSettings(avoid_slow_brokers=True)
    )
    assert brokers_asked(peers).count("a:1") == 1


def test_messages_with_one_order_key_go_to_one_queue():
    peers = script(*[STORED] * 6)

    async def play(producer):
        for _ in range(6):
            await producer.send(Message(topic="T", body=b"x"), order_key="ORDER-17")

    producer_play(peers, play)
    assert len({(request.addr, request.fields["e"]) for request in peers.of(SEND)}) == 1


def test_a_selector_must_return_a_queue():
    peers = script(STORED)

    async def play(producer):
        await producer.send(Message(topic="T", body=b"x"), selector=lambda queues, message: queues[3])
        with pytest.raises(MessageRefused, match="selector"):
            await producer.send(Message(topic="T", body=b"x"), selector=lambda queues, message: None)
        with pytest.raises(MessageRefused, match="only one of them"):
            await producer.send(
                Message(topic="T", body=b"x"), selector=lambda queues, message: queues[0], order_key="k"
            )

    producer_play(peers, play)
    assert [(request.addr, request.fields["e"]) for request in peers.of(SEND)] == [("b:1", "1")]


def test_a_one_way_send_does_not_wait_for_a_response():
    peers = script()
    peers.answers[SEND] = lambda asked: Command(0)

    async def play(producer):
        assert await producer.send_one_way(Message(topic="T", body=b"x")) is None

    producer_play(peers, play)
    assert len(peers.of(SEND)) == 1


def test_a_one_way_send_waits_while_the_broker_does_not_read():
    peers = script()
    peers.answers[SEND] = lambda asked: Command(0)
    waits = []

    async def play(producer):
        connect = producer._instance.peers.connect

        async def connect_busy(addr):
            connection = await connect(addr)
            connection.is_writable = False

            async def wait_writable(timeout_ms):
                assert not peers.of(SEND)
                waits.append(timeout_ms)
                if len(waits) > 1:
                    raise RequestTimeout(addr, timeout_ms)

            connection.wait_writable = wait_writable
            return connection

        producer._instance.peers.connect = connect_busy
        await producer.send_one_way(Message(topic="T", body=b"x"))
        peers.asked.clear()
        with pytest.raises(RequestTimeout):
            await producer.send_one_way(Message(topic="T", body=b"x"))

    producer_play(peers, play)
    assert waits == [3000, 3000]
    assert not peers.of(SEND)


def test_a_producer_group_registers_once_and_unregisters():
    peers = script()

    async def play(producer):
        with pytest.raises(ConfigError, match="already"):
            async with Producer(producer._instance, "g"):
                pass

    producer_play(peers, play)
    # the second producer found the group taken and must not have taken it away from the first
    assert [request.fields["producerGroup"] for request in peers.of(RequestCode.UNREGISTER_CLIENT)] in ([], ["g"])


def test_a_dead_broker_has_no_address():
    peers = script()
    peers.answers[SEND] = raising(AssertionError("no request is sent"))
    with pytest.raises(ConnectionLost, match="no master"):
        send(peers, queue=MessageQueue("T", "gone", 0))


RECALL = RequestCode.RECALL_MESSAGE
UNSUPPORTED = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
ARIANE_OR_4_9_4, V5_0_0 = 401, 413


def send_timed(peers: Script, *, times=1, one_way=False, message=None, **settings):
    producer_settings = ProducerSettings(**settings)
    timed = message or Message(topic="T", body=b"x", delay=60)

    async def play():
        sender = MessageSender(instance(peers), "g", producer_settings)
        for _ in range(times):
            prepared = send_codec.prepare(timed, "ID", producer_settings)
            await (sender.send_one_way(prepared) if one_way else sender.send(prepared))

    asyncio.run(play())


@pytest.mark.parametrize("one_way", [False, True])
@pytest.mark.parametrize("times", [{"delay": 60}, {"deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}], ids=str)
def test_a_delivery_time_is_refused_for_a_broker_that_would_deliver_immediately(one_way, times):
    peers = script(STORED)
    peers.answers[RECALL] = lambda asked: Command(UNSUPPORTED, version=ARIANE_OR_4_9_4)
    with pytest.raises(
        MessageRefused, match=r":1 would deliver it immediately \(RocketMQ before 5.0\): give it a delay_level"
    ):
        send_timed(peers, one_way=one_way, message=Message(topic="T", body=b"x", **times))
    assert brokers_asked(peers) == []


@pytest.mark.parametrize(
    "answer",
    [Command(ResponseCode.SYSTEM_ERROR, version=ARIANE_OR_4_9_4), Command(UNSUPPORTED, version=V5_0_0)],
    ids=["a broker that can recall", "an early 5.x broker"],
)
def test_a_broker_with_timers_is_asked_once_per_connection(answer):
    peers = script(STORED, STORED, STORED, brokers=("a",))
    peers.answers[RECALL] = lambda asked: answer
    send_timed(peers, times=3)
    assert (len(peers.of(RECALL)), len(brokers_asked(peers))) == (1, 3)


def test_the_check_for_timers_is_retried_at_another_broker():
    peers = script(STORED)
    answers = [ConnectionLost("x", "closed"), Command(ResponseCode.SYSTEM_ERROR)]

    def answer(asked):
        if isinstance(item := answers.pop(0), Exception):
            raise item
        return item

    peers.answers[RECALL] = answer
    send_timed(peers)
    assert {request.addr for request in peers.of(RECALL)} == {"a:1", "b:1"}


def test_levels_and_senders_that_check_no_timers_ask_no_broker():
    peers = script(STORED, STORED)
    send_timed(peers, message=Message(topic="T", body=b"x", delay_level=3))
    send_timed(peers, check_timers=False)
    assert len(brokers_asked(peers)) == 2
