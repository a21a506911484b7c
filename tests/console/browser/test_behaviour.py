"""What a reader notices on pages of a real cluster: keyboard, many tabs, log-in, language and theme."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from console_program import ConsoleProgram, TrafficProgram

pytest.importorskip("playwright", reason="needs playwright: pip install playwright")
pytest.importorskip("fastapi", reason="needs fastapi: pip install 'ariane[console]'")

from page_faults import OpenContext, axe_findings, overflow
from playwright.sync_api import Page, expect

from ariane.console.security.accounts.accounts import ConsoleAccounts
from ariane.console.security.roles import ConsoleRole

PASSWORD = "a long enough password"
REFRESH_MS = 15_000  # longer than the interval of every live part
HANG_S = 12  # longer than the interval of the live parts, shorter than htmx's own deadline
PROBE_MS = 4_000  # longer than the deadline of a probe
TABS = 7  # browsers allow six connections to one HTTP/1.1 server: pages must not hold one each


def refresh(page: Page, path: str) -> None:
    """Let the time of live parts pass, and wait until one was read again."""
    # The deadline of a request that is not answered yet would come closer by as much.
    expect(page.locator(".htmx-request")).to_have_count(0, timeout=30_000)
    with page.expect_response(lambda response: path in response.url and response.request.method == "GET"):
        page.clock.fast_forward(REFRESH_MS)


def log_in(page: Page, name: str, password: str) -> None:
    page.locator("[name='name']").fill(name)
    page.locator("[name='password']").fill(password)
    page.keyboard.press("Enter")


# --- keyboard ---


def test_the_first_key_skips_the_navigation_and_the_focus_is_visible(page: Page) -> None:
    page.goto("/topics")
    page.keyboard.press("Tab")
    skip = page.locator(".skip")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()
    seen = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            "() => { const item = document.activeElement, style = getComputedStyle(item);"
            " return [item.name || item.textContent.trim(),"
            " parseFloat(style.outlineWidth) > 0 && style.outlineStyle !== 'none' || style.boxShadow !== 'none']; }"
        )
        # A field may show the focus at the box around it.
        box = page.evaluate(
            "() => [...document.querySelectorAll(':focus-within')].some(item =>"
            " parseFloat(getComputedStyle(item).outlineWidth) > 0 && getComputedStyle(item).outlineStyle !== 'none')"
        )
        assert outline or box, f"the focus on {name!r} is not visible"
        seen.add(name)
    assert "q" in seen, "the search is not reached"


# --- live updates ---


def test_seven_tabs_load_and_refresh(console: ConsoleProgram, open_context: OpenContext) -> None:
    context, _ = open_context(console.url)
    pages = [context.new_page() for _ in range(TABS)]
    for page in pages:
        page.clock.install()
        page.goto("/topics", wait_until="load")
    for page in pages:
        expect(page.locator("h1")).to_be_visible()
        refresh(page, "/topics")


@pytest.mark.parametrize("path", ["/topics", "/account"])
def test_a_console_that_hangs_is_noticed(
    cluster: TrafficProgram, open_context: OpenContext, tmp_path: Path, path: str
) -> None:
    """A stopped process accepts connections and never answers. One page refreshes itself, the other does not."""
    with ConsoleProgram(cluster.info["namesrv"], tmp_path) as console:
        page = open_context(console.url)[0].new_page()
        page.clock.install()
        page.goto(path)
        expect(page.locator("h1")).to_be_visible()
        console.signal(signal.SIGSTOP)
        try:
            # Afterwards the clock of the page does not advance: htmx's own deadline of 30 s is not reached.
            page.clock.pause_at(page.evaluate("Date.now()") / 1000 + HANG_S)
            page.clock.run_for(PROBE_MS)
            expect(page.locator("#lost")).to_be_visible()
            dots = "() => [...document.querySelectorAll('.live-dot')].map(dot => getComputedStyle(dot).backgroundColor)"
            green = page.evaluate(
                "() => { const item = document.createElement('i'); item.style.color = 'var(--ok)';"
                " document.body.append(item); return getComputedStyle(item).color; }"
            )
            assert green not in page.evaluate(dots)
        finally:
            console.signal(signal.SIGCONT)
        page.clock.resume()
        expect(page.locator("#lost")).to_be_hidden()


# --- log-in ---


def test_a_session_that_is_revoked_leads_to_the_log_in_and_back(
    cluster: TrafficProgram, open_context: OpenContext, tmp_path: Path
) -> None:
    accounts = ConsoleAccounts(tmp_path / "data")
    accounts.add("alice", ConsoleRole.ADMIN, PASSWORD)
    with ConsoleProgram(cluster.info["namesrv"], tmp_path, "--require-login") as console:
        context, faults = open_context(console.url)
        page = context.new_page()
        page.clock.install()
        page.goto("/topics?q=pay")
        expect(page).to_have_url(re.compile("/login"))
        assert axe_findings(page) + overflow(page) == []
        faults.expect("status 401")
        faults.expect("401 (Unauthorized)")
        log_in(page, "alice", "a wrong password")
        expect(page.locator(".notice-error")).to_be_visible()
        log_in(page, "alice", PASSWORD)
        expect(page).to_have_url(re.compile(r"/topics\?q=pay"))
        accounts.set_password("alice", f"another {PASSWORD}")
        page.clock.fast_forward(REFRESH_MS)
        expect(page).to_have_url(re.compile("/login"))
        log_in(page, "alice", f"another {PASSWORD}")
        expect(page).to_have_url(re.compile(r"/topics\?q=pay"))
        page.locator(".user-button").click()
        page.locator("form[action='/logout'] button").click()
        expect(page).to_have_url(re.compile("/login"))


def test_a_viewer_sees_no_changes_and_cannot_make_any(
    cluster: TrafficProgram, open_context: OpenContext, tmp_path: Path
) -> None:
    accounts = ConsoleAccounts(tmp_path / "data")
    accounts.add("alice", ConsoleRole.ADMIN, PASSWORD)
    accounts.add("victor", ConsoleRole.VIEWER, PASSWORD)
    with ConsoleProgram(cluster.info["namesrv"], tmp_path) as console:
        context, faults = open_context(console.url)
        page = context.new_page()
        page.goto("/topics/orders")
        log_in(page, "victor", PASSWORD)
        expect(page.locator("h1")).to_contain_text("orders")
        assert page.locator("#content form[method='post']").count() == 0
        faults.expect("status 403")
        answer = page.request.post("/topics/orders/delete", form={"confirm": "orders"})
        assert answer.status == 403


# --- preferences ---


def test_language_and_theme_are_remembered(page: Page) -> None:
    page.goto("/topics")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("link", name="Dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page).to_have_url(re.compile("/topics$"))
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("link", name="中文").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
    expect(page.locator("#navigation").get_by_role("link", name="消费组")).to_be_visible()
    page.goto("/producers")
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert axe_findings(page, ["color-contrast"]) == []
