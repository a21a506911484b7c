"""REST of the overview."""

from __future__ import annotations

from fastapi import APIRouter

from ariane.console.areas import overview
from ariane.console.areas.overview import OverviewView
from ariane.console.web.dependencies import Services

router = APIRouter(prefix="/overview", tags=["overview"])


@router.get("")
async def get_overview(services: Services) -> OverviewView:
    """Return the overview."""
    return await overview.overview(services)
