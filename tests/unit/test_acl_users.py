"""Users of ACL 2.0: which policy decides, changes of users and policies, and their file."""

from __future__ import annotations

from pathlib import Path

import pytest

from ariane.access import users as user_table
from ariane.access.acl import Acl, UserRules
from ariane.access.policies import find_denial, normalized_entry, parse_rules
from ariane.access.request_needs import CLUSTER, Action, Permission, RequiredPermission
from ariane.access.users import User
from ariane.broker.access.broker_accounts import open_access_control
from ariane.broker.access.request_permissions import REQUEST_NEEDS
from ariane.broker.config.broker_config import BrokerConfig
from ariane.client import Credentials
from ariane.errors import ConfigError, ReplyError
from ariane.protocol import signing
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.users import PolicyEntryInfo, PolicyInfo, UserInfo
from ariane.store.disk.files import SystemDisk

IP = "10.1.2.3"
SUB = Permission.SUB


def entry(resource: str, actions: str, decision: str = "Allow", *ips: str) -> PolicyEntryInfo:
    return normalized_entry(PolicyEntryInfo(resource, tuple(actions.split(",")), ips or None, decision))


def reason(entries: list[PolicyEntryInfo], topic: str, *, default: tuple[PolicyEntryInfo, ...] = ()) -> str | None:
    rules = parse_rules([PolicyInfo("Default", default), PolicyInfo("Custom", tuple(entries))])
    return find_denial(rules, RequiredPermission(topic, SUB), topic, IP)


@pytest.mark.parametrize("order", [1, -1])
def test_the_most_specific_entry_decides(order: int) -> None:
    """5.3.3 decides by the shorter prefix, and for literals by the place in the list."""
    entries = [
        entry("*", "All", "Deny"),
        entry("Topic:*", "All"),
        entry("Topic:a*", "Sub", "Deny"),
        entry("Topic:aa*", "Sub"),
        entry("Topic:aab", "Sub", "Deny"),
        entry("Group:aa*", "Sub", "Deny"),
    ][::order]
    denied = {topic for topic in ("b", "a", "ab", "aa", "aac", "aab") if reason(entries, topic)}
    assert denied == {"a", "ab", "aab"}
    need = RequiredPermission(CLUSTER, Permission.DENY, Action.GET)
    assert find_denial(parse_rules([PolicyInfo("Custom", tuple(entries))]), need, "c", IP) == "the decision is deny."


def test_entries_of_type_default_count_only_without_another() -> None:
    allow_all = (entry("Topic:*", "Sub"),)
    assert reason([], "t") == "no matched policies."
    assert reason([], "t", default=allow_all) is None
    assert reason([entry("*", "Sub", "Deny")], "t", default=allow_all) == "the decision is deny."
    assert reason([entry("*", "Pub", "Deny")], "t", default=allow_all) is None


def test_an_entry_matches_by_source_address() -> None:
    assert reason([entry("Topic:t", "Sub", "Allow", "10.1.0.0/16", "::1")], "t") is None
    assert reason([entry("Topic:t", "Sub", "Allow", "10.2.0.0/16", "10.1.2.4")], "t") == "no matched policies."


@pytest.mark.parametrize(
    ("resource", "actions", "decision", "ip"),
    [
        ("orders", "Sub", "Allow", IP),
        ("Queue:orders", "Sub", "Allow", IP),
        ("Topic:", "Sub", "Allow", IP),
        ("Topic:a*b", "Sub", "Allow", IP),
        ("Topic:a", "Any", "Allow", IP),
        ("Topic:a", "Sub", "Perhaps", IP),
        ("Topic:a", "Sub", "Allow", "10.1.2.*"),
    ],
)
def test_an_invalid_entry_is_refused(resource: str, actions: str, decision: str, ip: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        entry(resource, actions, decision, ip)


def test_policies_are_merged_by_resource_and_deleted() -> None:
    users = {"alice": User("alice", "secret")}
    users = user_table.put_policies(
        users, "User:alice", [PolicyInfo(None, (entry("topic:a", "pub"), entry("*", "Sub")))]
    )
    users = user_table.put_policies(users, "User:alice", [PolicyInfo("custom", (entry("Topic:a", "Sub"),))])
    (policy,) = users["alice"].policies
    assert [(e.resource, e.actions) for e in policy.entries or ()] == [("Topic:a", ("Sub",)), ("*", ("Sub",))]
    with pytest.raises(ReplyError, match=r"The subject of User:bob is not exist\."):
        user_table.put_policies(users, "User:bob", [policy])
    assert user_table.find_acls(users, "ali", "Topic:a")[0].policies == (
        PolicyInfo("Custom", (entry("Topic:a", "Sub"),)),
    )
    assert user_table.find_acls(users, None, "Group") == []
    users = user_table.delete_policies(users, "User:alice", None, "Topic:a")
    assert [e.resource for e in users["alice"].policies[0].entries or ()] == ["*"]
    users = user_table.delete_policies(users, "User:alice", None, None)
    with pytest.raises(ReplyError, match="The acl is not exist"):
        user_table.delete_policies(users, "User:alice", None, None)


def test_only_super_users_change_super_users() -> None:
    info = UserInfo(None, "secret", "super")
    with pytest.raises(ReplyError, match="only be create by super"):
        user_table.create_user({}, "root", info, by_super=False)
    users = user_table.create_user({}, "root", info, by_super=True)
    assert users["root"].user_type == "Super"
    with pytest.raises(ReplyError, match="The user is existed"):
        user_table.create_user(users, "root", info, by_super=True)
    with pytest.raises(ReplyError, match="only be update by super"):
        user_table.update_user(users, "root", UserInfo(password="mine"), by_super=False)
    with pytest.raises(ReplyError, match="only be update by super"):
        user_table.delete_user(users, "root", by_super=False)
    users = user_table.create_user(users, "alice", UserInfo(password="secret"), by_super=False)
    with pytest.raises(ReplyError, match="only be update by super"):
        user_table.update_user(users, "alice", UserInfo(user_type="Super"), by_super=False)
    users = user_table.update_user(users, "alice", UserInfo(user_status="DISABLE"), by_super=False)
    assert (users["alice"].password, users["alice"].is_enabled) == ("secret", False)
    assert user_table.find_users(users, "lic")[0].password is None
    for name, password in (("a b", "x"), ("a,b", "x"), ("a:b", "x"), ("a\n", "x"), ("b", "")):
        with pytest.raises(ConfigError, match="expected"):
            user_table.create_user(users, name, UserInfo(password=password), by_super=True)


def test_the_file_is_private_and_refused_if_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "new" / "users.json"
    assert user_table.load_users(SystemDisk(), str(path)) == {}
    users = {"alice": User("alice", "secret", policies=(PolicyInfo("Custom", (entry("Topic:a", "Sub"),)),))}
    user_table.save_users(SystemDisk(), str(path), users)
    assert path.stat().st_mode & 0o777 == 0o600
    assert user_table.load_users(SystemDisk(), str(path)) == users
    assert "secret" not in repr(users)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ConfigError, match="restore a copy") as error:
        user_table.load_users(SystemDisk(), str(path))
    assert "secret" not in str(error.value)


def decision(user: User, code: int, *, authorized: bool = True, secret: str | None = None, **fields: str) -> str | None:
    acl = Acl([], REQUEST_NEEDS, UserRules(user_table.accounts({user.username: user}), "C", authorized))
    signed = signing.sign(Credentials(user.username, secret or user.password), fields, b"")
    return acl.denial_reason(code, signed, b"", IP, lambda offset: None)


def test_signature_status_and_type_of_a_user() -> None:
    alice = User("alice", "secret")
    text = "User:alice has no permission to access Topic:t from 10.1.2.3, no matched policies."
    assert decision(alice, RequestCode.SEND_MESSAGE, topic="t") == text
    assert decision(alice, RequestCode.SEND_MESSAGE, topic="t", authorized=False) is None
    assert "signature" in str(decision(alice, RequestCode.SEND_MESSAGE, topic="t", authorized=False, secret="other"))
    assert decision(User("alice", "secret", "Super"), RequestCode.UPDATE_BROKER_CONFIG) is None
    disabled = User("alice", "secret", "Super", "disable")
    assert decision(disabled, RequestCode.GET_TOPIC_CONFIG, topic="t") == "User:alice is disabled."
    no_name = decision(alice, RequestCode.UPDATE_AND_CREATE_TOPIC)
    assert no_name is not None and "Cluster:C" in no_name  # a request without a name needs Update on the cluster
    assert "Topic:*" in str(decision(alice, RequestCode.GET_ALL_TOPIC_CONFIG))


def test_every_code_of_admins_needs_a_policy() -> None:
    assert [code for code, needs in REQUEST_NEEDS.items() if needs.is_admin and needs.policy == "-"] == []


def test_settings_create_users_and_hide_them(tmp_path: Path) -> None:
    def config(**settings: object) -> BrokerConfig:
        return BrokerConfig(store_path_root_dir=str(tmp_path), authentication_enabled=True, **settings).validate()  # type: ignore[arg-type]

    access = open_access_control(
        config(
            init_authentication_user='{"username":"root","password":"a-secret"}',
            inner_client_authentication_credentials='{"accessKey":"inner","secretKey":"b-secret"}',
        ),
        SystemDisk(),
        None,  # type: ignore[arg-type]  # no change is made
        lambda: 0,
    )
    assert access is not None
    assert {name: user.is_super for name, user in access.state.users.items()} == {"root": True, "inner": True}
    assert user_table.load_users(SystemDisk(), str(tmp_path / "config" / "users.json")).keys() == {"root", "inner"}
    with pytest.raises(ConfigError, match="username") as error:
        open_access_control(config(init_authentication_user="{'secret'}"), SystemDisk(), None, lambda: 0)  # type: ignore[arg-type]
    assert "secret" not in str(error.value)
    with pytest.raises(ConfigError, match="requires authenticationEnabled"):
        BrokerConfig(store_path_root_dir=str(tmp_path), authorization_enabled=True).validate()
