"""Records of a server's audit log as lines. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from ariane.protocol.requests.audit import AuditRecord

NAME_MAX = 255  # characters of account, certificate, address and request
TEXT_MAX = 1_000  # characters of resource and reason

_NUMBER = re.compile(rb'\{"number":(\d+),')


class RequestAccount(NamedTuple):
    """The account of a request, and how it is proven: "signature", "certificate", or empty: not at all."""

    account: str
    proof: str = ""


def encode(record: AuditRecord) -> bytes:
    """Return a record as a line."""
    return msgspec.json.encode(record) + b"\n"


def decode(line: bytes) -> AuditRecord | None:
    """Return the record of a line; None for a line that a crash tore."""
    try:
        return msgspec.json.decode(line, type=AuditRecord)
    except msgspec.DecodeError:
        return None


def number_of(line: bytes) -> int:
    """Return the number of a line's record without decoding it; 0 for a line that a crash tore."""
    match = _NUMBER.match(line)
    return int(match[1]) if match else 0


def bounded(record: AuditRecord) -> AuditRecord:
    """Return a record with texts of bounded length: peers without an account choose most of them."""
    return msgspec.structs.replace(
        record,
        request=cut(record.request, NAME_MAX),
        resource=cut(record.resource, TEXT_MAX),
        account=cut(record.account, NAME_MAX),
        certificate=cut(record.certificate, NAME_MAX),
        address=cut(record.address, NAME_MAX),
        reason=cut(record.reason, TEXT_MAX),
    )


def cut(text: str, characters_max: int) -> str:
    """Return the beginning of a text, which a file can hold: peers can send lone surrogates in JSON."""
    return text[:characters_max].encode(errors="replace").decode()
