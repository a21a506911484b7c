"""Values that the pages of the overview, the cluster and a broker share: servers and their history."""

from __future__ import annotations

from typing import Any

from ariane.cluster.servers.broker_sets import BrokerSet
from ariane.console.areas.reports.chart_history import ChartHistory
from ariane.console.live.live_history import HistoryPoint, broker_key
from ariane.console.live.live_snapshot import BrokerRow, LiveSnapshot
from ariane.console.texts.translation import gettext as _
from ariane.console.web.view_model import View

Points = list[tuple[int, float | None]]
"""Time in milliseconds since the epoch, and value; null: unknown."""


class NameServerView(View):
    """A name server."""

    addr: str
    """HOST:PORT, as configured."""
    is_up: bool
    """Whether it responded."""
    open_ports: str
    """What other machines can do, because its port lacks protection; empty: nothing, or unknown."""
    certificate_days: int | None
    """Whole days until the certificate of its port expires, negative if it has; null: it has none, or unknown."""


class BrokerView(View):
    """A master or slave. Figures are null while it does not respond."""

    cluster: str
    broker: str
    """Broker name, which a master shares with its slaves."""
    broker_id: int
    """0: master."""
    is_master: bool
    """Whether it accepts changes."""
    addr: str
    """HOST:PORT, as registered with the name servers."""
    is_up: bool
    """Whether it responded. False: its state is unknown."""
    is_registered: bool
    """Whether a name server lists it."""
    reason: str
    """Why its state is unknown."""
    open_ports: str
    """What other machines can do, because its ports lack protection; empty: nothing, or unknown."""
    certificate_days: int | None
    """Whole days until the certificate of its ports expires, negative if it has; null: it has none, or unknown."""
    version: str | None
    """Version of RocketMQ that it reports."""
    boot_ms: int | None
    """Time of its start."""
    tps_in: float | None
    """Messages stored per second, over the last 10 s."""
    tps_out: float | None
    """Messages delivered per second, over the last 10 s."""
    put_today: int | None
    """Messages stored since midnight of the broker's clock."""
    got_today: int | None
    """Messages delivered since then."""
    put_yesterday: int | None
    """Messages stored on the day before."""
    got_yesterday: int | None
    """Messages delivered on the day before."""
    disk_ratio: float | None
    """Used share of the commit log's disk, 0 to 1."""
    log_start: int | None
    """First position of the commit log."""
    log_end: int | None
    """End of the commit log."""
    dispatch_behind_bytes: int | None
    """Bytes of the commit log that consumers cannot read yet."""
    replication_lag_bytes: int | None
    """Of a slave: bytes of its master's commit log that it does not have yet."""
    replication_delay_ms: int | None
    """Of a slave: time since the master's commit log ended where the slave's ends now."""
    replication_delay_is_minimum: bool
    """Whether the delay is longer, because it began before the console observed the master."""
    earliest_ms: int | None
    """Store time of the oldest message."""
    tps_in_history: Points
    """Rate of stored messages in the last hour."""
    tps_out_history: Points
    """Rate of delivered messages in the last hour."""


class SetMemberView(View):
    """A member of a broker set, as it reports itself."""

    name: str
    """Name of the member."""
    addr: str
    """HOST:PORT, as registered with the name servers."""
    role: str
    """MASTER, FOLLOWER, CANDIDATE, HOLDING, RECONCILING or INELIGIBLE."""
    epoch: int
    """Epoch of the set at this member."""
    is_in_sync: bool
    """Whether it has everything that was acknowledged, by the master; without a master by the highest epoch."""
    lag_bytes: int | None
    """Bytes of the master's commit log that it lacks; null: no member is the master."""
    refusal: str
    """Why it may not be promoted; empty if it may, or if it is the master."""


class BrokerSetView(View):
    """A broker set with failover, as far as its members respond."""

    broker: str
    """Broker name, which the members share."""
    master: str | None
    """Name of the member that serves; null: none reports that it does."""
    in_sync: list[str]
    """Names of the members of the in-sync set; some of them may not respond."""
    members: list[SetMemberView]
    """The members that responded, by name."""


def broker_set_view(brokers: BrokerSet) -> BrokerSetView:
    """Return the view of a broker set."""
    return BrokerSetView(
        broker=brokers.broker,
        master=brokers.master.name if brokers.master else None,
        in_sync=list(brokers.in_sync),
        members=[
            SetMemberView(
                name=member.name, addr=member.addr, role=member.role, epoch=member.epoch,
                is_in_sync=member.name in brokers.in_sync, lag_bytes=brokers.lag(member), refusal=member.refusal,
            )
            for member in brokers.members
        ],
    )  # fmt: skip


def broker_view(row: BrokerRow, snapshot: LiveSnapshot) -> BrokerView:
    """Return the view of a server."""
    key = broker_key(row.broker, row.broker_id)
    return BrokerView.of(
        row,
        tps_in_history=points(snapshot.history.series(key, "tps_in")),
        tps_out_history=points(snapshot.history.series(key, "tps_out")),
    )


def points(series: list[HistoryPoint]) -> Points:
    """Return a series as plain values."""
    return [(point.ms, None if point.value is None else round(point.value, 3)) for point in series]


def tps_chart(history: ChartHistory) -> dict[str, Any]:
    """Return the options of a chart of stored and delivered messages."""
    stored = {"name": _("Stored"), "points": history.points("tps_in"), "type": "line"}
    delivered = {"name": _("Delivered"), "points": history.points("tps_out"), "type": "line"}
    return history.chart("rate", [stored, delivered])


def lag_chart(history: ChartHistory) -> dict[str, Any]:
    """Return the options of a chart of the lag."""
    series = {"name": _("Lag"), "points": history.points("lag"), "type": "line", "area": True}
    return history.chart("number", [series])
