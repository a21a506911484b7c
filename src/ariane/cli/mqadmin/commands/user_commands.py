"""Commands of 5.x on users and their policies (ACL 2.0). Reference: rocketmq5 4.1. Passwords are never printed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence

from ariane.cli.mqadmin.command import BROKER, CLUSTER, CommandList, Option, Options, Output, lines
from ariane.cluster.admin import Admin
from ariane.cluster.connection import Answers, BrokerServer
from ariane.errors import UsageError
from ariane.protocol.requests.users import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from ariane.protocol.secret_masks import HIDDEN

ALL_SERVERS = CLUSTER._replace(help="All masters and slaves of this cluster.")
USERNAME = Option("u", "username", "Name of the user.", metavar="NAME", is_required=True)
PASSWORD = Option("p", "password", "Password of the user.", metavar="TEXT")
USER_TYPE = Option("t", "userType", "Super or Normal.", metavar="TYPE")
SUBJECT = Option("s", "subject", "User with its prefix: User:NAME.", metavar="USER", is_required=True)
ENTRY = (
    Option("r", "resources", "Topic:NAME, Group:a*, Cluster:*; joined by ','.", metavar="LIST", is_required=True),
    Option("a", "actions", "Pub, Sub, Create, Update, Delete, Get, List, All.", metavar="LIST", is_required=True),
    Option("i", "sourceIp", "Source addresses and networks, joined by ','.", metavar="LIST"),
    Option("d", "decision", "Allow or Deny.", metavar="WORD", is_required=True),
)
SOURCE = Option("f", "fromBroker", "Broker that has them, HOST:PORT or name.", metavar="ADDR", is_required=True)
TARGET = Option("t", "toBroker", "Broker that receives them.", metavar="ADDR", is_required=True)

USER_ROW = "{:<16}  {:<22}  {:<22}  {:<22}"
POLICY_ROW = "{:<16}  {:<10}  {:<22}  {:<20}  {:<24}  {:<10}"
USER_NAMES = ("#UserName", "#Password", "#UserType", "#UserStatus")
POLICY_NAMES = ("#Subject", "#PolicyType", "#Resource", "#Actions", "#SourceIp", "#Decision")

COMMANDS = CommandList()


async def _servers(admin: Admin, options: Options, *, with_slaves: bool = True) -> list[BrokerServer]:
    """Return the broker, or the servers of the cluster: each has users of its own."""
    return await admin.select_brokers(cluster=options.clusterName, broker=options.brokerAddr, with_slaves=with_slaves)


def _done(verb: str, servers: Iterable[BrokerServer]) -> Output:
    return Output(
        lines(f"{verb} to {server.addr} success." for server in servers),
        {"servers": [server.addr for server in servers]},
    )


@COMMANDS.add(
    "createUser", BROKER, ALL_SERVERS, USERNAME, PASSWORD._replace(is_required=True), USER_TYPE, is_change=True
)
async def create_user(admin: Admin, options: Options) -> AsyncIterator[Output]:
    servers = await _servers(admin, options)
    user = UserInfo(options.username, options.password, options.userType)
    await admin.put_user(user, servers, is_new=True)
    yield _done("create user", servers)


@COMMANDS.add(
    "updateUser",
    BROKER,
    ALL_SERVERS,
    USERNAME,
    PASSWORD,
    USER_TYPE,
    Option("s", "userStatus", "enable or disable.", metavar="WORD"),
    is_change=True,
)
async def update_user(admin: Admin, options: Options) -> AsyncIterator[Output]:
    user = UserInfo(options.username, options.password, options.userType, options.userStatus)
    if user == UserInfo(options.username):
        raise UsageError("updateUser", None, "nothing to change; expected --password, --userType or --userStatus")
    servers = await _servers(admin, options)
    await admin.put_user(user, servers, is_new=False)
    yield _done("update user", servers)


@COMMANDS.add("deleteUser", BROKER, ALL_SERVERS, USERNAME, is_change=True)
async def delete_user(admin: Admin, options: Options) -> AsyncIterator[Output]:
    servers = await _servers(admin, options)
    await admin.delete_user(options.username, servers)
    yield _done("delete user", servers)


@COMMANDS.add("getUser", BROKER, CLUSTER, USERNAME)
async def get_user(admin: Admin, options: Options) -> AsyncIterator[Output]:
    found = await admin.user(options.username, await _servers(admin, options, with_slaves=False))
    users = [(server, [] if user is None else [user]) for server, user in found.values]
    yield _users(Answers(users, found.unavailable))


@COMMANDS.add("listUser", BROKER, CLUSTER, Option("f", "filter", "Part of the names.", metavar="TEXT"))
async def list_user(admin: Admin, options: Options) -> AsyncIterator[Output]:
    yield _users(await admin.users(await _servers(admin, options, with_slaves=False), options.filter))


@COMMANDS.add(
    "copyUser",
    SOURCE,
    TARGET,
    Option("u", "usernames", "Names joined by ','; without them, all.", metavar="LIST"),
    is_change=True,
)
async def copy_user(admin: Admin, options: Options) -> AsyncIterator[Output]:
    source, target = await _copied(admin, options)
    names = await admin.copy_users(_split(options.usernames), source, target)
    yield _copies("user", names, source, target)


@COMMANDS.add("createAcl", BROKER, ALL_SERVERS, SUBJECT, *ENTRY, is_change=True)
async def create_acl(admin: Admin, options: Options) -> AsyncIterator[Output]:
    servers = await _servers(admin, options)
    await admin.put_policies(_policies(options), servers, is_new=True)
    yield _done("create acl", servers)


@COMMANDS.add("updateAcl", BROKER, ALL_SERVERS, SUBJECT, *ENTRY, is_change=True)
async def update_acl(admin: Admin, options: Options) -> AsyncIterator[Output]:
    servers = await _servers(admin, options)
    await admin.put_policies(_policies(options), servers)
    yield _done("update acl", servers)


@COMMANDS.add(
    "deleteAcl",
    BROKER,
    ALL_SERVERS,
    SUBJECT,
    Option("r", "resources", "Resource of the entry; without it, all policies.", metavar="NAME"),
    is_change=True,
)
async def delete_acl(admin: Admin, options: Options) -> AsyncIterator[Output]:
    servers = await _servers(admin, options)
    await admin.delete_policies(options.subject, options.resources, servers)
    yield _done("delete acl", servers)


@COMMANDS.add("getAcl", BROKER, CLUSTER, SUBJECT)
async def get_acl(admin: Admin, options: Options) -> AsyncIterator[Output]:
    found = await admin.policies_of(options.subject, await _servers(admin, options, with_slaves=False))
    acls = [(server, [] if acl is None else [acl]) for server, acl in found.values]
    yield _acls(Answers(acls, found.unavailable))


@COMMANDS.add(
    "listAcl",
    BROKER,
    CLUSTER,
    Option("s", "subject", "Part of the subjects.", metavar="TEXT"),
    Option("r", "resource", "Part of the resources.", metavar="TEXT"),
)
async def list_acl(admin: Admin, options: Options) -> AsyncIterator[Output]:
    servers = await _servers(admin, options, with_slaves=False)
    yield _acls(await admin.policies(servers, options.subject, options.resource))


@COMMANDS.add(
    "copyAcl",
    SOURCE,
    TARGET,
    Option("s", "subjects", "Subjects joined by ','; without them, all.", metavar="LIST"),
    is_change=True,
)
async def copy_acl(admin: Admin, options: Options) -> AsyncIterator[Output]:
    source, target = await _copied(admin, options)
    subjects = await admin.copy_policies(_split(options.subjects), source, target)
    yield _copies("acl", subjects, source, target)


async def _copied(admin: Admin, options: Options) -> tuple[BrokerServer, BrokerServer]:
    source, *_ = await admin.select_brokers(broker=options.fromBroker)
    target, *_ = await admin.select_brokers(broker=options.toBroker)
    return source, target


def _copies(kind: str, names: Sequence[str], source: BrokerServer, target: BrokerServer) -> Output:
    texts = (f"copy {kind} of {name} from {source.addr} to {target.addr} success." for name in names)
    return Output(lines(texts), {"from": source.addr, "to": target.addr, "copied": list(names)})


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, (text or "").split(","))))


def _policies(options: Options) -> AclInfo:
    addresses = _split(options.sourceIp) or None
    entries = tuple(
        PolicyEntryInfo(resource, _split(options.actions), addresses, options.decision)
        for resource in _split(options.resources)
    )
    return AclInfo(options.subject, (PolicyInfo("Custom", entries),))


def _users(found: Answers[list[UserInfo]]) -> Output:
    tables = [
        [(user.username, HIDDEN, user.user_type, user.user_status) for user in users] for _, users in found.values
    ]
    text = lines(USER_ROW.format(*row) for rows in tables if rows for row in (USER_NAMES, *rows))
    return Output(text, [{"server": server.addr, "users": users} for server, users in found.values], found.unavailable)


def _acls(found: Answers[list[AclInfo]]) -> Output:
    tables = [[row for acl in acls for row in _policy_rows(acl)] for _, acls in found.values]
    text = lines(POLICY_ROW.format(*row) for rows in tables if rows for row in (POLICY_NAMES, *rows))
    return Output(text, [{"server": server.addr, "acls": acls} for server, acls in found.values], found.unavailable)


def _policy_rows(acl: AclInfo) -> list[tuple[str | None, ...]]:
    if not acl.policies:
        return [(acl.subject, "", "", "", "", "")]
    return [
        (acl.subject, policy.policy_type, entry.resource, _list(entry.actions), _list(entry.source_ips), entry.decision)
        for policy in acl.policies
        for entry in policy.entries or ()
    ]


def _list(values: Sequence[str] | None) -> str:
    """Return a list as Java prints it."""
    return "null" if values is None else f"[{', '.join(values)}]"
