"""Masks that responses and tools show instead of secret keys. Pure.

    ********3fa      eight asterisks and a check of 12 bits

Equal keys of an account have equal masks on all servers, so that a tool can report servers whose keys differ. The check has 12 bits
only, and always the same ones: whatever computing power guesses a key, a mask never confirms a guess, because one of 4,096 guesses
fits it. Brokers never take a mask for a key: tools send back what they read when they edit an account.
"""

from __future__ import annotations

import hashlib
import re

HIDDEN = "********"
CHECK_DIGITS = 3  # hexadecimal

_MASK = re.compile(rf"{re.escape(HIDDEN)}[0-9a-f]{{0,{CHECK_DIGITS}}}\Z")


def mask_of(access_key: str, secret_key: str) -> str:
    """Return the mask of an account's secret key; a mask stays as it is, and so does an empty text."""
    if not secret_key or is_mask(secret_key):
        return secret_key
    content = f"{access_key}\0{secret_key}".encode(errors="surrogatepass")
    return HIDDEN + hashlib.sha256(content).hexdigest()[:CHECK_DIGITS]


def is_mask(text: str | None) -> bool:
    """Return whether a text is a mask, and no secret key."""
    return text is not None and _MASK.match(text) is not None
