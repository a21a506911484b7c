"""The queues that a member reads: allocated, begun, given up. [RebalancePushImpl]

    every `rebalance_ms`, and at once when told of a change:
    for each topic: queues of the route, members from a broker ─ strategy ─→ mine
        given up   fetching stops, the offset is stored, the lock given back
        begun      (orderly: when locked) start offset ─→ ProcessQueue ─→ a fetch task

A member that its broker does not list has been forgotten by it (a restart): it tells the broker and keeps what it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ariane.client.assignment_strategy import AssignmentStrategy, assign, assignment_changes
from ariane.client.fetcher import FetchContext, run_fetch_loop
from ariane.client.offset_store import OffsetStore, StartPosition
from ariane.client.process_queue import ProcessQueue
from ariane.client.queue_locks import LOCK_RENEWAL_S, QueueLockClient
from ariane.client.route_cache import Peers, RouteCache
from ariane.errors import ArianeError, RouteNotFound
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.model.topic import RETRY_PREFIX
from ariane.net.tasks import BackgroundTasks
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.clients import ConsumerList, GroupRef

log = logging.getLogger("ariane.client")

LEAVE_WAIT_S = 5.0  # for queues that are being given up while the consumer closes; each is one or two requests
RETRY_S = 1.0  # when something is still missing: a topic's route, a lock that its former owner is about to give back


class DeliveryStrategy(Protocol):
    """Concurrent or orderly consumption."""

    def on_assigned(self, process_queue: ProcessQueue) -> None: ...

    def on_messages(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None: ...

    async def on_revoked(self, process_queue: ProcessQueue) -> None: ...


class RebalanceContext(NamedTuple):
    """What allocation works with. `topics` are the subscribed ones, the retry topic among them; `heartbeat_to` tells a
    broker that this member is here. `own_share` gives what is read of a topic's queues where nobody shares them
    (broadcasting, queues assigned by hand); None: the members of the group share them."""

    peers: Peers
    routes: RouteCache
    offsets: OffsetStore
    locks: QueueLockClient | None
    listeners: DeliveryStrategy
    group: str
    client_id: str
    strategy: AssignmentStrategy
    start: StartPosition
    topics: Callable[[], Iterable[str]]
    fetching: Callable[[Callable[[ProcessQueue, int], None]], FetchContext]
    timeout_ms: int
    period_s: float
    monotonic: Callable[[], float]
    heartbeat_to: Callable[[str], Awaitable[None]]
    own_share: Callable[[Sequence[MessageQueue]], list[MessageQueue]] | None = None


class Rebalancer:
    """Owns the fetch tasks. `wake` makes it look at once."""

    def __init__(self, parts: RebalanceContext) -> None:
        self._parts = parts
        self._fetching = parts.fetching(self._on_offset_moved)
        self._assigned: dict[MessageQueue, ProcessQueue] = {}
        self._revoking: dict[MessageQueue, ProcessQueue] = {}
        self._fetches: dict[MessageQueue, asyncio.Task[None]] = {}
        self._woken = asyncio.Event()
        self._tasks = BackgroundTasks("allocation")
        self._revoke_tasks = BackgroundTasks("allocation")
        self._revocations: set[asyncio.Task[None]] = set()
        self._warned_topics: set[str] = set()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return sorted(self._assigned)

    @property
    def committable(self) -> list[MessageQueue]:
        """Those whose offsets may be stored: without its lock a queue may be another member's, who is further already."""
        return [queue for queue, process_queue in self._assigned.items() if self._is_safe_to_commit(process_queue)]

    @property
    def process_queues(self) -> list[ProcessQueue]:
        """The same, with what is cached of them."""
        return [self._assigned[queue] for queue in self.queues]

    def reset(self, offsets: Mapping[MessageQueue, int]) -> int:
        """Begin anew at `offsets` with those of these queues that are read here; how many there are. What was cached of
        them counts no more."""
        mine = [(process_queue, offsets[queue]) for queue, process_queue in self._assigned.items() if queue in offsets]
        for process_queue, offset in mine:
            task = self._fetches.get(process_queue.queue)
            self._on_offset_moved(process_queue, offset)
            if task is not None:
                task.cancel()
        return len(mine)

    def seek(self, queue: MessageQueue, offset: int) -> bool:
        """Read a queue from another offset on, at once and without the broker; False when it is not read here."""
        process_queue = self._assigned.get(queue)
        if process_queue is None:
            return False
        process_queue.drop()
        self._fetches[queue].cancel()
        self._parts.offsets.seek(queue, offset)
        self._add_queue(ProcessQueue(queue, offset, self._parts.monotonic()))
        return True

    def start(self) -> None:
        self._tasks.start(self._run(), "rebalance")
        if self._parts.locks is not None:
            self._revoke_tasks.every(LOCK_RENEWAL_S, self._keep_locks, "renew locks")

    def wake(self) -> None:
        self._woken.set()

    async def stop(self) -> None:
        """No rebalance and no pull any more; what is under way at the listeners goes on, and the locks are kept for it."""
        await self._tasks.close()
        self._fetches.clear()

    async def leave(self) -> None:
        """Store all offsets and give the locks back, after the listeners have ended. The lock of a queue that a thread
        still works on is left to expire."""
        if self._revocations:
            await asyncio.wait(self._revocations, timeout=LEAVE_WAIT_S)
        await self._revoke_tasks.close()
        for process_queue in self._assigned.values():
            process_queue.drop()
        await self._parts.offsets.commit(self.committable)
        unlocked = [queue for queue, process_queue in self._assigned.items() if not process_queue.is_abandoned]
        if self._parts.locks is not None and unlocked:
            await self._parts.locks.unlock(unlocked)
        self._assigned.clear()

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            is_complete = True
            for topic in list(self._parts.topics()):
                try:
                    is_complete &= await self._rebalance(topic)
                except ArianeError as error:
                    self._warn_once(topic, error)
                    is_complete &= topic.startswith(RETRY_PREFIX) and isinstance(error, RouteNotFound)
                except Exception:
                    log.exception("group %s: allocating %s failed", self._parts.group, topic)
            await self._revoke_unsubscribed()
            try:
                async with asyncio.timeout(self._parts.period_s if is_complete else RETRY_S):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _rebalance(self, topic: str) -> bool:
        """Allocate one topic; False when something is missing that may be there soon."""
        parts = self._parts
        queues = await parts.routes.subscribe_queues(topic)
        self._warned_topics.discard(topic)
        if parts.own_share is not None:
            wanted = parts.own_share(queues)
        else:
            members = await self._members(topic)
            if members is None:
                return False
            wanted = assign(parts.client_id, members, queues, parts.strategy)
        owned = [queue for queue in self._assigned if queue.topic == topic]
        change = assignment_changes(owned, wanted)
        for queue in change.revoked:
            self._revoke(queue)
        begin = [queue for queue in change.assigned if queue not in self._revoking]
        is_complete = len(begin) == len(change.assigned)
        asked_at = parts.monotonic()
        if begin and parts.locks is not None:
            locked, _ = await parts.locks.lock(begin)
            is_complete &= len(locked) == len(begin)
            begin = [queue for queue in begin if queue in locked]
        begun = await asyncio.gather(*(self._start_queue(queue, asked_at) for queue in begin))
        if change.assigned or change.revoked:
            log.info("group %s reads %d of %d queues of %s", parts.group, len(wanted), len(queues), topic)
        return is_complete and all(begun)

    async def _members(self, topic: str) -> list[str] | None:
        """Client ids of the group; None when the broker does not (yet) count us among them."""
        parts = self._parts
        addr = parts.routes.random_broker(topic)
        if addr is None:
            return None
        answer = await parts.peers.request(
            addr, RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupRef(parts.group), timeout_ms=parts.timeout_ms
        )
        if answer.code == ResponseCode.SUCCESS:
            members = list(fastjson.decode(answer.body, ConsumerList).consumer_id_list)
            if parts.client_id in members:
                return members
        log.info("group %s: broker %s does not know this member yet", parts.group, addr)
        await parts.heartbeat_to(addr)
        return None

    async def _start_queue(self, queue: MessageQueue, locked_at: float) -> bool:
        parts = self._parts
        parts.offsets.forget(queue)
        try:
            offset = await parts.offsets.start_offset(queue, parts.start)
        except ArianeError as error:
            log.warning("group %s: %s is not begun yet, its start is unknown: %s", parts.group, queue, error)
            return False
        process_queue = ProcessQueue(queue, offset, parts.monotonic())
        if parts.locks is not None:
            process_queue.set_locked(locked_at)
        self._add_queue(process_queue)
        return True

    def _add_queue(self, process_queue: ProcessQueue) -> None:
        queue = process_queue.queue
        self._assigned[queue] = process_queue
        self._parts.listeners.on_assigned(process_queue)
        self._fetches[queue] = self._tasks.start(run_fetch_loop(process_queue, self._fetching), f"fetch {queue}")

    def _revoke(self, queue: MessageQueue) -> None:
        process_queue = self._assigned.pop(queue)
        task = self._fetches.pop(queue, None)
        if task is not None:
            task.cancel()
        self._start_revoke(process_queue, None)

    def _start_revoke(self, process_queue: ProcessQueue, moved_to: int | None) -> None:
        self._revoking[process_queue.queue] = process_queue
        task = self._revoke_tasks.start(self._finish_revoke(process_queue, moved_to), f"give up {process_queue.queue}")
        self._revocations.add(task)
        task.add_done_callback(self._revocations.discard)

    async def _finish_revoke(self, process_queue: ProcessQueue, moved_to: int | None) -> None:
        queue = process_queue.queue
        try:
            await self._parts.listeners.on_revoked(process_queue)
            if moved_to is not None:
                self._parts.offsets.seek(queue, moved_to)
            if self._is_safe_to_commit(process_queue):
                await self._parts.offsets.commit([queue])
            if self._parts.locks is not None and not process_queue.is_abandoned:
                await self._parts.locks.unlock([queue])
        finally:
            self._parts.offsets.forget(queue)
            self._revoking.pop(queue, None)
            self._woken.set()

    def _on_offset_moved(self, process_queue: ProcessQueue, offset: int) -> None:
        """The broker has nothing at our offset: store the one it names, and begin with the queue again."""
        queue = process_queue.queue
        if self._assigned.get(queue) is process_queue:
            del self._assigned[queue]
            self._fetches.pop(queue, None)
            self._start_revoke(process_queue, offset)

    async def _revoke_unsubscribed(self) -> None:
        topics = set(self._parts.topics())
        for queue in [queue for queue in self._assigned if queue.topic not in topics]:
            self._revoke(queue)

    async def _keep_locks(self) -> None:
        """A broker that did not answer is asked again soon: one lost answer must not cost its locks."""
        while await self._renew_locks():  # noqa: ASYNC110 - nobody tells when a broker is back
            await asyncio.sleep(RETRY_S)

    async def _renew_locks(self) -> bool:
        """A queue whose lock was lost may have been read by another member meanwhile: it begins anew. One that is being
        given up is kept from others while the listener is at work on it. True when a broker did not answer."""
        assert self._parts.locks is not None
        at_work = {queue: leaving for queue, leaving in self._revoking.items() if not leaving.is_dropped}
        queues = {**self._assigned, **at_work}
        asked_at = self._parts.monotonic()
        locked, unknown = await self._parts.locks.lock(queues)
        for queue, process_queue in queues.items():
            if queue in locked and process_queue.is_locked(self._parts.monotonic()):
                process_queue.set_locked(asked_at)
            elif queue not in unknown and self._assigned.get(queue) is process_queue:
                log.warning("group %s lost the lock of %s; it begins with it anew", self._parts.group, queue)
                self._revoke(queue)
        return bool(unknown)

    def _is_safe_to_commit(self, process_queue: ProcessQueue) -> bool:
        return self._parts.locks is None or process_queue.is_locked(self._parts.monotonic())

    def _warn_once(self, topic: str, error: ArianeError) -> None:
        """A topic that is not there yet is looked for each second, but spoken of once."""
        if topic not in self._warned_topics:
            self._warned_topics.add(topic)
            log.warning("group %s cannot read %s yet: %s", self._parts.group, topic, error)
