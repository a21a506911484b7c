"""What the broker itself does with messages: has stored ones derived, keeps delayed ones back, stores returned ones.

    put → `stored` → once a turn: queue entries → held pulls wake, deliveries wake, slaves are fed

[DefaultMessageStore.ReputMessageService, the hooks of CommitLog.putMessage]
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ariane.broker import delayed_delivery
from ariane.broker.delayed_delivery import DeliveryLoop
from ariane.broker.dynamic_config import DynamicConfig
from ariane.broker.long_polling import PullWaiters
from ariane.broker.replication import ReplicationFeed
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.errors import StoreError
from ariane.model.message import DELAY, RETRY_TOPIC
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC
from ariane.protocol import properties
from ariane.store.delay_levels import DueMessage
from ariane.store.message_store import AppendResult, MessageStore, RecordDraft

log = logging.getLogger("ariane.broker")

DISPATCH_RETRY_S = 1.0


class PostStoreDispatcher:
    """The way of messages through one store. `wake_flusher` is called after puts when consumers wait for the disk (sync mode)."""

    def __init__(
        self,
        settings: DynamicConfig,
        store: MessageStore,
        stats: BrokerStats,
        feed: ReplicationFeed,
        now_ms: Callable[[], int],
    ) -> None:
        self.pull_waiters = PullWaiters()
        self.deliveries = DeliveryLoop(store, self.on_stored, now_ms, self._count_delivered)
        self.wake_flusher: Callable[[], None] = lambda: None
        self._settings = settings
        self._store = store
        self._stats = stats
        self._feed = feed
        self._now_ms = now_ms
        self._dispatch_due = False
        self._dispatch_fault = ""  # why the last dispatch failed, "" if it did not

    def on_stored(self) -> None:
        """Derive queue entries and wake held pulls, once for all that this turn of the loop stores."""
        self.wake_flusher()  # in sync mode nothing is derived before it is flushed, and not everybody waits for that
        self.on_flushed()

    def on_flushed(self) -> None:
        """More may be readable."""
        if not self._dispatch_due:
            self._dispatch_due = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatch_due = False
        self._feed.notify_appended()
        try:
            arrivals = self._store.dispatch_pending()
        except StoreError as error:
            if str(error) != self._dispatch_fault:  # it is tried again every second
                self._dispatch_fault = str(error)
                log.error("Messages stay invisible to consumers until their queue entries are written: %s", error)
            asyncio.get_running_loop().call_later(DISPATCH_RETRY_S, self.on_flushed)
            return
        self._dispatch_fault = ""
        self.pull_waiters.notify(arrivals)
        if self._store.delayed.has_arrivals:
            self._store.delayed.has_arrivals = False
            self.deliveries.wake()

    def schedule(self, draft: RecordDraft, own: dict[str, str]) -> RecordDraft:
        """A message with these properties where it waits for its time, or as it is."""
        if delayed_delivery.DELAY_PROPERTIES.isdisjoint(own):
            return draft
        store = self._store
        floor_ms = max(store.last_ms, store.delayed.min_due_ms)
        longest_ms = self._settings.current.timer_max_delay_sec * 1000
        limits = delayed_delivery.DelayLimits(len(store.config.delays_ms), floor_ms, longest_ms)
        return delayed_delivery.schedule(draft, own, self._now_ms(), limits)

    def store_returned(self, draft: RecordDraft) -> AppendResult:
        """Store a message that a consumer gave back: after the delay of its level, or at once (a dead letter)."""
        own = properties.decode(draft.properties)
        if own.get(DELAY) == "0":
            delayed_delivery.remove_delay(own)
        kept = self.schedule(draft, own)
        placed = self._store.put(kept)
        delay_queue = kept.queue_id if kept.topic == SCHEDULE_TOPIC else None
        group = draft.topic.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)
        self._stats.record_send_back(
            own.get(RETRY_TOPIC, draft.topic), group, delay_queue=delay_queue, size=placed.size
        )
        return placed

    def delay_level_positions(self) -> dict[int, tuple[int, int]]:
        """Delay level: number of its next entry, and behind its last."""
        store = self._store
        positions = store.delayed.level_positions()
        return {level: (number, store.max_offset(SCHEDULE_TOPIC, level - 1)) for level, number in positions.items()}

    def _count_delivered(self, due: DueMessage, draft: RecordDraft, size: int) -> None:
        if due.topic == SCHEDULE_TOPIC:
            self._stats.record_delayed_delivery(draft.topic, due.queue_id, 1, size)
        else:
            self._stats.record_send(draft.topic, 1, size)
