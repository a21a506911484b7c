"""Pages of delayed messages."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request, Response

from ariane.console.areas.delays import delayed
from ariane.console.areas.delays.delayed import CancelDelayedForm, DelayedQuery, DelayedView
from ariane.console.texts.translation import gettext as _
from ariane.console.web.dependencies import Services
from ariane.console.web.rendering import changed, render, shown_below

router = APIRouter()


@router.get("/delayed")
async def delayed_page(request: Request, services: Services, query: Annotated[DelayedQuery, Query()]) -> Response:
    """Return the pending delayed messages."""
    view = await delayed.delayed_list(services, query)
    return render(request, "delayed/list.html", view=view, chart=due_chart(view))


@router.get("/delayed/{message_id}/cancel")
async def cancel_page(request: Request, services: Services, message_id: str) -> Response:
    """Return the form that cancels a pending message."""
    return render(request, "delayed/cancel.html", row=await delayed.delayed_message(services, message_id))


@router.post("/delayed/{message_id}/cancel")
async def cancel_delayed(
    request: Request, services: Services, message_id: str, form: Annotated[CancelDelayedForm, Form()]
) -> Response:
    """Cancel a pending message."""
    result = await delayed.cancel_delayed(services, message_id, form)
    if form.is_dry_run:
        return shown_below(request, "topics/plan.html", result=result)
    return changed(request, result.notice, location="/delayed")


def due_chart(view: DelayedView) -> dict[str, Any]:
    """Return the options of a chart of the number of messages by due time."""
    points = [[bucket.start_ms, bucket.messages] for bucket in view.buckets]
    return {"unit": "number", "series": [{"name": _("Messages due"), "type": "bar", "points": points}]}
