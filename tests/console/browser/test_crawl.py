"""Every page, tab and detail page of the console, with real traffic and hostile texts: no fault in any size or colour.

ARIANE_CRAWL=all visits more pages of each kind, and all in Chinese (crawler.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import hostile_texts
import pytest
from console_program import ConsoleProgram, TrafficProgram

pytest.importorskip("playwright", reason="needs playwright: pip install playwright")
pytest.importorskip("fastapi", reason="needs fastapi: pip install 'ariane[console]'")

from crawler import DOWNLOADS, IS_WHOLE, Crawler, CrawlResult, RouteTable
from page_faults import PageFaults
from playwright.sync_api import Browser

# Pages that links reach only after a search, and pages of names with markup.
STARTS = (
    "/",
    "/topics/orders",
    "/topics/" + quote(hostile_texts.TOPIC, safe=""),
    "/topics/%25RETRY%25accounts/queues",
    "/groups/billing",
    "/groups/billing/in-flight",  # its link needs messages in flight
    "/groups/" + quote(hostile_texts.GROUP, safe=""),
    "/messages?q=ORDER-6&topic=orders",
    "/messages?q=" + quote(hostile_texts.IMAGE_WITHOUT_SPACES, safe=""),
    "/trace?q=ORDER-6&topic=orders",
    "/dead-letters/billing",
)
# Pages of accounts and of the log-in: this console has no account (test_behaviour.py has a console with accounts).
NEED_ACCOUNTS = {"/login", "/login/ended", "/account", "/access/users/{name}", "/access/acl/account"}
NEED_ACCOUNTS |= {"/access/acl/user", "/access/acl/policy"}  # of brokers with users: test_account_forms.py
NEED_ACCOUNTS |= {"/login/oidc", "/login/oidc/callback"}  # of a provider: test_oidc_with_provider.py
# test_forms.py creates a channel and opens its page.
NOT_PAGES = {*NEED_ACCOUNTS, *DOWNLOADS, "/alerts/channels/{channel_id}"}


@pytest.fixture(scope="module")
def table() -> RouteTable:
    return RouteTable()


@pytest.fixture(scope="module")
def crawled(
    browser: Browser, console: ConsoleProgram, cluster: TrafficProgram, table: RouteTable
) -> Iterator[CrawlResult]:
    context = browser.new_context(base_url=console.url, timezone_id="Europe/Berlin", locale="en-GB")
    crawler = Crawler(context, PageFaults(context, console.url), table, console.url)
    consumers = f"/messages/{cluster.info['ids']['order 1']}/consumers"  # its link goes when the consumers are loaded
    result = crawler.crawl([*STARTS, consumers])
    if IS_WHOLE:
        crawler.revisit("zh")
    yield result
    context.close()


def test_no_page_has_a_fault(crawled: CrawlResult) -> None:
    assert not crawled.faults, "\n".join(crawled.faults)


def test_every_page_is_reached(crawled: CrawlResult, table: RouteTable) -> None:
    assert table.pages() - crawled.routes - NOT_PAGES == set()
