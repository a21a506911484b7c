"""Interface through which clients report spans; `ariane.otel` implements it for OpenTelemetry.

    Producer.send ─→ sending(group, messages) ─→ messages with the trace context in their properties
    listener call ─→ processing(group, messages)

A span is a context manager around the work, so that spans of the application nest inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

from ariane.client.instance.send_types import SendResult
from ariane.model.message import Message, ReceivedMessage


class SendSpan(NamedTuple):
    """A span that is open while messages are sent.

    Attributes:
        messages: The messages to send, with the trace context in their properties.
        on_result: Records what the broker stored.
    """

    messages: Sequence[Message]
    on_result: Callable[[SendResult], None]


class ClientTelemetry(Protocol):
    """Opens spans around the operations of clients."""

    def sending(self, group: str, messages: Sequence[Message]) -> AbstractContextManager[SendSpan]:
        """Open a span while a message or a batch is sent by a producer group."""
        ...

    def processing(self, group: str, messages: Sequence[ReceivedMessage]) -> AbstractContextManager[None]:
        """Open a span while a consumer group processes messages."""
        ...


class NoTelemetry:
    """Opens no spans."""

    def sending(self, group: str, messages: Sequence[Message]) -> AbstractContextManager[SendSpan]:
        """Return the messages unchanged."""
        return nullcontext(SendSpan(messages, _ignore))

    def processing(self, group: str, messages: Sequence[ReceivedMessage]) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()


NO_TELEMETRY = NoTelemetry()


def _ignore(result: SendResult) -> None:
    """Ignore a result."""
