"""Offsets of consumer groups: reset, skip, clone, and the statistics of one broker.

    reset: plan = offsets of the group (208) and of the target time (29, 30)
           broker with connected clients     222: the broker sends the offsets to them, they go on from there
           otherwise (206)                   15: the offset of each queue is replaced directly

[ResetOffsetByTime-, SkipAccumulation-, CloneGroupOffset-, BrokerConsumeStatsSubCommand]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from ariane.cluster.connection import BrokerServer, Change, ClusterConnection
from ariane.cluster.groups.group_admin import GroupOperations
from ariane.cluster.groups.group_lag import GroupLagOperations, QueueLag
from ariane.errors import ArianeError, NotFound, PartialFailure, ReplyError, ServerUnavailable
from ariane.model.message import MessageQueue
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.callbacks import ResetOffset, reset_table
from ariane.protocol.requests.messaging import OffsetResponse, QueueRef, SearchOffset, UpdateConsumerOffset
from ariane.protocol.requests.stats import ConsumeStatsList, GetBrokerConsumeStats, by_queue

LATEST = -1  # as a time: the end of each queue
EARLIEST = 0  # as a time: the first stored message of each queue


class OffsetTarget(NamedTuple):
    """Where a reset moves a group to: a time in ms (or LATEST, EARLIEST), or an offset of every queue."""

    time_ms: int | None = None
    offset: int | None = None


class QueueReset(NamedTuple):
    """The offset of one queue before and after a reset.

    `consumer_offset` is None if the group has committed none; `target_offset` is the offset of the wanted time, and
    `new_offset` where the group continues: without force a reset only moves backwards.
    """

    broker: str
    queue_id: int  # unique within topic and broker
    broker_offset: int  # offset after the last message of the queue
    consumer_offset: int | None
    target_offset: int
    new_offset: int | None


class ResetResult(NamedTuple):
    """Outcome of a reset. `online` contains the brokers that sent the offsets to connected clients."""

    queues: tuple[QueueReset, ...]
    online: frozenset[str]


class ClonedOffset(NamedTuple):
    """An offset that was copied to another group."""

    queue: MessageQueue
    offset: int


class GroupTopicStats(NamedTuple):
    """Queues of one topic that a group consumes on a broker."""

    group: str
    queues: tuple[QueueLag, ...]


class BrokerConsumeStatistics(NamedTuple):
    """Progress of all groups on one broker. `total_diff` counts queues without a committed offset from 0 on, as brokers do."""

    groups: tuple[GroupTopicStats, ...]
    total_diff: int


class OffsetOperations(GroupOperations, GroupLagOperations):
    """Operations on the offsets of consumer groups."""

    async def reset_offsets(
        self, group: str, topic: str, target: OffsetTarget, *, is_forced: bool = True, for_cpp: bool = False
    ) -> ResetResult:
        """Move a group to a time or an offset in every queue of a topic. In a dry run, return what would change.

        Args:
            group: Consumer group; it need not exist yet.
            topic: Topic whose offsets are moved.
            target: Time or offset.
            is_forced: Move forwards, too: messages in between are skipped.
            for_cpp: The connected clients are C++ clients, to which Apache's brokers send another form. Ariane's brokers choose
                it by the language of each client.

        Raises:
            RouteNotFound: no name server has the topic.
            ServerUnavailable: a broker did not respond, so that nothing was changed; or the target is an offset, and clients are
                connected, which would commit their own offsets over it.
            PartialFailure: some brokers rejected the request or did not respond.
        """
        servers = await self.masters_of(topic)
        plan = await self._plan_reset(servers, group, topic, target, is_forced)
        online = await self._online_brokers(servers, group)
        if online and target.time_ms is None:
            raise ServerUnavailable(
                f"group {group} has connected clients on {', '.join(sorted(online))}, which would commit over the new offsets;"
                " stop them, or reset to a time"
            )
        resets: list[QueueReset] = []
        failed: list[tuple[str, str]] = []
        for server in servers:
            queues = [queue for queue in plan if queue.broker == server.broker]
            try:
                if server.broker in online:
                    assert target.time_ms is not None
                    header = ResetOffset(topic, group, target.time_ms, is_forced)
                    resets += await self._reset_online(server, header, queues, for_cpp=for_cpp)
                else:
                    resets += await self._reset_directly(server, group, topic, queues)
            except ArianeError as error:
                failed.append((f"reset {topic} of {group} on {server.addr}", str(error)))
        if failed:
            raise PartialFailure(failed, [f"{change.summary} on {change.addr}" for change in self.changes])
        return ResetResult(tuple(sorted(resets)), frozenset(online))

    async def clone_offsets(
        self, source: str, destination: str, topics: Iterable[str], *, only_offline: bool = False
    ) -> list[ClonedOffset]:
        """Copy the offsets of a group in topics to another group. Queues without a committed offset are not copied.

        Args:
            source: Group whose offsets are copied.
            destination: Group that gets them.
            topics: Only offsets of these topics; Java's tool copies those of all topics.
            only_offline: Refuse while clients are connected for the destination, which would commit over the copied offsets.

        Raises:
            RouteNotFound: no name server has one of the topics; nothing was changed.
            NotFound: the source group has no committed offset of one of the topics; nothing was changed.
            ServerUnavailable: a broker did not respond, or the destination has connected clients; nothing was changed.
            PartialFailure: some brokers rejected the request or did not respond.
        """
        servers: dict[str, BrokerServer] = {}
        offsets_by_topic: dict[str, list[ClonedOffset]] = {}
        for topic in topics:
            masters = {server.broker: server for server in await self.masters_of(topic)}
            offsets_by_topic[topic] = [
                ClonedOffset(queue.queue, queue.consumer_offset)
                for queue in await self._queues_of(source, topic)
                if queue.consumer_offset is not None and queue.broker in masters
            ]
            servers |= masters
        if only_offline and await self._online_brokers(list(servers.values()), destination):
            raise ServerUnavailable(
                f"group {destination} has connected clients, which would commit over the new offsets; stop them"
            )
        for topic, offsets in offsets_by_topic.items():
            if not offsets:
                raise NotFound(f"committed offset of group {source} in topic", topic)
        copied = [offset for offsets in offsets_by_topic.values() for offset in offsets]
        await self.change(
            *(commit_change(servers[queue.broker].addr, destination, queue, offset) for queue, offset in copied)
        )
        return copied

    async def broker_consume_stats(
        self, server: BrokerServer, *, is_order: bool = False, timeout_ms: float | None = None
    ) -> BrokerConsumeStatistics:
        """Return the progress of all groups on a broker.

        Args:
            server: The broker.
            is_order: Only topics with ordered messages.
            timeout_ms: Time limit; None: three times the usual one, because the broker visits every queue.
        """
        answer = await self.peers.request_ok(
            server.addr,
            RequestCode.GET_BROKER_CONSUME_STATS,
            GetBrokerConsumeStats(is_order),
            timeout_ms=timeout_ms or self.timeout_ms * 3,
        )
        stats = fastjson.decode(answer.body, ConsumeStatsList)
        groups = [
            GroupTopicStats(
                group,
                tuple(
                    QueueLag(
                        queue.topic, queue.broker, queue.queue_id, entry.broker_offset, entry.consumer_offset,
                        entry.last_timestamp if entry.last_timestamp > 0 else None,
                    )
                    for queue, entry in sorted(by_queue(topic.offset_table).items())
                ),
            )
            for table in stats.consume_stats_list
            for group, topics in table.items()
            for topic in topics
        ]  # fmt: skip
        return BrokerConsumeStatistics(tuple(groups), stats.total_diff)

    # --- steps of a reset ---

    async def _queues_of(self, group: str, topic: str) -> tuple[QueueLag, ...]:
        """Return the queues of all brokers. A change of some queues because others are unknown would be half a change."""
        lag = await self.group_lag(group, topic)
        if not lag.is_complete:
            missing = "; ".join(f"{broker.broker} {broker.addr}: {broker.reason}" for broker in lag.unavailable)
            raise ServerUnavailable(f"nothing was changed, because offsets are unknown: {missing}")
        return lag.queues

    async def _plan_reset(
        self, servers: Sequence[BrokerServer], group: str, topic: str, target: OffsetTarget, is_forced: bool
    ) -> list[QueueReset]:
        addrs = {server.broker: server.addr for server in servers}
        plan = []
        for queue in await self._queues_of(group, topic):
            if queue.broker not in addrs:
                continue
            offset = await self._target_offset(addrs[queue.broker], queue.queue, target)
            is_backwards = queue.consumer_offset is not None and offset <= queue.consumer_offset
            new_offset = offset if is_forced or is_backwards else queue.consumer_offset
            plan.append(
                QueueReset(queue.broker, queue.queue_id, queue.broker_offset, queue.consumer_offset, offset, new_offset)
            )
        if not plan:
            raise NotFound(f"subscription of group {group} to topic", topic)
        return plan

    async def _target_offset(self, addr: str, queue: MessageQueue, target: OffsetTarget) -> int:
        if target.time_ms is not None and target.time_ms != LATEST:
            header = SearchOffset(queue.topic, queue.queue_id, target.time_ms)
            answer = await self.request(addr, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
            return decode_header(answer, OffsetResponse).offset
        first, last = [
            decode_header(await self.request(addr, code, QueueRef(queue.topic, queue.queue_id)), OffsetResponse).offset
            for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
        ]
        # An offset outside of the queue would be corrected by the next pull, to the other end in the worst case.
        return last if target.offset is None else max(first, min(target.offset, last))

    async def _online_brokers(self, servers: Sequence[BrokerServer], group: str) -> set[str]:
        connections = await self.consumer_connections(group, servers)
        if connections is None:
            return set()
        if connections.unavailable:
            missing = "; ".join(f"{broker.broker} {broker.addr}: {broker.reason}" for broker in connections.unavailable)
            raise ServerUnavailable(f"nothing was changed, because connected clients are unknown: {missing}")
        return set(connections.brokers)

    async def _reset_online(
        self, server: BrokerServer, header: ResetOffset, queues: Sequence[QueueReset], *, for_cpp: bool
    ) -> list[QueueReset]:
        change = Change(
            server.addr,
            f"reset {header.topic} of {header.group} through its connected clients",
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            header,
        )
        if self.is_dry_run:
            await self.change(change)
            return list(queues)
        try:
            answer = await self._request_reset(change, for_cpp=for_cpp)
        except ReplyError as error:
            if error.code == ResponseCode.CONSUMER_NOT_ONLINE:  # the last client left between the two requests
                return await self._reset_directly(server, header.group, header.topic, queues)
            # Brokers reject the reset if one queue has no committed offset: in an empty queue, clients commit none.
            uncommitted = [
                commit_change(
                    server.addr,
                    header.group,
                    MessageQueue(header.topic, queue.broker, queue.queue_id),
                    queue.new_offset,
                )
                for queue in queues
                if not queue.consumer_offset and queue.new_offset is not None
            ]
            if error.code != ResponseCode.SYSTEM_ERROR or not uncommitted:
                raise
            await self.change(*uncommitted)
            answer = await self._request_reset(change, for_cpp=for_cpp)
        self.changes.append(change)
        offsets = {queue.queue_id: offset for queue, offset in reset_table(answer.body).items()}
        return [queue._replace(new_offset=offsets.get(queue.queue_id, queue.consumer_offset)) for queue in queues]

    async def _request_reset(self, change: Change, *, for_cpp: bool) -> Command:
        if not for_cpp:
            return await self.request(change.addr, change.code, change.header, is_slow=True)
        # The broker takes the language of the clients from that of the request.
        async with ClusterConnection(self.name_servers, client=self.client, language="CPP") as cpp:
            return await cpp.request(change.addr, change.code, change.header, is_slow=True)

    async def _reset_directly(
        self, server: BrokerServer, group: str, topic: str, queues: Sequence[QueueReset]
    ) -> list[QueueReset]:
        moved = [
            commit_change(server.addr, group, MessageQueue(topic, queue.broker, queue.queue_id), queue.new_offset)
            for queue in queues
            if queue.new_offset is not None and queue.new_offset != queue.consumer_offset
        ]
        await self.change(*moved)
        return list(queues)


def commit_change(addr: str, group: str, queue: MessageQueue, offset: int) -> Change:
    header: msgspec.Struct = UpdateConsumerOffset(group, queue.topic, queue.queue_id, offset)
    summary = f"move {group} to offset {offset} in queue {queue.queue_id} of {queue.topic}"
    return Change(addr, summary, RequestCode.UPDATE_CONSUMER_OFFSET, header)
