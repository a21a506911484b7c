"""The proof of a slave, before its replication stream (haAclEnable): both sides. `protocol.records.replication_proof`"""

from __future__ import annotations

import secrets

from ariane.access.access_control import AccessControl
from ariane.errors import ProtocolError
from ariane.net.streams import Stream
from ariane.protocol import signing
from ariane.protocol.records import replication_proof as proofs
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


async def check_proof(stream: Stream, access: AccessControl, broker: str, within_s: float) -> None:
    """Check that the account of a slave may replicate `broker`.

    Raises:
        ProtocolError: it may not, or the slave sent no proof.
        ConnectionLost: the slave closed the connection, or sent nothing for `within_s`.
    """
    if await stream.read_exactly(len(proofs.MAGIC), within_s) != proofs.MAGIC:
        raise ProtocolError(
            f"slave {stream.addr} proves no account: set haAclEnable=true, or false here if it is Java's"
        )
    challenge = secrets.token_bytes(proofs.CHALLENGE_SIZE)
    await stream.write(challenge)
    size = proofs.proof_size(await stream.read_exactly(proofs.SIZE_SIZE, within_s))
    fields = proofs.decode_proof(await stream.read_exactly(size, within_s))
    if fields.get("brokerName") != broker:
        raise ProtocolError(f"slave {stream.addr} is one of {fields.get('brokerName')!r}, not of {broker}")
    denial = access.state.acl.broker_denial(broker, fields, proofs.signed_content(challenge))
    if denial is not None:
        raise ProtocolError(f"slave {stream.addr} is refused: {denial}")
