"""A certificate authority of this machine, and the certificate of its servers: created once, in a directory of the user.

DIR/ca.pem      certificate of the authority, for clients      DIR/ca.key       its private key
DIR/server.pem  certificate of the servers, and the authority  DIR/server.key   its private key (PKCS#8)
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ariane.errors import ConfigError
from ariane.net.listening import certificates
from ariane.net.listening.certificates import WARNING_DAYS, KeyPair
from ariane.private_files import replace_private

AUTHORITY = "Ariane local authority"
AUTHORITY_DAYS = 3650
SERVER_DAYS = 365
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class LocalFiles(NamedTuple):
    """PEM files for servers, and for clients (`ca`)."""

    ca: Path
    cert: Path
    key: Path
    is_new: bool
    """Whether the certificate of the servers was created by this call."""


def ensure(
    directory: Path, now: datetime.datetime, names: Sequence[str] = LOCAL_NAMES, *, days: int = SERVER_DAYS
) -> LocalFiles:
    """Return the files of a directory; those that are missing are created, and a certificate that expires soon is replaced.

    Args:
        directory: Created if it does not exist.
        now: Begin of the validity of new certificates.
        names: Host names and addresses of the servers.
        days: Validity of the certificate of the servers.

    Raises:
        ConfigError: a file cannot be read or written.
        MissingPackage: `cryptography` is not installed.
    """
    try:
        return _ensure(directory, now, names, days)
    except OSError as error:
        raise ConfigError(
            "directory", str(directory), f"{error.filename}: {error.strerror}; choose another one"
        ) from None
    except ValueError as error:
        fix = (
            f"contains a file that is neither a certificate nor a key ({error}); remove it, or choose another directory"
        )
        raise ConfigError("directory", str(directory), fix) from None


def _ensure(directory: Path, now: datetime.datetime, names: Sequence[str], days: int) -> LocalFiles:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = LocalFiles(directory / "ca.pem", directory / "server.pem", directory / "server.key", is_new=False)
    ca_key = directory / "ca.key"
    if files.ca.exists() and ca_key.exists():
        authority = KeyPair(files.ca.read_bytes(), ca_key.read_bytes())
        is_current = files.cert.exists() and files.key.exists() and _is_current(files.cert, now, names)
    else:
        authority = certificates.create(AUTHORITY, now, days=AUTHORITY_DAYS, is_authority=True)
        replace_private(ca_key, authority.key)
        replace_private(files.ca, authority.certificate)
        is_current = False
    if is_current:
        return files
    server = certificates.create(names[0], now, days=days, names=names, issuer=authority)
    replace_private(files.key, server.key)
    replace_private(files.cert, server.certificate + authority.certificate)
    return files._replace(is_new=True)


def _is_current(cert: Path, now: datetime.datetime, names: Sequence[str]) -> bool:
    summary = certificates.summarize(cert.read_bytes())
    return summary.validity.ends - now > datetime.timedelta(days=WARNING_DAYS) and set(names) <= set(summary.names)
