"""config/*.json: the state that survives a restart, in Java's form, read and written whole. [ConfigManager]

A write replaces the file atomically and keeps the former one as `.bak`; a file that cannot be read falls back to its
`.bak`, and when that cannot be read either the broker does not start: state is never dropped in silence.
"""

from __future__ import annotations

import logging
from pathlib import PurePath
from typing import TypeVar

import msgspec

from ariane.errors import ProtocolError, StoreError
from ariane.protocol import fastjson
from ariane.store.files import Disk, read_whole, write_atomic

log = logging.getLogger("ariane.broker.state")

T = TypeVar("T", bound=msgspec.Struct)

TOPICS = "topics.json"
GROUPS = "subscriptionGroup.json"
OFFSETS = "consumerOffset.json"
DELAYS = "delayOffset.json"
FILTERS = "consumerFilter.json"
LOCKS = "queueLocks.json"


def load(disk: Disk, directory: str, name: str, kind: type[T]) -> T:
    """The document, or an empty one when there is neither it nor its `.bak`."""
    path = str(PurePath(directory) / name)
    faults = []
    for candidate in (path, f"{path}.bak"):
        data = read_whole(disk, candidate)
        if not data:
            continue
        try:
            document = fastjson.decode(data, kind)
        except ProtocolError as error:
            faults.append(f"{candidate}: {error}")
            continue
        if faults:
            log.error("%s; went on with %s", faults[0], candidate)
        return document
    if faults:
        raise StoreError(f"{'; '.join(faults)}; mend the file, or remove it with its .bak to start without it")
    return kind()


def save(disk: Disk, directory: str, name: str, data: bytes) -> None:
    """Replace the document; blocks until it is on disk."""
    disk.make_dirs(directory)
    path = str(PurePath(directory) / name)
    former = read_whole(disk, path)
    if former:
        write_atomic(disk, f"{path}.bak", former)
    write_atomic(disk, path, data)


def text(document: msgspec.Struct) -> bytes:
    """The document as it stands in its file."""
    return fastjson.write(document, pretty=True)
