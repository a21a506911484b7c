"""Commands on consumer groups and connected clients. Reference: admin-and-dashboard 1.4."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from ariane.cli.mqadmin.command import BROKER, CLUSTER, GROUP, CommandList, Option, Options, Output, lines
from ariane.cli.mqadmin.option_values import whole_number, yes_or_no
from ariane.cli.mqadmin.value_text import boolean, group_config, group_fields
from ariane.cluster.admin import Admin
from ariane.model.topic import SubscriptionGroupConfig, dlq_topic, retry_topic
from ariane.protocol.requests.admin import ClientConnection
from ariane.protocol.requests.pop import POP_MODE, PULL_MODE, RequestMode
from ariane.protocol.versions import version_name

ONE_BROKER = Option("b", "brokerAddr", "Only this broker, HOST:PORT or name.", metavar="ADDR")


def _switch(short: str, long: str, text: str, default: bool) -> Option:
    return Option(short, long, text, yes_or_no, boolean(default), "BOOL")


def _request_mode(text: str) -> str:
    if text not in (POP_MODE, PULL_MODE):
        raise ValueError(f"expected {POP_MODE} or {PULL_MODE}")
    return text


COMMANDS = CommandList()


@COMMANDS.add(
    "updateSubGroup",
    BROKER,
    CLUSTER,
    GROUP,
    _switch("s", "consumeEnable", "Whether its members may consume.", True),
    _switch("m", "consumeFromMinEnable", "Whether it may start at the first message.", False),
    _switch("d", "consumeBroadcastEnable", "Whether it may consume in broadcast mode.", False),
    Option("q", "retryQueueNums", "Number of queues of its retry topic.", whole_number(0), 1, "N"),
    Option("r", "retryMaxTimes", "Retries before a message is dead.", whole_number(-1), 16, "N"),
    Option("i", "brokerId", "Broker id of the server to read from.", whole_number(0), 0, "ID"),
    Option(
        "w", "whichBrokerWhenConsumeSlowly", "Broker id to read from while the group lags.", whole_number(0), 1, "ID"
    ),
    _switch("a", "notifyConsumerIdsChanged", "Whether members learn at once of others.", True),
    Option("o", "consumeMessageOrderly", "Whether clients of 5.x receive in order.", yes_or_no, metavar="BOOL"),
    is_change=True,
)
async def update_sub_group(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Create a consumer group on one broker or on all masters of a cluster, or replace its configuration."""
    config = SubscriptionGroupConfig(
        group_name=options.groupName,
        consume_enable=options.consumeEnable,
        consume_from_min_enable=options.consumeFromMinEnable,
        consume_broadcast_enable=options.consumeBroadcastEnable,
        retry_queue_nums=options.retryQueueNums,
        retry_max_times=options.retryMaxTimes,
        broker_id=options.brokerId,
        which_broker_when_consume_slowly=options.whichBrokerWhenConsumeSlowly,
        notify_consumer_ids_changed_enable=options.notifyConsumerIdsChanged,
        consume_message_orderly=msgspec.UNSET
        if options.consumeMessageOrderly is None
        else options.consumeMessageOrderly,
    )
    servers = await admin.select_brokers(cluster=options.clusterName, broker=options.brokerAddr)
    await admin.save_group(config, servers=servers)
    done = lines(f"create subscription group to {server.addr} success." for server in servers)
    yield Output(done + group_config(config), {"brokers": [server.addr for server in servers], "group": config})


@COMMANDS.add(
    "deleteSubGroup",
    BROKER,
    CLUSTER,
    GROUP,
    _switch("r", "removeOffset", "Delete its offsets, too.", False),
    is_change=True,
)
async def delete_sub_group(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Delete a consumer group; with a cluster also its retry topic and its dead-letter topic."""
    group, cluster = options.groupName, options.clusterName
    servers = await admin.select_brokers(cluster=cluster, broker=options.brokerAddr)
    await admin.delete_group(group, with_offsets=options.removeOffset, with_topics=cluster is not None, servers=servers)
    where = f" in cluster [{cluster}]" if cluster is not None else ""
    done = lines(
        f"delete subscription group [{group}] from broker [{server.addr}]{where} success." for server in servers
    )
    topics = [retry_topic(group), dlq_topic(group)] if cluster is not None else []
    for topic in topics:
        done += lines(
            (
                f"delete topic [{topic}] from cluster [{cluster}] success.",
                f"delete topic [{topic}] from NameServer success.",
            )
        )
    yield Output(done, {"group": group, "brokers": [server.addr for server in servers], "topics": topics})


@COMMANDS.add(
    "setConsumeMode",
    BROKER,
    CLUSTER,
    Option("t", "topicName", "Topic name.", metavar="NAME", is_required=True),
    GROUP,
    Option("m", "mode", "PULL or POP.", _request_mode, metavar="MODE", is_required=True),
    Option("q", "popShareQueueNum", "With POP: members whose queues one also gets; 0: all.", whole_number(0), 0, "N"),
    is_change=True,
)
async def set_consume_mode(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Let the members of a group pull a topic, or consume it by POP, on one broker or on all masters of a cluster."""
    mode = RequestMode(options.topicName, options.groupName, options.mode, options.popShareQueueNum)
    servers = await admin.select_brokers(cluster=options.clusterName, broker=options.brokerAddr)
    await admin.save_request_mode(mode, servers=servers)
    done = [f"set consume mode to {server.addr} success." for server in servers]
    values = f"consume mode[{mode.mode}] popShareQueueNum[{mode.pop_share_queue_num}]"
    done.append(f"topic[{mode.topic}] group[{mode.consumer_group}] {values}")
    yield Output(lines(done), {"brokers": [server.addr for server in servers], "mode": mode})


@COMMANDS.add("getConsumerConfig", GROUP)
async def get_consumer_config(admin: Admin, options: Options) -> AsyncIterator[Output]:
    configs = await admin.group_configs(options.groupName)
    text = ""
    for server, config in configs.values:
        title = f"{'=' * 29}{server.cluster}:{server.broker}{'=' * 29}"
        text += lines([title, *(f"{name:<40}=  {value}" for name, value in group_fields(config).items())])
    data = [{"cluster": server.cluster, "broker": server.broker, "group": config} for server, config in configs.values]
    yield Output(text, data, configs.unavailable)


@COMMANDS.add(
    "consumerConnection", Option("g", "consumerGroup", "Consumer group.", metavar="NAME", is_required=True), ONE_BROKER
)
async def consumer_connection(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print the connected clients of a group and its subscriptions."""
    servers = await admin.select_brokers(broker=options.brokerAddr)
    consumers = await admin.connected_consumers(options.consumerGroup, servers)
    text = lines(
        [
            f"{'#ClientId':<36} {'#ClientAddr':<22} {'#Language':<10} #Version",
            *(
                f"{client.client_id:<36} {client.client_addr:<22} {client.language!s:<10} {version_name(client.version)}"
                for client in consumers.connections
            ),
            "",
            "Below is subscription:",
            f"{'#Topic':<20} #SubExpression",
            *(f"{data.topic:<20} {data.sub_string}" for data in consumers.subscriptions.values()),
            "",
            f"ConsumeType: {consumers.consume_type}",
            f"MessageModel: {consumers.message_model}",
            f"ConsumeFromWhere: {consumers.consume_from_where}",
        ]
    )
    data = {
        "group": consumers.group,
        "clients": [client_data(client) for client in consumers.connections],
        "subscriptions": {topic: data.sub_string for topic, data in consumers.subscriptions.items()},
        "consumeType": consumers.consume_type,
        "messageModel": consumers.message_model,
        "consumeFromWhere": consumers.consume_from_where,
    }
    yield Output(text, data, consumers.unavailable)


@COMMANDS.add(
    "producerConnection",
    Option("g", "producerGroup", "Producer group.", metavar="NAME", is_required=True),
    Option("t", "topic", "Topic that the group sends to.", metavar="NAME", is_required=True),
)
async def producer_connection(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print the connected producers of a group."""
    producers = await admin.producer_connections(options.producerGroup, options.topic)
    rows = (
        f"{number:04d}  {client.client_id:<32} {client.client_addr:<22} {client.language!s:<8} {version_name(client.version)}"
        for number, client in enumerate(producers.connections, 1)
    )
    yield Output(lines(rows), [client_data(client) for client in producers.connections], producers.unavailable)


@COMMANDS.add("producer", Option("b", "broker", "Broker, HOST:PORT or name.", metavar="ADDR", is_required=True))
async def producer(admin: Admin, options: Options) -> AsyncIterator[Output]:
    (server,) = await admin.select_brokers(broker=options.broker)
    table = await admin.producers(server)
    text = ""
    for group, producers in table.items():
        if not producers:
            text += f"producer group ({group}) instances are empty\n"
        for producer in producers:
            text += (
                f"producer group ({group}) instance : clientId={producer.client_id},remoteIP={producer.remote_ip},"
                f" language={producer.language}, version={producer.version}, lastUpdateTimestamp={producer.last_update_ms}\n"
            )
    yield Output(text, table)


def client_data(client: ClientConnection) -> dict[str, str | None]:
    """Return a connected client as a JSON value."""
    version = version_name(client.version)
    return {"clientId": client.client_id, "addr": client.client_addr, "language": client.language, "version": version}
