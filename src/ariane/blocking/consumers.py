"""The consumers of `ariane`, for programs without asyncio. Their arguments, results and errors are those of the asyncio clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextvars import copy_context
from datetime import timedelta
from typing import Any, Generic, TypeVar, Unpack, overload

from ariane import client as aio
from ariane.blocking.background_loop import BackgroundLoop
from ariane.blocking.blocking_client import TracingClient, calling, same_signature, waiting
from ariane.client.client_arguments import (
    ConsumerArguments,
    LitePullConsumerArguments,
    PullConsumerArguments,
    PushConsumerArguments,
)
from ariane.client.consumer import BATCH
from ariane.client.consuming.payload_messages import M, PayloadMessage
from ariane.client.consuming.subscriptions import TopicSubscriptions
from ariane.client.delivery.listener_invoker import Listener
from ariane.client.lite_pull_consumer import POLL_S
from ariane.client.membership.group_member import GroupMember as AsyncGroupMember
from ariane.client.membership.seekable_member import SeekableMember as AsyncSeekableMember
from ariane.client.push_consumer import PayloadListener
from ariane.filter import tags
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.payloads import P, PayloadCodec

Member = TypeVar("Member", bound=AsyncGroupMember)
Seekable = TypeVar("Seekable", bound=AsyncSeekableMember)


class GroupMember(TracingClient[Member]):
    """What all members of a consumer group have."""

    @property
    def client_id(self) -> str:
        """Id of the client instance, unique in the cluster."""
        return self._client.client_id

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues assigned to this member, sorted."""
        return self._running().call(lambda: self._client.queues)

    subscribe = waiting(AsyncGroupMember.subscribe)
    unsubscribe = waiting(AsyncGroupMember.unsubscribe)
    queues_of = waiting(AsyncGroupMember.queues_of)
    bounds = waiting(AsyncGroupMember.bounds)
    offset_for_time = waiting(AsyncGroupMember.offset_for_time)
    rates = calling(AsyncGroupMember.rates)


class SeekableMember(GroupMember[Seekable]):
    """A member that can choose its queues and offsets."""

    committed = waiting(AsyncSeekableMember.committed)
    position = calling(AsyncSeekableMember.position)
    assign = waiting(AsyncSeekableMember.assign)
    seek = waiting(AsyncSeekableMember.seek)
    seek_to_begin = waiting(AsyncSeekableMember.seek_to_begin)
    seek_to_end = waiting(AsyncSeekableMember.seek_to_end)
    pause = calling(AsyncSeekableMember.pause)
    resume = calling(AsyncSeekableMember.resume)


class PushConsumer(GroupMember[aio.PushConsumer]):
    """A member of a consumer group whose messages are passed to a listener, in a pool of threads.

    Example:
        with PushConsumer("127.0.0.1:9876", "stock", {"orders": "*"}, listener, start="first"):
            stopped.wait()
    """

    @overload
    def __init__(
        self,
        namesrv: str | Sequence[str] | aio.ClientInstance,
        group: str,
        subscriptions: TopicSubscriptions,
        listener: Listener,
        *,
        payload: None = ...,
        **arguments: Unpack[PushConsumerArguments],
    ) -> None: ...

    @overload
    def __init__(
        self,
        namesrv: str | Sequence[str] | aio.ClientInstance,
        group: str,
        subscriptions: TopicSubscriptions,
        listener: PayloadListener[P],
        *,
        payload: PayloadCodec[P],
        **arguments: Unpack[PushConsumerArguments],
    ) -> None: ...

    @same_signature(aio.PushConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(aio.PushConsumer(*args, **kwargs))


class DeliveredMessage(ReceivedMessage, Generic[P], frozen=True, kw_only=True):
    """A message that the application settles, from any thread. The first call that settles it counts."""

    _message: aio.ConsumerMessage[P] | aio.PoppedMessage[P]
    _loop: BackgroundLoop

    @property
    def payload(self) -> P:
        """The body, decoded by the consumer's codec (`payload=`); without one, the body."""
        return self._message.payload

    @property
    def attempt(self) -> int:
        """Number of this delivery: 1 for the first, 2 for the first redelivery."""
        return self._message.attempt

    @property
    def is_pending(self) -> bool:
        """Whether the message is neither settled nor delivered again."""
        return self._message.is_pending

    def ack(self) -> None:
        """Count the message as consumed. [ariane.ConsumerMessage.ack, ariane.PoppedMessage.ack]"""
        self._loop.run(self._message.ack())

    def reject(self) -> None:
        """Make the message a dead letter. [ariane.ConsumerMessage.reject, ariane.PoppedMessage.reject]"""
        self._loop.run(self._message.reject())


class ConsumerMessage(DeliveredMessage[P], Generic[P], frozen=True, kw_only=True):
    """A message that a `Consumer` yields. The first of `ack`, `retry` and `reject` counts."""

    _message: aio.ConsumerMessage[P]

    def retry(self, *, delay_level: int = 0) -> None:
        """Have the message delivered again later. [ariane.ConsumerMessage.retry]"""
        self._loop.run(self._message.retry(delay_level=delay_level))


class Consumer(SeekableMember[aio.Consumer[P]], Generic[P]):
    """A member of a consumer group whose messages are iterated over. Several threads may iterate over one consumer.

    Example:
        with Consumer("127.0.0.1:9876", "stock", {"orders": "*"}, start="first") as consumer:
            for message in consumer:  # asking for the next message acknowledges this one
                print(message.body)
    """

    @same_signature(aio.Consumer)
    def __init__(
        self,
        namesrv: str | Sequence[str] | aio.ClientInstance,
        group: str,
        subscriptions: TopicSubscriptions | None = None,
        *,
        payload: PayloadCodec[P] | None = None,
        **arguments: Unpack[ConsumerArguments],
    ) -> None:
        super().__init__(aio.Consumer(namesrv, group, subscriptions, payload=payload, **arguments))

    def __iter__(self) -> Iterator[ConsumerMessage[P]]:
        """Start a loop over messages. [ariane.Consumer]"""
        for batch in self._batches(1, 0):
            yield batch[0]

    def batches(
        self, max_messages: int = BATCH, *, timeout: float | timedelta = 0
    ) -> Iterator[list[ConsumerMessage[P]]]:
        """Start a loop over lists of messages. [ariane.Consumer.batches]"""
        return self._batches(max_messages, timeout)

    def stop(self) -> None:
        """End all loops: each when it asks for its next message. For signal handlers and other threads."""
        self._running().call_soon(self._client.stop)

    def _batches(self, max_messages: int, timeout: float | timedelta) -> Iterator[list[ConsumerMessage[P]]]:
        loop, context = self._running(), copy_context()  # one context: a span is opened and closed in the same one
        batches = loop.call(lambda: self._client.batches(max_messages, timeout=timeout))
        end: list[aio.ConsumerMessage[P]] = []
        while (batch := loop.run(_next(batches, end), context)) is not end:
            yield [_blocking_message(message, loop) for message in batch]


class LitePullConsumer(SeekableMember[aio.LitePullConsumer[Any]], Generic[M]):
    """A member of a consumer group that polls for messages.

    Example:
        with LitePullConsumer("127.0.0.1:9876", "reports", {"orders": "*"}, auto_commit=False) as consumer:
            messages = consumer.poll(max_messages=32, timeout=10)
            consumer.commit()
    """

    @overload
    def __init__(
        self: LitePullConsumer[ReceivedMessage],
        namesrv: str | Sequence[str] | aio.ClientInstance,
        group: str,
        subscriptions: TopicSubscriptions | None = ...,
        *,
        payload: None = ...,
        **arguments: Unpack[LitePullConsumerArguments],
    ) -> None: ...

    @overload
    def __init__(
        self: LitePullConsumer[PayloadMessage[P]],
        namesrv: str | Sequence[str] | aio.ClientInstance,
        group: str,
        subscriptions: TopicSubscriptions | None = ...,
        *,
        payload: PayloadCodec[P],
        **arguments: Unpack[LitePullConsumerArguments],
    ) -> None: ...

    @same_signature(aio.LitePullConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(aio.LitePullConsumer(*args, **kwargs))

    def poll(self, *, max_messages: int | None = None, timeout: float | timedelta = POLL_S) -> list[M]:
        """Return the next messages of one queue. [ariane.LitePullConsumer.poll]"""
        return self._running().run(self._client.poll(max_messages=max_messages, timeout=timeout))

    commit = waiting(aio.LitePullConsumer.commit)


class PullConsumer(TracingClient[aio.PullConsumer[Any]], Generic[M]):
    """Reads queues at offsets that the application chooses, without a consumer group.

    Example:
        with PullConsumer("127.0.0.1:9876") as consumer:
            result = consumer.pull(consumer.queues_of("orders")[0], 0)
    """

    @overload
    def __init__(
        self: PullConsumer[ReceivedMessage],
        namesrv: str | Sequence[str] | aio.ClientInstance,
        group: str = ...,
        *,
        payload: None = ...,
        **arguments: Unpack[PullConsumerArguments],
    ) -> None: ...

    @overload
    def __init__(
        self: PullConsumer[PayloadMessage[P]],
        namesrv: str | Sequence[str] | aio.ClientInstance,
        group: str = ...,
        *,
        payload: PayloadCodec[P],
        **arguments: Unpack[PullConsumerArguments],
    ) -> None: ...

    @same_signature(aio.PullConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(aio.PullConsumer(*args, **kwargs))

    queues_of = waiting(aio.PullConsumer.queues_of)
    bounds = waiting(aio.PullConsumer.bounds)
    offset_for_time = waiting(aio.PullConsumer.offset_for_time)

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        expression: str | aio.Sql = tags.ALL,
        max_messages: int | None = None,
        can_wait: bool = True,
    ) -> aio.PullResult[M]:
        """Return the messages of a queue from `offset` on. [ariane.PullConsumer.pull]"""
        loop, pull = self._running(), self._client.pull
        return loop.run(pull(queue, offset, expression=expression, max_messages=max_messages, can_wait=can_wait))


async def _next(
    batches: AsyncIterator[list[aio.ConsumerMessage[P]]], end: list[aio.ConsumerMessage[P]]
) -> list[aio.ConsumerMessage[P]]:
    return await anext(batches, end)


def _blocking_message(message: aio.ConsumerMessage[P], loop: BackgroundLoop) -> ConsumerMessage[P]:
    fields = {name: getattr(message, name) for name in ReceivedMessage.__struct_fields__}
    return ConsumerMessage(**fields, _message=message, _loop=loop)
