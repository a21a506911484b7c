"""Values that FastAPI passes to routes."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Query, Request

from ariane.console.services import ConsoleServices
from ariane.console.web.paging import ListQuery


def services_of(request: Request) -> ConsoleServices:
    """Return the services of the application."""
    return cast(ConsoleServices, request.app.state.services)


Services = Annotated[ConsoleServices, Depends(services_of)]
ListParameters = Annotated[ListQuery, Query()]
