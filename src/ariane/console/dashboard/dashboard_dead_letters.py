"""/dlqMessage of Apache's dashboard: dead letters of a group, their export and their redelivery."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated

from fastapi import Body
from fastapi.responses import Response
from pydantic import AliasChoices, Field

from ariane.cluster.admin import Admin
from ariane.cluster.connection import gather_bounded
from ariane.console.areas.dead_letters.dead_letter_resend import IDS_MAX
from ariane.console.dashboard.dashboard_messages import PageQuery, consume, find_message, page_of, page_shape
from ariane.console.dashboard.formats.envelope import DashboardRouter
from ariane.console.dashboard.formats.json_shapes import Json
from ariane.console.dashboard.formats.request_parameters import Parameters, RequestBody
from ariane.console.dashboard.formats.spreadsheet import CONTENT_TYPE, Cell, spreadsheet
from ariane.console.dashboard.message_pages import StoredPage
from ariane.console.security.audit_notes import note_failure
from ariane.console.web.dependencies import ClusterAdmin, Services
from ariane.errors import ArianeError, RouteNotFound
from ariane.model.host import ip_of
from ariane.model.message import ReceivedMessage
from ariane.model.topic import DLQ_PREFIX, dlq_topic

routes = DashboardRouter("/dlqMessage")

CONCURRENT_LETTERS = 8  # of one request

COLUMNS = (
    "topic", "msgId", "bornHost", "bornTimestamp", "storeTimestamp", "reconsumeTimes", "properties", "messageBody",
    "bodyCRC", "exception",
)  # fmt: skip


class DeadLetter(RequestBody):
    """A dead letter. Apache's page sends its topic as `topic`, its REST API reads `topicName`; both are accepted."""

    topic_name: str | None = Field(None, validation_alias=AliasChoices("topicName", "topic"))
    consumer_group: str
    msg_id: str
    client_id: str | None = None


DeadLetters = Annotated[list[DeadLetter], Body(max_length=IDS_MAX)]


@routes.post("/queryDlqMessageByConsumerGroup.query")
async def dead_letters_page(services: Services, body: PageQuery) -> Json:
    """Return a page of dead letters. A group without dead letters has an empty page."""
    try:
        return await page_of(services, body)
    except RouteNotFound:
        if not body.topic.startswith(DLQ_PREFIX):
            raise
        empty = StoredPage([], 0, 0, body.page_size, body.task_id or "")
        return {"page": page_shape(empty), "taskId": empty.task}


@routes.get("/exportDlqMessage.do")
async def export_dead_letter(admin: ClusterAdmin, parameters: Parameters) -> Response:
    """Return an Excel file with one dead letter."""
    group, message_id = parameters.text("consumerGroup"), parameters.text("msgId")
    message = await find_message(admin, dlq_topic(group), message_id)
    return await _file("dlq", [_cells(message)])


@routes.post("/batchExportDlqMessage.do")
async def export_dead_letters(admin: ClusterAdmin, body: DeadLetters) -> Response:
    """Return an Excel file with dead letters. One that cannot be read has the reason in the last column."""
    rows = await gather_bounded((_row(admin, letter) for letter in body), CONCURRENT_LETTERS)
    return await _file("dlqs", rows)


@routes.post("/batchResendDlqMessage.do")
async def resend_dead_letters(admin: ClusterAdmin, body: DeadLetters) -> list[Json]:
    """Let clients of the groups consume dead letters again. Each has its own result."""
    return await gather_bounded((_resend(admin, letter) for letter in body), CONCURRENT_LETTERS)


async def _row(admin: Admin, letter: DeadLetter) -> tuple[Cell, ...]:
    try:
        return _cells(await find_message(admin, dlq_topic(letter.consumer_group), letter.msg_id))
    except ArianeError as error:
        return (None, letter.msg_id, *[None] * (len(COLUMNS) - 3), str(error))


async def _resend(admin: Admin, letter: DeadLetter) -> Json:
    topic = letter.topic_name or dlq_topic(letter.consumer_group)
    try:
        message = await find_message(admin, topic, letter.msg_id)
        result = await consume(admin, message, letter.consumer_group, letter.client_id)
    except ArianeError as error:
        # No listener was called: the result is unknown, and the remark says why.
        note_failure(f"{letter.msg_id}: {error}")
        return {"msgId": letter.msg_id, "consumeResult": None, "remark": str(error)}
    return {"msgId": letter.msg_id, "consumeResult": result.consume_result, "remark": result.remark}


def _cells(message: ReceivedMessage) -> tuple[Cell, ...]:
    properties = ", ".join(f"{name}={value}" for name, value in message.properties.items())
    return (
        message.queue.topic, message.message_id, ip_of(message.born_host),
        _local_time(message.born_ms), _local_time(message.store_ms), message.reconsume_times,
        f"{{{properties}}}", message.body.decode("utf-8", "replace"), message.body_crc, None,
    )  # fmt: skip


def _local_time(ms: int) -> str:
    """Return a time in the console's time zone, as Apache does."""
    return f"{datetime.fromtimestamp(ms / 1000):%Y-%m-%d %H:%M:%S}"


async def _file(name: str, rows: list[tuple[Cell, ...]]) -> Response:
    headers = {"Content-Disposition": f"attachment;filename={name}.xlsx"}
    # In a thread: bodies of a thousand messages take seconds to compress.
    content = await asyncio.to_thread(spreadsheet, name, COLUMNS, rows)
    return Response(content, media_type=CONTENT_TYPE, headers=headers)
