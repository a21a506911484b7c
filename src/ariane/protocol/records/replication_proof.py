"""The proof of a slave that it belongs to the cluster, before the replication stream. Not in Java; without I/O.

slave → master   8 bytes MAGIC: as a report it would be negative, which no slave sends
master → slave   32 bytes challenge, random
slave → master   i32 size | fields: JSON of a request's extFields, signed over the challenge
then             the stream of `replication`, which the slave begins
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from struct import Struct

import msgspec

from ariane.errors import ProtocolError

MAGIC = b"\xffARIANE\x01"
CHALLENGE_SIZE = 32
PROOF_MAX = 4_096  # bytes of the fields
_SIZE = Struct(">i")
SIZE_SIZE = _SIZE.size


def signed_content(challenge: bytes) -> bytes:
    """Return the body of the signature: a digest, so that a false master cannot choose what a slave signs."""
    return hashlib.sha256(b"ariane replication" + challenge).digest()


def encode_proof(fields: Mapping[str, str]) -> bytes:
    data = msgspec.json.encode(fields)
    return _SIZE.pack(len(data)) + data


def proof_size(data: bytes) -> int:
    """Return the bytes of the fields.

    Raises:
        ProtocolError: there are none, or too many.
    """
    (size,) = _SIZE.unpack(data)
    if not 0 < size <= PROOF_MAX:
        raise ProtocolError(f"Invalid proof of a slave: {size} bytes, expected 1 to {PROOF_MAX}")
    return int(size)


def decode_proof(data: bytes) -> dict[str, str]:
    """Return the fields of a proof.

    Raises:
        ProtocolError: they are not texts by name.
    """
    try:
        return msgspec.json.decode(data, type=dict[str, str])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"Invalid proof of a slave: {error}") from None
