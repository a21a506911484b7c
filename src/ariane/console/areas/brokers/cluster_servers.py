"""Cluster: all name servers, masters and slaves, and the settings of the name servers."""

from __future__ import annotations

from ariane.console.areas.admin_results import texts_of
from ariane.console.areas.brokers.server_views import (
    BrokerSetView,
    BrokerView,
    NameServerView,
    broker_set_view,
    broker_view,
)
from ariane.console.services import ConsoleServices
from ariane.console.web.view_model import PartialView, View


class ClusterGroup(View):
    """The servers of one cluster."""

    cluster: str
    brokers: list[BrokerView]
    """Masters and slaves, by name and id."""
    broker_sets: list[BrokerSetView]
    """Broker sets with failover, by broker name."""


class ClusterView(PartialView):
    """All servers."""

    name_servers: list[NameServerView]
    clusters: list[ClusterGroup]
    """All clusters, by name."""


class NameServerSetting(View):
    """A setting of the name servers."""

    key: str
    values: list[str | None]
    """Value at each name server, in the order of `servers`; null: it does not have the setting, or did not respond."""
    differs: bool
    """Whether name servers have different values."""


class NameServerSettings(PartialView):
    """Settings of all name servers."""

    servers: list[str]
    """Addresses of the name servers that responded."""
    settings: list[NameServerSetting]
    """All settings, by key."""
    name_servers: list[NameServerView]
    """All name servers, with what they report about their ports."""


async def cluster_servers(services: ConsoleServices) -> ClusterView:
    """Return all servers of all clusters."""
    snapshot = await services.live.snapshot()
    names = sorted({row.cluster for row in snapshot.brokers})
    return ClusterView(
        as_of_ms=snapshot.as_of_ms or services.clock.now_ms(),
        unavailable=list(snapshot.unavailable),
        name_servers=[NameServerView.of(server) for server in snapshot.name_servers],
        clusters=[
            ClusterGroup(
                cluster=name,
                brokers=[broker_view(row, snapshot) for row in snapshot.brokers if row.cluster == name],
                broker_sets=[
                    broker_set_view(snapshot.broker_sets[broker])
                    for broker in sorted({row.broker for row in snapshot.brokers if row.cluster == name})
                    if broker in snapshot.broker_sets
                ],
            )
            for name in names
        ],
    )


async def name_server_settings(services: ConsoleServices) -> NameServerSettings:
    """Return the settings of all name servers, and where they differ."""
    as_of_ms, snapshot = services.clock.now_ms(), await services.live.snapshot()
    async with services.admin() as admin:
        answers = await admin.fetch_name_server_config()
    tables = [table for _, table in answers.values]
    rows = []
    for key in sorted({key for table in tables for key in table}):
        values = [table.get(key) for table in tables]
        rows.append(NameServerSetting(key=key, values=values, differs=len(set(values)) > 1))
    return NameServerSettings(
        as_of_ms=as_of_ms,
        unavailable=texts_of(answers.unavailable),
        servers=[server.addr for server, _ in answers.values],
        settings=rows,
        name_servers=[NameServerView.of(server) for server in snapshot.name_servers],
    )
