"""Accounts with limits and masks on every route, with a real broker: nothing of a hidden topic is in any output."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from itertools import product
from typing import Any, NamedTuple

import msgspec
import pytest
from anyio.from_thread import start_blocking_portal
from fastapi.testclient import TestClient
from limited_rows import HIDDEN_LAG, write_tables

from ariane import Admin, LocalState, Message, Producer, PushConsumer, ReceivedMessage, TransactionProducer
from ariane.console.app import APIS, PAGES, create_app
from ariane.console.dashboard.dashboard_routers import ROUTERS as DASHBOARD
from ariane.console.security.accounts.accounts import ConsoleAccounts
from ariane.console.security.permissions import API_PREFIX, requirement
from ariane.console.security.roles import ConsoleRole
from ariane.console.services import open_services
from ariane.console.settings import ConsoleSettings
from ariane.model import ids
from ariane.model.topic import TRACE_TOPIC, SubscriptionGroupConfig
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.messaging import ConsumerSendMsgBack
from ariane.reports import REPORTS
from ariane.testing import LocalCluster

PASSWORD = "correct horse battery"
BASE = "http://127.0.0.1:8080"
BROWSER = {"Origin": BASE, "Sec-Fetch-Site": "same-origin"}
TOPIC, GROUP = "orders", "billing"
HIDDEN_TOPIC, HIDDEN_GROUP = "payroll-planted", "auditors-planted"
# What a hidden message contains, and what a masked one must not show.
PLANTS = ("planted-body", "planted-value", "planted-key", "planted-tag")
MASKED = ("secret-body", "secret-value", "SECRET-KEY")
RULES = f"""
[[limit]]
accounts = ["limited"]
topics = ["{TOPIC}"]
groups = ["{GROUP}", "new-.*"]

[[mask]]
accounts = ["limited", "masked"]
topics = ["{TOPIC}"]
properties = ["card", "KEYS"]
"""


class Site(NamedTuple):
    """A console with a hidden and a masked topic; clients by account, and message ids by name."""

    servers: LocalCluster
    clients: dict[str, TestClient]
    ids: dict[str, str]

    def get(self, account: str, path: str, **query: Any) -> Any:
        response = self.clients[account].get(f"{API_PREFIX}{path}", params=query)
        assert response.status_code == 200, response.text
        return response.json()

    def post(self, account: str, path: str, body: Any) -> Any:
        return self.clients[account].post(f"{API_PREFIX}{path}", json=body, headers=headers_of(self.clients[account]))


def headers_of(client: TestClient) -> dict[str, str]:
    services: Any = client.app.state.services  # type: ignore[attr-defined]
    identity = services.authenticator.from_session(client.cookies["ariane-session-8080"], "a")
    assert identity is not None
    return {**BROWSER, "X-CSRF-Token": identity.csrf_token}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("limits")
    data = home / "console"
    accounts = ConsoleAccounts(data)
    accounts.add("boss", ConsoleRole.ADMIN, PASSWORD)
    for name in ("limited", "masked"):
        accounts.add(name, ConsoleRole.OPERATOR, PASSWORD)
    (data / "access.toml").write_text(RULES)
    with LocalCluster(home / "broker") as servers, ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        peers = AsyncExitStack()
        stack.callback(lambda: portal.call(peers.aclose))
        message_ids = portal.call(plant, servers, peers)
        write_tables(
            home / "tables",
            topics=(TOPIC, HIDDEN_TOPIC),
            groups=(GROUP, HIDDEN_GROUP),
            ids=message_ids,
            host="planted-name",
        )
        settings = ConsoleSettings(namesrv=servers.namesrv, data_dir=data, tables_dir=home / "tables")
        app = create_app(open_services(settings), extensions=DASHBOARD)
        first = stack.enter_context(TestClient(app, base_url=BASE, follow_redirects=False))
        clients = {"boss": first}
        for name in ("limited", "masked"):
            clients[name] = TestClient(app, base_url=BASE, follow_redirects=False)
            clients[name].portal = first.portal  # the event loop of the application
        for name, client in clients.items():
            form = {"name": name, "password": PASSWORD, "next": ""}
            assert client.post("/login", data=form, headers=BROWSER).status_code == 303
        site = Site(servers, clients, message_ids)
        wait_for(lambda: HIDDEN_GROUP in json.dumps(site.get("boss", "/groups")))
        wait_for(lambda: HIDDEN_TOPIC in json.dumps(site.get("boss", f"/groups/{GROUP}")))
        add_alerts(site, first)
        yield site


async def plant(servers: LocalCluster, stack: AsyncExitStack) -> dict[str, str]:
    """Create the topics, let consumers and a producer connect, and send what no output of a limited account may contain."""
    hidden = Message(
        topic=HIDDEN_TOPIC, body=b"planted-body", keys=("planted-key",), tags="planted-tag",
        properties={"planted-name": "planted-value"},
    )  # fmt: skip
    masked = Message(
        topic=TOPIC, body=b"secret-body", keys=("SECRET-KEY",), tags="new",
        properties={"card": "secret-value", "color": "red"},
    )  # fmt: skip
    found: dict[str, str] = {}

    async def consume(message: ReceivedMessage) -> None: ...

    async def check(_: object) -> LocalState:
        return LocalState.UNKNOWN

    async with Admin(servers.namesrv) as admin, ConnectionPool() as peers:
        for topic in (TOPIC, HIDDEN_TOPIC):
            await admin.create_topic(topic, queues=1)
        for group in (GROUP, HIDDEN_GROUP):
            await admin.save_group(SubscriptionGroupConfig(group_name=group))
        for group, topics in ((GROUP, (TOPIC, HIDDEN_TOPIC)), (HIDDEN_GROUP, (HIDDEN_TOPIC,))):
            subscriptions = dict.fromkeys(topics, "*")
            consumer = PushConsumer(servers.namesrv, group, subscriptions, consume, start="first", trace=True)
            await stack.enter_async_context(consumer)
        producer = await stack.enter_async_context(Producer(servers.namesrv, "shop-planted", trace=True))
        for name, message in (("hidden", hidden), ("masked", masked)):
            result = await producer.send(message)
            found[name], found[f"{name} offset"] = result.message_id, result.offset_message_id
            group = HIDDEN_GROUP if name == "hidden" else GROUP
            _, offset = ids.parse_offset_message_id(result.offset_message_id)
            header = ConsumerSendMsgBack(offset, group, -1, result.message_id, message.topic)
            await peers.request_ok(servers.broker.addr, RequestCode.CONSUMER_SEND_MSG_BACK, header)
            await producer.send(msgspec.structs.replace(message, delay_level=18))
        for message, group in ((hidden, "halves-planted"), (masked, "halves")):
            halves = await stack.enter_async_context(TransactionProducer(servers.namesrv, group, check=check))
            sent = await halves.send_in_transaction(message, lambda *_: LocalState.UNKNOWN)
            found[f"half {message.topic}"] = sent.sent.offset_message_id
    return found


def add_alerts(site: Site, first: TestClient) -> None:
    """Let alerts of visible and hidden groups and topics fire, and store limits of groups and a silence with hidden names."""
    base = {"condition": "below", "threshold": 1e9, "holdS": 0}
    for name, metric, more in (
        ("clients", "groupClients", {}), ("rate", "topicTps", {}), ("later", "groupClients", {"holdS": 3600}),
        (f"{HIDDEN_GROUP} lags", "groupLag", {"pattern": HIDDEN_GROUP, "condition": "above"}),
    ):  # fmt: skip
        assert site.post("boss", "/alerts/rules", {**base, "name": name, "metric": metric, **more}).status_code == 200
    silence = {"pattern": HIDDEN_TOPIC, "minutes": 60, "reason": "planted-name"}
    assert site.post("boss", "/alerts/silences", silence).status_code == 200
    for group in (GROUP, HIDDEN_GROUP):
        limits = {"consumeGroupName": group, "minCount": 0, "maxDiffTotal": 5}
        path = "/monitor/createOrUpdateConsumerMonitor.do"
        assert first.post(path, params=limits, headers=headers_of(first)).json()["data"] is True
    services: Any = first.app.state.services  # type: ignore[attr-defined]

    async def evaluate() -> None:
        services.alerts.evaluate(await services.live.snapshot())

    def is_firing() -> bool:
        assert first.portal is not None
        first.portal.call(evaluate)
        subjects = {row["subject"] for row in site.get("boss", "/alerts")["alerts"]["items"]}
        return {GROUP, HIDDEN_GROUP, TOPIC, HIDDEN_TOPIC} <= subjects

    wait_for(is_firing)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the condition is not met"
        time.sleep(0.1)


def routes() -> Iterator[tuple[str, str]]:
    """Yield method, path and kind of every read of pages, API and Apache's dashboard."""
    for prefix, routers in (("", PAGES), (API_PREFIX, APIS), ("", DASHBOARD)):
        for router in routers:
            for route in router.routes:
                path = prefix + route.path
                for method in getattr(route, "methods", ()):
                    is_session = path.startswith(("/login", "/logout"))
                    if not is_session and not requirement(method, path).is_audited and method in ("GET", "POST"):
                        yield method, path


def queries_of(pattern: str, topic: str, group: str, message_id: str, offset_id: str) -> list[dict[str, str]]:
    """Return the queries for a route: searches of every kind for messages and traces, names for the others."""
    everything = {
        "topic": topic, "group": group, "consumerGroup": group, "key": "planted-key", "msgId": message_id, "begin": "0",
        "end": "9999999999999", "producerGroup": "shop-planted", "clientId": "x",
    }  # fmt: skip
    if pattern.removeprefix(API_PREFIX) in ("/messages", "/trace"):
        stored_in = (topic, TRACE_TOPIC, "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", f"%DLQ%{group}")
        searches: list[dict[str, str]] = [{"q": text} for text in (message_id, offset_id, "planted-key")]
        searches += [{"topic": name, "since": "1d"} for name in stored_in]
        return [*searches, {"q": "planted-key", "topic": topic}, {"topic": topic, "text": "planted"}]
    if "{" in pattern:
        return [{}, {"topic": topic}]
    return [{}, {"q": "planted"}, everything]


class Visit(NamedTuple):
    """A request and its answer. `names` are those that it asked for: an answer may repeat them."""

    path: str
    query: str
    text: str
    names: str


@pytest.fixture(scope="module")
def visits(site: Site) -> list[Visit]:
    """Request every read with the names of the visible topic, and with those of the hidden one."""
    client, done = site.clients["limited"], []
    token = headers_of(client)
    for topic, group, name in ((TOPIC, GROUP, "masked"), (HIDDEN_TOPIC, HIDDEN_GROUP, "hidden")):
        message_id, offset_id = site.ids[name], site.ids[f"{name} offset"]
        for method, pattern in routes():
            # Each report once: page and API, with and without a filter, have the same rows.
            reports = REPORTS if pattern == f"{API_PREFIX}/reports/{{name}}" and name == "hidden" else ("lag",)
            for identity, report in product((message_id, offset_id) if "message_id" in pattern else ("",), reports):
                path = pattern.replace(":path", "").format(
                    topic=topic, group=group, message_id=identity, broker="broker-a", client_id="x", name=report,
                    rule_id="x", channel_id="x", silence_id="x", session_id="x", path="x",
                )  # fmt: skip
                queries = queries_of(pattern, topic, group, message_id, offset_id)
                for query in queries[:1] if "/reports/{" in pattern else queries:
                    body = {"topic": topic, "group": group, "consumerGroup": group, "begin": 0, "end": 9999999999999,
                            "pageNum": 1, "pageSize": 20, "taskId": ""} if method == "POST" else None  # fmt: skip
                    answer = client.request(method, path, params=query, json=body, headers=token if body else {})
                    asked = f"{path} {query} {body} {topic} {group} {message_id} {offset_id}"
                    done.append(
                        Visit(
                            path,
                            str(query),
                            html.unescape(answer.text),
                            asked if name == "hidden" else f"{path} {query}",
                        )
                    )
    return done


def plants_in(visits: list[Visit], plants: tuple[str, ...]) -> list[tuple[str, str, str]]:
    return [
        (visit.path, visit.query, plant)
        for visit in visits
        for plant in plants
        if plant in visit.text and plant not in visit.names
    ]


def test_nothing_of_a_hidden_topic_is_in_any_output(site: Site, visits: list[Visit]) -> None:
    names = (HIDDEN_TOPIC, HIDDEN_GROUP, "shop-planted", "halves-planted", "planted-name", *PLANTS)
    secrets = (site.ids["hidden"], site.ids["hidden offset"], site.ids[f"half {HIDDEN_TOPIC}"])
    assert len(visits) > 400
    assert plants_in(visits, (*names, *secrets)) == []
    # A hidden message is not found, by any of its names and in any way.
    for path in (f"/messages/{secrets[0]}", f"/messages/{secrets[1]}", f"/messages/{secrets[0]}/body"):
        assert site.clients["limited"].get(f"{API_PREFIX}{path}").status_code == 404
        assert site.clients["boss"].get(f"{API_PREFIX}{path}").status_code == 200


def test_a_hidden_topic_looks_like_one_that_does_not_exist(site: Site) -> None:
    client = site.clients["limited"]
    for pattern in ("/topics/{}", "/topics/{}/queues", "/topics/{}/consumers", "/groups/{}", "/groups/{}/clients",
                    "/groups/{}/configuration", "/dead-letters/{}", "/messages?topic={}&since=1d"):  # fmt: skip
        hidden, absent = HIDDEN_GROUP if "group" in pattern or "dead" in pattern else HIDDEN_TOPIC, "absent"
        answers = [client.get(f"{API_PREFIX}{pattern.format(name)}") for name in (hidden, absent)]
        first, second = (answer.text.replace(hidden, absent) for answer in answers)
        assert (answers[0].status_code, first) == (answers[1].status_code, second), pattern


def test_actions_follow_the_limits(site: Site) -> None:
    half = site.ids[f"half {HIDDEN_TOPIC}"]
    before = json.dumps(site.get("boss", f"/topics/{HIDDEN_TOPIC}/queues")["messages"])
    for path, body in (
        (f"/topics/{HIDDEN_TOPIC}/messages", {"body": "x"}),
        (f"/topics/{HIDDEN_TOPIC}/reset-offsets", {"group": GROUP, "to": "first"}),
        ("/topics", {"topic": "new-topic", "queues": 1}),
        ("/groups", {"group": HIDDEN_GROUP}),
        (f"/groups/{HIDDEN_GROUP}/delete", {"confirmation": HIDDEN_GROUP}),
        (f"/messages/{site.ids['hidden offset']}/resend", {"topic": TOPIC}),
        (f"/messages/{site.ids['masked']}/resend?topic={TOPIC}", {"topic": HIDDEN_TOPIC}),
        (f"/transactions/{half}/resume", {}),
        (f"/dead-letters/{GROUP}/resend", {"ids": [site.ids["masked"]], "topic": HIDDEN_TOPIC}),
    ):
        answer = site.post("limited", path, body)
        done = answer.json().get("rows", [{}])[0].get("state") if answer.status_code == 200 else None
        assert answer.status_code >= 400 or done in ("failed", "refused"), (path, answer.text)
    assert json.dumps(site.get("boss", f"/topics/{HIDDEN_TOPIC}/queues")["messages"]) == before
    assert HIDDEN_GROUP in json.dumps(site.get("boss", "/groups"))


def test_nothing_that_is_masked_is_in_any_output(site: Site, visits: list[Visit]) -> None:
    assert plants_in(visits, MASKED) == []
    message = site.get("masked", f"/messages/{site.ids['masked']}", topic=TOPIC)
    properties = {row["name"]: row["value"] for row in message["properties"]}
    assert (properties["card"], properties["KEYS"], properties["color"]) == ("***", "***", "red")
    assert "secret" not in json.dumps(message)
    full = json.dumps(site.get("boss", f"/messages/{site.ids['masked']}", topic=TOPIC))
    assert "secret-body" in full and "secret-value" in full
    # A copy would have the mask in place of the contents.
    refused = site.post("masked", f"/messages/{site.ids['masked']}/resend?topic={TOPIC}", {})
    assert refused.status_code == 422 and "cannot be read by this account" in refused.text


def test_alerts_are_those_of_visible_subjects(site: Site) -> None:
    for path, member in (("/alerts", "alerts"), ("/alerts/history", "history")):
        view = site.get("limited", path, size=500)
        subjects = {(row["subjectKind"], row["subject"]) for row in view[member]["items"]}
        assert subjects == {("group", GROUP), ("topic", TOPIC)}, path
    limited, boss = (site.get(account, "/alerts") for account in ("limited", "boss"))
    assert (limited["pending"], limited["silences"]) == (1, None)
    assert boss["pending"] > 1 and [row["pattern"] for row in boss["silences"]] == [HIDDEN_TOPIC]
    rule_id = limited["alerts"]["items"][0]["ruleId"]
    absent, hidden = (
        site.post("limited", "/alerts/close", {"ruleId": rule_id, "subject": name}) for name in ("absent", HIDDEN_GROUP)
    )
    assert (hidden.status_code, hidden.text.replace(HIDDEN_GROUP, "absent")) == (404, absent.text)
    limits = site.clients["limited"].get("/monitor/consumerMonitorConfig.query").json()["data"]
    assert list(limits) == [GROUP]
    assert HIDDEN_GROUP in site.clients["boss"].get("/monitor/consumerMonitorConfig.query").text


def test_reports_have_the_rows_of_visible_topics_and_groups(site: Site) -> None:
    for name in set(REPORTS) - {"health"}:
        view, full = (site.get(account, f"/reports/{name}", since="1h") for account in ("limited", "boss"))
        text = json.dumps(view)
        assert view["isLimited"] and not full["isLimited"]
        assert TOPIC in text or name == "delay", name  # which names no topics, only messages
        assert HIDDEN_TOPIC in json.dumps(full) or name == "delay", name
        assert str(HIDDEN_LAG) not in text, "a lag of a hidden topic, or of a hidden group"
    overdue = json.dumps(site.get("limited", "/reports/delay", since="1h"))
    assert site.ids["masked"] in overdue and site.ids["hidden"] not in overdue
    # Retries of a group are numbers in the report on lag, and messages of any topic in others.
    assert f"%RETRY%{GROUP}" in json.dumps(site.get("limited", "/reports/lag", since="1h"))
    assert f"%RETRY%{GROUP}" not in json.dumps(site.get("limited", "/reports/tps", since="1h"))
    assert "health" not in site.get("limited", "/reports")["names"]


def test_keys_in_reports_are_masked(site: Site) -> None:
    for account in ("limited", "masked"):
        text = json.dumps(site.get(account, "/reports/latency", since="1h"))
        assert "***" in text and "SECRET-KEY" not in text
    assert "planted-key" in json.dumps(site.get("masked", "/reports/latency", since="1h")), "of a topic without a mask"
    assert "SECRET-KEY" in json.dumps(site.get("boss", "/reports/latency", since="1h"))


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/reports/health", "which of all groups"),
        ("/alerts/rules", "by patterns"),
        ("/alerts/channels", "by patterns"),
    ],
)
def test_closed_pages_say_why(site: Site, path: str, reason: str) -> None:
    for prefix in ("", API_PREFIX):
        answer = site.clients["limited"].get(prefix + path)
        assert (answer.status_code, reason in answer.text) == (403, True), answer.text
        assert site.clients["masked"].get(prefix + path).status_code == 200
    assert path not in site.clients["limited"].get(path.rpartition("/")[0]).text
