"""Options for access to servers, shared by source and sink, and the credentials and TLS contexts created from them."""

from __future__ import annotations

import ssl
from typing import Literal

import msgspec

from ariane.errors import ConfigError, ProtocolError
from ariane.model import host
from ariane.model.topic import group_name_fault
from ariane.net import tls
from ariane.net.tls import camel_case, check_tls
from ariane.protocol.signing import Credentials
from ariane.spark.option_parsing import Readers, Secret, boolean_option, integer_option, list_option, secret_option

DEFAULT_GROUP = "ariane-spark"


class ClusterAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses, credentials, encryption and time limits of requests."""

    namesrv: tuple[str, ...] = ()
    """Required. Name servers, `host:port` separated by `;`."""
    group_id: str = DEFAULT_GROUP
    """Group that brokers see: the consumer group of pulls and of `commitOffsets`, the producer group of sent messages."""
    timeout_ms: int = 10_000
    """Time limit for a response, in ms."""
    retries: int = 30
    """Maximum number of retries of a request, at most a second apart, while a server is unavailable."""
    access_key: str = ""
    """Account for brokers with aclEnable; empty: requests are not signed."""
    secret_key: Secret = Secret()
    """Key of the account; never part of a message or log line."""
    security_token: Secret = Secret()
    """Token of a temporary account."""
    use_tls: bool = False
    """Whether to encrypt connections to name servers and brokers."""
    tls_ca_file: str = ""
    """PEM file of trusted authorities, at the same path on every machine; empty: the machine's defaults."""
    tls_cert_file: str = ""
    """PEM file of the client certificate; may contain its key, too."""
    tls_key_file: str = ""
    """PEM file of the client certificate's key."""
    tls_key_password_file: str = ""
    """File with the password of that key, at the same path on every machine; empty: the key is not encrypted."""
    tls_verify: Literal["true", "ca", "false"] = "true"
    """`true`: check the server's certificate and host name; `ca`: check the certificate only, because brokers register by address;
    `false`: check neither."""


def _verify(name: str, text: str) -> str:
    if text.lower() not in ("true", "ca", "false"):
        raise ConfigError(name, text, "expected true, ca (certificate without host name) or false")
    return text.lower()


ALIASES = {"nameserver": "namesrv", "group": "groupid"}
READERS: Readers = {
    "namesrv": list_option(";"),
    "timeoutms": integer_option(1),
    "retries": integer_option(0),
    "secretkey": secret_option,
    "securitytoken": secret_option,
    "usetls": boolean_option,
    "tlsverify": _verify,
}


def validate(access: ClusterAccess) -> None:
    """Raise ConfigError for a missing or invalid value, or a contradiction."""
    if not access.namesrv:
        raise ConfigError("namesrv", "", 'is required: .option("namesrv", "host:port")')
    for addr in access.namesrv:
        try:
            host.parse(addr)
        except ProtocolError as error:
            raise ConfigError("namesrv", addr, str(error)) from None
    if fault := group_name_fault(access.group_id):
        raise ConfigError("groupId", access.group_id, fault)
    if bool(access.access_key) != bool(access.secret_key):
        missing = "secretKey" if access.access_key else "accessKey"
        raise ConfigError(missing, "", "accessKey and secretKey are required together: set both, or neither")
    if access.security_token and not access.access_key:
        raise ConfigError("securityToken", "", "has no effect without accessKey and secretKey: set them, or remove it")
    check_tls(access, camel_case)


def credentials(access: ClusterAccess) -> Credentials | None:
    """Return the credentials for signing requests, or None without an account."""
    # Converted to plain str: the header encoder accepts no subclass.
    account = (access.access_key, str(access.secret_key), str(access.security_token))
    return Credentials(*account) if access.access_key else None


def tls_context(access: ClusterAccess) -> ssl.SSLContext | None:
    """Return the TLS context, or None without TLS. Raise ConfigError if a file cannot be used. [net.tls.tls_context]"""
    return tls.tls_context(access, camel_case)
