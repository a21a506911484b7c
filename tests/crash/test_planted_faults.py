"""Proof that the crash tests detect faults: one fault at a time is planted into the store, and a check of `promises` must fail.

A fault is a patch of one function, listed with the check that must detect it. The other crash tests show that the checks pass
without a fault; two that only this file has are run without one as well.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any

import promises
import pytest

from ariane.broker.lifecycle import topic_deletion
from ariane.broker.state.loading import saved_state
from ariane.broker.state.saved import change_log
from ariane.errors import ArianeError
from ariane.kernels import implementation, record_runs, scanned_record
from ariane.kernels.scanned_record import ScannedRecord
from ariane.store import message_store
from ariane.store.disk import flush, segments
from ariane.store.log import checkpoint, commit_log, corrupt_ranges, deletions, record_scanner
from ariane.store.queues import collected_entries, consume_queue, consume_queues, dispatch, queue_numbering
from ariane.store.recovery import log_recovery as recovery
from ariane.store.recovery import recovered_state
from ariane.store.upkeep import checkpoint_writer
from ariane.store.writing import log_replica
from ariane.testing.disk import FakeDisk, SurvivingData

Plant = Callable[[pytest.MonkeyPatch], None]
Check = Callable[[], object]


# ------------------------------------------------------------------------------------------------ the checks that detect the faults


def power_lost() -> None:
    for kept, seed in promises.FATES:
        promises.power_lost_at_every_change(kept, seed)


def runs_lost() -> None:
    promises.runs_lost_at_every_change(SurvivingData.ALL, 0)


def fsync_failed() -> None:
    promises.changes_failed_in_turn("fsync")


def fsync_dir_failed() -> None:
    promises.changes_failed_in_turn("fsync_dir")


def write_failed() -> None:
    promises.changes_failed_in_turn("write")


def flips() -> None:
    """Flip bits of three fields of some records: commit-log offset, body, queue offset."""
    case = promises.Flips()
    for start in case.starts[5:100:9]:
        for within in (4, 20 + 7, 28 + 7, 90, 100):
            case.judge((start + within) * 8 + random.Random(start).randrange(8))


def configuration_lost() -> None:
    for kept, seed in promises.FATES[:3]:
        promises.configuration_changed(
            lambda disk, cut, kept=kept, seed=seed: disk.after_power_loss(kept, random.Random(seed * 1000 + cut))
        )


def configuration_killed() -> None:
    promises.configuration_changed(lambda disk, cut: disk.after_kill(), promises.ASYNC_CONFIG)


# --------------------------------------------------------------------------------------------------------------- the faults


def no_fsync_of_the_log(patch: pytest.MonkeyPatch) -> None:
    plain = commit_log.CommitLog.new_flush_round
    patch.setattr(commit_log.CommitLog, "new_flush_round", lambda self: plain(self)._replace(handles=()))


def no_fsync_of_full_segments(patch: pytest.MonkeyPatch) -> None:
    plain = commit_log.CommitLog.new_flush_round
    patch.setattr(
        commit_log.CommitLog, "new_flush_round", lambda self: plain(self)._replace(handles=plain(self).handles[-1:])
    )


def no_fsync_of_consume_queues(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flush.FlushRound, "_fsync_path", lambda self, path: None)


def no_fsync_of_directories(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flush.FlushRound, "_fsync_dir", lambda self, path: None)


def no_fsync_of_any_directory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FakeDisk, "fsync_dir", lambda self, path: None)


def log_flush_without_directory_fsync(patch: pytest.MonkeyPatch) -> None:
    plain = commit_log.CommitLog.new_flush_round
    patch.setattr(commit_log.CommitLog, "new_flush_round", lambda self: plain(self)._replace(directories=()))


def flushed_offset_advanced_before_the_fsync(patch: pytest.MonkeyPatch) -> None:
    plain = commit_log.CommitLog.begin_flush

    def begin_flush(self: commit_log.CommitLog) -> flush.FlushRound | None:
        checkpoint_data = plain(self)
        self.flushed, self.flushed_ms = self.end, self.last_ms
        return checkpoint_data

    patch.setattr(commit_log.CommitLog, "begin_flush", begin_flush)


def flushed_offset_advanced_by_each_append(patch: pytest.MonkeyPatch) -> None:
    plain = commit_log.CommitLog.append

    def append(self: commit_log.CommitLog, data: bytes, store_ms: int) -> None:
        plain(self, data, store_ms)
        self.flushed = self.end

    patch.setattr(commit_log.CommitLog, "append", append)


def checkpoint_written_before_the_data(patch: pytest.MonkeyPatch) -> None:
    plain = flush.FlushRound.run

    def run(self: flush.FlushRound) -> None:
        plain(self._replace(handles=(), paths=(), directories=()))
        plain(self._replace(checkpoint=None))

    patch.setattr(flush.FlushRound, "run", run)


def checkpoint_covers_unflushed_data(patch: pytest.MonkeyPatch) -> None:
    plain = checkpoint_writer.CheckpointWriter._build
    patch.setattr(
        checkpoint_writer.CheckpointWriter,
        "_build",
        lambda self, *dispatched: plain(self, *dispatched)._replace(safe_offset=self._log.end),
    )


def checkpoint_covers_collected_entries(patch: pytest.MonkeyPatch) -> None:
    plain = checkpoint_writer.CheckpointWriter.begin
    patch.setattr(
        checkpoint_writer.CheckpointWriter,
        "begin",
        lambda self, _, dispatched_ms: plain(self, self._log.end, dispatched_ms),
    )


def collected_entries_written_after_later_ones(patch: pytest.MonkeyPatch) -> None:
    plain = dispatch.dispatch_pending

    def step(*args: Any) -> Any:
        with pytest.MonkeyPatch.context() as late:
            late.setattr(collected_entries.CollectedEntries, "get", lambda self, queue: b"")
            late.setattr(collected_entries.CollectedEntries, "remove", lambda self, queue: None)
            return plain(*args)

    patch.setattr(dispatch, "dispatch_pending", step)


def checkpoint_without_crc(patch: pytest.MonkeyPatch) -> None:
    def decode(data: bytes) -> checkpoint.Checkpoint:
        if len(data) < checkpoint._LAYOUT.size:
            return checkpoint.Checkpoint()
        physic_ms, logics_ms, index_ms, _, safe_offset, queue_files = checkpoint._LAYOUT.unpack_from(data)
        return checkpoint.Checkpoint(physic_ms, logics_ms, index_ms, safe_offset or None, queue_files)

    patch.setattr(checkpoint, "decode", decode)


def checkpoint_without_queue_file_count(patch: pytest.MonkeyPatch) -> None:
    plain = checkpoint_writer.CheckpointWriter._build
    patch.setattr(
        checkpoint_writer.CheckpointWriter,
        "_build",
        lambda self, *dispatched: plain(self, *dispatched)._replace(queue_files=0),
    )


def no_abort_file(patch: pytest.MonkeyPatch) -> None:
    plain = FakeDisk.create

    def create(self: FakeDisk, path: str, size: int) -> int:
        handle = plain(self, path, size)
        if path.endswith("/abort"):
            del self._files[path]
            self._names_pending = [item for item in self._names_pending if item[0] != path]
        return handle

    patch.setattr(FakeDisk, "create", create)
    patch.setattr(FakeDisk, "remove", _remove_if_there(FakeDisk.remove))


def _remove_if_there(plain: Callable[[FakeDisk, str], None]) -> Callable[[FakeDisk, str], None]:
    def remove(self: FakeDisk, path: str) -> None:
        if path in self._files:
            plain(self, path)

    return remove


def failed_fsync_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commit_log.CommitLog, "fail", lambda self, error: None)


def failed_fsync_swallowed(patch: pytest.MonkeyPatch) -> None:
    plain = flush.FlushRound.run

    def run(self: flush.FlushRound) -> None:
        try:
            plain(self)
        except OSError:
            return

    patch.setattr(flush.FlushRound, "run", run)


def failed_directory_fsync_swallowed(patch: pytest.MonkeyPatch) -> None:
    plain = flush.FlushRound._fsync_dir

    def fsync_dir(self: flush.FlushRound, path: str) -> None:
        try:
            plain(self, path)
        except OSError:
            return

    patch.setattr(flush.FlushRound, "_fsync_dir", fsync_dir)


def failed_write_swallowed(patch: pytest.MonkeyPatch) -> None:
    plain = FakeDisk.pwrite

    def pwrite(self: FakeDisk, handle: int, data: bytes, offset: int) -> None:
        try:
            plain(self, handle, data, offset)
        except OSError:
            return

    patch.setattr(FakeDisk, "pwrite", pwrite)


def replace_parser(patch: pytest.MonkeyPatch, parse_record: Callable[..., ScannedRecord]) -> None:
    """Read records with `parse_record`, which the native implementation does not use."""
    patch.setattr(implementation, "selected", implementation.PythonCore)
    patch.setattr(record_runs, "parse_record", parse_record)
    patch.setattr(record_scanner, "parse_record", parse_record)


def body_crc_not_verified(patch: pytest.MonkeyPatch) -> None:
    plain = record_scanner.parse_record

    def parse_record(data: bytes, at: int, offset: int, room: int, *, check_crc: bool) -> ScannedRecord:
        return plain(data, at, offset, room, check_crc=False)

    replace_parser(patch, parse_record)


def record_offset_not_verified(patch: pytest.MonkeyPatch) -> None:
    """Accept any well-formed record, whatever commit-log offset it contains."""

    def good(log: segments.Segments, offset: int, floor_ms: int) -> bool:
        data = log.read(offset, record_scanner.CHUNK_BYTES)
        try:
            record_scanner.parse_record(data, 0, int.from_bytes(data[28:36], "big"), log.size, check_crc=True)
        except scanned_record.NotARecord:
            return False
        return True

    plain = record_scanner.parse_record

    def parse_record(data: bytes, at: int, offset: int, room: int, *, check_crc: bool) -> ScannedRecord:
        own = int.from_bytes(data[at + 28 : at + 36], "big")
        return plain(data, at, own, room, check_crc=check_crc)._replace(offset=offset)

    patch.setattr(record_scanner, "_is_good", good)
    replace_parser(patch, parse_record)


def truncation_does_not_clear_the_rest(patch: pytest.MonkeyPatch) -> None:
    def truncate(self: segments.Segments, end: int) -> None:
        while self.bases and self.bases[-1] > end:
            self.remove_file(self.bases[-1])

    patch.setattr(segments.Segments, "truncate", truncate)


def log_not_truncated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_cut", lambda files, log, read_from, end: 0)


def truncated_log_not_flushed_at_start(patch: pytest.MonkeyPatch) -> None:
    plain = recovery._cut

    def cut(files: Any, log: segments.Segments, read_from: int, end: int) -> int:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(FakeDisk, "fsync", lambda self, handle: None)
            return plain(files, log, read_from, end)

    patch.setattr(recovery, "_cut", cut)


def consume_queues_not_truncated(patch: pytest.MonkeyPatch) -> None:
    plain = consume_queues.ConsumeQueues.allow_opening

    def allow_opening(
        self: consume_queues.ConsumeQueues, limit: int, read: consume_queue.Read, *, trusted: bool = False
    ) -> None:
        plain(self, recovery.END_OF_LOG, read, trusted=trusted)

    patch.setattr(consume_queues.ConsumeQueues, "allow_opening", allow_opening)


def last_queue_entry_not_verified(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(consume_queue.ConsumeQueue, "_is_valid", lambda self, number, limit, read, *, trusted: True)


def log_ends_at_a_corrupt_range(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(record_scanner.RecordScanner, "_find_resume", lambda self, place: None)


def corrupt_ranges_not_reported(patch: pytest.MonkeyPatch) -> None:
    plain = recovery.RecoveryReport._replace
    patch.setattr(
        recovery.RecoveryReport,
        "_replace",
        lambda self, **changed: plain(self, **{**changed, "corrupt_ranges": (), "notes": ()}),
    )


def corrupt_range_overwritten_by_a_visible_record(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(corrupt_ranges, "TRANSACTION_ROLLBACK", 0)
    patch.setattr(corrupt_ranges, "TOPIC", b"T")


def corrupt_range_overwritten_beyond_its_end(patch: pytest.MonkeyPatch) -> None:
    plain = recovery.overwrite
    patch.setattr(
        recovery,
        "overwrite",
        lambda files, log, hole, *rest: plain(files, log, hole._replace(size=hole.size + 8), *rest),
    )


def queue_offsets_accepted_without_check(patch: pytest.MonkeyPatch) -> None:
    """Queue offsets of records are accepted immediately, as in Java, without comparing them with the next record."""
    patch.setattr(dispatch._Dispatcher, "_out_of_order", dispatch._Dispatcher._place)


def lost_queue_offsets_reused(patch: pytest.MonkeyPatch) -> None:
    """A record after a lost one gets the lost record's queue offset."""
    patch.setattr(consume_queue.ConsumeQueue, "fill_lost", lambda self, *entry: None)


def torn_queue_offset_restarts_the_queue(patch: pytest.MonkeyPatch) -> None:
    """A log of this store is read like a Java log, whose deletions are not recorded."""
    patch.setattr(recovery, "_restarts", lambda **settings: queue_numbering.NumberingRestarts.LIKELY)


def torn_queue_offset_stays_in_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        recovered_state, "withdraw_rejected", lambda files, log, refused, recovered: [str(item) for item in refused]
    )


def no_first_checkpoint(patch: pytest.MonkeyPatch) -> None:
    plain = message_store.MessageStore.write_checkpoint
    patch.setattr(
        message_store.MessageStore,
        "write_checkpoint",
        lambda self: plain(self) if self._checkpoints._file.latest.safe_offset is not None or self.puts else None,
    )


def last_record_of_a_queue_rejected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queue_numbering, "is_last_placed", lambda *args, **settings: False)


def queue_entries_visible_before_they_are_written(patch: pytest.MonkeyPatch) -> None:
    def step(notes: Any, up_to: int, queues: Any, creations_max: int | None = None) -> Any:
        taken = [note for note in notes if note.end <= up_to]
        for _ in taken:
            notes.popleft()
        for note in taken:
            if note.queue is not None:
                note.queue.commit_written(note.entries)
        for note in taken:
            if note.queue is not None:
                note.queue.max -= 1
                dispatch._write(note.queue, note.entries)
                note.queue.max += 1
        return [], taken[-1] if taken else None

    patch.setattr(dispatch, "dispatch_pending", step)


def unflushed_records_readable_by_queue(patch: pytest.MonkeyPatch) -> None:
    plain = dispatch.dispatch_pending
    patch.setattr(dispatch, "dispatch_pending", lambda notes, up_to, *more: plain(notes, 1 << 62, *more))


def unflushed_records_readable_by_offset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_replica.ReplicationSource, "end", property(lambda self: self._log.end))


def failed_write_not_cleared_and_counted(patch: pytest.MonkeyPatch) -> None:
    plain = commit_log.CommitLog.append

    def append(self: commit_log.CommitLog, data: bytes, store_ms: int) -> None:
        try:
            plain(self, data, store_ms)
        finally:
            self.end = self.end if self.last_ms == store_ms else self.end + len(data)

    patch.setattr(commit_log.CommitLog, "append", append)


def segment_filler_missing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commit_log, "filler", lambda room: b"")
    patch.setattr(record_scanner.RecordScanner, "_find_resume", lambda self, place: None)


def crc_computed_wrongly(patch: pytest.MonkeyPatch) -> None:
    """A recovery that computes the CRC wrongly discards good records."""

    class Other:
        @staticmethod
        def crc32(data: bytes) -> int:
            return zlib.crc32(data, 1)

    patch.setattr(implementation, "selected", implementation.PythonCore)
    patch.setattr(scanned_record, "zlib", Other)


def changes_not_flushed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(change_log.ChangeLog, "flush_blocking", lambda self: None)


def directory_of_new_change_files_not_flushed(patch: pytest.MonkeyPatch) -> None:
    plain = change_log.ChangeLog._plan_flush
    patch.setattr(change_log.ChangeLog, "_plan_flush", lambda self: plain(self)._replace(new_paths=frozenset()))


def changes_written_with_the_next_save(patch: pytest.MonkeyPatch) -> None:
    """Changes are written only with the next save of documents, as before the change log existed."""
    patch.setattr(change_log.ChangeLog, "append", lambda self, change: self.last_n)


def changes_removed_before_documents_are_saved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(change_log.ChangeLog, "_is_covered", lambda self, file: True)


def saved_changes_applied_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(saved_state.SavedState, "_holds", lambda self, name: -1)


def document_contents_not_recorded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(change_log.ChangeLog, "record_document", lambda self, name, content: None)


def deletions_do_not_cover_messages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deletions.Deletions, "covers", lambda self, found: False)


def deletions_recorded_after_removing_the_queues(patch: pytest.MonkeyPatch) -> None:
    plain = topic_deletion.TopicRemover.remove

    def remove(self: topic_deletion.TopicRemover, topic: str) -> None:
        self._store.delete_topic(topic)
        plain(self, topic)

    patch.setattr(topic_deletion.TopicRemover, "remove", remove)


def queues_of_deleted_topics_not_removed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovered_state, "remove_deleted_queues", lambda queues, deletions: None)


FAULTS: list[tuple[Plant, Check]] = [
    (changes_not_flushed, configuration_lost),
    (directory_of_new_change_files_not_flushed, configuration_lost),
    (changes_written_with_the_next_save, configuration_killed),
    (changes_removed_before_documents_are_saved, configuration_killed),
    (saved_changes_applied_again, promises.held_changes_are_not_applied_again),
    (document_contents_not_recorded, configuration_killed),
    (deletions_do_not_cover_messages, configuration_killed),
    (deletions_recorded_after_removing_the_queues, configuration_killed),
    (queues_of_deleted_topics_not_removed, configuration_lost),
    (no_fsync_of_the_log, power_lost),
    (no_fsync_of_full_segments, power_lost),
    (no_fsync_of_consume_queues, power_lost),
    (no_fsync_of_directories, power_lost),
    (no_fsync_of_any_directory, power_lost),
    (log_flush_without_directory_fsync, power_lost),
    (flushed_offset_advanced_before_the_fsync, promises.unflushed_is_unread),
    (flushed_offset_advanced_by_each_append, promises.unflushed_is_unread),
    (checkpoint_written_before_the_data, power_lost),
    (checkpoint_covers_unflushed_data, power_lost),
    (checkpoint_covers_collected_entries, runs_lost),
    (collected_entries_written_after_later_ones, runs_lost),
    (checkpoint_without_crc, promises.derived_write_torn_at_every_byte),
    (checkpoint_without_queue_file_count, promises.derived_files_lost),
    (no_abort_file, promises.damaged_in_the_middle),
    (failed_fsync_forgotten, fsync_failed),
    (failed_fsync_swallowed, fsync_failed),
    (failed_directory_fsync_swallowed, fsync_dir_failed),
    (failed_write_swallowed, write_failed),
    (body_crc_not_verified, flips),
    (record_offset_not_verified, promises.record_within_a_body),
    (truncation_does_not_clear_the_rest, power_lost),
    (log_not_truncated, power_lost),
    (truncated_log_not_flushed_at_start, promises.killed_then_power_lost),
    (consume_queues_not_truncated, power_lost),
    (last_queue_entry_not_verified, power_lost),
    (log_ends_at_a_corrupt_range, promises.damaged_in_the_middle),
    (corrupt_ranges_not_reported, promises.damaged_in_the_middle),
    (corrupt_range_overwritten_by_a_visible_record, promises.damaged_in_the_middle),
    (corrupt_range_overwritten_beyond_its_end, promises.damaged_in_the_middle),
    (torn_queue_offset_restarts_the_queue, promises.numbers_torn),
    (torn_queue_offset_stays_in_the_log, promises.numbers_torn),
    (no_first_checkpoint, promises.numbers_torn),
    (queue_offsets_accepted_without_check, flips),
    (lost_queue_offsets_reused, promises.damaged_in_the_middle),
    (last_record_of_a_queue_rejected, promises.damaged_in_the_middle),
    (queue_entries_visible_before_they_are_written, write_failed),
    (unflushed_records_readable_by_queue, promises.unflushed_is_unread),
    (unflushed_records_readable_by_offset, promises.unflushed_is_unread),
    (failed_write_not_cleared_and_counted, promises.full_disk),
    (segment_filler_missing, power_lost),
    (crc_computed_wrongly, power_lost),
]


@pytest.mark.parametrize(
    "check", [flips, promises.held_changes_are_not_applied_again], ids=lambda check: check.__name__
)
def test_checks_of_this_file_pass_without_a_fault(check: Check) -> None:
    check()


@pytest.mark.parametrize(("plant", "check"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
def test_each_planted_fault_is_detected(plant: Plant, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    # A promise that is not kept, or an error of the store where there has to be none; not some slip of the fault itself.
    with pytest.raises((AssertionError, ArianeError)):
        check()
