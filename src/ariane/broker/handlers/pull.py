"""PULL_MESSAGE (11), and LITE_PULL_MESSAGE (361) of 5.x clients. [PullMessageProcessor]

The checks come in the order of reference store-and-broker 3.4. A pull that finds nothing and allows it is held: its reply
is an awaitable that ends when a message arrives that the subscription wants, or with the client's patience.

A subscription becomes a Wanted: tag hashes, compared with queue entries, and for SQL92 (or retried messages of a group that
has an expression) a function that is asked about each record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from ariane.broker.config import BrokerConfig
from ariane.broker.dynamic_config import DynamicConfig
from ariane.broker.long_polling import PullWaiters, Waiter
from ariane.broker.state.consumer_filters import ConsumerFilters, unsupported_remark
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.group_members import GroupMembers
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.errors import FilterError, ProtocolError, ReplyError, StoreError
from ariane.filter import tags
from ariane.filter.sql import SqlFilter, compile_sql
from ariane.model.message import RETRY_TOPIC
from ariane.model.topic import OFFSET_MOVED_TOPIC, PERM_READ, RETRY_PREFIX
from ariane.net.connection import Handled, Handler, LateReply, Peer, Reply
from ariane.protocol import fastjson, properties, record
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import typed
from ariane.protocol.requests.clients import WireQueue
from ariane.protocol.requests.messaging import COMMIT_OFFSET, SQL92, SUBSCRIPTION, SUSPEND, TAG, PullMessage
from ariane.store.message_store import GetResult, GetStatus, MessageStore, RecordDraft

log = logging.getLogger("ariane.broker")

HOLD_MAX_MS = 120_000  # longer than any client waits for its answer


class PullQuery(NamedTuple):
    """What a pull takes: records with a tag hash of `codes` (None: any) that `accept` (None: no question) says yes to."""

    codes: frozenset[int] | None = None
    accept: Callable[[bytes], bool] | None = None


# What the store found, as the protocol says it. The two in EMPTY depend on the offset asked for.
ANSWERS = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
# These were found by reading entries; in the others the next offset is a correction.
SCANNED = (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING)
EMPTY = (GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.NO_MATCHED_LOGIC_QUEUE)


class OffsetMoved(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the message that tells of an offset the broker corrected (reference remoting-protocol 9.4)."""

    consumer_group: str
    message_queue: WireQueue
    offset_new: int
    offset_request: int


class PullHandler(NamedTuple):
    """What a pull needs. `stored` is told after an OFFSET_MOVED_EVENT was put."""

    settings: DynamicConfig
    topics: TopicRegistry
    groups: GroupRegistry
    members: GroupMembers
    offsets: ConsumerOffsets
    store: MessageStore
    store_host: bytes
    arrivals: PullWaiters
    stored: Callable[[], None]
    now_ms: Callable[[], int]
    filters: ConsumerFilters
    stats: BrokerStats

    @property
    def config(self) -> BrokerConfig:
        """What is in force now."""
        return self.settings.current


def handlers(parts: PullHandler) -> dict[int, Handler]:
    def handler(command: Command, peer: Peer) -> Handled:
        return pull(parts, typed(command, PullMessage))

    return {RequestCode.PULL_MESSAGE: handler, RequestCode.LITE_PULL_MESSAGE: handler}


def pull(parts: PullHandler, request: PullMessage) -> Handled:
    """Messages from an offset on, or the reason why there are none; held when there are none yet."""
    try:
        wanted = _wanted(parts, request)
    except ReplyError as error:
        return Reply(error.code, {}, error.remark)
    if request.sys_flag & COMMIT_OFFSET and request.commit_offset >= 0 and not parts.config.is_slave:
        parts.offsets.commit(request.consumer_group, request.topic, request.queue_id, request.commit_offset)
    got = _counted_get(parts, request, wanted, request.queue_offset)
    if _code(got, request) == ResponseCode.PULL_NOT_FOUND and request.sys_flag & SUSPEND:
        long = parts.config.long_polling_enable
        hold_ms = request.suspend_timeout_millis if long else parts.config.short_polling_time_mills
        hold_ms = max(0, min(hold_ms, HOLD_MAX_MS))
        waiter = _wait(parts, request, wanted, request.queue_offset, hold_ms)
        if wanted.accept is not None:
            return _held_for_match(parts, request, wanted, waiter, hold_ms)
        return _held(parts, request, wanted, waiter)
    return _answer(parts, request, got)


def _wait(parts: PullHandler, request: PullMessage, wanted: PullQuery, offset: int, hold_ms: float) -> Waiter:
    chars = len(request.subscription or "")
    return parts.arrivals.wait(request.topic, request.queue_id, offset, wanted.codes, hold_ms, chars)


async def _held(parts: PullHandler, request: PullMessage, wanted: PullQuery, waiter: Waiter) -> LateReply:
    await waiter
    return _late(parts, request, wanted, request.queue_offset)


def _late(parts: PullHandler, request: PullMessage, wanted: PullQuery, offset: int) -> LateReply:
    # One arrival may wake many pulls: each reads its messages when its connection has room for them.
    return LateReply(lambda: _answer(parts, request, _counted_get(parts, request, wanted, offset)))


async def _held_for_match(
    parts: PullHandler, request: PullMessage, wanted: PullQuery, waiter: Waiter, hold_ms: float
) -> LateReply:
    """Looks at what arrives, each record once, and answers with the first match; when the time is over, the answer moves
    the reader behind what did not match."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + hold_ms / 1000
    offset = request.queue_offset
    while True:
        await waiter
        got = _get(parts, request, wanted, offset)
        is_at_end = got.status is GetStatus.NO_MATCHED_MESSAGE and got.next_offset >= got.max_offset
        if not is_at_end or loop.time() >= deadline:
            return _late(parts, request, wanted, offset)
        _count(parts, request, got, 0.0)
        offset = got.next_offset
        left_ms = max(0.0, (deadline - loop.time()) * 1000)
        waiter = _wait(parts, request, wanted, offset, left_ms)


def _wanted(parts: PullHandler, request: PullMessage) -> PullQuery:
    """What the group wants of the topic; ReplyError when it may not pull at all."""
    config, group, topic = parts.config, request.consumer_group, request.topic
    if not config.broker_permission & PERM_READ:
        raise ReplyError(ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] pulling message is forbidden")
    settings = parts.groups.get_or_create(group)
    if settings is None:
        remark = f"subscription group [{group}] does not exist; create it, or set autoCreateSubscriptionGroup"
        raise ReplyError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    if not settings.consume_enable:
        raise ReplyError(
            ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}: consumeEnable is false"
        )
    known = parts.topics.get(topic)
    if known is None:
        raise ReplyError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist on {config.broker_name}; create it")
    if not known.perm & PERM_READ:
        raise ReplyError(ResponseCode.NO_PERMISSION, f"the topic[{topic}] pulling message is forbidden")
    if not 0 <= request.queue_id < known.read_queue_nums:
        remark = f"queueId[{request.queue_id}] is illegal, topic:[{topic}] readQueueNums:[{known.read_queue_nums}]"
        raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)
    if request.sys_flag & SUBSCRIPTION:
        wanted = _asked(parts, request)
    else:
        wanted = _subscribed(parts, request, settings.consume_broadcast_enable)
    if config.filter_support_retry and topic.startswith(RETRY_PREFIX):
        return wanted._replace(accept=_retried(parts.filters, topic.removeprefix(RETRY_PREFIX)))
    return wanted


def _asked(parts: PullHandler, request: PullMessage) -> PullQuery:
    """What the request itself says."""
    if request.expression_type in (None, "", TAG):
        return PullQuery(tags.codes(tags.parse(request.subscription)))
    if request.expression_type == SQL92:
        try:
            sql = compile_sql(request.subscription or "")
        except FilterError as error:
            remark = f"parse the consumer's subscription failed: {error}"
            raise ReplyError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark) from error
        if parts.config.enable_property_filter:
            return PullQuery(accept=_matching(sql))
    remark = unsupported_remark(request.expression_type, parts.config.enable_property_filter)
    raise ReplyError(ResponseCode.SYSTEM_ERROR, remark)


def _subscribed(parts: PullHandler, request: PullMessage, may_broadcast: bool) -> PullQuery:
    """What the group's heartbeats say that it wants of the topic."""
    group, topic = request.consumer_group, request.topic
    online = parts.members.consumers.get(group)
    if online is None:
        raise ReplyError(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist: {group} is not online"
        )
    if online.is_broadcasting and not may_broadcast:
        remark = f"the consumer group[{group}] can not consume by broadcast way"
        raise ReplyError(ResponseCode.NO_PERMISSION, remark)
    subscription = online.subscriptions.get(topic)
    if subscription is None:
        remark = f"the consumer's subscription not exist: {group} does not subscribe to {topic}"
        raise ReplyError(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
    if subscription.sub_version < request.sub_version:
        remark = f"the consumer's subscription not latest: {subscription.sub_version} < {request.sub_version}"
        raise ReplyError(ResponseCode.SUBSCRIPTION_NOT_LATEST, remark)
    if subscription.expression_type not in (None, "", TAG):
        return PullQuery(accept=_matching(_registered(parts, request, subscription.expression_type)))
    return PullQuery(None if subscription.sub_string in (None, "", tags.ALL) else subscription.code_set)


def _registered(parts: PullHandler, request: PullMessage, expression_type: str | None) -> SqlFilter:
    """The filter that a heartbeat left."""
    known = parts.filters.get(request.consumer_group, request.topic)
    if known is None:
        remark = (
            f"{request.consumer_group} has no filter on {request.topic} here: its expression may be wrong (46 tells)"
        )
        raise ReplyError(ResponseCode.FILTER_DATA_NOT_EXIST, remark)
    if known.data.client_version < request.sub_version:
        remark = f"the consumer filter data is not latest: {known.data.client_version} < {request.sub_version}"
        raise ReplyError(ResponseCode.FILTER_DATA_NOT_LATEST, remark)
    if not parts.config.enable_property_filter:
        raise ReplyError(ResponseCode.SYSTEM_ERROR, unsupported_remark(expression_type, False))
    return known.sql


def _matching(sql: SqlFilter) -> Callable[[bytes], bool]:
    return lambda data: sql.matches(_properties(data))


def _retried(filters: ConsumerFilters, group: str) -> Callable[[bytes], bool]:
    """Retried messages by the expression, if there is one, that the group has for the topic they came from."""

    def accept(data: bytes) -> bool:
        table = _properties(data)
        known = filters.get(group, table.get(RETRY_TOPIC, ""))
        return known is None or known.sql.matches(table)

    return accept


def _properties(data: bytes) -> dict[str, str]:
    try:
        return record.property_map(data)
    except ProtocolError as error:
        log.error("a record is filtered as if it had no properties: %s", error)
        return {}


def _get(parts: PullHandler, request: PullMessage, wanted: PullQuery, offset: int) -> GetResult:
    codes, accept = wanted
    return parts.store.get(request.topic, request.queue_id, offset, request.max_msg_nums, codes, accept=accept)


def _counted_get(parts: PullHandler, request: PullMessage, wanted: PullQuery, offset: int) -> GetResult:
    """As `_get`, and record it in the statistics."""
    began = parts.stats.timer()
    got = _get(parts, request, wanted, offset)
    _count(parts, request, got, parts.stats.timer() - began)
    return got


def _count(parts: PullHandler, request: PullMessage, got: GetResult, seconds: float) -> None:
    stats, topic, group, queue_id = parts.stats, request.topic, request.consumer_group, request.queue_id
    records = got.records
    if got.status is GetStatus.FOUND:
        stats.record_pull(
            topic,
            group,
            queue_id,
            count=len(records),
            size=sum(map(len, records)),
            seconds=seconds,
            behind=got.bytes_behind or 0,
            late_ms=max(0, parts.now_ms() - record.store_ms(records[-1])),
        )
    else:
        stats.record_miss(group)
        if got.bytes_behind is not None:
            stats.record_scan(topic, group, queue_id, got.bytes_behind)


def _code(got: GetResult, request: PullMessage) -> ResponseCode:
    if got.status in EMPTY:
        return ResponseCode.PULL_OFFSET_MOVED if request.queue_offset else ResponseCode.PULL_NOT_FOUND
    return ANSWERS[got.status]


def _answer(parts: PullHandler, request: PullMessage, got: GetResult) -> Reply:
    code = _code(got, request)
    next_offset = got.next_offset
    if parts.config.is_slave and not parts.config.offset_check_in_slave:
        # A slave may be behind: only its master knows that an offset is wrong.
        if got.status not in SCANNED:
            next_offset = request.queue_offset
        if code == ResponseCode.PULL_OFFSET_MOVED:
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
    elif code == ResponseCode.PULL_OFFSET_MOVED:
        _tell_offset_moved(parts, request, got)
    fields = {
        "maxOffset": str(got.max_offset),
        "minOffset": str(got.min_offset),
        "nextBeginOffset": str(next_offset),
        "suggestWhichBrokerId": _next_broker(parts, request, got),
    }
    return Reply(code, fields, got.status.name, got.records)


def _next_broker(parts: PullHandler, request: PullMessage, got: GetResult) -> str:
    """From which of the brokers of this name the group should read on."""
    group = parts.groups.get(request.consumer_group)
    if not parts.config.slave_read_enable or group is None:
        return "0"
    return str(group.which_broker_when_consume_slowly if got.suggest_slave else group.broker_id)


def _tell_offset_moved(parts: PullHandler, request: PullMessage, got: GetResult) -> None:
    """Leave a message in OFFSET_MOVED_EVENT, which monitors read."""
    group = request.consumer_group
    queue = WireQueue(parts.config.broker_name, request.queue_id, request.topic)
    body = fastjson.write(OffsetMoved(group, queue, got.next_offset, request.queue_offset))
    draft = RecordDraft(
        topic=OFFSET_MOVED_TOPIC,
        queue_id=0,
        body=body,
        properties=properties.encode({"KEYS": group, "DELAY": "0", "TAGS": group}),
        tags=group,
        flag=0,
        sys_flag=0,
        born_ms=parts.now_ms(),
        born_host=parts.store_host,
        reconsume_times=0,
    )
    try:
        parts.store.put(draft)
    except StoreError as error:  # a full disk still serves reads
        log.warning("%s is not told that %s moved to %d: %s", OFFSET_MOVED_TOPIC, group, got.next_offset, error)
        return
    parts.stored()
