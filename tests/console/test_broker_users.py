"""Users and policies of the brokers (ACL 2.0): pages and REST with a real broker, and users that differ between servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ariane.client.instance.settings import ClientSettings
from ariane.cluster.connection import BrokerServer
from ariane.console.app import create_app
from ariane.console.areas.access.broker_users import UserState, user_rows
from ariane.console.services import open_services
from ariane.console.settings import ConsoleSettings
from ariane.protocol.requests.users import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from ariane.protocol.signing import Credentials
from ariane.testing import LocalCluster

BASE = "http://127.0.0.1:8080"
HTMX = {"HX-Request": "true"}
PASSWORD = " planted-password "
USERS, POLICIES = "/access/acl/users", "/access/acl/policies"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, TestClient, Path]]:
    """Yield a cluster with users and a console that signs as the Super user root."""
    data = tmp_path_factory.mktemp("users")
    with LocalCluster(
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user='{"username":"root","password":"root-secret"}',
    ) as servers:
        client = ClientSettings(credentials=Credentials("root", "root-secret"))
        app = create_app(
            open_services(ConsoleSettings(namesrv=servers.namesrv, data_dir=data / "console", client=client))
        )
        with TestClient(app, base_url=BASE, follow_redirects=False) as browser:
            yield servers, browser, data / "console"


@pytest.fixture
def client(site: tuple[LocalCluster, TestClient, Path]) -> TestClient:
    return site[1]


def users(client: TestClient) -> dict[str, dict[str, Any]]:
    view = client.get(f"/api/v1{USERS}").json()
    assert view["unavailable"] == []
    return {row["username"]: row for row in view["users"]["items"]}


def submit(client: TestClient, path: str, **fields: Any) -> Any:
    return client.post(path, data=fields, headers=HTMX)


def test_users_and_policies(site: tuple[LocalCluster, TestClient, Path]) -> None:
    servers, client, data = site
    (server,) = client.get(f"/api/v1{USERS}").json()["servers"]
    assert (server["isEnabled"], server["isAuthorizing"], server["users"]) == (True, True, 1)

    form = {"username": "alice", "password": PASSWORD, "userType": "Normal", "userStatus": "enable"}
    dry = submit(client, USERS, **form, isDryRun="true")
    assert (dry.status_code, "would save user alice" in dry.text) == (200, True)
    assert set(users(client)) == {"root"}
    assert submit(client, USERS, **form).headers["hx-redirect"] == "/access/acl/user?name=alice"
    (hosted,) = servers._servers.masters
    access = hosted.running.services.access  # type: ignore[union-attr]
    assert access is not None and access.state.users["alice"].password == PASSWORD

    policy = {"username": "alice", "resource": "topic:ord*", "actions": ["pub", "Sub"], "addresses": "10.0.0.0/8\n127.0.0.1",
              "decision": "Allow", "policyType": "Custom"}  # fmt: skip
    assert "would save the policy" in submit(client, POLICIES, **policy, isDryRun="true").text
    assert submit(client, POLICIES, **policy).headers["hx-redirect"] == "/access/acl/user?name=alice"
    default = {"username": "alice", "resource": "*", "actions": ["Get"], "decision": "Deny", "policyType": "Default"}
    assert client.put(f"/api/v1{POLICIES}", json=default).status_code == 200
    alice = users(client)["alice"]
    assert (alice["userType"], alice["userStatus"], alice["missing"], alice["isDifferent"]) == (
        "Normal", "enable", [], False
    )  # fmt: skip
    assert [tuple(row.values()) for row in alice["policies"]] == [
        ("Custom", "Topic:ord*", ["Pub", "Sub"], ["10.0.0.0/8", "127.0.0.1"], "Allow"),
        ("Default", "*", ["Get"], [], "Deny"),
    ]

    # A setting that the form leaves empty stays.
    changed = client.put(f"/api/v1{USERS}", json={"username": "alice", "userStatus": "disable"})
    assert changed.json()["changes"] == [f"save user alice on {servers.broker.addr}"]
    alice = users(client)["alice"]
    assert (alice["userType"], alice["userStatus"], len(alice["policies"])) == ("Normal", "disable", 2)
    assert access.state.users["alice"].password == PASSWORD

    entry = "/access/acl/policy?name=alice"
    for path in (USERS, "/access/acl/user", "/access/acl/user?name=alice", entry, f"{entry}&type=Default&resource=*"):
        page = client.get(path)
        assert page.status_code == 200, page.text
        assert PASSWORD.strip() not in page.text and "root-secret" not in page.text
    for path in ("/access/acl/user?name=nobody", f"{entry}&resource=Topic:x", f"{entry}&type=Custom&resource=*"):
        assert client.get(path).status_code == 404, path

    deletion = {"username": "alice", "resource": "*", "policyType": "Default"}
    assert submit(client, f"{POLICIES}/delete", **deletion, confirm="alice").status_code == 422
    assert submit(client, f"{POLICIES}/delete", **deletion, confirm="*").status_code == 204
    assert submit(client, f"{POLICIES}/delete", **deletion, confirm="*").status_code == 404
    assert [row["resource"] for row in users(client)["alice"]["policies"]] == ["Topic:ord*"]
    assert submit(client, f"{USERS}/delete", username="alice", confirm="root").status_code == 422
    assert client.delete(f"/api/v1{USERS}", params={"username": "nobody", "confirm": "nobody"}).status_code == 404
    assert submit(client, f"{USERS}/delete", username="alice", confirm="alice").status_code == 204
    assert set(users(client)) == {"root"}
    entries = (data / "audit.jsonl").read_text()
    assert PASSWORD.strip() not in entries
    assert [json.loads(line)["outcome"] for line in entries.splitlines()] == (
        ["dry run", "done", "dry run", "done", "done", "done", "failed", "done", "failed", "failed", "failed", "done"]
    )


@pytest.mark.parametrize(
    ("path", "changes", "message"),
    [
        (USERS, {"password": ""}, "expected its password"),
        (USERS, {"password": "********3fa"}, "expected the password itself"),
        (USERS, {"username": "a b"}, "without space"),
        (USERS, {"userType": "Root"}, "expected Super, Normal"),
        (USERS, {"userStatus": "off"}, "expected enable, disable"),
        (POLICIES, {"username": "nobody"}, "has no such user"),
        (POLICIES, {"resource": "Queue:a"}, "expected *, or KIND:NAME"),
        (POLICIES, {"actions": []}, "expected one or more of Pub"),
        (POLICIES, {"actions": ["Write"]}, "expected Pub, Sub"),
        (POLICIES, {"addresses": "10.0.0.*"}, "expected an IP address or a network"),
        (POLICIES, {"decision": "Maybe"}, "expected Allow, Deny"),
        (POLICIES, {"policyType": "Other"}, "expected Custom, Default"),
    ],
)
def test_invalid_values_are_refused_in_a_dry_run_too(
    client: TestClient, path: str, changes: dict[str, Any], message: str
) -> None:
    forms = {
        USERS: {"username": "other", "password": PASSWORD},
        POLICIES: {"username": "root", "resource": "Topic:a", "actions": ["Pub"]},
    }
    for is_dry_run in (True, False):
        response = client.put(f"/api/v1{path}", json={**forms[path], **changes, "isDryRun": is_dry_run})
        assert response.status_code == 422, response.text
        assert message in response.json()["error"]
        assert PASSWORD.strip() not in response.text
    assert set(users(client)) == {"root"} and users(client)["root"]["policies"] == []


def test_brokers_without_users(tmp_path: Path) -> None:
    with LocalCluster() as servers:
        app = create_app(open_services(ConsoleSettings(namesrv=servers.namesrv, data_dir=tmp_path)))
        with TestClient(app, base_url=BASE, follow_redirects=False) as client:
            view = client.get(f"/api/v1{USERS}").json()
            assert [(row["isEnabled"], row["users"]) for row in view["servers"]] == [(False, None)]
            assert "authenticationEnabled=true" in client.get(USERS).text
            response = client.put(f"/api/v1{USERS}", json={"username": "a", "password": "b"})
            assert (response.status_code, "authenticationEnabled" in response.text) == (422, True)


def test_users_that_differ_between_servers() -> None:
    first, second = (BrokerServer("c", "a", number, f"a:{number}") for number in (0, 1))

    def acl(name: str, *actions: str) -> AclInfo:
        return AclInfo(f"User:{name}", (PolicyInfo("Custom", (PolicyEntryInfo("Topic:a", actions, None, "Allow"),)),))

    def user(name: str, kind: str = "Normal") -> UserInfo:
        return UserInfo(name, None, kind, "enable")

    state = UserState(
        {},
        {
            first: [user("same"), user("type"), user("policy"), user("missing")],
            second: [user("same"), user("type", "Super"), user("policy")],
        },
        {
            first: [acl("same", "Pub", "Sub"), acl("policy", "Pub"), acl("gone", "Pub")],
            second: [acl("same", "Sub", "Pub"), acl("policy", "Sub"), acl("gone", "Pub")],
        },
        (),
    )
    rows = {row.username: row for row in user_rows(state)}
    assert {name for name, row in rows.items() if row.is_different} == {"type", "policy"}
    assert {name: row.missing for name, row in rows.items() if row.missing} == {"missing": ["a:1"]}
    assert (rows["gone"].user_type, rows["gone"].user_status, len(rows["gone"].policies)) == (None, None, 1)
