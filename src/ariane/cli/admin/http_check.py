"""Checks of a console or exporter by its URL, for `ariane doctor`: when its certificate expires, and what another machine without
an account or certificate gets."""

from __future__ import annotations

import datetime
import http.client
import math
import ssl
from collections.abc import Iterator
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

import typer

from ariane.cluster.diagnosis.cluster_checks import check_expiry
from ariane.cluster.diagnosis.findings import ERROR, WARNING, Finding
from ariane.net.interfaces import is_loopback
from ariane.net.listening import certificates

CHECK = "http"
TIMEOUT_S = 10.0


class HttpAnswer(NamedTuple):
    """What a server answered.

    Attributes:
        status: Of a request without an account; None if the server demands a certificate of clients.
        certificate: Of the server, in DER; empty if it is unknown, or the connection is plain.
    """

    status: int | None
    certificate: bytes


def http_url(text: object) -> str:
    """Parse a URL."""
    value = str(text)
    try:
        parts = urlsplit(value)
        is_url = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        is_url = False
    if not is_url:
        raise typer.BadParameter(f"{value}: expected http://HOST:PORT/ or https://HOST:PORT/")
    return value


def check_http(url: str) -> Iterator[Finding]:
    """Find a server that does not respond, whose certificate expires, or that others read without an account or in plain text."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        answer = _request(parts, host)
    except (OSError, http.client.HTTPException) as error:
        fix = "check that it runs, its --bind and --port, and the firewall"
        yield Finding(ERROR, CHECK, url, f"does not respond: {error or type(error).__name__}", fix)
        return
    if answer.certificate:
        yield from _check_certificate(url, answer.certificate)
    if is_loopback(host):
        return
    if parts.scheme == "http":
        fix = "-Dtls.server.certPath=FILE and -Dtls.server.keyPath=FILE, or --bind 127.0.0.1"
        yield Finding(WARNING, CHECK, url, "connections are plain, and other machines reach it", fix)
    if answer.status is not None and answer.status < HTTPStatus.MULTIPLE_CHOICES:
        fix = "client certificates (docs/tls.md), --require-login of the console, or --bind 127.0.0.1"
        yield Finding(WARNING, CHECK, url, "anyone can read it: no account or certificate is needed", fix)


def _check_certificate(url: str, certificate: bytes) -> Iterator[Finding]:
    try:
        validity = certificates.summarize(ssl.DER_cert_to_PEM_cert(certificate).encode()).validity
    except ValueError as error:
        fix = "replace it: clients that verify it refuse to connect"
        yield Finding(ERROR, "certificates", url, f"its TLS certificate cannot be read: {error}", fix)
    else:
        yield from check_expiry(url, math.floor(validity.days_left(datetime.datetime.now(datetime.UTC))))


def _request(parts: SplitResult, host: str) -> HttpAnswer:
    """Return the answer to a request without account; redirects are not followed."""
    if parts.scheme == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # not verified: nothing secret is sent
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, parts.port, timeout=TIMEOUT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT_S)
    certificate = b""
    try:
        connection.connect()
        if isinstance(connection.sock, ssl.SSLSocket):
            certificate = connection.sock.getpeercert(binary_form=True) or b""
        connection.request("GET", parts.path or "/")
        return HttpAnswer(connection.getresponse().status, certificate)
    except (ssl.SSLError, ConnectionError) as error:
        # A server refuses a client without a certificate by an alert: with TLS 1.3 after the handshake, and the end of the
        # connection may overtake the alert. Other errors of the handshake mean something else, such as a plain port.
        if certificate or "ALERT" in str(getattr(error, "reason", "")):
            return HttpAnswer(None, certificate)
        raise
    finally:
        connection.close()
