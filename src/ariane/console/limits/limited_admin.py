"""Operations on the cluster for an account that may not see everything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ariane.client.instance.send_types import SendResult
from ariane.cluster.admin import Admin
from ariane.cluster.messages.replay import ReplayOutcome
from ariane.console.limits.access import MASKED
from ariane.errors import UsageError
from ariane.model.message import Message, ReceivedMessage


class LimitedAdmin(Admin):
    """`Admin` over a `LimitedPool`. Sends use connections of their own, so they are checked here."""

    async def send_message(self, message: Message, **options: Any) -> SendResult | None:
        """Send a message to a topic that the account sees; raises as `Admin.send_message`."""
        await self.routing.fetch_route(message.topic)
        return await super().send_message(message, **options)

    async def resend(self, message: ReceivedMessage, topic: str | None = None) -> SendResult | None:
        """Send a copy of a message, if none of its contents is masked."""
        _check_contents([message])
        return await super().resend(message, topic)

    async def resend_all(
        self, messages: Sequence[ReceivedMessage], *, topic: str | None = None, **options: Any
    ) -> list[ReplayOutcome]:
        """Send copies of messages, if none of their contents is masked, to a topic that the account sees."""
        _check_contents(messages)
        if topic is not None:
            await self.routing.fetch_route(topic)
        return await super().resend_all(messages, topic=topic, **options)


def _check_contents(messages: Iterable[ReceivedMessage]) -> None:
    """Check that messages can be copied.

    Raises:
        UsageError: contents of one are masked: the copy would have the mask instead.
    """
    for message in messages:
        if masked := message.properties.get(MASKED):
            fix = f"its {masked.replace(',', ', ')} cannot be read by this account; ask one that may read it"
            raise UsageError("message", message.message_id, fix)
