"""Changes of topics: create, change per broker, delete, and the order configuration. Each has a dry run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec
from pydantic import Field

from ariane.cluster.admin import Admin
from ariane.cluster.connection import BrokerServer
from ariane.cluster.topics.topic_admin import QUEUES
from ariane.console.areas.admin_results import result_of
from ariane.console.areas.confirmation import DeletionForm, check_confirmed
from ariane.console.areas.topics.topic_details import TopicConfigRow, config_row
from ariane.console.services import ConsoleServices
from ariane.console.web.form_fields import OptionalInt, OptionalText
from ariane.console.web.view_model import ChangeResult, DryRunForm, View
from ariane.errors import NotFound, ServerUnavailable, UsageError
from ariane.model.topic import PERMISSIONS, TopicConfig

_ORDER_ENTRY = re.compile(r"([^:;\s]+):([1-9]\d{0,4})")
Permission = Literal["read-write", "read", "write"]


class CreateTopicForm(DryRunForm):
    """A topic to create. Without clusters and brokers, all masters get it."""

    topic: str
    """Name: letters, digits, and % | _ -"""
    queues: int = QUEUES
    """Read queues on each broker."""
    write_queues: OptionalInt = None
    """Write queues on each broker; null: as many as read queues."""
    permission: Permission = "read-write"
    """What clients may do."""
    is_ordered: bool = False
    """Fix the numbers of queues in the order configuration, so that a key's queue never changes while a broker is down."""
    clusters: tuple[str, ...] = ()
    """Clusters whose masters get the topic."""
    brokers: tuple[str, ...] = ()
    """Names of brokers that get the topic, in addition to those of the clusters."""


class ChangeTopicForm(DryRunForm):
    """New settings of a topic. Settings without a value stay unchanged on each broker."""

    read_queues: OptionalInt = None
    """Queues that consumers read."""
    write_queues: OptionalInt = None
    """Queues that producers choose from. Lower these first, and the read queues once the removed queues are consumed."""
    permission: Permission | Literal["", None] = None
    """What clients may do."""
    brokers: tuple[str, ...] = ()
    """Names of the brokers to change; empty: all that have the topic."""


class DeleteTopicForm(DeletionForm, DryRunForm):
    """Deletion of a topic with its messages."""

    cluster: OptionalText = None
    """Only from brokers of this cluster; null: from all."""


class OrderConfigForm(DryRunForm):
    """Order configuration of a topic in the KV table of the name servers."""

    configuration: str = Field("", max_length=10_000)
    """Queues per broker, `broker-a:4;broker-b:4`; empty: delete the configuration."""


class TopicConfigChange(View):
    """The configuration of a topic on one broker before and after a change."""

    before: TopicConfigRow
    """What the broker has."""
    after: TopicConfigRow
    """What it gets."""
    changed: list[str]
    """Members that differ."""


class TopicChangeResult(ChangeResult):
    """Result of a change of a topic."""

    brokers: tuple[TopicConfigChange, ...] = ()
    """Configurations before and after the change; brokers that already have the values are omitted."""


# --- create ---


async def create_topic(services: ConsoleServices, form: CreateTopicForm) -> ChangeResult:
    """Create a topic.

    Raises:
        ConfigError: the name or a number of queues is invalid, or a selected broker has the topic.
    """
    admin = services.admin(is_dry_run=form.is_dry_run)
    servers = await _selected_masters(admin, form.clusters, form.brokers)
    await admin.check_topic_is_new(form.topic, servers)
    write_queues = form.queues if form.write_queues is None else form.write_queues
    config = TopicConfig(
        topic_name=form.topic,
        read_queue_nums=form.queues,
        write_queue_nums=write_queues,
        perm=PERMISSIONS[form.permission],
        order=form.is_ordered,
    )
    await admin.put_topic(config, servers=servers)
    if form.is_ordered:
        # Brokers ignore the flag of the request; they take it from this configuration when they register.
        order = ";".join(f"{server.broker}:{write_queues}" for server in servers)
        await admin.put_order_conf(form.topic, order)
    names = ", ".join(server.broker for server in servers)
    verb = form.verb("create", "created")
    queues = f"{form.queues} queue{'' if form.queues == 1 else 's'}"
    return result_of(admin, f"{verb} topic {form.topic} with {queues} on {names}")


async def _selected_masters(admin: Admin, clusters: Sequence[str], brokers: Sequence[str]) -> list[BrokerServer]:
    masters = await admin.select_brokers()
    for kind, names, registered in (
        ("cluster", clusters, {server.cluster for server in masters}),
        ("broker", brokers, {server.broker for server in masters}),
    ):
        for name in names:
            if name not in registered:
                raise NotFound(kind, name, sorted(registered))
    if not clusters and not brokers:
        return masters
    return [server for server in masters if server.cluster in clusters or server.broker in brokers]


# --- change ---


async def change_topic(services: ConsoleServices, topic: str, form: ChangeTopicForm) -> TopicChangeResult:
    """Change a topic on its brokers, and return the configurations before and after.

    Settings that the form does not name stay as each broker has them.

    Raises:
        UsageError: the form changes nothing.
        NotFound: a selected broker does not have it.
    """
    values = _new_values(form)
    if not values:
        fix = "missing; specify at least one of read queues, write queues and permission"
        raise UsageError("settings", None, fix)
    admin = services.admin(is_dry_run=form.is_dry_run)
    configs = await _configs_to_change(admin, topic, form.brokers)
    changes = [(server, old, msgspec.structs.replace(old, **values)) for server, old in configs]
    changes = [change for change in changes if change[1] != change[2]]
    if changes:
        await admin.put_topics([(server, new) for server, _, new in changes])
    rows = [_config_change(config_row(server, old), config_row(server, new)) for server, old, new in changes]
    if not rows:
        notice = f"nothing to change: topic {topic} has these settings already"
    else:
        verb = form.verb("change", "changed")
        notice = f"{verb} topic {topic} on {', '.join(row.before.broker for row in rows)}"
    return TopicChangeResult(**result_of(admin, notice).model_dump(), brokers=tuple(rows))


def _new_values(form: ChangeTopicForm) -> dict[str, int]:
    values = {
        "read_queue_nums": form.read_queues,
        "write_queue_nums": form.write_queues,
        "perm": PERMISSIONS[form.permission] if form.permission else None,
    }
    return {name: value for name, value in values.items() if value is not None}


async def _configs_to_change(
    admin: Admin, topic: str, brokers: Sequence[str]
) -> list[tuple[BrokerServer, TopicConfig]]:
    masters = await admin.select_brokers()
    names = set(brokers) or {data.broker_name for data in (await admin.fetch_route(topic)).broker_datas}
    answers = await admin.topic_configs(topic, [server for server in masters if server.broker in names])
    if answers.unavailable:
        missing = "; ".join(str(broker) for broker in answers.unavailable)
        raise ServerUnavailable(f"nothing was changed, because the present configuration is unknown: {missing}")
    configured = {server.broker for server, _ in answers.values}
    for name in brokers:
        if name not in configured:
            raise NotFound(f"configuration of topic {topic} on broker", name, sorted(configured))
    return answers.values


def _config_change(before: TopicConfigRow, after: TopicConfigRow) -> TopicConfigChange:
    changed = [name for name in TopicConfigRow.model_fields if getattr(before, name) != getattr(after, name)]
    return TopicConfigChange(before=before, after=after, changed=changed)


# --- delete, order ---


async def delete_topic(services: ConsoleServices, topic: str, form: DeleteTopicForm) -> ChangeResult:
    """Delete a topic with its messages from its brokers and from the name servers."""
    if not form.is_dry_run:
        check_confirmed(form, topic, label="the name of the topic, ")
    admin = services.admin(is_dry_run=form.is_dry_run)
    await admin.fetch_route(topic)
    await admin.delete_topic(topic, cluster=form.cluster)
    # An order configuration without a topic would apply to the next topic with this name.
    if form.cluster is None and await admin.fetch_order_conf(topic) is not None:
        await admin.delete_order_conf(topic)
    verb = form.verb("delete", "deleted")
    where = f" from cluster {form.cluster}" if form.cluster else ""
    return result_of(admin, f"{verb} topic {topic}{where}")


async def change_order(services: ConsoleServices, topic: str, form: OrderConfigForm) -> ChangeResult:
    """Set or delete the order configuration of a topic.

    Raises:
        UsageError: the configuration has another form than `broker:queues;broker:queues`, or names a broker without the topic.
    """
    entries = [entry.strip() for entry in form.configuration.split(";") if entry.strip()]
    admin = services.admin(is_dry_run=form.is_dry_run)
    brokers = {data.broker_name for data in (await admin.fetch_route(topic)).broker_datas}
    for entry in entries:
        match = _ORDER_ENTRY.fullmatch(entry)
        if match is None:
            raise UsageError("configuration", entry, "expected BROKER:QUEUES, several separated by ';'")
        if match[1] not in brokers:
            fix = f"topic {topic} is not on this broker; expected one of: {', '.join(sorted(brokers))}"
            raise UsageError("configuration", entry, fix)
    if entries:
        await admin.put_order_conf(topic, ";".join(entries))
    else:
        await admin.delete_order_conf(topic)
    verb = form.verb("set", "set") if entries else form.verb("delete", "deleted")
    return result_of(admin, f"{verb} the order configuration of topic {topic}")
