"""Exports of a cluster as JSON: topics and groups, settings of brokers, load.

The shapes are those of Java's files, with the sums that Java makes over all masters.
[ExportMetadataCommand, ExportConfigsCommand, ExportMetricsCommand]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ariane.cluster.connection import BrokerServer, BrokerUnavailable
from ariane.cluster.groups.group_admin import GroupOperations, is_system_group
from ariane.cluster.servers.broker_admin import BrokerOperations
from ariane.errors import ReplyError
from ariane.model.topic import (
    DLQ_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SubscriptionGroupConfig,
    TopicConfig,
)
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.admin import SubscriptionGroupTable
from ariane.protocol.requests.routing import TopicList, TopicTable
from ariane.protocol.requests.stats import BrokerStatsData, ViewBrokerStats
from ariane.protocol.versions import version_name

EXPORTED_SETTINGS = (
    "brokerClusterName",
    "brokerId",
    "brokerName",
    "brokerRole",
    "fileReservedTime",
    "filterServerNums",
    "flushDiskType",
    "maxMessageSize",
    "messageDelayLevel",
    "msgTraceTopicName",
    "slaveReadEnable",
    "traceOn",
    "traceTopicEnable",
    "useTLS",
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
)


class Export(NamedTuple):
    """The value of an exported file. It is complete if `unavailable` is empty."""

    value: dict[str, Any]
    unavailable: tuple[BrokerUnavailable, ...]


class ExportOperations(BrokerOperations, GroupOperations):
    """Exports of a cluster."""

    async def export_topics(self, servers: Sequence[BrokerServer], *, with_special: bool = False) -> Export:
        """Return the topics of users, by name; numbers of queues are added up over the servers.

        Args:
            servers: Brokers whose topics are exported.
            with_special: Include retry and dead-letter topics.
        """

        async def ask(server: BrokerServer) -> dict[str, TopicConfig]:
            return (await self.fetch_topic_table(server, with_special=with_special)).topic_config_table

        answers = await self.ask_all(servers, ask)
        topics: dict[str, TopicConfig] = {}
        for _, table in answers.values:
            for name, config in table.items():
                other = topics.get(name)
                if other is None:
                    topics[name] = config
                else:
                    topics[name] = msgspec.structs.replace(
                        config,
                        read_queue_nums=other.read_queue_nums + config.read_queue_nums,
                        write_queue_nums=other.write_queue_nums + config.write_queue_nums,
                    )
        return Export(dict(sorted(topics.items())), answers.unavailable)

    async def export_groups(self, servers: Sequence[BrokerServer]) -> Export:
        """Return the consumer groups of users, by name; numbers of retry queues are added up over the servers."""
        answers = await self.group_tables(servers)
        groups: dict[str, SubscriptionGroupConfig] = {}
        for _, table in answers.values:
            for name, config in table.items():
                if is_system_group(name):
                    continue
                other = groups.get(name)
                queues = config.retry_queue_nums + (other.retry_queue_nums if other is not None else 0)
                groups[name] = msgspec.structs.replace(config, retry_queue_nums=queues)
        return Export(dict(sorted(groups.items())), answers.unavailable)

    async def fetch_topic_table(self, server: BrokerServer, *, with_special: bool = False) -> TopicTable:
        """Return the topics of users of one broker, with the version of its table."""
        table = await self._fetch_topics(server)
        listed = await self.request(server.addr, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        system = set(fastjson.decode(listed.body, TopicList).topic_list)
        special = () if with_special else (RETRY_PREFIX, DLQ_PREFIX)
        topics = {
            name: config
            for name, config in table.topic_config_table.items()
            if name not in system and not name.startswith(special)
        }
        return msgspec.structs.replace(table, topic_config_table=topics)

    async def fetch_group_table(self, server: BrokerServer) -> SubscriptionGroupTable:
        """Return the consumer groups of users of one broker, with the version of its table."""
        answer = await self.request(server.addr, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, is_slow=True)
        table = fastjson.decode(answer.body, SubscriptionGroupTable)
        users = {name: config for name, config in table.subscription_group_table.items() if not is_system_group(name)}
        return msgspec.structs.replace(table, subscription_group_table=users)

    async def export_configs(self, cluster: str) -> Export:
        """Return selected settings of the masters of a cluster, and the number of its servers.

        Raises:
            NotFound: no such cluster is registered.
        """
        servers = await self.select_brokers(cluster=cluster, with_slaves=True)
        masters = [server for server in servers if server.is_master]
        answers = await self.fetch_broker_config(masters)
        configs = {
            server.broker: {name: config[name] for name in EXPORTED_SETTINGS if name in config}
            for server, config in answers.values
        }
        scale = {
            "namesrvSize": len(self.name_servers),
            "masterBrokerSize": len(masters),
            "slaveBrokerSize": len(servers) - len(masters),
        }
        return Export({"brokerConfigs": configs, "clusterScale": scale}, answers.unavailable)

    async def export_metrics(self, cluster: str) -> Export:
        """Return the load of the masters of a cluster, and sums over them. Rates are those of the last seconds.

        Raises:
            NotFound: no such cluster is registered.
        """
        answers = await self.ask_all(await self.select_brokers(cluster=cluster), self._load)
        report = {server.broker: load for server, load in answers.values}
        quotas = [load["runtimeQuota"] for load in report.values()]
        tps = {f"total{name[0].upper()}{name[1:]}": _sum(quotas, "tps", name) for name in TPS_NAMES}
        totals = {"totalTps": tps, "totalOneDayNum": {name: _sum(quotas, "oneDayNum", name) for name in DAY_NAMES}}
        return Export({"evaluateReport": report, "totalData": totals}, answers.unavailable)

    async def _load(self, server: BrokerServer) -> dict[str, Any]:
        runtime = (await self.fetch_runtime(server.addr)).table
        config = (await self.fetch_broker_config([server])).values
        groups = await self.fetch_group_table(server)
        topics = (await self.fetch_topic_table(server)).topic_config_table
        half, schedule = [await self._puts(server, topic) for topic in (HALF_TOPIC, SCHEDULE_TOPIC)]
        versions = set()
        for group in groups.subscription_group_table:
            connections = await self.consumer_connections(group, [server])
            for client in connections.connections if connections is not None else ():
                versions.add(f"{client.language}%{version_name(client.version)}")
        return {
            "runtimeEnv": {
                # Java exports this setting as the number of processors.
                "cpuNum": config[0][1].get("clientCallbackExecutorThreads") if config else None,
                "totalMemKBytes": runtime.get("totalMemKBytes"),
            },
            "runtimeQuota": {
                "diskRatio": {name: runtime.get(name) for name in ("commitLogDiskRatio", "consumeQueueDiskRatio")},
                "tps": {
                    "normalInTps": _first(runtime.get("putTps")),
                    "normalOutTps": _first(runtime.get("getTransferedTps")),
                    "transInTps": half.stats_minute.tps if half is not None else 0.0,
                    "scheduleInTps": schedule.stats_minute.tps if schedule is not None else 0.0,
                },
                "oneDayNum": {
                    "normalOneDayInNum": _yesterday(runtime, "msgPutTotal"),
                    "normalOneDayOutNum": _yesterday(runtime, "msgGetTotal"),
                    "transOneDayInNum": _day_sum(half),
                    "scheduleOneDayInNum": _day_sum(schedule),
                },
                "messageAverageSize": runtime.get("putMessageAverageSize"),
                "topicSize": len(topics),
                "groupSize": len(groups.subscription_group_table),
            },
            "runtimeVersion": {"rocketmqVersion": runtime.get("brokerVersionDesc"), "clientInfo": sorted(versions)},
        }

    async def _puts(self, server: BrokerServer, topic: str) -> BrokerStatsData | None:
        """Return the statistics of messages put into a topic; None if there was none."""
        try:
            header = ViewBrokerStats("TOPIC_PUT_NUMS", topic)
            answer = await self.request(server.addr, RequestCode.VIEW_BROKER_STATS_DATA, header)
        except ReplyError:
            return None
        return fastjson.decode(answer.body, BrokerStatsData)


TPS_NAMES = ("normalInTps", "normalOutTps", "transInTps", "scheduleInTps")
DAY_NAMES = ("normalOneDayInNum", "normalOneDayOutNum", "transOneDayInNum", "scheduleOneDayInNum")


def _first(rates: str | None) -> float | None:
    """Return the rate of the shortest window; None if the broker does not report one yet."""
    first = (rates or "").split(" ")[0]
    return float(first) if first else None


def _yesterday(runtime: Mapping[str, str], counter: str) -> int | None:
    try:
        return int(runtime[f"{counter}TodayMorning"]) - int(runtime[f"{counter}YesterdayMorning"])
    except KeyError:
        return None


def _day_sum(stats: BrokerStatsData | None) -> int:
    """Return the sum of the longest window that has any."""
    if stats is None:
        return 0
    return stats.stats_day.sum or stats.stats_hour.sum or stats.stats_minute.sum


def _sum(quotas: Iterable[Mapping[str, Any]], part: str, name: str) -> float | None:
    values = [quota[part][name] for quota in quotas]
    return None if None in values else sum(values)
