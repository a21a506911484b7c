"""The store of a broker: one commit log, the queues derived from it, and their life from start to stop.

    root/commitlog/<20 digits>                 every record, in the order of their arrival
    root/consumequeue/<topic>/<id>/<20 digits> their places, queue by queue
    root/index/<17 digits>                     which records have a key (`StoreConfig.index`)
    root/checkpoint  abort  lock               how far the disk has it; there while running; one process at a time

Synchronous and used by one thread, save `Flush.run`, which a worker thread may run between `begin_...` and `end_flush`. The rhythm:
put, put, put ... `step()` for what consumers may see now; `begin_flush` when there is something to wait for. [DefaultMessageStore]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial

from ariane.clock import SYSTEM_CLOCK
from ariane.errors import StoreError, StoreFull
from ariane.model.hashes import java_hash
from ariane.model.topic import SCHEDULE_TOPIC
from ariane.store import checkpoint as checkpoints
from ariane.store import corrupt_ranges, dispatch, index_builder, queue_reader, recovery
from ariane.store.checkpoint import Checkpoint
from ariane.store.commit_log import CommitLog
from ariane.store.consume_queue import ENTRY, ConsumeQueue
from ariane.store.consume_queues import ConsumeQueues
from ariane.store.delayed import DelayedMessages
from ariane.store.deletions import Deletions
from ariane.store.dispatch import Arrival, PendingEntry
from ariane.store.encoding import delay_tags_code, encode_batch, encode_properties, encode_record
from ariane.store.file_loading import load_log
from ariane.store.files import Disk, OpenFiles, SystemDisk, open_error, read_whole
from ariane.store.flush import FlushPostponed, FlushRound
from ariane.store.key_hashes import is_indexed
from ariane.store.log_replica import Replica, ReplicationSource
from ariane.store.queue_rebuild import rebuild_queues, withdraw_rejected
from ariane.store.record_scanner import NotARecord, RecordScanner, ScannedRecord, read_record
from ariane.store.recovery import RecoveryReport
from ariane.store.removed_files import RemovedFiles
from ariane.store.retention import Retention
from ariane.store.store_directory import claim, mark_running, release
from ariane.store.topic_removal import TopicRemoval
from ariane.store.types import AppendResult, GetResult, GetStatus, RecordDraft, StoreConfig

__all__ = [
    "AppendResult",
    "Arrival",
    "Disk",
    "FlushPostponed",
    "FlushRound",
    "GetResult",
    "GetStatus",
    "MessageStore",
    "RecordDraft",
    "RecoveryReport",
    "StoreConfig",
    "SystemDisk",
    "open_store",
]

PENDING_MAX = 1_000_000  # records that wait for their queue entries; beyond, that disk is failing and puts are refused


def open_store(
    config: StoreConfig,
    disk: Disk | None = None,
    now_ms: Callable[[], int] = SYSTEM_CLOCK.now_ms,
    *,
    store_host: bytes,
    delay_positions: Mapping[int, int] | None = None,
    deletions: Callable[[], Deletions] = Deletions,
) -> MessageStore:
    """Lock the directory, bring it into order, and open it. `store_host` is this broker's packed address,
    `delay_positions` what Java's delayOffset.json says of each delay level, `deletions` loads the topics that were deleted
    (called once the directory is locked).

    StoreLocked when another process has it, StoreCorrupt or ConfigError naming the path when it cannot be used as it is.
    """
    config.check()
    disk = disk or SystemDisk()
    locks = claim(config, disk)
    files = OpenFiles(disk, config.open_files_max)
    try:
        store = MessageStore(config, files, now_ms, store_host, locks, delay_positions or {}, deletions())
        store.write_first_checkpoint()
        return store
    except BaseException as error:
        files.close()
        release(disk, locks)
        if isinstance(error, OSError):
            raise open_error(error, config.root) from error
        raise


class MessageStore:
    """Made by `open_store`. `recovered` tells what the start found; `index` is asked by key."""

    def __init__(
        self,
        config: StoreConfig,
        files: OpenFiles,
        now_ms: Callable[[], int],
        store_host: bytes,
        locks: tuple[int, ...],
        delay_positions: Mapping[int, int],
        deletions: Deletions,
    ) -> None:
        self.config = config
        self.deletions = deletions
        self._files = files
        self._disk = disk = files.disk
        self._now_ms = now_ms
        self._store_host = store_host
        self._locks = locks
        root = config.root
        self._abort, self._checkpoint_path = f"{root}/abort", f"{root}/checkpoint"
        clean = disk.size(self._abort) is None
        self._checkpoint = self._checkpoint_on_disk = checkpoints.decode(read_whole(disk, self._checkpoint_path) or b"")
        flushed = self._checkpoint.safe_offset
        loaded = load_log(files, config.log_directory, config.commit_log_size, clean=clean, flushed=flushed)
        segments, gap = loaded.segments, loaded.find_gap()
        queues = f"{root}/consumequeue"
        self._queues = ConsumeQueues(files, queues, config.consume_queue_size, counted=flushed is not None)
        self.entries = self._queues.entries  # of a queue, as they stand there
        accepted = recovery.refuse_loss(
            segments, gap, self._queues, self._checkpoint, clean=clean, accept_loss=config.accept_empty_log
        )
        mark_running(files, root)
        self.recovery_report = recovery.recover_log(
            files,
            segments,
            gap,
            self._queues,
            self._checkpoint,
            clean=clean,
            check_crc=config.check_crc_on_recover,
            skip_corrupt=not config.follower,
            damaged=corrupt_ranges.backup_directory(root),
            lower=self._lower,
        )
        removal = TopicRemoval(self, self._queues)
        self.delete_topic, self.deletion_of, self.apply_deletion = removal.delete, removal.deletion_of, removal.apply
        removal.finish()
        derived, delivered, passed = rebuild_queues(
            segments, self._queues, self.recovery_report, delays_ms=config.delays_ms, deletions=deletions
        )
        notes = [*withdraw_rejected(files, segments, derived.rejected, self.recovery_report), *derived.lost_entries]
        self._log = CommitLog(
            files,
            segments,
            self.recovery_report.end,
            recovery.clamp_last_timestamp(self.recovery_report.last_ms, now_ms()),
        )
        self.clear_write_failure = self._log.clear_write_failure
        self.delayed = DelayedMessages(files, root, self._queues, segments, config.delays_ms)
        mended = self.delayed.load(delivered, self._log.end, delay_positions)
        self.index = index_builder.open_index(
            config, files, self._log, now_ms, self._checkpoint, clean=clean, lower=self._lower, deletions=deletions
        )
        self.recovery_report = recovery.merge_report(
            self.recovery_report, passed, [*accepted, *notes, *mended, *self.index.notes]
        )
        self._delays_put = False  # since all was derived
        self._pending: deque[PendingEntry] = deque()
        self._deferred_arrivals: list[Arrival] = []  # arrivals of a step that was not the caller's, for the next one
        self._dispatched, self._dispatched_ms = self._log.end, self._log.last_ms
        self._checkpoint_in_flight: FlushRound | None = None
        self.refusal: StoreError | None = None  # why no message may be put: a nearly full disk, the role of a slave
        self._removed = RemovedFiles(disk, self._log, self._queues, partial(setattr, self, "refusal"))
        self.replica: Replica | None = None  # set by `follow`
        self.replication_source = ReplicationSource(self._log, sync=config.flush == "sync")
        self.retention = Retention(disk, self._log, self._queues, lambda: self._checkpoint_on_disk)
        self.has_queue = self._queues.has_files
        self.puts = self.put_bytes = 0  # messages taken since the start
        self._closed = False

    def write_first_checkpoint(self) -> None:
        """Replace a checkpoint of Java or of a rebuild, so that a crash before the next one is not taken for one of Java's."""
        if self._checkpoint.safe_offset is None or self._checkpoint.queue_files >= checkpoints.REBUILDING:
            with suppress(StoreFull):  # no room for the state of delays: the next flush writes all of it
                self.write_checkpoint()

    def _lower(self, checkpoint: Checkpoint) -> None:
        """Make a checkpoint durable that says less than the one there, before what it no longer speaks of is changed."""
        checkpoints.replace(self._files, self._checkpoint_path, checkpoint)
        self._checkpoint = self._checkpoint_on_disk = checkpoint

    def put(self, draft: RecordDraft) -> AppendResult:
        """Append one message. Once this has returned, the record survives the death of the process."""
        log = self._log
        if log.failure is not None or self.refusal is not None or len(self._pending) >= PENDING_MAX:
            self._raise_refusal()
        queue = self._queues.get((draft.topic, draft.queue_id))
        if queue is None or not queue.opened:
            queue = self._queues.get_or_create(draft.topic, draft.queue_id)
        topic, properties = queue.topic_bytes, encode_properties(draft, self.config.max_message_size)
        now = self._now_ms()
        store_ms = now if now > log.last_ms else log.last_ms
        listed = dispatch.has_entry(draft.sys_flag)
        queue_offset = queue.next_offset if listed else 0
        data = encode_record(draft, topic, properties, queue_offset, log.end, store_ms, self._store_host)
        if len(data) > log.room:
            rolled = log.roll(len(data))
            data = encode_record(draft, topic, properties, queue_offset, rolled, store_ms, self._store_host)
        offset = log.end
        log.append(data, store_ms)
        size = len(data)
        if listed:
            queue.next_offset += 1
        self._add_pending(draft, queue, listed, offset, size, queue_offset, store_ms)
        return AppendResult(offset, size, queue_offset, store_ms)

    def put_batch(self, drafts: list[RecordDraft]) -> list[AppendResult]:
        """Append messages side by side in one file with one write: all of them or none."""
        log = self._log
        if log.failure is not None or self.refusal is not None or len(self._pending) >= PENDING_MAX:
            self._raise_refusal()
        now = self._now_ms()
        store_ms = now if now > log.last_ms else log.last_ms
        next_offsets: dict[ConsumeQueue, int] = {}
        parts: list[tuple[RecordDraft, ConsumeQueue, bool, bytes, bytes, int]] = []
        for draft in drafts:
            queue = self._queues.get_or_create(draft.topic, draft.queue_id)
            topic, properties = queue.topic_bytes, encode_properties(draft, self.config.max_message_size)
            listed = dispatch.has_entry(draft.sys_flag)
            queue_offset = next_offsets.get(queue, queue.next_offset) if listed else 0
            if listed:
                next_offsets[queue] = queue_offset + 1
            parts.append((draft, queue, listed, topic, properties, queue_offset))
        records = encode_batch(parts, log.end, store_ms, self._store_host)
        total = sum(map(len, records))
        if total > log.room:
            records = encode_batch(parts, log.roll(total), store_ms, self._store_host)
        if not records:
            return []
        offset = log.end
        log.append(b"".join(records), store_ms)
        placed = []
        for (draft, queue, listed, _, _, queue_offset), data in zip(parts, records, strict=True):
            self._add_pending(draft, queue, listed, offset, len(data), queue_offset, store_ms)
            placed.append(AppendResult(offset, len(data), queue_offset, store_ms))
            offset += len(data)
        for queue, number in next_offsets.items():
            queue.next_offset = number
        return placed

    def _raise_refusal(self) -> None:
        reason = self._log.failure or self.refusal
        if reason is not None:
            raise reason.with_traceback(None)
        raise StoreFull(f"{PENDING_MAX} records are pending: queue entries cannot be written below {self.config.root}")

    def _add_pending(
        self,
        draft: RecordDraft,
        queue: ConsumeQueue,
        listed: bool,
        offset: int,
        size: int,
        queue_offset: int,
        store_ms: int,
    ) -> None:
        if listed or is_indexed(draft.sys_flag):
            self.index.add_pending((queue.topic, draft.properties, offset, store_ms))
        self.puts += 1
        self.put_bytes += size
        if not listed:
            self._pending.append(PendingEntry(None, b"", 0, 0, store_ms, offset + size))
            return
        if draft.tags_code is None and queue.topic != SCHEDULE_TOPIC:
            code = java_hash(draft.tags) if draft.tags else 0
        else:
            code = delay_tags_code(draft, store_ms, self.config.delays_ms)
            self._delays_put = True
        self._pending.append(
            PendingEntry(queue, ENTRY.pack(offset, size, code), queue_offset, code, store_ms, offset + size)
        )

    def dispatch_and_defer_arrivals(self) -> None:
        """As `step`, whose arrivals the next call returns."""
        self._deferred_arrivals = self.dispatch_pending()

    def dispatch_pending(self) -> list[Arrival]:
        """Derive the queue entries of what was appended since the last step (in sync mode: of what is flushed).

        StoreFull or StoreError when the entries cannot be written; nothing is lost, the next step tries again.
        """
        held, self._deferred_arrivals = self._deferred_arrivals, []
        if not self._pending and self.replica is None:
            return held
        try:
            up_to, follow = self.replication_source.end, self.replica
            if follow is not None:
                arrivals, last = follow.dispatch_pending(up_to)
            else:
                arrivals, last = dispatch.dispatch_pending(self._pending, up_to, self._queues)
        except StoreError as error:
            self._deferred_arrivals = held
            if isinstance(error.__cause__, FileNotFoundError):
                self._removed.report_removed(str(error.__cause__.filename))
            raise
        if last is not None:
            self._dispatched, self._dispatched_ms = last.end, last.store_ms
            self.index.on_dispatched(self._dispatched)
            if self.replica is not None:
                self.delayed.apply_master_deliveries(self.replica.delivered, self._log.end)
                self.replica.delivered.clear()
            elif self._delays_put:
                self._delays_put = bool(self._pending)
                self.delayed.read_arrivals(self._log.end)
        return held + arrivals if held else arrivals

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        codes: frozenset[int] | None = None,
        max_bytes: int | None = None,
        accept: Callable[[bytes], bool] | None = None,
    ) -> GetResult:
        """Records of a queue from entry `offset` on, at most one answer full; `codes` None takes all tags, `accept` sees
        each record that has one of them."""
        queue = self._queues.get_opened(topic, queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, [], 0, 0, 0, False)
        try:
            wanted = (offset, max_count, codes, max_bytes, accept)
            return queue_reader.read_messages(queue, self._log, self.config, *wanted)
        except FileNotFoundError as error:
            raise self._removed.report_removed(str(error.filename)) from error

    def read_record(self, offset: int) -> bytes | None:
        """The record at a commit log offset, as an id names it; None when none begins there."""
        if not self._log.start <= offset < self.replication_source.end:
            return None
        try:
            return read_record(self._log.segments, offset)[1]
        except NotARecord:
            return None

    def scan_records(self, start: int, stop: int) -> Iterator[ScannedRecord]:
        """What lies in the log from `start`, where a record begins, up to `stop`; what cannot be read is passed over."""
        log, start = self._log.segments, max(start, self._log.start)
        return iter(RecordScanner(log, start, stop, check_crc=False, min_store_ms=0, all_written=True))

    def read_queue_record(self, topic: str, queue_id: int, number: int) -> bytes | None:
        """The record of one queue entry; None when there is no such entry, or its record is gone, lost or damaged."""
        queue = self._queues.get_opened(topic, queue_id)
        if queue is None or not queue.min_offset(self._log.start) <= number < queue.max:
            return None
        try:
            found, data = read_record(self._log.segments, ENTRY.unpack(queue.entries(number, 1))[0])
        except NotARecord:
            return None
        return data if found.queue_offset == number else None  # else that of the next entry: its own was lost

    @property
    def last_ms(self) -> int:
        """Store time of the last record; no later one is stored before it."""
        return self._log.last_ms

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get_opened(topic, queue_id)
        return 0 if queue is None else queue.min_offset(self._log.start)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Number the next entry will have; 0 for an unknown queue."""
        queue = self._queues.get_opened(topic, queue_id)
        return 0 if queue is None else queue.max

    def offset_by_time(self, topic: str, queue_id: int, ms: int) -> int:
        """The entry stored nearest to `ms`; the last one for a later time, 0 for an unknown queue."""
        queue = self._queues.get_opened(topic, queue_id)
        return 0 if queue is None else queue_reader.find_by_time(queue, self._log, ms)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        queue = self._queues.get_opened(topic, queue_id)
        return None if queue is None else queue_reader.entry_store_ms(queue, self._log, offset)

    def earliest_ms(self, topic: str, queue_id: int) -> int | None:
        """Store time of the oldest message of a queue; None when it has none."""
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    def topics(self) -> dict[str, list[int]]:
        """Topics with the ids of their queues that hold, or held, messages."""
        return self._queues.topics()

    def follow_master(self) -> Replica:
        """From now on take no messages, but the log of a master."""
        assert self.config.follower
        self.refusal = StoreError(f"{self.config.root} belongs to a slave: messages are put at its master")
        self.replica = Replica(
            self._log, self._queues, self._pending, self.config.delays_ms, self.index.add_pending, self.deletions
        )
        return self.replica

    @property
    def failure(self) -> StoreError | None:
        """Why nothing can be written any more."""
        return self._log.failure

    @property
    def commit_log_min(self) -> int:
        return self._log.start

    @property
    def commit_log_max(self) -> int:
        return self._log.end

    @property
    def dispatched(self) -> int:
        """All records that end at or below this offset have their queue entries."""
        return self._dispatched if self._pending else self._log.end

    @property
    def flushed(self) -> int:
        """All records that end at or below this offset are on the disk."""
        return self._log.flushed

    def begin_flush(self) -> FlushRound | None:
        """The work that makes all puts so far durable; None when there is none, or one is under way."""
        return self._log.begin_flush()

    def begin_checkpoint(self) -> FlushRound | None:
        """The same for queue files and checkpoint, which only spare a start from reading the log."""
        self._removed.check_log()
        if self._checkpoint_in_flight is not None or self._log.failure is not None:
            return None
        keys = self.index.take_changed(self._dispatched)
        checkpoint = self._checkpoint_now()
        delays = self.delayed.begin_save(self._log.flushed)
        if checkpoint == self._checkpoint and not any((*self._queues.changed, delays, *keys)):
            return None
        files, directories = self._queues.take_changed()
        self._checkpoint = checkpoint
        paths, directories = [*files, *keys.files], [*directories, *keys.directories]
        written = (self._checkpoint_path, checkpoints.encode(checkpoint))
        flush = FlushRound(self._disk, 0, 0, (), tuple(paths), tuple(directories), tuple(delays), written, [])
        self._checkpoint_in_flight = flush
        return flush

    def _checkpoint_now(self) -> Checkpoint:
        safe = min(self._log.flushed, self._dispatched)
        files = self._queues.file_count() - self.retention.planned_count
        log, index_ms = self._log, self._checkpoint.index_ms
        start = log.start if log.end > log.start else None  # a slave's empty log begins where its master's does
        found = Checkpoint(log.flushed_ms, self._dispatched_ms, index_ms, safe, files, log_start=start)
        return self.index.add_to_checkpoint(found, self._log.flushed)

    def end_flush(self, flush: FlushRound, error: OSError | FlushPostponed | None) -> None:
        """Take the outcome of `flush.run()`. After an OSError all later writes are refused with FlushFailed."""
        if flush is self._checkpoint_in_flight:
            self._checkpoint_in_flight = None
            self.delayed.end_save(written=error is None)
            self._removed.check_flushed(flush.missing or [], self.index)
            if isinstance(error, OSError):
                self._log.fail(error)
            elif error is not None:
                self._checkpoint = self._checkpoint._replace(safe_offset=None)  # not what is on disk: written next time
            else:
                self._checkpoint_on_disk = self._checkpoint
        elif not isinstance(error, FlushPostponed):
            self._log.end_flush(flush, error)

    def flush(self) -> None:
        """Make all puts so far durable, here and now."""
        self._run(self._log.new_flush_round())

    def write_checkpoint(self) -> None:
        """Make queue files and checkpoint durable, here and now."""
        flush = self.begin_checkpoint()
        if flush is not None:
            self._run(flush)

    def _run(self, flush: FlushRound) -> None:
        try:
            flush.run()
        except FlushPostponed as reason:
            self.end_flush(flush, reason)
            raise StoreFull(str(reason)) from reason
        except OSError as error:
            self.end_flush(flush, error)
            self._raise_refusal()
        self.end_flush(flush, None)

    def close(self) -> None:
        """Stop in order: flush everything, write the checkpoint, remove `abort`, release the lock. No flush may be under way.

        After a failed flush only the lock is released, and the next start recovers.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._log.failure is None:
                self.flush()
                self.dispatch_pending()
                self.index.complete(self._dispatched)
                self.write_checkpoint()
                self._disk.remove(self._abort)
                self._disk.fsync_dir(self.config.root)
        finally:
            if self._log.failure is None:
                self._log.failure = StoreError(f"the store in {self.config.root} is closed")
            self._log.close()
            self._files.close()
            release(self._disk, self._locks)
