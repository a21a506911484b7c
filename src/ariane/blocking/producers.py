"""The producers of `ariane`, and the client instance, for programs without asyncio. Arguments, results and errors are those of the
asyncio clients."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, Generic, Unpack, overload

from ariane import client as aio
from ariane.blocking.blocking_client import (
    BlockingClient,
    TracingClient,
    iterating,
    same_arguments,
    same_signature,
    waiting,
)
from ariane.client.client_arguments import ProducerArguments, TransactionProducerArguments
from ariane.client.instance import validation
from ariane.client.sending.message_arguments import MessageFields, QueueChoice, SendFields
from ariane.client.transaction_producer import Check
from ariane.model.message import Message, MessageQueue, ReceivedMessage
from ariane.payloads import P, PayloadCodec


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


class Producer(TracingClient[aio.Producer[Any]], Generic[P]):
    """A member of a producer group. Threads may share it: their sends leave together on one connection.

    Example:
        with Producer("127.0.0.1:9876", "shop") as producer:
            result = producer.send("orders", b"created", keys=["ORDER-17"])
            print(result.status.name, result.message_id)
    """

    @same_signature(aio.Producer)
    def __init__(
        self,
        namesrv: str | Sequence[str] | aio.ClientInstance,
        group: str,
        *,
        payload: PayloadCodec[P] | None = None,
        **arguments: Unpack[ProducerArguments],
    ) -> None:
        super().__init__(aio.Producer(namesrv, group, payload=payload, **arguments))

    @overload
    def send(self, message: Message, /, **choice: Unpack[QueueChoice]) -> aio.SendResult: ...

    @overload
    def send(self, topic: str, body: bytes, /, **fields: Unpack[SendFields]) -> aio.SendResult: ...

    @overload
    def send(self, topic: str, /, *, payload: P, **fields: Unpack[SendFields]) -> aio.SendResult: ...

    def send(self, *args: Any, **kwargs: Any) -> aio.SendResult:
        """Send a message and wait until the broker has stored it. [ariane.Producer.send]"""
        return self._running().run(self._client.send(*args, **kwargs))

    @overload
    def send_one_way(self, message: Message, /, *, queue: MessageQueue | None = ...) -> None: ...

    @overload
    def send_one_way(
        self, topic: str, body: bytes, /, *, queue: MessageQueue | None = ..., **fields: Unpack[MessageFields]
    ) -> None: ...

    @overload
    def send_one_way(
        self, topic: str, /, *, payload: P, queue: MessageQueue | None = ..., **fields: Unpack[MessageFields]
    ) -> None: ...

    def send_one_way(self, *args: Any, **kwargs: Any) -> None:
        """Send a message without waiting for a response. [ariane.Producer.send_one_way]"""
        self._running().run(self._client.send_one_way(*args, **kwargs))

    @overload
    def request(
        self, message: Message, /, *, timeout: float | timedelta = ..., **choice: Unpack[QueueChoice]
    ) -> ReceivedMessage: ...

    @overload
    def request(
        self, topic: str, body: bytes, /, *, timeout: float | timedelta = ..., **fields: Unpack[SendFields]
    ) -> ReceivedMessage: ...

    @overload
    def request(
        self, topic: str, /, *, payload: P, timeout: float | timedelta = ..., **fields: Unpack[SendFields]
    ) -> ReceivedMessage: ...

    def request(self, *args: Any, **kwargs: Any) -> ReceivedMessage:
        """Send a message and wait for the message that a consumer replies with. [ariane.Producer.request]"""
        return self._running().run(self._client.request(*args, **kwargs))

    send_batch = waiting(aio.Producer.send_batch)
    send_batches = iterating(aio.Producer.send_batches)
    recall = waiting(aio.Producer.recall)
    reply = waiting(aio.Producer.reply)
    queues = waiting(aio.Producer.queues)


class TransactionProducer(Producer[P]):
    """A producer whose group answers the brokers' transaction checks. `check` is called in a thread of its own.

    Example:
        with TransactionProducer("127.0.0.1:9876", "payments", check=check) as producer:
            with producer.transaction("paid", b"ORDER-17") as transaction:
                database.pay(order, transaction.id)
    """

    _client: aio.TransactionProducer[Any]

    @same_signature(aio.TransactionProducer)
    def __init__(
        self,
        namesrv: str | Sequence[str] | aio.ClientInstance,
        group: str,
        *,
        check: Check,
        payload: PayloadCodec[P] | None = None,
        **arguments: Unpack[TransactionProducerArguments],
    ) -> None:
        check = validation.callback("check", check, "message")
        if not inspect.iscoroutinefunction(check):
            check = _in_thread(check)
        BlockingClient.__init__(
            self, aio.TransactionProducer(namesrv, group, check=check, payload=payload, **arguments)
        )

    @overload
    def transaction(
        self, message: Message, /, *, immunity: float | timedelta | None = ...
    ) -> AbstractContextManager[aio.Transaction]: ...

    @overload
    def transaction(
        self, topic: str, body: bytes, /, *, immunity: float | timedelta | None = ..., **fields: Unpack[MessageFields]
    ) -> AbstractContextManager[aio.Transaction]: ...

    @overload
    def transaction(
        self, topic: str, /, *, payload: P, immunity: float | timedelta | None = ..., **fields: Unpack[MessageFields]
    ) -> AbstractContextManager[aio.Transaction]: ...

    @contextmanager
    def transaction(self, *args: Any, **kwargs: Any) -> Iterator[aio.Transaction]:
        """Send a half message, run the block, and commit. [ariane.TransactionProducer.transaction]"""
        loop = self._running()
        block = self._client.transaction(*args, **kwargs)
        transaction = loop.run(block.__aenter__())
        try:
            yield transaction
        except BaseException as error:
            loop.run(_leave(block, error))
            raise
        loop.run(_leave(block, None))


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
