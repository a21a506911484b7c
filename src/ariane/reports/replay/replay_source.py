"""Reads the messages to replay: from an archive, or from the brokers of a topic."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ariane.clock import utc_of
from ariane.cluster.messages.replay import OriginalMessage, RecordId
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
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.pools.name_servers import NameServerClient
from ariane.protocol.client_rules.route_rules import preferred_server
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.records import compression, record
from ariane.protocol.records.record import Record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import SUBSCRIPTION, OffsetResponse, PullMessage, PullMessageResponse, QueueRef
from ariane.reports.tables import table_views
from ariane.reports.tables.table_contents import PIPELINE_NEEDS
from ariane.tables import ARCHIVE
from ariane.tables.declarations.archive import topic_of_bucket
from ariane.tables.table_format import DataFile
from ariane.tables.table_home import Home
from ariane.tables.table_store import read_version

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TOOLS_GROUP = "TOOLS_CONSUMER"  # exists on every broker
# Messages per pull: the default of Java's consumers.
PULL_MESSAGES = 32
FETCH_ROWS = 500
# Responses for an offset below the first message, also while the broker removes files.
OFFSET_MOVED_CODES = (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY)
RESUME_HINT = "removed messages cannot be replayed; run the command again for the rest"
COLUMNS = (
    "topic", "broker", "queue_id", "queue_offset", "message_id", "properties", "body", "flag", "sys_flag",
)  # fmt: skip


class ReplayFilter(NamedTuple):
    """Selection of messages. Times are store times in ms; `where` is a DuckDB condition over the columns of ARCHIVE."""

    topic: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    key: str | None = None
    where: str | None = None


async def archived_messages(home: Home, selection: ReplayFilter) -> AsyncIterator[OriginalMessage]:
    """Yield the messages of the archive in `home`, day by day, each queue in its order.

    Raises:
        StoreError: the archive does not exist or is unreadable.
    """
    version = read_version(home, ARCHIVE)
    if version is None:
        raise StoreError(f"no archive in {home}: create one with `ariane archive run` ({PIPELINE_NEEDS})")

    def has_selected(file: DataFile) -> bool:
        if selection.topic is not None and topic_of_bucket(file.bucket) != selection.topic:
            return False
        if file.first_ms is None or file.last_ms is None:
            return True
        is_later = selection.until_ms is not None and file.first_ms >= selection.until_ms
        return not is_later and not (selection.since_ms is not None and file.last_ms < selection.since_ms)

    # One bucket after another: at most one day of a topic is sorted in memory.
    for bucket in sorted({file.bucket for file in version.files if has_selected(file)}):
        with table_views.open_views(home, table_views.files_of_buckets(ARCHIVE, {bucket})) as sql:
            question, values = _filter_query(sql, ARCHIVE.name, selection)
            order = "ORDER BY broker, queue_id, queue_offset"
            response = sql.execute(f"SELECT {', '.join(COLUMNS)} FROM {question} {order}", values)
            previous_id: RecordId | None = None
            while page := response.fetchmany(FETCH_ROWS):
                for row in page:
                    message = _original_of_row(dict(zip(COLUMNS, row, strict=True)))
                    # An archive whose checkpoint was lost contains messages twice.
                    if message.record_id != previous_id:
                        yield message
                    previous_id = message.record_id


async def topic_messages(
    peers: ConnectionPool, name_servers: tuple[str, ...], selection: ReplayFilter
) -> AsyncIterator[OriginalMessage]:
    """Yield the messages that the brokers have of a topic, queue by queue, without those that arrive later.

    Raises:
        RouteNotFound: no name server has a route, or the topic is not readable.
        ArianeError: a server is unavailable, or it removed messages meanwhile.
    """
    assert selection.topic is not None
    route = await NameServerClient(peers, name_servers).fetch_route(selection.topic)
    addresses = {data.broker_name: data.broker_addrs for data in route.broker_datas if data.broker_addrs}
    queues = [(data.broker_name, queue) for data in route.queue_datas for queue in range(data.read_queue_nums)]
    if not any(data.perm & PERM_READ for data in route.queue_datas):
        raise RouteNotFound(selection.topic, "not readable; set its perm to 6")
    # Without this broker the replay would silently miss its messages.
    if missing := sorted({broker for broker, _ in queues} - set(addresses)):
        raise RouteNotFound(selection.topic, f"broker {missing[0]} has messages of it but no registered address")
    # Read all bounds before the first message: the replay may send to this very topic.
    bounds = []
    for broker, queue_id in sorted(queues):
        addr = addresses[broker][preferred_server(addresses[broker])]
        bounds.append((broker, addr, queue_id, *await _bounds(peers, addr, selection.topic, queue_id)))
    for broker, addr, queue_id, first, end in bounds:
        async for page in _pages(peers, addr, selection.topic, queue_id, first, end):
            for item in _matching(page, broker, selection):
                yield _original_of_record(item, broker)


def condition_fault(sql: DuckDBPyConnection, where: str) -> str | None:
    """Return why `where` is not a valid condition; None if it is. Only a single SELECT passes, so nothing can be modified."""
    import duckdb

    # DuckDB serializes SELECT statements only, so a condition cannot end the statement and begin another.
    text = json.loads(_query_value(sql, "SELECT json_serialize_sql($1)", [f"SELECT 1 WHERE (\n{where}\n)"]))
    if text["error"]:
        return str(text["error_message"])
    try:
        sql.execute(f"EXPLAIN SELECT 1 FROM {ARCHIVE.name} WHERE (\n{where}\n)")
    except duckdb.Error as error:
        return str(error).splitlines()[0]
    return None


def _filter_query(sql: DuckDBPyConnection, view: str, selection: ReplayFilter) -> tuple[str, list[object]]:
    """FROM … WHERE …, and its values."""
    conditions, values = ["true"], list[object]()
    for condition, value in (
        ("topic = ${}", selection.topic),
        ("store_timestamp >= make_timestamptz(${}::BIGINT * 1000)", selection.since_ms),
        ("store_timestamp < make_timestamptz(${}::BIGINT * 1000)", selection.until_ms),
        ("list_contains(string_split(keys, ' '), ${})", selection.key),
    ):
        if value is not None:
            values.append(value)
            conditions.append(condition.format(len(values)))
    if selection.where is not None:
        if fault := condition_fault(sql, selection.where):
            raise UsageError("--where", selection.where, fault)
        conditions.append(f"(\n{selection.where}\n)")
    return f"{view} WHERE {' AND '.join(conditions)}", values


def _query_value(sql: DuckDBPyConnection, question: str, values: list[object]) -> Any:
    row = sql.execute(question, values).fetchone()
    assert row is not None
    return row[0]


def _original_of_row(row: dict[str, Any]) -> OriginalMessage:
    place = RecordId(row["topic"], row["broker"], row["queue_id"], row["queue_offset"])
    # The archive's bodies are decompressed, whatever the flag of the stored record says.
    sys_flag = row["sys_flag"] & ~(COMPRESSED | COMPRESSION_MASK)
    return OriginalMessage(place, row["message_id"], row["properties"] or {}, row["body"] or b"", row["flag"], sys_flag)


# --- a topic ---


async def _bounds(peers: ConnectionPool, addr: str, topic: str, queue_id: int) -> tuple[int, int]:
    header = QueueRef(topic, queue_id)
    first = decode_header(await peers.request_ok(addr, RequestCode.GET_MIN_OFFSET, header), OffsetResponse).offset
    end = decode_header(await peers.request_ok(addr, RequestCode.GET_MAX_OFFSET, header), OffsetResponse).offset
    return max(0, first), end


async def _pages(
    peers: ConnectionPool, addr: str, topic: str, queue_id: int, offset: int, end: int
) -> AsyncIterator[list[Record]]:
    """Yield all records of a queue between two offsets.

    Raises:
        StoreError: the broker removed some of them meanwhile: none is skipped silently.
    """
    while offset < end:
        pull = PullMessage(
            TOOLS_GROUP, topic, queue_id, offset, min(PULL_MESSAGES, end - offset), SUBSCRIPTION, subscription="*"
        )
        response = await peers.request(addr, RequestCode.PULL_MESSAGE, pull)
        position = f"queue {queue_id} of {topic} at {offset}"
        if response.code in OFFSET_MOVED_CODES:
            begins = decode_header(response, PullMessageResponse).next_begin_offset
            raise StoreError(f"{position}: removed by {addr} meanwhile, which continues at {begins}: {RESUME_HINT}")
        if response.code != ResponseCode.SUCCESS:  # also PULL_NOT_FOUND below the end offset that it reported
            raise ReplyError(response.code, f"{position}: {response.remark}", addr)
        # Messages after the end that was read at the start are left to a later replay.
        records = [item for item in record.decode_all(response.body) if offset <= item.queue_offset < end]
        if [item.queue_offset for item in records] != list(range(offset, offset + max(1, len(records)))):
            raise StoreError(f"{position}: {addr} returned other offsets, it removed some meanwhile: {RESUME_HINT}")
        yield records
        offset += len(records)


def _matching(records: list[Record], broker: str, selection: ReplayFilter) -> Iterator[Record]:
    matching = [
        item
        for item in records
        if (selection.since_ms is None or item.store_ms >= selection.since_ms)
        and (selection.until_ms is None or item.store_ms < selection.until_ms)
        and (selection.key is None or selection.key in item.property_map().get(KEYS, "").split())
    ]
    if selection.where is None or not matching:
        yield from matching
        return
    for number in _matching_indexes(matching, broker, selection):
        yield matching[number]


def _matching_indexes(records: list[Record], broker: str, selection: ReplayFilter) -> list[int]:
    """Return the indexes of the records that match the condition."""
    import duckdb

    columns = ", ".join(f'"{column.name}" {table_views.sql_type(column.type)}' for column in ARCHIVE.columns)
    marks = ", ".join("?" for _ in ARCHIVE.columns)
    # Conditions are evaluated by DuckDB in both cases, so that a topic and an archive select alike.
    with duckdb.connect() as sql:
        sql.execute("SET TimeZone = 'UTC'")
        sql.execute(f"CREATE TABLE {ARCHIVE.name} ({columns}, number INTEGER)")
        rows = [[*_archive_values(item, broker), number] for number, item in enumerate(records)]
        sql.executemany(f"INSERT INTO {ARCHIVE.name} VALUES ({marks}, ?)", rows)
        question, values = _filter_query(sql, ARCHIVE.name, ReplayFilter(where=selection.where))
        return [row[0] for row in sql.execute(f"SELECT number FROM {question} ORDER BY number", values).fetchall()]


def _archive_values(item: Record, broker: str) -> list[object]:
    """Return the values of the columns of ARCHIVE."""
    properties = item.property_map()
    offset_id = ids.offset_message_id(item.store_host, item.offset)
    values: dict[str, object] = {
        "topic": item.topic,
        "broker": broker,
        "queue_id": item.queue_id,
        "queue_offset": item.queue_offset,
        "commit_log_offset": item.offset,
        "message_id": properties.get(UNIQ_KEY, offset_id),
        "offset_message_id": offset_id,
        "keys": properties.get(KEYS),
        "tags": properties.get(TAGS),
        "properties": {"key": list(properties), "value": list(properties.values())},
        "body": _original_of_record(item, broker).body,
        "born_timestamp": utc_of(item.born_ms),
        "store_timestamp": utc_of(item.store_ms),
        "born_host": host.text(item.born_host),
        "store_host": host.text(item.store_host),
        "reconsume_times": item.reconsume_times,
        "sys_flag": item.sys_flag,
        "flag": item.flag,
    }
    return [values[column.name] for column in ARCHIVE.columns]


def _original_of_record(item: Record, broker: str) -> OriginalMessage:
    """Return a record as a message. A body that cannot be decompressed stays compressed, as `sys_flag` states."""
    properties = item.property_map()
    body, sys_flag = item.body, item.sys_flag
    if sys_flag & COMPRESSED:
        with contextlib.suppress(ProtocolError):
            body = compression.decompress(body, sys_flag)
            sys_flag &= ~(COMPRESSED | COMPRESSION_MASK)
    message_id = properties.get(UNIQ_KEY) or ids.offset_message_id(item.store_host, item.offset)
    return OriginalMessage(
        RecordId(item.topic, broker, item.queue_id, item.queue_offset),
        message_id,
        properties,
        body,
        item.flag,
        sys_flag,
    )
