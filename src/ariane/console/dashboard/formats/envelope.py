"""Form of all answers of Apache's dashboard.

result ─→ {"status": 0, "data": result, "errMsg": null}
error  ─→ {"status": -1, "data": null, "errMsg": "…"}, also with HTTP status 200
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError

from ariane.console.security.audit_notes import note_failure
from ariane.console.web.errors import validation_faults
from ariane.errors import ArianeError

log = logging.getLogger("ariane.console")

FAILED = -1
Endpoint = Callable[..., Awaitable[Any]]


class DashboardRoute(APIRoute):
    """A route whose errors, also those of its parameters, are answered in the dashboard's form."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        """Return the handler of a request, with its errors converted."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                response: Response = await handler(request)
            except ArianeError as error:
                return failed(str(error))
            except (RequestValidationError, ValidationError) as error:
                return failed("Invalid " + "; ".join(validation_faults(error)))
            except Exception:
                # Scripts read errMsg: an HTML page with status 500 would be a broken answer to them.
                log.exception("%s %s failed", request.method, request.url.path)
                return failed("Unexpected error; the console's log has the details.")
            return response

        return handle


class DashboardRouter:
    """Adds the endpoints of one area, whose results are wrapped."""

    def __init__(self, prefix: str) -> None:
        # Apache's paths are not part of the documented REST API.
        self.router = APIRouter(prefix=prefix, route_class=DashboardRoute, include_in_schema=False)

    def get(self, *paths: str) -> Callable[[Endpoint], Endpoint]:
        """Add an endpoint for GET."""
        return self._add(paths, ("GET",))

    def post(self, *paths: str) -> Callable[[Endpoint], Endpoint]:
        """Add an endpoint for POST."""
        return self._add(paths, ("POST",))

    def read(self, *paths: str) -> Callable[[Endpoint], Endpoint]:
        """Add an endpoint for GET and POST: Apache does not restrict the method of some reads."""
        return self._add(paths, ("GET", "POST"))

    def delete(self, *paths: str) -> Callable[[Endpoint], Endpoint]:
        """Add an endpoint for DELETE."""
        return self._add(paths, ("DELETE",))

    def _add(self, paths: Sequence[str], methods: Sequence[str]) -> Callable[[Endpoint], Endpoint]:
        def add(endpoint: Endpoint) -> Endpoint:
            for path in paths:
                self.router.add_api_route(path, _wrapped(endpoint), methods=list(methods), response_model=None)
            return endpoint

        return add


def succeeded(data: Any) -> JSONResponse:
    """Return a result."""
    return JSONResponse({"status": 0, "data": data, "errMsg": None})


def failed(message: str) -> JSONResponse:
    """Return an error, and mark the request as failed in its audit entry."""
    note_failure(message)
    return JSONResponse({"status": FAILED, "data": None, "errMsg": message})


def _wrapped(endpoint: Endpoint) -> Endpoint:
    @wraps(endpoint)
    async def call(*args: Any, **kwargs: Any) -> Response:
        result = await endpoint(*args, **kwargs)
        return result if isinstance(result, Response) else succeeded(result)

    # FastAPI reads the parameters of a route from its signature; the annotations are texts of the endpoint's module.
    call.__signature__ = inspect.signature(endpoint, eval_str=True)  # type: ignore[attr-defined]
    return call
