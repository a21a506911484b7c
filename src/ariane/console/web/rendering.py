"""Renders templates, and answers forms.

    render(request, "topics/list.html", view=…)   a page; for htmx only its content
    changed(request, "created topic orders")      the answer to a form: a notice, then live parts are refreshed, or another page

Texts are translated by `_("…")`, whose key is the English text.
"""

from __future__ import annotations

from functools import cache
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

import ariane
from ariane.console.security.audit_notes import note
from ariane.console.security.identity import identity_of
from ariane.console.security.roles import ConsoleRole
from ariane.console.web import text_format

NOTICE_COOKIE = "ariane_notice"  # carries the notice of a change to the page that follows it
NOTICE_MAX_AGE_S = 60


def render(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """Return a page; for a request of htmx only the content, without navigation.

    Args:
        request: The request.
        template: Path below templates/.
        status: HTTP status.
        context: Variables of the template.
    """
    is_fragment = is_htmx(request)
    identity = identity_of(request)
    notice = "" if is_fragment else unquote(request.cookies.get(NOTICE_COOKIE, ""))
    html = _environment().get_template(template).render(
        request=request,
        layout="fragment.html" if is_fragment else "layout.html",
        notice=notice,
        version=ariane.__version__,
        _=lambda text, **values: text % values if values else text,
        identity=identity,
        can=lambda role: identity is not None and identity.role.includes(ConsoleRole(role)),
        csrf_token=identity.csrf_token if identity else "",
        **context,
    )  # fmt: skip
    response = HTMLResponse(html, status_code=status)
    response.headers["Vary"] = "HX-Request"  # a cache must not return the content alone for the whole page
    if notice:
        response.delete_cookie(NOTICE_COOKIE)
    return response


def changed(request: Request, notice: str, *, location: str | None = None) -> Response:
    """Return the answer to a form whose change succeeded.

    Args:
        request: The request.
        notice: What was done.
        location: Page that follows; None: the same page, whose live parts are refreshed.
    """
    note(notice)  # for the audit entry of the request
    if is_htmx(request) and location is None:
        html = _environment().get_template("notice.html").render(notice=notice, kind="success")
        headers = {"HX-Retarget": "#notices", "HX-Reswap": "innerHTML", "HX-Trigger": "console-changed"}
        return HTMLResponse(html, headers=headers)
    target = location or _path_of(request.headers.get("referer", "/"))
    response: Response
    if is_htmx(request):
        response = Response(status_code=204, headers={"HX-Redirect": target})
    else:
        response = RedirectResponse(target, status_code=303)
    response.set_cookie(NOTICE_COOKIE, quote(notice), max_age=NOTICE_MAX_AGE_S, httponly=True, samesite="strict")
    return response


def failed(request: Request, message: str, *, status: int) -> HTMLResponse:
    """Return an error: a notice for htmx, otherwise a page."""
    if is_htmx(request):
        html = _environment().get_template("notice.html").render(notice=message, kind="error")
        # htmx would swap the error into the part of the page that was requested.
        return HTMLResponse(html, status, headers={"HX-Retarget": "#notices", "HX-Reswap": "innerHTML"})
    return render(request, "error.html", status=status, message=message, code=status)


def is_htmx(request: Request) -> bool:
    """Return whether htmx sent the request, for a part of a page."""
    return request.headers.get("HX-Request") == "true"


def _path_of(url: str) -> str:
    """Return the path of a URL. Its host is dropped: the header may name any."""
    parts = urlsplit(url)
    path = "/" + parts.path.lstrip("/")  # "//host" would be another host
    return f"{path}?{parts.query}" if parts.query else path


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ariane.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(text_format.FILTERS)
    return environment
