"""Commands on the progress of consumer groups: lag, rates, state of their clients. Reference: admin-and-dashboard 1.4, 1.5."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from ariane.cli.mqadmin.command import CommandList, Option, Options, Output, lines
from ariane.cli.mqadmin.option_values import whole_number, yes_or_no
from ariane.cli.mqadmin.running_info_text import blocked_text, running_info
from ariane.cli.mqadmin.value_text import UNKNOWN, number, time_s
from ariane.clock import SYSTEM_CLOCK
from ariane.cluster.admin import Admin
from ariane.cluster.groups.consumer_status import (
    PUSH,
    ConsumerState,
    GroupSummary,
    find_blocked,
    find_inconsistent,
    is_settled,
    queue_owners,
)
from ariane.cluster.groups.group_lag import GroupLag, QueueLag
from ariane.model.message import MessageQueue
from ariane.protocol.requests.callbacks import ProcessQueueInfo
from ariane.protocol.versions import version_name

WIDTH, BROKER_WIDTH = 64, 32  # of names in columns; longer ones are cut


OPTIONAL_GROUP = Option("g", "groupName", "Consumer group; without it, all groups.", metavar="NAME")

CONSUMER_GROUP = Option("g", "consumerGroup", "Consumer group.", metavar="NAME", is_required=True)

COMMANDS = CommandList()


@COMMANDS.add(
    "consumerProgress",
    OPTIONAL_GROUP,
    Option("s", "showClientIP", "With -g: print the owner of each queue.", yes_or_no, "false", "BOOL"),
)
async def consumer_progress(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print the lag of a group queue by queue, or one line per group."""
    if options.groupName is None:
        yield await _all_groups(admin)
        return
    group = options.groupName
    lag = await admin.group_lag(group)
    if not lag.queues:
        await admin.check_group(group)
    owners: dict[MessageQueue, str] = {}
    unavailable = lag.unavailable
    if options.showClientIP:
        connections = await admin.consumer_connections(group)
        if connections is not None:
            states = await admin.consumer_states(group, connections)
            owners = queue_owners(states.states)
            unavailable = tuple(dict.fromkeys((*unavailable, *states.unavailable)))
    has_pop = lag.in_flight is not None
    rows = [_progress_header(options.showClientIP, with_in_flight=has_pop)]
    for queue in lag.queues:
        client_ip = owners.get(queue.queue, "N/A").split("@")[0]
        rows.append(_progress_row(queue, client_ip if options.showClientIP else None, with_in_flight=has_pop))
    tps = UNKNOWN if lag.consume_tps is None else f"{lag.consume_tps:.2f}"
    rows += ["", f"Consume TPS: {tps}", f"Diff Total: {number(lag.total)}"]
    if has_pop:
        rows.append(f"Inflight Total: {number(lag.in_flight)}")
    yield Output(lines(rows), lag_data(lag, owners), unavailable)


def _progress_header(with_client: bool, *, with_in_flight: bool) -> str:
    """Return the header. 5.x always has the column of messages in flight."""
    client = f"{'#Client IP':<20} " if with_client else ""
    in_flight = f"{'#Inflight':<20}  " if with_in_flight else ""
    return (
        f"{'#Topic':<64}  {'#Broker Name':<32}  {'#QID':<4}  {'#Broker Offset':<20}  {'#Consumer Offset':<20}  "
        f"{client}{'#Diff':<20}  {in_flight}#LastTime"
    )


def _progress_row(queue: QueueLag, client_ip: str | None, *, with_in_flight: bool) -> str:
    client = "" if client_ip is None else f"{client_ip:<20} "
    in_flight = f"{number(queue.in_flight):<20}  " if with_in_flight else ""
    return (
        f"{queue.topic[:WIDTH]:<64}  {queue.broker[:BROKER_WIDTH]:<32}  {queue.queue_id:<4}  {queue.broker_offset:<20}  "
        f"{number(queue.consumer_offset):<20}  {client}{number(queue.lag):<20}  {in_flight}{time_s(queue.consumed_ms)}"
    )


def queue_data(queue: QueueLag) -> dict[str, Any]:
    """Return a queue of a group as a JSON value."""
    return {**queue._asdict(), "lag": queue.lag, "ready": queue.ready}


def lag_data(lag: GroupLag, owners: dict[MessageQueue, str]) -> dict[str, Any]:
    """Return the lag of a group as a JSON value."""
    return {
        "group": lag.group,
        "lag": lag.total,
        "lagAtLeast": lag.lag.minimum,
        "inFlight": lag.in_flight,
        "consumeTps": lag.consume_tps,
        "queues": [
            {
                "topic": queue.topic,
                "broker": queue.broker,
                "queueId": queue.queue_id,
                "brokerOffset": queue.broker_offset,
                "consumerOffset": queue.consumer_offset,
                "lag": queue.lag,
                "inFlight": queue.in_flight,
                "ready": queue.ready,
                "consumedMs": queue.consumed_ms,
                "clientId": owners.get(queue.queue),
            }
            for queue in lag.queues
        ],
    }


async def _all_groups(admin: Admin) -> Output:
    summaries = await admin.summarize_groups(await admin.groups_with_retry_topic())
    rows = [f"{'#Group':<64}  {'#Count':<6}  {'#Version':<24} {'#Type':<5}  {'#Model':<14}  {'#TPS':<7}  #Diff Total"]
    for summary in summaries:
        lag, data = summary.lag, summary_data(summary)
        version = data["version"] or (UNKNOWN if summary.clients is None else "OFFLINE")
        tps = UNKNOWN if lag.consume_tps is None else f"{lag.consume_tps:.2f}"
        rows.append(
            f"{lag.group[:WIDTH]:<64}  {number(summary.clients):<6}  {version:<24} {data['type'] or '':<5}  "
            f"{data['model'] or '':<14}  {tps:<7}  {number(lag.total)}"
        )
    unavailable = dict.fromkeys(missing for summary in summaries for missing in summary.unavailable)
    return Output(lines(rows), [summary_data(summary) for summary in summaries], tuple(unavailable))


def summary_data(summary: GroupSummary) -> dict[str, Any]:
    """Return a group in a list as a JSON value; version, type and model are null without clients, as is the model of PULL."""
    found, version = summary.connections, summary.version
    is_push = found is not None and found.consume_type == PUSH
    return {
        "group": summary.lag.group,
        "clients": summary.clients,
        "version": None if version is None else version_name(version),
        "type": None if version is None else "PUSH" if is_push else "PULL",
        "model": str(found.message_model) if found is not None and is_push else None,
        "consumeTps": summary.lag.consume_tps,
        "lag": summary.lag.total,
        "lagAtLeast": summary.lag.lag.minimum,
    }


@COMMANDS.add(
    "consumerStatus",
    CONSUMER_GROUP,
    Option("i", "clientId", "Print the state of this client.", metavar="ID"),
    Option("b", "brokerAddr", "Only clients of this broker, HOST:PORT or name.", metavar="ADDR"),
    Option("s", "jstack", "Request the stacks of threads, too.", is_flag=True),
)
async def consumer_status(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print the state of one client, or write those of all clients of a group into files and judge them."""
    group = options.consumerGroup
    if options.clientId is not None:
        state = await admin.consumer_state(group, options.clientId, with_stacks=options.jstack)
        yield Output(running_info(state), state_data(state))
        return
    servers = await admin.select_brokers(broker=options.brokerAddr)
    connections = await admin.connected_consumers(group, servers)
    answer = await admin.consumer_states(group, connections, with_stacks=options.jstack)
    now_ms = SYSTEM_CLOCK.now_ms()
    rows = [f"{'#Index':<10} {'#ClientId':<40} {'#Version':<20} #ConsumerRunningInfoFile"]
    for index, (client_id, state) in enumerate(answer.states.items(), 1):
        path = _write_state(Path(str(now_ms)), state)
        rows.append(f"{index:<10} {client_id:<40} {version_name(state.version):<20} {path}")
    text = lines(rows)
    differing = find_inconsistent(group, answer.states)
    blocked = [queue for state in answer.states.values() for queue in find_blocked(state, now_ms)]
    if answer.states and differing and is_settled(answer.states, now_ms):
        text += "\n\nWARN: Different subscription in the same group of consumer!!!"
    elif answer.states:
        text += "\n\nSame subscription in the same group of consumer\n\nRebalance OK\n"
        text += "".join(blocked_text(queue) for queue in blocked)
    data = {
        "group": group,
        "clients": [state_data(state) for state in answer.states.values()],
        "inconsistentTopics": differing,
        "blockedQueues": blocked,
    }
    yield Output(text, data, answer.unavailable)


def _write_state(directory: Path, state: ConsumerState) -> Path:
    """Write the state of a client into a file of its name. A client chooses its id: it must not choose the directory, too."""
    directory.mkdir(exist_ok=True)
    path = directory / state.client_id.replace("/", "_")
    path.write_text(running_info(state), encoding="utf-8", errors="backslashreplace")
    return path


def state_data(state: ConsumerState) -> dict[str, Any]:
    """Return the state of a client as a JSON value."""
    return {
        "clientId": state.client_id,
        "version": version_name(state.version),
        "properties": state.properties,
        "subscriptions": {data.topic: data.sub_string for data in state.subscriptions},
        "queues": [_process_queue(queue, info) for queue, info in state.queues.items()],
        "statistics": state.statistics,
        "stacks": state.stacks,
    }


def _process_queue(queue: MessageQueue, info: ProcessQueueInfo) -> dict[str, Any]:
    from ariane.cli.output.json_output import to_builtins

    return {"topic": queue.topic, "broker": queue.broker, "queueId": queue.queue_id, **to_builtins(info)}


@COMMANDS.add(
    "brokerConsumeStats",
    Option("b", "brokerAddr", "Broker, HOST:PORT or name.", metavar="ADDR", is_required=True),
    Option("t", "timeoutMillis", "Time limit.", whole_number(1, "number of milliseconds"), 50_000, "MS"),
    Option("l", "level", "Minimum lag of a printed queue.", whole_number(0, "number of messages"), 0, "N"),
    Option("o", "order", "Only topics with ordered messages.", yes_or_no, "false", "BOOL"),
)
async def broker_consume_stats(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print the queues on one broker from which groups have consumed."""
    (server,) = await admin.select_brokers(broker=options.brokerAddr)
    stats = await admin.broker_consume_stats(server, is_order=options.order, timeout_ms=options.timeoutMillis)
    rows = [
        f"{'#Topic':<64}  {'#Group':<64}  {'#Broker Name':<32}  {'#QID':<4}  {'#Broker Offset':<20}  "
        f"{'#Consumer Offset':<20}  {'#Diff':<20}  #LastTime"
    ]
    data = []
    for group, queues in stats.groups:
        for queue in queues:
            if queue.consumed_ms is None or queue.lag is None or queue.lag < options.level:
                continue
            rows.append(
                f"{queue.topic[:WIDTH]:<64}  {group:<64}  {queue.broker[:BROKER_WIDTH]:<32}  {queue.queue_id:<4}  "
                f"{queue.broker_offset:<20}  {queue.consumer_offset:<20}  {queue.lag:<20}  {time_s(queue.consumed_ms)}"
            )
            data.append({"group": group, **queue_data(queue)})
    yield Output(lines([*rows, "", f"Diff Total: {stats.total_diff}"]), {"lag": stats.total_diff, "queues": data})
