"""Dead letters through the REST API, with a real broker: list, comparison with the original, resend, export."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from fastapi.testclient import TestClient

from ariane import Admin, Message, Producer
from ariane.console.app import create_app
from ariane.console.services import open_services
from ariane.console.settings import ConsoleSettings
from ariane.model import ids
from ariane.model.topic import SubscriptionGroupConfig
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.messaging import ConsumerSendMsgBack
from ariane.testing import LocalCluster

GROUP = "billing"
FORMULA = '=HYPERLINK("http://example.com","x")'


class Letters(NamedTuple):
    """A console, and the unique keys of its dead letters in the order of their deaths."""

    servers: LocalCluster
    client: TestClient
    message_ids: list[str]

    def get(self, path: str, status: int = 200, **query: Any) -> Any:
        response = self.client.get(f"/api/v1/dead-letters{path}", params=query)
        assert response.status_code == status, response.text
        return response.json()

    def resend(self, status: int = 200, **form: Any) -> Any:
        response = self.client.post(f"/api/v1/dead-letters/{GROUP}/resend", json=form)
        assert response.status_code == status, response.text
        return response.json()


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Letters]:
    home = tmp_path_factory.mktemp("letters")
    with LocalCluster(home / "broker") as servers:
        message_ids = asyncio.run(make_letters(servers))
        app = create_app(open_services(ConsoleSettings(namesrv=servers.namesrv, data_dir=home / "console")))
        with TestClient(app, base_url="http://127.0.0.1") as client:
            yield Letters(servers, client, message_ids)


async def make_letters(servers: LocalCluster) -> list[str]:
    """Send messages and let the broker make dead letters of them, as a consumer without remaining attempts would."""
    messages = [
        Message(topic="orders", body=b"first", keys=("ORDER-1",), tags="new", properties={"color": "red"}),
        Message(topic="orders", body=FORMULA.encode(), keys=(FORMULA,), tags="new"),
        Message(topic="orders", body=b"\x00\xff", keys=("ORDER-3",)),
    ]
    async with Admin(servers.namesrv) as admin, ConnectionPool() as peers:
        await admin.create_topic("orders", queues=1)
        async with Producer(servers.namesrv, "shop") as producer:
            results = [await producer.send(message) for message in messages]
        for result in results:
            _, offset = ids.parse_offset_message_id(result.offset_message_id)
            header = ConsumerSendMsgBack(offset, GROUP, -1, result.message_id, "orders")
            await peers.request_ok(servers.broker.addr, RequestCode.CONSUMER_SEND_MSG_BACK, header)
    return [result.message_id for result in results]


async def create_group(servers: LocalCluster, group: str) -> None:
    async with Admin(servers.namesrv) as admin:
        await admin.save_group(SubscriptionGroupConfig(group_name=group))


def test_dead_letters_are_listed_newest_first(letters: Letters) -> None:
    view = letters.get(f"/{GROUP}")
    assert [row["messageId"] for row in view["items"]] == letters.message_ids[::-1]
    assert (view["matching"], view["progress"]["nextUntil"], view["unavailable"]) == (3, "", [])
    last, _, first = view["items"]
    assert (first["originalTopic"], first["keys"], first["tag"], first["preview"]) == (
        "orders",
        ["ORDER-1"],
        "new",
        "first",
    )
    assert last["preview"] is None, "two bytes that are no text"


def test_pages_and_filters_select_dead_letters(letters: Letters) -> None:
    listed: list[str] = []
    before: str | None = ""
    while before is not None:
        # A page ends between two instants: letters of the same ms, here at most three, are on the same page.
        view = letters.get(f"/{GROUP}", size=2, before=before)
        listed += [row["messageId"] for row in view["items"]]
        before = view["progress"]["nextUntil"] or None
    assert listed == letters.message_ids[::-1]
    for query, expected in (
        ({"key": "ORDER-3"}, [2]),
        ({"key": letters.message_ids[0]}, [0]),
        ({"key": letters.message_ids[0].lower()}, [0]),
        ({"key": "ORDER-3", "tag": "new"}, []),
        ({"tag": "new"}, [1, 0]),
        ({"text": "first"}, [0]),
        ({"until": "1h"}, []),
    ):
        rows = letters.get(f"/{GROUP}", **query)["items"]
        assert [row["messageId"] for row in rows] == [letters.message_ids[number] for number in expected], query
    assert "earlier time" in letters.get(f"/{GROUP}", 422, since="1h", until="2h")["error"]


def test_a_group_without_dead_letters_has_an_empty_list_and_an_unknown_one_is_an_error(letters: Letters) -> None:
    asyncio.run(create_group(letters.servers, "healthy"))
    assert letters.get("/healthy")["items"] == []
    assert "no consumer group nobody" in letters.get("/nobody", 404)["error"]
    assert "characters" in letters.get("/a.b", 422)["error"], "a group is part of a file name"


def test_a_dead_letter_is_compared_with_its_original(letters: Letters) -> None:
    view = letters.get(f"/{GROUP}/{letters.message_ids[0]}")
    assert (view["dead"]["topic"], view["original"]["topic"], view["sameBody"]) == (f"%DLQ%{GROUP}", "orders", True)
    assert view["dead"]["body"] == "first" and view["ageMs"] >= 0
    states = {row["name"]: row["state"] for row in view["properties"]}
    assert states["color"] == "same" and states["ORIGIN_MESSAGE_ID"] == "added"
    by_offset_id = letters.get(f"/{GROUP}/{view['dead']['offsetMessageId']}")
    assert by_offset_id["messageId"] == letters.message_ids[0]
    assert letters.get(f"/{GROUP}/{view['original']['offsetMessageId']}", 404)


def test_resending_plans_sends_once_and_repeats_on_request(letters: Letters) -> None:
    first, second, _ = letters.message_ids
    plan = letters.resend(ids=[first, second], isDryRun=True)
    assert [(row["state"], row["topic"]) for row in plan["rows"]] == [("planned", "orders")] * 2
    assert letters.get(f"/{GROUP}/{first}")["resent"] is None

    # Both names of a dead letter in one request name it once.
    sent = letters.resend(ids=[first, letters.get(f"/{GROUP}/{first}")["dead"]["offsetMessageId"]])
    (row,) = sent["rows"]
    assert (row["state"], row["topic"], sent["notice"]) == ("sent", "orders", "1 sent")
    assert letters.get(f"/{GROUP}/{first}")["resent"]["messageId"] == row["newMessageId"]

    # The second click sends what the first one did not.
    again = letters.resend(ids=[first, second])
    assert [row["state"] for row in again["rows"]] == ["skipped", "sent"]
    assert [row["state"] for row in letters.resend(ids=[first, second], isDryRun=True)["rows"]] == ["skipped"] * 2
    (repeated,) = letters.resend(ids=[first], isRepeated=True)["rows"]
    assert repeated["state"] == "sent" and repeated["newMessageId"] != row["newMessageId"]


def test_all_matching_dead_letters_are_resent_to_another_topic(letters: Letters) -> None:
    view = letters.resend(isMatching=True, tag="new", topic="orders", isRepeated=True, isDryRun=True)
    assert [row["messageId"] for row in view["rows"]] == letters.message_ids[:2]
    assert "nowhere" in letters.resend(404, isMatching=True, topic="nowhere")["error"]
    assert "no dead letter is selected" in letters.resend(422)["error"]
    assert letters.resend(404, ids=["0" * 32])["error"]
    assert letters.resend(404, isMatching=True, key="no such key")["error"]


def test_exports_have_every_dead_letter_and_no_formula(letters: Letters) -> None:
    response = letters.client.get(f"/api/v1/dead-letters/{GROUP}/export.csv")
    assert response.headers["content-disposition"].startswith('attachment; filename="dead-letters-billing.csv"')
    rows = list(csv.DictReader(io.StringIO(response.text)))
    assert [row["messageId"] for row in rows] == letters.message_ids
    assert (rows[1]["keys"], rows[1]["bodyText"]) == (f"'{FORMULA}", f"'{FORMULA}")
    assert rows[2]["bodyBase64"] == "AP8="
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for row in rows for cell in row.values())

    records = letters.client.get(f"/api/v1/dead-letters/{GROUP}/export.json", params={"tag": "new"}).json()
    assert [record["bodyText"] for record in records] == ["first", FORMULA]
    assert records[0]["properties"]["color"] == "red"
