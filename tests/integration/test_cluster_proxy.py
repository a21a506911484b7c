"""`ariane proxy` in front of two brokers: calls of clients of RocketMQ 5 as remoting requests to the brokers of a name server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the extra grpc is not installed")

import grpc.aio
from test_grpc_port import TOPIC, Client, code_of, config, signed

from ariane.broker.broker import Broker
from ariane.cli.servers.process.metrics_endpoint import proxy_source
from ariane.errors import ConfigError
from ariane.model.topic import TRACE_TOPIC, SubscriptionGroupConfig, TopicConfig
from ariane.model.trace_event import PublishEvent
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.net.connection import Peer, Reply
from ariane.protocol import trace_codec
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import record
from ariane.proxy import api, proxy_server
from ariane.proxy.cluster import fresh_values
from ariane.proxy.cluster.cluster_proxy import ClusterProxy
from ariane.proxy.cluster.proxy_config import ProxyConfig
from ariane.proxy.conversion.grpc_statuses import StatusCode
from ariane.store.message_store import RecordFilter
from grpc_transports import TRANSPORTS

Test = Callable[[Client, list[Broker], ClusterProxy], Awaitable[None]]


@contextlib.asynccontextmanager
async def cluster(path: Path, brokers: int = 2, **settings: Any) -> AsyncIterator[tuple[list[Broker], str]]:
    """Run a name server, and brokers that have the topic T with two queues each."""
    names = NameServerConfig(listen_port=0, kv_config_path=str(path / "kv.json"))
    async with NameServer(names) as name_server, contextlib.AsyncExitStack() as stack:
        started = []
        for letter in "abc"[:brokers]:
            values = {"broker_name": f"broker-{letter}", "namesrv_addr": name_server.addr, "grpc_server_enable": False}
            broker = await stack.enter_async_context(Broker(config(path / letter, **values, **settings)))
            broker.services.state.topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
            await broker.services.registration.wait_registered()
            started.append(broker)
        yield started, name_server.addr


def proxied(path: Path, test: Test, brokers: int = 2, transport: Any = "aio", **settings: Any) -> None:
    """Run a test with a client of a proxy in front of brokers."""

    async def run() -> None:
        async with (
            cluster(path, brokers, **settings) as (started, name_server),
            ClusterProxy(ProxyConfig(grpc_server_port=0, namesrv_addr=name_server, grpc_transport=transport)) as proxy,
            grpc.aio.insecure_channel(proxy.addr) as channel,
        ):
            await test(Client(channel), started, proxy)

    asyncio.run(run())


def of_broker(letter: str) -> dict[str, Any]:
    return {"message_queue": {"topic": TOPIC, "id": -1, "broker": {"name": f"broker-{letter}"}}}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_take_the_queues_of_all_brokers_in_turn_and_are_acknowledged_at_theirs(
    tmp_path: Path, transport: str
) -> None:
    async def test(client: Client, brokers: list[Broker], proxy: ClusterProxy) -> None:
        reached = {"scheme": 1, "addresses": [{"host": "127.0.0.1", "port": proxy.proxy.port}]}
        route = await client.call("QueryRoute", topic=TOPIC, endpoints=reached)
        queues = [(queue.broker.name, queue.id) for queue in route.message_queues]
        assert queues == [("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-b", 1)]
        assert {queue.broker.endpoints.addresses[0].port for queue in route.message_queues} == {proxy.proxy.port}
        assigned = await client.call("QueryAssignment", topic=TOPIC, group={"name": "G"}, endpoints=reached)
        assert [each.message_queue.broker.name for each in assigned.assignments] == ["broker-a", "broker-b"]
        await client.receive(**of_broker("a"), long_polling_timeout={"seconds": 5}, batch_size=0)
        for broker in brokers:  # a new group starts with the last message
            broker.services.state.offsets.commit("G", "T", 0, 0)
            broker.services.state.offsets.commit("G", "T", 1, 0)
        for number in range(8):
            assert code_of(await client.send(b"%d" % number)) == 20000
        for letter, broker in zip("ab", brokers, strict=True):
            taken = await client.messages(**of_broker(letter))
            assert len(taken) == 4
            assert f" broker-{letter} " in taken[0].system_properties.receipt_handle
            reply = await client.acknowledge(*taken)
            assert (code_of(reply), [code_of(each) for each in reply.entries]) == (20000, [20000] * 4)
            assert [broker.services.state.offsets.get("G", "T", queue_id) for queue_id in (0, 1)] == [2, 2]

    proxied(tmp_path, test, transport=transport)


def test_a_message_that_is_visible_again_and_one_for_dead_letters(tmp_path: Path) -> None:
    async def test(client: Client, brokers: list[Broker], proxy: ClusterProxy) -> None:
        brokers[0].services.state.offsets.commit("G", "T", 0, 0)
        await client.send()
        (message,) = await client.messages()
        names: dict[str, Any] = {"group": {"name": "G"}, "topic": TOPIC}
        handle = message.system_properties.receipt_handle
        changed = await client.call(
            "ChangeInvisibleDuration", **names, receipt_handle=handle, invisible_duration={"nanos": 1_000_000}
        )
        assert (code_of(changed), changed.receipt_handle == handle) == (20000, False)
        (again,) = await client.messages()
        assert again.system_properties.delivery_attempt == 2
        handle = again.system_properties.receipt_handle
        buried = await client.call("ForwardMessageToDeadLetterQueue", **names, receipt_handle=handle)
        assert code_of(buried) == 20000
        assert brokers[0].services.store.max_offset("%DLQ%G", 0) == 1

    proxied(tmp_path, test, brokers=1)


def test_a_transaction_is_checked_at_the_client_and_committed_at_its_broker(tmp_path: Path) -> None:
    async def test(client: Client, brokers: list[Broker], proxy: ClusterProxy) -> None:
        stream = client.telemetry()
        settings = {"client_type": 1, "publishing": {"topics": [TOPIC]}, "backoff_policy": {"max_attempts": 3}}
        await stream.write(api.TelemetryCommand(settings=settings))
        assert (await stream.read()).HasField("settings")
        sent = await client.send(message_type=4)
        sent_id = sent.entries[0].transaction_id
        broker = next(each for each in brokers if each.services.store.max_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0))
        command = (await stream.read()).recover_orphaned_transaction_command
        half = command.transaction_id  # with the offsets of the copy that counts the checks
        assert (
            half.split(":")[::3]
            == sent_id.split(":")[::3]
            == ["01626f6479", broker.services.settings.current.broker_name]
        )
        ended = await client.call(
            "EndTransaction", topic=TOPIC, message_id=sent.entries[0].message_id, transaction_id=half, resolution=1
        )
        assert code_of(ended) == 20000
        assert sum(broker.services.store.max_offset("T", queue_id) for queue_id in (0, 1)) == 1

    # By a name, which the socket of the connection does not show.
    proxied(tmp_path, test, transaction_time_out=1, transaction_check_interval=100, broker_ip1="localhost")


def test_a_broker_without_pop_refuses_consumers_and_delays_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of 4.9.4 do."""

    def unknown(command: Command, peer: Peer) -> Reply:
        return Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {command.code} not supported")

    async def test(client: Client, brokers: list[Broker], proxy: ClusterProxy) -> None:
        for code in (RequestCode.POP_MESSAGE, RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG):
            monkeypatch.setitem(brokers[0].services.server._handlers, code, unknown)  # type: ignore[arg-type]
        (refused,) = await client.receive()
        assert (code_of(refused), "POP needs RocketMQ 5.0" in refused.status.message) == (50100, True)
        assert code_of(await client.send()) == 20000
        delayed = await client.send(delivery_timestamp={"seconds": 4_000_000_000}, message_type=3)
        assert code_of(delayed) in (40012, 40014)
        in_a_minute = {"seconds": brokers[0].services.clock.now_ms() // 1000 + 60}
        assert code_of(await client.send(delivery_timestamp=in_a_minute, message_type=3)) == 40014

    proxied(tmp_path, test, brokers=1)


def test_an_absent_topic_and_a_lost_broker_have_their_own_status(tmp_path: Path) -> None:
    async def test(client: Client, brokers: list[Broker], proxy: ClusterProxy) -> None:
        assert code_of(await client.call("QueryRoute", topic={"name": "absent"})) == 40402
        brokers[0].services.server.abort()
        assert code_of(await client.send()) == 50001
        assert proxy.faults == []

    proxied(tmp_path, test, brokers=1)


def test_messages_go_to_the_other_broker_while_one_does_not_answer(tmp_path: Path) -> None:
    async def test(client: Client, brokers: list[Broker], proxy: ClusterProxy) -> None:
        groups = ("one", "two", "three", "four", "five", "six")
        for group in groups:
            assert code_of(await client.send(message_group=group, message_type=2)) == 20000
        lost = brokers[1].services.server
        stored = sum(brokers[0].services.store.max_offset("T", queue_id) for queue_id in (0, 1))
        assert 0 < stored < len(groups)
        lost.abort()
        codes = [code_of(await client.send(b"%d" % number)) for number in range(9)]
        assert codes == [*sorted(codes[:3]), *[20000] * 6]  # until the first one that was for the lost broker
        assert proxy.routes.silent_brokers() == [brokers[1].addr]
        # Messages in order have their queue.
        in_order = [code_of(await client.send(message_group=group, message_type=2)) for group in groups]
        assert sorted(in_order) == [20000] * stored + [50001] * (len(groups) - stored)
        (refused,) = await client.receive(**of_broker("b"))
        assert code_of(refused) == 50001
        await client.receive(**of_broker("a"), batch_size=0)
        brokers[0].services.state.offsets.commit("G", "T", 0, 0)
        brokers[0].services.state.offsets.commit("G", "T", 1, 0)
        taken = await client.messages(**of_broker("a"))
        assert len(taken) > stored
        assert code_of(await client.acknowledge(*taken)) == 20000

    proxied(tmp_path, test)


def test_calls_go_on_while_no_name_server_responds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_values, "FRESH_S", 0.0)
    monkeypatch.setattr(fresh_values, "STALE_S", 0.0)

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack, contextlib.AsyncExitStack() as name_servers:
            names = NameServerConfig(listen_port=0, kv_config_path=str(tmp_path / "kv.json"))
            name_server = await name_servers.enter_async_context(NameServer(names))
            values = {"namesrv_addr": name_server.addr, "grpc_server_enable": False}
            broker = await stack.enter_async_context(Broker(config(tmp_path / "a", **values)))
            broker.services.state.topics.put(TopicConfig(topic_name="T"))
            await broker.services.registration.wait_registered()
            proxy = await stack.enter_async_context(
                ClusterProxy(ProxyConfig(grpc_server_port=0, namesrv_addr=name_server.addr))
            )
            client = Client(await stack.enter_async_context(grpc.aio.insecure_channel(proxy.addr)))
            assert code_of(await client.send()) == 20000
            await name_servers.aclose()
            assert [code_of(await client.send()) for _ in range(3)] == [20000] * 3
            await proxy.routes.check()
            assert "no name server responds" in proxy.faults[0]

    asyncio.run(run())


def test_the_first_call_of_an_ordered_group_is_in_order(tmp_path: Path) -> None:
    """The proxy did not ask for the group before it had the route of a topic."""

    async def test(client: Client, brokers: list[Broker], proxy: ClusterProxy) -> None:
        group = SubscriptionGroupConfig(group_name="G", consume_message_orderly=True)
        brokers[1].services.state.groups.put(group)
        assert (await proxy.routes.group("G")).is_ordered

    proxied(tmp_path, test)


def test_the_proxy_writes_the_traces_of_its_clients_if_there_is_a_trace_topic(tmp_path: Path) -> None:
    async def test(client: Client, brokers: list[Broker], proxy: ClusterProxy) -> None:
        await client.send(b"one", tag="A", keys=["k"])
        while not proxy.traces.counts()["written"]:
            await asyncio.sleep(0.01)
        store = next(each.services.store for each in brokers if each.services.store.max_offset(TRACE_TOPIC, 0))
        (item,) = record.decode_all(store.get(TRACE_TOPIC, 0, 0, 32, RecordFilter()).body)
        (event,) = trace_codec.decode(item.body)[0]
        assert isinstance(event, PublishEvent)
        assert (event.topic, event.tags, event.store_host) in {("T", "A", broker.addr) for broker in brokers}
        assert proxy.traces.counts() == {"written": 1, "dropped": 0, "untracked": 0}

    proxied(tmp_path, test, trace_topic_enable=True)


def test_metrics_show_clients_and_brokers_that_do_not_answer(tmp_path: Path) -> None:
    async def test(client: Client, brokers: list[Broker], proxy: ClusterProxy) -> None:
        brokers[0].services.server.abort()
        await client.send()
        families = await proxy_source(proxy).families(None)
        values = {metric.name: list(samples) for metric, samples in families}
        assert values["ariane_proxy_clients"] == [((), 1)]
        assert values["ariane_proxy_ready"] == [((), 1)]
        assert values["ariane_proxy_silent_brokers"] == [((), 1)]

    proxied(tmp_path, test, brokers=1)


def test_the_links_of_a_client_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_server, "SCAN_S", 0.01)

    async def test(client: Client, brokers: list[Broker], proxy: ClusterProxy) -> None:
        await client.receive(batch_size=0)
        brokers[0].services.state.offsets.commit("G", "T", 0, 0)
        await client.send()
        assert await client.messages()  # renewed until the client ends, and released then
        server = brokers[0].services.server
        before = server.connection_count
        await client.call("NotifyClientTermination")
        while not await client.messages(group={"name": "G"}):  # by another session of it
            pass
        await client.call("NotifyClientTermination")
        while server.connection_count >= before or proxy.links.count:
            await asyncio.sleep(0.01)
        assert code_of(await client.send()) == 20000
        assert proxy.links.count == 1

    proxied(tmp_path, test, brokers=1)


ACCOUNTS = """
accounts:
- {accessKey: proxy-account, secretKey: proxy-secret, admin: true}
- {accessKey: writer-account, secretKey: SECRET, topicPerms: [T=PUB]}
- {accessKey: reader-account, secretKey: reader-secret, topicPerms: [T=SUB], groupPerms: [G=SUB]}
"""


@pytest.mark.parametrize("tls", ["disabled", "enforcing"])
def test_requests_to_brokers_are_signed_with_the_keys_of_the_caller(tmp_path: Path, tls: str) -> None:
    file = tmp_path / "conf" / "plain_acl.yml"
    file.parent.mkdir()
    file.write_text(ACCOUNTS.replace("SECRET", "writer-secret"))
    account = {"access_key": "proxy-account", "secret_key": "proxy-secret", "use_tls": tls == "enforcing"}
    access: dict[str, Any] = {"acl_enable": True, "rocketmq_home": str(tmp_path)}

    async def run() -> None:
        settings = {**access, "tls_server_mode": tls}
        async with contextlib.AsyncExitStack() as stack:
            (broker,), name_server = await stack.enter_async_context(cluster(tmp_path, 1, **settings))
            config = ProxyConfig(grpc_server_port=0, namesrv_addr=name_server, **access, **account)
            proxy = await stack.enter_async_context(ClusterProxy(config))
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(proxy.addr))
            writer = Client(channel, **signed("writer-account", "writer-secret"))
            reader = Client(channel, **signed("reader-account", "reader-secret"))
            assert code_of(await Client(channel).send()) == StatusCode.UNAUTHORIZED
            assert code_of((await writer.receive())[0]) == StatusCode.FORBIDDEN
            assert code_of(await reader.send()) == StatusCode.FORBIDDEN
            await reader.receive(batch_size=0)
            broker.services.state.offsets.commit("G", "T", 0, 0)
            assert code_of(await writer.send()) == 20000
            (message,) = await reader.messages()
            assert code_of(await reader.acknowledge(message)) == 20000
            # Other keys of an account are in force for its clients, which are connected.
            file.write_text(ACCOUNTS.replace("SECRET", "other-secret"))
            await broker.reload()
            await proxy.reload()
            assert code_of(await writer.send()) == StatusCode.UNAUTHORIZED
            writer = Client(channel, **signed("writer-account", "other-secret"))
            assert code_of(await writer.send()) == 20000

    asyncio.run(run())


def test_a_proxy_needs_name_servers() -> None:
    with pytest.raises(ConfigError, match="namesrvAddr"):
        ClusterProxy(ProxyConfig(namesrv_addr=""))


def test_a_client_goes_on_after_a_switch_of_the_master(tmp_path: Path) -> None:
    """The broker has another address then, as the next master of a broker set has."""

    async def run() -> None:
        async with (
            cluster(tmp_path, 0) as (_, name_server),
            ClusterProxy(ProxyConfig(grpc_server_port=0, namesrv_addr=name_server)) as proxy,
            grpc.aio.insecure_channel(proxy.addr) as channel,
        ):
            client = Client(channel)
            values = {"namesrv_addr": name_server, "grpc_server_enable": False}
            for codes in ([20000, 20000], [50001, 20000]):
                async with Broker(config(tmp_path / "a", **values)) as broker:
                    broker.services.state.topics.put(TopicConfig(topic_name="T"))
                    await broker.services.registration.wait_registered()
                    assert [code_of(await client.send()) for _ in codes] == codes

    asyncio.run(run())
