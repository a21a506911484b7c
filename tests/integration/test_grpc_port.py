"""The gRPC port of a broker over real channels: calls, refusals, deadlines, restarts, TLS, access control."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the extra grpc is not installed")

import grpc
import grpc.aio

from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BrokerConfig
from ariane.errors import ConfigError
from ariane.model import clock_offset, host
from ariane.model.topic import TopicConfig
from ariane.model.trace_event import ConsumeEndEvent, ConsumeStartEvent, PublishEvent
from ariane.net.limits.connection_limits import ConnectionLimits
from ariane.protocol import trace_codec
from ariane.protocol.records import record
from ariane.protocol.versions import version_name
from ariane.proxy import api
from ariane.proxy.conversion.grpc_statuses import StatusCode
from ariane.proxy.transport import byte_bridge, native_transport
from ariane.proxy.transport.aio_transport import AioTransport
from ariane.store.message_store import RecordFilter
from grpc_transports import TRANSPORTS

TOPIC, GROUP = {"name": "T"}, {"name": "G"}
DEFAULTS: dict[str, Any] = {}


@pytest.fixture(autouse=True, params=TRANSPORTS)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the transport of the brokers of a test; each test runs with both."""
    name: str = request.param
    monkeypatch.setitem(DEFAULTS, "grpc_transport", name)
    return name


def config(path: Path, **settings: Any) -> BrokerConfig:
    values = {
        "mapped_file_size_commit_log": 1 << 20,
        "mapped_file_size_consume_queue": 20_000,
        "broker_name": "broker-a",
    }
    values |= {"listen_port": 0, "grpc_server_enable": True, "grpc_server_port": 0, "store_path_root_dir": str(path)}
    return BrokerConfig(**{**values, "namesrv_addr": "", **DEFAULTS, **settings})


class Client:
    """A client of the port, with the bytes and headers of an official one."""

    def __init__(self, channel: Any, client_id: str = "client-1", **metadata: str) -> None:
        self._channel = channel
        self._metadata = {"x-mq-client-id": client_id, "x-mq-language": "PYTHON", **metadata}

    def _headers(self) -> list[tuple[str, str]]:
        return list({name.replace("_", "-"): value for name, value in self._metadata.items()}.items())

    async def call(self, name: str, timeout_s: float = 20, **fields: Any) -> Any:
        request, response = getattr(api, f"{name}Request"), getattr(api, f"{name}Response")
        method = self._channel.unary_unary(f"/{api.SERVICE}/{name}", request.SerializeToString, response.FromString)
        return await method(request(**fields), timeout=timeout_s, metadata=self._headers())

    def receiving(self, timeout_s: float = 25, **fields: Any) -> Any:
        values = {"group": GROUP, "message_queue": {"topic": TOPIC, "id": -1}, "batch_size": 32, "auto_renew": True}
        values |= {"long_polling_timeout": {"seconds": 5}, **fields}
        request, response = api.ReceiveMessageRequest, api.ReceiveMessageResponse
        path = f"/{api.SERVICE}/ReceiveMessage"
        method = self._channel.unary_stream(path, request.SerializeToString, response.FromString)
        return method(request(**values), timeout=timeout_s, metadata=self._headers())

    async def receive(self, **fields: Any) -> list[Any]:
        """Return the replies of a receive call: a status, messages, a timestamp."""
        return [reply async for reply in self.receiving(**fields)]

    async def messages(self, **fields: Any) -> list[Any]:
        return [reply.message for reply in await self.receive(**fields) if reply.HasField("message")]

    async def send(self, body: bytes = b"body", **system: Any) -> Any:
        system = {"message_id": f"01{body.hex()}", **system}
        return await self.call("SendMessage", messages=[{"topic": TOPIC, "body": body, "system_properties": system}])

    async def acknowledge(self, *messages: Any) -> Any:
        entries = [
            {"message_id": m.system_properties.message_id, "receipt_handle": m.system_properties.receipt_handle}
            for m in messages
        ]
        return await self.call("AckMessage", group=GROUP, topic=TOPIC, entries=entries)

    def telemetry(self) -> Any:
        command = api.TelemetryCommand
        path = f"/{api.SERVICE}/Telemetry"
        method = self._channel.stream_stream(path, command.SerializeToString, command.FromString)
        return method(metadata=self._headers())


def serving(path: Path, test: Callable[[Broker, Client], Awaitable[None]], **settings: Any) -> None:
    """Run a test with a broker that has the topic T."""

    async def run() -> None:
        async with Broker(config(path, **settings)) as broker:
            broker.services.state.topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4))
            async with opened(broker) as channel:
                await test(broker, Client(channel))

    asyncio.run(run())


def opened(broker: Broker) -> Any:
    assert broker.proxy is not None
    return grpc.aio.insecure_channel(f"127.0.0.1:{broker.proxy.port}")


def code_of(reply: Any) -> int:
    return int(reply.status.code)


def test_a_message_is_sent_received_and_acknowledged(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Client) -> None:
        sent = await client.send(b"one", tag="A", keys=["k"])
        (entry,) = sent.entries
        assert (code_of(sent), entry.message_id, entry.transaction_id) == (20000, "016f6e65", "016f6e65")
        replies = await client.receive()
        assert [reply.WhichOneof("content") for reply in replies] == ["status", "message", "delivery_timestamp"]
        assert code_of(replies[0]) == 20000
        (message,) = [reply.message for reply in replies if reply.HasField("message")]
        assert (message.body, message.system_properties.tag) == (b"one", "A")
        reply = await client.acknowledge(message)
        assert (code_of(reply), code_of(reply.entries[0])) == (20000, 20000)
        assert code_of(await client.acknowledge(message)) == 20000  # once more, without effect

    serving(tmp_path, test)


def test_the_broker_writes_the_traces_of_its_clients(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Client) -> None:
        await client.send(b"one", tag="A", keys=["k"])
        (message,) = await client.messages()
        await client.acknowledge(message)
        await broker.services.traces.flush()
        store = broker.services.store
        result = store.get("RMQ_SYS_TRACE_TOPIC", 0, 0, 32, RecordFilter())
        stored = list(record.decode_all(result.body))
        events = [event for item in stored for event in trace_codec.decode(item.body)[0]]
        kinds = [type(event) for event in events]
        assert kinds == [PublishEvent, ConsumeStartEvent, ConsumeEndEvent]
        assert {event.message_id for event in events} == {"016f6e65"}
        assert {host.ip_of(host.text(item.born_host)) for item in stored} == {"127.0.0.1"}
        offsets = {item.property_map()[clock_offset.PROPERTY] for item in stored}
        assert offsets == {f"{broker.addr} 0 0"}  # readers need not correct the times

    serving(tmp_path, test)


def test_traces_can_be_turned_off(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Client) -> None:
        await client.send(b"one")
        await broker.services.traces.flush()
        assert broker.services.store.max_offset("RMQ_SYS_TRACE_TOPIC", 0) == 0

    serving(tmp_path, test, grpc_trace_enable=False)


def test_a_message_group_stays_in_one_queue(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Client) -> None:
        for number in range(8):
            await client.send(b"%d" % number, message_group="g")
        got = await client.messages()
        assert [m.body for m in got] == [b"%d" % number for number in range(8)]
        assert len({m.system_properties.queue_id for m in got}) == 1

    serving(tmp_path, test)


def test_routes_lead_to_where_the_client_has_reached_the_broker(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Client) -> None:
        endpoints = {"scheme": 3, "addresses": [{"host": "outside.example", "port": 18081}]}
        route = await client.call("QueryRoute", topic=TOPIC, endpoints=endpoints)
        assert [queue.id for queue in route.message_queues] == [0, 1, 2, 3]
        queue = route.message_queues[0]
        assert (queue.permission, list(queue.accept_message_types)) == (4, [1, 2, 3, 4])
        assert (queue.broker.name, queue.broker.endpoints.addresses[0].host) == ("broker-a", "outside.example")
        assigned = await client.call("QueryAssignment", topic=TOPIC, group=GROUP, endpoints=endpoints)
        assert [each.message_queue.id for each in assigned.assignments] == [-1]
        several = {"scheme": 1, "addresses": [{"host": "10.0.0.1", "port": 8081}, {"host": "10.0.0.2", "port": 8081}]}
        route = await client.call("QueryRoute", topic=TOPIC, endpoints=several)
        assert broker.proxy is not None
        address = route.message_queues[0].broker.endpoints.addresses[0]
        assert (address.host, address.port) == ("127.0.0.1", broker.proxy.port)

    serving(tmp_path, test)


def test_a_parked_call_is_woken_by_a_message_and_by_one_that_is_visible_again(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Client) -> None:
        call = asyncio.ensure_future(client.messages(long_polling_timeout={"seconds": 20}))
        await parked(broker, 1)
        await client.send(b"late")
        (message,) = await call
        call = asyncio.ensure_future(client.messages(long_polling_timeout={"seconds": 20}))
        await parked(broker, 1)
        handle = message.system_properties.receipt_handle
        changed = await client.call(
            "ChangeInvisibleDuration",
            group=GROUP,
            topic=TOPIC,
            receipt_handle=handle,
            invisible_duration={"nanos": 1_000_000},
        )
        assert code_of(changed) == 20000 and changed.receipt_handle != handle
        (again,) = await call
        assert (again.body, again.system_properties.delivery_attempt) == (b"late", 2)

    serving(tmp_path, test)


async def parked(broker: Broker, count: int) -> None:
    polls = broker.handlers.pop.polls
    while polls.count("G", "T", -1) != count:
        await asyncio.sleep(0.001)


def test_a_cancelled_call_is_not_parked_any_more(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Client) -> None:
        call = client.receiving(long_polling_timeout={"seconds": 20})
        reading = asyncio.ensure_future(call.read())
        await parked(broker, 1)
        call.cancel()
        await parked(broker, 0)
        with pytest.raises(asyncio.CancelledError):
            await reading

    serving(tmp_path, test)


def test_calls_of_a_lost_connection_are_not_parked_any_more(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Client) -> None:
        other = opened(broker)
        call = Client(other, "client-2").receiving(long_polling_timeout={"seconds": 20})
        reading = asyncio.ensure_future(call.read())
        await parked(broker, 1)
        await other.close()
        await parked(broker, 0)
        await asyncio.gather(reading, return_exceptions=True)

    serving(tmp_path, test)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"long_polling_timeout": {"seconds": 5}, "group": {"name": " "}}, StatusCode.ILLEGAL_CONSUMER_GROUP),
        ({"message_queue": {"topic": {"name": "absent"}}}, StatusCode.TOPIC_NOT_FOUND),
        ({"auto_renew": False}, StatusCode.ILLEGAL_INVISIBLE_TIME),
        ({"filter_expression": {"expression": "||"}}, StatusCode.ILLEGAL_FILTER_EXPRESSION),
        ({"filter_expression": {"type": 2, "expression": "a >"}}, StatusCode.ILLEGAL_FILTER_EXPRESSION),
        ({"timeout_s": 2}, StatusCode.ILLEGAL_POLLING_TIME),
        ({}, StatusCode.MESSAGE_NOT_FOUND),
    ],
)
def test_receive_calls_without_messages(tmp_path: Path, fields: dict[str, Any], code: StatusCode) -> None:
    async def test(broker: Broker, client: Client) -> None:
        replies = await client.receive(**fields)
        assert code_of(replies[0]) == code

    serving(tmp_path, test)


def test_refusals_have_the_status_of_their_reason(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Client) -> None:
        broker.services.state.topics.put(TopicConfig(topic_name="R", perm=4, read_queue_nums=1, write_queue_nums=1))
        absent = {"topic": {"name": "absent"}, "body": b"x", "system_properties": {"message_id": "1"}}
        assert code_of(await client.call("SendMessage", messages=[absent])) == StatusCode.TOPIC_NOT_FOUND
        assert (
            code_of(await client.call("SendMessage", messages=[{**absent, "topic": {"name": "R"}}]))
            == StatusCode.FORBIDDEN
        )
        assert code_of(await client.call("SendMessage")) == StatusCode.MESSAGE_CORRUPTED
        assert code_of(await client.call("QueryRoute", topic={"name": "absent"})) == StatusCode.TOPIC_NOT_FOUND
        entries = [{"message_id": "1", "receipt_handle": "x"}]
        reply = await client.call("AckMessage", group=GROUP, topic=TOPIC, entries=entries)
        assert code_of(reply.entries[0]) == code_of(reply) == StatusCode.INVALID_RECEIPT_HANDLE
        gone = {"message_id": "1", "receipt_handle": "99 1 60000 0 0 broker-a 0 99 0"}
        reply = await client.call("AckMessage", group=GROUP, topic=TOPIC, entries=[gone])
        assert code_of(reply) == StatusCode.INVALID_RECEIPT_HANDLE
        ended = await client.call("EndTransaction", topic=TOPIC, transaction_id="01:5:5", resolution=1)
        assert code_of(ended) >= 40000
        recalled = await client.call("RecallMessage", topic=TOPIC, recall_handle="x")
        assert code_of(recalled) == StatusCode.INTERNAL_SERVER_ERROR
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client._channel.unary_unary(f"/{api.SERVICE}/PullMessage")(b"", metadata=client._headers())
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        client._metadata["x-mq-client-id"] = ""
        assert code_of(await client.call("Heartbeat", client_type=1)) == StatusCode.CLIENT_ID_REQUIRED

    serving(tmp_path, test)


def test_settings_make_a_member_and_termination_ends_it(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Client) -> None:
        client._metadata["x-mq-client-version"] = "5.1.2"
        stream = client.telemetry()
        subscription = {"group": GROUP, "subscriptions": [{"topic": TOPIC, "expression": {"expression": "*"}}]}
        await stream.write(api.TelemetryCommand(settings={"client_type": 2, "subscription": subscription}))
        answer = await stream.read()
        assert answer.settings.backoff_policy.max_attempts == 17
        members = broker.services.clients.members
        (member,) = members.consumer_members("G")
        assert (member.client_id, version_name(member.version)) == ("client-1", "V5_1_2")
        assert members.subscription("G", "T") is not None
        assert broker.services.state.topics.get("%RETRY%G") is not None  # consoles look for it
        assert code_of(await client.call("NotifyClientTermination", group=GROUP)) == 20000
        assert members.client_ids("G") == []
        assert await stream.read() is grpc.aio.EOF

    serving(tmp_path, test)


def test_settings_that_cannot_be_served_end_the_stream_with_the_reason(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Client) -> None:
        stream = client.telemetry()
        await stream.write(
            api.TelemetryCommand(settings={"client_type": 2, "subscription": {"group": {"name": "a b"}}})
        )
        with pytest.raises(grpc.aio.AioRpcError, match=r"the specified group\[a b\]") as caught:
            await stream.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    serving(tmp_path, test)


def test_a_client_without_settings_goes_on_after_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        async with Broker(config(tmp_path)) as broker:
            broker.services.state.topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4))
            async with opened(broker) as channel:
                client = Client(channel)
                await client.send(b"one")
                (message,) = await client.messages()
                half = await client.send(b"half", message_type=4)
        async with Broker(config(tmp_path)) as broker, opened(broker) as channel:
            client = Client(channel)
            assert code_of(await client.acknowledge(message)) == 20000  # the handle is that of before
            identity = half.entries[0]
            ended = await client.call(
                "EndTransaction",
                topic=TOPIC,
                message_id=identity.message_id,
                transaction_id=identity.transaction_id,
                resolution=1,
            )
            assert code_of(ended) == 20000
            assert [m.body for m in await client.messages()] == [b"half"]
            assert code_of(await client.call("Heartbeat", group=GROUP, client_type=2)) == 20000
            subscription = broker.services.clients.members.subscription("G", "T")
            assert subscription is not None and subscription.sub_string == "*"

    asyncio.run(run())


def test_a_message_without_attempts_left_is_a_dead_letter(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Client) -> None:
        group = broker.services.state.groups.get_or_create("G")
        assert group is not None
        import msgspec

        broker.services.state.groups.put(msgspec.structs.replace(group, retry_max_times=0))
        await client.send(b"poison")
        (message,) = await client.messages()
        handle = message.system_properties.receipt_handle
        duration = {"nanos": 1_000_000}
        await client.call(
            "ChangeInvisibleDuration", group=GROUP, topic=TOPIC, receipt_handle=handle, invisible_duration=duration
        )
        replies = await client.receive()
        assert (code_of(replies[0]), replies[0].status.message) == (40401, "no match message")
        assert broker.services.store.max_offset("%DLQ%G", 0) == 1
        await client.send(b"given back")
        (message,) = await client.messages()
        handle = message.system_properties.receipt_handle
        reply = await client.call("ForwardMessageToDeadLetterQueue", group=GROUP, topic=TOPIC, receipt_handle=handle)
        assert (code_of(reply), broker.services.store.max_offset("%DLQ%G", 0)) == (20000, 2)

    serving(tmp_path, test)


def test_plain_and_encrypted_connections_on_one_port(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Client) -> None:
        assert code_of(await client.call("QueryRoute", topic=TOPIC)) == 20000
        assert broker.proxy is not None
        # The self-signed certificate of the test mode: trusted by its own bytes, as clients of Java trust any.
        port = broker.proxy.port
        certificate = await asyncio.to_thread(presented_certificate, port)
        credentials = grpc.ssl_channel_credentials(certificate.encode())
        options = [("grpc.ssl_target_name_override", "localhost")]
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
            assert code_of(await Client(channel).call("QueryRoute", topic=TOPIC)) == 20000

    serving(tmp_path, test)


def presented_certificate(port: int) -> str:
    import ssl

    return ssl.get_server_certificate(("127.0.0.1", port))


def test_connections_that_bypass_the_port_are_not_served(tmp_path: Path, transport: str) -> None:
    if transport == "native":
        pytest.skip("the native transport has no other port")

    async def test(broker: Broker, client: Client) -> None:
        assert broker.proxy is not None and isinstance(broker.proxy._transport, AioTransport)
        inner = broker.proxy._transport._bridge._target_port
        async with grpc.aio.insecure_channel(f"127.0.0.1:{inner}") as channel:
            assert code_of(await Client(channel).call("QueryRoute", topic=TOPIC)) == StatusCode.UNAUTHORIZED

    serving(tmp_path, test)


def signed(access_key: str, secret: str) -> dict[str, str]:
    date = "20200101T000000Z"
    digest = hmac.new(secret.encode(), date.encode(), hashlib.sha1).hexdigest()
    header = f"MQv2-HMAC-SHA1 Credential={access_key}, SignedHeaders=x-mq-date-time, Signature={digest}"
    return {"x-mq-date-time": date, "authorization": header}


def test_calls_need_what_remoting_requests_need(tmp_path: Path) -> None:
    accounts = """
accounts:
- {accessKey: writer-account, secretKey: writer-secret, topicPerms: [T=PUB]}
- {accessKey: reader-account, secretKey: reader-secret, topicPerms: [T=SUB], groupPerms: [G=SUB]}
"""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(accounts)

    async def test(broker: Broker, client: Client) -> None:
        assert code_of(await client.send()) == StatusCode.UNAUTHORIZED
        wrong = Client(client._channel, **signed("writer-account", "other"))
        reply = await wrong.send()
        assert (code_of(reply), reply.status.message) == (StatusCode.UNAUTHORIZED, "check signature failed.")
        writer = Client(client._channel, **signed("writer-account", "writer-secret"))
        assert code_of(await writer.send()) == 20000
        assert code_of((await writer.receive())[0]) == StatusCode.FORBIDDEN
        reader = Client(client._channel, **signed("reader-account", "reader-secret"))
        (message,) = await reader.messages()
        assert code_of(await reader.acknowledge(message)) == 20000
        assert code_of(await reader.send()) == StatusCode.FORBIDDEN

    serving(tmp_path / "store", test, acl_enable=True, rocketmq_home=str(tmp_path))


def test_limits_of_requests_are_too_many_requests(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Client) -> None:
        codes = {code_of(await client.call("QueryRoute", topic=TOPIC)) for _ in range(50)}
        assert codes == {20000, int(StatusCode.TOO_MANY_REQUESTS)}

    serving(tmp_path, test, address_requests_per_second=5)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Client) -> None:
        assert broker.proxy is not None
        with pytest.raises(
            ConfigError, match=r"grpcServerPort .*: cannot listen on 127\.0\.0\.1:.* choose another port"
        ):
            async with Broker(config(tmp_path / "other", grpc_server_port=broker.proxy.port)):
                pass

    serving(tmp_path / "first", test)


@pytest.mark.parametrize("data", [b"\x00" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 70_000])
def test_other_protocols_are_closed_and_hold_back_no_call(tmp_path: Path, data: bytes) -> None:
    async def test(broker: Broker, client: Client) -> None:
        assert broker.proxy is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.proxy.port)
        writer.write(data)
        assert code_of(await client.call("QueryRoute", topic=TOPIC)) == 20000
        with contextlib.suppress(ConnectionResetError):
            await reader.read()  # until the end
        writer.close()

    serving(tmp_path, test)


def test_a_call_that_is_too_large_or_no_message_is_refused_by_itself(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Client) -> None:
        send = client._channel.unary_unary(f"/{api.SERVICE}/SendMessage")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await send(b"x" * (17 << 20), metadata=client._headers(), timeout=20)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        reply = api.SendMessageResponse.FromString(await send(b"\xff", metadata=client._headers(), timeout=20))
        assert (code_of(reply), reply.status.message[:26]) == (40000, "Invalid SendMessageRequest")
        acknowledge = client._channel.unary_unary(f"/{api.SERVICE}/AckMessage")
        for data, text in (
            (b"x" * (1 << 21), "expected at most 1048576"),
            (b"\x1a\x00" * 1_001, "expected at most 1000"),
        ):
            names = api.AckMessageRequest(group={"name": "g"}, topic=TOPIC).SerializeToString()
            refused = await acknowledge(names + data, metadata=client._headers(), timeout=20)
            reply = api.AckMessageResponse.FromString(refused)
            assert code_of(reply) == 40000
            assert text in reply.status.message
        assert code_of(await client.call("QueryRoute", topic=TOPIC)) == 20000

    serving(tmp_path, test)


def test_connections_beyond_the_limit_displace_those_without_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (byte_bridge, native_transport):
        monkeypatch.setattr(module, "LIMITS", ConnectionLimits(total=100, per_address=3))

    async def test(broker: Broker, client: Client) -> None:
        assert code_of(await client.call("QueryRoute", topic=TOPIC)) == 20000
        assert broker.proxy is not None
        silent = [await asyncio.open_connection("127.0.0.1", broker.proxy.port) for _ in range(4)]
        for _, writer in silent:
            writer.write(b"P")
        with contextlib.suppress(ConnectionResetError):
            await silent[0][0].read()  # until it is closed; HTTP/2 begins with settings
        assert code_of(await client.call("QueryRoute", topic=TOPIC)) == 20000
        for _, writer in silent:
            writer.close()

    serving(tmp_path, test)
