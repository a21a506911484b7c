"""Signatures of calls, MQv2-HMAC-SHA1: which account makes a call. [AuthenticationHelper, DefaultAuthenticationContextBuilder]

    authorization: MQv2-HMAC-SHA1 Credential=<access key>/…, SignedHeaders=x-mq-date-time, Signature=<hex>
    Signature = HMAC-SHA1(secret key, value of x-mq-date-time), in hexadecimal

The date is not compared with a clock: clients write their local time, marked as UTC.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping

from ariane.protocol.signing import Credentials
from ariane.proxy.conversion.grpc_statuses import CallRefused, StatusCode

AUTHORIZATION = "authorization"
DATE_TIME = "x-mq-date-time"
SHOWN_MAX = 100  # characters of a name in a text


def access_key_of(metadata: Mapping[str, str]) -> str:
    """Return the access key that a call names; empty without one."""
    return _fields(metadata.get(AUTHORIZATION, "")).get("Credential", "").partition("/")[0]


def verify(metadata: Mapping[str, str], secret_key: Callable[[str], str | None]) -> Credentials | None:
    """Return the keys of the account that has signed a call; None if it is not signed.

    Args:
        metadata: Headers of the call.
        secret_key: Returns the secret key of an account, None without one.

    Raises:
        CallRefused: the account does not exist, or has not signed the call.
    """
    access_key = access_key_of(metadata)
    if not access_key:
        return None
    secret = secret_key(access_key)
    if secret is None:
        raise CallRefused(StatusCode.UNAUTHORIZED, f"User:{access_key[:SHOWN_MAX]} is not found.")
    date = metadata.get(DATE_TIME)
    if not date:
        raise CallRefused(StatusCode.UNAUTHORIZED, "datetime is null.")
    expected = hmac.new(secret.encode(), date.encode(), hashlib.sha1).hexdigest()
    received = _fields(metadata[AUTHORIZATION]).get("Signature", "").lower()
    if not hmac.compare_digest(expected.encode(), received.encode()):
        raise CallRefused(StatusCode.UNAUTHORIZED, "check signature failed.")
    return Credentials(access_key, secret)


def _fields(header: str) -> dict[str, str]:
    _, _, rest = header.partition(" ")
    pairs = (part.strip().partition("=") for part in rest.split(","))
    return {name: value for name, _, value in pairs}
