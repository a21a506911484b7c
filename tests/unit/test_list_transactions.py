"""The list of open transactions while the broker goes on checking them between any two requests."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ariane.cluster.messages.transaction_admin import TransactionOperations
from ariane.errors import ReplyError
from ariane.model import host
from ariane.model.message import CHECK_TIMES, KEYS, PGROUP, REAL_QID, REAL_TOPIC, UNIQ_KEY
from ariane.model.topic import HALF_TOPIC
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import properties, record
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.messaging import (
    OffsetResponse,
    PullMessage,
    PullMessageResponse,
    QueryConsumerOffset,
    QueueRef,
)
from ariane.protocol.requests.routing import BrokerData, ClusterInfo

MASTER = "127.0.0.1:10911"


class CheckingJavaBroker:
    """A name server and a broker that appends copies of its half messages, without a reference to the first, at some requests.

    Args:
        keys: The keys of the open transactions.
        checks_at: Numbers of the requests before which all half messages are checked.
    """

    def __init__(self, keys: list[str], checks_at: set[int]) -> None:
        self.queue = [(key, 0) for key in keys]
        self.open_count = len(keys)
        self.progress = 0
        self.checks_at = checks_at
        self.requests = 0

    async def request(
        self, addr: str, code: int, header: Any = None, body: bytes = b"", *, timeout_ms: float = 0
    ) -> Command:
        if code == RequestCode.GET_BROKER_CLUSTER_INFO:
            broker = BrokerData({0: MASTER}, "b", "c")
            return Command(ResponseCode.SUCCESS, body=msgspec.json.encode(ClusterInfo({"b": broker}, {"c": ("b",)})))
        self.requests += 1
        if self.requests in self.checks_at:
            newest = self.queue[-self.open_count :]
            self.progress = len(self.queue)
            self.queue += [(key, checks + 1) for key, checks in newest]
        stored = self.queue if getattr(header, "topic", "") == HALF_TOPIC else []
        match code:
            case RequestCode.GET_MIN_OFFSET | RequestCode.GET_MAX_OFFSET:
                assert isinstance(header, QueueRef)
                return self._answer(OffsetResponse(len(stored) if code == RequestCode.GET_MAX_OFFSET else 0))
            case RequestCode.QUERY_CONSUMER_OFFSET:
                assert isinstance(header, QueryConsumerOffset)
                return self._answer(OffsetResponse(self.progress if stored else 0))
            case RequestCode.PULL_MESSAGE:
                assert isinstance(header, PullMessage)
                stop = header.queue_offset + header.max_msg_nums
                records = [self._record(n) for n in range(header.queue_offset, min(stop, len(stored)))]
                return self._answer(PullMessageResponse(0, stop, 0, len(stored)), b"".join(records))
        raise AssertionError(f"unexpected request {code}")

    async def request_ok(self, addr: str, code: int, header: Any = None, body: bytes = b"", **options: Any) -> Command:
        answer = await self.request(addr, code, header, body, **options)
        if answer.code != ResponseCode.SUCCESS:
            raise ReplyError(answer.code, answer.remark, addr)
        return answer

    def _answer(self, header: Any, body: bytes = b"") -> Command:
        return Command(ResponseCode.SUCCESS, fields=encode_header(header), body=body)

    def _record(self, number: int) -> bytes:
        key, checks = self.queue[number]
        table = {KEYS: key, UNIQ_KEY: f"ID-{key}", PGROUP: "P", REAL_TOPIC: "T", REAL_QID: "0"}
        if checks:
            table[CHECK_TIMES] = str(checks)
        return record.encode(
            HALF_TOPIC.encode(), b"x", properties.encode(table).encode(), queue_id=0, queue_offset=number, offset=number * 1000,
            born_ms=1, born_host=host.pack("127.0.0.1", 1), store_ms=2, store_host=host.pack("127.0.0.1", 10911),
        )  # fmt: skip


@pytest.mark.parametrize("check_at", range(1, 12))
def test_a_check_between_two_requests_hides_and_doubles_no_open_transaction(check_at: int) -> None:
    broker = CheckingJavaBroker(["K-0", "K-1", "K-2"], {check_at})
    admin = TransactionOperations("127.0.0.1:9876", peers=broker)  # type: ignore[arg-type]
    (listed,) = asyncio.run(admin.list_open_transactions()).brokers
    assert sorted(half.keys for half in listed.messages) == ["K-0", "K-1", "K-2"]
    assert listed.total == 3


def test_checks_before_every_request_hide_no_open_transaction() -> None:
    broker = CheckingJavaBroker(["K-0", "K-1"], set(range(1, 100)))
    admin = TransactionOperations("127.0.0.1:9876", peers=broker)  # type: ignore[arg-type]
    (listed,) = asyncio.run(admin.list_open_transactions()).brokers
    assert sorted(half.keys for half in listed.messages) == ["K-0", "K-1"]
    assert listed.total == 2
