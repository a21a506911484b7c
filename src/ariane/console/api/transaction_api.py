"""REST of transactions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ariane.console.areas.delays import open_transactions
from ariane.console.areas.delays.open_transactions import ResumeChecksForm, TransactionQuery, TransactionsView
from ariane.console.web.dependencies import Services
from ariane.console.web.view_model import ChangeResult

router = APIRouter(prefix="/transactions", tags=["transactions"])


@router.get("")
async def list_transactions(services: Services, query: Annotated[TransactionQuery, Query()]) -> TransactionsView:
    """Return open transactions, or half messages beyond the check limit."""
    return await open_transactions.transaction_list(services, query)


@router.post("/{message_id}/resume")
async def resume_checks(services: Services, message_id: str, form: ResumeChecksForm) -> ChangeResult:
    """Make the broker check a half message again, with a reset check counter."""
    return await open_transactions.resume_checks(services, message_id, form)
