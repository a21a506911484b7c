"""The broker's state that survives a restart: topics, groups, offsets, filters, queue locks, positions of delays.

    topics, groups, deletions   in the change log before the answer (on the disk in synchronous mode)
    queue locks                 the same; a full disk does not keep a client from its queues
    offsets                     every flushConsumerOffsetInterval, as in Java; set or deleted by a tool: in the change log
    filters, delays             every 10 s

What the change log holds is written to the documents of config/ within a second or so, in the background: the loop encodes a
document in slices, a worker thread writes it. [ConfigManager and its heirs]
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

from ariane.broker.config import BrokerConfig
from ariane.broker.state import json_documents
from ariane.broker.state.change_log import ChangeLog
from ariane.broker.state.change_records import DOCUMENTS, Change, SavedDocument, TopicDeleted
from ariane.broker.state.consumer_filters import ConsumerFilters, FilterTable
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.queue_locks import QueueLocks
from ariane.broker.state.saved_state import DeletedTopics, SavedState
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.broker.write_protection import SEND_CODES
from ariane.errors import FlushFailed, StoreError
from ariane.filter.bloom import Bloom
from ariane.model.topic import TopicDeletion
from ariane.net.connection import Handler, HandlerResult, LateReply, Peer, Reply
from ariane.net.tasks import BackgroundTasks, wait_done
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.admin import DelayOffsetTable
from ariane.store.files import Disk, exists, read_whole

log = logging.getLogger("ariane.broker.state")

SAVE_INTERVAL_S = 1.0
SAVE_PACE = 10  # a document is written again after this many times the time that it took: 100,000 topics take a second
ENTRIES_PER_SLICE = 64  # entries encoded at once: about 0.5 ms


# Requests that store or change something; heartbeats and locks are not among them, so that consumers go on.
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
    """What delayOffset.json says of each level: the store wants to know it when it is opened."""
    return json_documents.load(disk, config.config_dir, json_documents.DELAY_OFFSETS, DelayOffsetTable).offset_table


class PersistentState:
    """The tables, loaded. `save` writes what changed, `start` does so from now on.

    Args:
        saved: The loaded state of the last process.
        executor: Writes documents and flushes the change log; with two threads neither waits for the other.
    """

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        saved: SavedState,
        executor: Executor,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], float],
    ) -> None:
        self.topics = TopicRegistry(saved.topics, config, now_ms, self.record)
        self.groups = GroupRegistry(
            saved.groups, auto_create=config.auto_create_subscription_group, now_ms=now_ms, record=self.record
        )
        self.offsets = ConsumerOffsets(saved.offsets, self.record)
        self.deletions = saved.deletions
        bloom = Bloom.sized(config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter)
        keep_ms = config.filter_data_clean_time_span
        filters = json_documents.read(disk, config.config_dir, json_documents.FILTERS, FilterTable, is_expendable=True)
        self.filters = ConsumerFilters(filters.document, bloom, keep_ms=keep_ms, now_ms=now_ms)
        self.locks = QueueLocks(saved.lock_table(), monotonic_ms(), record=self._record_lock)
        self._monotonic_ms = monotonic_ms
        self._disk = disk
        self._directory = config.config_dir
        self._executor = executor
        self._unsaved = set(saved.unsaved)
        self._good_crcs = {name: contents[0].crc for name, contents in saved.contents.items()}
        self._lacks_room = False
        self._saving = asyncio.Lock()
        self._next_save_ms = 0.0
        self._saved_delays = DelayOffsetTable()
        self._delays = read_whole(disk, self._path(json_documents.DELAY_OFFSETS))
        self.change_log = ChangeLog(disk, config.config_dir, saved.log, executor, is_sync=config.sync_flush)
        self.change_log.start(saved.contents)
        self._document_sources: dict[str, Callable[[], msgspec.Struct]] = {
            json_documents.TOPICS: self.topics.table,
            json_documents.GROUPS: self.groups.table,
            json_documents.OFFSETS: self.offsets.view,
            json_documents.FILTERS: self.filters.table,
            json_documents.LOCKS: self.locks.table,
            json_documents.DELETED: lambda: DeletedTopics(self.deletions.to_table()),
        }
        self._present = {
            name for name in (*self._document_sources, json_documents.DELAY_OFFSETS) if exists(disk, self._path(name))
        }
        self.topics.on_table_change = lambda: self._unsaved.add(json_documents.TOPICS)
        self.groups.on_table_change = lambda: self._unsaved.add(json_documents.GROUPS)

    def start(self, tasks: BackgroundTasks, topics_changed: Callable[[], None]) -> None:
        """Write documents as they change, from now on; call `topics_changed` after each change of a topic."""

        def changed() -> None:
            self._unsaved.add(json_documents.TOPICS)
            topics_changed()

        self.topics.on_table_change = changed
        tasks.repeat(SAVE_INTERVAL_S, self._save_paced, "save topics and groups")

    # --- changes ---

    def record(self, change: Change) -> None:
        """Store a change. Raises StoreError if it cannot be; then it must not be made."""
        if isinstance(change, TopicDeleted):  # the caller removes the queues of the topic next
            self._check_removed()
        self.change_log.append(change)
        self._unsaved.update(DOCUMENTS[type(change)])

    def _record_lock(self, change: Change) -> None:
        # Consuming in order goes on while the disk is full: only a restart would forget who holds what.
        self._unsaved.update(DOCUMENTS[type(change)])
        try:
            self.change_log.append(change)
        except StoreError as error:
            if not self._lacks_room:
                log.error("queue locks are not saved, a restart of this broker would forget them: %s", error)
            self._lacks_room = True
        else:
            self._lacks_room = False

    def wait_locks_durable(self) -> Awaitable[None] | None:
        """Wait until all changes of locks so far are as safe as the flush mode promises; None when they are."""
        return self.change_log.wait_durable(self.change_log.last_n)

    def delete_topic(self, name: str, deletion: TopicDeletion | None) -> None:
        """Delete a topic with its offsets, durably in every mode: the caller removes the queues of its messages next."""
        self.topics.delete(name, deletion)
        self.offsets.remove_topic(name)
        if deletion is not None:
            self.deletions.add(name, deletion)
        self.change_log.flush_blocking()

    def apply_master_deletions(self, deletions: Mapping[str, TopicDeletion]) -> None:
        """Record deletions of the master, durably in every mode (a slave). Its topic table is copied, so ours stays."""
        for name, deletion in deletions.items():
            self.record(TopicDeleted(name, None, deletion))
            self.offsets.remove_topic(name)
            self.deletions.add(name, deletion)
        self.change_log.flush_blocking()

    def drop_obsolete_deletions(self, log_start: int) -> None:
        """Forget the deletions of messages that have left the log."""
        if self.deletions.drop_before(log_start):
            self._unsaved.add(json_documents.DELETED)

    def with_durable_replies(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same handlers. In synchronous mode no answer leaves before the changes that it may depend on are on the disk.

        After a failed fsync what is stored or changed is answered with an error, and reads go on.
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
        """Bring the change log to the disk. Write config/ again if somebody removed it, or a file of it."""
        self._check_removed()
        try:
            if self.change_log.needs_restore:
                await self.save()
            await self.change_log.flush()
        except FlushFailed as error:
            log.debug("%s", error)  # told when it happened; changes are refused since

    def _check_removed(self) -> None:
        """Begin to write config/ again if a file that belongs there is missing; `flush` and `save` write the documents."""
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
            FlushFailed: Removed documents cannot be written again. Changes are refused from now on.
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
        # All are taken now, before the loop runs on: together they hold exactly the changes so far.
        n, taken = self.change_log.last_n, {name: self._document_sources[name]() for name in names}
        for name in names:
            self._unsaved.discard(name)
        while taken:
            name = next(iter(taken))
            try:
                await self._save(name, taken[name], n)
            except BaseException:
                self._unsaved.update(taken)  # cancelled, too: the next save has to write them
                raise
            del taken[name]
        ended_ms = self._monotonic_ms()
        self._next_save_ms = ended_ms + (ended_ms - began_ms) * SAVE_PACE

    async def _save(self, name: str, document: msgspec.Struct, n: int) -> None:
        text = b"".join(await _encoded(document))
        content = SavedDocument(zlib.crc32(text), n)
        if not self.change_log.has_failed:  # else the document is all that is left to store the state in
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
        """Drop the filters that died long ago, and save the others."""
        self.filters.remove_dead()
        await self.save()

    async def remove_expired_locks(self) -> None:
        self.locks.remove_expired(self._monotonic_ms())

    async def save_delay_offsets(self, positions: dict[int, int]) -> None:
        table = DelayOffsetTable(positions)
        if table != self._saved_delays:
            await self.save_delay_document(json_documents.encode(table))
            self._saved_delays = table

    async def save_delay_document(self, text: bytes) -> None:
        """The text of delayOffset.json, as a slave copies it."""
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
        """Write a document, to the end even if cancelled: two writes of one would use the same temporary file."""
        running = asyncio.get_running_loop().run_in_executor(self._executor, write, *args)
        cancelled = await wait_done(running)
        running.result()
        return cancelled

    async def close(self) -> None:
        """Write everything; afterwards the documents alone hold the state, as Java reads it."""
        try:
            self._check_removed()
            await self.save()
            await self.flush()
        finally:
            self.change_log.close()


async def _encoded(document: msgspec.Struct) -> list[bytes]:
    """The text of a document, encoded in slices between which the loop serves others."""
    pieces, slices = fastjson.pieces(document), []
    while taken := b"".join(itertools.islice(pieces, ENTRIES_PER_SLICE)):
        slices.append(taken)
        await asyncio.sleep(0)
    return slices


async def _reply_when_durable(
    durable: Awaitable[None], handled: HandlerResult, *, is_read: bool
) -> Reply | LateReply | None:
    """The answer, once it may leave."""
    reply = handled if handled is None or isinstance(handled, Reply) else await handled
    try:
        await durable
    except FlushFailed as error:
        if not is_read:
            return Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(error))
    return reply
