"""What a reader sees at 1440 and 380 px, measured in the browser: cards, charts, tables, rows, the sidebar."""

from __future__ import annotations

import re

import pytest
from console_program import ConsoleProgram

pytest.importorskip("playwright", reason="needs playwright: pip install playwright")
pytest.importorskip("fastapi", reason="needs fastapi: pip install 'ariane[console]'")

from page_faults import NARROW, WIDE, OpenContext, axe_findings
from playwright.sync_api import Page, expect

CARD_PAGES = (
    "/",
    "/groups/billing",
    "/groups/billing/traffic",
    "/topics/orders",
    "/brokers/broker-a",
    "/delayed",
    "/transactions",
)

# Per row of cards: the width that it does not fill, and the values that are higher than a line.
CARD_FAULTS = """() => {
  const faults = [];
  for (const stats of document.querySelectorAll(".stats")) {
    const rows = new Map();
    for (const card of stats.children) {
      const box = card.getBoundingClientRect();
      rows.set(box.top, [...(rows.get(box.top) ?? []), box]);
    }
    const gap = parseFloat(getComputedStyle(stats).columnGap);
    for (const boxes of rows.values()) {
      const used = boxes.reduce((sum, box) => sum + box.width, gap * (boxes.length - 1));
      if (Math.abs(used - stats.clientWidth) > 2) faults.push(`row of ${boxes.length} cards: ${used} of ${stats.clientWidth} px`);
    }
    for (const value of stats.querySelectorAll(".stat-value:not(:has(.nowrap)), .stat-value .nowrap")) {
      const lines = new Set([...value.getClientRects()].map(rect => Math.round(rect.bottom)));
      if (lines.size > 1) faults.push(`broken value: ${value.textContent}`);
    }
  }
  return faults;
}"""
HEADERS = "cells => cells.map(cell => cell.innerText.trim())"
# Columns that are wholly visible inside of their region.
VISIBLE = """cells => cells.filter(cell => {
  const box = cell.getBoundingClientRect(), region = cell.closest(".table-region").getBoundingClientRect();
  return box.left >= region.left - 1 && box.right <= region.right + 1;
}).map(cell => cell.innerText.trim())"""


def narrow_page(console: ConsoleProgram, open_context: OpenContext) -> Page:
    return open_context(console.url, viewport=NARROW)[0].new_page()


@pytest.mark.parametrize("width", [WIDE, NARROW, {"width": 1000, "height": 900}], ids=["wide", "narrow", "between"])
def test_cards_fill_their_rows_and_values_do_not_break(
    console: ConsoleProgram, open_context: OpenContext, width: dict[str, int]
) -> None:
    page = open_context(console.url, viewport=width)[0].new_page()
    faults = []
    for path in CARD_PAGES:
        page.goto(path)
        expect(page.locator(".stats").first).to_be_visible()
        faults += [f"{path}: {fault}" for fault in page.evaluate(CARD_FAULTS)]
    assert faults == []


def test_the_sidebar_is_as_long_as_the_page(page: Page) -> None:
    page.goto("/brokers/broker-a")
    heights = page.evaluate(
        "() => [document.querySelector('#navigation').getBoundingClientRect().bottom + scrollY,"
        " document.documentElement.scrollHeight]"
    )
    assert heights[1] > WIDE["height"], "the page is longer than the window"
    assert abs(heights[0] - heights[1]) < 2
    page.evaluate("scrollTo(0, 600)")
    expect(page.locator("#navigation a[href='/topics']")).to_be_in_viewport()


def test_the_lag_comes_second_on_a_telephone(console: ConsoleProgram, open_context: OpenContext) -> None:
    page = narrow_page(console, open_context)
    for path, names in (("/groups", ["Group", "Lag", "Oldest"]), ("/groups/billing", ["Queue", "Lag", "Oldest"])):
        page.goto(path)
        table = page.locator(".table-region table").last
        assert table.locator("thead tr > *").evaluate_all(HEADERS)[:3] == names
        assert table.locator("thead tr > *").evaluate_all(VISIBLE)[:3] == names


def test_numbers_are_visible_on_a_desk(page: Page) -> None:
    for path in ("/groups", "/groups/invoicing", "/groups/invoicing/clients", "/topics", "/producers"):
        page.goto(path)
        numbers = page.locator(".table-region").last.locator("thead .num")
        assert numbers.evaluate_all(VISIBLE) == numbers.evaluate_all(HEADERS), path


def test_clipped_columns_have_a_shadow_and_key_and_buttons_stay(
    console: ConsoleProgram, open_context: OpenContext
) -> None:
    page = narrow_page(console, open_context)
    page.goto("/delayed")
    region = page.locator(".table-region:has(.row-actions)")
    expect(region).to_have_attribute("data-clipped", "right")
    assert "inset" in region.evaluate("node => getComputedStyle(node).boxShadow")
    later = page.get_by_role("row", name=re.compile("STAYS"))
    region.evaluate("node => node.scrollTo(node.scrollWidth / 4, 0)")
    expect(region).to_have_attribute("data-clipped", "left right")
    for cell in (later.locator("strong"), later.get_by_role("link", name="Cancel")):
        left, right = cell.evaluate("node => [node.getBoundingClientRect().left, node.getBoundingClientRect().right]")
        assert 0 <= left < right <= NARROW["width"], "outside of the window"
        assert cell.evaluate(
            "node => { const box = node.getBoundingClientRect(); node.scrollIntoView({block: 'center'});"
            " const now = node.getBoundingClientRect();"
            " return node.contains(document.elementFromPoint((now.left + now.right) / 2, (now.top + now.bottom) / 2)); }"
        ), "covered by another cell"
    region.evaluate("node => node.scrollTo(node.scrollWidth, 0)")
    expect(region).to_have_attribute("data-clipped", "left")


def test_long_client_ids_take_one_line_and_can_be_copied(console: ConsoleProgram, open_context: OpenContext) -> None:
    page = open_context(console.url, permissions=["clipboard-read", "clipboard-write"])[0].new_page()
    page.goto("/groups/invoicing/clients")
    client = page.locator("td .client").first
    full = client.locator(".clip").get_attribute("title") or ""
    assert len(full) > 190
    assert client.evaluate("node => node.getClientRects().length") == 1
    assert client.bounding_box()["height"] < 40  # type: ignore[index]
    assert client.inner_text().strip().endswith(full[-8:]), "the end of the id is visible: ids differ there"
    client.locator(".copy").click()
    assert page.evaluate("navigator.clipboard.readText()") == full


def test_a_click_on_a_row_and_the_arrow_keys_lead_to_its_page(page: Page) -> None:
    page.goto("/groups")
    row = page.locator("tbody tr", has=page.get_by_role("link", name="billing", exact=True))
    row.locator("td").last.click()
    expect(page).to_have_url(re.compile("/groups/billing$"))
    page.goto("/groups")
    links = page.locator("a[data-row]")
    links.first.focus()
    page.keyboard.press("ArrowDown")
    expect(links.nth(1)).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(links.first).to_be_focused()


AXES = """() => [...document.querySelectorAll(".chart-canvas")].map(canvas => {
  const model = echarts.getInstanceByDom(canvas).getModel();
  const [x, y] = ["xAxis", "yAxis"].map(name => model.getComponent(name).axis);
  return {extent: x.scale.getExtent(), ticks: y.scale.getTicks().length, height: canvas.clientHeight};
})"""


def test_charts_have_one_range_and_readable_axes(page: Page) -> None:
    for path, range_ms in (("/", 3_600_000), ("/?range=15m", 900_000), ("/groups/billing/traffic", 3_600_000)):
        page.goto(path)
        page.wait_for_function("() => document.querySelectorAll('.chart-canvas canvas').length >= 2")
        axes = page.evaluate(AXES)
        assert len({tuple(axis["extent"]) for axis in axes}) == 1, "one range for all charts of a page"
        for axis in axes:
            start, end = axis["extent"]
            assert end - start == range_ms, path
            assert axis["height"] >= 160 and 3 <= axis["ticks"] <= 4
    page.goto("/")
    page.get_by_role("link", name="30 min", exact=True).click()
    expect(page).to_have_url(re.compile(r"range=30m"))
    expect(page.get_by_role("link", name="30 min", exact=True)).to_have_attribute("aria-current", "true")


def test_the_page_of_a_group_opens_with_its_lag_chart(page: Page) -> None:
    page.goto("/groups/billing")
    expect(page.locator("#progress-lag canvas")).to_be_in_viewport()


def test_a_message_opens_beside_the_list_and_has_an_address(page: Page) -> None:
    page.goto("/messages?topic=orders")
    before = page.locator("#messages tbody tr").count()
    page.locator("#messages tbody tr").nth(1).locator("td").nth(2).click()
    panel = page.locator("#panel")
    expect(panel.get_by_role("heading", name="Position")).to_be_visible()
    assert page.locator("#messages tbody tr").count() == before, "the list stays"
    first = page.url
    assert "open=" in first
    page.locator("#messages tbody tr").nth(2).locator("td").nth(2).click()
    page.wait_for_url(lambda url: url != first)
    second_id = page.locator("tr:has(a[data-row][aria-current]) .clip").get_attribute("title") or "-"
    expect(panel).to_contain_text(second_id)
    page.go_back()
    expect(panel).not_to_contain_text(second_id)
    expect(panel.get_by_role("heading", name="Position")).to_be_visible()
    page.go_back()
    expect(panel).to_be_hidden()
    page.goto(first)
    expect(panel.get_by_role("heading", name="Position")).to_be_visible()
    assert axe_findings(page) == []
    panel.get_by_role("button", name="Close").click()
    expect(panel).to_be_hidden()
    assert "open=" not in page.url


def test_a_message_has_the_whole_window_of_a_telephone(console: ConsoleProgram, open_context: OpenContext) -> None:
    page = narrow_page(console, open_context)
    page.goto("/messages?topic=orders")
    page.locator("#messages tbody tr").first.locator("a[data-row]").click()
    expect(page).to_have_url(re.compile("/messages/[0-9A-F]{32}$"))


def test_the_panel_opens_no_other_page(page: Page) -> None:
    page.goto("/messages?topic=orders&open=//example.com/messages/1")
    expect(page.locator("#messages")).to_be_visible()
    expect(page.locator("#panel")).to_be_hidden()


def test_copies_in_internal_topics_are_folded_under_the_original(page: Page) -> None:
    page.goto("/messages?q=ORDER-4")  # retried once; dead letters are sent again by the tests of forms
    rows = page.locator("#messages tbody tr")
    expect(rows).to_have_count(1)
    rows.get_by_text("Copies:").click()
    assert page.url.endswith("q=ORDER-4"), "the fold is not the link of the row"
    expect(rows.get_by_role("link", name=re.compile("Retry .* of billing"))).to_be_visible()


def test_a_body_in_gbk_is_read_and_the_encoding_can_be_changed(page: Page) -> None:
    page.goto("/messages?q=gbk&topic=legacy")
    expect(page.locator("#messages")).to_contain_text("订单已创建")
    page.goto("/messages?q=shift_jis&topic=legacy")
    page.locator("#messages a[data-row]").click()
    body = page.locator("#panel #body")
    expect(body.locator("pre")).to_contain_text("注文を受け付けました")
    expect(body).to_contain_text("which is a guess")
    body.get_by_role("link", name="GBK", exact=True).click()
    expect(body.locator("pre")).not_to_contain_text("注文")
    expect(body.get_by_role("link", name="GBK", exact=True)).to_have_attribute("aria-current", "true")
    body.get_by_role("link", name="Hex").click()
    expect(body.locator("pre")).to_contain_text("00000000")
