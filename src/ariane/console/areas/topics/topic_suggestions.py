"""Names of topics that inputs suggest."""

from __future__ import annotations

from ariane.console.services import ConsoleServices

SUGGESTIONS_MAX = 300  # a longer list is not suggested: every page would carry it
TRACE = "trace"  # part of the names of custom trace topics, by custom


async def application_topics(services: ConsoleServices) -> list[str]:
    """Return the topics of applications; an empty list if they are not polled yet, or too many."""
    snapshot = await services.live.snapshot(0)
    names = [row.topic for row in snapshot.topics if row.kind == "normal"]
    return names if len(names) <= SUGGESTIONS_MAX else []


async def trace_topics(services: ConsoleServices) -> list[str]:
    """Return the trace topic of the settings, and other topics that have `trace` in their names."""
    snapshot = await services.live.snapshot(0)
    names = {row.topic for row in snapshot.topics if TRACE in row.topic.lower() and row.kind in ("normal", "system")}
    return sorted({services.settings.trace_topic, *names})[:SUGGESTIONS_MAX]
