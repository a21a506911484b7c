"""Topics: pages and REST of the list, the tabs of one topic, changes with dry run, test messages and resets."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from ariane.console.areas.groups import offset_changes
from ariane.console.areas.groups.offset_changes import ResetOffsetsForm, ResetOffsetsView
from ariane.console.areas.messages import message_sends
from ariane.console.areas.messages.message_sends import SendMessageForm, SentMessageView
from ariane.console.areas.overview import producers
from ariane.console.areas.overview.producers import ProducerQuery, ProducersView
from ariane.console.areas.topics import topic_changes, topic_details
from ariane.console.areas.topics import topic_list as topics
from ariane.console.areas.topics.topic_changes import (
    ChangeTopicForm,
    CreateTopicForm,
    DeleteTopicForm,
    OrderConfigForm,
    TopicChangeResult,
)
from ariane.console.areas.topics.topic_details import (
    TopicConfigView,
    TopicConsumersView,
    TopicQueuesView,
    TopicStatusView,
)
from ariane.console.areas.topics.topic_list import TopicListQuery, TopicListView
from ariane.console.texts.text_format import path_segment
from ariane.console.web.dependencies import FromForm, FromQuery, ListParameters, Services
from ariane.console.web.page_router import PageRouter
from ariane.console.web.rendering import answer_change, render, shown_below
from ariane.console.web.view_model import ChangeResult

pages = PageRouter()
api = APIRouter(prefix="/topics", tags=["topics"])


@pages.page("/topics", "topics/list.html")
@api.get("")
async def list_topics(services: Services, query: FromQuery[TopicListQuery]) -> TopicListView:
    """Return a page of the topics of one kind."""
    return await topics.topic_list(services, query)


@api.post("")
async def create_topic(services: Services, form: CreateTopicForm) -> ChangeResult:
    """Create a topic on all masters, or on those of the named clusters and brokers."""
    return await topic_changes.create_topic(services, form)


@pages.page("/topics/{topic}", "topics/status.html")
@pages.page("/topics/{topic}/delete", "topics/delete.html")
@api.get("/{topic}")
async def get_topic(services: Services, topic: str) -> TopicStatusView:
    """Return the status and the route of a topic."""
    return await topic_details.topic_status(services, topic)


@api.patch("/{topic}")
async def change_topic(services: Services, topic: str, form: ChangeTopicForm) -> TopicChangeResult:
    """Change settings of a topic on its brokers; settings without a value stay unchanged on each broker."""
    return await topic_changes.change_topic(services, topic, form)


@api.delete("/{topic}")
async def delete_topic(services: Services, topic: str, form: FromQuery[DeleteTopicForm]) -> ChangeResult:
    """Delete a topic with its messages; `confirm` must be its name."""
    return await topic_changes.delete_topic(services, topic, form)


@pages.page("/topics/{topic}/queues", "topics/queues.html")
@api.get("/{topic}/queues")
async def list_queues(services: Services, topic: str, query: ListParameters) -> TopicQueuesView:
    """Return the queues of a topic with their offsets."""
    return await topic_details.topic_queues(services, topic, query)


@pages.page("/topics/{topic}/configuration", "topics/configuration.html")
@api.get("/{topic}/configuration")
async def get_configuration(services: Services, topic: str) -> TopicConfigView:
    """Return the configuration of a topic on each of its brokers."""
    return await topic_details.topic_configuration(services, topic)


@pages.page("/topics/{topic}/consumers", "topics/consumers.html")
@api.get("/{topic}/consumers")
async def list_consumers(services: Services, topic: str, query: ListParameters) -> TopicConsumersView:
    """Return the consumer groups of a topic with their lag and rate in this topic."""
    return await topic_details.topic_consumers(services, topic, query)


@pages.page("/topics/{topic}/producers", "topics/producers.html")
@api.get("/{topic}/producers")
async def list_topic_producers(services: Services, topic: str, query: ListParameters) -> ProducersView:
    """Return the producers that are connected to the brokers of a topic."""
    return await producers.producer_list(services, ProducerQuery(**query.model_dump(), topic=topic))


@api.put("/{topic}/order")
async def put_order_configuration(services: Services, topic: str, form: OrderConfigForm) -> ChangeResult:
    """Set the order configuration of a topic; an empty one is deleted."""
    return await topic_changes.change_order(services, topic, form)


@api.post("/{topic}/messages")
async def send_message(services: Services, topic: str, form: SendMessageForm) -> SentMessageView:
    """Send a message to a topic."""
    return await message_sends.send_message(services, topic, form)


@api.post("/{topic}/reset-offsets")
async def reset_offsets(services: Services, topic: str, form: ResetOffsetsForm) -> ResetOffsetsView:
    """Move consumer groups within a topic: to a time, to the first message, to the end (skip), or to an offset."""
    return await offset_changes.reset_offsets(services, topic, form)


# --- other pages, and forms ---


def path_of(topic: str, tab: str = "") -> str:
    """Return the path of a page of a topic."""
    return f"/topics/{path_segment(topic)}" + (f"/{tab}" if tab else "")


# Not below /topics: a topic may have any name.
@pages.get("/create-topic")
async def create_topic_page(request: Request, services: Services) -> Response:
    """Return the form of a new topic."""
    return render(request, "topics/create.html", view=await topic_details.topic_targets(services))


@pages.post("/create-topic")
async def create_topic_form(request: Request, services: Services, form: FromForm[CreateTopicForm]) -> Response:
    """Create a topic."""
    return answer_change(request, await topic_changes.create_topic(services, form), location=path_of(form.topic))


@pages.post("/topics/{topic}/configuration")
async def change_topic_form(
    request: Request, services: Services, topic: str, form: FromForm[ChangeTopicForm]
) -> Response:
    """Change the configuration of a topic."""
    result = await topic_changes.change_topic(services, topic, form)
    return answer_change(request, result, location=path_of(topic, "configuration"))


@pages.post("/topics/{topic}/order")
async def change_order(request: Request, services: Services, topic: str, form: FromForm[OrderConfigForm]) -> Response:
    """Set or delete the order configuration of a topic."""
    result = await topic_changes.change_order(services, topic, form)
    return answer_change(request, result, location=path_of(topic, "configuration"))


@pages.get("/topics/{topic}/send")
async def send_page(request: Request, services: Services, topic: str) -> Response:
    """Return the form of a test message."""
    return render(request, "topics/send.html", view=await topic_details.topic_form(services, topic))


@pages.post("/topics/{topic}/send")
async def send_message_form(
    request: Request, services: Services, topic: str, form: FromForm[SendMessageForm]
) -> Response:
    """Send a test message and show where it is stored."""
    sent = await message_sends.send_message(services, topic, form)
    return shown_below(request, "topics/sent.html", sent=sent)


@pages.get("/topics/{topic}/reset")
async def reset_page(request: Request, services: Services, topic: str, group: str = "", to: str = "time") -> Response:
    """Return the form of a reset; `group` and `to` preselect."""
    view = await topic_details.topic_form(services, topic)
    return render(request, "topics/reset.html", view=view, group=group, to=to)


@pages.post("/topics/{topic}/reset")
async def reset_offsets_form(
    request: Request, services: Services, topic: str, form: FromForm[ResetOffsetsForm]
) -> Response:
    """Move consumer groups within a topic and show the offsets before and after."""
    result = await offset_changes.reset_offsets(services, topic, form)
    return shown_below(request, "topics/reset_result.html", result=result)


@pages.post("/topics/{topic}/delete")
async def delete_topic_form(
    request: Request, services: Services, topic: str, form: FromForm[DeleteTopicForm]
) -> Response:
    """Delete a topic."""
    result = await topic_changes.delete_topic(services, topic, form)
    return answer_change(request, result, location=path_of(topic) if form.cluster else "/topics")
