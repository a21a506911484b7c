"""/message of Apache's dashboard: looks up messages, and lets clients consume them again."""

from __future__ import annotations

from fastapi.responses import JSONResponse

from ariane.cluster.admin import Admin
from ariane.cluster.connection import BrokerUnavailable
from ariane.cluster.messages.message_query import is_offset_id
from ariane.cluster.messages.message_search import MessageFilter
from ariane.cluster.messages.message_tracking import DirectConsumption
from ariane.console.dashboard.formats.envelope import DashboardRouter, succeeded
from ariane.console.dashboard.formats.json_shapes import Json, members, message_shape, track_shape
from ariane.console.dashboard.formats.request_parameters import Parameters, RequestBody
from ariane.console.dashboard.message_pages import StoredPage, StoreTimes, message_page
from ariane.console.services import ConsoleServices
from ariane.console.web.dependencies import ClusterAdmin, Services
from ariane.errors import NotFound, ProtocolError, ReplyError, ServerUnavailable
from ariane.model.message import ReceivedMessage

routes = DashboardRouter("/message")
traced_routes = DashboardRouter("/messageTrace")

MESSAGES_MAX = 2_000  # of a list without pages, as Apache's
OMITTED_HEADER = "X-Omitted-Messages"  # the list has no place for it


class PageQuery(RequestBody):
    """A page of the messages of a topic in a time range."""

    topic: str
    """Topic that stores the messages, also `%DLQ%GROUP`."""
    begin: int
    """Earliest store time in ms."""
    end: int
    """Latest store time in ms."""
    page_num: int = 1
    """Number of the page, from 1; without effect for the first request of a search."""
    page_size: int
    """Messages of a page."""
    task_id: str | None = None
    """Id of the search, from an earlier answer; empty for a new one."""


@routes.get("/viewMessage.query")
async def view_message(admin: ClusterAdmin, parameters: Parameters) -> Json:
    """Return a message by its unique key or its offset id, with its state in every group."""
    message = await find_message(admin, parameters.optional("topic"), parameters.text("msgId"))
    tracks = await admin.track(message)
    if tracks.unavailable:
        raise ServerUnavailable(f"groups of the message are incomplete: {tracks.unavailable[0]}")
    return {
        "messageTrackList": [track_shape(track) for track in tracks.tracks],
        "messageView": message_shape(message),
    }


@traced_routes.get("/viewMessage.query")
async def view_traced_message(admin: ClusterAdmin, parameters: Parameters) -> Json:
    """Return a message without its state in the groups."""
    message = await find_message(admin, parameters.optional("topic"), parameters.text("msgId"))
    return {"messageView": message_shape(message)}


@routes.get("/queryMessageByTopicAndKey.query")
async def messages_of_key(admin: ClusterAdmin, parameters: Parameters) -> list[Json]:
    """Return all messages of a topic with a key; Apache returns 64 at most."""
    topic, key = parameters.text("topic"), parameters.text("key")
    result = await admin.query_by_key(topic, key)
    check_complete(result.unavailable)
    if not result.messages:
        raise result.not_found(f"message of {topic} with key", key)
    return [message_shape(message) for message in result.messages]


@routes.get("/queryMessageByTopic.query")
async def messages_of_topic(admin: ClusterAdmin, parameters: Parameters) -> JSONResponse:
    """Return the newest messages of a time range without bodies, the newest first; a header counts those omitted."""
    topic = parameters.text("topic")
    wanted = MessageFilter(since_ms=parameters.whole("begin"), until_ms=parameters.whole("end") + 1)
    result = await admin.search(topic, wanted, limit=MESSAGES_MAX)
    check_complete(result.unavailable)
    shapes = [message_shape(message, with_body=False) for message in reversed(result.messages)]
    response = succeeded(shapes)
    if result.matching is None or result.matching > len(shapes):
        response.headers[OMITTED_HEADER] = "unknown" if result.matching is None else str(result.matching - len(shapes))
    return response


@routes.post("/queryMessagePageByTopic.query")
async def messages_page(services: Services, body: PageQuery) -> Json:
    """Return a page of the messages of a time range."""
    return await page_of(services, body)


@routes.post("/consumeMessageDirectly.do")
async def consume_directly(admin: ClusterAdmin, parameters: Parameters) -> Json:
    """Let a client of a group consume a stored message now; any client if `clientId` is missing."""
    message = await find_message(admin, parameters.optional("topic"), parameters.text("msgId"))
    group, client = parameters.text("consumerGroup"), parameters.optional("clientId")
    return members(await consume(admin, message, group, client))


async def page_of(services: ConsoleServices, query: PageQuery) -> Json:
    """Return a page with the members of Spring's `Page`."""
    async with services.admin() as admin:
        page = await message_page(
            admin, query.topic, StoreTimes(query.begin, query.end), number=query.page_num, size=query.page_size,
            task=query.task_id or "", now_ms=services.clock.now_ms(),
        )  # fmt: skip
    return {"page": page_shape(page), "taskId": page.task}


def page_shape(page: StoredPage) -> Json:
    """Return a page as Spring prints it."""
    pages = -(-page.total // page.size)
    unsorted = {"sorted": False, "unsorted": True, "empty": True}
    return {
        "content": [message_shape(message) for message in page.messages],
        "pageable": {
            "pageNumber": page.number,
            "pageSize": page.size,
            "sort": unsorted,
            "offset": page.number * page.size,
            "paged": True,
            "unpaged": False,
        },
        "totalPages": pages,
        "totalElements": page.total,
        "last": page.number + 1 >= pages,
        "size": page.size,
        "number": page.number,
        "sort": unsorted,
        "numberOfElements": len(page.messages),
        "first": page.number == 0,
        "empty": not page.messages,
    }


async def find_message(admin: Admin, topic: str | None, message_id: str) -> ReceivedMessage:
    """Return the message with an offset id or a unique key, the first one that was stored.

    Raises:
        NotFound: there is none.
        RouteNotFound: the topic does not exist.
        ServerUnavailable: no broker that responded has it, and one did not respond.
    """
    if is_offset_id(message_id):
        try:
            return await admin.view_by_offset_id(message_id)
        except (ReplyError, ProtocolError):
            pass  # no record begins there: it may be a unique key all the same
    result = await admin.find_messages(message_id, topic)
    if result.first is None:
        raise result.not_found("message", message_id)
    return result.first


async def consume(admin: Admin, message: ReceivedMessage, group: str, client: str | None) -> DirectConsumption:
    """Let a client of a group consume a message; None: any client that is connected to the broker of the message.

    Raises:
        NotFound, ReplyError: no client is connected.
    """
    result = await admin.consume_directly(message, group, client or await admin.find_client(message, group))
    if result is None:
        raise NotFound("result of the consumption of message", message.message_id)
    return result


def check_complete(unavailable: tuple[BrokerUnavailable, ...]) -> None:
    """Reject an incomplete list, which would look complete.

    Raises:
        ServerUnavailable: a broker did not respond.
    """
    if unavailable:
        raise ServerUnavailable(f"messages may be missing: {'; '.join(str(broker) for broker in unavailable)}")
