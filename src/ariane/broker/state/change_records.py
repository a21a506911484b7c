"""config/changes.*: the change log, which makes a change of the broker's state durable before it is answered.

    topics, groups, locks, … --append--> changes.00000000000000000018      one line a change, one write
                                              |  fsync before the answer in synchronous mode, soon in asynchronous mode
                                              v
    topics.json, subscriptionGroup.json, …    written whole in the background; files of changes that all of them hold are removed

A start loads the documents and applies the changes that they do not hold. Documents stay in Java's form, so which changes one
holds is in the change log: before a document is replaced, the checksum of its new content is appended (`DocumentSaved`), and a new
file begins with the checksums of all documents (`Begin`). A document with another checksum was written by somebody else since (a
Java broker, a person): then the changes of the log are older than it and are not applied to it.

    5f1e0a3c {"n":19,"change":{"type":"topic","config":{…},"version":{…}}}      CRC-32 of the JSON text, the JSON text, newline

[no counterpart in Java, which rewrites the whole document before it answers]
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from ariane.broker.state import json_documents
from ariane.model.topic import DataVersion, SubscriptionGroupConfig, TopicConfig, TopicDeletion
from ariane.protocol.requests.clients import WireQueue
from ariane.store.files import Disk, read_error, read_whole

log = logging.getLogger("ariane.broker.state")

PREFIX = "changes."
NAME_DIGITS = 20
CRC_DIGITS = 8


class TopicPut(msgspec.Struct, frozen=True, tag="topic"):
    config: TopicConfig
    version: DataVersion


class TopicDeleted(msgspec.Struct, frozen=True, tag="topicDeleted"):
    """A topic, its offsets and, with `deletion`, its messages. `version` None: the topic was not in the table."""

    name: str
    version: DataVersion | None
    deletion: TopicDeletion | None


class GroupPut(msgspec.Struct, frozen=True, tag="group"):
    config: SubscriptionGroupConfig
    version: DataVersion


class GroupDeleted(msgspec.Struct, frozen=True, tag="groupDeleted"):
    name: str
    version: DataVersion | None
    offsets: bool


class OffsetsPut(msgspec.Struct, frozen=True, tag="offsets"):
    """All offsets of a group in a topic, set by a tool. What consumers commit is in no change: it is saved now and then."""

    group: str
    topic: str
    offsets: dict[int, int]


class QueuesLocked(msgspec.Struct, frozen=True, tag="locked"):
    group: str
    client_id: str
    queues: tuple[WireQueue, ...]


class QueuesUnlocked(msgspec.Struct, frozen=True, tag="unlocked"):
    group: str
    queues: tuple[WireQueue, ...]


class SavedDocument(msgspec.Struct, frozen=True, array_like=True):
    """A document with this content holds all changes up to number `n`."""

    crc: int
    n: int


class DocumentSaved(msgspec.Struct, frozen=True, tag="saved"):
    """The document is about to be replaced; `exists`: a former one is there, so a start that finds none has lost it."""

    name: str
    saved: SavedDocument
    exists: bool


class ChangeLogStart(msgspec.Struct, frozen=True, tag="begin"):
    """First line of a file: the documents that its changes extend, each with its `.bak`."""

    documents: dict[str, tuple[SavedDocument, ...]]


Change = TopicPut | TopicDeleted | GroupPut | GroupDeleted | OffsetsPut | QueuesLocked | QueuesUnlocked

# The documents that hold a change.
DOCUMENTS: dict[type, tuple[str, ...]] = {
    TopicPut: (json_documents.TOPICS,),
    TopicDeleted: (json_documents.TOPICS, json_documents.OFFSETS, json_documents.DELETED),
    GroupPut: (json_documents.GROUPS,),
    GroupDeleted: (json_documents.GROUPS, json_documents.OFFSETS),
    OffsetsPut: (json_documents.OFFSETS,),
    QueuesLocked: (json_documents.LOCKS,),
    QueuesUnlocked: (json_documents.LOCKS,),
}


class ChangeEntry(msgspec.Struct, frozen=True):
    """One line."""

    n: int
    change: (
        TopicPut
        | TopicDeleted
        | GroupPut
        | GroupDeleted
        | OffsetsPut
        | QueuesLocked
        | QueuesUnlocked
        | DocumentSaved
        | ChangeLogStart
    )


def encode(entry: ChangeEntry) -> bytes:
    data = msgspec.json.encode(entry)
    return b"%08x %s\n" % (zlib.crc32(data), data)


class ChangeLogFile(msgspec.Struct):
    """A file of the log: its size, and the number of the last change in it that each document has to hold."""

    path: str
    size: int = 0
    last: dict[str, int] = msgspec.field(default_factory=dict)

    def add(self, n: int, change: object) -> None:
        for name in DOCUMENTS.get(type(change), ()):
            self.last[name] = n


class LoadedChanges(NamedTuple):
    """The log as a start finds it. `saved`: the contents of documents that it has seen, as checksum → number; `existing`: the
    documents that must be there."""

    entries: list[ChangeEntry]
    saved: dict[str, dict[int, int]]
    files: list[ChangeLogFile]
    last_n: int
    existing: set[str]


def load(disk: Disk, directory: str) -> LoadedChanges:
    """Read all files. What is no line is reported: after a crash a line at the end, which nobody was answered for."""
    loaded = LoadedChanges([], {}, [], 0, set())
    for path in _paths(disk, directory):
        try:
            data = read_whole(disk, path) or b""
        except OSError as error:
            raise read_error(disk, error, path) from error
        file = ChangeLogFile(path, len(data))
        loaded.files.append(file)
        for entry in _entries(path, data):
            loaded = loaded._replace(last_n=max(loaded.last_n, entry.n))
            match entry.change:
                case ChangeLogStart(known):
                    loaded.saved.clear()
                    loaded.saved.update({name: {one.crc: one.n for one in each} for name, each in known.items()})
                    loaded.existing.update(known)
                case DocumentSaved(name, content, exists):
                    loaded.saved.setdefault(name, {})[content.crc] = content.n
                    if exists:
                        loaded.existing.add(name)
                case change:
                    file.add(entry.n, change)
                    loaded.entries.append(entry)
    return loaded


def _paths(disk: Disk, directory: str) -> list[str]:
    try:
        names = disk.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise read_error(disk, error, f"{directory}/{PREFIX}") from error
    return [f"{directory}/{name}" for name in names if name.startswith(PREFIX) and name[len(PREFIX) :].isdigit()]


def _entries(path: str, data: bytes) -> Iterable[ChangeEntry]:
    """The lines that can be read. One damaged line takes no other with it: each change stands for itself."""
    *lines, rest = data.split(b"\n")
    at, bad, bad_at = 0, 0, 0
    for line in lines:
        entry = _entry(line)
        if entry is None:
            bad_at = bad_at if bad else at
            bad += len(line) + 1
        else:
            if bad:
                log.error(
                    "%s: %d bytes at %d are no changes: they are lost (damage, or a loss of power)", path, bad, bad_at
                )
                bad = 0
            yield entry
        at += len(line) + 1
    if bad or rest:
        log.warning(
            "%s: the last %d bytes are no whole change, and are ignored: its write was cut off", path, bad + len(rest)
        )


def _entry(line: bytes) -> ChangeEntry | None:
    crc, _, text = line.partition(b" ")
    try:
        if len(crc) != CRC_DIGITS or int(crc, 16) != zlib.crc32(text):
            return None
        return msgspec.json.decode(text, type=ChangeEntry)
    except (ValueError, msgspec.DecodeError):
        return None
