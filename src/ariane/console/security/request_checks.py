"""Checks of a request's headers against attacks that other web pages start in the reader's browser.

Host      bound to loopback, only loopback names: a page whose name resolves to 127.0.0.1 (DNS rebinding) sends its own name
Origin    of unsafe requests, this server: a page elsewhere cannot use the reader's log-in or local access
next      after the log-in only a path of this server: a link must not lead elsewhere through the log-in page
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
NEXT_CHARACTERS_MAX = 2_000
HOME = "/"

_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:@/?#]+)(:[0-9]*)?")
_SCHEME_AND_HOST = re.compile(r"https?://[^/?#\\]+")
# A browser removes tabs and line feeds from URLs and treats a backslash as a slash: "/\\evil.example" leads elsewhere.
_LOCAL_PATH = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f]*")
# Headers that proxies add. A request through a proxy is not local, whatever the address of the connection.
_PROXY_HEADERS = ("x-forwarded-for", "x-forwarded-host", "x-real-ip", "forwarded", "via")


def is_loopback_host(host: str) -> bool:
    """Return whether a host name or address, without a port, is the machine itself."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def host_name(authority: str) -> str:
    """Return the host of a Host header, without its port; empty if it is malformed."""
    match = _AUTHORITY.fullmatch(authority)
    return match[1].strip("[]").lower() if match else ""


def is_own_host(headers: Mapping[str, str], bound_host: str) -> bool:
    """Return whether the Host header can name this server.

    Only servers on loopback can say so: the names of others are up to their network, and they demand a log-in.
    """
    if not is_loopback_host(bound_host):
        return True
    name = host_name(headers.get("host", ""))
    return is_loopback_host(name) or (bool(name) and name == bound_host.lower())


def is_through_proxy(headers: Mapping[str, str]) -> bool:
    """Return whether a proxy forwarded the request."""
    return any(name in headers for name in _PROXY_HEADERS)


def is_from_browser(headers: Mapping[str, str]) -> bool:
    """Return whether a browser sent the request: all current ones send one of these with each unsafe request."""
    return "origin" in headers or "sec-fetch-site" in headers


def is_from_own_page(headers: Mapping[str, str]) -> bool:
    """Return whether a request that `is_same_origin` shows its origin: a link in a mail does not, nor does a program."""
    return "origin" in headers or headers.get("sec-fetch-site") == "same-origin"


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Return whether no other origin caused the request. True for programs, which send neither header."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    # Only host and port are compared: behind a proxy that ends TLS this server does not see the scheme.
    authority = origin.partition("://")[2].lower()
    return bool(authority) and authority == headers.get("host", "").lower()


def local_path(text: str | None) -> str:
    """Return a path of this server, with its query, to continue with; the home page if `text` is anything else."""
    is_local = text and len(text) <= NEXT_CHARACTERS_MAX and _LOCAL_PATH.fullmatch(text)
    return text if text and is_local else HOME


def path_after_login(text: str | None) -> str:
    """Return the path to continue with after the log-in: `local_path`, but not the log-in itself."""
    path = local_path(text)
    return HOME if re.split("[?#]", path)[0] in ("/login", "/logout") else path


def page_path(url: str | None) -> str:
    """Return the path and query of a page from its URL, as browsers send it; the host is dropped: a header may name any."""
    return local_path(_SCHEME_AND_HOST.sub("", url or "", count=1))
