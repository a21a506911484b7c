"""REST of delayed messages."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ariane.console.areas.delays import delayed
from ariane.console.areas.delays.delayed import CancelDelayedForm, DelayedQuery, DelayedRow, DelayedView
from ariane.console.web.dependencies import Services
from ariane.console.web.view_model import ChangeResult

router = APIRouter(prefix="/delayed", tags=["delayed messages"])


@router.get("")
async def list_delayed(services: Services, query: Annotated[DelayedQuery, Query()]) -> DelayedView:
    """Return pending delayed messages, the first due first, and the number of messages by due time."""
    return await delayed.delayed_list(services, query)


@router.get("/{message_id}")
async def get_delayed(services: Services, message_id: str) -> DelayedRow:
    """Return a pending delayed message by its unique key or offset id."""
    return await delayed.delayed_message(services, message_id)


@router.delete("/{message_id}")
async def cancel_delayed(
    services: Services, message_id: str, form: Annotated[CancelDelayedForm, Query()]
) -> ChangeResult:
    """Cancel a pending message with a delivery time; `confirm` must be its id."""
    return await delayed.cancel_delayed(services, message_id, form)
