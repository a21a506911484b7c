"""What a running query says of itself, made use of: its lag, and its offsets committed to a consumer group.

    lags(query.lastProgress)                                     → {topic: {broker: {queue id: entries behind}}}
    spark.streams.addListener(Lag(print_it))                     the same after each micro-batch
    spark.streams.addListener(CommitOffsets({"namesrv": …, "groupId": …}))

Spark's progress holds the offset at which a batch of this source ended, and what there was to read (`reportLatestOffset`).
What is not known — a broker was away — is None, never zero. The option commitOffsets does without a listener, and with
the beginning of the next batch; the listener commits when a batch ends, from the driver.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from ariane.errors import ArianeError, ConfigError
from ariane.model.message import MessageQueue
from ariane.spark.read import offset_ranges, pull_client
from ariane.spark.read.group_offsets import GroupOffsets
from ariane.spark.read.offset_ranges import Positions
from ariane.spark.read.source_options import parse, pull_access
from ariane.spark.wire.access import DEFAULT_GROUP

log = logging.getLogger("ariane.spark")

LagTree = dict[str, dict[str, dict[str, int | None]]]


def lags(progress: Mapping[str, Any] | str | None) -> LagTree:
    """How many entries each queue has that were not read yet, by a query's progress (`lastProgress`, or its JSON). Where several
    sources of a query read a queue, the one that is furthest behind counts. Empty before the first micro-batch (None)."""
    behind: dict[MessageQueue, int | None] = {}
    for reached, ends in _sources(progress):
        for queue in {*reached, *ends}:
            known = queue in reached and queue in ends
            lag = max(0, ends[queue] - reached[queue]) if known else None
            others = behind.get(queue, 0)
            behind[queue] = None if lag is None or others is None else max(lag, others)
    tree: LagTree = {}
    for queue in sorted(behind):
        tree.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = behind[queue]
    return tree


def total_lag(behind: LagTree) -> int | None:
    """All queues together; None when one is not known."""
    every = [one for brokers in behind.values() for queues in brokers.values() for one in queues.values()]
    return None if None in every else sum(one for one in every if one is not None)


def unavailable_servers(progress: Mapping[str, Any] | str | None) -> dict[str, str]:
    """Brokers, topics and name servers that did not answer when the last batch was planned, and why."""
    return {
        name: why
        for source in _parse_progress(progress).get("sources", ())
        for name, why in _parse_offset(source.get("latestOffset")).get("unavailable", {}).items()
    }


def processed_positions(progress: Mapping[str, Any] | str | None) -> Positions:
    """Where a query's next batch begins, for all queues of its sources; where several read one, the least."""
    found: Positions = {}
    for positions, _ in _sources(progress):
        found |= {queue: min(at, found.get(queue, at)) for queue, at in positions.items()}
    return found


def _sources(progress: Mapping[str, Any] | str | None) -> Iterator[tuple[Positions, Positions]]:
    """Positions reached and ends seen of each source of this kind; other sources are passed over."""
    for source in _parse_progress(progress).get("sources", ()):
        end, latest = _parse_offset(source.get("endOffset")), _parse_offset(source.get("latestOffset"))
        if isinstance(end.get("to", end.get("initial")), dict):  # those of store files are numbers
            yield offset_ranges.end_positions(end), offset_ranges.positions_from_json(latest.get("latest", {}))


def _parse_progress(progress: Mapping[str, Any] | str | None) -> Mapping[str, Any]:
    """The progress as a tree; ConfigError for anything that is none."""
    tree: Any = progress
    if isinstance(progress, str):
        try:
            tree = json.loads(progress)
        except ValueError:
            tree = progress
    if tree is None:
        return {}
    if not isinstance(tree, Mapping):
        raise ConfigError("progress", str(progress)[:80], "expected query.lastProgress, or its JSON")
    return tree


def _parse_offset(value: Any) -> dict[str, Any]:
    """An offset in a progress: JSON, its text, or nothing; another source's may be anything."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


class _Listener(StreamingQueryListener):
    """Looks at the progress of one query, by its name, or of all."""

    def __init__(self, query: str | None) -> None:
        self._query = query

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        if self._query is not None and progress.name != self._query:
            return
        try:
            self.on_progress(json.loads(progress.json))
        except (ArianeError, ValueError) as error:
            # Spark takes a listener's error for nothing, and a query does not depend on who looks at it.
            log.warning("progress of query %s: %s", progress.name or progress.id, error)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing has changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The last batch was told of."""

    def on_progress(self, progress: Mapping[str, Any]) -> None:
        raise NotImplementedError


class LagListener(_Listener):
    """Calls `tell` with the lags after each micro-batch."""

    def __init__(self, callback: Callable[[LagTree], None], query: str | None = None) -> None:
        super().__init__(query)
        self._callback = callback

    def on_progress(self, progress: Mapping[str, Any]) -> None:
        behind = lags(progress)
        if behind:
            self._callback(behind)


class OffsetCommitter(_Listener):
    """Commits the end of each finished micro-batch to a group, so that tools show how far the query is.

    `options` are those of the source that reach servers: namesrv, groupId, and accounts and TLS where they are needed (a source's
    own options will do). One listener for each query that has a group of its own: name the query.
    """

    def __init__(self, options: Mapping[str, str], query: str | None = None) -> None:
        super().__init__(query)
        names = {name.lower() for name in options}
        every_topic = {} if names & {"topic", "topics", "topicspattern"} else {"topicsPattern": ".*"}
        parsed = parse({**options, **every_topic})
        if parsed.group_id == DEFAULT_GROUP:
            raise ConfigError("groupId", parsed.group_id, "says which group, one of this query's own")
        self._cluster = pull_client.BlockingCluster(pull_access(parsed))
        self._group = GroupOffsets(parsed.group_id)

    def on_progress(self, progress: Mapping[str, Any]) -> None:
        failed = self._group.commit(self._cluster, processed_positions(progress))
        if failed:
            queue, error = next(iter(failed.items()))
            raise ArianeError(f"{_describe_queues(queue, len(failed))} not committed: {error}")


def _describe_queues(queue: MessageQueue, count: int) -> str:
    return offset_ranges.describe_queue(queue) + (f" and {count - 1} queues more" if count > 1 else "")
