"""Producers: page and REST."""

from __future__ import annotations

from fastapi import APIRouter

from ariane.console.areas.overview import producers
from ariane.console.areas.overview.producers import ProducerQuery, ProducersView
from ariane.console.web.dependencies import FromQuery, Services
from ariane.console.web.page_router import PageRouter

pages = PageRouter()
api = APIRouter(prefix="/producers", tags=["producers"])


@pages.page("/producers", "groups/producers/list.html")
@api.get("")
async def list_producers(services: Services, query: FromQuery[ProducerQuery]) -> ProducersView:
    """Return the connected producers, of all groups or of one."""
    return await producers.producer_list(services, query)
