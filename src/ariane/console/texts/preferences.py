"""Preferences of a reader: language, theme and time zone, stored in cookies of the browser.

request ─→ PreferencesMiddleware ─→ current(): what templates, filters and gettext use until the answer is complete
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from datetime import UTC, tzinfo
from typing import Literal, NamedTuple, get_args
from urllib.parse import unquote
from zoneinfo import ZoneInfo

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

Language = Literal["en", "zh"]
Theme = Literal["auto", "light", "dark"]  # auto: as the operating system
LANGUAGES, THEMES = get_args(Language), get_args(Theme)
LANGUAGE_COOKIE = "ariane_language"
THEME_COOKIE = "ariane_theme"
ZONE_COOKIE = "ariane_zone"  # IANA name of the browser's zone, set by app.js
API_PREFIX = "/api/"  # programs send and receive times in UTC, whatever the browser's zone is
UTC_COOKIE = "ariane_utc"  # "1": times in UTC, whatever the browser's zone is
ZONE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}")


class Preferences(NamedTuple):
    """How pages are shown to one reader."""

    language: str = "en"  # one of LANGUAGES
    theme: str = "auto"  # one of THEMES
    zone: tzinfo = UTC  # of all times
    zone_name: str = "UTC"  # IANA name
    has_browser_zone: bool = False  # whether the browser sent its zone


DEFAULTS = Preferences()
_preferences: ContextVar[Preferences | None] = ContextVar("preferences", default=None)


def current() -> Preferences:
    """Return the preferences of the request that is processed; outside of requests English and UTC."""
    return _preferences.get() or DEFAULTS


def preferences_of(connection: HTTPConnection) -> Preferences:
    """Return the preferences that the cookies and headers of a request express. Unknown values are ignored."""
    cookies = connection.cookies
    language = cookies.get(LANGUAGE_COOKIE, "")
    if language not in LANGUAGES:
        language = _accepted_language(connection.headers.get("accept-language", ""))
    theme = cookies.get(THEME_COOKIE, "auto")
    name = unquote(cookies.get(ZONE_COOKIE, ""))
    browser_zone = _zone(name)
    uses_utc = cookies.get(UTC_COOKIE) == "1" or browser_zone is None
    return Preferences(
        language=language,
        theme=theme if theme in THEMES else "auto",
        zone=UTC if uses_utc or browser_zone is None else browser_zone,
        zone_name="UTC" if uses_utc else name,
        has_browser_zone=browser_zone is not None,
    )


class PreferencesMiddleware:
    """Sets the preferences of each request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            # Never reset: each request has its own task, and the handler of unexpected errors runs after this middleware.
            preferences = preferences_of(HTTPConnection(scope))
            if scope["path"].startswith(API_PREFIX):
                preferences = preferences._replace(zone=UTC, zone_name="UTC")
            _preferences.set(preferences)
        await self._app(scope, receive, send)


def _accepted_language(header: str) -> str:
    """Return the language of an Accept-Language header that the console has, preferring high weights."""
    weighted: list[tuple[float, str]] = []
    for part in header.split(","):
        tag, _, parameter = part.strip().partition(";")
        try:
            weight = float(parameter.partition("=")[2] or 1)
        except ValueError:
            continue
        language = tag.partition("-")[0].lower()
        if language in LANGUAGES:
            weighted.append((-weight, language))
    return min(weighted, default=(0.0, "en"), key=lambda pair: pair[0])[1]


def _zone(name: str) -> tzinfo | None:
    # ZoneInfo opens a file of this name: only names that cannot leave its directory are passed on.
    if not ZONE_NAME.fullmatch(name):
        return None
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        return None
