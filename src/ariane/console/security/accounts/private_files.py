"""Small files that only the user of the console may read: accounts, sessions, alert rules."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from ariane.errors import ConfigError
from ariane.private_files import PRIVATE_MODE, replace_private

PRIVATE_DIRECTORY_MODE = 0o700

T = TypeVar("T")


def write_private(path: Path, data: bytes) -> None:
    """Replace the content of a file that only this user may read."""
    create_private_directory(path.parent)
    replace_private(path, data)


def read_or_create_key(path: Path) -> str:
    """Return the random key of a file, which is created if it does not exist or is empty."""
    try:
        key = path.read_text().strip()
    except FileNotFoundError:
        key = ""
    if not key:
        key = secrets.token_urlsafe(32)
        write_private(path, key.encode())
    return key


def write_document(path: Path, document: msgspec.Struct) -> None:
    """Write a document as indented JSON."""
    write_private(path, msgspec.json.format(msgspec.json.encode(document), indent=1))


def read_document(path: Path, kind: type[T]) -> T | None:
    """Return the document of a file; None if it does not exist.

    Raises:
        ConfigError: the file cannot be read or is damaged. It is never replaced by an empty one.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        fix = f"cannot read it: {error}; repair it, or move it away to start without its contents"
        raise ConfigError("console", str(path), fix) from None


def create_private_directory(path: Path) -> None:
    """Create a directory with its parents; only this user may enter it."""
    path.mkdir(mode=PRIVATE_DIRECTORY_MODE, parents=True, exist_ok=True)


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file against other processes: the console and `ariane console user` change the same accounts."""
    create_private_directory(path.parent)
    lock = path.with_name(f"{path.name}.lock")
    with os.fdopen(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE), "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
