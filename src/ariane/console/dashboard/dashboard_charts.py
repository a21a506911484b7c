"""/dashboard of Apache's dashboard: rates of brokers and topics over time.

Apache collects them while it runs. Here brokers have the live history of about the last hour and topics their current values;
the pipeline's reports have days and months.
"""

from __future__ import annotations

from datetime import date, datetime

from ariane.cluster.groups.topic_traffic import TopicTraffic
from ariane.console.dashboard.dashboard_topics import loaded_snapshot
from ariane.console.dashboard.formats.envelope import DashboardRouter
from ariane.console.dashboard.formats.json_shapes import Json
from ariane.console.dashboard.formats.request_parameters import Parameters
from ariane.console.live.live_history import broker_key
from ariane.console.services import ConsoleServices
from ariane.console.web.dependencies import Services
from ariane.errors import RouteNotFound, UsageError
from ariane.model.topic import is_system_topic, reply_topic

routes = DashboardRouter("/dashboard")


@routes.get("/broker.query")
async def broker_rates(services: Services, parameters: Parameters) -> Json:
    """Return the messages per second that each server delivered on a day, as `time,rate`."""
    day = _day(parameters.text("date"))
    snapshot = await loaded_snapshot(services)
    points: Json = {}
    for broker in snapshot.brokers:
        series = snapshot.history.series(broker_key(broker.broker, broker.broker_id), "tps_out")
        texts = [f"{at.ms},{at.value:.5f}" for at in series if at.value is not None and _date_of(at.ms) == day]
        if texts:
            points[f"{broker.broker}:{broker.broker_id}"] = texts
    return points


@routes.get("/topic.query")
async def topic_rates(services: Services, parameters: Parameters) -> Json | list[str] | None:
    """Return `time,rate in,messages in,rate out,messages out` of one topic or of all; messages are those of 24 hours."""
    day, topic = _day(parameters.text("date")), parameters.optional("topicName")
    now_ms = services.clock.now_ms()
    is_today = day == _date_of(now_ms)
    if topic is None:
        return {row.topic: [_point(row, now_ms)] for row in await _traffic(services)} if is_today else {}
    if not is_today:
        return None
    try:
        rows = await _traffic(services, topic)
    except RouteNotFound:
        return None
    return [_point(row, now_ms) for row in rows]


@routes.get("/topicCurrent", "/topicCurrent.query")
async def current_topics(services: Services) -> list[str]:
    """Return `topic,messages out` of each topic in 24 hours."""
    return [f"{row.topic},{_text(_sums(row)[3])}" for row in await _traffic(services)]


async def _traffic(services: ConsoleServices, topic: str | None = None) -> tuple[TopicTraffic, ...]:
    async with services.admin() as admin:
        info = await admin.fetch_cluster()
        report = await admin.fetch_traffic(topic)
    names = {*info.cluster_addr_table, *info.broker_addr_table, *map(reply_topic, info.cluster_addr_table)}
    return tuple(row for row in report.topics if row.topic not in names and not is_system_topic(row.topic))


def _point(row: TopicTraffic, now_ms: int) -> str:
    rate_in, count_in, rate_out, count_out = _sums(row)
    return f"{now_ms},{_text(rate_in)},{_text(count_in)},{_text(rate_out)},{_text(count_out)}"


def _sums(row: TopicTraffic) -> tuple[float | None, int | None, float | None, int | None]:
    received = [group.received for group in row.groups]
    present = [traffic for traffic in received if traffic is not None]
    is_known = len(present) == len(received)
    return (
        row.stored.tps if row.stored is not None else None,
        row.stored.messages_24h if row.stored is not None else None,
        sum((traffic.tps for traffic in present), start=0.0) if is_known else None,
        sum(traffic.messages_24h for traffic in present) if is_known else None,
    )


def _text(value: float | None) -> str:
    """Return a number as the dashboard prints it; an unknown one is empty."""
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.5f}"


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError("date", text, "expected YYYY-MM-DD") from None


def _date_of(ms: int) -> date:
    return datetime.fromtimestamp(ms / 1000).date()
