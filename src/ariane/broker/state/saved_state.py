"""What a start finds in config/: the documents, with the changes of the log applied that they do not hold.

document               in the log                what is applied to it
---------------------  ------------------------  -----------------------------------------------------------
checksum is known      holds changes up to n     the changes above n
checksum is unknown    written by others since   none; those that are newer than what the log knows are reported
missing                never seen                all
missing                seen                      refused: its content is lost
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from ariane.broker.state import change_records, json_documents
from ariane.broker.state.change_records import (
    DOCUMENTS,
    GroupDeleted,
    GroupPut,
    OffsetsPut,
    QueuesLocked,
    QueuesUnlocked,
    SavedDocument,
    TopicDeleted,
    TopicPut,
)
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.queue_locks import LockTable
from ariane.errors import StoreError
from ariane.model.topic import TopicDeletion
from ariane.protocol.requests.admin import ConsumerOffsetTable, SubscriptionGroupTable
from ariane.protocol.requests.clients import WireQueue
from ariane.protocol.requests.routing import TopicTable
from ariane.store.deletions import Deletions
from ariane.store.files import Disk

log = logging.getLogger("ariane.broker.state")

T = TypeVar("T", bound=msgspec.Struct)
REPORTED_MAX = 10  # changes that a warning names


class DeletedTopics(msgspec.Struct, frozen=True, rename="camel"):
    """deletedTopics.json (no file of 4.9.4)."""

    deleted_topics: dict[str, TopicDeletion] = {}


class SavedState:
    """The state of the last process. `load` before anything else, once the store directory is locked."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self.topics = TopicTable()
        self.groups = SubscriptionGroupTable()
        self.offsets = ConsumerOffsetTable()
        self.locks: dict[str, dict[WireQueue, str]] = {}  # group → queue → client id
        self.deletions = Deletions()
        self.unsaved: set[str] = set()  # documents that lack changes of the log
        self.contents: dict[str, tuple[SavedDocument, ...]] = {}
        self.log = change_records.LoadedChanges([], {}, [], 0, set())

    def load(self) -> Deletions:
        """Read everything. Returns the deletions, which the store needs to recover."""
        self.log = change_records.load(self._disk, self._directory)
        self.topics = self._read(json_documents.TOPICS, TopicTable)
        self.groups = self._read(json_documents.GROUPS, SubscriptionGroupTable)
        self.offsets = self._read(json_documents.OFFSETS, ConsumerOffsetTable)
        self.deletions = Deletions(self._read(json_documents.DELETED, DeletedTopics).deleted_topics)
        for group, owners in self._read(json_documents.LOCKS, LockTable, is_expendable=True).lock_table.items():
            self.locks[group] = {queue: client_id for client_id, queues in owners.items() for queue in queues}
        self._apply_log()
        return self.deletions

    def lock_table(self) -> LockTable:
        owners: dict[str, dict[str, list[WireQueue]]] = {}
        for group, held in self.locks.items():
            for queue, client_id in held.items():
                owners.setdefault(group, {}).setdefault(client_id, []).append(queue)
        return LockTable(
            {group: {one: tuple(queues) for one, queues in held.items()} for group, held in owners.items()}
        )

    def _read(self, name: str, kind: type[T], *, is_expendable: bool = False) -> T:
        document, crc = json_documents.read(self._disk, self._directory, name, kind, is_expendable=is_expendable)
        seen = self.log.saved.get(name, {})
        if crc is None:
            if name in self.log.existing and not is_expendable:
                raise StoreError(
                    f"{self._directory}/{name} is missing, and so is its .bak, but a broker stored it here: put back a copy,"
                    f" or remove {self._directory}/changes.* to start without its content"
                )
        else:
            n = seen.get(crc, self.log.last_n)
            others = [SavedDocument(*content) for content in seen.items() if content[0] != crc]
            newest = sorted(others, key=lambda content: content.n)[-1:]  # the .bak
            self.contents[name] = (SavedDocument(crc, n), *newest)
            if crc not in seen:
                self._report_ignored(name, max(seen.values(), default=-1))
        return document

    def _report_ignored(self, name: str, newest: int) -> None:
        """Another program wrote the document: name the changes that it does not know of."""
        ignored = [entry for entry in self.log.entries if entry.n > newest and name in DOCUMENTS[type(entry.change)]]
        if ignored:
            shown = ", ".join(msgspec.json.encode(entry.change).decode()[:200] for entry in ignored[:REPORTED_MAX])
            log.error(
                "%s/%s was written by another program after this broker died: %d changes are not applied to it: %s%s",
                self._directory, name, len(ignored), shown, ", …" if len(ignored) > REPORTED_MAX else "",
            )  # fmt: skip

    # --- the log ---

    def _apply_log(self) -> None:
        offsets = ConsumerOffsets(self.offsets)
        for entry in self.log.entries:
            lacking = [name for name in DOCUMENTS[type(entry.change)] if entry.n > self._holds(name)]
            if lacking:
                self.unsaved.update(lacking)
                self._apply(entry.change, lacking, offsets)
        self.offsets = offsets.view()

    def _holds(self, name: str) -> int:
        contents = self.contents.get(name)
        return contents[0].n if contents else -1

    def _apply(self, change: object, lacking: Sequence[str], offsets: ConsumerOffsets) -> None:
        match change:
            case TopicPut(config, version):
                self.topics.topic_config_table[config.topic_name] = config
                self.topics = TopicTable(version, self.topics.topic_config_table)
            case TopicDeleted(name, version, deletion):
                if json_documents.TOPICS in lacking and version is not None:
                    self.topics.topic_config_table.pop(name, None)
                    self.topics = TopicTable(version, self.topics.topic_config_table)
                if json_documents.OFFSETS in lacking:
                    offsets.remove_topic(name)
                if json_documents.DELETED in lacking and deletion is not None:
                    self.deletions.add(name, deletion)
            case GroupPut(config, version):
                self.groups.subscription_group_table[config.group_name] = config
                self.groups = SubscriptionGroupTable(version, self.groups.subscription_group_table)
            case GroupDeleted(name, version, with_offsets):
                if json_documents.GROUPS in lacking and version is not None:
                    self.groups.subscription_group_table.pop(name, None)
                    self.groups = SubscriptionGroupTable(version, self.groups.subscription_group_table)
                if json_documents.OFFSETS in lacking and with_offsets:
                    offsets.remove_group(name)
            case OffsetsPut(group, topic, queues):
                offsets.put(group, topic, queues)
            case QueuesLocked(group, client_id, queues):
                self.locks.setdefault(group, {}).update(dict.fromkeys(queues, client_id))
            case QueuesUnlocked(group, queues):
                for queue in queues:
                    self.locks.get(group, {}).pop(queue, None)
            case _:
                raise AssertionError(f"no change: {change!r}")
