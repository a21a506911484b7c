"""Commands that export a cluster into JSON files. Reference: admin-and-dashboard 1.9."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from ariane.cli.mqadmin.command import CommandList, Option, Options, Output
from ariane.clock import SYSTEM_CLOCK
from ariane.cluster.admin import Admin
from ariane.cluster.connection import BrokerUnavailable
from ariane.errors import UsageError

DIRECTORY = "/tmp/rocketmq/export"  # noqa: S108 -- Java's default, which scripts read


FILE_PATH = Option("f", "filePath", "Directory of the files.", str, DIRECTORY, "DIR")

EXPORTED_CLUSTER = Option("c", "clusterName", "Cluster to export.", metavar="NAME", is_required=True)

COMMANDS = CommandList()


@COMMANDS.add(
    "exportMetadata",
    Option("c", "clusterName", "All masters of this cluster.", metavar="NAME"),
    Option("b", "brokerAddr", "Only this broker, HOST:PORT or name.", metavar="ADDR"),
    FILE_PATH,
    Option("t", "topic", "Only topics.", is_flag=True),
    Option("g", "subscriptionGroup", "Only consumer groups.", is_flag=True),
    Option("s", "specialTopic", "Include retry and dead-letter topics.", is_flag=True),
)
async def export_metadata(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Write topics and groups into topic.json, subscriptionGroup.json or metadata.json."""
    if options.topic and options.subscriptionGroup:
        raise UsageError("exportMetadata", None, "specify only one of -t and -g; without them both are exported")
    directory = Path(options.filePath)
    if options.brokerAddr is not None:
        yield await _of_broker(admin, options, directory)
        return
    servers = await admin.select_brokers(cluster=options.clusterName)
    value: dict[str, Any] = {}
    unavailable: tuple[BrokerUnavailable, ...] = ()
    if not options.subscriptionGroup:
        topics = await admin.export_topics(servers, with_special=options.specialTopic)
        value["topicConfigTable"], unavailable = topics
    if not options.topic:
        groups = await admin.export_groups(servers)
        value["subscriptionGroupTable"] = groups.value
        unavailable = tuple(dict.fromkeys((*unavailable, *groups.unavailable)))
    name = "topic" if options.topic else "subscriptionGroup" if options.subscriptionGroup else "metadata"
    value["exportTime"] = SYSTEM_CLOCK.now_ms()
    yield _write(directory / f"{name}.json", value, unavailable, end="\n")


async def _of_broker(admin: Admin, options: Options, directory: Path) -> Output:
    (server,) = await admin.select_brokers(broker=options.brokerAddr)
    if options.topic:
        table: Any = await admin.fetch_topic_table(server, with_special=options.specialTopic)
        return _write(directory / "topic.json", table)
    if options.subscriptionGroup:
        return _write(directory / "subscriptionGroup.json", await admin.fetch_group_table(server))
    raise UsageError("exportMetadata", None, "with -b, expected -t (topics) or -g (groups)")


@COMMANDS.add("exportConfigs", EXPORTED_CLUSTER, FILE_PATH)
async def export_configs(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Write settings of the masters and the number of servers into configs.json."""
    value, unavailable = await admin.export_configs(options.clusterName)
    yield _write(Path(options.filePath) / "configs.json", value, unavailable)


@COMMANDS.add("exportMetrics", EXPORTED_CLUSTER, FILE_PATH)
async def export_metrics(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Write the load of the masters into metrics.json."""
    value, unavailable = await admin.export_metrics(options.clusterName)
    yield _write(Path(options.filePath) / "metrics.json", value, unavailable)


def _write(path: Path, value: Any, unavailable: tuple[BrokerUnavailable, ...] = (), end: str = "") -> Output:
    """Write a file, unless a broker did not respond: sums without it would look complete."""
    from ariane.cli.output.json_output import to_builtins
    from ariane.protocol import fastjson

    if unavailable:
        return Output("", {"path": None}, unavailable)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(fastjson.write(value, pretty=True))
    return Output(f"export {path} success{end}", {"path": str(path), "value": to_builtins(value)})
