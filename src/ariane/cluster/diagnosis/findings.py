"""Values of a diagnosis: the state of a cluster, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ariane.cluster.connection import BrokerServer
from ariane.cluster.groups.consumer_status import BlockedQueue

ERROR, WARNING = "error", "warning"


class Finding(NamedTuple):
    """Something to mend.

    Attributes:
        level: ERROR: messages are refused, unreachable or misrouted. WARNING: they will be, or answers mislead.
        check: Name of the check.
        subject: Server, cluster or group.
        problem: What is wrong, with the values.
        fix: What to do.
    """

    level: str
    check: str
    subject: str
    problem: str
    fix: str


class NameServerState(NamedTuple):
    """A name server: addresses of its brokers, or the reason why it did not respond.

    Attributes:
        addr: Its address.
        brokers: None if it did not respond.
        error: Why.
        reported: What an Ariane name server reports about its port, by key; empty if it refused.
    """

    addr: str
    brokers: frozenset[str] | None
    error: str = ""
    reported: Mapping[str, str] = {}


class BrokerState(NamedTuple):
    """A broker: its runtime values and configuration, or the reason why it did not respond.

    Attributes:
        server: The broker as registered.
        runtime: Values of code 28; None if it did not respond.
        config: Values of code 26; None if it did not respond or refused.
        error: Why it did not respond.
        asked_ms: This machine's time halfway through the request for `runtime`.
        uncertainty_ms: Half of that request's duration.
    """

    server: BrokerServer
    runtime: Mapping[str, str] | None
    config: Mapping[str, str] | None
    error: str = ""
    asked_ms: int = 0
    uncertainty_ms: int = 0


class ClientState(NamedTuple):
    """A member of a consumer group. `subscriptions` maps topics to expressions; None if it did not respond."""

    client_id: str
    version: str
    subscriptions: Mapping[str, str] | None


class Backlog(NamedTuple):
    """Messages that a group has not consumed.

    Attributes:
        pending: Number of messages: of the queues that are known.
        is_partial: Whether the number is a lower bound.
        oldest_ms: Age of the oldest one, by the broker's clock; None if unknown.
        growth: Messages by which the lag grew between two measurements; None if it was not measured again.
        arrived: Messages that were stored between both.
    """

    pending: int
    is_partial: bool
    oldest_ms: int | None
    growth: int | None = None
    arrived: int = 0


class DeadLetters(NamedTuple):
    """Stored dead letters of a group.

    Attributes:
        stored: Their number; None if a broker did not respond.
        last_ms: Age of the newest one, by this machine's clock; None without any.
        last_hour: Number of those of the last hour; None if unknown.
    """

    stored: int | None
    last_ms: int | None
    last_hour: int | None = None


class ConsumerGroupState(NamedTuple):
    """A consumer group.

    Attributes:
        clients: Number of connected clients; None if a broker did not respond.
        members: Its clients with their subscriptions, if there are several or some messages are pending.
        backlog: Messages that it has not consumed; None without any, if unknown, or if it broadcasts.
        blocked: Queues that clients own and do not consume.
        dead_letters: Its dead letters; None without any.
    """

    clients: int | None = 0
    members: tuple[ClientState, ...] = ()
    backlog: Backlog | None = None
    blocked: tuple[BlockedQueue, ...] = ()
    dead_letters: DeadLetters | None = None


class ClusterSnapshot(NamedTuple):
    """State of a cluster.

    Attributes:
        name_servers: Name servers.
        brokers: All servers that a name server lists.
        groups: Consumer groups by name, without those of tools; None if they could not be listed.
        open_files_max: Limit of open files of this process; None where systems have none.
    """

    name_servers: tuple[NameServerState, ...]
    brokers: tuple[BrokerState, ...]
    groups: Mapping[str, ConsumerGroupState] | None
    open_files_max: int | None = None
