"""State of the broker that survives a restart: topics, groups, offsets, filters, queue locks, delay offsets.

    topics, groups, deletions   in the change log before the response (on the disk in synchronous mode)
    queue locks                 the same, but a full disk does not refuse a lock
    offsets                     every flushConsumerOffsetInterval, as in Java; set or deleted by a tool: in the change log
    filters, delay offsets      every 10 s

The documents of config/ follow the change log within about a second, in the background: the event loop encodes a document in
slices, and a worker thread writes it. [ConfigManager and its subclasses]
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor

import msgspec

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.lifecycle.write_protection import SEND_CODES
from ariane.broker.state.consumer_filters import ConsumerFilters, FilterTable
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.creation_limits import CreationLimits
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.loading import loaded_values
from ariane.broker.state.loading.loaded_values import DeletedTopics
from ariane.broker.state.loading.saved_state import SavedState
from ariane.broker.state.pop_table import PopChange
from ariane.broker.state.queue_locks import QueueLocks
from ariane.broker.state.saved import json_documents
from ariane.broker.state.saved.change_log import ChangeLog
from ariane.broker.state.saved.change_records import (
    DOCUMENTS,
    Change,
    QueuesLocked,
    QueuesUnlocked,
    SavedDocument,
    TopicDeleted,
)
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.errors import FlushFailed, StoreError
from ariane.filter.bloom import Bloom
from ariane.model.topic import TopicDeletion
from ariane.net.connection import Handler, HandlerResult, LateReply, Peer, Reply
from ariane.net.limits.quotas import Quotas
from ariane.net.tasks import BackgroundTasks, wait_done
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.admin import DelayOffsetTable
from ariane.store.disk.files import Disk, exists, read_whole

log = logging.getLogger("ariane.broker.state")

SAVE_INTERVAL_S = 1.0
SAVE_PACE = 10  # a save pauses for this many times its own duration: with 100,000 topics, it takes a second
PIECES_PER_SLICE = 64  # pieces encoded without yielding to the loop: about 0.5 ms


# Requests that store or change something. Heartbeats and locks are not among them, so that consumers go on.
WRITE_CODES = SEND_CODES | {
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.END_TRANSACTION,
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
}


def load_delay_offsets(disk: Disk, config: BrokerConfig) -> dict[int, int]:
    """Return the offsets of delayOffset.json by level, which the store needs when it is opened."""
    name = json_documents.DELAY_OFFSETS
    return loaded_values.read(disk, config.config_dir, name, DelayOffsetTable).document.offset_table


class PersistentState:
    """The tables of the broker, and the files that store them.

    Args:
        saved: The loaded state of the last process.
        executor: Writes documents and flushes the change log; with two threads neither waits for the other.
        quotas: Limits of addresses and accounts; None: there are none.
    """

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        saved: SavedState,
        executor: Executor,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], float],
        quotas: Quotas | None = None,
    ) -> None:
        # Called with each change that is about to be made, for the members that follow this broker.
        self.on_change: Callable[[Change], None] = lambda change: None
        self.creations = CreationLimits(config, quotas or Quotas(), monotonic_ms)  # limits of new topics and groups
        # Changed by sends and tools.
        self.topics = TopicRegistry(saved.topics, config, now_ms, self.record, self.creations)
        self.groups = GroupRegistry(
            saved.groups,
            auto_create=config.auto_create_subscription_group,
            now_ms=now_ms,
            record=self.record,
            limits=self.creations,
        )
        # Changed by commits, the most frequent change of all.
        self.offsets = ConsumerOffsets(saved.offsets, self.record)
        self.has_foreign_offsets = json_documents.OFFSETS in saved.foreign  # another program has served the store
        self.request_modes = saved.request_modes  # POP or PULL, by topic and group
        self.pop = saved.pop  # what groups have taken by POP
        self.deletions = saved.deletions  # log offsets of deleted topics: records before them must not reappear
        bloom = Bloom.sized(config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter)
        keep_ms = config.filter_data_clean_time_span
        filters = loaded_values.read(disk, config.config_dir, json_documents.FILTERS, FilterTable, is_expendable=True)
        # SQL92 filters; expendable, because heartbeats bring them again.
        self.filters = ConsumerFilters(filters.document, bloom, keep_ms=keep_ms, now_ms=now_ms)
        self.dropped_entries = saved.dropped + filters.dropped  # invalid ones of the documents, at the start
        # Survive a restart, so that no second consumer gets a queue whose lock is still trusted.
        self.locks = QueueLocks(saved.lock_table(), monotonic_ms(), record=self.record_lock)
        self._monotonic_ms = monotonic_ms  # expiry of locks: a wall clock may be set
        self._disk = disk
        self._directory = config.config_dir  # config/ below the store directory
        self._executor = executor
        self._unsaved = set(saved.unsaved)  # names of documents that lack changes
        # Checksum of each document as last written: what is on the disk need not be decoded to become the .bak.
        self._good_crcs = {name: contents[0].crc for name, contents in saved.contents.items()}
        self._lacks_room = False  # the last lock could not be saved, which is logged once
        self._saving = asyncio.Lock()  # held while documents are written
        self._next_save_ms = 0.0  # earliest time of the next background save
        self._saved_delays = DelayOffsetTable()  # what delayOffset.json holds, to write it only when it changes
        # Content of delayOffset.json, written for Java only.
        self._delays = read_whole(disk, self._path(json_documents.DELAY_OFFSETS))
        # Makes changes durable between two writes of the documents.
        self.change_log = ChangeLog(disk, config.config_dir, saved.log, executor, is_sync=config.sync_flush)
        self.change_log.start(saved.contents)
        # Functions that return each document as it has to be written now.
        self._document_sources: dict[str, Callable[[], msgspec.Struct]] = {
            json_documents.TOPICS: self.topics.table,
            json_documents.GROUPS: self.groups.table,
            json_documents.OFFSETS: self.offsets.view,
            json_documents.FILTERS: self.filters.table,
            json_documents.LOCKS: self.locks.table,
            json_documents.POP: self.pop.document,
            json_documents.MODES: lambda: self.request_modes,
            json_documents.DELETED: lambda: DeletedTopics(self.deletions.to_table()),
        }
        # Documents that exist on the disk.
        self._present = {
            name for name in (*self._document_sources, json_documents.DELAY_OFFSETS) if exists(disk, self._path(name))
        }
        self.topics.on_table_change = lambda: self._unsaved.add(json_documents.TOPICS)
        self.groups.on_table_change = lambda: self._unsaved.add(json_documents.GROUPS)

    def start(self, tasks: BackgroundTasks, topics_changed: Callable[[], None]) -> None:
        """Write documents periodically when they change; call `topics_changed` after each change of a topic."""

        def changed() -> None:
            self._unsaved.add(json_documents.TOPICS)
            topics_changed()

        self.topics.on_table_change = changed
        tasks.repeat(SAVE_INTERVAL_S, self._save_paced, "save topics and groups")

    # --- changes ---

    def record(self, *changes: Change) -> None:
        """Store changes in the log, by one write.

        Raises:
            StoreError: they cannot be stored; the caller must not make the changes.
        """
        if any(isinstance(change, TopicDeleted) for change in changes):
            self._check_removed()  # the caller removes the queues of the topic next
        self.change_log.append(*changes)
        for change in changes:
            self._unsaved.update(DOCUMENTS[type(change)])
            self.on_change(change)

    def record_lock(self, change: QueuesLocked | QueuesUnlocked) -> None:
        """Store a change of locks in the log, if there is room.

        A full disk does not stop ordered consumers: the locks are valid in memory, and only a restart would lose them.
        """
        self._unsaved.update(DOCUMENTS[type(change)])
        try:
            self.change_log.append(change)
        except StoreError as error:
            if not self._lacks_room:
                log.error("Cannot save queue locks; they are lost if this broker restarts: %s", error)
            self._lacks_room = True
        else:
            self._lacks_room = False
        self.on_change(change)

    def mark_replaced(self) -> None:
        """Write all tables with the next save: they were replaced by those of the master."""
        self._unsaved.update(self._document_sources.keys() - {json_documents.FILTERS})

    def limit_offsets(self, end_of: Callable[[str, int], int]) -> None:
        """Set offsets beyond the end of their queue to it, after a start that may have lost the end of the log."""
        count = self.offsets.limit(end_of) + self.pop.limit(end_of)
        if count:
            self._unsaved.add(json_documents.POP)
            log.warning("Set %d offsets of groups to the ends of their queues: the end of the log was lost", count)

    def record_pop(self, *changes: PopChange) -> None:
        """Store changes of the POP state in the log, and make them. Raise StoreError if they cannot be stored."""
        self.record(*changes)
        for change in changes:
            self.pop.apply(change)

    def wait_locks_durable(self) -> Awaitable[None] | None:
        """Wait until all changes, those of locks and POP included, are as safe as the flush mode promises; None if they are."""
        return self.change_log.wait_durable(self.change_log.last_n)

    def delete_topic(self, name: str, deletion: TopicDeletion | None) -> None:
        """Delete a topic with its offsets, durably in either flush mode: the caller removes its queues next."""
        self.topics.delete(name, deletion)
        self.offsets.remove_topic(name)
        self.pop.remove_topic(name)
        if deletion is not None:
            self.deletions.add(name, deletion)
        self.change_log.flush_blocking()

    def apply_master_deletions(self, deletions: Mapping[str, TopicDeletion]) -> None:
        """Record deletions of the master, durably in either flush mode (on a slave).

        The table of topics is copied from the master, so it does not change here.
        """
        for name, deletion in deletions.items():
            self.record(TopicDeleted(name, None, deletion))
            self.offsets.remove_topic(name)
            self.deletions.add(name, deletion)
        self.change_log.flush_blocking()

    async def drop_obsolete_deletions(self, log_start: int) -> None:
        """Remove the deletions of messages that the log no longer holds."""
        if self.deletions.drop_before(log_start):
            self._unsaved.add(json_documents.DELETED)

    def with_durable_replies(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return handlers whose responses wait, in synchronous mode, until the changes that they may depend on are on the disk.

        After a failed fsync, requests that store or change something are answered with an error, and reads go on.
        """

        def guard(serve: Handler, *, is_read: bool) -> Handler:
            def guarded(command: Command, peer: Peer) -> HandlerResult:
                handled = serve(command, peer)
                if is_read and self.change_log.has_failed:
                    return handled
                durable = self.change_log.wait_durable()
                return handled if durable is None else _reply_when_durable(durable, handled, is_read=is_read)

            return guarded

        return {code: guard(serve, is_read=code not in WRITE_CODES) for code, serve in handlers.items()}

    # --- documents ---

    async def _save_paced(self) -> None:
        if self._unsaved and self._monotonic_ms() >= self._next_save_ms:
            await self.save()

    async def flush(self) -> None:
        """Flush the change log. Write config/ again if it, or a file in it, was removed from outside."""
        self._check_removed()
        try:
            if self.change_log.needs_restore:
                await self.save()
            await self.change_log.flush()
        except FlushFailed as error:
            log.debug("%s", error)  # reported when it happened; changes are refused since then

    def _check_removed(self) -> None:
        """Restart the change log if a file of config/ is missing. `flush` and `save` write the documents again."""
        missing = (self._path(name) for name in sorted(self._present) if not exists(self._disk, self._path(name)))
        removed = self.change_log.find_removed() or next(missing, None)
        if removed is None:
            return
        self._unsaved.update(self._document_sources)
        self._present.clear()
        self.change_log.restart(
            removed if exists(self._disk, self._directory) else self._directory, self._document_sources
        )

    async def save(self) -> None:
        """Write the documents that changed.

        Raises:
            FlushFailed: removed documents cannot be written again; changes are refused from now on.
        """
        async with self._saving:
            is_restoring, n = self.change_log.needs_restore, self.change_log.last_n
            try:
                await self._save_changed()
            except FileNotFoundError:
                raise  # removed once more, which the next flush notices
            except (OSError, StoreError) as error:
                if not is_restoring or self.change_log.has_failed:
                    raise
                raise self.change_log.fail(error) from error
            if is_restoring:
                self.change_log.mark_restored(n)

    async def _save_changed(self) -> None:
        began_ms = self._monotonic_ms()
        if self._delays is not None and json_documents.DELAY_OFFSETS not in self._present:
            await self._save_delay_document(self._delays)
        for name, state in ((json_documents.FILTERS, self.filters), (json_documents.OFFSETS, self.offsets)):
            if state.is_changed:
                state.is_changed = False
                self._unsaved.add(name)
        if not self._unsaved:
            return
        names = sorted(self._unsaved)
        self.change_log.rotate()
        # Take all documents without yielding to the loop: together they hold exactly the changes so far.
        n, documents = self.change_log.last_n, {name: self._document_sources[name]() for name in names}
        for name in names:
            self._unsaved.discard(name)
        while documents:
            name = next(iter(documents))
            try:
                await self._save(name, documents[name], n)
            except BaseException:
                self._unsaved.update(documents)  # also if cancelled: the next save has to write them
                raise
            del documents[name]
        ended_ms = self._monotonic_ms()
        self._next_save_ms = ended_ms + (ended_ms - began_ms) * SAVE_PACE

    async def _save(self, name: str, document: msgspec.Struct, n: int) -> None:
        text = b"".join(await _encoded(document))
        content = SavedDocument(zlib.crc32(text), n)
        if not self.change_log.has_failed:  # otherwise only the document can still store the state
            self.change_log.record_document(name, content)
            await self.change_log.flush()
        write = functools.partial(json_documents.save, good_crc=self._good_crcs.get(name))
        cancelled = await self._in_thread(write, self._disk, self._directory, name, text)
        is_first = name not in self._good_crcs
        self._good_crcs[name] = content.crc
        self._present.add(name)
        self.change_log.remove_covered(name, content)
        if is_first and not self.change_log.has_failed:
            self.change_log.record_document(name, content)
        if cancelled is not None:
            raise cancelled

    async def save_filters(self) -> None:
        """Remove filters that died long ago, and save the others."""
        self.filters.remove_dead()
        await self.save()

    async def remove_expired_locks(self) -> None:
        """Remove queue locks that were not renewed in time."""
        self.locks.remove_expired(self._monotonic_ms())

    async def save_delay_offsets(self, positions: dict[int, int]) -> None:
        """Write delayOffset.json if the offsets by level changed."""
        table = DelayOffsetTable(positions)
        if table != self._saved_delays:
            await self.save_delay_document(json_documents.encode(table))
            self._saved_delays = table

    async def save_delay_document(self, text: bytes) -> None:
        """Write delayOffset.json with this text, as a slave copies it."""
        async with self._saving:
            await self._save_delay_document(text)

    async def _save_delay_document(self, text: bytes) -> None:
        cancelled = await self._in_thread(
            json_documents.save, self._disk, self._directory, json_documents.DELAY_OFFSETS, text
        )
        self._delays = text
        self._present.add(json_documents.DELAY_OFFSETS)
        if cancelled is not None:
            raise cancelled

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    async def _in_thread(self, write: Callable[..., None], *args: object) -> asyncio.CancelledError | None:
        """Write a document in the worker thread, to the end even if cancelled.

        Two concurrent writes of one document would use the same temporary file.
        """
        running = asyncio.get_running_loop().run_in_executor(self._executor, write, *args)
        cancelled = await wait_done(running)
        running.result()
        return cancelled

    async def close(self) -> None:
        """Write everything. Afterwards the documents alone hold the state, in the form that Java reads."""
        try:
            self._check_removed()
            await self.save()
            await self.flush()
        finally:
            self.change_log.close()


async def _encoded(document: msgspec.Struct) -> list[bytes]:
    """Return the encoded document in pieces. The loop serves requests between the slices."""
    pieces, slices = fastjson.pieces(document), []
    while documents := b"".join(itertools.islice(pieces, PIECES_PER_SLICE)):
        slices.append(documents)
        await asyncio.sleep(0)
    return slices


async def _reply_when_durable(
    durable: Awaitable[None], handled: HandlerResult, *, is_read: bool
) -> Reply | LateReply | None:
    """Return the response when the changes that it depends on are durable."""
    reply = handled if handled is None or isinstance(handled, Reply) else await handled
    try:
        await durable
    except FlushFailed as error:
        if not is_read:
            return Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(error))
    return reply
