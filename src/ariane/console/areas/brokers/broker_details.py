"""A broker: its servers, every runtime figure, and its settings with those that differ between servers."""

from __future__ import annotations

import asyncio
from typing import Any

from ariane.cluster.connection import BrokerServer, BrokerUnavailable
from ariane.console.areas.admin_results import texts_of
from ariane.console.areas.brokers.runtime_figures import RuntimeFigure, runtime_figures
from ariane.console.areas.brokers.server_views import BrokerSetView, BrokerView, broker_set_view, broker_view, tps_chart
from ariane.console.areas.reports.chart_history import ChartRange, RangeName, live_history
from ariane.console.live.live_history import broker_key
from ariane.console.live.live_snapshot import BrokerRow, LiveSnapshot
from ariane.console.services import ConsoleServices
from ariane.console.web.paging import ListQuery, Page, paginate
from ariane.console.web.view_model import PartialView, View
from ariane.errors import NotFound, ServerUnavailable
from ariane.net.limits.quotas import EXCEEDED_LIMITS_KEY

SETTINGS_SIZE = 500  # rows of a page: brokers have about 200 settings


class ServerQuery(View):
    """Which server of a broker."""

    id: int = 0
    """Broker id; 0: the master."""
    range: RangeName = "1h"
    """Time range of the chart."""


class SettingsQuery(ListQuery):
    """Which settings to return, and the server that has them."""

    id: int = 0
    """Broker id; 0: the master."""
    size: int = SETTINGS_SIZE
    """Rows of a page."""
    only_different: bool = False
    """Only settings that differ between servers."""


class BrokerServersView(PartialView):
    """A server of a broker, and the others of the same name."""

    broker: str
    server: BrokerView
    """The selected server."""
    servers: list[BrokerView]
    """Master and slaves, by id."""
    broker_set: BrokerSetView | None
    """State of the broker set with failover; null without failover, or while no member responds."""


class BrokerDetailView(BrokerServersView):
    """Runtime figures of a server."""

    figures: list[RuntimeFigure]
    """All figures, by section; empty if the server did not respond."""
    exceeded_limits: str
    """Limits of Ariane's broker that were exceeded since its start, and how often: `KEY TIMES, …`; empty: none."""
    chart_range: ChartRange
    """Time range of the chart."""
    tps_chart: dict[str, Any]
    """Rates in that range, as options of a chart."""


class OtherValue(View):
    """The value of a setting at another server."""

    broker: str
    broker_id: int
    """0: master."""
    value: str | None
    """Its value; null: the server does not have the setting."""


class BrokerSetting(View):
    """A setting of a server."""

    key: str
    value: str | None
    """Value; null: the server does not have the setting, but another one."""
    differing: list[OtherValue]
    """Other servers that have another value."""


class BrokerSettingsView(BrokerServersView):
    """Settings of a server, compared with all other brokers."""

    settings: Page[BrokerSetting]
    """Settings, by key."""
    compared: int
    """Number of other servers that responded."""
    only_different: bool
    """Whether settings that are equal everywhere are omitted."""


async def broker_servers(services: ConsoleServices, broker: str, query: ServerQuery) -> BrokerServersView:
    """Return a server of a broker and the others of the same name, without requests to them."""
    snapshot, row, base = await _servers(services, broker, query.id)
    silent = [] if row.is_up else [BrokerUnavailable(row.broker, row.addr, row.reason)]
    # Nothing is requested, so the values are as old as the snapshot.
    return BrokerServersView(**base | {"as_of_ms": snapshot.as_of_ms}, unavailable=texts_of(silent))


async def broker_detail(services: ConsoleServices, broker: str, query: ServerQuery) -> BrokerDetailView:
    """Return every runtime figure of a server."""
    snapshot, row, base = await _servers(services, broker, query.id)
    async with services.admin() as admin:
        answers = await admin.fetch_runtimes([_server(row)])
    table = answers.values[0][1].table if answers.values else {}
    key, now_ms = broker_key(row.broker, row.broker_id), snapshot.as_of_ms or services.clock.now_ms()
    history = live_history(snapshot.history, key, query.range, now_ms=now_ms)
    return BrokerDetailView(
        **base | {"unavailable": texts_of(answers.unavailable)},
        figures=runtime_figures(table),
        exceeded_limits=table.get(EXCEEDED_LIMITS_KEY, ""),
        chart_range=history.range,
        tps_chart=tps_chart(history),
    )


async def broker_settings(services: ConsoleServices, broker: str, query: SettingsQuery) -> BrokerSettingsView:
    """Return the settings of a server, and where other servers have other values."""
    snapshot, row, base = await _servers(services, broker, query.id)
    others = [_server(other) for other in snapshot.brokers if (other.broker, other.broker_id) != _key(row)]
    async with services.admin() as admin:
        own, answers = await asyncio.gather(
            admin.fetch_broker_config([_server(row)]), admin.fetch_broker_config(others)
        )
    table = own.values[0][1] if own.values else {}
    # A server that does not respond has no settings here, and not the ones that others have.
    rows = _compared(table, answers.values) if own.values else []
    if query.only_different:
        rows = [setting for setting in rows if setting.differing]
    columns = {"key": lambda setting: setting.key.lower()}
    page = paginate(rows, query, name=lambda setting: f"{setting.key} {setting.value}", columns=columns, sort="key")
    return BrokerSettingsView(
        **base | {"unavailable": texts_of((*own.unavailable, *answers.unavailable))},
        settings=page,
        compared=len(answers.values),
        only_different=query.only_different,
    )


def _compared(table: dict[str, str], others: list[tuple[BrokerServer, dict[str, str]]]) -> list[BrokerSetting]:
    keys = set(table).union(*(other for _, other in others))
    return [
        BrokerSetting(
            key=key,
            value=table.get(key),
            differing=[
                OtherValue(broker=server.broker, broker_id=server.broker_id, value=other.get(key))
                for server, other in others
                if other.get(key) != table.get(key)
            ],
        )
        for key in sorted(keys, key=str.lower)
    ]


async def _servers(
    services: ConsoleServices, broker: str, broker_id: int
) -> tuple[LiveSnapshot, BrokerRow, dict[str, Any]]:
    """Return the snapshot, the row of the selected server, and the values of `BrokerServersView`."""
    snapshot = await services.live.snapshot()
    row = select_row(snapshot, broker, broker_id)
    views = {_key(other): broker_view(other, snapshot) for other in snapshot.brokers if other.broker == broker}
    base = {
        "as_of_ms": services.clock.now_ms(),
        "broker": broker,
        "server": views[_key(row)],
        "servers": list(views.values()),
        "broker_set": broker_set_view(snapshot.broker_sets[broker]) if broker in snapshot.broker_sets else None,
    }
    return snapshot, row, base


def select_row(snapshot: LiveSnapshot, broker: str, broker_id: int | None) -> BrokerRow:
    """Return the row of a server; `broker_id` None: the master, or a slave if no master is registered.

    Raises:
        NotFound: no such broker is registered.
        ServerUnavailable: the brokers are not known yet.
    """
    rows = [row for row in snapshot.brokers if row.broker == broker]
    if not rows and not snapshot.brokers:
        reasons = "; ".join(snapshot.unavailable) or "the cluster was not polled yet"
        raise ServerUnavailable(f"Cannot list the brokers: {reasons}; retry in some seconds")
    if not rows:
        raise NotFound("broker", broker, sorted({row.broker for row in snapshot.brokers}))
    # The page of a broker whose master is gone is that of a slave.
    selected = [row for row in rows if row.broker_id == broker_id] or (rows if broker_id in (None, 0) else [])
    if not selected:
        raise NotFound(f"server of broker {broker} with id", str(broker_id), [str(row.broker_id) for row in rows])
    return selected[0]


def _server(row: BrokerRow) -> BrokerServer:
    return BrokerServer(row.cluster, row.broker, row.broker_id, row.addr)


def _key(row: BrokerRow) -> tuple[str, int]:
    return row.broker, row.broker_id
