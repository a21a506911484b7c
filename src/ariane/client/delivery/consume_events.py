"""Hook events of consumption: one before messages are processed, one afterwards, joined by a request id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ariane.client.instance import hooks as hook_events
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.hooks import ConsumeFinished, ConsumeHook, ConsumeReturn, ConsumeStarted
from ariane.client.instance.instants import Instant
from ariane.model.message import MessageQueue, ReceivedMessage


class Consumption(NamedTuple):
    """Messages whose processing has started: the event that announced it, and when the hooks had returned."""

    event: ConsumeStarted
    started: Instant


class ConsumeEvents:
    """Notifies the hooks of one consumer, its trace dispatcher among them. Without hooks it does nothing."""

    def __init__(self, group: str, hooks: Sequence[ConsumeHook], instance: ClientInstance) -> None:
        self._group = group
        self._hooks = hooks
        self._clock = instance.clock
        self._new_request_id = instance.new_message_id

    @property
    def has_hooks(self) -> bool:
        """Whether anything receives the events."""
        return bool(self._hooks)

    async def start(self, queue: MessageQueue, messages: Sequence[ReceivedMessage]) -> Consumption | None:
        """Announce that messages of one queue are about to be processed. Hooks may take time (a trace queue that blocks)."""
        if not self._hooks:
            return None
        event = ConsumeStarted(
            group=self._group,
            queue=queue,
            messages=messages,
            request_id=self._new_request_id(),
            started_ms=self._clock.now_ms(),
        )
        try:
            await hook_events.notify(self._hooks, event)
        except BaseException:  # cancelled: the messages are not processed
            await self.finish(Consumption(event, Instant.read(self._clock)), ConsumeReturn.FAILED)
            raise
        return Consumption(event, Instant.read(self._clock))

    async def finish(self, consumption: Consumption | None, outcome: ConsumeReturn) -> None:
        """Announce how the processing ended."""
        if consumption is None:
            return
        ended = Instant.read(self._clock)
        event = ConsumeFinished(
            started=consumption.event,
            outcome=outcome,
            ended_ms=ended.wall_ms,
            cost_ms=ended.ms_since(consumption.started),
        )
        await hook_events.notify(self._hooks, event)
