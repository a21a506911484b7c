"""Pages and REST of the audit log and of access: console accounts, sessions, and access control of a real broker."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ariane.client.instance.settings import ClientSettings
from ariane.console.app import create_app
from ariane.console.security.audit_log import AuditEntry
from ariane.console.services import ConsoleServices, open_services
from ariane.console.settings import ConsoleSettings
from ariane.protocol.signing import Credentials
from ariane.testing import LocalCluster

BASE = "http://127.0.0.1:8080"
PASSWORD, NEW_PASSWORD = "correct horse battery", "another long password"
ROOT = {"accessKey": "root-account", "secretKey": "root-secret"}
ACL_FILE = (
    "globalWhiteRemoteAddresses: []\naccounts:\n- {accessKey: root-account, secretKey: root-secret, admin: true}\n"
)
HTMX = {"HX-Request": "true"}

Start = Callable[[], TestClient]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that returns a new browser of one console without a cluster."""
    with ExitStack() as stack:
        app = create_app(open_services(ConsoleSettings(namesrv="127.0.0.1:1", data_dir=tmp_path)))
        first = stack.enter_context(TestClient(app, base_url=BASE, follow_redirects=False))
        browsers = iter([first])
        # Further browsers share the application, which is started once.
        yield lambda: next(browsers, None) or TestClient(app, base_url=BASE, follow_redirects=False)


class Browser:
    """A logged-in browser, which sends the CSRF token of its session."""

    def __init__(self, client: TestClient, name: str, password: str = PASSWORD) -> None:
        self.client = client
        response = client.post("/login", data={"name": name, "password": password})
        assert response.status_code == 303, response.text

    def submit(self, path: str, **fields: str) -> Any:
        services: ConsoleServices = self.client.app.state.services  # type: ignore[attr-defined]
        identity = services.authenticator.from_session(self.client.cookies["ariane-session-8080"], "a")
        assert identity is not None
        return self.client.post(path, data=fields, headers={**HTMX, "X-CSRF-Token": identity.csrf_token})


def audit(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]


# --- accounts and sessions of the console ---


def test_the_first_account_is_an_admin_and_ends_local_access(start: Start, tmp_path: Path) -> None:
    client = start()
    assert "everyone on this machine is an admin" in client.get("/access").text
    form = {"name": "ann", "role": "viewer", "password": PASSWORD}
    response = client.post("/access/users", data=form, headers=HTMX)
    assert (response.status_code, "must be an admin" in response.text) == (422, True)
    assert client.post("/access/users", data={**form, "role": "admin"}, headers=HTMX).status_code == 204
    assert client.get("/access").headers["location"] == "/login?next=%2Faccess"
    Browser(client, "ann")
    assert client.get("/access").status_code == 200
    assert PASSWORD not in json.dumps(audit(tmp_path))


def test_admins_change_accounts_and_revoke_sessions(start: Start, tmp_path: Path) -> None:
    client = start()
    client.post("/api/v1/access/users", json={"name": "ann", "role": "admin", "password": PASSWORD})
    admin = Browser(client, "ann")
    admin.submit("/access/users", name="bob", role="viewer", password=PASSWORD)
    bob = Browser(start(), "bob")
    assert bob.client.get("/access").status_code == 403
    view = admin.client.get("/api/v1/access").json()
    assert [(user["name"], user["role"], user["sessions"]) for user in view["users"]] == [
        ("ann", "admin", 1),
        ("bob", "viewer", 1),
    ]
    (session,) = (row for row in view["sessions"]["items"] if row["account"] == "bob")
    assert admin.submit(f"/access/sessions/{session['id']}/end").status_code == 200
    assert bob.client.get("/account").status_code == 303

    bob = Browser(start(), "bob")
    assert admin.submit("/access/users/bob/role", role="operator").status_code == 204
    assert bob.client.get("/account").status_code == 303, "a new role ends the sessions"
    assert admin.submit("/access/users/bob/password", password="short").status_code == 422
    assert admin.submit("/access/users/bob/password", password=NEW_PASSWORD).status_code == 204
    bob = Browser(start(), "bob", NEW_PASSWORD)
    for path in ("/access", "/access/users/bob", "/account"):
        page = admin.client.get(path).text
        assert "<html" in page and "scrypt" not in page
    assert admin.submit("/access/users/bob/delete", confirm="bo").status_code == 422
    assert admin.submit("/access/users/bob/delete", confirm="bob").status_code == 204
    assert bob.client.get("/account").status_code == 303
    assert admin.submit("/access/users/ann/delete", confirm="ann").status_code == 422
    assert admin.client.get("/access/users/bob").status_code == 404
    log = json.dumps(audit(tmp_path))
    assert "removed console account bob" in log
    assert NEW_PASSWORD not in log and "short" not in log


def test_own_password_and_sessions(start: Start) -> None:
    client = start()
    client.post("/api/v1/access/users", json={"name": "ann", "role": "admin", "password": PASSWORD})
    first, second, third = Browser(client, "ann"), Browser(start(), "ann"), Browser(start(), "ann")
    view = first.client.get("/api/v1/account").json()
    assert [row["isCurrent"] for row in view["sessions"]].count(True) == 1
    assert len(view["sessions"]) == 3
    other = next(row["id"] for row in view["sessions"] if not row["isCurrent"])
    assert first.submit(f"/account/sessions/{other}/end").status_code == 204
    assert [second.client.get("/account").status_code, third.client.get("/account").status_code].count(303) == 1
    assert first.submit("/account/sessions/end-others").status_code == 204
    assert len(first.client.get("/api/v1/account").json()["sessions"]) == 1

    second = Browser(start(), "ann")
    change = {"current": PASSWORD, "password": NEW_PASSWORD, "repeated": NEW_PASSWORD}
    assert first.submit("/account/password", **{**change, "current": "wrong"}).status_code == 403
    assert first.submit("/account/password", **{**change, "repeated": "x"}).status_code == 422
    before = first.client.cookies["ariane-session-8080"]
    assert first.submit("/account/password", **change).status_code == 204
    assert first.client.cookies["ariane-session-8080"] != before
    assert first.client.get("/account").status_code == 200, "continues with a new session"
    assert second.client.get("/account").status_code == 303
    Browser(start(), "ann", NEW_PASSWORD)


def test_local_access_has_no_own_account(start: Start) -> None:
    client = start()
    assert "everyone on this machine" in client.get("/account").text
    assert client.get("/api/v1/account").json()["isAccount"] is False
    form = {"current": PASSWORD, "password": NEW_PASSWORD}
    assert client.post("/account/password", data=form, headers=HTMX).status_code == 422


# --- audit log ---


def test_the_audit_page_searches_pages_and_exports(start: Start) -> None:
    client = start()
    log = client.app.state.services.audit  # type: ignore[attr-defined]
    for number in range(60):
        detail = "=HYPERLINK(1)" if number == 3 else f"created topic t{number} <script>"
        log.record(
            AuditEntry(1_700_000_000_000 + number, "ann", "10.0.0.1", "POST", "/topics", "done", 200, detail=detail)
        )
    page = client.get("/audit").text
    assert "created topic t59 &lt;script&gt;" in page
    assert "created topic t9 " not in page, "is on the second page"
    assert "created topic t9 " in client.get("/audit", params={"page": 2}).text
    view = client.get("/api/v1/audit", params={"q": "T4", "size": 5}).json()
    assert (view["entries"]["total"], [row["timeMs"] % 100 for row in view["entries"]["items"]]) == (
        11,
        [49, 48, 47, 46, 45],
    )
    view = client.get("/api/v1/audit", params={"until": "1700000000010", "since": "1700000000005"}).json()
    assert [row["timeMs"] % 100 for row in view["entries"]["items"]] == [9, 8, 7, 6, 5]
    assert client.get("/audit", params={"since": "yesterday"}).status_code == 422

    response = client.get("/audit/export.csv", params={"q": "hyperlink"})
    assert response.headers["content-disposition"] == 'attachment; filename="audit.csv"'
    head, row = csv.reader(io.StringIO(response.text))
    assert dict(zip(head, row, strict=True)) == {
        "time": "2023-11-14T22:13:20.003+00:00", "account": "ann", "role": "", "address": "10.0.0.1", "method": "POST",
        "path": "/topics", "target": "", "outcome": "done", "status": "200", "detail": "'=HYPERLINK(1)",
    }  # fmt: skip
    lines = client.get("/audit/export.jsonl").text.splitlines()
    assert (len(lines), json.loads(lines[0])["detail"]) == (60, "created topic t59 <script>")


# --- access control of the brokers ---


@pytest.fixture(scope="module")
def acl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, TestClient, Path]]:
    """Yield a cluster with access control and a console that has its admin account."""
    home = tmp_path_factory.mktemp("acl")
    (home / "conf").mkdir()
    (home / "conf" / "plain_acl.yml").write_text(ACL_FILE)
    with LocalCluster(home, acl_enable=True, rocketmq_home=str(home)) as servers:
        settings = ConsoleSettings(
            namesrv=servers.namesrv,
            data_dir=home / "console",
            client=ClientSettings(credentials=Credentials(*ROOT.values())),
        )
        app = create_app(open_services(settings))
        with TestClient(app, base_url=BASE, follow_redirects=False) as client:
            yield servers, client, home / "console"


def broker_accounts(client: TestClient) -> dict[str, dict[str, Any]]:
    view = client.get("/api/v1/access/acl").json()
    assert view["unavailable"] == []
    return {row["accessKey"]: row for row in view["accounts"]["items"]}


def test_accounts_of_brokers(acl: tuple[LocalCluster, TestClient, Path]) -> None:
    _, client, data_dir = acl
    form = {
        "accessKey": "shop-account", "secretKey": "shop-secret", "isAdmin": "false", "defaultTopicPerm": "DENY",
        "topicPerms": "orders = PUB\nbills=pub|sub", "groupPerms": "billing=SUB", "defaultGroupPerm": "SUB",
        "whiteRemoteAddress": "10.0.0.*",
    }  # fmt: skip
    response = client.post("/access/acl/accounts", data={**form, "isDryRun": "true"}, headers=HTMX)
    assert (response.status_code, "would save" in response.text) == (200, True)
    assert "shop-account" not in broker_accounts(client)
    assert client.post("/access/acl/accounts", data=form, headers=HTMX).headers["hx-redirect"] == "/access/acl"
    shop = broker_accounts(client)["shop-account"]
    assert (shop["topicPerms"], shop["groupPerms"]) == (["orders=PUB", "bills=PUB|SUB"], ["billing=SUB"])
    assert (shop["isAdmin"], shop["defaultGroupPerm"], shop["whiteRemoteAddress"]) == (False, "SUB", "10.0.0.*")
    assert (len(shop["servers"]), shop["missing"], shop["isDifferent"]) == (1, [], False)

    form |= {"secretKey": "", "isAdmin": "true", "topicPerms": "orders=SUB"}
    assert client.post("/access/acl/accounts", data=form, headers=HTMX).status_code == 204
    shop = broker_accounts(client)["shop-account"]
    assert (shop["isAdmin"], shop["topicPerms"]) == (True, ["orders=SUB"])
    response = client.post("/access/acl/accounts", data={**form, "topicPerms": ""}, headers=HTMX)
    assert (response.status_code, "orders=DENY" in response.text) == (422, True)

    for path in ("/access/acl", "/access/acl/account?key=shop-account", "/access/acl/account"):
        page = client.get(path)
        assert page.status_code == 200, page.text
        assert "shop-secret" not in page.text and ROOT["secretKey"] not in page.text
    assert client.get("/access/acl/account?key=nobody").status_code == 404

    delete = {"accessKey": "shop-account", "confirm": "shop-account"}
    assert client.post("/access/acl/accounts/delete", data={**delete, "confirm": "x"}, headers=HTMX).status_code == 422
    assert client.post("/access/acl/accounts/delete", data=delete, headers=HTMX).status_code == 204
    assert set(broker_accounts(client)) == {"root-account"}
    entries = audit(data_dir)
    assert [entry["outcome"] for entry in entries] == ["dry run", "done", "done", "failed", "failed", "done"]
    assert "save account shop-account on 127.0.0.1:" in entries[1]["detail"]
    assert "shop-secret" not in json.dumps(entries)

    # The same changes in the audit log of the broker, by the account with which the console signs.
    view = client.get("/api/v1/audit/servers", params={"q": "shop-account", "result": "done"}).json()
    assert (view["unavailable"], view["cut"], view["records"]["total"]) == ([], [], 3)
    newest = view["records"]["items"][0]
    assert (newest["request"], newest["account"], newest["proof"]) == ("DELETE_ACL_CONFIG", "root-account", "signature")
    page = client.get("/audit/servers", params={"result": "done"})
    assert page.status_code == 200 and "account:shop-account" in page.text
    assert client.get("/audit/servers", params={"result": "fine"}).status_code == 422


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"secretKey": ""}, "secret key"),
        ({"topicPerms": "orders"}, "NAME=PERMISSION"),
        ({"topicPerms": "orders=ALL"}, "DENY, PUB, SUB"),
        ({"defaultTopicPerm": "x"}, "DENY, PUB, SUB"),
        ({"accessKey": ""}, "accessKey"),
    ],
)
def test_invalid_accounts_of_brokers(
    acl: tuple[LocalCluster, TestClient, Path], changes: dict[str, str], message: str
) -> None:
    form = {"accessKey": "other-account", "secretKey": "other-secret", **changes}
    response = acl[1].put("/api/v1/access/acl/accounts", json=form)
    assert response.status_code == 422
    assert message in response.json()["error"]
    assert "other-secret" not in response.text


def test_global_addresses(acl: tuple[LocalCluster, TestClient, Path]) -> None:
    client = acl[1]
    for text, addresses in (("10.9.9.*\n10.8.8.8", ["10.9.9.*", "10.8.8.8"]), ("", [])):
        assert client.post("/access/acl/addresses", data={"addresses": text}, headers=HTMX).status_code == 204
        (server,) = client.get("/api/v1/access/acl").json()["servers"]
        assert (server["isEnabled"], server["globalAddresses"]) == (True, addresses)
    assert server["version"] >= 2


def test_a_console_without_the_right_to_read_says_so(
    acl: tuple[LocalCluster, TestClient, Path], tmp_path: Path
) -> None:
    app = create_app(open_services(ConsoleSettings(namesrv=acl[0].namesrv, data_dir=tmp_path)))
    with TestClient(app, base_url=BASE, follow_redirects=False) as client:
        view = client.get("/api/v1/access/acl").json()
        assert (len(view["unavailable"]), view["servers"]) == (1, [])
        form = {"addresses": "*"}
        response = client.put("/api/v1/access/acl/addresses", json=form)
        assert (response.status_code, "did not respond" in response.text) == (422, True)


def test_brokers_without_access_control(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "broker") as servers:
        app = create_app(open_services(ConsoleSettings(namesrv=servers.namesrv, data_dir=tmp_path / "console")))
        with TestClient(app, base_url=BASE, follow_redirects=False) as client:
            (server,) = client.get("/api/v1/access/acl").json()["servers"]
            assert (server["isEnabled"], server["version"]) == (False, None)
            assert "aclEnable=true" in client.get("/access/acl").text
            response = client.put("/api/v1/access/acl/addresses", json={"addresses": "*"})
            assert (response.status_code, "aclEnable" in response.text) == (422, True)
