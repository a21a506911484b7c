"""Rounds of checks: every open half message that is old enough is counted and its producer asked, or it is put aside.

    too young                        left alone; neither it nor its neighbours are looked at before the first of them is due
    asked about `transactionCheckMax` times   TRANS_CHECK_MAX_TIME_TOPIC and an op message, with one write
    else                             a copy with the new count, and CHECK_TRANSACTION_STATE to one producer of its group

Age is told by the broker's clock alone. What is wrong with one half (it cannot be read, copied or put aside) is that half's
affair: the round goes on, and the half is tried again in later ones, as often as it would have been asked about.
[TransactionalMessageServiceImpl.check, DefaultTransactionalMessageCheckListener]
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ariane.broker import half_messages
from ariane.broker.handlers.collaborators import Durability
from ariane.broker.producer_selection import BUSY, ProducerSelector
from ariane.broker.state.open_transactions import CheckDecision, HalfMessageState, decide_check, first_check_ms
from ariane.broker.transaction_service import READ_AT_ONCE, TransactionService
from ariane.errors import MessageRefused, ProtocolError, ReplyError, StoreError
from ariane.model import ids
from ariane.model.message import (
    CHECK_IMMUNITY_TIME,
    CHECK_TIMES,
    PGROUP,
    PREPARED_QUEUE_OFFSET,
    REAL_QID,
    REAL_TOPIC,
    UNIQ_KEY,
)
from ariane.model.topic import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from ariane.protocol import record
from ariane.protocol.record import Record
from ariane.protocol.requests.messaging import CheckTransactionState

log = logging.getLogger("ariane.broker.transaction_service")

HELD_BACK_MAX = (
    1_000_000  # an immune half that lies this far behind is copied to the end: a start reads no more than this
)
PATIENCE_S = 0.05  # for a producer that does not read what it is asked, twice; then its halves wait for the next round
SAID_MAX = 10  # failures of a round that get a line each; all are counted
REMEMBERED_MAX = 10_000  # halves that cannot be read or copied


class _Question(NamedTuple):
    peer_id: int
    header: CheckTransactionState
    body: bytes


class TransactionChecker:
    """`durable` as in sends: with it, a question leaves when the copy that it names is on the disk."""

    def __init__(
        self,
        transactions: TransactionService,
        producers: ProducerSelector,
        *,
        time_out_ms: int,
        checks_max: int,
        durability: Durability,
        now_ms: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._transactions = transactions
        self._halves = transactions.halves
        self._store = transactions.store
        self._producers = producers
        self._time_out_ms = time_out_ms
        self._checks_max = checks_max
        self._durability = durability
        self._now_ms = now_ms
        self._sleep = sleep
        self._unreadable: dict[int, int] = {}
        self._asked_in_place: dict[int, int] = {}
        self._done: Counter[str] = Counter()

    async def check_all(self) -> None:
        """Go over all open halves, a few hundred at a time, and save the progress."""
        await self._transactions.ready()
        now_ms = self._now_ms()
        self._done.clear()
        stop = self._store.max_offset(HALF_TOPIC, 0)
        for offsets in self._halves.open_batches(stop, now_ms, stop - HELD_BACK_MAX):
            due: list[int] = []
            for at in range(0, len(offsets), READ_AT_ONCE):
                due += await self._few(offsets[at : at + READ_AT_ONCE], now_ms, stop)
            if len(due) == len(offsets):
                self._halves.defer(offsets[0], min(due), stop)
        for remembered in (self._unreadable, self._asked_in_place):
            for offset in [one for one in remembered if not self._halves.is_open(one)]:
                del remembered[offset]
        if self._done:
            log.info("%d half messages are open; of this round: %s", self._halves.count, dict(self._done))
        await self._transactions.save_progress()

    async def _few(self, offsets: list[int], now_ms: int, stop: int) -> list[int]:
        """Check these; when those are due that are too young."""
        due: list[int] = []
        for _ in range(3):
            busy: list[int] = []
            questions: list[_Question] = []
            for offset, data in self._transactions.read_each(offsets):
                if not self._halves.is_open(offset):
                    continue
                try:
                    until_ms = self._one(offset, data, now_ms, stop, questions, busy)
                except (StoreError, MessageRefused, ReplyError) as error:  # of this one; the next may fare better
                    self._done["failed"] += 1
                    if self._done["failed"] <= SAID_MAX:
                        log.error("half message %d stays as it is until the next round: %s", offset, error)
                    continue
                if until_ms is not None:
                    due.append(until_ms)
            if questions and (flushed := self._durability.wait_flushed(self._store.commit_log_max)) is not None:
                await flushed
            for question in questions:
                if self._halves.is_open(question.header.tran_state_table_offset):  # it may have been ended meanwhile
                    self._producers.send_check(*question)
            await self._sleep(PATIENCE_S if busy else 0)
            if not busy:
                break
            offsets = busy
        return due

    def _one(
        self, offset: int, data: bytes | None, now_ms: int, stop: int, questions: list[_Question], busy: list[int]
    ) -> int | None:
        """Put one half aside, or count and ask; when it is due, if it is too young."""
        try:
            half = record.decode(data or b"")
            table = half.property_map()
            _ = table[REAL_TOPIC], int(table[REAL_QID])
        except (ProtocolError, KeyError, ValueError) as error:
            self._could_not_read(offset, error)
            return None
        root = half_messages.root_of(table, offset)
        checks = max(half_messages.parse_number(table.get(CHECK_TIMES)), self._asked_in_place.get(offset, 0))
        first_ms = half.store_ms if root == offset or checks else self._stored_ms(root)
        state = HalfMessageState(first_ms, checks, table.get(CHECK_IMMUNITY_TIME))
        what = decide_check(state, now_ms, self._time_out_ms, self._checks_max)
        if what is CheckDecision.WAIT:
            if offset < stop - HELD_BACK_MAX:
                self._transactions.put_copy(half, {**table, PREPARED_QUEUE_OFFSET: str(root)}, root)
            return first_check_ms(state, self._time_out_ms)
        if what is CheckDecision.DISCARD:
            self._put_aside(half, table, root)
            return None
        peer_id = self._producers.pick(table.get(PGROUP, ""))
        if peer_id == BUSY:
            self._done["busy"] += 1
            busy.append(offset)
            return None
        try:
            counted = {**table, CHECK_TIMES: str(checks + 1), PREPARED_QUEUE_OFFSET: str(root)}
            half = self._transactions.put_copy(half, counted, root)
        except MessageRefused as error:  # no room in its properties for the count: it stays where it is
            log.warning("half message %d cannot be copied, it is asked about in its place: %s", offset, error)
            if len(self._asked_in_place) >= REMEMBERED_MAX:
                self._put_aside(half, table, root)
                return None
            self._asked_in_place[offset] = checks + 1
        if peer_id is None:
            self._done["nobody online"] += 1
        else:
            self._done["asked"] += 1
            questions.append(_question(peer_id, half, table.get(UNIQ_KEY)))
        return None

    def _put_aside(self, half: Record, table: dict[str, str], root: int) -> None:
        """Nobody answers for it: keep it where an operator finds it."""
        self._done["put aside"] += 1
        self._transactions.topics.get_or_create_internal(CHECK_MAX_TIME_TOPIC, 1)
        table = {name: value for name, value in table.items() if name != PREPARED_QUEUE_OFFSET}
        what = f"half message {root} ({table.get(UNIQ_KEY)}, group {table.get(PGROUP)})"
        try:
            self._transactions.end_with(
                root, half.queue_offset, [half_messages.copy_draft(half, table, CHECK_MAX_TIME_TOPIC)]
            )
        except MessageRefused as error:
            log.error("%s is given up, it cannot be copied: %s; it lies at %d of the log", what, error, half.offset)
            self._transactions.end_with(root, half.queue_offset, [])
            return
        log.error("%s was asked about often enough and lies in %s now", what, CHECK_MAX_TIME_TOPIC)

    def _could_not_read(self, offset: int, error: Exception) -> None:
        """Leave it to the next rounds, but not for ever: nothing behind it would be forgotten."""
        rounds = self._unreadable.pop(offset, 0) + 1
        self._done["unreadable"] += 1
        if rounds < self._checks_max and len(self._unreadable) < REMEMBERED_MAX:
            self._unreadable[offset] = rounds
            log.warning("half message %d cannot be read: %s", offset, error)
            return
        log.error("half message %d is given up, it cannot be read: %s", offset, error)
        self._transactions.end_with(offset, offset, [])

    def _stored_ms(self, offset: int) -> int:
        stored_ms = self._store.store_time(HALF_TOPIC, 0, offset)
        return 0 if stored_ms is None else stored_ms  # gone: older than anything that is immune


def _question(peer_id: int, half: Record, unique: str | None) -> _Question:
    offset_id = ids.offset_message_id(half.store_host, half.offset)
    header = CheckTransactionState(half.queue_offset, half.offset, unique, unique, offset_id)
    return _Question(peer_id, header, half_messages.check_body(half))
