"""Opens the parts of a store in the order that recovery needs, and returns them as one value.

    list files -> refuse a loss -> mark as running -> plan the recovery -> remove deleted queues
    -> recover the log and the queue entries in one pass -> withdraw rejected records -> delayed messages -> key index
    -> `RecoveredState`

No record and no queue entry is removed before `refuse_loss` has passed. `MessageStore` runs what this module opens.
[DefaultMessageStore.load, recover]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from ariane.store.delays.delayed import DelayedMessages
from ariane.store.disk.file_loading import load_log
from ariane.store.disk.files import OpenFiles
from ariane.store.index.index_builder import IndexBuilder, open_index
from ariane.store.log.checkpoint import CheckpointFile
from ariane.store.log.commit_log import CommitLog
from ariane.store.log.deletions import Deletions
from ariane.store.queues.consume_queues import ConsumeQueues
from ariane.store.queues.recovery_plan import LoadedStore, RecoveryReport
from ariane.store.queues.topic_removal import remove_deleted_queues
from ariane.store.recovery import log_recovery as recovery
from ariane.store.recovery.queue_rebuild import rebuild_queues, withdraw_rejected
from ariane.store.recovery.store_directory import is_running_or_crashed, mark_running
from ariane.store.types import StoreConfig


class RecoveredState(msgspec.Struct, frozen=True, kw_only=True):
    """An open store directory: the log, what is derived from it, and how the recovery went."""

    files: OpenFiles
    checkpoint: CheckpointFile
    """How much of the log and the derived files is durable."""
    log: CommitLog
    queues: ConsumeQueues
    """Consume queues with an entry for each record of the log."""
    index: IndexBuilder
    """The key index; one without files if the store has none."""
    delayed: DelayedMessages
    deletions: Deletions
    """Deleted topics, whose records get no entry."""
    report: RecoveryReport
    """What the recovery found and repaired."""


def recover_store(
    config: StoreConfig,
    files: OpenFiles,
    now_ms: Callable[[], int],
    delay_positions: Mapping[int, int],
    deletions: Deletions,
) -> RecoveredState:
    """Recover the store in a directory that this process has locked.

    Args:
        delay_positions: positions by delay level from Java's delayOffset.json.

    Raises:
        StoreError: files of the log are missing.
        RecordsLost: complete records or their entries are missing, and `config` does not allow to repair the store.
        StoreCorrupt: a file cannot be used as it is.
        ConfigError: the files were written with other sizes.
    """
    loaded = _load(config, files)
    accepted = recovery.refuse_loss(loaded, config)
    mark_running(files, config.root)
    plan = recovery.plan_recovery(loaded, config)
    # Before the rebuild, which would otherwise number new records after those of a deleted topic.
    remove_deleted_queues(loaded.queues, deletions)
    recovering = recovery.LogRecovery(loaded, config, plan)
    dispatched, delivered = rebuild_queues(recovering, loaded.queues, delays_ms=config.delays_ms, deletions=deletions)
    if dispatched.has_jump and not plan.is_rebuild and not recovering.corrupt_ranges:
        # A file system that failed lacks entries below the checkpoint. Other records would get their numbers.
        recovery.require_rebuild(loaded, config)
        return recover_store(config, files, now_ms, delay_positions, deletions)
    report = recovering.finish()
    withdrawn = withdraw_rejected(files, loaded.log, dispatched.rejected, plan)
    log = CommitLog(files, loaded.log, report.end, recovery.clamp_last_timestamp(report.last_ms, now_ms()))
    delayed = DelayedMessages(files, config.root, loaded.queues, loaded.log, config.delays_ms)
    repaired = delayed.load(delivered, log.end, delay_positions)
    # A withdrawn record is not indexed.
    scanned_keys = recovering.scanned_keys if not dispatched.rejected else ()
    index = open_index(loaded, config, log, now_ms, deletions, scanned_keys)
    notes = [*accepted, *withdrawn, *dispatched.lost_entries, *repaired, *index.notes]
    return RecoveredState(
        files=files,
        checkpoint=loaded.checkpoint,
        log=log,
        queues=loaded.queues,
        index=index,
        delayed=delayed,
        deletions=deletions,
        report=recovery.merge_report(report, recovering.corrupt_ranges, notes),
    )


def _load(config: StoreConfig, files: OpenFiles) -> LoadedStore:
    """List the files of the log and the queues, and read the checkpoint."""
    root = config.root
    clean = not is_running_or_crashed(files.disk, root)
    checkpoint = CheckpointFile(files, f"{root}/checkpoint")
    flushed = checkpoint.latest.safe_offset
    log = load_log(files, config.log_directory, config.commit_log_size, clean=clean, flushed=flushed)
    queues = ConsumeQueues(files, f"{root}/consumequeue", config.consume_queue_size, counted=flushed is not None)
    return LoadedStore(files, log.segments, log.find_gap(), queues, checkpoint, clean)
