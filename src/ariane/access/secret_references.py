"""Secret keys outside plain_acl.yml: an account refers to a file or a variable that holds its key. Not in 4.9.4.

secretKeyFile: /run/secrets/shop     contents of the file, without white space at its ends
secretKeyVariable: SHOP_SECRET       environment variable of the broker
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ariane.errors import ConfigError

SECRET = "secretKey"  # noqa: S105 - the name of a key
SECRET_FILE = "secretKeyFile"  # noqa: S105 - as above
SECRET_VARIABLE = "secretKeyVariable"  # noqa: S105 - as above
REFERENCES = (SECRET_FILE, SECRET_VARIABLE)
SECRET_BYTES_MAX = 4_096


def secret_files(document: Mapping[str, Any]) -> list[str]:
    """Return the files that the accounts of a document refer to."""
    return [str(entry[SECRET_FILE]) for entry in _entries(document) if SECRET_FILE in entry]


def with_secrets(path: str, document: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the document with the secret keys that it refers to.

    Raises:
        ConfigError: a file or variable is missing or empty, or an account has several keys; names them, and shows no secret.
    """
    if not any(key in entry for entry in _entries(document) for key in REFERENCES):
        return dict(document)
    accounts = [
        _resolved(path, entry, environment) if isinstance(entry, dict) else entry for entry in document["accounts"]
    ]
    return {**document, "accounts": accounts}


def _entries(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    accounts = document.get("accounts")
    return [entry for entry in accounts if isinstance(entry, dict)] if isinstance(accounts, list) else []


def _resolved(path: str, entry: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    keys = [key for key in (SECRET, *REFERENCES) if key in entry]
    if len(keys) > 1:
        raise ConfigError(
            "accounts", str(entry.get("accessKey")), f"{path}: {' and '.join(keys)}: expected one of them"
        )
    if keys == [SECRET] or not keys:
        return entry
    name = str(entry[keys[0]])
    secret = _read(path, entry, name) if keys == [SECRET_FILE] else environment.get(name, "")
    if not secret:
        fault = "the file is empty" if keys == [SECRET_FILE] else "the broker has no such environment variable"
        raise ConfigError("accounts", str(entry.get("accessKey")), f"{path}: {keys[0]} {name}: {fault}")
    return {**entry, SECRET: secret}


def _read(path: str, entry: dict[str, Any], name: str) -> str:
    try:
        with Path(name).open("rb") as file:
            data = file.read(SECRET_BYTES_MAX + 1)
        if len(data) > SECRET_BYTES_MAX:
            raise ConfigError(
                "accounts", str(entry.get("accessKey")), f"{path}: {name} has more than {SECRET_BYTES_MAX} bytes"
            )
        return data.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError("accounts", str(entry.get("accessKey")), f"{path}: cannot read {name}: {reason}") from None
