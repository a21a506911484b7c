"""Rebuilds the queue entries that a start misses, and withdraws records without an entry, so that later rebuilds agree.

    before   | 0 | 1 | 2 | 0 torn |                  acknowledged, acknowledged, acknowledged, not acknowledged
    after    | 0 | 1 | 2 | -      | 3 | 4 |          the next start reads 0 1 2 3 4, whatever it has to rebuild

A torn write can lose the queue offset or the queue id of a record and nothing else: no checksum covers them. If the record stayed,
every later rebuild would decide about it again, and read "0 1 2 0" as a topic that was deleted and created again. So it becomes a
record of a rolled-back transaction, which gets no entry in a queue or an index, here and in Java. Only the transaction bits of
SYSFLAG change: the record stays readable by its offset.
[no counterpart in Java, which drops a lower number and leaves a gap before a higher rejected]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ariane.model.message import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from ariane.protocol.records.record import I32, SYS_FLAG_AT
from ariane.store.delays.delivery_log import collect_deliveries
from ariane.store.disk.files import OpenFiles
from ariane.store.disk.segments import Segments
from ariane.store.log.deletions import Deletions
from ariane.store.queues.consume_queues import ConsumeQueues
from ariane.store.queues.dispatch import DispatchResult, RejectedRecord, dispatch_runs
from ariane.store.queues.queue_numbering import NumberingRestarts
from ariane.store.queues.recovery_plan import RecoveryPlan
from ariane.store.recovery.log_recovery import LogRecovery


def rebuild_queues(
    log: LogRecovery, queues: ConsumeQueues, *, delays_ms: Sequence[int], deletions: Deletions
) -> tuple[DispatchResult, Iterable[int]]:
    """Recover the log, and add the missing queue entries on the way.

    Returns:
        Rejected records and lost entries; the offsets of the delayed messages that the other records deliver (a rejected
        delivery is repeated, or its message would be lost).
    """
    delivered: dict[int, int] = {}
    runs = collect_deliveries(log.runs(), delivered)
    dispatched = dispatch_runs(runs, queues, delays_ms, log.corrupt_ranges, plan=log.plan, deletions=deletions)
    for rejected in dispatched.rejected:
        delivered.pop(rejected.record.offset, None)
    return dispatched, delivered.values()


def withdraw_rejected(
    files: OpenFiles, log: Segments, refused: Sequence[RejectedRecord], plan: RecoveryPlan
) -> list[str]:
    """Withdraw the rejected records that a torn write can have left, durably; return a line for each rejected record.

    Records below `plan.read_from` were flushed as they are, and those of a log that Java or a master wrote stay as they are.
    """
    notes: list[str] = []
    paths: set[str] = set()
    for rejected in refused:
        record = rejected.record
        if plan.restarts is not NumberingRestarts.NEVER or record.offset < plan.read_from:
            notes.append(str(rejected))
            continue
        sys_flag = record.sys_flag & ~TRANSACTION_MASK | TRANSACTION_ROLLBACK
        try:
            log.write(record.offset + SYS_FLAG_AT, I32.pack(sys_flag))
        except OSError as error:
            notes.append(f"{rejected}; it could not be withdrawn: {error}")
            continue
        paths.add(log.path(record.offset - record.offset % log.size))
        notes.append(f"{rejected}; it was withdrawn and stays readable by its offset")
    for path in sorted(paths):
        files.disk.fsync(files.get(path))
    return notes
