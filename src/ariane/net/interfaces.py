"""Which address of this machine others can reach it by."""

from __future__ import annotations

import ipaddress
import socket


def local_ip() -> str:
    """The address this machine would use towards others; 127.0.0.1 when it has no route. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def is_loopback(address: str) -> bool:
    """Whether only programs of this machine reach a server that listens on `address`; a host name counts by its addresses."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        pass
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(address, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(name.partition("%")[0]).is_loopback for name in found)
