"""How servers are reached, for reading and for writing alike: the options that say it, and what connections make of them."""

from __future__ import annotations

import ssl
from typing import Literal

import msgspec

from ariane.errors import ConfigError, ProtocolError
from ariane.model import host
from ariane.model.topic import group_name_fault
from ariane.protocol.signing import Credentials
from ariane.spark.option_parsing import Readers, Secret, boolean_option, integer_option, list_option, secret_option

DEFAULT_GROUP = "ariane-spark"


class ClusterAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, how, and for how long."""

    namesrv: tuple[str, ...] = ()
    """Name servers, `host:port` joined by `;`. Needed."""
    group_id: str = DEFAULT_GROUP
    """Group that the brokers see: in pulls, whose offsets `commitOffsets` commits; the producer group in what is sent."""
    timeout_ms: int = 10_000
    """ms to wait for an answer."""
    retries: int = 30
    """How often a request is tried again, at most a second apart, while a broker is away."""
    access_key: str = ""
    """Account that signs requests, for brokers with aclEnable; empty: they are not signed."""
    secret_key: Secret = Secret()
    """Its key. It is in no text made of the options."""
    security_token: Secret = Secret()
    """Its token, if it is a temporary account."""
    use_tls: bool = False
    """Whether connections are encrypted, to name servers and brokers alike."""
    tls_ca_file: str = ""
    """PEM file of the authorities to trust, on every machine; empty: those of the machine."""
    tls_cert_file: str = ""
    """PEM file of the certificate to show to servers that ask for one (with its key, or `tlsKeyFile` has it)."""
    tls_key_file: str = ""
    """PEM file of its key, not encrypted."""
    tls_verify: Literal["true", "ca", "false"] = "true"
    """`true`: the server's certificate and host name are checked; `ca`: its certificate alone, as brokers register by
    address; `false`: neither."""


def _verify(name: str, text: str) -> str:
    if text.lower() not in ("true", "ca", "false"):
        raise ConfigError(name, text, "use true, ca (the certificate, not the host name) or false")
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
    """ConfigError for what does not go together, or cannot be."""
    if not access.namesrv:
        raise ConfigError("namesrv", "", 'is needed: .option("namesrv", "host:port")')
    for addr in access.namesrv:
        try:
            host.parse(addr)
        except ProtocolError as error:
            raise ConfigError("namesrv", addr, str(error)) from None
    if fault := group_name_fault(access.group_id):
        raise ConfigError("groupId", access.group_id, fault)
    if bool(access.access_key) != bool(access.secret_key):
        missing = "secretKey" if access.access_key else "accessKey"
        raise ConfigError(missing, "", "accessKey and secretKey are given together or not at all")
    if access.security_token and not access.access_key:
        raise ConfigError(
            "securityToken", "", "signs nothing without accessKey and secretKey: give them, or leave it out"
        )
    for name, file in (("tlsCaFile", access.tls_ca_file), ("tlsCertFile", access.tls_cert_file)):
        if file and not access.use_tls:
            raise ConfigError(name, file, "connections are encrypted with useTls = true only")
    if access.tls_verify != "true" and not access.use_tls:
        raise ConfigError("tlsVerify", access.tls_verify, "connections are encrypted with useTls = true only")
    if access.tls_ca_file and access.tls_verify == "false":
        raise ConfigError("tlsCaFile", access.tls_ca_file, "is not used with tlsVerify = false: leave one of them out")
    if access.tls_key_file and not access.tls_cert_file:
        raise ConfigError("tlsKeyFile", access.tls_key_file, "tlsCertFile is missing")


def credentials(access: ClusterAccess) -> Credentials | None:
    """What requests are signed with; None when they are not."""
    # As plain texts: what encodes headers knows no others.
    account = (access.access_key, str(access.secret_key), str(access.security_token))
    return Credentials(*account) if access.access_key else None


def tls_context(access: ClusterAccess) -> ssl.SSLContext | None:
    """How connections are encrypted; None when they are not. ConfigError when a file cannot be used."""
    if not access.use_tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = access.tls_verify == "true"
    context.verify_mode = ssl.CERT_NONE if access.tls_verify == "false" else ssl.CERT_REQUIRED
    key, file = "tlsCaFile", access.tls_ca_file
    try:
        if access.tls_verify != "false":
            if file:
                context.load_verify_locations(file)
            else:
                context.load_default_certs()
        if access.tls_cert_file:
            key, file = "tlsCertFile", access.tls_cert_file
            # Without a password of its own, ssl would ask for one at the terminal.
            context.load_cert_chain(file, access.tls_key_file or None, password=lambda: "")
    except OSError as error:  # ssl.SSLError is one
        fix = f"cannot be used on this machine ({error.strerror or error}); it has to be PEM, its key not encrypted"
        raise ConfigError(key, file, fix) from None
    return context
