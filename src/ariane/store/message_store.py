"""The store of a broker: one commit log, the queues that are dispatched from it, and their life from start to stop.

    root/commitlog/<20 digits>                 every record, in order of arrival
    root/consumequeue/<topic>/<id>/<20 digits> offsets of these records, queue by queue
    root/index/<17 digits>                     offsets of records by key (`StoreConfig.index`)
    root/checkpoint  abort  lock               what is durable; exists while running; one process at a time

    put, put_run, put ... -> `dispatch_pending`: consumers see the messages -> `begin_flush`, run, `end_flush`: they are durable

Synchronous and used by one thread, except `FlushRound.run`, which a worker thread may run between `begin_flush` and `end_flush`.
[DefaultMessageStore]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from ariane.clock import SYSTEM_CLOCK
from ariane.errors import StoreError, StoreFull
from ariane.kernels.scanned_record import NotARecord
from ariane.kernels.sends.send_turn import LogEnd, SendRun
from ariane.model.topic import TopicDeletion
from ariane.protocol.records.queue_entry import ENTRY
from ariane.store.disk.files import Disk, OpenFiles, SystemDisk, open_error
from ariane.store.disk.flush import FlushPostponed, FlushRound
from ariane.store.index.key_query import KeyQuery, KeyQueryResult
from ariane.store.log.deletions import Deletions
from ariane.store.log.record_scanner import read_record
from ariane.store.queues import queue_reader
from ariane.store.queues.consume_queue import ConsumeQueue, NumberedQueue
from ariane.store.queues.dispatch import Arrival
from ariane.store.queues.recovery_plan import RecoveryReport
from ariane.store.queues.topic_removal import TopicRemoval
from ariane.store.recovery.recovered_state import RecoveredState, recover_store
from ariane.store.recovery.store_directory import claim, mark_stopped, release
from ariane.store.turn_reads import TurnReads
from ariane.store.types import ALL_RECORDS, AppendResult, GetResult, GetStatus, RecordDraft, RecordFilter, StoreConfig
from ariane.store.upkeep.checkpoint_writer import CheckpointWriter
from ariane.store.upkeep.removed_files import RemovedFiles
from ariane.store.upkeep.retention import Retention
from ariane.store.writing.log_replica import Replica, ReplicationSource
from ariane.store.writing.record_appender import RecordAppender
from ariane.store.writing.store_dispatcher import CREATIONS_MAX, ROUND_QUEUES, StoreDispatcher

__all__ = [
    "ROUND_QUEUES",
    "AppendResult",
    "Arrival",
    "Disk",
    "FlushPostponed",
    "FlushRound",
    "GetResult",
    "GetStatus",
    "MessageStore",
    "NumberedQueue",
    "RecordDraft",
    "RecordFilter",
    "RecoveryReport",
    "StoreConfig",
    "SystemDisk",
    "open_store",
]

PENDING_MAX = 1_000_000  # records without queue entries; beyond, the disk of the queues fails and puts are refused


def open_store(
    config: StoreConfig,
    disk: Disk | None = None,
    now_ms: Callable[[], int] = SYSTEM_CLOCK.now_ms,
    *,
    store_host: bytes,
    delay_positions: Mapping[int, int] | None = None,
    deletions: Callable[[], Deletions] = Deletions,
) -> MessageStore:
    """Lock a store directory, recover it, and open it.

    Args:
        now_ms: clock for store times, in ms since 1970.
        store_host: packed address of this broker, stored with each record.
        delay_positions: positions by delay level from Java's delayOffset.json.
        deletions: loads the table of deleted topics, once the directory is locked.

    Raises:
        StoreLocked: another process has the directory open.
        StoreCorrupt, ConfigError, StoreError: it cannot be used as it is; the message names the path and what to do.
    """
    config.check()
    disk = disk or SystemDisk()
    locks = claim(config, disk)
    files = OpenFiles(disk, config.open_files_max)
    try:
        state = recover_store(config, files, now_ms, delay_positions or {}, deletions())
        store = MessageStore(config, state, now_ms=now_ms, store_host=store_host, locks=locks)
        store.write_first_checkpoint()
        return store
    except BaseException as error:
        files.close()
        release(disk, locks)
        if isinstance(error, OSError):
            raise open_error(error, config.root) from error
        raise


class MessageStore:
    """Appends messages, dispatches them to queues, and reads them. Opened by `open_store`."""

    def __init__(
        self,
        config: StoreConfig,
        state: RecoveredState,
        *,
        now_ms: Callable[[], int],
        store_host: bytes,
        locks: tuple[int, ...],
    ) -> None:
        """Run the recovered `state`; `locks` are released by `close`."""
        self.config = config  # replaced when a setting is changed at runtime
        self.recovery_report = state.report  # what the start found and repaired, for logs and tests
        self._now_ms = now_ms  # store times

        # The disk: all handles are in `_files`, except those of the log, which a flush may be using.
        self._files = state.files
        self.close_idle_files = state.files.close_idle  # closes those that were not used since the last call, in slices
        self._disk = state.files.disk  # the file system; memory in tests
        self._locks = locks  # exclude a second process
        self._closed = False  # further calls fail

        # The log and what is derived from it.
        self._log = state.log
        self._queues = state.queues  # entries follow the log, so they are behind it
        self.index = state.index  # without an index it refuses queries
        self.delayed = state.delayed  # a broker's delivery loop asks it for the next one
        self.deletions = state.deletions  # hides records of deleted topics
        self._appender = RecordAppender(
            state, store_host=store_host, now_ms=now_ms, collects=config.shows_stored_records
        )  # writes the log, lists what to dispatch

        # Why puts are refused although the log could take them: a nearly full disk, a removed file, the role of a slave.
        self.refusal: StoreError | None = None
        self._removed_files = RemovedFiles(self._disk, state.log, state.queues, self)  # reports files that vanished

        # Parts that act on the store for the broker.
        self.replica: Replica | None = None  # set by `follow_master`
        self.replication_source = ReplicationSource(state.log, config)  # what slaves and consumers read
        self._dispatcher = StoreDispatcher(
            state, self._appender, source=self.replication_source, removed_files=self._removed_files
        )  # writes queue entries
        self.turn_reads = TurnReads(state.log, state.queues, self._dispatcher, self._readable)  # of a turn's pulls
        self.retention = Retention(self._disk, state.log, state.queues, state.checkpoint)  # by age or usage
        # Flushes derived files.
        self._checkpoints = CheckpointWriter(state, retention=self.retention, removed_files=self._removed_files)
        self._topic_removal = TopicRemoval(self, state.queues)  # durably: a rebuild skips them

    def write_first_checkpoint(self) -> None:
        """Replace a checkpoint of Java or of a rebuild, so that a crash before the next one is not attributed to Java."""
        if self._checkpoints.is_first_needed:
            with suppress(StoreFull):  # no room for the state of delays: the next checkpoint writes all of it
                self.write_checkpoint()

    # --- writing ---

    def put(self, draft: RecordDraft) -> AppendResult:
        """Append one message. Once this returns, the record survives the death of the process.

        Raises:
            MessageRefused: the format cannot hold the message.
            StoreFull, StoreError: the disk failed, or `refusal` is set.
        """
        return self.put_batch([draft])[0]

    def put_batch(self, drafts: list[RecordDraft]) -> list[AppendResult]:
        """Append messages next to each other in one file with one write: all of them or none."""
        self._check_writable()
        self._dispatcher.limit_creations()
        return self._appender.append(drafts, self.config)

    def log_end(self) -> LogEnd | None:
        """Return where `put_run` appends records that are encoded now; None if they have to be put one by one.

        While writes fail, single puts find out whether they work again: they report what failed.
        """
        if self._log.write_failure is not None or self._write_refusal() is not None:
            return None
        return self._appender.log_end()

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the number of the next record that is put into a queue.

        Raises:
            MessageRefused: the topic cannot have this queue.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None or not queue.opened:
            queue = self._queues.get_or_create(topic, queue_id)
        return queue.next_offset

    def queues_of(self, topic: str) -> Mapping[int, NumberedQueue]:
        """Return the queues of a topic by id, to read the numbers of many at once; `next_offset` creates missing ones."""
        return self._queues.by_id(topic)

    def put_run(self, run: SendRun, store_ms: int) -> None:
        """Append the records of a run with one write: all of them or none.

        Args:
            run: Encoded for the `log_end` and the `next_offset` of its queues, since when nothing was put.
            store_ms: That of the `log_end`.

        Raises:
            StoreFull, StoreError: the disk failed.
        """
        self._appender.append_run(run, store_ms)

    def _write_refusal(self) -> StoreError | None:
        """Return why nothing can be put; None if it can."""
        if (reason := self._log.failure or self.refusal) is not None:
            return reason
        if self._appender.pending_records + self._queues.collected.records < PENDING_MAX:
            return None
        return StoreFull(f"{PENDING_MAX} records are pending: queue entries cannot be written below {self.config.root}")

    def _check_writable(self) -> None:
        if (reason := self._write_refusal()) is not None:
            raise reason.with_traceback(None)

    # --- dispatch ---

    def dispatch_and_defer_arrivals(self) -> None:
        """Dispatch like `dispatch_pending`; the next dispatch returns the arrivals of this one."""
        self._dispatcher.dispatch_all()

    def dispatch_pending(self) -> list[Arrival]:
        """Write the queue entries of all records that were appended since the last call (in sync mode: flushed).

        Raises:
            StoreFull, StoreError: the entries cannot be written. Nothing is lost; the next call tries again.
        """
        self._dispatcher.dispatch_all()
        return self._dispatcher.take_arrivals()

    def dispatch_singles(self) -> tuple[list[Arrival], bool]:
        """Dispatch like `dispatch_pending`, but leave entries of runs collected, and return whether queues remain that are new."""
        is_unfinished = self._dispatcher.dispatch_listed(CREATIONS_MAX)
        return self._dispatcher.take_arrivals(), is_unfinished

    def dispatch_queues(self, queues: Iterable[tuple[str, int]]) -> list[Arrival]:
        """Write the collected entries of these queues, by topic and id."""
        for key in queues:
            queue = self._queues.get(key)
            if queue is not None:
                self._dispatcher.dispatch_collected(queue)
        return self._dispatcher.take_arrivals()

    def dispatch_round(self, queues_max: int) -> tuple[list[Arrival], bool]:
        """Write the collected entries of some queues; return the arrivals, and whether the round is to be continued.

        A round covers the queues that have collected entries when it begins. Once it has ended, the checkpoint covers them.
        """
        is_unfinished = self._dispatcher.dispatch_round(queues_max)
        return self._dispatcher.take_arrivals(), is_unfinished

    @property
    def dispatched(self) -> int:
        """Consumers can see all records that end at or before this offset."""
        return self._dispatcher.dispatched if self._appender.pending else self._log.end

    # --- reading ---

    def _readable(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue with all messages that a consumer may see; None if it does not exist."""
        self._dispatcher.dispatch_before_reading()
        queue = self._queues.get_opened(topic, queue_id)
        if queue is not None and queue in self._queues.collected:
            self._dispatcher.dispatch_before_reading(queue)
        return queue

    def query(self, query: KeyQuery) -> KeyQueryResult:
        """Return records by key. [IndexBuilder.query]"""
        self._dispatcher.dispatch_before_reading()
        return self.index.query(query)

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        record_filter: RecordFilter = ALL_RECORDS,
    ) -> GetResult:
        """Return records of a queue.

        Args:
            topic: Topic of the queue.
            queue_id: Number of the queue.
            offset: Queue offset of the first record.
            max_count: Maximum number of records; the limits of `StoreConfig` apply as well.
            record_filter: Records to return.
        """
        queue = self._readable(topic, queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, b"", (), 0, 0, 0, False)
        try:
            return queue_reader.read_messages(queue, self._log, self.config, offset, max_count, record_filter)
        except FileNotFoundError as error:
            raise self._removed_files.report_removed(str(error.filename)) from error

    def read_record(self, offset: int) -> bytes | None:
        """Return the record at a commit log offset, as a message id names it; None if no record begins there."""
        if not self._log.start <= offset < self.replication_source.readable_end:
            return None
        try:
            return read_record(self._log.segments, offset)[1]
        except NotARecord:
            return None

    def read_queue_record(self, topic: str, queue_id: int, number: int) -> bytes | None:
        """Return the record of a queue entry; None if the entry does not exist, or its record is removed or corrupt."""
        queue = self._readable(topic, queue_id)
        if queue is None or not queue.min_offset(self._log.start) <= number < queue.max:
            return None
        try:
            record, data = read_record(self._log.segments, ENTRY.unpack(queue.entries(number, 1))[0])
        except NotARecord:
            return None
        # The entry of a lost record points to the record of the entry after it.
        return data if record.queue_offset == number else None

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Return queue entries from `offset` on: commit log offset, record size, tags code. Fewer at the queue's end."""
        self._readable(topic, queue_id)
        return self._queues.entries(topic, queue_id, offset, count)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the number of the oldest entry whose record is still in the log; 0 for an unknown queue."""
        queue = self._readable(topic, queue_id)
        return 0 if queue is None else queue.min_offset(self._log.start)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the number of the next entry; 0 for an unknown queue."""
        queue = self._readable(topic, queue_id)
        return 0 if queue is None else queue.max

    def offset_by_time(self, topic: str, queue_id: int, ms: int) -> int:
        """Return the entry stored nearest to `ms`; the last one for a later time, 0 for an unknown queue."""
        queue = self._readable(topic, queue_id)
        return 0 if queue is None else queue_reader.find_by_time(queue, self._log, ms)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the store time of an entry's record in ms; None if the record does not exist."""
        queue = self._readable(topic, queue_id)
        return None if queue is None else queue_reader.entry_store_ms(queue, self._log, offset)

    def earliest_ms(self, topic: str, queue_id: int) -> int | None:
        """Return the store time of the oldest message of a queue; None if it has none."""
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    # --- topics and roles ---

    def topics(self) -> dict[str, list[int]]:
        """Return the topics with the ids of their queues that contain, or contained, messages."""
        self._dispatcher.dispatch_before_reading()
        return self._queues.topics()

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Return whether anything is stored in a queue."""
        self._dispatcher.dispatch_before_reading()
        return self._queues.has_messages(topic, queue_id)

    def deletion_of(self, topic: str) -> TopicDeletion | None:
        """Return the deletion to record before `delete_topic`; None if there is nothing to delete."""
        return self._topic_removal.deletion_of(topic)

    def delete_topic(self, topic: str, *, expired_only: bool = False) -> list[int]:
        """Remove the queues of a topic, or only those without a record in the log; return their ids."""
        return self._topic_removal.delete(topic, expired_only=expired_only)

    def apply_deletion(self, topic: str, deletion: TopicDeletion) -> None:
        """Apply a deletion that the master recorded."""
        self._topic_removal.apply(topic, deletion)

    def follow_master(self) -> Replica:
        """Refuse puts from now on, and return the replica that appends the log of a master instead."""
        assert self.config.follower
        self.refusal = StoreError(f"{self.config.root} is the store of a slave: send messages to its master")
        self.replica = Replica(
            self._log, self._queues, self._appender.pending, self.config.delays_ms, self.index, self.deletions
        )
        self._dispatcher.replica = self.replica
        return self.replica

    @property
    def has_pending(self) -> bool:
        """Return whether records wait for a dispatch that is not collected."""
        return bool(self._appender.pending)

    @property
    def collected_records(self) -> int:
        """Number of records whose queue entries are collected."""
        return self._queues.collected.records

    @property
    def puts(self) -> int:
        """Messages that were put since the start."""
        return self._appender.puts

    @property
    def put_bytes(self) -> int:
        """Bytes of their records."""
        return self._appender.put_bytes

    @property
    def failure(self) -> StoreError | None:
        """Why nothing can be written until a restart; None while writes work."""
        return self._log.failure

    @property
    def last_ms(self) -> int:
        """Store time of the last record; later records are not stored before it."""
        return self._log.last_ms

    @property
    def commit_log_min(self) -> int:
        """Offset of the oldest record in the log."""
        return self._log.start

    @property
    def commit_log_max(self) -> int:
        """End of the log: offset of the next record."""
        return self._log.end

    @property
    def flushed(self) -> int:
        """All records that end at or before this offset are on the disk."""
        return self._log.flushed

    def clear_write_failure(self) -> bool:
        """Report the next failed write again; return whether one was reported."""
        return self._log.clear_write_failure()

    # --- flushing ---

    def begin_flush(self) -> FlushRound | None:
        """Return the work that makes all puts so far durable; None if there is none, or a flush is in flight."""
        return self._log.begin_flush()

    def begin_checkpoint(self) -> FlushRound | None:
        """Return the work that makes queues, index, delays and checkpoint durable; None if there is none."""
        self._removed_files.check_log()
        return self._checkpoints.begin(self._dispatcher.dispatched, self._dispatcher.dispatched_ms)

    def end_flush(self, flush: FlushRound, error: OSError | FlushPostponed | None) -> None:
        """Take the outcome of `flush.run()`. After an OSError all later writes are refused with FlushFailed."""
        if flush is self._checkpoints.in_flight:
            self._checkpoints.end(flush, error)
        elif not isinstance(error, FlushPostponed):
            self._log.end_flush(flush, error)

    def flush(self) -> None:
        """Make all puts so far durable before this returns."""
        self._run(self._log.new_flush_round())

    def write_checkpoint(self) -> None:
        """Make queues, index, delays and checkpoint durable before this returns."""
        if (flush := self.begin_checkpoint()) is not None:
            self._run(flush)

    def _run(self, flush: FlushRound) -> None:
        try:
            flush.run()
        except FlushPostponed as reason:
            self.end_flush(flush, reason)
            raise StoreFull(str(reason)) from reason
        except OSError as error:
            self.end_flush(flush, error)
            self._check_writable()
        self.end_flush(flush, None)

    def close(self) -> None:
        """Flush everything, write the checkpoint, remove `abort`, and release the lock. No flush may be in flight.

        After a failed flush only the lock is released, and the next start recovers.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._log.failure is None:
                self.flush()
                self.dispatch_pending()
                self.index.complete(self._dispatcher.dispatched)
                self.write_checkpoint()
                mark_stopped(self._disk, self.config.root)
        finally:
            self._dispatcher.close()
            if self._log.failure is None:
                self._log.failure = StoreError(f"the store in {self.config.root} is closed")
            self._log.close()
            self._files.close()
            release(self._disk, self._locks)
