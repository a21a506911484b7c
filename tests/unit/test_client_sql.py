"""SQL92 subscriptions at the client: check before the first heartbeat, pull requests, unsupported brokers."""

from __future__ import annotations

import asyncio
import json

import pytest
from client_script import QUEUE, Script, fetch_context, instance, name_server, raising, route
from test_client_fetcher import END, PULL, Play, answer, stored

from ariane.client import PushConsumer, Sql
from ariane.client.consuming.process_queue import ProcessQueue
from ariane.client.membership import fetcher as fetching
from ariane.client.membership.fetcher import SQL_VERSION_MIN
from ariane.errors import ConfigError, ConnectionLost, ReplyError, RequestTimeout
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.requests.clients import SubscriptionData
from ariane.testing.clock import FakeClock

CHECK, BEAT = RequestCode.CHECK_CLIENT_CONFIG, RequestCode.HEART_BEAT
SUBSCRIPTION = SubscriptionData(topic="T", expression_type="SQL92", sub_string="a > 5", sub_version=77)


class SqlPlay(Play):
    """A pull loop with an expression."""

    async def _run(self) -> None:
        self.subscription = SUBSCRIPTION
        await super()._run()


def test_a_pull_request_carries_the_expression_type_and_does_not_filter_by_tags():
    play = SqlPlay(answer(0, 7, stored(5, TAGS="a"), stored(6)), END)
    assert play.arrived == [5, 6]
    assert play.peers.of(PULL)[0].fields["expressionType"] == "SQL92"
    assert "subscription" not in play.peers.of(PULL)[0].fields


@pytest.mark.parametrize("code", [27, 28])
def test_a_broker_without_the_filter_data_gets_a_heartbeat(code):
    assert SqlPlay(Command(code, remark="which?"), END).heartbeats == ["a:1"]


def script(**answers) -> Script:
    result = {
        RequestCode.GET_ROUTEINFO_BY_TOPIC: name_server({"T": route("a"), "U": route("a")}),
        RequestCode.UNREGISTER_CLIENT: lambda asked: Command(0),
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: lambda asked: Command(1, remark="none"),
        CHECK: lambda asked: Command(0),
        BEAT: lambda asked: Command(0),
    }
    return Script(result | {RequestCode[name]: item for name, item in answers.items()})


def started(peers: Script, subscriptions, act=None) -> None:
    async def play() -> None:
        client = instance(peers, FakeClock(is_auto=True))
        async with asyncio.timeout(5), PushConsumer(client, "g", subscriptions, print) as consumer:
            if act is not None:
                await act(consumer)

    asyncio.run(play())


def test_an_expression_is_checked_before_the_first_heartbeat_and_tags_are_not():
    peers = script()
    started(peers, {"T": Sql("a > 5"), "U": "TagA"})
    codes = [item.code for item in peers.asked]
    (check,) = peers.of(CHECK)
    assert codes.index(CHECK) < codes.index(BEAT)
    body = json.loads(check.body)
    assert (body["group"], body["subscriptionData"]["subString"]) == ("g", "a > 5")
    assert (body["subscriptionData"]["expressionType"], body["subscriptionData"]["topic"]) == ("SQL92", "T")
    (group,) = json.loads(peers.of(BEAT)[0].body)["consumerDataSet"]
    reported = {item["topic"]: item for item in group["subscriptionDataSet"]}
    assert (reported["T"]["expressionType"], reported["T"]["codeSet"], reported["T"]["tagsSet"]) == ("SQL92", [], [])
    assert reported["U"]["expressionType"] == reported["%RETRY%g"]["expressionType"] == "TAG"


def test_a_rejected_expression_is_raised_and_no_heartbeat_is_sent():
    peers = script(CHECK_CLIENT_CONFIG=lambda asked: Command(23, remark="column 3"))
    with pytest.raises(ReplyError, match="column 3"):
        started(peers, {"T": Sql("a >")})
    assert peers.of(BEAT) == []


@pytest.mark.parametrize("error", [ConnectionLost("a:1", "refused"), RequestTimeout("a:1", 3000)])
def test_an_unavailable_broker_does_not_prevent_the_start(error):
    peers = script(CHECK_CLIENT_CONFIG=raising(error))
    started(peers, {"T": Sql("a > 5")})
    assert len(peers.of(BEAT)) == 1


def test_a_rejected_subscription_leaves_the_others_unchanged():
    peers = script()

    async def act(consumer):
        peers.answers[CHECK] = lambda asked: Command(1, remark="not here")
        with pytest.raises(ReplyError):
            await consumer.subscribe("U", Sql("a > 5"))
        await consumer.subscribe("T", "TagB")
        (group,) = json.loads(peers.of(BEAT)[-1].body)["consumerDataSet"]
        assert {item["topic"] for item in group["subscriptionDataSet"]} == {"T", "%RETRY%g"}

    started(peers, {"T": "*"}, act)


def test_an_empty_expression_is_rejected():
    with pytest.raises(ConfigError):
        PushConsumer("a:1", "g", {"T": Sql("  ")}, print)


def test_a_broker_too_old_for_sql92_is_not_pulled():
    play = _versioned([SQL_VERSION_MIN - 1])
    assert play.of(PULL) == []
    assert "does not support SQL92" in play.said


def test_a_broker_of_unknown_version_gets_a_heartbeat_first():
    play = _versioned([None, SQL_VERSION_MIN])
    assert [item.code for item in play.asked if item.code in (BEAT, PULL)][:2] == [BEAT, PULL]


def test_a_broker_without_a_heartbeat_response_is_not_pulled():
    play = _versioned([None, None])
    assert play.of(PULL) == []
    assert "no heartbeat response" in play.said


def _versioned(versions: list[int | None]) -> Script:
    """One pull of a broker whose version is the next of `versions` each time one looks."""
    peers = script(PULL_MESSAGE=lambda asked: END)
    peers.said = ""

    async def play() -> None:
        client = instance(peers, FakeClock(is_auto=True))
        await client.routes.subscribe_queues("T")

        client.broker_version = lambda addr: versions[0] if len(versions) == 1 else versions.pop(0)
        context = fetch_context(client, subscriptions={"T": SUBSCRIPTION})
        try:
            await fetching.pull(ProcessQueue(QUEUE, 5), context)
        except ConnectionLost as error:
            peers.said = str(error)

    asyncio.run(play())
    return peers


def test_the_version_comes_from_heartbeat_responses():
    peers = script(HEART_BEAT=lambda asked: Command(0, version=239))

    async def play() -> None:
        client = instance(peers, FakeClock(is_auto=True))
        assert client.broker_version("a:1") is None
        await client.heartbeat_to("a:1")
        assert client.broker_version("a:1") == 239

    asyncio.run(play())
