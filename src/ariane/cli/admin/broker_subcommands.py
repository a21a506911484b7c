"""`ariane broker status|config|set|…`: subcommands that administer running brokers. `broker_command` runs one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.admin.admin_session import AdminSession, BrokerChoice, ChangeSession, changes_data, table
from ariane.cli.options.option_kinds import flag_option
from ariane.cli.output.help_format import Application
from ariane.model.quantities import count_text

if TYPE_CHECKING:
    from ariane.cluster.admin import Admin
    from ariane.cluster.connection import Answers, Change
    from ariane.cluster.servers.broker_runtime import RuntimeInfo

Broker = Annotated[str, typer.Argument(metavar="BROKER", help="Name of a broker, or HOST:PORT of a master or slave.")]
BrokerNameOnly = Annotated[str, typer.Argument(metavar="BROKER", help="Name of a broker.")]


def register(app: Application) -> None:
    """Add the subcommands to `ariane broker`."""
    app.command(
        "status",
        "ariane broker status broker-a",
        "ariane broker status 10.0.0.1:10911 --json",
    )(status)
    app.command(
        "config",
        "ariane broker config broker-a",
        "ariane broker config broker-a --key flush",
    )(config)
    app.command(
        "set",
        "ariane broker set defaultTopicQueueNums 16 -b broker-a",
        "ariane broker set brokerPermission 4 -c DefaultCluster --dry-run",
    )(set_config)
    app.command("clean", "ariane broker clean --expired-log -b broker-a --dry-run")(clean)
    app.command(
        "switch",
        "ariane broker switch broker-a --dry-run",
        "ariane broker switch broker-a --to b",
    )(switch)
    app.command(
        "promote",
        "ariane broker promote broker-a --member b",
        "ariane broker promote broker-a --member b --accept-loss --dry-run",
    )(promote)
    app.command("demote", "ariane broker demote broker-a")(demote)
    app.command("stop-writes", "ariane broker stop-writes broker-a")(stop_writes)
    app.command("allow-writes", "ariane broker allow-writes broker-a")(allow_writes)


def status(broker: Broker, session: AdminSession) -> None:
    """Print all values that a broker reports about itself."""

    async def work(admin: Admin) -> RuntimeInfo:
        servers = await admin.select_brokers(broker=broker)
        return await admin.fetch_runtime(servers[0].addr)

    runtime = session.read(work)
    width = max(map(len, runtime.table))
    session.show(
        {"addr": runtime.addr, "values": runtime.table},
        *(f"{key:<{width}}  {value}" for key, value in sorted(runtime.table.items())),
    )


def config(
    broker: Broker,
    *,
    key: Annotated[
        str, typer.Option("--key", metavar="TEXT", help="Only settings whose name contains this text, in any case.")
    ] = "",
    session: AdminSession,
) -> None:
    """Print the settings of a running broker."""

    async def work(admin: Admin) -> Answers[dict[str, str]]:
        return await admin.fetch_broker_config(await admin.select_brokers(broker=broker))

    answers = session.read(work)
    for server, settings in answers.values:
        shown = {name: value for name, value in settings.items() if key.lower() in name.lower()}
        session.show({"addr": server.addr, "settings": shown}, *(f"{name}={value}" for name, value in shown.items()))
    session.finish(answers.unavailable)


def set_config(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Name of the setting.")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="New value.")],
    brokers: BrokerChoice,
    session: ChangeSession,
) -> None:
    """Change a setting of running brokers.

    The broker stores it in its configuration file. Settings that need a restart are rejected.
    """
    _require_choice(brokers)

    async def work(admin: Admin) -> list[Change]:
        servers = await brokers.select(admin)
        return await admin.update_broker_config({key: value}, servers)

    changes = session.run(work)
    addrs = [change.addr for change in changes]
    session.show({"settings": {key: value}, "brokers": addrs}, f"set {key} = {value} on {', '.join(addrs)}")


def clean(
    *,
    expired_log: Annotated[
        bool, flag_option("--expired-log", "Delete commit-log files that are older than the retention time.")
    ] = False,
    expired_queues: Annotated[
        bool, flag_option("--expired-queues", "Delete consume-queue files whose messages no longer exist.")
    ] = False,
    unused_topics: Annotated[
        bool, flag_option("--unused-topics", "Delete the queues of topics that no longer exist.")
    ] = False,
    brokers: BrokerChoice,
    session: ChangeSession,
) -> None:
    """Delete files that brokers no longer need, on masters and slaves.

    Brokers do this themselves, the commit log at the hour that is set by deleteWhen.
    """
    from ariane.errors import UsageError

    if not (expired_log or expired_queues or unused_topics):
        raise UsageError("--expired-log", None, "missing; specify --expired-log, --expired-queues or --unused-topics")
    _require_choice(brokers)

    async def work(admin: Admin) -> list[Change]:
        servers = await brokers.select(admin, with_slaves=True)
        changes = []
        if expired_log:
            changes += await admin.delete_expired_commit_log(servers)
        if expired_queues:
            changes += await admin.delete_expired_queues(servers)
        if unused_topics:
            changes += await admin.delete_unused_queues(servers)
        return changes

    changes = session.run(work)
    session.show(changes_data(changes), *(f"{change.addr}: {change.summary}: done" for change in changes))


def switch(
    broker: BrokerNameOnly,
    *,
    to: Annotated[
        str | None, typer.Option("--to", metavar="MEMBER", help="Member of the in-sync set that becomes the master.")
    ] = None,
    session: ChangeSession,
) -> None:
    """Let another member of a broker set with failover become its master.

    The master waits until the in-sync set has all of its messages, then hands its lease over: nothing acknowledged is lost.
    """
    _switch(broker, to, session)


def demote(broker: BrokerNameOnly, session: ChangeSession) -> None:
    """Let any other member of a broker set with failover become its master.

    The former master is not elected again at once. Nothing acknowledged is lost.
    """
    _switch(broker, None, session)


def promote(
    broker: BrokerNameOnly,
    *,
    member: Annotated[str, typer.Option("--member", metavar="MEMBER", help="Member that becomes the master.")],
    accept_loss: Annotated[
        bool, flag_option("--accept-loss", "Promote a member that may lack acknowledged messages.")
    ] = False,
    session: ChangeSession,
) -> None:
    """Let a member of a broker set with failover become its master.

    A member of the in-sync set takes over from the master, and nothing is lost. --accept-loss is for a set without a master, whose
    members in sync are all gone or lost power: prints where the log of each member ends, then lets the named one lead with the
    messages that it has. What only others have is cut off their logs, and kept aside in the directory `cut` of their stores.
    """
    if not accept_loss:
        _switch(broker, member, session)
        return
    plan = session.read(lambda admin: admin.plan_lossy_promotion(broker, member))
    rows = ((log.member, log.epoch, log.end, log.lost) for log in plan.logs)
    notes = [f"{missing}: what it has is unknown" for missing in plan.unavailable]
    preview = table(("member", "epoch of the last message", "end of the log", "bytes that may be lost"), rows)
    if not session.as_json:
        session.show(plan, preview, *notes)
    result = session.run(lambda admin: admin.promote_with_loss(plan))
    assert result is not None  # a dry run has ended
    session.show(
        {"switch": result, "logs": plan.logs},
        f"{result.master} is the master of {broker}, after {result.seconds:.1f} s",
    )


def _switch(broker: str, to: str | None, session: ChangeSession) -> None:
    result = session.run(lambda admin: admin.switch_master(broker, to))
    assert result is not None  # a dry run has ended
    session.show(
        result, f"{result.master} is the master of {broker} instead of {result.former}, after {result.seconds:.1f} s"
    )


def stop_writes(broker: BrokerNameOnly, session: ChangeSession) -> None:
    """Stop producers from sending to a broker, for example before maintenance.

    Consumers go on. Name servers remove the write permission of the broker from all routes; producers follow within 30 s.
    """
    _set_writable(session, broker, False)


def allow_writes(broker: BrokerNameOnly, session: ChangeSession) -> None:
    """Allow producers to send to a broker again, after `stop-writes`.

    Name servers restore the write permission in all routes; producers follow within 30 s.
    """
    _set_writable(session, broker, True)


def _set_writable(session: ChangeSession, broker: str, is_writable: bool) -> None:
    results = session.run(lambda admin: admin.set_broker_writable(broker, is_writable))
    verb = "restored" if is_writable else "removed"
    lines = (
        f"{verb} the write permission of {broker} for {count_text(topics or 0, 'topic')} on {name_server}"
        for name_server, topics in results
    )
    session.show(results, *lines)


def _require_choice(brokers: BrokerChoice) -> None:
    from ariane.errors import UsageError

    if not brokers.is_given:
        raise UsageError("--broker", None, "missing; specify --broker or --cluster")
