"""The documents config/*.json: state that survives a restart, in Java's form, read and written whole. [ConfigManager]

A write replaces the file atomically and retains the former content as `.bak`. What a start does with a file:

    complete                               it is read
    missing, complete .bak                 the .bak is read, with a warning (Java replaces a file in two steps)
    empty or damaged, complete .bak        the .bak is read, with an error; the file is retained as .damaged
    missing, and so is its .bak            an empty document, unless the change log mentions it; then refused
    empty or damaged, no complete .bak     refused: state is never dropped silently
    a directory, or not readable           refused
"""

from __future__ import annotations

import logging
import zlib
from pathlib import PurePath
from typing import Generic, NamedTuple, TypeVar

import msgspec

from ariane.errors import ProtocolError, StoreError
from ariane.protocol import fastjson
from ariane.store.disk.files import Disk, read_error, read_whole, write_atomic

log = logging.getLogger("ariane.broker.state")

T = TypeVar("T", bound=msgspec.Struct)

TOPICS = "topics.json"
GROUPS = "subscriptionGroup.json"
OFFSETS = "consumerOffset.json"
DELAY_OFFSETS = "delayOffset.json"
FILTERS = "consumerFilter.json"
LOCKS = "queueLocks.json"
DELETED = "deletedTopics.json"
POP = "popState.json"
MODES = "messageRequestMode.json"


class LoadedDocument(NamedTuple, Generic[T]):
    """A document and the checksum of its content; None if neither the file nor its `.bak` exists."""

    document: T
    crc: int | None


def load(disk: Disk, directory: str, name: str, kind: type[T]) -> T:
    """Return the document, an empty one if neither the file nor its `.bak` exists."""
    return read(disk, directory, name, kind).document


def read(disk: Disk, directory: str, name: str, kind: type[T], *, is_expendable: bool = False) -> LoadedDocument[T]:
    """Return the document with the checksum of its content.

    Args:
        is_expendable: Whether clients send the content again: then a damaged document counts as empty, with an error in the log.

    Raises:
        StoreError: neither the file nor its `.bak` can be read, although one exists.
    """
    path = str(PurePath(directory) / name)
    # An error about the file itself outranks a readable .bak: it says that the content may be older.
    faults: list[str] = []
    for candidate in (path, f"{path}.bak"):
        data = _content(disk, candidate)
        if data is None:
            continue
        try:
            document = _decoded(data, kind)
        except ProtocolError as error:
            faults.append(f"{candidate}: {error}")
            continue
        if faults:
            log.error("%s; using %s instead, which may be older", faults[0], candidate)
        elif candidate != path:
            log.warning("%s is missing; using %s instead, which may be older", path, candidate)
        return LoadedDocument(document, zlib.crc32(data))
    if faults and is_expendable:
        log.error("%s; starting without its content", "; ".join(faults))
    elif faults:
        raise StoreError(
            f"{'; '.join(faults)}; restore a copy, or remove it with its .bak and {directory}/changes.* to start without"
        )
    return LoadedDocument(kind(), None)


def _content(disk: Disk, path: str) -> bytes | None:
    try:
        return read_whole(disk, path)
    except IsADirectoryError as error:
        raise StoreError(
            f"{path} is a directory, but the broker stores its state in a file of that name: move the directory away"
        ) from error
    except OSError as error:
        raise read_error(disk, error, path) from error


def _decoded(data: bytes, kind: type[T]) -> T:
    if not data.strip(b"\0 \t\r\n"):
        raise ProtocolError(f"the document is empty ({len(data)} bytes without content)")
    return fastjson.decode(data, kind)


def save(disk: Disk, directory: str, name: str, data: bytes, *, good_crc: int | None = None) -> None:
    """Replace the document; blocks until it is on the disk.

    The former content becomes the `.bak` if it can be read. Otherwise it is retained as `.damaged`, and the `.bak` stays.

    Args:
        good_crc: Checksum of a content that is known to be readable, which saves decoding it.
    """
    # The directory may have been removed while the broker runs.
    for parent in disk.make_dirs(directory):
        disk.fsync_dir(parent)
    path = str(PurePath(directory) / name)
    former = read_whole(disk, path)
    if former is not None:
        if zlib.crc32(former) == good_crc or _is_whole(former):
            write_atomic(disk, f"{path}.bak", former)
        else:
            write_atomic(disk, f"{path}.damaged", former)
    write_atomic(disk, path, data)


def _is_whole(data: bytes) -> bool:
    try:
        _decoded(data, _Anything)
    except ProtocolError:
        return False
    return True


class _Anything(msgspec.Struct):
    """Any JSON object."""


def encode(document: msgspec.Struct) -> bytes:
    """Return the document as its file stores it."""
    return b"".join(fastjson.pieces(document))
