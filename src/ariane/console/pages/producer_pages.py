"""Page of producers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from ariane.console.areas.overview import producers
from ariane.console.areas.overview.producers import ProducerQuery
from ariane.console.web.dependencies import Services
from ariane.console.web.rendering import render

router = APIRouter()


@router.get("/producers")
async def producers_page(request: Request, services: Services, query: Annotated[ProducerQuery, Query()]) -> Response:
    """Return the connected producers."""
    return render(request, "producers/list.html", view=await producers.producer_list(services, query))
