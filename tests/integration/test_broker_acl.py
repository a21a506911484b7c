"""Access control over the broker's socket, with our own clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import yaml

from ariane.client import ClientInstance, ClientSettings, Credentials, Producer, PushConsumer
from ariane.errors import ArianeError
from ariane.model.message import Message, ReceivedMessage
from ariane.net.listening.server_tls import CertificateFiles, client_context
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson, signing
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.requests.acl import AclConfig, DeleteAccount, UpdateAccount, UpdateWhiteAddresses
from ariane.protocol.requests.audit import AuditPage, GetAuditLog
from ariane.protocol.requests.routing import KvTableBody
from ariane.protocol.secret_masks import mask_of
from ariane.testing import AsyncLocalCluster
from tls_files import TestAuthority

ADMIN = Credentials("administrator", "an-admin-secret")
USER = Credentials("user-of-orders", "a-user-secret")
FILE = """
accounts:
- {accessKey: administrator, secretKey: an-admin-secret, admin: true}
- accessKey: user-of-orders
  secretKey: a-user-secret
  topicPerms: [orders=PUB|SUB]
  groupPerms: [stock=SUB]
"""


class Tool:
    """Client that signs requests with an account."""

    def __init__(self, addr: str, who: Credentials | None) -> None:
        self._addr = addr
        self._sign = (lambda fields, body: signing.sign(who, fields, body)) if who else None

    async def call(self, code: int, header: object = None, body: bytes = b"") -> Command:
        async with ConnectionPool(sign=self._sign) as peers:
            return await peers.request(self._addr, code, header, body)  # type: ignore[arg-type]


def with_cluster(
    home: Path, work: Callable[[AsyncLocalCluster], Awaitable[None]], *, acl: bool = True, file: str = FILE
) -> None:
    async def run() -> None:
        (home / "conf").mkdir()
        (home / "conf" / "plain_acl.yml").write_text(file)
        async with AsyncLocalCluster(home, acl_enable=acl, rocketmq_home=str(home)) as servers:
            await work(servers)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_unsigned_requests_are_rejected(tmp_path: Path) -> None:
    async def work(servers: AsyncLocalCluster) -> None:
        result: asyncio.Queue[bytes] = asyncio.Queue()

        async def listen(messages: list[ReceivedMessage]) -> None:
            for message in messages:
                await result.put(message.body)

        async with ClientInstance(servers.namesrv, ClientSettings(credentials=USER)) as instance:
            async with Producer(instance, "shop") as producer:
                await producer.send(Message(topic="orders", body=b"one"))
                await producer.send_batch(
                    [Message(topic="orders", body=b"two"), Message(topic="orders", body=b"three")]
                )
                with pytest.raises(ArianeError, match="No default permission for topic:bills"):
                    await producer.send(Message(topic="bills", body=b"x"))
            async with PushConsumer(instance, "stock", subscriptions={"orders": "*"}, listener=listen, start="first"):
                assert {await asyncio.wait_for(result.get(), 20) for _ in range(3)} == {b"one", b"two", b"three"}
        async with Producer(servers.namesrv, "shop") as unsigned:
            with pytest.raises(ArianeError, match="No accessKey is configured"):
                await unsigned.send(Message(topic="orders", body=b"x"))

    with_cluster(tmp_path, work)


def test_accounts_are_created_changed_and_deleted(tmp_path: Path) -> None:
    async def work(servers: AsyncLocalCluster) -> None:
        admin, user = Tool(servers.broker.addr, ADMIN), Tool(servers.broker.addr, USER)
        new = Tool(servers.broker.addr, Credentials("new-account", "new-secret"))
        code = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
        account = UpdateAccount(
            "new-account", "new-secret", "", False, "DENY", "SUB", "orders=PUB,bills=SUB", "stock=SUB"
        )
        assert "Need admin" in str((await user.call(code, account)).remark)
        assert "No acl config" in str((await new.call(RequestCode.GET_ALL_TOPIC_CONFIG)).remark)
        assert (await admin.call(code, account)).code == 0
        assert (await new.call(RequestCode.GET_ALL_TOPIC_CONFIG)).code == 0
        assert (await admin.call(code, UpdateAccount("new-account", topic_perms="orders=SUB"))).code == 0
        shown = await admin.call(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
        accounts = {config.access_key: config for config in fastjson.decode(shown.body, AclConfig).plain_access_configs}
        assert accounts["new-account"].topic_perms == ("orders=SUB",)
        assert b"-secret" not in shown.body
        masks = {account.access_key: account.secret_key for account in accounts.values()}
        assert masks["new-account"] == mask_of("new-account", "new-secret") != masks["administrator"]
        # As tools that read an account and send all of it back; also with the mask of another broker.
        for mask in (masks["new-account"], masks["administrator"]):
            assert (await admin.call(code, UpdateAccount("new-account", mask))).code == 0
        assert (await new.call(RequestCode.GET_ALL_TOPIC_CONFIG)).code == 0
        assert accounts["new-account"].group_perms == ("stock=SUB",)
        assert (await user.call(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)).code == 1
        for wrong in (
            UpdateAccount("newer-account"),
            UpdateAccount("newer-account", "short"),
            UpdateAccount("newer-account", masks["new-account"]),
            UpdateAccount("newer-account", "long-enough", topic_perms="orders"),
            UpdateAccount("newer-account", "long-enough", default_topic_perm="ALL"),
        ):
            assert (await admin.call(code, wrong)).code == 209
        assert (await admin.call(RequestCode.DELETE_ACL_CONFIG, DeleteAccount("new-account"))).code == 0
        assert (await admin.call(RequestCode.DELETE_ACL_CONFIG, DeleteAccount("new-account"))).code == 210
        assert "No acl config" in str((await new.call(RequestCode.GET_ALL_TOPIC_CONFIG)).remark)
        version = await user.call(RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
        path = str(tmp_path / "conf" / "plain_acl.yml")
        fields = version.field_map()
        assert json.loads(fields["version"])["counter"] == 5
        assert json.loads(fields["allAclFileVersion"])[path]["counter"] == 5
        assert (fields["brokerName"], fields["clusterName"]) == ("broker-a", "DefaultCluster")
        assert (await user.call(RequestCode.GET_AUDIT_LOG)).code == 1
        log = await admin.call(RequestCode.GET_AUDIT_LOG, GetAuditLog(size=100))
        records = msgspec.json.decode(log.body, type=AuditPage).records
        changes = [record for record in records if record.result == "done"]
        assert [(record.request, record.account, record.proof, record.resource) for record in changes] == [
            ("DELETE_ACL_CONFIG", "administrator", "signature", "account:new-account"),
            *[("UPDATE_AND_CREATE_ACL_CONFIG", "administrator", "signature", "account:new-account")] * 4,
        ]
        refused = {(record.request, record.account, record.proof) for record in records if record.result == "refused"}
        assert refused == {
            ("UPDATE_AND_CREATE_ACL_CONFIG", "user-of-orders", "signature"),
            ("GET_BROKER_CLUSTER_ACL_CONFIG", "user-of-orders", "signature"),
            ("GET_AUDIT_LOG", "user-of-orders", "signature"),
            ("GET_ALL_TOPIC_CONFIG", "new-account", ""),
        }
        assert b"-secret" not in log.body

    with_cluster(tmp_path, work)


def test_a_secret_key_of_another_file_is_not_returned(tmp_path: Path) -> None:
    secret = tmp_path / "stock-secret"
    secret.write_text("secret-of-a-file")
    file = f"{FILE}- {{accessKey: stock-account, secretKeyFile: {secret}}}\n"

    async def work(servers: AsyncLocalCluster) -> None:
        admin = Tool(servers.broker.addr, ADMIN)
        stock = Tool(servers.broker.addr, Credentials("stock-account", "secret-of-a-file"))
        assert (await stock.call(RequestCode.GET_ALL_TOPIC_CONFIG)).code == 0
        assert b"secret-of-a-file" not in (await admin.call(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)).body
        change = UpdateAccount("stock-account", "another-secret")
        assert (await admin.call(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, change)).code == 0
        assert "stock-secret" not in (tmp_path / "conf" / "plain_acl.yml").read_text()  # the reference is replaced
        assert "Check signature failed" in str((await stock.call(RequestCode.GET_ALL_TOPIC_CONFIG)).remark)

    with_cluster(tmp_path, work, file=file)


def test_a_client_certificate_names_its_account(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    server, shop, other = (authority.files(name) for name in ("server", "shop.example", "other.example"))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(
        "accounts:\n- {accessKey: shop-account, secretKey: a-secret, clientCertificate: shop.example, topicPerms: [orders=PUB]}"
    )

    async def work() -> None:
        async with AsyncLocalCluster(
            tmp_path,
            acl_enable=True,
            rocketmq_home=str(tmp_path),
            tls_server_cert_path=server.cert,
            tls_server_key_path=server.key,
            tls_server_trust_cert_path=server.trust,
            tls_server_need_client_auth="optional",
            tls_server_auth_client=True,
        ) as servers:

            async def answer(files: CertificateFiles | None, code: int) -> Command:
                context = client_context(files, verifies=True) if files else None
                async with ConnectionPool(tls=context) as peers:
                    return await peers.request(servers.broker.addr, code)

            code = RequestCode.GET_ALL_TOPIC_CONFIG
            assert (await answer(shop, code)).code == 0
            runtime = await answer(shop, RequestCode.GET_BROKER_RUNTIME_INFO)
            assert fastjson.decode(runtime.body, KvTableBody).table["certificateRemainingDays"] == "1"
            assert "accessKey=shop-account" in str((await answer(shop, RequestCode.DELETE_TOPIC_IN_BROKER)).remark)
            for files in (other, None):
                assert "No accessKey is configured" in str((await answer(files, code)).remark)

    asyncio.run(asyncio.wait_for(work(), 60))


def test_allowlisted_addresses_need_no_account(tmp_path: Path) -> None:
    async def work(servers: AsyncLocalCluster) -> None:
        admin, nobody = Tool(servers.broker.addr, ADMIN), Tool(servers.broker.addr, None)
        code = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
        assert (await nobody.call(RequestCode.GET_ALL_TOPIC_CONFIG)).code == 1
        assert (await admin.call(code, UpdateWhiteAddresses("127.0.0.1", "/etc/passwd"))).code == 211
        assert (await admin.call(code, UpdateWhiteAddresses("not-an-address"))).code == 211
        assert (await admin.call(code, UpdateWhiteAddresses("10.0.0.{1,2},127.0.0.1"))).code == 0
        assert (await nobody.call(RequestCode.GET_ALL_TOPIC_CONFIG)).code == 0
        document = yaml.safe_load((tmp_path / "conf" / "plain_acl.yml").read_text())
        assert document["globalWhiteRemoteAddresses"] == ["10.0.0.{1,2}", "127.0.0.1"]

    with_cluster(tmp_path, work)


def test_account_requests_without_access_control_are_rejected(tmp_path: Path) -> None:
    async def work(servers: AsyncLocalCluster) -> None:
        tool = Tool(servers.broker.addr, None)
        answers = [await tool.call(code, UpdateAccount("some-account", "some-secret")) for code in range(50, 55)]
        assert [answer.code for answer in answers] == [209, 210, 1, 211, 1]
        assert all("aclEnable=true" in str(answer.remark) for answer in answers)

    with_cluster(tmp_path, work, acl=False)


def test_an_invalid_access_control_file_prevents_the_start(tmp_path: Path) -> None:
    async def work(servers: AsyncLocalCluster) -> None:
        raise AssertionError("it started")

    with pytest.raises(ArianeError, match="secretKey has 5 characters"):
        with_cluster(tmp_path, work, file="accounts: [{accessKey: some-account, secretKey: short}]")
