"""Keyword arguments of the clients' constructors, as types: each constructor has overloads, with and without a payload codec, and
so has its twin in `ariane.blocking`. The classes describe the arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from ariane.client.consuming.assignment_strategy import AssignmentStrategy
from ariane.client.instance.hooks import ConsumeHook, SendHook, TransactionEndHook
from ariane.client.instance.settings import ClientSettings, ConsumerSettings, ProducerSettings, TraceSettings
from ariane.client.instance.telemetry import ClientTelemetry
from ariane.client.instance.validation import StartPosition


class ProducerArguments(TypedDict, total=False):
    """Of `Producer`."""

    settings: ProducerSettings | None
    client: ClientSettings | None
    trace: TraceSettings | bool
    hooks: Sequence[SendHook]
    telemetry: ClientTelemetry


class TransactionProducerArguments(ProducerArguments, total=False):
    """Of `TransactionProducer`, without `check`."""

    checks_at_once: int
    end_hooks: Sequence[TransactionEndHook]


class PullConsumerArguments(TypedDict, total=False):
    """Of `PullConsumer`."""

    settings: ConsumerSettings | None
    client: ClientSettings | None
    trace: TraceSettings | bool
    hooks: Sequence[ConsumeHook]


class MemberArguments(PullConsumerArguments, total=False):
    """Of all members of consumer groups."""

    start: StartPosition
    strategy: AssignmentStrategy
    telemetry: ClientTelemetry


class PushConsumerArguments(MemberArguments, total=False):
    """Of `PushConsumer`."""

    orderly: bool


class ConsumerArguments(PushConsumerArguments, total=False):
    """Of `Consumer`."""

    ack: Literal["auto", "manual"]


class SimpleConsumerArguments(PullConsumerArguments, total=False):
    """Of `SimpleConsumer`."""

    start: Literal["first", "last"]
    telemetry: ClientTelemetry


class LitePullConsumerArguments(MemberArguments, total=False):
    """Of `LitePullConsumer`."""

    auto_commit: bool
