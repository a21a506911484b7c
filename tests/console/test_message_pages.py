"""Messages and traces with a real broker and traced clients: pages, forms and REST."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from httpx import Response
from traced_traffic import BROKER, HOSTILE, HOSTILE_ATTRIBUTE, QUICK, TRACES, Traffic, traced_traffic, until

from ariane.client import Producer, PushConsumer
from ariane.client.instance.client_instance import ClientInstance
from ariane.clock import SystemClock
from ariane.cluster.admin import Admin
from ariane.console.app import create_app
from ariane.console.live.guarded_pool import GuardedPool
from ariane.console.services import open_services
from ariane.console.settings import ConsoleSettings
from ariane.model.message import Message, ReceivedMessage
from ariane.testing import LocalCluster

CLOCK_AHEAD_MS = 90 * 60_000 + 20_000
UNKNOWN_ID = "0A000001000100000000000000000009"


class Console(NamedTuple):
    """A console, its cluster, and the messages in it."""

    servers: LocalCluster
    client: TestClient
    traffic: Traffic

    def page(self, path: str, **query: str) -> str:
        response = self.client.get(path, params=query)
        assert response.status_code == 200, response.text
        return response.text

    def get(self, path: str, **query: str) -> Any:
        response = self.client.get(f"/api/v1{path}", params=query)
        assert response.status_code == 200, response.text
        return response.json()

    def post_form(self, path: str, **fields: str) -> Response:
        """Send a form as the page does."""
        token = re.search(r'name="csrf-token" content="([^"]*)"', self.page("/messages"))
        assert token is not None
        headers = {"HX-Request": "true", "X-CSRF-Token": token[1], "Origin": "http://127.0.0.1"}
        response: Response = self.client.post(path, data=fields, headers=headers)
        return response

    def find(self, message_id: str) -> dict[str, Any]:
        """Return the record of a message in its own topic."""
        found: dict[str, Any] = self.get(f"/messages/{message_id}")["row"]
        return found


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    home = tmp_path_factory.mktemp("console")
    with LocalCluster(home / "broker", **BROKER) as servers, pytest.MonkeyPatch.context() as patch:
        # On a busy machine a broker may need more than the second after which the console counts it as silent.
        patch.setitem(GuardedPool.__init__.__kwdefaults__, "limit_ms", 30_000.0)
        traffic = asyncio.run(traced_traffic(servers))
        settings = ConsoleSettings(namesrv=servers.namesrv, data_dir=home / "console")
        with TestClient(create_app(open_services(settings)), base_url="http://127.0.0.1") as client:
            yield Console(servers, client, traffic)


class Markup(HTMLParser):
    """Collects what a browser would run."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.dangers: list[str] = []
        self._is_script = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._is_script = tag == "script"
        self.dangers += [f"{tag} {name}" for name, _ in attrs if name.startswith("on") or name in ("style", "srcdoc")]
        self.dangers += [
            f"{name}={value}" for name, value in attrs if value and value.strip().startswith("javascript:")
        ]
        if tag in ("img", "iframe", "object", "b", "style"):
            self.dangers.append(tag)

    def handle_data(self, data: str) -> None:
        if self._is_script and data.strip():
            self.dangers.append(f"script {data}")
        self._is_script = False


# --- search ------------------------------------------------------------------------------------------------------------


def test_any_kind_of_name_is_recognised(console: Console) -> None:
    row = console.find(console.traffic.retried)
    expectations = [
        ({"q": console.traffic.retried}, "unique key", 5),  # the record, two pending retries and two retries
        ({"q": console.traffic.retried.lower()}, "unique key", 5),
        ({"q": console.traffic.retried, "topic": "orders"}, "unique key", 1),
        ({"q": row["offsetMessageId"]}, "offset id", 1),
        ({"q": "ORDER-1", "topic": "orders"}, "key", 1),
        ({"q": "ORDER-1"}, "key", 5),
        ({"topic": "orders", "tag": "new"}, "scan", 1),
        ({"topic": "orders", "text": "retry m"}, "scan", 1),
        ({"topic": "orders"}, "scan", 8),
        ({"topic": "orders", "since": "1h", "until": "2020-01-01T00:00"}, "", 0),
        ({"topic": "orders", "since": "2020-01-01", "until": "2020-01-02"}, "scan", 0),
        ({"topic": "%DLQ%audit"}, "scan", 1),
        ({"q": UNKNOWN_ID}, "unique key", 0),
    ]
    for query, kind, count in expectations:
        if not kind:
            assert console.client.get("/api/v1/messages", params=query).status_code == 422
            continue
        found = console.get("/messages", **query)
        assert (found["kind"], len(found["items"])) == (kind, count), query
        assert found["unavailable"] == []
        page = console.page("/messages", **query)
        assert all(row["offsetMessageId"] in page for row in found["items"])


def test_a_unique_key_of_a_clock_that_is_ahead_is_found(console: Console) -> None:
    """The time in the id is 1.2 s later than the store time: Java's clients search from the former, and find nothing."""
    for query in ({"q": console.traffic.ahead}, {"q": console.traffic.ahead, "topic": "orders"}):
        (row,) = console.get("/messages", **query)["items"]
        assert row["messageId"] == console.traffic.ahead
    assert console.traffic.ahead in console.page(f"/messages/{console.traffic.ahead}")


class ClockAhead(SystemClock):
    """A clock that is 90 minutes ahead, and 20 s for a slow send."""

    def now_ms(self) -> int:
        return super().now_ms() + CLOCK_AHEAD_MS


def test_a_clock_that_is_ahead_is_named_with_the_message(console: Console) -> None:
    async def send() -> str:
        namesrv = console.servers.namesrv
        async with Admin(namesrv) as admin:
            await admin.create_topic("skewed", queues=1)
        async with (
            ClientInstance(namesrv, clock=ClockAhead()) as instance,
            Producer(instance, "skewed-clock", trace=TRACES) as producer,
        ):
            return (await producer.send(Message(topic="skewed", body=b"early", keys=["SKEWED-1"]))).message_id

    message_id = asyncio.run(send())
    (row,) = console.get("/messages", q="SKEWED-1", topic="skewed")["items"]
    assert 0 <= CLOCK_AHEAD_MS - row["clockAheadMs"] < 20_000
    assert row["lateMs"] is None
    # Rows of a scan have no body and few properties.
    for query in ({"q": message_id}, {"topic": "skewed"}):
        assert "s clock was at least 1 h 30 min ahead of the broker" in console.page("/messages", **query), query
    assert "s clock was at least 1 h 30 min ahead of the broker" in console.page(f"/messages/{message_id}")
    asyncio.run(until(lambda: "send" in kinds(console.get(f"/trace/{message_id}", topic="skewed"))))
    trace = console.page(f"/trace/{message_id}", topic="skewed")
    assert re.search(r"The clock of 127\.0\.0\.1 was at least 1 h (30|29) min ahead", trace)
    assert "clock was at least" not in console.page(f"/messages/{console.traffic.retried}")


def test_an_empty_result_names_its_time_range_and_offers_all_times(console: Console) -> None:
    query = {"q": "ORDER-1", "topic": "orders", "since": "2020-01-01T08:00", "until": "2020-01-02T09:30"}
    progress = console.get("/messages", **query)["progress"]
    assert (progress["sinceMs"], progress["untilMs"]) == (1_577_865_600_000, 1_577_957_400_000)
    page = console.page("/messages", **query)
    assert "Searched: stored from 2020-01-01 08:00:00 to 2020-01-02 09:30:00 (UTC)." in page
    link = re.search(r'href="([^"]*)"[^>]*>Search without times<', page)
    assert link is not None
    assert len(re.findall('class="preview"', console.client.get(unescape(link[1])).text)) == 1
    scan = console.page("/messages", topic="orders", until="2020-01-01T00:00")
    assert "Searched: stored from the beginning to 2020-01-01 00:00:00 (UTC)." in scan
    assert "All store times were searched." in console.page("/messages", q="NO-SUCH-KEY", topic="orders")
    letters = console.page("/dead-letters/audit", since="2020-01-01T08:00", until="2020-01-02")
    assert "Searched: stored from 2020-01-01 08:00:00 to 2020-01-02 00:00:00 (UTC)." in letters
    assert "Search without times" in letters


def test_sentences_of_a_search_are_separate(console: Console) -> None:
    summary = re.search(r'class="search-summary"[^>]*>(.*?)</p>', console.page("/messages", q="ORDER-1"), re.DOTALL)
    assert summary is not None
    words = " ".join(summary[1].split())
    assert re.fullmatch(r"Searched as key in \d+ of \d+ topics\. Messages found: \d+\.", words), words


def test_topics_are_suggested(console: Console) -> None:
    asyncio.run(until(lambda: '<option value="orders">' in console.page("/messages")))
    page = console.page("/trace")
    assert '<option value="failing">' in page
    assert '<option value="RMQ_SYS_TRACE_TOPIC">' in page


def test_a_search_says_what_it_read(console: Console) -> None:
    found = console.get("/messages", topic="orders", text="no such text")["progress"]
    assert (found["read"], found["unread"], found["nextUntil"]) == (8, 0, "")
    everywhere = console.get("/messages", q="ORDER-1")["progress"]
    assert everywhere["topics"] == everywhere["allTopics"] > 3
    assert "Searched as unique key in topic orders." in console.page(
        "/messages", q=console.traffic.retried, topic="orders"
    )


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"tag": "new"}, "topic"),
        ({"topic": "no/such", "q": "x"}, "characters other than"),
        ({"topic": "orders", "since": "yesterday"}, "expected a duration"),
        ({"topic": "missing"}, "missing"),
        ({"q": "x" * 300}, "255"),
    ],
)
def test_wrong_queries_are_explained(console: Console, query: dict[str, str], words: str) -> None:
    response = console.client.get("/api/v1/messages", params=query)
    assert response.status_code in (404, 422)
    assert words in response.json()["error"]
    assert words in console.client.get("/messages", params=query).text


def test_an_offset_id_does_not_make_the_console_connect_to_other_hosts(console: Console) -> None:
    """The id has an address that no broker is registered with."""
    foreign = "CB007107" + "00002A9F" + "0000000000000000"  # 203.0.113.7:10911
    assert console.get("/messages", q=foreign)["kind"] == "unique key"
    assert console.client.get(f"/messages/{foreign}").status_code == 404


# --- one message -------------------------------------------------------------------------------------------------------


def test_a_message_shows_position_properties_and_body(console: Console) -> None:
    view = console.get(f"/messages/{console.traffic.document}")
    assert view["row"]["topic"] == "orders"
    assert view["body"]["format"] == "json"
    assert '\n  "order": 17,' in view["body"]["content"]
    names = {item["name"]: item["explanation"] for item in view["properties"]}
    assert names["UNIQ_KEY"] == "Unique key, which the producer generated"
    page = console.page(f"/messages/{console.traffic.document}")
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    assert "Business keys, separated by spaces" in page
    assert "00000000  7b 22 6f" in console.page(f"/messages/{console.traffic.document}", body="hex")


def test_large_and_binary_bodies_are_downloads(console: Console) -> None:
    large = console.get(f"/messages/{console.traffic.large}")["body"]
    assert (large["size"], large["shown"], len(large["content"])) == (200_000, 65_536, 65_536)
    for prefix in ("", "/api/v1"):
        response = console.client.get(f"{prefix}/messages/{console.traffic.binary}/body")
        assert response.content == bytes(range(256))
        assert response.headers["content-type"] == "application/octet-stream"
        assert response.headers["content-disposition"].startswith(
            f'attachment; filename="{console.traffic.binary}.bin"'
        )
        assert response.headers["x-content-type-options"] == "nosniff"
    assert len(console.client.get(f"/messages/{console.traffic.large}/body").content) == 200_000


def test_consumers_are_shown_with_times_and_copies_with_links(console: Console) -> None:
    view = console.get(f"/messages/{console.traffic.retried}/consumers")
    rows = {row["group"]: row for row in view["consumers"]}
    assert {group: (row["state"], row["attempts"], row["result"]) for group, row in rows.items()} == {
        "billing": ("consumed", 3, "success"),
        "mail": ("consumed", 1, "success"),
    }
    assert all(row["deliveredMs"] and row["errorMs"] is not None for row in rows.values())
    assert sorted(copy["topic"] for copy in view["copies"]) == [
        "%RETRY%billing", "%RETRY%billing", "SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXX",
    ]  # fmt: skip
    dead = console.get(f"/messages/{console.traffic.dead}/consumers")
    assert "%DLQ%audit" in {copy["topic"] for copy in dead["copies"]}
    (audit,) = dead["consumers"]
    assert (audit["state"], audit["attempts"], audit["result"]) == ("no consumer online", 2, "failed")
    fragment = console.client.get(f"/messages/{console.traffic.dead}/consumers", headers={"HX-Request": "true"}).text
    assert "<html" not in fragment
    assert 'id="consumers"' in fragment
    assert "/topics/%25DLQ%25audit" in fragment


def test_a_unique_key_is_found_in_its_topic_in_either_spelling(console: Console) -> None:
    message_id = console.traffic.retried
    for text in (message_id, message_id.lower()):
        assert console.get(f"/messages/{text}", topic="orders")["row"]["messageId"] == message_id


def test_a_message_that_does_not_exist_is_an_error(console: Console) -> None:
    for path in (f"/messages/{UNKNOWN_ID}", f"/messages/{UNKNOWN_ID}/consumers", "/messages/%3Cscript%3E"):
        response = console.client.get(path)
        assert response.status_code == 404
        assert Markup(response.text).dangers == []


def test_markup_of_clients_stays_text(console: Console) -> None:
    message_id = console.traffic.hostile
    paths = [
        f"/messages/{message_id}",
        f"/messages/{message_id}/consumers",
        f"/messages?q={quote(HOSTILE)}",
        f"/messages?q={quote(HOSTILE_ATTRIBUTE)}&topic=orders",
        "/messages?topic=orders",
        f"/trace/{message_id}",
        f"/trace?q={quote(HOSTILE_ATTRIBUTE)}&topic=failing",
        f"/trace/{quote(HOSTILE_ATTRIBUTE, safe='')}",
        f"/trace?q={quote(HOSTILE)}&topic={quote(HOSTILE)}",
        f"/messages?topic={quote(HOSTILE_ATTRIBUTE)}",
    ]
    for path in paths:
        text = console.client.get(path).text
        assert Markup(text).dangers == [], path
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in console.page(f"/messages/{message_id}")
    assert Markup("<script>alert(1)</script><img src=x onerror=y>").dangers == ["script alert(1)", "img onerror", "img"]


# --- forms -------------------------------------------------------------------------------------------------------------


def test_a_message_is_resent_to_its_topic(console: Console) -> None:
    offset_id = console.find(console.traffic.document)["offsetMessageId"]
    before = len(console.get("/messages", q="JSON-1", topic="orders")["items"])
    dry = console.post_form(f"/messages/{offset_id}/resend", topic="", dryRun="true")
    assert (dry.status_code, dry.headers["HX-Retarget"]) == (200, "#notices")
    assert "Would send a message of" in dry.text
    assert len(console.get("/messages", q="JSON-1", topic="orders")["items"]) == before
    done = console.post_form(f"/messages/{offset_id}/resend", topic="orders")
    assert "Sent a copy as" in done.text
    copies = console.get("/messages", q="JSON-1", topic="orders")["items"]
    assert len(copies) == before + 1
    properties = console.get(f"/messages/{copies[0]['offsetMessageId']}")["properties"]
    replayed = next(item["value"] for item in properties if item["name"] == "REPLAYED_FROM")
    assert replayed.endswith(console.traffic.document)


def test_wrong_targets_of_a_resend_are_explained(console: Console) -> None:
    path = f"/messages/{console.traffic.document}/resend"
    assert "characters other than" in console.post_form(path, topic="<b>").text
    missing = console.post_form(path, topic="missing")
    assert (missing.status_code, "missing" in missing.text) == (404, True)
    assert console.post_form(path, topic="orders", other="1").status_code == 422
    assert (
        console.client.post(path, data={"topic": "orders"}, headers={"Origin": "http://127.0.0.1"}).status_code == 403
    )


def test_a_message_is_delivered_to_one_client(console: Console) -> None:
    received: list[ReceivedMessage] = []

    async def work() -> tuple[Response, Response, Response]:
        async def listen(messages: list[ReceivedMessage]) -> None:
            received.extend(messages)

        from ariane.client import ConsumerSettings

        settings = ConsumerSettings(**QUICK)
        # Its tag expression matches nothing: it receives only what is sent to it directly.
        async with PushConsumer(console.servers.namesrv, "direct", {"orders": "none"}, listen, settings=settings):
            path = f"/messages/{console.traffic.binary}/consume"
            dry = await asyncio.to_thread(console.post_form, path, group="direct", dryRun="true")
            assert received == []
            done = await asyncio.to_thread(console.post_form, path, group="direct")
            offline = await asyncio.to_thread(console.post_form, path, group="mail")
        return dry, done, offline

    dry, done, offline = asyncio.run(work())
    assert "Would let" in dry.text
    assert "consumed the message" in done.text
    assert [message.message_id for message in received] == [console.traffic.binary]
    assert offline.status_code == 404
    assert "mail" in offline.text
    assert console.post_form(f"/messages/{console.traffic.binary}/consume", group="").status_code == 422


def test_rest_changes_return_what_was_done(console: Console) -> None:
    path = f"/api/v1/messages/{console.traffic.document}/resend"
    result = console.client.post(path, json={"dryRun": True}).json()
    assert result["isDryRun"] is True
    assert result["changes"]


# --- traces ------------------------------------------------------------------------------------------------------------


def kinds(view: dict[str, Any]) -> list[str]:
    return [step["kind"] for step in view["steps"]]


def test_a_trace_has_every_attempt_of_each_group(console: Console) -> None:
    view = console.get(f"/trace/{console.traffic.retried}")
    assert (view["topic"], view["keys"], view["tag"]) == ("orders", ["ORDER-1", "CUSTOMER-7"], "new")
    assert kinds(view).count("delivery") == 4
    assert kinds(view).count("store") == 5
    billing = [step for step in view["steps"] if step["kind"] == "delivery" and step["group"] == "billing"]
    assert [(step["attempt"], step["result"]) for step in billing] == [(1, "failed"), (2, "failed"), (3, "success")]
    assert all(step["errorMs"] is not None for step in view["steps"])
    assert [(group["group"], group["attempts"], group["result"]) for group in view["groups"]] == [
        ("billing", 3, "success"), ("mail", 1, "success"),
    ]  # fmt: skip
    assert {source["source"]: source["steps"] for source in view["sources"]} == {"trace topic": 5, "broker": 5}
    (clock,) = view["clocks"]
    assert clock["lowerMs"] <= 0 <= clock["upperMs"]
    page = console.page(f"/trace/{console.traffic.retried}")
    # The waits of a second before each retry are compressed, with their length.
    assert len(re.findall(r'class="timeline-wait"', page)) == 2
    assert page.count("timeline-bar") > len(view["steps"])
    assert "Delivered, attempt 3" in page


def test_a_dead_letter_ends_the_trace_of_a_group(console: Console) -> None:
    view = console.get(f"/trace/{console.traffic.dead}")
    assert view["steps"][-1]["kind"] == "dead letter"
    assert view["groups"][0]["isDead"] is True


def test_a_transaction_shows_its_check_and_end(console: Console) -> None:
    view = console.get(f"/trace/{console.traffic.checked}")
    decisions = [(step["result"], step["fromCheck"]) for step in view["steps"] if step["kind"] == "decision"]
    assert decisions[0] == ("UNKNOW", False)
    assert ("COMMIT_MESSAGE", True) in decisions
    topics = [step["topic"] for step in view["steps"] if step["kind"] == "store"]
    assert topics[0] == "RMQ_SYS_TRANS_HALF_TOPIC"
    assert "orders" in topics
    assert "Transaction decided after a check" in console.page(f"/trace/{console.traffic.checked}")


def test_the_wait_of_a_delayed_message_counts_from_its_due_time(console: Console) -> None:
    view = console.get(f"/trace/{console.traffic.delayed}")
    assert view["durationMs"] >= 1_000
    assert all(group["firstWaitMs"] < 1_000 for group in view["groups"])


def test_traces_are_found_by_key_with_and_without_topic(console: Console) -> None:
    for query in ({"q": "ORDER-1"}, {"q": "CUSTOMER-7", "topic": "orders"}, {"q": console.traffic.retried}):
        (row,) = console.get("/trace", **query)["items"]
        assert (row["messageId"], row["topic"]) == (console.traffic.retried, "orders")
    assert console.get("/trace", q="ORDER-1", topic="failing")["items"] == []
    response = console.client.get("/trace", params={"q": "ORDER-1"}, follow_redirects=False)
    assert response.status_code == 303
    assert response.headers["location"] == f"/trace/{console.traffic.retried}?topic=orders"
    offset_id = console.find(console.traffic.retried)["offsetMessageId"]
    assert console.get(f"/trace/{offset_id}")["messageId"] == console.traffic.retried


def test_a_custom_trace_topic_is_read_only_if_it_is_chosen(console: Console) -> None:
    async def send() -> str:
        from ariane.client.instance.settings import TraceSettings

        traces = TraceSettings(flush_interval=0.02, topic="my_traces")
        async with Producer(console.servers.namesrv, "custom", trace=traces) as producer:
            sent = await producer.send(Message(topic="orders", body=b"x", keys=["CUSTOM-1"]))
            await until(lambda: producer.trace is not None and producer.trace.sent >= 1)
        return sent.message_id

    message_id = asyncio.run(send())
    default = console.get(f"/trace/{message_id}", topic="orders")
    assert kinds(default) == ["store"]
    custom = console.get(f"/trace/{message_id}", traceTopic="my_traces")
    assert sorted(kinds(custom)) == ["send", "store"]
    (row,) = console.get("/trace", q="CUSTOM-1", traceTopic="my_traces")["items"]
    assert row["sources"] == ["trace topic"]
    (field,) = re.findall(
        '<input[^>]*name="trace_topic"[^>]*>', console.page(f"/trace/{message_id}", traceTopic="my_traces")
    )
    assert 'value="my_traces"' in field, "a repeated search reads the same topic"


def test_an_unknown_message_and_trace_topic_are_said_so(console: Console) -> None:
    view = console.get(f"/trace/{UNKNOWN_ID}", traceTopic="missing")
    assert view["steps"] == []
    assert view["sources"][0]["warnings"] == ["trace topic missing does not exist"]
    assert "trace topic missing does not exist" in console.page(f"/trace/{UNKNOWN_ID}", traceTopic="missing")
    assert console.client.get(f"/trace/{UNKNOWN_ID}", params={"traceTopic": "a/b"}).status_code == 422


def test_the_api_describes_messages_and_traces(console: Console) -> None:
    document = console.client.get("/api/v1/openapi.json").json()
    for path in ("/api/v1/messages", "/api/v1/messages/{message_id}", "/api/v1/trace/{message_id}"):
        assert document["paths"][path]["get"]["description"], path
    fields = document["components"]["schemas"]["TraceStepView"]["properties"]
    assert all(field.get("description") for field in fields.values())


def test_a_directory_without_tables_is_a_warning(console: Console, tmp_path: Path) -> None:
    settings = ConsoleSettings(namesrv=console.servers.namesrv, data_dir=tmp_path, tables_dir=tmp_path / "tables")
    with TestClient(create_app(open_services(settings)), base_url="http://127.0.0.1") as client:
        view = client.get(f"/api/v1/trace/{console.traffic.retried}").json()
    assert view["sources"][2]["source"] == "pipeline tables"
    assert "no journeys" in view["sources"][2]["warnings"][0]
    assert len(view["steps"]) == 10
