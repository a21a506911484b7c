"""Which role a request needs: one table of methods and paths. A path that no row names needs an admin.

The API has the same paths below /api/v1. A test demands a row for every route of the console.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ariane.console.security import dashboard_paths
from ariane.console.security.request_checks import SAFE_METHODS
from ariane.console.security.roles import ConsoleRole

API_PREFIX = "/api/v1"
LOGIN_PATH = "/login"  # uses nothing that a session permits
READ, CHANGE, ANY = "read", "change", "any"
# Why pages are closed to accounts that see some topics and groups only.
PATTERNS = "rules, channels and silences name topics and groups of everybody, by patterns and in texts"
ALL_GROUPS = "rows of this report say which of all groups consumed a message"
UNLISTED = "the path is not listed"


class PathRule(NamedTuple):
    """A row of the table.

    Attributes:
        kind: READ for GET and HEAD, CHANGE for other methods, ANY for both.
        pattern: A path; `*` stands for the rest of it, `{}` for one segment.
        role: Role that is needed; None: no log-in.
        is_audited: Whether unsafe requests are changes; False for searches that are sent by POST.
        is_local: Whether changes concern only the console, so that one that is read-only accepts them.
        closed: Why accounts that see some topics and groups only may not use it; empty: they may.
    """

    kind: str
    pattern: str
    role: ConsoleRole | None
    is_audited: bool = True
    is_local: bool = False
    closed: str = ""


class Requirement(NamedTuple):
    """What a request needs. Attributes: `PathRule`; `is_listed` is False if no row of the table names the path."""

    role: ConsoleRole | None
    is_audited: bool
    is_local: bool = False
    closed: str = UNLISTED
    is_listed: bool = True


def _area(
    path: str,
    *,
    read: ConsoleRole = ConsoleRole.VIEWER,
    change: ConsoleRole = ConsoleRole.OPERATOR,
    is_local: bool = False,
    closed: str = "",
) -> tuple[PathRule, ...]:
    """Return the rows of an area: its list and everything below."""
    return tuple(
        PathRule(kind, pattern, role, is_local=is_local, closed=closed)
        for kind, role in ((READ, read), (CHANGE, change))
        for pattern in (path, f"{path}/*")
    )


def _dashboard() -> tuple[PathRule, ...]:
    """Return the rows of the paths of Apache's dashboard, some of whose searches are sent by POST."""
    viewer, operator, admin = ConsoleRole.VIEWER, ConsoleRole.OPERATOR, ConsoleRole.ADMIN
    reads = [*dashboard_paths.OTHER_READS, *dashboard_paths.EXPORTS]
    reads += [f"/{area}/*.query" for area in dashboard_paths.AREAS]
    return (
        PathRule(READ, "/login/check.query", None),
        PathRule(ANY, "/login/login.do", None, is_audited=False),  # as /login
        PathRule(ANY, "/login/logout.do", None, is_audited=False),
        *(PathRule(ANY, path, viewer, False) for path in reads),
        *(
            PathRule(CHANGE, f"/{area}/*.do", admin if area in dashboard_paths.ADMIN_AREAS else operator)
            for area in dashboard_paths.AREAS
        ),
        PathRule(ANY, "/acl/*", admin),
    )


# The first row that matches decides.
RULES: tuple[PathRule, ...] = (
    *_dashboard(),
    PathRule(ANY, "/login", None, is_audited=False),  # the log-in itself writes the entry: it has the name
    PathRule(READ, "/login/oidc", None),
    PathRule(READ, "/login/ended", None),
    PathRule(READ, "/login/oidc/callback", None),  # writes its audit entry, too
    PathRule(READ, "/static", None),
    PathRule(READ, "/static/*", None),
    PathRule(READ, "/favicon.ico", None),
    PathRule(CHANGE, "/logout", ConsoleRole.VIEWER, is_local=True),
    PathRule(READ, "/preferences", None),  # language and theme of the log-in page, in cookies
    PathRule(READ, "/docs", ConsoleRole.VIEWER),
    PathRule(READ, "/openapi.json", ConsoleRole.VIEWER),
    PathRule(READ, "/", ConsoleRole.VIEWER),
    *_area("/overview"),
    *_area("/cluster"),
    *_area("/brokers", change=ConsoleRole.ADMIN),
    *_area("/topics"),
    *_area("/create-topic"),  # not below /topics, where a topic may have any name
    *_area("/groups"),
    *_area("/create-group"),  # not below /groups: a group may have any name
    *_area("/producers"),
    *_area("/messages"),
    *_area("/trace"),
    *_area("/dead-letters"),
    *_area("/delayed"),
    *_area("/transactions"),
    *_area("/reports/health", closed=ALL_GROUPS),
    *_area("/reports"),
    # One's own password, sessions and settings.
    *_area("/account", change=ConsoleRole.VIEWER, is_local=True),
    *_area("/access/acl", read=ConsoleRole.ADMIN, change=ConsoleRole.ADMIN),
    *_area("/access", read=ConsoleRole.ADMIN, change=ConsoleRole.ADMIN, is_local=True),
    *_area("/audit", read=ConsoleRole.ADMIN, change=ConsoleRole.ADMIN, is_local=True),
    # The operator on duty silences an alert; rules and channels send data to other hosts.
    *_area("/alerts/silences", is_local=True, closed=PATTERNS),
    PathRule(CHANGE, "/alerts/close", ConsoleRole.OPERATOR, is_local=True),
    PathRule(READ, "/alerts", ConsoleRole.VIEWER),
    PathRule(READ, "/alerts/history", ConsoleRole.VIEWER),
    PathRule(READ, "/alerts/channels/*", ConsoleRole.ADMIN),  # forms with mail servers and their users
    *_area("/alerts", change=ConsoleRole.ADMIN, is_local=True, closed=PATTERNS),
)


def is_unsafe(method: str, path: str) -> bool:
    """Return whether a request may change something. Scripts call the dashboard's `.do` paths by any method."""
    # Elsewhere a path may end with the name of a client or group, and names may end with anything.
    is_dashboard_change = path.endswith(".do") and dashboard_paths.is_dashboard_path(path)
    return method not in SAFE_METHODS or is_dashboard_change


def requirement(method: str, path: str) -> Requirement:
    """Return what a request needs."""
    kind = CHANGE if is_unsafe(method, path) else READ
    shared = path.removeprefix(API_PREFIX) if path.startswith(f"{API_PREFIX}/") else path
    for rule, pattern in _COMPILED:
        if rule.kind in (kind, ANY) and pattern.fullmatch(shared):
            return Requirement(rule.role, rule.is_audited and kind == CHANGE, rule.is_local, rule.closed)
    return Requirement(ConsoleRole.ADMIN, kind == CHANGE, is_listed=False)


def _compiled(pattern: str) -> re.Pattern[str]:
    parts = (re.escape(part) for part in re.split(r"(\{\}|\*)", pattern))
    return re.compile("".join({r"\{\}": "[^/]+", r"\*": ".*"}.get(part, part) for part in parts))


_COMPILED = tuple((rule, _compiled(rule.pattern)) for rule in RULES)
