"""Transactions: pages and REST."""

from __future__ import annotations

from fastapi import APIRouter

from ariane.console.areas.delays import open_transactions
from ariane.console.areas.delays.open_transactions import ResumeChecksForm, TransactionQuery, TransactionsView
from ariane.console.web.dependencies import FromQuery, Services
from ariane.console.web.page_router import PageRouter
from ariane.console.web.view_model import ChangeResult

pages = PageRouter()
api = APIRouter(prefix="/transactions", tags=["transactions"])


@pages.page("/transactions", "messages/transactions/list.html")
@api.get("")
async def list_transactions(services: Services, query: FromQuery[TransactionQuery]) -> TransactionsView:
    """Return open transactions, or half messages beyond the check limit."""
    return await open_transactions.transaction_list(services, query)


@pages.form("/transactions/{message_id}/resume")
@api.post("/{message_id}/resume")
async def resume_checks(services: Services, message_id: str, form: ResumeChecksForm) -> ChangeResult:
    """Make the broker check a half message again, with a reset check counter."""
    return await open_transactions.resume_checks(services, message_id, form)
