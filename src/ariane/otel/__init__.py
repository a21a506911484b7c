"""OpenTelemetry (extra `otel`): spans of clients, and journeys of messages as spans.

client_spans.py    OpenTelemetry, the `telemetry` of producers and consumers
journey_spans.py   journeys of the pipeline ─→ spans of messages whose clients know no OpenTelemetry

from ariane.otel import OpenTelemetry
async with Producer(NAMESRV, "shop", telemetry=OpenTelemetry()) as producer: ...
"""

from __future__ import annotations

from ariane.extras import naming_extras

with naming_extras():
    from ariane.otel.client_spans import OpenTelemetry

__all__ = ["OpenTelemetry"]
