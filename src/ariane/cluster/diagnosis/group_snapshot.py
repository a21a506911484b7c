"""Asks the brokers for the state of all consumer groups that `group_findings` needs.

list_groups ─→ clients, subscriptions, lag, age ─┬→ late: the lag again after GROWTH_S
                                                 └→ dead letters: number, and those of the last hour
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ariane.clock import Clock
from ariane.cluster.connection import BrokerServer, gather_bounded
from ariane.cluster.diagnosis.findings import Backlog, ClientState, ConsumerGroupState, DeadLetters
from ariane.cluster.diagnosis.group_findings import GROWTH_S, RECENT_MS, is_late
from ariane.cluster.groups.consumer_status import ConsumerState, ConsumerStatusOperations, find_blocked
from ariane.cluster.groups.group_admin import GroupConnections
from ariane.cluster.groups.group_lag import GroupLag, Subscriptions
from ariane.cluster.messages.queue_reading import QueueReadOperations
from ariane.cluster.topics.topic_queries import TopicBounds, TopicQueries
from ariane.errors import ArianeError
from ariane.model.topic import dlq_topic, retry_topic

GROUPS_AT_ONCE = 32  # groups in flight: each costs some requests per master, and may cost one per member


class GroupSnapshotOperations(TopicQueries, ConsumerStatusOperations, QueueReadOperations):
    """Reads the state of all consumer groups."""

    async def group_states(
        self, servers: Sequence[BrokerServer], clock: Clock
    ) -> Mapping[str, ConsumerGroupState] | None:
        """Return the state of each group without those of tools; None if the groups could not be listed."""
        try:
            names, topics = (await self.list_groups()).names, frozenset(await self.list_topics())
        except ArianeError:
            return None  # no server responds, which is a finding of its own
        masters = [server for server in servers if server.is_master]

        async def ask(name: str) -> tuple[str, ConsumerGroupState, GroupLag | None]:
            state, lag = await self._group_state(name, masters, clock)
            if dlq_topic(name) in topics:
                state = state._replace(dead_letters=await self._dead_letters(dlq_topic(name), clock))
            return name, state, lag

        results = await gather_bounded(map(ask, names), GROUPS_AT_ONCE)
        states = {name: state for name, state, _ in results}
        late = {name: lag for name, state, lag in results if lag is not None and _is_candidate(state)}
        if late:
            await clock.sleep(GROWTH_S)
            again = await gather_bounded(
                (self._measure_again(states[name], late[name]) for name in late), GROUPS_AT_ONCE
            )
            states |= dict(zip(late, again, strict=True))
        return states

    async def _group_state(
        self, group: str, masters: Sequence[BrokerServer], clock: Clock
    ) -> tuple[ConsumerGroupState, GroupLag | None]:
        connections = await self.consumer_connections(group, masters)
        clients = 0 if connections is None else connections.clients
        lag, backlog = None, None
        if connections is None or not connections.is_broadcasting:
            lag, backlog = await self._backlog(group, connections)
        states: Mapping[str, ConsumerState] = {}
        if connections is not None and (len(connections.connections) > 1 or backlog is not None):
            states = (await self.consumer_states(group, connections)).states
        blocked = [queue for state in states.values() for queue in find_blocked(state, clock.now_ms())]
        return ConsumerGroupState(clients, _members(group, connections, states), backlog, tuple(blocked)), lag

    async def _backlog(
        self, group: str, connections: GroupConnections | None
    ) -> tuple[GroupLag | None, Backlog | None]:
        try:
            declared = connections.declared if connections is not None else Subscriptions()
            lag = await self.group_lag(group, subscriptions=declared)
            if not lag.lag.minimum:
                return lag, None
            ages = await self.unconsumed_ages(lag)
        except ArianeError:
            return None, None
        oldest_ms = max((age for age in ages.by_queue.values() if age is not None), default=None)
        return lag, Backlog(lag.lag.minimum, lag.lag.is_partial, oldest_ms)

    async def _measure_again(self, state: ConsumerGroupState, before: GroupLag) -> ConsumerGroupState:
        """Return the state with the growth of the lag, over the queues that are known in both measurements."""
        try:
            after = await self.group_lag(before.group)
        except ArianeError:
            return state
        queues = {queue.queue: queue for queue in before.queues if queue.lag is not None}
        pairs = [(queues[queue.queue], queue) for queue in after.queues if queue.queue in queues]
        growth = sum((new.lag or 0) - (old.lag or 0) for old, new in pairs if new.lag is not None)
        arrived = sum(new.broker_offset - old.broker_offset for old, new in pairs if new.lag is not None)
        assert state.backlog is not None
        return state._replace(backlog=state.backlog._replace(growth=growth, arrived=arrived))

    async def _dead_letters(self, topic: str, clock: Clock) -> DeadLetters | None:
        try:
            bounds = await self.fetch_bounds(topic)
        except ArianeError:
            return None
        newest_ms = max((queue.stored_ms for queue in bounds.queues if queue.stored_ms is not None), default=None)
        if newest_ms is None:
            return None
        now_ms = clock.now_ms()
        last_ms = max(0, now_ms - newest_ms)
        last_hour = await self._stored_since(bounds, now_ms - RECENT_MS) if last_ms <= RECENT_MS else 0
        return DeadLetters(bounds.messages, last_ms, last_hour)

    async def _stored_since(self, bounds: TopicBounds, since_ms: int) -> int | None:
        """Return the number of messages stored since a time; None if a broker or queue is unknown."""
        if bounds.unavailable:
            return None
        count = 0
        try:
            for queue in bounds.queues:
                if queue.stored_ms is not None and queue.stored_ms >= since_ms:
                    at = await self.locate_queue(bounds.topic, queue.broker, queue.queue_id)
                    first, _ = await self.exact_time_bounds(at, since_ms, None)
                    count += queue.max_offset - first
        except ArianeError:
            return None
        return count


def _is_candidate(state: ConsumerGroupState) -> bool:
    """Return whether a second measurement decides: of a group that is online, late, and not blocked."""
    return state.backlog is not None and is_late(state.backlog) and state.clients != 0 and not state.blocked


def _members(
    group: str, connections: GroupConnections | None, states: Mapping[str, ConsumerState]
) -> tuple[ClientState, ...]:
    clients = connections.connections if connections is not None else ()
    return tuple(
        ClientState(client.client_id, str(client.version), _subscriptions(group, states.get(client.client_id)))
        for client in sorted(clients, key=lambda client: client.client_id)
    )


def _subscriptions(group: str, state: ConsumerState | None) -> Mapping[str, str] | None:
    """Return topics and expressions of a member, without the group's own retry topic; None if it did not respond."""
    if state is None:
        return None
    return {data.topic: data.sub_string or "*" for data in state.subscriptions if data.topic != retry_topic(group)}
