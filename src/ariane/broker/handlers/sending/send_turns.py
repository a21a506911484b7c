"""Plain sends, all that one read brought at once; what is not plain is served by `SendHandler`, one by one.

    received data → SendEncoder (`core`) → one append → statistics, dispatch → wait until flushed → responses, one write

A turn that the disk refuses is served one by one as well: each send gets its own error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from ariane.broker.collaborators import ChangeDurability, Durability, SendsListener, SlaveAcknowledgement
from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.delivery.delayed_delivery import DELAY_PROPERTIES
from ariane.broker.lifecycle.offset_waiters import OffsetWaiter
from ariane.broker.lifecycle.write_protection import WriteProtection
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.broker.stats.broker_stats import BrokerStats
from ariane.clock import Clock
from ariane.errors import FlushFailed, MessageRefused, StoreError
from ariane.kernels.implementation import send_encoder
from ariane.kernels.sends.send_turn import SendEncoder, SendRun, SendSettings
from ariane.model.host import PACKED_V4
from ariane.model.message import TIMER_DEL_UNIQKEY, TRAN_MSG
from ariane.model.topic import PERM_WRITE, RETRY_PREFIX, SEND_FORBIDDEN, TopicConfig
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.replies import Peer, ServedTurn
from ariane.protocol import command as commands
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import RESPONSE
from ariane.protocol.frame import FrameReader
from ariane.protocol.records.queue_entry import ENTRY_SIZE
from ariane.store.message_store import MessageStore, NumberedQueue

# Messages with these properties need a decision: they are delayed, transactional, or cancel a timer.
EXCEPTIONAL_PROPERTIES = frozenset({*DELAY_PROPERTIES, TRAN_MSG, TIMER_DEL_UNIQKEY})
MULTI_TAG = "MULTI_TAG"
PLAIN_TOPICS_MAX = 100_000  # remembered; beyond, all are decided about again
SLOW_S = 0.001  # a run that took longer is judged by the limits for slow disks


class SendTurns:
    """Serves runs of plain sends. [TurnHandler]"""

    def __init__(
        self,
        *,
        settings: DynamicConfig,
        topics: TopicRegistry,
        store: MessageStore,
        store_host: bytes,
        listener: SendsListener,
        durability: Durability,
        stats: BrokerStats,
        limits: ServerLimits,
        protection: WriteProtection,
        changes: ChangeDurability,
        clock: Clock,
        slaves: SlaveAcknowledgement | None = None,
    ) -> None:
        self._settings = settings  # an encoder is created for each configuration
        self._topics = topics  # existing topics, their permissions and queues
        self._store = store  # numbers of queues, end of the log
        self._store_host = store_host  # packed address of this broker
        self._listener = listener  # dispatches what was stored
        self._durability = durability  # waits for the flush in synchronous mode
        self._stats = stats  # puts and put times
        self._limits = limits  # how long sends may be queued
        self._protection = protection  # rejects sends while the disk is too slow
        self._changes = changes  # topics that responses may depend on
        self._clock = clock  # monotonic, and for the time from which the broker accepts sends
        self._slaves = slaves  # None unless this is a SYNC_MASTER
        self._encoder: SendEncoder | None = None  # created for `_config` with the first send
        self._config: BrokerConfig | None = None  # a changed configuration needs another encoder
        self._plain_topics: dict[str, TopicConfig] = {}  # as they were when they were found to be plain
        # Topic whose queues are below: looked up once per topic and run, not once per queue. None, because a peer may send "".
        self._run_topic: str | None = None
        self._run_queues: Mapping[int, NumberedQueue] = {}  # by id
        self._run_queue_nums = 0  # a plain send names a queue id below it

    def serve(self, data: bytes, position: int, peer: Peer, waited_s: float) -> ServedTurn | None:
        """Serve the plain sends in `data` from `position` on. [TurnHandler.serve]"""
        if len(peer.packed) != PACKED_V4 or len(self._store_host) != PACKED_V4:
            return None  # messages of IPv6 hosts have another record layout
        if self._is_refusing(waited_s):
            return None
        log_end = self._store.log_end()
        if log_end is None:
            return None
        encoder, started = self._current_encoder(), self._stats.timer()
        self._run_topic = None  # topics may have changed since the last run
        run = encoder.encode(data, position, peer.packed, log_end, self._next_offset)
        if not run.sends:
            return None
        try:
            self._store.put_run(run, log_end.store_ms)
        except StoreError:
            return None  # nothing was stored: the next frame is served alone and gets the error
        took_s = self._stats.timer() - started
        if took_s > SLOW_S:
            self._protection.on_slow_send(took_s, self._clock.monotonic())
        self._listener.on_sends_stored(run.queues)
        responses = self._responses(run, log_end.offset + len(run.records), started)
        return ServedTurn(run.position, run.sends, responses, run.sends >= encoder.frames_max)

    def _is_refusing(self, waited_s: float) -> bool:
        """Return whether `SendHandler` has to decide about every send."""
        if waited_s and self._limits.exceeds_queue_time(RequestCode.SEND_MESSAGE_V2, waited_s):
            return True
        if self._protection.may_refuse and self._protection.refusal(self._clock.monotonic()) is not None:
            return True
        config = self._settings.current
        if 0 < config.start_accept_send_request_time_stamp > self._clock.now_ms():
            return True
        return config.sync_flush and self._changes.has_pending

    def _current_encoder(self) -> SendEncoder:
        config = self._settings.current
        if self._encoder is None or self._config is not config:
            self._config = config
            self._plain_topics.clear()  # the broker's permission decides about ordered topics
            self._encoder = send_encoder(
                SendSettings(
                    store_host=self._store_host,
                    cluster=config.broker_cluster_name,
                    region=config.region_id,
                    trace_on=config.trace_on,
                    header_max=self._limits.header_max,
                    body_max=config.max_message_size,
                    is_indexed=self._store.index.is_enabled,
                    exceptional=EXCEPTIONAL_PROPERTIES,
                )
            )
        return self._encoder

    def _next_offset(self, name: str, queue_id: int) -> int:
        """Return the number of the next message of a queue, or -1 if `SendTargets` has to decide about a send to it."""
        if name != self._run_topic:
            topic = self._plain_topic(name)
            if topic is None:
                return -1
            self._run_topic, self._run_queues = name, self._store.queues_of(name)
            self._run_queue_nums = max(topic.write_queue_nums, topic.read_queue_nums)
        if queue_id >= self._run_queue_nums:
            return -1
        queue = self._run_queues.get(queue_id)
        if queue is not None and queue.opened:
            return queue.next_offset
        try:
            return self._store.next_offset(name, queue_id)
        except MessageRefused:
            return -1

    def _plain_topic(self, name: str) -> TopicConfig | None:
        """Return a topic if sends to it need no decision of `SendTargets`."""
        topic = self._topics.get(name)
        if topic is not None and topic is not self._plain_topics.get(name):
            if not _is_plain(topic, self._settings.current):
                return None
            if len(self._plain_topics) >= PLAIN_TOPICS_MAX:
                self._plain_topics.clear()
            self._plain_topics[name] = topic
        return topic

    # --- responses ---

    def _responses(self, run: SendRun, end_offset: int, started: float) -> bytes | Awaitable[bytes]:
        """Return the responses of a stored run, or an awaitable of them if they wait for the disk or a slave."""
        flushed = self._durability.wait_flushed(end_offset)
        if flushed is None and self._slaves is None:
            self._count(run, started)
            return run.responses
        return self._responses_when_durable(run, end_offset, started, flushed)

    async def _responses_when_durable(
        self, run: SendRun, end_offset: int, started: float, flushed: OffsetWaiter[bool] | None
    ) -> bytes:
        """Wait for disk and slave in parallel. A slave's failure wins over a flush timeout, as in Java."""
        replicated = None if self._slaves is None else self._slaves.wait_replicated(end_offset)
        try:
            code = ResponseCode.SUCCESS
            if flushed is not None and not await flushed:
                code = ResponseCode.FLUSH_DISK_TIMEOUT
            self._count(run, started)
            if replicated is not None and (replication := await replicated) != ResponseCode.SUCCESS:
                code = replication
        except FlushFailed as error:
            # The records may be lost with the disk: no response may carry the id of a message that may not exist.
            for _ in range(run.sends):
                self._stats.record_put_failure()
            return _with_code(run.responses, ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
        return run.responses if code == ResponseCode.SUCCESS else _with_code(run.responses, code)

    def _count(self, run: SendRun, started: float) -> None:
        stats, queues = self._stats, run.queues
        if len(queues) > 1 and len({queue[0] for queue in queues}) == 1:  # most producers send to one topic
            entries_size = sum([len(queue[2]) for queue in queues])
            stats.record_sends(queues[0][0], run.sends, entries_size // ENTRY_SIZE, len(run.records))
        else:
            for topic, _, entries, sends, size in queues:
                stats.record_sends(topic, sends, len(entries) // ENTRY_SIZE, size)
        stats.record_put_times(run.sends, stats.timer() - started)


def _is_plain(topic: TopicConfig, config: BrokerConfig) -> bool:
    """Return whether sends to a topic need no decision of `SendTargets`, and no traces."""
    if topic.topic_filter_type == MULTI_TAG or (topic.order and not config.broker_permission & PERM_WRITE):
        return False
    if config.concerns_traces(topic.topic_name):
        return False
    return topic.topic_name not in SEND_FORBIDDEN and not topic.topic_name.startswith(RETRY_PREFIX)


def _with_code(responses: bytes, code: ResponseCode, refusal: str | None = None) -> bytes:
    """Return the same responses with another code; with a `refusal` they name no message."""
    frames: list[bytes] = []
    for frame in FrameReader().feed(responses):
        response = commands.decode(frame)
        fields = response.field_map()
        if refusal is not None:
            fields = {name: fields[name] for name in ("MSG_REGION", "TRACE_ON")}
        frames += commands.encode(
            code, opaque=response.opaque, flag=RESPONSE, fields=fields, remark=refusal, form=frame.form
        )
    return b"".join(frames)
