"""Wires the console: middleware, pages, REST API and static files into one application.

create_app(open_services(settings)) ─→ FastAPI; its lifespan opens the services
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import APIRouter, FastAPI

import ariane
from ariane.console.routes import (
    access_routes,
    alert_routes,
    audit_routes,
    broker_routes,
    group_routes,
    login_routes,
    overview_routes,
    preference_routes,
    producer_routes,
    report_routes,
    topic_routes,
)
from ariane.console.routes.messages import (
    dead_letter_routes,
    delayed_routes,
    message_routes,
    trace_routes,
    transaction_routes,
)
from ariane.console.security.permissions import API_PREFIX
from ariane.console.security.request_body import CompleteBodyMiddleware
from ariane.console.security.security_headers import SecurityHeadersMiddleware
from ariane.console.services import ConsoleServices
from ariane.console.texts.preferences import PreferencesMiddleware
from ariane.console.web import errors, static_assets
from ariane.console.web.access_middleware import AccessMiddleware
from ariane.console.web.api_description import describe_api

AREAS = (
    overview_routes,
    broker_routes,
    topic_routes,
    producer_routes,
    delayed_routes,
    transaction_routes,
    group_routes,
    dead_letter_routes,
    report_routes,
    alert_routes,
    message_routes,
    trace_routes,
    audit_routes,
    access_routes,
)
PAGES: tuple[APIRouter, ...] = (
    *(area.pages for area in AREAS),
    login_routes.pages,
    preference_routes.pages,
    static_assets.router,
)
APIS: tuple[APIRouter, ...] = tuple(area.api for area in AREAS)


def create_app(
    services: AbstractAsyncContextManager[ConsoleServices], *, extensions: Iterable[APIRouter] = ()
) -> FastAPI:
    """Return the application.

    Args:
        services: Opened when the application starts, closed when it stops: `open_services(settings)`.
        extensions: Routers of other interfaces, such as that of Apache's dashboard.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with services as opened:
            app.state.services = opened
            yield

    # FastAPI's own documentation pages load scripts from another host.
    app = FastAPI(
        title="Ariane console", version=ariane.__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
        openapi_url=f"{API_PREFIX}/openapi.json",
    )  # fmt: skip
    errors.register(app)
    # The one that is added last is the outermost.
    app.add_middleware(AccessMiddleware)
    app.add_middleware(SecurityHeadersMiddleware)
    app.add_middleware(PreferencesMiddleware)
    app.add_middleware(CompleteBodyMiddleware)
    # First: /cluster/list.query would be a page of the broker "list.query".
    for router in extensions:
        app.include_router(router)
    for router in PAGES:
        app.include_router(router, include_in_schema=False)
    for router in APIS:
        app.include_router(router, prefix=API_PREFIX)
    describe_api(app)
    return app
