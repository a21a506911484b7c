"""Pages and REST of alerts, on a cluster whose groups are set by the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ariane.console.app import create_app
from ariane.console.areas.alerts.alert_channels import alert_channels
from ariane.console.live.live_snapshot import GroupRow, LiveSnapshot
from ariane.console.services import ConsoleServices, open_services
from ariane.console.settings import ConsoleSettings

XSS = "<script>alert(1)</script>"
RULE = {
    "name": "High lag", "metric": "groupLag", "condition": "above", "threshold": "100", "holdS": "0", "pattern": "*",
    "severity": "critical",
}  # fmt: skip


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    @asynccontextmanager
    async def services() -> AsyncIterator[ConsoleServices]:
        async with open_services(ConsoleSettings(namesrv="127.0.0.1:1", data_dir=tmp_path)) as opened:
            yield opened

    with TestClient(create_app(services()), base_url="http://127.0.0.1", follow_redirects=False) as client:
        yield client


def services_of(client: TestClient) -> ConsoleServices:
    return client.app.state.services  # type: ignore[attr-defined,no-any-return]


def fire(client: TestClient, *groups: str) -> str:
    """Create a rule and let it fire for these groups; return its id."""
    client.post("/api/v1/alerts/rules", json={**RULE, "threshold": 100, "holdS": 0}).raise_for_status()
    rows = tuple(GroupRow(group=group, lag=500) for group in groups)

    async def evaluate() -> None:
        services_of(client).alerts.evaluate(LiveSnapshot(as_of_ms=1_700_000_000_000, base_as_of_ms=1, groups=rows))

    asyncio.run(evaluate())
    return services_of(client).alerts.settings.rules[-1].id


def audit(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]


def test_every_page_renders(client: TestClient) -> None:
    rule_id = fire(client, "billing", XSS)
    client.post("/api/v1/alerts/channels/web-hooks", json={"name": XSS, "url": "http://127.0.0.1:1/secret-path"})
    client.post("/alerts/silences", data={"pattern": XSS, "minutes": "5", "reason": XSS})
    channel_id = services_of(client).alerts.settings.channels[0].id
    for path in (
        "/alerts", "/alerts?q=bill&sort=value&order=desc", "/alerts/history", "/alerts/rules", "/alerts/rules/new",
        f"/alerts/rules/{rule_id}", "/alerts/channels", "/alerts/channels/new?kind=webHook",
        "/alerts/channels/new?kind=email", f"/alerts/channels/{channel_id}",
    ):  # fmt: skip
        for headers in ({}, {"HX-Request": "true"}):
            response = client.get(path, headers=headers)
            assert response.status_code == 200, (path, response.text)
            assert "<script>alert" not in response.text, path
            assert "secret-path" not in response.text, path
            assert ("<html" in response.text) is not bool(headers), path


def test_firing_alerts_and_silences(client: TestClient) -> None:
    rule_id = fire(client, "billing", "orders")
    view = client.get("/api/v1/alerts", params={"q": "bill"}).json()
    assert [row["subject"] for row in view["alerts"]["items"]] == ["billing"]
    assert view["alerts"]["items"][0] | {"sinceMs": 0, "firedMs": 0, "ruleId": ""} == {
        "ruleId": "", "rule": "High lag", "severity": "critical", "subject": "billing", "subjectKind": "group",
        "condition": "Lag of a consumer group above 100 messages", "value": 500, "unit": "messages", "sinceMs": 0,
        "firedMs": 0, "isSilent": False,
    }  # fmt: skip
    form = {"ruleId": rule_id, "pattern": "bill*", "minutes": "60", "reason": "maintenance"}
    assert client.post("/alerts/silences", data=form, headers={"HX-Request": "true"}).status_code == 200
    view = client.get("/api/v1/alerts").json()
    assert {row["subject"]: row["isSilent"] for row in view["alerts"]["items"]} == {"billing": True, "orders": False}
    assert [(row["pattern"], row["createdBy"]) for row in view["silences"]] == [("bill*", "local")]
    client.post(f"/alerts/silences/{view['silences'][0]['id']}/end")
    assert client.get("/api/v1/alerts").json()["silences"] == []
    client.post("/alerts/close", data={"ruleId": rule_id, "subject": "billing"})
    assert [row["subject"] for row in client.get("/api/v1/alerts").json()["alerts"]["items"]] == ["orders"]
    history = client.get("/api/v1/alerts/history").json()["history"]["items"]
    assert next((row["subject"], row["isFiring"], row["reason"]) for row in history) == (
        "billing",
        False,
        "it was closed",
    )


def test_rules_are_created_changed_and_deleted(client: TestClient, tmp_path: Path) -> None:
    response = client.post(
        "/alerts/rules", data={**RULE, "isEnabled": "true", "exclude": ""}, headers={"HX-Request": "true"}
    )
    assert (response.status_code, response.headers["hx-redirect"]) == (204, "/alerts/rules")
    rule_id = services_of(client).alerts.settings.rules[-1].id
    client.post(
        f"/alerts/rules/{rule_id}", data={**RULE, "name": "Higher lag", "threshold": "2.5", "isEnabled": "false"}
    )
    row = client.get("/api/v1/alerts/rules").json()["rules"][-1]
    assert (row["name"], row["threshold"], row["isEnabled"]) == ("Higher lag", 2.5, False)
    assert client.post(f"/alerts/rules/{rule_id}/delete", data={"confirm": "x"}).status_code == 422
    assert client.delete(f"/api/v1/alerts/rules/{rule_id}", params={"confirm": "Higher lag"}).status_code == 200
    assert client.get(f"/alerts/rules/{rule_id}").status_code == 404
    entries = audit(tmp_path)
    assert [(entry["outcome"], entry.get("target", "")) for entry in entries] == [
        ("done", ""), ("done", rule_id), ("failed", rule_id), ("done", rule_id),
    ]  # fmt: skip
    assert entries[1]["detail"] == "changed alert rule Higher lag"
    assert "nothing was deleted" in entries[2]["detail"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "broker"}, "expected one of unknown"),
        ({"threshold": "nan"}, "at least 0"),
        ({"severity": "fatal"}, "severity"),
        ({"extra": "1"}, "extra"),
    ],
)
def test_invalid_rules_are_refused(client: TestClient, changes: dict[str, str], message: str) -> None:
    response = client.post("/alerts/rules", data={**RULE, **changes}, headers={"HX-Request": "true"})
    assert response.status_code == 422
    assert message in response.text


def test_secrets_of_channels_are_kept_and_never_returned(client: TestClient, tmp_path: Path) -> None:
    hook = {"name": "Chat", "url": "http://127.0.0.1:1/secret-path", "authorization": "Bearer secret-token"}
    client.post("/alerts/channels/web-hooks", data=hook)
    channel_id = services_of(client).alerts.settings.channels[0].id
    client.post(f"/alerts/channels/web-hooks/{channel_id}", data={"name": "Chat 2", "url": "", "authorization": ""})
    target: Any = services_of(client).alerts.settings.channels[0].target
    assert (target.url, target.authorization) == (hook["url"], hook["authorization"])
    client.post(f"/alerts/channels/web-hooks/{channel_id}", data={"name": "Chat 2", "url": "http://other.example/"})
    target = services_of(client).alerts.settings.channels[0].target
    assert target.authorization == "", "a stored secret is not sent to another address"

    email = {
        "name": "On call", "recipients": "a@example.com, b@example.com", "sender": "c@example.com",
        "host": "mail.example.com", "user": "u", "password": "secret-password",
    }  # fmt: skip
    client.post("/alerts/channels/email", data=email)
    mail_id = services_of(client).alerts.settings.channels[1].id
    client.post(f"/alerts/channels/email/{mail_id}", data={**email, "password": "", "port": "465"})
    target = services_of(client).alerts.settings.channels[1].target
    assert (target.password, target.port, target.recipients) == (
        "secret-password",
        465,
        ("a@example.com", "b@example.com"),
    )
    client.post(f"/alerts/channels/email/{mail_id}", data={**email, "password": "", "host": "evil.example"})
    assert services_of(client).alerts.settings.channels[1].target.password == ""  # type: ignore[union-attr]
    shown = client.get("/api/v1/alerts/channels").text + client.get(f"/alerts/channels/{mail_id}").text
    assert "secret" not in shown
    assert "secret" not in json.dumps(audit(tmp_path))
    assert client.post(f"/alerts/channels/web-hooks/{mail_id}", data=hook).status_code == 422


def test_mail_servers_and_errors_are_shown_to_admins_only(client: TestClient) -> None:
    email = {
        "name": "On call",
        "recipients": "a@b.c",
        "sender": "c@b.c",
        "host": "mail.example",
        "user": "u",
        "password": "p",
    }
    client.post("/alerts/channels/email", data=email)
    (shown,) = alert_channels(services_of(client), is_admin=True).channels
    (hidden,) = alert_channels(services_of(client), is_admin=False).channels
    assert (shown.host, shown.user, hidden.host, hidden.user) == ("mail.example", "u", "", "")
    assert (hidden.name, hidden.address) == (shown.name, shown.address)


def test_a_test_notification_that_fails_names_the_reason(client: TestClient) -> None:
    client.post("/api/v1/alerts/channels/web-hooks", json={"name": "Chat", "url": "http://127.0.0.1:1/secret-path"})
    channel_id = services_of(client).alerts.settings.channels[0].id
    response = client.post(f"/alerts/channels/{channel_id}/test", headers={"HX-Request": "true"})
    assert response.status_code == 502
    assert "http://127.0.0.1:1/…" in response.text
    assert "secret" not in response.text
