"""The change log config/changes.*: makes a change of the broker's state durable before it is answered.

    topics, groups, locks, … --append--> changes.00000000000000000018      one line per change, one write
                                              |  fsync before the response in synchronous mode, soon after in asynchronous mode
                                              v
    topics.json, subscriptionGroup.json, …    written whole in the background; files whose changes they all hold are removed

A start loads the documents and applies the changes that they do not hold. Documents stay in Java's form, so the log records which
changes each one holds: before a document is replaced, the checksum of its new content is appended (`DocumentSaved`), and a new file
starts with the checksums of all documents (`ChangeLogStart`). A document with another checksum was written by another program (a
Java broker, an editor) later: the changes of the log are older and are not applied to it.

    5f1e0a3c {"n":19,"change":{"type":"topic","config":{…},"version":{…}}}      CRC-32 of the JSON text, the JSON text, newline

[no counterpart in Java, which rewrites the whole document before it answers]
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from ariane.broker.state.saved import json_documents
from ariane.model.topic import DataVersion, SubscriptionGroupConfig, TopicConfig, TopicDeletion
from ariane.protocol.requests.clients import WireQueue
from ariane.protocol.requests.pop import RequestMode
from ariane.store.disk.files import Disk, read_error, read_whole

log = logging.getLogger("ariane.broker.state")

PREFIX = "changes."
NAME_DIGITS = 20
CRC_DIGITS = 8


class TopicPut(msgspec.Struct, frozen=True, tag="topic"):
    """A created or changed topic, and the version of the table after it."""

    config: TopicConfig
    version: DataVersion


class TopicDeleted(msgspec.Struct, frozen=True, tag="topicDeleted"):
    """A deleted topic, with its offsets and, if `deletion` is set, its messages. `version` None: it was not in the table."""

    name: str
    version: DataVersion | None
    deletion: TopicDeletion | None


class GroupPut(msgspec.Struct, frozen=True, tag="group"):
    """A created or changed consumer group, and the version of the table after it."""

    config: SubscriptionGroupConfig
    version: DataVersion


class GroupDeleted(msgspec.Struct, frozen=True, tag="groupDeleted"):
    """A deleted consumer group. `version` None: it was not in the table; `offsets`: its offsets are deleted, too."""

    name: str
    version: DataVersion | None
    offsets: bool


class OffsetsPut(msgspec.Struct, frozen=True, tag="offsets"):
    """All offsets of a group in a topic, set by a tool. Commits of consumers are not logged but saved periodically."""

    group: str
    topic: str
    offsets: dict[int, int]


class QueuesLocked(msgspec.Struct, frozen=True, tag="locked"):
    """Queues with a new owner."""

    group: str
    client_id: str
    queues: tuple[WireQueue, ...]


class QueuesUnlocked(msgspec.Struct, frozen=True, tag="unlocked"):
    """Queues without an owner from now on."""

    group: str
    queues: tuple[WireQueue, ...]


class MessagesTaken(msgspec.Struct, frozen=True, tag="popTaken", omit_defaults=True):
    """Messages that a group took from a queue by POP, new or again.

    `next`: offset of the first one that was never taken. `attempt_id`: of an ordered request, which may be repeated.
    """

    group: str
    topic: str
    queue_id: int
    offsets: tuple[int, ...]
    at_ms: int
    visible_ms: int
    next: int
    attempt_id: str | None = None


class MessagesAcknowledged(msgspec.Struct, frozen=True, tag="popAcked"):
    """Messages that a group has consumed by POP, or that can no longer be read."""

    group: str
    topic: str
    queue_id: int
    offsets: tuple[int, ...]


class MessageHidden(msgspec.Struct, frozen=True, tag="popHidden"):
    """A taken message that is visible again at another time, as a delivery at `at_ms`."""

    group: str
    topic: str
    queue_id: int
    offset: int
    at_ms: int
    visible_ms: int


class MessagesReturned(msgspec.Struct, frozen=True, tag="popReturned"):
    """Taken messages whose response was never sent: they are visible from `at_ms` on, and that delivery does not count."""

    group: str
    topic: str
    queue_id: int
    offsets: tuple[int, ...]
    at_ms: int


class PopRestarted(msgspec.Struct, frozen=True, tag="popRestarted"):
    """A group takes messages of a queue from `next` on, and forgets what it has taken."""

    group: str
    topic: str
    queue_id: int
    next: int


class RequestModePut(msgspec.Struct, frozen=True, tag="requestMode"):
    """How the members of a group receive messages of a topic: POP or PULL."""

    mode: RequestMode


class SavedDocument(msgspec.Struct, frozen=True, array_like=True):
    """A content of a document, which holds all changes up to number `n`."""

    crc: int
    n: int


class DocumentSaved(msgspec.Struct, frozen=True, tag="saved"):
    """A document that is about to be replaced. `exists`: it had a content before, so a start that finds none has lost it."""

    name: str
    saved: SavedDocument
    exists: bool


class ChangeLogStart(msgspec.Struct, frozen=True, tag="begin"):
    """The first line of a file: the documents that its changes extend, each with its `.bak`."""

    documents: dict[str, tuple[SavedDocument, ...]]


Change = (
    TopicPut
    | TopicDeleted
    | GroupPut
    | GroupDeleted
    | OffsetsPut
    | QueuesLocked
    | QueuesUnlocked
    | MessagesTaken
    | MessagesAcknowledged
    | MessageHidden
    | MessagesReturned
    | PopRestarted
    | RequestModePut
)
# Responses of other clients do not depend on these: only the response to the request waits until they are durable.
OWN_CHANGES: frozenset[type] = frozenset(
    {
        QueuesLocked,
        QueuesUnlocked,
        MessagesTaken,
        MessagesAcknowledged,
        MessageHidden,
        MessagesReturned,
        PopRestarted,
    }
)

# Documents that a change affects.
DOCUMENTS: dict[type, tuple[str, ...]] = {
    TopicPut: (json_documents.TOPICS,),
    TopicDeleted: (json_documents.TOPICS, json_documents.OFFSETS, json_documents.DELETED, json_documents.POP),
    GroupPut: (json_documents.GROUPS,),
    GroupDeleted: (json_documents.GROUPS, json_documents.OFFSETS, json_documents.POP),
    OffsetsPut: (json_documents.OFFSETS,),
    QueuesLocked: (json_documents.LOCKS,),
    QueuesUnlocked: (json_documents.LOCKS,),
    MessagesTaken: (json_documents.POP,),
    MessagesAcknowledged: (json_documents.POP,),
    MessageHidden: (json_documents.POP,),
    MessagesReturned: (json_documents.POP,),
    PopRestarted: (json_documents.POP,),
    RequestModePut: (json_documents.MODES,),
}


class ChangeEntry(msgspec.Struct, frozen=True):
    """One line of the log."""

    n: int
    change: Change | DocumentSaved | ChangeLogStart


_encode = msgspec.json.Encoder().encode


def encode(entry: ChangeEntry) -> bytes:
    """Return the line of an entry."""
    data = _encode(entry)
    return b"%08x %s\n" % (zlib.crc32(data), data)


class ChangeLogFile(msgspec.Struct):
    """A file of the log: its size, and for each document the number of the last change that the document has to hold."""

    path: str
    size: int = 0
    last: dict[str, int] = msgspec.field(default_factory=dict)

    def add(self, n: int, change: object) -> None:
        """Note change number `n` for the documents that it affects."""
        for name in DOCUMENTS.get(type(change), ()):
            self.last[name] = n


class LoadedChanges(NamedTuple):
    """The log as a start reads it."""

    entries: list[ChangeEntry]
    saved: dict[str, dict[int, int]]
    """The known contents of each document: checksum → number of the last change that the content holds."""
    files: list[ChangeLogFile]
    """The files, oldest first."""
    last_n: int
    """Number of the last change, 0 without any."""
    existing: set[str]
    """Documents that must exist."""


def load(disk: Disk, directory: str) -> LoadedChanges:
    """Read all files. Damaged lines are reported; an incomplete last line is normal after a crash and was never answered."""
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
                case ChangeLogStart(documents):
                    # Earlier contents were superseded before this file was started.
                    loaded.saved.clear()
                    loaded.saved.update(
                        {name: {saved.crc: saved.n for saved in contents} for name, contents in documents.items()}
                    )
                    loaded.existing.update(documents)
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
    """Yield the readable lines. A damaged line does not affect others, since each change is complete in itself."""
    # Text after the last newline is a line whose write was interrupted.
    *lines, remainder = data.split(b"\n")
    offset, damaged_bytes, damaged_at = 0, 0, 0
    for line in lines:
        entry = _entry(line)
        if entry is None:
            # Adjacent damaged lines are reported together.
            damaged_at = damaged_at if damaged_bytes else offset
            damaged_bytes += len(line) + 1
        else:
            if damaged_bytes:
                log.error(
                    "Lost changes in %s: cannot read %d bytes at offset %d (damage or power loss)",
                    path,
                    damaged_bytes,
                    damaged_at,
                )
                damaged_bytes = 0
            yield entry
        offset += len(line) + 1
    if damaged_bytes or remainder:
        log.warning(
            "Ignoring an incomplete change at the end of %s: the write of its last %d bytes was interrupted",
            path,
            damaged_bytes + len(remainder),
        )


def _entry(line: bytes) -> ChangeEntry | None:
    crc, _, text = line.partition(b" ")
    try:
        if len(crc) != CRC_DIGITS or int(crc, 16) != zlib.crc32(text):
            return None
        return msgspec.json.decode(text, type=ChangeEntry)
    except (ValueError, msgspec.DecodeError):
        return None
