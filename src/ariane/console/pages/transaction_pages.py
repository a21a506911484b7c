"""Pages of transactions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response

from ariane.console.areas.delays import open_transactions
from ariane.console.areas.delays.open_transactions import ResumeChecksForm, TransactionQuery
from ariane.console.web.dependencies import Services
from ariane.console.web.rendering import changed, render, shown_below

router = APIRouter()


@router.get("/transactions")
async def transactions_page(
    request: Request, services: Services, query: Annotated[TransactionQuery, Query()]
) -> Response:
    """Return open transactions, or half messages beyond the check limit."""
    return render(request, "transactions/list.html", view=await open_transactions.transaction_list(services, query))


@router.post("/transactions/{message_id}/resume")
async def resume_checks(
    request: Request, services: Services, message_id: str, form: Annotated[ResumeChecksForm, Form()]
) -> Response:
    """Make the broker check a half message again."""
    result = await open_transactions.resume_checks(services, message_id, form)
    if form.is_dry_run:
        return shown_below(request, "topics/plan.html", result=result)
    return changed(request, result.notice)
