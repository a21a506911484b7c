"""Which queues a member of a group consumes, and by POP or PULL, if the broker decides: QUERY_ASSIGNMENT (400) and
SET_MESSAGE_REQUEST_MODE (401) of 5.x. [QueryAssignmentProcessor]"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import msgspec

from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.state.group_members import GroupMembers
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.saved.change_records import RequestModePut
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.errors import ReplyError
from ariane.model.topic import PERM_READ, RETRY_PREFIX
from ariane.net.connection import Peer, Reply
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_body
from ariane.protocol.requests.clients import BROADCASTING
from ariane.protocol.requests.pop import (
    POP_MODE,
    PULL_MODE,
    AssignedQueue,
    QueryAssignment,
    QueueAssignment,
    QueueAssignments,
    RequestMode,
    RequestModes,
)
from ariane.protocol.requests.routing import TopicRoute

ALL_QUEUES = -1

T = TypeVar("T")


class QueueOfBroker(NamedTuple):
    broker_name: str
    queue_id: int


def averagely(items: Sequence[T], members: int, index: int) -> list[T]:
    """Return a contiguous share; the first members have one more if the items cannot be divided evenly. [AVG]"""
    size, larger = divmod(len(items), members)
    start = index * size + min(index, larger)
    return list(items[start : start + size + (index < larger)])


def by_circle(items: Sequence[T], members: int, index: int) -> list[T]:
    """Return every `members`-th item. [AVG_BY_CIRCLE]"""
    return list(items[index::members])


STRATEGIES: dict[str, Callable[[Sequence[QueueOfBroker], int, int], list[QueueOfBroker]]] = {
    "AVG": averagely,
    "AVG_BY_CIRCLE": by_circle,
}


@dataclass(frozen=True, kw_only=True)
class AssignmentHandler:
    """Assigns the queues of a topic, on all brokers, to the members of a group."""

    settings: DynamicConfig
    topics: TopicRegistry
    groups: GroupRegistry
    members: GroupMembers  # with live heartbeats
    modes: RequestModes
    route: Callable[[str], Awaitable[TopicRoute | None]]  # of a topic; None if no name server answers
    record: Callable[[RequestModePut], None]  # stores a change; raises StoreError if it cannot be stored

    async def query(self, command: Command, peer: Peer) -> Reply:
        """Handle QUERY_ASSIGNMENT. The body is empty if the client, the topic or the strategy is unknown, as in 5.x."""
        request = decode_body(command, QueryAssignment)
        mode = self._mode(request)
        queues = self._assigned(request, mode, await self._queues(request.topic))
        if queues is None:
            return Reply(body=b"{}")
        assignments = tuple(
            QueueAssignment(AssignedQueue(queue.broker_name, queue.queue_id, request.topic), mode.mode)
            for queue in queues
        )
        return Reply(body=msgspec.json.encode(QueueAssignments(assignments)))

    def set_mode(self, command: Command, peer: Peer) -> Reply:
        """Handle SET_MESSAGE_REQUEST_MODE."""
        mode = decode_body(command, RequestMode)
        if mode.topic.startswith(RETRY_PREFIX):
            raise ReplyError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if mode.mode not in (POP_MODE, PULL_MODE):
            raise ReplyError(
                ResponseCode.INVALID_PARAMETER, f"Invalid mode {mode.mode!r}: expected {POP_MODE} or {PULL_MODE}"
            )
        if self.topics.get(mode.topic) is None:
            raise ReplyError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{mode.topic}] not exist; create it")
        if self.groups.get_or_create(mode.consumer_group) is None:
            remark = f"subscription group [{mode.consumer_group}] not exist; create it"
            raise ReplyError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        self.record(RequestModePut(mode))
        self.modes.put(mode)
        return Reply()

    def _mode(self, request: QueryAssignment) -> RequestMode:
        is_set = not request.topic.startswith(RETRY_PREFIX)  # retry topics are always pulled
        stored = self.modes.get(request.topic, request.consumer_group) if is_set else None
        return stored or RequestMode(request.topic, request.consumer_group, PULL_MODE)

    async def _queues(self, topic: str) -> list[QueueOfBroker]:
        """Return the readable queues of a topic, in the order of Java's MessageQueue: those of this broker without name servers."""
        route, config = await self.route(topic), self.topics.get(topic)
        if route is not None:
            counts = {data.broker_name: data.read_queue_nums for data in route.queue_datas if data.perm & PERM_READ}
        else:
            counts = {} if config is None else {self.settings.current.broker_name: config.read_queue_nums}
        return [QueueOfBroker(name, queue_id) for name in sorted(counts) for queue_id in range(counts[name])]

    def _assigned(
        self, request: QueryAssignment, mode: RequestMode, queues: list[QueueOfBroker]
    ) -> list[QueueOfBroker] | None:
        """Return the queues of a member; None if they cannot be decided."""
        group = self.members.consumers.get(request.consumer_group)
        if not queues or group is None:
            return None
        if request.message_model in BROADCASTING:
            return queues
        clients = sorted({member.client_id for member in group.members.values()})
        share = STRATEGIES.get(request.strategy_name or "")
        if share is None or request.client_id not in clients:
            return None
        index = clients.index(request.client_id)
        if mode.mode != POP_MODE:
            return share(queues, len(clients), index)
        shared = mode.pop_share_queue_num
        if shared <= 0 or shared >= len(clients) - 1:
            return [QueueOfBroker(name, ALL_QUEUES) for name in dict.fromkeys(queue.broker_name for queue in queues)]
        if len(clients) > len(queues):  # one queue each
            return [queues[index % len(queues)]]
        # Its own queues, and those of the next members.
        owners = [(index + step) % len(clients) for step in range(shared + 1)]
        return sorted({queue for owner in owners for queue in share(queues, len(clients), owner)})
