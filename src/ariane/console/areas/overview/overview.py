"""Overview: brokers, rates, lag, firing alerts, and the freshness of the pipeline's tables."""

from __future__ import annotations

import asyncio
from typing import Any

from ariane.console.areas.alerts import alerting
from ariane.console.areas.alerts.alerting import FiringAlertRow
from ariane.console.areas.brokers.server_views import (
    BrokerView,
    NameServerView,
    Points,
    broker_view,
    lag_chart,
    points,
    tps_chart,
)
from ariane.console.areas.overview.column_times import ColumnTime, column_times
from ariane.console.areas.reports.chart_history import ChartRange, RangeName, chart_history
from ariane.console.live.live_history import cluster_key, group_key
from ariane.console.live.live_snapshot import LiveSnapshot
from ariane.console.services import ConsoleServices
from ariane.console.texts.translation import report_text
from ariane.console.web.paging import ListQuery
from ariane.console.web.view_model import View
from ariane.errors import StoreError
from ariane.reports.tables.pipeline_status import read_statuses, table_statuses
from ariane.tables.table_home import Home

LAGGING_MAX = 10  # groups in the list of the overview
ALERTS_MAX = 5  # alerts in its list


class LaggingGroup(View):
    """A consumer group with a lag."""

    group: str
    lag: int
    """Messages that it has not consumed yet."""
    is_partial: bool
    """Whether the lag lacks queues or brokers whose state is unknown."""
    oldest_age_ms: int | None
    """Age of the oldest message that it has not consumed."""
    tps: float | None
    """Messages delivered per second, over the last minute: the sum of masters and slaves."""
    clients: int | None
    """Number of connected clients."""
    lag_history: Points
    """Lag in the last hour."""


class OverviewAlerts(View):
    """Firing alerts."""

    total: int
    """Number of firing alerts."""
    first: list[FiringAlertRow]
    """The most urgent ones."""
    rule_count: int
    """Number of enabled rules."""
    error: str
    """Why the rules cannot be evaluated; empty if they can."""


class TableFreshness(View):
    """Up to which time a table of the pipeline is complete."""

    table: str
    as_of_ms: int | None
    """Time up to which it contains everything that brokers had stored; null without data."""
    rows: int | None
    """Number of its rows; null without data."""
    warnings: list[str]
    """Reasons why data may be missing."""


class PipelineSourceView(View):
    """Progress of a source of the pipeline."""

    source: str
    """Name of the source: traces, messages or samples."""
    pending: int | None
    """Messages that are in no table yet; null: unknown."""
    batch_ms: int | None
    """Duration of the last micro-batch; null before the first."""
    caught_up_ms: int | None
    """Last time when no message was pending; null: not yet."""
    at_ms: int
    """Time of this progress."""
    unavailable: str | None
    """The server that does not respond, for which the source waits; null if it reads."""


class OverviewView(View):
    """The overview. Sums lack the parts of servers that do not respond; then they are marked as partial."""

    as_of_ms: int
    """Time of the values of brokers, in milliseconds since the epoch."""
    lists_as_of_ms: int | None
    """Time of the lag and of the numbers of topics and groups; null: not collected yet."""
    times: list[ColumnTime]
    """Times of the columns of `lagging`: lags, rates, clients and ages."""
    unavailable: list[str]
    """Servers that did not respond, with the reason."""
    name_servers: list[NameServerView]
    brokers: list[BrokerView]
    """All masters and slaves."""
    brokers_up: int
    """How many of them responded."""
    tps_in: float | None
    """Messages stored per second, of all masters, over the last 10 s."""
    tps_out: float | None
    """Messages delivered per second, of all masters and slaves, over the last 10 s."""
    tps_is_partial: bool
    """Whether the rates lack a broker."""
    lag: int | None
    """Messages that are not consumed yet, of all groups except system groups and broadcasting ones."""
    lag_is_partial: bool
    """Whether the lag lacks that of a group or broker."""
    topics: int | None
    """Topics of applications."""
    groups: int | None
    """Consumer groups of applications."""
    lagging: list[LaggingGroup]
    """Groups with the largest lags, largest first."""
    alerts: OverviewAlerts
    """Alerts that fire."""
    tables: list[TableFreshness] | None
    """Tables of the pipeline; null without a pipeline."""
    sources: list[PipelineSourceView] | None
    """Sources of the pipeline that have run; null without a pipeline."""
    tables_error: str | None
    """Why the state of the pipeline cannot be read."""
    chart_range: ChartRange
    """Time range of the charts."""
    tps_chart: dict[str, Any]
    """Rates in that range, as options of a chart."""
    lag_chart: dict[str, Any]
    """Lag in that range, as options of a chart."""


async def overview(services: ConsoleServices, chart_range: RangeName = "1h") -> OverviewView:
    """Return the overview, with charts of a range."""
    snapshot = await services.live.snapshot()
    history = await chart_history(services, cluster_key(), chart_range)
    states, sources, error = await _pipeline(services)
    is_loaded = snapshot.is_loaded
    return OverviewView.of(
        snapshot.totals,
        as_of_ms=snapshot.as_of_ms or services.clock.now_ms(),
        lists_as_of_ms=snapshot.base_as_of_ms,
        times=column_times(snapshot, services.clock.now_ms(), "lags", "rates", "clients", "ages"),
        unavailable=list(snapshot.unavailable),
        name_servers=[NameServerView.of(server) for server in snapshot.name_servers],
        brokers=[broker_view(row, snapshot) for row in snapshot.brokers],
        brokers_up=sum(row.is_up for row in snapshot.brokers),
        topics=sum(row.kind == "normal" for row in snapshot.topics) if is_loaded else None,
        groups=sum(not row.is_system for row in snapshot.groups) if is_loaded else None,
        lagging=_lagging(snapshot),
        alerts=_alerts(services),
        tables=states,
        sources=sources,
        tables_error=error,
        chart_range=history.range,
        tps_chart=tps_chart(history),
        lag_chart=lag_chart(history),
    )


def _alerts(services: ConsoleServices) -> OverviewAlerts:
    view = alerting.alert_list(services, ListQuery(q="", page=1, size=ALERTS_MAX))
    return OverviewAlerts.of(view, total=view.alerts.total, first=view.alerts.items)


def _lagging(snapshot: LiveSnapshot) -> list[LaggingGroup]:
    rows = [row for row in snapshot.groups if row.lag and not row.is_system and row.model != "broadcasting"]
    rows.sort(key=lambda row: (-(row.lag or 0), row.group))
    return [
        LaggingGroup.of(
            row,
            is_partial=row.lag_is_partial,
            lag_history=points(snapshot.history.series(group_key(row.group), "lag")),
        )
        for row in rows[:LAGGING_MAX]
    ]


async def _pipeline(
    services: ConsoleServices,
) -> tuple[list[TableFreshness] | None, list[PipelineSourceView] | None, str | None]:
    """Return the state of the pipeline's tables and sources, or why it is unknown.

    Files are read in a thread: the disk may be slow.
    """
    home = services.tables_dir
    if home is None:
        return None, None, None
    try:
        return *await asyncio.to_thread(_read_pipeline, home, services.clock.now_ms()), None
    except (StoreError, OSError) as error:
        return None, None, str(error)


def _read_pipeline(home: Home, now_ms: int) -> tuple[list[TableFreshness], list[PipelineSourceView]]:
    states = []
    for table, version, state in table_statuses(home, now_ms):
        warnings = list(map(report_text, state.warnings))
        rows = None if version is None else version.rows
        states.append(TableFreshness.of(state, table=table.name, rows=rows, warnings=warnings))
    return states, [PipelineSourceView.of(status) for _, status in sorted(read_statuses(home).items())]
