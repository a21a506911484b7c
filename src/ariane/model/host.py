"""Socket addresses in the form of stored records: 4 or 16 bytes of IP, then the port as a 4-byte integer."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from ariane.errors import ProtocolError

PACKED_V4 = 8
PACKED_V6 = 20


@lru_cache(maxsize=4096)
def pack(ip: str, port: int) -> bytes:
    """Return `ip` and `port` as bytes: 8 for IPv4, 20 for IPv6.

    A scope id (`%eth0`) is dropped, a mapped IPv4 address unwrapped.
    """
    address = ip_address(ip.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.packed + port.to_bytes(4, "big")


@lru_cache(maxsize=4096)
def unpack(packed: bytes) -> tuple[str, int]:
    """Return IP and port of a packed address."""
    if len(packed) == PACKED_V4:
        ip: IPv4Address | IPv6Address = IPv4Address(packed[:4])
    elif len(packed) == PACKED_V6:
        ip = IPv6Address(packed[:16])
    else:
        raise ProtocolError(f"Invalid packed host of {len(packed)} bytes: expected 8 or 20")
    return str(ip), int.from_bytes(packed[-4:], "big")


def text(packed: bytes) -> str:
    """Return a packed address as `ip:port`, with an IPv6 address in brackets."""
    ip, port = unpack(packed)
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def ip_of(addr: str) -> str:
    """Return the IP address of `ip:port` or `[v6]:port`."""
    address, colon, port = addr.rpartition(":")
    return (address if colon and port.isdigit() else addr).strip("[]")


def parse(addr: str) -> tuple[str, int]:
    """Split `host:port` (also `[v6]:port`), the form used in routes and options."""
    host, colon, port = addr.strip().rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not colon or not host or not is_number or not 0 < int(port) < 65536:
        raise ProtocolError(f"Invalid address {addr!r}: expected host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
