"""Recovers the commit log of a store directory, whatever state the last process left it in.

    the scan starts at                                                               from there on
    ------------------                                                               -------------
    checkpoint is ours           its safe offset                                     every record is checked (magic, own
    Java wrote last, clean       the end of the last record any queue points to      offset, lengths, CRC); an invalid one ends
    Java wrote last, unclean     the newest file whose first record is not newer     the log if no valid one follows, and the rest
                                 than the checkpoint                                 is zeroed; else it is a corrupt range, which
                                                                                     is reported, skipped and overwritten
                                                                                     (`corrupt_ranges`); missing queue entries
                                                                                     are dispatched again

Below the start of the scan, log and queues are on the disk, so nothing there is read. Queue entries that point at or after the
start are cut (lazily, when the queue is opened) and dispatched again. If queue files were lost, all queues are rebuilt from the
beginning of the log; the checkpoint says so until they are complete. If files of the log itself are missing, the start is refused
before anything is changed. Without `repairs_loss` it is also refused before bytes are zeroed or overwritten that show a loss.
[CommitLog.recoverNormally, recoverAbnormally, DefaultMessageStore.recover]
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator

from ariane.errors import RecordsLost, StoreCorrupt, StoreError
from ariane.kernels.scanned_record import NotARecord
from ariane.protocol.records.record import FILLER_MAGIC, MAGIC, SIZE_AND_MAGIC
from ariane.store.disk.files import OpenFiles
from ariane.store.disk.segments import Segments
from ariane.store.index.index_file import HashedKeys, ScannedKeys
from ariane.store.log.checkpoint import REBUILDING, REBUILDING_JAVA, Checkpoint
from ariane.store.log.corrupt_ranges import backup_directory, overwrite
from ariane.store.log.record_scanner import (
    CHUNK_BYTES,
    CorruptRange,
    RecordScanner,
    ScannedRun,
    find_valid_record,
    read_record,
)
from ariane.store.queues.consume_queue import ConsumeQueue
from ariane.store.queues.consume_queues import ConsumeQueues
from ariane.store.queues.queue_numbering import NumberingRestarts
from ariane.store.queues.recovery_plan import LoadedStore, RecoveryPlan, RecoveryReport
from ariane.store.types import StoreConfig

logger = logging.getLogger("ariane.store")

END_OF_LOG = (1 << 63) - 1
_ZEROS = bytes(SIZE_AND_MAGIC.size)  # size and magic, where a record or a filler would have them
_LOSS_FIX = (
    "Set storePathCommitLog to the directory that contains the log, mount its disk, or put the files back. To start"
    " without those messages, start the broker once with --accept-empty-log"
)
SCANNED_KEYS_MAX = 32 << 20  # bytes of index keys that a start has in memory; those of later records are read again
CLOCK_SKEW_MAX_MS = 86_400_000  # clocks are hardly ever set back by more than a day; a flipped bit makes years


def refuse_loss(loaded: LoadedStore, config: StoreConfig) -> list[str]:
    """Check that the log has all files it should have, before the start changes anything, and return lines to report.

    Raises:
        StoreError: the log, or its end, is missing, and the loss is not accepted.
        StoreCorrupt: a file between others is missing.
        RecordsLost: the loss is accepted, or is that of a crash, but must not be repaired.
    """
    log, gap, clean, checkpoint = loaded.log, loaded.gap, loaded.clean, loaded.checkpoint.latest
    # A crash can lose a file that no flush had reached; any other missing file is a loss.
    if gap is not None and (clean or checkpoint.safe_offset is None or gap < checkpoint.safe_offset):
        raise StoreCorrupt(
            log.path(gap), 0, "this commit log file is missing between others: put it back, or move the later ones away"
        )
    loss = _loss(log, gap, loaded.queues, checkpoint, clean=clean)
    if loss and not config.accept_empty_log:
        raise StoreError(f"{loss}. {_LOSS_FIX}")
    if not config.repairs_loss and (loss or gap is not None):
        raise RecordsLost(loss or f"{log.path(gap or 0)} is missing, and later files are not")
    return [f"{loss}. The loss was accepted"] if loss else []


def plan_recovery(loaded: LoadedStore, config: StoreConfig) -> RecoveryPlan:
    """Decide from where the log is read, remove what is unusable, and let the queues be opened.

    Call `refuse_loss` first: this function removes files.
    """
    log, queues, checkpoint = loaded.log, loaded.queues, loaded.checkpoint.latest
    notes = [f"{reason}: rebuilding the queue from the commit log" for reason in queues.rebuild_reasons]
    if loaded.gap is not None:
        notes.append(_drop_after_gap(log, loaded.gap))
    if checkpoint.log_start is not None and log.start > checkpoint.log_start and log.bases:
        notes.append(
            f"{log.directory} begins at {log.start}, the last run recorded {checkpoint.log_start}: files at its beginning"
            f" were not removed by the broker; their messages are lost unless the files are put back"
        )
    if _is_blank(log, log.stop):
        return _plan_empty(loaded, notes)

    read_from = _start(log, queues, checkpoint, clean=loaded.clean)
    is_ours = checkpoint.safe_offset is not None
    is_java = not is_ours or checkpoint.queue_files == REBUILDING_JAVA
    rebuilds_all = _prepare_rebuild(loaded, read_from, notes, is_java=is_java)
    queues.allow_opening(read_from, log.read, trusted=is_ours)
    if not is_ours:
        # Opening clears entries that Java left after the end of a queue, before a checkpoint of ours vouches for them.
        for queue in queues.all():
            _open_queue(queues, queue)
    return RecoveryPlan(
        read_from=read_from,
        dispatch_from=log.start if rebuilds_all else read_from,
        # On a slave the log ends at the first corrupt range: its master sends the bytes again.
        min_store_ms=None if config.follower else _min_store_ms(log, read_from, checkpoint),
        is_rebuild=rebuilds_all or not is_ours,
        restarts=_restarts(is_java=is_java, is_slave=config.follower),
        notes=notes,
    )


def _plan_empty(loaded: LoadedStore, notes: list[str]) -> RecoveryPlan:
    """Remove all queues of a log without a record."""
    log, queues = loaded.log, loaded.queues
    queues.drop_unusable()
    removed = queues.all()
    if removed:
        queues.remove(removed)
        notes.append(f"The commit log is empty: removed {len(removed)} consume queues")
    queues.allow_opening(log.start, log.read)
    return RecoveryPlan(log.start, log.start, None, True, NumberingRestarts.LIKELY, notes, is_empty=True)


class LogRecovery:
    """One pass over the log, which finds its end and reads what the queues lack: take all `runs`, then `finish`."""

    def __init__(self, loaded: LoadedStore, config: StoreConfig, plan: RecoveryPlan) -> None:
        self.plan = plan  # where the pass begins
        # Corrupt ranges, those below `read_from` first; complete once all runs were taken.
        self.corrupt_ranges: list[CorruptRange] = []
        # Keys for the index, until they take SCANNED_KEYS_MAX bytes.
        self.scanned_keys: list[ScannedKeys] = []
        self._key_bytes = 0  # size of the scanned keys
        self._loaded = loaded  # the files
        self._repairs_loss = config.repairs_loss
        self._damaged_directory = backup_directory(config.root)  # receives former bytes of corrupt ranges
        # Reads from `read_from` on; its end is that of the log.
        self._scanner = RecordScanner(
            loaded.log,
            plan.read_from,
            plan.read_from if plan.is_empty else END_OF_LOG,
            check_crc=config.check_crc_on_recover,
            min_store_ms=plan.min_store_ms,
            hash_keys=config.index,
        )
        self._newest_ms = 0  # store time of the last record
        self._overwritten: list[str] = []  # a line for each corrupt range that was found
        self._commits = array("q")  # see `RecoveryReport.commits`

    def runs(self) -> Iterator[ScannedRun]:
        """Yield the records whose queue entries must be dispatched again, and overwrite corrupt ranges as they are found.

        Everything below `read_from` was written and checked by former starts. From there on every record is checked in full.
        """
        plan, log, scanner = self.plan, self._loaded.log, self._scanner
        if plan.dispatch_from < plan.read_from:
            older = RecordScanner(
                log, plan.dispatch_from, plan.read_from, check_crc=False, min_store_ms=0, all_written=True
            )
            yield from older.runs()
            self.corrupt_ranges += older.corrupt_ranges
        for run in scanner.runs():
            self._newest_ms = run.scanned.times.last_ms
            self._commits.extend(run.scanned.commits)
            for corrupt in scanner.corrupt_ranges[len(self._overwritten) :]:
                self._check_loss(str(corrupt))
                store_ms = max(scanner.min_store_ms, 1)
                self._overwritten.append(overwrite(self._loaded.files, log, corrupt, store_ms, self._damaged_directory))
            self._add_keys(run)
            yield run
        self.corrupt_ranges += scanner.corrupt_ranges

    def _check_loss(self, loss: str) -> None:
        """Refuse to repair the log if that hides the loss of complete records from the next start."""
        if not self._repairs_loss:
            raise RecordsLost(loss)

    def _add_keys(self, run: ScannedRun) -> None:
        if self._scanner.hash_keys:
            keys = HashedKeys(run.scanned.keys, run.scanned.key_times)
            self.scanned_keys.append(ScannedKeys(run.offset, run.end, keys))
            self._key_bytes += len(keys.keys)
            self._scanner.hash_keys = self._key_bytes < SCANNED_KEYS_MAX

    def finish(self) -> RecoveryReport:
        """Make the end of the log its end on the disk, too."""
        loaded, plan, scanner = self._loaded, self.plan, self._scanner
        notes, cut_bytes = list(plan.notes), 0
        if not plan.is_empty:  # what is left of a log without a record does not count
            cut_bytes = _data_size(loaded.log, scanner.end)
            remainder = f"{cut_bytes} bytes at {scanner.end}: no valid record follows there ({scanner.stop_reason})"
            if cut_bytes > _torn_size(loaded.log, scanner.end):
                self._check_loss(remainder)
            if cut_bytes:
                notes.append(f"Removed {remainder}")
        if loaded.log.bases:
            _cut(loaded.files, loaded.log, plan.read_from, scanner.end)
        checkpoint_ms = 0 if plan.is_empty else loaded.checkpoint.latest.physic_ms
        return RecoveryReport(
            clean=loaded.clean,
            read_from=plan.read_from,
            dispatch_from=plan.dispatch_from,
            end=scanner.end,
            last_ms=max(checkpoint_ms, scanner.min_store_ms, self._newest_ms),
            stop_reason="the log is empty" if plan.is_empty else scanner.stop_reason,
            cut_bytes=cut_bytes,
            notes=(*notes, *self._overwritten),
            corrupt_ranges=tuple(scanner.corrupt_ranges),
            commits=self._commits,
        )


def _torn_size(log: Segments, end: int) -> int:
    """Return how many bytes the first part of a record can have at `end`, where the log ends. A kill leaves no more."""
    head = log.read(end, SIZE_AND_MAGIC.size)
    size, magic = SIZE_AND_MAGIC.unpack(head.ljust(SIZE_AND_MAGIC.size, b"\0"))
    return size if magic in (MAGIC, FILLER_MAGIC) else len(head.rstrip(b"\0")) if size > 0 else 0


def _prepare_rebuild(loaded: LoadedStore, read_from: int, notes: list[str], *, is_java: bool) -> bool:
    """Decide whether all queues must be rebuilt, and if so make the checkpoint say it before files are removed."""
    queues, checkpoint = loaded.queues, loaded.checkpoint.latest
    is_ours = checkpoint.safe_offset is not None
    missing = checkpoint.queue_files - queues.file_count() if is_ours else 0
    if checkpoint.queue_files >= REBUILDING:
        notes.append("The last start did not finish: rebuilding all consume queues from the commit log")
    elif missing > 0:
        notes.append(f"{missing} consume queue files are missing: rebuilding all consume queues from the commit log")
    # After the last topic was deleted the checkpoint expects no files; otherwise no files means that they were lost.
    has_lost_files = missing > 0 or (not queues.file_count() and not (is_ours and checkpoint.queue_files == 0))
    rebuilds_all = bool(queues.rebuild_reasons) or has_lost_files
    if rebuilds_all:
        # Until the next checkpoint the queues may look complete and lack entries.
        rebuilding = REBUILDING_JAVA if is_java else REBUILDING
        loaded.checkpoint.lower(checkpoint._replace(logics_ms=0, safe_offset=read_from, queue_files=rebuilding))
        queues.drop_unusable()
    if missing > 0:
        queues.remove(queues.all())
    return rebuilds_all


def require_rebuild(loaded: LoadedStore, config: StoreConfig) -> None:
    """Make the next recovery rebuild all queues: some lack entries of records that are in the log.

    Raises:
        RecordsLost: the store must not be repaired by this start.
    """
    loss = f"entries of the queues in {config.root}/consumequeue are missing"
    logger.warning("Flushed %s: rebuilding all of them from the commit log", loss)
    loaded.checkpoint.lower(loaded.checkpoint.latest._replace(logics_ms=0, queue_files=REBUILDING))
    if not config.repairs_loss:
        raise RecordsLost(loss)


def _restarts(*, is_java: bool, is_slave: bool) -> NumberingRestarts:
    if is_java:
        return NumberingRestarts.LIKELY
    return NumberingRestarts.CONFIRMED if is_slave else NumberingRestarts.NEVER


def merge_report(recovered: RecoveryReport, corrupt: list[CorruptRange], notes: list[str]) -> RecoveryReport:
    """Return `recovered` with the results of the steps after the log's recovery, and log every note.

    Args:
        corrupt: corrupt ranges that the rebuild of the queues found.
        notes: repairs of queues, delays and index.
    """
    older = [f"{corrupt_range}: skipped" for corrupt_range in corrupt if corrupt_range not in recovered.corrupt_ranges]
    report = recovered._replace(
        notes=(*recovered.notes, *older, *notes), corrupt_ranges=tuple(sorted({*corrupt, *recovered.corrupt_ranges}))
    )
    for note in report.notes:
        logger.warning("%s", note)
    return report


def clamp_last_timestamp(last_ms: int, now_ms: int) -> int:
    """Return the lower bound for new store times: `last_ms`, or the clock if that is more than a day ahead (assumed corrupt)."""
    if last_ms <= now_ms + CLOCK_SKEW_MAX_MS:
        return last_ms
    logger.warning("Ignoring the store time of the last record: it is %d ms ahead of the clock", last_ms - now_ms)
    return now_ms


def _min_store_ms(log: Segments, read_from: int, checkpoint: Checkpoint) -> int:
    """Return the store time of the record before `read_from`, or 0 if it is unknown: no later record can be older."""
    return min(checkpoint.physic_ms, checkpoint.logics_ms) if checkpoint.safe_offset == read_from > log.start else 0


def _loss(log: Segments, gap: int | None, queues: ConsumeQueues, checkpoint: Checkpoint, *, clean: bool) -> str:
    """Return a sentence about messages that were on the disk and are missing; "" if none is known to be missing."""
    safe = flushed = checkpoint.safe_offset
    if flushed is None:
        # Java wrote last. Its checkpoint has no offset of what was flushed before a crash; after an orderly stop all was.
        flushed = queues.end_by_entries() if clean or checkpoint.physic_ms > 0 else 0
    stop = log.stop if gap is None else gap
    if _is_blank(log, stop):
        empty = f"{log.directory} contains no message, but this store had a commit log up to {flushed}"
        return empty if flushed > log.start else ""
    if flushed > stop and (safe is not None or clean):
        return (
            f"{log.directory} ends at {stop}, but the log was on the disk up to {flushed}: files at its end are missing"
        )
    return ""


def _is_blank(log: Segments, stop: int) -> bool:
    """Return whether the log contains no record below `stop`."""
    bases = [base for base in log.bases if base < stop]
    if any(log.read(base, len(_ZEROS)).strip(b"\0") for base in bases):
        return False
    return all(find_valid_record(log, base, base + log.size, 0) is None for base in bases)


def _start(log: Segments, queues: ConsumeQueues, checkpoint: Checkpoint, *, clean: bool) -> int:
    safe_offset = checkpoint.safe_offset
    if safe_offset is not None and log.start <= safe_offset <= log.stop:
        return safe_offset
    if (safe_offset or 0) > log.stop or (clean and queues.end_by_entries() > log.stop):
        return log.bases[-1]  # the files after it are lost
    if clean and queues.file_count():
        return _end_of_queues(log, queues)
    return _file_before(log, checkpoint.min_ms())


def _end_of_queues(log: Segments, queues: ConsumeQueues) -> int:
    """Return the end of the last record that a queue points to: after an orderly stop every record has its entry."""
    queues.allow_opening(END_OF_LOG, log.read)
    return max(log.start, *(_open_queue(queues, queue).last_end for queue in queues.all()))


def _open_queue(queues: ConsumeQueues, queue: ConsumeQueue) -> ConsumeQueue:
    return queues.get_opened(queue.topic, queue.queue_id) or queue


def _file_before(log: Segments, min_ms: int) -> int:
    """Return the start of the newest file whose first record was stored at or before `min_ms`; else the first file."""
    for base in reversed(log.bases):
        try:
            first = read_record(log, base)[0]
        except NotARecord:
            continue
        if 0 < first.store_ms <= min_ms:
            return base
    return log.start


def _drop_after_gap(log: Segments, gap: int) -> str:
    """Remove the files after one that a crash lost: no checkpoint covers them. Return a line to report."""
    dropped = [base for base in log.bases if base > gap]
    for base in reversed(dropped):
        log.remove_file(base)
    return f"Removed {len(dropped)} commit log files after {gap}: the one before them never reached the disk"


def _data_size(log: Segments, end: int) -> int:
    """Return how many bytes the log has from `end` on, without the zeros at both ends of what is read at once."""
    remainder = 0
    position: int | None = end
    while position is not None and log.has(position):
        following = position - position % log.size + log.size
        position = log.find_data(position)
        if position is None:
            position = following
            continue
        data = log.read(position, CHUNK_BYTES)
        remainder += len(data.rstrip(b"\0")) - (len(data) - len(data.lstrip(b"\0")) if data.strip(b"\0") else 0)
        position += len(data)
    return remainder


def _cut(files: OpenFiles, log: Segments, read_from: int, end: int) -> None:
    """Zero the log from `end` on, and make log and directory durable."""
    log.truncate(end)
    for base in log.bases:
        if base + log.size > read_from:
            files.disk.fsync(files.get(log.path(base)))
    files.disk.fsync_dir(log.directory)
