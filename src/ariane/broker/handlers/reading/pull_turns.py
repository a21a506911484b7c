"""Plain pulls, all that one read brought at once; what is not plain is served by `PullHandler`, one by one.

    received data → PullReader: template, numbers → plan: filter, limits → TurnReads: entries ─┐
                                                                                 next pull ◀───┤
    one write ← statistics, offsets ← responses ← answer_pulls (`kernels`), a call per turn  ◀─┘

The pulls of a consumer differ only in queue, offsets and opaque. All else is their template, which decides their plan: built by
`PullFilterBuilder`, and used again while what that looked at is the same.
"""

from __future__ import annotations

import msgspec

from ariane.broker.collaborators import ChangeDurability
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.handlers.reading.pull import suggested_brokers
from ariane.broker.handlers.reading.pull_filter import PullFacts, PullFilterBuilder
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.stats.broker_stats import BrokerStats, PulledQueue
from ariane.clock import Clock
from ariane.errors import ProtocolError, ReplyError, StoreError
from ariane.kernels.implementation import selected
from ariane.kernels.pulls.pull_answers import AnsweredPull, PullQuery
from ariane.kernels.pulls.pull_reader import PlainPull, PullTemplate
from ariane.kernels.pulls.pull_turn import found_header
from ariane.net.connection import FRAMES_PER_TICK
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.replies import Peer, ServedTurn
from ariane.net.requests.served_requests import BATCH_BYTES_MAX
from ariane.protocol.codes import RequestCode
from ariane.protocol.frame import JSON_FORM, PREFIX
from ariane.protocol.records.queue_entry import ENTRY_SIZE, OFFSET_AND_SIZE
from ariane.protocol.records.record import store_ms
from ariane.protocol.requests.messaging import COMMIT_OFFSET, PullMessage
from ariane.store.message_store import GetStatus, MessageStore, RecordFilter
from ariane.store.queues.queue_reader import entry_count

# Plans, and characters of their subscriptions, that are remembered; beyond, all are built again. A parsed subscription takes up
# to 80 times its length in memory.
PLANS_MAX, PLANS_CHARS_MAX = 10_000, 1_000_000


class _Plan(msgspec.Struct, gc=False):
    """What all pulls with the same template have in common."""

    facts: PullFacts  # all that the filter depends on, as it was when the plan was built
    turn: int  # the last one in which its facts were compared
    record_filter: RecordFilter  # by tags, or by an expression
    is_plain: bool  # False if the filter has to read records, or traces need them
    topic: str  # that the pulls read
    group: str  # of the consumers
    queues: int  # of the topic, for reading
    count: int  # messages of a response, at most
    entries: int  # that are examined for it
    brokers: tuple[int, int]  # suggested while the group keeps up, and while it does not
    commits: bool  # whether the pulls commit offsets


class _Run(msgspec.Struct, gc=False):
    """Pulls that are answered together. The lists have an item for each."""

    base: int  # offset of the file of the log with the first record of each
    is_json: bool  # whether all have JSON headers
    pulls: list[PlainPull]
    plans: list[_Plan]
    queries: list[PullQuery]


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
        self._store = store
        self._stats = stats  # messages and bytes by group
        self._limits = limits  # how long pulls may be queued, size of a header
        self._changes = changes  # topics and groups that responses may depend on
        self._clock = clock  # age of messages
        self._reader = selected().pull_reader()  # templates of pulls
        self._plans: dict[PullTemplate, _Plan] = {}  # used again while their facts are the same
        self._plan_chars = 0  # of the subscriptions of these plans
        self._turn = 0  # number of the current turn: within one nothing changes

    def serve(self, data: bytes, position: int, peer: Peer, waited_s: float) -> ServedTurn | None:
        """Serve the plain pulls in `data` from `position` on. [TurnHandler.serve]"""
        if waited_s and self._limits.exceeds_queue_time(RequestCode.PULL_MESSAGE, waited_s):
            return None
        self._turn += 1
        started = self._stats.timer()
        run = self._collect(data, position)
        if not run.pulls:
            return None
        try:
            answered = self._answer(run)
        except (OSError, StoreError):
            answered = None  # met again below
        responses, answers = answered or self._answer_each(run)
        count = self._commit_offsets(run, len(answers))
        if not count:
            return None
        if count < len(answers):
            responses, answers = _first_frames(responses, count), answers[:count]
        self._record(run, answers, (self._stats.timer() - started) / count)
        is_last = len(responses) >= BATCH_BYTES_MAX or count == FRAMES_PER_TICK
        return ServedTurn(run.pulls[count - 1][6], count, responses, is_last)

    def _collect(self, data: bytes, position: int) -> _Run:
        """Return the pulls that are served next, and what they read."""
        reads, read, header_max = self._store.turn_reads, self._reader.read, self._limits.header_max
        file_size = reads.file_size
        run = _Run(-1, True, [], [], [])
        pulls, plans, queries = run.pulls, run.plans, run.queries
        plan: _Plan | None = None
        template: PullTemplate | None = None
        expected = 0  # bytes of the responses, about
        reads.begin()
        while expected < BATCH_BYTES_MAX and len(pulls) < FRAMES_PER_TICK:
            pull = read(data, position, header_max)
            if pull is None:
                break
            if plan is None or pull[0] is not template:
                template, plan = pull[0], self._current_plan(pull)
                if plan is None:
                    break
                codes, count_max, brokers = plan.record_filter.codes, plan.count, plan.brokers
                reads.select_topic(plan.topic)
            _, queue_id, number, _, opaque, form, position = pull
            if not 0 <= queue_id < plan.queues:
                break
            try:
                located = reads.find(queue_id, number, plan.entries)
            except (OSError, StoreError):
                break  # the handler meets it again, and replies
            if located is None:
                break
            entries, low, high = located
            offset, size = OFFSET_AND_SIZE.unpack_from(entries)
            base = offset - offset % file_size
            if base != run.base:
                if pulls:
                    break
                run.base = base
            pulls.append(pull)
            plans.append(plan)
            queries.append((entries, count_max, codes, number, low, high, brokers, opaque))
            run.is_json &= form == JSON_FORM
            expected += size * min(count_max, len(entries) // ENTRY_SIZE)
        return run

    # --- responses ---

    def _answer(self, run: _Run) -> tuple[bytes, list[AnsweredPull]] | None:
        """Return the responses to the first pulls of a run; None if the first one has to be answered alone."""
        if not run.is_json:
            return None
        source = self._store.turn_reads.source(run.base, self._store.config, BATCH_BYTES_MAX)
        if source is None:
            return None
        responses, answers = selected().answer_pulls(run.queries, *source)
        return (responses, answers) if answers else None

    def _answer_each(self, run: _Run) -> tuple[bytes, list[AnsweredPull]]:
        """Return the responses to the pulls of a run, answered one by one, up to one that `PullHandler` has to decide about."""
        pieces: list[bytes] = []
        answers: list[AnsweredPull] = []
        size = 0
        for (_, queue_id, number, _, opaque, form, _), plan in zip(run.pulls, run.plans, strict=True):
            try:
                result = self._store.get(plan.topic, queue_id, number, plan.count, plan.record_filter)
                if result.status is not GetStatus.FOUND:
                    break
                body, sizes = result.body, result.sizes
                broker_id = plan.brokers[result.suggest_slave]
                numbers = (result.max_offset, result.min_offset, result.next_offset, broker_id, opaque)
                pieces += (found_header(numbers, form, len(body)), body)
            except (OSError, StoreError, ProtocolError):
                break  # the handler meets it again, and replies
            last = self._store.commit_log_max - (result.bytes_behind or 0)
            answers.append((len(sizes), len(body), last, store_ms(body, len(body) - sizes[-1])))
            size += len(body)
            if size >= BATCH_BYTES_MAX:
                break
        return b"".join(pieces), answers

    def _commit_offsets(self, run: _Run, count: int) -> int:
        """Commit the offsets of the first `count` pulls; return how many are served: up to one whose offset is refused."""
        for index in range(count):
            plan, (_, queue_id, _, commit_offset, _, _, _) = run.plans[index], run.pulls[index]
            if plan.commits and commit_offset >= 0:
                try:
                    self._offsets.commit_consumed(plan.group, plan.topic, queue_id, commit_offset)
                except ReplyError:
                    return index  # the handler meets it again, and replies
        return count

    def _record(self, run: _Run, answers: list[AnsweredPull], seconds: float) -> None:
        """Count pulls that took `seconds` each."""
        log_end, now_ms, plans = self._store.commit_log_max, self._clock.now_ms(), run.plans
        pulled: list[PulledQueue] = []
        plan = plans[0]
        for index, (messages, size, last, stored_ms) in enumerate(answers):
            if plans[index] is not plan:
                self._stats.record_pulls(plan.topic, plan.group, pulled, seconds)
                pulled, plan = [], plans[index]
            late_ms = now_ms - stored_ms
            pulled.append((run.pulls[index][1], messages, size, log_end - last, late_ms if late_ms > 0 else 0))
        self._stats.record_pulls(plan.topic, plan.group, pulled, seconds)

    # --- plans ---

    def _current_plan(self, pull: PlainPull) -> _Plan | None:
        """Return the plan of a pull; None if the handler has to decide about it."""
        template = pull[0]
        plan = self._plans.get(template)
        if plan is None or plan.turn != self._turn:
            if plan is None or plan.facts != self._filters.facts(template.request):
                plan = self._build_plan(template, msgspec.structs.replace(template.request, queue_id=pull[1]))
                if plan is None:
                    return None
            if self._settings.current.sync_flush and self._changes.has_pending:
                return None  # the response waits for a change that it may depend on
            plan.turn = self._turn
        return plan if plan.is_plain else None

    def _build_plan(self, template: PullTemplate, request: PullMessage) -> _Plan | None:
        try:
            if self._filters.groups.get(request.consumer_group) is None:
                return None  # `PullHandler` creates it, which counts for the client
            record_filter = self._filters.build(request)
        except (ReplyError, ProtocolError):
            return None
        facts = self._filters.facts(request)  # with a group that `build` created
        chars = len(request.subscription or "")
        if len(self._plans) >= PLANS_MAX or self._plan_chars + chars > PLANS_CHARS_MAX:
            self._plans.clear()
            self._plan_chars = 0
        if template not in self._plans:
            self._plan_chars += chars
        self._plans[template] = plan = _Plan(
            facts=facts,
            turn=0,
            record_filter=record_filter,
            is_plain=record_filter.accept is None and not facts.config.concerns_traces(request.topic),
            topic=request.topic,
            group=request.consumer_group,
            queues=0 if facts.topic is None else facts.topic.read_queue_nums,
            count=request.max_msg_nums,
            entries=entry_count(request.max_msg_nums, record_filter),
            brokers=suggested_brokers(facts.config, facts.group),
            commits=bool(request.sys_flag & COMMIT_OFFSET),
        )
        return plan


def _first_frames(responses: bytes, count: int) -> bytes:
    end = 0
    for _ in range(count):
        end += 4 + PREFIX.unpack_from(responses, end)[0]
    return responses[:end]
