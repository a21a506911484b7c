"""Failed messages over the broker's socket: retry topic, dead letters, and requests forwarded to clients."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from test_broker import Client, against_broker, config

from ariane.model.message import TRANSACTION_MASK
from ariane.model.topic import SubscriptionGroupConfig
from ariane.net.connection import Peer, Reply
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import properties, record
from ariane.protocol.records.record import Record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.callbacks import (
    ConsumeDirectly,
    ConsumerStatus,
    PushReply,
    ResetOffset,
    RunningInfoRequest,
    reset_table,
    status_body,
)
from ariane.protocol.requests.clients import HeartbeatData, ProducerData, SubscriptionData
from ariane.protocol.requests.messaging import (
    ConsumerSendMsgBack,
    SendMessage,
    SendMessageResponse,
    UpdateConsumerOffset,
)

TOPIC = SubscriptionData(topic="T", sub_version=1)
RETRY, DLQ = "%RETRY%G", "%DLQ%G"


async def back(client: Client, offset: int, level: int = 0, most: int | None = 16) -> Command:
    header = ConsumerSendMsgBack(offset, "G", level, "ignored", "ignored", False, most)
    return await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)


async def only(client: Client, topic: str) -> Record:
    answer = await client.pull(topic=topic)
    (item,) = record.decode_all(answer.body)
    return item


@pytest.mark.parametrize(("level", "most"), [(-1, 16), (0, 0), (0, -1)])
def test_a_dead_letter_is_stored_at_once(tmp_path: Path, level: int, most: int) -> None:
    async def work(client: Client) -> None:
        sent = decode_header(await client.send(), SendMessageResponse)
        assert (await back(client, 0, level, most)).code == 0
        dead = await only(client, DLQ)
        own = dead.property_map()
        assert (dead.queue_id, dead.reconsume_times, own["DELAY"]) == (0, 1, "0")
        assert (own["RETRY_TOPIC"], own["ORIGIN_MESSAGE_ID"]) == ("T", sent.message_id)
        assert (await client.pull(topic=RETRY)).code == ResponseCode.TOPIC_NOT_EXIST

    against_broker(config(tmp_path), work)


def test_the_maximum_retries_of_the_group_apply_without_one_in_the_request(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        group = SubscriptionGroupConfig(group_name="G", retry_max_times=0)
        await client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=fastjson.write(group))
        await client.send()
        assert (await back(client, 0, most=None)).code == 0
        assert (await only(client, DLQ)).body == b"hello"

    against_broker(config(tmp_path), work)


def test_failed_messages_of_a_group_without_retry_queues_are_not_redelivered(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        group = SubscriptionGroupConfig(group_name="G", retry_queue_nums=0)
        await client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=fastjson.write(group))
        await client.send()
        assert (await back(client, 0, -1)).code == 0
        assert (await client.pull(topic=DLQ)).code == ResponseCode.TOPIC_NOT_EXIST

    against_broker(config(tmp_path), work)


def test_invalid_send_back_requests_are_rejected_with_a_reason(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.send()
        nothing = await back(client, 7)
        assert (nothing.code, "7" in (nothing.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
        header = ConsumerSendMsgBack(0, "../G", 0)
        assert (await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == ResponseCode.SYSTEM_ERROR
        long = ConsumerSendMsgBack(0, "g" * 125, 0)
        refused = await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, long)
        assert (refused.code, "127" in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
        unknown = ConsumerSendMsgBack(0, "other", 0)
        answer = await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, unknown)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    group = SubscriptionGroupConfig(group_name="G")
    table = {
        "dataVersion": {"counter": 1, "timestamp": 1},
        "subscriptionGroupTable": {"G": json.loads(fastjson.write(group))},
    }
    table["subscriptionGroupTable"]["g" * 125] = {"groupName": "g" * 125}
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "subscriptionGroup.json").write_text(json.dumps(table))
    against_broker(config(tmp_path, auto_create_subscription_group=False), work)


def test_with_sync_flush_a_send_back_is_answered_once_it_is_flushed(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.send()
        assert (await back(client, 0, -1)).code == 0
        assert (await only(client, DLQ)).body == b"hello"

    against_broker(config(tmp_path, flush_disk_type="SYNC_FLUSH"), work)


def test_a_dead_letter_sent_directly_is_not_delayed(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        text = properties.encode({"DELAY": "18", "RETRY_TOPIC": "T"})
        header = SendMessage("P", RETRY, "TBW102", 4, 0, 0, 1234, 0, text, 3, False, 3)
        assert (await client.call(RequestCode.SEND_MESSAGE_V2, header, b"last")).code == 0
        dead = await only(client, DLQ)
        assert (dead.body, dead.reconsume_times, "DELAY" in dead.property_map()) == (b"last", 3, False)

    against_broker(config(tmp_path), work)


# --- asks that are passed on ---


class Member:
    """Client that records requests and returns prepared responses."""

    def __init__(self, *answers: tuple[int, Reply | None]) -> None:
        self.asked: dict[int, Command] = {}
        self.came = asyncio.Event()
        self.handlers = {code: self.answering(reply) for code, reply in answers}

    def answering(self, reply: Reply | None):
        def handler(command: Command, peer: Peer) -> Reply | None:
            self.asked[command.code] = command
            self.came.set()
            return reply

        return handler


def test_running_info_is_fetched_from_the_client_and_returned_unchanged(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        request = RunningInfoRequest("G", "c1", True)
        offline = await client.call(RequestCode.GET_CONSUMER_RUNNING_INFO, request)
        assert (offline.code, "c1" in (offline.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
        await client.heartbeat("c1", TOPIC)
        answer = await client.call(RequestCode.GET_CONSUMER_RUNNING_INFO, request)
        assert (answer.code, answer.remark, answer.body) == (7, "as it is", b"{}")
        asked = member.asked[RequestCode.GET_CONSUMER_RUNNING_INFO].field_map()
        assert asked == {"consumerGroup": "G", "clientId": "c1", "jstackEnable": "true"}

    member = Member((RequestCode.GET_CONSUMER_RUNNING_INFO, Reply(7, remark="as it is", body=b"{}")))
    against_broker(config(tmp_path), work, member.handlers)


def test_the_broker_attaches_the_record_to_a_direct_consumption(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        sent = decode_header(await client.send(), SendMessageResponse)
        await client.heartbeat("c1", TOPIC)
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        answer = await client.call(code, ConsumeDirectly("G", "c1", sent.message_id))
        assert (answer.code, answer.body) == (0, b"{}")
        request = member.asked[code]
        assert request.field_map()["brokerName"] == "broker-a"
        assert record.decode(request.body).body == b"hello"
        for wrong in (ConsumeDirectly("G"), ConsumeDirectly("G", "c1", "no id"), ConsumeDirectly("G", "c1", "F" * 32)):
            assert (await client.call(code, wrong)).code == ResponseCode.SYSTEM_ERROR

    member = Member((RequestCode.CONSUME_MESSAGE_DIRECTLY, Reply(body=b"{}")))
    against_broker(config(tmp_path), work, member.handlers)


def test_a_client_that_does_not_respond_in_time_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ariane.broker.handlers.admin.consumer_admin.CALL_MS", 50)

    async def work(client: Client) -> None:
        await client.heartbeat("c1", TOPIC)
        answer = await client.call(RequestCode.GET_CONSUMER_RUNNING_INFO, RunningInfoRequest("G", "c1"))
        assert (answer.code, "c1" in (answer.remark or "")) == (ResponseCode.CONSUME_MSG_TIMEOUT, True)

    member = Member((RequestCode.GET_CONSUMER_RUNNING_INFO, None))
    against_broker(config(tmp_path), work, member.handlers)


@pytest.mark.parametrize(
    ("timestamp", "force", "expected"), [(0, True, 0), (-1, True, 3), (-1, False, 2), (0, False, 0)]
)
def test_reset_offset_sends_new_offsets_to_the_members(
    tmp_path: Path, timestamp: int, force: bool, expected: int
) -> None:
    async def work(client: Client) -> None:
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        request = ResetOffset("T", "G", timestamp, force)
        assert (await client.call(code, request)).code == ResponseCode.SYSTEM_ERROR  # no such topic
        for _ in range(3):
            await client.send()
        assert "has no offset" in ((await client.call(code, request)).remark or "")
        for queue_id in range(4):
            header = UpdateConsumerOffset("G", "T", queue_id, 2 if queue_id == 0 else 0)
            await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        assert (await client.call(code, request)).code == ResponseCode.CONSUMER_NOT_ONLINE
        await client.heartbeat("c1", TOPIC)
        answer = await client.call(code, request)
        table = {queue.queue_id: offset for queue, offset in reset_table(answer.body).items()}
        assert (answer.code, table) == (0, {0: expected, 1: 0, 2: 0, 3: 0})
        async with asyncio.timeout(5):
            await member.came.wait()
        reported = member.asked[RequestCode.RESET_CONSUMER_CLIENT_OFFSET]
        assert reset_table(reported.body) == reset_table(answer.body)
        assert reported.field_map()["group"] == "G"

    async def setup() -> Member:
        return Member((RequestCode.RESET_CONSUMER_CLIENT_OFFSET, None))

    member = asyncio.run(setup())
    against_broker(config(tmp_path), work, member.handlers)


def test_consumer_status_collects_the_offsets_of_members(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        assert (await client.call(code, ConsumerStatus("T", "G"))).code == ResponseCode.SYSTEM_ERROR
        await client.heartbeat("c1", TOPIC)
        answer = await client.call(code, ConsumerStatus("T", "G"))
        (table,) = fastjson.read(answer.body)["consumerTable"].items()
        assert (answer.code, table[0], list(table[1].values())) == (0, "c1", [5])
        assert (await client.call(code, ConsumerStatus("T", "G", "c2"))).code == ResponseCode.SYSTEM_ERROR
        assert (await client.call(code, ConsumerStatus("T", "G", "c1"))).code == 0

    body = status_body(reset_table(b'{"offsetTable":[{"brokerName":"b","offset":5,"queueId":1,"topic":"T"}]}'))
    member = Member((RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, Reply(body=body)))
    against_broker(config(tmp_path), work, member.handlers)


def test_members_without_status_support_are_named(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.heartbeat("c1", TOPIC)
        answer = await client.call(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ConsumerStatus("T", "G"))
        assert (answer.code, "c1: answered code 3" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)

    against_broker(config(tmp_path), work)


# --- replies ---


async def send_reply(client: Client, **own: str) -> Command:
    header = SendMessage("P", "DefaultCluster_REPLY_TOPIC", "TBW102", 4, 0, 0, 1234, 7, properties.encode(own))
    return await client.call(RequestCode.SEND_REPLY_MESSAGE_V2, header, b"yes")


@pytest.mark.parametrize("stored", [True, False])
def test_a_reply_is_pushed_to_the_requesting_client(tmp_path: Path, stored: bool) -> None:
    async def work(client: Client) -> None:
        data = HeartbeatData("c1", (), (ProducerData("PG"),))
        await client.call(RequestCode.HEART_BEAT, body=fastjson.write(data))
        answer = await send_reply(client, CORRELATION_ID="x", REPLY_TO_CLIENT="c1", MSG_TYPE="reply")
        reported = member.asked[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT]
        header = decode_header(reported, PushReply)
        own = properties.decode(header.properties or "")
        assert (answer.code, reported.body, header.store_host, header.flag) == (0, b"yes", client.addr, 7)
        assert (own["CORRELATION_ID"], own["PUSH_REPLY_TIME"].isdigit()) == ("x", True)
        assert (decode_header(answer, SendMessageResponse).message_id != "0") is stored
        kept = await client.pull(topic="DefaultCluster_REPLY_TOPIC")
        assert (len(kept.body) > 0) is stored

    member = Member((RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, Reply()))
    against_broker(config(tmp_path, store_reply_message_enable=stored), work, member.handlers)


@pytest.mark.parametrize("own", [{"MSG_TYPE": "reply"}, {"REPLY_TO_CLIENT": "nobody"}, {"REPLY_TO_CLIENT": "c1"}])
def test_an_undeliverable_reply_is_reported_and_stored(tmp_path: Path, own: dict[str, str]) -> None:
    async def work(client: Client) -> None:
        data = HeartbeatData("c1", (), (ProducerData("PG"),))
        await client.call(RequestCode.HEART_BEAT, body=fastjson.write(data))
        answer = await send_reply(client, **own)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "reply message" in (answer.remark or "")
        assert (await only(client, "DefaultCluster_REPLY_TOPIC")).body == b"yes"

    against_broker(config(tmp_path), work)  # c1 answers 3: it does not know the code


@pytest.mark.parametrize("times", [1, 16])
def test_a_retried_message_with_a_transaction_flag_is_stored(tmp_path: Path, times: int) -> None:
    """Clients before 4.6.1 do not clear TRAN_MSG on messages that they send to a retry topic themselves."""

    async def work(client: Client) -> None:
        await client.heartbeat("c1", SubscriptionData(topic="T"))
        table = {"TRAN_MSG": "true", "PGROUP": "P", "DELAY": "1", "RETRY_TOPIC": "T", "UNIQ_KEY": "U"}
        header = SendMessage("P", RETRY, "TBW102", 1, 0, 0, 1, 0, properties.encode(table), times, False, 16)
        answer = await client.call(RequestCode.SEND_MESSAGE_V2, header, b"again")
        assert (answer.code, answer.remark) == (0, None)
        topic = RETRY if times < 16 else DLQ
        stored = await asyncio.wait_for(delivered(client, topic), 20)
        assert (stored.body, stored.reconsume_times, stored.property_map()["TRAN_MSG"]) == (b"again", times, "true")
        assert stored.sys_flag & TRANSACTION_MASK == 0

    async def delivered(client: Client, topic: str) -> Record:
        while not (records := list(record.decode_all((await client.pull(topic=topic)).body))):
            await asyncio.sleep(0.1)
        return records[0]

    against_broker(config(tmp_path), work)
