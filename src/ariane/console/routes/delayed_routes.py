"""Delayed messages: pages and REST."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from ariane.console.areas.delays import delayed
from ariane.console.areas.delays.delayed import CancelDelayedForm, DelayedQuery, DelayedRow, DelayedView
from ariane.console.texts.translation import gettext as _
from ariane.console.web.dependencies import FromQuery, Services
from ariane.console.web.page_router import PageRouter
from ariane.console.web.rendering import render
from ariane.console.web.view_model import ChangeResult

pages = PageRouter()
api = APIRouter(prefix="/delayed", tags=["delayed messages"])


@api.get("")
async def list_delayed(services: Services, query: FromQuery[DelayedQuery]) -> DelayedView:
    """Return pending delayed messages, the first due first, and the number of messages by due time."""
    return await delayed.delayed_list(services, query)


@api.get("/{message_id}")
async def get_delayed(services: Services, message_id: str) -> DelayedRow:
    """Return a pending delayed message by its unique key or offset id."""
    return await delayed.delayed_message(services, message_id)


@pages.form("/delayed/{message_id}/cancel", "/delayed")
@api.delete("/{message_id}")
async def cancel_delayed(services: Services, message_id: str, form: FromQuery[CancelDelayedForm]) -> ChangeResult:
    """Cancel a pending message with a delivery time; `confirm` must be its id."""
    return await delayed.cancel_delayed(services, message_id, form)


# --- other pages ---


@pages.get("/delayed")
async def delayed_page(request: Request, services: Services, query: FromQuery[DelayedQuery]) -> Response:
    """Return the pending delayed messages."""
    view = await delayed.delayed_list(services, query)
    return render(request, "delayed/list.html", view=view, chart=due_chart(view))


@pages.get("/delayed/{message_id}/cancel")
async def cancel_page(request: Request, services: Services, message_id: str) -> Response:
    """Return the form that cancels a pending message."""
    return render(request, "delayed/cancel.html", row=await delayed.delayed_message(services, message_id))


def due_chart(view: DelayedView) -> dict[str, Any]:
    """Return the options of a chart of the number of messages by due time."""
    points = [[bucket.start_ms, bucket.messages] for bucket in view.buckets]
    return {"unit": "number", "series": [{"name": _("Messages due"), "type": "bar", "points": points}]}
