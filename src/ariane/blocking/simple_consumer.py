"""The consumer that takes messages by POP, for programs without asyncio. Arguments, results and errors are those of the asyncio
client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Generic, Unpack

from ariane import client as aio
from ariane.blocking.background_loop import BackgroundLoop
from ariane.blocking.blocking_client import TracingClient, calling, same_signature, waiting
from ariane.blocking.consumers import DeliveredMessage
from ariane.client.client_arguments import SimpleConsumerArguments
from ariane.client.consuming.pop_requests import COUNT_MAX
from ariane.client.consuming.subscriptions import TopicSubscriptions
from ariane.client.simple_consumer import INVISIBLE_S, TIMEOUT_S
from ariane.model.message import ReceivedMessage
from ariane.payloads import P, PayloadCodec


class PoppedMessage(DeliveredMessage[P], Generic[P], frozen=True, kw_only=True):
    """A message that a `SimpleConsumer` received. The first of `ack` and `reject` counts."""

    _message: aio.PoppedMessage[P]

    def change_invisible(self, invisible: float | timedelta) -> None:
        """Have the message delivered again later, unless it is settled before. [ariane.PoppedMessage.change_invisible]"""
        self._loop.run(self._message.change_invisible(invisible))


class SimpleConsumer(TracingClient[aio.SimpleConsumer[P]], Generic[P]):
    """A member of a consumer group that takes messages from any queue, and acknowledges each message.

    Example:
        with SimpleConsumer("127.0.0.1:9876", "stock", {"orders": "*"}, start="first") as consumer:
            for message in consumer.receive(32, invisible=30):
                message.ack()
    """

    @same_signature(aio.SimpleConsumer)
    def __init__(
        self,
        namesrv: str | Sequence[str] | aio.ClientInstance,
        group: str,
        subscriptions: TopicSubscriptions,
        *,
        payload: PayloadCodec[P] | None = None,
        **arguments: Unpack[SimpleConsumerArguments],
    ) -> None:
        super().__init__(aio.SimpleConsumer(namesrv, group, subscriptions, payload=payload, **arguments))

    @property
    def client_id(self) -> str:
        """Id of the client instance, unique in the cluster."""
        return self._client.client_id

    def receive(
        self,
        max_messages: int = COUNT_MAX,
        *,
        invisible: float | timedelta = INVISIBLE_S,
        timeout: float | timedelta = TIMEOUT_S,
    ) -> list[PoppedMessage[P]]:
        """Take messages of one topic from one broker. [ariane.SimpleConsumer.receive]"""
        loop = self._running()
        messages = loop.run(self._client.receive(max_messages, invisible=invisible, timeout=timeout))
        return [_blocking_message(message, loop) for message in messages]

    def ack(self, messages: Iterable[PoppedMessage[P]]) -> None:
        """Count messages as consumed. [ariane.SimpleConsumer.ack]"""
        self._running().run(self._client.ack([message._message for message in messages]))

    subscribe = waiting(aio.SimpleConsumer.subscribe)
    unsubscribe = waiting(aio.SimpleConsumer.unsubscribe)
    queues_of = waiting(aio.SimpleConsumer.queues_of)
    bounds = waiting(aio.SimpleConsumer.bounds)
    offset_for_time = waiting(aio.SimpleConsumer.offset_for_time)
    rates = calling(aio.SimpleConsumer.rates)


def _blocking_message(message: aio.PoppedMessage[P], loop: BackgroundLoop) -> PoppedMessage[P]:
    fields = {name: getattr(message, name) for name in ReceivedMessage.__struct_fields__}
    return PoppedMessage(**fields, _message=message, _loop=loop)
