"""Producers, delayed messages and transactions through the REST API, with a real broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NamedTuple

import pytest
from fastapi.testclient import TestClient

from ariane import Admin, LocalState, Message, Producer, TransactionProducer
from ariane.console.app import create_app
from ariane.console.services import open_services
from ariane.console.settings import ConsoleSettings
from ariane.testing.cluster import LocalCluster, cluster_in_thread

HOUR_MS = 3_600_000


class Console(NamedTuple):
    """A console and its cluster."""

    servers: LocalCluster
    client: TestClient

    def get(self, path: str, **query: Any) -> Any:
        response = self.client.get(f"/api/v1{path}", params=query)
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    home = tmp_path_factory.mktemp("console")
    with cluster_in_thread(home / "broker") as servers:
        settings = ConsoleSettings(namesrv=servers.namesrv, data_dir=home / "console")
        app = create_app(open_services(settings))
        with TestClient(app, base_url="http://127.0.0.1") as client:
            for topic in ("orders", "payments"):
                in_cluster(servers, lambda admin, topic=topic: admin.create_topic(topic, queues=2))
            yield Console(servers, client)


def in_cluster(servers: LocalCluster, work: Callable[[Admin], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        async with Admin(servers.namesrv) as admin:
            return await work(admin)

    return asyncio.run(run())


def send(console: Console, *messages: Message) -> list[str]:
    """Send messages and return their ids."""

    async def run() -> list[str]:
        async with Producer("shop", console.servers.namesrv) as producer:
            return [(await producer.send(message)).message_id for message in messages]

    return asyncio.run(run())


# --- producers ---


def test_connected_producers_are_listed_by_group_and_by_broker_of_a_topic(console: Console) -> None:
    async def run() -> None:
        async with Producer("checkout", console.servers.namesrv) as producer:
            await producer.send(Message(topic="orders", body=b"x"))
            loop = asyncio.get_running_loop()
            for query in ({"group": "checkout"}, {"topic": "orders", "q": "CHECKOUT"}):
                view = await loop.run_in_executor(None, lambda query=query: console.get("/producers", **query))
                (row,) = view["producers"]["items"]
                assert (row["group"], row["language"], row["brokers"]) == ("checkout", "PYTHON", ["broker-a"])
                assert row["addr"].startswith("127.0.0.1:")
                assert row["lastUpdateMs"] > 1_600_000_000_000
                assert view["groups"] == 1 or "q" in query

    asyncio.run(run())
    assert console.get("/producers", group="none")["producers"]["total"] == 0
    missing = console.client.get("/api/v1/producers", params={"topic": "missing"})
    assert missing.status_code == 404
    assert "missing" in missing.json()["error"]


# --- delayed messages ---


def test_pending_messages_are_listed_by_due_time_and_can_be_cancelled(console: Console) -> None:
    now_ms = round(time.time() * 1000)
    ids = send(
        console,
        Message(topic="orders", body=b"later", keys=["LATE"], deliver_at_ms=now_ms + 2 * HOUR_MS),
        Message(topic="payments", body=b"soon", tags="paid", deliver_at_ms=now_ms + HOUR_MS),
        Message(topic="orders", body=b"level", delay_level=18),
    )
    view = console.get("/delayed")
    rows = view["messages"]["items"]
    assert {row["messageId"] for row in rows} == set(ids)
    assert [row["dueMs"] for row in rows] == sorted(row["dueMs"] for row in rows)
    assert view["nextDueMs"] == rows[0]["dueMs"]
    assert (view["pending"], view["isTruncated"], sum(bucket["messages"] for bucket in view["buckets"])) == (
        3,
        False,
        3,
    )
    assert {row["topic"]: row["tag"] for row in rows if row["level"] is None} == {"orders": "", "payments": "paid"}

    assert [row["messageId"] for row in console.get("/delayed", topic="payments")["messages"]["items"]] == [ids[1]]
    assert console.get("/delayed", due="90m", topic="payments")["pending"] == 1
    assert console.get("/delayed", due="1s")["pending"] == 0
    assert console.get("/delayed", q="late")["messages"]["total"] == 1
    assert console.get("/delayed", limit=1)["isTruncated"] is True
    assert console.get(f"/delayed/{ids[0]}")["canCancel"] is True

    path = f"/api/v1/delayed/{ids[0]}"
    refused = console.client.delete(path, params={"confirm": "yes"})
    assert refused.status_code == 422
    assert "nothing was cancelled" in refused.json()["error"]
    plan = console.client.delete(path, params={"isDryRun": True}).json()
    assert plan["isDryRun"]
    assert plan["changes"] == [f"cancel delayed message {ids[0]} of topic orders on {console.servers.broker}"]
    assert console.get("/delayed")["pending"] == 3
    done = console.client.delete(path, params={"confirm": ids[0]})
    assert (done.status_code, done.json()["isDryRun"]) == (200, False)
    assert ids[0] not in {row["messageId"] for row in console.get("/delayed")["messages"]["items"]}
    assert console.client.delete(path, params={"confirm": ids[0]}).status_code == 404

    level = console.client.delete(f"/api/v1/delayed/{ids[2]}", params={"confirm": ids[2]})
    assert "has delay level 18 and cannot be cancelled" in level.json()["error"]


def test_an_invalid_range_of_due_times_is_refused(console: Console) -> None:
    response = console.client.get("/api/v1/delayed", params={"due": "soon"})
    assert response.status_code == 422
    assert "due = 'soon': expected a positive number" in response.json()["error"]


# --- transactions ---


def test_open_transactions_are_listed_and_their_checks_resumed(console: Console) -> None:
    async def run() -> str:
        async def undecided(_: object) -> LocalState:
            return LocalState.UNKNOWN

        async def check(_: object) -> LocalState:
            return LocalState.UNKNOWN

        async with TransactionProducer("billing", console.servers.namesrv, check=check) as producer:
            message = Message(topic="payments", body=b"<b>paid</b>", keys=["ORDER-17"])
            return (await producer.send_in_transaction(message, undecided)).sent.message_id

    message_id = asyncio.run(run())
    view = console.get("/transactions")
    (row,) = view["transactions"]["items"]
    assert (row["messageId"], row["topic"], row["group"]) == (message_id, "payments", "billing")
    assert (row["checks"], row["keys"], view["total"]) == (0, ["ORDER-17"], 1)
    assert row["ageMs"] == view["oldestMs"] == view["asOfMs"] - row["storedMs"]
    assert console.get("/transactions", group="other")["transactions"]["total"] == 0
    assert console.get("/transactions", state="discarded")["total"] == 0

    path = f"/api/v1/transactions/{row['offsetMessageId']}/resume"
    assert console.client.post(path, json={"isDryRun": True}).json()["isDryRun"]
    assert console.get("/transactions")["transactions"]["items"][0]["offsetMessageId"] == row["offsetMessageId"]
    resumed = console.client.post(path, json={})
    assert resumed.status_code == 200, resumed.text
    assert resumed.json()["notice"] == f"resumed the checks of half message {row['offsetMessageId']}"
    # The check counter belongs to a copy, which is the newest one now.
    (copy,) = console.get("/transactions")["transactions"]["items"]
    assert copy["messageId"] == message_id
    assert copy["offsetMessageId"] != row["offsetMessageId"]
    unknown = console.client.post(f"/api/v1/transactions/{message_id[:-4]}FFFF/resume", json={})
    assert unknown.status_code == 404
