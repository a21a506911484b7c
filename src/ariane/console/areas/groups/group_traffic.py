"""Who delivers the messages of a consumer group: its rate by master and slave, and over time.

While a slave serves the reads, the masters deliver nothing: tools that ask masters only then show a rate of 0.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from ariane.cluster.admin import Admin
from ariane.cluster.groups.group_admin import GroupConnections
from ariane.cluster.groups.group_lag import GroupLag
from ariane.cluster.groups.group_rates import GroupRates, WindowRates
from ariane.console.areas.admin_results import texts_of
from ariane.console.areas.reports.chart_history import ChartHistory, ChartRange, RangeName, chart_history
from ariane.console.live.live_history import group_key
from ariane.console.services import ConsoleServices
from ariane.console.texts.translation import gettext as _
from ariane.console.web.view_model import PartialView, View

ServingServers = Literal["masters", "slaves", "both", "none", "unknown"]


class ServerRateRow(View):
    """One server's part of the deliveries to a group."""

    cluster: str
    broker: str
    """Broker name, which a master and its slaves share."""
    broker_id: int
    """0: master."""
    addr: str
    """Registered address."""
    role: Literal["master", "slave"]
    tps: float | None
    """Messages delivered per second over the last minute; null: it did not respond."""
    share: float | None
    """Part of the group's deliveries, 0 to 1; null without deliveries, or if a server is unknown."""
    hour_tps: float | None
    """Messages delivered per second over the last hour; null: not measured yet."""
    stored_tps: float | None
    """Messages stored per second in the group's topics over the last minute, by a master."""


class TrafficPoint(View):
    """Values at one time."""

    at_ms: int
    """Time, in milliseconds since the epoch."""
    tps: float | None
    """Messages delivered per second; null: unknown."""
    slaves_tps: float | None
    """The part that slaves delivered; null: unknown."""
    lag: float | None
    """Messages not consumed yet; null: unknown."""


class GroupTrafficView(PartialView):
    """Deliveries to a consumer group."""

    group: str
    topics: list[str]
    """Topics whose deliveries are added."""
    served_by: ServingServers
    """Which servers delivered messages in the last minute."""
    tps: float | None
    """Messages delivered per second over the last minute: the sum of masters and slaves; null if one did not respond."""
    masters_tps: float | None
    """The part of masters: the rate that tools show that ask masters only."""
    slaves_tps: float | None
    """The part of slaves; null if one did not respond."""
    stored_tps: float | None
    """Messages stored per second in the group's topics over the last minute."""
    servers: list[ServerRateRow]
    """All masters and slaves."""
    chart_range: ChartRange
    """Time range of the history."""
    history: list[TrafficPoint]
    """Values in that range, oldest first."""

    @property
    def rate_chart(self) -> dict[str, Any]:
        """The rate over time, as the page draws it."""
        masters = [
            [point.at_ms, None if point.tps is None or point.slaves_tps is None else point.tps - point.slaves_tps]
            for point in self.history
        ]
        slaves = [[point.at_ms, point.slaves_tps] for point in self.history]
        stacked = {"stack": "servers", "area": True}
        series = [
            {"name": _("Masters"), "points": masters, **stacked},
            {"name": _("Slaves"), "points": slaves, **stacked},
        ]
        return self.chart_range.chart("rate", series)

    @property
    def lag_chart(self) -> dict[str, Any]:
        """The lag over time, as the page draws it."""
        points = [[point.at_ms, point.lag] for point in self.history]
        return self.chart_range.chart("number", [{"name": _("Lag"), "points": points, "area": True}])


async def group_traffic(services: ConsoleServices, group: str, chart_range: RangeName = "1h") -> GroupTrafficView:
    """Return who delivers the messages of a group, with charts of a range."""
    as_of_ms = services.clock.now_ms()
    admin = services.admin()
    _, _, topics = await read_topics(admin, group)
    rates = await admin.group_rates(group, topics)
    history = await chart_history(services, group_key(group), chart_range, group=group)
    return traffic_view(rates, as_of_ms=as_of_ms, history=history)


async def read_topics(admin: Admin, group: str) -> tuple[GroupLag, GroupConnections | None, list[str]]:
    """Return the lag of a group, its clients (None: it has none), and its topics."""
    lag, connections = await asyncio.gather(admin.group_lag(group), admin.consumer_connections(group))
    # Broadcasting groups have no offsets at the brokers: their topics are those of the subscriptions.
    subscribed = connections.subscriptions if connections is not None else {}
    topics = sorted({queue.topic for queue in lag.queues} | set(subscribed))
    if not topics:
        await admin.check_group(group)
    return lag, connections, topics


def traffic_view(rates: GroupRates, *, as_of_ms: int, history: ChartHistory) -> GroupTrafficView:
    """Return the view of a group's rates."""
    lags, slaves = (dict(history.series[column]) for column in ("lag", "tps_slaves"))
    points = [
        TrafficPoint(at_ms=ms, tps=tps, slaves_tps=slaves.get(ms), lag=lags.get(ms))
        for ms, tps in history.series["tps_out"]
    ]
    delivered = rates.delivered
    rows = [
        ServerRateRow.of(
            item.server,
            role="master" if item.server.is_master else "slave",
            tps=_minute(item.delivered),
            share=item.delivered.minute / delivered.minute
            if item.delivered is not None and delivered is not None and delivered.minute
            else None,
            hour_tps=None if item.delivered is None else item.delivered.hour,
            stored_tps=_minute(item.stored) if item.server.is_master else None,
        )
        for item in rates.servers
    ]
    masters_tps, slaves_tps = (_sum_of(rows, role) for role in ("master", "slave"))
    return GroupTrafficView.of(
        rates,
        as_of_ms=as_of_ms,
        unavailable=texts_of(rates.unavailable),
        served_by=serving_servers(masters_tps, slaves_tps),
        tps=_minute(delivered),
        masters_tps=masters_tps,
        slaves_tps=slaves_tps,
        stored_tps=_minute(rates.stored),
        servers=rows,
        chart_range=history.range,
        history=points,
    )


def serving_servers(masters_tps: float | None, slaves_tps: float | None) -> ServingServers:
    """Return which servers deliver messages, by their rates."""
    if masters_tps is None or slaves_tps is None:
        return "unknown"
    if masters_tps and slaves_tps:
        return "both"
    return "masters" if masters_tps else "slaves" if slaves_tps else "none"


def _sum_of(rows: list[ServerRateRow], role: str) -> float | None:
    values = [row.tps for row in rows if row.role == role]
    return None if None in values else sum(value for value in values if value is not None)


def _minute(rates: WindowRates | None) -> float | None:
    return None if rates is None else rates.minute
