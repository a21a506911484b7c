"""A group member whose application controls its queues: assignment by hand, positions, pauses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable

from ariane.client.consuming.fetched_messages import FetchedMessages
from ariane.client.consuming.group_options import Assignment
from ariane.client.membership.group_member import GroupMember
from ariane.client.membership.group_membership import GroupMembership
from ariane.errors import ConfigError
from ariane.filter import tags
from ariane.model.message import MessageQueue


class SeekableMember(GroupMember):
    """A member that takes fetched messages when its application is ready for them."""

    # The latest call of `assign`, which also holds when the consumer is closed and opened again; None before the first.
    _assigned: frozenset[MessageQueue] | None = None
    # Queues whose messages are not passed on; they survive a rebalance.
    _paused: frozenset[MessageQueue] = frozenset()

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group; None if there is none.

        Raises:
            ClientClosed: the consumer is not open.
            ConnectionLost, RequestTimeout, ReplyError: the broker did not respond, or with an error.
        """
        return await self._running_offsets().committed(queue)

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset of the next message that the application receives, after those that it has received and those
        that the filter skipped.

        Returns:
            The offset; None if the queue is not assigned to this member.

        Raises:
            ClientClosed: the consumer is not open.
        """
        for process_queue in self._running().rebalancer.process_queues:
            if process_queue.queue == queue:
                return self._fetched().position(process_queue)
        return None

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues, from their committed offsets (else from the start position).

        Raises:
            ClientClosed: the consumer is not open.
            ConfigError: the consumer was constructed with subscriptions.
        """
        membership = self._running()
        if self._options.assignment is not Assignment.MANUAL:
            fix = "this consumer has subscriptions; construct it without them to assign queues"
            raise ConfigError("assign", self.group, fix)
        self._assigned = frozenset(queues)
        topics = sorted({queue.topic for queue in self._assigned})
        await membership.assign(
            self._assigned, [self._subscriptions.get(topic) or self._subscription(topic, tags.ALL) for topic in topics]
        )

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue an assigned queue at `offset`. Messages that were fetched or received before are discarded: they count
        neither as consumed nor as failed.

        Raises:
            ClientClosed: the consumer is not open.
            ConfigError: the queue is not assigned to this member, or has no such offset.
            ConnectionLost, RequestTimeout, ReplyError: the broker did not respond, or with an error.
        """
        first, end = await self._running_offsets().bounds(queue)
        if not first <= offset <= end:
            raise ConfigError("offset", offset, f"{queue} has offsets {first} to {end}; choose one of these")
        self._seek(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue an assigned queue at its first message. Raises as `seek` does."""
        self._seek(queue, (await self._running_offsets().bounds(queue))[0])

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue an assigned queue after its last message. Raises as `seek` does."""
        self._seek(queue, (await self._running_offsets().bounds(queue))[1])

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Pass on no messages of these queues until `resume`; fetching continues until their caches are full."""
        self._paused |= frozenset(queues)

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Pass on messages of these queues again."""
        self._paused -= frozenset(queues)
        if self._membership is not None:
            self._fetched().available.set()

    @abstractmethod
    def _fetched(self) -> FetchedMessages:
        """Return the messages that the application has not received yet. Raises ClientClosed if the consumer is not open."""

    def _before_opening(self, membership: GroupMembership) -> None:
        membership.rebalancer.set_manual(self._assigned or ())

    def _check_assigned(self, call: str) -> None:
        """Raise ConfigError if there is nothing to read."""
        if self._options.assignment is Assignment.MANUAL and self._assigned is None:
            fix = f"no queues to read: call `assign` before {call}, or construct the consumer with subscriptions"
            raise ConfigError("subscriptions", None, fix)

    def _seek(self, queue: MessageQueue, offset: int) -> None:
        if not self._running().rebalancer.seek(queue, offset):
            raise ConfigError("queue", queue, f"not assigned to this member of {self.group}; see `queues`")
        self._fetched().forget_dropped()
