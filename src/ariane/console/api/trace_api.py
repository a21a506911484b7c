"""REST of traces."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ariane.console.areas.traces import trace_page as traces
from ariane.console.areas.traces import trace_search
from ariane.console.areas.traces.trace_views import TracedListView, TraceForm, TraceView
from ariane.console.web.dependencies import Services

router = APIRouter(prefix="/trace", tags=["trace"])


@router.get("")
async def search_traces(services: Services, query: Annotated[TraceForm, Query()]) -> TracedListView:
    """Return the messages with an id or business key, from a trace topic, their own topic and the pipeline's tables."""
    return await trace_search.traced_messages(services, query)


@router.get("/{message_id:path}")
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
