"""`ariane topic`: creates, changes, lists and deletes topics. `ariane.cluster.topics` does the work."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.admin.admin_session import AdminSession, BrokerChoice, ChangeSession, ClusterName
from ariane.cli.options import shared_options
from ariane.cli.options.option_kinds import flag_option
from ariane.cli.output.help_format import create_app
from ariane.model.quantities import count_text
from ariane.model.topic import PERMISSIONS, permission_words

if TYPE_CHECKING:
    from ariane.cluster.admin import Admin
    from ariane.cluster.connection import BrokerUnavailable
    from ariane.cluster.topics.topic_admin import TopicChange
    from ariane.cluster.topics.topic_queries import TopicBounds, TopicSummary
    from ariane.protocol.requests.routing import TopicRoute
    from ariane.reports.report import Table

app = create_app("Manage topics and print their offsets.")

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.", parser=shared_options.topic_name)]
Perm = Annotated[
    str | None,
    typer.Option("--perm", metavar="PERM", help="Permission: read, write or read-write.", show_default=False),
]


def _permission(text: str | None) -> int | None:
    if text is not None and text not in PERMISSIONS:
        raise typer.BadParameter(f"{text}: expected read, write or read-write.", param_hint="'--perm'")
    return None if text is None else PERMISSIONS[text]


@app.command("list", "ariane topic list", "ariane topic list --all --json -n 10.0.0.1:9876")
def list_topics(
    *,
    cluster: ClusterName = None,
    with_all: Annotated[
        bool, flag_option("--all", "List system topics and topics of retries and dead letters, too.")
    ] = False,
    session: AdminSession,
) -> None:
    """List topics with their queues and permissions.

    Queues are summed over all brokers.
    """
    summaries, unavailable = session.read(lambda admin: admin.list_summaries(cluster=cluster))
    shown = [summary for summary in summaries if with_all or not _is_internal(summary)]
    session.show(shown, _summary_table(shown))
    if not session.as_json and (hidden := len(summaries) - len(shown)):
        typer.echo(f"{hidden} system, retry and dead-letter topics omitted; --all lists them.", err=True)
    session.finish(unavailable)


def _is_internal(summary: TopicSummary) -> bool:
    from ariane.cluster.topics.topic_queries import is_of_group
    from ariane.model.topic import is_system_topic, reply_topic

    # Brokers create topics with the names of the cluster and of themselves.
    names = {summary.cluster, reply_topic(summary.cluster), *summary.brokers}
    return is_of_group(summary.topic) or is_system_topic(summary.topic) or summary.topic in names


def _summary_table(summaries: list[TopicSummary]) -> Table:
    from ariane.reports.report import Column, Table

    names = ("topic", "cluster", "brokers", "read queues", "write queues", "permission")
    rows = tuple(
        (
            summary.topic, summary.cluster, len(summary.brokers), summary.read_queues, summary.write_queues,
            ", ".join(map(permission_words, summary.perms)),
        )
        for summary in summaries
    )  # fmt: skip
    return Table("Topics", tuple(Column(name) for name in names), rows)


@app.command("create", "ariane topic create orders --queues 8", "ariane topic create orders -b broker-a --dry-run")
def create(
    topic: TopicName,
    *,
    queues: Annotated[
        int, typer.Option("--queues", metavar="N", help="Number of read and write queues on each broker.")
    ] = 8,
    perm: Perm = "read-write",
    brokers: BrokerChoice,
    session: ChangeSession,
) -> None:
    """Create a topic on all brokers, on those of a cluster, or on one.

    A topic that exists on one of them is an error: change it with `ariane topic change`.
    """
    value = _permission(perm) or PERMISSIONS["read-write"]

    async def work(admin: Admin) -> list[str]:
        servers = await brokers.select(admin)
        await admin.check_topic_is_new(topic, servers)
        changes = await admin.create_topic(topic, queues=queues, perm=value, servers=servers)
        return [change.addr for change in changes]

    addrs = session.run(work)
    session.show(
        {"topic": topic, "queues": queues, "brokers": addrs},
        f"created topic {topic} with {count_text(queues, 'queue')} on {', '.join(addrs)}",
    )


@app.command("show", "ariane topic show orders", "ariane topic show orders --json | jq .queues")
def show(topic: TopicName, session: AdminSession) -> None:
    """Print the brokers, queues, offsets and consumer groups of a topic."""

    async def work(
        admin: Admin,
    ) -> tuple[TopicRoute, TopicBounds, tuple[str, ...], tuple[BrokerUnavailable, ...]]:
        route = await admin.fetch_route(topic)
        groups, unavailable = await admin.list_groups_of(topic, await admin.masters_of(topic))
        return route, await admin.fetch_bounds(topic), groups, unavailable

    route, bounds, groups, unavailable = session.read(work)
    data = {
        "topic": topic,
        "brokers": route.broker_datas,
        "settings": route.queue_datas,
        "orderConf": route.order_topic_conf,
        "queues": bounds.queues,
        "messages": bounds.messages,
        "groups": groups if not unavailable else None,
    }
    total = "unknown" if bounds.messages is None else f"{bounds.messages:,}"
    session.show(
        data,
        _route_table(route),
        "",
        _bounds_table(bounds),
        "",
        f"messages: {total}",
        f"consumer groups: {', '.join(groups) or 'none'}{' (incomplete)' if unavailable else ''}",
    )
    missing = {broker.addr: broker for broker in (*bounds.unavailable, *unavailable)}
    session.finish(missing.values())


def _route_table(route: TopicRoute) -> Table:
    from ariane.reports.report import Column, Table

    addrs = {
        data.broker_name: ", ".join(addr for _, addr in sorted(data.broker_addrs.items()))
        for data in route.broker_datas
    }
    rows = tuple(
        (
            data.broker_name, addrs.get(data.broker_name, ""), data.read_queue_nums, data.write_queue_nums,
            permission_words(data.perm),
        )
        for data in route.queue_datas
    )  # fmt: skip
    names = ("broker", "addresses", "read queues", "write queues", "permission")
    return Table("Brokers", tuple(Column(name) for name in names), rows)


def _bounds_table(bounds: TopicBounds) -> Table:
    from ariane.reports.report import Column, Table

    rows = tuple(
        (
            queue.broker, queue.queue_id, queue.min_offset, queue.max_offset, queue.max_offset - queue.min_offset,
            "none" if queue.stored_ms is None else datetime.fromtimestamp(queue.stored_ms / 1000, UTC),
        )
        for queue in bounds.queues
    )  # fmt: skip
    names = ("broker", "queue", "min offset", "max offset", "messages", "last message (UTC)")
    return Table("Queues", tuple(Column(name) for name in names), rows)


@app.command(
    "change", "ariane topic change orders --queues 16", "ariane topic change orders --perm read  # stop producers"
)
def change(
    topic: TopicName,
    *,
    queues: Annotated[
        int | None, typer.Option("--queues", metavar="N", help="Number of read and write queues on each broker.")
    ] = None,
    read_queues: Annotated[
        int | None, typer.Option("--read-queues", metavar="N", help="Number of read queues on each broker.")
    ] = None,
    write_queues: Annotated[
        int | None, typer.Option("--write-queues", metavar="N", help="Number of write queues on each broker.")
    ] = None,
    perm: Perm = None,
    brokers: BrokerChoice,
    session: ChangeSession,
) -> None:
    """Change the queues or the permission of a topic.

    To remove queues without losing messages, lower the write queues first, and the read queues once they are empty.
    """
    from ariane.errors import UsageError

    value = _permission(perm)
    if queues is not None and (read_queues is not None or write_queues is not None):
        raise UsageError("--queues", str(queues), "cannot be combined with --read-queues or --write-queues")
    read, write = (queues, queues) if queues is not None else (read_queues, write_queues)
    if read is None and write is None and value is None:
        raise UsageError("--queues", None, "missing; specify --queues, --read-queues, --write-queues or --perm")

    async def work(admin: Admin) -> list[TopicChange]:
        servers = await brokers.select(admin) if brokers.is_given else None
        return await admin.change_topic(topic, queues=read, write_queues=write, perm=value, servers=servers)

    changes = session.run(work)
    lines = (
        f"changed topic {topic} on {addr}: read queues {config.read_queue_nums},"
        f" write queues {config.write_queue_nums}, permission {permission_words(config.perm)}"
        for addr, _, config in changes
    )
    session.show(changes, *lines)


@app.command("delete", "ariane topic delete orders --dry-run", "ariane topic delete orders -c DefaultCluster")
def delete(topic: TopicName, *, cluster: ClusterName = None, session: ChangeSession) -> None:
    """Delete a topic with its messages.

    A topic that does not exist is an error, because its name may be misspelt.
    """

    async def work(admin: Admin) -> list[str]:
        await admin.fetch_route(topic)
        return [change.addr for change in await admin.delete_topic(topic, cluster=cluster)]

    addrs = session.run(work)
    session.show({"topic": topic, "servers": addrs}, f"deleted topic {topic} on {', '.join(addrs)}")
