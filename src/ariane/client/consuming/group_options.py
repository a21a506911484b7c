"""Options of a consumer group's member: the checked arguments of a push or lite-pull consumer, as one value."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

import msgspec

from ariane.client.consuming.assignment_strategy import AssignmentStrategy, average
from ariane.client.instance.settings import ConsumerSettings
from ariane.client.instance.validation import StartOffset
from ariane.payloads import PayloadCodec
from ariane.protocol.requests.clients import ConsumerData, SubscriptionData

# What heartbeats call the start positions.
_CONSUME_FROM = {"first": "CONSUME_FROM_FIRST_OFFSET", "last": "CONSUME_FROM_LAST_OFFSET"}


class Assignment(Enum):
    """How the queues of a topic are distributed."""

    SHARED = "shared"
    """The members of the group share the queues by the assignment strategy."""
    ALL = "all"
    """Every member reads every queue (broadcasting)."""
    MANUAL = "manual"
    """The application names the queues."""


class GroupOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How this client takes part in a consumer group."""

    group: str
    settings: ConsumerSettings = ConsumerSettings()
    start: StartOffset = "last"
    """Where to start in queues for which the group has no stored offset."""
    assignment: Assignment = Assignment.SHARED
    strategy: AssignmentStrategy = average
    """Rule by which the members share queues (`Assignment.SHARED`)."""
    is_orderly: bool = False
    """Whether each queue is consumed in order, under the broker's lock where members share queues."""
    payload: PayloadCodec[Any] | None = None
    """Decodes bodies before they are delivered; None: bodies are delivered as they are."""
    is_polled: bool = False
    """Whether the application polls (lite pull) instead of being called by the client (push)."""
    pull_flags: int = 0
    """Additional sysFlag bits of pull requests."""

    @property
    def needs_locks(self) -> bool:
        """True if a queue may only be consumed while its broker's lock is held."""
        return self.is_orderly and self.assignment is Assignment.SHARED

    def describe(self, subscriptions: Iterable[SubscriptionData]) -> ConsumerData:
        """Return the group's entry in heartbeats."""
        start = _CONSUME_FROM.get(str(self.start), "CONSUME_FROM_TIMESTAMP")
        return ConsumerData(
            # Java's lite-pull consumer reports this value whatever its start position is.
            consume_from_where="CONSUME_FROM_LAST_OFFSET" if self.is_polled else start,
            consume_type="CONSUME_ACTIVELY" if self.is_polled else "CONSUME_PASSIVELY",
            group_name=self.group,
            message_model=self.settings.message_model.upper(),
            subscription_data_set=tuple(subscriptions),
        )
