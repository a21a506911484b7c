"""Messages: pages and REST of the search, one message, and its forms."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from ariane.console.areas.messages import message_details, message_lookup
from ariane.console.areas.messages.body_encoding import BodyEncoding
from ariane.console.areas.messages.message_body import BodyFormat
from ariane.console.areas.messages.message_lookup import MessageListView, MessageQueryForm
from ariane.console.areas.topics import topic_suggestions
from ariane.console.web.dependencies import FromQuery, Services
from ariane.console.web.downloads import download
from ariane.console.web.page_router import PageRouter
from ariane.console.web.rendering import render
from ariane.console.web.view_model import ChangeResult

pages = PageRouter(prefix="/messages")
api = APIRouter(prefix="/messages", tags=["messages"])

Topic = Annotated[str, Query(max_length=127, description="Topic of a unique key; empty: all topics are searched.")]


@api.get("")
async def search_messages(services: Services, query: FromQuery[MessageQueryForm]) -> MessageListView:
    """Return the messages with an id or key, or read a topic backwards for a tag, text or time range.

    A search without an id or key is bounded: `progress` says what was read, and how to continue.
    """
    return await message_lookup.search_messages(services, query)


@pages.page("/{message_id}", "messages/message.html")
@api.get("/{message_id}")
async def get_message(
    services: Services,
    message_id: str,
    topic: Topic = "",
    body: Annotated[BodyFormat | None, Query(description="How to show the body; by default as JSON or text.")] = None,
    encoding: Annotated[
        BodyEncoding | None, Query(description="Encoding of the body; by default UTF-8, or a guess if it is not.")
    ] = None,
) -> message_details.MessageDetailsView:
    """Return a message with its properties and the beginning of its body, by offset id or unique key."""
    return await message_details.message_details(services, message_id, topic, body, encoding)


@pages.get("/{message_id}/body")
@api.get(
    "/{message_id}/body",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}, "description": "The body, decompressed."}},
)
async def get_message_body(services: Services, message_id: str, topic: Topic = "") -> Response:
    """Return the whole body of a message as a file."""
    message = await message_details.message_body(services, message_id, topic)
    return download(message.body, "application/octet-stream", f"{message.message_id}.bin")


@api.get("/{message_id}/consumers")
async def get_message_consumers(
    services: Services,
    message_id: str,
    topic: Topic = "",
    trace_topic: Annotated[
        str, Query(alias="traceTopic", max_length=127, description="Trace topic; empty: that of the settings.")
    ] = "",
) -> message_details.MessageConsumersView:
    """Return who consumed a message, and its copies: retries, dead letters, delayed and half messages."""
    return await message_details.message_consumers(services, message_id, topic, trace_topic)


@pages.form("/{message_id}/resend", plan="")
@api.post("/{message_id}/resend")
async def resend_message(
    services: Services, message_id: str, form: message_details.ResendMessageForm, topic: Topic = ""
) -> ChangeResult:
    """Send a copy of a message under a new unique key; its property REPLAYED_FROM names the original."""
    return await message_details.resend(services, message_id, form, topic)


@pages.form("/{message_id}/consume", plan="")
@api.post("/{message_id}/consume")
async def consume_message_directly(
    services: Services, message_id: str, form: message_details.ConsumeDirectlyForm, topic: Topic = ""
) -> ChangeResult:
    """Let one client of a group consume the message now. Offsets do not change, and a failure is not retried."""
    return await message_details.consume_directly(services, message_id, form, topic)


# --- other pages ---


@pages.get("")
async def messages_page(request: Request, services: Services, query: FromQuery[MessageQueryForm]) -> Response:
    """Return the search form, and the result if anything was searched."""
    is_search = bool(query.q or query.topic or query.tag or query.text or query.since or query.until)
    view = await message_lookup.search_messages(services, query) if is_search else None
    topics = await topic_suggestions.application_topics(services)
    return render(request, "messages/list.html", view=view, query=query, topics=topics)


@pages.get("/{message_id}/consumers")
async def message_consumers_page(
    request: Request, services: Services, message_id: str, topic: Topic = "", trace_topic: Topic = ""
) -> Response:
    """Return who consumed a message and its copies. The message's page loads it afterwards: it asks every group."""
    view = await message_details.message_consumers(services, message_id, topic, trace_topic)
    return render(request, "messages/consumers.html", view=view)
