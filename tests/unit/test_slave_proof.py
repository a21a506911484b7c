"""The proof of a slave: which slaves a master serves."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
import yaml

from ariane.access.access_control import AccessControl
from ariane.access.acl import Acl, parse_acl_file
from ariane.broker.replication.slave_proof import check_proof, prove
from ariane.errors import ConnectionLost, ProtocolError
from ariane.net.streams import Stream
from ariane.protocol import signing
from ariane.protocol.records import replication, replication_proof
from ariane.protocol.signing import Credentials

FILE = """
globalWhiteRemoteAddresses: ["*"]
accounts:
- {accessKey: cluster-account, secretKey: cluster-secret, brokers: [broker-a]}
- {accessKey: any-account, secretKey: any-secret, brokers: ["*"]}
- {accessKey: admin-account, secretKey: admin-secret, admin: true}
- {accessKey: writer-account, secretKey: writer-secret, defaultTopicPerm: PUB|SUB}
"""


class Pipe:
    """One end of a connection in memory."""

    ip, addr = "10.0.0.9", "10.0.0.9:1"

    def __init__(self, outgoing: asyncio.StreamReader, incoming: asyncio.StreamReader) -> None:
        self._outgoing, self._incoming = outgoing, incoming

    async def write(self, *pieces: bytes) -> None:
        self._outgoing.feed_data(b"".join(pieces))

    async def read_exactly(self, size: int, silence_s: float) -> bytes:
        try:
            return await self._incoming.readexactly(size)
        except asyncio.IncompleteReadError:
            raise ConnectionLost(self.addr, "was closed by the peer") from None

    def close(self) -> None:
        self._outgoing.feed_eof()


class Access:
    """Access control with the accounts of FILE, and the audit log of it: refused slaves."""

    def __init__(self) -> None:
        self.refused: list[tuple[str, str, str]] = []  # address, account and reason
        self.acl = Acl([("plain_acl.yml", parse_acl_file("plain_acl.yml", yaml.safe_load(FILE)))], {})

    @property
    def state(self) -> Access:
        return self

    @property
    def audit(self) -> Access:
        return self

    def refused_slave(self, ip: str, addr: str, account: str, reason: str) -> None:
        assert addr.startswith(ip)
        self.refused.append((addr, account, reason))


async def ends() -> tuple[Pipe, Pipe]:
    there, back = asyncio.StreamReader(), asyncio.StreamReader()
    return Pipe(there, back), Pipe(back, there)


async def checked(slave: Pipe, master: Pipe, access: Access) -> None:
    try:
        opening = await master.read_exactly(8, 1)
        await check_proof(cast(Stream, master), opening, cast(AccessControl, access), "broker-a", 1)
    finally:
        master.close()


async def proven(credentials: Credentials, slave_of: str, access: Access) -> None:
    slave, master = await ends()
    await asyncio.gather(prove(cast(Stream, slave), credentials, slave_of, 1), checked(slave, master, access))


@pytest.mark.parametrize("name", ["cluster", "any", "admin"])
def test_accounts_with_the_broker_are_served(name: str) -> None:
    access = Access()
    asyncio.run(proven(Credentials(f"{name}-account", f"{name}-secret"), "broker-a", access))
    assert access.refused == []


@pytest.mark.parametrize(
    ("credentials", "slave_of", "reason"),
    [
        (Credentials("cluster-account", "another-secret"), "broker-a", "no valid signature"),
        (Credentials("unknown-account", "cluster-secret"), "broker-a", "no valid signature"),
        (Credentials("writer-account", "writer-secret"), "broker-a", "does not have broker:broker-a"),
        (Credentials("any-account", "any-secret"), "broker-b", "one of 'broker-b'"),
    ],
)
def test_others_are_refused_even_from_listed_addresses(credentials: Credentials, slave_of: str, reason: str) -> None:
    access = Access()
    with pytest.raises(ProtocolError, match=reason):
        asyncio.run(proven(credentials, slave_of, access))
    ((addr, account, recorded),) = access.refused
    assert (addr, account) == (Pipe.addr, credentials.access_key)
    assert reason in recorded


@pytest.mark.parametrize("first", [replication.report(0), replication.report(1 << 40)])
def test_a_java_slave_is_refused(first: bytes) -> None:
    access = Access()

    async def work() -> None:
        slave, master = await ends()
        await slave.write(first)
        await checked(slave, master, access)

    with pytest.raises(ProtocolError, match="haAclEnable"):
        asyncio.run(work())
    ((addr, account, recorded),) = access.refused
    assert (addr, account) == (Pipe.addr, "")
    assert "proves no account" in recorded


def test_a_repeated_proof_is_refused() -> None:
    """A proof is one of the challenge of its connection."""

    async def work() -> None:
        slave, master = await ends()
        credentials, content = (
            Credentials("cluster-account", "cluster-secret"),
            replication_proof.signed_content(bytes(32)),
        )
        fields = signing.sign(credentials, {"brokerName": "broker-a"}, content)
        await slave.write(replication_proof.MAGIC, replication_proof.encode_proof(fields))
        await checked(slave, master, Access())

    with pytest.raises(ProtocolError, match="no valid signature"):
        asyncio.run(work())


@pytest.mark.parametrize("sent", [b"\x7f" * 4, bytes(4), b"\x00\x00\x00\x02{]", b'\x00\x00\x00\x07{"a":1}'])
def test_a_malformed_proof_is_refused(sent: bytes) -> None:
    async def work() -> None:
        slave, master = await ends()
        await slave.write(replication_proof.MAGIC, sent)
        await checked(slave, master, Access())

    with pytest.raises(ProtocolError, match="Invalid proof"):
        asyncio.run(work())


def test_the_greeting_is_no_report() -> None:
    """A master without haAclEnable closes the connection."""
    with pytest.raises(ProtocolError):
        replication.AckReader().feed(replication_proof.MAGIC)
