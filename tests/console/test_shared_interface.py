"""The shared parts of pages: preferences, translation, filters, static files, macros, links. Without a cluster."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.testclient import TestClient

from ariane.console.app import create_app
from ariane.console.services import ConsoleServices, open_services
from ariane.console.settings import ConsoleSettings
from ariane.console.texts import preferences, text_format
from ariane.console.web import rendering
from ariane.console.web.downloads import download
from ariane.console.web.form_fields import parse_time_ms
from ariane.console.web.paging import ListQuery, paginate
from ariane.console.web.static_assets import STATIC_DIR, asset_url

XSS = "<script>alert(1)</script>\"'&"
TIME_MS = 1_795_336_715_250  # 2026-11-22 08:38:35.250 UTC


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    @asynccontextmanager
    async def services() -> AsyncIterator[ConsoleServices]:
        async with open_services(ConsoleSettings(namesrv="127.0.0.1:1", data_dir=tmp_path)) as opened:
            yield opened

    return create_app(services())


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, base_url="http://127.0.0.1", follow_redirects=False) as client:
        yield client


def show(
    app: FastAPI, client: TestClient, body: str, url: str = "/sample", path: str = "/sample", **context: object
) -> str:
    """Return the answer to a page whose content block is `body`."""
    source = '{% extends layout %}{% import "macros.html" as ui with context %}{% block title %}T{% endblock %}'
    template = rendering._environment().from_string(f"{source}{{% block content %}}{body}{{% endblock %}}")

    async def page(request: Request) -> Response:
        return rendering.render(request, template, **context)  # type: ignore[arg-type] # jinja2 takes templates, too

    app.router.add_route(path, page)
    response = client.get(url)
    assert response.status_code == 200, response.text
    return response.text


# --- Preferences


def test_preferences_are_stored_and_used(client: TestClient) -> None:
    response = client.get("/preferences?theme=dark&language=zh&next=/topics%3Fq%3Da")
    assert (response.status_code, response.headers["location"]) == (303, "/topics?q=a")
    page = client.get("/nothing").text
    assert (
        client.get("/preferences?zone=utc", headers={"Referer": "http://x/groups?q=b"}).headers["location"]
        == "/groups?q=b"
    )
    assert 'data-theme="dark"' in page
    assert 'lang="zh-CN"' in page
    assert "消费组" in page


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("en-GB,en;q=0.9,zh;q=0.8", "en"),
        ("de,zh;q=0.5,en;q=0.4", "zh"),
        ("de, zh;q=x", "en"),
    ],
)
def test_the_language_is_that_of_the_browser(client: TestClient, header: str, language: str) -> None:
    page = client.get("/nothing", headers={"Accept-Language": header}).text
    assert ("消费组" in page) == (language == "zh")


@pytest.mark.parametrize(
    "target", ["https://evil.example/x", "//evil.example/x", "/\\evil.example/x", "/\t/evil.example/x", "//["]
)
def test_preferences_return_only_to_pages_of_the_console(client: TestClient, target: str) -> None:
    location = client.get("/preferences", params={"next": target}).headers["location"]
    assert re.fullmatch(r"/(?![/\\]).*|/", location)


def test_times_are_in_the_zone_of_the_browser(app: FastAPI, client: TestClient) -> None:
    body = "{{ ms | time }} {{ ms | time_text(3) }}"
    assert "2026-11-22 08:38:35</time>" in show(app, client, body, ms=TIME_MS)
    client.cookies.set("ariane_zone", "Asia%2FShanghai")
    page = show(app, client, body, ms=TIME_MS)
    assert "2026-11-22 16:38:35</time>" in page
    assert "2026-11-22 16:38:35.250" in page
    assert "+0800 (Asia/Shanghai)" in page
    client.get("/preferences?zone=utc")
    assert "2026-11-22 08:38:35</time>" in show(app, client, body, ms=TIME_MS)


def test_times_without_an_offset_are_in_the_zone_of_the_browser_on_pages_and_utc_in_the_api(
    app: FastAPI, client: TestClient
) -> None:
    async def typed_ms() -> int:
        return parse_time_ms("1970-01-02T08:00", 0, "time", zone=preferences.current().zone)

    app.add_api_route("/typed", typed_ms)
    app.add_api_route("/api/v1/typed", typed_ms)
    client.cookies.set("ariane_zone", "Asia%2FShanghai")
    assert client.get("/typed").json() == 86_400_000
    assert client.get("/api/v1/typed").json() == 115_200_000


@pytest.mark.parametrize("zone", ["../../etc/passwd", "Nowhere/City", "x" * 5000, "Asia/", ""])
def test_unknown_zones_are_utc(app: FastAPI, client: TestClient, zone: str) -> None:
    client.cookies.set("ariane_zone", zone)
    assert 'data-zone="UTC"' in show(app, client, "")


# --- Filters


@pytest.mark.parametrize("name", ["number", "bytes", "ms", "duration", "percent", "time"])
def test_unknown_values_are_never_zero(name: str) -> None:
    # No float can hold the last one: JSON of other servers may contain it.
    for value in (None, float("nan"), 10**350):
        text = text_format.FILTERS[name](value)
        assert "?" in text
        assert "0" not in text
    assert text_format.ago(None, TIME_MS) == text_format.unknown()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (text_format.number(1234567), "1,234,567"),
        (text_format.number(0.25, 1), "0.2"),
        (text_format.byte_count(0), "0 B"),
        (text_format.byte_count(1536), "1.5 KiB"),
        (text_format.byte_count(5 * 2**40), "5.0 TiB"),
        (text_format.milliseconds(12.4), "12 ms"),
        (text_format.milliseconds(12_400), "12.4 s"),
        (text_format.duration(999), "999 ms"),
        (text_format.duration(61_000), "1 min 1 s"),
        (text_format.duration(3_600_000), "1 h"),
        (text_format.duration(90_061_000), "1 d 1 h"),
        (text_format.duration(-5_000), "-5 s"),
        (text_format.percent(0.125), "12.5 %"),
        (text_format.expiry(30), ""),
        (text_format.expiry(29), "expires in 29 days"),
        (text_format.expiry(1), "expires in 1 day"),
        (text_format.expiry(-1), "expired"),
        (text_format.expiry(None), ""),
        (text_format.path_segment("%RETRY%g/1"), "%25RETRY%25g%2F1"),
    ],
)
def test_values(text: str, expected: str) -> None:
    assert text == expected


def test_times_before_and_after_another() -> None:
    texts = [text_format.ago(TIME_MS + ms, TIME_MS).striptags() for ms in (-90_000, -20, 0, 20, 5_000)]  # type: ignore[attr-defined]
    assert texts == ["1 min 30 s ago", "just now", "just now", "just now", "in 5 s"]


def test_impossible_times_are_unknown() -> None:
    assert text_format.time(1e300) == text_format.unknown()
    assert text_format.time(-1e15) == text_format.unknown()


# --- Static files


def test_static_files_are_stored_permanently_under_the_hash_of_their_content(client: TestClient) -> None:
    url = asset_url("console.css")
    response = client.get(url)
    assert "immutable" in response.headers["cache-control"]
    assert response.headers["content-encoding"] == "gzip"
    assert response.content == (STATIC_DIR / "console.css").read_bytes()
    assert "immutable" not in client.get("/static/console.css").headers["cache-control"]
    assert "immutable" not in client.get("/static/console.css?v=old").headers["cache-control"]
    assert client.get(url, headers={"If-None-Match": response.headers["etag"]}).status_code == 304
    assert "content-encoding" not in client.get(url, headers={"Accept-Encoding": "identity"}).headers


@pytest.mark.parametrize("path", ["/static/none.js", "/static/../app.py", "/static/%2e%2e/app.py", "/static/"])
def test_only_static_files_are_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    "directory", [STATIC_DIR / "vendor", Path(__file__).parent / "vendor"], ids=["console", "tests"]
)
def test_vendored_files_match_their_manifest(directory: Path) -> None:
    manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    files = {path.relative_to(directory).as_posix() for path in directory.glob("*/*")}
    assert files == {entry["file"] for entry in manifest}
    for entry in manifest:
        content = (directory / entry["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entry["sha256"], entry["file"]
        assert (directory / entry["package"] / "LICENSE").exists()


# --- Macros


def test_pages_have_no_inline_script_or_style(app: FastAPI, client: TestClient) -> None:
    page = show(app, client, '{{ ui.chart("c", "Rate", {"series": []}) }}')
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:|hx-on", page)
    scripts = re.findall(r"<script([^>]*)>", page)
    assert [script for script in scripts if "src=" not in script] == [' type="application/json" data-chart-options']
    assert "http://" not in page.replace("http://127.0.0.1", "")
    assert "https://" not in page


def test_htmx_gets_the_content_without_the_frame(app: FastAPI, client: TestClient) -> None:
    client.headers["HX-Request"] = "true"
    page = show(app, client, "<p>content</p>")
    assert "<p>content</p>" in page
    assert "<title>T · Ariane</title>" in page
    assert "navigation" not in page


def test_links_keep_the_state_of_a_list(app: FastAPI, client: TestClient) -> None:
    body = "{{ link(page=3) }}|{{ link(q=None, sort='lag') }}|{{ link() }}"
    page = show(app, client, body, url="/sample?q=a%26b&page=2")
    assert "/sample?q=a%26b&amp;page=3|/sample?page=2&amp;sort=lag|/sample?q=a%26b&amp;page=2" in page


def test_links_keep_percent_signs_of_names(app: FastAPI, client: TestClient) -> None:
    rows = [f"name-{index}" for index in range(60)]
    view = paginate(rows, ListQuery(), name=str, columns={"name": str}, sort="name")
    body = (
        '{{ link(page=3) }} {{ ui.search(view, "rows") }} {{ ui.sort_header("Name", "name", view, "rows") }} '
        '{{ ui.pager(view, "rows") }}'
    )
    html = show(app, client, body, url="/sample/%25RETRY%25group/queues", path="/sample/{path:path}", view=view)
    assert "/sample/%25RETRY%25group/queues?page=3" in html
    targets = re.findall(r'(?:href|action|hx-get)="(/sample[^"?]*)', html)
    assert len(targets) >= 8, "links, search and size of the list"
    assert set(targets) == {"/sample/%25RETRY%25group/queues"}


@pytest.mark.parametrize("path", ["//evil.example/x", "///evil.example/x", "/\\evil.example/x"])
def test_links_of_a_page_never_lead_to_another_host(client: TestClient, path: str) -> None:
    page = client.get(f"http://127.0.0.1{path}").text
    again = re.search(r'href="([^"]*)">Try again', page)
    assert again
    assert re.fullmatch(r"/(?:evil|%5Cevil)\.example/x", again[1])


def test_lists_sort_search_and_page(app: FastAPI, client: TestClient) -> None:
    rows = [f"name-{index}" for index in range(60)]
    query = ListQuery(q="name", sort="name", order="desc", page=2, size=25)
    page = paginate(rows, query, name=str, columns={"name": str}, sort="name")
    body = (
        '{{ ui.search(view, "rows") }}{% call ui.live("rows") %}{% call ui.table("Rows") %}'
        '<thead><tr>{{ ui.sort_header("Name", "name", view, "rows") }}</tr></thead>{% endcall %}'
        '{{ ui.pager(view, "rows") }}{% endcall %}'
    )
    html = show(app, client, body, url="/sample?q=name&sort=name&order=desc&page=2&size=25", view=page)
    assert "26–50 of 60" in html
    assert 'aria-sort="descending"' in html
    assert "order=asc" in html, "a click turns the order"
    assert 'hx-sync="#rows:replace"' in html, "a search aborts a refresh"
    assert 'hx-sync="this:abort"' in html, "a refresh never replaces a search"
    assert re.search(r'aria-current="page"[^>]*>2<', html)


def test_values_of_clients_stay_text(app: FastAPI, client: TestClient) -> None:
    body = """
    {{ ui.header(x, x) }}{{ ui.badge(x, "ok", x) }}{{ ui.stat(x, x, x, x) }}{{ ui.key_values([(x, x)]) }}
    {{ ui.copy(x) }}{{ ui.code(x, x) }}    {{ ui.topic(x) }}{{ ui.group(x) }}{{ ui.notice(x) }}{{ ui.empty(x, x) }}
    {{ ui.bar(1, 2, x) }}{{ ui.tabs([(x, x, "/")], x, x) }}
    {{ ui.field("a", x, x, help=x, error=x) }}{{ ui.select("b", x, [(x, x)], x) }}
    {{ ui.textarea("c", x, x) }}
    {{ ui.checkbox("d", x) }}{{ ui.confirm("e", x, "/", x, x, x) }}
    {{ ui.unavailable([x]) }}{{ ui.unknown(x) }}
    {{ ui.chart("f", x, {"series": [{"name": x, "points": [[1, 2]]}]}) }}"""
    html = show(app, client, body, url=f"/sample?q={XSS}", x=XSS)
    assert "<script>alert" not in html
    options = re.search(r"data-chart-options>(.*?)</script>", html)
    assert options is not None
    assert json.loads(options[1])["series"][0]["name"] == XSS


def test_forms_describe_their_fields(app: FastAPI, client: TestClient) -> None:
    body = '{{ ui.field("queues", "Queues", none, type="number", help="H", error="E", required=true, attributes={"min": 1}) }}'
    html = show(app, client, body)
    field = re.search(r"<input id=\"field-queues\"[^>]*>", html)
    assert field is not None
    for attribute in (
        'value=""',
        'min="1"',
        'aria-invalid="true"',
        "field-queues-error field-queues-help",
        " required",
    ):
        assert attribute in field[0]


def test_a_deletion_needs_the_typed_name(app: FastAPI, client: TestClient) -> None:
    body = """{% call ui.confirm("delete", "Delete", "/topics/a/delete", "orders", "Delete", dry_run="isDryRun") %}
    {{ ui.checkbox("x", "X") }}{% endcall %}"""
    html = show(app, client, body)
    assert 'data-confirm="orders"' in html
    assert 'name="confirm"' in html
    assert 'name="isDryRun" value="true"' in html
    assert 'id="field-x"' in html


def test_the_rest_documentation_is_served_from_here(client: TestClient) -> None:
    page = client.get("/docs").text
    assert "/static/vendor/swagger-ui-dist/swagger-ui-bundle.js?v=" in page
    assert 'data-openapi="/api/v1/openapi.json"' in page
    assert client.get("/api/v1/openapi.json").json()["openapi"].startswith("3")


def test_preferences_outside_of_requests_are_the_defaults() -> None:
    assert preferences.current() == preferences.DEFAULTS


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("run `ariane collect`?", "run <code>ariane collect</code>?"),
        ("`<b>` & <i>", "<code>&lt;b&gt;</code> &amp; &lt;i&gt;"),
        ("a ` alone", "a ` alone"),
        ("", ""),
    ],
)
def test_backticks_mark_code_and_everything_is_escaped(text: str, html: str) -> None:
    assert text_format.code_spans(text) == html


# --- Downloads


def test_names_of_files_are_short_enough_for_every_file_system() -> None:
    header = download("", "text/csv", f"dead-letters-{'g' * 255}.csv").headers["content-disposition"]
    name = f"dead-letters-{'g' * 83}.csv"
    assert len(name) == 100
    assert header == f"attachment; filename=\"{name}\"; filename*=UTF-8''{name}"


def test_nouns_agree_with_their_numbers(app: FastAPI, client: TestClient) -> None:
    body = (
        '{% for count in [0, 1, 2, none] %}[{{ "messages" | unit(count) }} {{ "msg/s" | unit(count) }} {{ "s" | unit(count) }} '
        '{{ _n("%(count)s enabled rule", "%(count)s enabled rules", count, count=count) }}]{% endfor %}'
    )
    page = show(app, client, body)
    assert (
        "[messages msg/s s 0 enabled rules][message msg/s s 1 enabled rule][messages msg/s s 2 enabled rules]" in page
    )
    assert "[messages msg/s s None enabled rules]" in page
    client.cookies.set("ariane_language", "zh")
    assert "[条消息 条/秒 s 1 条规则已启用][条消息 条/秒 s 2 条规则已启用]" in client.get("/sample").text
