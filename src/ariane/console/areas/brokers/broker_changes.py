"""Changes of brokers: settings, cleaning of their stores, and their write permission. Each has a dry run."""

from __future__ import annotations

import difflib
from typing import Literal

from pydantic import Field

from ariane.cluster.connection import BrokerServer
from ariane.console.areas.admin_results import result_of
from ariane.console.areas.brokers.broker_details import select_row
from ariane.console.live.live_snapshot import LiveSnapshot
from ariane.console.services import ConsoleServices
from ariane.console.web.view_model import ChangeResult, DryRunForm
from ariane.errors import ServerUnavailable, UsageError

Scope = Literal["server", "broker", "cluster"]
Cleaning = Literal["expired-queues", "expired-commit-log", "unused-topics"]

VALUE_MAX = 10_000  # characters of a value


class SettingForm(DryRunForm):
    """A setting to change while brokers run; they store it in their configuration files."""

    key: str = Field(min_length=1, max_length=255)
    value: str = Field("", max_length=VALUE_MAX)
    """New value."""
    id: int = 0
    """Broker id of the server; 0: the master."""
    scope: Scope = "server"
    """`server`: only this one; `broker`: master and slaves of this name; `cluster`: all servers of the cluster."""


class CleaningForm(DryRunForm):
    """Files to delete, on the master of a broker or all masters of its cluster."""

    operation: Cleaning
    """expired-queues: consume queues of deleted messages; expired-commit-log: commit log older than the retention time;
    unused-topics: consume queues of topics that no longer exist."""
    scope: Literal["broker", "cluster"] = "broker"
    """`broker`: the master of this name; `cluster`: all masters of the cluster."""
    confirm: str = ""
    """The name of the broker, typed again."""


class WritePermissionForm(DryRunForm):
    """Whether producers may send to a broker, in all routes of the name servers."""

    is_writable: bool
    """False: producers stop sending to it, consumers go on."""


async def change_setting(services: ConsoleServices, broker: str, form: SettingForm) -> ChangeResult:
    """Change a setting.

    Raises:
        UsageError: a selected server does not have the setting.
        ServerUnavailable: a selected server does not respond, so that its value is unknown, or no master is registered.
    """
    servers = _selected(await services.live.snapshot(), broker, form.id, form.scope)
    async with services.admin(is_dry_run=form.is_dry_run) as admin:
        answers = await admin.fetch_broker_config(servers)
        if answers.unavailable:
            raise ServerUnavailable(f"Nothing was changed: {answers.unavailable[0]}")
        for server, table in answers.values:
            if form.key not in table:
                similar = difflib.get_close_matches(form.key, table, 3)
                expected = (
                    f"did you mean {' or '.join(similar)}?" if similar else "the page of the broker lists its settings"
                )
                raise UsageError("key", form.key, f"{server.broker} ({server.addr}) has no such setting; {expected}")
        await admin.update_broker_config({form.key: form.value}, servers)
    before = ", ".join(sorted({table[form.key] or "(empty)" for _, table in answers.values}))
    verb = form.verb("set", "set")
    notice = f"{verb} {form.key} from {before} to {form.value or '(empty)'} on {_names(servers)}"
    return result_of(admin, notice)


async def clean(services: ConsoleServices, broker: str, form: CleaningForm) -> ChangeResult:
    """Delete files of brokers that are not needed any more.

    Raises:
        UsageError: the name was not confirmed.
    """
    if not form.is_dry_run and form.confirm != broker:
        raise UsageError("confirm", form.confirm, f"type the name of the broker, {broker}")
    snapshot = await services.live.snapshot()
    servers = [server for server in _selected(snapshot, broker, 0, form.scope) if server.is_master]
    if not servers:
        raise ServerUnavailable(f"no master of {broker} is registered; only masters delete files on request")
    admin = services.admin(is_dry_run=form.is_dry_run)
    delete, what = {
        "expired-queues": (admin.delete_expired_queues, "expired consume queue files"),
        "expired-commit-log": (admin.delete_expired_commit_log, "expired commit log files"),
        "unused-topics": (admin.delete_unused_queues, "queues of unused topics"),
    }[form.operation]
    await delete(servers)
    return result_of(admin, f"{form.verb('delete', 'deleted')} {what} on {_names(servers)}")


async def change_write_permission(services: ConsoleServices, broker: str, form: WritePermissionForm) -> ChangeResult:
    """Add or remove the write permission of a broker at all name servers."""
    async with services.admin(is_dry_run=form.is_dry_run) as admin:
        permissions = await admin.set_broker_writable(broker, form.is_writable)
    verb = form.verb("restore", "restored") if form.is_writable else form.verb("remove", "removed")
    topics = ", ".join(
        f"{permission.topics} {'topic' if permission.topics == 1 else 'topics'} at {permission.name_server}"
        for permission in permissions
        if permission.topics is not None
    )
    notice = f"{verb} the write permission of {broker}"
    return result_of(admin, f"{notice}: {topics}" if topics else notice)


def _selected(snapshot: LiveSnapshot, broker: str, broker_id: int, scope: Scope) -> list[BrokerServer]:
    row = select_row(snapshot, broker, broker_id)
    # Pages fall back to a slave; a change that is meant for the master must not reach it.
    if scope == "server" and row.broker_id != broker_id:
        raise ServerUnavailable(
            f"no master of {broker} is registered; to change a slave, give its id ({row.broker_id})"
        )
    rows = {
        "server": [row],
        "broker": [other for other in snapshot.brokers if other.broker == broker],
        "cluster": [other for other in snapshot.brokers if other.cluster == row.cluster],
    }[scope]
    return [BrokerServer(other.cluster, other.broker, other.broker_id, other.addr) for other in rows]


def _names(servers: list[BrokerServer]) -> str:
    return ", ".join(f"{server.broker} ({server.addr})" for server in servers)
