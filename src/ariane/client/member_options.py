"""Keyword arguments that the consumers of groups have in common, for their overloads. [no counterpart in Java]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from ariane.client.assignment_strategy import AssignmentStrategy
from ariane.client.hooks import ConsumeHook
from ariane.client.settings import ClientSettings, ConsumerSettings, TraceSettings
from ariane.client.telemetry import ClientTelemetry
from ariane.client.validation import StartPosition


class MemberOptions(TypedDict, total=False):
    """Arguments of `PushConsumer` and `Consumer`, asyncio and blocking, that do not depend on the payload."""

    start: StartPosition
    orderly: bool
    strategy: AssignmentStrategy
    settings: ConsumerSettings | None
    client: ClientSettings | None
    trace: TraceSettings | bool
    hooks: Sequence[ConsumeHook]
    telemetry: ClientTelemetry
