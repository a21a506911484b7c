"""Overview page."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from ariane.console.areas import overview
from ariane.console.web.dependencies import Services
from ariane.console.web.rendering import render

router = APIRouter()


@router.get("/")
async def overview_page(request: Request, services: Services) -> Response:
    """Return the overview."""
    return render(request, "overview/overview.html", view=await overview.overview(services))
