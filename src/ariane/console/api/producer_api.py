"""REST of producers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ariane.console.areas.overview import producers
from ariane.console.areas.overview.producers import ProducerQuery, ProducersView
from ariane.console.web.dependencies import Services

router = APIRouter(prefix="/producers", tags=["producers"])


@router.get("")
async def list_producers(services: Services, query: Annotated[ProducerQuery, Query()]) -> ProducersView:
    """Return the connected producers, of all groups or of one."""
    return await producers.producer_list(services, query)
