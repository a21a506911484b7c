"""Removes old files, and rejects writes while the disk is nearly full. [CleanCommitLogService]

The rules and removals are in `store.retention`; this module adds their clock, their pauses, and the worker thread that unlinks
files of a gigabyte while the event loop goes on. Reads are served however full the disk is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import datetime

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.delivery.delayed_delivery import move_timers
from ariane.broker.lifecycle.flusher import Flusher
from ariane.errors import StoreError, StoreFull
from ariane.store.disk.files import Disk
from ariane.store.message_store import MessageStore
from ariane.store.upkeep.retention import Removal, RetentionRule, count_removable, removal_trigger, used_percent

log = logging.getLogger("ariane.broker.file_cleaner")

FIRST_RUN_S = 60.0
FIRST_CHECK_S = 1.0
CHECK_INTERVAL_S = 10.0  # delay until writes are rejected on a full disk, and accepted again
MANUAL_RUNS = 20  # runs after one request for cleaning, as in Java
MOVED_TIMEOUT_S = 30.0
ROUNDS_MAX = 100  # rounds of removed queue files in one run
HOUR_MS = 3_600_000
USED_MAX_LIMITS = (10, 95)  # diskMaxUsedSpaceRatio is limited to these, as in Java


class FileCleaner:
    """Removes files and watches the disk.

    Call `run` every cleanResourceInterval and `check_disk_space` every CHECK_INTERVAL_S.

    Args:
        on_stored: Called after timers were stored again.
        reject_writes: Whether to reject writes on a full disk; False on a slave, which stores what its master stored.
    """

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        disk: Disk,
        flusher: Flusher,
        executor: Executor,
        on_stored: Callable[[], None],
        now_ms: Callable[[], int],
        reject_writes: bool,
    ) -> None:
        self._config = config  # hour, age and disk usage at which files are removed
        self._store = store  # files to remove; also the switch that rejects writes
        self._disk = disk
        self._flusher = flusher  # a checkpoint records the new start of the log before files are removed
        self._executor = executor  # removals block
        self._stored = on_stored  # see `on_stored`
        self._now_ms = now_ms  # wall clock: files are removed at an hour of the day
        self._reject_writes = reject_writes
        self._rule = retention_rule(config)  # decides which files may go
        self._manual_runs = 0  # runs left that ignore hour and disk usage
        self._trimmed_for = -1  # start of the log when derived files were last removed

    def request_cleaning(self) -> None:
        """Remove expired files in the next MANUAL_RUNS runs, at any hour and disk usage."""
        self._manual_runs = MANUAL_RUNS

    async def run(self) -> None:
        """Remove the files that are due."""
        now_ms = self._now_ms()
        manual = self._manual_runs > 0
        self._manual_runs = max(0, self._manual_runs - 1)
        percent = self._used()
        trigger = removal_trigger(self._rule, percent, datetime.fromtimestamp(now_ms / 1000).hour, manual=manual)
        if trigger is not None:
            files = self._store.retention.log_files()
            for file in files[: count_removable(files, self._rule, percent, now_ms)]:
                if not await self._preserve_timers(file.base + self._store.config.commit_log_size):
                    break
                await self._remove(self._store.retention.begin_log_removal(file))
                log.info(
                    "Removed the commit-log file at %d: %s; %d %% of the disk are used",
                    file.base,
                    trigger.value,
                    percent,
                )
                await asyncio.sleep(self._config.delete_commit_log_files_interval / 1000)
        await self._remove(self._store.retention.begin_log_removal(None))
        await self._remove_derived_files()

    async def _preserve_timers(self, end: int) -> bool:
        """Return whether no timer is lost if the log below `end` is removed.

        A master stores pending timers again at the end of the log; a slave waits until its master has done so.
        """
        if not self._reject_writes:
            return not self._store.delayed.timers_before(end)
        # Storing the timers again frees a gigabyte, so it is allowed on a full disk.
        refusal, self._store.refusal = self._store.refusal, None
        try:
            move = move_timers(self._store, end)
        except StoreError as error:
            log.error("Not removing the file, because its timers cannot be stored again: %s", error)
            return False
        finally:
            self._store.refusal = refusal
        if not move:
            return True
        self._stored()
        return await self._flusher.wait_on_disk(move, MOVED_TIMEOUT_S)

    async def check_disk_space(self) -> None:
        """Reject messages while the disk is nearly full, and accept them again afterwards."""
        if not self._reject_writes:
            return
        percent = self._used()
        full = percent > self._config.disk_space_warning_level_ratio
        if full and self._store.refusal is None:
            self._store.refusal = StoreFull(_remark(percent, self._config))
            if not self._store.clear_write_failure():  # otherwise the write that failed has reported it
                log.error("Messages are refused: %s", self._store.refusal, extra={"notice": True})
        elif not full and isinstance(self._store.refusal, StoreFull):
            self._store.refusal = None
            self._store.clear_write_failure()
            log.warning("Messages are accepted again: %d %% of the disk are used", percent, extra={"notice": True})
        elif not full and self._store.clear_write_failure():
            log.warning("Messages are accepted again, as long as the disk takes them", extra={"notice": True})

    def _used(self) -> int:
        """Return the usage in percent of the fuller disk, that of the root or of the commit log; -1 if unknown."""
        directories = (self._config.store_path_root_dir, self._store.config.log_directory)
        try:
            return max(used_percent(self._disk.usage(directory)) for directory in directories)
        except OSError as error:
            log.error("Cannot read the disk usage of %s: %s", " and ".join(directories), error)
            return -1

    async def _remove(self, removal: Removal | None) -> None:
        if removal is None:
            return
        # The checkpoint has to hold the new start of the log first: otherwise the next start would take the removal for a loss.
        await self._flusher.flush_derived()
        if self._store.retention.is_recorded:
            await asyncio.get_running_loop().run_in_executor(self._executor, removal.run)
            self._store.retention.end_log_removal(removal)

    async def _remove_derived_files(self) -> None:
        """Remove files of the index and of queues whose messages were removed.

        Each round removes at most one file per queue, after a flush.
        """
        start = self._store.commit_log_min
        if start == self._trimmed_for:
            return
        self._store.index.drop_before(start)
        for _ in range(ROUNDS_MAX):
            if not self._store.retention.plan_queue_files():
                self._trimmed_for = start
                return
            await self._flusher.flush_derived()
            if not self._store.retention.remove_queue_files():
                return  # a flush was in progress; the next run continues
            await asyncio.sleep(self._config.delete_consume_queue_files_interval / 1000)


def retention_rule(config: BrokerConfig) -> RetentionRule:
    """Return the rule by which commit-log files are removed.

    A member of a set with failover may lead at any time, and has to have everything acknowledged then, until it expires.
    """
    low, high = USED_MAX_LIMITS
    is_forced = config.clean_file_forcibly_enable and not config.has_failover
    return RetentionRule(
        reserved_ms=config.file_reserved_time * HOUR_MS,
        hours=config.delete_hours,
        used_max=max(low, min(config.disk_max_used_space_ratio, high)),
        forced_above=config.disk_space_clean_forcibly_ratio if is_forced else None,
    )


def _remark(percent: int, config: BrokerConfig) -> str:
    share = f"{percent / 100:5.2f}"
    return (
        f"the disk of {config.store_path_root_dir} is nearly full [CL: {share} CQ: {share} INDEX: {share}], more than"
        f" {config.disk_space_warning_level_ratio} %: free space there, or keep messages for less than fileReservedTime ="
        f" {config.file_reserved_time} h; reads go on meanwhile"
    )
