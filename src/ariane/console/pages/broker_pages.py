"""Pages of the cluster and its brokers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response

from ariane.console.areas.brokers import broker_changes, broker_details, cluster_servers
from ariane.console.areas.brokers.broker_changes import CleaningForm, SettingForm, WritePermissionForm
from ariane.console.areas.brokers.broker_details import ServerQuery, SettingsQuery
from ariane.console.texts.text_format import path_segment
from ariane.console.web.dependencies import Services
from ariane.console.web.rendering import changed, render, shown_below
from ariane.console.web.view_model import ChangeResult

router = APIRouter()


def path_of(broker: str, tab: str = "", broker_id: int = 0) -> str:
    """Return the path of a page of a broker."""
    return f"/brokers/{path_segment(broker)}" + (f"/{tab}" if tab else "") + (f"?id={broker_id}" if broker_id else "")


@router.get("/cluster")
async def cluster_page(request: Request, services: Services) -> Response:
    """Return all servers."""
    return render(request, "cluster/cluster.html", view=await cluster_servers.cluster_servers(services))


@router.get("/cluster/name-servers")
async def name_servers_page(request: Request, services: Services) -> Response:
    """Return the settings of the name servers."""
    return render(request, "cluster/name_servers.html", view=await cluster_servers.name_server_settings(services))


@router.get("/brokers/{broker}")
async def broker_page(
    request: Request, services: Services, broker: str, query: Annotated[ServerQuery, Query()]
) -> Response:
    """Return the runtime figures of a broker."""
    return render(request, "cluster/figures.html", view=await broker_details.broker_detail(services, broker, query))


@router.get("/brokers/{broker}/configuration")
async def broker_configuration_page(
    request: Request, services: Services, broker: str, query: Annotated[SettingsQuery, Query()]
) -> Response:
    """Return the settings of a broker."""
    view = await broker_details.broker_settings(services, broker, query)
    return render(request, "cluster/configuration.html", view=view)


@router.post("/brokers/{broker}/configuration")
async def change_setting(
    request: Request, services: Services, broker: str, form: Annotated[SettingForm, Form()]
) -> Response:
    """Change a setting of a broker."""
    result = await broker_changes.change_setting(services, broker, form)
    return _answer(request, result, path_of(broker, "configuration", form.id))


@router.get("/brokers/{broker}/operations")
async def broker_operations_page(
    request: Request, services: Services, broker: str, query: Annotated[ServerQuery, Query()]
) -> Response:
    """Return the forms of operations on a broker."""
    return render(request, "cluster/operations.html", view=await broker_details.broker_servers(services, broker, query))


@router.post("/brokers/{broker}/clean")
async def clean(request: Request, services: Services, broker: str, form: Annotated[CleaningForm, Form()]) -> Response:
    """Delete files of a broker."""
    return _answer(request, await broker_changes.clean(services, broker, form), path_of(broker, "operations"))


@router.post("/brokers/{broker}/write-permission")
async def change_write_permission(
    request: Request, services: Services, broker: str, form: Annotated[WritePermissionForm, Form()]
) -> Response:
    """Change the write permission of a broker."""
    result = await broker_changes.change_write_permission(services, broker, form)
    return _answer(request, result, path_of(broker, "operations"))


def _answer(request: Request, result: ChangeResult, location: str) -> Response:
    if result.is_dry_run:
        return shown_below(request, "topics/plan.html", result=result)
    return changed(request, result.notice, location=location)
