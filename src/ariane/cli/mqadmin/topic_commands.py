"""Commands on topics. Reference: admin-and-dashboard 1.3."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ariane.cli.mqadmin.command import BROKER, CLUSTER, TOPIC, AdminCommand, Option, Options, Output, lines
from ariane.cli.mqadmin.value_text import topic_config
from ariane.cluster.admin import Admin
from ariane.cluster.topic_admin import QUEUES
from ariane.model.topic import TopicConfig

# Values of `--perm`: 2 write, 4 read, 6 both.
PERMISSIONS = (2, 4, 6)


def _permission(text: str) -> int:
    if text not in map(str, PERMISSIONS):
        raise ValueError("expected 2 (write), 4 (read) or 6 (read and write)")
    return int(text)


def _queue_count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError("expected a number of queues of at least 1")
    return int(text)


async def update_topic(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Create a topic on one broker or on all masters of a cluster, or change it."""
    servers = await admin.select_brokers(cluster=options.clusterName, broker=options.brokerAddr)
    await admin.create_topic(
        options.topic,
        queues=options.readQueueNums,
        write_queues=options.writeQueueNums,
        perm=options.perm,
        servers=servers,
    )
    config = TopicConfig(
        topic_name=options.topic,
        read_queue_nums=options.readQueueNums,
        write_queue_nums=options.writeQueueNums,
        perm=options.perm,
    )
    done = lines(f"create topic to {server.addr} success." for server in servers)
    yield Output(done + topic_config(config), {"brokers": [server.addr for server in servers], "topic": config})


async def topic_list(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print one topic per line."""
    topics = await admin.list_topics()
    yield Output(lines(topics), topics)


COMMANDS = (
    AdminCommand(
        "updateTopic",
        update_topic,
        (
            BROKER,
            CLUSTER,
            TOPIC,
            Option("r", "readQueueNums", "Number of read queues per broker.", _queue_count, QUEUES, "N"),
            Option("w", "writeQueueNums", "Number of write queues per broker.", _queue_count, QUEUES, "N"),
            Option("p", "perm", "Permission: 2 write, 4 read, 6 both.", _permission, 6, "2|4|6"),
        ),
        one_of=("brokerAddr", "clusterName"),
        is_change=True,
    ),
    AdminCommand("topicList", topic_list),
)
