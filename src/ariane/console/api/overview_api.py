"""REST of the overview."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ariane.console.areas.overview import overview
from ariane.console.areas.overview.overview import OverviewView
from ariane.console.areas.reports.chart_history import ChartQuery
from ariane.console.web.dependencies import Services

router = APIRouter(prefix="/overview", tags=["overview"])


@router.get("")
async def get_overview(services: Services, query: Annotated[ChartQuery, Query()]) -> OverviewView:
    """Return the overview."""
    return await overview.overview(services, query.range)
