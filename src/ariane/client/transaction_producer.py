"""Transaction producer: messages that are delivered only if the application's own work succeeded. [TransactionMQProducer]

    async def check(message): return LocalState.COMMIT if await is_paid(message.message_id) else LocalState.ROLLBACK

    async with TransactionProducer("127.0.0.1:9876", "shop", check=check) as producer:
        async with producer.transaction("paid", b"…") as transaction:      # transaction.id is message_id in `check`
            await database.pay(order, transaction.id)

    half message ─→ broker        stored, but not delivered
    execute(sent)                 the application's own work
    END_TRANSACTION ─→ broker     one-way: if it is lost or the state is UNKNOWN, the broker sends a check to the group
    check (39) ─→ check(message) ─→ END_TRANSACTION ─→ broker

The broker may send a check to any producer of the group, also to a later process, and more than once. So `check` must decide
by durable data, and must not change a COMMIT or ROLLBACK.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, Self, Unpack, overload

import msgspec

from ariane.client.instance import hooks as hook_events
from ariane.client.instance import validation
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.hooks import LocalState, SendHook, TransactionEnd, TransactionEndHook
from ariane.client.instance.send_types import PreparedMessage, SendResult, SendStatus
from ariane.client.instance.settings import ClientSettings, ProducerSettings, TraceSettings
from ariane.client.instance.telemetry import NO_TELEMETRY, ClientTelemetry
from ariane.client.producer import Producer
from ariane.client.sending import send_codec
from ariane.client.sending.message_arguments import MessageFields, message_of
from ariane.errors import ArianeError, ConnectionLost, HalfMessageLate, MessageRefused, ProtocolError
from ariane.model import ids
from ariane.model import message as names
from ariane.model.message import Message, MessageQueue, ReceivedMessage
from ariane.net.connection import Peer
from ariane.net.tasks import BackgroundTasks
from ariane.payloads import P, PayloadCodec
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.records import record
from ariane.protocol.records.received_messages import to_received_message
from ariane.protocol.requests import decode_header, encode_header
from ariane.protocol.requests.messaging import CheckTransactionState, EndTransactionHeader

log = logging.getLogger("ariane.client")

Execute = Callable[[SendResult], Awaitable[LocalState] | LocalState]
Check = Callable[[ReceivedMessage], Awaitable[LocalState] | LocalState]

PENDING_CHECKS_MAX = 2000  # checks that wait for `check`; the broker repeats those that are dropped
DEFAULT_REGION = "DefaultRegion"


class TransactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `send_in_transaction`.

    `sent` is the result of the half message, `state` the state that was sent to the broker, and `error` the exception that
    `execute` raised, if any.
    """

    sent: SendResult
    state: LocalState
    error: Exception | None = None


class Transaction:
    """A transaction of `TransactionProducer.transaction`, while its block runs.

    Attributes:
        sent: The result of the half message; `sent.message_id` identifies the transaction, also in `check`.
        state: The state that is sent to the broker when the block ends without an exception.
    """

    def __init__(self, sent: SendResult) -> None:
        self.sent = sent
        self.state = LocalState.COMMIT

    @property
    def id(self) -> str:
        """Id of the message, the same in `check`."""
        return self.sent.message_id

    def rollback(self) -> None:
        """Discard the message when the block ends, however it ends."""
        self.state = LocalState.ROLLBACK

    def leave_open(self) -> None:
        """Send no decision: the broker asks `check` later."""
        self.state = LocalState.UNKNOWN


class TransactionProducer(Producer[P]):
    """A producer whose group answers the brokers' transaction checks. Messages sent with `send` are not transactional.

    Args:
        namesrv: Name server addresses, `"host:port;host:port"` or a list; or an open `ClientInstance` to share.
        group: Name of the producer group.
        check: Function of the half message that returns the state of its transaction; a coroutine function or a plain one.
        checks_at_once: Maximum number of concurrent calls of `check`.
        settings: Timeouts, retries and limits of the producer.
        client: Settings of the client instance; a shared one has its own.
        trace: True or `TraceSettings` to record sends and ends of transactions.
        hooks: Functions that receive a `SendEvent` after each attempt that got a response.
        end_hooks: Functions that receive a `TransactionEnd` before a state is sent to the broker.
        telemetry: Opens a span around each send: `ariane.otel.OpenTelemetry`.
        payload: Codec of payloads that are sent, as for `Producer`. `check` receives bodies as they are.

    Raises:
        ConfigError: an argument cannot be used; raised before anything is connected.

    Example:
        async with TransactionProducer("127.0.0.1:9876", "payments", check=check) as producer:
            result = await producer.send_in_transaction(Message(topic="paid", body=b"ORDER-17"), pay)
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | ClientInstance,
        group: str,
        *,
        check: Check,
        checks_at_once: int = 4,
        settings: ProducerSettings | None = None,
        client: ClientSettings | None = None,
        trace: TraceSettings | bool = False,
        hooks: Sequence[SendHook] = (),
        end_hooks: Sequence[TransactionEndHook] = (),
        telemetry: ClientTelemetry = NO_TELEMETRY,
        payload: PayloadCodec[P] | None = None,
    ) -> None:
        super().__init__(
            namesrv,
            group,
            settings=settings,
            client=client,
            trace=trace,
            hooks=hooks,
            telemetry=telemetry,
            payload=payload,
        )
        self._check: Check = validation.callback("check", check, "message")
        self._checks_at_once = validation.whole("checks_at_once", checks_at_once, 1, 1_000)
        self._end_hooks: tuple[TransactionEndHook, ...] = validation.callbacks("end_hooks", end_hooks, "event")
        self._check_requests: asyncio.Queue[tuple[Command, Peer]] = asyncio.Queue(PENDING_CHECKS_MAX)
        self._open_checks = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            tasks = BackgroundTasks(f"producer {self.group}")
            opening.push_async_callback(tasks.close)
            # Before the producer is registered: brokers send checks as soon as they know the group.
            self._instance.register_transaction_check(self.group, self._on_check_request)
            opening.callback(self._instance.register_transaction_check, self.group, None)
            await super().__aenter__()
            opening.push_async_callback(super().__aexit__, None, None, None)
            for _ in range(self._checks_at_once):
                tasks.start(self._process_check_requests(), "answer transaction checks")
            self._open_checks = opening.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._open_checks.aclose()

    @overload
    def transaction(
        self, message: Message, /, *, immunity: float | timedelta | None = ...
    ) -> AbstractAsyncContextManager[Transaction]: ...

    @overload
    def transaction(
        self, topic: str, body: bytes, /, *, immunity: float | timedelta | None = ..., **fields: Unpack[MessageFields]
    ) -> AbstractAsyncContextManager[Transaction]: ...

    @overload
    def transaction(
        self, topic: str, /, *, payload: P, immunity: float | timedelta | None = ..., **fields: Unpack[MessageFields]
    ) -> AbstractAsyncContextManager[Transaction]: ...

    @asynccontextmanager
    async def transaction(
        self,
        message: Message | str,
        body: bytes | None = None,
        /,
        *,
        immunity: float | timedelta | None = None,
        **fields: Any,
    ) -> AsyncIterator[Transaction]:
        """Send a half message, run the block, and commit.

        If the block raises, the exception leaves it and the transaction stays open: the broker asks `check`, because the
        application's own work may have been done before the exception. `Transaction.rollback` discards the message.

        Args:
            message: The message, without a delay; or the name of its topic.
            body: Body of the message, if `message` is the name of a topic.
            immunity: How long the broker sends no check, in seconds (rounded up to whole ones) or as a `timedelta`; None: the
                broker's transactionTimeOut.
            fields: Further fields of `Message`, if `message` is the name of a topic; and `payload` in place of the body.

        Raises:
            HalfMessageLate: the half message was stored with a late flush or replication; it is rolled back.
            ClientClosed, MessageRefused, ConfigError, RouteNotFound, RequestTimeout, ConnectionLost, ReplyError: as
                `send_in_transaction`.

        Example:
            async with producer.transaction("paid", b"ORDER-17") as transaction:
                await database.pay(order, transaction.id)
        """
        half = message_of(message, body, fields, self._codec)
        sent = await self._send_half(half, immunity)
        if sent.status is not SendStatus.SEND_OK:
            await self._end_after_execute(half, sent, LocalState.ROLLBACK, None)
            raise HalfMessageLate(sent.message_id, sent.status.name)
        transaction = Transaction(sent)
        try:
            yield transaction
        except BaseException as error:
            state = LocalState.UNKNOWN if transaction.state is LocalState.COMMIT else transaction.state
            await self._end_after_execute(half, sent, state, error if isinstance(error, Exception) else None)
            raise
        await self._end_after_execute(half, sent, transaction.state, None)

    async def send_in_transaction(
        self, message: Message, execute: Execute, *, immunity: float | timedelta | None = None
    ) -> TransactionResult:
        """Send a half message, call `execute` and send the state that it returns to the broker.

        If the half message was stored with a late flush or replication, it is rolled back and `execute` is not called.

        Args:
            message: The message, without a delay.
            execute: Function of the send result that does the application's work and returns a `LocalState`. If it raises,
                the state is UNKNOWN and the exception is in the result.
            immunity: How long the broker sends no check, in seconds (rounded up to whole ones) or as a `timedelta`; None: the
                broker's transactionTimeOut.

        Returns:
            The result of the half message, the state and the exception.

        Raises:
            ClientClosed: the producer is not open.
            MessageRefused: the message cannot be sent as it is.
            ConfigError: `immunity` is not a duration.
            RouteNotFound, RequestTimeout, ConnectionLost, ReplyError: the half message was not acknowledged.

        Example:
            async def pay(sent: SendResult) -> LocalState:
                await database.pay(order, sent.message_id)
                return LocalState.COMMIT

            result = await producer.send_in_transaction(Message(topic="paid", body=b"ORDER-17"), pay)
        """
        sent = await self._send_half(message, immunity)
        # A half message that may be lost with its broker must not be followed by the application's transaction.
        state, error = LocalState.ROLLBACK, None
        if sent.status is SendStatus.SEND_OK:
            state, error = await _local_state(execute, sent, f"the transaction of {sent.message_id}")
        await self._end_after_execute(message, sent, state, error)
        return TransactionResult(sent=sent, state=state, error=error)

    async def _send_half(self, message: Message, immunity: float | timedelta | None) -> SendResult:
        sender = self._running()
        with self._telemetry.sending(self.group, (message,)) as span:
            (half,) = span.messages
            message_id = send_codec.message_id_of(half, self._instance.new_message_id)
            group = self._instance.namespace.wrap(self.group)  # brokers find the group by a property
            prepared = prepare_half_message(half, message_id, group, self._settings, immunity)
            sent = await sender.send(prepared)
            span.on_result(sent)
        return sent

    async def _end_after_execute(
        self, message: Message, sent: SendResult, state: LocalState, error: Exception | None
    ) -> None:
        addr = self._instance.routes.master_address(sent.queue.broker)
        if addr is None:
            log.warning(
                "Could not send the end of transaction %s, the broker will check it: %s has no master",
                sent.message_id,
                sent.queue.broker,
            )
            return
        end = EndTransactionHeader(
            producer_group=self.group,
            tran_state_table_offset=sent.queue_offset,
            commit_log_offset=ids.parse_offset_message_id(sent.offset_message_id)[1],
            commit_or_rollback=state,
            msg_id=sent.message_id,
            transaction_id=sent.transaction_id,
        )
        about = (message.topic, message.tags, " ".join(message.keys), sent.region)
        await self._send_end(addr, end, about, state, error)

    async def _send_end(
        self,
        addr: str,
        end: EndTransactionHeader,
        about: tuple[str, str, str, str],
        state: LocalState,
        error: Exception | None,
    ) -> None:
        """Send a state to one broker. Failures are only logged, because the broker checks the transaction later."""
        topic, tags, keys, region = about
        event = TransactionEnd(
            group=self.group,
            topic=topic,
            tags=tags,
            keys=keys,
            region=region,
            message_id=end.msg_id or "",
            transaction_id=end.transaction_id or end.msg_id or "",
            state=state,
            from_check=end.from_transaction_check,
            broker_addr=addr,
            ended_ms=self._instance.clock.now_ms(),
        )
        hooks = self._end_hooks if self.trace is None else (*self._end_hooks, self.trace.on_transaction_end)
        await hook_events.notify(hooks, event)
        remark = f"{type(error).__name__}: {error}" if error is not None else None
        try:
            # One-way, as in Java: a lost end is repaired by the broker's next check.
            connection = await self._instance.peers.connect(addr)
            header = encode_header(self._instance.namespace.to_wire(end))
            connection.one_way(RequestCode.END_TRANSACTION, header, remark=remark)
        except (ConnectionLost, ProtocolError, OSError) as failure:
            log.warning("Could not send the end of transaction %s, the broker will check it: %s", end.msg_id, failure)

    # --- transaction checks ---

    def _on_check_request(self, command: Command, peer: Peer) -> None:
        try:
            self._check_requests.put_nowait((command, peer))
        except asyncio.QueueFull:
            log.warning(
                "Group %s has %d pending transaction checks; dropping one from %s",
                self.group,
                PENDING_CHECKS_MAX,
                peer.addr,
            )

    async def _process_check_requests(self) -> None:
        while True:
            command, peer = await self._check_requests.get()
            try:
                await self._process_check_request(command, peer)
            except ArianeError as error:
                log.warning("Group %s could not answer a transaction check from %s: %s", self.group, peer.addr, error)

    async def _process_check_request(self, command: Command, peer: Peer) -> None:
        check = decode_header(command, CheckTransactionState)
        stored = record.decode(command.body)
        properties_by_name = stored.property_map()
        unwrap = self._instance.namespace.unwrap
        queue = MessageQueue(unwrap(stored.topic), "", stored.queue_id)
        message = to_received_message(stored, properties_by_name, queue, unwrap)
        state, error = await _local_state(self._check, message, f"the check of {message.message_id}")
        end = EndTransactionHeader(
            producer_group=self.group,
            tran_state_table_offset=check.tran_state_table_offset,
            commit_log_offset=check.commit_log_offset,
            commit_or_rollback=state,
            from_transaction_check=True,
            msg_id=message.message_id,
            transaction_id=check.transaction_id,
        )
        region = properties_by_name.get(names.MSG_REGION, DEFAULT_REGION)
        await self._send_end(
            peer.addr, end, (message.topic, message.tags, " ".join(message.keys), region), state, error
        )


def prepare_half_message(
    message: Message, message_id: str, group: str, settings: ProducerSettings, immunity: float | timedelta | None = None
) -> PreparedMessage:
    """Return `message` prepared as the half message of a transaction of `group`.

    Raises:
        MessageRefused: the message cannot be sent in a transaction.
        ConfigError: `immunity` is not a duration.
    """
    if message.is_delayed:
        raise MessageRefused("a transactional message cannot be delayed: remove its delay or delivery time")
    added = {names.TRAN_MSG: "true", names.PGROUP: group}
    if immunity is not None:
        added[names.CHECK_IMMUNITY_TIME] = str(math.ceil(validation.seconds("immunity", immunity)))
    prepared = send_codec.prepare(message, message_id, settings)
    prepared = send_codec.with_properties(prepared, added)
    return msgspec.structs.replace(prepared, sys_flag=prepared.sys_flag | names.TRANSACTION_PREPARED)


async def _local_state(
    function: Callable[[Any], Any], argument: object, name: str
) -> tuple[LocalState, Exception | None]:
    """Call `execute` or `check`. Return the state, and the exception if it raised one.

    The state is UNKNOWN if the function raised, or returned anything but a LocalState.
    """
    try:
        state = function(argument)
        if inspect.isawaitable(state):
            state = await state
    except Exception as error:
        log.exception("%s failed; the state is UNKNOWN", name)
        return LocalState.UNKNOWN, error
    if not isinstance(state, LocalState):
        log.warning("%s returned %r instead of a LocalState; the state is UNKNOWN", name, state)
        return LocalState.UNKNOWN, None
    return state, None
