"""Plans the entries of each micro-batch of a stream. [KafkaMicroBatchStream]

    Spark calls       initial_offset() → latest_offset(start) → report_latest_offset() → ranges(end) → tasks
    and gets          {"initial": …}     {"from": …, "to": …}   {"latest": …}           from → to of `end` alone

Topics, queues and brokers are looked up for each micro-batch: new queues are read from their beginning, and queues of
unavailable brokers keep their position. Spark does not store the initial offset and asks for it again, and it calls commit()
late, never for the last batch. Neither matters: every end offset carries its start, and Spark asks for what follows `start`
only after the previous batch has finished, which is when the group's offsets are committed.

Imports neither pyspark nor pyarrow: `planner_process` runs in a process of its own for each stream.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ariane.errors import RouteNotFound
from ariane.model.message import MessageQueue
from ariane.spark.read import offset_ranges, planning, pull_client
from ariane.spark.read import queue_bounds as queue_ends
from ariane.spark.read.group_offsets import GroupOffsets
from ariane.spark.read.offset_ranges import OffsetRange, Positions, ReadLimits
from ariane.spark.read.queue_bounds import QueueBounds
from ariane.spark.read.source_options import SourceOptions, reject_batch_options

log = logging.getLogger("ariane.spark")

UNREGISTERED = "not registered with any name server"


class LimitPolicy(Protocol):
    """Sizes the micro-batches of a query within its limits."""

    def share(self) -> float:
        """Return the share of the limits that the next micro-batch may read."""
        ...

    def record_plan(self, *, is_limited: bool) -> None:
        """Record that a micro-batch begins, and whether more messages are pending than it reads."""
        ...


class WholeLimits:
    """Lets each micro-batch read as much as the limits allow."""

    def share(self) -> float:
        return 1.0

    def record_plan(self, *, is_limited: bool) -> None:
        pass


class MicroBatchPlanner:
    """Plans the micro-batches of one query."""

    def __init__(self, options: SourceOptions, monotonic: Callable[[], float] = time.monotonic) -> None:
        reject_batch_options(options)
        self._options = options  # options of the query, validated before it starts
        self._monotonic = monotonic
        # Start offsets, computed once: Spark may ask for them again, and brokers move on.
        self._initial: dict[str, Any] | None = None
        self._stop_bounds: QueueBounds | None = None  # AvailableNow: the bounds when the query started
        self._latest: Positions = {}  # end offsets seen by the last latest_offset(), for report_latest_offset()
        self._unavailable: dict[str, str] = {}  # servers that did not respond last time → reason
        self._missing_topics: set[str] = set()  # topics read before that no longer exist
        # Stores finished offsets in the consumer group, for tools; Spark's checkpoint stays authoritative.
        self._group = GroupOffsets(options.group_id)
        # When the last batch was planned, for maxTriggerDelay; the first one never waits.
        self._planned_s = float("-inf")
        self.is_due: Callable[[], bool] = _never  # plans a batch although minOffsetsPerTrigger is not reached
        self.limit_policy: LimitPolicy = WholeLimits()

    def initial_offset(self) -> dict[str, Any]:
        # Spark calls this again in the first batch, and the result has to be the same.
        if self._initial is None:
            cluster, queues = self._wait_for_queues()
            ends = queue_ends.fetch_bounds(cluster, queues)
            self._initial = offset_ranges.initial_offset(planning.start_positions(cluster, self._options, queues, ends))
        return self._initial

    def latest_offset(self, start: dict[str, Any], *, is_limited: bool) -> dict[str, Any]:
        """Return the end of the micro-batch after `start`, or `start` if there is none.

        Args:
            is_limited: Whether the limits of the options apply.
        """
        if self._options.commit_offsets and "to" in start:
            self._commit(offset_ranges.end_positions(start))
        reached = offset_ranges.end_positions(start)
        first, last, by_slave = (
            self._current_bounds(reached)
            if self._stop_bounds is None
            else self._bounds_at_stop(self._stop_bounds, reached)
        )
        # A slave lags behind its master, so an end below the position read so far is not a data loss if a slave reported it.
        last = {
            **last,
            **{queue: position for queue, position in reached.items() if queue in by_slave and last[queue] < position},
        }
        for loss in offset_ranges.find_losses(start, first, last):
            if self._options.fail_on_data_loss:
                raise offset_ranges.DataLoss(f"{loss}; set failOnDataLoss to false to resume at {loss.resume}")
            log.warning("%s; resuming at %d", loss, loss.resume)
        self._latest = last
        if self._should_wait(offset_ranges.pending_counts(start, first, last), is_limited=is_limited):
            return start
        self._planned_s = self._monotonic()
        limits = self._limits(start, first, last) if is_limited else ReadLimits()
        offset = offset_ranges.next_offset(start, first, last, limits)
        self.limit_policy.record_plan(is_limited=bool(offset_ranges.pending_counts(offset, first, last)))
        return offset

    def read_limit(self) -> dict[str, Any]:
        """Return one of the configured limits as the fields of Spark's class `_type`.

        Spark passes a single limit back; `_limits` then applies all options.
        """
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return {"_type": "ReadMaxRows", "max_rows": options.max_offsets_per_trigger}
        if options.max_bytes_per_trigger is not None:
            return {"_type": "ReadMaxBytes", "max_bytes": options.max_bytes_per_trigger}
        if options.min_offsets_per_trigger is not None:
            return {"_type": "ReadMinRows", "min_rows": options.min_offsets_per_trigger}
        return {"_type": "ReadAllAvailable"}

    def report_latest_offset(self) -> dict[str, Any] | None:
        """Return the end offsets and the unavailable servers; `progress.lags` computes the lag from it."""
        ends = {"latest": offset_ranges.positions_to_json(self._latest)} if self._latest else {}
        return {**ends, **({"unavailable": self._unavailable} if self._unavailable else {})} or None

    def prepare_for_available_now(self) -> None:
        """Read up to the current ends of the queues only."""
        cluster, queues = self._wait_for_queues()
        self._stop_bounds = queue_ends.fetch_bounds(cluster, queues)

    def ranges(self, end: dict[str, Any]) -> list[OffsetRange]:
        """Return what the tasks of the micro-batch that ends at `end` read."""
        return planning.split_for_tasks(offset_ranges.batch_ranges(end), self._options)

    def _wait_for_queues(self) -> tuple[pull_client.BlockingCluster, list[MessageQueue]]:
        """Return the current queues, retrying while servers are unavailable."""
        cluster = pull_client.shared_cluster(self._options)
        chosen = cluster.retry("topics", queue_ends.select_topics, cluster, self._options)
        return cluster, cluster.retry("routes", cluster.queues, *chosen)

    def _current_bounds(self, positions: Positions) -> QueueBounds:
        """Return the bounds of all queues that can be reached now. Other queues keep their positions until the next micro-batch."""
        cluster = pull_client.shared_cluster(self._options)
        try:
            queues = cluster.queues(*queue_ends.select_topics(cluster, self._options))
            missing = sorted(positions.keys() - set(queues))
            brokers = cluster.brokers().broker_addr_table if missing else {}
        except pull_client.RETRYABLE_ERRORS as error:
            pull_client.raise_unless_transient(error)
            self._log_availability({**self._unavailable, "all name servers": str(error)})
            return QueueBounds({}, {})
        ends, away = queue_ends.fetch_available_bounds(cluster, queues)
        dropped = {queue.broker: UNREGISTERED for queue in missing if queue.broker not in brokers}
        self._log_availability({**away, **dropped, **_unavailable_masters(ends)})
        return self._add_missing_queues(ends, {queue: positions[queue] for queue in missing if queue.broker in brokers})

    def _bounds_at_stop(self, at_stop: QueueBounds, positions: Positions) -> QueueBounds:
        """Return the bounds when AvailableNow started. Waits for brokers that were read before but lost their registration."""
        missing = sorted(positions.keys() - at_stop.end.keys())
        if missing:
            cluster = pull_client.shared_cluster(self._options)
            cluster.retry("queues read before", _require_brokers, cluster, missing)
            ends = queue_ends.fetch_bounds(cluster, sorted({*self._wait_for_queues()[1]} & {*missing}))
            known_at_stop = QueueBounds(
                {**at_stop.first, **ends.first}, {**at_stop.end, **ends.end}, at_stop.from_slaves | ends.from_slaves
            )
            at_stop = self._add_missing_queues(
                known_at_stop, {queue: positions[queue] for queue in missing if queue not in ends.end}
            )
            self._stop_bounds = at_stop
        self._log_availability(_unavailable_masters(at_stop))
        return at_stop

    def _add_missing_queues(self, ends: QueueBounds, missing: Positions) -> QueueBounds:
        """Add queues that were deleted or deselected, as empty ranges at their current positions."""
        for topic in sorted({queue.topic for queue in missing} - self._missing_topics):
            log.warning("Queues of %s no longer exist; their unread messages, if any, are lost", topic)
        self._missing_topics = {queue.topic for queue in missing}
        return ends._replace(first={**ends.first, **missing}, end={**ends.end, **missing}) if missing else ends

    def _log_availability(self, away: dict[str, str]) -> None:
        """Log which servers became unavailable or available again, once for each change."""
        for name in sorted(away.keys() - self._unavailable.keys()):
            log.warning("%s unavailable: %s", name, away[name])
        for name in sorted(self._unavailable.keys() - away.keys()):
            log.warning("%s available again", name)
        self._unavailable = away

    def _should_wait(self, waiting: Positions, *, is_limited: bool) -> bool:
        """Return whether minOffsetsPerTrigger is not reached yet. AvailableNow never waits: no more messages will be added."""
        minimum = self._options.min_offsets_per_trigger
        if minimum is None or self._stop_bounds is not None or not is_limited:
            return False
        # Only with pending messages: the first message after a while without any is then read at once.
        if waiting and self.is_due():
            return False
        is_late = self._monotonic() - self._planned_s >= self._options.max_trigger_delay / 1000
        return sum(waiting.values()) < minimum and not is_late

    def _limits(self, start: dict[str, Any], first: Positions, last: Positions) -> ReadLimits:
        options, share = self._options, self.limit_policy.share()
        max_entries, max_bytes = (
            None if maximum is None else max(1, int(maximum * share))
            for maximum in (options.max_offsets_per_trigger, options.max_bytes_per_trigger)
        )
        if max_bytes is None:
            return ReadLimits(max_entries)
        begin = {**first, **offset_ranges.end_positions(start)}
        starts = {queue: begin[queue] for queue in offset_ranges.pending_counts(start, first, last)}
        sizes = queue_ends.estimate_entry_sizes(pull_client.shared_cluster(options), starts) if starts else {}
        return ReadLimits(max_entries, max_bytes, sizes)

    def _commit(self, positions: Positions) -> None:
        """Commit the query's positions to its group. A failure is retried with the next batch and never fails the query."""
        for queue, error in self._group.commit(pull_client.shared_cluster(self._options), positions).items():
            log.warning(
                "%s: could not commit offset %d: %s", offset_ranges.describe_queue(queue), positions[queue], error
            )


def _never() -> bool:
    return False


def _unavailable_masters(ends: QueueBounds) -> dict[str, str]:
    return {
        f"master of {queue.broker}": "reading from a slave, which may lack the newest messages"
        for queue in ends.from_slaves
    }


def _require_brokers(cluster: pull_client.BlockingCluster, queues: Sequence[MessageQueue]) -> None:
    """Raise RouteNotFound if the broker of one of the queues is not registered with any name server."""
    brokers = cluster.brokers().broker_addr_table
    for queue in queues:
        if queue.broker not in brokers:
            raise RouteNotFound(queue.topic, f"{queue.broker} was read before, and is {UNREGISTERED}")
