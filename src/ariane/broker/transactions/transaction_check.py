"""Checks of open transactions: each open half message that is old enough is counted and its producer asked, or it is discarded.

    too young                              skipped, with its batch, until the first message of the batch is due
    checked `transactionCheckMax` times    TRANS_CHECK_MAX_TIME_TOPIC and an op message, in one write
    otherwise                              a copy with the new count, and CHECK_TRANSACTION_STATE to one producer of its group

Ages are measured by the broker's clock only. A half message that cannot be read, copied or discarded does not affect the
others: the round continues, and later rounds retry it as often as they would have checked it.
[TransactionalMessageServiceImpl.check, DefaultTransactionalMessageCheckListener]
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import NamedTuple

from ariane.broker.collaborators import Durability
from ariane.broker.state.open_transactions import CheckDecision, HalfMessageState, decide_check, first_check_ms
from ariane.broker.transactions import half_messages
from ariane.broker.transactions.producer_selection import BUSY, ProducerSelector
from ariane.broker.transactions.transaction_service import READ_BATCH, TransactionService
from ariane.clock import Clock
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
from ariane.protocol.records import record
from ariane.protocol.records.properties import parse_number
from ariane.protocol.records.record import Record
from ariane.protocol.requests.messaging import CheckTransactionState

log = logging.getLogger("ariane.broker.transactions.transaction_service")

# An immune half message this far from the end of its queue is copied to the end: it bounds what a start has to read.
BEHIND_MAX = 1_000_000
BUSY_RETRY_S = 0.05  # pause before a producer with a full connection is tried again, twice per round
LOGGED_FAILURES_MAX = 10  # failures of a round that are logged one by one; all are counted
REMEMBERED_MAX = 10_000  # half messages that cannot be read or copied


class _CheckRequest(NamedTuple):
    peer_id: int
    header: CheckTransactionState
    body: bytes


class _Round(NamedTuple):
    """What is fixed when a round begins."""

    now_ms: int
    stop: int  # end of the half queue


class TransactionChecker:
    """Asks producers about open transactions.

    In synchronous flush mode a request is sent only after the copy that it names is on the disk.
    """

    def __init__(
        self,
        transactions: TransactionService,
        producers: ProducerSelector,
        *,
        timeout_ms: int,
        checks_max: int,
        durability: Durability,
        clock: Clock,
    ) -> None:
        self._transactions = transactions  # stores copies and decisions
        self._halves = transactions.halves  # which transactions are open
        self._store = transactions.store  # age of half messages
        self._producers = producers  # chooses a connected producer of the group
        self._timeout_ms = timeout_ms  # age of the first check
        self._checks_max = checks_max  # a transaction is discarded after this number of checks
        self._durability = durability  # a copy must be durable before a producer learns its offset
        self._clock = clock  # ages and pauses
        self._unreadable: dict[int, int] = {}  # failed rounds by queue offset
        self._uncopied: dict[int, int] = {}  # checks by queue offset, of half messages whose copy does not fit
        self._outcomes: Counter[str] = Counter()  # of the current round

    async def check_all(self) -> None:
        """Check all open half messages, a few hundred at a time, and save the progress."""
        await self._transactions.ready()
        self._outcomes.clear()
        stop = self._store.max_offset(HALF_TOPIC, 0)
        this_round = _Round(self._clock.now_ms(), stop)
        for offsets in self._halves.open_batches(stop, this_round.now_ms, stop - BEHIND_MAX):
            due: list[int] = []
            for start in range(0, len(offsets), READ_BATCH):
                due += await self._check_batch(offsets[start : start + READ_BATCH], this_round)
            if len(due) == len(offsets):
                # The whole batch is too young: skip it until the first of them is due.
                self._halves.defer(offsets[0], min(due), stop)
        for counts in (self._unreadable, self._uncopied):
            for completed in [offset for offset in counts if not self._halves.is_open(offset)]:
                del counts[completed]
        if self._outcomes:
            log.info(
                "Checked transactions: %d half messages are open; this round: %s",
                self._halves.count,
                dict(self._outcomes),
            )
        await self._transactions.save_progress()

    async def _check_batch(self, offsets: list[int], this_round: _Round) -> list[int]:
        """Check half messages; return the due times of those that are too young."""
        due: list[int] = []
        for _ in range(3):
            busy: list[int] = []  # their producers do not read: tried again after a pause, then in the next round
            requests: list[_CheckRequest] = []
            for offset, data in self._transactions.read_each(offsets):
                if not self._halves.is_open(offset):
                    continue
                try:
                    outcome = self._check_half(offset, data, this_round)
                except (StoreError, MessageRefused, ReplyError) as error:  # may concern this half message only
                    self._outcomes["failed"] += 1
                    if self._outcomes["failed"] <= LOGGED_FAILURES_MAX:
                        log.error("Could not check half message %d, retrying in the next round: %s", offset, error)
                    continue
                if isinstance(outcome, _CheckRequest):
                    requests.append(outcome)
                elif outcome == BUSY:
                    busy.append(offset)
                elif outcome is not None:
                    due.append(outcome)
            if requests and (flushed := self._durability.wait_flushed(self._store.commit_log_max)) is not None:
                await flushed
            for request in requests:
                if self._halves.is_open(request.header.tran_state_table_offset):  # may have been completed meanwhile
                    self._producers.send_check(*request)
            await self._clock.sleep(BUSY_RETRY_S if busy else 0)
            if not busy:
                break
            offsets = busy
        return due

    def _check_half(self, offset: int, data: bytes | None, this_round: _Round) -> _CheckRequest | int | None:
        """Discard one half message, or count a check.

        Returns:
            The request to send; the due time in ms if the half message is too young; BUSY if its producers do not read;
            None if nothing more has to be done in this round.
        """
        try:
            half = record.decode(data or b"")
            table = half.property_map()
            _ = table[REAL_TOPIC], int(table[REAL_QID])
        except (ProtocolError, KeyError, ValueError) as error:
            self._count_unreadable(offset, error)
            return None
        root = half_messages.root_of(table, offset)
        checks = max(parse_number(table.get(CHECK_TIMES)), self._uncopied.get(offset, 0))
        first_ms = half.store_ms if root == offset or checks else self._stored_ms(root)
        state = HalfMessageState(first_ms, checks, table.get(CHECK_IMMUNITY_TIME))
        decision = decide_check(state, this_round.now_ms, self._timeout_ms, self._checks_max)
        if decision is CheckDecision.WAIT:
            if offset < this_round.stop - BEHIND_MAX:
                self._transactions.put_copy(half, {**table, PREPARED_QUEUE_OFFSET: str(root)}, root)
            return first_check_ms(state, self._timeout_ms)
        if decision is CheckDecision.DISCARD:
            self._discard(half, table, root)
            return None
        peer_id = self._producers.pick(table.get(PGROUP, ""))
        if peer_id == BUSY:
            self._outcomes["busy"] += 1
            return BUSY
        try:
            counted = {**table, CHECK_TIMES: str(checks + 1), PREPARED_QUEUE_OFFSET: str(root)}
            half = self._transactions.put_copy(half, counted, root)
        except MessageRefused as error:  # its properties have no room for the count, which is remembered here instead
            log.warning("Could not copy half message %d, checking it without a copy: %s", offset, error)
            if len(self._uncopied) >= REMEMBERED_MAX:
                self._discard(half, table, root)
                return None
            self._uncopied[offset] = checks + 1
        if peer_id is None:
            self._outcomes["no producer online"] += 1
            return None
        self._outcomes["asked"] += 1
        return _check_request(peer_id, half, table.get(UNIQ_KEY))

    def _discard(self, half: Record, table: dict[str, str], root: int) -> None:
        """Move a half message to the topic where operators find it: no producer decided it."""
        self._outcomes["discarded"] += 1
        self._transactions.topics.get_or_create_internal(CHECK_MAX_TIME_TOPIC, 1)
        table = {name: value for name, value in table.items() if name != PREPARED_QUEUE_OFFSET}
        description = f"half message {root} ({table.get(UNIQ_KEY)}, group {table.get(PGROUP)})"
        try:
            self._transactions.end_with(
                root, half.queue_offset, [half_messages.copy_draft(half, table, CHECK_MAX_TIME_TOPIC)]
            )
        except MessageRefused as error:
            log.error("Giving up %s at log offset %d, it cannot be copied: %s", description, half.offset, error)
            self._transactions.end_with(root, half.queue_offset, [])
            return
        log.error("Moved %s to %s after %d checks", description, CHECK_MAX_TIME_TOPIC, self._checks_max)

    def _count_unreadable(self, offset: int, error: Exception) -> None:
        """Retry an unreadable half message in later rounds, then give it up: it holds back the progress of all later ones."""
        rounds = self._unreadable.pop(offset, 0) + 1
        self._outcomes["unreadable"] += 1
        if rounds < self._checks_max and len(self._unreadable) < REMEMBERED_MAX:
            self._unreadable[offset] = rounds
            log.warning("Cannot read half message %d: %s", offset, error)
            return
        log.error("Giving up half message %d, it cannot be read: %s", offset, error)
        self._transactions.end_with(offset, offset, [])

    def _stored_ms(self, offset: int) -> int:
        stored_ms = self._store.store_time(HALF_TOPIC, 0, offset)
        return 0 if stored_ms is None else stored_ms  # expired: older than any immunity time


def _check_request(peer_id: int, half: Record, unique: str | None) -> _CheckRequest:
    offset_id = ids.offset_message_id(half.store_host, half.offset)
    header = CheckTransactionState(half.queue_offset, half.offset, unique, unique, offset_id)
    return _CheckRequest(peer_id, header, half_messages.check_body(half))
