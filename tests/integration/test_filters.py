"""SQL92 filters over the broker's socket and with our consumer: response codes, pending pulls, saved filters."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from test_broker import Client, against_broker, bodies, config

from ariane.broker.broker import Broker
from ariane.client import ConsumerSettings, Producer, PushConsumer, Sql
from ariane.errors import ReplyError
from ariane.model.message import Message
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.clients import CheckClient, SubscriptionData, UnregisterClient
from ariane.protocol.requests.messaging import SUBSCRIPTION, SUSPEND, PullMessage, PullMessageResponse
from ariane.store.queues import queue_reader
from ariane.testing import AsyncLocalCluster

SQL = {"enable_property_filter": True}


def wants(expression: str, version: int = 1, topic: str = "T") -> SubscriptionData:
    return SubscriptionData(expression_type="SQL92", sub_string=expression, sub_version=version, topic=topic)


async def pull(
    client: Client,
    offset: int = 0,
    *,
    expression: str | None = None,
    version: int = 1,
    hold_ms: int = 0,
    topic: str = "T",
    kind: str = "SQL92",
    most: int = 32,
) -> Command:
    """Pull with the expression of the request, or without one, with that of the group's heartbeat."""
    flag = (SUBSCRIPTION if expression is not None else 0) | (SUSPEND if hold_ms else 0)
    header = PullMessage("G", topic, 0, offset, most, flag, 0, hold_ms, expression, version, kind)
    return await client.call(RequestCode.PULL_MESSAGE, header, timeout_ms=hold_ms + 3000)


async def check(client: Client, subscription: SubscriptionData | None) -> Command:
    return await client.call(RequestCode.CHECK_CLIENT_CONFIG, body=fastjson.write(CheckClient("c", "G", subscription)))


def test_messages_are_filtered_by_the_expression_of_the_request_or_group(tmp_path):
    async def work(client: Client) -> None:
        for price in range(10):
            await client.send(body=b"%d" % price, price=str(price), TAGS="even" if price % 2 == 0 else "odd")
        answer = await pull(client, expression="price > 5 AND TAGS = 'even'")
        assert (answer.code, answer.remark) == (0, "FOUND")
        assert bodies(answer) == [b"6", b"8"]
        assert decode_header(answer, PullMessageResponse).next_begin_offset == 10
        await client.heartbeat("c", wants("price BETWEEN 3 AND 5"))
        assert bodies(await pull(client)) == [b"3", b"4", b"5"]
        first = await pull(client, most=1)
        assert bodies(first) == [b"3"]
        assert decode_header(first, PullMessageResponse).next_begin_offset == 4

    against_broker(config(tmp_path, **SQL), work)


def test_a_pull_without_matches_advances_by_a_bounded_step(tmp_path, monkeypatch):
    monkeypatch.setattr(queue_reader, "SCAN_RECORD_BYTES", 20_000)
    monkeypatch.setattr(queue_reader, "AHEAD_BYTES", 4000)

    async def work(client: Client) -> None:
        for number in range(100):
            await client.send(body=b"x" * 900, price=str(number))
        await client.send(body=b"last", price="1000")
        steps, offset, result = [], 0, []
        while offset < 101:
            answer = await pull(client, offset, expression="price = 1000", hold_ms=5000)
            step = decode_header(answer, PullMessageResponse).next_begin_offset - offset
            assert 0 < step < 30
            offset += step
            steps.append(answer.code)
            result += bodies(answer)
        assert result == [b"last"]
        assert steps == [ResponseCode.PULL_RETRY_IMMEDIATELY] * (len(steps) - 1) + [0]
        assert len(steps) > 3

    against_broker(config(tmp_path, **SQL), work)


def test_a_pull_scans_at_most_800_entries(tmp_path):
    async def work(client: Client) -> None:
        await asyncio.gather(*(client.send(price="1") for _ in range(900)))
        answer = await pull(client, expression="price = 2")
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert answer.remark == "NO_MATCHED_MESSAGE"
        assert decode_header(answer, PullMessageResponse).next_begin_offset == 800

    against_broker(config(tmp_path, **SQL), work)


def test_a_pending_pull_waits_for_a_match_and_evaluates_each_record_once(tmp_path):
    async def work(client: Client) -> None:
        await client.send(price="0")
        pending = asyncio.ensure_future(pull(client, 1, expression="price > 5", hold_ms=20_000))
        for price in range(1, 5):
            await asyncio.sleep(0.02)
            await client.send(price=str(price))
        await asyncio.sleep(0.05)
        assert not pending.done()
        await client.send(body=b"this", price="6")
        answer = await pending
        assert (answer.code, bodies(answer)) == (0, [b"this"])
        assert decode_header(answer, PullMessageResponse).next_begin_offset == 6

    against_broker(config(tmp_path, **SQL), work)


def test_a_timed_out_pull_advances_past_unmatched_records(tmp_path):
    async def work(client: Client) -> None:
        await client.send(price="0")
        pending = asyncio.ensure_future(pull(client, 1, expression="price > 5", hold_ms=200))
        await asyncio.sleep(0.05)
        await client.send(price="1")
        answer = await pending
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert decode_header(answer, PullMessageResponse).next_begin_offset == 2

    against_broker(config(tmp_path, **SQL), work)


def test_response_codes_of_pulls_that_cannot_be_filtered(tmp_path):
    async def work(client: Client) -> None:
        await client.send(price="7")
        bad = await pull(client, expression="price > AND 5")
        assert bad.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert bad.remark.endswith("\nprice > AND 5\n        ^")
        assert "column 9" in bad.remark
        unknown = await pull(client, expression="x", kind="CLASS")
        assert (unknown.code, "CLASS; use TAG or SQL92" in unknown.remark) == (1, True)
        assert (await pull(client)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await client.heartbeat("c", wants("price >"))
        assert (await pull(client)).code == ResponseCode.FILTER_DATA_NOT_EXIST
        await client.heartbeat("c", wants("price > 5", 2))
        assert (await pull(client, version=3)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        assert (await pull(client, version=2)).code == 0
        # A newer expression that cannot be parsed removes the old filter.
        await client.heartbeat("c", wants("price >", 3))
        assert (await pull(client, version=3)).code == ResponseCode.FILTER_DATA_NOT_EXIST

    against_broker(config(tmp_path, **SQL), work)


def test_property_filters_are_rejected_unless_enabled(tmp_path):
    async def work(client: Client) -> None:
        await client.send(price="7")
        answer = await pull(client, expression="price > 5")
        assert (answer.code, "set enablePropertyFilter=true" in answer.remark) == (1, True)
        assert (await pull(client, expression="price >")).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        await client.heartbeat("c", wants("price > 5"))
        assert (await pull(client)).code == 1
        assert (await check(client, wants("price > 5"))).code == 1
        assert (await check(client, SubscriptionData(topic="T"))).code == 0
        assert (await check(client, None)).code == 0

    against_broker(config(tmp_path), work)


def test_check_client_config_validates_expressions(tmp_path):
    async def work(client: Client) -> None:
        assert (await check(client, wants("price > 5"))).code == 0
        bad = await check(client, wants("price > 5 ADN x = 1"))
        assert (bad.code, bad.remark.splitlines()[-1]) == (ResponseCode.SUBSCRIPTION_PARSE_FAILED, " " * 10 + "^")
        kind = SubscriptionData(expression_type="CLASS", sub_string="x", topic="T")
        assert (await check(client, kind)).code == 1

    against_broker(config(tmp_path, **SQL), work)


def test_filters_are_saved_loaded_at_start_and_removed_with_their_group(tmp_path):
    path = Path(tmp_path) / "config" / "consumerFilter.json"

    def stored() -> dict[str, object]:
        return json.loads(path.read_text())["filterDataByTopic"]["T"]["groupFilterData"]["G"]

    async def first(client: Client) -> None:
        await client.send(price="7")
        await client.heartbeat("c", wants("price > 5", 7))

    async def second(client: Client) -> None:
        await client.heartbeat("c", wants("price > 5", 7))
        assert bodies(await pull(client, version=7)) == [b"hello"]
        await client.call(RequestCode.UNREGISTER_CLIENT, UnregisterClient("c", None, "G"))

    against_broker(config(tmp_path, **SQL), first)
    once = stored()
    assert (once["expression"], once["clientVersion"], once["bloomFilterData"]["bitNum"]) == ("price > 5", 7, 112)
    against_broker(config(tmp_path, **SQL), second)
    repeated = stored()
    assert repeated["bornTime"] == once["bornTime"]
    assert repeated["dead"] is True
    assert repeated["deadTime"] >= repeated["bornTime"]


@pytest.mark.parametrize("filtered", [True, False])
def test_retried_messages_are_filtered_if_configured(tmp_path, filtered):
    async def work(client: Client) -> None:
        retry = SubscriptionData(topic="%RETRY%G", sub_version=1)
        await client.heartbeat("c", wants("price > 5"), retry)
        for price in (1, 9):
            await client.send("%RETRY%G", b"%d" % price, price=str(price), RETRY_TOPIC="T")
        await client.send("%RETRY%G", b"other", price="1", RETRY_TOPIC="U")
        result = bodies(await pull(client, topic="%RETRY%G", kind="TAG"))
        assert result == ([b"9", b"other"] if filtered else [b"1", b"9", b"other"])

    against_broker(config(tmp_path, filter_support_retry=filtered, **SQL), work)


def test_entries_with_an_extended_tag_address_are_not_filtered_out(tmp_path, monkeypatch):
    """With enableConsumeQueueExt Java stores an address instead of the tag's hash; clients compare tags again."""

    async def work(client: Client) -> None:
        await client.send(body=b"ours", TAGS="b")
        monkeypatch.setattr("ariane.store.writing.record_appender.java_hash", lambda text: -(2**63) + 20)
        await client.send(body=b"javas", TAGS="a", WAIT="false")  # not a plain send, so the appender computes its code
        answer = await client.pull(expression="a")
        assert bodies(answer) == [b"javas"]

    against_broker(config(tmp_path), work)


# --- our consumer ---

FAST = ConsumerSettings(commit_interval=0.1)


async def until(condition) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def test_our_consumer_gets_matching_messages_and_can_change_its_expression(tmp_path):
    async def play() -> None:
        received: list[int] = []

        async def listener(messages):
            received.extend(int(message.properties["price"]) for message in messages)

        async with AsyncLocalCluster(tmp_path, **SQL) as servers, Producer(servers.namesrv, "P") as producer:

            async def send(first: int, last: int) -> None:
                for price in range(first, last):
                    await producer.send(Message(topic="T", body=b"x", tags="t", properties={"price": str(price)}))

            await send(0, 20)
            subscriptions = {"T": Sql("price >= 18 AND TAGS = 't'")}
            async with PushConsumer(
                servers.namesrv, "G", subscriptions, listener, start="first", settings=FAST
            ) as item:
                await until(lambda: sorted(received) == [18, 19])
                await item.subscribe("T", Sql("price = 25"))
                await send(20, 30)
                await until(lambda: 25 in received)
                with pytest.raises(ReplyError, match="column 8"):
                    await item.subscribe("T", Sql("price ="))
                await send(25, 26)
                await until(lambda: received.count(25) == 2)
        # A pull that is held keeps the expression it came with: each of the 4 queues gives one message by it.
        assert sorted(price for price in received if price != 25) == [18, 19, 20, 21, 22, 23]

    asyncio.run(play())


@pytest.mark.parametrize(("settings", "expression", "code"), [(SQL, "a >", 23), ({}, "a > 5", 1)])
def test_a_consumer_with_an_unsupported_filter_does_not_start(tmp_path, settings, expression, code):
    async def play() -> None:
        async with AsyncLocalCluster(tmp_path, **settings) as servers:
            await servers.create_topic("T")  # a broker of the topic is asked, if the name server has its route
            with pytest.raises(ReplyError) as refused:
                async with PushConsumer(servers.namesrv, "G", {"T": Sql(expression)}, print):
                    pass
            assert refused.value.code == code

    asyncio.run(play())


def test_a_restarted_broker_receives_the_filter_with_the_next_heartbeat(tmp_path):
    """Without a saved filter the pull is answered with 24 or 27, and the next heartbeat registers the filter."""

    async def play() -> None:
        received: list[str] = []

        async def listener(messages):
            received.extend(message.properties["price"] for message in messages)

        names = NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv.json"))
        async with NameServer(names) as name_server:
            namesrv = f"127.0.0.1:{name_server.addr.rpartition(':')[2]}"
            settings = msgspec.structs.replace(
                config(tmp_path / "store", **SQL), namesrv_addr=namesrv, bind_address="127.0.0.1"
            )
            async with Producer(namesrv, "P") as producer:
                broker = Broker(settings)
                await broker.__aenter__()
                await producer.send(Message(topic="T", body=b"x", properties={"price": "6"}))
                subscriptions = {"T": Sql("price > 5")}
                async with PushConsumer(namesrv, "G", subscriptions, listener, start="first", settings=FAST):
                    await until(lambda: received == ["6"])
                    port = int(broker.addr.rpartition(":")[2])
                    await broker.__aexit__(None, None, None)
                    (tmp_path / "store" / "config" / "consumerFilter.json").unlink()
                    async with Broker(msgspec.structs.replace(settings, listen_port=port)):
                        await producer.send(Message(topic="T", body=b"x", properties={"price": "1"}))
                        await producer.send(Message(topic="T", body=b"x", properties={"price": "8"}))
                        await until(lambda: "8" in received)
        assert "1" not in received

    asyncio.run(play())
