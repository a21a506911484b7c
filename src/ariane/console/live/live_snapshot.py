"""The polled state of a cluster, as the rows that lists search, sort and page. Pure values; `snapshot_builder` fills them.

    LiveSnapshot ─┬─ NameServerRow     one per configured name server
                  ├─ BrokerRow         one per master and slave
                  ├─ TopicRow          one per topic, summed over all masters
                  ├─ GroupRow          one per consumer group, summed over all masters and slaves
                  │    └─ BrokerShare  the part of one broker in a group's rate
                  └─ LiveHistory       rates and lags of about the last hour

None is an unknown value, never 0. A sum with an unknown part is the sum of the known parts, and `…_is_partial` is True; it is
None if no part is known. The garbage collector does not visit the rows (`gc=False`): there may be 10,000 of them, and they are
part of no cycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from ariane.cluster.servers.broker_sets import BrokerSet
from ariane.console.live.live_history import LiveHistory

TopicKind = Literal["normal", "retry", "dlq", "delay", "system"]
ConsumeType = Literal["push", "pull"]
MessageModel = Literal["clustering", "broadcasting"]


class NameServerRow(msgspec.Struct, frozen=True, gc=False):
    """A name server."""

    addr: str
    """HOST:PORT, as configured."""
    is_up: bool
    """Whether it responded."""
    open_ports: str = ""
    """What other machines can do, because its port lacks protection; empty: nothing, or unknown."""
    certificate_days: int | None = None
    """Whole days until the certificate of its port expires, negative if it has; None without one, or if unknown."""


class BrokerRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A master or slave. All figures are None while the broker does not respond."""

    cluster: str
    broker: str
    """Broker name, which a master shares with its slaves."""
    broker_id: int
    """0: master."""
    addr: str
    """HOST:PORT, as registered with the name servers."""
    is_up: bool
    """Whether it responded. False: its state is unknown."""
    is_registered: bool = True
    """Whether a name server lists it. One that no longer is remains in the list for some minutes."""
    reason: str = ""
    """Why it is unknown; empty if it responded."""
    open_ports: str = ""
    """What other machines can do, because its ports lack protection; empty: nothing, or unknown."""
    certificate_days: int | None = None
    """Whole days until the certificate of its ports expires, negative if it has; None without one, or if unknown."""
    version: str | None = None
    """Name of its version, such as V4_9_4."""
    boot_ms: int | None = None
    """When it was started."""
    tps_in: float | None = None
    """Messages stored per second, over the last 10 s."""
    tps_out: float | None = None
    """Messages delivered per second, over the last 10 s."""
    put_today: int | None = None
    """Messages stored since midnight of the broker's clock."""
    got_today: int | None = None
    """Messages delivered since then."""
    put_yesterday: int | None = None
    """Messages stored on the day before."""
    got_yesterday: int | None = None
    """Messages delivered on the day before."""
    disk_ratio: float | None = None
    """Used share of the commit log's disk, 0 to 1."""
    log_start: int | None = None
    """First position of the commit log."""
    log_end: int | None = None
    """End of the commit log in bytes."""
    dispatch_behind_bytes: int | None = None
    """Bytes of the commit log that consumers cannot read yet."""
    replication_lag_bytes: int | None = None
    """Of a slave: bytes of its master's commit log that it does not have yet."""
    replication_delay_ms: int | None = None
    """Of a slave: time since its master's commit log ended where the slave's ends now; 0 if it has everything."""
    replication_delay_is_minimum: bool = False
    """Whether the delay began before the console observed the master, so that it is longer."""
    earliest_ms: int | None = None
    """Store time of the oldest message."""

    @property
    def is_master(self) -> bool:
        """Whether it is the master of its name."""
        return self.broker_id == 0


class TopicRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A topic, summed over the masters that have it."""

    topic: str
    kind: TopicKind
    """`retry` and `dlq` topics belong to a group; `delay` holds messages until they are due; `system` belongs to the broker."""
    clusters: tuple[str, ...] = ()
    """Clusters whose masters have it."""
    brokers: tuple[str, ...] = ()
    """Names of the brokers that have it, those that do not respond included."""
    queues: int | None = None
    """Number of queues of all brokers."""
    read_queues: int | None = None
    """Queues that consumers read, of all brokers."""
    write_queues: int | None = None
    """Queues that producers choose from, of all brokers."""
    perms: tuple[int, ...] = ()
    """Permissions that it has on any broker: 2 write, 4 read, 6 both."""
    messages: int | None = None
    """Messages in its queues."""
    tps_in: float | None = None
    """Messages stored per second, over the last minute; always None for `retry` and `dlq`, whose rate is not requested."""
    bytes_in: float | None = None
    """Bytes stored per second, over the last minute."""
    groups: tuple[str, ...] = ()
    """Consumer groups that have offsets or a subscription, sorted."""
    is_partial: bool = False
    """Whether a master that has the topic does not respond, so that the sums lack its part."""
    tps_is_partial: bool = False
    """The same for the rates."""
    missing: tuple[str, ...] = ()
    """Brokers whose part is missing if `is_partial`, sorted."""
    tps_missing: tuple[str, ...] = ()
    """The same for the rates."""


class BrokerShare(msgspec.Struct, frozen=True, gc=False):
    """The messages per second that one broker delivers to a group.

    Attributes:
        broker: Broker name.
        broker_id: 0 for the master; a slave's share is that of reads that it serves.
        tps: Messages per second over the last minute; None: the broker does not respond.
    """

    broker: str
    broker_id: int
    tps: float | None


class BlockedOffset(NamedTuple):
    """A queue with a lag that the push consumers of a group do not consume; `since_ms`: first poll with the same offset."""

    topic: str
    broker: str
    queue_id: int
    since_ms: int


class GroupRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A consumer group, summed over all brokers."""

    group: str
    is_system: bool = False
    """Whether it belongs to the broker or to a tool."""
    topics: tuple[str, ...] = ()
    """Topics that it has offsets of or subscribes to, sorted, without its retry topic."""
    lag: int | None = None
    """Messages that it has not consumed yet, those of its retry topic included."""
    lag_is_partial: bool = False
    """Whether the lag lacks queues or brokers whose state is unknown."""
    oldest_age_ms: int | None = None
    """Age of the oldest message that it has not consumed; None without a lag, or if unknown."""
    tps: float | None = None
    """Messages delivered per second over the last minute: the sum of masters and slaves."""
    tps_is_partial: bool = False
    """Whether the rate lacks brokers that do not respond."""
    shares: tuple[BrokerShare, ...] = ()
    """The rate by broker, slaves included, sorted."""
    blocked: tuple[BlockedOffset, ...] | None = None
    """Queues that its clients have not consumed for a minute although messages are pending; None: not polled for a minute yet."""
    clients: int | None = None
    """Number of connected clients."""
    consume_type: ConsumeType | None = None
    """How its clients consume; None without clients."""
    model: MessageModel | None = None
    """`broadcasting` groups have their offsets at the clients; None without clients."""
    versions: tuple[str, ...] = ()
    """Versions of its clients, sorted."""
    languages: tuple[str, ...] = ()
    """Languages of its clients, sorted."""
    dead_letters: int | None = None
    """Messages in its dead-letter topic; 0 without that topic."""
    dead_letters_is_partial: bool = False
    """Whether the dead letters lack brokers that do not respond."""

    @property
    def slaves_tps(self) -> float | None:
        """The part of the rate that slaves deliver; None if one does not respond."""
        parts = [share.tps for share in self.shares if share.broker_id != 0]
        return None if None in parts else sum(tps for tps in parts if tps is not None)


class ClusterTotals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Sums over the cluster; None if no part is known."""

    tps_in: float | None = None
    """Messages stored per second, of all masters, over the last 10 s."""
    tps_out: float | None = None
    """Messages delivered per second, of all masters and slaves, over the last 10 s."""
    tps_is_partial: bool = False
    """Whether the rates lack a broker that does not respond."""
    lag: int | None = None
    """Sum of the lags of all groups that do not broadcast."""
    lag_is_partial: bool = False
    """Whether the lag lacks that of a group."""


class LiveSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of all clusters of the name servers. Rows are sorted by name."""

    as_of_ms: int
    """Time at which the poll of name servers and brokers began; 0: none yet."""
    base_as_of_ms: int | None = None
    """The same for topics, queues, offsets and lags, so for lists; None: not polled yet, and the lists are empty."""
    rates_as_of_ms: int | None = None
    """The same for the rates of topics and groups; None: not polled yet, and these are unknown."""
    clients_as_of_ms: int | None = None
    """The same for the clients of groups."""
    ages_as_of_ms: int | None = None
    """The same for the ages of the oldest messages."""
    name_servers: tuple[NameServerRow, ...] = ()
    brokers: tuple[BrokerRow, ...] = ()
    """All masters and slaves, by cluster, name and id."""
    broker_sets: Mapping[str, BrokerSet] = {}
    """Broker sets with failover by broker name, as far as their members respond."""
    topics: tuple[TopicRow, ...] = ()
    """All topics, system topics included."""
    groups: tuple[GroupRow, ...] = ()
    """All consumer groups, system groups included."""
    totals: ClusterTotals = ClusterTotals()
    """Sums over all clusters."""
    unavailable: tuple[str, ...] = ()
    """Servers that did not respond, as sentences for people."""
    base_unavailable: Mapping[str, str] = {}
    """The same for brokers that did not respond about topics and groups, by address."""
    history: LiveHistory = msgspec.field(default_factory=LiveHistory)
    """Rates and lags of about the last hour; shared by all snapshots."""
    topic_index: Mapping[str, TopicRow] = {}
    """`topics` by name."""
    group_index: Mapping[str, GroupRow] = {}
    """`groups` by name."""

    @property
    def unavailable_in_lists(self) -> tuple[str, ...]:
        """Servers that did not respond, those that only did not respond about topics and groups included."""
        silent = {row.addr for row in self.brokers if not row.is_up}
        return self.unavailable + tuple(text for addr, text in self.base_unavailable.items() if addr not in silent)

    @property
    def is_loaded(self) -> bool:
        """Whether topics and groups were polled. False shortly after the start: pages then say that data is being collected."""
        return self.base_as_of_ms is not None

    def topic(self, name: str) -> TopicRow | None:
        """Return the row of a topic; None if no master has it."""
        return self.topic_index.get(name)

    def group(self, name: str) -> GroupRow | None:
        """Return the row of a consumer group; None if no master has it."""
        return self.group_index.get(name)
