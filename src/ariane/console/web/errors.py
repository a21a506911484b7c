"""Errors as answers: JSON for the API, a notice for htmx, otherwise a page.

ArianeError, validation error ─→ status + message
"""

from __future__ import annotations

import logging
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from ariane import errors
from ariane.console.security.accounts.authentication import LoginRefused
from ariane.console.security.audit_notes import note
from ariane.console.security.dashboard_paths import is_dashboard_path
from ariane.console.security.security_headers import with_security_headers
from ariane.console.web import rendering

log = logging.getLogger("ariane.console")

API_PATHS = ("/api/",)
DASHBOARD_FAILED = -1  # status in the body of an error of the dashboard
STATUS: tuple[tuple[type[errors.ArianeError], HTTPStatus], ...] = (
    (LoginRefused, HTTPStatus.FORBIDDEN),
    (errors.NotFound, HTTPStatus.NOT_FOUND),
    (errors.RouteNotFound, HTTPStatus.NOT_FOUND),
    (errors.AlreadyExists, HTTPStatus.CONFLICT),
    (errors.ConfigError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (errors.FilterError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (errors.MessageRefused, HTTPStatus.UNPROCESSABLE_ENTITY),
    (errors.RequestTimeout, HTTPStatus.GATEWAY_TIMEOUT),
    (errors.ConnectionLost, HTTPStatus.BAD_GATEWAY),
    (errors.ServerUnavailable, HTTPStatus.BAD_GATEWAY),
    (errors.ArianeError, HTTPStatus.BAD_GATEWAY),
)
"""Status of each error; the first class that matches."""


def register(app: FastAPI) -> None:
    """Add the handlers of all errors to an application."""
    app.add_exception_handler(errors.ArianeError, _ariane_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(ValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected_error)


def is_api(request: Request) -> bool:
    """Return whether a program sent the request: to the API, or to one of the dashboard's paths."""
    path: str = request.scope["path"]
    return path.startswith(API_PATHS) or is_dashboard_path(path)


def answer(request: Request, message: str, status: int) -> Response:
    """Return an error in the form that the client expects."""
    note(message)  # for the audit entry of the request
    if is_dashboard_path(request.scope["path"]):
        return JSONResponse({"status": DASHBOARD_FAILED, "data": None, "errMsg": message}, status)
    if is_api(request):
        return JSONResponse({"status": status, "error": message}, status)
    return rendering.failed(request, message, status=status)


def validation_faults(error: RequestValidationError | ValidationError) -> list[str]:
    """Return the faults of invalid values, each with the name of the value."""
    # The first element of a location says where the value was: "query", "body".
    named = [(fault["loc"][1:] or fault["loc"], fault["msg"]) for fault in error.errors()]
    return [f"{'.'.join(map(str, location))}: {text}" for location, text in named]


def _ariane_error(request: Request, error: Exception) -> Response:
    status = next(status for kind, status in STATUS if isinstance(error, kind))
    if not isinstance(error, LoginRefused) or not error.wait_seconds:
        return answer(request, str(error), status)
    response = answer(request, str(error), HTTPStatus.TOO_MANY_REQUESTS)
    response.headers["Retry-After"] = str(error.wait_seconds)
    return response


def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError | ValidationError)
    return answer(request, "\n".join(validation_faults(error)), HTTPStatus.UNPROCESSABLE_ENTITY)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = answer(request, str(error.detail), error.status_code)
    response.headers.update(error.headers or {})
    return response


def _unexpected_error(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    text = "Unexpected error; the console's log has the details."
    response = answer(request, text, HTTPStatus.INTERNAL_SERVER_ERROR)
    # Starlette sends this response outside of all middleware.
    response.raw_headers[:] = with_security_headers(request.scope["path"], response.raw_headers)
    return response
