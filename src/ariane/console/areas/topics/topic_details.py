"""One topic: status and route, queues, configuration per broker, consumer groups.

Details are asked of the brokers at each request, all of them concurrently; one that does not respond is in `unavailable`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ariane.cluster.connection import BrokerServer, gather_bounded
from ariane.cluster.groups.group_lag import GroupLag
from ariane.cluster.topics.topic_queries import TopicBounds
from ariane.console.areas.admin_results import texts_of
from ariane.console.live.live_snapshot import TopicKind
from ariane.console.services import ConsoleServices
from ariane.console.web.paging import ListQuery, Page, paginate, sort_keys
from ariane.console.web.view_model import PartialView, View
from ariane.model.topic import TopicConfig, permission_words
from ariane.protocol.requests.routing import TopicRoute

GROUPS_AT_ONCE = 16  # groups in flight: each costs a request per server


class RouteRow(View):
    """A topic on one broker, as name servers list it."""

    broker: str
    cluster: str
    addrs: dict[int, str]
    """Addresses of the broker's servers by broker id; 0 is the master."""
    read_queues: int | None
    """Queues that consumers read; null if the route has none of this broker."""
    write_queues: int | None
    """Queues that producers choose from."""
    permission: str | None
    """`read-write`, `read`, `write` or `none`."""


class _TopicGroups(View):
    topic: str
    kind: TopicKind | None
    """What the topic is for; null until the console has polled it."""
    groups: list[str]
    """Consumer groups that have read it or are connected."""


class TopicStatusView(PartialView, _TopicGroups):
    """Status of a topic, and its route."""

    routes: list[RouteRow]
    """Brokers of the topic."""
    order_configuration: str | None
    """Fixed numbers of queues of an ordered topic, `broker:queues;…`; null if it has none."""
    queues: int
    """Queues that producers choose from, of all brokers."""
    messages: int | None
    """Messages in its queues; null if a broker did not respond."""
    last_message_ms: int | None
    """Store time of the newest message; null if the topic is empty or a broker did not respond."""
    stored_tps: float | None
    """Messages stored per second in the last minute; null if a broker did not respond."""
    stored_day: int | None
    """Messages stored in the last 24 hours; null if a broker did not respond."""
    is_complete: bool
    """Whether all brokers of the topic responded about its groups."""


class TopicFormView(_TopicGroups):
    """What the forms of a topic offer."""

    unavailable: list[str]
    """Brokers that did not respond: groups may be missing."""
    brokers: list[str]


class QueueRow(View):
    """A queue of a topic on one broker."""

    broker: str
    queue_id: int
    """Number of the queue on that broker."""
    min_offset: int
    """Offset of the first stored message."""
    max_offset: int
    """Offset after the last message."""
    messages: int
    last_message_ms: int | None
    """Store time of the last message; null if the queue is empty."""


class TopicQueuesView(PartialView):
    """Queues of a topic."""

    topic: str
    messages: int | None
    """Messages in all queues; null if a broker did not respond."""
    queues: Page[QueueRow]


class TopicConfigRow(View):
    """Configuration of a topic on one broker."""

    broker: str
    cluster: str
    addr: str
    """Address of the master."""
    read_queues: int
    """Queues that consumers read."""
    write_queues: int
    """Queues that producers choose from; fewer than the others while a topic shrinks."""
    permission: str
    """`read-write`, `read`, `write` or `none`."""
    is_ordered: bool
    """Whether the broker marks it as ordered: it takes that from the order configuration."""
    filter_type: str
    """`SINGLE_TAG` or `MULTI_TAG`."""
    system_flag: int
    """Bit 0: unit topic, bit 1: has a unit subscription."""


class TopicConfigView(PartialView):
    """Configuration of a topic on all of its brokers."""

    topic: str
    brokers: list[TopicConfigRow]
    """Its configuration per broker."""
    differing: list[str]
    """Members of `brokers` whose values differ between the brokers."""
    order_configuration: str | None
    """Fixed numbers of queues of an ordered topic, in the name servers' KV table; null if it has none."""


class TopicConsumerRow(View):
    """A consumer group of a topic."""

    group: str
    lag: int | None
    """Messages of this topic that it has not consumed; null: unknown."""
    consume_tps: float | None
    """Messages of this topic delivered to it per second in the last minute, over masters and slaves; null: unknown."""
    queues: int
    """Queues for which it has offsets."""
    unknown_queues: int
    """Queues without a committed offset."""
    last_consumed_ms: int | None
    """Store time of the newest message that it consumed; null: none, or deleted since."""


class TopicConsumersView(PartialView):
    """Consumer groups of a topic."""

    topic: str
    consumers: Page[TopicConsumerRow]
    """Groups that have read the topic or are connected, by name. Only groups of this page are asked about."""


class TopicTargetsView(View):
    """Clusters and brokers that can get a topic."""

    clusters: list[str]
    brokers: list[str]
    """Names of the brokers that have a master."""


# --- reads ---


async def topic_targets(services: ConsoleServices) -> TopicTargetsView:
    """Return the clusters and brokers that can get a topic."""
    masters = await services.admin().select_brokers()
    return TopicTargetsView(
        clusters=sorted({server.cluster for server in masters}), brokers=sorted({server.broker for server in masters})
    )


async def topic_status(services: ConsoleServices, topic: str) -> TopicStatusView:
    """Return the status of a topic."""
    as_of_ms = services.clock.now_ms()
    admin = services.admin()
    route, servers = await asyncio.gather(admin.fetch_route(topic), admin.select_brokers(with_slaves=True))
    masters = _masters_of(route, servers)
    # Name servers add the order configuration to routes only if they are configured to.
    bounds, (stored, silent), (groups, missing), order = await asyncio.gather(
        admin.fetch_bounds(topic),
        admin.stored_traffic(topic),
        admin.list_groups_of(topic, masters),
        admin.fetch_order_conf(topic),
    )
    bounds = _of_brokers(bounds, route)
    times = [queue.stored_ms for queue in bounds.queues if queue.stored_ms is not None]
    row = (await services.live.snapshot()).topic(topic)
    return TopicStatusView(
        as_of_ms=as_of_ms,
        unavailable=texts_of((*bounds.unavailable, *silent, *missing)),
        topic=topic,
        kind=row.kind if row else None,
        routes=_route_rows(route),
        order_configuration=order,
        queues=sum(data.write_queue_nums for data in route.queue_datas),
        messages=bounds.messages,
        last_message_ms=None if bounds.unavailable else max(times, default=None),
        stored_tps=None if stored is None else stored.tps,
        stored_day=None if stored is None else stored.messages_24h,
        groups=list(groups),
        is_complete=not missing,
    )


async def topic_form(services: ConsoleServices, topic: str) -> TopicFormView:
    """Return what the forms of a topic offer. Costs less than its status: brokers are only asked for the groups."""
    admin = services.admin()
    route, servers = await asyncio.gather(admin.fetch_route(topic), admin.select_brokers(with_slaves=True))
    groups, missing = await admin.list_groups_of(topic, _masters_of(route, servers))
    row = (await services.live.snapshot()).topic(topic)
    return TopicFormView(
        unavailable=texts_of(missing),
        topic=topic,
        kind=row.kind if row else None,
        brokers=[data.broker_name for data in route.broker_datas],
        groups=list(groups),
    )


QUEUE_COLUMNS = sort_keys(
    "broker", "min_offset", "max_offset", "messages", queue=lambda row: (row.broker, row.queue_id),
    lastMessage="last_message_ms",
)  # fmt: skip


async def topic_queues(services: ConsoleServices, topic: str, query: ListQuery) -> TopicQueuesView:
    """Return the queues of a topic with their offsets."""
    as_of_ms = services.clock.now_ms()
    admin = services.admin()
    bounds, route = await asyncio.gather(admin.fetch_bounds(topic), admin.fetch_route(topic))
    bounds = _of_brokers(bounds, route)
    rows = [
        QueueRow.of(queue, messages=queue.max_offset - queue.min_offset, last_message_ms=queue.stored_ms)
        for queue in bounds.queues
    ]
    page = paginate(rows, query, name=lambda row: f"{row.broker} {row.queue_id}", columns=QUEUE_COLUMNS, sort="queue")
    return TopicQueuesView(
        as_of_ms=as_of_ms,
        unavailable=texts_of(bounds.unavailable),
        topic=topic,
        messages=bounds.messages,
        queues=page,
    )


async def topic_configuration(services: ConsoleServices, topic: str) -> TopicConfigView:
    """Return the configuration of a topic on each of its brokers, as the brokers have it."""
    as_of_ms = services.clock.now_ms()
    admin = services.admin()
    answers, order = await asyncio.gather(admin.topic_configs(topic), admin.fetch_order_conf(topic))
    rows = [config_row(server, config) for server, config in answers.values]
    return TopicConfigView(
        as_of_ms=as_of_ms,
        unavailable=texts_of(answers.unavailable),
        topic=topic,
        brokers=rows,
        differing=_differing(rows),
        order_configuration=order,
    )


async def topic_consumers(services: ConsoleServices, topic: str, query: ListQuery) -> TopicConsumersView:
    """Return the consumer groups of a topic. Only the groups of the requested page cost requests of their own."""
    as_of_ms = services.clock.now_ms()
    admin = services.admin()
    groups, missing = await admin.list_groups_of(topic, await admin.masters_of(topic))
    page = paginate(groups, query, name=str, columns={"group": str}, sort="group")
    lags = await gather_bounded((admin.group_lag(group, topic) for group in page.items), GROUPS_AT_ONCE)
    unavailable = texts_of((*missing, *(broker for lag in lags for broker in lag.unavailable)))
    rows = [_consumer_row(lag) for lag in lags]
    return TopicConsumersView(as_of_ms=as_of_ms, unavailable=unavailable, topic=topic, consumers=page.with_items(rows))


# --- rows ---


def config_row(server: BrokerServer, config: TopicConfig) -> TopicConfigRow:
    """Return the configuration of a topic on a broker as a row."""
    return TopicConfigRow.of(
        server,
        read_queues=config.read_queue_nums,
        write_queues=config.write_queue_nums,
        permission=permission_words(config.perm),
        is_ordered=config.order,
        filter_type=config.topic_filter_type,
        system_flag=config.topic_sys_flag,
    )


def _differing(rows: Sequence[TopicConfigRow]) -> list[str]:
    compared = set(TopicConfigRow.model_fields) - {"broker", "cluster", "addr"}
    return sorted(name for name in compared if len({getattr(row, name) for row in rows}) > 1)


def _masters_of(route: TopicRoute, servers: Sequence[BrokerServer]) -> list[BrokerServer]:
    names = {data.broker_name for data in route.broker_datas}
    return [server for server in servers if server.broker in names and server.is_master]


def _of_brokers(bounds: TopicBounds, route: TopicRoute) -> TopicBounds:
    """Return the bounds without brokers that do not have the topic: these cannot make its totals unknown."""
    names = {data.broker_name for data in route.broker_datas}
    return bounds._replace(unavailable=tuple(broker for broker in bounds.unavailable if broker.broker in names))


def _route_rows(route: TopicRoute) -> list[RouteRow]:
    queues = {data.broker_name: data for data in route.queue_datas}
    rows = []
    for broker in route.broker_datas:
        data = queues.get(broker.broker_name)
        rows.append(
            RouteRow(
                broker=broker.broker_name,
                cluster=broker.cluster,
                addrs=dict(sorted(broker.broker_addrs.items())),
                read_queues=data.read_queue_nums if data else None,
                write_queues=data.write_queue_nums if data else None,
                permission=permission_words(data.perm) if data else None,
            )
        )
    return rows


def _consumer_row(lag: GroupLag) -> TopicConsumerRow:
    times = [queue.consumed_ms for queue in lag.queues if queue.consumed_ms is not None]
    return TopicConsumerRow.of(
        lag,
        lag=lag.total,
        queues=len(lag.queues),
        unknown_queues=sum(queue.lag is None for queue in lag.queues),
        last_consumed_ms=max(times, default=None),
    )
