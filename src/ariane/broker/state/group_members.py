"""Connected clients: the members of consumer and producer groups, from heartbeats. [ConsumerManager, ProducerManager]

A member is a connection, not a client id: two connections with one client id are two members. `now_ms` is monotonic time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ariane.errors import ReplyError
from ariane.protocol.codes import ResponseCode
from ariane.protocol.requests.clients import BROADCASTING, ConsumerData, SubscriptionData

MEMBER_LIVE_MS = 120_000

CONNECTION_GROUPS_MAX = 4_096  # memberships of one connection: a Java client has one connection for all its groups
MEMBERSHIPS_MAX = 400_000  # memberships of all connections; one takes about 300 bytes
SUBSCRIPTION_CHARS_MAX = 64 * 1024 * 1024  # characters of the subscriptions of all groups


class Member(NamedTuple):
    """One client of a group, on one connection."""

    client_id: str  # of the process; one client may have several connections for a moment
    peer_id: int
    """Number of the connection."""
    addr: str  # for tools
    language: str | None  # for tools; None if it is unknown
    version: int
    """Version of the client, as a number of RocketMQ."""
    seen_ms: float
    """Time of the last heartbeat."""


class ConsumerGroup:
    """The live members of a consumer group, and the contents of the last heartbeat of any of them."""

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}  # by connection
        self.subscriptions: dict[str, SubscriptionData] = {}  # by topic
        # Push or pull; None before a heartbeat. These three are texts, or Java's ordinals from some clients.
        self.consume_type: str | int | None = None
        self.message_model: str | int | None = None  # decides whether pulls broadcast
        self.consume_from_where: str | int | None = None  # for tools
        self.subscription_chars = 0  # approximate size of the subscriptions

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member consumes every message."""
        return self.message_model in BROADCASTING

    def update(self, data: ConsumerData) -> bool:
        """Apply a heartbeat. Return whether the set of subscribed topics changed."""
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        subscriptions = {subscription.topic: subscription for subscription in data.subscription_data_set}
        changed = subscriptions.keys() != self.subscriptions.keys()
        for topic, subscription in subscriptions.items():
            current = self.subscriptions.get(topic)
            if current is not None and current.sub_version >= subscription.sub_version:
                subscriptions[topic] = current
        self.subscription_chars = sum(map(_chars, subscriptions.values()))
        self.subscriptions = subscriptions
        return changed


def _chars(subscription: SubscriptionData) -> int:
    tags = sum(map(len, subscription.tags_set)) + 16 * len(subscription.code_set)
    return len(subscription.topic) + len(subscription.sub_string or "") + tags


class GroupMembers:
    """All groups of consumers and producers.

    The constants above bound the tables: a heartbeat that exceeds one is refused with a ReplyError.
    """

    def __init__(self) -> None:
        self.consumers: dict[str, ConsumerGroup] = {}  # by group; a group without members is removed
        self.producers: dict[str, dict[int, Member]] = {}  # by group and connection
        self.on_group_empty: Callable[[str], None] = lambda group: (
            None
        )  # called after the last member of a consumer group left
        self._joined: dict[
            int, dict[tuple[bool, str], int]
        ] = {}  # connection → (is a consumer group, name of the group) → topics that it subscribes to
        self._membership_count = 0  # compared with MEMBERSHIPS_MAX
        self._chars = 0  # compared with SUBSCRIPTION_CHARS_MAX
        self._producer_of: dict[str, dict[tuple[str, int], None]] = {}  # client id → its groups and connections

    def heartbeat_consumer(self, data: ConsumerData, member: Member) -> bool:
        """Apply a consumer's heartbeat. Return whether the others are to be notified: a member joined or a subscription changed."""
        group = self.consumers.get(data.group_name) or ConsumerGroup()
        current = group.members.get(member.peer_id)
        growth = sum(map(_chars, data.subscription_data_set)) - group.subscription_chars
        self._refuse_too_many(growth, member, is_new=current is None)
        if current is None:
            self._join(member.peer_id, True, data.group_name)
        self.consumers[data.group_name] = group
        group.members[member.peer_id] = member
        self._joined[member.peer_id][True, data.group_name] = len(data.subscription_data_set)
        self._chars -= group.subscription_chars
        changed = group.update(data)
        self._chars += group.subscription_chars
        return changed or current is None or current.client_id != member.client_id

    def heartbeat_producer(self, group: str, member: Member) -> None:
        """Apply the heartbeat of a producer."""
        current = self.producers.get(group, {}).get(member.peer_id)
        if current is not None and current.client_id != member.client_id:
            self.remove_producer(group, member.peer_id)
            current = None
        if current is None:
            self._refuse_too_many(0, member, is_new=True)
            self._join(member.peer_id, False, group)
        self.producers.setdefault(group, {})[member.peer_id] = member
        self._producer_of.setdefault(member.client_id, {})[group, member.peer_id] = None

    def remove_consumer(self, group: str, peer_id: int) -> bool:
        """Remove a member of a consumer group. Return whether it was one."""
        consumer_group = self.consumers.get(group)
        if consumer_group is None or consumer_group.members.pop(peer_id, None) is None:
            return False
        self._leave(peer_id, True, group)
        if not consumer_group.members:
            self._chars -= consumer_group.subscription_chars
            del self.consumers[group]
            self.on_group_empty(group)
        return True

    def remove_producer(self, group: str, peer_id: int) -> None:
        """Remove a member of a producer group."""
        members = self.producers.get(group, {})
        removed = members.pop(peer_id, None)
        if not members:
            self.producers.pop(group, None)
        if removed is not None:
            self._leave(peer_id, False, group)
            memberships = self._producer_of.get(removed.client_id, {})
            memberships.pop((group, peer_id), None)
            if not memberships:
                self._producer_of.pop(removed.client_id, None)

    def remove_peer(self, peer_id: int) -> list[str]:
        """Remove a closed connection from all groups. Return the consumer groups that it was a member of."""
        joined = list(self._joined.get(peer_id, ()))
        for is_consumer, group in joined:
            if is_consumer:
                self.remove_consumer(group, peer_id)
            else:
                self.remove_producer(group, peer_id)
        return [group for is_consumer, group in joined if is_consumer]

    def expired_peers(self, now_ms: float, live_ms: int = MEMBER_LIVE_MS) -> set[int]:
        """Return the connections whose last heartbeat is more than `live_ms` old."""
        tables = [group.members for group in self.consumers.values()] + list(self.producers.values())
        return {m.peer_id for members in tables for m in members.values() if now_ms - m.seen_ms > live_ms}

    def client_ids(self, group: str) -> list[str]:
        """Return the sorted client ids of a consumer group."""
        consumer_group = self.consumers.get(group)
        return sorted({member.client_id for member in consumer_group.members.values()}) if consumer_group else []

    def consumer_peers(self, group: str) -> list[int]:
        """Return the connections of a consumer group."""
        consumer_group = self.consumers.get(group)
        return list(consumer_group.members) if consumer_group else []

    def consumer_members(self, group: str) -> list[Member]:
        """Return the members of a consumer group, one per client id: the one with the latest heartbeat."""
        consumer_group = self.consumers.get(group)
        if consumer_group is None:
            return []
        by_id: dict[str, Member] = {}
        for member in consumer_group.members.values():
            other = by_id.get(member.client_id)
            if other is None or member.seen_ms >= other.seen_ms:
                by_id[member.client_id] = member
        return list(by_id.values())

    def find_consumer(self, group: str, client_id: str) -> Member | None:
        """Return the member of a consumer group with this client id, None if there is none."""
        return next((member for member in self.consumer_members(group) if member.client_id == client_id), None)

    def find_producer(self, client_id: str) -> Member | None:
        """Return the newest connection on which the client is a producer of any group."""
        memberships = self._producer_of.get(client_id)
        if not memberships:
            return None
        group, peer_id = next(reversed(memberships))
        return self.producers[group][peer_id]

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return the subscription of a consumer group to a topic, None if there is none."""
        consumer_group = self.consumers.get(group)
        return consumer_group.subscriptions.get(topic) if consumer_group else None

    def subscription_count(self, peer_id: int, group: str | None = None) -> int:
        """Return how many topics the consumers on a connection subscribe to, all or that of one group."""
        joined = self._joined.get(peer_id, {})
        return sum(joined.values()) if group is None else joined.get((True, group), 0)

    def groups_of(self, topic: str) -> set[str]:
        """Return the consumer groups with members that subscribe to a topic."""
        return {name for name, group in self.consumers.items() if topic in group.subscriptions}

    # --- bounds ---

    def _refuse_too_many(self, growth: int, member: Member, *, is_new: bool) -> None:
        """Raise ReplyError if a heartbeat would exceed a bound.

        Args:
            growth: Characters that the subscriptions of the group take in addition. A heartbeat that repeats the stored
                subscriptions has no growth and is never refused.
            member: The sender of the heartbeat.
            is_new: Whether the sender is not yet a member.
        """
        remark = None
        if is_new and len(self._joined.get(member.peer_id, ())) >= CONNECTION_GROUPS_MAX:
            remark = (
                f"client {member.client_id} is a member of {CONNECTION_GROUPS_MAX} groups on one connection, the maximum; "
                "leave some groups, or use several connections"
            )
        elif is_new and self._membership_count >= MEMBERSHIPS_MAX:
            remark = f"this broker has {MEMBERSHIPS_MAX} members of groups, the maximum"
        elif growth > 0 and self._chars + growth > SUBSCRIPTION_CHARS_MAX:
            remark = f"the subscriptions of all groups have {SUBSCRIPTION_CHARS_MAX} characters, the maximum"
        if remark is not None:
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)

    def _join(self, peer_id: int, is_consumer: bool, group: str) -> None:
        self._membership_count += 1
        self._joined.setdefault(peer_id, {})[is_consumer, group] = 0

    def _leave(self, peer_id: int, is_consumer: bool, group: str) -> None:
        self._membership_count -= 1
        joined = self._joined[peer_id]
        del joined[is_consumer, group]
        if not joined:
            del self._joined[peer_id]
