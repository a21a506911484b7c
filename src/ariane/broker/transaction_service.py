"""Transactions: half messages, their ends, and the questions to producers that gave none.

    send with TRAN_MSG ─→ RMQ_SYS_TRANS_HALF_TOPIC/0      what nobody reads yet: a half message
    end: commit        ─→ the real topic, and ─→ RMQ_SYS_TRANS_OP_HALF_TOPIC/0     one write: both or none
    end: roll back                            ─→ RMQ_SYS_TRANS_OP_HALF_TOPIC/0
    round of checks    ─→ RMQ_SYS_TRANS_HALF_TOPIC/0 again, counted, and a question (39) to one producer of the group
    asked too often    ─→ TRANS_CHECK_MAX_TIME_TOPIC/0, and ─→ RMQ_SYS_TRANS_OP_HALF_TOPIC/0

The records are those of 4.9.4, and so is the progress (offsets of CID_RMQ_SYS_TRANS), so that a Java broker can go on with the
directory and the other way round. One thing is added: a copy made for a check names its first copy (TRAN_PREPARED_QUEUE_OFFSET,
which Java writes for some copies only), so that the end of any copy ends them all. Progress is only told once it is flushed.
[TransactionalMessageServiceImpl, TransactionalMessageBridge, EndTransactionProcessor]
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from ariane.broker import half_messages
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.open_transactions import OpenTransactions, OpenTransactionsBuilder
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.errors import ProtocolError, ReplyError, StoreError
from ariane.model.message import CHECK_TIMES, PGROUP, PREPARED_QUEUE_OFFSET, TRANSACTION_COMMIT, TRANSACTION_MASK
from ariane.model.topic import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from ariane.protocol import record
from ariane.protocol.codes import ResponseCode
from ariane.protocol.record import I64, QUEUE_OFFSET_AT, Record
from ariane.protocol.requests.messaging import COMMIT, EndTransactionHeader
from ariane.store.message_store import MessageStore, RecordDraft

log = logging.getLogger("ariane.broker.transaction_service")

READ_AT_ONCE = 32  # records between two turns of the event loop


class TransactionService:
    """Give it halves as they are stored, and ends as they come; `rebuild` once, before all but sends.

    `flush` flushes the log, `stored` is told after each put.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicRegistry,
        offsets: ConsumerOffsets,
        store_host: bytes,
        *,
        flush: Callable[[], Awaitable[None]],
        stored: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        self.store = store
        self.topics = topics
        self._offsets = offsets
        self._store_host = store_host
        self._flush = flush
        self._stored = stored
        self._now_ms = now_ms
        low, half_stop = self._start_of(HALF_TOPIC), store.max_offset(HALF_TOPIC, 0)
        op_low, op_stop = self._start_of(OP_HALF_TOPIC), store.max_offset(OP_HALF_TOPIC, 0)
        if low == half_stop:
            op_low = op_stop  # nothing is open that they could end
        self.halves = OpenTransactions(low, op_low)
        self._found = (low, half_stop, op_low, op_stop)
        self._ready = asyncio.Event()
        self._fault: Exception | None = None

    # --- sends ---

    def redirect(self, draft: RecordDraft, table: dict[str, str]) -> RecordDraft:
        """The half message to store in place of a message with these properties; tell `half_stored` where it came to lie."""
        for name in (HALF_TOPIC, OP_HALF_TOPIC):
            self.topics.get_or_create_internal(name, 1)
        return half_messages.half_draft(draft, table)

    def on_half_stored(self, queue_offset: int) -> None:
        self.halves.add_half(queue_offset)

    # --- ends ---

    async def ready(self) -> None:
        """Return when it is known which halves are open; ReplyError when that cannot be known."""
        await self._ready.wait()
        if self._fault is not None:
            remark = f"the open transactions of this broker cannot be read: {self._fault}"
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set() and self._fault is None

    def end(self, request: EndTransactionHeader) -> int | None:
        """Commit or roll back, once: the end of the log that has to be flushed for it, None when it was ended before.

        ReplyError with the remarks of 4.9.4 when it names no half message of the group.
        """
        half = self._named(request)
        root = half_messages.root_of(half.property_map(), half.queue_offset)
        newest = self.halves.newest_copy(root)
        if newest is None:
            log.info("half message %d (log offset %d) is ended already; nothing is done", root, half.offset)
            return None
        is_commit = request.commit_or_rollback == COMMIT
        return self.end_with(root, newest, [half_messages.committed_draft(half)] if is_commit else [])

    def resume(self, offset: int) -> None:
        """Begin anew to ask about the half message at this log offset: an open one, or one that was put aside."""
        half = self._record(offset)
        if half is None or half.topic not in (HALF_TOPIC, CHECK_MAX_TIME_TOPIC):
            remark = f"no half message lies at {offset}: name one of {HALF_TOPIC} or {CHECK_MAX_TIME_TOPIC}"
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

    def _named(self, request: EndTransactionHeader) -> Record:
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
            log.error("the record at %d cannot be read: %s", offset, error)
            return None

    def end_with(self, root: int, newest: int, drafts: list[RecordDraft]) -> int:
        """Store what a half becomes, and behind it the op message that ends it, with one write; the log's end after that."""
        placed = self.store.put_batch([*drafts, half_messages.op_draft(newest, self._now_ms(), self._store_host)])
        self.halves.add_op(placed[-1].queue_offset, newest)
        self.halves.complete(root)
        self._stored()
        return placed[-1].offset + placed[-1].size

    def put_copy(self, half: Record, table: dict[str, str], root: int | None) -> Record:
        """Store a half once more with other properties; without a root it is a new one. The copy as it lies there."""
        draft = half_messages.copy_draft(half, table)
        placed = self.store.put(draft)
        self.halves.add_half(placed.queue_offset, root)
        self._stored()
        return msgspec.structs.replace(
            half,
            topic=HALF_TOPIC,
            queue_id=0,
            properties=draft.properties,
            queue_offset=placed.queue_offset,
            offset=placed.offset,
            store_ms=placed.store_ms,
            store_host=self._store_host,
        )

    # --- start and progress ---

    async def rebuild(self) -> None:
        """Learn from the two queues which halves are open. Until then ends wait."""
        try:
            await self._rebuild()
        except Exception as error:
            self._fault = error
            raise
        finally:
            self._ready.set()
        if self.halves.count:
            log.info("%d half messages are open", self.halves.count)

    async def _rebuild(self) -> None:
        low, half_stop, op_low, op_stop = self._found
        rebuild = OpenTransactionsBuilder(self.halves)
        for number, (offset, data) in enumerate(self._read(OP_HALF_TOPIC, op_low, op_stop)):
            rebuild.add_op(offset, half_messages.decode_ended(data))
            await _breathe(number)
        for number, (offset, data) in enumerate(self._read(HALF_TOPIC, low, half_stop)):
            rebuild.add_half(offset, half_messages.root_of_record(data, offset))
            await _breathe(number)
        for offset in rebuild.unmarked:
            self._end_again(offset, offset)
        await self._end_what_was_committed()

    async def _end_what_was_committed(self) -> None:
        """After a crash the log may end between a commit and its op message: the op message is written now."""
        store, recovered = self.store, self.store.recovery_report
        if recovered.clean:
            return
        for number, found in enumerate(store.scan_records(recovered.read_from, recovered.end)):
            await _breathe(number)
            if found.sys_flag & TRANSACTION_MASK != TRANSACTION_COMMIT:
                continue
            committed = self._record(found.offset)
            half = self._record(committed.prepared_offset) if committed is not None else None
            if committed is None or half is None or half.topic != HALF_TOPIC:
                continue
            if committed.property_map() != half.property_map():
                continue  # torn within its properties, which no checksum covers: it has to be committed once more
            root = half_messages.root_of(half.property_map(), half.queue_offset)
            newest = self.halves.newest_copy(root)
            if newest is not None:
                log.warning("half message %d was committed before the crash (log offset %d)", root, found.offset)
                self._end_again(root, newest)

    def _end_again(self, root: int, newest: int) -> None:
        """Write the op message that a half lacks. Without room for it the half is ended for this process only."""
        try:
            self.end_with(root, newest, [])
        except StoreError as error:
            self.halves.complete(root)
            log.error("the op message of half message %d is not written: %s", root, error)

    async def save_progress(self) -> None:
        """Let the consumer offsets say from where on the queues matter, once all that this rests on is flushed."""
        if not self.is_ready or not self.store.max_offset(HALF_TOPIC, 0):
            return
        progress, end = self.halves.trim(), self.store.commit_log_max
        if self.store.flushed < end:
            await self._flush()
        if self.store.flushed >= end:
            self._commit(*progress)

    def close(self) -> None:
        """The same at the end, with nothing else under way."""
        if not self.is_ready or not self.store.max_offset(HALF_TOPIC, 0):
            return
        try:
            self.store.flush()
        except StoreError as error:
            log.error("the progress of transactions is not saved, the next start reads more: %s", error)
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
            log.warning("%s ends at %d, its progress was %d: the end of the log is lost", topic, stop, saved)
        return first if saved is None else min(max(saved, first), stop)

    # --- reading ---

    def read_each(self, offsets: list[int]) -> Iterator[tuple[int, bytes | None]]:
        """These halves, neighbours together."""
        first = 0
        for at in range(1, len(offsets) + 1):
            if at == len(offsets) or offsets[at] != offsets[at - 1] + 1:
                yield from self._read(HALF_TOPIC, offsets[first], offsets[at - 1] + 1)
                first = at

    def _read(self, topic: str, start: int, stop: int) -> Iterator[tuple[int, bytes | None]]:
        """Every offset with its record, or None where it cannot be read."""
        count = READ_AT_ONCE
        while start < stop:
            try:
                got = self.store.get(topic, 0, start, min(count, stop - start))
            except StoreError as error:
                if count > 1:
                    count = 1  # one bad record spoils the answer for its neighbours
                    continue
                log.error("%s cannot be read at %d: %s", topic, start, error)
                yield start, None
                start, count = start + 1, READ_AT_ONCE
                continue
            count = READ_AT_ONCE
            for data in got.records:
                (offset,) = I64.unpack_from(data, QUEUE_OFFSET_AT)
                for lost in range(start, offset):
                    yield lost, None
                yield offset, data
                start = offset + 1
            if not got.records:
                behind = min(max(got.next_offset, start + 1), stop)
                for lost in range(start, behind):
                    yield lost, None
                start = behind


async def _breathe(number: int) -> None:
    """Let others have their turn now and then."""
    if number % (READ_AT_ONCE * 8) == 0:
        await asyncio.sleep(0)
