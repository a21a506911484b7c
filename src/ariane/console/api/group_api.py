"""REST of consumer groups."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ariane.console.areas.groups import (
    group_clients,
    group_list,
    group_offsets,
    group_progress,
    group_settings,
    group_traffic,
)
from ariane.console.areas.groups.group_clients import ClientStateView, GroupClientsView
from ariane.console.areas.groups.group_list import GroupListQuery, GroupListView
from ariane.console.areas.groups.group_offsets import CloneOffsetsForm, CloneOffsetsView, GroupResetForm
from ariane.console.areas.groups.group_progress import GroupProgressView, ProgressQuery
from ariane.console.areas.groups.group_settings import (
    CreateGroupForm,
    DeleteGroupForm,
    GroupSettingsForm,
    GroupSettingsView,
    SuspendForm,
)
from ariane.console.areas.groups.group_traffic import GroupTrafficView
from ariane.console.areas.groups.offset_changes import ResetOffsetsView
from ariane.console.areas.reports.chart_history import ChartQuery
from ariane.console.web.dependencies import Services
from ariane.console.web.view_model import ChangeResult

router = APIRouter(prefix="/groups", tags=["groups"])


@router.get("")
async def list_groups(services: Services, query: Annotated[GroupListQuery, Query()]) -> GroupListView:
    """Return one page of the consumer groups, from the last poll of the cluster."""
    return await group_list.group_list(services, query)


@router.post("")
async def create_group(services: Services, form: CreateGroupForm) -> ChangeResult:
    """Create a consumer group."""
    return await group_settings.create_group(services, form)


@router.get("/{group}")
async def get_group(services: Services, group: str, query: Annotated[ProgressQuery, Query()]) -> GroupProgressView:
    """Return the progress of a consumer group, with one page of its queues, live from the brokers."""
    return await group_progress.group_progress(services, group, query)


@router.post("/{group}/delete")
async def delete_group(services: Services, group: str, form: DeleteGroupForm) -> ChangeResult:
    """Delete a consumer group from all brokers; `confirm` repeats its name."""
    return await group_settings.delete_group(services, group, form)


@router.get("/{group}/traffic")
async def get_group_traffic(services: Services, group: str, query: Annotated[ChartQuery, Query()]) -> GroupTrafficView:
    """Return the group's rate by master and slave, and over time."""
    return await group_traffic.group_traffic(services, group, query.range)


@router.get("/{group}/clients")
async def list_group_clients(services: Services, group: str) -> GroupClientsView:
    """Return the clients of a consumer group, and their subscriptions side by side."""
    return await group_clients.group_clients(services, group)


@router.get("/{group}/clients/{client_id}")
async def get_client_state(
    services: Services,
    group: str,
    client_id: str,
    stacks: Annotated[bool, Query(description="Request the stacks of its threads.")] = False,
) -> ClientStateView:
    """Return the running state of a client, as it reports it."""
    return await group_clients.client_state(services, group, client_id, with_stacks=stacks)


@router.post("/{group}/offsets/reset")
async def reset_group(services: Services, group: str, form: GroupResetForm) -> ResetOffsetsView:
    """Move a consumer group within one topic, or return the plan."""
    return await group_offsets.reset_group(services, group, form)


@router.post("/{group}/offsets/clone")
async def clone_group(services: Services, group: str, form: CloneOffsetsForm) -> CloneOffsetsView:
    """Copy the offsets of a consumer group to another one, or return the plan."""
    return await group_offsets.clone_group(services, group, form)


@router.get("/{group}/configuration")
async def get_group_settings(services: Services, group: str) -> GroupSettingsView:
    """Return the configuration of a consumer group on each broker."""
    return await group_settings.group_settings(services, group)


@router.post("/{group}/configuration")
async def change_group(services: Services, group: str, form: GroupSettingsForm) -> ChangeResult:
    """Change settings of a consumer group; the others stay as they are on each broker."""
    return await group_settings.change_group(services, group, form)


@router.post("/{group}/suspension")
async def suspend_group(services: Services, group: str, form: SuspendForm) -> ChangeResult:
    """Suspend or resume the consumption of a group on all brokers."""
    return await group_settings.suspend_group(services, group, form)
