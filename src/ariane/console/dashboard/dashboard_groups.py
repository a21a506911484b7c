"""/consumer and /producer of Apache's dashboard: groups, their clients, progress and offsets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from ariane.cluster.admin import Admin
from ariane.cluster.groups.group_admin import is_system_group
from ariane.cluster.groups.offset_admin import OffsetTarget, ResetResult
from ariane.console.dashboard.dashboard_topics import SYSTEM_MARK, client_queues, loaded_snapshot, select_targets
from ariane.console.dashboard.formats.envelope import DashboardRouter
from ariane.console.dashboard.formats.json_shapes import (
    Json,
    connection_shape,
    group_config_shape,
    lag_shape,
    members,
    queue_text,
    subscription_shape,
    topic_progress_shapes,
)
from ariane.console.dashboard.formats.request_parameters import Parameters, RequestBody
from ariane.console.live.live_snapshot import GroupRow
from ariane.console.security.audit_notes import note_failure
from ariane.console.web.dependencies import ClusterAdmin, Services
from ariane.errors import ArianeError, ConfigError, ServerUnavailable, UsageError
from ariane.model.topic import SubscriptionGroupConfig, group_name_fault
from ariane.protocol.versions import version_name

routes = DashboardRouter("/consumer")
producer_routes = DashboardRouter("/producer")

CONSUME_TYPES = {"push": "CONSUME_PASSIVELY", "pull": "CONSUME_ACTIVELY", None: None}
TPS_DIGITS = 2


class GroupRequest(RequestBody):
    """A consumer group to create or change."""

    cluster_name_list: list[str] | None = None
    broker_name_list: list[str] | None = None
    subscription_group_config: dict[str, Any]


class GroupDeletion(RequestBody):
    """A consumer group to delete on some brokers."""

    group_name: str
    broker_name_list: list[str]


class OffsetReset(RequestBody):
    """A reset of offsets to a time in ms; -1 skips what is not consumed yet."""

    consumer_group_list: list[str]
    topic: str
    reset_time: int
    force: bool = False


@routes.read("/groupList.query", "/group.refresh.all")
async def list_groups(services: Services, parameters: Parameters) -> list[Json]:
    """Return all groups, those with most clients first. Apache caches this list until it is refreshed by hand."""
    snapshot = await loaded_snapshot(services)
    addrs = {row.broker: row.addr for row in snapshot.brokers if row.is_master}
    is_marked = not parameters.flag("skipSysGroup")
    shapes = []
    for row in snapshot.groups:
        masters = [addrs[share.broker] for share in row.shares if share.broker_id == 0 and share.broker in addrs]
        shapes.append(_row_shape(row, masters, snapshot.as_of_ms, is_marked=is_marked))
    return sorted(shapes, key=_order)


@routes.read("/group.query")
async def group(admin: ClusterAdmin, parameters: Parameters) -> Json:
    """Return one group; an unknown one has no clients and an unknown lag."""
    return await _group_shape(admin, _group_name(parameters))


@routes.read("/group.refresh")
async def refresh_group(services: Services, admin: ClusterAdmin, parameters: Parameters) -> Json:
    """Return one group with its brokers. Nothing is cached here, so nothing has to be refreshed."""
    name = _group_name(parameters)
    shape = await _group_shape(admin, name)
    configs = await admin.group_configs(name)
    now = services.clock.now_ms()
    return shape | {"address": [server.addr for server, _ in configs.values], "updateTime": _date(now)}


@routes.post("/resetOffset.do", "/skipAccumulate.do")
async def reset_offsets(admin: ClusterAdmin, body: OffsetReset) -> Json:
    """Move groups to a time. Each group has its own result: one that fails does not stop the others."""
    results: Json = {}
    for name in body.consumer_group_list:
        try:
            # Offsets of a mistyped group would appear as those of a new group.
            await admin.check_group(_unmarked(name))
            target = OffsetTarget(time_ms=body.reset_time)
            moved = await admin.reset_offsets(_unmarked(name), body.topic, target, is_forced=body.force)
        except ArianeError as error:
            note_failure(f"{name}: {error}")
            results[name] = {"status": False, "errMsg": str(error), "rollbackStatsList": []}
        else:
            results[name] = {"status": True, "errMsg": None, "rollbackStatsList": _rollbacks(moved)}
    return results


@routes.read("/examineSubscriptionGroupConfig.query")
async def group_configs(admin: ClusterAdmin, parameters: Parameters) -> list[Json]:
    """Return the configuration of a group on each broker that has it."""
    name = _group_name(parameters)
    configs = await admin.group_configs(name)
    return [group_config_shape(config, server.broker) for server, config in configs.values]


@routes.get("/fetchBrokerNameList.query")
async def group_brokers(admin: ClusterAdmin, parameters: Parameters) -> list[str]:
    """Return the names of the brokers that have a group."""
    name = _group_name(parameters)
    configs = await admin.group_configs(name)
    return [server.broker for server, _ in configs.values]


@routes.post("/createOrUpdate.do")
async def save_group(admin: ClusterAdmin, body: GroupRequest) -> bool:
    """Create or change a group on brokers, and on all brokers of clusters."""
    config = _checked_config(body.subscription_group_config)
    servers = await select_targets(admin, body.cluster_name_list, body.broker_name_list)
    await admin.save_group(config, servers=servers)
    return True


@routes.post("/deleteSubGroup.do")
async def delete_group(admin: ClusterAdmin, body: GroupDeletion) -> bool:
    """Delete a group with its offsets on some brokers; on all that have it, with its retries and dead letters, too."""
    name = _unmarked(body.group_name)
    if not body.broker_name_list:
        raise UsageError("brokerNameList", None, "expected the names of brokers")
    servers = await select_targets(admin, None, body.broker_name_list)
    configured = {server.broker for server, _ in (await admin.group_configs(name)).values}
    is_everywhere = configured <= set(body.broker_name_list)
    await admin.delete_group(name, with_offsets=True, with_topics=is_everywhere, servers=servers)
    return True


@routes.read("/queryTopicByConsumer.query")
async def group_topics(admin: ClusterAdmin, parameters: Parameters) -> list[Json]:
    """Return the progress of a group by topic on all brokers; `address` is not needed and ignored."""
    name = _group_name(parameters)
    lag = await admin.group_lag(name)
    if not lag.is_complete:
        raise ServerUnavailable(f"progress of {name} is incomplete: {lag.unavailable[0]}")
    return topic_progress_shapes(lag.queues, await client_queues(admin, name))


@routes.read("/consumerConnection.query")
async def group_connections(admin: ClusterAdmin, parameters: Parameters) -> Json:
    """Return the clients of a group on all brokers, with their subscriptions; `address` is not needed and ignored."""
    name = _group_name(parameters)
    connections = await admin.connected_consumers(name)
    if connections.unavailable:
        raise ServerUnavailable(f"clients of {name} are incomplete: {connections.unavailable[0]}")
    return {
        "connectionSet": [connection_shape(client) for client in connections.connections],
        "subscriptionTable": {topic: subscription_shape(data) for topic, data in connections.subscriptions.items()},
        "consumeType": connections.consume_type,
        "messageModel": connections.message_model,
        "consumeFromWhere": connections.consume_from_where,
    }


@routes.read("/consumerRunningInfo.query")
async def client_state(admin: ClusterAdmin, parameters: Parameters) -> Json:
    """Return the state of a client, with the stacks of its threads if `jstack` is set."""
    name, client = _group_name(parameters), parameters.text("clientId")
    state = await admin.consumer_state(name, client, with_stacks=parameters.flag("jstack"))
    return {
        "properties": state.properties,
        "subscriptionSet": [subscription_shape(subscription) for subscription in state.subscriptions],
        "mqTable": {queue_text(queue): members(info) for queue, info in state.queues.items()},
        "statusTable": {topic: members(status) for topic, status in state.statistics.items()},
        "mqPopTable": {},  # queues of pop consumers, which exist from 5.0 on
        "userConsumerInfo": {},
        "jstack": state.stacks,
    }


@producer_routes.get("/producerConnection.query")
async def producer_connections(admin: ClusterAdmin, parameters: Parameters) -> Json:
    """Return the connected producers of a group."""
    producers = await admin.producer_connections(parameters.text("producerGroup"), parameters.text("topic"))
    if producers.unavailable:
        raise ServerUnavailable(f"producers are incomplete: {producers.unavailable[0]}")
    return {"connectionSet": [connection_shape(client) for client in producers.connections]}


async def _group_shape(admin: Admin, name: str) -> Json:
    (summary,) = await admin.summarize_groups([name])
    connections = summary.connections
    tps = summary.lag.consume_tps
    return {
        "group": name,
        "version": None if summary.version is None else version_name(summary.version),
        "count": summary.clients,
        "consumeType": None if connections is None else connections.consume_type,
        "messageModel": None if connections is None else connections.message_model,
        "address": None,
        "consumeTps": None if tps is None else round(tps, TPS_DIGITS),
        "diffTotal": lag_shape(summary.lag.total),
        "subGroupType": _kind(name),
        "updateTime": None,
    }


def _row_shape(row: GroupRow, addrs: list[str], as_of_ms: int, *, is_marked: bool = False) -> Json:
    return {
        "group": _marked(row.group) if is_marked else row.group,
        "version": row.versions[0] if row.versions else None,
        "count": row.clients,
        "consumeType": CONSUME_TYPES[row.consume_type],
        "messageModel": None if row.model is None else row.model.upper(),
        "address": addrs,
        "consumeTps": None if row.tps is None or row.tps_is_partial else round(row.tps, TPS_DIGITS),
        "diffTotal": lag_shape(None if row.lag_is_partial else row.lag),
        "subGroupType": _kind(row.group),
        "updateTime": _date(as_of_ms),
    }


def _order(shape: Json) -> tuple[int, int, str]:
    return -(shape["count"] or 0), -shape["diffTotal"], shape["group"]


def _rollbacks(result: ResetResult) -> list[Json]:
    return [
        {
            "brokerName": queue.broker,
            "queueId": queue.queue_id,
            "brokerOffset": queue.broker_offset,
            "consumerOffset": queue.consumer_offset,
            "timestampOffset": queue.target_offset,
            "rollbackOffset": queue.new_offset,
        }
        for queue in result.queues
    ]


def _checked_config(members: dict[str, Any]) -> SubscriptionGroupConfig:
    name = _unmarked(str(members.get("groupName", "")))
    if fault := group_name_fault(name):
        raise ConfigError("groupName", name, fault)
    try:
        return msgspec.convert({**members, "groupName": name}, SubscriptionGroupConfig)
    except msgspec.ValidationError as error:
        raise UsageError("subscriptionGroupConfig", name, str(error)) from None


def _group_name(parameters: Parameters) -> str:
    return _unmarked(parameters.text("consumerGroup"))


def _unmarked(name: str) -> str:
    return name.removeprefix(SYSTEM_MARK)


def _marked(name: str) -> str:
    return SYSTEM_MARK + name if is_system_group(name) else name


def _kind(name: str) -> str:
    return "SYSTEM" if is_system_group(name) else "NORMAL"


def _date(ms: int) -> str:
    """Return a time as Java's JSON library prints it."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
