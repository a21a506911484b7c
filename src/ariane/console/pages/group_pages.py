"""Pages of consumer groups: the list, and the tabs and forms of one group."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response

from ariane.console.areas.groups import (
    group_clients,
    group_list,
    group_offsets,
    group_progress,
    group_settings,
    group_traffic,
)
from ariane.console.areas.groups.group_list import GroupListQuery
from ariane.console.areas.groups.group_offsets import CloneOffsetsForm, GroupResetForm
from ariane.console.areas.groups.group_progress import ProgressQuery
from ariane.console.areas.groups.group_settings import CreateGroupForm, DeleteGroupForm, GroupSettingsForm, SuspendForm
from ariane.console.areas.reports.chart_history import ChartQuery
from ariane.console.texts.text_format import path_segment
from ariane.console.web.dependencies import Services
from ariane.console.web.rendering import changed, render, shown_below

router = APIRouter()


def group_path(group: str, tab: str = "") -> str:
    """Return the path of a page of a consumer group."""
    return f"/groups/{path_segment(group)}" + (f"/{tab}" if tab else "")


# --- list, create ---


@router.get("/groups")
async def groups_page(request: Request, services: Services, query: Annotated[GroupListQuery, Query()]) -> Response:
    """Return the list of consumer groups."""
    return render(request, "groups/list.html", view=await group_list.group_list(services, query))


# Not below /groups: a group may have any name.
@router.get("/create-group")
async def create_group_page(request: Request, services: Services) -> Response:
    """Return the form of a new consumer group."""
    return render(request, "groups/create.html", view=await group_settings.group_targets(services))


@router.post("/create-group")
async def create_group(request: Request, services: Services, form: Annotated[CreateGroupForm, Form()]) -> Response:
    """Create a consumer group."""
    result = await group_settings.create_group(services, form)
    if form.is_dry_run:
        return shown_below(request, "topics/plan.html", result=result)
    return changed(request, result.notice, location=group_path(form.group, "configuration"))


# --- tabs ---


@router.get("/groups/{group}")
async def group_page(
    request: Request, services: Services, group: str, query: Annotated[ProgressQuery, Query()]
) -> Response:
    """Return the progress of a consumer group."""
    return render(request, "groups/progress.html", view=await group_progress.group_progress(services, group, query))


@router.get("/groups/{group}/traffic")
async def group_traffic_page(
    request: Request, services: Services, group: str, query: Annotated[ChartQuery, Query()]
) -> Response:
    """Return the rate of a consumer group by master and slave."""
    return render(request, "groups/traffic.html", view=await group_traffic.group_traffic(services, group, query.range))


@router.get("/groups/{group}/clients")
async def group_clients_page(request: Request, services: Services, group: str) -> Response:
    """Return the clients of a consumer group."""
    return render(request, "groups/clients.html", view=await group_clients.group_clients(services, group))


@router.get("/groups/{group}/clients/{client_id}")
async def client_page(
    request: Request, services: Services, group: str, client_id: str, stacks: bool = False
) -> Response:
    """Return the running state of a client; with the stacks of its threads on request."""
    view = await group_clients.client_state(services, group, client_id, with_stacks=stacks)
    return render(request, "groups/client.html", view=view, stacks=stacks)


@router.get("/groups/{group}/offsets")
async def group_offsets_page(request: Request, services: Services, group: str, topic: str = "") -> Response:
    """Return the forms that change the offsets of a consumer group; `topic` preselects."""
    return render(request, "groups/offsets.html", view=await group_offsets.group_offsets(services, group), topic=topic)


@router.get("/groups/{group}/configuration")
async def group_settings_page(request: Request, services: Services, group: str) -> Response:
    """Return the configuration of a consumer group, with the forms that change it."""
    return render(request, "groups/configuration.html", view=await group_settings.group_settings(services, group))


# --- changes ---


@router.post("/groups/{group}/offsets/reset")
async def reset_group(
    request: Request, services: Services, group: str, form: Annotated[GroupResetForm, Form()]
) -> Response:
    """Move a consumer group within a topic and show the offsets before and after."""
    result = await group_offsets.reset_group(services, group, form)
    return shown_below(request, "topics/reset_result.html", result=result)


@router.post("/groups/{group}/offsets/clone")
async def clone_group(
    request: Request, services: Services, group: str, form: Annotated[CloneOffsetsForm, Form()]
) -> Response:
    """Copy the offsets of a consumer group and show them."""
    result = await group_offsets.clone_group(services, group, form)
    return shown_below(request, "groups/clone_result.html", result=result)


@router.post("/groups/{group}/configuration")
async def change_group(
    request: Request, services: Services, group: str, form: Annotated[GroupSettingsForm, Form()]
) -> Response:
    """Change settings of a consumer group."""
    result = await group_settings.change_group(services, group, form)
    if form.is_dry_run:
        return shown_below(request, "topics/plan.html", result=result)
    return changed(request, result.notice, location=group_path(group, "configuration"))


@router.post("/groups/{group}/suspension")
async def suspend_group(
    request: Request, services: Services, group: str, form: Annotated[SuspendForm, Form()]
) -> Response:
    """Suspend or resume a consumer group."""
    result = await group_settings.suspend_group(services, group, form)
    if form.is_dry_run:
        return shown_below(request, "topics/plan.html", result=result)
    return changed(request, result.notice, location=group_path(group, "configuration"))


@router.get("/groups/{group}/delete")
async def delete_group_page(request: Request, services: Services, group: str) -> Response:
    """Return the form that deletes a consumer group."""
    return render(request, "groups/delete.html", view=await group_settings.group_settings(services, group))


@router.post("/groups/{group}/delete")
async def delete_group(
    request: Request, services: Services, group: str, form: Annotated[DeleteGroupForm, Form()]
) -> Response:
    """Delete a consumer group."""
    result = await group_settings.delete_group(services, group, form)
    if form.is_dry_run:
        return shown_below(request, "topics/plan.html", result=result)
    return changed(request, result.notice, location="/groups")
