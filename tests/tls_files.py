"""Certificates for tests: an authority, and what it signs."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from ariane.net.listening import certificates
from ariane.net.listening.certificates import KeyPair
from ariane.net.listening.server_tls import CertificateFiles

LOCAL = ("localhost", "127.0.0.1")


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class TestAuthority:
    """An authority with its files in a directory."""

    __test__ = False

    def __init__(self, home: Path) -> None:
        self.home = home
        self.pair = certificates.create("authority", utc_now(), days=2, is_authority=True)
        self.path = home / "ca.pem"
        self.path.write_bytes(self.pair.certificate)

    def issue(self, name: str, *, days: int = 2, names: Sequence[str] = LOCAL) -> KeyPair:
        begin = utc_now() + datetime.timedelta(days=min(days, 0) - 1)  # also of an expired one
        return certificates.create(name, begin, days=abs(days) + 1 if days > 0 else 1, names=names, issuer=self.pair)

    def files(self, name: str, prefix: str = "tls.server", *, days: int = 2) -> CertificateFiles:
        """Write a certificate and its key, and return their paths."""
        cert, key = self.home / f"{name}.pem", self.home / f"{name}.key"
        write_pair(self.issue(name, days=days), cert, key)
        return CertificateFiles(prefix, str(cert), str(key), "", str(self.path))


def write_pair(pair: KeyPair, cert: Path, key: Path) -> None:
    cert.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
