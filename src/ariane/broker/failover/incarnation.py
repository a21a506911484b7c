"""The incarnation of a member's data while its process runs: a failed flush, or records that are missing, end it.

What a failed flush lost is unknown. The set in the record lists the former incarnation: this member cannot be a candidate before
the set has admitted it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import msgspec

from ariane.broker.config.broker_config import BrokerConfig, to_store_config
from ariane.broker.failover.member_cut import cut_member
from ariane.broker.failover.waiting import retried
from ariane.broker.replication.member_identity import MemberIdentity
from ariane.errors import FlushFailed, RecordsLost, StoreError, StoreLocked
from ariane.failover.agent import FailoverAgent
from ariane.net.tasks import BackgroundTasks
from ariane.store.disk.files import Disk
from ariane.store.log.epochs import EpochHistory
from ariane.store.message_store import MessageStore
from ariane.store.recovery.log_cut import distrust_queues, last_readable

log = logging.getLogger("ariane.broker.failover.incarnation")


class Incarnation:
    """The identity of a member, in memory and on the disk, and the least end of its log."""

    def __init__(self, identity: MemberIdentity, agent: FailoverAgent, tasks: BackgroundTasks) -> None:
        self.identity = identity
        self.log_end = 0  # of the log when its store was closed last, or where it was cut: the next one has as much
        self._agent = agent  # a candidate only as a member of the stored set
        self._tasks = tasks
        self._failed: MessageStore | None = None  # whose failure ended the last incarnation

    async def check_log(self, config: BrokerConfig, disk: Disk, epochs: EpochHistory) -> None:
        """Read the closed log of a member whose disk has failed, and cut it before the first record that is lost.

        Its queues are rebuilt by the next start.

        Raises:
            OSError, StoreError: the log cannot be read, or the incarnation not be stored.
        """
        if not self.identity.has_failed:
            return
        store_config = to_store_config(config)
        lost = await asyncio.to_thread(last_readable, store_config, disk)
        if lost is not None:
            self._begin(f"flushed records are missing after {lost[0]}", is_unproven=True).store()
            await cut_member(config, disk, epochs, *lost)
        await asyncio.to_thread(distrust_queues, store_config, disk)
        self.identity.mark_read()

    def check_opened(self, store: MessageStore, *, leads: bool) -> None:
        """Compare an opened store with the one that was closed.

        Raises:
            StoreError: records are missing, and it was opened to lead.
        """
        if store.commit_log_max < self.log_end:
            lost = f"its log ends at {store.commit_log_max}, and had records up to {self.log_end}"
            self._renew(lost, is_unproven=False)  # the log ends before what is missing
            if leads:
                raise StoreError(lost)

    def check_start(self, error: Exception) -> bool:
        """Begin another incarnation if the disk failed while a store was opened, or records are missing; stored when this returns.

        The kernel reports a failed writeback once: to the flush of this start, if the process that wrote the records was killed.
        The next start would find nothing. The same is true of a log that has been repaired.

        Returns:
            Whether the log may be repaired now, by another start.

        Raises:
            OSError: records are missing, and the incarnation cannot be stored.
        """
        if isinstance(error, RecordsLost):
            self._begin(error, is_unproven=True).store()
            return True
        is_of_disk = isinstance(error, OSError | FlushFailed) or isinstance(error.__cause__, OSError)
        if is_of_disk and not isinstance(error, StoreLocked):
            with contextlib.suppress(OSError):  # the former one is removed then
                self._begin(f"the disk failed at the start: {error}", is_unproven=True).store()
        return False

    def on_failure(self, store: MessageStore, reason: object) -> bool:
        """Note that a store failed, or was not closed in order; return whether that is new."""
        is_new = store is not self._failed
        if is_new:
            self._failed = store
            self._renew(reason, is_unproven=True)
        return is_new

    def replace(self, reason: object) -> None:
        """Begin another incarnation, which is stored when this returns: records are about to be removed that the set relies on.

        Raises:
            OSError: it cannot be stored.
        """
        self._begin(reason, is_unproven=False).store()

    def _renew(self, reason: object, *, is_unproven: bool) -> None:
        """Begin another incarnation at once, and store it as soon as the disk takes it."""
        identity = self._begin(reason, is_unproven=is_unproven)

        async def store() -> None:
            if self.identity is identity:
                identity.store()

        self._tasks.start(retried(store, "store the new incarnation"), "store the new incarnation")

    def _begin(self, reason: object, *, is_unproven: bool) -> MemberIdentity:
        log.error("Member %s gets a new incarnation: %s", self.identity.member.name, reason, extra={"notice": True})
        self.identity = identity = self.identity.renewed(is_unproven=is_unproven)
        self._agent.state = msgspec.structs.replace(self._agent.state, me=identity.member)
        return identity
