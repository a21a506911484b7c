"""REST of dead letters."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from ariane.console.areas.dead_letters import dead_letter_export, dead_letter_resend
from ariane.console.areas.dead_letters import dead_letter_list as dead_letters
from ariane.console.areas.dead_letters.dead_letter_list import DeadLetterListView, DeadLetterQuery, DeadLetterView
from ariane.console.areas.dead_letters.dead_letter_resend import ResendForm, ResendView
from ariane.console.areas.dead_letters.dead_letter_selection import DeadLetterFilter
from ariane.console.web.dependencies import Services
from ariane.console.web.downloads import download

router = APIRouter(prefix="/dead-letters", tags=["dead letters"])


@router.get("/{group}")
async def list_dead_letters(
    services: Services, group: str, query: Annotated[DeadLetterQuery, Query()]
) -> DeadLetterListView:
    """Return one page of a group's dead letters, newest first."""
    return await dead_letters.dead_letter_list(services, group, query)


@router.post("/{group}/resend")
async def resend_dead_letters(services: Services, group: str, form: ResendForm) -> ResendView:
    """Send copies of dead letters to their original topics, or return the plan; with an outcome per message."""
    return await dead_letter_resend.resend_dead_letters(services, group, form)


@router.get("/{group}/export.csv", response_class=Response, responses={200: {"content": {"text/csv": {}}}})
async def export_dead_letters_csv(
    services: Services, group: str, query: Annotated[DeadLetterFilter, Query()]
) -> Response:
    """Return all dead letters that match as CSV; cells that a spreadsheet would execute begin with an apostrophe."""
    text = await dead_letter_export.export_csv(services, group, query)
    return download(text, "text/csv", f"dead-letters-{group}.csv")


@router.get("/{group}/export.json", response_class=Response, responses={200: {"content": {"application/json": {}}}})
async def export_dead_letters_json(
    services: Services, group: str, query: Annotated[DeadLetterFilter, Query()]
) -> Response:
    """Return all dead letters that match as a JSON array."""
    text = await dead_letter_export.export_json(services, group, query)
    return download(text, "application/json", f"dead-letters-{group}.json")


@router.get("/{group}/{message_id}")
async def get_dead_letter(services: Services, group: str, message_id: str) -> DeadLetterView:
    """Return a dead letter next to its original message; `message_id` is its offset id or its unique key."""
    return await dead_letters.dead_letter(services, group, message_id)
