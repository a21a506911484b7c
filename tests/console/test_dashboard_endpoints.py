"""Endpoints of Apache's dashboard: forms of errors, access, pages, files and charts, without a cluster."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from excel_cells import read_sheet
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from ariane.cli.servers import console_command
from ariane.console.app import create_app
from ariane.console.areas.dead_letters.dead_letter_resend import IDS_MAX
from ariane.console.dashboard.dashboard_groups import _row_shape
from ariane.console.dashboard.dashboard_routers import ROUTERS
from ariane.console.dashboard.formats.spreadsheet import CELL_MAX, spreadsheet
from ariane.console.dashboard.message_pages import shares
from ariane.console.live.live_snapshot import GroupRow
from ariane.console.security.roles import ConsoleRole
from ariane.console.services import open_services
from ariane.console.settings import ConsoleSettings

PASSWORD = "correct-horse-battery"
FROM_PAGE = {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "same-origin"}
FROM_ELSEWHERE = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}


@contextmanager
def console(data_dir: Path, *accounts: tuple[str, ConsoleRole]) -> Iterator[TestClient]:
    # Port 1 refuses connections at once.
    app = create_app(open_services(ConsoleSettings(namesrv="127.0.0.1:1", data_dir=data_dir)), extensions=ROUTERS)
    with TestClient(app, base_url="http://127.0.0.1", follow_redirects=False) as client:
        for name, role in accounts:
            app.state.services.accounts.add(name, role, PASSWORD)
        yield client


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with console(tmp_path, ("admin", ConsoleRole.ADMIN), ("reader", ConsoleRole.VIEWER)) as client:
        yield client


def test_errors_have_the_form_of_the_dashboard_and_status_200(tmp_path: Path) -> None:
    with console(tmp_path) as client:
        missing = client.get("/cluster/brokerConfig.query")
        malformed = client.post("/consumer/resetOffset.do", json={"topic": "T"})
        no_json = client.post("/topic/createOrUpdate.do", content=b"{", headers={"Content-Type": "application/json"})
        unreachable = client.get("/topic/route.query", params={"topic": "T"})
    texts = []
    for response in (missing, malformed, no_json, unreachable):
        assert response.status_code == 200
        answer = response.json()
        assert (answer["status"], answer["data"]) == (-1, None)
        texts.append(answer["errMsg"])
    assert "brokerAddr" in texts[0]
    assert "consumerGroupList" in texts[1]
    assert "127.0.0.1:1" in texts[3]


def test_a_console_without_the_extension_has_none_of_the_endpoints(tmp_path: Path) -> None:
    app = create_app(open_services(ConsoleSettings(namesrv="127.0.0.1:1", data_dir=tmp_path)))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert client.get("/topic/list.query").status_code == 404
        assert client.get("/topics").status_code == 200


def test_the_command_adds_the_endpoints(tmp_path: Path) -> None:
    settings = ConsoleSettings(namesrv="127.0.0.1:1", data_dir=tmp_path, port=0)

    async def run() -> None:
        async with console_command._serving(settings) as server, httpx.AsyncClient(base_url=server.url) as client:
            address = await client.get("/rocketmq/nsaddr")
            topics = await client.get("/topic/list.query")
        assert (address.status_code, address.text) == (200, "127.0.0.1:1")
        assert (topics.status_code, set(topics.json())) == (200, {"status", "data", "errMsg"})

    asyncio.run(run())


def test_failed_changes_are_audited_as_failed_although_their_answers_have_status_200(tmp_path: Path) -> None:
    letter = {"consumerGroup": "g", "msgId": "M1"}
    with console(tmp_path) as client:
        client.post("/topic/deleteTopic.do", data={"topic": "T"})
        client.post("/consumer/resetOffset.do", json={"consumerGroupList": ["g"], "topic": "T", "resetTime": -1})
        client.post("/dlqMessage/batchResendDlqMessage.do", json=[letter])
        client.post("/topic/createOrUpdate.do", json={})
        client.post("/ops/updateUseTLS.do", data={"useTLS": "false"})
    entries = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(entry["outcome"], entry["status"]) for entry in entries] == [("failed", 200)] * 4 + [("done", 200)]
    texts = [entry.get("detail", "") for entry in entries]
    assert "127.0.0.1:1" in texts[0]
    assert texts[1].startswith("g: ")
    assert texts[2].startswith("M1: ")
    assert "topicName" in texts[3]
    assert texts[4] == ""


def test_texts_that_cannot_be_encoded_are_refused(tmp_path: Path) -> None:
    bodies = {
        "/consumer/resetOffset.do": '{"consumerGroupList": ["\\ud800"], "topic": "T", "resetTime": -1}',
        "/topic/sendTopicMessage.do": '{"topic": "T", "messageBody": "\\ud800", "key": "", "tag": ""}',
        "/dlqMessage/batchResendDlqMessage.do": '[{"consumerGroup": "g", "msgId": "\\udfff"}]',
    }
    with console(tmp_path) as client:
        for path, body in bodies.items():
            answer = client.post(path, content=body, headers={"Content-Type": "application/json"}).json()
            assert "surrogates" in answer["errMsg"], path


def test_batches_of_dead_letters_are_bounded(tmp_path: Path) -> None:
    letters = [{"consumerGroup": "g", "msgId": str(number)} for number in range(IDS_MAX + 1)]
    with console(tmp_path) as client:
        for path in ("/dlqMessage/batchResendDlqMessage.do", "/dlqMessage/batchExportDlqMessage.do"):
            assert str(IDS_MAX) in client.post(path, json=letters).json()["errMsg"]
        results = client.post("/dlqMessage/batchResendDlqMessage.do", json=letters[:20]).json()["data"]
    assert [result["msgId"] for result in results] == [str(number) for number in range(20)], (
        "in the order of the request"
    )


def test_an_unknown_cluster_is_no_empty_cluster(tmp_path: Path) -> None:
    paths = ("/consumer/groupList.query", "/ops/rocketMqStatus.query", "/dashboard/broker.query?date=2026-11-22")
    with console(tmp_path) as client:
        for path in paths:
            answer = client.get(path).json()
            assert (answer["status"], answer["data"]) == (-1, None), path
            assert "unknown" in answer["errMsg"]


def test_a_parameter_may_be_in_the_query_string_or_in_the_form(tmp_path: Path) -> None:
    with console(tmp_path) as client:
        in_query = client.post("/ops/updateUseTLS.do", params={"useTLS": "false"})
        in_form = client.post("/ops/updateUseTLS.do", data={"useTLS": "false"})
        wrong = client.post("/ops/updateUseTLS.do", data={"useTLS": "perhaps"})
    assert in_query.json() == in_form.json() == {"status": 0, "data": True, "errMsg": None}
    assert "perhaps" in wrong.json()["errMsg"]


def test_scripts_use_basic_authentication_without_a_token(client: TestClient) -> None:
    admin, reader = ("admin", PASSWORD), ("reader", PASSWORD)
    form = {"useVIPChannel": "false"}
    assert client.post("/ops/updateIsVIPChannel.do", data=form).status_code == 401
    assert client.post("/ops/updateIsVIPChannel.do", data=form, auth=reader).status_code == 403
    assert client.post("/ops/updateIsVIPChannel.do", data=form, auth=admin).json()["data"] is True
    assert client.get("/ops/homePage.query", auth=reader).json()["data"]["namesvrAddrList"] == ["127.0.0.1:1"]


def test_refusals_have_the_form_of_the_dashboard(client: TestClient) -> None:
    for path in ("/topic/list.query", "/consumer/group.refresh", "/rocketmq/nsaddr"):
        response = client.get(path)
        assert (response.status_code, response.json()["status"]) == (401, -1), path
        assert "Log in" in response.json()["errMsg"]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_session_of_the_dashboards_login_needs_its_origin_and_no_token(client: TestClient, as_json: bool) -> None:
    fields = {"username": "admin", "password": PASSWORD}
    login = client.post("/login/login.do", **({"json": fields} if as_json else {"data": fields}))
    assert login.json()["data"] == {"loginUserName": "admin", "loginUserRole": 1, "contextPath": "/"}
    refused, changed = (
        client.post("/ops/updateUseTLS.do", data={"useTLS": "false"}, headers=headers) for headers in ({}, FROM_PAGE)
    )
    assert (refused.status_code, "Origin" in refused.json()["errMsg"]) == (403, True)
    assert changed.json()["data"] is True
    assert client.post("/login/logout.do").json()["data"] == "/"
    assert client.post("/ops/updateUseTLS.do", data={"useTLS": "false"}).status_code == 401


def test_a_page_elsewhere_cannot_use_the_session(client: TestClient) -> None:
    client.post("/login/login.do", data={"username": "admin", "password": PASSWORD})
    for path in ("/topic/deleteTopic.do", "/test/runTask.do"):
        response = client.request(
            "GET" if path.startswith("/test") else "POST", path, params={"topic": "T"}, headers=FROM_ELSEWHERE
        )
        assert response.status_code == 403
        assert "Another web page" in response.json()["errMsg"]


def test_a_wrong_password_is_refused_and_limited(client: TestClient, tmp_path: Path) -> None:
    fields = {"username": "admin", "password": "wrong"}
    answers = [client.post("/login/login.do", data=fields).json() for _ in range(7)]
    assert {answer["status"] for answer in answers} == {-1}
    assert answers[0]["errMsg"] != answers[-1]["errMsg"]  # the last one says how long to wait
    entries = [json.loads(line) for line in (tmp_path / "audit_refused.jsonl").read_text().splitlines()]
    assert [entry["path"] for entry in entries] == ["/login/login.do"] * 7


def test_what_4_9_4_does_not_have_is_an_error_with_a_reason(tmp_path: Path) -> None:
    with console(tmp_path) as client:
        answers = [
            client.get("/acl/users.query").json(),
            client.delete("/acl/deleteUser.do", params={"username": "u"}).json(),
            client.post("/proxy/addProxyAddr.do", data={"newProxyAddr": "h:1"}).json(),
            client.get("/test/runTask.do").json(),
            client.post("/ops/updateNameSvrAddr.do", data={"nameSvrAddrList": "other:9876"}).json(),
        ]
    assert [answer["status"] for answer in answers] == [-1] * 5
    assert "/access/acl/users" in answers[0]["errMsg"]
    assert "ariane up --demo" in answers[3]["errMsg"]
    assert "ariane console -n other:9876" in answers[4]["errMsg"]


def test_the_rate_of_a_group_is_that_of_all_servers_with_decimals_or_unknown() -> None:
    row = GroupRow(
        group="g", tps=12.3456, lag=7, clients=2, consume_type="push", model="clustering", versions=("V4_9_4",)
    )
    shape = _row_shape(row, ["h:1"], 0)
    assert (shape["consumeTps"], shape["diffTotal"], shape["consumeType"]) == (12.35, 7, "CONSUME_PASSIVELY")
    assert shape["updateTime"] == "1970-01-01T00:00:00.000+00:00"
    partial = _row_shape(GroupRow(group="g", tps=1.0, tps_is_partial=True, lag=7, lag_is_partial=True), [], 0)
    assert (partial["consumeTps"], partial["diffTotal"], partial["count"]) == (None, -1, None)


@given(sizes=st.lists(st.integers(0, 40), max_size=6), page=st.integers(1, 15))
def test_pages_contain_each_message_once(sizes: list[int], page: int) -> None:
    edges = [shares(sizes, count) for count in range(0, sum(sizes) + page, page)]
    for count, taken in zip(range(0, sum(sizes) + page, page), edges, strict=True):
        assert sum(taken) == min(count, sum(sizes))
        assert all(part <= size for part, size in zip(taken, sizes, strict=True))
        # No queue is more than a round ahead of one that has messages left.
        left = [part for part, size in zip(taken, sizes, strict=True) if part < size]
        assert not left or max(taken) <= min(left) + 1
    for before, after in itertools.pairwise(edges):
        assert all(one <= other for one, other in zip(before, after, strict=True))


def test_cells_of_a_file_are_texts_and_never_formulas() -> None:
    rows = [("=1+1", "<&>\"'", 17, None, "x\0y\ud800"), ("订单", "z" * (CELL_MAX + 5), -3, "", "a\nb")]
    sheet = read_sheet(spreadsheet("a<b", ("A", "B", "C", "D", "E"), rows))  # type: ignore[arg-type]
    assert sheet["sheet"] == "a<b"
    header, first, second = sheet["rows"]  # type: ignore[misc]
    assert header == ["A", "B", "C", "D", "E"]
    assert first == ["=1+1", "<&>\"'", "17", "", "x�y�"]
    assert second[:1] + second[2:] == ["订单", "-3", "", "a\nb"]
    assert len(second[1]) == CELL_MAX
    assert second[1].endswith("(32,772 characters, the rest is omitted)")
