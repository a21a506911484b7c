"""Pages of topics: the list, and the tabs and forms of one topic."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response

from ariane.console.areas.groups import offset_changes
from ariane.console.areas.groups.offset_changes import ResetOffsetsForm
from ariane.console.areas.messages import message_sends
from ariane.console.areas.messages.message_sends import SendMessageForm
from ariane.console.areas.overview import producers
from ariane.console.areas.overview.producers import ProducerQuery
from ariane.console.areas.topics import topic_changes, topic_details
from ariane.console.areas.topics import topic_list as topics
from ariane.console.areas.topics.topic_changes import ChangeTopicForm, CreateTopicForm, DeleteTopicForm, OrderConfigForm
from ariane.console.areas.topics.topic_list import TopicListQuery
from ariane.console.texts.text_format import path_segment
from ariane.console.web.dependencies import ListParameters, Services
from ariane.console.web.rendering import changed, render, shown_below

router = APIRouter()


def path_of(topic: str, tab: str = "") -> str:
    """Return the path of a page of a topic."""
    return f"/topics/{path_segment(topic)}" + (f"/{tab}" if tab else "")


# --- list, create ---


@router.get("/topics")
async def topics_page(request: Request, services: Services, query: Annotated[TopicListQuery, Query()]) -> Response:
    """Return the list of topics."""
    return render(request, "topics/list.html", view=await topics.topic_list(services, query))


# Not below /topics: a topic may have any name.
@router.get("/create-topic")
async def create_topic_page(request: Request, services: Services) -> Response:
    """Return the form of a new topic."""
    return render(request, "topics/create.html", view=await topic_details.topic_targets(services))


@router.post("/create-topic")
async def create_topic(request: Request, services: Services, form: Annotated[CreateTopicForm, Form()]) -> Response:
    """Create a topic."""
    result = await topic_changes.create_topic(services, form)
    if form.is_dry_run:
        return shown_below(request, "topics/plan.html", result=result)
    return changed(request, result.notice, location=path_of(form.topic))


# --- tabs ---


@router.get("/topics/{topic}")
async def topic_page(request: Request, services: Services, topic: str) -> Response:
    """Return the status of a topic."""
    return render(request, "topics/status.html", view=await topic_details.topic_status(services, topic))


@router.get("/topics/{topic}/queues")
async def topic_queues_page(request: Request, services: Services, topic: str, query: ListParameters) -> Response:
    """Return the queues of a topic."""
    return render(request, "topics/queues.html", view=await topic_details.topic_queues(services, topic, query))


@router.get("/topics/{topic}/consumers")
async def topic_consumers_page(request: Request, services: Services, topic: str, query: ListParameters) -> Response:
    """Return the consumer groups of a topic."""
    return render(request, "topics/consumers.html", view=await topic_details.topic_consumers(services, topic, query))


@router.get("/topics/{topic}/producers")
async def topic_producers_page(request: Request, services: Services, topic: str, query: ListParameters) -> Response:
    """Return the producers that are connected to the brokers of a topic."""
    view = await producers.producer_list(services, ProducerQuery(**query.model_dump(), topic=topic))
    return render(request, "topics/producers.html", view=view)


@router.get("/topics/{topic}/configuration")
async def topic_configuration_page(request: Request, services: Services, topic: str) -> Response:
    """Return the configuration of a topic, with the forms that change it."""
    return render(request, "topics/configuration.html", view=await topic_details.topic_configuration(services, topic))


# --- changes ---


@router.post("/topics/{topic}/configuration")
async def change_topic(
    request: Request, services: Services, topic: str, form: Annotated[ChangeTopicForm, Form()]
) -> Response:
    """Change the configuration of a topic."""
    result = await topic_changes.change_topic(services, topic, form)
    if form.is_dry_run:
        return shown_below(request, "topics/plan.html", result=result)
    return changed(request, result.notice, location=path_of(topic, "configuration"))


@router.post("/topics/{topic}/order")
async def change_order(
    request: Request, services: Services, topic: str, form: Annotated[OrderConfigForm, Form()]
) -> Response:
    """Set or delete the order configuration of a topic."""
    result = await topic_changes.change_order(services, topic, form)
    if form.is_dry_run:
        return shown_below(request, "topics/plan.html", result=result)
    return changed(request, result.notice, location=path_of(topic, "configuration"))


@router.get("/topics/{topic}/send")
async def send_page(request: Request, services: Services, topic: str) -> Response:
    """Return the form of a test message."""
    return render(request, "topics/send.html", view=await topic_details.topic_form(services, topic))


@router.post("/topics/{topic}/send")
async def send_message(
    request: Request, services: Services, topic: str, form: Annotated[SendMessageForm, Form()]
) -> Response:
    """Send a test message and show where it is stored."""
    sent = await message_sends.send_message(services, topic, form)
    return shown_below(request, "topics/sent.html", sent=sent)


@router.get("/topics/{topic}/reset")
async def reset_page(request: Request, services: Services, topic: str, group: str = "", to: str = "time") -> Response:
    """Return the form of a reset; `group` and `to` preselect."""
    view = await topic_details.topic_form(services, topic)
    return render(request, "topics/reset.html", view=view, group=group, to=to)


@router.post("/topics/{topic}/reset")
async def reset_offsets(
    request: Request, services: Services, topic: str, form: Annotated[ResetOffsetsForm, Form()]
) -> Response:
    """Move consumer groups within a topic and show the offsets before and after."""
    result = await offset_changes.reset_offsets(services, topic, form)
    return shown_below(request, "topics/reset_result.html", result=result)


@router.get("/topics/{topic}/delete")
async def delete_page(request: Request, services: Services, topic: str) -> Response:
    """Return the form that deletes a topic."""
    return render(request, "topics/delete.html", view=await topic_details.topic_status(services, topic))


@router.post("/topics/{topic}/delete")
async def delete_topic(
    request: Request, services: Services, topic: str, form: Annotated[DeleteTopicForm, Form()]
) -> Response:
    """Delete a topic."""
    result = await topic_changes.delete_topic(services, topic, form)
    if form.is_dry_run:
        return shown_below(request, "topics/plan.html", result=result)
    return changed(request, result.notice, location=path_of(topic) if form.cluster else "/topics")
