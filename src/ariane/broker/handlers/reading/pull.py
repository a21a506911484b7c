"""PULL_MESSAGE (11), and LITE_PULL_MESSAGE (361) of 5.x clients. [PullMessageProcessor]

Most pulls never come here: `pull_turns` serves the plain ones of a read at once (messages are available, the filter compares tags).
The connection passes all others on, one by one:

    request → checks → RecordFilter → store.get ─ messages ─→ reply: the records as they are stored
                                                └ none ─────→ hold until a matching message arrives or the time is over → reply

Checks come in the order of reference store-and-broker 3.4. A pull is held only if its SUSPEND flag allows it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec

from ariane.broker.collaborators import StoreListener
from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.delivery.long_polling import PullWaiters, Waiter
from ariane.broker.handlers.reading.pull_filter import PullFilterBuilder
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.stats.broker_stats import BrokerStats, PulledMessages
from ariane.clock import Clock
from ariane.errors import ReplyError, StoreError
from ariane.model.topic import OFFSET_MOVED_TOPIC, SubscriptionGroupConfig
from ariane.net.connection import HandlerResult, LateReply, Peer, Reply
from ariane.protocol import fastjson
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import properties, record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.clients import WireQueue
from ariane.protocol.requests.messaging import COMMIT_OFFSET, SUSPEND, PullMessage
from ariane.store.message_store import GetResult, GetStatus, MessageStore, RecordDraft, RecordFilter

log = logging.getLogger("ariane.broker")

HOLD_MAX_MS = 120_000  # longer than any client waits for its response

# The response code of each status of the store. The codes of EMPTY depend on the requested offset.
RESPONSE_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
EMPTY = (GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.NO_MATCHED_LOGIC_QUEUE)
# With these statuses the store read entries; with the others the next offset is a correction.
SCANNED = (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING)


class OffsetMoved(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the message about a corrected offset (reference remoting-protocol 9.4)."""

    consumer_group: str
    message_queue: WireQueue
    offset_new: int
    offset_request: int


@dataclass(frozen=True, kw_only=True)
class PullHandler:
    """Reads messages from a queue, and holds pulls that find none."""

    settings: DynamicConfig  # limits of a reply and of held pulls
    filters: PullFilterBuilder  # builds the filter of a request
    groups: GroupRegistry  # suggested servers of a group
    offsets: ConsumerOffsets  # a pull may commit the group's offset on its way
    store: MessageStore  # messages, and OFFSET_MOVED_EVENT records
    store_host: bytes  # packed address of this broker: the sender of its OFFSET_MOVED_EVENT messages
    waiters: PullWaiters  # held pulls
    listener: StoreListener  # dispatches these records
    stats: BrokerStats  # messages and bytes by group
    clock: Clock  # hold times

    def pull(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle PULL_MESSAGE and LITE_PULL_MESSAGE. The reply is an awaitable if the pull is held."""
        request = decode_header(command, PullMessage)
        try:
            record_filter = self.filters.build(request)
        except ReplyError as error:
            return Reply(error.code, {}, error.remark)
        config = self.settings.current
        # A slave's offsets are copied from its master: a commit here would be overwritten.
        if request.sys_flag & COMMIT_OFFSET and request.commit_offset >= 0 and not config.is_slave:
            self.offsets.commit_consumed(request.consumer_group, request.topic, request.queue_id, request.commit_offset)
        result = self._get_and_count(request, record_filter, request.queue_offset)
        if _response_code(result, request) == ResponseCode.PULL_NOT_FOUND and request.sys_flag & SUSPEND:
            hold_ms = request.suspend_timeout_millis if config.long_polling_enable else config.short_polling_time_mills
            hold_ms = max(0, min(hold_ms, HOLD_MAX_MS))
            waiter = self._wait(request, record_filter, request.queue_offset, hold_ms)
            if record_filter.accept is not None:
                return self._hold_for_match(request, record_filter, waiter, hold_ms)
            return self._hold(request, record_filter, waiter)
        return self._reply(request, result)

    # --- holding ---

    def _wait(self, request: PullMessage, record_filter: RecordFilter, offset: int, hold_ms: float) -> Waiter:
        chars = len(request.subscription or "")
        return self.waiters.hold(request.topic, request.queue_id, offset, record_filter.codes, hold_ms, chars)

    async def _hold(self, request: PullMessage, record_filter: RecordFilter, waiter: Waiter) -> LateReply:
        await waiter
        return self._late_reply(request, record_filter, request.queue_offset)

    async def _hold_for_match(
        self, request: PullMessage, record_filter: RecordFilter, waiter: Waiter, hold_ms: float
    ) -> LateReply:
        """Read each arriving record once, and reply with the first match.

        When the time is over, the reply moves the consumer past the records that did not match.
        """
        deadline = self.clock.monotonic() + hold_ms / 1000
        offset = request.queue_offset
        while True:
            has_arrival = await waiter
            result = self._get(request, record_filter, offset)
            is_at_end = result.status is GetStatus.NO_MATCHED_MESSAGE and result.next_offset >= result.max_offset
            if not is_at_end or not has_arrival:
                return self._late_reply(request, record_filter, offset)
            self._count(request, result, 0.0)
            offset = result.next_offset
            remaining_ms = max(0.0, (deadline - self.clock.monotonic()) * 1000)
            waiter = self._wait(request, record_filter, offset, remaining_ms)

    def _late_reply(self, request: PullMessage, record_filter: RecordFilter, offset: int) -> LateReply:
        # One arrival may wake many pulls: each reads its messages when its connection has room for them.
        return LateReply(lambda: self._reply(request, self._get_and_count(request, record_filter, offset)))

    # --- reading ---

    def _get(self, request: PullMessage, record_filter: RecordFilter, offset: int) -> GetResult:
        return self.store.get(request.topic, request.queue_id, offset, request.max_msg_nums, record_filter)

    def _get_and_count(self, request: PullMessage, record_filter: RecordFilter, offset: int) -> GetResult:
        started = self.stats.timer()
        result = self._get(request, record_filter, offset)
        self._count(request, result, self.stats.timer() - started)
        return result

    def _count(self, request: PullMessage, result: GetResult, seconds: float) -> None:
        stats, topic, group, queue_id = self.stats, request.topic, request.consumer_group, request.queue_id
        if result.status is GetStatus.FOUND:
            stats.record_pull(topic, group, queue_id, pulled_messages(result, seconds, self.clock.now_ms()))
        else:
            stats.record_miss(group)
            if result.bytes_behind is not None:
                stats.record_scan(topic, group, queue_id, result.bytes_behind)

    # --- replying ---

    def _reply(self, request: PullMessage, result: GetResult) -> Reply:
        code = _response_code(result, request)
        next_offset = result.next_offset
        config = self.settings.current
        if config.is_slave and not config.offset_check_in_slave:
            # A slave may lag behind: only its master can decide that an offset is wrong.
            if result.status not in SCANNED:
                next_offset = request.queue_offset
            if code == ResponseCode.PULL_OFFSET_MOVED:
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
        elif code == ResponseCode.PULL_OFFSET_MOVED:
            self._store_offset_moved(request, result)
        fields = {
            "maxOffset": str(result.max_offset),
            "minOffset": str(result.min_offset),
            "nextBeginOffset": str(next_offset),
            "suggestWhichBrokerId": self._suggested_broker(request, result),
        }
        return Reply(code, fields, result.status.name, result.body)

    def _suggested_broker(self, request: PullMessage, result: GetResult) -> str:
        """Return the id of the broker (master or slave) that the group should pull from next."""
        group = self.groups.get(request.consumer_group)
        return str(suggested_brokers(self.settings.current, group)[result.suggest_slave])

    def _store_offset_moved(self, request: PullMessage, result: GetResult) -> None:
        """Append a message to OFFSET_MOVED_EVENT, which monitors read."""
        group = request.consumer_group
        queue = WireQueue(self.settings.current.broker_name, request.queue_id, request.topic)
        body = fastjson.write(OffsetMoved(group, queue, result.next_offset, request.queue_offset))
        draft = RecordDraft(
            topic=OFFSET_MOVED_TOPIC,
            queue_id=0,
            body=body,
            properties=properties.encode({"KEYS": group, "DELAY": "0", "TAGS": group}),
            tags=group,
            flag=0,
            sys_flag=0,
            born_ms=self.clock.now_ms(),
            born_host=self.store_host,
            reconsume_times=0,
        )
        try:
            self.store.put(draft)
        except StoreError as error:  # a full disk still serves reads
            log.warning(
                "Could not store that %s moved to offset %d in %s: %s",
                group,
                result.next_offset,
                OFFSET_MOVED_TOPIC,
                error,
            )
            return
        self.listener.on_stored()


def pulled_messages(result: GetResult, seconds: float, now_ms: int) -> PulledMessages:
    """Return the statistics of a pull that found messages and took `seconds`."""
    size, sizes = len(result.body), result.sizes
    late_ms = max(0, now_ms - record.store_ms(result.body, size - sizes[-1]))
    return PulledMessages(len(sizes), size, seconds, result.bytes_behind or 0, late_ms)


def suggested_brokers(config: BrokerConfig, group: SubscriptionGroupConfig | None) -> tuple[int, int]:
    """Return the ids of the brokers that a group should pull from: while it keeps up, and while it reads old messages."""
    if not config.slave_read_enable or group is None:
        return 0, 0
    return group.broker_id, group.which_broker_when_consume_slowly


def _response_code(result: GetResult, request: PullMessage) -> ResponseCode:
    if result.status in EMPTY:
        return ResponseCode.PULL_OFFSET_MOVED if request.queue_offset else ResponseCode.PULL_NOT_FOUND
    return RESPONSE_CODES[result.status]
