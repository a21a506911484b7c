"""What precedes a replication stream: greetings of Ariane's members, and the proof of a slave's account (haAclEnable). Both sides.

A member greets with its identity and end (`protocol.records.member_stream`); its greeting is signed if it has to prove an account.
Slaves of earlier versions only prove their account (`protocol.records.replication_proof`), those of Java do neither.
"""

from __future__ import annotations

import secrets

import msgspec

from ariane.access.access_control import AccessControl
from ariane.errors import ProtocolError
from ariane.net.streams import Stream
from ariane.protocol import signing
from ariane.protocol.records import member_stream
from ariane.protocol.records import replication_proof as proofs
from ariane.protocol.records.member_stream import HELLO, Hello, Welcome
from ariane.protocol.signing import Credentials


async def prove(stream: Stream, credentials: Credentials, broker: str, silence_s: float) -> None:
    """Prove the account of a slave of `broker`.

    Raises:
        ConnectionLost: the master closed the connection, or did not answer for `silence_s`.
    """
    await stream.write(proofs.MAGIC)
    challenge = await stream.read_exactly(proofs.CHALLENGE_SIZE, silence_s)
    fields = signing.sign(credentials, {"brokerName": broker}, proofs.signed_content(challenge))
    await stream.write(proofs.encode_proof(fields))


async def check_proof(stream: Stream, opening: bytes, access: AccessControl, broker: str, within_s: float) -> None:
    """Check that the account of a slave, which began with the bytes `opening`, may replicate `broker`.

    Raises:
        ProtocolError: it may not, or the slave sent no proof.
        ConnectionLost: the slave closed the connection, or sent nothing for `within_s`.
    """
    if opening != proofs.MAGIC:
        raise _refusal(stream, access, "", "it proves no account: set haAclEnable=true, or false here if it is Java's")
    challenge = secrets.token_bytes(proofs.CHALLENGE_SIZE)
    await stream.write(challenge)
    size = proofs.proof_size(await stream.read_exactly(proofs.SIZE_SIZE, within_s))
    fields = proofs.decode_proof(await stream.read_exactly(size, within_s))
    _check_fields(stream, fields, challenge, access, broker)


def _check_fields(
    stream: Stream, fields: dict[str, str], challenge: bytes, access: AccessControl | None, broker: str
) -> None:
    denial: str | None = None
    if fields.get("brokerName") != broker:
        denial = f"it is one of {fields.get('brokerName')!r}, not of {broker}"
    elif access is not None:
        denial = access.state.acl.broker_denial(broker, fields, proofs.signed_content(challenge))
    if denial is not None:
        raise _refusal(stream, access, fields.get(signing.ACCESS_KEY, ""), denial)


def _refusal(stream: Stream, access: AccessControl | None, account: str, reason: str) -> ProtocolError:
    """Return the error of a slave that is not served, recorded in the audit log if it needs an account."""
    if access is not None and access.audit is not None:
        access.audit.refused_slave(stream.ip, stream.addr, account, reason)
    return ProtocolError(f"slave {stream.addr} is refused: {reason}")


async def greet(
    stream: Stream, hello: Hello, credentials: Credentials | None, broker: str, silence_s: float
) -> Welcome:
    """Greet the leader of `broker` as a member, with the proof of an account if there are `credentials`.

    Raises:
        ProtocolError: the leader refuses the member, or speaks another protocol.
        ConnectionLost: the leader closed the connection, or did not answer for `silence_s`.
    """
    await stream.write(member_stream.MAGIC)
    if await stream.read_exactly(len(member_stream.MAGIC), silence_s) != member_stream.MAGIC:
        raise ProtocolError(f"{stream.addr} does not serve members of a broker set")
    challenge = await stream.read_exactly(proofs.CHALLENGE_SIZE, silence_s)
    fields = {"brokerName": broker, HELLO: msgspec.json.encode(hello).decode()}
    if credentials is not None:
        fields = dict(signing.sign(credentials, fields, proofs.signed_content(challenge)))
    await stream.write(member_stream.encode_sized(msgspec.json.encode(fields)))
    size = member_stream.decode_size(await stream.read_exactly(member_stream.SIZE_SIZE, silence_s))
    welcome = member_stream.decode_greeting(await stream.read_exactly(size, silence_s), Welcome)
    if welcome.refusal:
        raise ProtocolError(f"the master {stream.addr} refuses this member: {welcome.refusal}")
    return welcome


async def receive_hello(stream: Stream, access: AccessControl | None, broker: str, within_s: float) -> Hello:
    """Return the greeting of a member that began with MAGIC, after a check of its account if there is an `access`.

    Raises:
        ProtocolError: the greeting is invalid, of another broker, or its account may not replicate `broker`.
        ConnectionLost: the member closed the connection, or sent nothing for `within_s`.
    """
    challenge = secrets.token_bytes(proofs.CHALLENGE_SIZE)
    await stream.write(member_stream.MAGIC, challenge)
    size = member_stream.decode_size(await stream.read_exactly(member_stream.SIZE_SIZE, within_s))
    fields = proofs.decode_proof(await stream.read_exactly(size, within_s))
    _check_fields(stream, fields, challenge, access, broker)
    return member_stream.decode_greeting(fields.get(HELLO, ""), Hello)


async def send_welcome(stream: Stream, welcome: Welcome) -> None:
    """Answer a greeting."""
    await stream.write(member_stream.encode_sized(msgspec.json.encode(welcome)))
