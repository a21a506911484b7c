"""Delayed messages: pages and REST."""

from __future__ import annotations

from fastapi import APIRouter

from ariane.console.areas.delays import delayed
from ariane.console.areas.delays.delayed import CancelDelayedForm, DelayedQuery, DelayedRow, DelayedView
from ariane.console.web.dependencies import FromQuery, Services
from ariane.console.web.page_router import PageRouter
from ariane.console.web.view_model import ChangeResult

pages = PageRouter()
api = APIRouter(prefix="/delayed", tags=["delayed messages"])


@pages.page("/delayed", "messages/delayed/list.html")
@api.get("")
async def list_delayed(services: Services, query: FromQuery[DelayedQuery]) -> DelayedView:
    """Return pending delayed messages, the first due first, and the number of messages by due time."""
    return await delayed.delayed_list(services, query)


@pages.page("/delayed/{message_id}/cancel", "messages/delayed/cancel.html")
@api.get("/{message_id}")
async def get_delayed(services: Services, message_id: str) -> DelayedRow:
    """Return a pending delayed message by its unique key or offset id."""
    return await delayed.delayed_message(services, message_id)


@pages.form("/delayed/{message_id}/cancel", "/delayed")
@api.delete("/{message_id}")
async def cancel_delayed(services: Services, message_id: str, form: FromQuery[CancelDelayedForm]) -> ChangeResult:
    """Cancel a pending message with a delivery time; `confirm` must be its id."""
    return await delayed.cancel_delayed(services, message_id, form)
