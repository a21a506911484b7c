"""Moves the queues of a topic to other brokers, without a lost message and in the order of each key.

old queues   readable and writable ─→ readable only ──────────────────────────────────────────→ readable only
new queues                            writable only ─→ … old queues consumed to their end … ─→ readable and writable

A producer sees both changes at once with its next route, and sends a key to another queue from then on. Consumers see the new
queues when all groups have consumed the old ones, so that they get later messages of a key after the earlier ones.
The permissions are the state of a move: the same command continues one that was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.cluster.connection import REFRESH_MARGIN_S, ROUTE_REFRESH_S, BrokerServer, Change
from ariane.cluster.groups.offset_admin import OffsetOperations, commit_change
from ariane.cluster.topics.topic_admin import READ_WRITE, TopicOperations
from ariane.errors import ArianeError, NotFound, ServerUnavailable, UsageError
from ariane.model.message import MessageQueue
from ariane.model.topic import PERM_READ, PERM_WRITE
from ariane.protocol.requests.routing import QueueData

POLL_S = 1.0


class PlannedMove(NamedTuple):
    """A move as the permissions show it: what is done, and what is not."""

    topic: str
    sources: tuple[BrokerServer, ...]
    """Brokers whose queues are moved away."""
    writable: tuple[BrokerServer, ...]
    """Those of them that producers still send to."""
    targets: tuple[BrokerServer, ...]
    hidden: tuple[BrokerServer, ...]
    """Targets whose queues consumers do not see yet."""
    queues: int
    """Queues of each target."""

    @property
    def is_done(self) -> bool:
        return not self.writable and not self.hidden


class QueueMoveOperations(TopicOperations, OffsetOperations):
    """Moves of queues."""

    async def plan_move(self, topic: str, targets: Sequence[str], *, queues: int | None = None) -> PlannedMove:
        """Return what is left of a move.

        Args:
            topic: The topic.
            targets: Names of the brokers that get all queues; they do not have the topic yet.
            queues: Number of queues of each of them; None: as many as one of the former brokers has.

        Raises:
            RouteNotFound: no broker has the topic.
            NotFound: no master of that name is registered.
            UsageError: the order of keys would be lost, or nothing would be moved.
        """
        by_name = {data.broker_name: data for data in (await self.fetch_route(topic)).queue_datas}
        masters = {server.broker: server for server in await self.select_brokers()}
        for name in (*targets, *by_name):
            if name not in masters:
                raise NotFound("master of broker", name, sorted(masters))
        sources = [name for name in by_name if name not in targets]
        if not sources:
            raise UsageError("--to", ",".join(targets), f"has all queues of {topic} already; name other brokers")
        writable = [name for name in sources if by_name[name].perm & PERM_WRITE]
        if mixed := [name for name in targets if writable and _is_readable(by_name.get(name))]:
            raise UsageError(
                "--to",
                ",".join(mixed),
                f"has queues of {topic} that consumers read: keys would change their queue and lose their order; "
                "name brokers without the topic",
            )
        hidden = [name for name in targets if not _is_readable(by_name.get(name))]
        count = max(by_name[name].write_queue_nums for name in sources) if queues is None else queues

        def servers(names: Sequence[str]) -> tuple[BrokerServer, ...]:
            return tuple(masters[name] for name in names)

        return PlannedMove(topic, servers(sources), servers(writable), servers(targets), servers(hidden), count)

    async def move_queues(
        self,
        move: PlannedMove,
        report: Callable[[str], None],
        *,
        route_refresh_s: float = ROUTE_REFRESH_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Execute the rest of a move; in a dry run report its steps.

        Args:
            move: What is left to do.
            report: Called with each step before it begins, as an infinitive.
            route_refresh_s: Longest interval in which a client fetches routes.
            clock: Replaced by tests.

        Raises:
            PartialFailure: some brokers rejected a change or did not respond.
            ServerUnavailable: a broker did not respond.
        """
        if move.is_done:
            return
        topic, sources, hidden = move.topic, _names(move.sources), _names(move.hidden)
        if move.writable:
            report(f"send messages of {topic} to {move.queues} queues on {hidden} instead of {sources}")
        await self._redirect_producers(move)
        report(f"wait {route_refresh_s + REFRESH_MARGIN_S:g} s, until all producers have the new route")
        if not self.is_dry_run:
            await clock.sleep(route_refresh_s + REFRESH_MARGIN_S)
        report(f"wait until all groups have consumed {topic} on {sources}")
        if not self.is_dry_run:
            await self._wait_consumed(move, report, clock)
        report(f"let consumers read {topic} on {hidden}")
        await self._start_groups(move)
        await self.create_topic(topic, queues=move.queues, servers=move.hidden)

    async def _redirect_producers(self, move: PlannedMove) -> None:
        # First the former queues: with both, keys would move between the former ones, which consumers read concurrently.
        if move.writable:
            await self.change_topic(move.topic, perm=PERM_READ, servers=move.writable)
        try:
            await self.create_topic(move.topic, queues=move.queues, perm=PERM_WRITE, servers=move.hidden)
            if await self.fetch_order_conf(move.topic):
                conf = ";".join(f"{server.broker}:{move.queues}" for server in move.targets)
                await self.put_order_conf(move.topic, conf)
        except ArianeError:
            if move.writable:
                await self.change_topic(move.topic, perm=READ_WRITE, servers=move.writable)
            raise

    async def _wait_consumed(self, move: PlannedMove, report: Callable[[str], None], clock: Clock) -> None:
        reported = ""
        while pending := await self._pending(move):
            if pending != reported:
                report(f"wait: {pending}")
                reported = pending
            await clock.sleep(POLL_S)

    async def _pending(self, move: PlannedMove) -> str:
        """Return which groups have not consumed the former queues; empty if all have."""
        brokers = {server.broker for server in move.sources}
        pending = []
        for group in await self._groups(move):
            lag = await self.group_lag(group, move.topic)
            if not lag.is_complete:
                raise ServerUnavailable("; ".join(map(str, lag.unavailable)))
            if names := sorted({queue.broker for queue in lag.queues if queue.broker in brokers and queue.lag != 0}):
                pending.append(f"{group} on {', '.join(names)}")
        return "; ".join(pending)

    async def _groups(self, move: PlannedMove) -> tuple[str, ...]:
        groups, unavailable = await self.list_groups_of(move.topic, move.sources)
        if unavailable:
            raise ServerUnavailable("; ".join(map(str, unavailable)))
        return groups

    async def _start_groups(self, move: PlannedMove) -> None:
        """Let each group begin new queues at their first message: without an offset it may begin at the last one."""
        changes: list[Change] = []
        for group in await self._groups(move):
            for server in move.hidden:
                queues = [MessageQueue(move.topic, server.broker, number) for number in range(move.queues)]
                changes += [commit_change(server.addr, group, queue, 0) for queue in queues]
        await self.change(*changes)


def _is_readable(data: QueueData | None) -> bool:
    return data is not None and bool(data.perm & PERM_READ)


def _names(servers: Sequence[BrokerServer]) -> str:
    return ", ".join(server.broker for server in servers)
