"""Passwords of console accounts: rules for new ones, and their hashes.

scrypt$N$r$p$SALT$HASH      salt and hash in Base64; the parameters are stored so that they can be raised later
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os

from ariane.errors import ConfigError

PASSWORD_CHARACTERS_MIN = 10
PASSWORD_BYTES_MAX = 1024  # hashing an arbitrarily long password would cost arbitrarily much

# 32 MiB and about 0.2 s for a guess (OWASP's password storage recommendation for scrypt).
COST, _BLOCK_SIZE, _PARALLELISM = 2**15, 8, 3
_MEMORY_MAX = 64 * 1024 * 1024
_SALT_BYTES = 16
_HASH_BYTES = 32


def check_new_password(name: str, password: str) -> None:
    """Check the rules for new passwords.

    Raises:
        ConfigError: the password is too short, too long or the name of its account. The message does not contain it.
    """
    if len(password) < PASSWORD_CHARACTERS_MIN:
        raise ConfigError("password", None, f"expected at least {PASSWORD_CHARACTERS_MIN} characters")
    if len(password.encode()) > PASSWORD_BYTES_MAX:
        raise ConfigError("password", None, f"expected at most {PASSWORD_BYTES_MAX} bytes")
    if password.casefold().strip() == name.casefold():
        raise ConfigError("password", None, "expected another text than the name of the account")


def hash_password(password: str) -> str:
    """Return the salted hash of a password."""
    salt = os.urandom(_SALT_BYTES)
    digest = _scrypt(password, salt, COST, _BLOCK_SIZE, _PARALLELISM)
    texts = (base64.b64encode(value).decode() for value in (salt, digest))
    return "$".join(["scrypt", str(COST), str(_BLOCK_SIZE), str(_PARALLELISM), *texts])


def verify_password(password: str, stored: str) -> bool:
    """Return whether a password has the stored hash. The comparison takes the same time for every wrong password."""
    kind, cost, block_size, parallelism, salt, digest = stored.split("$")
    if kind != "scrypt":
        raise ConfigError("accounts", kind, "expected a password hash of scrypt; set the password again")
    if len(password.encode(errors="replace")) > PASSWORD_BYTES_MAX:
        return False
    computed = _scrypt(password, base64.b64decode(salt), int(cost), int(block_size), int(parallelism))
    return hmac.compare_digest(computed, base64.b64decode(digest))


def _scrypt(password: str, salt: bytes, cost: int, block_size: int, parallelism: int) -> bytes:
    # "replace" only matters for lone surrogates, which no form and no header can contain legally.
    secret = password.encode(errors="replace")
    return hashlib.scrypt(secret, salt=salt, n=cost, r=block_size, p=parallelism, maxmem=_MEMORY_MAX, dklen=_HASH_BYTES)


class PasswordVerifier:
    """Verifies passwords in a thread, one at a time, and as slowly for unknown accounts as for known ones."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()  # two at once leave no core of a small machine to the pages of others
        self._absent: str | None = None  # hash that stands for accounts that do not exist

    async def verify(self, password: str, stored: str | None) -> bool:
        """Return whether the password has the stored hash.

        Args:
            password: Password of a log-in.
            stored: Hash of the account; None if there is no such account: the result is then False, after the same time.
        """
        async with self._turn:
            if stored is None and self._absent is None:
                self._absent = await asyncio.to_thread(hash_password, base64.b64encode(os.urandom(18)).decode())
            is_correct = await asyncio.to_thread(verify_password, password, stored or self._absent or "")
        return is_correct and stored is not None
