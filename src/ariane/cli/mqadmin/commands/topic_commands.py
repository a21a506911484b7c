"""Commands on topics. Reference: admin-and-dashboard 1.3."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from ariane.cli.mqadmin.command import BROKER, CLUSTER, TOPIC, CommandList, Option, Options, Output, lines
from ariane.cli.mqadmin.option_values import whole_number, yes_or_no
from ariane.cli.mqadmin.value_text import time_ms, topic_config
from ariane.cluster.admin import Admin
from ariane.cluster.topics.topic_admin import QUEUES
from ariane.errors import UsageError
from ariane.model.topic import TopicConfig
from ariane.model.topic_attributes import parse_changes
from ariane.protocol import fastjson
from ariane.protocol.requests.clients import WireQueue
from ariane.protocol.requests.routing import TopicRoute

# Values of `--perm`: 2 write, 4 read, 6 both.
PERMISSIONS = (2, 4, 6)
UNIT_FLAG, UNIT_SUBSCRIPTION_FLAG = 1, 2  # of a topic's system flag
METHODS = ("put", "get", "delete")
ROUTE_ROW = "{:<45} {:<32} {:<50} {:<10} {:<11} {:<5}"
STATUS_ROW = "{:<32}  {:<4}  {:<20}  {:<20}    {}"
GROUP_ROW = "{:<20}  {:<64}  {:<64}"


def _permission(text: str) -> int:
    if text not in map(str, PERMISSIONS):
        raise ValueError("expected 2 (write), 4 (read) or 6 (read and write)")
    return int(text)


_queue_count = whole_number(1, "number of queues")


def _method(text: str) -> str:
    if text not in METHODS:
        raise ValueError(f"expected {', '.join(METHODS[:-1])} or {METHODS[-1]}")
    return text


COMMANDS = CommandList()


@COMMANDS.add(
    "updateTopic",
    BROKER,
    CLUSTER,
    TOPIC,
    Option("r", "readQueueNums", "Number of read queues per broker.", _queue_count, QUEUES, "N"),
    Option("w", "writeQueueNums", "Number of write queues per broker.", _queue_count, QUEUES, "N"),
    Option("p", "perm", "Permission: 2 write, 4 read, 6 both.", _permission, 6, "2|4|6"),
    Option("o", "order", "Store an order configuration, too.", yes_or_no, "false", "BOOL"),
    Option("u", "unit", "Topic of a unit.", yes_or_no, "false", "BOOL"),
    Option("s", "hasUnitSub", "Topic with subscriptions of units.", yes_or_no, "false", "BOOL"),
    Option("a", "attributes", "Attributes of 5.x to set or remove.", parse_changes, "", "+KEY=VALUE,-KEY"),
    is_change=True,
)
async def update_topic(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Create a topic on one broker or on all masters of a cluster, or change it."""
    servers = await admin.select_brokers(cluster=options.clusterName, broker=options.brokerAddr)
    config = TopicConfig(
        topic_name=options.topic,
        read_queue_nums=options.readQueueNums,
        write_queue_nums=options.writeQueueNums,
        perm=options.perm,
        topic_sys_flag=UNIT_FLAG * options.unit + UNIT_SUBSCRIPTION_FLAG * options.hasUnitSub,
        order=options.order,
    )
    await admin.put_topic(config, attributes=options.attributes, servers=servers)
    done = lines(f"create topic to {server.addr} success." for server in servers)
    conf = None
    if options.order and options.brokerAddr:
        conf = f"{servers[0].broker}:{config.write_queue_nums}"
        await admin.add_order_conf(options.topic, servers[0].broker, config.write_queue_nums)
        done = f"set broker orderConf. isOrder=true, orderConf=[{conf}]{done}"
    elif options.order:
        conf = ";".join(f"{server.broker}:{config.write_queue_nums}" for server in servers)
        await admin.put_order_conf(options.topic, conf)
        done += f"set cluster orderConf. isOrder=true, orderConf=[{conf}]"
    data = {"brokers": [server.addr for server in servers], "topic": config, "orderConf": conf}
    yield Output(done + topic_config(config, options.attributes), data)


@COMMANDS.add(
    "deleteTopic",
    TOPIC,
    Option("c", "clusterName", "All brokers of this cluster.", metavar="NAME", is_required=True),
    is_change=True,
)
async def delete_topic(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Delete a topic from the brokers of a cluster and from the name servers."""
    changes = await admin.delete_topic(options.topic, cluster=options.clusterName)
    yield Output(
        f"delete topic [{options.topic}] from cluster [{options.clusterName}] success.\n"
        f"delete topic [{options.topic}] from NameServer success.\n",
        {"topic": options.topic, "cluster": options.clusterName, "servers": [change.addr for change in changes]},
    )


@COMMANDS.add(
    "updateTopicPerm",
    BROKER,
    CLUSTER,
    TOPIC,
    Option("p", "perm", "Permission: 2 write, 4 read, 6 both.", _permission, None, "2|4|6", is_required=True),
    is_change=True,
)
async def update_topic_perm(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Change the permission of a topic on one broker or on all masters of a cluster that have it."""
    servers = await admin.select_brokers(cluster=options.clusterName, broker=options.brokerAddr)
    changes = await admin.change_topic(options.topic, perm=options.perm, servers=servers)
    if options.brokerAddr and changes[0].old_perm == options.perm:
        yield Output("new perm equals to the old one!\n", changes)
        return
    text = lines(
        f"update topic perm from {change.old_perm} to {options.perm} in {change.addr} success." for change in changes
    )
    if options.brokerAddr:
        text += f"{topic_config(changes[0].config)}.\n"
    yield Output(text, changes)


@COMMANDS.add("topicRoute", TOPIC, Option("l", "list", "Print a table.", is_flag=True))
async def topic_route(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print the route of a topic as JSON, or as a table with one row per broker."""
    route = await admin.fetch_route(options.topic)
    text = _route_table(route) if options.list else fastjson.write(route, pretty=True).decode() + "\n"
    yield Output(text, route)


def _route_table(route: TopicRoute) -> str:
    header = ("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm")
    queues = {data.broker_name: data for data in route.queue_datas}
    rows: list[tuple[object, ...]] = [header]
    for broker in route.broker_datas:
        data = queues[broker.broker_name]
        addrs = ", ".join(f"{number}={addr}" for number, addr in sorted(broker.broker_addrs.items()))
        rows.append(
            (broker.cluster, broker.broker_name, f"{{{addrs}}}", data.read_queue_nums, data.write_queue_nums, data.perm)
        )
    read = sum(data.read_queue_nums for data in queues.values())
    write = sum(data.write_queue_nums for data in queues.values())
    totals = ROUTE_ROW.format("Total:", len(queues), "", read, write, "")
    return lines([*(ROUTE_ROW.format(*row) for row in rows), "-" * 158, totals])


@COMMANDS.add("topicStatus", TOPIC)
async def topic_status(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print the offsets of each queue and the time of its last message."""
    bounds = await admin.fetch_bounds(options.topic)
    header = STATUS_ROW.format("#Broker Name", "#QID", "#Min Offset", "#Max Offset", "#Last Updated")
    rows = (
        STATUS_ROW.format(queue.broker, queue.queue_id, queue.min_offset, queue.max_offset, time_ms(queue.stored_ms))
        for queue in bounds.queues
    )
    yield Output(lines([header, *rows]), bounds.queues, bounds.unavailable)


@COMMANDS.add("topicClusterList", TOPIC)
async def topic_cluster_list(admin: Admin, options: Options) -> AsyncIterator[Output]:
    clusters = await admin.list_clusters_of(options.topic)
    yield Output(lines(clusters), clusters)


@COMMANDS.add("topicList", Option("c", "clusterModel", "Print clusters and consumer groups, too.", is_flag=True))
async def topic_list(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print one topic per line, or one line per cluster, topic and consumer group."""
    if not options.clusterModel:
        topics = await admin.list_topics()
        yield Output(lines(topics), topics)
        return
    directory = await admin.list_topic_groups()
    # Java's header has narrower columns than its rows.
    header = GROUP_ROW.format("#Cluster Name", "#Topic", "#Consumer Group")
    rows = (
        GROUP_ROW.format(row.cluster, row.topic, group) for row in directory.topics for group in row.groups or ("",)
    )
    yield Output(lines([header, *rows]), directory.topics, directory.unavailable)


@COMMANDS.add(
    "updateOrderConf",
    TOPIC,
    Option("v", "orderConf", "Queues per broker, for put: broker1:N;broker2:N.", metavar="CONF"),
    Option("m", "method", "put, get or delete.", _method, metavar="METHOD", is_required=True),
    is_change=True,
)
async def update_order_conf(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Set, print or delete the fixed numbers of queues of an ordered topic."""
    topic, conf = options.topic, options.orderConf
    if options.method == "put":
        if not (conf or "").strip():
            raise UsageError("--orderConf", conf, "expected broker1:N;broker2:N")
        await admin.put_order_conf(topic, conf)
        yield Output(
            f"update orderConf success. topic=[{topic}], orderConf=[{conf}]", {"topic": topic, "orderConf": conf}
        )
    elif options.method == "get":
        conf = await admin.fetch_order_conf(topic)
        if conf is None:
            raise UsageError("--topic", topic, "no name server has an order configuration of this topic")
        yield Output(
            f"get orderConf success. topic=[{topic}], orderConf=[{conf}] ", {"topic": topic, "orderConf": conf}
        )
    else:
        await admin.delete_order_conf(topic)
        yield Output(f"delete orderConf success. topic=[{topic}]", {"topic": topic, "orderConf": None})


@COMMANDS.add(
    "allocateMQ", TOPIC, Option("i", "ipList", "Consumers, separated by commas.", metavar="IPS", is_required=True)
)
async def allocate_mq(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print which queues each of several consumers would get."""
    members = [member.strip() for member in options.ipList.split(",") if member.strip()]
    assigned = await admin.assign_queues(options.topic, members)
    result = {member: [WireQueue.of(queue) for queue in queues] for member, queues in assigned.items()}
    yield Output(fastjson.write({"result": result}).decode() + "\n", {"result": msgspec.to_builtins(result)})
