"""Acknowledgements of the native transport that arrive together: the same replies and effects as of single calls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the extra grpc is not installed")

import grpc.aio

from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.state.pop_table import QueueKey
from ariane.errors import FlushFailed, StoreFull
from ariane.model.topic import TopicConfig
from ariane.protocol.requests.pop import AckedDelivery
from ariane.proxy import api
from ariane.proxy.calls.plain_acks import PlainAckCalls
from ariane.proxy.conversion.grpc_statuses import StatusCode
from grpc_transports import NEEDS_NATIVE

pytestmark = NEEDS_NATIVE

TOPIC, GROUP = {"name": "T"}, {"name": "G"}

HANDLES = {
    "of the message": "{handle}",
    "not one": "x",
    "with a sign": "+{handle}",
    "of another queue": "0 1 60000 0 0 broker-a 99 0 0",
    "beyond the queue": "0 1 60000 0 0 broker-a 0 99 0",
    "large queue": "0 1 60000 0 0 broker-a 99999999999 0 0",
    "of another broker": "0 1 60000 0 0 broker-b 0 0 0",
    "of no broker": "0 1 60000 0 0  0 0 0",
    "of a retry topic": "0 1 60000 0 1 broker-a 0 0 0",
    "of an earlier delivery": "0 1 60000 0 0 broker-a 0 0 0",
}
REQUESTS: dict[str, dict[str, Any]] = {
    "no entries": {"entries": []},
    "invalid group": {"group": {"name": "a b"}},
    "no group": {"group": None},
    "unknown topic": {"topic": {"name": "Nope"}},
    "system topic": {"topic": {"name": "TBW102"}},
    "long topic": {"topic": {"name": "T" * 300}},
    "two entries": {"entries": ["{handle}", "x"]},
}


class Client:
    """A client of the port."""

    def __init__(self, broker: Broker, channel: Any) -> None:
        self._channel = channel
        self.broker = broker

    async def call(self, name: str, client_id: str = "c", **fields: Any) -> Any:
        request, response = getattr(api, f"{name}Request"), getattr(api, f"{name}Response")
        method = self._channel.unary_unary(f"/{api.SERVICE}/{name}", request.SerializeToString, response.FromString)
        return await method(request(**fields), metadata=[("x-mq-client-id", client_id)], timeout=60)

    async def send(self, count: int) -> None:
        for number in range(count):
            system = {"message_id": f"{number:04X}", "born_timestamp": {"seconds": 1}}
            reply = await self.call(
                "SendMessage", messages=[{"topic": TOPIC, "body": b"x", "system_properties": system}]
            )
            assert reply.status.code == StatusCode.OK

    async def handles(self, **fields: Any) -> list[str]:
        """Receive messages, and return their handles."""
        values = {"group": GROUP, "message_queue": {"topic": TOPIC, "id": -1}, "batch_size": 32}
        values |= {"invisible_duration": {"seconds": 60}, "long_polling_timeout": {"seconds": 5}, **fields}
        request, response = api.ReceiveMessageRequest, api.ReceiveMessageResponse
        path = f"/{api.SERVICE}/ReceiveMessage"
        method = self._channel.unary_stream(path, request.SerializeToString, response.FromString)
        replies = [reply async for reply in method(request(**values), metadata=[("x-mq-client-id", "c")], timeout=60)]
        return [reply.message.system_properties.receipt_handle for reply in replies if reply.HasField("message")]

    async def acknowledge(self, *handles: str, client_id: str = "c") -> Any:
        entries = [{"message_id": str(n), "receipt_handle": handle} for n, handle in enumerate(handles)]
        return await self.call("AckMessage", client_id, group=GROUP, topic=TOPIC, entries=entries)

    def unacknowledged(self) -> int:
        table = self.broker.services.state.pop
        queues = [table.get(QueueKey("G", "T", queue_id)) for queue_id in range(4)]
        return sum(len(queue.taken) for queue in queues if queue is not None)


def serving(path: Path, test: Any, transport: str = "native", **settings: Any) -> Any:
    """Return the result of a test with a broker that has the topic T."""

    async def run() -> Any:
        values: dict[str, Any] = {"listen_port": 0, "grpc_server_enable": True, "grpc_server_port": 0}
        values |= {"namesrv_addr": "", "broker_name": "broker-a", "grpc_transport": transport, **settings}
        async with Broker(BrokerConfig(**values, store_path_root_dir=str(path))) as broker:
            topic = TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4)
            broker.services.state.topics.put(topic)
            assert broker.proxy is not None
            async with grpc.aio.insecure_channel(f"127.0.0.1:{broker.proxy.port}") as channel:
                return await test(Client(broker, channel))

    return asyncio.run(run())


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many messages were acknowledged by turns, one number for each."""
    numbers: list[int] = []
    on_ended = PlainAckCalls.on_ended

    def noted(self: PlainAckCalls, deliveries: list[AckedDelivery]) -> None:
        numbers.append(sum(len(each.offsets) for each in deliveries))
        on_ended(self, deliveries)

    monkeypatch.setattr(PlainAckCalls, "on_ended", noted)
    return numbers


async def replies_of(client: Client) -> dict[str, Any]:
    """Return the reply to each request, and how many messages are not acknowledged after it."""
    await client.send(40)
    (own, *others), found = await client.handles(), {}
    requests = {name: {"entries": [handle]} for name, handle in HANDLES.items()} | REQUESTS
    for name, fields in requests.items():
        values = {"group": GROUP, "topic": TOPIC, "entries": ["{handle}"], **fields}
        values["entries"] = [
            {"message_id": name, "receipt_handle": handle.format(handle=own)} for handle in values["entries"]
        ]
        reply = await client.call("AckMessage", **values)
        entries = [
            (entry.message_id, entry.status.code, entry.status.message.replace(own, "")) for entry in reply.entries
        ]
        found[name] = reply.status.code, reply.status.message.replace(own, ""), entries, client.unacknowledged()
        own = others.pop()
    return found


def test_acknowledgements_of_a_turn_are_those_of_single_calls(tmp_path: Path, together: list[int]) -> None:
    native = serving(tmp_path / "native", replies_of)
    assert len(together) >= 3
    single = serving(tmp_path / "single", replies_of, "aio")
    for name, expected in single.items():
        assert native[name] == expected, name
    assert len({outcome[0] for outcome in single.values()}) > 4


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_acknowledgements_that_arrive_together_end_each_delivery(
    tmp_path: Path, together: list[int], flush: str
) -> None:
    async def test(client: Client) -> None:
        await client.send(128)
        handles = [handle for _ in range(4) for handle in await client.handles()]
        acks = [client.acknowledge(handle, client_id=f"c-{n % 3}") for n, handle in enumerate(handles)]
        gone = client.acknowledge("0 1 60000 0 0 broker-a 0 99 0", client_id="other")
        *replies, refused = await asyncio.gather(*acks, gone)
        assert {reply.status.code for reply in replies} == {StatusCode.OK}
        assert refused.status.code == StatusCode.INVALID_RECEIPT_HANDLE
        assert client.unacknowledged() == 0
        assert sum(together) == 128 and max(together) > 1

    serving(tmp_path, test, flush_disk_type=flush)


def test_an_acknowledged_message_is_not_renewed(tmp_path: Path, together: list[int]) -> None:
    async def test(client: Client) -> None:
        await client.send(2)
        first, second = await client.handles(auto_renew=True)
        await client.acknowledge(first)
        assert sum(together) == 1 and client.unacknowledged() == 1
        assert client.broker.proxy is not None
        await client.acknowledge(second)

    serving(tmp_path, test)


@pytest.mark.parametrize("is_stored", [False, True], ids=["not stored", "not flushed"])
def test_acknowledgements_that_cannot_be_stored_are_refused_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    async def test(client: Client) -> None:
        await client.send(4)
        handles = await client.handles()
        log = client.broker.services.state.change_log
        if is_stored:

            async def failed() -> None:
                raise FlushFailed("/store/config", "I/O error")

            monkeypatch.setattr(log, "wait_durable", lambda n=None: failed())
        else:

            def append(*changes: Any) -> int:
                raise StoreFull("no room")

            monkeypatch.setattr(log, "append", append)
        replies = await asyncio.gather(*(client.acknowledge(handle) for handle in handles))
        assert {reply.status.code for reply in replies} == {StatusCode.INTERNAL_SERVER_ERROR}
        assert client.unacknowledged() == (0 if is_stored else 4)
        monkeypatch.undo()

    serving(tmp_path, test)
