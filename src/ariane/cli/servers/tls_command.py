"""`ariane tls`: creates, shows and checks certificates of servers."""

from __future__ import annotations

import datetime
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.options import paths as homes
from ariane.cli.options import shared_options
from ariane.cli.options.option_kinds import path_option
from ariane.cli.output.help_format import create_app
from ariane.errors import ArianeError, ConfigError, ConnectionLost, ProtocolError, UsageError
from ariane.model import host

if TYPE_CHECKING:
    from ariane.net.listening.certificates import CertificateSummary

app = create_app("Manage the certificates of servers.")

CONNECT_TIMEOUT_S = 5.0
DAYS_MAX = 3650

Address = Annotated[str, typer.Argument(parser=shared_options.non_blank, metavar="HOST:PORT", help="Server.")]
CaFile = Annotated[
    Path | None,
    path_option("--tls-ca-file", metavar="FILE", help="PEM file of trusted authorities, instead of the machine's."),
]


class CheckFailed(ArianeError):
    """A server does not present a certificate that clients accept."""


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@app.command(
    "create", "ariane tls create", "ariane tls create --name broker1.example --name 10.0.0.5 --directory certs"
)
def create(
    directory: Annotated[
        Path | None,
        path_option(metavar="DIR", help="Directory of the files.  [default: tls in the home of `ariane up`]"),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="HOST",
            help="Host name or address of the servers; repeatable.  [default: those of loopback]",
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=DAYS_MAX, metavar="DAYS", help="Validity of the certificate.")] = 365,
) -> None:
    """Create an authority and a certificate for servers.

    Existing files are used again: a certificate is replaced if it lacks a name, or expires within 30 days.
    """
    from ariane.net.listening import local_authority

    files = local_authority.ensure(
        directory or homes.default_home() / homes.TLS, _now(), names or local_authority.LOCAL_NAMES, days=days
    )
    typer.echo(f"{'created' if files.is_new else 'using'} {files.cert}, {files.key}")
    typer.echo(f"servers   tls.server.certPath={files.cert}\n          tls.server.keyPath={files.key}")
    typer.echo(f"clients   export ARIANE_TLS=true ARIANE_TLS_CA_FILE={files.ca}")


@app.command("show", "ariane tls show server.pem", "ariane tls show 10.0.0.5:10911")
def show(
    source: Annotated[
        str, typer.Argument(parser=shared_options.non_blank, metavar="FILE|HOST:PORT", help="PEM file, or server.")
    ],
) -> None:
    """Print a certificate, of a file or as a server presents it, without verifying it."""
    if Path(source).exists():
        pem = Path(source).read_bytes()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with _connect(source, context) as connection:
            pem = ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True) or b"").encode()
    for name, text in _rows(_summary(source, pem)):
        typer.echo(f"{name:<12}{text}")


@app.command("check", "ariane tls check 10.0.0.5:10911 --tls-ca-file ca.pem")
def check(address: Address, ca_file: CaFile = None) -> None:
    """Connect as a client does, and verify certificate and host name.

    Exit status 1 if they are not accepted, or expire within 30 days.
    """
    from ariane.net.listening.certificates import WARNING_DAYS

    try:
        context = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    except OSError as error:
        raise UsageError(
            "--tls-ca-file", str(ca_file), f"cannot be used ({error.strerror or error}); expected PEM"
        ) from None
    with _connect(address, context) as connection:
        pem = ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True) or b"").encode()
        version, cipher = connection.version(), connection.cipher()
    ends = _summary(address, pem).validity.ends
    days = (ends - _now()).days
    typer.echo(
        f"{address} is verified: {version}, {cipher[0] if cipher else '?'}, valid until {ends:%Y-%m-%d} ({days} days)"
    )
    if days < WARNING_DAYS:
        raise CheckFailed(f"The certificate of {address} expires in {days} days: replace it")


def _connect(address: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    try:
        name, port = host.parse(address)
    except ProtocolError as error:
        raise UsageError("HOST:PORT", address, f"expected a file or host:port; {error}") from None
    try:
        plain = socket.create_connection((name, port), CONNECT_TIMEOUT_S)
        try:
            return context.wrap_socket(plain, server_hostname=name)
        except OSError:
            plain.close()
            raise
    except ssl.SSLCertVerificationError as error:
        fix = "check --tls-ca-file, and that the certificate names the host"
        raise CheckFailed(f"The certificate of {address} is not accepted: {error.verify_message}; {fix}") from None
    except ssl.SSLError as error:
        fix = "check that it accepts TLS (tls.server.mode)"
        raise CheckFailed(f"{address} does not complete a TLS handshake: {error.reason or error}; {fix}") from None
    except OSError as error:
        raise ConnectionLost(address, error.strerror or str(error)) from None


def _summary(source: str, pem: bytes) -> CertificateSummary:
    from ariane.net.listening import certificates

    try:
        return certificates.summarize(pem)
    except ValueError as error:
        raise ConfigError("certificate", source, f"is not a certificate in PEM: {error}") from None


def _rows(summary: CertificateSummary) -> list[tuple[str, str]]:
    begins, ends = summary.validity
    return [
        ("subject", summary.subject),
        ("issuer", summary.issuer),
        ("names", ", ".join(summary.names) or "none"),
        (
            "valid",
            f"{begins:%Y-%m-%d} to {ends:%Y-%m-%d}: {summary.validity.fault(_now()) or f'{(ends - _now()).days} days left'}",
        ),
        ("sha-256", summary.fingerprint),
    ]
