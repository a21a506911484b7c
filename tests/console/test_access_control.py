"""Log-in, sessions, roles, CSRF, hosts, headers and audit entries of the whole application, without a cluster."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from ariane.console.app import APIS, PAGES, create_app
from ariane.console.dashboard.dashboard_routers import ROUTERS as DASHBOARD
from ariane.console.security.accounts.accounts import ConsoleAccounts
from ariane.console.security.accounts.authentication import check_first_account
from ariane.console.security.permissions import API_PREFIX, is_unsafe, requirement
from ariane.console.security.roles import ConsoleRole
from ariane.console.services import ConsoleServices, open_services
from ariane.console.settings import ConsoleSettings
from ariane.errors import ConfigError
from ariane.testing.clock import FakeClock

PASSWORD = "correct horse battery"
BASE = "http://127.0.0.1:8080"
BROWSER = {"Origin": BASE, "Sec-Fetch-Site": "same-origin"}

Open = Callable[..., TestClient]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def open_client(tmp_path: Path, clock: FakeClock) -> Iterator[Open]:
    """Yield a function that starts a console with these settings and returns a client of it."""
    with ExitStack() as stack:

        def start(base_url: str = BASE, **settings: Any) -> TestClient:
            @asynccontextmanager
            async def services() -> AsyncIterator[ConsoleServices]:
                values = ConsoleSettings(namesrv="127.0.0.1:1", data_dir=tmp_path, **settings)
                async with open_services(values, clock=clock) as opened:
                    yield opened

            app = create_app(services(), extensions=DASHBOARD)
            return stack.enter_context(TestClient(app, base_url=base_url, follow_redirects=False))

        yield start


@pytest.fixture
def accounts(tmp_path: Path) -> ConsoleAccounts:
    """Create an account for each role."""
    accounts = ConsoleAccounts(tmp_path)
    for role in reversed(ConsoleRole):
        accounts.add(f"{role}-1", role, PASSWORD)
    return accounts


def log_in(client: TestClient, name: str = "admin-1", password: str = PASSWORD, next: str = "") -> Any:
    return client.post("/login", data={"name": name, "password": password, "next": next}, headers=BROWSER)


def token_of(client: TestClient) -> str:
    """Return the CSRF token of the client's session."""
    services: ConsoleServices = client.app.state.services  # type: ignore[attr-defined]
    identity = services.authenticator.from_session(client.cookies["ariane-session-8080"], "a")
    assert identity is not None
    return identity.csrf_token


def audit(tmp_path: Path, name: str = "audit.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]


def refusals(tmp_path: Path) -> list[dict[str, Any]]:
    return audit(tmp_path, "audit_refused.jsonl")


# --- local access ---


def test_local_access_needs_no_login(open_client: Open) -> None:
    client = open_client()
    assert client.get("/api/v1/overview").status_code == 200, "the page itself"
    assert client.get("/login").headers["location"] == "/"


@pytest.mark.parametrize("host", ["evil.example:8080", "10.0.0.7:8080", "[x", ""])
def test_another_host_name_is_refused(open_client: Open, host: str) -> None:
    response = open_client().get("/api/v1/overview", headers={"Host": host})
    assert response.status_code == 421
    assert "localhost" in response.json()["error"]


def test_a_proxy_may_send_the_name_of_its_site_if_a_log_in_is_needed(
    open_client: Open, accounts: ConsoleAccounts
) -> None:
    """Bound to loopback behind nginx: the Host header is the site's, which changes compare with the Origin."""
    client = open_client(base_url="http://console.example.com")
    forwarded = {"X-Forwarded-For": "10.0.0.7"}
    assert client.get("/", headers=forwarded).headers["location"].startswith("/login")
    form = {"name": "admin-1", "password": PASSWORD}
    own = forwarded | {"Origin": "http://console.example.com", "Sec-Fetch-Site": "same-origin"}
    assert client.post("/login", data=form, headers=own).status_code == 303
    assert client.get("/login", headers=forwarded).headers["location"] == "/", "already logged in"


def test_a_proxy_ends_local_access(open_client: Open) -> None:
    response = open_client().get("/api/v1/overview", headers={"X-Forwarded-For": "10.0.0.1"})
    assert response.status_code == 401


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}]
)
def test_other_pages_cannot_use_local_access(open_client: Open, headers: dict[str, str], tmp_path: Path) -> None:
    response = open_client().post("/api/v1/topics", headers=headers)
    assert response.status_code == 403
    assert refusals(tmp_path)[-1]["outcome"] == "refused"


def test_pages_need_the_token_with_local_access_and_scripts_do_not(open_client: Open, tmp_path: Path) -> None:
    client = open_client()
    assert client.post("/api/v1/topics", headers=BROWSER).status_code == 403
    token = client.app.state.services.authenticator.local({}, "a").csrf_token  # type: ignore[attr-defined]
    assert client.post("/api/v1/topics", headers={**BROWSER, "X-CSRF-Token": token}).status_code in (404, 405, 422)
    assert client.post("/api/v1/topics").status_code in (404, 405, 422)
    assert token in {open_client().app.state.services.authenticator.local({}, "a").csrf_token}, "survives a restart"  # type: ignore[attr-defined]
    assert token not in (tmp_path / "local.key").read_text()


def test_a_first_account_ends_local_access(open_client: Open, tmp_path: Path) -> None:
    client = open_client()
    assert client.get("/api/v1/overview").status_code == 200
    ConsoleAccounts(tmp_path).add("ann", ConsoleRole.ADMIN, PASSWORD)
    assert client.get("/api/v1/overview").status_code == 401


def test_a_console_for_others_does_not_start_without_an_account(tmp_path: Path) -> None:
    def settings(**values: Any) -> ConsoleSettings:
        return ConsoleSettings(namesrv="127.0.0.1:1", data_dir=tmp_path, **values)

    check_first_account(settings())
    for values in ({"host": "0.0.0.0"}, {"host": "::"}, {"is_login_required": True}):
        with pytest.raises(ConfigError, match="ariane console user add NAME --role admin"):
            check_first_account(settings(**values))
    ConsoleAccounts(tmp_path).add("ann", ConsoleRole.ADMIN, PASSWORD)
    check_first_account(settings(host="0.0.0.0"))


# --- log-in ---


def test_login_keeps_the_page_that_was_wanted(open_client: Open, accounts: ConsoleAccounts) -> None:
    client = open_client()
    response = client.get("/topics/a%20b?q=x&page=2", headers={"Accept": "text/html"})
    assert (response.status_code, response.headers["location"]) == (
        303,
        "/login?next=%2Ftopics%2Fa%2520b%3Fq%3Dx%26page%3D2",
    )
    form = client.get(response.headers["location"])
    assert 'value="/topics/a%20b?q=x&amp;page=2"' in form.text
    response = log_in(client, next="/topics/a%20b?q=x&page=2")
    assert (response.status_code, response.headers["location"]) == (303, "/topics/a%20b?q=x&page=2")
    assert client.get("/api/v1/overview").status_code == 200


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"]
)
def test_login_leads_to_no_other_host(open_client: Open, accounts: ConsoleAccounts, target: str) -> None:
    client = open_client()
    assert "evil" not in client.get("/login", params={"next": target}).text
    assert log_in(client, next=target).headers["location"] == "/"


def test_the_cookie_is_protected(open_client: Open, accounts: ConsoleAccounts) -> None:
    cookie = log_in(open_client()).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Path=/" in cookie
    assert "Secure" not in cookie
    secure = open_client("https://127.0.0.1:8080")
    response = secure.post("/login", data={"name": "admin-1", "password": PASSWORD})
    assert response.headers["set-cookie"].startswith("__Host-ariane-session-8080=")
    assert "Secure" in response.headers["set-cookie"]


def test_wrong_names_and_passwords_get_the_same_answer(
    open_client: Open, accounts: ConsoleAccounts, tmp_path: Path
) -> None:
    client = open_client()
    wrong, unknown = (
        log_in(client, password="wrong password"),
        log_in(client, name="admin-2", password="wrong password"),
    )
    assert (wrong.status_code, unknown.status_code) == (401, 401)
    assert wrong.text.replace("admin-1", "") == unknown.text.replace("admin-2", "")
    assert "wrong password" not in wrong.text
    assert client.get("/api/v1/overview").status_code == 401
    entry = refusals(tmp_path)[-1]
    assert (entry["outcome"], entry["account"], entry["address"]) == ("refused", "", "testclient")
    assert "admin-2" in entry["detail"]
    assert "wrong password" not in json.dumps(refusals(tmp_path))


def test_logins_are_limited(open_client: Open, accounts: ConsoleAccounts, clock: FakeClock) -> None:
    client = open_client()
    statuses = [log_in(client, password="wrong").status_code for _ in range(6)]
    assert statuses == [401] * 5 + [429]
    response = log_in(client)
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    assert "1 s" in response.text
    clock.advance(1)
    assert log_in(client).status_code == 303, "the right password after the delay"


def test_failures_of_others_do_not_slow_down_known_devices_sessions_and_scripts(
    open_client: Open, accounts: ConsoleAccounts
) -> None:
    """All of them have the address of a proxy."""
    owner = open_client()
    log_in(owner)
    assert owner.get("/api/v1/overview", auth=("operator-1", PASSWORD)).status_code == 200
    script = TestClient(owner.app, base_url=BASE)
    assert script.get("/api/v1/overview", auth=("admin-1", PASSWORD)).status_code == 200
    attacker = TestClient(owner.app, base_url=BASE, follow_redirects=False)
    assert [log_in(attacker, password="wrong").status_code for _ in range(6)] == [401] * 5 + [429]
    assert log_in(attacker).status_code == 429
    assert script.get("/api/v1/overview", auth=("admin-1", PASSWORD)).status_code == 200
    assert script.get("/api/v1/overview", auth=("admin-1", "wrong")).status_code == 429, "the same rule as for the form"
    form = {"current": PASSWORD, "password": "another long password", "repeated": "another long password"}
    headers = {**BROWSER, "X-CSRF-Token": token_of(owner)}
    assert owner.post("/account/password", data=form, headers=headers).status_code == 303
    owner.cookies.delete("ariane-session-8080")
    assert log_in(owner, password="another long password").status_code == 303


CHANGES = [
    (method, prefix + route.path)
    for prefix, routers in (("", (*PAGES, *DASHBOARD)), (API_PREFIX, APIS))
    for router in routers
    for route in cast("Sequence[APIRoute]", router.routes)
    for method in sorted(route.methods)
    if is_unsafe(method, prefix + route.path) and requirement(method, prefix + route.path).is_audited
]


def test_every_change_with_a_cookie_needs_the_token_or_shows_its_origin(
    open_client: Open, accounts: ConsoleAccounts
) -> None:
    client = open_client()
    log_in(client)
    assert len(CHANGES) > 100
    accepted = [
        (method, path, headers)
        for method, path in CHANGES
        for headers in ({}, {"Sec-Fetch-Site": "none"})
        if client.request(method, path, headers=headers).status_code != 403
    ]
    assert accepted == []
    change = "/topic/nothing.do"
    for headers in ({"Origin": BASE}, {"Sec-Fetch-Site": "same-origin"}, {"X-CSRF-Token": token_of(client)}):
        assert client.post(change, headers=headers).status_code == 404
    assert client.post("/login/login.do", data={"username": "admin-1", "password": PASSWORD}).status_code == 200
    client.cookies.clear()
    assert client.post(change, auth=("admin-1", PASSWORD)).status_code == 404


def test_log_out_ends_the_session(open_client: Open, accounts: ConsoleAccounts) -> None:
    client = open_client()
    log_in(client)
    cookie = client.cookies["ariane-session-8080"]
    assert client.post("/logout", headers=BROWSER).status_code == 403, "needs the token"
    response = client.post("/logout", headers=BROWSER, data={"csrf_token": token_of(client)})
    assert (response.status_code, response.headers["location"]) == (303, "/login")
    client.cookies.set("ariane-session-8080", cookie)
    assert client.get("/api/v1/overview").status_code == 401, "the copied cookie is worth nothing"


def test_a_login_survives_a_restart(open_client: Open, accounts: ConsoleAccounts) -> None:
    client = open_client()
    log_in(client)
    restarted = open_client()
    restarted.cookies.set("ariane-session-8080", client.cookies["ariane-session-8080"])
    assert restarted.get("/api/v1/overview").status_code == 200


def test_htmx_is_sent_to_the_login(open_client: Open, accounts: ConsoleAccounts) -> None:
    headers = {"HX-Request": "true", "HX-Current-URL": f"{BASE}/groups?q=a"}
    response = open_client().get("/groups/rows", headers=headers)
    assert (response.status_code, response.headers["hx-redirect"]) == (401, "/login?next=%2Fgroups%3Fq%3Da")
    assert response.text == ""


# --- roles and tokens ---


def test_roles(open_client: Open, accounts: ConsoleAccounts, tmp_path: Path) -> None:
    statuses = {}
    for role in ConsoleRole:
        client = open_client()
        log_in(client, f"{role}-1")
        headers = {**BROWSER, "X-CSRF-Token": token_of(client)}
        statuses[role] = [
            client.get("/api/v1/overview").status_code,
            client.post("/api/v1/topics/nothing/here/at-all", headers=headers).status_code,
            client.get("/api/v1/audit/nothing").status_code,
        ]
    assert statuses == {
        ConsoleRole.VIEWER: [200, 403, 403],
        ConsoleRole.OPERATOR: [200, 404, 403],
        ConsoleRole.ADMIN: [200, 404, 404],
    }
    entry = refusals(tmp_path)[0]
    assert (entry["account"], entry["outcome"], entry["detail"]) == (
        "viewer-1", "refused", "This needs the role operator; viewer-1 is viewer.",
    )  # fmt: skip


def test_the_token_is_that_of_the_session(open_client: Open, accounts: ConsoleAccounts) -> None:
    first, second = open_client(), open_client()
    log_in(first)
    log_in(second)
    path = "/api/v1/topics/nothing/here/at-all"
    assert first.post(path, headers=BROWSER).status_code == 403
    assert first.post(path).status_code == 403, "also without headers of a browser"
    assert first.post(path, headers={"X-CSRF-Token": token_of(second)}).status_code == 403
    assert first.post(path, headers={"X-CSRF-Token": token_of(first)}).status_code == 404
    assert first.post(path, data={"csrf_token": token_of(first)}).status_code == 404


def test_scripts_use_basic_authentication(open_client: Open, accounts: ConsoleAccounts, tmp_path: Path) -> None:
    client = open_client()
    response = client.get("/api/v1/overview")
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Basic")
    assert client.get("/api/v1/overview", headers=BROWSER).headers.get("www-authenticate") is None
    path = "/api/v1/topics/nothing/here/at-all"
    assert client.post(path, auth=("operator-1", PASSWORD)).status_code == 404
    assert client.post(path, auth=("viewer-1", PASSWORD)).status_code == 403
    assert client.get("/topics", auth=("operator-1", PASSWORD)).status_code == 303, "only for the API"
    assert audit(tmp_path)[0]["account"] == "operator-1"
    accounts.set_password("operator-1", "a new password")
    assert client.post(path, auth=("operator-1", PASSWORD)).status_code == 401, "also if it was remembered"
    assert [client.get("/api/v1/overview", auth=("ann", "x")).status_code for _ in range(6)] == [401] * 5 + [429]


def test_a_read_only_console_refuses_changes(open_client: Open, accounts: ConsoleAccounts) -> None:
    client = open_client(is_read_only=True)
    response = client.post("/api/v1/topics/nothing/here/at-all", auth=("admin-1", PASSWORD))
    assert (response.status_code, response.json()["error"]) == (403, "This console is read-only.")
    assert client.post("/api/v1/alerts/nothing/here", auth=("admin-1", PASSWORD)).status_code == 404


def test_large_bodies_are_refused(open_client: Open, accounts: ConsoleAccounts) -> None:
    client = open_client()
    assert client.post("/login", content=b"x" * 70_000).status_code == 413

    def chunks() -> Iterator[bytes]:
        for _ in range(70):
            yield b"name=" + b"x" * 1_000

    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert client.post("/login", content=chunks(), headers=form).status_code == 413


def test_large_bodies_are_accepted_only_where_messages_are_sent(open_client: Open, accounts: ConsoleAccounts) -> None:
    client = open_client()
    paths = ("/api/v1/topics/t/nothing", "/topic/nothing.do", "/api/v1/groups/g/nothing", "/consumer/nothing.do")
    statuses = [
        client.post(path, content=b"x" * 1_100_000, auth=("operator-1", PASSWORD)).status_code for path in paths
    ]
    assert statuses == [404, 404, 413, 413]


def test_forms_with_too_many_fields_are_refused(open_client: Open, accounts: ConsoleAccounts) -> None:
    client = open_client()
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert client.post("/login", content=b"a=&" * 3_000, headers=form).status_code == 413
    assert client.post("/login", content=b"ids=&" * 1_500, headers=form).status_code != 413


def test_every_response_has_security_headers(open_client: Open, accounts: ConsoleAccounts) -> None:
    client = open_client()
    for path in ("/login", "/", "/api/v1/overview", "/nothing", "/static/console.css"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert (headers.get("cache-control") == "no-store") is not path.startswith("/static")


def test_headers_with_malformed_urls_are_no_errors(open_client: Open, accounts: ConsoleAccounts) -> None:
    client = open_client()
    assert client.post("/login", data={"name": "x"}, headers={"Origin": "http://[x"}).status_code == 403
    response = client.get("/topics", headers={"HX-Request": "true", "HX-Current-URL": "http://[x/topics"})
    assert (response.status_code, response.headers["hx-redirect"]) == (401, "/login?next=%2Ftopics")


def test_every_route_has_a_row_in_the_table_of_roles(open_client: Open) -> None:
    application: Any = open_client().app
    # The application nests included routers, so their routes are read from the routers themselves.
    routes: list[tuple[str, Any]] = [("", route) for route in application.routes if hasattr(route, "path")]
    routes += [
        (prefix, route)
        for prefix, routers in (("", PAGES), (API_PREFIX, APIS))
        for router in routers
        for route in router.routes
    ]
    paths = [
        (method, prefix + route.path)
        for prefix, route in routes
        for method in getattr(route, "methods", None) or {"GET"}
    ]
    assert len(paths) > 5
    unlisted = [path for path in paths if not requirement(*path).is_listed]
    assert unlisted == [], "add a row to ariane.console.security.permissions.RULES"
