"""The connector's pulls from a broker with access control, tested directly without Spark."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ariane.client import ClientInstance, ClientSettings, Credentials, Producer
from ariane.errors import ArianeError, ConfigError, RouteNotFound
from ariane.model.message import Message
from ariane.protocol.records import record
from ariane.spark.read import pull_client, source_options
from ariane.testing import AsyncLocalCluster

FILE = """
accounts:
- {accessKey: writer-account, secretKey: a-writer-secret, defaultTopicPerm: PUB, defaultGroupPerm: SUB}
- {accessKey: reader-account, secretKey: a-reader-secret, topicPerms: [orders=SUB], groupPerms: [ariane-spark=SUB]}
"""


def parsed(namesrv: str, **more: str) -> source_options.SourceOptions:
    return source_options.parse({"namesrv": namesrv, "topic": "orders", "retries": "5", **more})


async def wait_registered(instance: ClientInstance, topic: str) -> None:
    """Wait until the name server has the route of a topic that a send has created."""
    while True:
        try:
            await instance.routes.fetch(topic)
            return
        except RouteNotFound:
            await asyncio.sleep(0.01)


def test_signed_pulls_succeed_and_others_fail_without_retries(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(FILE)

    async def run() -> None:
        async with AsyncLocalCluster(tmp_path, acl_enable=True, rocketmq_home=str(tmp_path)) as servers:
            settings = ClientSettings(credentials=Credentials("writer-account", "a-writer-secret"))
            async with (
                ClientInstance(servers.namesrv, settings) as instance,
                Producer(instance, "shop") as producer,
            ):
                sent = await producer.send(Message(topic="orders", body=b"one"))
                await wait_registered(instance, "orders")

            def read(**account: str) -> list[bytes]:
                reader = pull_client.BlockingCluster(
                    parsed(servers.namesrv, **account), sleep=lambda seconds: pytest.fail("waited")
                )
                try:
                    (pulled,) = reader.retry("pull", reader.pull, sent.queue, [0])
                    return [stored_record.body for stored_record in record.decode_all(pulled.body)]
                finally:
                    reader.close()

            right = {"accesskey": "reader-account", "secretkey": "a-reader-secret"}
            assert await asyncio.to_thread(lambda: read(**right)) == [b"one"]
            for account in ({}, {**right, "secretkey": "a-wrong-secret"}):
                with pytest.raises(ArianeError, match="pull") as refused:
                    await asyncio.to_thread(lambda account=account: read(**account))
                assert "secret" not in str(refused.value)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_secrets_appear_in_no_text() -> None:
    parsed_options = parsed("127.0.0.1:1", accessKey="reader-account", secretKey="a-secret", securityToken="a-token")
    assert parsed_options.secret_key == "a-secret"
    assert "a-secret" not in repr(parsed_options)
    assert "a-token" not in repr(parsed_options)
    with pytest.raises(ConfigError, match="secretKey"):
        parsed("127.0.0.1:1", accesskey="reader-account")
    with pytest.raises(ConfigError, match="accessKey"):
        parsed("127.0.0.1:1", secretkey="a-secret")
