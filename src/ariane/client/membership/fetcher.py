"""Fetch loop of one queue: pull, add the messages to the offset tracker, pass them on, pull again.

    code 0   FOUND           messages → tracker → delivery; next pull after `pull_interval`
    code 19  NO_NEW_MSG      the broker has held the request already: pull again
    code 20  NO_MATCHED_MSG  the filter skipped messages, which count as consumed: pull again
    code 21  OFFSET_ILLEGAL  the queue begins or ends elsewhere: restart at the offset that the broker names
    else     an error        retry after a back-off; if the broker does not know the group, send a heartbeat first

One request per queue is in flight. [DefaultMQPushConsumerImpl.pullMessage, PullAPIWrapper]
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple

from ariane.client.consuming.consume_rates import ConsumeRates
from ariane.client.consuming.group_options import GroupOptions
from ariane.client.consuming.offset_store import OffsetStore
from ariane.client.consuming.payload_messages import M, with_payload
from ariane.client.consuming.process_queue import ProcessQueue
from ariane.client.delivery.delivery_strategy import DeliveryStrategy
from ariane.client.instance.client_instance import ClientInstance
from ariane.client.instance.namespace import Namespace
from ariane.errors import ArianeError, ConnectionLost, ReplyError
from ariane.model import message as names
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.protocol.client_rules.transient import NO_RESPONSE, RETRY_BACKOFF
from ariane.protocol.codes import PULL_RESULT_CODES, RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import record
from ariane.protocol.records.received_messages import to_received_message
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.clients import SubscriptionData
from ariane.protocol.requests.messaging import (
    COMMIT_OFFSET,
    SUBSCRIPTION,
    SUSPEND,
    TAG,
    PullMessage,
    PullMessageResponse,
)

log = logging.getLogger("ariane.client")

WAIT_S = 1.0  # for a lock, and for a slave that lags
SQL_VERSION_MIN = 232  # 4.1.0-SNAPSHOT; older brokers treat an SQL92 expression as tags

# The broker lost this group or its subscription, for example in a restart. A heartbeat registers it again.
NOT_REGISTERED_CODES = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    }
)


@dataclass(frozen=True, kw_only=True)
class FetchContext:
    """Collaborators of the fetch loops of one group member."""

    instance: ClientInstance
    """Connections, routes, heartbeats and the clock."""
    options: GroupOptions
    """Group name, settings and pull flags."""
    subscriptions: Mapping[str, SubscriptionData]
    """Current subscription of each topic; a topic is removed when the application unsubscribes."""
    offsets: OffsetStore
    """Consumed offsets, also carried to the broker by pull requests."""
    delivery: DeliveryStrategy
    rates: ConsumeRates
    """Counts pulls and pulled messages."""


class PullResult(NamedTuple, Generic[M]):
    """A parsed response to a pull request."""

    code: int
    """Response code, one of PULL_RESULT_CODES."""
    next_offset: int
    """Offset of the next pull: after the messages and those that the filter skipped."""
    broker_id: int
    """Id of the server of the broker to pull from next."""
    messages: list[M]
    """The messages; empty if there are none, or none that match the filter."""
    unreadable: tuple[ReceivedMessage, ...] = ()
    """Messages whose bodies the codec of a `PullConsumer` cannot decode; `body_error` says why."""

    @property
    def is_offset_moved(self) -> bool:
        """Whether the queue does not have the requested offset and continues at `next_offset`."""
        return self.code == ResponseCode.PULL_OFFSET_MOVED


async def run_fetch_loop(process_queue: ProcessQueue, context: FetchContext) -> int | None:
    """Pull a queue until it is revoked or its offset turns out to be invalid.

    Returns:
        The offset to restart at, if the broker has no message at the current one; otherwise None.
    """
    settings, tracker, clock = context.options.settings, process_queue.tracker, context.instance.clock
    # Orderly queues consume from the head, so the distance between cached offsets does not grow while one message waits.
    span_max = None if context.options.is_orderly else settings.span_max
    failures = 0  # failed pulls in a row
    while not process_queue.is_revoked:
        if tracker.is_full(count_max=settings.cached_max, bytes_max=settings.cached_bytes_max, span_max=span_max):
            await process_queue.wait_change()
            continue
        if context.options.needs_locks and not process_queue.is_locked(clock.monotonic()):
            await clock.sleep(WAIT_S)
            continue
        process_queue.pulled_at = clock.monotonic()
        result = await _pull_or_pause(process_queue, context, failures)
        failures = failures + 1 if result is None else 0
        if result is None:
            continue
        # The queue may have been revoked while the pull was held: its messages belong to the next owner.
        if process_queue.is_revoked:
            break
        if result.is_offset_moved:
            log.warning(
                "Offset %d of %s does not exist; group %s continues at %d",
                tracker.next_offset,
                process_queue.queue,
                context.options.group,
                result.next_offset,
            )
            return result.next_offset
        process_queue.broker_id = result.broker_id
        is_stuck = result.next_offset == tracker.next_offset and result.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        await _accept(result, process_queue, context)
        if is_stuck:
            # A slave that lags replies immediately; without a pause the loop would be busy until the slave catches up.
            await clock.sleep(WAIT_S)
        # The broker may hold the next pull for long, and messages that are consumed must not stay in memory until then.
        del result
    return None


async def _pull_or_pause(process_queue: ProcessQueue, context: FetchContext, failures: int) -> PullResult | None:
    """Pull once, after `failures` failed pulls. On an error, log it, register the group again if necessary, pause, return None."""
    try:
        return await pull(process_queue, context)
    except ArianeError as error:
        pause_s = RETRY_BACKOFF.delay_s(failures + 1)
        group = context.options.group
        log.warning("Pulling %s for group %s failed: %s; retrying in %g s", process_queue.queue, group, error, pause_s)
        if isinstance(error, ReplyError) and error.code in NOT_REGISTERED_CODES:
            await context.instance.heartbeat_to(error.addr)
        await context.instance.clock.sleep(pause_s)
        return None


async def _accept(result: PullResult, process_queue: ProcessQueue, context: FetchContext) -> None:
    """Track and deliver pulled messages. Offsets that the filter skipped count as consumed."""
    clock, queue = context.instance.clock, process_queue.queue
    process_queue.tracker.add(result.messages, result.next_offset)
    if result.messages:
        context.rates.record_pull(queue.topic, len(result.messages), clock.monotonic() - process_queue.pulled_at)
        context.delivery.on_messages(process_queue, result.messages)
        await clock.sleep(context.options.settings.pull_interval)
    # Only without pending messages: otherwise the offset would pass them.
    elif not len(process_queue.tracker):
        context.offsets.update(queue, result.next_offset)


async def pull(process_queue: ProcessQueue, context: FetchContext) -> PullResult:
    """Send one pull request and parse its response.

    Raises:
        ConnectionLost: the broker is not in the routes or not reachable, or does not support the subscription.
        ReplyError: the broker replied with an error.
        RequestTimeout: no reply within `pull_timeout`.
    """
    queue, options = process_queue.queue, context.options
    subscription = context.subscriptions.get(queue.topic)
    if subscription is None:
        raise ConnectionLost(queue.broker, f"not pulled: topic {queue.topic} is not subscribed")
    address = context.instance.routes.pull_address(queue.broker, process_queue.broker_id)
    if address is None:
        context.instance.refresh_routes_soon()
        raise ConnectionLost(queue.broker, "not in the cached routes")
    if subscription.expression_type != TAG:
        await require_sql_support(address.addr, context.instance)
    # A slave does not store offsets, and a broadcasting member stores its offsets itself.
    committed = None if address.is_slave or context.offsets.is_local else context.offsets.consumed(queue)
    request = PullMessage(
        consumer_group=options.group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=process_queue.tracker.next_offset,
        max_msg_nums=options.settings.pull_batch,
        sys_flag=SUSPEND | (COMMIT_OFFSET if committed else 0) | options.pull_flags,
        commit_offset=committed or 0,
        suspend_timeout_millis=round(options.settings.suspend_time * 1000),
        sub_version=subscription.sub_version,
        subscription=subscription.sub_string if options.pull_flags & SUBSCRIPTION else None,
        expression_type=subscription.expression_type,
    )
    try:
        response = await context.instance.peers.request(
            address.addr, RequestCode.PULL_MESSAGE, request, timeout_ms=options.settings.pull_timeout * 1000
        )
    except NO_RESPONSE:
        context.instance.refresh_routes_soon()
        raise
    if response.code not in PULL_RESULT_CODES:
        raise ReplyError(response.code, response.remark, address.addr)
    result = parse_pull_result(response, queue, subscription.tags_set, context.instance.namespace)
    if options.payload is None:
        return result
    return result._replace(messages=[with_payload(message, options.payload) for message in result.messages])


async def require_sql_support(addr: str, instance: ClientInstance) -> None:
    """Raise ConnectionLost unless the broker supports SQL92: an older one would filter by tags, without an error."""
    if instance.broker_version(addr) is None:
        await instance.heartbeat_to(addr)
    version = instance.broker_version(addr)
    if version is None:
        raise ConnectionLost(addr, "no heartbeat response yet, so its version and SQL92 support are unknown")
    if version < SQL_VERSION_MIN:
        raise ConnectionLost(addr, f"version {version} does not support SQL92; subscribe by tags or upgrade the broker")


def parse_pull_result(
    response: Command, queue: MessageQueue, tags: frozenset[str], namespace: Namespace | None = None
) -> PullResult:
    """Parse a pull response and drop messages with other tags: the broker compares only hashes of tags."""
    unwrap = namespace.unwrap if namespace else None
    header = decode_header(response, PullMessageResponse)
    messages = []
    if response.code == ResponseCode.SUCCESS:
        for stored in record.decode_all(response.body):
            properties = stored.property_map()
            if not tags or properties.get(names.TAGS) in tags:
                messages.append(to_received_message(stored, properties, queue, unwrap))
    return PullResult(response.code, header.next_begin_offset, header.suggest_which_broker_id, messages)
