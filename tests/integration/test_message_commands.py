"""`ariane message|dead-letter|delayed|transaction` against our broker, as a user types them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ariane import LocalState, TransactionProducer
from ariane.cli import main
from ariane.errors import ArianeError, NotFound, RouteNotFound, UsageError
from ariane.model import ids
from ariane.model.message import Message
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.messaging import ConsumerSendMsgBack
from ariane.testing import LocalCluster

GROUP = "billing"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("servers")) as started:
        run(started, "admin", "updateTopic", "-b", started.broker.addr, "-t", "orders", "-n", started.namesrv)
        yield started


def run(servers: LocalCluster, *arguments: str, status: int = 0) -> str:
    """Return what a command printed to stdout."""
    done = CliRunner().invoke(main.app, list(arguments), env={"NAMESRV_ADDR": servers.namesrv, "COLUMNS": "80"})
    if isinstance(done.exception, ArianeError):
        raise done.exception
    assert done.exit_code == status, done.output
    return done.stdout


def run_json(servers: LocalCluster, *arguments: str) -> Any:
    return json.loads(run(servers, *arguments, "--json"))


def send(servers: LocalCluster, body: str, *options: str) -> dict[str, Any]:
    result: dict[str, Any] = run_json(servers, "message", "send", "orders", body, *options)
    return result


async def make_dead_letter(servers: LocalCluster, sent: dict[str, Any]) -> None:
    _, offset = ids.parse_offset_message_id(sent["offsetMessageId"])
    header = ConsumerSendMsgBack(offset, GROUP, -1, sent["messageId"], "orders")
    async with ConnectionPool() as peers:
        await peers.request_ok(servers.broker.addr, RequestCode.CONSUMER_SEND_MSG_BACK, header)


def test_a_message_is_found_by_key_and_both_ids(servers: LocalCluster) -> None:
    sent = send(servers, "hello world", "--key", "ORDER-17", "--tag", "new", "--property", "color=red")
    by_unique_key = run(servers, "message", "show", sent["messageId"])
    assert by_unique_key == run(servers, "message", "show", sent["offsetMessageId"])
    assert by_unique_key == run(servers, "message", "show", sent["messageId"], "--topic", "orders")
    assert "  color = red\n" in by_unique_key
    assert by_unique_key.endswith("Body        11 bytes\n  hello world\n")
    for selection in (
        ("--key", "ORDER-17"),
        ("--text", "lo wor", "--tag", "new"),
        ("--since", "1h", "--text", "hello w"),
    ):
        found = run_json(servers, "message", "search", "orders", *selection)
        assert [message["messageId"] for message in found["messages"]] == [sent["messageId"]], selection
        assert (found["matching"], found["unavailable"]) == (1, [])
    assert run(servers, "message", "search", "orders", "--key", "ORDER-17", "--until", "2020-01-01") == (
        "No messages of orders match.\n"
        "Searched: stored from the beginning to 2020-01-01 00:00:00.000 UTC.\n"
        "Remove --until to search all store times.\n"
    )
    assert run(servers, "message", "search", "orders", "--key", "ORDER-18") == (
        "No messages of orders match.\nAll store times were searched.\n"
    )
    table = run(servers, "message", "search", "orders")
    assert max(map(len, table.splitlines())) <= 80
    with pytest.raises(NotFound, match=r"no message \w+; all store times were searched"):
        run(servers, "message", "show", f"{sent['messageId'][:-4]}FFFF")


def test_the_newest_messages_are_listed_and_omitted_ones_counted(servers: LocalCluster) -> None:
    sent = [send(servers, f"many-{number}")["messageId"] for number in range(5)]
    found = run_json(servers, "message", "search", "orders", "--text", "many-", "--limit", "3")
    assert [message["messageId"] for message in found["messages"]] == sent[-3:]
    assert found["matching"] == 5
    assert "3 messages; 2 older omitted" in run(
        servers, "message", "search", "orders", "--text", "many-", "--limit", "3"
    )
    newest = run_json(servers, "message", "search", "orders", "--limit", "1")
    assert [message["messageId"] for message in newest["messages"]] == sent[-1:]


def test_sending_checks_the_topic_and_a_dry_run_sends_nothing(servers: LocalCluster) -> None:
    dry = run(servers, "message", "send", "orders", "unsent", "--dry-run")
    assert dry == "would send a message of 6 bytes to topic orders on broker-a\n"
    assert run_json(servers, "message", "search", "orders", "--text", "unsent")["messages"] == []
    with pytest.raises(RouteNotFound, match="orderz"):
        run(servers, "message", "send", "orderz", "hello")
    with pytest.raises(UsageError, match="--delay-level"):
        run(servers, "message", "send", "orders", "hello", "--delay", "1h", "--delay-level", "2")


def test_a_message_is_tracked_to_its_consumers(servers: LocalCluster) -> None:
    from ariane import PushConsumer

    sent = send(servers, "tracked", "--trace")

    async def consume_and_track() -> tuple[dict[str, Any], str]:
        consumed = asyncio.Event()

        async def handle(messages: Any) -> None:
            if any(message.body == b"tracked" for message in messages):
                consumed.set()

        async with PushConsumer(servers.namesrv, "trackers", {"orders": "*"}, handle, start="first"):
            await asyncio.wait_for(consumed.wait(), 30)
            while True:  # offsets are committed at intervals
                tracks = await asyncio.to_thread(run_json, servers, "message", "track", sent["messageId"])
                if {"group": "trackers", "state": "CONSUMED", "reason": None} in tracks["groups"]:
                    break
                await asyncio.sleep(0.2)
            resent = await asyncio.to_thread(
                run, servers, "message", "resend", sent["messageId"], "--group", "trackers"
            )
            return tracks, resent

    tracks, resent = asyncio.run(asyncio.wait_for(consume_and_track(), 60))
    assert [(row["kind"], row["isSuccess"]) for row in tracks["trace"]] == [("Pub", True)]
    assert resent.startswith("Consumed by trackers in ") and resent.endswith("CR_SUCCESS\n")
    offline = run(servers, "message", "track", sent["messageId"])
    assert "trackers  no consumer online" in offline


def test_dead_letters_are_listed_read_and_resent_once(servers: LocalCluster, tmp_path: Path) -> None:
    assert "has no dead letters" in run(servers, "dead-letter", "list", GROUP)
    sent = [send(servers, f"dead-{number}", "--key", f"D-{number}") for number in range(3)]
    for one in sent:
        asyncio.run(make_dead_letter(servers, one))
    listed = run_json(servers, "dead-letter", "list", GROUP)
    assert [message["messageId"] for message in listed["messages"]] == [one["messageId"] for one in sent]
    first = sent[0]["messageId"]
    shown = run_json(servers, "dead-letter", "show", GROUP, first)
    assert (shown["queue"]["topic"], shown["body"]) == (f"%DLQ%{GROUP}", "dead-0")
    assert shown == run_json(servers, "dead-letter", "show", GROUP, shown["offsetMessageId"])
    with pytest.raises(NotFound, match="stored in orders"):
        run(servers, "dead-letter", "show", GROUP, sent[0]["offsetMessageId"])

    dry = run(servers, "dead-letter", "resend", GROUP, first, "--dry-run")
    assert dry == f"would resend message {first} to topic orders on broker-a\n"
    result = str(tmp_path / "resent.jsonl")
    (outcome,) = run_json(servers, "dead-letter", "resend", GROUP, first, "--result", result)
    assert (outcome["state"], outcome["topic"]) == ("ok", "orders")
    others = run(servers, "dead-letter", "resend", GROUP, "--result", result)
    assert others.endswith("2 sent, 0 not sent, 1 sent before.\n")
    copies = run_json(servers, "message", "search", "orders", "--key", "D-0")["messages"]
    assert [copy["messageId"] for copy in copies] == [first, outcome["messageId"]]
    with pytest.raises(UsageError, match="more dead letters match"):
        run(servers, "dead-letter", "resend", GROUP, "--limit", "2")


def test_delayed_messages_are_listed_and_cancelled(servers: LocalCluster) -> None:
    timer = send(servers, "timer", "--delay", "1h", "--key", "L-1")["messageId"]
    level = send(servers, "level", "--delay-level", "16", "--key", "L-2")["messageId"]
    listed = run_json(servers, "delayed", "list")
    found = [(one["message"]["messageId"], one["topic"], one["level"]) for one in listed["messages"]]
    assert found == [(level, "orders", 16), (timer, "orders", None)]
    assert 29 * 60_000 < listed["messages"][0]["dueMs"] - listed["messages"][0]["message"]["storeMs"] <= 30 * 60_000
    soon = run_json(servers, "delayed", "list", "--due", "45m")
    assert [one["message"]["messageId"] for one in soon["messages"]] == [level]
    assert run_json(servers, "delayed", "list", "--topic", "other")["messages"] == []
    assert run_json(servers, "delayed", "list", "--limit", "1")["isTruncated"]
    assert "Target      orders" in run(servers, "delayed", "show", timer)

    assert "would cancel delayed message" in run(servers, "delayed", "cancel", timer, "--dry-run")
    assert run(servers, "delayed", "cancel", timer).startswith(f"Cancelled {timer}, due ")
    assert len(run_json(servers, "delayed", "list")["messages"]) == 1
    with pytest.raises(NotFound, match="no pending delayed message"):
        run(servers, "delayed", "cancel", timer)
    with pytest.raises(ArianeError, match="has delay level 16 and cannot be cancelled"):
        run(servers, "delayed", "cancel", level)


def test_open_transactions_are_listed_and_resumed(servers: LocalCluster) -> None:
    async def send_half_message() -> str:
        async def local(message: Message, sent: Any) -> LocalState:
            return LocalState.UNKNOWN

        async with TransactionProducer(servers.namesrv, "P", check=lambda message: LocalState.UNKNOWN) as producer:
            message = Message(topic="orders", body=b"half", keys=["T-1"])
            done = await producer.send_in_transaction(message, local, immunity=3600)
            return done.sent.message_id

    half = asyncio.run(send_half_message())
    (broker,) = run_json(servers, "transaction", "list")["brokers"]
    assert (broker["total"], [one["uniqueKey"] for one in broker["messages"]]) == (1, [half])
    assert half in run(servers, "transaction", "list")
    assert run(servers, "transaction", "list", "--over-limit") == "No discarded half messages.\n"
    dry = run(servers, "transaction", "resume", half, "--dry-run")
    assert dry == f"would resume the checks of half message {half} on {servers.broker.addr}\n"
    with pytest.raises(NotFound, match="no half message"):
        run(servers, "transaction", "resume", f"{half[:-4]}FFFF")
