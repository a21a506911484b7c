"""Appends records to the log, and lists the queue entries and index keys that they need.

    drafts → RecordEncoder → one write ─┐
    SendRun, encoded already → one write ┴→ `pending` (dispatched to the queues), keys (to the index)

[CommitLog.asyncPutMessage, asyncPutMessages]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ariane.kernels.key_hashes import is_indexed
from ariane.kernels.sends.send_turn import LogEnd, SendRun
from ariane.model.hashes import java_hash
from ariane.model.topic import SCHEDULE_TOPIC
from ariane.protocol.records.queue_entry import ENTRY, ENTRY_SIZE
from ariane.store.log.encoding import EncodedDraft, RecordEncoder, delay_tags_code, encode_properties
from ariane.store.queues import dispatch
from ariane.store.queues.consume_queue import ConsumeQueue
from ariane.store.queues.dispatch import PendingEntry
from ariane.store.recovery.recovered_state import RecoveredState
from ariane.store.types import AppendResult, RecordDraft, StoreConfig


class RecordAppender:
    """The end of the log, and the records that are appended but not dispatched."""

    def __init__(self, state: RecoveredState, *, store_host: bytes, now_ms: Callable[[], int], collects: bool) -> None:
        """`collects`: consumers see records before they are flushed, so that entries of runs may be collected."""
        self.pending: deque[PendingEntry] = deque()  # oldest first; taken out by the dispatch
        self.pending_records = 0  # the store refuses puts beyond a bound
        self.pending_creations = 0  # pending entries of queues without a file
        # A delayed message is pending: spares all other dispatches the look into the delay queues.
        self.has_delayed = False
        self.puts = self.put_bytes = 0  # messages and bytes since the start, for statistics
        self._collects = collects
        self._log = state.log  # one write per append
        self._queues = state.queues  # number the records
        self._index = state.index  # of their keys
        self._encoder = RecordEncoder(store_host)  # of drafts
        self._now_ms = now_ms  # store times

    def log_end(self) -> LogEnd:
        """Return where the next record is appended."""
        # Store times never go back, or a search by time would miss records.
        return LogEnd(self._log.end, self._log.room, max(self._now_ms(), self._log.last_ms))

    def append(self, drafts: list[RecordDraft], config: StoreConfig) -> list[AppendResult]:
        """Append messages next to each other in one file with one write: all of them or none."""
        log, store_ms = self._log, self.log_end().store_ms
        numbered = self._number(drafts, config.max_message_size)
        parts = [part for part, _ in numbered]
        records = self._encoder.encode_batch(parts, log.end, store_ms)
        total = sum(map(len, records))
        if total > log.room:
            # Records contain their own offsets, so they are encoded again for the next file.
            records = self._encoder.encode_batch(parts, log.roll(total), store_ms)
        offset, results = log.end, []
        if records:
            log.append(b"".join(records), store_ms)
        for (part, queue), data in zip(numbered, records, strict=True):
            appended = AppendResult(offset, len(data), part.queue_offset, store_ms)
            self._list(part.draft, queue, appended, config)
            results.append(appended)
            offset += len(data)
        return results

    def _number(self, drafts: list[RecordDraft], body_max: int) -> list[tuple[EncodedDraft, ConsumeQueue]]:
        """Return the drafts with their numbers in their queues; those without a queue entry have number 0."""
        next_offsets: dict[ConsumeQueue, int] = {}
        numbered: list[tuple[EncodedDraft, ConsumeQueue]] = []
        for draft in drafts:
            queue = self._queues.get_or_create(draft.topic, draft.queue_id)
            queue_offset = 0
            if dispatch.has_entry(draft.sys_flag):
                queue_offset = next_offsets.get(queue, queue.next_offset)
                next_offsets[queue] = queue_offset + 1
            properties = encode_properties(draft, body_max)
            numbered.append((EncodedDraft(draft, queue.topic_bytes, properties, queue_offset), queue))
        return numbered

    def append_run(self, run: SendRun, store_ms: int) -> None:
        """Append records that were encoded for `log_end` with one write: all of them or none."""
        log = self._log
        offset = log.end
        log.append(run.records, store_ms)
        self._index.add_pending_keys(offset, store_ms, run.keys)
        self.put_bytes += len(run.records)
        # Entries of pending records are written first: those of a queue are in order.
        if self._collects and not self.pending:
            self.puts += self._queues.collected.add(run.queues, self._queues.by_id)
            self._index.on_dispatched(log.end)
            return
        for topic, queue_id, entries, _, _ in run.queues:
            queue = self._queues.get((topic, queue_id)) or self._queues.get_or_create(topic, queue_id)
            count = len(entries) // ENTRY_SIZE
            queue.next_offset += count
            self.puts += count
            self.pending_records += count
            self.pending_creations += queue.is_new
            self.pending.append(PendingEntry(queue, entries, queue.next_offset, store_ms, log.end))

    def count_pending(self) -> None:
        """Count what is pending after a dispatch."""
        self.pending_records = sum([entries.records for entries in self.pending])
        self.pending_creations = sum([entries.queue is not None and entries.queue.is_new for entries in self.pending])

    def _list(self, draft: RecordDraft, queue: ConsumeQueue, appended: AppendResult, config: StoreConfig) -> None:
        """List the queue entry and the keys of an appended record."""
        offset, size, queue_offset, store_ms = appended
        is_listed = dispatch.has_entry(draft.sys_flag)
        if is_listed or is_indexed(draft.sys_flag):
            self._index.add_pending((queue.topic, draft.properties, offset, store_ms))
        self.puts += 1
        self.put_bytes += size
        self.pending_records += 1
        if not is_listed:
            self.pending.append(PendingEntry(None, b"", 0, store_ms, offset + size))
            return
        if draft.tags_code is None and queue.topic != SCHEDULE_TOPIC:
            code = java_hash(draft.tags) if draft.tags else 0
        else:
            code = delay_tags_code(draft, store_ms, config.delays_ms)
            self.has_delayed = True
        queue.next_offset = queue_offset + 1
        self.pending_creations += queue.is_new
        entry = ENTRY.pack(offset, size, code)
        self.pending.append(PendingEntry(queue, entry, queue.next_offset, store_ms, offset + size))
