"""Secrets that tests plant, and the search for them in outputs: as they are, in base64, in hexadecimal and as part of a URL."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus


def planted(name: str) -> str:
    """Return a secret whose forms differ from it."""
    return f"PLANTED/{name}+secret?"


def forms(secret: str) -> set[bytes]:
    """Return the texts by which a secret is found: also within a longer text that was encoded as a whole."""
    data = secret.encode()
    inner = {base64.b64encode(b"\0" * shift + data)[4 : -4 if (shift + len(data)) % 3 else None] for shift in range(3)}
    texts = {secret, quote(secret), quote(secret, safe=""), quote_plus(secret), data.hex(), data.hex().upper()}
    return inner | {text.encode() for text in texts} | {base64.urlsafe_b64encode(data).rstrip(b"=")[:-1]}


def leaks(outputs: Mapping[str, bytes], secrets: Iterable[str]) -> list[str]:
    """Return which output contains which secret."""
    of_secrets = {secret: forms(secret) for secret in secrets}
    return [
        f"{name}: {secret}"
        for name, data in outputs.items()
        for secret, texts in of_secrets.items()
        if any(text in data for text in texts)
    ]


def files_below(directory: Path) -> dict[str, bytes]:
    """Return the contents of all files of a directory, by path."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
