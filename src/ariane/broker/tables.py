"""What a broker keeps over a restart: topics, groups, offsets, filters, queue locks, positions of delays; read once, saved as
it changes.

    changed ─┬─ topics, groups    at once, changes of one turn of the loop together
             ├─ offsets           every flushConsumerOffsetInterval
             ├─ queue locks       before their new owner is told; those given back with the offsets
             └─ filters, delays   every 10 s

Texts are made in the loop, the disk is waited for in the worker thread. [ConfigManager and its heirs]
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import Executor

import msgspec

from ariane.broker.config import BrokerConfig
from ariane.broker.state import documents
from ariane.broker.state.filters import ConsumerFilters, FilterTable
from ariane.broker.state.groups import Groups
from ariane.broker.state.locks import LockTable, QueueLocks
from ariane.broker.state.offsets import ConsumerOffsets
from ariane.broker.state.topics import Topics
from ariane.filter.bloom import Bloom
from ariane.net.tasks import Tasks
from ariane.protocol.requests.admin import ConsumerOffsetTable, DelayOffsetTable, SubscriptionGroupTable
from ariane.protocol.requests.routing import TopicTable
from ariane.store.files import Disk


def delay_positions(disk: Disk, config: BrokerConfig) -> dict[int, int]:
    """What delayOffset.json says of each level: the store wants to know it when it is opened."""
    return documents.load(disk, config.config_dir, documents.DELAYS, DelayOffsetTable).offset_table


class Tables:
    """The tables, loaded. `save` writes what changed, `start` does so from now on."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        thread: Executor,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], float],
    ) -> None:
        load = functools.partial(documents.load, disk, config.config_dir)
        self.topics = Topics(load(documents.TOPICS, TopicTable), config, now_ms)
        groups = load(documents.GROUPS, SubscriptionGroupTable)
        self.groups = Groups(groups, auto_create=config.auto_create_subscription_group, now_ms=now_ms)
        self.offsets = ConsumerOffsets(load(documents.OFFSETS, ConsumerOffsetTable))
        bloom = Bloom.sized(config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter)
        keep_ms = config.filter_data_clean_time_span
        self.filters = ConsumerFilters(load(documents.FILTERS, FilterTable), bloom, keep_ms=keep_ms, now_ms=now_ms)
        self.locks = QueueLocks(load(documents.LOCKS, LockTable), monotonic_ms())
        self._monotonic_ms = monotonic_ms
        self._write = functools.partial(documents.save, disk, config.config_dir)
        self._thread = thread
        self._unsaved: set[str] = set()
        self._saved_delays = DelayOffsetTable()
        self._start_saving: Callable[[], None] = lambda: None

    def start(self, tasks: Tasks, topics_changed: Callable[[], None]) -> None:
        """Save topics and groups whenever they change; `topics_changed` is told, too."""

        def topics() -> None:
            self._save_soon(documents.TOPICS)
            topics_changed()

        def start_saving() -> None:
            tasks.start(self.save(), "save topics and groups")

        self._start_saving = start_saving
        self.topics.changed = topics
        self.groups.changed = lambda: self._save_soon(documents.GROUPS)

    def _save_soon(self, name: str) -> None:
        if not self._unsaved:
            asyncio.get_running_loop().call_soon(self._start_saving)
        self._unsaved.add(name)

    async def save(self) -> None:
        """Write what changed."""
        tables: dict[str, Callable[[], msgspec.Struct]] = {
            documents.TOPICS: self.topics.table,
            documents.GROUPS: self.groups.table,
            documents.OFFSETS: self.offsets.table,
            documents.FILTERS: self.filters.table,
            documents.LOCKS: self.locks.table,
        }
        pairs = (documents.LOCKS, self.locks), (documents.FILTERS, self.filters), (documents.OFFSETS, self.offsets)
        for name, state in pairs:
            if state.changed:
                state.changed = False
                self._unsaved.add(name)
        for name in sorted(self._unsaved):
            text = documents.text(tables[name]())
            self._unsaved.discard(name)
            try:
                await self._in_thread(name, text)
            except BaseException:  # cancelled, too: who saves last has to save it
                self._unsaved.add(name)
                raise

    async def save_filters(self) -> None:
        """Drop the filters that died long ago, and save the others."""
        self.filters.forget_dead()
        await self.save()

    async def forget_expired_locks(self) -> None:
        self.locks.forget_expired(self._monotonic_ms())

    async def save_delay_positions(self, positions: dict[int, int]) -> None:
        table = DelayOffsetTable(positions)
        if table != self._saved_delays:
            await self.save_delays(documents.text(table))
            self._saved_delays = table

    async def save_delays(self, text: bytes) -> None:
        """The text of delayOffset.json, as a slave copies it."""
        await self._in_thread(documents.DELAYS, text)

    async def _in_thread(self, name: str, text: bytes) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, name, text)
