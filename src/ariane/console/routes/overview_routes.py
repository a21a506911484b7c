"""Overview: page and REST."""

from __future__ import annotations

from fastapi import APIRouter

from ariane.console.areas.overview import overview
from ariane.console.areas.overview.overview import OverviewView
from ariane.console.areas.reports.chart_history import ChartQuery
from ariane.console.web.dependencies import FromQuery, Services
from ariane.console.web.page_router import PageRouter

pages = PageRouter()
api = APIRouter(prefix="/overview", tags=["overview"])


@pages.page("/", "overview/overview.html")
@api.get("")
async def get_overview(services: Services, query: FromQuery[ChartQuery]) -> OverviewView:
    """Return the overview."""
    return await overview.overview(services, query.range)
