"""Checks of a console or exporter by its URL, for `ariane doctor`: what another machine without an account or certificate gets."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from http import HTTPStatus
from urllib.parse import SplitResult, urlsplit

import typer

from ariane.cluster.diagnosis.findings import ERROR, WARNING, Finding
from ariane.net.interfaces import is_loopback

CHECK = "http"
TIMEOUT_S = 10.0


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
    """Find a server that does not respond, and one that other machines can read without an account or in plain text."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        status = _status(parts, host)
    except ssl.SSLError:
        return  # it demands a certificate
    except (OSError, http.client.HTTPException) as error:
        fix = "check that it runs, its --bind and --port, and the firewall"
        yield Finding(ERROR, CHECK, url, f"does not respond: {error or type(error).__name__}", fix)
        return
    if is_loopback(host):
        return
    if parts.scheme == "http":
        fix = "-Dtls.server.certPath=FILE and -Dtls.server.keyPath=FILE, or --bind 127.0.0.1"
        yield Finding(WARNING, CHECK, url, "connections are plain, and other machines reach it", fix)
    if status < HTTPStatus.MULTIPLE_CHOICES:
        fix = "client certificates (docs/tls.md), --require-login of the console, or --bind 127.0.0.1"
        yield Finding(WARNING, CHECK, url, "anyone can read it: no account or certificate is needed", fix)


def _status(parts: SplitResult, host: str) -> int:
    """Return the status of a request without account; redirects are not followed."""
    if parts.scheme == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # not verified: nothing secret is sent
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, parts.port, timeout=TIMEOUT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", parts.path or "/")
        return connection.getresponse().status
    finally:
        connection.close()
