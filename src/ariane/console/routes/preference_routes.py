"""Preferences of the reader, and the description of the REST API."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from ariane.console.security.accounts.session_cookie import is_https
from ariane.console.security.request_checks import local_path, page_path
from ariane.console.texts import preferences
from ariane.console.web.rendering import render

MAX_AGE_S = 365 * 24 * 3600

pages = APIRouter()


@pages.get("/preferences")
async def set_preferences(
    request: Request,
    theme: preferences.Theme | None = None,
    language: preferences.Language | None = None,
    zone: Literal["browser", "utc"] | None = None,
    next: str | None = None,
) -> Response:
    """Store preferences in cookies, then return to the page `next` or to the one that has the link.

    A GET: the links work without scripts and before log-in.
    """
    target = local_path(next) if next else page_path(request.headers.get("referer"))
    response = RedirectResponse(target, status_code=303)
    utc = {"utc": "1", "browser": "0", None: None}[zone]
    for name, value in (
        (preferences.THEME_COOKIE, theme),
        (preferences.LANGUAGE_COOKIE, language),
        (preferences.UTC_COOKIE, utc),
    ):
        if value is not None:
            response.set_cookie(name, value, max_age=MAX_AGE_S, secure=is_https(request), samesite="lax", httponly=True)
    return response


@pages.get("/docs")
async def rest_documentation(request: Request) -> Response:
    """Return the description of the REST API."""
    return render(request, "docs/docs.html", openapi_url=request.app.openapi_url)
