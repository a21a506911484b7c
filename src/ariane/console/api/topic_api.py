"""REST of topics: reads, changes with dry run, test messages and resets."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

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
from ariane.console.web.dependencies import ListParameters, Services
from ariane.console.web.view_model import ChangeResult

router = APIRouter(prefix="/topics", tags=["topics"])


@router.get("")
async def list_topics(services: Services, query: Annotated[TopicListQuery, Query()]) -> TopicListView:
    """Return a page of the topics of one kind."""
    return await topics.topic_list(services, query)


@router.post("")
async def create_topic(services: Services, form: CreateTopicForm) -> ChangeResult:
    """Create a topic on all masters, or on those of the named clusters and brokers."""
    return await topic_changes.create_topic(services, form)


@router.get("/{topic}")
async def get_topic(services: Services, topic: str) -> TopicStatusView:
    """Return the status and the route of a topic."""
    return await topic_details.topic_status(services, topic)


@router.patch("/{topic}")
async def change_topic(services: Services, topic: str, form: ChangeTopicForm) -> TopicChangeResult:
    """Change settings of a topic on its brokers; settings without a value stay unchanged on each broker."""
    return await topic_changes.change_topic(services, topic, form)


@router.delete("/{topic}")
async def delete_topic(services: Services, topic: str, form: Annotated[DeleteTopicForm, Query()]) -> ChangeResult:
    """Delete a topic with its messages; `confirm` must be its name."""
    return await topic_changes.delete_topic(services, topic, form)


@router.get("/{topic}/queues")
async def list_queues(services: Services, topic: str, query: ListParameters) -> TopicQueuesView:
    """Return the queues of a topic with their offsets."""
    return await topic_details.topic_queues(services, topic, query)


@router.get("/{topic}/configuration")
async def get_configuration(services: Services, topic: str) -> TopicConfigView:
    """Return the configuration of a topic on each of its brokers."""
    return await topic_details.topic_configuration(services, topic)


@router.get("/{topic}/consumers")
async def list_consumers(services: Services, topic: str, query: ListParameters) -> TopicConsumersView:
    """Return the consumer groups of a topic with their lag and rate in this topic."""
    return await topic_details.topic_consumers(services, topic, query)


@router.get("/{topic}/producers")
async def list_topic_producers(services: Services, topic: str, query: ListParameters) -> ProducersView:
    """Return the producers that are connected to the brokers of a topic."""
    return await producers.producer_list(services, ProducerQuery(**query.model_dump(), topic=topic))


@router.put("/{topic}/order")
async def put_order_configuration(services: Services, topic: str, form: OrderConfigForm) -> ChangeResult:
    """Set the order configuration of a topic; an empty one is deleted."""
    return await topic_changes.change_order(services, topic, form)


@router.post("/{topic}/messages")
async def send_message(services: Services, topic: str, form: SendMessageForm) -> SentMessageView:
    """Send a message to a topic."""
    return await message_sends.send_message(services, topic, form)


@router.post("/{topic}/reset-offsets")
async def reset_offsets(services: Services, topic: str, form: ResetOffsetsForm) -> ResetOffsetsView:
    """Move consumer groups within a topic: to a time, to the first message, to the end (skip), or to an offset."""
    return await offset_changes.reset_offsets(services, topic, form)
