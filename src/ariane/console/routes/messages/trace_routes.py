"""Traces: pages and REST of the search, and of the timeline of one message."""

from __future__ import annotations

import asyncio
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from ariane.console.areas.topics import topic_suggestions
from ariane.console.areas.traces import trace_page as traces
from ariane.console.areas.traces import trace_search
from ariane.console.areas.traces.trace_views import TracedListView, TraceForm, TraceView
from ariane.console.services import ConsoleServices
from ariane.console.web.dependencies import FromQuery, Services
from ariane.console.web.page_router import PageRouter
from ariane.console.web.rendering import is_htmx, render

pages = PageRouter(prefix="/trace")
api = APIRouter(prefix="/trace", tags=["trace"])


@api.get("")
async def search_traces(services: Services, query: FromQuery[TraceForm]) -> TracedListView:
    """Return the messages with an id or business key, from a trace topic, their own topic and the pipeline's tables."""
    return await trace_search.traced_messages(services, query)


@api.get("/{message_id:path}")
async def get_trace(
    services: Services,
    message_id: str,
    trace_topic: Annotated[
        str, Query(alias="traceTopic", max_length=127, description="Trace topic; empty: that of the settings.")
    ] = "",
    topic: Annotated[str, Query(max_length=127, description="Topic of the message, if no send was traced.")] = "",
) -> TraceView:
    """Return the steps of a message in the order of time: sends, records, deliveries, decisions of a transaction."""
    return (await traces.trace(services, message_id, trace_topic, topic)).view


# --- other pages ---


@pages.get("")
async def traces_page(request: Request, services: Services, query: FromQuery[TraceForm]) -> Response:
    """Return the search form and the messages that match; with exactly one, its timeline."""
    trace_topic = traces.trace_topic_of(services, query.trace_topic)
    names = await _names(services)
    if not query.q:
        return render(
            request, "messages/trace/search.html", view=None, query=query, trace_topic=trace_topic, names=names
        )
    view = await trace_search.traced_messages(services, query)
    is_complete = not view.unavailable and not view.omitted
    if len(view.items) == 1 and is_complete and not is_htmx(request):
        only = view.items[0]
        parameters = {"traceTopic": query.trace_topic, "topic": only.topic}
        text = urlencode({name: value for name, value in parameters.items() if value})
        return RedirectResponse(f"/trace/{quote(only.message_id, safe='')}" + (f"?{text}" if text else ""), 303)
    return render(request, "messages/trace/search.html", view=view, query=query, trace_topic=trace_topic, names=names)


@pages.get("/{message_id:path}")
async def trace_page(
    request: Request,
    services: Services,
    message_id: str,
    trace_topic: Annotated[str, Query(alias="traceTopic", max_length=127)] = "",
    topic: Annotated[str, Query(max_length=127)] = "",
) -> Response:
    """Return the timeline of a message."""
    view, steps = await traces.trace(services, message_id, trace_topic, topic)
    drawing = await asyncio.to_thread(traces.draw_trace, steps)
    names = await _names(services)
    return render(
        request,
        "messages/trace/trace.html",
        view=view,
        drawing=drawing,
        message_id=message_id,
        topic=topic,
        trace_topic=trace_topic,
        names=names,
    )


async def _names(services: ConsoleServices) -> dict[str, list[str]]:
    """Return the names that the search form suggests."""
    return {
        "topics": await topic_suggestions.application_topics(services),
        "trace_topics": await topic_suggestions.trace_topics(services),
    }
