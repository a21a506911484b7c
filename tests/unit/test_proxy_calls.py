"""Calls of the gRPC port with protobuf values and a stub of the message service: no sockets, no broker."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

pytest.importorskip("google.protobuf", reason="the extra grpc is not installed")

from ariane.broker.lifecycle.grpc_port import master_host
from ariane.errors import ReplyError, RequestTimeout
from ariane.model.message import MessageQueue
from ariane.model.topic import SubscriptionGroupConfig, TopicConfig
from ariane.net.replies import make_peer
from ariane.net.server import RemotingServer
from ariane.net.tasks import BackgroundTasks
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.records import record
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.callbacks import ConsumeDirectly, ResetOffset, RunningInfoRequest, reset_body
from ariane.protocol.requests.messaging import CheckTransactionState, SendMessageResponse
from ariane.protocol.requests.pop import ChangeInvisibleTimeResponse, PopMessage, PopMessageResponse
from ariane.protocol.requests.routing import RegisterBrokerResponse
from ariane.proxy import api
from ariane.proxy.calls.call import Call
from ariane.proxy.calls.receive_calls import ReceiveCalls
from ariane.proxy.calls.route_calls import RouteCalls
from ariane.proxy.calls.send_calls import SendCalls
from ariane.proxy.client_sessions import ClientSession, ClientSessions, SessionKey
from ariane.proxy.conversion import client_settings
from ariane.proxy.conversion.client_settings import ClientKind, ReportedSettings
from ariane.proxy.conversion.grpc_messages import SendLimits
from ariane.proxy.conversion.grpc_statuses import CallRefused, StatusCode
from ariane.proxy.conversion.receipt_handles import ReceiptHandle
from ariane.proxy.handle_renewal import FAILURES_MAX, RELEASE_MS, HandleRenewal
from ariane.proxy.message_service import BrokerTopic, Caller, PoppedRecords
from ariane.proxy.traces.message_traces import MessageTraces, TraceSource

NOW_MS = 1_700_000_000_000
PEER = make_peer(7, ("192.0.2.1", 5000))
CALLER = Caller(PEER, "client-1", "PYTHON", 479)
TOPIC, GROUP = api.Resource(name="T"), api.Resource(name="G")
HANDLE = ReceiptHandle(0, NOW_MS, 60_000, 0, "broker-a", 1, 3, 4_000)


class Settings:
    send_limits = SendLimits(1_000, 1_000)
    default_message_type = "NORMAL"


class Service:
    """Records requests; raises `failure` if it is set."""

    def __init__(self, topic: TopicConfig | None = None) -> None:
        self.requests: list[Any] = []
        self.failure: ReplyError | None = None
        self.popped = PoppedRecords("broker-a", PopMessageResponse(), b"")
        self._topic = topic or TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)

    async def topic(self, caller: Caller, name: str) -> tuple[BrokerTopic, ...]:
        return (BrokerTopic("broker-a", self._topic),)

    async def group(self, caller: Caller, name: str) -> SubscriptionGroupConfig:
        return SubscriptionGroupConfig(group_name=name, retry_max_times=1)

    async def send(self, caller: Caller, broker: str, request: Any, body: bytes) -> SendMessageResponse:
        self._note(request)
        return SendMessageResponse("C0000201000013880000000000000FA0", request.queue_id, 5)

    async def pop(self, caller: Caller, broker: str, request: Any) -> PoppedRecords:
        self._note(request)
        return self.popped

    async def acknowledge(self, caller: Caller, broker: str, request: Any) -> None:
        self._note(request)

    async def send_back(self, caller: Caller, broker: str, request: Any) -> None:
        self._note(request)

    async def change_invisible_time(self, caller: Caller, broker: str, request: Any) -> ChangeInvisibleTimeResponse:
        self._note(request)
        return ChangeInvisibleTimeResponse(NOW_MS + 1, request.invisible_time, 0)

    def _note(self, request: Any) -> None:
        self.requests.append(request)
        if self.failure is not None:
            raise self.failure


class Offsets:
    def __init__(self) -> None:
        self.committed: list[tuple[str, str, int, int]] = []

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.committed.append((group, topic, queue_id, offset))


def traces() -> MessageTraces:
    """Return traces that are off."""
    source = TraceSource("192.0.2.9:10911", "RMQ_SYS_TRACE_TOPIC", "")
    return MessageTraces(writer=None, source=source, is_on=lambda: False, now_ms=lambda: NOW_MS)  # type: ignore[arg-type]


def session() -> ClientSession:
    return ClientSession(SessionKey("client-1", ""), PEER, RemotingServer({}, "127.0.0.1", 0), Offsets(), NOW_MS)


def call(remaining_ms: float | None = 23_000) -> Call:
    return Call(CALLER, session(), remaining_ms)


# --- routes ---


@pytest.mark.parametrize(
    ("perm", "read", "write", "permissions"),
    [
        (6, 2, 2, [4, 4]),
        (6, 3, 1, [2, 2, 4]),
        (6, 1, 3, [3, 3, 4]),
        (4, 2, 2, [2, 2]),
        (2, 2, 2, [3, 3]),
        (0, 2, 1, [1, 1]),
    ],
)
def test_queues_are_listed_by_what_they_permit(perm: int, read: int, write: int, permissions: list[int]) -> None:
    topic = TopicConfig(topic_name="T", perm=perm, read_queue_nums=read, write_queue_nums=write)
    routes = RouteCalls(service=Service(topic), settings=Settings(), advertised="", host="192.0.2.9", port=8081)
    reply = asyncio.run(routes.query_route(api.QueryRouteRequest(topic=TOPIC), call()))
    assert [queue.permission for queue in reply.message_queues] == permissions
    assert [queue.id for queue in reply.message_queues] == list(range(len(permissions)))


@pytest.mark.parametrize(("advertised", "scheme"), [("192.0.2.8", 1), ("2001:db8::1", 2), ("broker.example", 3)])
def test_an_advertised_address_is_in_each_route(advertised: str, scheme: int) -> None:
    routes = RouteCalls(service=Service(), settings=Settings(), advertised=advertised, host="192.0.2.9", port=8081)
    reached = {"scheme": 1, "addresses": [{"host": "192.0.2.7", "port": 1}]}
    reply = asyncio.run(routes.query_route(api.QueryRouteRequest(topic=TOPIC, endpoints=reached), call()))
    endpoints = reply.message_queues[0].broker.endpoints
    assert (endpoints.scheme, endpoints.addresses[0].host, endpoints.addresses[0].port) == (scheme, advertised, 8081)


def test_the_route_of_a_slave_is_that_of_its_master() -> None:
    master = BrokerTopic("broker-a", TopicConfig(topic_name="T"), host="192.0.2.6")

    class SlaveService(Service):
        async def topic(self, caller: Caller, name: str) -> tuple[BrokerTopic, ...]:
            return (master,)

    routes = RouteCalls(service=SlaveService(), settings=Settings(), advertised="", host="192.0.2.9", port=8081)
    reached = {"scheme": 1, "addresses": [{"host": "192.0.2.9", "port": 8081}]}
    reply = asyncio.run(routes.query_route(api.QueryRouteRequest(topic=TOPIC, endpoints=reached), call()))
    broker = reply.message_queues[0].broker
    assert (broker.id, broker.endpoints.addresses[0].host, broker.endpoints.addresses[0].port) == (0, "192.0.2.6", 8081)


@pytest.mark.parametrize(
    ("is_slave", "addr", "expected"),
    [(True, "192.0.2.6:10911", "192.0.2.6"), (True, None, ""), (False, "192.0.2.6:10911", "")],
)
def test_a_slave_alone_leads_clients_to_its_master(is_slave: bool, addr: str | None, expected: str) -> None:
    services = SimpleNamespace(
        settings=SimpleNamespace(current=SimpleNamespace(is_slave=is_slave)),
        registration=SimpleNamespace(master=RegisterBrokerResponse(master_addr=addr)),
    )
    assert master_host(services) == expected  # type: ignore[arg-type]


# --- sends ---


def send(service: Service, *messages: Any) -> Any:
    sends = SendCalls(service=service, settings=Settings(), traces=traces(), now_ms=lambda: NOW_MS)
    return asyncio.run(sends.send_message(api.SendMessageRequest(messages=messages), call()))


def message(topic: str = "T", **system: Any) -> Any:
    return api.Message(topic={"name": topic}, body=b"x", system_properties={"message_id": "01", **system})


def test_messages_without_a_group_take_the_queues_in_turn() -> None:
    service = Service()
    reply = send(service, message(), message(), message())
    assert [request.queue_id for request in service.requests] == [0, 1, 0]
    assert [entry.offset for entry in reply.entries] == [5, 5, 5]
    assert service.requests[0].producer_group == "T"  # checks of transactions find its producers by the topic


def test_entries_have_their_own_status() -> None:
    service = Service()
    service.failure = ReplyError(ResponseCode.FLUSH_DISK_TIMEOUT, None)
    reply = send(service, message())
    assert reply.status.code == reply.entries[0].status.code == StatusCode.MASTER_PERSISTENCE_TIMEOUT


def test_a_type_that_the_topic_does_not_accept_is_refused() -> None:
    with pytest.raises(CallRefused, match="the expected type is NORMAL, but actual type is FIFO") as caught:
        send(Service(), message(message_group="g"))
    assert caught.value.code is StatusCode.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    fifo = TopicConfig(topic_name="T", attributes={"message.type": "FIFO"}, read_queue_nums=1, write_queue_nums=1)
    assert send(Service(fifo), message(message_group="g")).status.code == StatusCode.OK


def test_messages_of_several_topics_are_refused() -> None:
    with pytest.raises(CallRefused, match="topic in message is not same"):
        send(Service(), message(), message("U"))


# --- receiving ---


def receiving(service: Service) -> ReceiveCalls:
    return ReceiveCalls(
        service=service,
        renewal=HandleRenewal(
            service=service, traces=traces(), is_connected=lambda number: True, now_ms=lambda: NOW_MS
        ),
        traces=traces(),
        tasks=None,  # type: ignore[arg-type]
        now_ms=lambda: NOW_MS,
    )


def receive(calls: ReceiveCalls, made: Call, **fields: Any) -> list[Any]:
    values = {
        "group": GROUP,
        "message_queue": {"topic": TOPIC, "id": 3},
        "batch_size": 40,
        "auto_renew": True,
        **fields,
    }

    async def collect() -> list[Any]:
        return [reply async for reply in calls.receive(api.ReceiveMessageRequest(**values), made)]

    return asyncio.run(collect())


@pytest.mark.parametrize(
    ("polling", "remaining_ms", "poll_ms"),
    [
        ({"seconds": 20}, 23_000, 20_000),
        ({"seconds": 1}, 23_000, 5_000),
        ({"seconds": 60}, 63_000, 20_000),
        ({"seconds": 20}, 10_000, 9_800),
        ({"seconds": 20}, None, 20_000),
        (None, 12_000, 10_500),  # half of the request timeout is for the way
        (None, None, 20_000),
    ],
)
def test_a_call_is_answered_before_its_deadline(polling: Any, remaining_ms: float | None, poll_ms: int) -> None:
    service = Service()
    fields = {} if polling is None else {"long_polling_timeout": polling}
    receive(receiving(service), call(remaining_ms), **fields)
    (popped,) = service.requests
    assert (popped.poll_time, popped.queue_id, popped.max_msg_nums, popped.invisible_time) == (poll_ms, -1, 32, 60_000)


def stored(offset: int, reconsume_times: int, tag: str) -> bytes:
    return record.encode(
        b"T", b"body", f"UNIQ_KEY\x010{offset}\x02TAGS\x01{tag}".encode(), queue_id=1, queue_offset=offset, offset=4_000,
        born_ms=NOW_MS, born_host=PEER.packed, store_ms=NOW_MS, store_host=PEER.packed, flag=0, sys_flag=0,
        reconsume_times=reconsume_times,
    )  # fmt: skip


def test_messages_without_attempts_or_with_another_tag_are_not_delivered() -> None:
    service = Service()
    header = PopMessageResponse(NOW_MS, 60_000, 0, 0, "0 1 3", "0 1 3,4,5")
    # "AaAa" and "BBBB" have one hash, which is all that the broker compares.
    records = stored(3, 0, "AaAa") + stored(4, 0, "BBBB") + stored(5, 2, "AaAa")
    service.popped = PoppedRecords("broker-a", header, records)
    calls = receiving(service)
    replies = receive(calls, call(), filter_expression={"expression": "AaAa"})
    (delivered,) = [reply.message for reply in replies if reply.HasField("message")]
    assert delivered.system_properties.receipt_handle == f"3 {NOW_MS} 60000 0 0 broker-a 1 3 4000"
    _, skipped, dead, acknowledged = service.requests
    assert (skipped.offset, dead.delay_level, dead.offset, acknowledged.offset) == (4, -1, 4_000, 5)
    assert calls.renewal.count == 1


# --- renewal ---


class Renewed:
    """A renewal with one open delivery."""

    def __init__(self) -> None:
        self.service, self.now_ms, self.is_connected = Service(), NOW_MS, True
        self.renewal = HandleRenewal(
            service=self.service,
            traces=traces(),
            is_connected=lambda number: self.is_connected,
            now_ms=lambda: self.now_ms,
        )
        popped = PopMessage("G", "T", -1, 32, 60_000, 0)
        self.renewal.add(CALLER, session(), popped, HANDLE)

    def scan(self, at_ms: int) -> list[int]:
        """Return the invisible times that a scan at this time requested."""
        self.now_ms, before = NOW_MS + at_ms, len(self.service.requests)
        asyncio.run(self.renewal.renew_due())
        return [request.invisible_time for request in self.service.requests[before:]]


def test_a_delivery_is_renewed_shortly_before_its_end_and_retains_its_handle() -> None:
    renewed = Renewed()
    assert renewed.scan(45_000) == []
    assert renewed.scan(51_000) == [60_000]
    assert renewed.service.requests[0].extra_info == f"0 {NOW_MS} 60000 999 0 broker-a 1 3"
    assert renewed.scan(100_000) == []
    assert renewed.scan(102_000) == [180_000]


def test_a_renewed_delivery_of_a_broker_that_changes_handles_is_acknowledged_by_the_first_one() -> None:
    """As brokers of Apache do, whose handles of retries also name another topic."""
    service, renewed = Service(), Renewed()
    first = msgspec.structs.replace(HANDLE, retry=1)
    renewed.service = service
    renewed.renewal = HandleRenewal(
        service=service, traces=traces(), is_connected=lambda number: True, now_ms=lambda: renewed.now_ms
    )
    popped = PopMessage("G", "T", -1, 32, 60_000, 0)
    renewed.renewal.add(CALLER, session(), popped, first, retains_handle=False)
    assert (renewed.scan(51_000), renewed.scan(102_000)) == ([60_000], [180_000])
    topics = [(request.topic, request.extra_info) for request in service.requests]
    assert topics == [
        ("%RETRY%G_T", f"0 {NOW_MS} 60000 0 1 broker-a 1 3"),
        ("%RETRY%G_T", f"3 {NOW_MS + 1} 60000 0 1 broker-a 1 3"),
    ]
    assert renewed.renewal.current("G", "T", first).extra_info == f"3 {NOW_MS + 1} 180000 0 1 broker-a 1 3"
    renewed.renewal.close(first.key("G", "T"), first.taken_ms)
    assert renewed.renewal.count == 0


def test_an_acknowledged_delivery_is_not_renewed() -> None:
    renewed = Renewed()
    renewed.renewal.close(HANDLE.key("G", "T"), HANDLE.taken_ms)
    assert renewed.scan(51_000) == []


def test_other_calls_are_served_between_the_acknowledgements_of_a_large_one() -> None:
    service = Service()
    entries = [api.AckMessageEntry(message_id="ID", receipt_handle=str(HANDLE))] * 1_000
    counts: list[int] = []

    async def count() -> None:
        while len(service.requests) < len(entries):
            counts.append(len(service.requests))
            await asyncio.sleep(0)

    async def run() -> Any:
        counting = asyncio.create_task(count())
        reply = await receiving(service).ack_message(
            api.AckMessageRequest(group=GROUP, topic=TOPIC, entries=entries), call()
        )
        await counting
        return reply

    assert len(asyncio.run(run()).entries) == 1_000
    assert max(after - before for before, after in itertools.pairwise(counts)) <= 100


def test_a_refused_change_or_dead_letter_ends_no_renewal() -> None:
    """The renewal ended before the broker had checked the account."""
    renewed = Renewed()
    calls = ReceiveCalls(
        service=renewed.service,
        renewal=renewed.renewal,
        traces=traces(),
        tasks=BackgroundTasks("test"),
        now_ms=lambda: NOW_MS,
    )
    fields = {"group": GROUP, "topic": TOPIC, "receipt_handle": str(HANDLE)}
    change = api.ChangeInvisibleDurationRequest(invisible_duration={"seconds": 1}, **fields)
    bury = api.ForwardMessageToDeadLetterQueueRequest(**fields)
    renewed.service.failure = ReplyError(ResponseCode.NO_PERMISSION, "denied")
    for refused in (
        lambda: calls.change_invisible_duration(change, call()),
        lambda: calls.forward_message_to_dead_letter_queue(bury, call()),
    ):
        with pytest.raises(ReplyError):
            asyncio.run(refused())
        assert renewed.renewal.count == 1
    renewed.service.failure = None
    asyncio.run(calls.change_invisible_duration(change, call()))
    assert renewed.renewal.count == 0


def test_a_delivery_of_an_ended_client_is_released() -> None:
    renewed = Renewed()
    renewed.is_connected = False
    assert renewed.scan(5_000) == [RELEASE_MS]
    assert renewed.renewal.count == 0


def test_a_delivery_that_cannot_be_renewed_is_left_to_others() -> None:
    renewed = Renewed()
    renewed.service.failure = ReplyError(ResponseCode.SYSTEM_BUSY, "busy")
    for attempt in range(FAILURES_MAX):
        assert renewed.renewal.count == 1
        renewed.scan(51_000 + attempt)
    assert renewed.renewal.count == 0


def test_renewals_end_three_hours_after_the_delivery() -> None:
    renewed, at_ms = Renewed(), 51_000
    while renewed.renewal.count:
        renewed.scan(at_ms)
        at_ms += 5_000
    assert 3 * 3_600_000 <= at_ms < 4.1 * 3_600_000


# --- sessions ---


def test_heartbeats_of_a_client_without_settings_name_what_it_has_called() -> None:
    made = session()
    data = client_settings.subscription_data(TOPIC, api.FilterExpression(expression="a"), NOW_MS)
    made.note_subscription("G", data)
    (consumer,) = made.heartbeat(ClientKind.SIMPLE_CONSUMER, "G").consumers
    assert (consumer.group_name, consumer.consume_type) == ("G", "CONSUME_ACTIVELY")
    assert consumer.subscription_data_set == (data,)
    made.note_topic("T")
    assert [producer.group_name for producer in made.heartbeat(ClientKind.PRODUCER, "").producers] == ["T"]


def test_a_transaction_check_becomes_a_command_of_the_stream() -> None:
    async def check() -> None:
        made = session()
        assert not made.is_writable
        made.stream = asyncio.Queue(1)
        assert made.is_writable
        header = CheckTransactionState(12, 4_096, "01", "01", "x")
        fields = encode_header(header) | {"bname": "b"}
        made.one_way(RequestCode.CHECK_TRANSACTION_STATE, fields, stored(3, 0, "A"))
        assert not made.is_writable  # the client does not read
        command = made.stream.get_nowait().recover_orphaned_transaction_command
        assert (command.transaction_id, command.message.body, command.message.topic.name) == (
            "01:12:4096:b",
            b"body",
            "T",
        )

    asyncio.run(check())


def test_sessions_are_numbered_as_connections_and_end_with_them() -> None:
    async def check() -> None:
        lost: list[int] = []
        server = RemotingServer({}, "127.0.0.1", 0, on_lost=lambda peer: lost.append(peer.id))
        sessions = ClientSessions(server, Offsets(), lambda: NOW_MS)
        first = sessions.open(SessionKey("a", ""), PEER)
        assert sessions.open(SessionKey("a", ""), PEER) is first
        other = sessions.open(SessionKey("a", "account"), PEER)  # another account with the same id
        assert (server.connection_count, other.peer.id) == (2, first.peer.id + 1)
        server.close_peer(first.peer.id)
        assert (lost, server.is_connected(first.peer.id)) == ([first.peer.id], False)
        assert sessions.open(SessionKey("a", ""), PEER) is not first

    asyncio.run(check())


def test_a_session_beyond_the_limit_of_connections_is_refused() -> None:
    async def check() -> None:
        server = RemotingServer({}, "127.0.0.1", 0)
        server.limits.quotas.set_limits({"serverConnectionsMax": 1})
        sessions = ClientSessions(server, Offsets(), lambda: NOW_MS)
        sessions.open(SessionKey("a", ""), PEER)
        with pytest.raises(ReplyError) as caught:
            sessions.open(SessionKey("b", ""), PEER)
        assert caught.value.code == ResponseCode.SYSTEM_BUSY

    asyncio.run(check())


def test_requests_about_a_consumer_are_answered_by_its_stream() -> None:
    async def check() -> None:
        made = session()
        made.stream = asyncio.Queue(8)
        made.settings = ReportedSettings(ClientKind.PUSH_CONSUMER, group="G", properties={"platform": "x"})
        info = RunningInfoRequest("G", "client-1", True)
        asking = asyncio.ensure_future(
            made.request(RequestCode.GET_CONSUMER_RUNNING_INFO, encode_header(info), timeout_ms=10_000)
        )
        command = (await made.stream.get()).print_thread_stack_trace_command
        result = api.TelemetryCommand(thread_stack_trace={"nonce": command.nonce, "thread_stack_trace": "main"})
        made.on_result(command.nonce, result)
        made.on_result("another", result)
        body = (await asking).body
        assert b'"jstack":"main"' in body and b'"platform":"x"' in body

        header = encode_header(ConsumeDirectly("G", "client-1", "x", "broker-a"))
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        for status, outcome in ((20000, b"CR_SUCCESS"), (60000, b"CR_LATER")):
            asking = asyncio.ensure_future(made.request(code, header, stored(3, 0, "A"), timeout_ms=10_000))
            command = (await made.stream.get()).verify_message_command
            assert command.message.body == b"body"
            made.on_result(command.nonce, api.TelemetryCommand(status={"code": status}))
            assert outcome in (await asking).body
        with pytest.raises(RequestTimeout):
            await made.request(code, header, stored(3, 0, "A"), timeout_ms=1)

    asyncio.run(check())


def test_offsets_that_a_tool_resets_are_committed() -> None:
    offsets = Offsets()
    made = ClientSession(SessionKey("client-1", ""), PEER, RemotingServer({}, "127.0.0.1", 0), offsets, NOW_MS)
    body = reset_body({MessageQueue("T", "broker-a", 1): 7})
    made.one_way(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, encode_header(ResetOffset("T", "G", 0, True)), body)
    assert offsets.committed == [("G", "T", 1, 7)]
