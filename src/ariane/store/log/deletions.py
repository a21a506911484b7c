"""Table of deleted topics: all records of a topic below the log's end at its deletion are deleted.

    log    | T | U | T | U |  T deleted: below = 4  | U | T | T |
             x       x                                  ^   ^  records of the topic that was created again

Removing the queues of a topic leaves its records in the log, and everything that is rebuilt from the log has to skip them: the
queues after a crash or a loss of files, the answers of the key index, a slave's queues. The broker stores this table in its
change log before it removes a queue (`broker.state.saved.change_records`). An entry is obsolete once the log starts after it.

A record is deleted only if it is also as old as its deletion, so an entry is harmless if the log is replaced by another one.
[no counterpart in Java, where the messages of a deleted topic come back with every rebuild]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ariane.kernels.scanned_record import ScannedRecord
from ariane.model.topic import TopicDeletion


class Deletions:
    """The last deletion of each topic."""

    def __init__(self, table: Mapping[str, TopicDeletion] | None = None) -> None:
        self._table: dict[bytes, TopicDeletion] = {}
        for topic, deletion in (table or {}).items():
            self.add(topic, deletion)

    def __len__(self) -> int:
        return len(self._table)

    def get(self, topic: str) -> TopicDeletion | None:
        return self._table.get(topic.encode())

    def add(self, topic: str, deletion: TopicDeletion) -> bool:
        """Add a deletion if it `is_later`; return whether it is."""
        if not self.is_later(topic, deletion):
            return False
        self._table[topic.encode()] = deletion
        return True

    def is_later(self, topic: str, deletion: TopicDeletion) -> bool:
        """Return whether a deletion is later than the stored one of the topic, or covers more."""
        former = self._table.get(topic.encode())
        return former is None or former.store_ms < deletion.store_ms or former.below < deletion.below

    def has_any(self, topic: bytes) -> bool:
        """Return whether a deletion of this topic is recorded."""
        return topic in self._table

    def covers(self, record: ScannedRecord) -> bool:
        """Return whether the record was deleted with its topic."""
        deletion = self._table.get(record.topic)
        return deletion is not None and record.offset < deletion.below and record.store_ms <= deletion.store_ms

    def drop_before(self, log_start: int) -> int:
        """Drop the deletions whose records are all removed from the log; return how many."""
        obsolete = [topic for topic, deletion in self._table.items() if deletion.below <= log_start]
        for topic in obsolete:
            del self._table[topic]
        return len(obsolete)

    def topics(self) -> Iterable[str]:
        return [topic.decode() for topic in self._table]

    def to_table(self) -> dict[str, TopicDeletion]:
        """Return a copy of the table, for the saved document and for slaves."""
        return {topic.decode(): deletion for topic, deletion in self._table.items()}
