"""A Java 4.9.4 broker with access control accepts requests signed by our clients and responds as ours does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ariane.client import ClientInstance, ClientSettings, Credentials, Producer, PushConsumer
from ariane.errors import ArianeError
from ariane.model.message import Message, ReceivedMessage
from ariane.model.topic import TIMER_TOPIC
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson, signing
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.protocol.requests.acl import AccountBody, AclConfig, UpdateAccount
from ariane.protocol.requests.routing import TopicList
from ariane.protocol.secret_masks import mask_of
from ariane.testing import AsyncLocalCluster, java

ADMIN = Credentials("administrator", "an-admin-secret")
USER = Credentials("user-of-T", "a-user-secret")
FILE = """
accounts:
- {accessKey: administrator, secretKey: an-admin-secret, admin: true}
- accessKey: user-of-T
  secretKey: a-user-secret
  topicPerms: [T=PUB|SUB]
  groupPerms: [G=SUB]
"""
# Refusals that both brokers have to give: code, fields, the account that signs.
REFUSED: list[tuple[int, dict[str, str], Credentials | None]] = [
    (RequestCode.GET_ALL_TOPIC_CONFIG, {}, None),
    (RequestCode.GET_ALL_TOPIC_CONFIG, {}, Credentials("nobody-at-all", "a-user-secret")),
    (RequestCode.GET_ALL_TOPIC_CONFIG, {}, Credentials("user-of-T", "another-secret")),
    (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, USER),
    (RequestCode.SEND_MESSAGE_V2, {"a": "P", "b": "Other"}, USER),
    (RequestCode.PULL_MESSAGE, {"topic": "T", "consumerGroup": "Other"}, USER),
    (RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "Other"}, USER),
]


async def ask(addr: str, code: int, fields: dict[str, str], who: Credentials | None = ADMIN) -> Command:
    async with ConnectionPool() as peers:
        connection = await peers.connect(addr)
        signed = signing.sign(who, fields, b"") if who else fields
        return await connection.request(code, signed, timeout_ms=5000)


async def denial(addr: str, code: int, fields: dict[str, str], who: Credentials | None) -> str:
    """Return the remark of an error without the Java source position that Java appends."""
    remark = (await ask(addr, code, fields, who)).remark or ""
    return remark.split(", org.apache")[0].strip()


def test_access_control_matches_java(tmp_path: Path) -> None:
    java_home, ours = tmp_path / "java", tmp_path / "ours"
    for home in (java_home, ours):
        (home / "conf").mkdir(parents=True)
        (home / "conf" / "plain_acl.yml").write_text(FILE)

    async def work(namesrv: str, addr: str) -> None:
        result: asyncio.Queue[bytes] = asyncio.Queue()

        async def listen(messages: list[ReceivedMessage]) -> None:
            for message in messages:
                await result.put(message.body)

        async with ClientInstance(namesrv, ClientSettings(credentials=USER)) as instance:
            async with Producer(instance, "P") as producer:
                await producer.send(Message(topic="T", body=b"one", tags="ä"))
                with pytest.raises(ArianeError, match="topic:Other"):
                    await producer.send(Message(topic="Other", body=b"x"))
            async with PushConsumer(instance, "G", subscriptions={"T": "*"}, listener=listen, start="first"):
                assert await asyncio.wait_for(result.get(), 40) == b"one"

        async with AsyncLocalCluster(ours, acl_enable=True, rocketmq_home=str(ours)) as servers:
            for code, fields, who in REFUSED:
                theirs = await denial(addr, code, fields, who)
                assert "AclException" in theirs
                assert await denial(servers.broker.addr, code, fields, who) == theirs.replace(addr, servers.broker.addr)
            account = UpdateAccount("new-account", "new-secret", admin=False, topic_perms="T=PUB")
            topics, accounts = [], []
            for broker in (addr, servers.broker.addr):
                async with ConnectionPool(sign=lambda fields, body: signing.sign(ADMIN, fields, body)) as peers:
                    await peers.request_ok(broker, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, account)
                    shown = await peers.request_ok(broker, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
                    accounts.append(fastjson.decode(shown.body, AclConfig).plain_access_configs)
                    system = await peers.request_ok(broker, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
                    topics.append(set(fastjson.decode(system.body, TopicList).topic_list))
            # Ours masks secret keys, which Java's broker returns.
            keys = [[(item.access_key, _mask(item), item.admin) for item in of] for of in accounts]
            assert keys[0] == keys[1]
            assert topics[1] - topics[0] == {TIMER_TOPIC}  # 4.9.4 has no timers
            assert topics[0] <= topics[1]

    with java.name_server(tmp_path / "ns") as ns:
        home = {"aclEnable": "true"}
        with java.broker(java_home, ns.addr, properties=home) as broker:
            asyncio.run(asyncio.wait_for(work(ns.addr, broker.addr), 120))


def _mask(account: AccountBody) -> str:
    return mask_of(account.access_key, account.secret_key)
