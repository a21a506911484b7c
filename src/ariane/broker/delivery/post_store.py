"""Processing of messages around the store: dispatch of stored ones, redirection of delayed ones, storage of returned ones.

    put      → `on_stored` → once per iteration of the loop: consume queues → held pulls, deliveries and slaves wake
    put_run  → `on_sends_stored` → the same for queues with held pulls; the others in rounds, a second later

[DefaultMessageStore.ReputMessageService, the hooks of CommitLog.putMessage]
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.delivery import delayed_delivery
from ariane.broker.delivery.delayed_delivery import DeliveryLoop
from ariane.broker.delivery.held_requests import HeldRequests
from ariane.broker.delivery.long_polling import PullWaiters
from ariane.broker.replication.replication import ReplicationFeed
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.clock import Clock
from ariane.errors import StoreError
from ariane.kernels.sends.send_turn import QueueRun
from ariane.model.message import DELAY, RETRY_TOPIC
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC
from ariane.protocol.records import properties
from ariane.store.delays.delay_levels import DueMessage
from ariane.store.message_store import ROUND_QUEUES, AppendResult, Arrival, MessageStore, RecordDraft

log = logging.getLogger("ariane.broker")

DISPATCH_RETRY_S = 1.0
COLLECT_S = 1.0  # for which entries of plain sends are collected, unless their queue is read
COLLECTED_MAX = 262_144  # records whose entries are collected: 5 MB


class FlushRequests(Protocol):
    """Starts flushes of the log. [Flusher]"""

    def request_flush(self) -> None:
        """Flush soon."""
        ...


class PostStoreDispatcher:
    """Dispatches the messages of one store."""

    def __init__(
        self,
        *,
        settings: DynamicConfig,
        store: MessageStore,
        stats: BrokerStats,
        feed: ReplicationFeed,
        clock: Clock,
    ) -> None:
        self.pull_waiters = PullWaiters(HeldRequests(settings), clock)  # pulls that wait for messages
        self.deliveries = DeliveryLoop(store=store, listener=self, clock=clock)  # delivers delayed messages
        self._settings = settings  # limits of delivery times
        self._store = store  # dispatches appended records
        self._stats = stats  # counts deliveries and returned messages
        self._feed = feed  # wakes the replication to slaves
        self._clock = clock  # due times are compared with it
        # Set in synchronous mode: consumers see messages only after the flush.
        self._sync_flusher: FlushRequests | None = None
        self._is_dispatch_scheduled = False  # several appends of one tick share a dispatch
        self._awaited: set[tuple[str, int]] = set()  # queues with held pulls that got messages in this tick
        self._round: asyncio.Handle | None = None  # of collected entries: its begin or its next step
        self._is_in_round = False  # whether that comes with the next iteration of the loop
        self._dispatch_fault = ""  # why the last dispatch failed, "" if it did not

    def flush_before_dispatch(self, flusher: FlushRequests) -> None:
        """Request a flush after each put (synchronous mode).

        Consumers then see flushed messages only, and not every put has a request that waits for its flush.
        """
        self._sync_flusher = flusher

    def on_stored(self) -> None:
        """Schedule the dispatch of everything that this iteration of the event loop stores."""
        if self._sync_flusher is not None:
            self._sync_flusher.request_flush()
        self.on_flushed()

    def on_sends_stored(self, queues: list[QueueRun]) -> None:
        """Schedule the dispatch of plain sends: soon for queues with held pulls, of all others within COLLECT_S.

        A dispatch writes to each queue with new messages, so with many queues few dispatches cost less. The store writes the
        entries of a queue before it is read, so no reader misses a message.
        """
        store = self._store
        if self._sync_flusher is not None or store.has_pending:
            self.on_stored()
            return
        if self._feed.has_slaves:
            self._feed.notify_appended()
        if not self.pull_waiters.is_empty and (awaited := self.pull_waiters.find_awaited(queues)):
            if not self._awaited:
                asyncio.get_running_loop().call_soon(self._dispatch_awaited)
            self._awaited.update(awaited)
        if self._round is None:
            self._round = asyncio.get_running_loop().call_later(COLLECT_S, self._continue_round)
        elif not self._is_in_round and store.collected_records >= COLLECTED_MAX:
            self._round.cancel()
            self._round, self._is_in_round = asyncio.get_running_loop().call_soon(self._continue_round), True

    def on_flushed(self) -> None:
        """Schedule a dispatch: more messages may be readable."""
        if not self._is_dispatch_scheduled:
            self._is_dispatch_scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._is_dispatch_scheduled = False
        self._feed.notify_appended()
        try:
            arrivals, is_unfinished = self._store.dispatch_singles()
        except StoreError as error:
            self._report_fault(error)
            asyncio.get_running_loop().call_later(DISPATCH_RETRY_S, self.on_flushed)
            return
        self._notify(arrivals)
        if is_unfinished:
            self.on_flushed()

    def _dispatch_awaited(self) -> None:
        awaited, self._awaited = self._awaited, set()
        try:
            arrivals = self._store.dispatch_queues(awaited)
        except StoreError as error:
            self._report_fault(error)
            return  # the next round tries again
        self._notify(arrivals)

    def _continue_round(self) -> None:
        """Write the collected entries of some queues, and let requests be served before the next ones."""
        self._round, self._is_in_round = None, False
        loop = asyncio.get_running_loop()
        try:
            arrivals, is_unfinished = self._store.dispatch_round(ROUND_QUEUES)
        except StoreError as error:
            self._report_fault(error)
            self._round = loop.call_later(DISPATCH_RETRY_S, self._continue_round)
            return
        self._notify(arrivals)
        if is_unfinished:
            self._round, self._is_in_round = loop.call_soon(self._continue_round), True
        elif self._store.collected_records:  # since the round began
            self._round = loop.call_later(COLLECT_S, self._continue_round)

    def _report_fault(self, error: StoreError) -> None:
        if str(error) != self._dispatch_fault:  # retried every second, logged once
            self._dispatch_fault = str(error)
            log.error("Messages stay invisible to consumers until their queue entries are written: %s", error)

    def _notify(self, arrivals: list[Arrival]) -> None:
        self._dispatch_fault = ""
        self.pull_waiters.notify(arrivals)
        if self._store.delayed.has_arrivals:
            self._store.delayed.has_arrivals = False
            self.deliveries.wake()

    def schedule(self, draft: RecordDraft, property_map: dict[str, str]) -> RecordDraft:
        """Return the draft to append: redirected if its properties ask for a delay, otherwise unchanged.

        Raises:
            ProtocolError: the delivery time is malformed or more than `timerMaxDelaySec` ahead.
        """
        if delayed_delivery.DELAY_PROPERTIES.isdisjoint(property_map):
            return draft
        store = self._store
        floor_ms = max(store.last_ms, store.delayed.min_due_ms)
        max_delay_ms = self._settings.current.timer_max_delay_sec * 1000
        limits = delayed_delivery.DelayLimits(len(store.config.delays_ms), floor_ms, max_delay_ms)
        return delayed_delivery.schedule(draft, property_map, self._clock.now_ms(), limits)

    def store_returned(self, draft: RecordDraft) -> AppendResult:
        """Append a message that a consumer sent back: after the delay of its level, or immediately as a dead letter."""
        property_map = properties.decode(draft.properties)
        if property_map.get(DELAY) == "0":
            delayed_delivery.remove_delay(property_map)
        scheduled = self.schedule(draft, property_map)
        result = self._store.put(scheduled)
        delay_queue = scheduled.queue_id if scheduled.topic == SCHEDULE_TOPIC else None
        group = draft.topic.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)
        topic = property_map.get(RETRY_TOPIC, draft.topic)
        self._stats.record_send_back(topic, group, delay_queue=delay_queue, size=result.size)
        return result

    def delay_level_positions(self) -> dict[int, tuple[int, int]]:
        """Return by delay level the number of its next entry and the end of its queue."""
        store = self._store
        positions = store.delayed.level_positions()
        return {level: (number, store.max_offset(SCHEDULE_TOPIC, level - 1)) for level, number in positions.items()}

    def on_delivered(self, message: DueMessage, draft: RecordDraft, size: int) -> None:
        """Count a delayed message that was delivered to its topic."""
        if message.topic == SCHEDULE_TOPIC:
            self._stats.record_delayed_delivery(draft.topic, message.queue_id, 1, size)
        else:
            self._stats.record_send(draft.topic, 1, size)
