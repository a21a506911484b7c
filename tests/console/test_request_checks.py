"""Checks of headers, and the table of roles."""

from __future__ import annotations

import pytest

from ariane.console.security.permissions import UNLISTED, requirement
from ariane.console.security.request_checks import (
    is_own_host,
    is_same_origin,
    is_through_proxy,
    local_path,
    page_path,
    path_after_login,
)
from ariane.console.security.roles import ConsoleRole


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "localhost", "[::1]:8080", "127.1.2.3"])
def test_loopback_names(host: str) -> None:
    assert is_own_host({"host": host}, "127.0.0.1")


@pytest.mark.parametrize("host", ["evil.example:8080", "evil.example", "", "localhost.evil.example", "[x", "10.0.0.1"])
def test_names_of_rebinding_attacks(host: str) -> None:
    assert not is_own_host({"host": host}, "127.0.0.1")
    assert is_own_host({"host": host}, "10.0.0.1"), "only servers on loopback know all their names"


@pytest.mark.parametrize(
    ("headers", "result"),
    [
        ({}, True),
        ({"origin": "http://localhost:8080"}, True),
        ({"origin": "https://LOCALHOST:8080"}, True),
        ({"origin": "http://localhost:9090"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": "http://[x"}, False),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "http://localhost:8080"}, False),
    ],
)
def test_origins(headers: dict[str, str], result: bool) -> None:
    assert is_same_origin({"host": "localhost:8080", **headers}) is result


def test_proxies_announce_themselves() -> None:
    assert is_through_proxy({"x-forwarded-for": "10.0.0.1"})
    assert not is_through_proxy({"host": "localhost"})


@pytest.mark.parametrize("path", ["/topics", "/topics/a%20b?q=x&page=2", "/trace/%E4%B8%AD", "/"])
def test_local_paths(path: str) -> None:
    assert local_path(path) == path
    assert path_after_login(path) == path


@pytest.mark.parametrize(
    "path",
    [
        None, "", "topics", "//evil.example", "/\\evil.example", "https://evil.example", "/\t/evil.example", "/a\nb",
        "javascript:alert(1)", "/login?next=/login", "/logout", "/" + "x" * 3_000, "/ /evil.example",
    ],
)  # fmt: skip
def test_other_paths_lead_home(path: str | None) -> None:
    assert path_after_login(path) == "/"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://console:8080/topics?q=a%20b", "/topics?q=a%20b"), ("https://[::1]:8080/groups/g#x", "/groups/g#x"),
        ("http://[x/topics", "/topics"), ("http://console", "/"), ("http://a//evil.example", "/"), ("//evil.example", "/"),
        ("javascript:alert(1)", "/"), ("", "/"), (None, "/"),
    ],
)  # fmt: skip
def test_pages_of_urls(url: str | None, path: str) -> None:
    assert page_path(url) == path


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("GET", "/", ConsoleRole.VIEWER),
        ("GET", "/login", None),
        ("POST", "/login", None),
        ("GET", "/static/vendor/htmx.js", None),
        ("POST", "/static/x", ConsoleRole.ADMIN),
        ("GET", "/alerts", ConsoleRole.VIEWER),
        ("GET", "/groups/g/clients/c.do", ConsoleRole.VIEWER),
        ("GET", "/api/v1/groups/g.do", ConsoleRole.VIEWER),
        ("GET", "/topic/deleteTopic.do", ConsoleRole.OPERATOR),
        ("GET", "/acl/deleteUser.do", ConsoleRole.ADMIN),
        ("GET", "/alerts/channels", ConsoleRole.VIEWER),
        ("GET", "/alerts/channels/x", ConsoleRole.ADMIN),
        ("POST", "/alerts/rules", ConsoleRole.ADMIN),
        ("POST", "/api/v1/alerts/silences", ConsoleRole.OPERATOR),
        ("POST", "/alerts/silences/1/end", ConsoleRole.OPERATOR),
        ("GET", "/access", ConsoleRole.ADMIN),
        ("GET", "/accessories", ConsoleRole.ADMIN),
        ("POST", "/account/password", ConsoleRole.VIEWER),
        ("DELETE", "/unheard-of", ConsoleRole.ADMIN),
    ],
)
def test_the_table(method: str, path: str, role: ConsoleRole | None) -> None:
    assert requirement(method, path).role == role


def test_unlisted_paths_need_an_admin() -> None:
    assert requirement("GET", "/unheard-of") == (ConsoleRole.ADMIN, False, False, UNLISTED, False)
    assert requirement("GET", "/api/v1login") == (ConsoleRole.ADMIN, False, False, UNLISTED, False)
