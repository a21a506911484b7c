"""Transient and permanent errors, retry delays, and requests to several name servers (asyncio and blocking)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from ariane.errors import (
    ArianeError,
    ConnectionLost,
    MessageRefused,
    ProtocolError,
    ReplyError,
    RequestTimeout,
    RouteNotFound,
    ServerUnavailable,
)
from ariane.model.backoff import Backoff
from ariane.net.pools.name_servers import NameServerClient
from ariane.protocol import fastjson
from ariane.protocol.client_rules.transient import ACCESS_DENIED, RETRY_ELSEWHERE_CODES, RETRY_SEND_CODES, is_transient
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.routing import BrokerData, ClusterInfo, TopicList, TopicRoute
from ariane.spark.wire.blocking_connection import Request
from ariane.spark.wire.name_servers import BlockingNameServerClient

ROUTE = TopicRoute(broker_datas=(BrokerData({0: "10.0.0.1:10911"}, "broker-a"),))
FOUND = Command(ResponseCode.SUCCESS, body=fastjson.write(ROUTE))
UNKNOWN = Command(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")
BUSY = Command(ResponseCode.SYSTEM_BUSY, remark="busy")
LOST = ConnectionLost("ns:1", "refused")
UNREADABLE = Command(ResponseCode.SUCCESS, body=b"{")
CLUSTER = ClusterInfo({"broker-a": ROUTE.broker_datas[0]})
LISTED = Command(ResponseCode.SUCCESS, body=fastjson.write(CLUSTER))
JUST_STARTED = Command(ResponseCode.SUCCESS, body=fastjson.write(ClusterInfo()))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionLost("b:1", "refused"), True),
        (RequestTimeout("b:1", 3000), True),
        (RouteNotFound("T", "no broker"), True),
        (ServerUnavailable("tried 3 times"), True),
        (ReplyError(ResponseCode.SYSTEM_BUSY, "busy"), True),
        (ReplyError(ResponseCode.SYSTEM_ERROR, None), True),
        (ReplyError(ResponseCode.SYSTEM_ERROR, f"{ACCESS_DENIED}: no permission"), False),
        (ReplyError(ResponseCode.NO_PERMISSION, "read only"), False),
        (MessageRefused("too large"), False),
    ],
)
def test_an_error_is_transient_or_permanent(error: ArianeError, expected: bool) -> None:
    assert is_transient(error) is expected


@pytest.mark.parametrize("code", [1, 2, 13, 14, 16, 17, 26, 3, 204, 205])
def test_a_sender_tries_another_broker_after_other_response_codes(code: int) -> None:
    expected = code in (1, 14, 16, 17, 204, 205)
    assert is_transient(ReplyError(code, None), RETRY_ELSEWHERE_CODES) == expected
    assert is_transient(ReplyError(code, None), RETRY_SEND_CODES) == (expected or code == 2)


def test_a_backoff_doubles_up_to_its_limit() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.delay_s(failures) for failures in (1, 2, 3, 4, 10**9)] == [0.5, 1.0, 2.0, 3.0, 3.0]


class Script:
    """Name servers that give prepared responses, one list per address; records who was asked."""

    def __init__(self, **answers: list[Command | Exception]) -> None:
        self.answers = answers
        self.requested: list[str] = []

    async def request(
        self, addr: str, code: int, header: msgspec.Struct | None = None, body: bytes = b"", *, timeout_ms: float = 3000
    ) -> Command:
        return self.respond(addr)

    def __call__(self, addr: str, requests: Sequence[Request], /) -> list[Command]:
        return [self.respond(addr) for _ in requests]

    def respond(self, addr: str) -> Command:
        self.requested.append(addr)
        answer = self.answers[addr].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def fetch(script: Script, **settings: bool) -> TopicRoute:
    return asyncio.run(NameServerClient(script, ["a", "b"], **settings).fetch_route("T"))  # type: ignore[arg-type]


@pytest.mark.parametrize("first", [LOST, RequestTimeout("a", 3000), UNKNOWN, BUSY, UNREADABLE])
def test_name_servers_are_tried_until_one_has_the_route(first: Command | Exception) -> None:
    script = Script(a=[first], b=[FOUND])
    assert fetch(script) == ROUTE
    assert script.requested == ["a", "b"]
    assert BlockingNameServerClient(Script(a=[first], b=[FOUND]), ["a", "b"]).fetch_routes(["T"]) == {"T": ROUTE}


@pytest.mark.parametrize(("first", "error"), [(UNKNOWN, RouteNotFound), (BUSY, ReplyError)])
def test_the_first_response_can_be_final(first: Command, error: type[ArianeError]) -> None:
    script = Script(a=[first], b=[FOUND])
    with pytest.raises(error):
        fetch(script, is_first_final=True)
    assert script.requested == ["a"]
    for unanswered in (LOST, UNREADABLE):
        assert fetch(Script(a=[unanswered], b=[FOUND]), is_first_final=True) == ROUTE


@pytest.mark.parametrize("answers", [(UNKNOWN, LOST), (LOST, UNKNOWN), (UNKNOWN, BUSY)])
def test_an_unknown_topic_takes_precedence_over_failed_name_servers(answers: tuple[Command | Exception, ...]) -> None:
    with pytest.raises(RouteNotFound, match=f"no such topic on name server {'ab'[answers.index(UNKNOWN)]}$"):
        fetch(Script(a=[answers[0]], b=[answers[1]]))
    assert BlockingNameServerClient(Script(a=[answers[0]], b=[answers[1]]), ["a", "b"]).fetch_routes(["T"]) == {}


def test_without_a_response_the_last_error_is_raised() -> None:
    with pytest.raises(ConnectionLost, match="refused"):
        fetch(Script(a=[RequestTimeout("a", 3000)], b=[LOST]))
    with pytest.raises(ConnectionLost, match="refused"):
        BlockingNameServerClient(Script(a=[BUSY], b=[LOST]), ["a", "b"]).fetch_routes(["T"])
    with pytest.raises(ConnectionLost, match="none is configured"):
        asyncio.run(NameServerClient(Script(), []).request(RequestCode.GET_BROKER_CLUSTER_INFO))


def test_an_unresponsive_name_server_is_tried_last_afterwards() -> None:
    script, blocking_script = (Script(a=[LOST, FOUND], b=[FOUND, FOUND, LOST]) for _ in range(2))

    async def run() -> None:
        client = NameServerClient(script, ["a", "b"])
        for _ in range(3):
            await client.fetch_route("T")

    asyncio.run(run())
    client = BlockingNameServerClient(blocking_script, ["a", "b"])
    for _ in range(3):
        client.fetch_routes(["T"])
    assert script.requested == blocking_script.requested == ["a", "b", "b", "b", "a"]


def test_only_topics_without_a_route_are_requested_from_the_next_name_server() -> None:
    script = Script(a=[FOUND, UNKNOWN], b=[FOUND])
    assert BlockingNameServerClient(script, ["a", "b"]).fetch_routes(["T", "U"]) == {"T": ROUTE, "U": ROUTE}
    assert script.requested == ["a", "a", "b"]


def fetch_cluster(first: Command | Exception, second: Command | Exception) -> ClusterInfo:
    """Return the brokers as both clients see them."""
    brokers = asyncio.run(NameServerClient(Script(a=[first], b=[second]), ["a", "b"]).fetch_cluster())
    assert BlockingNameServerClient(Script(a=[first], b=[second]), ["a", "b"]).fetch_cluster() == brokers
    return brokers


@pytest.mark.parametrize("first", [LOST, BUSY, UNREADABLE, JUST_STARTED])
def test_the_registered_brokers_are_fetched_from_a_name_server_that_lists_them(first: Command | Exception) -> None:
    assert fetch_cluster(first, LISTED) == CLUSTER


def test_without_registered_brokers_the_list_is_empty_unless_a_name_server_failed() -> None:
    assert fetch_cluster(JUST_STARTED, JUST_STARTED) == ClusterInfo()
    for failed in ((JUST_STARTED, LOST), (LOST, JUST_STARTED)):
        with pytest.raises(ConnectionLost, match="refused"):
            fetch_cluster(*failed)


def test_topics_are_fetched_from_a_name_server_that_lists_them() -> None:
    topics = TopicList(topic_list=("T",))
    empty, listed = (Command(ResponseCode.SUCCESS, body=fastjson.write(value)) for value in (TopicList(), topics))
    for first in (LOST, UNREADABLE, empty):
        assert BlockingNameServerClient(Script(a=[first], b=[listed]), ["a", "b"]).fetch_topics() == topics


def test_the_error_of_unreadable_responses_names_the_name_server() -> None:
    with pytest.raises(ProtocolError, match="^name server b: JSON at 1: "):
        fetch(Script(a=[LOST], b=[UNREADABLE]))
