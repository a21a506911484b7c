"""Wires the console: middleware, pages, REST API and static files into one application.

create_app(open_services(settings)) ─→ FastAPI; its lifespan opens the services
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import APIRouter, FastAPI

import ariane
from ariane.console.api import (
    access_api,
    alert_api,
    audit_api,
    broker_api,
    dead_letter_api,
    delayed_api,
    group_api,
    message_api,
    overview_api,
    producer_api,
    report_api,
    topic_api,
    trace_api,
    transaction_api,
)
from ariane.console.pages import (
    access_pages,
    alert_pages,
    audit_pages,
    broker_pages,
    dead_letter_pages,
    delayed_pages,
    group_pages,
    login_pages,
    message_pages,
    overview_pages,
    preference_pages,
    producer_pages,
    report_pages,
    topic_pages,
    trace_pages,
    transaction_pages,
)
from ariane.console.security.permissions import API_PREFIX
from ariane.console.security.request_body import CompleteBodyMiddleware
from ariane.console.security.security_headers import SecurityHeadersMiddleware
from ariane.console.services import ConsoleServices
from ariane.console.texts.preferences import PreferencesMiddleware
from ariane.console.web import errors, static_assets
from ariane.console.web.access_middleware import AccessMiddleware
from ariane.console.web.api_description import describe_api

PAGES: tuple[APIRouter, ...] = (
    overview_pages.router,
    broker_pages.router,
    login_pages.router,
    alert_pages.router,
    audit_pages.router,
    access_pages.router,
    preference_pages.router,
    group_pages.router,
    dead_letter_pages.router,
    report_pages.router,
    static_assets.router,
    topic_pages.router,
    producer_pages.router,
    delayed_pages.router,
    transaction_pages.router,
    message_pages.router,
    trace_pages.router,
)
APIS: tuple[APIRouter, ...] = (
    overview_api.router,
    broker_api.router,
    topic_api.router,
    producer_api.router,
    delayed_api.router,
    transaction_api.router,
    group_api.router,
    dead_letter_api.router,
    report_api.router,
    alert_api.router,
    message_api.router,
    trace_api.router,
    audit_api.router,
    access_api.router,
)


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
