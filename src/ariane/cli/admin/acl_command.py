"""`ariane acl`: accounts of access control and addresses that need none, on masters and slaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ariane.cli.admin import user_commands
from ariane.cli.admin.admin_session import AdminSession, BrokerChoice, ChangeSession, table
from ariane.cli.options import shared_options
from ariane.cli.output.help_format import create_app
from ariane.errors import UsageError

if TYPE_CHECKING:
    from ariane.cluster.admin import Admin
    from ariane.cluster.connection import Answers, BrokerServer, Change
    from ariane.protocol.requests.acl import AccountBody, AclConfig

app = create_app("Manage accounts, users and policies of access control.")
app.add_typer(user_commands.users_app, name="user")
app.add_typer(user_commands.policies_app, name="policy")

PERMISSIONS = ("DENY", "PUB", "SUB", "PUB|SUB")

Account = Annotated[
    str, typer.Argument(parser=shared_options.non_blank, metavar="ACCOUNT", help="Access key of the account.")
]


def permission(text: object) -> str:
    """Return a permission in the form of the broker's file."""
    value = str(text).upper()
    if value not in PERMISSIONS:
        raise typer.BadParameter(f"{str(text)!r}: expected one of {', '.join(PERMISSIONS)}.")
    return value


def named_permission(text: object) -> str:
    """Return NAME=PERMISSION."""
    name, sign, value = str(text).partition("=")
    if not sign or not name.strip():
        raise typer.BadParameter(f"{str(text)!r}: expected NAME=PERMISSION, for example orders=PUB|SUB.")
    return f"{name.strip()}={permission(value)}"


def _permissions(help_text: str) -> Any:
    return typer.Option(parser=named_permission, metavar="NAME=PERM", help=help_text)


@app.command("list", "ariane acl list", "ariane acl list --json")
def list_accounts(
    brokers: BrokerChoice,
    session: AdminSession,
) -> None:
    """List the accounts of each server with their permissions. Secret keys are masked."""
    answers = session.read_servers(brokers, lambda admin, servers: admin.acl_configs(servers))
    data: list[dict[str, Any]] = [
        {
            "broker": f"{server.broker}:{server.broker_id}",
            "addr": server.addr,
            "globalAddresses": list(config.global_white_addrs),
            "accounts": [_account(account) for account in config.plain_access_configs],
        }
        for server, config in answers.values
    ]
    rows = tuple(
        (
            server["broker"],
            account["account"],
            "yes" if account["admin"] else "no",
            f"{account['defaultTopicPermission'] or '-'} {' '.join(account['topics'])}".strip(),
            f"{account['defaultGroupPermission'] or '-'} {' '.join(account['groups'])}".strip(),
            account["addresses"] or "-",
        )
        for server in data
        for account in server["accounts"]
    )
    names = ("BROKER", "ACCOUNT", "ADMIN", "TOPICS", "GROUPS", "ADDRESSES")
    anonymous = [
        f"{server['broker']} needs no account from: {', '.join(server['globalAddresses'])}"
        for server in data
        if server["globalAddresses"]
    ]
    session.show(data, table(names, rows), *anonymous)
    session.finish(answers.unavailable)


@app.command(
    "set",
    "ariane acl set shop-account --secret 12345678 --topic orders=PUB",
    "ariane acl set billing-account --group billing=SUB --dry-run",
)
def set_account(
    account: Account,
    *,
    secret: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Secret key; a new account needs one. Without it the stored one stays."),
    ] = None,
    topic: Annotated[list[str] | None, _permissions("Permission for a topic; repeatable.")] = None,
    group: Annotated[list[str] | None, _permissions("Permission for a consumer group; repeatable.")] = None,
    default_topic: Annotated[
        str | None, typer.Option(parser=permission, metavar="PERM", help="Permission for all other topics.")
    ] = None,
    default_group: Annotated[
        str | None, typer.Option(parser=permission, metavar="PERM", help="Permission for all other groups.")
    ] = None,
    addresses: Annotated[
        str | None, typer.Option(metavar="PATTERNS", help="Addresses from which requests are not checked.")
    ] = None,
    is_admin: Annotated[
        bool | None, typer.Option("--admin/--no-admin", help="Whether it may administer brokers.", show_default=False)
    ] = None,
    brokers: BrokerChoice,
    session: ChangeSession,
) -> None:
    """Create an account, or change those of its settings that are given.

    PERM is DENY, PUB, SUB or PUB|SUB. Permissions of topics or groups replace all earlier ones of that kind.
    """
    from ariane.protocol.requests.acl import UpdateAccount

    async def change(admin: Admin, servers: list[BrokerServer]) -> Sequence[Change]:
        # A request always overwrites `admin`: without the option the stored value is sent again.
        stored = is_admin if is_admin is not None else _stored_admin(await admin.acl_configs(servers), account)
        update = UpdateAccount(
            account,
            secret,
            addresses,
            stored,
            default_topic,
            default_group,
            ",".join(topic) if topic else None,
            ",".join(group) if group else None,
        )
        return await admin.save_account(update, servers)

    session.change_servers(brokers, change, f"saved account {account}")


@app.command("delete", "ariane acl delete shop-account --dry-run", "ariane acl delete shop-account")
def delete_account(account: Account, brokers: BrokerChoice, session: ChangeSession) -> None:
    """Delete an account from all servers."""
    session.change_servers(
        brokers, lambda admin, servers: admin.delete_account(account, servers), f"deleted account {account}"
    )


@app.command("allow", "ariane acl allow '10.0.0.*,192.168.1.7'", "ariane acl allow '' --dry-run")
def allow_addresses(
    patterns: Annotated[
        str, typer.Argument(metavar="PATTERNS", help="Address patterns separated by commas; '' for none.")
    ],
    brokers: BrokerChoice,
    session: ChangeSession,
) -> None:
    """Replace the addresses from which requests need no account."""
    done = f"allowed {patterns or 'no address'}"
    session.change_servers(brokers, lambda admin, servers: admin.set_global_addresses(patterns, servers), done)


def _account(account: AccountBody) -> dict[str, Any]:
    return {
        "account": account.access_key,
        "secretKey": account.secret_key,
        "admin": account.admin,
        "defaultTopicPermission": account.default_topic_perm,
        "defaultGroupPermission": account.default_group_perm,
        "topics": list(account.topic_perms or ()),
        "groups": list(account.group_perms or ()),
        "addresses": account.white_remote_address,
    }


def _stored_admin(answers: Answers[AclConfig], access_key: str) -> bool:
    """Return whether an account may administer; False for a new one.

    Raises:
        UsageError: servers disagree, or one did not respond, so that the value to keep is unknown.
    """
    values = {
        account.admin
        for _, config in answers.values
        for account in config.plain_access_configs
        if account.access_key == access_key
    }
    if answers.unavailable or len(values) > 1:
        why = "servers disagree" if len(values) > 1 else "a server did not respond"
        raise UsageError("--admin", None, f"{why} whether {access_key} administers; specify --admin or --no-admin")
    return values.pop() if values else False
