"""What app.js and charts.js promise, on a sample page: refreshes, searches, dialogs, keyboard, a lost server, charts."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

pytest.importorskip("playwright", reason="needs playwright: pip install playwright")
pytest.importorskip("fastapi", reason="needs fastapi: pip install 'ariane[console]'")

from page_faults import NARROW, OpenContext, PageFaults
from playwright.sync_api import Page, expect
from sample_site import SampleSite

PATH = "/topics/sample"

Opened = tuple[Page, PageFaults]


@pytest.fixture(scope="module")
def running_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SampleSite]:
    with SampleSite(tmp_path_factory.mktemp("sample")) as site:
        yield site


@pytest.fixture
def site(running_site: SampleSite, open_context: OpenContext) -> Iterator[SampleSite]:
    """The site as after its start. `open_context` is named so that the contexts are closed after the site is reset."""
    running_site.reset()
    yield running_site
    running_site.reset()


@pytest.fixture
def opened(site: SampleSite, open_context: OpenContext) -> Opened:
    """The sample page, and the faults that the browser reports."""
    context, faults = open_context(site.url, permissions=["clipboard-read", "clipboard-write"])
    # As on a later visit: the first page is not loaded again for the zone.
    context.add_cookies([{"name": "ariane_zone", "value": "Europe%2FBerlin", "url": site.url}])
    page = context.new_page()
    page.goto(PATH)
    return page, faults


@pytest.fixture
def sample(opened: Opened) -> Page:
    return opened[0]


def wait_refresh(page: Page) -> None:
    """Wait until the live part has changed."""
    before = page.locator("#count").text_content()
    page.wait_for_function("before => document.querySelector('#count').textContent !== before", arg=before)


def wait_polls(site: SampleSite, page: Page, count: int) -> None:
    """Wait until the site has received so many requests."""
    target = len(site.searches) + count
    for _ in range(300):
        if len(site.searches) >= target:
            return
        page.wait_for_timeout(50)
    raise AssertionError("no request arrived")


def expect_lost(page: Page, lost: bool) -> None:
    page.wait_for_function("lost => document.querySelector('#lost').hidden !== lost", arg=lost)


def test_a_refresh_keeps_the_readers_place(sample: Page) -> None:
    sample.locator("#more summary").click()
    sample.locator("[data-search]").fill("name-0")
    sample.wait_for_url(re.compile("q=name-0"))
    sample.locator("#row-name-040 .copy").focus()
    sample.evaluate("scrollTo(0, 500)")
    wait_refresh(sample)
    wait_refresh(sample)
    assert sample.evaluate("scrollY") == 500
    assert sample.evaluate("document.activeElement.dataset.copy") == "name-040"
    assert sample.locator("#more").evaluate("element => element.open")
    assert sample.locator("[data-search]").input_value() == "name-0"


def test_a_refresh_does_not_take_text_selections_or_checked_rows_away(site: SampleSite, sample: Page) -> None:
    sample.locator("#row-name-003 input").check()
    before = sample.locator("#count").text_content()
    sample.wait_for_timeout(2500)  # longer than two intervals
    assert sample.locator("#count").text_content() == before
    sample.locator("#row-name-003 input").uncheck()
    wait_refresh(sample)
    sample.evaluate("getSelection().selectAllChildren(document.querySelector('#row-name-002 th'))")
    selected = sample.evaluate("getSelection().toString()")
    sample.wait_for_timeout(2500)
    assert sample.evaluate("getSelection().toString()") == selected


def test_a_slow_refresh_does_not_overwrite_a_search(site: SampleSite, sample: Page) -> None:
    site.slow_text, site.delay_s = "", 1.5  # refreshes of the list without a search
    wait_polls(site, sample, 1)
    sample.locator("[data-search]").press_sequentially("name-01")
    sample.wait_for_url(re.compile("q=name-01"))
    for _ in range(30):
        assert sample.locator("tbody tr").count() == 10
        sample.wait_for_timeout(100)
    expect(sample.locator("[data-search]")).to_have_value("name-01")
    expect(sample.locator("[data-search]")).to_be_focused()


def test_a_hidden_tab_sends_nothing(site: SampleSite, sample: Page) -> None:
    sample.evaluate("Object.defineProperty(document, 'hidden', {value: true})")
    sample.wait_for_timeout(500)
    before = len(site.searches)
    sample.wait_for_timeout(2500)
    assert len(site.searches) == before


def test_lists_keep_their_state_in_the_url(sample: Page) -> None:
    sample.get_by_role("link", name="Rate").click()
    sample.wait_for_url(re.compile("sort=rate&order=desc"))
    assert sample.locator("tbody tr").first.get_attribute("id") == "row-name-030"
    sample.locator("[data-search]").fill("name-00")
    sample.wait_for_url(re.compile("q=name-00"))
    assert "sort=rate" in sample.url, "a search keeps the order"
    assert sample.locator("tbody tr").count() == 10
    sample.locator("[data-search]").fill("")
    sample.wait_for_function("() => document.querySelectorAll('tbody tr').length === 50")
    sample.get_by_role("link", name="Page 2", exact=True).click()
    sample.wait_for_url(re.compile("page=2"))
    sample.locator("#rows-size").select_option("100")
    sample.wait_for_function("() => document.querySelectorAll('tbody tr').length === 100")
    assert "page=" not in sample.url
    sample.go_back()
    sample.wait_for_url(re.compile("page=2"))
    sample.wait_for_function("() => document.querySelectorAll('tbody tr').length === 50")


def test_a_deletion_needs_the_typed_name(site: SampleSite, sample: Page) -> None:
    sample.get_by_role("button", name="Delete").click()
    dialog = sample.get_by_role("dialog")
    submit = dialog.get_by_role("button", name="Delete")
    assert submit.is_disabled()
    dialog.get_by_label("Type orders to confirm").fill("order")
    assert submit.is_disabled()
    dialog.get_by_label("Type orders to confirm").fill("orders")
    submit.click()
    sample.get_by_text("Deleted topic orders.").wait_for()
    assert site.deleted == ["orders"]
    assert dialog.count() == 0, "the dialog is closed"
    wait_refresh(sample)


def test_an_error_is_shown_in_the_open_dialog(site: SampleSite, opened: Opened) -> None:
    page, faults = opened
    faults.expect("422")
    site.deleted.append("before")
    page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Type orders to confirm").fill("orders")
    dialog.get_by_role("button", name="Delete").click()
    dialog.get_by_text("the topic is deleted already").wait_for()
    assert dialog.get_by_label("Type orders to confirm").input_value() == "orders", "the input is still there"


def test_a_dialog_takes_the_focus_and_escape_gives_it_back(sample: Page) -> None:
    sample.get_by_role("button", name="Delete").focus()
    sample.keyboard.press("Enter")
    expect(sample.get_by_role("dialog")).to_be_visible()
    assert sample.get_by_role("dialog").evaluate("dialog => dialog.contains(document.activeElement)")
    sample.keyboard.press("Escape")
    assert sample.get_by_role("dialog").count() == 0
    assert sample.evaluate("document.activeElement.dataset.open") == "delete", "the focus returns to the button"


def test_a_lost_server_shows_a_banner_until_it_is_back(site: SampleSite, opened: Opened) -> None:
    page, faults = opened
    for text in ("net::ERR_", "Failed to fetch", "500"):  # 500: the end of the server cancels a request
        faults.expect(text)
    site.stop()
    expect_lost(page, True)
    assert page.locator("tbody tr").count() == 50, "the last values stay"
    site.start()
    expect_lost(page, False)
    wait_refresh(page)


def test_a_failing_refresh_shows_its_error_once(site: SampleSite, opened: Opened) -> None:
    page, faults = opened
    faults.expect("502")
    site.is_broken = True
    expect_lost(page, True)
    wait_polls(site, page, 2)
    assert "no name server responded" in page.locator("#lost").inner_text()
    assert page.locator(".notice").count() == 0
    assert page.locator("tbody tr").count() == 50
    site.is_broken = False
    expect_lost(page, False)


def test_a_logged_out_tab_leaves_the_page(site: SampleSite, opened: Opened) -> None:
    page, faults = opened
    faults.expect("401")
    faults.expect("404")  # of the page to which the site leads
    site.is_logged_out = True
    page.wait_for_url(re.compile("logged-out"))


def test_keyboard_shortcuts(sample: Page) -> None:
    sample.keyboard.press("/")
    assert sample.evaluate("document.activeElement.type") == "search"
    sample.keyboard.type("g?")
    assert sample.locator("[data-search]").input_value() == "g?", "keys are text inside of a field"
    sample.locator("[data-search]").fill("")
    sample.evaluate("document.activeElement.blur()")
    sample.keyboard.press("?")
    dialog = sample.get_by_role("dialog", name="Keyboard shortcuts")
    dialog.wait_for()
    dialog.get_by_label("Use single-key shortcuts").uncheck()
    dialog.get_by_role("button", name="Close").click()
    sample.keyboard.press("/")
    assert sample.evaluate("document.activeElement.type") != "search"
    sample.evaluate("localStorage.clear()")
    sample.route("**/groups", lambda route: route.fulfill(body="groups"))
    with sample.expect_navigation(url="**/groups"):
        sample.keyboard.press("g")
        sample.keyboard.press("g")


def test_copy(sample: Page) -> None:
    sample.locator("#row-name-001 .copy").click()
    sample.wait_for_function("() => document.querySelector('#announcer').textContent === 'Copied'")
    assert sample.evaluate("navigator.clipboard.readText()") == "name-001"


def test_charts_show_names_as_text_and_have_a_table(sample: Page) -> None:
    canvas = sample.locator("#rates canvas").first
    canvas.wait_for()
    canvas.hover(position={"x": 300, "y": 120})
    tip = sample.locator(".chart-tip")
    tip.wait_for()
    assert "<img src=x onerror=alert(1)>" in tip.inner_text()
    assert tip.locator("img").count() == 0
    sample.get_by_text("Data as a table").click()
    table = sample.locator("#rates-table table")
    table.locator("tbody tr").first.wait_for()  # the table is built when it is opened
    assert table.locator("tbody tr").count() == 30
    assert "? (unknown)" in table.locator("tbody tr").last.inner_text()
    assert "2026-11-22 09:38:35" in table.locator("tbody tr").last.inner_text(), "in the zone of the browser"
    first = table.locator("tbody tr").first.inner_text()
    sample.mouse.move(5, 5)
    wait_refresh(sample)
    sample.wait_for_function("first => document.querySelector('#rates-table tbody tr').innerText !== first", arg=first)
    assert sample.locator("#rates canvas").count() == canvas.count(), "the chart is updated, not drawn again"


def test_times_are_in_the_zone_of_the_browser_from_the_first_page(site: SampleSite, open_context: OpenContext) -> None:
    page = open_context(site.url, timezone_id="Asia/Shanghai")[0].new_page()
    page.goto(PATH)
    page.wait_for_function("() => document.cookie.includes('Asia%2FShanghai')")
    page.reload()
    assert page.locator("html").get_attribute("data-zone") == "Asia/Shanghai"


def test_narrow_screens_have_a_menu(site: SampleSite, open_context: OpenContext) -> None:
    page = open_context(site.url, viewport=NARROW, has_touch=True)[0].new_page()
    page.goto(PATH)
    assert page.evaluate("document.documentElement.scrollWidth") == NARROW["width"], "nothing is wider than the screen"
    assert not page.locator("#navigation").is_visible()
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Consumer groups").wait_for()
    page.keyboard.press("Escape")
    assert not page.locator("#navigation").is_visible()
    small = page.evaluate(
        """() => [...document.querySelectorAll('button, select, a.button, .pager a, input[type=search]')]
          .filter(element => element.checkVisibility() && element.getBoundingClientRect().height < 44)
          .map(element => element.outerHTML.slice(0, 80))"""
    )
    assert small == []
