"""The application: errors and answers to forms, without a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ariane.access.public_ports import Gap, find_gaps
from ariane.console.app import create_app
from ariane.console.security.accounts.accounts import ConsoleAccounts
from ariane.console.security.roles import ConsoleRole
from ariane.console.server.http_server import ConsoleServer
from ariane.console.services import ConsoleServices, open_services
from ariane.console.settings import ConsoleSettings
from ariane.errors import ConfigError
from ariane.net.listening.server_tls import ServerTls, ServerTlsOptions
from tls_files import TestAuthority


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    @asynccontextmanager
    async def services() -> AsyncIterator[ConsoleServices]:
        # Port 1 refuses connections at once.
        async with open_services(ConsoleSettings(namesrv="127.0.0.1:1", data_dir=tmp_path)) as opened:
            yield opened

    with TestClient(create_app(services()), base_url="http://127.0.0.1") as client:
        yield client


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (40, ""),
        (20, "TLS certificate of this console: expires in 19 days."),
        (-1, "TLS certificate of this console: expired."),
    ],
)
def test_every_page_shows_what_the_port_of_the_console_lacks(days: int, expected: str, tmp_path: Path) -> None:
    tls = ServerTls(ServerTlsOptions(is_test=False, files=TestAuthority(tmp_path).files("console", days=days)))
    tls.load()
    gaps = find_gaps("192.0.2.1", ServerTlsOptions(is_test=False), has_accounts=True, access=Gap("", "", ""))
    ConsoleAccounts(tmp_path).add("ann", ConsoleRole.ADMIN, "a long enough password")
    settings = ConsoleSettings(namesrv="127.0.0.1:1", data_dir=tmp_path, gaps=gaps, is_login_required=True)
    with TestClient(create_app(open_services(settings, tls=tls)), base_url="http://127.0.0.1") as client:
        pages = [client.get("/login"), client.get("/nothing", auth=("ann", "a long enough password"))]
    for page in pages:
        assert "Other machines reach this console, and connections may be plain." in page.text
        assert ("TLS certificate of this console" in page.text, expected in page.text) == (bool(expected), True)


def test_pages_of_a_console_on_loopback_show_no_warning(client: TestClient) -> None:
    page = client.get("/nothing").text
    assert "Other machines" not in page and "TLS certificate" not in page


def test_an_unavailable_cluster_is_an_error_page(client: TestClient) -> None:
    response = client.get("/brokers/b")
    assert response.status_code == 502
    assert "127.0.0.1:1" in response.text
    assert "<html" in response.text


def test_htmx_gets_errors_as_notices(client: TestClient) -> None:
    response = client.get("/brokers/b", headers={"HX-Request": "true"})
    assert response.status_code == 502
    assert response.headers["HX-Retarget"] == "#notices"
    assert "<html" not in response.text


def test_the_api_gets_errors_as_json(client: TestClient) -> None:
    response = client.get("/api/v1/brokers/b")
    assert response.status_code == 502
    assert "127.0.0.1:1" in response.json()["error"]


def test_an_unknown_page_is_not_found(client: TestClient) -> None:
    response = client.get("/nothing")
    assert response.status_code == 404
    assert "No page has this address: /nothing" in response.text
    assert "Not Found" not in response.text
    assert client.get("/api/v1/nothing").json() == {"status": 404, "error": "Not Found"}


def test_an_address_of_another_machine_is_reported_with_its_option(tmp_path: Path) -> None:
    ConsoleAccounts(tmp_path).add("ann", ConsoleRole.ADMIN, "a long enough password")
    settings = ConsoleSettings(namesrv="127.0.0.1:1", data_dir=tmp_path, host="192.0.2.1", port=0)

    async def start() -> None:
        async with ConsoleServer(settings):
            pass

    with pytest.raises(ConfigError, match=r"bind.*192\.0\.2\.1.*specify an address of this machine"):
        asyncio.run(start())


def test_unexpected_errors_have_the_headers_of_other_responses(client: TestClient) -> None:
    def fail() -> None:
        raise RuntimeError("secret")

    app = client.app
    assert isinstance(app, FastAPI)
    app.add_api_route("/broken", fail)
    response = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False).get("/broken")
    assert response.status_code == 500
    assert "secret" not in response.text
    expected = client.get("/nothing").headers
    for name in ("content-security-policy", "cache-control", "x-frame-options", "referrer-policy"):
        assert response.headers[name] == expected[name]


def test_the_api_describes_its_log_ins_and_the_errors_that_occur(client: TestClient) -> None:
    document = client.get("/api/v1/openapi.json").json()
    assert "Basic authentication" in document["info"]["description"]
    assert set(document["components"]["securitySchemes"]) == {"HTTPBasic", "Session", "Token"}
    operations = [(path, method, item) for path, items in document["paths"].items() for method, item in items.items()]
    assert len(operations) > 70
    for path, method, item in operations:
        generated = item["operationId"].split("_api_")[0].replace("_", " ").title()
        assert item["summary"] not in ("", generated), path
        assert {"401", "403", "421", "429"} <= set(item["responses"]), path
        assert ("404" in item["responses"]) is ("{" in path), path
        assert ("Token" in item["security"][1]) is (method != "get"), path
    creations = [path for path, _, item in operations if "409" in item["responses"]]
    assert creations == ["/api/v1/topics", "/api/v1/groups", "/api/v1/access/users"]
    assert "HTTPValidationError" not in str(operations)


def test_a_name_that_is_taken_is_a_conflict(client: TestClient, tmp_path: Path) -> None:
    form = {"name": "ann", "role": "admin", "password": "a long enough password"}
    assert client.post("/api/v1/access/users", json=form).status_code == 200
    response = client.post("/api/v1/access/users", json=form, auth=("ann", "a long enough password"))
    assert response.status_code == 409
