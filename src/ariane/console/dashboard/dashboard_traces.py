"""/messageTrace of Apache's dashboard: the trace events of a message, and the graph that is built of them.

trace messages ─→ events ─→ one view each ─→ producer node, transaction nodes, consume nodes by group
"""

from __future__ import annotations

from collections.abc import Iterable

from ariane.cluster.messages.message_query import QueryResult
from ariane.console.dashboard.dashboard_messages import check_complete, traced_routes
from ariane.console.dashboard.formats.json_shapes import Json
from ariane.console.dashboard.formats.request_parameters import Parameters
from ariane.console.services import ConsoleServices
from ariane.console.web.dependencies import Services
from ariane.model.host import ip_of
from ariane.model.message import ReceivedMessage
from ariane.model.trace_event import (
    ConsumeEndEvent,
    ConsumeStartEvent,
    EndTransactionEvent,
    MessageType,
    PublishEvent,
    RecallEvent,
    TraceEvent,
)
from ariane.protocol import trace_codec

routes = traced_routes

MISSING = -1  # a duration or time that no event reports
UNKNOWN_GROUP = "%UNKNOWN_GROUP%"  # of a consumption whose start was lost, by an old client
TYPE_NAMES = {
    MessageType.NORMAL: "Normal_Msg", MessageType.HALF: "Trans_Msg_Half", MessageType.COMMIT: "Trans_msg_Commit",
    MessageType.DELAY: "Delay_Msg", MessageType.ORDER: "Order_Msg",
}  # fmt: skip
NODE_MEMBERS = (
    "requestId", "storeHost", "clientHost", "costTime", "retryTimes", "status", "transactionState", "transactionId",
    "fromTransactionCheck", "msgType",
)  # fmt: skip


@routes.get("/viewMessageTraceDetail.query")
async def trace_events(services: Services, parameters: Parameters) -> list[Json]:
    """Return all trace events of a message in the default trace topic."""
    return await _views(services, parameters.text("msgId"), services.settings.trace_topic)


@routes.get("/viewMessageTraceGraph.query")
async def trace_graph(services: Services, parameters: Parameters) -> Json:
    """Return the events of a message in a trace topic, ordered by producer, transaction and consumer group."""
    topic = parameters.optional("traceTopic") or services.settings.trace_topic
    views = await _views(services, parameters.text("msgId"), topic)
    return {
        "producerNode": _producer_node(views),
        "subscriptionNodeList": _subscription_nodes(views),
        "messageTraceViews": views,
    }


async def _views(services: ConsoleServices, message_id: str, topic: str) -> list[Json]:
    async with services.admin() as admin:
        result = await admin.query_by_key(topic, message_id)
    check_complete(result.unavailable)
    views = list(_views_of(result, message_id))
    if not views:
        raise result.not_found(f"trace in {topic} of message", message_id)
    return views


def _views_of(found: QueryResult, message_id: str) -> Iterable[Json]:
    for carrier in found.messages:
        for event in trace_codec.decode(carrier.body)[0]:
            if event.message_id == message_id:
                yield trace_view(event, carrier)


def trace_view(event: TraceEvent, carrier: ReceivedMessage) -> Json:
    """Return an event. Its client is the sender of the trace message that contains it."""
    view = {
        "requestId": None, "msgId": event.message_id, "tags": "", "keys": "", "storeHost": None,
        "clientHost": ip_of(carrier.born_host), "costTime": MISSING, "msgType": None,
        "offSetMsgId": "", "timeStamp": event.timestamp_ms, "topic": "", "groupName": event.group, "retryTimes": 0,
        "status": "success", "transactionState": None, "transactionId": None, "fromTransactionCheck": False,
        "traceType": trace_codec.RECORD_TYPES[type(event)],
    }  # fmt: skip
    return view | _own_members(event)


def _own_members(event: TraceEvent) -> Json:
    """Return what only events of this type have."""
    match event:
        case PublishEvent():
            return {
                "tags": event.tags, "keys": event.keys, "storeHost": event.store_host, "costTime": event.cost_ms,
                "msgType": _type_name(event.message_type), "offSetMsgId": event.offset_message_id or "",
                "topic": event.topic, "status": _status(event.success),
            }  # fmt: skip
        case ConsumeStartEvent():
            return {"requestId": event.request_id, "keys": event.keys, "retryTimes": event.retry_times}
        case ConsumeEndEvent():
            return {
                "requestId": event.request_id, "keys": event.keys, "costTime": event.cost_ms,
                "status": _status(event.success),
            }  # fmt: skip
        case EndTransactionEvent():
            return {
                "tags": event.tags, "keys": event.keys, "storeHost": event.store_host, "topic": event.topic,
                "msgType": _type_name(event.message_type), "transactionId": event.transaction_id,
                "transactionState": event.state, "fromTransactionCheck": event.from_check,
            }  # fmt: skip
        case RecallEvent():
            return {"topic": event.topic, "status": _status(event.success)}


def _producer_node(views: list[Json]) -> Json | None:
    sent = [view for view in views if view["traceType"] == "Pub"]
    if not sent:
        return None
    # A message that was sent again has several events; Apache shows the last, too.
    view = sent[-1]
    ends = [_node(end) for end in views if end["traceType"] == "EndTransaction"]
    members = ("msgId", "tags", "keys", "offSetMsgId", "topic", "groupName")
    return {member: view[member] for member in members} | {
        "traceNode": _node(view),
        "transactionNodeList": _latest_first(ends),
    }


def _node(view: Json) -> Json:
    begin = view["timeStamp"]
    # The duration of the end of a transaction is not reported.
    end = begin if view["costTime"] == MISSING else begin + view["costTime"]
    return {member: view[member] for member in NODE_MEMBERS} | {"beginTimestamp": begin, "endTimestamp": end}


def _subscription_nodes(views: list[Json]) -> list[Json]:
    starts = {view["requestId"]: view for view in views if view["traceType"] == "SubBefore"}
    ends = {view["requestId"]: view for view in views if view["traceType"] == "SubAfter"}
    groups: dict[str, list[Json]] = {}
    for request_id in dict.fromkeys([*starts, *ends]):
        start, end = starts.get(request_id), ends.get(request_id)
        record = start or end
        assert record is not None
        groups.setdefault(record["groupName"] or UNKNOWN_GROUP, []).append(_consume_node(start, end, record))
    return [{"subscriptionGroup": group, "consumeNodeList": _latest_first(nodes)} for group, nodes in groups.items()]


def _consume_node(start: Json | None, end: Json | None, known: Json) -> Json:
    """Return a call of a listener. One whose end was lost has an unknown result."""
    begin = MISSING if start is None else start["timeStamp"]
    node = {member: known[member] for member in NODE_MEMBERS} | {
        "beginTimestamp": begin,
        "endTimestamp": MISSING,
        "retryTimes": MISSING if start is None else start["retryTimes"],
        "costTime": MISSING,
        "status": "unknown",
    }
    if end is None:
        return node
    finished = end["timeStamp"] or (MISSING if start is None else begin + max(0, end["costTime"]))
    return node | {"costTime": end["costTime"], "status": end["status"], "endTimestamp": finished}


def _latest_first(nodes: list[Json]) -> list[Json]:
    return sorted(nodes, key=lambda node: node["beginTimestamp"] or MISSING, reverse=True)


def _type_name(number: int | None) -> str | None:
    return TYPE_NAMES[MessageType(number)] if number in set(MessageType) else None


def _status(success: bool) -> str:
    return "success" if success else "failed"
