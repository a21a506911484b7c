"""The OpenAPI document of the REST API: FastAPI's, with an introduction, log-ins, summaries and the errors that occur.

describe_api(app) ─→ app.openapi(), once: docstrings become summaries, the table of roles decides log-ins and errors
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from ariane.console.security.permissions import requirement

INTRODUCTION = """Everything that the console's pages show and change.

- **Log-in**: scripts send HTTP Basic authentication. Pages send the cookie of their session, and `X-CSRF-Token` with each change.
  On a loopback address and without accounts, no log-in is needed.
- **Values**: `null` is unknown, never zero. Times are milliseconds since the epoch; a date that you send without an offset is UTC.
- **Lists** take `q`, `sort`, `order`, `page` and `size`. They show the last poll of the cluster; its time is `asOfMs`.
- **Changes** with `dryRun` return what would change. Deletions need the name in `confirm`. Each change is in the audit log.
- **Errors** are `{"status": 404, "error": "…"}`. With status 429 or 503, try again after `Retry-After` seconds.

```
curl -u grafana:PASSWORD 'http://127.0.0.1:8080/api/v1/groups?sort=lag&order=desc&size=10'
```
"""
ERRORS: dict[int, str] = {
    400: "The body cannot be read.",
    401: "Not logged in, or name or password is wrong.",
    403: "The role does not include this, the console is read-only, or the token of a change is missing or outdated.",
    404: "What the path names does not exist.",
    409: "Something with this name exists.",
    413: "The body is too large.",
    421: "The console needs no log-in and therefore answers at loopback names only.",
    422: "A value is invalid; the error names it.",
    429: "Too many failed log-ins.",
    502: "A name server or broker is not available, or rejected the request.",
    504: "A broker did not respond in time. A change may have been executed.",
}
READ = (401, 403, 421, 422, 429, 502, 504)  # of every operation
CHANGE = (400, 413)  # of changes, in addition
NAMED = (404,)  # of paths with a name, in addition
CREATE = (409,)  # of operations that create something with a name, in addition
_CREATES = frozenset({"create_topic", "create_group", "add_user"})
_SCHEME = "HTTPBasic"
SECURITY_SCHEMES: dict[str, Any] = {
    _SCHEME: {"type": "http", "scheme": "basic", "description": "An account of the console; for scripts."},
    "Session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "ariane-session-PORT",
        "description": "Set by the log-in page; PORT is the console's.",
    },
    "Token": {
        "type": "apiKey",
        "in": "header",
        "name": "X-CSRF-Token",
        "description": "Sent by pages with each change, also by this page.",
    },
}
_ERROR_SCHEMA = {
    "type": "object",
    "required": ["status", "error"],
    "properties": {
        "status": {"type": "integer", "description": "HTTP status."},
        "error": {"type": "string", "description": "What is wrong, for people."},
    },
}


def describe_api(app: FastAPI) -> None:
    """Replace the OpenAPI document of an application."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title, version=app.version, description=INTRODUCTION, routes=app.routes, tags=app.openapi_tags
            )
            components = document.setdefault("components", {})
            components["securitySchemes"] = SECURITY_SCHEMES
            components.setdefault("schemas", {})["Error"] = _ERROR_SCHEMA
            for path, operations in document["paths"].items():
                for method, operation in operations.items():
                    _describe(path, method.upper(), operation)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign] # as FastAPI's documentation says


def error_statuses(path: str, method: str, operation_id: str) -> list[int]:
    """Return the errors that an operation can answer."""
    is_change = requirement(method, path).is_audited
    statuses = [*READ, *(CHANGE if is_change else ()), *(NAMED if "{" in path else ())]
    statuses += CREATE if any(operation_id.startswith(name) for name in _CREATES) else ()
    return sorted(statuses)


def _describe(path: str, method: str, operation: dict[str, Any]) -> None:
    text = " ".join(operation.get("description", "").split())
    operation["summary"] = re.split(r"[.;:] |\.$", text)[0]
    token: dict[str, list[str]] = {"Token": []} if requirement(method, path).is_audited else {}
    operation["security"] = [{_SCHEME: []}, {"Session": [], **token}]
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for status in error_statuses(path, method, operation["operationId"]):
        text = f"{HTTPStatus(status).phrase}. {ERRORS[status]}"
        operation["responses"][str(status)] = {"description": text, "content": content}
