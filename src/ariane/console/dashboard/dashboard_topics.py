"""/topic of Apache's dashboard: names, routes, offsets, consumers, changes."""

from __future__ import annotations

from collections.abc import Sequence

from ariane.cluster.admin import Admin
from ariane.cluster.connection import BrokerServer, gather_bounded
from ariane.cluster.groups.consumer_status import queue_owners
from ariane.console.dashboard.formats.envelope import DashboardRouter
from ariane.console.dashboard.formats.json_shapes import (
    UNSPECIFIED,
    Json,
    queue_text,
    route_shape,
    topic_config_shape,
    topic_progress_shape,
)
from ariane.console.dashboard.formats.request_parameters import Parameters, RequestBody
from ariane.console.live.live_snapshot import LiveSnapshot
from ariane.console.services import ConsoleServices
from ariane.console.web.dependencies import ClusterAdmin, Services
from ariane.errors import NotFound, ServerUnavailable, UsageError
from ariane.model.message import Message, MessageQueue
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX, TopicConfig, is_system_topic, reply_topic

routes = DashboardRouter("/topic")

SYSTEM_MARK = "%SYS%"
GROUPS_AT_ONCE = 16  # groups of one topic in flight; each costs a request per broker and per client


class TopicRequest(RequestBody):
    """A topic to create or change."""

    cluster_name_list: list[str] | None = None
    """Clusters, all of whose brokers get the topic."""
    broker_name_list: list[str] | None = None
    """Further brokers that get it."""
    topic_name: str
    write_queue_nums: int
    """Queues that producers choose from, on each broker."""
    read_queue_nums: int
    """Queues that consumers read, on each broker."""
    perm: int
    """Permission: 2 write, 4 read, 6 both."""
    order: bool = False
    """Whether its messages are ordered."""


class MessageRequest(RequestBody):
    """A message to send."""

    topic: str
    key: str | None = None
    tag: str | None = None
    message_body: str
    trace_enabled: bool = False


@routes.get("/list.query")
async def list_topics(admin: ClusterAdmin, parameters: Parameters) -> Json:
    """Return the names of all topics. Those of the system are marked, unless `skipSysProcess` is set."""
    names = await admin.list_topics()
    system = await _system_names(admin)
    if parameters.flag("skipRetryAndDlq"):
        names = [name for name in names if not name.startswith((RETRY_PREFIX, DLQ_PREFIX))]
    if not parameters.flag("skipSysProcess"):
        names = [_marked(name, system) for name in names]
    return {"topicList": names, "brokerAddr": None}


@routes.get("/list.queryTopicType")
async def list_topic_types(admin: ClusterAdmin) -> Json:
    """Return all topics with the type of their messages. Brokers of 4.x know no types of ordinary topics."""
    summaries, _ = await admin.list_summaries()
    # Brokers have topics that they do not register, and a broker that does not respond has topics, too.
    names = sorted({*await admin.list_topics(), *(summary.topic for summary in summaries)})
    system = await _system_names(admin)
    return {
        "topicNameList": [_marked(name, system) for name in names],
        "messageTypeList": [_message_type(name, system) for name in names],
    }


@routes.get("/stats.query")
async def topic_stats(services: Services, parameters: Parameters) -> Json:
    """Return the offsets of all queues, and the messages stored per second in the last minute."""
    topic = parameters.text("topic")
    async with services.admin() as admin:
        bounds = await admin.fetch_bounds(topic)
    if bounds.unavailable:
        raise ServerUnavailable(f"offsets of {topic} are incomplete: {bounds.unavailable[0]}")
    row = (await services.live.snapshot()).topic(topic)
    return {
        "topicPutTps": row.tps_in if row is not None else None,
        "offsetTable": {
            queue_text(MessageQueue(topic, queue.broker, queue.queue_id)): {
                "minOffset": queue.min_offset,
                "maxOffset": queue.max_offset,
                "lastUpdateTimestamp": queue.stored_ms or 0,
            }
            for queue in bounds.queues
        },
    }


@routes.get("/route.query")
async def topic_route(admin: ClusterAdmin, parameters: Parameters) -> Json:
    """Return the route."""
    return route_shape(await admin.fetch_route(parameters.text("topic")))


@routes.read("/queryConsumerByTopic.query")
async def topic_consumers(admin: ClusterAdmin, parameters: Parameters) -> Json:
    """Return the progress of all groups that have offsets of a topic or subscribe to it."""
    topic = parameters.text("topic")
    groups = await _groups_of(admin, topic)
    progress = await gather_bounded((_progress(admin, group, topic) for group in groups), GROUPS_AT_ONCE)
    return dict(zip(groups, progress, strict=True))


@routes.read("/queryTopicConsumerInfo.query")
async def topic_groups(admin: ClusterAdmin, parameters: Parameters) -> Json:
    """Return the names of these groups."""
    return {"groupList": list(await _groups_of(admin, parameters.text("topic")))}


@routes.read("/examineTopicConfig.query")
async def topic_config(admin: ClusterAdmin, parameters: Parameters) -> list[Json]:
    """Return the configuration on all brokers, or on the broker `brokerName`, which Apache ignores."""
    topic, broker = parameters.text("topic"), parameters.optional("brokerName")
    masters = await admin.masters_of(topic)
    if broker is not None and broker not in {server.broker for server in masters}:
        raise NotFound(f"broker with topic {topic}", broker, [server.broker for server in masters])
    selected = [server for server in masters if broker in (None, server.broker)]
    tables = [(server, await admin.fetch_topic_table(server, with_special=True)) for server in selected]
    return [
        topic_config_shape(table.topic_config_table[topic], server.broker)
        for server, table in tables
        if topic in table.topic_config_table
    ]


@routes.post("/createOrUpdate.do")
async def save_topic(admin: ClusterAdmin, body: TopicRequest) -> bool:
    """Create or change a topic on brokers, and on all brokers of clusters."""
    config = TopicConfig(
        topic_name=body.topic_name,
        read_queue_nums=body.read_queue_nums,
        write_queue_nums=body.write_queue_nums,
        perm=body.perm,
        order=body.order,
    )
    servers = await select_targets(admin, body.cluster_name_list, body.broker_name_list)
    await admin.put_topic(config, servers=servers)
    return True


@routes.post("/sendTopicMessage.do")
async def send_message(admin: ClusterAdmin, body: MessageRequest) -> Json:
    """Send a message."""
    message = Message(
        topic=body.topic, body=body.message_body.encode(), tags=body.tag or "", keys=(body.key or "").split()
    )
    sent = await admin.send_message(message, trace=body.trace_enabled)
    assert sent is not None  # None only in a dry run
    return {
        "sendStatus": sent.status.name,
        "msgId": sent.message_id,
        "messageQueue": {
            "topic": sent.queue.topic, "brokerName": sent.queue.broker, "queueId": sent.queue.queue_id,
        },
        "queueOffset": sent.queue_offset,
        "transactionId": sent.transaction_id,
        "offsetMsgId": sent.offset_message_id,
        "regionId": sent.region,
        "traceOn": sent.trace_on,
        "rawRespBody": None,
        "recallHandle": sent.recall_handle,
    }  # fmt: skip


@routes.post("/deleteTopic.do")
async def delete_topic(admin: ClusterAdmin, parameters: Parameters) -> bool:
    """Delete a topic from the cluster `clusterName`, or from all clusters."""
    topic, cluster = parameters.text("topic"), parameters.optional("clusterName")
    await admin.delete_topic(topic, cluster=cluster)
    return True


@routes.post("/deleteTopicByBroker.do")
async def delete_topic_of_broker(admin: ClusterAdmin, parameters: Parameters) -> bool:
    """Delete a topic from one broker. Name servers learn it with the broker's next registration."""
    topic, broker = parameters.text("topic"), parameters.text("brokerName")
    servers = await admin.select_brokers(broker=broker, with_slaves=True)
    await admin.delete_stored_topic(topic, servers)
    return True


async def select_targets(
    admin: Admin, clusters: Sequence[str] | None, brokers: Sequence[str] | None
) -> list[BrokerServer]:
    """Return the masters of clusters and those of brokers, each once.

    Raises:
        UsageError: neither is given.
        NotFound: a cluster or broker is not registered.
    """
    if not clusters and not brokers:
        raise UsageError("clusterNameList", None, "expected names of clusters, or of brokers in brokerNameList")
    servers: set[BrokerServer] = set()
    for cluster in clusters or ():
        servers.update(await admin.select_brokers(cluster=cluster))
    for broker in brokers or ():
        servers.update(await admin.select_brokers(broker=broker))
    return sorted(servers)


async def client_queues(admin: Admin, group: str) -> dict[MessageQueue, str]:
    """Return the client that each queue of a group is assigned to; empty if no client is connected."""
    connections = await admin.consumer_connections(group)
    if connections is None:
        return {}
    return queue_owners((await admin.consumer_states(group, connections)).states)


async def _progress(admin: Admin, group: str, topic: str) -> Json:
    lag = await admin.group_lag(group, topic)
    if not lag.is_complete:
        raise ServerUnavailable(f"progress of {group} is incomplete: {lag.unavailable[0]}")
    queues = [queue for queue in lag.queues if queue.topic == topic]
    return topic_progress_shape(topic, queues, await client_queues(admin, group))


async def _groups_of(admin: Admin, topic: str) -> tuple[str, ...]:
    groups, unavailable = await admin.list_groups_of(topic, await admin.masters_of(topic))
    if unavailable:
        raise ServerUnavailable(f"groups of {topic} are incomplete: {unavailable[0]}")
    return groups


async def _system_names(admin: Admin) -> frozenset[str]:
    """Return the names of clusters and brokers, and the reply topics: brokers have topics of these names."""
    info = await admin.fetch_cluster()
    replies = {reply_topic(cluster) for cluster in info.cluster_addr_table}
    return frozenset(info.cluster_addr_table) | frozenset(info.broker_addr_table) | replies


def _marked(topic: str, system: frozenset[str]) -> str:
    return SYSTEM_MARK + topic if topic in system or is_system_topic(topic) else topic


def _message_type(topic: str, system: frozenset[str]) -> str:
    if topic.startswith(RETRY_PREFIX):
        return "RETRY"
    if topic.startswith(DLQ_PREFIX):
        return "DLQ"
    return "SYSTEM" if topic in system or is_system_topic(topic) else UNSPECIFIED


async def loaded_snapshot(services: ConsoleServices) -> LiveSnapshot:
    """Return the state of the cluster.

    Raises:
        ServerUnavailable: it was not polled yet. An empty answer would mean that nothing exists.
    """
    snapshot = await services.live.snapshot()
    if not snapshot.is_loaded:
        reasons = "; ".join(snapshot.unavailable) or "it was not polled yet"
        raise ServerUnavailable(f"the state of the cluster is unknown: {reasons}; retry in some seconds")
    return snapshot
