"""TLS of connections to servers: options, their contradictions, and the context that is created from them.

Options have the same names for the Spark connector (`useTls`) and for clients (`use_tls`); errors use the caller's spelling.
A server decides by the first byte of a connection whether it is encrypted, on the same port (reference remoting-protocol 13).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from ariane.errors import ConfigError

Verify = Literal["true", "ca", "false"]


class TlsOptions(Protocol):
    """Options of a client or of the Spark connector. Paths are of PEM files."""

    @property
    def use_tls(self) -> bool: ...

    @property
    def tls_verify(self) -> Verify: ...

    @property
    def tls_ca_file(self) -> str: ...

    @property
    def tls_cert_file(self) -> str: ...

    @property
    def tls_key_file(self) -> str: ...

    @property
    def tls_key_password_file(self) -> str: ...


def camel_case(name: str) -> str:
    """Return the name of an option as the Spark connector spells it."""
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def check_tls(options: TlsOptions, spell: Callable[[str], str] = str) -> None:
    """Raise ConfigError for a contradiction.

    Args:
        options: The options.
        spell: Returns the name that the caller's options have.
    """
    use, verify, ca_file = spell("use_tls"), spell("tls_verify"), spell("tls_ca_file")
    useless = f"has no effect without {use}: set it, or remove this option"
    for name, file in ((ca_file, options.tls_ca_file), (spell("tls_cert_file"), options.tls_cert_file)):
        if file and not options.use_tls:
            raise ConfigError(name, file, useless)
    if options.tls_verify != "true" and not options.use_tls:
        raise ConfigError(verify, options.tls_verify, useless)
    if options.tls_ca_file and options.tls_verify == "false":
        raise ConfigError(ca_file, options.tls_ca_file, f"has no effect with {verify} = false: remove one of them")
    if options.tls_key_file and not options.tls_cert_file:
        fix = f"has no effect without {spell('tls_cert_file')}: set both, or neither"
        raise ConfigError(spell("tls_key_file"), options.tls_key_file, fix)
    if options.tls_key_password_file and not options.tls_cert_file:
        fix = f"has no effect without {spell('tls_cert_file')}: set both, or neither"
        raise ConfigError(spell("tls_key_password_file"), options.tls_key_password_file, fix)


def tls_context(options: TlsOptions, spell: Callable[[str], str] = str) -> ssl.SSLContext | None:
    """Return the TLS context, or None without TLS.

    Raises:
        ConfigError: a certificate or key file cannot be used.
    """
    if not options.use_tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = options.tls_verify == "true"
    context.verify_mode = ssl.CERT_NONE if options.tls_verify == "false" else ssl.CERT_REQUIRED
    key, file = "tls_ca_file", options.tls_ca_file
    try:
        if options.tls_verify != "false":
            if file:
                context.load_verify_locations(file)
            else:
                context.load_default_certs()
        if options.tls_cert_file:
            # Without a file the password is empty: ssl would prompt for one on the terminal.
            password = ""
            if options.tls_key_password_file:
                key, file = "tls_key_password_file", options.tls_key_password_file
                password = Path(file).read_text().rstrip("\r\n")
            key, file = "tls_cert_file", options.tls_cert_file
            context.load_cert_chain(file, options.tls_key_file or None, password=password)
    except (OSError, ValueError) as error:  # ssl.SSLError; a password that is not UTF-8, or too long for OpenSSL
        # The text of a UnicodeDecodeError has a byte of the password.
        reason = error.reason if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None) or error
        expected = "PEM, with a key that is not encrypted or whose password is in " + spell("tls_key_password_file")
        if key == "tls_key_password_file":
            expected = "a text file with the password of the key"
        fix = f"cannot be used on this machine ({reason}): expected {expected}"
        raise ConfigError(spell(key), file, fix) from None
    return context


def tls_fault(error: ssl.SSLError, spell: Callable[[str], str] = str) -> str:
    """Return why a connection was not established, and what to check."""
    names = f"{spell('use_tls')}, {spell('tls_ca_file')} and {spell('tls_verify')}"
    return f"TLS: {error.strerror or error}; check {names}, and that the server accepts TLS"


def certificate_names(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return common name and alternative names of a verified certificate, as `SSLSocket.getpeercert` returns it."""
    if not certificate:
        return ()
    subject = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return tuple(dict.fromkeys([*subject, *(value for _, value in certificate.get("subjectAltName", ()))]))
