"""Message traces of clients of 4.x, on demand (`remotingTraceTopics`): what their requests and the answers say.

    handler ─ answered ─▶ send, recall, transaction ─────▶ MessageTraces
                          pulled, sent back ─────────────▶ PulledDeliveries ◀─ offsets that change
                          popped, acknowledged, renewed ─▶ MessageTraces

Clients that send traces themselves have no further ones: the group of a trace producer names theirs, and it is on the same host.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping

from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.delivery.pulled_deliveries import PulledDeliveries
from ariane.broker.state.pop_table import QueueKey
from ariane.clock import Clock
from ariane.errors import ProtocolError, StoreError
from ariane.model import ids
from ariane.model import message as names
from ariane.model.topic import RETRY_PREFIX
from ariane.net.replies import Handler, HandlerResult, LateReply, Peer, Reply
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import batch, properties, record
from ariane.protocol.records.record import Record
from ariane.protocol.requests import decode_body, decode_header
from ariane.protocol.requests.messaging import (
    LONG_NAMES,
    ConsumerSendMsgBack,
    EndTransactionHeader,
    PullMessage,
    RecallMessage,
    SendMessage,
    SendMessageResponse,
)
from ariane.protocol.requests.pop import (
    AckMessage,
    BatchAckBody,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    PopMessage,
    PopMessageResponse,
    parse_handle,
)
from ariane.proxy.conversion.receipt_handles import DeliveryKey
from ariane.proxy.traces.message_traces import DeliveredMessage, MessageTraces, TracedSend
from ariane.store.message_store import MessageStore

TRACE_PRODUCER = "_INNER_TRACE_PRODUCER"  # then, from 4.9.1 on: -group-PRODUCE-number or -group-CONSUME-number
PRODUCE, CONSUME = "PRODUCE", "CONSUME"
TRACING_MAX = 10_000  # groups on hosts that are known to trace
TRACING_S = 600.0  # for which a host is known to trace after its last trace message

Answered = Callable[[Command, Peer, Reply | None, int], None]
"""Notes what an answered request has done; the number is the time at which it came, in ms."""


class RemotingTraces:
    """Writes the traces of clients of 4.x."""

    def __init__(
        self, *, settings: DynamicConfig, traces: MessageTraces, store: MessageStore, broker_name: str, clock: Clock
    ) -> None:
        self.unreadable = 0
        """Number of requests without records, because they or what they concern cannot be read."""
        self.pulled = PulledDeliveries(traces)
        self.traces = traces
        self._settings = settings  # the traced topics
        self._store = store  # half messages, and messages that are sent back
        self._broker_name = broker_name
        self._clock = clock
        # (host, group and kind) → monotonic time of the last trace message; "": all groups of a client that names none
        self._tracing: OrderedDict[tuple[str, str], float] = OrderedDict()

    def with_records(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return the handlers, with traces of what they have answered."""
        code = RequestCode
        answered: dict[int, Answered] = {
            code.SEND_MESSAGE: self._sent,
            code.SEND_MESSAGE_V2: self._sent,
            code.SEND_BATCH_MESSAGE: self._sent,
            code.RECALL_MESSAGE: self._recalled,
            code.END_TRANSACTION: self._decided,
            code.PULL_MESSAGE: self._pulled,
            code.LITE_PULL_MESSAGE: self._pulled,
            code.CONSUMER_SEND_MSG_BACK: self._sent_back,
            code.POP_MESSAGE: self._popped,
            code.ACK_MESSAGE: self._acknowledged,
            code.BATCH_ACK_MESSAGE: self._batch_acknowledged,
            code.CHANGE_MESSAGE_INVISIBLETIME: self._hidden,
        }
        return {
            number: self._recorded(serve, answered[number]) if number in answered else serve
            for number, serve in handlers.items()
        }

    def committed(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note an offset that a group has committed. [ConsumerOffsets.on_commit]"""
        if self.pulled.count:
            self.pulled.committed(group, topic, queue_id, offset, self._clock.now_ms())

    def _recorded(self, serve: Handler, answered: Answered) -> Handler:
        def note(command: Command, peer: Peer, reply: Reply | None, started_ms: int) -> Reply | None:
            try:
                answered(command, peer, reply, started_ms)
            except (ProtocolError, StoreError, OSError):  # of a record that cannot be read: what was answered stays so
                self.unreadable += 1
            return reply

        async def note_later(
            command: Command, peer: Peer, handled: Awaitable[Reply | LateReply | None], started_ms: int
        ) -> Reply | LateReply | None:
            reply = await handled
            if not isinstance(reply, LateReply):
                return note(command, peer, reply, started_ms)
            return LateReply(lambda: note(command, peer, reply.build(), started_ms), reply.complete)

        def recorded(command: Command, peer: Peer) -> HandlerResult:
            if not self._settings.current.traces_remoting:
                return serve(command, peer)
            started_ms = self._clock.now_ms()
            handled = serve(command, peer)
            if handled is None or isinstance(handled, Reply):
                return note(command, peer, handled, started_ms)
            return note_later(command, peer, handled, started_ms)

        return recorded

    # --- producers ---

    def _sent(self, command: Command, peer: Peer, reply: Reply | None, started_ms: int) -> None:
        is_v1 = command.code == RequestCode.SEND_MESSAGE
        request = decode_header(command, SendMessage, LONG_NAMES if is_v1 else None)
        if request.producer_group.startswith(TRACE_PRODUCER):
            self._note_tracing(peer.ip, request.producer_group)
        elif request.topic.startswith(RETRY_PREFIX) or not self._is_traced(
            request.topic, peer, request.producer_group, PRODUCE
        ):
            return
        elif request.batch:
            entries = [(each.properties, len(each.body)) for each in batch.decode(command.body)]
            self._note_sends(request, entries, peer, reply, started_ms)
        else:
            self._note_sends(request, [(request.properties or "", len(command.body))], peer, reply, started_ms)

    def _note_sends(
        self, request: SendMessage, entries: list[tuple[str, int]], peer: Peer, reply: Reply | None, started_ms: int
    ) -> None:
        message_ids = (_fields(reply).get("msgId", "").split(",") if _is_success(reply) else []) or [""] * len(entries)
        for (text, size), message_id in zip(entries, message_ids, strict=True):
            stored = SendMessageResponse(message_id, 0, 0) if message_id else None
            self.traces.sent(TracedSend(peer, request, properties.decode(text), size, started_ms), stored)

    def _recalled(self, command: Command, peer: Peer, reply: Reply | None, started_ms: int) -> None:
        request = decode_header(command, RecallMessage)
        if self._is_traced(request.topic, peer, request.producer_group, PRODUCE):
            key = _fields(reply).get("msgId") or ids.recalled_key(request.recall_handle)
            self.traces.recalled(peer, request.topic, key, is_success=_is_success(reply))

    def _decided(self, command: Command, peer: Peer, reply: Reply | None, started_ms: int) -> None:
        request = decode_header(command, EndTransactionHeader)
        half = self._store.read_record(request.commit_log_offset)
        topic = "" if half is None else record.property_map(half).get(names.REAL_TOPIC, "")
        is_done = reply is None or reply.code == ResponseCode.SUCCESS
        if is_done and self._is_traced(topic, peer, request.producer_group, PRODUCE):
            self.traces.decided(peer, topic, request)

    # --- consumers that pull ---

    def _pulled(self, command: Command, peer: Peer, reply: Reply | None, started_ms: int) -> None:
        request = decode_header(command, PullMessage)
        if not _is_success(reply) or not self._settings.current.concerns_traces(request.topic):
            return
        for item in record.decode_all(_body(reply)):
            if self._is_consumption_traced(item, peer, request.consumer_group):
                key = QueueKey(request.consumer_group, request.topic, request.queue_id)
                self.pulled.delivered(peer, key, item.queue_offset, DeliveredMessage.of(item))

    def _sent_back(self, command: Command, peer: Peer, reply: Reply | None, started_ms: int) -> None:
        request = decode_header(command, ConsumerSendMsgBack)
        data = self._store.read_record(request.offset)
        if data is None or not _is_success(reply):
            return
        item = record.decode(data)
        key = QueueKey(request.group, item.topic, item.queue_id)
        self.pulled.returned(key, item.queue_offset, self._clock.now_ms())
        self.traces.returned(self._key(key, item.queue_offset), None)

    # --- consumers by POP ---

    def _popped(self, command: Command, peer: Peer, reply: Reply | None, started_ms: int) -> None:
        request = decode_header(command, PopMessage)
        if not _is_success(reply) or not self._is_traced(request.topic, peer, request.consumer_group, CONSUME):
            return
        header = decode_header(Command(command.code, fields=_fields(reply)), PopMessageResponse)
        for item in record.decode_all(_body(reply)):
            key = self._key(QueueKey(request.consumer_group, item.topic, item.queue_id), item.queue_offset)
            visible_ms = header.pop_time + header.invisible_time
            self.traces.delivered(peer, key, DeliveredMessage.of(item), header.pop_time, visible_ms)

    def _acknowledged(self, command: Command, peer: Peer, reply: Reply | None, started_ms: int) -> None:
        request = decode_header(command, AckMessage)
        if _is_success(reply):
            key = self._key(QueueKey(request.consumer_group, request.topic, request.queue_id), request.offset)
            self.traces.acknowledged(key, parse_handle(request.extra_info).taken_ms)

    def _batch_acknowledged(self, command: Command, peer: Peer, reply: Reply | None, started_ms: int) -> None:
        if _is_success(reply) and self.traces.has_deliveries:
            for ack in decode_body(command, BatchAckBody).acks:
                queue = QueueKey(ack.group, ack.topic, ack.queue_id)
                for offset in ack.offsets:
                    self.traces.acknowledged(self._key(queue, offset), ack.taken_ms)

    def _hidden(self, command: Command, peer: Peer, reply: Reply | None, started_ms: int) -> None:
        request = decode_header(command, ChangeInvisibleTime)
        if _is_success(reply):
            new = decode_header(Command(command.code, fields=_fields(reply)), ChangeInvisibleTimeResponse)
            key = self._key(QueueKey(request.consumer_group, request.topic, request.queue_id), request.offset)
            taken_ms = parse_handle(request.extra_info).taken_ms
            self.traces.hidden(key, taken_ms, new.pop_time, new.pop_time + new.invisible_time)

    # --- which clients ---

    def _is_consumption_traced(self, item: Record, peer: Peer, group: str) -> bool:
        topic = item.topic
        if topic.startswith(RETRY_PREFIX):
            topic = item.property_map().get(names.RETRY_TOPIC, "")
        return self._is_traced(topic, peer, group, CONSUME)

    def _is_traced(self, topic: str, peer: Peer, group: str, kind: str) -> bool:
        """Return whether a client has no traces of its own of what it does with messages of a topic."""
        if not self._settings.current.is_traced(topic):
            return False
        since_s = self._clock.monotonic() - TRACING_S
        return all(self._tracing.get((peer.ip, name), since_s) <= since_s for name in ("", f"-{group}-{kind}"))

    def _note_tracing(self, ip: str, producer_group: str) -> None:
        key = ip, producer_group.removeprefix(TRACE_PRODUCER).rpartition("-")[0]
        self._tracing[key] = self._clock.monotonic()
        self._tracing.move_to_end(key)
        if len(self._tracing) > TRACING_MAX:
            self._tracing.popitem(last=False)

    def _key(self, queue: QueueKey, offset: int) -> DeliveryKey:
        return DeliveryKey(queue.group, queue.topic, self._broker_name, 0, queue.queue_id, offset)


def _is_success(reply: Reply | None) -> bool:
    return reply is not None and reply.code == ResponseCode.SUCCESS


def _fields(reply: Reply | None) -> Mapping[str, str]:
    return {} if reply is None else reply.fields or {}


def _body(reply: Reply | None) -> bytes:
    body = b"" if reply is None else reply.body
    return body if isinstance(body, bytes) else b"".join(body)
