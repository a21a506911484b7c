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
from ariane.console.areas.topics.topic_list import TopicListQuery, TopicListView
from ariane.console.texts.text_format import path_segment
from ariane.console.web.dependencies import FromForm, FromQuery, ListParameters, Services
from ariane.console.web.page_router import PageRouter
from ariane.console.web.rendering import answer_change, render
from ariane.console.web.view_model import ChangeResult

pages = PageRouter()
api = APIRouter(prefix="/topics", tags=["topics"])


@pages.page("/topics", "topics/list.html")
@api.get("")
async def list_topics(services: Services, query: FromQuery[TopicListQuery]) -> TopicListView:
    """Return a page of the topics of one kind."""
    return await topics.topic_list(services, query)


@pages.form("/create-topic", "/topics/{topic}")
@api.post("")
async def create_topic(services: Services, form: topic_changes.CreateTopicForm) -> ChangeResult:
    """Create a topic on all masters, or on those of the named clusters and brokers."""
    return await topic_changes.create_topic(services, form)


@pages.page("/topics/{topic}", "topics/status.html")
@pages.page("/topics/{topic}/delete", "topics/delete.html")
@api.get("/{topic}")
async def get_topic(services: Services, topic: str) -> topic_details.TopicStatusView:
    """Return the status and the route of a topic."""
    return await topic_details.topic_status(services, topic)


@pages.form("/topics/{topic}/configuration", "/topics/{topic}/configuration")
@api.patch("/{topic}")
async def change_topic(
    services: Services, topic: str, form: topic_changes.ChangeTopicForm
) -> topic_changes.TopicChangeResult:
    """Change settings of a topic on its brokers; settings without a value stay unchanged on each broker."""
    return await topic_changes.change_topic(services, topic, form)


@api.delete("/{topic}")
async def delete_topic(services: Services, topic: str, form: FromQuery[topic_changes.DeleteTopicForm]) -> ChangeResult:
    """Delete a topic with its messages; `confirm` must be its name."""
    return await topic_changes.delete_topic(services, topic, form)


@pages.page("/topics/{topic}/queues", "topics/queues.html")
@api.get("/{topic}/queues")
async def list_queues(services: Services, topic: str, query: ListParameters) -> topic_details.TopicQueuesView:
    """Return the queues of a topic with their offsets."""
    return await topic_details.topic_queues(services, topic, query)


@pages.page("/topics/{topic}/configuration", "topics/configuration.html")
@api.get("/{topic}/configuration")
async def get_configuration(services: Services, topic: str) -> topic_details.TopicConfigView:
    """Return the configuration of a topic on each of its brokers."""
    return await topic_details.topic_configuration(services, topic)


@pages.page("/topics/{topic}/consumers", "topics/consumers.html")
@api.get("/{topic}/consumers")
async def list_consumers(services: Services, topic: str, query: ListParameters) -> topic_details.TopicConsumersView:
    """Return the consumer groups of a topic with their lag and rate in this topic."""
    return await topic_details.topic_consumers(services, topic, query)


@pages.page("/topics/{topic}/producers", "topics/producers.html")
@api.get("/{topic}/producers")
async def list_topic_producers(services: Services, topic: str, query: ListParameters) -> ProducersView:
    """Return the producers that are connected to the brokers of a topic."""
    return await producers.producer_list(services, ProducerQuery(**query.model_dump(), topic=topic))


@pages.form("/topics/{topic}/order", "/topics/{topic}/configuration")
@api.put("/{topic}/order")
async def put_order_configuration(services: Services, topic: str, form: topic_changes.OrderConfigForm) -> ChangeResult:
    """Set the order configuration of a topic; an empty one is deleted."""
    return await topic_changes.change_order(services, topic, form)


@pages.form("/topics/{topic}/send", template="topics/sent.html")
@api.post("/{topic}/messages")
async def send_message(services: Services, topic: str, form: SendMessageForm) -> SentMessageView:
    """Send a message to a topic."""
    return await message_sends.send_message(services, topic, form)


@pages.form("/topics/{topic}/reset", template="topics/reset_result.html")
@api.post("/{topic}/reset-offsets")
async def reset_offsets(services: Services, topic: str, form: ResetOffsetsForm) -> ResetOffsetsView:
    """Move consumer groups within a topic: to a time, to the first message, to the end (skip), or to an offset."""
    return await offset_changes.reset_offsets(services, topic, form)


# --- other pages, and forms ---


# Not below /topics: a topic may have any name.
@pages.get("/create-topic")
async def create_topic_page(request: Request, services: Services) -> Response:
    """Return the form of a new topic."""
    return render(request, "topics/create.html", view=await topic_details.topic_targets(services))


@pages.get("/topics/{topic}/send")
async def send_page(request: Request, services: Services, topic: str) -> Response:
    """Return the form of a test message."""
    return render(request, "topics/send.html", view=await topic_details.topic_form(services, topic))


@pages.get("/topics/{topic}/reset")
async def reset_page(request: Request, services: Services, topic: str, group: str = "", to: str = "time") -> Response:
    """Return the form of a reset; `group` and `to` preselect."""
    view = await topic_details.topic_form(services, topic)
    return render(request, "topics/reset.html", view=view, group=group, to=to)


@pages.post("/topics/{topic}/delete")
async def delete_topic_form(
    request: Request, services: Services, topic: str, form: FromForm[topic_changes.DeleteTopicForm]
) -> Response:
    """Delete a topic."""
    result = await topic_changes.delete_topic(services, topic, form)
    return answer_change(request, result, location=f"/topics/{path_segment(topic)}" if form.cluster else "/topics")
