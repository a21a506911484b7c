"""Sends a notification to a web hook: one POST of JSON over HTTP/1.1, without following redirects.

A redirect is an error, because it could lead the document, and the Authorization header, to another host. Link-local addresses
are refused: there, clouds offer credentials of the machine.
"""

from __future__ import annotations

import asyncio
import ssl
from http import HTTPStatus
from urllib.parse import urlsplit

import msgspec

import ariane
from ariane.console.alerts import alert_texts
from ariane.console.alerts.channels import DeliveryFailed, Notification, WebHookTarget, check_peer, masked_url

TIMEOUT_S = 10.0  # of the whole request
STATUS_LINE_MAX = 4_096
_DEFAULT_PORTS = {"http": 80, "https": 443}
_TRANSIENT = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})


async def send_web_hook(target: WebHookTarget, notification: Notification, *, timeout_s: float = TIMEOUT_S) -> None:
    """Send a notification.

    Raises:
        DeliveryFailed: the host did not accept it. The message contains no secret.
    """
    try:
        async with asyncio.timeout(timeout_s):
            status = await _post(target, msgspec.json.encode(alert_texts.payload(notification)))
    except TimeoutError:
        raise DeliveryFailed(f"no response within {timeout_s:.0f} s", is_transient=True) from None
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason or "TLS failed"
        raise DeliveryFailed(f"{masked_url(target.url)}: {reason}", is_transient=False) from None
    except UnicodeError:
        raise DeliveryFailed(f"{masked_url(target.url)}: invalid host name", is_transient=False) from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DeliveryFailed(f"{masked_url(target.url)}: {reason}", is_transient=True) from None
    if 300 <= status < 400:
        reason = f"answered {status}, a redirect; specify the address that it leads to"
        raise DeliveryFailed(reason, is_transient=False)
    if not 200 <= status < 300:
        raise DeliveryFailed(f"answered {status}", is_transient=status >= 500 or status in _TRANSIENT)


async def _post(target: WebHookTarget, body: bytes) -> int:
    """Return the status of the response. Its headers and body are not read: they are of no use and could be endless."""
    parts = urlsplit(target.url)
    host = parts.hostname or ""
    is_tls = parts.scheme == "https"
    port = parts.port or _DEFAULT_PORTS[parts.scheme]
    reader, writer = await asyncio.open_connection(
        host, port, limit=STATUS_LINE_MAX, ssl=ssl.create_default_context() if is_tls else None
    )
    try:
        check_peer(writer.get_extra_info("peername")[0])
        writer.write(_request(target, body))
        await writer.drain()
        line = await reader.readline()
    except ValueError:  # the line exceeds the limit
        raise DeliveryFailed("the response is not HTTP", is_transient=False) from None
    finally:
        writer.transport.abort()  # a regular end could wait for a peer that does not respond
    version, _, rest = line.decode("latin-1").partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
        raise DeliveryFailed("the response is not HTTP" if line else "closed the connection", is_transient=not line)
    return int(rest[:3])


def _request(target: WebHookTarget, body: bytes) -> bytes:
    parts = urlsplit(target.url)
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {parts.netloc}",
        f"User-Agent: ariane/{ariane.__version__}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    if target.authorization:
        lines.append(f"Authorization: {target.authorization}")
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body
