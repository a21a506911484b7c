"""REST of the cluster and its brokers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ariane.console.areas.brokers import broker_changes, broker_details, cluster_servers
from ariane.console.areas.brokers.broker_changes import CleaningForm, SettingForm, WritePermissionForm
from ariane.console.areas.brokers.broker_details import BrokerDetailView, BrokerSettingsView, ServerQuery, SettingsQuery
from ariane.console.areas.brokers.cluster_servers import ClusterView, NameServerSettings
from ariane.console.web.dependencies import Services
from ariane.console.web.view_model import ChangeResult

router = APIRouter(tags=["cluster"])


@router.get("/cluster")
async def get_cluster(services: Services) -> ClusterView:
    """Return all name servers, masters and slaves."""
    return await cluster_servers.cluster_servers(services)


@router.get("/cluster/name-servers")
async def get_name_server_settings(services: Services) -> NameServerSettings:
    """Return the settings of the name servers, and where they differ."""
    return await cluster_servers.name_server_settings(services)


@router.get("/brokers/{broker}")
async def get_broker(services: Services, broker: str, query: Annotated[ServerQuery, Query()]) -> BrokerDetailView:
    """Return every runtime figure of a broker."""
    return await broker_details.broker_detail(services, broker, query)


@router.get("/brokers/{broker}/configuration")
async def get_broker_settings(
    services: Services, broker: str, query: Annotated[SettingsQuery, Query()]
) -> BrokerSettingsView:
    """Return the settings of a broker, and where other brokers have other values."""
    return await broker_details.broker_settings(services, broker, query)


@router.post("/brokers/{broker}/configuration")
async def post_broker_setting(services: Services, broker: str, form: SettingForm) -> ChangeResult:
    """Change a setting of a broker."""
    return await broker_changes.change_setting(services, broker, form)


@router.post("/brokers/{broker}/clean")
async def post_broker_clean(services: Services, broker: str, form: CleaningForm) -> ChangeResult:
    """Delete files of a broker that are not needed any more."""
    return await broker_changes.clean(services, broker, form)


@router.post("/brokers/{broker}/write-permission")
async def post_write_permission(services: Services, broker: str, form: WritePermissionForm) -> ChangeResult:
    """Add or remove the write permission of a broker."""
    return await broker_changes.change_write_permission(services, broker, form)
