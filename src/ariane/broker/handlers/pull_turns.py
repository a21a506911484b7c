"""Plain pulls, all that one read brought at once; what is not plain is served by `PullHandler`, one by one.

    received data → parse_pull → plan: filter, limits → store.get ─ FOUND → statistics, header ─┐
                                                         │                     next pull ◀──────┤
                                                         └ otherwise: the turn ends             └→ responses, one write

The pulls of a consumer differ only in queue, offset and opaque. All else decides its plan, which is built by `PullFilterBuilder`
and used again while what that looked at is the same.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from ariane.broker.dynamic_config import DynamicConfig
from ariane.broker.handlers.collaborators import ChangeDurability
from ariane.broker.handlers.pull import pulled_messages, suggested_brokers
from ariane.broker.handlers.pull_filter import PullFacts, PullFilterBuilder
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.stats.broker_stats import BrokerStats, PulledMessages
from ariane.clock import Clock
from ariane.errors import ProtocolError, ReplyError, StoreError
from ariane.kernels.pull_turn import PlainPull, found_header, parse_pull
from ariane.net.connection import BATCH_BYTES_MAX, FRAMES_PER_TICK
from ariane.net.flow_limits import ServerLimits
from ariane.net.replies import Peer, ServedTurn
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.messaging import COMMIT_OFFSET, PullMessage
from ariane.store.message_store import GetResult, GetStatus, MessageStore, RecordFilter

# Plans, and characters of their subscriptions, that are remembered; beyond, all are built again. A parsed subscription takes up
# to 80 times its length in memory.
PLANS_MAX, PLANS_CHARS_MAX = 10_000, 1_000_000


class _Plan(msgspec.Struct, gc=False):
    """What all pulls with the same key have in common."""

    facts: PullFacts  # all that the filter depends on, as it was when the plan was built
    turn: int  # the last one in which its facts were compared
    record_filter: RecordFilter  # by tags, or by an expression
    is_plain: bool  # False if the filter has to read records
    queues: int  # of the topic, for reading
    brokers: tuple[int, int]  # suggested while the group keeps up, and while it does not
    commits: bool  # whether the pulls commit offsets


class PullTurns:
    """Serves runs of plain pulls. [TurnHandler]"""

    def __init__(
        self,
        *,
        settings: DynamicConfig,
        filters: PullFilterBuilder,
        offsets: ConsumerOffsets,
        store: MessageStore,
        stats: BrokerStats,
        limits: ServerLimits,
        changes: ChangeDurability,
        clock: Clock,
    ) -> None:
        self._settings = settings  # synchronous or asynchronous mode
        self._filters = filters  # builds the filter of a plan
        self._offsets = offsets  # a pull may commit the group's offset on its way
        self._store = store  # messages
        self._stats = stats  # messages and bytes by group
        self._limits = limits  # how long pulls may be queued, size of a header
        self._changes = changes  # topics and groups that responses may depend on
        self._clock = clock  # age of messages
        self._plans: dict[Hashable, _Plan] = {}  # by all of a request that is not its own
        self._plan_chars = 0  # of the subscriptions of these plans
        self._turn = 0  # number of the current turn: within one nothing changes

    def serve(self, data: bytes, position: int, peer: Peer, waited_s: float) -> ServedTurn | None:
        """Serve the plain pulls in `data` from `position` on. [TurnHandler.serve]"""
        if waited_s and self._limits.exceeds_queue_time(RequestCode.PULL_MESSAGE, waited_s):
            return None
        self._turn += 1
        now_ms, header_max, timer = self._clock.now_ms(), self._limits.header_max, self._stats.timer
        responses: list[bytes] = []
        pulled: list[tuple[str, str, int, PulledMessages]] = []
        size = 0
        while size < BATCH_BYTES_MAX and len(pulled) < FRAMES_PER_TICK:
            pull = parse_pull(data, position, header_max)
            if pull is None or (plan := self._current_plan(pull.request)) is None:
                break
            started, request = timer(), pull.request
            result = self._read(request, plan)
            seconds = timer() - started
            if result is None or (header := self._found(pull, plan, result)) is None:
                break
            messages = pulled_messages(result, seconds, now_ms)
            pulled.append((request.topic, request.consumer_group, request.queue_id, messages))
            responses += (header, result.body)
            size += messages.size
            position = pull.end
        if not pulled:
            return None
        self._stats.record_pulls(pulled)
        is_last = size >= BATCH_BYTES_MAX or len(pulled) == FRAMES_PER_TICK
        return ServedTurn(position, len(pulled), b"".join(responses), is_last)

    def _read(self, request: PullMessage, plan: _Plan) -> GetResult | None:
        """Return the messages of a pull; None if `PullHandler` has to decide about it."""
        queue_id = request.queue_id
        if not 0 <= queue_id < plan.queues:
            return None
        try:
            result = self._store.get(
                request.topic, queue_id, request.queue_offset, request.max_msg_nums, plan.record_filter
            )
        except (OSError, StoreError):
            return None  # the handler meets it again, and replies
        return result if result.status is GetStatus.FOUND else None

    def _found(self, pull: PlainPull, plan: _Plan, result: GetResult) -> bytes | None:
        """Commit the offset of a pull and return the header of its response; None, without a commit, if one is impossible."""
        request, broker_id = pull.request, plan.brokers[result.suggest_slave]
        numbers = (result.max_offset, result.min_offset, result.next_offset, broker_id, pull.opaque)
        try:
            header = found_header(numbers, pull.form, len(result.body))
            if plan.commits and request.commit_offset >= 0:
                self._offsets.commit(request.consumer_group, request.topic, request.queue_id, request.commit_offset)
        except (ProtocolError, ReplyError):
            return None  # the handler meets it again, and replies
        return header

    # --- plans ---

    def _current_plan(self, request: PullMessage) -> _Plan | None:
        """Return the plan of a pull; None if the handler has to decide about it."""
        key = (
            request.consumer_group, request.topic, request.sys_flag, request.subscription, request.sub_version,
            request.expression_type,
        )  # fmt: skip
        plan = self._plans.get(key)
        if plan is None or plan.turn != self._turn:
            if plan is None or plan.facts != self._filters.facts(request):
                plan = self._build_plan(key, request)
                if plan is None:
                    return None
            if self._settings.current.sync_flush and self._changes.has_pending:
                return None  # the response waits for a change that it may depend on
            plan.turn = self._turn
        return plan if plan.is_plain else None

    def _build_plan(self, key: Hashable, request: PullMessage) -> _Plan | None:
        try:
            record_filter = self._filters.build(request)
        except (ReplyError, ProtocolError):
            return None
        facts = self._filters.facts(request)  # with a group that `build` created
        chars = len(request.subscription or "")
        if len(self._plans) >= PLANS_MAX or self._plan_chars + chars > PLANS_CHARS_MAX:
            self._plans.clear()
            self._plan_chars = 0
        if key not in self._plans:
            self._plan_chars += chars
        self._plans[key] = plan = _Plan(
            facts=facts,
            turn=0,
            record_filter=record_filter,
            is_plain=record_filter.accept is None,
            queues=0 if facts.topic is None else facts.topic.read_queue_nums,
            brokers=suggested_brokers(facts.config, facts.group),
            commits=bool(request.sys_flag & COMMIT_OFFSET),
        )
        return plan
