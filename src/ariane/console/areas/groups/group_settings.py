"""Configuration of consumer groups, broker by broker: create, change, suspend, delete.

Each master has its own copy of the configuration; copies that differ are marked, because they are hardly ever intended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from pydantic import Field

from ariane.cluster.admin import Admin
from ariane.cluster.connection import BrokerServer
from ariane.console.areas.admin_results import result_of, texts_of
from ariane.console.areas.confirmation import DeletionForm, check_confirmed
from ariane.console.services import ConsoleServices
from ariane.console.web.form_fields import OptionalBool, OptionalInt
from ariane.console.web.view_model import ChangeResult, DryRunForm, PartialView, View
from ariane.errors import AlreadyExists, NotFound, ServerUnavailable, UsageError
from ariane.model.topic import QUEUES_MAX, SubscriptionGroupConfig, group_name_fault

RETRIES_MAX = 10_000  # more is a typing error
NOT_SHOWN = ("group_name", "group_retry_policy")
SETTINGS = tuple(name for name in SubscriptionGroupConfig.__struct_fields__ if name not in NOT_SHOWN)


class GroupSettingRow(View):
    """A setting of a consumer group on all brokers."""

    name: str
    """Name in RocketMQ's configuration."""
    values: list[bool | int]
    """One value per broker, in the order of `brokers` of the view."""
    differs: bool
    """Whether brokers have different values."""


class GroupSettingsView(PartialView):
    """Configuration of a consumer group."""

    group: str
    brokers: list[str]
    """Brokers that have a configuration of the group."""
    missing: list[str]
    """Brokers that responded and have none: they create it with default values when a client connects, unless that is disabled."""
    is_suspended: bool | None
    """Whether its clients may not consume on any broker (`consumeEnable`); null: it differs between brokers."""
    settings: list[GroupSettingRow]


class GroupTargetsView(View):
    """Brokers on which a consumer group can be created."""

    brokers: list[str]
    """Names of the masters."""


class GroupSettingsForm(DryRunForm):
    """New values of settings. Settings without a value stay unchanged on each broker."""

    retry_max_times: OptionalInt = Field(None, ge=-1, le=RETRIES_MAX)
    """Retries before a message becomes a dead letter; -1: 16, the clients' default. Clients since 3.4.9 send their own limit."""
    retry_queue_nums: OptionalInt = Field(None, ge=0, le=QUEUES_MAX)
    """Queues of the retry topic; 0 discards messages that fail."""
    consume_enable: OptionalBool = None
    """Whether its clients may consume."""
    consume_broadcast_enable: OptionalBool = None
    """Whether its clients may use broadcast mode."""
    consume_from_min_enable: OptionalBool = None
    """Stored and listed for tools; no request depends on it."""
    notify_consumer_ids_changed_enable: OptionalBool = None
    """Whether clients learn at once of clients that come and go; otherwise with their next period."""
    consume_message_orderly: OptionalBool = None
    """Whether clients of 5.x receive the messages of a queue one after the other."""
    broker_id: OptionalInt = Field(None, ge=0, le=1000)
    """Server that responses suggest for the next read while a client keeps up; 0 is the master."""
    which_broker_when_consume_slowly: OptionalInt = Field(None, ge=0, le=1000)
    """Slave that responses suggest for messages that are no longer in memory."""
    brokers: list[str] = Field(default_factory=list)
    """Names of the brokers; empty: all that have the group, or for a new group all masters."""


class CreateGroupForm(GroupSettingsForm):
    """A new consumer group. Settings that are not given have their default values."""

    group: str = Field(min_length=1)
    """Name: letters, digits, and % | _ -"""


class SuspendForm(DryRunForm):
    """Whether a consumer group may consume."""

    is_suspended: bool
    """true: brokers refuse all pulls of the group; its clients stay connected, and its offsets stay as they are."""


class DeleteGroupForm(DeletionForm, DryRunForm):
    """Deletion of a consumer group."""

    with_offsets: bool = False
    """Delete its offsets, too: clients that connect again start as a new group."""
    with_topics: bool = False
    """Delete its retry topic and its dead-letter topic, with their messages."""
    is_dry_run: bool = False
    """Return what would be deleted; needs no confirmation."""


async def group_settings(services: ConsoleServices, group: str) -> GroupSettingsView:
    """Return the configuration of a group on each broker.

    Raises:
        NotFound: all brokers responded, and none has the group; the message lists similar names.
    """
    as_of_ms = services.clock.now_ms()
    admin = services.admin()
    servers = await admin.select_brokers()
    answers = await admin.group_configs(group, servers)
    configs = {server.broker: config for server, config in sorted(answers.values)}
    silent = {missing.broker for missing in answers.unavailable}
    enabled = {config.consume_enable for config in configs.values()}
    rows = []
    for name in SETTINGS:
        values = [_value(config, name) for config in configs.values()]
        rows.append(GroupSettingRow(name=_wire_name(name), values=values, differs=len(set(values)) > 1))
    return GroupSettingsView(
        as_of_ms=as_of_ms,
        unavailable=texts_of(answers.unavailable),
        group=group,
        brokers=list(configs),
        missing=[server.broker for server in servers if server.broker not in configs and server.broker not in silent],
        is_suspended=not next(iter(enabled)) if len(enabled) == 1 else None,
        settings=rows,
    )


async def group_targets(services: ConsoleServices) -> GroupTargetsView:
    """Return where a consumer group can be created."""
    masters = await services.admin().select_brokers()
    return GroupTargetsView(brokers=[server.broker for server in masters])


async def create_group(services: ConsoleServices, form: CreateGroupForm) -> ChangeResult:
    """Create a consumer group.

    Raises:
        UsageError: the name is invalid.
        AlreadyExists: the group exists on one of the brokers.
        NotFound: a broker does not exist.
    """
    if reason := group_name_fault(form.group):
        raise UsageError("group", form.group, reason)
    admin = services.admin(is_dry_run=form.is_dry_run)
    servers = await _selected(admin, form.brokers)
    tables = await admin.group_tables(servers)
    if tables.unavailable:
        raise ServerUnavailable(f"nothing was changed: {'; '.join(map(str, tables.unavailable))}")
    if existing := [server.broker for server, table in tables.values if form.group in table]:
        raise AlreadyExists("group", form.group, f"exists on {', '.join(existing)}; change its configuration instead")
    await admin.save_group(SubscriptionGroupConfig(group_name=form.group, **_new_settings(form)), servers=servers)
    return result_of(admin, f"{form.verb('create', 'created')} consumer group {form.group}")


async def change_group(services: ConsoleServices, group: str, form: GroupSettingsForm) -> ChangeResult:
    """Change settings of a consumer group. The others stay as they are on each broker.

    Raises:
        UsageError: no setting is given.
        NotFound: no broker has the group, or one of the named brokers does not.
    """
    settings = _new_settings(form)
    if not settings:
        raise UsageError("settings", None, "nothing to change; give at least one setting a value")
    admin = services.admin(is_dry_run=form.is_dry_run)
    servers = await _selected(admin, form.brokers)
    await _save(admin, group, servers, settings, is_exact=bool(form.brokers))
    names = ", ".join(f"{_wire_name(name)} = {str(value).lower()}" for name, value in settings.items())
    return result_of(admin, f"{form.verb('change', 'changed')} {group}: {names}")


async def suspend_group(services: ConsoleServices, group: str, form: SuspendForm) -> ChangeResult:
    """Suspend or resume the consumption of a group on all brokers."""
    admin = services.admin(is_dry_run=form.is_dry_run)
    await _save(admin, group, await _selected(admin, []), {"consume_enable": not form.is_suspended}, is_exact=False)
    verb = form.verb("suspend", "suspended") if form.is_suspended else form.verb("resume", "resumed")
    return result_of(admin, f"{verb} {group}")


async def delete_group(services: ConsoleServices, group: str, form: DeleteGroupForm) -> ChangeResult:
    """Delete a consumer group from all brokers."""
    if not form.is_dry_run:
        check_confirmed(form, group, label="the name of the group, ")
    admin = services.admin(is_dry_run=form.is_dry_run)
    await admin.check_group(group)
    await admin.delete_group(group, with_offsets=form.with_offsets, with_topics=form.with_topics)
    return result_of(admin, f"{form.verb('delete', 'deleted')} consumer group {group}")


async def _save(
    admin: Admin, group: str, servers: Sequence[BrokerServer], settings: dict[str, Any], *, is_exact: bool
) -> None:
    """Save changed settings on each of the servers that has the group; `is_exact`: on each of the servers."""
    answers = await admin.group_configs(group, servers)
    # A change of some brokers because others are unknown would make their configurations differ.
    if answers.unavailable:
        raise ServerUnavailable(f"nothing was changed: {'; '.join(map(str, answers.unavailable))}")
    configured = {server.broker for server, _ in answers.values}
    if is_exact and (missing := [server.broker for server in servers if server.broker not in configured]):
        raise NotFound(f"consumer group on {', '.join(missing)}", group)
    await admin.save_groups(
        [(server, msgspec.structs.replace(config, **settings)) for server, config in answers.values]
    )


async def _selected(admin: Admin, brokers: Sequence[str]) -> list[BrokerServer]:
    masters = await admin.select_brokers()
    if not brokers:
        return masters
    names = {server.broker for server in masters}
    if unknown := [name for name in brokers if name not in names]:
        raise NotFound("master of broker", ", ".join(unknown), sorted(names))
    return [server for server in masters if server.broker in brokers]


def _new_settings(form: GroupSettingsForm) -> dict[str, Any]:
    values = {name: getattr(form, name) for name in SETTINGS}
    return {name: value for name, value in values.items() if value is not None}


def _value(config: SubscriptionGroupConfig, name: str) -> bool | int:
    value: bool | int | msgspec.UnsetType = getattr(config, name)
    return False if value is msgspec.UNSET else value


def _wire_name(name: str) -> str:
    return SubscriptionGroupConfig.__struct_encode_fields__[SubscriptionGroupConfig.__struct_fields__.index(name)]
