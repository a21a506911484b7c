"""`ariane acl user` and `ariane acl policy`: users of ACL 2.0 with their policies, on masters and slaves."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ariane.cli.admin.admin_session import AdminSession, BrokerChoice, ChangeSession, table
from ariane.cli.options import shared_options
from ariane.cli.options.option_kinds import flag_option
from ariane.cli.output.help_format import create_app

users_app = create_app("Manage users of RocketMQ 5 (ACL 2.0).")
policies_app = create_app("Manage policies of users of RocketMQ 5.")

User = Annotated[str, typer.Argument(parser=shared_options.non_blank, metavar="USER", help="Name of the user.")]


@users_app.command("list", "ariane acl user list", "ariane acl user list --json")
def list_users(brokers: BrokerChoice, session: AdminSession) -> None:
    """List the users of each server."""
    answers = session.read_servers(brokers, lambda admin, servers: admin.users(servers))
    data = [
        {
            "broker": f"{server.broker}:{server.broker_id}",
            "user": user.username,
            "type": user.user_type,
            "status": user.user_status,
        }
        for server, users in answers.values
        for user in users
    ]
    session.show(data, table(("BROKER", "USER", "TYPE", "STATUS"), tuple(tuple(row.values()) for row in data)))
    session.finish(answers.unavailable)


@users_app.command(
    "set",
    "ariane acl user set alice --password 12345678",
    "ariane acl user set alice --disable --dry-run",
)
def set_user(
    user: User,
    *,
    password: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Password; a new user needs one. Without it the stored one stays."),
    ] = None,
    is_super: Annotated[
        bool | None, typer.Option("--super/--normal", help="Whether it may do everything.", show_default=False)
    ] = None,
    is_enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Whether its requests are served.", show_default=False)
    ] = None,
    brokers: BrokerChoice,
    session: ChangeSession,
) -> None:
    """Create a user, or change those of its settings that are given."""
    from ariane.protocol.requests.users import UserInfo

    kinds: dict[bool | None, str | None] = {None: None, True: "Super", False: "Normal"}
    states: dict[bool | None, str | None] = {None: None, True: "enable", False: "disable"}
    info = UserInfo(user, password, kinds[is_super], states[is_enabled])
    session.change_servers(brokers, lambda admin, servers: admin.save_user(info, servers), f"saved user {user}")


@users_app.command("delete", "ariane acl user delete alice --dry-run", "ariane acl user delete alice")
def delete_user(user: User, brokers: BrokerChoice, session: ChangeSession) -> None:
    """Delete a user and its policies from all servers."""
    session.change_servers(brokers, lambda admin, servers: admin.delete_user(user, servers), f"deleted user {user}")


@policies_app.command("list", "ariane acl policy list", "ariane acl policy list --json")
def list_policies(brokers: BrokerChoice, session: AdminSession) -> None:
    """List the policies of the users of each server."""
    answers = session.read_servers(brokers, lambda admin, servers: admin.policies(servers))
    data: list[dict[str, Any]] = [
        {
            "broker": f"{server.broker}:{server.broker_id}",
            "user": (acl.subject or "").partition(":")[2],
            "type": policy.policy_type,
            "resource": entry.resource,
            "actions": list(entry.actions or ()),
            "addresses": list(entry.source_ips or ()),
            "decision": entry.decision,
        }
        for server, acls in answers.values
        for acl in acls
        for policy in acl.policies or ()
        for entry in policy.entries or ()
    ]
    rows = tuple(
        tuple(" ".join(value) or "any" if isinstance(value, list) else value for value in row.values()) for row in data
    )
    names = ("BROKER", "USER", "TYPE", "RESOURCE", "ACTIONS", "ADDRESSES", "DECISION")
    session.show(data, table(names, rows))
    session.finish(answers.unavailable)


@policies_app.command(
    "set",
    "ariane acl policy set alice Topic:orders Group:stock --action Pub --action Sub",
    "ariane acl policy set alice 'Topic:ord*' --action All --deny --from 10.0.0.0/8",
)
def set_policy(
    user: User,
    resources: Annotated[
        list[str],
        typer.Argument(
            metavar="RESOURCE...",
            help="Topic:NAME, Group:NAME or Cluster:NAME, where NAME may end with *; or * for all.",
        ),
    ],
    *,
    action: Annotated[
        list[str],
        typer.Option(metavar="ACTION", help="Pub, Sub, Create, Update, Delete, Get, List or All; repeatable."),
    ],
    from_: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="ADDRESS", help="Source address or network (10.0.0.0/8); repeatable."),
    ] = None,
    is_denied: Annotated[bool, flag_option("--deny", "Deny the actions instead of allowing them.")] = False,
    brokers: BrokerChoice,
    session: ChangeSession,
) -> None:
    """Allow or deny actions of a user. An entry of the same resource is replaced."""
    from ariane.protocol.requests.users import PolicyEntryInfo

    decision = "Deny" if is_denied else "Allow"
    addresses = tuple(from_) if from_ else None
    entries = [PolicyEntryInfo(resource, tuple(action), addresses, decision) for resource in resources]
    session.change_servers(
        brokers, lambda admin, servers: admin.save_policy(user, entries, servers), f"saved policies of {user}"
    )


@policies_app.command(
    "delete", "ariane acl policy delete alice --resource Topic:orders --dry-run", "ariane acl policy delete alice"
)
def delete_policy(
    user: User,
    *,
    resource: Annotated[
        str | None, typer.Option(metavar="RESOURCE", help="Resource of the entry; without it, all policies.")
    ] = None,
    brokers: BrokerChoice,
    session: ChangeSession,
) -> None:
    """Delete the entry of a resource, or all policies of a user."""
    done = f"deleted policies of {user}"
    session.change_servers(
        brokers, lambda admin, servers: admin.delete_policies(f"User:{user}", resource, servers), done
    )
