"""Interfaces of the services that handlers use: each lists only the methods that a handler calls.

State (topics, groups, offsets) and the store are passed as their concrete classes; these Protocols stand for the services
that a test replaces by a stub.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Protocol

from ariane.broker.lifecycle.offset_waiters import OffsetWaiter
from ariane.kernels.sends.send_turn import QueueRun
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.store.message_store import AppendResult, RecordDraft


class Durability(Protocol):
    """Waits until appended records are as safe as the flush mode promises. [Flusher]"""

    def wait_flushed(self, end_offset: int) -> OffsetWaiter[bool] | None:
        """Return None in asynchronous mode; otherwise a waiter whose result is False if the flush timed out.

        Its result raises FlushFailed if the log cannot reach the disk any more. Requests of one tick share it.
        """
        ...


class SlaveAcknowledgement(Protocol):
    """Waits until a slave has appended records too. [ReplicationFeed]"""

    def wait_replicated(self, end: int) -> OffsetWaiter[ResponseCode]:
        """Return a waiter: its result is SUCCESS, or why no slave is known to have the log up to `end`."""
        ...


class ChangeDurability(Protocol):
    """Changes of topics and groups that responses of a synchronous broker wait for. [ChangeLog]"""

    @property
    def has_pending(self) -> bool:
        """Return whether a change is not on the disk, or cannot reach it."""
        ...


class StoreListener(Protocol):
    """Continues with stored records: consume queues, held pulls, slaves. [PostStoreDispatcher]"""

    def on_stored(self) -> None:
        """Schedule the dispatch of everything that this iteration of the event loop stores."""
        ...


class SendsListener(Protocol):
    """Continues with the messages of plain sends. [PostStoreDispatcher]"""

    def on_sends_stored(self, queues: list[QueueRun]) -> None:
        """Schedule their dispatch: soon for queues with held pulls."""
        ...


class DelayScheduler(StoreListener, Protocol):
    """Redirects delayed messages to the internal delay topics. [PostStoreDispatcher]"""

    def schedule(self, draft: RecordDraft, property_map: dict[str, str]) -> RecordDraft:
        """Return the draft to append: redirected if its properties ask for a delay, otherwise unchanged.

        Raises:
            ProtocolError: the delivery time is malformed or more than `timerMaxDelaySec` ahead.
        """
        ...


class ReturnedMessageStore(StoreListener, Protocol):
    """Stores messages that a consumer sent back. [PostStoreDispatcher]"""

    def store_returned(self, draft: RecordDraft) -> AppendResult:
        """Append the draft to its retry topic after the delay of its level, or to the dead-letter topic immediately."""
        ...


class ClientRequests(Protocol):
    """Sends requests to connected clients, addressed by the number of their connection. [RemotingServer]"""

    async def request(
        self, peer_id: int, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", *, timeout_ms: float
    ) -> Command:
        """Return the client's response.

        Raises:
            ConnectionLost: the client is not connected.
            RequestTimeout: it did not respond in time.
        """
        ...

    def one_way(self, peer_id: int, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Send a request without a response.

        Raises:
            ConnectionLost: the client is not connected.
        """
        ...


class LockDurability(Protocol):
    """Waits until changed queue locks are as safe as the flush mode promises. [PersistentState]"""

    def wait_locks_durable(self) -> Awaitable[None] | None:
        """Return None if they are already; otherwise an awaitable that raises FlushFailed."""
        ...
