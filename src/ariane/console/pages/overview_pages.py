"""Overview page."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from ariane.console.areas.overview import overview
from ariane.console.areas.reports.chart_history import ChartQuery
from ariane.console.web.dependencies import Services
from ariane.console.web.rendering import render

router = APIRouter()


@router.get("/")
async def overview_page(request: Request, services: Services, query: Annotated[ChartQuery, Query()]) -> Response:
    """Return the overview."""
    return render(request, "overview/overview.html", view=await overview.overview(services, query.range))
