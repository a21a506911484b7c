"""Rebalancing: which queues this member reads, and the fetch loop of each. [RebalanceImpl, RebalancePushImpl]

    every `rebalance_interval`, and immediately after a change:
    for each topic: queues of the route, members from a broker ─ strategy ─→ assigned queues
        revoked    fetching stops, the offset is committed, the lock is released
        assigned   (orderly: once locked) start offset ─→ ProcessQueue ─→ fetch loop

If a broker does not list this member, it has lost the registration (a restart): the member sends a heartbeat and keeps its
queues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ariane.client.consuming.assignment_strategy import assign, assignment_changes
from ariane.client.consuming.group_options import Assignment
from ariane.client.consuming.process_queue import ProcessQueue
from ariane.client.membership.fetcher import FetchContext, run_fetch_loop
from ariane.client.membership.queue_locks import LOCK_RENEWAL_S, QueueLockClient
from ariane.errors import ArianeError, RouteNotFound
from ariane.model.message import MessageQueue
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX
from ariane.net.tasks import BackgroundTasks
from ariane.protocol import fastjson
from ariane.protocol.client_rules.transient import RETRY_BACKOFF
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.clients import ConsumerList, GroupRef

log = logging.getLogger("ariane.client")

LEAVE_WAIT_S = 5.0  # for queues still being revoked when the consumer closes; each needs one or two requests
RETRY_TOPIC_LOOKUPS = 10  # before a missing retry topic is looked up at the usual interval
MISSING_S = (
    1.0  # until the next attempt if a topic's route, or a lock that its former owner is about to release, is missing
)


@dataclass(frozen=True, kw_only=True)
class RebalanceContext(FetchContext):
    """Collaborators of a rebalancer: those of its fetch loops, and the locks."""

    locks: QueueLockClient | None
    """Locks queues at their brokers; None if queues are consumed without locks."""


class Rebalancer:
    """Assigns queues to this member and owns their fetch loops."""

    def __init__(self, context: RebalanceContext) -> None:
        self._context = context  # what rebalancing needs of the membership
        # Queues with a fetch loop. A queue is in `_assigned` or in `_revoking`, never in both.
        self._assigned: dict[MessageQueue, ProcessQueue] = {}
        # Queues whose delivery has not ended yet: they must not be assigned again before.
        self._revoking: dict[MessageQueue, ProcessQueue] = {}
        self._fetches: dict[MessageQueue, asyncio.Task[None]] = {}  # fetch loop of each assigned queue
        # Queues that the application chose (`Assignment.MANUAL`).
        self._manual: frozenset[MessageQueue] = frozenset()
        # Wakes the rebalance loop before its period ends.
        self._woken = asyncio.Event()
        # Rebalance and fetch tasks end first at close; revocations and lock renewals go on until deliveries have ended.
        self._tasks = BackgroundTasks("rebalance")
        self._revoke_tasks = BackgroundTasks("rebalance")  # revocations and lock renewals, which end last
        self._revocations: set[asyncio.Task[None]] = set()  # those in progress: leaving the group waits for them
        # Topics for which a missing route was logged already.
        self._warned_topics: set[str] = set()
        # How often a look-up that found everything else was repeated for the group's retry topic.
        self._retry_topic_lookups = 0

    @property
    def queues(self) -> list[MessageQueue]:
        """The assigned queues, sorted."""
        return sorted(self._assigned)

    @property
    def committable(self) -> list[MessageQueue]:
        """Assigned queues whose offsets may be committed.

        Without its lock a queue may belong to another member already, whose higher offset must not be overwritten.
        """
        return [queue for queue, process_queue in self._assigned.items() if self._is_safe_to_commit(process_queue)]

    @property
    def process_queues(self) -> list[ProcessQueue]:
        """The state of the assigned queues, sorted by queue."""
        return [self._assigned[queue] for queue in self.queues]

    def set_manual(self, queues: Iterable[MessageQueue]) -> None:
        """Choose the queues to read (`Assignment.MANUAL`); the next rebalance assigns them."""
        self._manual = frozenset(queues)

    def reset(self, offsets: Mapping[MessageQueue, int]) -> int:
        """Restart the assigned ones of these queues at new offsets, and discard their cached messages.

        Returns:
            How many of the queues are assigned to this member.
        """
        assigned = [
            (process_queue, offsets[queue]) for queue, process_queue in self._assigned.items() if queue in offsets
        ]
        for process_queue, offset in assigned:
            task = self._fetches.get(process_queue.queue)
            self._on_offset_moved(process_queue, offset)
            if task is not None:
                task.cancel()
        return len(assigned)

    def seek(self, queue: MessageQueue, offset: int) -> bool:
        """Continue an assigned queue at another offset, immediately and without a request.

        Returns:
            False if the queue is not assigned to this member.
        """
        process_queue = self._assigned.get(queue)
        if process_queue is None:
            return False
        process_queue.drop()
        self._fetches[queue].cancel()
        self._context.offsets.seek(queue, offset)
        restarted = ProcessQueue(queue, offset, self._monotonic())
        restarted.locked_until = process_queue.locked_until  # the lock belongs to this member whatever the offset is
        self._add_queue(restarted)
        return True

    def start(self) -> None:
        """Start rebalancing, and renewing locks if queues are locked."""
        self._tasks.start(self._run(), "rebalance")
        if self._context.locks is not None:
            self._revoke_tasks.repeat(LOCK_RENEWAL_S, self._renew_locks_until_answered, "renew locks")

    def wake(self) -> None:
        """Rebalance immediately."""
        self._woken.set()

    async def stop(self) -> None:
        """End rebalancing and fetching. Running deliveries continue, and their locks are renewed."""
        await self._tasks.close()
        self._fetches.clear()

    async def leave(self) -> None:
        """Commit all offsets and release the locks, after the deliveries have ended.

        The lock of a queue that a thread still works on is left to expire.
        """
        if self._revocations:
            await asyncio.wait(self._revocations, timeout=LEAVE_WAIT_S)
        await self._revoke_tasks.close()
        for process_queue in self._assigned.values():
            process_queue.drop()
        await self._context.offsets.commit(self.committable)
        unlocked = [queue for queue, process_queue in self._assigned.items() if not process_queue.is_abandoned]
        if self._context.locks is not None and unlocked:
            await self._context.locks.unlock(unlocked)
        self._assigned.clear()

    # --- rebalance ---

    async def _run(self) -> None:
        period_s = self._context.options.settings.rebalance_interval
        while True:
            self._woken.clear()
            is_complete, is_retry_topic_missing = True, False
            for topic in list(self._context.subscriptions):
                try:
                    is_complete &= await self._rebalance(topic)
                except ArianeError as error:
                    self._warn_once(topic, error)
                    if topic.startswith(RETRY_PREFIX) and isinstance(error, RouteNotFound):
                        is_retry_topic_missing = True
                    else:
                        is_complete = False
                except Exception:
                    log.exception("Rebalancing topic %s failed for group %s", topic, self._context.options.group)
            self._revoke_unsubscribed()
            # Brokers create the retry topic with a heartbeat, which the first look-up may precede; some only with the first
            # failed message.
            if is_retry_topic_missing and is_complete and self._retry_topic_lookups < RETRY_TOPIC_LOOKUPS:
                self._retry_topic_lookups += 1
                is_complete = False
            try:
                async with asyncio.timeout(period_s if is_complete else MISSING_S):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _rebalance(self, topic: str) -> bool:
        """Assign the queues of one topic. Return False if something is missing that may appear soon."""
        context = self._context
        queues = await context.instance.routes.subscribe_queues(topic)
        self._warned_topics.discard(topic)
        assignment = await self._select_queues(topic, queues)
        if assignment is None:
            return False
        change = assignment_changes([queue for queue in self._assigned if queue.topic == topic], assignment)
        for queue in change.revoked:
            self._revoke(queue)
        ready = [queue for queue in change.assigned if queue not in self._revoking]
        is_complete = len(ready) == len(change.assigned)
        # The lock counts from before the request: the broker may have granted it long before the response arrives.
        locked_at = self._monotonic()
        if ready and context.locks is not None:
            locked, _ = await context.locks.lock(ready)
            is_complete &= len(locked) == len(ready)
            ready = [queue for queue in ready if queue in locked]
        started = await asyncio.gather(*(self._start_queue(queue, locked_at) for queue in ready))
        if change.assigned or change.revoked:
            log.info(
                "Group %s was assigned %d of %d queues of %s",
                context.options.group,
                len(assignment),
                len(queues),
                topic,
            )
        return is_complete and all(started)

    async def _select_queues(self, topic: str, queues: Sequence[MessageQueue]) -> list[MessageQueue] | None:
        """Return the queues of `topic` that this member should read; None if the members are unknown."""
        options = self._context.options
        if options.assignment is Assignment.ALL:
            return list(queues)
        if options.assignment is Assignment.MANUAL:
            return [queue for queue in queues if queue in self._manual]
        members = await self._members(topic)
        if members is None:
            return None
        return assign(self._context.instance.client_id, members, queues, options.strategy)

    async def _members(self, topic: str) -> list[str] | None:
        """Return the client ids of the group; None if the broker does not list this member (yet)."""
        instance, group = self._context.instance, self._context.options.group
        addr = instance.routes.random_broker(topic)
        if addr is None:
            return None
        response = await instance.peers.request(
            addr,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            GroupRef(group),
            timeout_ms=instance.settings.request_timeout * 1000,
        )
        if response.code == ResponseCode.SUCCESS:
            members = list(fastjson.decode(response.body, ConsumerList).consumer_id_list)
            if instance.client_id in members:
                return members
        log.info("Broker %s does not list this member of group %s; sending a heartbeat", addr, group)
        await instance.heartbeat_to(addr)
        return None

    # --- assigned queues ---

    async def _start_queue(self, queue: MessageQueue, locked_at: float) -> bool:
        context = self._context
        context.offsets.forget(queue)
        try:
            offset = await context.offsets.start_offset(queue, context.options.start)
        except ArianeError as error:
            log.warning(
                "Could not read the start offset of %s for group %s; retrying: %s", queue, context.options.group, error
            )
            return False
        process_queue = ProcessQueue(queue, offset, self._monotonic())
        if context.locks is not None:
            process_queue.set_locked(locked_at)
        self._add_queue(process_queue)
        return True

    def _add_queue(self, process_queue: ProcessQueue) -> None:
        queue = process_queue.queue
        self._assigned[queue] = process_queue
        self._context.delivery.on_assigned(process_queue)
        self._fetches[queue] = self._tasks.start(self._fetch(process_queue), f"fetch {queue}")

    async def _fetch(self, process_queue: ProcessQueue) -> None:
        offset = await run_fetch_loop(process_queue, self._context)
        if offset is not None:
            self._on_offset_moved(process_queue, offset)

    def _on_offset_moved(self, process_queue: ProcessQueue, offset: int) -> None:
        """Revoke the queue with `offset` as the group's new offset; the next rebalance assigns it again."""
        queue = process_queue.queue
        if self._assigned.get(queue) is process_queue:
            del self._assigned[queue]
            self._fetches.pop(queue, None)
            self._start_revoke(process_queue, offset)

    # --- revoked queues ---

    def _revoke(self, queue: MessageQueue) -> None:
        process_queue = self._assigned.pop(queue)
        task = self._fetches.pop(queue, None)
        if task is not None:
            task.cancel()
        self._start_revoke(process_queue, None)

    def _revoke_unsubscribed(self) -> None:
        topics = set(self._context.subscriptions)
        for queue in [queue for queue in self._assigned if queue.topic not in topics]:
            self._revoke(queue)

    def _start_revoke(self, process_queue: ProcessQueue, new_offset: int | None) -> None:
        self._revoking[process_queue.queue] = process_queue
        task = self._revoke_tasks.start(self._finish_revoke(process_queue, new_offset), f"revoke {process_queue.queue}")
        self._revocations.add(task)
        task.add_done_callback(self._revocations.discard)

    async def _finish_revoke(self, process_queue: ProcessQueue, new_offset: int | None) -> None:
        """Wait until the delivery has ended, commit the offset and release the lock, in this order."""
        context, queue = self._context, process_queue.queue
        try:
            await context.delivery.on_revoked(process_queue)
            if new_offset is not None:
                context.offsets.seek(queue, new_offset)
            if self._is_safe_to_commit(process_queue):
                await context.offsets.commit([queue])
            if context.locks is not None and not process_queue.is_abandoned:
                await context.locks.unlock([queue])
        finally:
            context.offsets.forget(queue)
            self._revoking.pop(queue, None)
            self._woken.set()

    # --- locks ---

    async def _renew_locks_until_answered(self) -> None:
        """Renew the locks, retrying soon while a broker does not respond: one lost response must not cost its locks."""
        failures = 0
        while await self._renew_locks():
            failures += 1
            await asyncio.sleep(RETRY_BACKOFF.delay_s(failures))

    async def _renew_locks(self) -> bool:
        """Renew the locks of all queues that are consumed. Return True if a broker did not respond.

        A queue whose lock was lost may have been read by another member meanwhile, so it is revoked and assigned again.
        A queue being revoked stays locked while its listener runs.
        """
        assert self._context.locks is not None
        delivering = {queue: revoking for queue, revoking in self._revoking.items() if not revoking.is_dropped}
        queues = {**self._assigned, **delivering}
        requested_at = self._monotonic()
        locked, unknown = await self._context.locks.lock(queues)
        for queue, process_queue in queues.items():
            if queue in locked and process_queue.is_locked(self._monotonic()):
                process_queue.set_locked(requested_at)
            elif queue not in unknown and self._assigned.get(queue) is process_queue:
                log.warning(
                    "Group %s lost the lock of %s; assigning the queue again", self._context.options.group, queue
                )
                self._revoke(queue)
        return bool(unknown)

    def _is_safe_to_commit(self, process_queue: ProcessQueue) -> bool:
        return self._context.locks is None or process_queue.is_locked(self._monotonic())

    def _monotonic(self) -> float:
        return self._context.instance.clock.monotonic()

    def _warn_once(self, topic: str, error: ArianeError) -> None:
        """Log an unreadable topic once; the look-up is repeated every second until it succeeds."""
        if topic not in self._warned_topics:
            self._warned_topics.add(topic)
            reason = error.reason if isinstance(error, RouteNotFound) else error
            # Topics that brokers create: with the first heartbeat of a group, and with its first dead letter.
            level = logging.WARNING
            if isinstance(error, RouteNotFound) and topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                level = logging.DEBUG if topic.startswith(RETRY_PREFIX) else logging.INFO
            log.log(level, "Group %s cannot read topic %s yet: %s", self._context.options.group, topic, reason)
