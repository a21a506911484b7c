"""Topics, producers, delayed messages and transactions with a real broker: REST, pages, and every form as a browser sends it."""

from __future__ import annotations

import asyncio
import html
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from fastapi.testclient import TestClient

from ariane import Admin, LocalState, Message, Producer, PushConsumer, ReceivedMessage, TransactionProducer
from ariane.cluster.messages.message_search import MessageFilter
from ariane.console.app import create_app
from ariane.console.services import open_services
from ariane.console.settings import ConsoleSettings
from ariane.model import host, ids
from ariane.testing import LocalCluster

HOUR_MS = 3_600_000
SCRIPT = "<script>alert(1)</script>"


class Console(NamedTuple):
    """A console and its cluster."""

    servers: LocalCluster
    client: TestClient

    def get(self, path: str, **query: Any) -> Any:
        response = self.client.get(f"/api/v1{path}", params=query)
        assert response.status_code == 200, response.text
        return response.json()

    def page(self, path: str) -> str:
        """Return a page, and check that it is whole."""
        response = self.client.get(path)
        assert response.status_code == 200, response.text
        assert "<html" in response.text and "</html>" in response.text
        assert SCRIPT not in response.text
        return html.unescape(response.text)

    def submit(self, path: str, **fields: Any) -> httpx.Response:
        """Send a form as htmx does: lists as repeated fields."""
        return self.client.post(path, data=fields, headers={"HX-Request": "true"}, follow_redirects=False)

    def result(self, path: str, **fields: Any) -> str:
        """Send a form whose result is shown below it, and return the text."""
        response = self.submit(path, **fields)
        assert (response.status_code, response.headers.get("HX-Retarget")) == (200, "#result"), response.text
        assert "<html" not in response.text
        assert "<title" not in response.text, "htmx would change the title of the page"
        assert SCRIPT not in response.text
        return html.unescape(response.text)


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    home = tmp_path_factory.mktemp("console")
    with LocalCluster(home / "broker") as servers:
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
        async with Producer(console.servers.namesrv, "shop") as producer:
            return [(await producer.send(message)).message_id for message in messages]

    return asyncio.run(run())


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the condition is not met"
        time.sleep(0.1)


# --- topics ---


def test_a_topic_is_created_changed_and_deleted_by_forms(console: Console) -> None:
    assert 'name="queues" type="number" value="8"' in console.page("/create-topic")
    plan = console.result("/create-topic", topic="ledger", queues=3, isOrdered="true", writeQueues="", isDryRun="true")
    assert "would create topic ledger with 3 queues on broker-a" in plan
    assert "set ORDER_TOPIC_CONFIG/ledger" in plan
    assert console.client.get("/topics/ledger").status_code == 404

    created = console.submit("/create-topic", topic="ledger", queues=3, permission="read-write", isOrdered="true")
    assert (created.status_code, created.headers["HX-Redirect"]) == (204, "/topics/ledger")
    assert "created topic ledger" in console.page("/topics/ledger")
    assert "broker-a:3" in console.page("/topics/ledger")
    again = console.submit("/create-topic", topic="ledger", queues=3)
    assert (again.status_code, again.headers["HX-Retarget"]) == (409, "#notices")
    assert "exists on broker-a" in again.text

    path = "/topics/ledger/configuration"
    plan = console.result(path, readQueues="", writeQueues="2", permission="read", isDryRun="true")
    assert "would change topic ledger on broker-a" in plan
    assert "Read only" in plan
    assert console.get(path)["brokers"][0]["writeQueues"] == 3
    assert console.submit(path, readQueues="", writeQueues="2", permission="read").headers["HX-Redirect"] == path
    row = console.get(path)["brokers"][0]
    assert (row["readQueues"], row["writeQueues"], row["permission"]) == (3, 2, "read")
    assert "Read only" in console.page(path)
    nothing = console.submit(path, readQueues="", writeQueues="", permission="")
    assert (nothing.status_code, "specify at least one" in nothing.text) == (422, True)

    order = "/topics/ledger/order"
    assert "broker-x" in html.unescape(console.submit(order, configuration="broker-x:1").text)
    assert console.submit(order, configuration="broker-a:2").headers["HX-Redirect"] == path
    assert console.get(path)["orderConfiguration"] == "broker-a:2"
    assert "would delete" in console.result(order, configuration="", isDryRun="true")

    assert "Type ledger to confirm" in console.page("/topics/ledger/delete")
    wrong = console.submit("/topics/ledger/delete", confirm="orders")
    assert (wrong.status_code, "nothing was deleted" in wrong.text) == (422, True)
    assert "would delete topic ledger" in console.result("/topics/ledger/delete", isDryRun="true", confirm="")
    assert console.submit("/topics/ledger/delete", confirm="ledger").headers["HX-Redirect"] == "/topics"
    assert console.client.get("/api/v1/topics/ledger").status_code == 404


def test_rest_has_the_same_changes(console: Console) -> None:
    client = console.client
    created = client.post("/api/v1/topics", json={"topic": "rest", "queues": 2, "brokers": ["broker-a"]})
    assert created.json()["changes"] == [f"create or change topic rest on {console.servers.broker.addr}"]
    assert client.post("/api/v1/topics", json={"topic": "rest", "colour": 1}).status_code == 422
    changed = client.patch("/api/v1/topics/rest", json={"writeQueues": 1, "isDryRun": True}).json()
    assert (changed["isDryRun"], changed["brokers"][0]["changed"]) == (True, ["write_queues"])
    assert client.put("/api/v1/topics/rest/order", json={"configuration": "broker-a:1"}).status_code == 200
    assert client.delete("/api/v1/topics/rest").status_code == 422
    assert client.delete("/api/v1/topics/rest", params={"confirm": "rest"}).status_code == 200
    assert client.get("/api/v1/topics/rest/configuration").status_code == 404


def test_a_test_message_is_sent_with_everything_the_form_has(console: Console) -> None:
    console.page("/topics/orders/send")
    sent = console.result(
        "/topics/orders/send",
        body=f"  {SCRIPT}\n", tag="new", keys="SENT-1 SENT-2", properties="color=red\n\nsize = 2", delay="",
        broker="broker-a", queueId="1", isTraced="true",
    )  # fmt: skip
    assert "Message sent" in sent
    assert "/trace/" in sent
    found = in_cluster(console.servers, lambda admin: admin.search("orders", MessageFilter(key="SENT-2")))
    (message,) = found.messages
    assert (message.body, message.tags, message.keys) == (f"  {SCRIPT}\n".encode(), "new", ("SENT-1", "SENT-2"))
    assert (message.properties["color"], message.properties["size"], message.queue.queue_id) == ("red", "2", 1)

    untraced = console.result("/topics/orders/send", body="x", isTraced=["false"], queueId="", broker="", delay="1")
    assert "/trace/" not in untraced
    for fields, fault in (
        ({"body": ""}, "body"),
        ({"body": "x", "properties": "color"}, "expected name=value"),
        ({"body": "x", "delay": "soon"}, "delay = 'soon'"),
        ({"body": "x", "queueId": "1"}, "specify both"),
        ({"body": "x", "properties": "TAGS=a"}, "TAGS"),
    ):
        refused = console.submit("/topics/orders/send", **fields)
        assert (refused.status_code, fault in html.unescape(refused.text)) == (422, True), (fields, refused.text)
    assert console.submit("/topics/missing/send", body="x").status_code == 404


def test_the_tabs_of_a_topic_show_its_queues_and_groups(console: Console) -> None:
    send(console, *(Message(topic="payments", body=b"x") for _ in range(4)))

    async def consume() -> None:
        received: asyncio.Queue[bytes] = asyncio.Queue()

        async def listener(messages: list[ReceivedMessage]) -> None:
            for message in messages:
                received.put_nowait(message.body)

        async with PushConsumer(console.servers.namesrv, "ledger", {"payments": "*"}, listener, start="first"):
            for _ in range(4):
                await received.get()

    asyncio.run(asyncio.wait_for(consume(), 60))
    view = console.get("/topics/payments/queues")
    assert view["messages"] == sum(row["messages"] for row in view["queues"]["items"]) >= 4
    assert {row["broker"] for row in view["queues"]["items"]} == {"broker-a"}
    assert view["queues"]["total"] == 2
    (group,) = console.get("/topics/payments/consumers", q="LEDGER")["consumers"]["items"]
    assert (group["group"], group["lag"]) == ("ledger", 0)
    status = console.get("/topics/payments")
    assert status["routes"][0]["addrs"] == {"0": console.servers.broker.addr}
    assert "ledger" in status["groups"]
    for tab in ("", "/queues", "/consumers", "/configuration", "/producers", "/reset", "/send", "/delete"):
        assert "payments" in console.page(f"/topics/payments{tab}")
    assert console.client.get("/topics/missing/queues").status_code == 404


def test_groups_are_reset_after_a_preview(console: Console) -> None:
    path = "/topics/payments/reset"
    page = console.page(f"{path}?group=ledger&to=latest")
    assert 'value="ledger" checked' in page
    plan = console.result(path, groups=["ledger", ""], to="earliest", time="", offset="", isDryRun="true")
    assert "Dry run: nothing was changed" in plan
    assert console.get("/topics/payments/consumers", q="ledger")["consumers"]["items"][0]["lag"] == 0
    done = console.result(path, groups=["ledger", ""], to="earliest", time="", offset="", isForced="true")
    assert "moved ledger in topic payments" in done
    lag = console.get("/topics/payments/consumers", q="ledger")["consumers"]["items"][0]["lag"]
    assert lag >= 4
    body = {"groups": ["ledger"], "to": "latest"}
    skipped = console.client.post("/api/v1/topics/payments/reset-offsets", json=body).json()
    assert (skipped["groups"][0]["messagesSkipped"], skipped["groups"][0]["messagesAgain"]) == (lag, 0)
    back = console.client.post(
        "/api/v1/topics/payments/reset-offsets", json={"groups": ["ledger"], "time": "1d"}
    ).json()
    assert back["groups"][0]["messagesAgain"] == lag
    for fields, fault in (
        ({"groups": [""], "to": "latest"}, "groups"),
        ({"groups": ["ledger"], "to": "time"}, "time: missing"),
        ({"groups": ["ledger"], "to": "offset", "offset": ""}, "offset: missing"),
        ({"groups": ["ledger"], "to": "time", "time": "yesterday"}, "time = 'yesterday'"),
    ):
        refused = console.submit(path, **fields)
        assert (refused.status_code, fault in html.unescape(refused.text)) == (422, True), refused.text
    assert console.submit("/topics/missing/reset", groups=["ledger"], to="latest").status_code == 404


def test_the_list_has_topics_and_kinds(console: Console) -> None:
    wait_for(lambda: console.get("/topics", q="payments")["topics"]["total"] == 1)
    page = console.page("/topics?q=pay")
    assert 'href="/topics/payments"' in page
    assert "/topics/orders" not in page
    assert "TBW102" in console.page("/topics?kind=system&size=500")
    wait_for(
        lambda: "%RETRY%ledger" in [row["topic"] for row in console.get("/topics", kind="retry")["topics"]["items"]]
    )
    assert 'href="/topics/%25RETRY%25ledger"' in console.page("/topics?kind=retry")
    assert "%RETRY%ledger" in console.page("/topics/%25RETRY%25ledger")


# --- producers ---


def test_connected_producers_are_listed_by_group_and_by_broker_of_a_topic(console: Console) -> None:
    async def run() -> None:
        async with Producer(console.servers.namesrv, "checkout") as producer:
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
    assert "No producer is connected" in console.page("/producers?group=none")
    assert console.get("/producers", group="none")["producers"]["total"] == 0
    missing = console.client.get("/api/v1/producers", params={"topic": "missing"})
    assert missing.status_code == 404
    assert "missing" in missing.json()["error"]


# --- delayed messages ---


def test_pending_messages_are_listed_by_due_time_and_can_be_cancelled(console: Console) -> None:
    now_ms = round(time.time() * 1000)
    ids = send(
        console,
        Message(topic="orders", body=b"later", keys=["LATE", SCRIPT], deliver_at_ms=now_ms + 2 * HOUR_MS),
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

    page = console.page("/delayed")
    assert all(message_id in page for message_id in ids)
    assert f'href="/delayed/{ids[0]}/cancel"' in page
    assert f'href="/delayed/{ids[2]}/cancel"' not in page
    assert ids[1] not in console.page("/delayed?topic=orders")
    assert "cannot be cancelled" in console.page(f"/delayed/{ids[2]}/cancel")
    form = f"/delayed/{ids[1]}/cancel"
    assert f'name="confirm" value="{ids[1]}"' in console.page(form)
    assert "would cancel delayed message" in console.result(form, confirm=ids[1], isDryRun="true")
    assert console.submit(form, confirm="").status_code == 422
    assert console.submit(form, confirm=ids[1]).headers["HX-Redirect"] == "/delayed"
    assert ids[1] not in {row["messageId"] for row in console.get("/delayed")["messages"]["items"]}

    path = f"/api/v1/delayed/{ids[0]}"
    refused = console.client.delete(path, params={"confirm": "yes"})
    assert refused.status_code == 422
    assert "nothing was cancelled" in refused.json()["error"]
    plan = console.client.delete(path, params={"isDryRun": True}).json()
    assert plan["isDryRun"]
    assert plan["changes"] == [f"cancel delayed message {ids[0]} of topic orders on {console.servers.broker.addr}"]
    assert console.get("/delayed")["pending"] == 2
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

        async with TransactionProducer(console.servers.namesrv, "billing", check=check) as producer:
            message = Message(topic="payments", body=b"<b>paid</b>", keys=["ORDER-17", SCRIPT])
            return (await producer.send_in_transaction(message, undecided)).sent.message_id

    message_id = asyncio.run(run())
    view = console.get("/transactions")
    (row,) = view["transactions"]["items"]
    assert (row["messageId"], row["topic"], row["group"]) == (message_id, "payments", "billing")
    assert (row["checks"], row["keys"], view["total"]) == (0, ["ORDER-17", SCRIPT], 1)
    assert row["ageMs"] == view["oldestMs"] == view["asOfMs"] - row["storedMs"]
    assert console.get("/transactions", group="other")["transactions"]["total"] == 0
    assert console.get("/transactions", state="discarded")["total"] == 0

    page = console.page("/transactions?sort=age&order=desc")
    assert message_id in page
    assert "No discarded half message" in console.page("/transactions?state=discarded")
    form = f"/transactions/{row['offsetMessageId']}/resume"
    assert "would resume" in console.result(form, isDryRun="true")

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
    other = console.submit(f"/transactions/{copy['offsetMessageId']}/resume", broker="broker-x")
    assert (other.status_code, "no broker broker-x" in other.text) == (404, True)
    done = console.submit(f"/transactions/{copy['offsetMessageId']}/resume", broker="broker-a")
    assert (done.status_code, done.headers["HX-Trigger"]) == (200, "console-changed")
    # The broker had another address when it stored the message: the id names a server that no longer exists.
    _, offset = ids.parse_offset_message_id(copy["offsetMessageId"])
    former = ids.offset_message_id(host.pack("127.0.0.1", 1), offset)
    body = {"broker": "broker-a", "isDryRun": False}
    assert console.client.post(f"/api/v1/transactions/{former}/resume", json=body).status_code == 200
    assert console.client.post(f"/api/v1/transactions/{former}/resume", json={}).status_code == 502
    unknown = console.client.post(f"/api/v1/transactions/{message_id[:-4]}FFFF/resume", json={})
    assert unknown.status_code == 404
