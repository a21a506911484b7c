"""Idempotent listener: skips messages that were consumed before. [no counterpart in Java]

    async with Idempotent(listener, store=SqliteStore("/data/stock.db")) as idempotent:
        async with PushConsumer(namesrv, "stock", {"orders": "*"}, idempotent): ...

    messages ─→ wait for calls with the same keys ─→ claim keys ─→ store.seen ─→ listener ─ success ─→ store.add ─→ release keys

A message is identified within its consumer group by the application's `key`. Without one, a row of Spark is identified by the
property ARIANE_DEDUP (`model.dedup`), any other message by its unique id, which the producer sets: redeliveries and copies of
a repeated send have the same.

Rows are stored as one bit each, in blocks of 8,192 sequences. The highest sequence of each partition would be smaller, but
wrong: a task that dies leaves gaps in one queue while another is ahead, and if rows then move to another queue (a broker was
unavailable, the topic grew), the highest sequence would skip rows that were never consumed. A bit states only what was consumed.

Keys are added after the success of the listener and never before, so an unconsumed message is never skipped.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, Self
from urllib.parse import quote

from ariane.client.delivery.listener_invoker import (
    CallListener,
    Listener,
    ListenerMiddleware,
    M,
    ReconsumeLater,
    is_coroutine_listener,
)
from ariane.client.duplicates.consumed_store import BLOCK_ROWS, ConsumedKey, ConsumedStore, MemoryStore
from ariane.client.instance import validation
from ariane.errors import ArianeError, ClientClosed, ConfigError
from ariane.model import message as names
from ariane.model.dedup import DEDUP, parse
from ariane.model.message import ReceivedMessage

log = logging.getLogger("ariane.client")

NAME_MAX = 512  # characters of a key's name; longer ones are replaced by their digest
TTL_MIN_S = 0.001

KeyFunction = Callable[[M], str | None]


class Idempotent(ListenerMiddleware[M]):
    """A listener that skips messages which were consumed before; give it to a consumer in place of `listener`.

    A message is recorded after the listener's success, before it is acknowledged. A copy that arrives during the call waits for
    its outcome. A plain function that exceeds the consumer's timeout cannot be stopped: copies of its messages wait until it
    has ended, and a late success counts.

    Each group has its own record, and so does each member of a broadcasting group. Messages without a key are passed on
    unchanged.

    Args:
        listener: The application's listener.
        store: Where consumed messages are recorded: `MemoryStore()`, the default, `SqliteStore(path)`, `RedisStore(url)` or
            an object of the application (`ConsumedStore`).
        key: Function of a message that returns its identity within the group, or None for a message that is always passed on,
            as an empty text is. Default: the row of Spark, otherwise topic and unique id.
        ttl: Seconds, or a `timedelta`, for which a consumed message is remembered; a block of Spark rows counts from its last
            addition. None: without limit.
        scope: Name under which messages are recorded, in place of the consumer's group.

    Raises:
        ConfigError: an argument cannot be used. On entry: the store cannot be opened.

    Example:
        async with Idempotent(listener, store=SqliteStore("/data/stock.db")) as idempotent:
            async with PushConsumer(namesrv, "stock", {"orders": "*"}, idempotent):
                await stopped.wait()
    """

    def __init__(
        self,
        listener: Callable[[list[M]], Awaitable[None] | None],
        *,
        store: ConsumedStore | None = None,
        key: KeyFunction[M] | None = None,
        ttl: float | timedelta | None = timedelta(days=7),
        scope: str = "",
    ) -> None:
        self.listener: Listener = validation.callback("listener", listener, "messages")
        # A coroutine function can be cancelled by the consumer's timeout, a thread cannot.
        self._is_async = is_coroutine_listener(self.listener)
        self._store = MemoryStore() if store is None else _checked_store(store)
        self._key: KeyFunction[Any] | None = None if key is None else validation.callback("key", key, "message")
        self._ttl = None if ttl is None else validation.seconds("ttl", ttl, TTL_MIN_S)
        self._scope = validation.of_kind("scope", scope, str)
        self._is_open = False  # the store was opened, by the entry or by the first call
        self._is_closed = False  # the block was left: a call would open the store without an end
        self._opening = asyncio.Lock()  # one call opens the store, the others wait
        # Keys in a call, with an event that is set when it ends: a copy waits for the outcome.
        self._running: dict[ConsumedKey, asyncio.Event] = {}
        self._late_calls: set[asyncio.Task[None]] = set()  # calls in threads that outlived the consumer's timeout
        self._additions: set[asyncio.Task[None]] = set()  # they go on if the consumer cancels the call
        self._unrecorded: MemoryStore | None = None  # consumed messages that the store failed to record
        self.skipped = 0
        """Messages that were skipped because they were consumed before."""

    async def __aenter__(self) -> Self:
        self._is_closed = False
        await self._open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        async with self._opening:
            self._is_closed = True
            if self._additions:
                await asyncio.wait(self._additions)
            if self._is_open:
                self._is_open = False
                await self._store.close()

    async def __call__(self, messages: list[M]) -> None:
        await self.invoke(list(messages), self._run, "")

    async def invoke(self, messages: list[ReceivedMessage], run: CallListener, scope: str) -> None:
        keys = self._keys_of(messages, quote(self._scope or scope, safe="@"))
        while running := [self._running[key] for key in keys if key is not None and key in self._running]:
            await running[0].wait()  # without holding a key, so two calls cannot wait for each other
        claimed = dict.fromkeys(key for key in keys if key is not None)
        has_ended = asyncio.Event()
        self._running.update(dict.fromkeys(claimed, has_ended))
        try:
            consumed = await self._seen(list(claimed))
        except BaseException:
            self._release(claimed, has_ended)
            raise
        for key in consumed:
            del claimed[key], self._running[key]
        fresh = _without_copies(messages, keys, consumed)
        in_thread: Future[bool] = Future()
        try:
            if fresh:
                await run(self.listener if self._is_async else _tracked(self.listener, in_thread), fresh)
        except BaseException:
            if in_thread.cancel():  # no thread has taken the call, and none will
                self._release(claimed, has_ended)
            else:
                _start(self._late_calls, self._end_late(claimed, has_ended, in_thread))
            raise
        self.skipped += len(messages) - len(fresh)
        addition = self._add(claimed, has_ended)
        if type(self._store) is MemoryStore:  # never waits, so it needs no task, which would take longer than the rest
            await addition
        else:
            # Not cancelled with the call: the listener has succeeded.
            await asyncio.shield(_start(self._additions, addition))

    async def _run(self, listener: Listener, messages: list[ReceivedMessage]) -> None:
        result = listener(messages) if self._is_async else await asyncio.to_thread(listener, messages)
        if result is not None:
            await result

    async def _open(self) -> None:
        async with self._opening:
            if self._is_closed:
                raise ClientClosed("this Idempotent was closed: close the consumers that use it first")
            if not self._is_open:
                await self._store.open()
                self._is_open = True

    def _keys_of(self, messages: Sequence[ReceivedMessage], scope: str) -> list[ConsumedKey | None]:
        if self._key is None:
            return [_default_key(message, scope) for message in messages]
        keys: list[ConsumedKey | None] = []
        for message in messages:
            identity: Any = self._key(message)  # the application's function may return anything
            if identity is not None and not isinstance(identity, str):
                fix = f"the function returned this for message {message.message_id}; expected a text or None"
                raise ConfigError("key", identity, fix)
            # An empty text is a missing property more often than an identity, which would skip all but the first.
            keys.append(ConsumedKey(_bounded(f"{scope}/key/{identity}")) if identity else None)
        return keys

    async def _seen(self, keys: Sequence[ConsumedKey]) -> set[ConsumedKey]:
        if not keys:
            return set()
        try:
            if not self._is_open:
                await self._open()
            seen = await self._store.seen(keys)
        except ArianeError:
            raise  # the store is closed, or cannot be used at all
        except Exception as error:
            # Without the store a copy could not be recognized. The message is not lost: it is delivered again.
            raise ReconsumeLater(f"cannot read the store of consumed messages: {error}") from error
        consumed = {key for key in keys if key in seen}
        if self._unrecorded is not None:
            consumed |= await self._unrecorded.seen(keys)
        return consumed

    def _release(self, keys: Iterable[ConsumedKey], has_ended: asyncio.Event) -> None:
        for key in keys:
            del self._running[key]
        has_ended.set()

    async def _end_late(self, keys: dict[ConsumedKey, None], has_ended: asyncio.Event, in_thread: Future[bool]) -> None:
        try:
            is_success = await asyncio.wrap_future(in_thread)
        except BaseException:
            self._release(keys, has_ended)
            raise
        if is_success:
            await asyncio.shield(_start(self._additions, self._add(keys, has_ended)))
        else:
            self._release(keys, has_ended)

    async def _add(self, keys: dict[ConsumedKey, None], has_ended: asyncio.Event) -> None:
        try:
            if keys:
                await self._store.add(list(keys), self._ttl)
        except Exception as error:  # noqa: BLE001 - an application's store may raise anything
            # The listener has succeeded, so the messages are acknowledged.
            log.error(
                "Could not record %d consumed messages, another process would consume copies: %s: %s; the first is %s",
                len(keys),
                type(error).__name__,
                error,
                next(iter(keys)).name,
            )
            if self._unrecorded is None:
                self._unrecorded = MemoryStore()
            await self._unrecorded.add(list(keys), self._ttl)
        finally:
            self._release(keys, has_ended)


def _checked_store(store: ConsumedStore) -> ConsumedStore:
    if isinstance(store, type) or not all(
        callable(getattr(store, name, None)) for name in ("open", "close", "seen", "add")
    ):
        fix = "expected MemoryStore(), SqliteStore(path), RedisStore(url), or an object with open, close, seen and add"
        raise ConfigError("store", store, fix)
    return store


def _default_key(message: ReceivedMessage, scope: str) -> ConsumedKey | None:
    row = parse(message.properties.get(DEDUP, ""))
    # With the topic: one run may write the same rows to several topics.
    if row is not None:
        block, bit = divmod(row.sequence, BLOCK_ROWS)
        return ConsumedKey(_bounded(f"{scope}/row/{message.topic}/{row.run}/{row.batch}/{row.partition}/{block}"), bit)
    # Without a unique id only the position identifies a message, and a broker with an empty disk uses positions again.
    unique_id = message.properties.get(names.UNIQ_KEY)
    return ConsumedKey(_bounded(f"{scope}/id/{message.topic}/{unique_id}")) if unique_id else None


def _bounded(name: str) -> str:
    if len(name) <= NAME_MAX and name.isprintable():  # databases restrict other characters
        return name
    # Names contain a slash, so no other one has this form.
    return f"sha256:{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()}"


def _without_copies(
    messages: Sequence[ReceivedMessage], keys: Sequence[ConsumedKey | None], consumed: Collection[ConsumedKey]
) -> list[ReceivedMessage]:
    """Return the messages that were not consumed, each key once."""
    passed: set[ConsumedKey] = set()
    fresh = []
    for message, key in zip(messages, keys, strict=True):
        if key is None:
            fresh.append(message)
        elif key not in consumed and key not in passed:
            passed.add(key)
            fresh.append(message)
    return fresh


def _start(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task and hold a reference to it, because the event loop holds none."""
    task = asyncio.ensure_future(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


def _tracked(listener: Listener, in_thread: Future[bool]) -> Listener:
    """Return the plain function `listener`, reporting to `in_thread` when its thread has ended and whether it succeeded."""

    def call(messages: list[ReceivedMessage]) -> Awaitable[None] | None:
        if not in_thread.set_running_or_notify_cancel():
            return None  # the call was cancelled and its keys are released
        try:
            result = listener(messages)
        except BaseException:
            in_thread.set_result(False)
            raise
        in_thread.set_result(result is None)
        return result

    return call
