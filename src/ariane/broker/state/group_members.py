"""Who is connected: consumers and producers by group, as their heartbeats say. [ConsumerManager, ProducerManager]

A member is a connection (its number), not a client id: two connections with one id are two members. `now_ms` is the
broker's monotonic time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ariane.errors import ReplyError
from ariane.protocol.codes import ResponseCode
from ariane.protocol.requests.clients import ConsumerData, SubscriptionData

MEMBER_LIVE_MS = 120_000

CONNECTION_GROUPS_MAX = 4_096  # memberships of one connection: a Java client has one connection for all its groups
MEMBERSHIPS_MAX = 400_000  # of all connections; one takes about 300 bytes
SUBSCRIPTION_CHARS_MAX = 64 * 1024 * 1024  # of the subscriptions of all groups together


class Member(NamedTuple):
    """One client of a group, over one connection."""

    client_id: str
    peer_id: int
    addr: str
    language: str | None
    version: int
    seen_ms: float


class ConsumerGroup:
    """The live members of a consumer group, and what the last heartbeat of any of them said."""

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.consume_type: str | int | None = None
        self.message_model: str | int | None = None
        self.consume_from_where: str | int | None = None
        self.subscription_chars = 0  # of the subscriptions, about

    @property
    def is_broadcasting(self) -> bool:
        return self.message_model in ("BROADCASTING", 0)

    def update(self, data: ConsumerData) -> bool:
        """Take over what a heartbeat says; True when a topic came or went."""
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        wanted = {subscription.topic: subscription for subscription in data.subscription_data_set}
        changed = wanted.keys() != self.subscriptions.keys()
        for topic, subscription in wanted.items():
            known = self.subscriptions.get(topic)
            if known is not None and known.sub_version >= subscription.sub_version:
                wanted[topic] = known
        self.subscription_chars = sum(map(_chars, wanted.values()))
        self.subscriptions = wanted
        return changed


def _chars(subscription: SubscriptionData) -> int:
    tags = sum(map(len, subscription.tags_set)) + 16 * len(subscription.code_set)
    return len(subscription.topic) + len(subscription.sub_string or "") + tags


class GroupMembers:
    """All groups of both kinds. Bounded by the constants above: what exceeds them is refused with a ReplyError."""

    def __init__(self) -> None:
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[int, Member]] = {}
        self.on_group_empty: Callable[[str], None] = lambda group: (
            None
        )  # told when the last member of a consumer group left
        self._joined: dict[int, dict[tuple[bool, str], None]] = {}  # connection → is a consumer group, its name
        self._membership_count = 0
        self._chars = 0
        self._producer_of: dict[str, dict[tuple[str, int], None]] = {}  # client id → its groups and connections

    def heartbeat_consumer(self, data: ConsumerData, member: Member) -> bool:
        """True when the others of the group have to be told: a new member, a topic more or less."""
        group = self.consumers.get(data.group_name) or ConsumerGroup()
        known = group.members.get(member.peer_id)
        growth = sum(map(_chars, data.subscription_data_set)) - group.subscription_chars
        self._refuse_too_many(growth, member, is_new=known is None)
        if known is None:
            self._join(member.peer_id, True, data.group_name)
        self.consumers[data.group_name] = group
        group.members[member.peer_id] = member
        self._chars -= group.subscription_chars
        changed = group.update(data)
        self._chars += group.subscription_chars
        return changed or known is None or known.client_id != member.client_id

    def heartbeat_producer(self, group: str, member: Member) -> None:
        known = self.producers.get(group, {}).get(member.peer_id)
        if known is not None and known.client_id != member.client_id:
            self.remove_producer(group, member.peer_id)
            known = None
        if known is None:
            self._refuse_too_many(0, member, is_new=True)
            self._join(member.peer_id, False, group)
        self.producers.setdefault(group, {})[member.peer_id] = member
        self._producer_of.setdefault(member.client_id, {})[group, member.peer_id] = None

    def remove_consumer(self, group: str, peer_id: int) -> bool:
        """True when it was a member."""
        known = self.consumers.get(group)
        if known is None or known.members.pop(peer_id, None) is None:
            return False
        self._leave(peer_id, True, group)
        if not known.members:
            self._chars -= known.subscription_chars
            del self.consumers[group]
            self.on_group_empty(group)
        return True

    def remove_producer(self, group: str, peer_id: int) -> None:
        members = self.producers.get(group, {})
        left = members.pop(peer_id, None)
        if not members:
            self.producers.pop(group, None)
        if left is not None:
            self._leave(peer_id, False, group)
            known = self._producer_of.get(left.client_id, {})
            known.pop((group, peer_id), None)
            if not known:
                self._producer_of.pop(left.client_id, None)

    def remove_peer(self, peer_id: int) -> list[str]:
        """A connection ended: the consumer groups it was a member of."""
        joined = list(self._joined.get(peer_id, ()))
        for is_consumer, group in joined:
            if is_consumer:
                self.remove_consumer(group, peer_id)
            else:
                self.remove_producer(group, peer_id)
        return [group for is_consumer, group in joined if is_consumer]

    def expired_peers(self, now_ms: float, live_ms: int = MEMBER_LIVE_MS) -> set[int]:
        """Connections whose last heartbeat is too old."""
        tables = [group.members for group in self.consumers.values()] + list(self.producers.values())
        return {m.peer_id for members in tables for m in members.values() if now_ms - m.seen_ms > live_ms}

    def client_ids(self, group: str) -> list[str]:
        known = self.consumers.get(group)
        return sorted({member.client_id for member in known.members.values()}) if known else []

    def consumer_peers(self, group: str) -> list[int]:
        """Connections of a consumer group."""
        known = self.consumers.get(group)
        return list(known.members) if known else []

    def consumer_members(self, group: str) -> list[Member]:
        """Members of a consumer group; of two connections with one client id, the one heard last."""
        known = self.consumers.get(group)
        if known is None:
            return []
        by_id: dict[str, Member] = {}
        for member in known.members.values():
            other = by_id.get(member.client_id)
            if other is None or member.seen_ms >= other.seen_ms:
                by_id[member.client_id] = member
        return list(by_id.values())

    def find_consumer(self, group: str, client_id: str) -> Member | None:
        """The member of a consumer group with this client id."""
        return next((member for member in self.consumer_members(group) if member.client_id == client_id), None)

    def find_producer(self, client_id: str) -> Member | None:
        """The newest connection on which the client is a producer, of any group."""
        known = self._producer_of.get(client_id)
        if not known:
            return None
        group, peer_id = next(reversed(known))
        return self.producers[group][peer_id]

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        known = self.consumers.get(group)
        return known.subscriptions.get(topic) if known else None

    def groups_of(self, topic: str) -> set[str]:
        """Consumer groups that are online and subscribe to a topic."""
        return {name for name, group in self.consumers.items() if topic in group.subscriptions}

    # --- bounds ---

    def _refuse_too_many(self, growth: int, member: Member, *, is_new: bool) -> None:
        """`growth` is the number of characters that subscriptions take more than before: a heartbeat that repeats what is
        stored is never refused."""
        remark = None
        if is_new and len(self._joined.get(member.peer_id, ())) >= CONNECTION_GROUPS_MAX:
            remark = (
                f"client {member.client_id} is a member of {CONNECTION_GROUPS_MAX} groups over one connection, "
                "which is the maximum; leave some groups, or use several connections"
            )
        elif is_new and self._membership_count >= MEMBERSHIPS_MAX:
            remark = f"this broker has {MEMBERSHIPS_MAX} members of groups, which is the maximum"
        elif growth > 0 and self._chars + growth > SUBSCRIPTION_CHARS_MAX:
            remark = f"the subscriptions of all groups hold {SUBSCRIPTION_CHARS_MAX} characters, which is the maximum"
        if remark is not None:
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)

    def _join(self, peer_id: int, is_consumer: bool, group: str) -> None:
        self._membership_count += 1
        self._joined.setdefault(peer_id, {})[is_consumer, group] = None

    def _leave(self, peer_id: int, is_consumer: bool, group: str) -> None:
        self._membership_count -= 1
        joined = self._joined[peer_id]
        del joined[is_consumer, group]
        if not joined:
            del self._joined[peer_id]
