"""`ariane group`: consumer groups with their lag, clients, subscriptions and configuration, live from the brokers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ariane.cli.admin.admin_session import AdminSession, ChangeSession, ClusterName, changes_data, table
from ariane.cli.options import shared_options
from ariane.cli.options.option_kinds import flag_option, number_option, seconds_option, topic_option
from ariane.cli.output.help_format import create_app
from ariane.cli.output.repetition import clear_screen, rounds
from ariane.cli.output.value_format import format_duration
from ariane.clock import SYSTEM_CLOCK, utc_of
from ariane.errors import UsageError

if TYPE_CHECKING:
    from ariane.cluster.admin import Admin
    from ariane.cluster.groups.consumer_status import ConsumerStates, GroupSummary
    from ariane.cluster.groups.group_lag import GroupLag, UnconsumedAges
    from ariane.model.message import MessageQueue
    from ariane.reports.report import Table

app = create_app("Manage consumer groups, and print their lag and clients.")

INCONSISTENT = 1  # exit status
IN_FLIGHT = 20
IN_FLIGHT_MAX = 1_000  # as `protocol.requests.pop`, whose import takes longer than the help of a command
UNKNOWN = "?"

GroupArgument = Annotated[
    str, typer.Argument(parser=shared_options.group_name, metavar="GROUP", help="Consumer group.")
]


@dataclass(frozen=True, kw_only=True)
class SettingOptions:
    """Settings of a group; None: not given."""

    retries: Annotated[
        int | None,
        number_option(minimum=-1, help="Retries before a message becomes a dead letter; -1: 16, the clients' default."),
    ] = None
    retry_queues: Annotated[int | None, number_option(minimum=0, help="Number of queues of the retry topic.")] = None
    consume: Annotated[
        bool | None, typer.Option("--consume/--no-consume", help="Whether its members may consume.", show_default=False)
    ] = None
    broadcast: Annotated[
        bool | None,
        typer.Option("--broadcast/--no-broadcast", help="Whether it may use broadcast mode.", show_default=False),
    ] = None
    ordered: Annotated[
        bool | None,
        typer.Option("--ordered/--no-ordered", help="Whether clients of 5.x receive in order.", show_default=False),
    ] = None

    def given(self) -> dict[str, Any]:
        """Return the given ones by the names of `SubscriptionGroupConfig`."""
        settings = {
            "retry_max_times": self.retries,
            "retry_queue_nums": self.retry_queues,
            "consume_enable": self.consume,
            "consume_broadcast_enable": self.broadcast,
            "consume_message_orderly": self.ordered,
        }
        return {name: value for name, value in settings.items() if value is not None}


@app.command("list", "ariane group list", "ariane group list --json | jq '.[] | select(.lag > 0)'")
def list_groups(
    *,
    cluster: ClusterName = None,
    with_system: Annotated[bool, flag_option("--system", "Include groups of the broker and of tools.")] = False,
    session: AdminSession,
) -> None:
    """List consumer groups with their clients, rates and lag."""
    from ariane.cli.mqadmin.commands.progress_commands import summary_data
    from ariane.reports.report import Column, Table

    async def work(admin: Admin) -> tuple[list[GroupSummary], list[Any]]:
        groups = await admin.list_groups(cluster=cluster, with_system=with_system)
        return await admin.summarize_groups(groups.names), list(groups.unavailable)

    summaries, unavailable = session.read(work)
    data = [summary_data(summary) for summary in summaries]
    rows = tuple(
        (
            row["group"],
            row["clients"],
            row["version"] or "-",
            " ".join(filter(None, (row["type"], row["model"]))).lower() or "-",
            row["consumeTps"],
            f"≥ {row['lagAtLeast']:,}" if row["lag"] is None and row["lagAtLeast"] else row["lag"],
        )
        for row in data
    )
    columns = ("GROUP", "CLIENTS", "VERSION", "MODE"), Column("TPS", "/s"), Column("LAG")
    session.show(data, Table("", (*map(Column, columns[0]), *columns[1:]), rows))
    session.finish(
        dict.fromkeys([*unavailable, *(missing for summary in summaries for missing in summary.unavailable)])
    )


@app.command("lag", "ariane group lag billing", "ariane group lag billing --topic orders --watch 2")
def lag(
    group: GroupArgument,
    *,
    topic: Annotated[str | None, topic_option("-t", "--topic", help="Only this topic.")] = None,
    watch: Annotated[float | None, seconds_option(minimum=0.1, help="Print again until interrupted.")] = None,
    session: AdminSession,
) -> None:
    """Print the lag of a consumer group queue by queue, live from the brokers.

    OLDEST is the age of the first message that is not consumed. Of a group that consumes by POP, as clients of RocketMQ 5 do,
    IN FLIGHT is the part of LAG that was delivered and is not acknowledged. Exit status: 1 if a broker did not respond.
    """
    for _ in rounds(watch):
        unavailable = _print_lag(session, group, topic, clears=watch is not None)
    session.finish(unavailable)


def _print_lag(session: AdminSession, group: str, topic: str | None, *, clears: bool) -> list[Any]:
    from ariane.cli.mqadmin.commands.progress_commands import lag_data
    from ariane.cluster.groups.consumer_status import queue_owners

    found, ages, states = session.read(lambda admin: _fetch_lag(admin, group, topic))
    owners = queue_owners(states.states) if states is not None else {}
    unavailable = dict.fromkeys((*found.unavailable, *ages.unavailable, *(states.unavailable if states else ())))
    data = lag_data(found, owners)
    for row, queue in zip(data["queues"], found.queues, strict=True):
        row["oldestMs"] = ages.by_queue.get(queue.queue)
    data["clients"] = 0 if states is None else states.connections.clients
    if clears and not session.as_json:
        clear_screen()
    session.show(data, *_lag_text(found, ages, owners, data["clients"]))
    return list(unavailable)


async def _fetch_lag(
    admin: Admin, group: str, topic: str | None
) -> tuple[GroupLag, UnconsumedAges, ConsumerStates | None]:
    lag = await admin.group_lag(group, topic)
    if not any(queue.consumer_offset for queue in lag.queues):
        await admin.check_group(group)
    ages = await admin.unconsumed_ages(lag)
    connections = await admin.consumer_connections(group)
    return lag, ages, None if connections is None else await admin.consumer_states(group, connections)


def _lag_text(
    found: GroupLag, ages: UnconsumedAges, owners: dict[MessageQueue, str], clients: int | None
) -> tuple[Table | str, ...]:
    tps = UNKNOWN if found.consume_tps is None else f"{found.consume_tps:.2f}"
    count = UNKNOWN if clients is None else str(clients)
    title = f"GROUP {found.group} · {count} client{'' if clients == 1 else 's'} · {tps} messages/s"
    has_pop = found.in_flight is not None
    rows = tuple(
        (
            queue.topic,
            queue.broker,
            queue.queue_id,
            queue.consumer_offset,
            queue.broker_offset,
            queue.lag,
            *((queue.in_flight,) if has_pop else ()),
            _age(ages.by_queue[queue.queue]) if queue.queue in ages.by_queue else "-",
            owners.get(queue.queue, "-").split("#")[0],
        )
        for queue in found.queues
    )
    in_flight = ("IN FLIGHT",) if has_pop else ()
    names = ("TOPIC", "BROKER", "QUEUE", "COMMITTED", "END", "LAG", *in_flight, "OLDEST", "CLIENT")
    unknown = sum(queue.lag is None for queue in found.queues)
    total = f"Total lag: {found.lag.minimum or 0:,}"
    if unknown or not found.is_complete:
        parts = [f"{unknown} of {len(found.queues)} queues unknown"] if unknown else []
        parts += ["" if found.is_complete else "brokers did not respond"]
        total += f" ({', '.join(filter(None, parts))})"
    if has_pop:
        total += f", in flight: {found.in_flight:,}"
    return title, table(names, rows), total


def _age(ms: int | None) -> str:
    return UNKNOWN if ms is None else format_duration(ms / 1000, digits=1)


@app.command(
    "in-flight", "ariane group in-flight stock", "ariane group in-flight stock --topic orders --limit 1000 --json"
)
def in_flight(
    group: GroupArgument,
    *,
    topic: Annotated[str | None, topic_option("-t", "--topic", help="Only this topic.")] = None,
    limit: Annotated[
        int, number_option(minimum=1, maximum=IN_FLIGHT_MAX, help="Maximum number of messages of each broker.")
    ] = IN_FLIGHT,
    session: AdminSession,
) -> None:
    """List messages that were delivered to clients of RocketMQ 5 and not acknowledged.

    The first ones of each queue are listed: they hold back the group's offset. Only the last delivery of a message, at the time
    TAKEN, can be acknowledged. CLIENT is the address of a client that is not connected any more, and unknown (?) after a restart of
    the broker. Exit status: 1 if a broker did not respond.
    """
    found = session.read(lambda admin: admin.in_flight_messages(group, topic, limit=limit))
    now_ms = SYSTEM_CLOCK.now_ms()
    names = ("TOPIC", "BROKER", "QUEUE", "OFFSET", "MESSAGE ID", "ATTEMPTS", "TAKEN (UTC)", "VISIBLE IN", "CLIENT")
    rows = tuple(
        (
            message.topic,
            message.broker,
            message.queue_id,
            message.offset,
            message.message_id or "removed",
            message.attempts,
            utc_of(message.taken_ms),
            format_duration((message.visible_ms - now_ms) / 1000) if message.visible_ms > now_ms else "visible",
            message.client_id or message.client_addr or UNKNOWN,
        )
        for message in found.messages
    )
    omitted = found.total - len(rows)
    more = f"; {omitted:,} more results omitted, raise --limit to see them" if omitted > 0 else ""
    summary = f"{found.total:,} in flight{more}." if found.total else "No message is in flight."
    session.show(found, *((table(names, rows),) if rows else ()), summary)
    session.finish(found.unavailable)


@app.command("show", "ariane group show billing")
def show(group: GroupArgument, session: AdminSession) -> None:
    """Print the configuration of a consumer group on each broker."""
    from ariane.cli.mqadmin.value_text import group_fields

    configs = session.read(lambda admin: admin.group_configs(group))
    names = list(group_fields(configs.values[0][1])) if configs.values else []
    rows = tuple(
        (name, *(group_fields(config)[name] for _, config in configs.values)) for name in names if name != "groupName"
    )
    brokers = (server.broker for server, _ in configs.values)
    data = [{"cluster": server.cluster, "broker": server.broker, "config": config} for server, config in configs.values]
    session.show(data, f"GROUP {group}", table(("SETTING", *brokers), rows))
    session.finish(configs.unavailable)


@app.command("clients", "ariane group clients billing")
def clients(group: GroupArgument, session: AdminSession) -> None:
    """Print the connected clients of a consumer group.

    QUEUES and CACHED are the numbers of queues and of fetched messages that a client holds.
    """
    from ariane.cli.mqadmin.commands.progress_commands import state_data
    from ariane.protocol.versions import version_name

    answer = session.read(lambda admin: admin.consumer_states(group))
    data, rows = [], []
    for client in answer.connections.connections:
        state = answer.states.get(client.client_id)
        queues = None if state is None else len(state.queues)
        cached = None if state is None else sum(info.cached_msg_count for info in state.queues.values())
        rows.append(
            (client.client_id, client.client_addr, client.language, version_name(client.version), queues, cached)
        )
        data.append(
            {"clientId": client.client_id, "addr": client.client_addr, "language": client.language}
            | ({} if state is None else state_data(state))
        )
    names = ("CLIENT", "ADDRESS", "LANGUAGE", "VERSION", "QUEUES", "CACHED")
    title = f"GROUP {group} · {answer.connections.consume_type} · {answer.connections.message_model}"
    session.show(data, title, table(names, rows))
    session.finish(answer.unavailable)


@app.command("subscriptions", "ariane group subscriptions billing")
def subscriptions(group: GroupArgument, session: AdminSession) -> None:
    """Print the subscriptions of each client, and check that they are the same.

    Members share the queues of a group: a message that its owner does not subscribe to reaches no other member.
    Exit status: 1 if subscriptions differ.
    """
    from ariane.cluster.groups.consumer_status import find_inconsistent

    answer = session.read(lambda admin: admin.consumer_states(group))
    differing = find_inconsistent(group, answer.states)
    rows = tuple(
        (subscription.topic, subscription.sub_string or "*", client_id.split("#")[0])
        for client_id, state in answer.states.items()
        for subscription in state.subscriptions
    )
    data = {
        "group": group,
        "clients": {
            client_id: {subscription.topic: subscription.sub_string for subscription in state.subscriptions}
            for client_id, state in answer.states.items()
        },
        "inconsistentTopics": differing,
    }
    notes = [f"Inconsistent: clients subscribe to {topic.topic} differently." for topic in differing]
    summary = notes or ["The subscriptions are the same in all clients."]
    session.show(data, table(("TOPIC", "EXPRESSION", "CLIENT"), rows), *summary)
    session.finish(answer.unavailable)
    if differing:
        raise typer.Exit(INCONSISTENT)


@app.command("create", "ariane group create billing", "ariane group create audit --retries 3 --no-broadcast --dry-run")
def create(
    group: GroupArgument,
    settings: SettingOptions,
    *,
    cluster: ClusterName = None,
    session: ChangeSession,
) -> None:
    """Create a consumer group on all masters."""
    from ariane.model.topic import SubscriptionGroupConfig

    async def work(admin: Admin) -> list[Any]:
        servers = await admin.select_brokers(cluster=cluster)
        tables = await admin.group_tables(servers)
        existing = [server.broker for server, table in tables.values if group in table]
        if existing:
            raise UsageError("GROUP", group, f"exists on {', '.join(existing)}; use 'ariane group change'")
        return await admin.save_group(SubscriptionGroupConfig(group_name=group, **settings.given()), servers=servers)

    changes = session.run(work)
    brokers = [change.addr for change in changes]
    session.show({"group": group, "brokers": brokers}, f"Created {group} on {', '.join(brokers)}.")


@app.command("change", "ariane group change billing --retries 3")
def change(
    group: GroupArgument,
    settings: SettingOptions,
    *,
    cluster: ClusterName = None,
    session: ChangeSession,
) -> None:
    """Change settings of a consumer group.

    Settings that are not named stay as they are on each broker.
    """
    import msgspec

    given = settings.given()
    if not given:
        raise UsageError(
            "change", None, "nothing to change; expected --retries, --retry-queues, --consume, --broadcast or --ordered"
        )

    async def work(admin: Admin) -> tuple[list[Any], tuple[Any, ...]]:
        current = await admin.group_configs(group, await admin.select_brokers(cluster=cluster))
        configs = [(server, msgspec.structs.replace(config, **given)) for server, config in current.values]
        return await admin.save_groups(configs), current.unavailable

    changes, unavailable = session.run(work)
    brokers = [change.addr for change in changes]
    session.show({"group": group, "brokers": brokers}, f"Changed {group} on {', '.join(brokers)}.")
    session.finish(unavailable)


@app.command("delete", "ariane group delete audit --dry-run", "ariane group delete audit --offsets")
def delete(
    group: GroupArgument,
    *,
    with_offsets: Annotated[bool, flag_option("--offsets", "Delete its offsets, too.")] = False,
    with_topics: Annotated[bool, flag_option("--topics", "Delete its retry topic and dead letters, too.")] = False,
    cluster: ClusterName = None,
    session: ChangeSession,
) -> None:
    """Delete a consumer group."""

    async def work(admin: Admin) -> list[Any]:
        await admin.check_group(group)
        servers = await admin.select_brokers(cluster=cluster)
        return await admin.delete_group(group, with_offsets=with_offsets, with_topics=with_topics, servers=servers)

    changes = session.run(work)
    session.show(changes_data(changes), *(f"Done on {change.addr}: {change.summary}." for change in changes))
