"""Pages of consumer groups and dead letters with a real master, slave and clients: every form, and what a reader sees."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import html
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from anyio.from_thread import start_blocking_portal
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from ariane import Admin, Message, Producer, PushConsumer, SimpleConsumer
from ariane.cli import main
from ariane.cluster.groups.offset_admin import EARLIEST, LATEST, OffsetTarget
from ariane.console.app import create_app
from ariane.console.services import open_services
from ariane.console.settings import ConsoleSettings
from ariane.errors import NotFound
from ariane.model import ids
from ariane.model.message import ReceivedMessage
from ariane.model.topic import SubscriptionGroupConfig
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.messaging import SUBSCRIPTION, ConsumerSendMsgBack, PullMessage
from ariane.testing import AsyncLocalCluster

XSS = "<img src=x onerror=alert(1)>"
DEADLINE_S = 40.0  # of conditions that usually hold after some seconds


class GroupConsole(NamedTuple):
    """A console, and its cluster: topic `orders` with four messages, group `audit` at its start, group `billing` at its end."""

    servers: AsyncLocalCluster
    client: TestClient

    def get(self, path: str, status: int = 200, **query: Any) -> Any:
        response = self.client.get(f"/api/v1{path}", params=query)
        assert response.status_code == status, response.text
        return response.json()

    def page(self, path: str, **query: Any) -> str:
        response = self.client.get(path, params=query)
        assert response.status_code == 200, response.text
        assert XSS not in response.text, "unescaped"
        return response.text

    def submit(self, path: str, **fields: Any) -> str:
        """Send a form as htmx does, and return what it shows: a result below the form, or the notice of the next page."""
        response = self.client.post(path, data=fields, headers={"HX-Request": "true"})
        assert response.status_code in (200, 204), response.text
        target = response.headers.get("HX-Redirect")
        return self.page(target) if target else response.text

    def until(self, path: str, holds: Callable[[Any], bool]) -> Any:
        """Ask until a condition holds, and return the answer."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            view = self.get(path)
            if holds(view):
                return view
            assert time.monotonic() < deadline, view
            time.sleep(0.2)


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupConsole]:
    home = tmp_path_factory.mktemp("console")
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(AsyncLocalCluster(home / "cluster", slaves=1)) as servers,
    ):
        asyncio.run(prepare(servers))
        app = create_app(open_services(ConsoleSettings(namesrv=servers.namesrv, data_dir=home / "console")))
        with TestClient(app, base_url="http://127.0.0.1") as client:
            yield GroupConsole(servers, client)


async def prepare(servers: AsyncLocalCluster) -> None:
    async with Admin(servers.namesrv) as admin, ConnectionPool() as peers:
        await admin.create_topic("orders", queues=1)
        async with Producer(servers.namesrv, "shop") as producer:
            results = [
                await producer.send(Message(topic="orders", body=XSS.encode(), keys=(XSS.replace(" ", "/"),), tags="a"))
                for _ in range(4)
            ]
        for group in ("audit", "billing"):
            await admin.save_group(SubscriptionGroupConfig(group_name=group))
            await admin.reset_offsets(group, "orders", OffsetTarget(LATEST))
        await admin.reset_offsets("audit", "orders", OffsetTarget(EARLIEST))
        for result in results[:2]:
            _, offset = ids.parse_offset_message_id(result.offset_message_id)
            header = ConsumerSendMsgBack(offset, "billing", -1, result.message_id, "orders")
            await peers.request_ok(servers.broker.addr, RequestCode.CONSUMER_SEND_MSG_BACK, header)


@contextlib.contextmanager
def consumers(console: GroupConsole, group: str, *expressions: str) -> Iterator[None]:
    """Connect one consumer per expression."""

    async def consume(messages: list[ReceivedMessage]) -> None:
        return None

    async def connect() -> contextlib.AsyncExitStack:
        stack = contextlib.AsyncExitStack()
        for expression in expressions:
            consumer = PushConsumer(console.servers.namesrv, group, {"orders": expression}, consume)
            await stack.enter_async_context(consumer)
        return stack

    with start_blocking_portal() as portal:
        stack = portal.call(connect)
        try:
            yield
        finally:
            portal.call(stack.aclose)


# --- lists and tabs ---


def test_groups_are_listed_with_lag_dead_letters_and_state(console: GroupConsole) -> None:
    view = console.until(
        "/groups", lambda view: {row["group"] for row in view["groups"]["items"]} >= {"audit", "billing"}
    )
    view = console.until("/groups", lambda view: all(row["clients"] is not None for row in view["groups"]["items"]))
    rows = {row["group"]: row for row in view["groups"]["items"]}
    assert (rows["audit"]["lag"], rows["audit"]["state"], rows["audit"]["topics"]) == (4, "offline", ["orders"])
    assert rows["billing"]["deadLetters"] == 2
    page = console.page("/groups", q="aud")
    assert ">audit</a>" in page and ">billing</a>" not in page
    assert ">billing</a>" in console.page("/dead-letters")


def test_every_tab_of_a_group_shows_its_values(console: GroupConsole) -> None:
    progress = console.get("/groups/audit")
    (queue,) = [row for row in progress["queues"]["items"] if row["topic"] == "orders"]
    assert (queue["brokerOffset"], queue["committedOffset"], queue["lag"]) == (4, 0, 4)
    assert queue["oldestAgeMs"] > 0 and progress["oldestAgeMs"] == queue["oldestAgeMs"]
    for tab, text in (
        ("", "broker-a"), ("/traffic", "Slave 1"), ("/clients", "No connected client"), ("/offsets", "Copy offsets"),
        ("/configuration", "retryMaxTimes"), ("/delete", "Type audit to confirm"),
    ):  # fmt: skip
        assert text in console.page(f"/groups/audit{tab}"), tab
    assert "no consumer group nobody" in html.unescape(console.client.get("/groups/nobody").text)


def test_a_rate_that_only_a_slave_counts_is_shown_as_that_of_the_slave(console: GroupConsole) -> None:
    """The case of article 3: while a slave serves the reads of a group, its masters count nothing."""

    async def pull_from_slave() -> None:
        header = PullMessage("audit", "orders", 0, 0, 32, SUBSCRIPTION, 0, 0, "*", 0, None)
        async with ConnectionPool() as peers:
            deadline = time.monotonic() + DEADLINE_S
            while True:  # the slave copies topics and messages with some delay
                response = await peers.request(console.servers.slaves[0].addr, RequestCode.PULL_MESSAGE, header)
                if response.code == 0:
                    return
                assert time.monotonic() < deadline, response.remark
                await asyncio.sleep(0.2)

    asyncio.run(pull_from_slave())
    view = console.until("/groups/audit/traffic", lambda view: view["servedBy"] != "none")
    assert view["servedBy"] == "slaves"
    assert view["mastersTps"] == 0 and 0 < view["slavesTps"] == view["tps"]
    assert [(row["role"], row["share"]) for row in view["servers"]] == [("master", 0), ("slave", 1)]
    assert "Slaves serve all reads of this group" in console.page("/groups/audit/traffic")
    listed = console.until("/groups?q=audit", lambda view: view["groups"]["items"][0]["slavesTps"])
    assert listed["groups"]["items"][0]["tps"] > 0


def test_clients_with_different_subscriptions_are_shown_side_by_side(console: GroupConsole) -> None:
    with consumers(console, "mixed", "a", "b || c"):
        view = console.until(
            "/groups/mixed/clients", lambda view: sum(row["queues"] is not None for row in view["clients"]) == 2
        )
        (row,) = view["subscriptions"]
        assert (row["topic"], row["isConsistent"], row["expressions"]) == ("orders", False, 2)
        page = console.page("/groups/mixed/clients")
        assert "b || c" in page and "inconsistent" in page
        client_id = view["clients"][0]["clientId"]
        path = f"/groups/mixed/clients/{client_id.replace('#', '%23')}"
        assert "Thread dump" in console.page(path)
        assert "asyncio" in console.page(path, stacks="true") or "Task" in console.page(path, stacks="true")


# --- forms ---


def test_offsets_are_reset_and_copied_after_a_dry_run(console: GroupConsole) -> None:
    fields = {"topic": "orders", "to": "offset", "time": "", "offset": "3", "isForced": "true"}
    plan = console.submit("/groups/audit/offsets/reset", **fields, isDryRun="true")
    assert "nothing was changed" in plan and "3 skipped" in plan
    assert "Offsets reset" in console.submit("/groups/audit/offsets/reset", **fields)
    assert console.get("/groups/audit")["lag"] == 1
    copy = {"destination": "audit-copy", "topic": ""}
    assert "nothing was changed" in console.submit("/groups/audit/offsets/clone", **copy, isDryRun="true")
    assert "Offsets copied" in console.submit("/groups/audit/offsets/clone", **copy)
    (row,) = console.get("/groups/audit-copy")["queues"]["items"]
    assert row["committedOffset"] == 3
    console.submit("/groups/audit/offsets/reset", topic="orders", to="earliest", time="", offset="", isForced="true")


def test_a_group_is_created_changed_suspended_and_deleted_by_forms(console: GroupConsole) -> None:
    fields = {"group": "refunds", "retryMaxTimes": "3", "retryQueueNums": "", "consumeEnable": "", "brokerId": ""}
    assert "would create" in console.submit("/create-group", **fields, isDryRun="true")
    assert "retryMaxTimes" in console.submit("/create-group", **fields)
    path = "/groups/refunds"
    assert "would change refunds: retryQueueNums = 2" in console.submit(
        f"{path}/configuration", retryQueueNums="2", consumeEnable="", isDryRun="true"
    )
    console.submit(f"{path}/configuration", retryQueueNums="2", consumeEnable="")
    values = {row["name"]: row["values"] for row in console.get(f"{path}/configuration")["settings"]}
    assert (values["retryMaxTimes"], values["retryQueueNums"]) == ([3], [2])
    assert "Suspended: brokers refuse" in console.submit(f"{path}/suspension", isSuspended="true")
    assert console.get(f"{path}/configuration")["isSuspended"] is True
    assert "Suspended:" not in console.submit(f"{path}/suspension", isSuspended="false")

    refused = console.client.post(f"{path}/delete", data={"confirm": "refund"}, headers={"HX-Request": "true"})
    assert refused.status_code == 422 and "expected the name of the group" in html.unescape(refused.text)
    assert "would delete" in console.submit(f"{path}/delete", confirm="", isDryRun="true", withOffsets="true")
    console.submit(f"{path}/delete", confirm="refunds", withOffsets="true")
    with pytest.raises(NotFound):
        asyncio.run(check_group(console, "refunds"))


async def check_group(console: GroupConsole, group: str) -> None:
    async with Admin(console.servers.namesrv) as admin:
        await admin.group_configs(group)


def test_dead_letters_are_compared_and_resent_by_forms(console: GroupConsole) -> None:
    page = console.page("/dead-letters/billing", since="1h")
    assert html.escape(XSS) in page, "keys and bodies stay text"
    row, other = console.get("/dead-letters/billing")["items"]
    letter = f"/dead-letters/billing/{row['offsetMessageId']}"
    assert "only in the dead letter" in console.page(letter)
    form = {"ids": [row["offsetMessageId"]], "key": "", "tag": "", "text": "", "since": "", "until": "", "topic": ""}
    assert "would be sent" in console.submit("/dead-letters/billing/resend", **form, isDryRun="true")
    assert "1 sent" in console.submit("/dead-letters/billing/resend", **form)
    assert "resent" in console.page(letter)
    both = console.submit("/dead-letters/billing/resend", **form | {"ids": []}, isMatching="true")
    assert "1 sent, 1 resent before" in both and other["messageId"] in both
    assert console.client.get("/dead-letters/billing/export.csv").text.count("\r\n") == 3
    moved = console.client.get("/dead-letters", params={"group": "billing"}, follow_redirects=False)
    assert moved.headers["location"] == "/dead-letters/billing"


def test_reports_without_a_pipeline_explain_how_to_run_one(console: GroupConsole) -> None:
    for path in ("/reports", "/reports/tps?since=2h"):
        assert "ariane pipeline run" in console.page(path)


@pytest.mark.parametrize(
    "path", ["/groups", "/groups/audit", "/groups/audit/offsets", "/dead-letters/billing", "/reports"]
)
def test_pages_are_translated(console: GroupConsole, path: str) -> None:
    page = console.client.get(path, headers={"Accept-Language": "zh-CN"}).text
    assert 'lang="zh-CN"' in page and "消费" in page


def test_messages_in_flight_are_listed_with_their_client(console: GroupConsole) -> None:
    namesrv = console.servers.namesrv
    with start_blocking_portal() as portal:
        consumer = SimpleConsumer(namesrv, "stock", {"orders": "*"}, start="first")
        with portal.wrap_async_context_manager(consumer):
            taken = portal.call(functools.partial(consumer.receive, 3, invisible=600, timeout=DEADLINE_S))
            view = console.until("/groups/stock/in-flight", lambda view: view["messages"]["items"][0]["clientId"])
            command = ["group", "in-flight", "stock", "--limit", "2", "-n", namesrv]
            printed = CliRunner().invoke(main.app, command, env={"COLUMNS": "200"})
            page = console.page("/groups/stock/in-flight", limit=2)
    assert [row["messageId"] for row in view["messages"]["items"]] == [message.message_id for message in taken]
    assert (view["total"], view["omitted"], console.get("/groups/stock")["inFlight"]) == (3, 0, 3)
    row = view["messages"]["items"][0]
    assert (row["topic"], row["broker"], row["queueId"], row["offset"], row["attempts"]) == (
        "orders",
        "broker-a",
        0,
        0,
        1,
    )
    assert row["visibleMs"] == row["takenMs"] + 600_000
    assert row["clientId"] in page and f"/messages/{row['messageId']}?topic=orders" in page
    assert "Not listed: 1. The list shows the first messages of each queue" in page
    assert printed.exit_code == 0 and "3 in flight; 1 more results omitted" in printed.stdout, printed.output
    assert row["clientId"] in printed.stdout
    assert console.get("/groups/audit/in-flight")["total"] == 0
    assert "No message is in flight" in console.page("/groups/audit/in-flight")
    console.get("/groups/absent/in-flight", status=404)
