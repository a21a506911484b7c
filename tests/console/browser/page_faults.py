"""What no page may do: errors in the browser's log, violations of the content policy, requests to other hosts, failed
responses, dialogs (a script of a payload ran), a document wider than its window, findings of axe-core.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Page, Request, Response

WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 380, "height": 800}  # windows of a desk and of a telephone
AXE = Path(__file__).resolve().parents[1] / "vendor" / "axe-core" / "axe.min.js"
# Rules of WCAG 2.2 A and AA, and of good practice.
AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

_RUN_AXE = """async ([tags, rules]) => {
  const only = rules ? {type: "rule", values: rules} : {type: "tag", values: tags};
  const result = await axe.run(document, {runOnly: only, resultTypes: ["violations"]});
  const shown = node => node.target.join(" ") + " " + node.html.slice(0, 160);
  return result.violations.map(({id, nodes}) => [id, nodes.slice(0, 3).map(shown)]);
}"""

# Elements whose contents scroll may be wider than the window; the document may not.
_OVERFLOW = """() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width) return null;
  const scrolls = node => { for (let at = node.parentElement; at && at !== document.body; at = at.parentElement)
    if (/auto|scroll|hidden|clip/.test(getComputedStyle(at).overflowX)) return true; return false; };
  const isWide = node => node.getBoundingClientRect().right > width + 1 && !scrolls(node);
  const wide = [...document.body.querySelectorAll("*")].filter(isWide);
  return `${document.documentElement.scrollWidth} px wide: ` + wide.slice(-3).map(node => node.outerHTML.slice(0, 120)).join(" | ");
}"""


class PageFaults:
    """Records the faults of all pages of a browser context.

    Args:
        context: Context without pages.
        url: Address of the console; requests to other hosts are faults.
    """

    def __init__(self, context: BrowserContext, url: str) -> None:
        self._host = urlsplit(url).netloc
        self._faults: list[str] = []
        self._expected: list[str] = []  # texts of faults that a test causes
        # Axe is installed before the page's own scripts; the content policy does not apply to it.
        context.add_init_script(path=AXE)
        # An exception that no handler catches is not in the browser's log.
        context.on("weberror", lambda error: self._faults.append(f"script error: {error.error}"))
        context.on("console", self._on_console)
        context.on("dialog", self._on_dialog)
        context.on("request", self._on_request)
        context.on("response", self._on_response)

    def expect(self, text: str) -> None:
        """Accept faults that contain `text`."""
        self._expected.append(text)

    def take(self) -> list[str]:
        """Return the faults so far, and forget them."""
        faults, self._faults = self._faults, []
        return [fault for fault in faults if not any(text in fault for text in self._expected)]

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._faults.append(f"browser log: {message.type}: {message.text}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self._faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.netloc != self._host:
            self._faults.append(f"request to another host: {request.url}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400:
            self._faults.append(f"status {response.status}: {response.request.method} {response.url}")


# A function that opens a context for a URL; the fixture `open_context`.
OpenContext = Callable[..., tuple[BrowserContext, PageFaults]]


def overflow(page: Page) -> list[str]:
    """Return which elements make the document wider than its window."""
    found = page.evaluate(_OVERFLOW)
    return [f"overflow: {found}"] if found else []


def axe_findings(page: Page, rules: list[str] | None = None) -> list[str]:
    """Return the findings of axe-core, of all rules or of some."""
    violations: list[Any] = page.evaluate(_RUN_AXE, [AXE_TAGS, rules])
    return [f"axe {rule}: {json.dumps(nodes, ensure_ascii=False)}" for rule, nodes in violations]
