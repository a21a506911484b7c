"""Visits all pages of the console by following its links, as a reader would, and records faults and forms.

start pages ─→ visit: wide, narrow ─→ links ─→ one page of each route and of each of its tabs

With ARIANE_CRAWL=all two pages of each route and set of parameters are visited, the first one in dark colours as well, and one of
each route again in Chinese.
Routes come from the application, so that a page that no link reaches is reported (`unvisited`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import hostile_texts
from page_faults import NARROW, WIDE, PageFaults, axe_findings, overflow
from playwright.sync_api import BrowserContext, Page

import ci_form
from ariane.console.app import PAGES

IS_WHOLE = ci_form.IS_LONG or os.environ.get("ARIANE_CRAWL") == "all"
PER_ROUTE = 2 if IS_WHOLE else 1
# Parameters that change the order or extent of a list, not what the page is.
LIST_PARAMETERS = {"sort", "order", "page", "size"}
VARIANTS = {"kind", "state", "tab", "view"}  # parameters whose values are different pages
LANGUAGE_COOKIE = "ariane_language"
# Not pages: they change the reader's settings, or are files.
SKIPPED = ("/preferences", "/static", "/logout", "/api/", "/openapi")

# Routes that are files, which a browser stores.
DOWNLOADS = {
    "/messages/{message_id}/body",
    "/dead-letters/{group}/export.csv",
    "/dead-letters/{group}/export.json",
    "/audit/export.csv",
    "/audit/export.jsonl",
}
# Swagger's own page: its markup is not ours to correct.
FOREIGN = ("/docs",)

_LINKS_AND_FORMS = """() => {
  const verb = node => ["post", "put", "patch", "delete"].find(name => node.hasAttribute("hx-" + name));
  const action = node => node.getAttribute("hx-" + verb(node)) ?? node.getAttribute("action") ?? location.pathname;
  const describe = node => ({
    method: verb(node) ?? node.method ?? "get",
    action: action(node),
    fields: [...(node.elements ?? [])].map(item => item.name).filter(Boolean),
  });
  const links = [...document.querySelectorAll("a[href]:not([download])")].map(node => node.href);
  const forms = [...document.querySelectorAll("form")];
  const others = [...document.querySelectorAll("button, a")].filter(verb);
  return {links, forms: [...forms, ...others].map(describe)};
}"""


@dataclass(frozen=True)
class FoundForm:
    """A form of a page."""

    method: str
    route: str  # of its action, with parameters in braces
    page: str  # route of the page
    fields: tuple[str, ...]


@dataclass
class CrawlResult:
    """What the crawler saw."""

    faults: list[str] = field(default_factory=list)  # "ROUTE mode: fault (URL)"
    urls: dict[str, list[str]] = field(default_factory=dict)  # visited, by route
    forms: set[FoundForm] = field(default_factory=set)

    @property
    def routes(self) -> set[str]:
        return set(self.urls)


class RouteTable:
    """The routes of the console's HTML pages and changes."""

    def __init__(self) -> None:
        routes = (route for router in PAGES for route in router.routes)
        self._routes: list[Any] = [route for route in routes if not route.path.startswith(SKIPPED)]

    def pages(self) -> set[str]:
        """Return the paths of all pages."""
        return {route.path for route in self._routes if "GET" in route.methods}

    def changes(self) -> set[tuple[str, str]]:
        """Return method and path of everything that is not a page."""
        return {(method, route.path) for route in self._routes for method in route.methods - {"GET", "HEAD", "OPTIONS"}}

    def path_of(self, path: str, method: str = "GET") -> str | None:
        """Return the route of a path; None if there is none."""
        for route in self._routes:
            if method.upper() in route.methods and route.path_regex.match(path):
                return str(route.path)
        return None


class Crawler:
    """Visits pages in one context.

    Args:
        context: Context of the browser.
        faults: Faults of its pages.
        table: Routes of the console.
        url: Address of the console.
    """

    def __init__(self, context: BrowserContext, faults: PageFaults, table: RouteTable, url: str) -> None:
        self._page: Page = context.new_page()
        self._faults = faults
        self._table = table
        self._url = url
        self._result = CrawlResult()
        self._seen: set[str] = set()
        self._counts: Counter[tuple[str, ...]] = Counter()

    def crawl(self, starts: Sequence[str]) -> CrawlResult:
        """Visit `starts` and everything that they link to."""
        waiting = list(starts)
        while waiting:
            path = waiting.pop(0)
            route = self._table.path_of(urlsplit(path).path)
            if route is None:
                self._result.faults.append(f"link to a page that does not exist: {path}")
            elif route not in DOWNLOADS and path not in self._seen and (self._is_new(route, path) or path in starts):
                self._seen.add(path)
                # Names with markup first: PER_ROUTE ends the list.
                waiting += sorted(self._visit(path, route), key=lambda link: "<" not in unquote(link))
        return self._result

    def _is_new(self, route: str, path: str) -> bool:
        parameters = dict(parse_qsl(urlsplit(path).query, keep_blank_values=True))
        # Another order or page of a list is the same page, but one such link of each route is followed.
        if LIST_PARAMETERS & parameters.keys():
            kind = ["list"]
        else:
            names = sorted(parameters) if IS_WHOLE else sorted(VARIANTS & parameters.keys())
            kind = [f"{name}={parameters[name]}" if name in VARIANTS else name for name in names]
        self._counts[(route, *kind)] += 1
        return self._counts[(route, *kind)] <= (1 if kind == ["list"] else PER_ROUTE)

    def _visit(self, path: str, route: str) -> list[str]:
        """Open a page in all sizes and colours; return its links into the console."""
        page = self._page
        is_first = route not in self._result.urls
        self._result.urls.setdefault(route, []).append(path)
        page.set_viewport_size(WIDE)  # type: ignore[arg-type]
        page.goto(path, wait_until="load")
        # Later pages of a route have other texts but the same markup.
        findings = axe_findings(page) if is_first and route not in FOREIGN else []
        self._check(route, "light", path, findings)
        seen = page.evaluate(_LINKS_AND_FORMS)
        if IS_WHOLE and is_first and route not in FOREIGN:
            page.emulate_media(color_scheme="dark")
            self._check(route, "dark", path, axe_findings(page, ["color-contrast"]))
        page.set_viewport_size(NARROW)  # type: ignore[arg-type]
        self._check(
            route, "narrow", path, axe_findings(page, ["target-size"]) if is_first and route not in FOREIGN else []
        )
        page.emulate_media(color_scheme="light")
        if route in FOREIGN:
            return []
        for item in seen["forms"]:
            self._add_form(item, route)
        links = (link.removeprefix(self._url) for link in seen["links"] if link.startswith(f"{self._url}/"))
        return [link.partition("#")[0] for link in links if not link.startswith(SKIPPED)]

    def revisit(self, language: str) -> None:
        """Open one page of each route again, in another language and on a small screen."""
        self._page.context.add_cookies([{"name": LANGUAGE_COOKIE, "value": language, "url": self._url}])
        self._page.set_viewport_size(NARROW)  # type: ignore[arg-type]
        for route, (path, *_) in self._result.urls.items():
            self._page.goto(path, wait_until="load")
            is_translated = str(self._page.evaluate("document.documentElement.lang")).startswith(language)
            self._check(route, language, path, [] if is_translated or route in FOREIGN else ["not translated"])

    def _check(self, route: str, mode: str, path: str, findings: list[str]) -> None:
        text = self._page.evaluate("document.body.innerText")
        if any(mark in text for mark in hostile_texts.EVALUATED):
            findings.append("template syntax was evaluated")
        findings += overflow(self._page)
        # No broker accepts a name with markup: pages that search by it answer 422, with the reason.
        is_rejected = "<" in unquote(path)
        faults = [fault for fault in self._faults.take() if not (is_rejected and "422" in fault)]
        self._result.faults += [f"{route} {mode}: {fault} ({path})" for fault in (*faults, *findings)]

    def _add_form(self, item: dict[str, Any], page: str) -> None:
        method = item["method"].upper()
        path = urlsplit(item["action"]).path or "/"
        route = self._table.path_of(path, method) or f"no route: {path}"
        if not path.startswith(SKIPPED):
            self._result.forms.add(FoundForm(method, route, page, tuple(dict.fromkeys(item["fields"]))))
