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
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from struct import Struct
from typing import NamedTuple

import msgspec

from ariane.broker.config import BrokerConfig
from ariane.broker.producers import BUSY, Producers
from ariane.broker.state.halves import HalfState, Halves, Rebuild, Verdict, due_ms, verdict
from ariane.broker.state.offsets import ConsumerOffsets
from ariane.broker.state.topics import Topics
from ariane.errors import MessageRefused, ProtocolError, ReplyError, StoreError
from ariane.model import ids
from ariane.model.message import (
    CHECK_IMMUNITY_TIME,
    CHECK_TIMES,
    PGROUP,
    PREPARED_QUEUE_OFFSET,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    UNIQ_KEY,
    WAIT,
)
from ariane.model.topic import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from ariane.protocol import properties, record
from ariane.protocol.codes import ResponseCode
from ariane.protocol.record import QUEUE_OFFSET_AT, Record
from ariane.protocol.requests.messaging import COMMIT, CheckTransactionState, EndTransaction
from ariane.store.message_store import Draft, MessageStore

log = logging.getLogger("ariane.broker.transactions")

END_TAG = "d"
OP_PROPERTIES = properties.encode({TAGS: END_TAG, WAIT: "true"})
READ_AT_ONCE = 32  # records between two turns of the event loop
HELD_BACK_MAX = (
    1_000_000  # an immune half that lies this far behind is copied to the end: a start reads no more than this
)
PATIENCE_S = (
    0.05  # for a producer that does not read what it is asked, 3 times; then its halves wait for the next round
)
SAID_MAX = 10  # failures of a round that get a line each; all are counted
REMEMBERED_MAX = 10_000  # halves that cannot be read or copied
_I64 = Struct(">q")
_PREPARED = PREPARED_QUEUE_OFFSET.encode()


class Parts(NamedTuple):
    """What transactions need. `durable` as in sends; `flush` flushes the log; `stored` is told after each put."""

    config: BrokerConfig
    topics: Topics
    offsets: ConsumerOffsets
    producers: Producers
    store: MessageStore
    store_host: bytes
    durable: Callable[[int], Awaitable[bool]] | None
    flush: Callable[[], Awaitable[None]]
    stored: Callable[[], None]
    now_ms: Callable[[], int]


class _Question(NamedTuple):
    peer_id: int
    header: CheckTransactionState
    body: bytes


class Transactions:
    """Give it halves as they are stored, ends as they come, and a round now and then; `rebuild` once, before all but sends."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        store = parts.store
        low, half_stop = self._start_of(HALF_TOPIC), store.max_offset(HALF_TOPIC, 0)
        op_low, op_stop = self._start_of(OP_HALF_TOPIC), store.max_offset(OP_HALF_TOPIC, 0)
        if low == half_stop:
            op_low = op_stop  # nothing is open that they could end
        self.halves = Halves(low, op_low)
        self._found = (low, half_stop, op_low, op_stop)
        self._ready = asyncio.Event()
        self._fault: Exception | None = None
        self._unreadable: dict[int, int] = {}
        self._asked_in_place: dict[int, int] = {}
        self._round: Counter[str] = Counter()

    # --- sends ---

    def half(self, draft: Draft, table: dict[str, str]) -> Draft:
        """The half message to store in place of a message with these properties; tell `half_stored` where it came to lie."""
        for name in (HALF_TOPIC, OP_HALF_TOPIC):
            self._parts.topics.create_own(name, 1)
        table = {**table, REAL_TOPIC: draft.topic, REAL_QID: str(draft.queue_id)}
        for name in (PREPARED_QUEUE_OFFSET, CHECK_TIMES):
            table.pop(name, None)  # the broker's own words: a client must not make a message another one's copy
        return msgspec.structs.replace(
            draft,
            topic=HALF_TOPIC,
            queue_id=0,
            properties=properties.join(table),
            sys_flag=draft.sys_flag & ~TRANSACTION_MASK,
        )

    def half_stored(self, queue_offset: int) -> None:
        self.halves.stored(queue_offset)

    # --- ends ---

    async def ready(self) -> None:
        """Return when it is known which halves are open; ReplyError when that cannot be known."""
        await self._ready.wait()
        if self._fault is not None:
            remark = f"the open transactions of {self._parts.config.broker_name} cannot be read: {self._fault}"
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set() and self._fault is None

    def end(self, request: EndTransaction) -> int | None:
        """Commit or roll back, once: the end of the log that has to be flushed for it, None when it was ended before.

        ReplyError with the remarks of 4.9.4 when it names no half message of the group.
        """
        half = self._named(request)
        root = _root(half.property_map(), half.queue_offset)
        newest = self.halves.newest(root)
        if newest is None:
            log.info("half message %d (log offset %d) is ended already; nothing is done", root, half.offset)
            return None
        drafts = [self._op(newest)]
        if request.commit_or_rollback == COMMIT:
            drafts.insert(0, _committed(half))
        return self._end(root, newest, drafts)

    def resume(self, offset: int) -> None:
        """Begin anew to ask about the half message at this log offset: an open one, or one that was put aside."""
        half = self._record(offset)
        if half is None or half.topic not in (HALF_TOPIC, CHECK_MAX_TIME_TOPIC):
            remark = f"no half message lies at {offset}: name one of {HALF_TOPIC} or {CHECK_MAX_TIME_TOPIC}"
            raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
        table = half.property_map()
        root = None
        if half.topic == HALF_TOPIC:
            root = _root(table, half.queue_offset)
            if self.halves.newest(root) is None:
                remark = f"the half message at {offset} is not open: resume its copy in {CHECK_MAX_TIME_TOPIC}, if it has one"
                raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
            table[PREPARED_QUEUE_OFFSET] = str(root)
        else:
            table.pop(PREPARED_QUEUE_OFFSET, None)
        table[CHECK_TIMES] = "0"
        placed = self._parts.store.put(_copy(half, table))
        self.halves.stored(placed.queue_offset, root)
        self._parts.stored()

    def _named(self, request: EndTransaction) -> Record:
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
        data = self._parts.store.record_at(offset)
        try:
            return record.decode(data) if data is not None else None
        except ProtocolError as error:
            log.error("the record at %d cannot be read: %s", offset, error)
            return None

    def _end(self, root: int, newest: int, drafts: list[Draft]) -> int:
        """Store what ends a half, its op message last, with one write."""
        placed = self._parts.store.put_batch(drafts)
        self.halves.op_stored(placed[-1].queue_offset, newest)
        self.halves.ended(root)
        self._parts.stored()
        return placed[-1].offset + placed[-1].size

    def _op(self, offset: int) -> Draft:
        host = self._parts.store_host
        return Draft(
            topic=OP_HALF_TOPIC,
            queue_id=0,
            body=str(offset).encode(),
            born_ms=self._parts.now_ms(),
            born_host=host,
            properties=OP_PROPERTIES,
            tags=END_TAG,
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
        rebuild = Rebuild(self.halves)
        for number, (offset, data) in enumerate(self._read(OP_HALF_TOPIC, op_low, op_stop)):
            rebuild.op(offset, _ends(data))
            await _breathe(number)
        for number, (offset, data) in enumerate(self._read(HALF_TOPIC, low, half_stop)):
            rebuild.half(offset, _root_of(data, offset))
            await _breathe(number)
        for offset in rebuild.unmarked:
            self._put_op(offset)
        await self._end_what_was_committed()

    async def _end_what_was_committed(self) -> None:
        """After a crash the log may end between a commit and its op message: the op message is written now."""
        store, recovered = self._parts.store, self._parts.store.recovered
        if recovered.clean:
            return
        for number, found in enumerate(store.records_between(recovered.read_from, recovered.end)):
            await _breathe(number)
            if found.sys_flag & TRANSACTION_MASK != TRANSACTION_COMMIT:
                continue
            committed = self._record(found.offset)
            half = self._record(committed.prepared_offset) if committed is not None else None
            if half is None or half.topic != HALF_TOPIC:
                continue
            root = _root(half.property_map(), half.queue_offset)
            newest = self.halves.newest(root)
            if newest is not None:
                log.warning("half message %d was committed before the crash (log offset %d)", root, found.offset)
                self._end(root, newest, [self._op(newest)])

    async def save_progress(self) -> None:
        """Let the consumer offsets say from where on the queues matter, once all that this rests on is flushed."""
        if not self.is_ready or not self._parts.store.max_offset(HALF_TOPIC, 0):
            return
        progress, end = self.halves.progress(), self._parts.store.commit_log_max
        if self._parts.store.flushed < end:
            await self._parts.flush()
        if self._parts.store.flushed >= end:
            self._commit(*progress)

    def close(self) -> None:
        """The same at the end, with nothing else under way."""
        if not self.is_ready or not self._parts.store.max_offset(HALF_TOPIC, 0):
            return
        try:
            self._parts.store.flush()
        except StoreError as error:
            log.error("the progress of transactions is not saved, the next start reads more: %s", error)
            return
        self._commit(*self.halves.progress())

    def _commit(self, low: int, op_low: int) -> None:
        for topic, offset in ((HALF_TOPIC, low), (OP_HALF_TOPIC, op_low)):
            if self._parts.offsets.get(TRANSACTION_GROUP, topic, 0) != offset:
                self._parts.offsets.commit(TRANSACTION_GROUP, topic, 0, offset)

    def _start_of(self, topic: str) -> int:
        store = self._parts.store
        first, stop = store.min_offset(topic, 0), store.max_offset(topic, 0)
        saved = self._parts.offsets.get(TRANSACTION_GROUP, topic, 0)
        if saved is not None and saved > stop:
            log.warning("%s ends at %d, its progress was %d: the end of the log is lost", topic, stop, saved)
        return first if saved is None else min(max(saved, first), stop)

    # --- rounds ---

    async def check_round(self) -> None:
        """Ask about every open half that is due, one piece of the queue after another."""
        await self.ready()
        now_ms = self._parts.now_ms()
        self._round.clear()
        for offsets in self.halves.pieces(self._parts.store.max_offset(HALF_TOPIC, 0), now_ms):
            due: list[int] = []
            for at in range(0, len(offsets), READ_AT_ONCE):
                due += await self._check(offsets[at : at + READ_AT_ONCE], now_ms)
            if len(due) == len(offsets):
                self.halves.rest(offsets[0], min(due))
        for remembered in (self._unreadable, self._asked_in_place):
            for offset in [one for one in remembered if not self.halves.is_open(one)]:
                del remembered[offset]
        if self._round:
            log.info("%d half messages are open; of this round: %s", self.halves.count, dict(self._round))
        await self.save_progress()

    async def _check(self, offsets: list[int], now_ms: int) -> list[int]:
        """Check a few; when those are due that are too young."""
        due: list[int] = []
        for _ in range(3):
            busy: list[int] = []
            questions: list[_Question] = []
            for offset, data in self._read_each(offsets):
                if not self.halves.is_open(offset):
                    continue
                try:
                    until_ms = self._check_one(offset, data, now_ms, questions, busy)
                except (StoreError, ReplyError) as error:  # of this one; the next may fare better
                    self._round["failed"] += 1
                    if self._round["failed"] <= SAID_MAX:
                        log.error("half message %d stays as it is until the next round: %s", offset, error)
                    continue
                if until_ms is not None:
                    due.append(until_ms)
            self._parts.stored()
            if questions and self._parts.durable is not None:
                await self._parts.durable(self._parts.store.commit_log_max)
            for question in questions:
                self._parts.producers.ask(*question)
            await asyncio.sleep(PATIENCE_S if busy else 0)
            if not busy:
                break
            offsets = busy
        return due

    def _check_one(
        self, offset: int, data: bytes | None, now_ms: int, questions: list[_Question], busy: list[int]
    ) -> int | None:
        """Put one half aside, or count and ask; when it is due, if it is too young."""
        config = self._parts.config
        try:
            half = record.decode(data or b"")
            table = half.property_map()
            root = _root(table, offset)
            real_queue = (table[REAL_TOPIC], int(table[REAL_QID]))
        except (ProtocolError, KeyError, ValueError) as error:
            self._could_not_read(offset, error)
            return None
        checks = max(_number(table.get(CHECK_TIMES)), self._asked_in_place.get(offset, 0))
        first_ms = half.store_ms if root == offset or checks else self._stored_ms(root)
        state = HalfState(first_ms, checks, table.get(CHECK_IMMUNITY_TIME))
        what = verdict(state, now_ms, config.transaction_time_out, config.transaction_check_max)
        if what is Verdict.WAIT:
            if offset < self._parts.store.max_offset(HALF_TOPIC, 0) - HELD_BACK_MAX:
                self._put_copy(half, {**table, PREPARED_QUEUE_OFFSET: str(root)}, root)
            return due_ms(state, config.transaction_time_out)
        if what is Verdict.PUT_ASIDE:
            self._put_aside(half, table, root)
            return None
        peer_id = self._parts.producers.pick(table.get(PGROUP, ""))
        if peer_id == BUSY:
            self._round["busy"] += 1
            busy.append(offset)
            return None
        table = {**table, CHECK_TIMES: str(checks + 1), PREPARED_QUEUE_OFFSET: str(root)}
        try:
            half = self._put_copy(half, table, root)
        except MessageRefused as error:  # no room in its properties for the count: it stays where it is
            log.warning("half message %d cannot be copied, it is asked about in its place: %s", offset, error)
            if len(self._asked_in_place) >= REMEMBERED_MAX:
                self._put_aside(half, half.property_map(), root)
                return None
            self._asked_in_place[offset] = checks + 1
        if peer_id is None:
            self._round[f"nobody online of {table.get(PGROUP)}"] += 1
        else:
            self._round["asked"] += 1
            questions.append(self._question(peer_id, half, *real_queue))
        return None

    def _put_copy(self, half: Record, table: dict[str, str], root: int) -> Record:
        draft = _copy(half, table)
        placed = self._parts.store.put(draft)
        self.halves.stored(placed.queue_offset, root)
        return msgspec.structs.replace(
            half,
            properties=draft.properties,
            queue_offset=placed.queue_offset,
            offset=placed.offset,
            store_ms=placed.store_ms,
            store_host=self._parts.store_host,
        )

    def _put_aside(self, half: Record, table: dict[str, str], root: int) -> None:
        """Nobody answers for it: keep it where an operator finds it."""
        self._parts.topics.create_own(CHECK_MAX_TIME_TOPIC, 1)
        table = {name: value for name, value in table.items() if name != PREPARED_QUEUE_OFFSET}
        aside = msgspec.structs.replace(_copy(half, table), topic=CHECK_MAX_TIME_TOPIC)
        self._round["put aside"] += 1
        op = self._op(half.queue_offset)
        try:
            self._end(root, half.queue_offset, [aside, op])
        except MessageRefused as error:
            log.error("half message %d (log offset %d) is given up, it cannot be copied: %s", root, half.offset, error)
            self._end(root, half.queue_offset, [op])
            return
        log.error(
            "half message %d (%s, group %s) was asked about often enough and lies in %s now",
            root,
            table.get(UNIQ_KEY),
            table.get(PGROUP),
            CHECK_MAX_TIME_TOPIC,
        )

    def _could_not_read(self, offset: int, error: Exception) -> None:
        """Leave it to the next rounds, but not for ever: nothing behind it would be forgotten."""
        rounds = self._unreadable.pop(offset, 0) + 1
        if rounds < self._parts.config.transaction_check_max and len(self._unreadable) < REMEMBERED_MAX:
            self._unreadable[offset] = rounds
            log.warning("half message %d cannot be read: %s", offset, error)
            return
        log.error("half message %d is given up, it cannot be read: %s", offset, error)
        self._put_op(offset)
        self.halves.ended(offset)

    def _put_op(self, offset: int) -> None:
        placed = self._parts.store.put(self._op(offset))
        self.halves.op_stored(placed.queue_offset, offset)
        self._parts.stored()

    def _question(self, peer_id: int, half: Record, topic: str, queue_id: int) -> _Question:
        unique = half.property_map().get(UNIQ_KEY)
        offset_id = ids.offset_message_id(self._parts.store_host, half.offset)
        header = CheckTransactionState(half.queue_offset, half.offset, unique, unique, offset_id)
        body = record.encode(
            topic.encode(),
            half.body,
            half.properties.encode(),
            queue_id=queue_id,
            queue_offset=half.queue_offset,
            offset=half.offset,
            born_ms=half.born_ms,
            born_host=half.born_host,
            store_ms=half.store_ms,
            store_host=half.store_host,
            flag=half.flag,
            sys_flag=half.sys_flag,
            reconsume_times=half.reconsume_times,
        )
        return _Question(peer_id, header, body)

    def _stored_ms(self, offset: int) -> int:
        stored_ms = self._parts.store.store_time(HALF_TOPIC, 0, offset)
        return 0 if stored_ms is None else stored_ms  # gone: older than anything that is immune

    # --- reading ---

    def _read_each(self, offsets: list[int]) -> Iterator[tuple[int, bytes | None]]:
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
                got = self._parts.store.get(topic, 0, start, min(count, stop - start))
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
                (offset,) = _I64.unpack_from(data, QUEUE_OFFSET_AT)
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


def _committed(half: Record) -> Draft:
    """The message that consumers get: as 4.9.4 stores it, with every property that the half has."""
    table = half.property_map()
    draft = _copy(half, table)
    return msgspec.structs.replace(
        draft,
        topic=table.get(REAL_TOPIC, ""),
        queue_id=_number(table.get(REAL_QID), -1),
        properties=half.properties,
        sys_flag=half.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT,
        prepared_offset=half.offset,
    )


def _copy(half: Record, table: dict[str, str]) -> Draft:
    return Draft(
        topic=HALF_TOPIC,
        queue_id=0,
        body=half.body,
        born_ms=half.born_ms,
        born_host=half.born_host,
        properties=properties.join(table),
        tags=table.get(TAGS, ""),
        flag=half.flag,
        sys_flag=half.sys_flag,
        reconsume_times=half.reconsume_times,
    )


def _root(table: dict[str, str], offset: int) -> int:
    root = _number(table.get(PREPARED_QUEUE_OFFSET), offset)
    return root if root < offset else offset


def _root_of(data: bytes | None, offset: int) -> int:
    """The same of a record, which is only decoded when it may be a copy: a start reads many."""
    if data is None or _PREPARED not in data:
        return offset
    try:
        return _root(record.decode(data).property_map(), offset)
    except ProtocolError:
        return offset


def _ends(data: bytes | None) -> list[int]:
    """The half offsets that an op message ends: one in 4.9.4, several joined by commas in 5.x."""
    try:
        op = record.decode(data or b"")
    except ProtocolError as error:
        log.error("an op message cannot be read: %s", error)
        return []
    if op.property_map().get(TAGS) != END_TAG:
        log.error("the op message %d has no tag %s and ends nothing", op.queue_offset, END_TAG)
        return []
    return [_number(text, -1) for text in op.body.decode("ascii", "replace").split(",")]


def _number(text: str | None, otherwise: int = 0) -> int:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) <= 18 else otherwise
