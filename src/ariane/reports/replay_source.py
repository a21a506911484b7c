"""Which messages are sent once more: those of an archive, or of a topic as its brokers have it now."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ariane.cluster.replay import OriginalMessage, RecordId
from ariane.errors import (
    ProtocolError,
    ReplyError,
    RouteNotFound,
    StoreError,
    UsageError,
)
from ariane.model import host, ids
from ariane.model.message import COMPRESSED, COMPRESSION_MASK, KEYS, TAGS, UNIQ_KEY
from ariane.model.topic import PERM_READ
from ariane.net.connection_pool import ConnectionPool
from ariane.net.name_servers import NameServerClient
from ariane.protocol import compression, record
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.record import Record
from ariane.protocol.requests import typed
from ariane.protocol.requests.messaging import SUBSCRIPTION, OffsetAnswer, PullMessage, PullMessageAnswer, QueueRef
from ariane.reports import table_views
from ariane.tables import ARCHIVE
from ariane.tables.archive import topic_of_bucket
from ariane.tables.table_format import DataFile, read_version

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TOOLS_GROUP = "TOOLS_CONSUMER"  # every broker has it
AT_ONCE = 32
ROWS_AT_ONCE = 500
# What a broker answers when the offset is below its first message: then, or while it removes files.
MOVED = (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY)
GO_ON = "what was there cannot be sent again; run it once more for the rest"
COLUMNS = (
    "topic", "broker", "queue_id", "queue_offset", "message_id", "properties", "body", "flag", "sys_flag",
)  # fmt: skip


class ReplayFilter(NamedTuple):
    """What is chosen. Times are the broker's store times, in ms; `where` is a condition in SQL (DuckDB) over ARCHIVE's
    columns."""

    topic: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    key: str | None = None
    where: str | None = None


async def archived_messages(home: Path, wanted: ReplayFilter) -> AsyncIterator[OriginalMessage]:
    """Messages of the archive in `home`, day by day, each queue in its order. StoreError when there is no archive."""
    now = read_version(home, ARCHIVE)
    if now is None:
        raise StoreError(f"no archive in {home}: make one with `ariane archive run`")

    def has(file: DataFile) -> bool:
        if wanted.topic is not None and topic_of_bucket(file.bucket) != wanted.topic:
            return False
        if file.first_ms is None or file.last_ms is None:
            return True
        is_later = wanted.until_ms is not None and file.first_ms >= wanted.until_ms
        return not is_later and not (wanted.since_ms is not None and file.last_ms < wanted.since_ms)

    # One bucket after another: no more than a day of a topic is sorted at once.
    for bucket in sorted({file.bucket for file in now.files if has(file)}):
        with table_views.open_views(home, table_views.files_of_buckets(ARCHIVE, {bucket})) as sql:
            question, values = _question(sql, ARCHIVE.name, wanted)
            order = "ORDER BY broker, queue_id, queue_offset"
            answer = sql.execute(f"SELECT {', '.join(COLUMNS)} FROM {question} {order}", values)
            before: RecordId | None = None
            while found := answer.fetchmany(ROWS_AT_ONCE):
                for row in found:
                    one = _of_row(dict(zip(COLUMNS, row, strict=True)))
                    # An archive whose checkpoint was lost has messages twice.
                    if one.record_id != before:
                        yield one
                    before = one.record_id


async def topic_messages(
    peers: ConnectionPool, name_servers: tuple[str, ...], wanted: ReplayFilter
) -> AsyncIterator[OriginalMessage]:
    """Messages that brokers have of a topic now, queue by queue: what comes later is not among them.

    RouteNotFound when no name server knows it; any server that is away ends it.
    """
    assert wanted.topic is not None
    route = await NameServerClient(peers, name_servers).fetch_route(wanted.topic)
    addresses = {one.broker_name: one.broker_addrs for one in route.broker_datas if one.broker_addrs}
    queues = [(one.broker_name, queue) for one in route.queue_datas for queue in range(one.read_queue_nums)]
    if not any(one.perm & PERM_READ for one in route.queue_datas):
        raise RouteNotFound(wanted.topic, "its brokers do not let it be read: set its perm to 6")
    if away := sorted({broker for broker, _ in queues} - set(addresses)):
        raise RouteNotFound(wanted.topic, f"no address of {away[0]} is known, which has messages of it")
    # All ends before the first message: what is sent meanwhile, perhaps to this very topic, is not among them.
    bounds = []
    for broker, queue_id in sorted(queues):
        addr = addresses[broker][min(addresses[broker])]
        bounds.append((broker, addr, queue_id, *await _bounds(peers, addr, wanted.topic, queue_id)))
    for broker, addr, queue_id, first, end in bounds:
        async for some in _pages(peers, addr, wanted.topic, queue_id, first, end):
            for one in _chosen(some, broker, wanted):
                yield _of_record(one, broker)


def condition_fault(sql: DuckDBPyConnection, where: str) -> str | None:
    """Why `where` is no condition; None when it is one. Only what can be read as one SELECT passes, so nothing is changed."""
    import duckdb

    text = json.loads(_one(sql, "SELECT json_serialize_sql($1)", [f"SELECT 1 WHERE (\n{where}\n)"]))
    if text["error"]:
        return str(text["error_message"])
    try:
        sql.execute(f"EXPLAIN SELECT 1 FROM {ARCHIVE.name} WHERE (\n{where}\n)")
    except duckdb.Error as error:
        return str(error).splitlines()[0]
    return None


def _question(sql: DuckDBPyConnection, view: str, wanted: ReplayFilter) -> tuple[str, list[object]]:
    """FROM … WHERE …, and its values."""
    conditions, values = ["true"], list[object]()
    for condition, value in (
        ("topic = ${}", wanted.topic),
        ("store_timestamp >= make_timestamptz(${}::BIGINT * 1000)", wanted.since_ms),
        ("store_timestamp < make_timestamptz(${}::BIGINT * 1000)", wanted.until_ms),
        ("list_contains(string_split(keys, ' '), ${})", wanted.key),
    ):
        if value is not None:
            values.append(value)
            conditions.append(condition.format(len(values)))
    if wanted.where is not None:
        if fault := condition_fault(sql, wanted.where):
            raise UsageError("--where", wanted.where, fault)
        conditions.append(f"(\n{wanted.where}\n)")
    return f"{view} WHERE {' AND '.join(conditions)}", values


def _one(sql: DuckDBPyConnection, question: str, values: list[object]) -> Any:
    found = sql.execute(question, values).fetchone()
    assert found is not None
    return found[0]


def _of_row(row: dict[str, Any]) -> OriginalMessage:
    place = RecordId(row["topic"], row["broker"], row["queue_id"], row["queue_offset"])
    # The archive's bodies are decompressed, whatever the flag of the stored record says.
    sys_flag = row["sys_flag"] & ~(COMPRESSED | COMPRESSION_MASK)
    return OriginalMessage(place, row["message_id"], row["properties"] or {}, row["body"] or b"", row["flag"], sys_flag)


# --- a topic ---


async def _bounds(peers: ConnectionPool, addr: str, topic: str, queue_id: int) -> tuple[int, int]:
    header = QueueRef(topic, queue_id)
    first = typed(await peers.request_ok(addr, RequestCode.GET_MIN_OFFSET, header), OffsetAnswer).offset
    end = typed(await peers.request_ok(addr, RequestCode.GET_MAX_OFFSET, header), OffsetAnswer).offset
    return max(0, first), end


async def _pages(
    peers: ConnectionPool, addr: str, topic: str, queue_id: int, at: int, end: int
) -> AsyncIterator[list[Record]]:
    """The records of a queue between two offsets, all of them: an error rather than messages passed over."""
    while at < end:
        pull = PullMessage(TOOLS_GROUP, topic, queue_id, at, min(AT_ONCE, end - at), SUBSCRIPTION, subscription="*")
        answer = await peers.request(addr, RequestCode.PULL_MESSAGE, pull)
        where = f"queue {queue_id} of {topic} at {at}"
        if answer.code in MOVED:
            begins = typed(answer, PullMessageAnswer).next_begin_offset
            raise StoreError(f"{where}: {addr} has removed it meanwhile, and goes on at {begins}: {GO_ON}")
        if answer.code != ResponseCode.SUCCESS:  # also when it finds nothing below an end that it told
            raise ReplyError(answer.code, f"{where}: {answer.remark}", addr)
        found = [one for one in record.decode_all(answer.body) if at <= one.queue_offset < end]
        if [one.queue_offset for one in found] != list(range(at, at + max(1, len(found)))):
            raise StoreError(f"{where}: {addr} answered with others, it has removed some meanwhile: {GO_ON}")
        yield found
        at += len(found)


def _chosen(records: list[Record], broker: str, wanted: ReplayFilter) -> Iterator[Record]:
    fit = [
        one
        for one in records
        if (wanted.since_ms is None or one.store_ms >= wanted.since_ms)
        and (wanted.until_ms is None or one.store_ms < wanted.until_ms)
        and (wanted.key is None or wanted.key in one.property_map().get(KEYS, "").split())
    ]
    if wanted.where is None or not fit:
        yield from fit
        return
    for number in _numbers_where(fit, broker, wanted):
        yield fit[number]


def _numbers_where(records: list[Record], broker: str, wanted: ReplayFilter) -> list[int]:
    """Which of them fulfil the condition."""
    import duckdb

    columns = ", ".join(f'"{column.name}" {table_views.sql_type(column.type)}' for column in ARCHIVE.columns)
    marks = ", ".join("?" for _ in ARCHIVE.columns)
    with duckdb.connect() as sql:
        sql.execute("SET TimeZone = 'UTC'")
        sql.execute(f"CREATE TABLE {ARCHIVE.name} ({columns}, number INTEGER)")
        rows = [[*_columns(one, broker), number] for number, one in enumerate(records)]
        sql.executemany(f"INSERT INTO {ARCHIVE.name} VALUES ({marks}, ?)", rows)
        question, values = _question(sql, ARCHIVE.name, ReplayFilter(where=wanted.where))
        return [row[0] for row in sql.execute(f"SELECT number FROM {question} ORDER BY number", values).fetchall()]


def _columns(one: Record, broker: str) -> list[object]:
    """The values of ARCHIVE's columns."""
    own = one.property_map()
    offset_id = ids.offset_message_id(one.store_host, one.offset)
    values: dict[str, object] = {
        "topic": one.topic,
        "broker": broker,
        "queue_id": one.queue_id,
        "queue_offset": one.queue_offset,
        "commit_log_offset": one.offset,
        "message_id": own.get(UNIQ_KEY, offset_id),
        "offset_message_id": offset_id,
        "keys": own.get(KEYS),
        "tags": own.get(TAGS),
        "properties": {"key": list(own), "value": list(own.values())},
        "body": _of_record(one, broker).body,
        "born_timestamp": _time(one.born_ms),
        "store_timestamp": _time(one.store_ms),
        "born_host": host.text(one.born_host),
        "store_host": host.text(one.store_host),
        "reconsume_times": one.reconsume_times,
        "sys_flag": one.sys_flag,
        "flag": one.flag,
    }
    return [values[column.name] for column in ARCHIVE.columns]


def _of_record(one: Record, broker: str) -> OriginalMessage:
    """A body that cannot be decompressed stays as it is stored, and `sys_flag` says so."""
    own = one.property_map()
    body, sys_flag = one.body, one.sys_flag
    if sys_flag & COMPRESSED:
        with contextlib.suppress(ProtocolError):
            body = compression.decompress(body, sys_flag)
            sys_flag &= ~(COMPRESSED | COMPRESSION_MASK)
    message_id = own.get(UNIQ_KEY) or ids.offset_message_id(one.store_host, one.offset)
    return OriginalMessage(
        RecordId(one.topic, broker, one.queue_id, one.queue_offset), message_id, own, body, one.flag, sys_flag
    )


def _time(ms: int) -> datetime | None:
    """None for what no date can say: producers may claim any number as their time."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
