"""Renders templates, and answers forms.

    render(request, "topics/list.html", view=…)   a page; for htmx only its content
    changed(request, result)                      the answer to a form: a notice, then live parts are refreshed, or another page

Templates have the globals `_`, `_n` (texts), `asset`, `link`, `page_path`, `can` and `preferences`; macros.html describes them.
"""

from __future__ import annotations

from functools import cache
from typing import Any
from urllib.parse import quote, unquote, urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

import ariane
from ariane.console.limits.access import current_access
from ariane.console.security.accounts.identity import has_role, identity_of
from ariane.console.security.audit_notes import note
from ariane.console.security.request_checks import page_path
from ariane.console.security.roles import ConsoleRole
from ariane.console.texts import preferences, text_format, translation
from ariane.console.web import static_assets
from ariane.console.web.view_model import ChangeResult

NOTICE_COOKIE = "ariane_notice"  # carries the notice of a change to the page that follows it
NOTICE_MAX_AGE_S = 60


def render(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """Return a page, from a path below templates/; for a request of htmx only the content, without navigation."""
    return _page(request, template, "fragment.html", status, context)


def _page(request: Request, template: str, fragment: str, status: int, context: dict[str, Any]) -> HTMLResponse:
    """Return a page; for htmx only what the layout `fragment` contains."""
    is_fragment = is_htmx(request)
    notice = "" if is_fragment else unquote(request.cookies.get(NOTICE_COOKIE, ""))
    variables = _page_context(request) | context
    layout = fragment if is_fragment else "layout.html"
    html = _environment().get_template(template).render(**variables, layout=layout, notice=notice)
    response = HTMLResponse(html, status_code=status)
    response.headers["Vary"] = "HX-Request"  # a cache must not return the content alone for the whole page
    if notice:
        response.delete_cookie(NOTICE_COOKIE)
    return response


def changed(request: Request, result: ChangeResult, *, location: str | None = None) -> Response:
    """Return the answer to a form whose change succeeded.

    `location` is the page that follows; None: the same page, whose live parts are refreshed.
    """
    note(result.notice)  # for the audit entry of the request
    if is_htmx(request) and location is None:
        return _notice(request, result.notice, "success", headers={"HX-Trigger": "console-changed"})
    target = location or page_path(request.headers.get("referer"))
    response: Response
    if is_htmx(request):
        response = Response(status_code=204, headers={"HX-Redirect": target})
    else:
        response = RedirectResponse(target, status_code=303)
    response.set_cookie(NOTICE_COOKIE, quote(result.notice), max_age=NOTICE_MAX_AGE_S, httponly=True, samesite="strict")
    return response


def answer_change(request: Request, result: ChangeResult, *, location: str | None = None) -> Response:
    """Return the answer to a form: its plan after a dry run, otherwise as `changed`."""
    if result.is_dry_run:
        return shown_below(request, "topics/plan.html", result=result)
    return changed(request, result, location=location)


def shown_below(request: Request, template: str, **context: Any) -> HTMLResponse:
    """Return the answer to a form whose result is more than a notice: a plan, a sent message.

    htmx shows it in the element `#result` of the page; without htmx it is a page of its own.
    """
    # A title in the answer would replace that of the page.
    response = _page(request, template, "result.html", 200, context)
    response.headers.update({"HX-Retarget": "#result", "HX-Reswap": "innerHTML"})
    return response


def failed(request: Request, message: str, *, status: int) -> HTMLResponse:
    """Return an error: a notice for htmx, otherwise a page."""
    if is_htmx(request):
        return _notice(request, message, "error", status=status)
    return render(request, "error.html", status=status, message=message, code=status)


def is_htmx(request: Request) -> bool:
    """Return whether htmx sent the request, for a part of a page."""
    return request.headers.get("HX-Request") == "true"


def _notice(
    request: Request, text: str, kind: str, *, status: int = 200, headers: dict[str, str] | None = None
) -> HTMLResponse:
    """Return a notice that htmx shows above the content, not in the part of the page that was requested."""
    html = _environment().get_template("notice.html").render(**_page_context(request), notice=text, kind=kind)
    # The element that sent the request may select a part of the answer: here all of it is wanted.
    target = {"HX-Retarget": "#notices", "HX-Reswap": "innerHTML", "HX-Reselect": ".notice"}
    return HTMLResponse(html, status, headers=target | (headers or {}))


def _page_context(request: Request) -> dict[str, Any]:
    """Return the variables of every template."""
    # As in the address of the page: a "%" of a name stays a part of it. "//host" at the start would be another host.
    page_path = "/" + quote(request.scope["path"], safe="/:@").lstrip("/")

    def link(**changes: object) -> str:
        """Return the URL of this page with some parameters changed; None removes one."""
        parameters = [(name, value) for name, value in request.query_params.multi_items() if name not in changes]
        parameters += [(name, str(value)) for name, value in changes.items() if value is not None]
        return f"{page_path}?{urlencode(parameters)}" if parameters else page_path

    services = getattr(request.app.state, "services", None)
    identity = identity_of(request)
    return {
        "request": request,
        "page_path": page_path,
        "link": link,
        "preferences": preferences.current(),
        "version": ariane.__version__,
        "cluster_name": services.settings.namesrv if services else "",
        "protection": services.protection if services else None,
        "csrf_token": identity.csrf_token if identity else "",
        "identity": identity,
        "is_limited": current_access().is_limited,  # to some topics and groups
        "can": lambda role: has_role(request, ConsoleRole(role)),
    }


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ariane.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(text_format.FILTERS)
    environment.globals |= {"_": translation.gettext, "_n": translation.ngettext, "asset": static_assets.asset_url}
    return environment
