"""POP over a socket: messages are taken, acknowledged, delivered again and parked for, as clients of 5.x see it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.handlers.reading.pop import ALL_QUEUES_MAX
from ariane.broker.state.pop_table import PopDocument
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.admin import CreateTopic
from ariane.protocol.requests.clients import ConsumerData, HeartbeatData
from ariane.protocol.requests.messaging import (
    OffsetResponse,
    QueryConsumerOffset,
    QueueRef,
    SendMessage,
    UpdateConsumerOffset,
)
from ariane.protocol.requests.pop import (
    AckMessage,
    ChangeInvisibleTime,
    InFlightMessages,
    ListInFlight,
    PopMessage,
    PopMessageResponse,
    PopNotification,
)

SMALL = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20_000}


def config(path: Path, **settings: Any) -> BrokerConfig:
    values = {**SMALL, "broker_name": "broker-a", "broker_ip1": "127.0.0.1", "listen_port": 0, **settings}
    return BrokerConfig(store_path_root_dir=str(path), namesrv_addr="", **values)


class Taken(NamedTuple):
    """A message as a client sees it."""

    body: bytes
    queue_id: int
    offset: int
    times: int
    handle: str


class Client:
    def __init__(self, peers: ConnectionPool, addr: str) -> None:
        self.addr = addr
        self._peers = peers

    async def call(self, code: int, header: Any = None, body: bytes = b"", timeout_ms: float = 20_000) -> Command:
        return await self._peers.request(self.addr, code, header, body, timeout_ms=timeout_ms)

    async def send(self, *bodies: bytes, queue_id: int = 0, tags: str = "") -> None:
        for body in bodies:
            text = f"TAGS\x01{tags}\x02" if tags else None
            header = SendMessage("P", "T", "TBW102", 4, queue_id, 0, 1234, 0, text)
            assert (await self.call(RequestCode.SEND_MESSAGE_V2, header, body)).code == 0

    async def pop(self, count: int = 32, invisible_ms: int = 60_000, poll_ms: int = 0, **own: Any) -> list[Taken]:
        values = {"topic": "T", "queue_id": -1, **own}
        group, topic, queue_id = values.pop("group", "G"), values.pop("topic"), values.pop("queue_id")
        header = PopMessage(group, topic, queue_id, count, invisible_ms, poll_ms, **values)
        answer = await self.call(RequestCode.POP_MESSAGE, header, timeout_ms=poll_ms + 20_000)
        if answer.code == ResponseCode.POLLING_TIMEOUT:
            return []
        assert answer.code == 0, answer.remark
        return self.messages(answer)

    @staticmethod
    def messages(answer: Command) -> list[Taken]:
        """Return the messages, with the handles that a client builds from the header."""
        header = decode_header(answer, PopMessageResponse)
        starts = {entry.split(" ")[1]: entry.split(" ")[2] for entry in str(header.start_offset_info).split(";")}
        offsets = {
            entry.split(" ")[1]: entry.split(" ")[2].split(",") for entry in str(header.msg_offset_info).split(";")
        }
        taken, indexes = [], dict.fromkeys(offsets, 0)
        for item in record.decode_all(answer.body):
            queue = str(item.queue_id)
            offset = offsets[queue][indexes[queue]]
            indexes[queue] += 1
            assert offset == str(item.queue_offset)
            handle = f"{starts[queue]} {header.pop_time} {header.invisible_time} {header.revive_qid} 0 broker-a {queue} {offset}"
            taken.append(Taken(item.body, item.queue_id, item.queue_offset, item.reconsume_times, handle))
        assert indexes == {queue: len(listed) for queue, listed in offsets.items()}
        return taken

    async def ack(self, message: Taken, group: str = "G") -> int:
        header = AckMessage(group, "T", message.queue_id, message.handle, message.offset)
        return (await self.call(RequestCode.ACK_MESSAGE, header)).code

    async def batch_ack(self, messages: list[Taken]) -> int:
        """Acknowledge messages of one queue that were taken together."""
        start, taken_ms, invisible_ms = map(int, messages[0].handle.split(" ")[:3])
        bits = sum(1 << message.offset - start for message in messages)
        encoded = base64.b64encode(bits.to_bytes(bits.bit_length() // 8 + 1, "little")).decode()
        ack = {"c": "G", "t": "T", "r": "0", "so": start, "q": messages[0].queue_id, "rq": 0, "pt": taken_ms}
        body = json.dumps({"brokerName": "broker-a", "acks": [{**ack, "it": invisible_ms, "b": encoded}]}).encode()
        return (await self.call(RequestCode.BATCH_ACK_MESSAGE, body=body)).code

    async def hide(self, message: Taken, invisible_ms: int) -> str:
        header = ChangeInvisibleTime("G", "T", message.queue_id, message.handle, message.offset, invisible_ms)
        answer = await self.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        assert answer.code == 0, answer.remark
        fields, parts = answer.field_map(), message.handle.split(" ")
        return " ".join([parts[0], fields["popTime"], fields["invisibleTime"], fields["reviveQid"], *parts[4:]])

    async def committed(self, queue_id: int = 0, group: str = "G") -> int:
        answer = await self.call(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffset(group, "T", queue_id))
        return decode_header(answer, OffsetResponse).offset

    async def commit(self, offset: int, queue_id: int = 0) -> None:
        header = UpdateConsumerOffset("G", "T", queue_id, offset)
        assert (await self.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0


def against_broker(settings: BrokerConfig, *works: Callable[[Client], Awaitable[None]]) -> None:
    """Run each work against a broker on the same store, which is restarted in between."""

    async def run() -> None:
        for work in works:
            async with Broker(settings) as broker, ConnectionPool() as peers:
                await work(Client(peers, broker.addr))

    asyncio.run(asyncio.wait_for(run(), 60))


def bodies(messages: list[Taken]) -> list[bytes]:
    return [message.body for message in messages]


def test_each_message_is_taken_once_and_the_offset_is_that_of_the_first_one_that_is_not_acknowledged(
    tmp_path: Path,
) -> None:
    async def work(client: Client) -> None:
        await client.send(b"0", b"1", b"2", b"3")
        first = await client.pop(2)
        second = await client.pop(32)
        assert (bodies(first), bodies(second), await client.pop()) == ([b"0", b"1"], [b"2", b"3"], [])
        assert await client.committed() == 0
        assert [await client.ack(message) for message in (first[1], second[0])] == [0, 0]
        assert await client.committed() == 0
        assert await client.ack(first[0]) == 0
        assert await client.committed() == 3
        assert [await client.ack(message) for message in (second[1], second[1])] == [0, 0]
        assert await client.committed() == 4

    against_broker(config(tmp_path), work)


def test_a_message_that_is_not_acknowledged_in_time_comes_again_and_only_its_last_handle_counts(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.send(b"0", b"1")
        lost, acknowledged = await client.pop(invisible_ms=300)
        assert await client.ack(acknowledged) == 0
        (again,) = await client.pop(poll_ms=20_000)
        assert (again.body, again.times, again.offset) == (b"0", 1, 0)
        assert await client.ack(lost) == 0
        assert await client.committed() == 0, "the former handle acknowledges nothing"
        assert await client.ack(again) == 0
        assert await client.committed() == 2

    against_broker(config(tmp_path), work)


def test_a_parked_request_is_woken_by_a_message_and_by_one_that_is_visible_again(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.send(b"0", queue_id=1)
        (message,) = await client.pop()
        parked = [asyncio.create_task(client.pop(1, poll_ms=20_000)) for _ in range(2)]
        await asyncio.sleep(0.05)
        await client.send(b"1", queue_id=2)
        done, waiting = await asyncio.wait(parked, return_when=asyncio.FIRST_COMPLETED)
        assert [bodies(task.result()) for task in done] == [[b"1"]]
        handle = await client.hide(message, 200)
        (task,) = waiting
        (again,) = await task
        assert (again.body, again.times) == (b"0", 1)
        assert await client.ack(message._replace(handle=handle)) == 0
        assert await client.committed(1) == 0, "the handle of the change is that of a former delivery by now"

    against_broker(config(tmp_path), work)


def test_a_message_that_is_sent_while_a_request_is_being_parked_wakes_it(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.send(b"0")
        assert bodies(await client.pop()) == [b"0"]
        # Both requests arrive together: the message is stored after the first one has found none.
        taken, _ = await asyncio.gather(client.pop(poll_ms=5_000), client.send(b"1"))
        assert bodies(taken) == [b"1"]

    against_broker(config(tmp_path), work)


def test_all_queues_of_a_topic_are_served_together_up_to_a_bound(tmp_path: Path) -> None:
    """Each of them is looked at, and waited for: 65,536 held up the broker for two seconds."""

    async def work(client: Client) -> None:
        for count in (ALL_QUEUES_MAX, ALL_QUEUES_MAX + 1):
            header = CreateTopic("Wide", "TBW102", count, count, 6, "SINGLE_TAG")
            assert (await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == 0
            codes = [
                (await client.call(code, header)).code
                for code, header in (
                    (RequestCode.POP_MESSAGE, PopMessage("G", "Wide", -1, 32, 60_000, 0)),
                    (RequestCode.NOTIFICATION, PopNotification("G", "Wide", -1, 0)),
                    (RequestCode.POP_MESSAGE, PopMessage("G", "Wide", count - 1, 32, 60_000, 0)),
                )
            ]
            none = ResponseCode.POLLING_TIMEOUT
            illegal = ResponseCode.INVALID_PARAMETER
            assert codes == ([none, 0, none] if count == ALL_QUEUES_MAX else [illegal, illegal, none])

    against_broker(config(tmp_path), work)


def test_a_changed_message_is_acknowledged_with_its_new_handle(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.send(b"0")
        (message,) = await client.pop()
        handle = await client.hide(message, 60_000)
        assert await client.ack(message) == 0
        assert await client.committed() == 0
        assert await client.ack(message._replace(handle=handle)) == 0
        assert await client.committed() == 1

    against_broker(config(tmp_path), work)


def test_acknowledgements_and_deliveries_survive_a_restart(tmp_path: Path) -> None:
    kept: list[Taken] = []

    async def before(client: Client) -> None:
        await client.send(*(b"%d" % number for number in range(6)))
        kept.extend(await client.pop(4))
        assert [await client.ack(kept[number]) for number in (1, 3)] == [0, 0]

    async def after(client: Client) -> None:
        assert bodies(await client.pop()) == [b"4", b"5"]
        assert await client.committed() == 0
        assert await client.ack(kept[0]) == 0, "handles are valid after a restart"
        assert await client.committed() == 2

    against_broker(config(tmp_path), before, after)
    document = fastjson.decode((tmp_path / "config" / "popState.json").read_bytes(), PopDocument)
    queue = document.groups["G"]["T"][0]
    assert (queue.next, [offset for offset, *_ in queue.taken]) == (6, [2, 4, 5])


def test_messages_that_the_filter_refuses_are_passed_over(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        for number in range(6):
            await client.send(b"%d" % number, tags="even" if number % 2 == 0 else "odd")
        assert bodies(await client.pop(exp="odd", exp_type="TAG")) == [b"1", b"3", b"5"]
        assert await client.committed() == 1

    against_broker(config(tmp_path), work)


def test_messages_in_order_are_blocked_by_those_before_them(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.send(b"0", b"1", b"2")
        first = await client.pop(2, order=True, attempt_id="a", queue_id=0)
        assert bodies(first) == [b"0", b"1"]
        assert await client.pop(2, order=True, attempt_id="b", queue_id=0) == []
        assert bodies(await client.pop(2, order=True, attempt_id="a", queue_id=0)) == [b"0", b"1"], (
            "the response was lost"
        )

    async def repeated(client: Client) -> None:
        await client.send(b"0", b"1", b"2")
        messages = await client.pop(2, order=True, queue_id=0)
        parked = asyncio.create_task(client.pop(2, order=True, queue_id=0, poll_ms=20_000))
        assert await client.ack(messages[1]) == 0
        await asyncio.sleep(0.05)
        assert not parked.done()
        assert await client.ack(messages[0]) == 0
        assert bodies(await parked) == [b"2"]

    against_broker(config(tmp_path / "a"), work)
    against_broker(config(tmp_path / "b"), repeated)


def test_several_acknowledgements_are_sent_at_once(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.send(*(b"%d" % number for number in range(10)))
        messages = await client.pop()
        assert await client.batch_ack(messages[:1] + messages[2:]) == 0
        assert await client.committed() == 1
        assert await client.ack(messages[1]) == 0
        assert await client.committed() == 10

    against_broker(config(tmp_path), work)


@pytest.mark.usefixtures("untimed_ticks")
def test_acknowledgements_beyond_a_rate_are_not_refused(tmp_path: Path) -> None:
    """Clients of 5.x do not repeat refused ones: the messages would be delivered again."""

    async def work(client: Client) -> None:
        await client.send(b"0", b"1", b"2")
        messages = await client.pop()
        limit = b"serverRequestsPerSecond=1"
        assert (await client.call(RequestCode.UPDATE_BROKER_CONFIG, body=limit)).code == 0
        async with ConnectionPool() as peers:
            other = Client(peers, client.addr)
            calls = [other.call(RequestCode.GET_MAX_OFFSET, QueueRef("T", 0)) for _ in range(100)]
            assert {answer.code for answer in await asyncio.gather(*calls)} == {0, 2}
        # All in one batch: nothing more is read from the connection afterwards, until the rate allows it.
        acks = client.ack(messages[0]), client.batch_ack(messages[1:2]), client.hide(messages[2], 90_000)
        assert (await asyncio.gather(*acks))[:2] == [0, 0]

    against_broker(config(tmp_path), work)


def test_an_offset_that_a_tool_sets_counts(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.send(b"0", b"1", b"2")
        messages = await client.pop()
        await client.commit(1)
        assert bodies(await client.pop()) == [b"1", b"2"]
        assert await client.ack(messages[2]) == 0
        assert await client.committed() == 1

    against_broker(config(tmp_path), work)


@pytest.mark.parametrize(
    ("own", "code"),
    [
        ({"count": 33}, ResponseCode.INVALID_PARAMETER),
        ({"queue_id": 9}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "None"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"exp": "a = = 1", "exp_type": "SQL92"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(tmp_path: Path, own: dict[str, Any], code: int) -> None:
    async def work(client: Client) -> None:
        await client.send(b"0")
        values = {"topic": "T", "queue_id": -1, "count": 32, **own}
        topic, queue_id, count = (values.pop(name) for name in ("topic", "queue_id", "count"))
        answer = await client.call(
            RequestCode.POP_MESSAGE, PopMessage("G", topic, queue_id, count, 60_000, 0, **values)
        )
        assert answer.code == code

    against_broker(config(tmp_path), work)


def test_messages_in_flight_are_listed_with_their_clients(tmp_path: Path) -> None:
    async def listed(client: Client, limit: int = 100, topic: str | None = None) -> InFlightMessages:
        answer = await client.call(RequestCode.LIST_IN_FLIGHT, ListInFlight("G", limit, topic))
        assert answer.code == 0, answer.remark
        return fastjson.decode(answer.body, InFlightMessages)

    async def work(client: Client) -> None:
        assert await listed(client) == InFlightMessages()
        await client.send(b"0", b"1", b"2")
        await client.send(b"3", queue_id=1)
        taken = {message.body: message for message in await client.pop()}
        for item in (await listed(client)).messages:
            assert (item.topic, item.attempts, item.client_id) == ("T", 1, None)
            assert item.visible_ms == item.taken_ms + 60_000
            assert item.client_addr is not None and item.client_addr.startswith("127.0.0.1:")
        for limit, positions in ((100, [(0, 0), (0, 1), (0, 2), (1, 0)]), (2, [(0, 0), (1, 0)])):
            found = await listed(client, limit)
            assert (found.total, [(item.queue_id, item.offset) for item in found.messages]) == (4, positions)
        assert (await listed(client, topic="Other")).total == 0

        data = HeartbeatData("client", (ConsumerData(group_name="G"),))
        assert (await client.call(RequestCode.HEART_BEAT, body=fastjson.write(data))).code == 0
        await client.hide(taken[b"3"], 90_000)  # another handle, and the same client
        await client.ack(taken[b"0"])
        found = await listed(client)
        assert [(item.queue_id, item.offset, item.client_id) for item in found.messages] == [
            (0, 1, "client"), (0, 2, "client"), (1, 0, "client"),
        ]  # fmt: skip
        assert found.messages[-1].visible_ms == found.messages[-1].taken_ms + 90_000
        for limit in (0, 1_001):
            refused = await client.call(RequestCode.LIST_IN_FLIGHT, ListInFlight("G", limit))
            assert (refused.code, refused.remark) == (29, f"Invalid limit {limit}: expected 1 to 1000")

    async def restarted(client: Client) -> None:
        found = await listed(client)
        assert found.total == 3
        assert {(item.client_id, item.client_addr, item.attempts) for item in found.messages} == {(None, None, 1)}

    against_broker(config(tmp_path), work, restarted)


def test_the_broker_assigns_queues(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.send(b"0")
        heartbeat = HeartbeatData("C1", (ConsumerData(group_name="G"),))
        await client.call(RequestCode.HEART_BEAT, body=fastjson.write(heartbeat))
        query = {
            "topic": "T",
            "consumerGroup": "G",
            "clientId": "C1",
            "strategyName": "AVG",
            "messageModel": "CLUSTERING",
        }

        async def assigned() -> list[tuple[int, str]]:
            answer = await client.call(RequestCode.QUERY_ASSIGNMENT, body=json.dumps(query).encode())
            found = json.loads(answer.body)["messageQueueAssignments"]
            return [(each["messageQueue"]["queueId"], each["mode"]) for each in found]

        assert await assigned() == [(0, "PULL"), (1, "PULL"), (2, "PULL"), (3, "PULL")]
        mode = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 0}
        assert (await client.call(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(mode).encode())).code == 0
        assert await assigned() == [(-1, "POP")]
        query["clientId"] = "unknown"
        assert json.loads((await client.call(RequestCode.QUERY_ASSIGNMENT, body=json.dumps(query).encode())).body) == {}

    async def after(client: Client) -> None:
        assert "POP" in (tmp_path / "config" / "messageRequestMode.json").read_text()

    against_broker(config(tmp_path), work, after)
