"""Bring a store directory from whatever the last process left to a state that can be written again.

    where the reading starts                                                         from there on
    ------------------------                                                         -------------
    checkpoint is ours           its safe offset                                     every record is checked (magic, own
    Java wrote last, clean       the end of the last record any queue points to      offset, lengths, CRC); a bad one ends the log
    Java wrote last, unclean     the newest file whose first record is not newer     when no good one follows, and what lies there
                                 than the checkpoint                                 is zeroed; else it is a hole: told, passed
                                                                                     over and closed (`holes`);
                                                                                     missing queue entries are made again

Below the start everything is on the disk in both forms, so nothing there needs to be read. Queue entries that point at or behind
the start are cut (lazily, when the queue is opened) and derived again. When files of queues were lost, all queues are built
again from the beginning of the log; the checkpoint says so until they are complete. When files of the log itself are missing,
the start is refused before anything is changed.
[CommitLog.recoverNormally, recoverAbnormally, DefaultMessageStore.recover]
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ariane.errors import StoreCorrupt, StoreError
from ariane.protocol.record import SIZE_AND_MAGIC
from ariane.store.checkpoint import REBUILDING, REBUILDING_JAVA, Checkpoint
from ariane.store.consume_queue import ConsumeQueue
from ariane.store.consume_queues import ConsumeQueues
from ariane.store.corrupt_ranges import overwrite
from ariane.store.files import OpenFiles
from ariane.store.queue_numbering import NumberingRestarts
from ariane.store.record_scanner import (
    CHUNK_BYTES,
    CorruptRange,
    NotARecord,
    RecordScanner,
    ScannedRecord,
    find_valid_record,
    read_record,
)
from ariane.store.segments import Segments

logger = logging.getLogger("ariane.store")

END_OF_LOG = (1 << 63) - 1
_ZEROS = bytes(SIZE_AND_MAGIC.size)  # where a record or a filler would have its size and magic
_LOSS_FIX = (
    "Set storePathCommitLog to the directory that holds the log, mount its disk, or put the files back. To start"
    " without those messages, start the broker once with --accept-empty-log"
)
CLOCK_SKEW_MAX_MS = 86_400_000  # a clock is hardly ever put back by more than a day; a flipped bit makes years


class RecoveryReport(NamedTuple):
    """What a start found and did, for the log of the program and for tests."""

    clean: bool  # the last process ended in order
    read_from: int  # the log was checked from here
    dispatch_from: int  # queue entries were derived again from here
    end: int
    last_ms: int  # store time of the last record
    stop_reason: str  # why the record at `end` is none
    cut_bytes: int  # written bytes behind `end` that were thrown away
    notes: tuple[str, ...] = ()  # anything else worth a line
    corrupt_ranges: tuple[CorruptRange, ...] = ()  # what was passed over
    is_rebuild: bool = True  # queues may have been lost, so the first record of one may have any number
    restarts: NumberingRestarts = (
        NumberingRestarts.LIKELY
    )  # of topics that were deleted and created again, from `read_from` on

    def restarts_at(self, offset: int) -> NumberingRestarts:
        """Return which lower numbers restart a queue at this place of the log.

        Below `read_from` nothing is torn: it was flushed, and torn records were withdrawn. But Java may have written it.
        """
        return self.restarts if offset >= self.read_from else NumberingRestarts.LIKELY


def refuse_loss(
    log: Segments,
    gap: int | None,
    queues: ConsumeQueues,
    checkpoint: Checkpoint,
    *,
    clean: bool,
    accept_loss: bool,
) -> list[str]:
    """Check that the log has all files it should have, before the start changes anything. Return what is worth a line.

    Args:
        gap: offset of a commit log file that is missing between others.
        accept_loss: start although messages that were on the disk are not there any more.

    Raises:
        StoreError: the log, or its end, is missing.
        StoreCorrupt: a file between others is missing.
    """
    # A crash can take a file that no flush had reached; anything else is a loss.
    if gap is not None and (clean or checkpoint.safe_offset is None or gap < checkpoint.safe_offset):
        raise StoreCorrupt(
            log.path(gap), 0, "this commit log file is missing between others: put it back, or move the later ones away"
        )
    loss = _loss(log, gap, queues, checkpoint, clean=clean)
    if loss and not accept_loss:
        raise StoreError(f"{loss}. {_LOSS_FIX}")
    return [f"{loss}. The loss was accepted"] if loss else []


def recover_log(
    files: OpenFiles,
    log: Segments,
    gap: int | None,
    queues: ConsumeQueues,
    checkpoint: Checkpoint,
    *,
    clean: bool,
    check_crc: bool,
    skip_corrupt: bool,
    damaged: str,
    lower: Callable[[Checkpoint], None],
) -> RecoveryReport:
    """Find the end of the log, make it the end on the disk too, and let the queues be opened. `refuse_loss` comes before.

    Args:
        gap: offset of a commit log file that is missing between others.
        pass_over: skip damage below good records; else the log ends there (a slave's: its master sends the bytes again).
        damaged: directory for the bytes of corrupt ranges.
        lower: makes a checkpoint durable that vouches for less.
    """
    notes = [f"{fault}: the queue is built again from the commit log" for fault in queues.rebuild_reasons]
    if gap is not None:
        notes.append(_drop_after_gap(log, gap))
    if checkpoint.log_start is not None and log.start > checkpoint.log_start and log.bases:
        notes.append(
            f"{log.directory} begins at {log.start}, the last run recorded {checkpoint.log_start}: files at its beginning"
            f" were not removed by the broker; their messages are lost unless the files are put back"
        )
    if _is_blank(log, log.stop):
        queues.drop_unusable()
        removed = queues.all()
        if removed:
            queues.remove(removed)
            notes.append(f"the commit log is empty: {len(removed)} consume queues were removed")
        if log.bases:
            _cut(files, log, log.start, log.start)
        queues.allow_opening(log.start, log.read)
        return RecoveryReport(clean, log.start, log.start, log.start, 0, "the log is empty", 0, tuple(notes))
    read_from = _start(log, queues, checkpoint, clean=clean)
    ours = checkpoint.safe_offset is not None
    missing = checkpoint.queue_files - queues.file_count() if ours else 0
    is_java = not ours or checkpoint.queue_files == REBUILDING_JAVA
    if checkpoint.queue_files >= REBUILDING:
        notes.append("the last start did not end: all consume queues are made anew from the commit log")
    elif missing > 0:
        notes.append(f"{missing} consume queue files are missing: all are made anew from the commit log")
    # No files are what the checkpoint expects after the last topic was deleted; else they are lost and must be rebuilt.
    has_lost_files = missing > 0 or (not queues.file_count() and not (ours and checkpoint.queue_files == 0))
    all_again = bool(queues.rebuild_reasons) or has_lost_files
    if all_again:
        # Until the next checkpoint, the queues may look complete and lack entries.
        rebuilding = REBUILDING_JAVA if is_java else REBUILDING
        lower(checkpoint._replace(logics_ms=0, safe_offset=read_from, queue_files=rebuilding))
        queues.drop_unusable()
    if missing > 0:
        queues.remove(queues.all())
    derive_from = log.start if all_again else read_from
    floor_ms = _floor_ms(log, read_from, checkpoint) if skip_corrupt else None
    walk = RecordScanner(log, read_from, END_OF_LOG, check_crc=check_crc, min_store_ms=floor_ms)
    holes: list[str] = []
    newest_ms = 0
    for found in walk:
        newest_ms = found.store_ms
        if len(walk.corrupt_ranges) > len(holes):
            fresh = walk.corrupt_ranges[len(holes) :]
            holes += [overwrite(files, log, hole, max(walk.min_store_ms, 1), damaged) for hole in fresh]
    last_ms = max(checkpoint.physic_ms, walk.min_store_ms, newest_ms)
    cut_bytes = _cut(files, log, read_from, walk.end)
    if cut_bytes:
        notes.append(
            f"{cut_bytes} bytes at {walk.end} were thrown away: no good record follows there ({walk.stop_reason})"
        )
    queues.allow_opening(read_from, log.read, trusted=ours)
    if (
        not ours
    ):  # entries that Java left behind the end of a queue are cleared before a checkpoint of ours vouches for them
        for queue in queues.all():
            _opened(queues, queue)
    return RecoveryReport(
        clean,
        read_from,
        derive_from,
        walk.end,
        last_ms,
        walk.stop_reason,
        cut_bytes,
        (*notes, *holes),
        tuple(walk.corrupt_ranges),
        all_again or not ours,
        _restarts(is_java=is_java, is_slave=not skip_corrupt),
    )


def _restarts(*, is_java: bool, is_slave: bool) -> NumberingRestarts:
    if is_java:
        return NumberingRestarts.LIKELY
    return NumberingRestarts.CONFIRMED if is_slave else NumberingRestarts.NEVER


def iter_records_to_dispatch(
    log: Segments, recovered: RecoveryReport, holes: list[CorruptRange]
) -> Iterator[ScannedRecord]:
    """The records whose queue entries have to be derived; what is passed over below what was recovered is put into `holes`.

    Everything below the end is known to have been written, and what the recovery walked over was checked in full."""
    if recovered.dispatch_from < recovered.read_from:
        walk = RecordScanner(
            log, recovered.dispatch_from, recovered.read_from, check_crc=False, min_store_ms=0, all_written=True
        )
        yield from walk
        holes += walk.corrupt_ranges
    yield from RecordScanner(log, recovered.read_from, recovered.end, check_crc=False, min_store_ms=0, all_written=True)


def merge_report(recovered: RecoveryReport, holes: list[CorruptRange], notes: list[str]) -> RecoveryReport:
    """With all that was met after the log itself was recovered; everything worth a line is logged."""
    older = [f"{hole}: passed over" for hole in holes if hole not in recovered.corrupt_ranges]
    made = recovered._replace(
        notes=(*recovered.notes, *older, *notes), corrupt_ranges=tuple(sorted({*holes, *recovered.corrupt_ranges}))
    )
    for note in made.notes:
        logger.warning("%s", note)
    return made


def clamp_last_timestamp(last_ms: int, now_ms: int) -> int:
    """The store time that new records may not go behind, unless it is so far ahead that it must be damaged."""
    if last_ms <= now_ms + CLOCK_SKEW_MAX_MS:
        return last_ms
    logger.warning("the last store time is %d ms ahead of the clock: it is not believed", last_ms - now_ms)
    return now_ms


def _floor_ms(log: Segments, read_from: int, checkpoint: Checkpoint) -> int:
    """The store time of the record before `read_from`, as far as it is known: no record behind can be older."""
    return min(checkpoint.physic_ms, checkpoint.logics_ms) if checkpoint.safe_offset == read_from > log.start else 0


def _loss(log: Segments, gap: int | None, queues: ConsumeQueues, checkpoint: Checkpoint, *, clean: bool) -> str:
    """Return which messages, once on the disk, are not in the log any more; "" if none is known to be missing."""
    safe = flushed = checkpoint.safe_offset
    if flushed is None:
        # Java wrote last. What it had flushed before a crash is not known by offset; after an orderly stop all was.
        flushed = queues.end_by_entries() if clean or checkpoint.physic_ms > 0 else 0
    stop = log.stop if gap is None else gap
    if _is_blank(log, stop):
        empty = f"{log.directory} holds no message, but this store had a commit log up to {flushed}"
        return empty if flushed > log.start else ""
    if flushed > stop and (safe is not None or clean):
        return (
            f"{log.directory} ends at {stop}, but the log was on the disk up to {flushed}: files at its end are missing"
        )
    return ""


def _is_blank(log: Segments, stop: int) -> bool:
    """Whether the log holds no record below `stop`."""
    bases = [base for base in log.bases if base < stop]
    if any(log.read(base, len(_ZEROS)).strip(b"\0") for base in bases):
        return False
    return all(find_valid_record(log, base, base + log.size, 0) is None for base in bases)


def _start(log: Segments, queues: ConsumeQueues, checkpoint: Checkpoint, *, clean: bool) -> int:
    safe_offset = checkpoint.safe_offset
    if safe_offset is not None and log.start <= safe_offset <= log.stop:
        return safe_offset
    if (safe_offset or 0) > log.stop or (clean and queues.end_by_entries() > log.stop):
        return log.bases[-1]  # the files behind it are lost
    if clean and queues.file_count():
        return _end_of_queues(log, queues)
    return _file_before(log, checkpoint.min_ms())


def _end_of_queues(log: Segments, queues: ConsumeQueues) -> int:
    """The end of the last record that a queue points to. Whoever stopped in order had derived all there was."""
    queues.allow_opening(END_OF_LOG, log.read)
    return max(log.start, *(_opened(queues, queue).last_end for queue in queues.all()))


def _opened(queues: ConsumeQueues, queue: ConsumeQueue) -> ConsumeQueue:
    return queues.get_opened(queue.topic, queue.queue_id) or queue


def _file_before(log: Segments, min_ms: int) -> int:
    """The start of the newest file whose first record was stored at or before `min_ms`; else the first file."""
    for base in reversed(log.bases):
        try:
            first = read_record(log, base)[0]
        except NotARecord:
            continue
        if 0 < first.store_ms <= min_ms:
            return base
    return log.start


def _drop_after_gap(log: Segments, gap: int) -> str:
    """Remove the files after one that a crash took: no checkpoint covers them."""
    dropped = [base for base in log.bases if base > gap]
    for base in reversed(dropped):
        log.remove_file(base)
    return f"{len(dropped)} commit log files behind {gap} were removed: the one before them never reached the disk"


def _cut(files: OpenFiles, log: Segments, read_from: int, end: int) -> int:
    """Zero what lies behind `end` and make log and directory durable as they are now; how many bytes were not zero."""
    rest = 0
    at: int | None = end
    while at is not None and log.has(at):
        following = at - at % log.size + log.size
        at = log.find_data(at)
        if at is None:
            at = following
            continue
        data = log.read(at, CHUNK_BYTES)
        rest += len(data.rstrip(b"\0")) - (len(data) - len(data.lstrip(b"\0")) if data.strip(b"\0") else 0)
        at += len(data)
    log.truncate(end)
    for base in log.bases:
        if base + log.size > read_from:
            files.disk.fsync(files.get(log.path(base)))
    files.disk.fsync_dir(log.directory)
    return rest
