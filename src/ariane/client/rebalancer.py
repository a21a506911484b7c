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

from ariane.client.assignment_strategy import Strategy, changes, share
from ariane.client.fetcher import FetchContext, fetch
from ariane.client.offset_store import OffsetStore, Start
from ariane.client.process_queue import ProcessQueue
from ariane.client.queue_locks import LOCK_EVERY_S, QueueLockClient
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
SOON_S = 1.0  # when something is still missing: a topic's route, a lock that its former owner is about to give back


class DeliveryStrategy(Protocol):
    """Concurrent or orderly consumption."""

    def begin(self, process_queue: ProcessQueue) -> None: ...

    def arrived(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None: ...

    async def end(self, process_queue: ProcessQueue) -> None: ...


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
    strategy: Strategy
    start: Start
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
        self._fetching = parts.fetching(self._moved)
        self._owned: dict[MessageQueue, ProcessQueue] = {}
        self._leaving: dict[MessageQueue, ProcessQueue] = {}
        self._fetches: dict[MessageQueue, asyncio.Task[None]] = {}
        self._woken = asyncio.Event()
        self._tasks = BackgroundTasks("allocation")
        self._endings = BackgroundTasks("allocation")
        self._ending: set[asyncio.Task[None]] = set()
        self._is_quiet: set[str] = set()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return sorted(self._owned)

    @property
    def committable(self) -> list[MessageQueue]:
        """Those whose offsets may be stored: without its lock a queue may be another member's, who is further already."""
        return [queue for queue, process_queue in self._owned.items() if self._is_ours(process_queue)]

    @property
    def process_queues(self) -> list[ProcessQueue]:
        """The same, with what is cached of them."""
        return [self._owned[queue] for queue in self.queues]

    def reset(self, offsets: Mapping[MessageQueue, int]) -> int:
        """Begin anew at `offsets` with those of these queues that are read here; how many there are. What was cached of
        them counts no more."""
        mine = [(process_queue, offsets[queue]) for queue, process_queue in self._owned.items() if queue in offsets]
        for process_queue, offset in mine:
            task = self._fetches.get(process_queue.queue)
            self._moved(process_queue, offset)
            if task is not None:
                task.cancel()
        return len(mine)

    def seek(self, queue: MessageQueue, offset: int) -> bool:
        """Read a queue from another offset on, at once and without the broker; False when it is not read here."""
        process_queue = self._owned.get(queue)
        if process_queue is None:
            return False
        process_queue.drop()
        self._fetches[queue].cancel()
        self._parts.offsets.move(queue, offset)
        self._own(ProcessQueue(queue, offset, self._parts.monotonic()))
        return True

    def start(self) -> None:
        self._tasks.start(self._run(), "rebalance")
        if self._parts.locks is not None:
            self._endings.every(LOCK_EVERY_S, self._keep_locks, "renew locks")

    def wake(self) -> None:
        self._woken.set()

    async def stop(self) -> None:
        """No rebalance and no pull any more; what is under way at the listeners goes on, and the locks are kept for it."""
        await self._tasks.close()
        self._fetches.clear()

    async def leave(self) -> None:
        """Store all offsets and give the locks back, after the listeners have ended. The lock of a queue that a thread
        still works on is left to expire."""
        if self._ending:
            await asyncio.wait(self._ending, timeout=LEAVE_WAIT_S)
        await self._endings.close()
        for process_queue in self._owned.values():
            process_queue.drop()
        await self._parts.offsets.commit(self.committable)
        unlocked = [queue for queue, process_queue in self._owned.items() if not process_queue.is_abandoned]
        if self._parts.locks is not None and unlocked:
            await self._parts.locks.unlock(unlocked)
        self._owned.clear()

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            is_complete = True
            for topic in list(self._parts.topics()):
                try:
                    is_complete &= await self._rebalance(topic)
                except ArianeError as error:
                    self._say_once(topic, error)
                    is_complete &= topic.startswith(RETRY_PREFIX) and isinstance(error, RouteNotFound)
                except Exception:
                    log.exception("group %s: allocating %s failed", self._parts.group, topic)
            await self._give_up_topics()
            try:
                async with asyncio.timeout(self._parts.period_s if is_complete else SOON_S):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _rebalance(self, topic: str) -> bool:
        """Allocate one topic; False when something is missing that may be there soon."""
        parts = self._parts
        queues = await parts.routes.queues_to_read(topic)
        self._is_quiet.discard(topic)
        if parts.own_share is not None:
            wanted = parts.own_share(queues)
        else:
            members = await self._members(topic)
            if members is None:
                return False
            wanted = share(parts.client_id, members, queues, parts.strategy)
        owned = [queue for queue in self._owned if queue.topic == topic]
        change = changes(owned, wanted)
        for queue in change.end:
            self._give_up(queue)
        begin = [queue for queue in change.begin if queue not in self._leaving]
        is_complete = len(begin) == len(change.begin)
        asked_at = parts.monotonic()
        if begin and parts.locks is not None:
            locked, _ = await parts.locks.lock(begin)
            is_complete &= len(locked) == len(begin)
            begin = [queue for queue in begin if queue in locked]
        begun = await asyncio.gather(*(self._begin(queue, asked_at) for queue in begin))
        if change.begin or change.end:
            log.info("group %s reads %d of %d queues of %s", parts.group, len(wanted), len(queues), topic)
        return is_complete and all(begun)

    async def _members(self, topic: str) -> list[str] | None:
        """Client ids of the group; None when the broker does not (yet) count us among them."""
        parts = self._parts
        addr = parts.routes.any_broker(topic)
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

    async def _begin(self, queue: MessageQueue, locked_at: float) -> bool:
        parts = self._parts
        parts.offsets.forget(queue)
        try:
            offset = await parts.offsets.start(queue, parts.start)
        except ArianeError as error:
            log.warning("group %s: %s is not begun yet, its start is unknown: %s", parts.group, queue, error)
            return False
        process_queue = ProcessQueue(queue, offset, parts.monotonic())
        if parts.locks is not None:
            process_queue.locked(locked_at)
        self._own(process_queue)
        return True

    def _own(self, process_queue: ProcessQueue) -> None:
        queue = process_queue.queue
        self._owned[queue] = process_queue
        self._parts.listeners.begin(process_queue)
        self._fetches[queue] = self._tasks.start(fetch(process_queue, self._fetching), f"fetch {queue}")

    def _give_up(self, queue: MessageQueue) -> None:
        process_queue = self._owned.pop(queue)
        task = self._fetches.pop(queue, None)
        if task is not None:
            task.cancel()
        self._start_end(process_queue, None)

    def _start_end(self, process_queue: ProcessQueue, moved_to: int | None) -> None:
        self._leaving[process_queue.queue] = process_queue
        task = self._endings.start(self._end(process_queue, moved_to), f"give up {process_queue.queue}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, process_queue: ProcessQueue, moved_to: int | None) -> None:
        queue = process_queue.queue
        try:
            await self._parts.listeners.end(process_queue)
            if moved_to is not None:
                self._parts.offsets.move(queue, moved_to)
            if self._is_ours(process_queue):
                await self._parts.offsets.commit([queue])
            if self._parts.locks is not None and not process_queue.is_abandoned:
                await self._parts.locks.unlock([queue])
        finally:
            self._parts.offsets.forget(queue)
            self._leaving.pop(queue, None)
            self._woken.set()

    def _moved(self, process_queue: ProcessQueue, offset: int) -> None:
        """The broker has nothing at our offset: store the one it names, and begin with the queue again."""
        queue = process_queue.queue
        if self._owned.get(queue) is process_queue:
            del self._owned[queue]
            self._fetches.pop(queue, None)
            self._start_end(process_queue, offset)

    async def _give_up_topics(self) -> None:
        topics = set(self._parts.topics())
        for queue in [queue for queue in self._owned if queue.topic not in topics]:
            self._give_up(queue)

    async def _keep_locks(self) -> None:
        """A broker that did not answer is asked again soon: one lost answer must not cost its locks."""
        while await self._renew_locks():  # noqa: ASYNC110 - nobody tells when a broker is back
            await asyncio.sleep(SOON_S)

    async def _renew_locks(self) -> bool:
        """A queue whose lock was lost may have been read by another member meanwhile: it begins anew. One that is being
        given up is kept from others while the listener is at work on it. True when a broker did not answer."""
        assert self._parts.locks is not None
        at_work = {queue: leaving for queue, leaving in self._leaving.items() if not leaving.is_dropped}
        queues = {**self._owned, **at_work}
        asked_at = self._parts.monotonic()
        locked, unknown = await self._parts.locks.lock(queues)
        for queue, process_queue in queues.items():
            if queue in locked and process_queue.is_locked(self._parts.monotonic()):
                process_queue.locked(asked_at)
            elif queue not in unknown and self._owned.get(queue) is process_queue:
                log.warning("group %s lost the lock of %s; it begins with it anew", self._parts.group, queue)
                self._give_up(queue)
        return bool(unknown)

    def _is_ours(self, process_queue: ProcessQueue) -> bool:
        return self._parts.locks is None or process_queue.is_locked(self._parts.monotonic())

    def _say_once(self, topic: str, error: ArianeError) -> None:
        """A topic that is not there yet is looked for each second, but spoken of once."""
        if topic not in self._is_quiet:
            self._is_quiet.add(topic)
            log.warning("group %s cannot read %s yet: %s", self._parts.group, topic, error)
