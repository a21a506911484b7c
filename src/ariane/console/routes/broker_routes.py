"""The cluster and its brokers: pages and REST."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from ariane.console.areas.brokers import broker_changes, broker_details, cluster_servers
from ariane.console.areas.brokers.broker_changes import CleaningForm, SettingForm, WritePermissionForm
from ariane.console.areas.brokers.broker_details import (
    BrokerDetailView,
    BrokerServersView,
    BrokerSettingsView,
    ServerQuery,
    SettingsQuery,
)
from ariane.console.areas.brokers.cluster_servers import ClusterView, NameServerSettings
from ariane.console.texts.text_format import path_segment
from ariane.console.web.dependencies import FromForm, FromQuery, Services
from ariane.console.web.page_router import PageRouter
from ariane.console.web.rendering import answer_change
from ariane.console.web.view_model import ChangeResult

pages = PageRouter()
api = APIRouter(tags=["cluster"])


@pages.page("/cluster", "cluster/cluster.html")
@api.get("/cluster")
async def get_cluster(services: Services) -> ClusterView:
    """Return all name servers, masters and slaves."""
    return await cluster_servers.cluster_servers(services)


@pages.page("/cluster/name-servers", "cluster/name_servers.html")
@api.get("/cluster/name-servers")
async def get_name_server_settings(services: Services) -> NameServerSettings:
    """Return the settings of the name servers, and where they differ."""
    return await cluster_servers.name_server_settings(services)


@pages.page("/brokers/{broker}", "cluster/figures.html")
@api.get("/brokers/{broker}")
async def get_broker(services: Services, broker: str, query: FromQuery[ServerQuery]) -> BrokerDetailView:
    """Return every runtime figure of a broker."""
    return await broker_details.broker_detail(services, broker, query)


@pages.page("/brokers/{broker}/configuration", "cluster/configuration.html")
@api.get("/brokers/{broker}/configuration")
async def get_broker_settings(services: Services, broker: str, query: FromQuery[SettingsQuery]) -> BrokerSettingsView:
    """Return the settings of a broker, and where other brokers have other values."""
    return await broker_details.broker_settings(services, broker, query)


@api.post("/brokers/{broker}/configuration")
async def post_broker_setting(services: Services, broker: str, form: SettingForm) -> ChangeResult:
    """Change a setting of a broker."""
    return await broker_changes.change_setting(services, broker, form)


@pages.form("/brokers/{broker}/clean", "/brokers/{broker}/operations")
@api.post("/brokers/{broker}/clean")
async def post_broker_clean(services: Services, broker: str, form: CleaningForm) -> ChangeResult:
    """Delete files of a broker that are not needed any more."""
    return await broker_changes.clean(services, broker, form)


@pages.form("/brokers/{broker}/write-permission", "/brokers/{broker}/operations")
@api.post("/brokers/{broker}/write-permission")
async def post_write_permission(services: Services, broker: str, form: WritePermissionForm) -> ChangeResult:
    """Add or remove the write permission of a broker."""
    return await broker_changes.change_write_permission(services, broker, form)


# --- other pages, and forms ---


@pages.post("/brokers/{broker}/configuration")
async def change_setting(request: Request, services: Services, broker: str, form: FromForm[SettingForm]) -> Response:
    """Change a setting of a broker."""
    result = await broker_changes.change_setting(services, broker, form)
    server = f"?id={form.id}" if form.id else ""
    return answer_change(request, result, location=f"/brokers/{path_segment(broker)}/configuration{server}")


@pages.page("/brokers/{broker}/operations", "cluster/operations.html")
async def get_broker_servers(services: Services, broker: str, query: FromQuery[ServerQuery]) -> BrokerServersView:
    """Return the servers of a broker, for the forms of operations on it."""
    return await broker_details.broker_servers(services, broker, query)
