"""Signed requests: authentication of the sender by a shared key. [AclClientRPCHook, AclUtils, AclSigner]

    Signature = base64(HMAC-SHA1(secret key, values of all extFields in the order of their names, then the body))

`AccessKey` (and `SecurityToken`) are added to the extFields before signing. Not signed are `Signature` itself and
`_UNIQUE_KEY_QUERY`, which a 4.9.4 broker does not verify either. Reference: remoting-protocol 12.1.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

import msgspec

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105 - the name of a field
SIGNATURE = "Signature"
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"


class Credentials(msgspec.Struct, frozen=True):
    """Keys of an account. The secret key never appears in `repr` or log output."""

    access_key: str
    secret_key: str
    security_token: str = ""

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r}, ...)"

    __str__ = __repr__

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("access_key", self.access_key)]


def sign(credentials: Credentials, fields: Mapping[str, str] | None, body: bytes) -> dict[str, str]:
    """Return `fields` with access key and signature added."""
    all_fields = {**(fields or {}), ACCESS_KEY: credentials.access_key}
    if credentials.security_token:
        all_fields[SECURITY_TOKEN] = credentials.security_token
    all_fields[SIGNATURE] = signature(credentials.secret_key, all_fields, body)
    return all_fields


def verify(secret_key: str, fields: Mapping[str, str], body: bytes) -> bool:
    """Return whether `fields` carry the signature of this key.

    A Java 4.9.4 client also signs the mark of a query by unique key, which a 4.9.4 broker rejects; here both are accepted.
    """
    received = fields.get(SIGNATURE, "").encode()
    expected = signature(secret_key, fields, body).encode()
    if hmac.compare_digest(received, expected):
        return True
    if UNIQUE_KEY_QUERY not in fields:
        return False
    return hmac.compare_digest(received, _digest(secret_key, _content(fields, body, {SIGNATURE})).encode())


def signature(secret_key: str, fields: Mapping[str, str], body: bytes) -> str:
    return _digest(secret_key, _content(fields, body, {SIGNATURE, UNIQUE_KEY_QUERY}))


def _content(fields: Mapping[str, str], body: bytes, without: set[str]) -> bytes:
    """Return the bytes to sign. Names are sorted as Java sorts them, by UTF-16 units."""
    names = sorted(fields.keys() - without, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    return "".join([fields[name] for name in names]).encode("utf-8", "replace") + body


def _digest(secret_key: str, content: bytes) -> str:
    return base64.b64encode(hmac.new(secret_key.encode(), content, hashlib.sha1).digest()).decode()
