"""Consumer groups: pages and REST of the list, the tabs of one group, and its changes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from ariane.console.areas.groups import (
    group_clients,
    group_in_flight,
    group_list,
    group_offsets,
    group_progress,
    group_settings,
    group_traffic,
)
from ariane.console.areas.groups.group_clients import ClientStateView, GroupClientsView
from ariane.console.areas.groups.group_in_flight import InFlightQuery, InFlightView
from ariane.console.areas.groups.group_list import GroupListQuery, GroupListView
from ariane.console.areas.groups.group_offsets import CloneOffsetsForm, CloneOffsetsView, GroupResetForm
from ariane.console.areas.groups.group_progress import GroupProgressView, ProgressQuery
from ariane.console.areas.groups.group_traffic import GroupTrafficView
from ariane.console.areas.groups.offset_changes import ResetOffsetsView
from ariane.console.areas.reports.chart_history import ChartQuery
from ariane.console.web.dependencies import FromQuery, Services
from ariane.console.web.page_router import PageRouter
from ariane.console.web.rendering import render
from ariane.console.web.view_model import ChangeResult

pages = PageRouter()
api = APIRouter(prefix="/groups", tags=["groups"])


@pages.page("/groups", "groups/list.html")
@api.get("")
async def list_groups(services: Services, query: FromQuery[GroupListQuery]) -> GroupListView:
    """Return one page of the consumer groups, from the last poll of the cluster."""
    return await group_list.group_list(services, query)


@pages.form("/create-group", "/groups/{group}/configuration")
@api.post("")
async def create_group(services: Services, form: group_settings.CreateGroupForm) -> ChangeResult:
    """Create a consumer group."""
    return await group_settings.create_group(services, form)


@pages.page("/groups/{group}", "groups/progress.html")
@api.get("/{group}")
async def get_group(services: Services, group: str, query: FromQuery[ProgressQuery]) -> GroupProgressView:
    """Return the progress of a consumer group, with one page of its queues, live from the brokers."""
    return await group_progress.group_progress(services, group, query)


@pages.form("/groups/{group}/delete", "/groups")
@api.post("/{group}/delete")
async def delete_group(services: Services, group: str, form: group_settings.DeleteGroupForm) -> ChangeResult:
    """Delete a consumer group from all brokers; `confirm` repeats its name."""
    return await group_settings.delete_group(services, group, form)


@pages.page("/groups/{group}/in-flight", "groups/in_flight.html")
@api.get("/{group}/in-flight")
async def list_in_flight(services: Services, group: str, query: FromQuery[InFlightQuery]) -> InFlightView:
    """Return messages that were delivered to clients of RocketMQ 5 and not acknowledged, the first ones of each queue."""
    return await group_in_flight.group_in_flight(services, group, query)


@pages.page("/groups/{group}/traffic", "groups/traffic.html")
@api.get("/{group}/traffic")
async def get_group_traffic(services: Services, group: str, query: FromQuery[ChartQuery]) -> GroupTrafficView:
    """Return the group's rate by master and slave, and over time."""
    return await group_traffic.group_traffic(services, group, query.range)


@pages.page("/groups/{group}/clients", "groups/clients.html")
@api.get("/{group}/clients")
async def list_group_clients(services: Services, group: str) -> GroupClientsView:
    """Return the clients of a consumer group, and their subscriptions side by side."""
    return await group_clients.group_clients(services, group)


@api.get("/{group}/clients/{client_id}")
async def get_client_state(
    services: Services,
    group: str,
    client_id: str,
    stacks: Annotated[bool, Query(description="Request the stacks of its threads.")] = False,
) -> ClientStateView:
    """Return the running state of a client, as it reports it."""
    return await group_clients.client_state(services, group, client_id, with_stacks=stacks)


@pages.form("/groups/{group}/offsets/reset", template="topics/reset_result.html")
@api.post("/{group}/offsets/reset")
async def reset_group(services: Services, group: str, form: GroupResetForm) -> ResetOffsetsView:
    """Move a consumer group within one topic, or return the plan."""
    return await group_offsets.reset_group(services, group, form)


@pages.form("/groups/{group}/offsets/clone", template="groups/clone_result.html")
@api.post("/{group}/offsets/clone")
async def clone_group(services: Services, group: str, form: CloneOffsetsForm) -> CloneOffsetsView:
    """Copy the offsets of a consumer group to another one, or return the plan."""
    return await group_offsets.clone_group(services, group, form)


@pages.page("/groups/{group}/configuration", "groups/configuration.html")
@pages.page("/groups/{group}/delete", "groups/delete.html")
@api.get("/{group}/configuration")
async def get_group_settings(services: Services, group: str) -> group_settings.GroupSettingsView:
    """Return the configuration of a consumer group on each broker."""
    return await group_settings.group_settings(services, group)


@pages.form("/groups/{group}/configuration", "/groups/{group}/configuration")
@api.post("/{group}/configuration")
async def change_group(services: Services, group: str, form: group_settings.GroupSettingsForm) -> ChangeResult:
    """Change settings of a consumer group; the others stay as they are on each broker."""
    return await group_settings.change_group(services, group, form)


@pages.form("/groups/{group}/suspension", "/groups/{group}/configuration")
@api.post("/{group}/suspension")
async def suspend_group(services: Services, group: str, form: group_settings.SuspendForm) -> ChangeResult:
    """Suspend or resume the consumption of a group on all brokers."""
    return await group_settings.suspend_group(services, group, form)


# --- other pages ---


# Not below /groups: a group may have any name.
@pages.get("/create-group")
async def create_group_page(request: Request, services: Services) -> Response:
    """Return the form of a new consumer group."""
    return render(request, "groups/create.html", view=await group_settings.group_targets(services))


@pages.get("/groups/{group}/clients/{client_id}")
async def client_page(
    request: Request, services: Services, group: str, client_id: str, stacks: bool = False
) -> Response:
    """Return the running state of a client; with the stacks of its threads on request."""
    view = await group_clients.client_state(services, group, client_id, with_stacks=stacks)
    return render(request, "groups/client.html", view=view, stacks=stacks)


@pages.get("/groups/{group}/offsets")
async def group_offsets_page(request: Request, services: Services, group: str, topic: str = "") -> Response:
    """Return the forms that change the offsets of a consumer group; `topic` preselects."""
    return render(request, "groups/offsets.html", view=await group_offsets.group_offsets(services, group), topic=topic)
