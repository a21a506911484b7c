"""Request and reply without a socket: both messages and the pending requests."""

from __future__ import annotations

import asyncio
import zlib

import pytest
from client_script import message

from ariane.client.instance import pending_replies
from ariane.client.instance.pending_replies import PendingReplies
from ariane.client.instance.settings import ProducerSettings
from ariane.client.sending import request_reply, send_codec
from ariane.errors import MessageRefused
from ariane.model.message import COMPRESSED, Message
from ariane.net.connection import Peer
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import properties
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.callbacks import PushReply
from ariane.testing.clock import FakeClock

SETTINGS = ProducerSettings()
PEER = Peer(1, "127.0.0.1", 5, b"")
ASKED = {"CORRELATION_ID": "x", "REPLY_TO_CLIENT": "me", "TTL": "3000", "CLUSTER": "C", "UNIQ_KEY": "U"}


def push(body: bytes = b"yes", sys_flag: int = 0, **own: str) -> Command:
    header = PushReply(
        producer_group="p", topic="C_REPLY_TOPIC", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=sys_flag, born_ms=1, flag=7, born_host="127.0.0.1:9", store_host="127.0.0.1:8", store_ms=2,
        properties=properties.encode(own),
    )  # fmt: skip
    return Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields=encode_header(header), body=body)


def test_a_request_carries_its_correlation_id_and_client() -> None:
    out = send_codec.prepare(Message(topic="T", body=b"b", properties={"mine": "1"}), "ID", SETTINGS)
    request = request_reply.prepare_request(out, "x", "me", 3000)
    own = properties.decode(request.properties)
    assert own == {
        "UNIQ_KEY": "ID", "WAIT": "true", "mine": "1", "CORRELATION_ID": "x", "REPLY_TO_CLIENT": "me", "TTL": "3000",
    }  # fmt: skip
    assert request.code == RequestCode.SEND_MESSAGE_V2


def test_a_reply_is_sent_to_the_clusters_reply_topic_with_the_request_properties() -> None:
    request = message(0, properties=ASKED)
    answer = request_reply.build_reply(request, b"yes", tags="a", keys=["k"], properties={"mine": "1"})
    out = request_reply.prepare_reply(request, answer, "ID", SETTINGS)
    own = properties.decode(out.properties)
    assert (out.topic, out.body, out.code) == (
        "C_REPLY_TOPIC",
        b"yes",
        RequestCode.SEND_REPLY_MESSAGE_V2,
    )
    assert {name: own[name] for name in ("MSG_TYPE", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "TAGS", "mine")} == {
        "MSG_TYPE": "reply", "CORRELATION_ID": "x", "REPLY_TO_CLIENT": "me", "TTL": "3000", "TAGS": "a", "mine": "1",
    }  # fmt: skip


@pytest.mark.parametrize("missing", ["CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT"])
def test_only_a_request_can_be_replied_to(missing: str) -> None:
    request = message(0, properties={name: value for name, value in ASKED.items() if name != missing})
    with pytest.raises(MessageRefused, match=missing):
        request_reply.build_reply(request, b"yes", tags="", keys=(), properties={})


def test_properties_that_are_too_long_are_rejected() -> None:
    out = send_codec.prepare(Message(topic="T", body=b"b", properties={"mine": "x" * 32_600}), "ID", SETTINGS)
    with pytest.raises(MessageRefused, match="32767"):
        request_reply.prepare_request(out, "x" * 100, "me", 3000)


def test_a_pushed_reply_completes_its_request_once() -> None:
    async def play() -> None:
        waiting = PendingReplies(FakeClock(is_auto=True))
        answer = waiting.expect("x")
        body = zlib.compress(b"yes")
        assert waiting.on_reply(push(body, COMPRESSED, CORRELATION_ID="x", UNIQ_KEY="U"), PEER).code == 0
        result = await answer
        assert (result.body, result.message_id, result.flag, result.queue_offset) == (b"yes", "U", 7, -1)
        assert result.properties["ARRIVE_TIME"] == str(FakeClock(is_auto=True).now_ms())
        assert waiting.on_reply(push(CORRELATION_ID="x"), PEER).code == ResponseCode.SYSTEM_ERROR
        assert waiting.on_reply(push(mine="1"), PEER).code == ResponseCode.SYSTEM_ERROR

    asyncio.run(play())


def test_a_reply_after_the_timeout_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_replies, "PENDING_MAX", 1)

    async def play() -> None:
        waiting = PendingReplies(FakeClock(is_auto=True))
        waiting.expect("x")
        with pytest.raises(MessageRefused, match="wait for replies"):
            waiting.expect("y")
        waiting.forget("x")
        assert len(waiting) == 0
        assert waiting.on_reply(push(CORRELATION_ID="x"), PEER).code == ResponseCode.SYSTEM_ERROR

    asyncio.run(play())
