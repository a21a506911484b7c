"""Known devices: a browser that has logged in to an account keeps a signed id, so that the failures of others do not slow it down.

The id does not replace the password. (OWASP describes this as device cookies.)
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from ariane.console.security.accounts.private_files import read_or_create_key


class KnownDevices:
    """Issues and checks the ids.

    Args:
        key_path: File of the key that signs them; created by the first log-in.
    """

    def __init__(self, key_path: Path) -> None:
        self._key_path = key_path
        self._key = b""  # read when it is first needed

    def issue(self, account: str) -> str:
        """Return the token of a new device of an account."""
        device = secrets.token_urlsafe(16)
        return f"{device}.{self._sign(account, device)}"

    def find(self, account: str, token: str) -> str:
        """Return the id of a token; empty if it was not issued for this account."""
        device, _, signature = token.partition(".")
        is_valid = bool(device) and hmac.compare_digest(signature.encode(), self._sign(account, device).encode())
        return device if is_valid else ""

    def _sign(self, account: str, device: str) -> str:
        self._key = self._key or read_or_create_key(self._key_path).encode()
        text = f"device\0{account}\0{device}".encode(errors="replace")
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()
