"""Pages of messages: search, one message, and its forms."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response

from ariane.console.areas.messages import message_details, message_lookup
from ariane.console.areas.messages.body_encoding import BodyEncoding
from ariane.console.areas.messages.message_body import BodyFormat
from ariane.console.areas.messages.message_details import ConsumeDirectlyForm, ResendMessageForm
from ariane.console.areas.messages.message_lookup import MessageQueryForm
from ariane.console.areas.topics import topic_suggestions
from ariane.console.web.dependencies import Services
from ariane.console.web.downloads import download
from ariane.console.web.rendering import changed, render

router = APIRouter(prefix="/messages")

Topic = Annotated[str, Query(max_length=127)]


@router.get("")
async def messages_page(request: Request, services: Services, query: Annotated[MessageQueryForm, Query()]) -> Response:
    """Return the search form, and the result if anything was searched."""
    is_search = bool(query.q or query.topic or query.tag or query.text or query.since or query.until)
    view = await message_lookup.search_messages(services, query) if is_search else None
    topics = await topic_suggestions.application_topics(services)
    return render(request, "messages/list.html", view=view, query=query, topics=topics)


@router.get("/{message_id}")
async def message_page(
    request: Request,
    services: Services,
    message_id: str,
    topic: Topic = "",
    body: BodyFormat | None = None,
    encoding: BodyEncoding | None = None,
) -> Response:
    """Return a message."""
    view = await message_details.message_details(services, message_id, topic, body, encoding)
    return render(request, "messages/message.html", view=view, message_id=message_id, topic=topic)


@router.get("/{message_id}/body")
async def message_body(services: Services, message_id: str, topic: Topic = "") -> Response:
    """Return the whole body as a file."""
    message = await message_details.message_body(services, message_id, topic)
    return download(message.body, "application/octet-stream", f"{message.message_id}.bin")


@router.get("/{message_id}/consumers")
async def message_consumers_page(
    request: Request, services: Services, message_id: str, topic: Topic = "", trace_topic: Topic = ""
) -> Response:
    """Return who consumed a message and its copies. The message's page loads it afterwards: it asks every group."""
    view = await message_details.message_consumers(services, message_id, topic, trace_topic)
    return render(request, "messages/consumers.html", view=view)


@router.post("/{message_id}/resend")
async def resend_form(
    request: Request, services: Services, message_id: str, form: Annotated[ResendMessageForm, Form()], topic: Topic = ""
) -> Response:
    """Send a copy."""
    result = await message_details.resend(services, message_id, form, topic)
    return changed(request, result.notice)


@router.post("/{message_id}/consume")
async def consume_form(
    request: Request,
    services: Services,
    message_id: str,
    form: Annotated[ConsumeDirectlyForm, Form()],
    topic: Topic = "",
) -> Response:
    """Let one client consume the message."""
    result = await message_details.consume_directly(services, message_id, form, topic)
    return changed(request, result.notice)
