"""The clients of `ariane`, for programs without asyncio. Their arguments, results and errors are those of the asyncio clients."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar, Unpack, overload

from ariane import client as aio
from ariane.blocking.background_loop import BackgroundLoop
from ariane.blocking.blocking_client import BlockingClient, calling, iterating, same_arguments, same_signature, waiting
from ariane.client import validation
from ariane.client.consumer import BATCH
from ariane.client.group_member import GroupMember as AsyncGroupMember
from ariane.client.listener_invoker import Listener
from ariane.client.member_options import MemberOptions
from ariane.client.message_arguments import MessageFields
from ariane.client.producer import QueueSelector
from ariane.client.push_consumer import PayloadListener
from ariane.client.seekable_member import SeekableMember as AsyncSeekableMember
from ariane.model.message import Message, MessageQueue, ReceivedMessage
from ariane.payloads import PayloadCodec

P = TypeVar("P")


class ClientInstance(BlockingClient[aio.ClientInstance]):
    """Connections that several clients share.

    Example:
        with ClientInstance("127.0.0.1:9876") as instance:
            with Producer(instance.shared, "shop") as producer:
                producer.send("orders", b"created")
    """

    @same_arguments(aio.ClientInstance)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(aio.ClientInstance(*args, **kwargs))

    @property
    def shared(self) -> aio.ClientInstance:
        """What clients take in place of addresses.

        Raises:
            ClientClosed: the instance is not open.
        """
        self._running()
        return self._client


class Producer(BlockingClient[aio.Producer]):
    """A member of a producer group. Threads may share it: their sends leave together on one connection.

    Example:
        with Producer("127.0.0.1:9876", "shop") as producer:
            result = producer.send("orders", b"created", keys=["ORDER-17"])
            print(result.status.name, result.message_id)
    """

    @same_arguments(aio.Producer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(aio.Producer(*args, **kwargs))

    @property
    def trace_counts(self) -> aio.TraceCounts:
        """How many trace records were sent, dropped and lost; also after closing."""
        return self._client.trace_counts

    @overload
    def send(
        self,
        message: Message,
        /,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
    ) -> aio.SendResult: ...

    @overload
    def send(
        self,
        topic: str,
        body: bytes,
        /,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        **fields: Unpack[MessageFields],
    ) -> aio.SendResult: ...

    def send(self, *args: Any, **kwargs: Any) -> aio.SendResult:
        """Send a message and wait until the broker has stored it. [ariane.Producer.send]"""
        return self._running().run(self._client.send(*args, **kwargs))

    send_batch = waiting(aio.Producer.send_batch)
    send_batches = iterating(aio.Producer.send_batches)
    send_one_way = waiting(aio.Producer.send_one_way)
    recall = waiting(aio.Producer.recall)
    request = waiting(aio.Producer.request)
    reply = waiting(aio.Producer.reply)
    queues = waiting(aio.Producer.queues)


class TransactionProducer(Producer):
    """A producer whose group answers the brokers' transaction checks. `check` is called in a thread of its own.

    Example:
        with TransactionProducer("127.0.0.1:9876", "payments", check=check) as producer:
            with producer.transaction("paid", b"ORDER-17") as transaction:
                database.pay(order, transaction.id)
    """

    _client: aio.TransactionProducer

    @same_arguments(aio.TransactionProducer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check = validation.callback("check", kwargs.get("check"), "message")
        if not inspect.iscoroutinefunction(check):
            kwargs["check"] = _in_thread(check)
        BlockingClient.__init__(self, aio.TransactionProducer(*args, **kwargs))

    @contextmanager
    def transaction(
        self,
        message: Message | str,
        body: bytes | None = None,
        /,
        *,
        immunity: float | timedelta | None = None,
        **fields: Unpack[MessageFields],
    ) -> Iterator[aio.Transaction]:
        """Send a half message, run the block, and commit. [ariane.TransactionProducer.transaction]"""
        loop = self._running()
        block = self._client.transaction(message, body, immunity=immunity, **fields)
        transaction = loop.run(block.__aenter__())
        try:
            yield transaction
        except BaseException as error:
            loop.run(_leave(block, error))
            raise
        loop.run(_leave(block, None))


Member = TypeVar("Member", bound=AsyncGroupMember)
Seekable = TypeVar("Seekable", bound=AsyncSeekableMember)


class GroupMember(BlockingClient[Member]):
    """What all members of a consumer group have."""

    @property
    def trace_counts(self) -> aio.TraceCounts:
        """How many trace records were sent, dropped and lost; also after closing."""
        return self._client.trace_counts

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
        subscriptions: Mapping[str, str | aio.Sql],
        listener: Listener,
        *,
        payload: None = ...,
        **options: Unpack[MemberOptions],
    ) -> None: ...

    @overload
    def __init__(
        self,
        namesrv: str | Sequence[str] | aio.ClientInstance,
        group: str,
        subscriptions: Mapping[str, str | aio.Sql],
        listener: PayloadListener[P],
        *,
        payload: PayloadCodec[P],
        **options: Unpack[MemberOptions],
    ) -> None: ...

    @same_signature(aio.PushConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(aio.PushConsumer(*args, **kwargs))


class ConsumerMessage(ReceivedMessage, Generic[P], frozen=True, kw_only=True):
    """A message that a `Consumer` yields. The first of `ack`, `retry` and `reject` counts, from any thread."""

    _message: aio.ConsumerMessage[P]
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
        """Whether neither the application nor the consumer has settled the message yet."""
        return self._message.is_pending

    def ack(self) -> None:
        """Count the message as consumed. [ariane.ConsumerMessage.ack]"""
        self._loop.run(self._message.ack())

    def retry(self, *, delay_level: int = 0) -> None:
        """Have the message delivered again later. [ariane.ConsumerMessage.retry]"""
        self._loop.run(self._message.retry(delay_level=delay_level))

    def reject(self) -> None:
        """Make the message a dead letter. [ariane.ConsumerMessage.reject]"""
        self._loop.run(self._message.reject())


class Consumer(SeekableMember[aio.Consumer[P]], Generic[P]):
    """A member of a consumer group whose messages are iterated over. Several threads may iterate over one consumer.

    Example:
        with Consumer("127.0.0.1:9876", "stock", {"orders": "*"}, start="first") as consumer:
            for message in consumer:  # asking for the next message acknowledges this one
                print(message.body)
    """

    @overload
    def __init__(
        self: Consumer[bytes],
        namesrv: str | Sequence[str] | aio.ClientInstance,
        group: str,
        subscriptions: Mapping[str, str | aio.Sql] | None = ...,
        *,
        ack: Literal["auto", "manual"] = ...,
        payload: None = ...,
        **options: Unpack[MemberOptions],
    ) -> None: ...

    @overload
    def __init__(
        self,
        namesrv: str | Sequence[str] | aio.ClientInstance,
        group: str,
        subscriptions: Mapping[str, str | aio.Sql] | None = ...,
        *,
        ack: Literal["auto", "manual"] = ...,
        payload: PayloadCodec[P],
        **options: Unpack[MemberOptions],
    ) -> None: ...

    @same_signature(aio.Consumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(aio.Consumer(*args, **kwargs))

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


class LitePullConsumer(SeekableMember[aio.LitePullConsumer]):
    """A member of a consumer group that polls for messages.

    Example:
        with LitePullConsumer("127.0.0.1:9876", "reports", {"orders": "*"}, auto_commit=False) as consumer:
            messages = consumer.poll(max_messages=32, timeout=10)
            consumer.commit()
    """

    @same_arguments(aio.LitePullConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(aio.LitePullConsumer(*args, **kwargs))

    poll = waiting(aio.LitePullConsumer.poll)
    commit = waiting(aio.LitePullConsumer.commit)


class PullConsumer(BlockingClient[aio.PullConsumer]):
    """Reads queues at offsets that the application chooses, without a consumer group.

    Example:
        with PullConsumer("127.0.0.1:9876") as consumer:
            result = consumer.pull(consumer.queues_of("orders")[0], 0)
    """

    @same_arguments(aio.PullConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(aio.PullConsumer(*args, **kwargs))

    @property
    def trace_counts(self) -> aio.TraceCounts:
        """How many trace records were sent, dropped and lost; also after closing."""
        return self._client.trace_counts

    queues_of = waiting(aio.PullConsumer.queues_of)
    bounds = waiting(aio.PullConsumer.bounds)
    offset_for_time = waiting(aio.PullConsumer.offset_for_time)
    pull = waiting(aio.PullConsumer.pull)


def _in_thread(check: Any) -> Any:
    @functools.wraps(check)
    async def checked(message: ReceivedMessage) -> Any:
        return await asyncio.to_thread(check, message)

    return checked


async def _leave(block: Any, error: BaseException | None) -> None:
    """Leave a transaction's block as its thread left it."""
    try:
        await block.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None)
    except BaseException as raised:
        if raised is not error:
            raise


async def _next(
    batches: AsyncIterator[list[aio.ConsumerMessage[P]]], end: list[aio.ConsumerMessage[P]]
) -> list[aio.ConsumerMessage[P]]:
    return await anext(batches, end)


def _blocking_message(message: aio.ConsumerMessage[P], loop: BackgroundLoop) -> ConsumerMessage[P]:
    fields = {name: getattr(message, name) for name in ReceivedMessage.__struct_fields__}
    return ConsumerMessage(**fields, _message=message, _loop=loop)
