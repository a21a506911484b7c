"""Our clients at Java brokers of 4.9.4 and 5.3.3 that accept only encrypted connections and signed requests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from interop_servers import RELEASES

from ariane.client import ClientInstance, ClientSettings, Credentials, Producer, PushConsumer
from ariane.errors import ConnectionLost, ReplyError, RequestTimeout
from ariane.model.message import ReceivedMessage
from ariane.testing import java

pytestmark = pytest.mark.interop

PATIENCE_S = 60.0
ADMIN = Credentials("administrator", "an-admin-secret")
ACCOUNTS_OF_4X = """
accounts:
- {accessKey: administrator, secretKey: an-admin-secret, admin: true}
"""
# 5.x has users in place of accounts; a broker signs its own requests with `innerClientAuthenticationCredentials`.
USERS_OF_5X = {
    "authenticationEnabled": "true",
    "authenticationProvider": "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": '{"username":"administrator","password":"an-admin-secret"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"administrator","secretKey":"an-admin-secret"}',
}


@pytest.mark.long(
    "tests/interop/test_users_with_java.py::test_signed_clients_may_do_what_policies_allow",
    "tests/interop/test_tls_with_java.py::test_java_clients_verify_and_are_verified",
)
@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
def test_only_encrypted_and_signed_requests_are_served(tmp_path: Path, release: java.JavaRelease) -> None:
    if reason := release.available():
        pytest.skip(f"Java peers: {reason}")
    home = tmp_path / "b"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS_OF_4X)
    properties = {"aclEnable": "true"} if release is java.V4 else USERS_OF_5X
    enforcing = [*release.quick_start(), "-Dtls.server.mode=enforcing"]

    async def send(namesrv: str, **settings: object) -> None:
        async with Producer(namesrv, "P", client=ClientSettings(**settings)) as producer:
            await producer.send("T", b"x")

    async def play(namesrv: str) -> bytes:
        received: asyncio.Queue[bytes] = asyncio.Queue()

        async def listen(messages: list[ReceivedMessage]) -> None:
            for message in messages:
                received.put_nowait(message.body)

        encrypted = {"use_tls": True, "tls_verify": "false"}
        with pytest.raises((ConnectionLost, RequestTimeout)):
            await send(namesrv, credentials=ADMIN)
        with pytest.raises(ReplyError):
            await send(namesrv, **encrypted)
        with pytest.raises(ReplyError):
            await send(namesrv, credentials=Credentials("administrator", "another-secret"), **encrypted)
        async with ClientInstance(namesrv, ClientSettings(credentials=ADMIN, **encrypted)) as instance:
            async with Producer(instance, "P") as producer:
                await producer.send("T", b"signed", tags="ä")
            async with PushConsumer(instance, "G", {"T": "*"}, listen, start="first"):
                # Java closes a connection that is not encrypted, but only after it has handled the first request.
                while (body := await asyncio.wait_for(received.get(), PATIENCE_S)) == b"x":
                    pass
                return body

    with (
        release.name_server(tmp_path / "ns", jvm_args=release.quick_start()) as names,
        release.broker(home, names.addr, properties=properties, jvm_args=enforcing) as broker,
    ):
        assert asyncio.run(play(names.addr)) == b"signed"
        broker.process.kill()
