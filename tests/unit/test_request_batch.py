"""Batches of requests: what the broker answers, within which bounds, and that tools read the same as from single requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from ariane.broker.access.request_permissions import REQUEST_NEEDS
from ariane.broker.handlers.admin.request_batch import PAGE_BYTES, PAGE_S, RequestBatchHandler
from ariane.cluster.servers.statistics_requests import NOT_COUNTED, StatisticsRequests, batch_max
from ariane.errors import ProtocolError, ReplyError, RequestTimeout
from ariane.net.connection import HandlerResult, Peer, Reply
from ariane.net.replies import make_peer
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.request_batch import (
    BATCHED_CODES,
    REQUESTS_KEY,
    REQUESTS_MAX,
    decode_requests,
    decode_responses,
    encode_requests,
)
from ariane.protocol.requests import decode_header, encode_header
from ariane.protocol.requests.routing import KvTableBody
from ariane.protocol.requests.stats import BrokerStatsData, BrokerStatsItem, ViewBrokerStats
from ariane.testing.clock import FakeClock

VIEW = RequestCode.VIEW_BROKER_STATS_DATA
PEER = make_peer(1, ("10.0.0.9", 5000))
Serve = Callable[[Command, Peer], HandlerResult]


def view(command: Command, peer: Peer) -> Reply:
    """Return the number at the end of the key as a statistic. Uneven ones do not exist."""
    number = int(decode_header(command, ViewBrokerStats).stats_key.removeprefix("T"))
    if number % 2:
        raise ReplyError(ResponseCode.SYSTEM_ERROR, "The stats <x> <y> not exist")
    item = BrokerStatsItem(0.0, number, number / 60)
    return Reply(body=fastjson.write(BrokerStatsData(item, item, item)))


def fields(count: int) -> list[dict[str, str]]:
    return [encode_header(ViewBrokerStats("TOPIC_PUT_NUMS", f"T{number}")) for number in range(count)]


def answer(body: bytes, serve: Serve = view, clock: FakeClock | None = None) -> list[Command]:
    handler = RequestBatchHandler({VIEW: serve}, clock or FakeClock())
    reply = asyncio.run(handler.batch(Command(RequestCode.REQUEST_BATCH, body=body), PEER))
    return decode_responses(b"".join(reply.body), REQUESTS_MAX)


# --- the broker ---


def test_each_request_is_answered_as_if_it_was_alone() -> None:
    responses = answer(encode_requests(VIEW, fields(REQUESTS_MAX)))
    assert [response.opaque for response in responses] == list(range(REQUESTS_MAX))
    assert {response.code for response in responses[1::2]} == {ResponseCode.SYSTEM_ERROR}
    sums = [fastjson.decode(response.body, BrokerStatsData).stats_minute.sum for response in responses[::2]]
    assert sums == list(range(0, REQUESTS_MAX, 2))


def test_a_faulty_handler_or_header_fails_only_its_request() -> None:
    def fail(command: Command, peer: Peer) -> Reply:
        if command.opaque == 1:
            raise KeyError("T1")
        return view(command, peer)

    assert [response.code for response in answer(encode_requests(VIEW, fields(3)), fail)] == [0, 1, 0]
    assert [response.code for response in answer(encode_requests(VIEW, [None, *fields(1)]))] == [1, 0]


def test_other_codes_are_not_served() -> None:
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.REQUEST_BATCH):
        (response,) = answer(encode_requests(code, [None]))
        assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_a_batch_needs_no_less_permission_than_its_requests() -> None:
    fields = {"topic": "T", "consumerGroup": "G", "group": "G"}
    batch = REQUEST_NEEDS[RequestCode.REQUEST_BATCH]
    for code in BATCHED_CODES:
        needs = REQUEST_NEEDS[code]
        assert (needs.is_admin, needs.message) == (batch.is_admin, batch.message) == (False, None)
        required = needs.permissions(fields, b"")
        assert required
        body = encode_requests(RequestCode.VIEW_BROKER_STATS_DATA, [None]) + encode_requests(code, [fields, fields])
        assert set(batch.permissions({}, body)) >= set(required)


def test_a_page_ends_with_the_response_that_fills_it() -> None:
    large = Reply(body=b"x" * (PAGE_BYTES // 4))
    assert len(answer(encode_requests(VIEW, fields(9)), lambda command, peer: large)) == 3
    larger = Reply(body=b"x" * (2 * PAGE_BYTES))
    assert len(answer(encode_requests(VIEW, fields(9)), lambda command, peer: larger)) == 1


def test_a_response_that_fits_into_no_frame_is_an_error() -> None:
    too_large = Reply(body=b"x" * (16 * 1024 * 1024))
    (response,) = answer(encode_requests(VIEW, fields(1)), lambda command, peer: too_large)
    assert (response.code, "too large" in str(response.remark)) == (ResponseCode.SYSTEM_ERROR, True)


def test_a_page_ends_after_its_time() -> None:
    clock = FakeClock()

    def slow(command: Command, peer: Peer) -> Reply:
        clock.advance(PAGE_S / 4)
        return Reply()

    assert len(answer(encode_requests(VIEW, fields(9)), slow, clock)) == 4


def test_other_connections_are_served_during_a_batch() -> None:
    async def run() -> int:
        handler = RequestBatchHandler({VIEW: view}, FakeClock())
        body = encode_requests(VIEW, fields(REQUESTS_MAX))
        batch = asyncio.create_task(handler.batch(Command(RequestCode.REQUEST_BATCH, body=body), PEER))
        turns = 0
        while not batch.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(run()) >= 15


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0",
        encode_requests(VIEW, fields(1))[:-1],
        encode_requests(VIEW, fields(REQUESTS_MAX + 1)),
        encode_requests(VIEW, [{"statsName": "x" * 9_000}]),
        b"\x7f" * 64,
    ],
)
def test_an_invalid_batch_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        answer(body)


# --- tools ---


class Broker:
    """A broker without sockets, which may support batches."""

    def __init__(self, *, accepts_batches: bool = True) -> None:
        self.accepts_batches = accepts_batches
        self.is_silent_after: int | None = None  # number of requests
        self.lost: int | None = None  # a request that has no response
        self.counts: Counter[int] = Counter()
        self._batches = RequestBatchHandler({VIEW: self._view}, FakeClock())

    def _view(self, command: Command, peer: Peer) -> Reply:
        reply = view(command, peer)
        # So that pages end before their last request.
        return msgspec.structs.replace(reply, body=bytes(reply.body) + b" " * (PAGE_BYTES // 100))

    async def request(
        self, addr: str, code: int, header: msgspec.Struct | None = None, body: bytes = b"", *, timeout_ms: float = 3000
    ) -> Command:
        await asyncio.sleep(0)
        self.counts[code] += 1
        if self.counts.total() == self.lost or (
            self.is_silent_after is not None and self.counts.total() > self.is_silent_after
        ):
            raise RequestTimeout(addr, timeout_ms)
        if code == RequestCode.GET_BROKER_RUNTIME_INFO:
            table = {REQUESTS_KEY: str(REQUESTS_MAX)} if self.accepts_batches else {"brokerVersion": "401"}
            return Command(ResponseCode.SUCCESS, body=fastjson.write(KvTableBody(table)))
        if code == RequestCode.REQUEST_BATCH and self.accepts_batches:
            reply = await self._batches.batch(Command(code, body=body), PEER)
            return Command(reply.code, body=b"".join(reply.body))
        if code != VIEW or header is None:
            return Command(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        try:
            reply = self._view(Command(code, fields=encode_header(header)), PEER)
        except ReplyError as error:
            return Command(error.code, remark=error.remark)
        return Command(reply.code, body=bytes(reply.body))


STATISTICS = [("TOPIC_PUT_NUMS", f"T{number}") for number in range(1_200)]


def read(broker: Broker) -> dict[tuple[str, str], BrokerStatsItem | None]:
    async def run() -> dict[tuple[str, str], BrokerStatsItem | None]:
        requests = StatisticsRequests(broker, "b:1", timeout_ms=1_000)
        await requests.runtime_table()
        return await requests.minute_statistics(STATISTICS)

    return asyncio.run(run())


def test_a_batch_reads_the_same_as_single_requests_with_few_requests() -> None:
    ours, java = Broker(), Broker(accepts_batches=False)
    assert read(ours) == read(java)
    assert read(ours)["TOPIC_PUT_NUMS", "T1"] is NOT_COUNTED
    assert ours.counts[VIEW] == 0
    assert ours.counts[RequestCode.REQUEST_BATCH] < 20
    assert java.counts == {RequestCode.GET_BROKER_RUNTIME_INFO: 1, VIEW: len(STATISTICS)}


def test_a_broker_that_does_not_support_batches_any_more_is_asked_one_by_one() -> None:
    async def run(broker: Broker) -> int:
        requests = StatisticsRequests(broker, "b:1", timeout_ms=1_000, batch_max=REQUESTS_MAX)
        return len(await requests.minute_statistics(STATISTICS))

    older = Broker(accepts_batches=False)
    assert asyncio.run(run(older)) == len(STATISTICS)
    assert older.counts == {RequestCode.REQUEST_BATCH: 1, VIEW: len(STATISTICS)}


def test_one_request_without_a_response_does_not_cost_the_others() -> None:
    broker = Broker(accepts_batches=False)
    broker.lost = 700
    assert read(broker) == read(Broker())


@pytest.mark.parametrize("accepts_batches", [True, False])
def test_after_a_request_without_a_response_the_others_are_not_sent(accepts_batches: bool) -> None:
    async def run(broker: Broker) -> list[Command | Exception]:
        requests = StatisticsRequests(broker, "b:1", timeout_ms=1_000, batch_max=REQUESTS_MAX * accepts_batches)
        headers = [ViewBrokerStats(*statistic) for statistic in STATISTICS]
        return [*(await requests.request_many(VIEW, headers))]

    broker = Broker(accepts_batches=accepts_batches)
    broker.is_silent_after = 3
    responses = asyncio.run(run(broker))
    assert len(responses) == len(STATISTICS)
    answered = [number for number, response in enumerate(responses) if isinstance(response, Command)]
    assert answered
    assert answered == list(range(len(answered)))
    assert broker.counts.total() < 40


@pytest.mark.parametrize(
    ("text", "expected"), [("500", 500), ("9999", REQUESTS_MAX), ("-1", 0), ("x", 0), ("9" * 5_000, 0)]
)
def test_the_size_of_batches_is_bounded_whatever_a_broker_reports(text: str, expected: int) -> None:
    assert batch_max({REQUESTS_KEY: text}) == expected
    assert batch_max({}) == 0


def test_requests_keep_their_fields() -> None:
    (request,) = decode_requests(encode_requests(VIEW, [{"statsName": "GROUP_GET_NUMS", "statsKey": "主题@G\n"}]))
    assert request.field_map() == {"statsName": "GROUP_GET_NUMS", "statsKey": "主题@G\n"}
