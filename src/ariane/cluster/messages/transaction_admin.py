"""Transactions for operators: lists open and discarded half messages, and makes a broker check one again.

    list_open_transactions       half and op queue of every master, read from the broker's own progress on
    list_check_limit_exceeded    TRANS_CHECK_MAX_TIME_TOPIC
    resume_checks(id)            RESUME_CHECK_HALF_MESSAGE (323), for one of either

It asks for nothing that 4.9.4 brokers do not serve. Those keep no topic for the op queue, so it cannot be pulled there: its
entries are asked for (321), then each record (33). [ResumeCheckHalfMessage of DefaultMQAdminExt; the list has no counterpart]
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec

from ariane.cluster.connection import BrokerServer, BrokerUnavailable, Change, ClusterConnection
from ariane.cluster.messages.message_query import is_offset_id
from ariane.errors import NotFound, ReplyError
from ariane.model import ids
from ariane.model.message import CHECK_IMMUNITY_TIME, CHECK_TIMES, KEYS, PGROUP, REAL_QID, REAL_TOPIC, UNIQ_KEY
from ariane.model.topic import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.records import record
from ariane.protocol.records.properties import parse_number
from ariane.protocol.records.record import Record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import (
    SUBSCRIPTION,
    OffsetResponse,
    PullMessage,
    PullMessageResponse,
    QueryConsumeQueue,
    QueryConsumerOffset,
    QueueRef,
    ResumeCheckHalfMessage,
    ViewMessage,
)

TOOLS_GROUP = "TOOLS_CONSUMER"  # exists on every broker
AT_ONCE = 32
LIMIT = 1_000  # half messages per broker in detail


class HalfMessage(NamedTuple):
    """An open transaction, from the newest copy of its half message.

    Times are in ms by the broker's clock, `born_ms` by the producer's. `first_stored_ms` is None if the first copy cannot be
    found (copies of Java brokers do not reference it). `immunity_s` is the producer's text.
    """

    broker: str
    addr: str  # of the master, to which `resume_checks` is sent
    topic: str  # to which a commit delivers the message
    queue_id: int  # in that topic; -1 if the record does not name it
    group: str  # producer group whose members the broker asks
    unique_key: str  # the same in all copies
    keys: str  # business keys, separated by spaces
    checks: int  # number of checks so far
    immunity_s: str | None
    first_stored_ms: int | None
    stored_ms: int  # of the newest copy
    born_ms: int
    body_size: int  # bytes as stored
    queue_offset: int  # of the newest copy, in the half queue
    offset_message_id: str  # of the newest copy: identifies it to `resume_checks`


class BrokerHalfMessages(NamedTuple):
    """Half messages of one broker, oldest first. `total` counts all of them; `messages` may be limited."""

    broker: str
    addr: str
    total: int
    messages: list[HalfMessage]


class TransactionsResult(NamedTuple):
    """Half messages of all brokers that responded."""

    brokers: list[BrokerHalfMessages]
    unavailable: tuple[BrokerUnavailable, ...] = ()


class TransactionOperations(ClusterConnection):
    """Operations on transactions."""

    async def list_open_transactions(self, *, cluster: str | None = None, limit: int = LIMIT) -> TransactionsResult:
        """Return the open transactions of every master, at most `limit` per broker in detail.

        Transactions that end during the query may be included.

        Args:
            cluster: Only brokers of this cluster.
            limit: Maximum number of half messages per broker; the totals count all.

        Raises:
            NotFound: no such cluster.
            ServerUnavailable: no master is registered.
        """

        async def read(server: BrokerServer) -> BrokerHalfMessages:
            return await _open_on(self.peers, server.broker, server.addr, limit)

        answers = await self.ask_all(await self.select_brokers(cluster=cluster), read)
        return TransactionsResult([value for _, value in answers.values], answers.unavailable)

    async def list_check_limit_exceeded(self, *, cluster: str | None = None, limit: int = LIMIT) -> TransactionsResult:
        """Return the half messages that exceeded the check limit, the last `limit` per broker, including resumed ones.

        Raises:
            NotFound: no such cluster.
            ServerUnavailable: no master is registered.
        """

        async def read(server: BrokerServer) -> BrokerHalfMessages:
            name, addr = server.broker, server.addr
            first, stop = await _bounds(self.peers, addr, CHECK_MAX_TIME_TOPIC)
            halves = [
                _described(name, addr, stored, None)
                async for stored in _read(self.peers, addr, CHECK_MAX_TIME_TOPIC, max(first, stop - limit), stop)
            ]
            return BrokerHalfMessages(name, addr, stop - first, halves)

        answers = await self.ask_all(await self.select_brokers(cluster=cluster), read)
        return TransactionsResult([value for _, value in answers.values], answers.unavailable)

    async def resume_checks(self, message_id: str, *, broker: str | None = None) -> list[Change]:
        """Make a broker check a half message again, with a reset check counter. In a dry run only record it.

        Args:
            message_id: Offset id of the half message, or the unique key of one that exceeded the check limit or is open.
            broker: Name of the broker, for an offset id that contains a former address of it; None: that address.

        Raises:
            NotFound: no half message has this unique key, or no such broker is registered.
            ReplyError: the broker rejected the request.
        """
        if is_offset_id(message_id):
            addr, offset_id = ids.parse_offset_message_id(message_id)[0], message_id
            if broker is not None:
                addr = (await self.select_brokers(broker=broker))[0].addr
        else:
            half = await self._find_half_message(message_id)
            addr, offset_id = half.addr, half.offset_message_id
        summary = f"resume the checks of half message {message_id}"
        header = ResumeCheckHalfMessage(offset_id)
        return await self.change(Change(addr, summary, RequestCode.RESUME_CHECK_HALF_MESSAGE, header))

    async def _find_half_message(self, unique_key: str) -> HalfMessage:
        for result in (await self.list_check_limit_exceeded(), await self.list_open_transactions()):
            matches = [half for broker in result.brokers for half in broker.messages if half.unique_key == unique_key]
            if matches:
                return matches[-1]
        raise NotFound("half message", unique_key)


# --- one broker ---


async def _open_on(peers: ConnectionPool, name: str, addr: str, most: int) -> BrokerHalfMessages:
    # The broker's package is imported here, because only this list needs it.
    from ariane.broker.state.open_transactions import OpenTransactions, OpenTransactionsBuilder
    from ariane.broker.transactions import half_messages

    # The order of these requests matters because the broker goes on checking: a checked half message is appended again and the
    # progress moves past the old copy. Ends are read from the older progress on (an end is never skipped), half messages up to a
    # maximum read last (a copy is never missed).
    op_low = await _progress(peers, addr, OP_HALF_TOPIC) or 0
    low = await _progress(peers, addr, HALF_TOPIC) or 0
    op_min, op_stop = await _bounds(peers, addr, OP_HALF_TOPIC)
    low, op_low = max(low, (await _bounds(peers, addr, HALF_TOPIC))[0]), max(op_low, op_min)
    halves = OpenTransactions(low, op_low)
    rebuild = OpenTransactionsBuilder(halves)
    at = op_low
    async for op in _read(peers, addr, OP_HALF_TOPIC, op_low, op_stop):
        rebuild.add_op(max(op.queue_offset, at), half_messages.ended_offsets(op))
        at = op.queue_offset + 1
    newest: dict[int, Record] = {}  # offset of the first copy -> the newest copy
    roots: dict[tuple[str, str], int] = {}  # (group, unique key) -> offset of the first copy
    _, stop = await _bounds(peers, addr, HALF_TOPIC)
    async for half in _read(peers, addr, HALF_TOPIC, low, stop):
        table = half.property_map()
        identity = table.get(PGROUP, ""), table.get(UNIQ_KEY, "")
        root = half_messages.root_of(table, half.queue_offset)
        if root == half.queue_offset and _is_checked(half):
            root = roots.get(identity, root)  # a Java broker's copy, which does not reference the first one
        roots[identity] = root
        rebuild.add_half(half.queue_offset, root)
        if len(newest) < most or root in newest:
            newest[root] = half
        if halves.newest_copy(root) is None:
            newest.pop(root, None)
    rows = []
    for root, half in sorted(newest.items(), key=lambda item: item[1].queue_offset):
        if halves.newest_copy(root) != half.queue_offset:
            continue
        first = half if half.queue_offset == root else await _read_record(peers, addr, HALF_TOPIC, root)
        # What looks like the first one is itself a copy if it was checked: the time of the first one is unknown.
        rows.append(_described(name, addr, half, None if first is None or _is_checked(first) else first))
    return BrokerHalfMessages(name, addr, halves.count, rows)


def _is_checked(half: Record) -> bool:
    return parse_number(half.property_map().get(CHECK_TIMES)) > 0


def _described(name: str, addr: str, half: Record, first: Record | None) -> HalfMessage:
    table = half.property_map()
    return HalfMessage(
        broker=name,
        addr=addr,
        topic=table.get(REAL_TOPIC, ""),
        queue_id=parse_number(table.get(REAL_QID), -1),
        group=table.get(PGROUP, ""),
        unique_key=table.get(UNIQ_KEY, ""),
        keys=table.get(KEYS, ""),
        checks=parse_number(table.get(CHECK_TIMES)),
        immunity_s=table.get(CHECK_IMMUNITY_TIME),
        first_stored_ms=first.store_ms if first is not None else None,
        stored_ms=half.store_ms,
        born_ms=half.born_ms,
        body_size=len(half.body),
        queue_offset=half.queue_offset,
        offset_message_id=ids.offset_message_id(half.store_host, half.offset),
    )


async def _bounds(peers: ConnectionPool, addr: str, topic: str) -> tuple[int, int]:
    header = QueueRef(topic, 0)
    first = decode_header(await peers.request_ok(addr, RequestCode.GET_MIN_OFFSET, header), OffsetResponse).offset
    stop = decode_header(await peers.request_ok(addr, RequestCode.GET_MAX_OFFSET, header), OffsetResponse).offset
    return max(first, 0), max(stop, 0)


async def _progress(peers: ConnectionPool, addr: str, topic: str) -> int | None:
    header = QueryConsumerOffset(TRANSACTION_GROUP, topic, 0)
    answer = await peers.request(addr, RequestCode.QUERY_CONSUMER_OFFSET, header)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise ReplyError(answer.code, answer.remark, addr)
    return decode_header(answer, OffsetResponse).offset


# --- reading a queue ---


async def _read_record(peers: ConnectionPool, addr: str, topic: str, offset: int) -> Record | None:
    async for stored in _read(peers, addr, topic, offset, offset + 1):
        if stored.queue_offset == offset:
            return stored
    return None


async def _read(peers: ConnectionPool, addr: str, topic: str, start: int, stop: int) -> AsyncIterator[Record]:
    """Yield the records of queue 0 of a topic from `start` to `stop`."""
    while start < stop:
        header = PullMessage(TOOLS_GROUP, topic, 0, start, min(AT_ONCE, stop - start), SUBSCRIPTION, subscription="*")
        answer = await peers.request(addr, RequestCode.PULL_MESSAGE, header)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            async for stored in _read_by_entries(peers, addr, topic, start, stop):
                yield stored
            return
        if answer.code == ResponseCode.SUCCESS:
            for stored in record.decode_all(answer.body):
                if start <= stored.queue_offset < stop:
                    yield stored
        elif answer.code not in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED):
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                return
            raise ReplyError(answer.code, answer.remark, addr)
        start = max(decode_header(answer, PullMessageResponse).next_begin_offset, start + 1)


class _Entry(msgspec.Struct, frozen=True, rename="camel"):
    physic_offset: int


class _PagedEntries(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to QUERY_CONSUME_QUEUE."""

    queue_data: tuple[_Entry, ...] = ()


async def _read_by_entries(
    peers: ConnectionPool, addr: str, topic: str, start: int, stop: int
) -> AsyncIterator[Record]:
    """Yield the same from a broker that has the queue but no configuration of the topic."""
    while start < stop:
        header = QueryConsumeQueue(topic, 0, start, min(AT_ONCE, stop - start))
        answer = await peers.request_ok(addr, RequestCode.QUERY_CONSUME_QUEUE, header)
        entries = fastjson.decode(answer.body, _PagedEntries).queue_data if answer.body else ()
        if not entries:
            return
        wanted = [ViewMessage(entry.physic_offset) for entry in entries]
        answers = await asyncio.gather(*(peers.request(addr, RequestCode.VIEW_MESSAGE_BY_ID, view) for view in wanted))
        for answer in answers:
            if answer.code == ResponseCode.SUCCESS:
                yield record.decode(answer.body)
        start += len(entries)
