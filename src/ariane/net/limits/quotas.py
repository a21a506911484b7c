"""Limits in total, per address and per account: one table of resources and scopes, and who uses how much of each.

    connection ─→ ConnectionQuota ┬→ ScopeUsage of the server  ┐
                                  ├→ ScopeUsage of its address ├─→ exceeded: refused with `[QUOTA]<key of the limit>`, or read later
                                  └→ ScopeUsage of its account ┘

Bytes are added per read and per write, requests per batch, so no limit costs anything per message; without a limit of rates a read
costs one look at `is_active`. An IPv6 /64 network counts as one address. The account of a connection is that of its last signed
request, none before the first.

`Throttle` applies the limits of rates, `RemotingServer` those of connections. Objects (topics and so on) are counted by the broker,
which calls `admit`.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from ariane.net.limits.connection_limits import network_of
from ariane.net.limits.token_bucket import TokenBucket
from ariane.net.limits.unfinished_frames import FrameSender, UnfinishedFrames
from ariane.net.limits.unread_responses import UnreadResponses

ResourceName = Literal[
    "connections", "requests", "bytes_in", "bytes_out", "topics", "groups", "queues", "subscriptions", "unfinished", "unread"
]  # fmt: skip
Scope = Literal["server", "address", "account"]

QUOTA = "[QUOTA]"  # begin of the remark of a refusal, before the key of the limit
EXCEEDED_LIMITS_KEY = "exceededLimits"  # Ariane's own, in the runtime information of a broker: `describe_exceeded`
HOUR_S = 3600.0
IDLE_USAGES_MAX = 10_000  # addresses and accounts without connections whose use is remembered
NAME_MAX = 100  # characters of an account in a remark


class Resource(NamedTuple):
    """What is limited."""

    suffix: str  # of the key, after the scope
    unit: str  # in messages
    period_s: float = 0.0  # of a rate; 0: what exists is counted
    server_suffix: str = ""  # for the whole server, if it differs


RESOURCES: Mapping[ResourceName, Resource] = {
    "connections": Resource("ConnectionsMax", "connections"),
    "requests": Resource("RequestsPerSecond", "requests in a second", 1.0),
    "bytes_in": Resource("BytesInPerSecond", "received bytes in a second", 1.0),
    "bytes_out": Resource("BytesOutPerSecond", "sent bytes in a second", 1.0),
    "topics": Resource("TopicsPerHour", "topics created in an hour", HOUR_S, "TopicsMax"),
    "groups": Resource("GroupsPerHour", "groups created in an hour", HOUR_S, "GroupsMax"),
    "queues": Resource("QueuesPerHour", "queues created in an hour", HOUR_S, "QueuesMax"),
    "subscriptions": Resource("SubscriptionsMax", "subscriptions"),
    "unfinished": Resource("UnfinishedMax", "bytes of unfinished frames"),
    "unread": Resource("UnreadMax", "bytes of unread responses"),
}
SCOPES: tuple[Scope, ...] = ("server", "address", "account")
TRAFFIC: tuple[ResourceName, ...] = ("requests", "bytes_in", "bytes_out")


def limit_key(scope: Scope, resource: ResourceName) -> str:
    """Return the key of a limit in broker.conf and namesrv.conf."""
    row = RESOURCES[resource]
    return scope + ((scope == "server" and row.server_suffix) or row.suffix)


LIMIT_KEYS: Mapping[tuple[Scope, ResourceName], str] = {
    (scope, resource): limit_key(scope, resource) for resource in RESOURCES for scope in SCOPES
}


class Refusal(NamedTuple):
    """A limit that is exceeded."""

    key: str  # of the limit
    remark: str  # of the response


class LimitState(NamedTuple):
    """One limit, for metrics."""

    key: str
    limit: int
    """0: unlimited."""
    used: float | None
    """Of the server, or the most of any address or account; None: not counted."""
    exceeded: int
    """How often, since the start."""


class ScopeUsage:
    """What the server, an address, or an account uses."""

    def __init__(self, scope: Scope, name: str, limits: Mapping[ResourceName, int]) -> None:
        self.scope: Scope = scope
        self.key = scope, name
        self.name = _shown(scope, name)
        self.limits = limits  # of all usages of the scope, changed in place; 0 or absent: unlimited
        self.connections: dict[int, ConnectionQuota] = {}  # open ones, by number
        self.rates: dict[ResourceName, TokenBucket] = collections.defaultdict(TokenBucket)
        self.unfinished = UnfinishedFrames(f"all connections of {name}")
        self.unread = UnreadResponses()

    def used(self, resource: ResourceName, now: float) -> float:
        """Return how much of a resource is used."""
        limit, period_s = self.limits.get(resource, 0), RESOURCES[resource].period_s
        if period_s:
            return self.rates[resource].used(limit, period_s, now) if resource in self.rates else 0.0
        if resource == "connections":
            return len(self.connections)
        if resource == "subscriptions":
            return sum(connection.subscriptions for connection in self.connections.values())
        return self.unfinished.total if resource == "unfinished" else self.unread.total

    def refusal(self, resource: ResourceName, growth: float, now: float) -> Refusal | None:
        """Return why the use of a resource must not grow; None if it may."""
        limit = self.limits.get(resource, 0)
        if not limit or (used := self.used(resource, now)) + growth <= limit:
            return None
        key = limit_key(self.scope, resource)
        return Refusal(key, f"{QUOTA}{key}: {self.name} has {used:.0f} {RESOURCES[resource].unit}, {limit} are allowed")


class ConnectionQuota:
    """What one connection uses, and whose use it adds to."""

    __slots__ = ("account", "quotas", "sender", "subscriptions", "usages")

    def __init__(self, quotas: Quotas, usages: tuple[ScopeUsage, ...]) -> None:
        self.quotas = quotas
        self.usages = usages  # of the server, its address, and its account
        self.account: str | None = None
        self.subscriptions = 0  # topics that its consumers subscribe to
        self.sender: FrameSender | None = None  # while a frame is unfinished

    def add(self, resource: ResourceName, amount: int, now: float) -> float:
        """Add traffic. Return the seconds until it is within all limits again."""
        wait_s = 0.0
        for usage in self.usages:
            if limit := usage.limits.get(resource, 0):
                over_s = usage.rates[resource].add(amount, limit, RESOURCES[resource].period_s, now)
                if over_s:
                    wait_s = max(wait_s, over_s)
                    if resource != "requests":  # those that are refused are counted one by one
                        self.count_exceeded(usage, resource)
        return wait_s

    def refusal(self, resource: ResourceName, growth: float, now: float) -> Refusal | None:
        """Return which limit must not be exceeded by `growth`; None if none is."""
        refusals = (usage.refusal(resource, growth, now) for usage in self.usages)
        return next((refusal for refusal in refusals if refusal is not None), None)

    def count_exceeded(self, usage: ScopeUsage, resource: ResourceName, times: int = 1) -> None:
        """Count that a limit of `usage` was exceeded."""
        self.quotas.exceeded[limit_key(usage.scope, resource)] += times

    def note_unfinished(self, sender: FrameSender, size: int) -> None:
        """Record the bytes of an unfinished frame, 0 if it is complete. Beyond a limit the oldest one's connection is dropped."""
        self.sender = sender if size else None
        for usage in self.usages:  # without a limit, too: one may be set while the frame is unfinished, or removed
            usage.unfinished.total_max = usage.limits.get("unfinished", 0)
            if dropped := usage.unfinished.note(sender, size):
                self.count_exceeded(usage, "unfinished", dropped)

    def limited(self, resource: ResourceName) -> Iterator[tuple[ScopeUsage, int]]:
        """Return the usages with a limit of this resource, and the limits."""
        return ((usage, limit) for usage in self.usages if (limit := usage.limits.get(resource, 0)))


class Quotas:
    """The limits of a server, and the usage of all its addresses and accounts."""

    def __init__(self) -> None:
        self._limits: dict[Scope, dict[ResourceName, int]] = {scope: {} for scope in SCOPES}
        self.server = ScopeUsage("server", "", self._limits["server"])
        self._usages: dict[tuple[Scope, str], ScopeUsage] = {}  # of addresses and accounts
        # Those without a connection: a client that connects again has used what it used before. The oldest are forgotten.
        self._idle: dict[tuple[Scope, str], None] = {}
        self.exceeded: dict[str, int] = dict.fromkeys(LIMIT_KEYS.values(), 0)
        self.is_active = False  # whether traffic has to be counted

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """Put limits in force, by key; the others stay. The broker itself compares its topics, groups and queues with theirs."""
        for (scope, resource), key in LIMIT_KEYS.items():
            if key in limits and not (scope == "server" and RESOURCES[resource].server_suffix):
                self._limits[scope][resource] = limits[key]
        self.is_active = any(self._limits[scope].get(resource) for scope in SCOPES for resource in TRAFFIC)

    # --- connections ---

    def open(self, number: int, ip: str) -> ConnectionQuota:
        """Count a new connection."""
        quota = ConnectionQuota(self, (self.server, self._usage("address", network_of(ip))))
        for usage in quota.usages:
            usage.connections[number] = quota
        return quota

    def connection_refusal(self, number: int) -> Refusal | None:
        """Return why a connection that was just opened must be closed, and count that; None if it may stay."""
        return self._count(self.server.connections[number].refusal("connections", 0, 0.0))

    def close(self, number: int) -> None:
        """Stop counting a connection."""
        quota = self.server.connections.get(number)
        for usage in quota.usages if quota is not None else ():
            self._leave(usage, number)

    def identify(self, number: int, account: str) -> Refusal | None:
        """Note that a request of a connection was signed by an account. Return why it must be refused; None if it is served."""
        quota = self.server.connections.get(number)
        if quota is None or quota.account == account:
            return None
        usage = self._usage("account", account)
        if refusal := usage.refusal("connections", 1, 0.0):
            if not usage.connections:
                self._idle[usage.key] = None
            return self._count(refusal)
        for former in quota.usages[2:]:
            self._leave(former, number)
            if quota.sender is not None:
                former.unfinished.note(quota.sender, 0)
        quota.account, quota.usages = account, (*quota.usages[:2], usage)
        usage.connections[number] = quota
        return None

    def _usage(self, scope: Scope, name: str) -> ScopeUsage:
        key = scope, name
        self._idle.pop(key, None)
        usage = self._usages.get(key)
        if usage is None:
            usage = self._usages[key] = ScopeUsage(scope, name, self._limits[scope])
        return usage

    def _leave(self, usage: ScopeUsage, number: int) -> None:
        usage.connections.pop(number, None)
        if usage is not self.server and not usage.connections:
            self._idle[usage.key] = None
            if len(self._idle) > IDLE_USAGES_MAX:
                oldest = next(iter(self._idle))
                del self._idle[oldest], self._usages[oldest]

    # --- objects ---

    def admit(self, number: int, growths: Mapping[ResourceName, int], now: float) -> Refusal | None:
        """Count new objects of a connection. Return the limit that forbids them, and count that; None if they are allowed."""
        quota = self.server.connections.get(number)
        if quota is None:  # the connection was closed
            return None
        for resource, growth in growths.items():
            if growth and (refusal := quota.refusal(resource, growth, now)):
                return self._count(refusal)
        for resource, growth in growths.items():
            if growth and RESOURCES[resource].period_s:
                quota.add(resource, growth, now)
        return None

    def set_subscriptions(self, number: int, count: int) -> None:
        """Note how many topics the consumers on a connection subscribe to."""
        quota = self.server.connections.get(number)
        if quota is not None:
            quota.subscriptions = count

    def _count(self, refusal: Refusal | None) -> Refusal | None:
        if refusal is not None:
            self.exceeded[refusal.key] += 1
        return refusal

    # --- metrics ---

    def states(self, now: float) -> Iterator[LimitState]:
        """Return the state of every limit that the server has set."""
        for (scope, resource), key in LIMIT_KEYS.items():
            limit = self._limits[scope].get(resource)
            if limit is None:
                continue
            usages = (
                [self.server]
                if scope == "server"
                else [usage for usage in self._usages.values() if usage.scope == scope]
            )
            is_counted = limit or resource in ("connections", "subscriptions")
            used = max((usage.used(resource, now) for usage in usages), default=0.0) if is_counted else None
            yield LimitState(key, limit, used, self.exceeded[key])


def describe_exceeded(exceeded: Mapping[str, int]) -> str:
    """Return the limits that were exceeded, and how often, in one line; empty if none was."""
    return ", ".join(f"{key} {times}" for key, times in exceeded.items() if times)


def _shown(scope: Scope, name: str) -> str:
    """Return who uses something, in messages."""
    if scope == "server":
        return "this server"
    return f"{scope} {name[:NAME_MAX]}" if name.isprintable() else f"{scope} {name[:NAME_MAX]!r}"
