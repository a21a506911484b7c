"""Reading one queue: ask, wait while the broker holds the request, put what came into the window, ask again.

    answer 0   FOUND           messages → window → the listener; next pull after `pull_interval_ms`
    answer 19  NO_NEW_MSG      the broker has waited already: pull again
    answer 20  NO_MATCHED_MSG  skipped messages count as consumed: pull again
    answer 21  OFFSET_ILLEGAL  the queue begins or ends elsewhere: start again at the offset the broker names
    else       an error        again after a second; when the broker does not know the group, after telling it

One request is under way per queue. [DefaultMQPushConsumerImpl.pullMessage, PullAPIWrapper]
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import NamedTuple

from ariane.client.offset_store import OffsetStore
from ariane.client.process_queue import ProcessQueue
from ariane.client.rates import ConsumeRates
from ariane.client.route_cache import Peers, RouteCache
from ariane.client.settings import ConsumerSettings
from ariane.errors import ArianeError, ConnectionLost, ProtocolError, ReplyError
from ariane.model import host
from ariane.model import message as names
from ariane.model.ids import offset_message_id
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.protocol import compression, record
from ariane.protocol.codes import VERSION, RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.record import Record
from ariane.protocol.requests import typed
from ariane.protocol.requests.clients import SubscriptionData
from ariane.protocol.requests.messaging import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND, TAG, PullMessage, PullMessageAnswer

log = logging.getLogger("ariane.client")

ERROR_PAUSE_S = 1.0
SQL_VERSION_MIN = 232  # 4.1.0-SNAPSHOT: older brokers take an expression for tags
FULL_PAUSE_S = 0.05  # a full window is looked at this often, besides each time something was consumed
PULL_CODES = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
# The broker forgot this group or its subscription (it was restarted): a heartbeat tells it.
NOT_REGISTERED_CODES = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    }
)


class FetchContext(NamedTuple):
    """What a fetch loop works with. `subscription` gives the topic's current one, None when there is none any more;
    `arrived` hands messages to the listeners; `moved` is told when the queue has to start again elsewhere;
    `broker_version` is what the broker at an address answered a heartbeat with, None before it did; `sys_flags` are further
    ones of the request: with SUBSCRIPTION it carries the expression, whatever the group's heartbeats say."""

    peers: Peers
    routes: RouteCache
    offsets: OffsetStore
    group: str
    settings: ConsumerSettings
    is_orderly: bool
    subscription: Callable[[str], SubscriptionData | None]
    arrived: Callable[[ProcessQueue, list[ReceivedMessage]], None]
    moved: Callable[[ProcessQueue, int], None]
    heartbeat_to: Callable[[str], Awaitable[None]]
    monotonic: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    broker_version: Callable[[str], int | None] = lambda addr: VERSION
    rates: ConsumeRates | None = None
    sys_flags: int = 0


class PullResult(NamedTuple):
    """An answer, read."""

    code: int
    next_offset: int
    broker_id: int
    messages: list[ReceivedMessage]


async def run_fetch_loop(process_queue: ProcessQueue, parts: FetchContext) -> None:
    """Read the queue until it is given up."""
    settings, window = parts.settings, process_queue.tracker
    span_max = None if parts.is_orderly else settings.span_max
    while not process_queue.is_revoked:
        if window.is_full(count_max=settings.cached_max, bytes_max=settings.cached_bytes_max, span_max=span_max):
            await process_queue.wait_change(FULL_PAUSE_S)
            continue
        if parts.is_orderly and not parts.offsets.is_local and not process_queue.is_locked(parts.monotonic()):
            await parts.sleep(ERROR_PAUSE_S)
            continue
        asked_at = process_queue.pulled_at = parts.monotonic()
        try:
            pulled = await pull(process_queue, parts)
        except ArianeError as error:
            log.warning("group %s: pulling %s: %s; again in 1 s", parts.group, process_queue.queue, error)
            if isinstance(error, ReplyError) and error.code in NOT_REGISTERED_CODES:
                await parts.heartbeat_to(error.addr)
            await parts.sleep(ERROR_PAUSE_S)
            continue
        if process_queue.is_revoked:
            return
        if pulled.code == ResponseCode.PULL_OFFSET_MOVED:
            log.warning(
                "group %s: offset %d of %s does not exist; reading goes on at %d",
                parts.group,
                window.next_offset,
                process_queue.queue,
                pulled.next_offset,
            )
            parts.moved(process_queue, pulled.next_offset)
            return
        process_queue.broker_id = pulled.broker_id
        is_stuck = pulled.next_offset == window.next_offset and pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        window.add(pulled.messages, pulled.next_offset)
        if pulled.messages:
            if parts.rates is not None:
                parts.rates.record_pull(process_queue.queue.topic, len(pulled.messages), parts.monotonic() - asked_at)
            parts.arrived(process_queue, pulled.messages)
            await parts.sleep(settings.pull_interval_ms / 1000)
        elif not len(window):
            parts.offsets.update(process_queue.queue, pulled.next_offset)
        if is_stuck:  # a slave that is behind answers at once: asking at once again would be a busy loop
            await parts.sleep(ERROR_PAUSE_S)


async def pull(process_queue: ProcessQueue, parts: FetchContext) -> PullResult:
    """One request, and what came of it."""
    queue = process_queue.queue
    subscription = parts.subscription(queue.topic)
    if subscription is None:
        raise ConnectionLost(queue.broker, f"is not asked: {queue.topic} is not subscribed")
    address = parts.routes.pull_address(queue.broker, process_queue.broker_id)
    if address is None:
        raise ConnectionLost(queue.broker, "is not in the routes that are known")
    if subscription.expression_type != TAG:
        await _check_version(address.addr, parts)
    committed = None if address.is_slave or parts.offsets.is_local else parts.offsets.consumed(queue)
    request = PullMessage(
        consumer_group=parts.group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=process_queue.tracker.next_offset,
        max_msg_nums=parts.settings.pull_batch,
        sys_flag=SUSPEND | (COMMIT_OFFSET if committed else 0) | parts.sys_flags,
        commit_offset=committed or 0,
        suspend_timeout_millis=parts.settings.suspend_ms,
        sub_version=subscription.sub_version,
        subscription=subscription.sub_string if parts.sys_flags & SUBSCRIPTION else None,
        expression_type=subscription.expression_type,
    )
    answer = await parts.peers.request(
        address.addr, RequestCode.PULL_MESSAGE, request, timeout_ms=parts.settings.pull_timeout_ms
    )
    if answer.code not in PULL_CODES:
        raise ReplyError(answer.code, answer.remark, address.addr)
    return parse_pull_result(answer, queue, subscription.tags_set)


async def _check_version(addr: str, parts: FetchContext) -> None:
    """Brokers that do not know SQL92 are not asked for it: they would answer by tags."""
    if parts.broker_version(addr) is None:
        await parts.heartbeat_to(addr)
    version = parts.broker_version(addr)
    if version is None:
        raise ConnectionLost(addr, "has not answered a heartbeat yet, and only that tells whether it knows SQL92")
    if version < SQL_VERSION_MIN:
        raise ConnectionLost(
            addr, f"is not asked: its version {version} does not know SQL92; subscribe by tags, or upgrade"
        )


def parse_pull_result(answer: Command, queue: MessageQueue, tags: frozenset[str]) -> PullResult:
    """The messages of an answer that the subscription wants: the broker compared hashes of tags only."""
    header = typed(answer, PullMessageAnswer)
    messages = []
    if answer.code == ResponseCode.SUCCESS:
        for stored in record.decode_all(answer.body):
            table = stored.property_map()
            if not tags or table.get(names.TAGS) in tags:
                messages.append(to_received_message(stored, table, queue))
    return PullResult(answer.code, header.next_begin_offset, header.suggest_which_broker_id, messages)


def to_received_message(stored: Record, table: dict[str, str], queue: MessageQueue) -> ReceivedMessage:
    """A record as the application sees it: a retried message shows its first topic, a body is expanded.

    A body that cannot be expanded stays as it is stored: `body_error` says why, and its sysFlag is unchanged.
    """
    body, sys_flag, body_error = expand_body(stored.body, stored.sys_flag)
    offset_id = offset_message_id(stored.store_host, stored.offset)
    message_id = table.get(names.UNIQ_KEY, offset_id)
    if body_error:
        log.error(
            "Cannot read the body of message %s at offset %d of %s: %s",
            message_id,
            stored.queue_offset,
            queue,
            body_error,
        )
    return ReceivedMessage(
        topic=table.get(names.RETRY_TOPIC, stored.topic),
        body=body,
        properties=table,
        queue=queue,
        queue_offset=stored.queue_offset,
        commit_log_offset=stored.offset,
        message_id=message_id,
        offset_message_id=offset_id,
        born_ms=stored.born_ms,
        born_host=_host(stored.born_host),
        store_ms=stored.store_ms,
        store_host=_host(stored.store_host),
        reconsume_times=stored.reconsume_times,
        flag=stored.flag,
        sys_flag=sys_flag,
        stored_size=stored.size,
        body_error=body_error,
    )


def expand_body(body: bytes, sys_flag: int) -> tuple[bytes, int, str]:
    """Return the body as the producer gave it, its sysFlag without compression, and why it cannot be expanded, if so."""
    if not sys_flag & names.COMPRESSED:
        return body, sys_flag, ""
    try:
        return compression.expand(body, sys_flag), sys_flag & ~(names.COMPRESSED | names.COMPRESSION_MASK), ""
    except ProtocolError as error:
        return body, sys_flag, str(error)


def is_unreadable(message: ReceivedMessage) -> bool:
    """Whether the body is still compressed because it could not be expanded."""
    return bool(message.sys_flag & names.COMPRESSED)


@lru_cache(maxsize=4096)
def _host(packed: bytes) -> str:
    return host.text(packed)
