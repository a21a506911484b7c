"""Invocation of the application's listener, and the meaning of its outcome. [ConsumeMessageContext]

    returns                  SUCCESS    consumed
    raises ReconsumeLater    FAILED     delivered again (at the level that it names)
    raises anything else     EXCEPTION  delivered again, and logged
    takes too long           TIME_OUT   cancelled, delivered again

All messages of one call have the same outcome.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import types
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from ariane.client.consuming.consume_rates import ConsumeRates
from ariane.client.consuming.group_options import Assignment, GroupOptions
from ariane.client.delivery.consume_events import ConsumeEvents
from ariane.client.instance.hooks import ConsumeReturn
from ariane.client.instance.message_texts import identities
from ariane.client.instance.telemetry import NO_TELEMETRY, ClientTelemetry
from ariane.clock import Clock
from ariane.errors import ArianeError
from ariane.model.message import MessageQueue, ReceivedMessage

log = logging.getLogger("ariane.client")

M = TypeVar("M", bound=ReceivedMessage)  # messages with a payload, or without

Listener = Callable[[list[ReceivedMessage]], Awaitable[None] | None]
CallListener = Callable[[Listener, list[ReceivedMessage]], Awaitable[None]]


def is_coroutine_listener(listener: Listener) -> bool:
    """Return True if the listener runs in the event loop; any other runs in a thread."""
    call = getattr(listener, "__call__", None)  # noqa: B004 - an object may have an async __call__
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(call)


class ListenerMiddleware(ABC, Generic[M]):
    """A listener that wraps another one and runs under the consumer's rules: its threads and its timeout."""

    listener: Listener

    @abstractmethod
    async def __call__(self, messages: list[M]) -> None:
        """Process messages without a consumer."""

    @abstractmethod
    async def invoke(self, messages: list[ReceivedMessage], run: CallListener, scope: str) -> None:
        """Process messages for a consumer.

        Args:
            messages: The messages of one call.
            run: Calls `listener`, or a function of the same kind in its place. If `run` is cancelled, a thread that
                executes the function continues.
            scope: Whose messages these are: the group's name at the brokers, with the member's client id if it is broadcasting.
        """


class ReconsumeLater(ArianeError):
    """Raised by a listener to have its messages delivered again later, without a traceback in the log.

    Args:
        reason: Text for the log.
        delay_level: Delay level of the redelivery. 0: the broker chooses, rising with each attempt; -1: no redelivery, the
            messages go to the dead-letter topic immediately.

    Example:
        raise ReconsumeLater("the database is restarting", delay_level=1)
    """

    def __init__(self, reason: str = "", delay_level: int = 0) -> None:
        super().__init__(reason or "the listener requested redelivery")
        self.delay_level = delay_level


class ListenerOutcome(NamedTuple):
    """Outcome of a call: how it ended, the delay level of the redelivery, and the reason of a failure."""

    status: ConsumeReturn
    delay_level: int = 0
    reason: str = ""

    @property
    def is_success(self) -> bool:
        return self.status is ConsumeReturn.SUCCESS


SUCCESS = ListenerOutcome(ConsumeReturn.SUCCESS)


class ListenerInvoker:
    """Calls one listener: a coroutine function in the event loop, any other function in a pool of threads."""

    def __init__(
        self,
        listener: Listener,
        *,
        options: GroupOptions,
        clock: Clock,
        events: ConsumeEvents,
        telemetry: ClientTelemetry = NO_TELEMETRY,
        rates: ConsumeRates | None = None,
        client_id: str = "",
        scope: str = "",
    ) -> None:
        settings = options.settings
        self._group = options.group  # for events and messages
        is_shared = options.assignment is not Assignment.ALL
        # Members of a broadcasting group consume the same messages, each for itself.
        self._scope = (scope or self._group) if is_shared else f"{scope or self._group}@{client_id}"
        self._rates = rates  # counters for tools; None: not counted
        self._events = events  # called before and after the listener
        self._telemetry = telemetry  # opens a span around each call
        self._clock = clock
        self._timeout_s = settings.consume_timeout  # a call that takes longer counts as failed
        # A thread cannot be cancelled. An orderly queue must not start its next call while one runs, so it has no timeout.
        self._waits_for_threads = options.is_orderly
        # Wraps each call, as `Idempotent` does; None if the listener is a plain function.
        self._middleware = listener if isinstance(listener, ListenerMiddleware) else None
        # The application's function, without its middleware.
        self._listener = listener.listener if isinstance(listener, ListenerMiddleware) else listener
        # Threads for a function that blocks; None for a coroutine function.
        self._pool: ThreadPoolExecutor | None = None
        if not is_coroutine_listener(self._listener):
            self._pool = ThreadPoolExecutor(settings.concurrency, thread_name_prefix=f"listener-{self._group}")

    @property
    def uses_threads(self) -> bool:
        """True if the listener is a plain function."""
        return self._pool is not None

    async def invoke(
        self, queue: MessageQueue, messages: list[ReceivedMessage], *, may_begin: Callable[[], bool] = lambda: True
    ) -> ListenerOutcome:
        """Call the hooks, the listener and the hooks again.

        Hooks may take time (a trace queue that blocks), so `may_begin` is evaluated after them: if it is False, the listener
        is not called and the outcome is FAILED.
        """
        if not self._events.has_hooks:
            return await self._invoke_measured(queue, messages)
        consumption = await self._events.start(queue, messages)
        if consumption is None or may_begin():
            outcome = await self._invoke_measured(queue, messages)
        else:
            outcome = ListenerOutcome(ConsumeReturn.FAILED, reason="the queue was revoked before the call")
        await self._events.finish(consumption, outcome.status)
        return outcome

    def close(self) -> None:
        """Release the threads. Running calls continue."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _invoke_measured(self, queue: MessageQueue, messages: list[ReceivedMessage]) -> ListenerOutcome:
        if self._rates is None:
            return await self.invoke_once(messages)
        started = self._clock.monotonic()
        outcome = await self.invoke_once(messages)
        self._rates.record_consume(
            queue.topic, len(messages), self._clock.monotonic() - started, ok=outcome.status is ConsumeReturn.SUCCESS
        )
        return outcome

    async def invoke_once(self, messages: list[ReceivedMessage]) -> ListenerOutcome:
        """Call the listener once, without hooks and rates."""
        limit = asyncio.timeout(None)
        try:
            if self._pool is None:
                # Most calls of fast listeners never wait. Only those that do need a timer, which costs as much as they do.
                call = self._call(messages, limit)
                try:
                    awaited = call.send(None)
                except StopIteration:
                    return SUCCESS
                limit = asyncio.timeout(self._timeout_s)
                async with limit:
                    await _resume(call, awaited)
            else:
                async with limit:
                    await self._call(messages, limit)
        except ReconsumeLater as later:
            log.info(
                "Redelivery requested by the listener of group %s, on %s: %s", self._group, identities(messages), later
            )
            return ListenerOutcome(ConsumeReturn.FAILED, later.delay_level, str(later))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            log.exception(
                "Something that the listener of group %s awaits was cancelled, on %s", self._group, identities(messages)
            )
            return ListenerOutcome(ConsumeReturn.EXCEPTION, reason="something that the listener awaits was cancelled")
        except Exception as error:
            if limit.expired() and isinstance(error, TimeoutError):
                log.warning(
                    "The listener of group %s took longer than %.0f s on %s",
                    self._group,
                    self._timeout_s,
                    identities(messages),
                )
                return ListenerOutcome(
                    ConsumeReturn.TIME_OUT, reason=f"the listener took longer than {self._timeout_s:g} s"
                )
            log.exception("The listener of group %s failed on %s", self._group, identities(messages))
            return ListenerOutcome(ConsumeReturn.EXCEPTION, reason=f"{type(error).__name__}: {error}")
        return SUCCESS

    async def _call(self, messages: list[ReceivedMessage], limit: asyncio.Timeout) -> None:
        if self._middleware is None and self._pool is None and self._telemetry is NO_TELEMETRY:
            result = self._listener(messages)
            if result is not None:
                await result
            return

        async def run(listener: Listener, messages: list[ReceivedMessage]) -> None:
            if self._pool is None:
                result = listener(messages)
            else:
                result = await self._in_thread(self._pool, listener, messages, limit)
            if result is not None:
                await result

        with self._telemetry.processing(self._group, messages):
            if self._middleware is None:
                await run(self._listener, messages)
            else:
                await self._middleware.invoke(messages, run, self._scope)

    async def _in_thread(
        self,
        pool: ThreadPoolExecutor,
        listener: Listener,
        messages: list[ReceivedMessage],
        limit: asyncio.Timeout,
    ) -> Awaitable[None] | None:
        """Call the listener in a thread. The timeout starts when a thread takes the call.

        A call that is pending because earlier ones occupy all threads has not failed: its messages must not be sent back
        without ever having been delivered.
        """
        loop = asyncio.get_running_loop()
        is_pending = True

        def on_started() -> None:
            if is_pending and not self._waits_for_threads:
                limit.reschedule(loop.time() + self._timeout_s)

        def call() -> Awaitable[None] | None:
            loop.call_soon_threadsafe(on_started)
            return listener(messages)

        try:
            # The listener sees the context variables of this task, the current span among them.
            return await loop.run_in_executor(pool, contextvars.copy_context().run, call)
        finally:
            is_pending = False


@types.coroutine
def _resume(coroutine: Coroutine[Any, Any, None], awaited: object) -> Generator[object, Any, None]:
    """Await the rest of a coroutine that was run by `send` until it waits for `awaited`."""
    while True:
        try:
            value = yield awaited
        except BaseException as error:  # noqa: BLE001 - a cancellation, which is for the coroutine
            step = partial(coroutine.throw, error)
        else:
            step = partial(coroutine.send, value)
        try:
            awaited = step()
        except StopIteration:
            return
