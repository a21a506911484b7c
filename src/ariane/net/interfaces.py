"""Addresses of this machine: the one that others reach it by."""

from __future__ import annotations

import ipaddress
import socket


def local_ip() -> str:
    """Return the source address of this machine towards other hosts; 127.0.0.1 without a route. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def reachable_ip(bind_address: str) -> str:
    """Return the IP address at which others reach a server that listens on `bind_address`."""
    try:
        address = ipaddress.ip_address(bind_address)
    except ValueError:
        return "127.0.0.1" if is_loopback(bind_address) else local_ip()
    return local_ip() if address.is_unspecified else bind_address


def ip_of_server(name: str, bind_address: str) -> str:
    """Return the IP address of a server that is registered as `name`; for a host name, the address that it listens on.

    The host name is not resolved: that of a pod may be published only when the pod is ready.
    """
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return reachable_ip(bind_address)
    return name


def is_loopback(address: str) -> bool:
    """Return whether a server that listens on `address` is reachable from this machine only. Host names are resolved."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        pass
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(address, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(name.partition("%")[0]).is_loopback for name in addresses)
