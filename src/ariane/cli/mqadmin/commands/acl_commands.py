"""Commands on access control. Reference: admin-and-dashboard 1.8."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from ariane.cli.mqadmin.command import BROKER, CLUSTER, CommandList, Option, Options, Output, lines
from ariane.cli.mqadmin.option_values import yes_or_no
from ariane.cli.mqadmin.value_text import boolean, time_s
from ariane.cluster.admin import Admin
from ariane.cluster.connection import BrokerServer
from ariane.protocol.requests.acl import AccountBody, UpdateAccount


async def _servers(admin: Admin, options: Options) -> list[BrokerServer]:
    """Return masters and slaves of the cluster, or the broker: a slave checks requests by its own file."""
    return await admin.select_brokers(cluster=options.clusterName, broker=options.brokerAddr, with_slaves=True)


ALL_SERVERS = CLUSTER._replace(help="All masters and slaves of this cluster.")

ACCESS_KEY = Option("a", "accessKey", "Access key of the account.", metavar="KEY", is_required=True)

VERSION_COLUMNS = (
    "#Cluster Name", "#Broker Name", "#Broker Addr", "#AclFilePath", "#AclConfigVersionNum", "#AclLastUpdateTime",
)  # fmt: skip

COMMANDS = CommandList()


@COMMANDS.add(
    "updateAclConfig",
    BROKER,
    ALL_SERVERS,
    ACCESS_KEY,
    Option("s", "secretKey", "Secret key of the account.", metavar="KEY"),
    Option("w", "whiteRemoteAddress", "Addresses that need no account.", metavar="PATTERNS"),
    Option("i", "defaultTopicPerm", "Permission for other topics: DENY, PUB, SUB.", metavar="PERM"),
    Option("u", "defaultGroupPerm", "Permission for other groups: DENY, PUB, SUB.", metavar="PERM"),
    Option("t", "topicPerms", "Permissions by topic: a=DENY,b=SUB.", metavar="PERMS"),
    Option("g", "groupPerms", "Permissions by group: a=DENY,b=SUB.", metavar="PERMS"),
    Option("m", "admin", "Whether it may administer the broker.", yes_or_no, "false", "BOOL"),
    is_change=True,
)
async def update_acl_config(admin: Admin, options: Options) -> AsyncIterator[Output]:
    account = UpdateAccount(
        options.accessKey,
        options.secretKey,
        options.whiteRemoteAddress,
        options.admin,
        options.defaultTopicPerm,
        options.defaultGroupPerm,
        options.topicPerms,
        options.groupPerms,
    )
    servers = await _servers(admin, options)
    await admin.save_account(account, servers)
    done = lines(f"create or update plain access config to {server.addr} success." for server in servers)
    # Java prints the address of an object in memory here.
    yield Output(done + f"account's accesskey is:{account.access_key}", _done(account.access_key, servers))


@COMMANDS.add("deleteAclConfig", BROKER, ALL_SERVERS, ACCESS_KEY, aliases=("deleteAccessConfig",), is_change=True)
async def delete_acl_config(admin: Admin, options: Options) -> AsyncIterator[Output]:
    servers = await _servers(admin, options)
    await admin.delete_account(options.accessKey, servers)
    done = lines(f"delete plain access config account from {server.addr} success." for server in servers)
    yield Output(done + f"account's accesskey is:{options.accessKey}", _done(options.accessKey, servers))


@COMMANDS.add(
    "updateGlobalWhiteAddr",
    BROKER,
    ALL_SERVERS,
    Option("g", "globalWhiteRemoteAddresses", "Addresses that need no account.", metavar="PATTERNS", is_required=True),
    Option("p", "aclFileFullPath", "File on the servers; else their default file.", metavar="PATH"),
    is_change=True,
)
async def update_global_white_addr(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Replace the addresses from which requests need no account."""
    servers = await _servers(admin, options)
    await admin.set_global_addresses(options.globalWhiteRemoteAddresses, servers, path=options.aclFileFullPath or "")
    done = lines(f"update global white remote addresses to {server.addr} success." for server in servers)
    yield Output(
        done,
        {
            "brokers": [server.addr for server in servers],
            "globalWhiteRemoteAddresses": options.globalWhiteRemoteAddresses,
        },
    )


@COMMANDS.add("clusterAclConfigVersion", BROKER, CLUSTER)
async def cluster_acl_config_version(admin: Admin, options: Options) -> AsyncIterator[Output]:
    servers = await admin.select_brokers(cluster=options.clusterName, broker=options.brokerAddr)
    answers = await admin.acl_versions(servers)
    rows = [VERSION_COLUMNS] if options.clusterName is not None else []
    versions = [version for _, files in answers.values for version in files]
    rows += [
        (
            version.cluster,
            version.broker,
            version.addr,
            version.path,
            str(version.version.counter),
            time_s(version.version.timestamp),
        )
        for version in versions
    ]
    text = lines(f"{a:<16}  {b:<22}  {c:<22}  {d:<20}  {e:<22}  {f:<22}" for a, b, c, d, e, f in rows)
    whose = "cluster" if options.clusterName is not None else "broker"
    if not answers.unavailable:
        text += f"get {whose}'s plain access config version success.\n"
    data = [
        {
            "cluster": version.cluster,
            "broker": version.broker,
            "addr": version.addr,
            "path": version.path,
            "version": version.version.counter,
            "updatedMs": version.version.timestamp,
        }
        for version in versions
    ]
    yield Output(text, data, answers.unavailable)


@COMMANDS.add("getAclConfig", BROKER, CLUSTER, aliases=("getAccessConfigSubCommand",))
async def get_acl_config(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print the accounts of a broker or of all masters of a cluster. Secret keys are masked."""
    servers = await admin.select_brokers(cluster=options.clusterName, broker=options.brokerAddr)
    configs = await admin.acl_configs(servers)
    text = ""
    for _, config in configs.values:
        text += f"\n{'globalWhiteRemoteAddresses':<20}: [{', '.join(config.global_white_addrs)}]\n\naccounts:\n"
        for account in config.plain_access_configs:
            text += lines(f"  {name:<18}: {value}" for name, value in _fields(account).items()) + "\n"
    data = [{"broker": server.broker, "addr": server.addr, "config": config} for server, config in configs.values]
    yield Output(text, data, configs.unavailable)


def _fields(account: AccountBody) -> dict[str, str]:
    """Return the members of an account as texts, in the order of Java's class."""
    return {
        "accessKey": account.access_key,
        "secretKey": account.secret_key,
        "whiteRemoteAddress": account.white_remote_address or "",
        "admin": boolean(account.admin),
        "defaultTopicPerm": account.default_topic_perm or "",
        "defaultGroupPerm": account.default_group_perm or "",
        "topicPerms": _list_text(account.topic_perms),
        "groupPerms": _list_text(account.group_perms),
    }


def _list_text(perms: Sequence[str] | None) -> str:
    return "" if perms is None else f"[{', '.join(perms)}]"


def _done(access_key: str, servers: Sequence[BrokerServer]) -> dict[str, object]:
    return {"accessKey": access_key, "brokers": [server.addr for server in servers]}
