"""Fills in a form of a page as a reader does, and returns what the page then shows."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from crawler import RouteTable
from playwright.sync_api import Locator, Page

# Where pages show the results of changes.
RESULTS = "#notices, dialog[open] [data-dialog-notices], #result"
DRY_RUN = "isDryRun"
APPEARS_S = 60.0  # on a machine that other tests load


@dataclass(frozen=True)
class FormUse:
    """A use of a form.

    Attributes:
        page: Address of the page; `{NAME}` stands for an id of `TrafficProgram.info`.
        form: Route of the form's action.
        result: Text that the page shows afterwards.
        fields: Values by name of the field; a bool for check boxes.
        button: Name of the button to press; empty: the last one.
        container: Selector that the form is in, where a page has several of one route.
        link: Text of a link to follow first, to a page whose address the test cannot compute.
    """

    page: str
    form: str
    result: str
    fields: Mapping[str, str | bool] = field(default_factory=dict)
    button: str = ""
    container: str = ""
    link: str = ""

    def with_ids(self, ids: Mapping[str, str]) -> FormUse:
        """Return the use with the ids of messages in place of their names in braces."""

        def insert(text: str | bool) -> str | bool:
            return re.sub(r"\{(.+?)\}", lambda name: ids[name[1]], text) if isinstance(text, str) else text

        fields = {name: insert(value) for name, value in self.fields.items()}
        return dataclasses.replace(self, page=str(insert(self.page)), fields=fields)

    def __str__(self) -> str:
        return f"{self.form} {self.button}".strip()


def use_form(page: Page, table: RouteTable, use: FormUse) -> None:
    """Open the page, fill in the form, press the button and wait for the result.

    Raises:
        AssertionError: the page has no such form, or does not show the result.
    """
    deadline = time.monotonic() + APPEARS_S
    while True:
        page.goto(use.page, wait_until="load")
        if use.link:
            page.locator("#content").get_by_role("link", name=use.link, exact=True).first.click()
            page.wait_for_load_state("load")
        form = _find(page, table, use, is_last_attempt=time.monotonic() > deadline)
        if form is not None:
            break
        page.wait_for_timeout(500)
    _reveal(page, form)
    for name, value in use.fields.items():
        _fill(form, name, value)
    button = (
        form.locator(f"button[name='{use.button}']") if use.button else form.locator("button:not([type=button])").last
    )
    button.click()
    found = page.locator(RESULTS).filter(has_text=use.result).first
    try:
        found.wait_for(state="visible")
    except Exception:
        shown = [text.strip() for text in page.locator(RESULTS).all_inner_texts()]
        raise AssertionError(f"{use}: expected {use.result!r} at {page.url}, found {shown}") from None


def _find(page: Page, table: RouteTable, use: FormUse, *, is_last_attempt: bool) -> Locator | None:
    """Return the form; None if the page may still show it later, for example that of an alert."""
    scope = f"{use.container} form" if use.container else "form"
    actions: list[tuple[str, str]] = page.locator(scope).evaluate_all(
        "forms => forms.map(form => [form.hasAttribute('hx-delete') ? 'DELETE' : form.method.toUpperCase(),"
        " form.getAttribute('hx-post') ?? form.getAttribute('hx-delete') ?? form.getAttribute('action') ?? ''])"
    )
    for number, (method, action) in enumerate(actions):
        if table.path_of(urlsplit(action).path, method) == use.form and method != "GET":
            return page.locator(scope).nth(number)
    if not is_last_attempt:
        return None
    raise AssertionError(f"{use.page} has no form for {use.form}; it has {actions}")


def _reveal(page: Page, form: Locator) -> None:
    """Open the dialog and the sections that contain the form."""
    dialog = form.evaluate("form => form.closest('dialog')?.id ?? ''")
    if dialog:
        page.locator(f"[data-open='{dialog}']").first.click()
    for details in form.locator("details:not([open]) > summary").all():
        details.click()
    form.evaluate("form => { for (let at = form; at = at.parentElement?.closest('details'); ) at.open = true; }")


def _fill(form: Locator, name: str, value: str | bool) -> None:
    item = form.locator(f"[name='{name}']:not([type=hidden])").first
    kind = item.evaluate("item => item.tagName === 'SELECT' ? 'select' : item.type")
    if kind == "select":
        item.select_option(str(value))
    elif kind == "radio":
        form.locator(f"[name='{name}'][value='{value}']").check()
    elif isinstance(value, bool):
        item.set_checked(value)
    else:
        item.fill(value)
