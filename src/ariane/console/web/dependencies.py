"""Values that FastAPI passes to routes."""

from __future__ import annotations

from typing import Annotated, TypeVar, cast

from fastapi import Depends, Form, Query, Request
from starlette.exceptions import HTTPException

from ariane.cluster.admin import Admin
from ariane.console.security.accounts.identity import Identity, identity_of
from ariane.console.services import ConsoleServices
from ariane.console.web.paging import ListQuery

Value = TypeVar("Value")


def services_of(request: Request) -> ConsoleServices:
    """Return the services of the application."""
    return cast(ConsoleServices, request.app.state.services)


async def admin_of(services: Services) -> Admin:
    """Return the operations on the cluster for a request."""
    return services.admin()


def sender(request: Request) -> Identity:
    """Return the sender of a request; the middleware lets none pass without one."""
    identity = identity_of(request)
    if identity is None:
        raise HTTPException(401, "Log in first.")
    return identity


Services = Annotated[ConsoleServices, Depends(services_of)]
ClusterAdmin = Annotated[Admin, Depends(admin_of)]
FromQuery = Annotated[Value, Query()]  # a struct of query parameters
FromForm = Annotated[Value, Form()]  # a struct of the fields of an HTML form
ListParameters = FromQuery[ListQuery]
