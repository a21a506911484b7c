"""Dead letters: pages and REST of groups that have some, the dead letters of a group, and one next to its original message."""

from __future__ import annotations

from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from ariane.console.areas.dead_letters import dead_letter_export, dead_letter_resend
from ariane.console.areas.dead_letters import dead_letter_list as dead_letters
from ariane.console.areas.dead_letters.dead_letter_list import DeadLetterListView, DeadLetterQuery, DeadLetterView
from ariane.console.areas.dead_letters.dead_letter_resend import ResendForm, ResendView
from ariane.console.areas.dead_letters.dead_letter_selection import DeadLetterFilter
from ariane.console.areas.groups import group_list
from ariane.console.areas.groups.group_list import GroupListQuery
from ariane.console.areas.messages.body_encoding import BodyEncoding
from ariane.console.texts.text_format import path_segment
from ariane.console.web.dependencies import FromQuery, ListParameters, Services
from ariane.console.web.downloads import download
from ariane.console.web.page_router import PageRouter
from ariane.console.web.rendering import render

pages = PageRouter(prefix="/dead-letters")
api = APIRouter(prefix="/dead-letters", tags=["dead letters"])


@api.get("/{group}")
async def list_dead_letters(services: Services, group: str, query: FromQuery[DeadLetterQuery]) -> DeadLetterListView:
    """Return one page of a group's dead letters, newest first."""
    return await dead_letters.dead_letter_list(services, group, query)


@pages.form("/{group}/resend", template="messages/dead_letters/resend_result.html")
@api.post("/{group}/resend")
async def resend_dead_letters(services: Services, group: str, form: ResendForm) -> ResendView:
    """Send copies of dead letters to their original topics, or return the plan; with an outcome per message."""
    return await dead_letter_resend.resend_dead_letters(services, group, form)


@pages.get("/{group}/export.csv")
@api.get("/{group}/export.csv", response_class=Response, responses={200: {"content": {"text/csv": {}}}})
async def export_dead_letters_csv(services: Services, group: str, query: FromQuery[DeadLetterFilter]) -> Response:
    """Return all dead letters that match as CSV; cells that a spreadsheet would execute begin with an apostrophe."""
    text = await dead_letter_export.export_csv(services, group, query)
    return download(text, "text/csv", f"dead-letters-{group}.csv")


@pages.get("/{group}/export.json")
@api.get("/{group}/export.json", response_class=Response, responses={200: {"content": {"application/json": {}}}})
async def export_dead_letters_json(services: Services, group: str, query: FromQuery[DeadLetterFilter]) -> Response:
    """Return all dead letters that match as a JSON array."""
    text = await dead_letter_export.export_json(services, group, query)
    return download(text, "application/json", f"dead-letters-{group}.json")


@api.get("/{group}/{message_id}")
async def get_dead_letter(services: Services, group: str, message_id: str) -> DeadLetterView:
    """Return a dead letter next to its original message; `message_id` is its offset id or its unique key."""
    return await dead_letters.dead_letter(services, group, message_id)


# --- other pages ---


@pages.get("")
async def dead_letter_groups_page(
    request: Request, services: Services, query: ListParameters, group: str = ""
) -> Response:
    """Return the groups that have dead letters; `group` leads to those of a group."""
    if group:
        return RedirectResponse(f"/dead-letters/{path_segment(group.strip())}", status_code=303)
    values = query.model_dump() | {"sort": query.sort or "deadLetters", "order": query.order if query.sort else "desc"}
    view = await group_list.group_list(services, GroupListQuery(**values, only="deadLetters", system=True))
    return render(request, "messages/dead_letters/groups.html", view=view)


@pages.get("/{group}")
async def dead_letters_page(
    request: Request, services: Services, group: str, query: FromQuery[DeadLetterQuery]
) -> Response:
    """Return the dead letters of a group."""
    view = await dead_letters.dead_letter_list(services, group, query)
    # The files contain what the list shows.
    filters = urlencode({name: value for name, value in view.filter.model_dump().items() if value})
    return render(request, "messages/dead_letters/list.html", view=view, query=query, filters=filters)


@pages.get("/{group}/{message_id}")
async def dead_letter_page(
    request: Request, services: Services, group: str, message_id: str, encoding: BodyEncoding | None = None
) -> Response:
    """Return a dead letter next to its original message."""
    view = await dead_letters.dead_letter(services, group, message_id, encoding)
    return render(request, "messages/dead_letters/letter.html", view=view)
