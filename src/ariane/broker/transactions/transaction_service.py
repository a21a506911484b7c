"""Transactions: storage of half messages, commits, rollbacks and the copies of checks.

    send with TRAN_MSG ─→ RMQ_SYS_TRANS_HALF_TOPIC/0      half message, invisible to consumers
    commit             ─→ the real topic, and ─→ RMQ_SYS_TRANS_OP_HALF_TOPIC/0     in one write: both or neither
    rollback                                  ─→ RMQ_SYS_TRANS_OP_HALF_TOPIC/0
    check              ─→ RMQ_SYS_TRANS_HALF_TOPIC/0 again, with its count, and a request (39) to one producer of the group
    too many checks    ─→ TRANS_CHECK_MAX_TIME_TOPIC/0, and ─→ RMQ_SYS_TRANS_OP_HALF_TOPIC/0

Records and progress (offsets of CID_RMQ_SYS_TRANS) are those of 4.9.4, so that a Java broker can continue with the directory and
vice versa. One property is added: each copy made by a check names the first copy (TRAN_PREPARED_QUEUE_OFFSET, which Java writes
to some copies only), so that ending any copy ends all of them. Progress is saved only after the flush that it depends on.
[TransactionalMessageServiceImpl, TransactionalMessageBridge, EndTransactionProcessor]
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Protocol

import msgspec

from ariane.broker.collaborators import StoreListener
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.open_transactions import OpenTransactions, OpenTransactionsBuilder
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.broker.transactions import half_messages
from ariane.clock import Clock
from ariane.errors import ProtocolError, ReplyError, StoreError
from ariane.model.message import CHECK_TIMES, PGROUP, PREPARED_QUEUE_OFFSET, TRANSACTION_COMMIT, TRANSACTION_MASK
from ariane.model.topic import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from ariane.protocol.codes import ResponseCode
from ariane.protocol.records import record
from ariane.protocol.records.record import I64, QUEUE_OFFSET_AT, Record
from ariane.protocol.requests.messaging import COMMIT, EndTransactionHeader
from ariane.store.message_store import MessageStore, RecordDraft

log = logging.getLogger("ariane.broker.transactions.transaction_service")

READ_BATCH = 32  # records read without a pause


class LogFlusher(Protocol):
    """Flushes the commit log. [Flusher]"""

    async def flush_once(self) -> None:
        """Flush the log as far as it is written."""
        ...


class TransactionService:
    """The transactions of one broker. Run `rebuild` once; until it is done, only sends are served."""

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicRegistry,
        offsets: ConsumerOffsets,
        store_host: bytes,
        flusher: LogFlusher,
        listener: StoreListener,
        clock: Clock,
    ) -> None:
        self.store = store  # half messages, op messages and targets
        self.topics = topics  # creates the internal topics
        self._offsets = offsets  # where the progress is saved
        self._store_host = store_host  # packed address of this broker: sender of op messages
        self._flusher = flusher  # the saved progress must not be ahead of the flushed log
        self._listener = listener  # dispatches the appended records
        self._clock = clock  # store times of op messages
        low, half_stop = self._start_of(HALF_TOPIC), store.max_offset(HALF_TOPIC, 0)
        op_low, op_stop = self._start_of(OP_HALF_TOPIC), store.max_offset(OP_HALF_TOPIC, 0)
        if low == half_stop:
            op_low = op_stop  # without half messages, no op message is needed
        self.halves = OpenTransactions(low, op_low)  # undecided half messages, by root
        self._rebuild_range = (low, half_stop, op_low, op_stop)  # later records are added as they are stored
        self._ready = asyncio.Event()  # set once `rebuild` is done
        self._fault: Exception | None = None  # why the open transactions are unknown

    # --- sends ---

    def redirect(self, draft: RecordDraft, table: dict[str, str]) -> RecordDraft:
        """Return the half message to append instead of a transactional message; report its offset with `on_half_stored`."""
        for name in (HALF_TOPIC, OP_HALF_TOPIC):
            self.topics.get_or_create_internal(name, 1)
        return half_messages.half_draft(draft, table)

    def on_half_stored(self, queue_offset: int) -> None:
        """Add a half message to the open ones."""
        self.halves.add_half(queue_offset)

    # --- ends ---

    async def ready(self) -> None:
        """Wait until the open transactions are rebuilt.

        Raises:
            ReplyError: their queues cannot be read.
        """
        await self._ready.wait()
        if self._fault is not None:
            remark = f"the open transactions of this broker cannot be read: {self._fault}"
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)

    @property
    def is_ready(self) -> bool:
        """Return True once the open transactions are rebuilt."""
        return self._ready.is_set() and self._fault is None

    def end(self, request: EndTransactionHeader) -> int | None:
        """Commit or roll back a transaction.

        Completed transactions are removed from all tables, so later END_TRANSACTION requests for them are no-ops.

        Returns:
            The end of the log that the reply has to wait for; None if the transaction was completed before.

        Raises:
            ReplyError: the request names no half message of the group; the remarks are those of 4.9.4.
        """
        half = self._find_half(request)
        root = half_messages.root_of(half.property_map(), half.queue_offset)
        newest = self.halves.newest_copy(root)
        if newest is None:
            log.info("Ignoring the end of half message %d (log offset %d): already completed", root, half.offset)
            return None
        is_commit = request.commit_or_rollback == COMMIT
        return self.end_with(root, newest, [half_messages.committed_draft(half)] if is_commit else [])

    def resume(self, offset: int) -> None:
        """Restart the checks of the half message at a log offset, whether open or discarded.

        Raises:
            ReplyError: the offset names no half message, or a completed one.
        """
        half = self._record(offset)
        if half is None or half.topic not in (HALF_TOPIC, CHECK_MAX_TIME_TOPIC):
            remark = (
                f"no half message at log offset {offset}: expected a message of {HALF_TOPIC} or {CHECK_MAX_TIME_TOPIC}"
            )
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
        table = half.property_map()
        root = None
        if half.topic == HALF_TOPIC:
            root = half_messages.root_of(table, half.queue_offset)
            if self.halves.newest_copy(root) is None:
                remark = f"the half message at {offset} is not open: resume its copy in {CHECK_MAX_TIME_TOPIC}, if it has one"
                raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
            table[PREPARED_QUEUE_OFFSET] = str(root)
        else:
            table.pop(PREPARED_QUEUE_OFFSET, None)
        table[CHECK_TIMES] = "0"
        self.put_copy(half, table, root)

    def _find_half(self, request: EndTransactionHeader) -> Record:
        half = self._record(request.commit_log_offset)
        if half is None or half.topic != HALF_TOPIC:
            raise ReplyError(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        if half.property_map().get(PGROUP) != request.producer_group:
            raise ReplyError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != request.tran_state_table_offset:
            raise ReplyError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        if half.offset != request.commit_log_offset:
            raise ReplyError(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
        return half

    def _record(self, offset: int) -> Record | None:
        data = self.store.read_record(offset)
        try:
            return record.decode(data) if data is not None else None
        except ProtocolError as error:
            log.error("Cannot read the record at log offset %d: %s", offset, error)
            return None

    def end_with(self, root: int, newest: int, drafts: list[RecordDraft]) -> int:
        """Append the successor of a half message, if any, and its op message in one write, and return the end of the log.

        Args:
            root: Queue offset of the first copy.
            newest: Queue offset of the newest copy, which the op message names as 4.9.4 does.
            drafts: The committed or discarded message; empty for a rollback.
        """
        op = half_messages.op_draft(newest, self._clock.now_ms(), self._store_host)
        results = self.store.put_batch([*drafts, op])
        self.halves.add_op(results[-1].queue_offset, newest)
        self.halves.complete(root)
        self._listener.on_stored()
        return results[-1].offset + results[-1].size

    def put_copy(self, half: Record, table: dict[str, str], root: int | None) -> Record:
        """Append a copy of a half message with other properties, and return it; without a root it starts a new transaction."""
        draft = half_messages.copy_draft(half, table)
        result = self.store.put(draft)
        self.halves.add_half(result.queue_offset, root)
        self._listener.on_stored()
        return msgspec.structs.replace(
            half,
            topic=HALF_TOPIC,
            queue_id=0,
            properties=draft.properties,
            queue_offset=result.queue_offset,
            offset=result.offset,
            store_ms=result.store_ms,
            store_host=self._store_host,
        )

    # --- start and progress ---

    async def rebuild(self) -> None:
        """Rebuild the open transactions from the two queues; ends wait until it is done."""
        try:
            await self._rebuild()
        except Exception as error:
            self._fault = error
            raise
        finally:
            self._ready.set()
        if self.halves.count:
            log.info("Rebuilt transactions: %d half messages are open", self.halves.count)

    async def _rebuild(self) -> None:
        low, half_stop, op_low, op_stop = self._rebuild_range
        rebuild = OpenTransactionsBuilder(self.halves)
        for number, (offset, data) in enumerate(self._read(OP_HALF_TOPIC, op_low, op_stop)):
            rebuild.add_op(offset, half_messages.decode_ended(data))
            await _yield_sometimes(number)
        for number, (offset, data) in enumerate(self._read(HALF_TOPIC, low, half_stop)):
            rebuild.add_half(offset, half_messages.root_of_record(data, offset))
            await _yield_sometimes(number)
        for offset in rebuild.unmarked:
            self._write_missing_op(offset, offset)
        await self._complete_torn_commits()

    async def _complete_torn_commits(self) -> None:
        """Write the op messages of commits that a power loss separated from theirs.

        Without them, a later check would commit these messages a second time.
        """
        recovered = self.store.recovery_report
        if recovered.clean:
            return
        for number, offset in enumerate(recovered.commits):
            await _yield_sometimes(number)
            committed = self._record(offset)
            if committed is None or committed.sys_flag & TRANSACTION_MASK != TRANSACTION_COMMIT:
                continue  # the start withdrew it
            half = self._record(committed.prepared_offset)
            if half is None or half.topic != HALF_TOPIC:
                continue
            if committed.property_map() != half.property_map():
                continue  # torn within its properties, which have no checksum: it has to be committed again
            root = half_messages.root_of(half.property_map(), half.queue_offset)
            newest = self.halves.newest_copy(root)
            if newest is not None:
                log.warning("Half message %d was committed before the crash (log offset %d)", root, offset)
                self._write_missing_op(root, newest)

    def _write_missing_op(self, root: int, newest: int) -> None:
        """Append a missing op message. If the store rejects it, the transaction is completed in this process only."""
        try:
            self.end_with(root, newest, [])
        except StoreError as error:
            self.halves.complete(root)
            log.error("Could not write the op message of half message %d: %s", root, error)

    async def save_progress(self) -> None:
        """Commit the offsets from which a start has to read, after flushing the op messages that they depend on."""
        if not self.is_ready or not self.store.max_offset(HALF_TOPIC, 0):
            return
        progress, end = self.halves.trim(), self.store.commit_log_max
        if self.store.flushed < end:
            await self._flusher.flush_once()
        if self.store.flushed >= end:
            self._commit(*progress)

    def close(self) -> None:
        """Save the progress before the store closes."""
        if not self.is_ready or not self.store.max_offset(HALF_TOPIC, 0):
            return
        try:
            self.store.flush()
        except StoreError as error:
            log.error("Could not save the progress of transactions, the next start reads more: %s", error)
            return
        self._commit(*self.halves.trim())

    def _commit(self, low: int, op_low: int) -> None:
        for topic, offset in ((HALF_TOPIC, low), (OP_HALF_TOPIC, op_low)):
            if self._offsets.get(TRANSACTION_GROUP, topic, 0) != offset:
                self._offsets.commit(TRANSACTION_GROUP, topic, 0, offset)

    def _start_of(self, topic: str) -> int:
        store = self.store
        first, stop = store.min_offset(topic, 0), store.max_offset(topic, 0)
        saved = self._offsets.get(TRANSACTION_GROUP, topic, 0)
        if saved is not None and saved > stop:
            log.warning("Lost the end of the log: %s ends at %d, but its saved progress is %d", topic, stop, saved)
        return first if saved is None else min(max(saved, first), stop)

    # --- reading ---

    def read_each(self, offsets: list[int]) -> Iterator[tuple[int, bytes | None]]:
        """Yield half messages with their offsets; adjacent ones are read together."""
        first = 0
        for end in range(1, len(offsets) + 1):
            if end == len(offsets) or offsets[end] != offsets[end - 1] + 1:
                yield from self._read(HALF_TOPIC, offsets[first], offsets[end - 1] + 1)
                first = end

    def _read(self, topic: str, start: int, stop: int) -> Iterator[tuple[int, bytes | None]]:
        """Yield every offset with its record, or None if it cannot be read."""
        count = READ_BATCH
        while start < stop:
            try:
                result = self.store.get(topic, 0, start, min(count, stop - start))
            except StoreError as error:
                if count > 1:
                    count = 1  # one corrupt record fails the whole batch: find it
                    continue
                log.error("Cannot read %s at %d: %s", topic, start, error)
                yield start, None
                start, count = start + 1, READ_BATCH
                continue
            count = READ_BATCH
            for data in result.records:
                (offset,) = I64.unpack_from(data, QUEUE_OFFSET_AT)
                for missing in range(start, offset):
                    yield missing, None
                yield offset, data
                start = offset + 1
            if not result.records:
                next_start = min(max(result.next_offset, start + 1), stop)
                for missing in range(start, next_start):
                    yield missing, None
                start = next_start


async def _yield_sometimes(number: int) -> None:
    """Give other tasks a turn every few hundred records."""
    if number % (READ_BATCH * 8) == 0:
        await asyncio.sleep(0)
