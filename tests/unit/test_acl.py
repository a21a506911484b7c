"""Access control: signatures, addresses, accounts, and the decision about one request."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from ariane.access import ip_allowlist
from ariane.access.access_control import AccessControl
from ariane.access.acl import Acl, parse_acl_file
from ariane.broker.access.request_permissions import REQUEST_NEEDS
from ariane.client import ClientSettings, Credentials
from ariane.errors import ConfigError
from ariane.model.ids import offset_message_id
from ariane.model.topic import DataVersion
from ariane.net.connection import Handler, Peer, Reply
from ariane.net.limits.quotas import Quotas
from ariane.protocol import fastjson, signing
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.records import record
from ariane.protocol.records.properties import join
from ariane.protocol.requests.clients import ConsumerData, HeartbeatData, SubscriptionData

SECRET = "a-very-secret-key"
FILE = """
globalWhiteRemoteAddresses: ["10.1.*.*"]
accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms: ["topicA=DENY", "topicB=PUB|SUB", "topicC=SUB"]
  groupPerms: ["groupA=DENY", "groupC=SUB"]
- accessKey: trusted-host
  secretKey: a-very-secret-key
  whiteRemoteAddress: 192.168.0.{7,8}
- accessKey: administrator
  secretKey: a-very-secret-key
  admin: true
- accessKey: limited-admin
  secretKey: a-very-secret-key
  admin: true
  topicPerms: ["topicB=PUB"]
"""
USER = Credentials("RocketMQ", "12345678")
ADMIN = Credentials("administrator", SECRET)
LIMITED = Credentials("limited-admin", SECRET)
FAR = "8.8.8.8"


def no_record(offset: int) -> bytes | None:
    return None


def acl() -> Acl:
    return Acl([("plain_acl.yml", parse_acl_file("plain_acl.yml", yaml.safe_load(FILE)))], REQUEST_NEEDS)


def denial(who: Credentials | None, code: int, body: bytes = b"", ip: str = FAR, **fields: str) -> str | None:
    return acl().denial_reason(code, signing.sign(who, fields, body) if who else fields, body, ip, no_record)


# --- signatures ---


def test_the_signature_covers_sorted_values_and_the_body() -> None:
    fields = {"b": "2", "B": "1", "a": "ä", "SecurityToken": "t", "AccessKey": "AK"}
    content = "AK1tä2".encode() + b"body"  # AccessKey B SecurityToken a b
    expected = base64.b64encode(hmac.new(b"SK", content, hashlib.sha1).digest()).decode()
    assert signing.signature("SK", fields, b"body") == expected
    signed = signing.sign(Credentials("AK", "SK", "t"), {"b": "2", "B": "1", "a": "ä"}, b"body")
    assert signed == {**fields, "Signature": expected}
    assert signing.verify("SK", signed, b"body")


@pytest.mark.parametrize(
    "change", [{"a": "y"}, {"new": "1"}, {"Signature": ""}, {"Signature": "é"}, {"AccessKey": "C"}]
)
def test_a_modified_request_fails_verification(change: dict[str, str]) -> None:
    signed = {**signing.sign(Credentials("AK", "SK"), {"a": "x"}, b"body"), **change}
    assert not signing.verify("SK", signed, b"body")


def test_the_unique_key_flag_of_a_query_may_be_signed_or_unsigned() -> None:
    mark = {signing.UNIQUE_KEY_QUERY: "true"}
    ours = signing.sign(Credentials("AK", "SK"), {"key": "k", **mark}, b"")
    assert ours["Signature"] == signing.sign(Credentials("AK", "SK"), {"key": "k"}, b"")["Signature"]
    assert signing.verify("SK", ours, b"")
    javas = {"AccessKey": "AK", "key": "k", **mark}
    text = base64.b64encode(hmac.new(b"SK", b"AKtruek", hashlib.sha1).digest()).decode()
    assert signing.verify("SK", {**javas, "Signature": text}, b"")
    assert not signing.verify("SK", {**javas, "Signature": text[::-1]}, b"")


def test_secret_keys_are_not_printed() -> None:
    settings = ClientSettings(credentials=Credentials("AK", SECRET))
    entry = (parse_acl_file("f", yaml.safe_load(FILE)).accounts or ())[1]
    assert SECRET not in f"{settings!r} {settings.credentials} {entry!r}"
    with pytest.raises(ConfigError) as caught:
        ClientSettings(credentials=Credentials("", SECRET))
    assert SECRET not in str(caught.value)


# --- addresses ---


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("*", "1.2.3.4 fe80::1", ""),
        ("*.*.*.*", "1.2.3.4 ::1", ""),
        ("*:*:*:*:*:*:*:*", "1.2.3.4 ::1", ""),
        ("", "", "1.2.3.4 ::1"),
        ("1.2.3.4", "1.2.3.4 ::ffff:1.2.3.4", "1.2.3.5 ::1"),
        ("1.2.3.4, 1.2.3.5", "1.2.3.4 1.2.3.5", "1.2.3.6"),
        ("1.2.3.{4,5,6}", "1.2.3.4 1.2.3.6", "1.2.3.7 1.2.4.4"),
        ("1.2.3.{4,5},9.9.9.9", "1.2.3.5 9.9.9.9", "1.2.3.9"),
        ("1.2.3.*", "1.2.3.0 1.2.3.255", "1.2.4.0"),
        ("1.*.*.*", "1.255.0.9", "2.0.0.0"),
        ("1.2.3.1-20", "1.2.3.1 1.2.3.20", "1.2.3.0 1.2.3.21"),
        ("1.2.1-5.*", "1.2.1.0 1.2.5.255", "1.2.6.0"),
        ("FE80::AbC", "fe80::abc fe80:0:0:0:0:0:0:0abc", "fe80::abd 1.2.3.4"),
        ("fe80::{1,ff}", "fe80::1 fe80::ff%eth0", "fe80::2"),
        ("fe80:1:2:3:4:5:6:1-200", "fe80:1:2:3:4:5:6:1ff", "fe80:1:2:3:4:5:6:201"),
        ("fe80:1:2:3:4:5:*:*", "fe80:1:2:3:4:5:9:9", "fe80:1:2:3:4:6:9:9"),
    ],
)
def test_address_patterns_match_the_expected_addresses(pattern: str, inside: str, outside: str) -> None:
    patterns = ip_allowlist.parse_patterns(pattern)
    assert [ip for ip in inside.split() if not ip_allowlist.matches(patterns, ip)] == []
    assert [ip for ip in outside.split() if ip_allowlist.matches(patterns, ip)] == []


@pytest.mark.parametrize(
    "pattern",
    ["1.2.3", "1.2.3.256", "1.2.3.a", "1.*.3.4", "1.2.*.1-2", "1.2.3.20-1", "1.2.{3,4}.5", "1.2.3.{4,*", "host", "::1::",
     "12345::", "1.2.3.4/24", "1.2.3.-5", "1.2.3.1-", "1.2.3.²"],
)  # fmt: skip
def test_an_invalid_address_pattern_is_rejected(pattern: str) -> None:
    with pytest.raises(ConfigError, match="whiteRemoteAddress"):
        ip_allowlist.parse_patterns(pattern)


# --- the decision ---


def test_checks_are_made_in_order_allowlist_signature_permission() -> None:
    code = RequestCode.GET_MAX_OFFSET
    assert denial(None, code, ip="10.1.2.3") is None
    assert denial(None, code) == "No accessKey is configured"
    assert denial(Credentials("nobody", SECRET), code) == "No acl config for nobody"
    assert denial(Credentials("trusted-host", "wrong"), code, ip="192.168.0.8") is None
    assert denial(Credentials("trusted-host", "wrong"), code) == "Check signature failed for accessKey=trusted-host"
    assert denial(USER, code) is None
    assert denial(USER, RequestCode.SEND_MESSAGE_V2, b=signing_topic()) is None


def signing_topic() -> str:
    return "RMQ_SYS_TRACE_TOPIC"


def test_values_sent_by_a_peer_are_escaped_in_log_lines() -> None:
    text = str(denial(Credentials("x\ny" + "z" * 5_000, SECRET), 30))
    assert "\n" not in text
    assert len(text) < 400


def test_a_verified_certificate_stands_for_the_signature_of_its_account() -> None:
    document = {"accounts": [{"accessKey": "shop-account", "secretKey": SECRET, "clientCertificate": "shop.example"}]}
    rules = Acl([("f", parse_acl_file("f", document))], REQUEST_NEEDS)

    def refused(code: int, *names: str, **fields: str) -> str | None:
        return rules.denial_reason(code, fields, b"", FAR, no_record, names)

    assert refused(30, "another", "shop.example") is None
    assert refused(310, "shop.example", b="topicA") == "No default permission for topic:topicA"
    assert refused(17, "shop.example") == "Need admin permission for request code=17, but accessKey=shop-account is not"
    assert refused(30, "SHOP.example") == refused(30) == "No accessKey is configured"
    assert refused(30, "shop.example", AccessKey="shop-account") == "Check signature failed for accessKey=shop-account"


@pytest.mark.parametrize(
    ("code", "fields", "refused"),
    [
        (10, {"topic": "topicB"}, ""),
        (10, {"topic": "topicC"}, "topic:topicC"),
        (310, {"b": "topicB"}, ""),
        (310, {"b": "topicA"}, "topic:topicA"),
        (310, {"b": "other"}, "topic:other"),
        (320, {"b": "topicA"}, "topic:topicA"),
        (310, {"a": "groupC", "b": "%RETRY%groupA"}, "group:groupA"),
        (310, {"a": "groupA", "b": "%RETRY%other"}, ""),
        (11, {"topic": "topicC", "consumerGroup": "groupC"}, ""),
        (11, {"topic": "topicC", "consumerGroup": "groupA"}, "group:groupA"),
        (11, {"topic": "other", "consumerGroup": "groupC"}, "topic:other"),
        (12, {"topic": "topicA"}, "topic:topicA"),
        (15, {"topic": "topicC", "consumerGroup": "groupA"}, "group:groupA"),
        (35, {"clientID": "c", "consumerGroup": "groupA"}, "group:groupA"),
        (35, {"clientID": "c", "producerGroup": "groupA"}, ""),
        (36, {"group": "groupA"}, "group:groupA"),
        (38, {"consumerGroup": "free"}, ""),
        (30, {"topic": "topicA"}, ""),
    ],
)
def test_a_request_needs_the_permission_of_its_topic_and_group(code: int, fields: dict[str, str], refused: str) -> None:
    assert denial(USER, code, **fields) == (f"No default permission for {refused}" if refused else None)
    assert denial(ADMIN, code, **fields) is None


@pytest.mark.parametrize(
    ("topic", "properties", "reason"),
    [
        ("topicB", {}, None),
        ("topicA", {}, "topic:topicA"),
        ("SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": "topicA"}, "topic:topicA"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", {"REAL_TOPIC": "topicB"}, None),
        ("%RETRY%groupA", {}, "group:groupA"),
        ("%RETRY%groupC", {}, None),
    ],
)
def test_a_message_is_read_by_who_may_read_the_topic_that_it_was_sent_to(
    topic: str, properties: dict[str, str], reason: str | None
) -> None:
    stored = record.encode(
        topic.encode(), b"body", join(properties).encode(), queue_id=0, queue_offset=0, offset=7, born_ms=0,
        born_host=bytes(8), store_ms=0, store_host=bytes(8),
    )  # fmt: skip

    def refused(code: int, **fields: str) -> str | None:
        return acl().denial_reason(code, signing.sign(USER, fields, b""), b"", FAR, {7: stored}.get)

    expected = f"No default permission for {reason}" if reason else None
    assert refused(33, offset="7") == expected
    assert refused(36, offset="7", group="groupC") == expected
    assert refused(37, commitLogOffset="7") == expected
    assert refused(309, consumerGroup="groupC", msgId=offset_message_id(bytes(8), 7)) == expected


@pytest.mark.parametrize("offset", ["8", "x", ""])
def test_a_missing_message_is_left_to_the_handler(offset: str) -> None:
    assert denial(USER, 33, offset=offset) is None


def test_a_heartbeat_needs_permission_for_every_group_and_topic() -> None:
    def beat(group: str, *topics: str) -> bytes:
        subscriptions = tuple(SubscriptionData(topic=topic) for topic in topics)
        return fastjson.write(
            HeartbeatData("c", (ConsumerData(group_name=group, subscription_data_set=subscriptions),))
        )

    code = RequestCode.HEART_BEAT
    assert denial(USER, code, beat("groupC", "topicC", "%RETRY%groupC")) is None
    assert denial(USER, code, beat("groupA", "topicC")) == "No default permission for group:groupA"
    assert denial(USER, code, beat("groupC", "topicC", "topicA")) == "No default permission for topic:topicA"


def test_admin_requests_need_an_admin_whose_topic_permissions_also_apply() -> None:
    for code in [code for code, needs in REQUEST_NEEDS.items() if needs.is_admin]:
        assert denial(ADMIN, code) is None
        assert "Need admin permission" in str(denial(USER, code))
    assert denial(LIMITED, 310, b="topicB") is None
    assert denial(LIMITED, 310, b="other") == "No default permission for topic:other"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"secretKey": "short"}, "secretKey has 5 characters"),
        ({"accessKey": "short"}, "accessKey has 5 characters"),
        ({"secretKey": 1.5}, "in quotes"),
        ({"topicPerms": ["topicA"]}, "invalid permission"),
        ({"groupPerms": ["groupA=ALL"]}, "invalid permission"),
        ({"whiteRemoteAddress": "1.2"}, "address"),
        ({"admin": "yes"}, "bool"),
    ],
)
def test_an_invalid_account_is_rejected_with_its_name(change: dict[str, Any], why: str) -> None:
    document = {"accounts": [{"accessKey": "account-1", "secretKey": SECRET, **change}]}
    with pytest.raises(ConfigError, match=why) as caught:
        parse_acl_file("plain_acl.yml", document)
    assert SECRET not in str(caught.value)


def test_the_first_of_two_accounts_with_the_same_access_key_applies() -> None:
    def file(secret: str) -> Any:
        return parse_acl_file("f", {"accounts": [{"accessKey": "account-1", "secretKey": secret}]})

    both = Acl([("a", file("first-secret")), ("b", file("second-secret"))], REQUEST_NEEDS)
    for secret, reason in (("first-secret", None), ("second-secret", "Check signature failed for accessKey=account-1")):
        assert (
            both.denial_reason(30, signing.sign(Credentials("account-1", secret), {}, b""), b"", FAR, no_record)
            == reason
        )


# --- files ---


def with_access(home: Path, work: Callable[[AccessControl], Awaitable[None]]) -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as executor:
            await work(AccessControl(home, REQUEST_NEEDS, executor, lambda: 77))

    asyncio.run(run())


def written(home: Path, text: str, name: str = "plain_acl.yml") -> Path:
    path = home / "conf" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_default_file_is_created_readable_by_its_owner_only(tmp_path: Path) -> None:
    async def work(access: AccessControl) -> None:
        assert access.default.stat().st_mode & 0o777 == 0o600
        assert (
            access.state.acl.denial_reason(30, signing.sign(USER, {}, b""), b"", FAR, no_record)
            == "No acl config for RocketMQ"
        )

    with_access(tmp_path, work)


def test_all_acl_files_are_loaded_and_changes_are_reloaded(tmp_path: Path) -> None:
    written(tmp_path, FILE)
    more = written(tmp_path, 'accounts: [{accessKey: "account-2", secretKey: "1234567"}]', "acl/team/more.yaml")
    written(tmp_path, "accessKey: tool\nsecretKey: x", "acl/tools.yml")
    second = signing.sign(Credentials("account-2", "1234567"), {}, b"")

    async def work(access: AccessControl) -> None:
        assert access.state.acl.denial_reason(30, second, b"", FAR, no_record) is None
        assert list(access.state.files) == [str(access.default), str(more)]
        more.write_text("accounts: []")
        await access.reload_if_changed()
        assert access.state.acl.denial_reason(30, second, b"", FAR, no_record) == "No acl config for account-2"

    with_access(tmp_path, work)


def test_an_invalid_file_changes_no_account_and_its_content_is_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, FILE)

    async def work(access: AccessControl) -> None:
        path.write_text(f"accounts:\n- secretKey: *{SECRET}\n")
        await access.reload_if_changed()
        assert "line 2" in caplog.text
        assert SECRET not in caplog.text
        assert access.state.acl.denial_reason(30, signing.sign(USER, {}, b""), b"", FAR, no_record) is None

    with caplog.at_level(logging.DEBUG):
        with_access(tmp_path, work)
    with pytest.raises(ConfigError, match="line 2"):
        with_access(tmp_path, work)


def test_an_edit_retains_unknown_keys_and_increments_the_version(tmp_path: Path) -> None:
    path = written(tmp_path, FILE + "\nfuture: 1\ndataVersion: [{counter: 4, timestamp: 5}]\n")
    path.chmod(0o640)

    async def work(access: AccessControl) -> None:
        def grant(document: dict[str, Any]) -> None:
            document["accounts"][0]["topicPerms"] = ["topicA=PUB"]

        await access.edit(lambda files: str(path), grant)
        assert access.state.files[str(path)].version == DataVersion(5, 77)
        kept = yaml.safe_load(path.read_text())
        assert (kept["future"], kept["accounts"][0]["secretKey"]) == (1, 12345678)
        assert path.stat().st_mode & 0o777 == 0o640
        assert [item.name for item in path.parent.iterdir()] == ["plain_acl.yml"]
        before = path.read_text()

        def spoil(document: dict[str, Any]) -> None:
            document["accounts"][0]["secretKey"] = "x"

        with pytest.raises(ConfigError):
            await access.edit(lambda files: str(path), spoil)
        assert path.read_text() == before

    with_access(tmp_path, work)


def test_a_handler_with_access_checks_serves_only_permitted_requests(tmp_path: Path) -> None:
    written(tmp_path, FILE)

    async def work(access: AccessControl) -> None:
        handler = access.with_checks({30: lambda command, peer: Reply(body=b"served")}, no_record, Quotas())[30]

        def ask(fields: dict[str, str]) -> Reply:
            raw = msgspec.Raw(json.dumps(fields).encode())
            reply = handler(Command(30, fields=raw), Peer(1, FAR, 1, b""))
            assert isinstance(reply, Reply)
            return reply

        assert ask(signing.sign(USER, {"topic": "T"}, b"")).body == b"served"
        refused = ask({"topic": "T"})
        assert (refused.code, refused.remark) == (
            1, "org.apache.rocketmq.acl.common.AclException: No accessKey is configured",
        )  # fmt: skip

    with_access(tmp_path, work)


FORGER = Credentials("RocketMQ", "wrong-secret")


@pytest.mark.parametrize(
    ("ip", "sender", "is_checked", "is_charged"),
    [
        (FAR, USER, True, True),
        (FAR, FORGER, True, False),
        (FAR, USER, False, True),
        (FAR, FORGER, False, False),
        ("10.1.0.1", USER, True, True),
        ("10.1.0.1", FORGER, True, False),  # the global allowlist serves anybody
        ("192.168.0.7", Credentials("trusted-host", "wrong-secret"), True, True),  # the account's own allowlist
    ],
)
def test_a_request_counts_for_the_account_that_proves_to_have_sent_it(
    ip: str, sender: Credentials, is_checked: bool, is_charged: bool, tmp_path: Path
) -> None:
    written(tmp_path, FILE)

    async def work(access: AccessControl) -> None:
        quotas = Quotas()
        handlers: dict[int, Handler] = {30: lambda command, peer: Reply()}
        handlers = (
            access.with_checks(handlers, no_record, quotas) if is_checked else access.with_accounts(handlers, quotas)
        )
        connection = quotas.open(1, ip)
        fields = signing.sign(sender, {"topic": "topicB"}, b"")
        handlers[30](Command(30, fields=msgspec.Raw(json.dumps(fields).encode())), Peer(1, ip, 1, b""))
        assert connection.account == (sender.access_key if is_charged else None)

    with_access(tmp_path, work)


# --- secret keys outside the files ---


def test_a_secret_key_is_read_from_a_file_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "shop-secret"
    secret.write_text("first-secret\n")
    monkeypatch.setenv("STOCK_SECRET", "stock-secret")
    path = written(
        tmp_path,
        f"accounts:\n- {{accessKey: shop-account, secretKeyFile: {secret}}}\n"
        "- {accessKey: stock-account, secretKeyVariable: STOCK_SECRET}\n",
    )

    async def work(access: AccessControl) -> None:
        def refused(name: str, key: str) -> str | None:
            fields = signing.sign(Credentials(name, key), {}, b"")
            return access.state.acl.denial_reason(30, fields, b"", FAR, no_record)

        state = access.state
        await access.reload_if_changed()
        assert access.state is state  # nothing has changed
        assert refused("shop-account", "first-secret") is None
        assert refused("stock-account", "stock-secret") is None
        secret.write_text("the-second-secret")
        await access.reload_if_changed()
        assert refused("shop-account", "first-secret") is not None
        assert refused("shop-account", "the-second-secret") is None
        secret.unlink()
        await access.reload_if_changed()
        assert refused("shop-account", "the-second-secret") is None  # until the file is valid again

        secret.write_text("a-third-secret")

        def grant(document: dict[str, Any]) -> None:
            document["accounts"][0]["topicPerms"] = ["topicA=PUB"]

        await access.edit(lambda files: str(path), grant)
        assert "third" not in path.read_text()
        assert refused("shop-account", "a-third-secret") is None

    with_access(tmp_path, work)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"secretKeyFile": "/absent/secret"}, "cannot read /absent/secret: No such file"),
        ({"secretKeyVariable": "ABSENT_SECRET"}, "no such environment variable"),
        ({"secretKeyVariable": "ABSENT_SECRET", "secretKey": SECRET}, "expected one of them"),
    ],
)
def test_an_account_with_an_invalid_reference_stops_the_start(
    entry: dict[str, str], reason: str, tmp_path: Path
) -> None:
    written(tmp_path, yaml.safe_dump({"accounts": [{"accessKey": "shop-account", **entry}]}))

    async def work(access: AccessControl) -> None:
        raise AssertionError("must not start")

    with pytest.raises(ConfigError, match=reason) as caught:
        with_access(tmp_path, work)
    assert "shop-account" in str(caught.value)
    assert SECRET not in str(caught.value)
