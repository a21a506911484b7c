"""Fixtures of the integration tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a self-signed certificate for 127.0.0.1 and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    home = tmp_path_factory.mktemp("tls")
    openssl = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=peer.example"]
    named = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(home / "key.pem"), "-out", str(home / "cert.pem")]
    subprocess.run([*openssl, *named], check=True, capture_output=True)
    return home / "cert.pem", home / "key.pem"
