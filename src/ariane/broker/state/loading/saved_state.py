"""The state that a start loads from config/: the documents, with the changes of the log that they do not hold.

document               in the log                applied to it
---------------------  ------------------------  -----------------------------------------------------------
checksum is known      holds changes up to n     the changes above n
checksum is unknown    written by another        none; changes newer than the last known content are reported
                       program since
missing                never mentioned           all
missing                mentioned                 refused: its content is lost
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.loading import loaded_values
from ariane.broker.state.loading.loaded_values import DeletedTopics
from ariane.broker.state.pop_table import PopChange, PopDocument, PopTable
from ariane.broker.state.queue_locks import LockTable
from ariane.broker.state.saved import change_records, json_documents
from ariane.broker.state.saved.change_records import (
    DOCUMENTS,
    GroupDeleted,
    GroupPut,
    OffsetsPut,
    QueuesLocked,
    QueuesUnlocked,
    RequestModePut,
    SavedDocument,
    TopicDeleted,
    TopicPut,
)
from ariane.errors import StoreError
from ariane.protocol.requests.admin import ConsumerOffsetTable, SubscriptionGroupTable
from ariane.protocol.requests.clients import WireQueue
from ariane.protocol.requests.pop import RequestModes
from ariane.protocol.requests.routing import TopicTable
from ariane.store.disk.files import Disk
from ariane.store.log.deletions import Deletions

log = logging.getLogger("ariane.broker.state")

T = TypeVar("T", bound=msgspec.Struct)
REPORTED_MAX = 10  # changes in one warning


class SavedState:
    """The state that the last process left. Call `load` first, once the store directory is locked."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory  # config/ below the store directory
        self.topics = TopicTable()  # this and the following are filled by `load`
        self.groups = SubscriptionGroupTable()  # by name
        self.offsets = ConsumerOffsetTable()  # by topic and group
        self.locks: dict[str, dict[WireQueue, str]] = {}  # group → queue → client id
        self.request_modes = RequestModes()  # by topic and group
        self.pop = PopTable()  # what groups have taken by POP
        self.deletions = Deletions()  # log offsets of deleted topics
        self.unsaved: set[str] = set()  # documents that lack changes of the log, or have invalid entries
        self.dropped = 0  # invalid entries of all documents
        self.contents: dict[str, tuple[SavedDocument, ...]] = {}  # by document: its content, and that of its .bak
        self.foreign: set[str] = set()  # documents that another program has written since
        self.log = change_records.LoadedChanges([], {}, [], 0, set())  # changes that the documents do not hold yet

    def load(self) -> Deletions:
        """Read everything. Return the deletions, which the recovery of the store needs."""
        self.log = change_records.load(self._disk, self._directory)
        self.topics = self._read(json_documents.TOPICS, TopicTable)
        self.groups = self._read(json_documents.GROUPS, SubscriptionGroupTable)
        self.offsets = self._read(json_documents.OFFSETS, ConsumerOffsetTable)
        self.request_modes = self._read(json_documents.MODES, RequestModes)
        self.pop = PopTable(self._read(json_documents.POP, PopDocument))
        self.deletions = Deletions(self._read(json_documents.DELETED, DeletedTopics).deleted_topics)
        for group, owners in self._read(json_documents.LOCKS, LockTable, is_expendable=True).lock_table.items():
            self.locks[group] = {queue: client_id for client_id, queues in owners.items() for queue in queues}
        self._apply_log()
        return self.deletions

    def lock_table(self) -> LockTable:
        """Return the owners of queues in the form of queueLocks.json."""
        owners: dict[str, dict[str, list[WireQueue]]] = {}
        for group, locks in self.locks.items():
            for queue, client_id in locks.items():
                owners.setdefault(group, {}).setdefault(client_id, []).append(queue)
        return LockTable(
            {
                group: {client_id: tuple(queues) for client_id, queues in owned.items()}
                for group, owned in owners.items()
            }
        )

    def _read(self, name: str, kind: type[T], *, is_expendable: bool = False) -> T:
        document, crc, dropped = loaded_values.read(
            self._disk, self._directory, name, kind, is_expendable=is_expendable
        )
        if dropped:
            self.dropped += dropped
            self.unsaved.add(name)
        saved = self.log.saved.get(name, {})
        if crc is None:
            if name in self.log.existing and not is_expendable:
                raise StoreError(
                    f"{self._directory}/{name} is missing, and so is its .bak, but a broker stored it before: restore a copy,"
                    f" or remove {self._directory}/changes.* to start without its content"
                )
        else:
            n = saved.get(crc, self.log.last_n)
            other_contents = [SavedDocument(*content) for content in saved.items() if content[0] != crc]
            newest = sorted(other_contents, key=lambda content: content.n)[-1:]  # the .bak
            self.contents[name] = (SavedDocument(crc, n), *newest)
            if crc not in saved:
                self.foreign.add(name)
                self._report_ignored(name, max(saved.values(), default=-1))
        return document

    def _report_ignored(self, name: str, newest: int) -> None:
        """Report the changes that a document lacks because another program wrote it."""
        ignored = [entry for entry in self.log.entries if entry.n > newest and name in DOCUMENTS[type(entry.change)]]
        if ignored:
            shown = ", ".join(msgspec.json.encode(entry.change).decode()[:200] for entry in ignored[:REPORTED_MAX])
            log.error(
                "%s/%s was written by another program after this broker died: not applying %d changes to it: %s%s",
                self._directory, name, len(ignored), shown, ", …" if len(ignored) > REPORTED_MAX else "",
            )  # fmt: skip

    # --- the log ---

    def _apply_log(self) -> None:
        # A document may be newer than another one, so each change is applied only to the documents that lack it.
        offsets = ConsumerOffsets(self.offsets)
        for entry in self.log.entries:
            stale = [name for name in DOCUMENTS[type(entry.change)] if entry.n > self._holds(name)]
            if stale:
                self.unsaved.update(stale)
                self._apply(entry.change, stale, offsets)
                self._apply_pop(entry.change, stale)
        self.offsets = offsets.view()

    def _holds(self, name: str) -> int:
        """Return the number of the last change that a document holds, -1 if it does not exist."""
        contents = self.contents.get(name)
        return contents[0].n if contents else -1

    # Applies a change to the tables of the `stale` documents.
    def _apply(self, change: object, stale: Sequence[str], offsets: ConsumerOffsets) -> None:
        match change:
            case TopicPut(config, version):
                self.topics.topic_config_table[config.topic_name] = config
                self.topics = TopicTable(version, self.topics.topic_config_table)
            case TopicDeleted(name, version, deletion):
                if json_documents.TOPICS in stale and version is not None:
                    self.topics.topic_config_table.pop(name, None)
                    self.topics = TopicTable(version, self.topics.topic_config_table)
                if json_documents.OFFSETS in stale:
                    offsets.remove_topic(name)
                if json_documents.DELETED in stale and deletion is not None:
                    self.deletions.add(name, deletion)
            case GroupPut(config, version):
                self.groups.subscription_group_table[config.group_name] = config
                self.groups = SubscriptionGroupTable(version, self.groups.subscription_group_table)
            case GroupDeleted(name, version, with_offsets):
                if json_documents.GROUPS in stale and version is not None:
                    self.groups.subscription_group_table.pop(name, None)
                    self.groups = SubscriptionGroupTable(version, self.groups.subscription_group_table)
                if json_documents.OFFSETS in stale and with_offsets:
                    offsets.remove_group(name)
            case OffsetsPut(group, topic, queues):
                offsets.put(group, topic, queues)
            case QueuesLocked(group, client_id, queues):
                self.locks.setdefault(group, {}).update(dict.fromkeys(queues, client_id))
            case QueuesUnlocked(group, queues):
                for queue in queues:
                    self.locks.get(group, {}).pop(queue, None)
            case _ if not isinstance(change, PopChange | RequestModePut):
                raise AssertionError(f"unknown change: {change!r}")

    def _apply_pop(self, change: object, stale: Sequence[str]) -> None:
        match change:
            case TopicDeleted(name) if json_documents.POP in stale:
                self.pop.remove_topic(name)
            case GroupDeleted(name, offsets=True) if json_documents.POP in stale:
                self.pop.remove_group(name)
            case RequestModePut(mode):
                self.request_modes.put(mode)
            case _ if isinstance(change, PopChange):
                self.pop.apply(change)
