"""Lag and group offsets of a running query, computed from its progress reports.

    lags(query.lastProgress)                                     → {topic: {broker: {queue id: unread entries}}}
    spark.streams.addListener(LagListener(print))                the same after each micro-batch
    spark.streams.addListener(OffsetCommitter({"namesrv": …, "groupId": …}))

Spark's progress holds the offset at which a batch of this source ended, and the latest offsets (`reportLatestOffset`).
Unknown lags (the broker was unavailable) are None, never zero. The option commitOffsets needs no listener but commits at the
start of the next batch; the listener commits when a batch ends, from the driver.
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
    """Return the lag of each queue: how many of its entries a streaming query has not read yet.

    Args:
        progress: `query.lastProgress`, or its JSON text. None (no micro-batch has finished yet) gives an empty result.

    Returns:
        {topic: {broker: {queue id: unread entries}}}; None for a queue whose broker was unavailable. If several sources of
        the query read a queue, the largest lag counts.

    Raises:
        ConfigError: `progress` is not a progress report.

    Example:
        >>> lags(query.lastProgress)
        {'orders': {'broker-a': {'0': 17, '1': 0}}}
    """
    by_queue: dict[MessageQueue, int | None] = {}
    for reached, ends in _sources(progress):
        for queue in {*reached, *ends}:
            is_known = queue in reached and queue in ends
            lag = max(0, ends[queue] - reached[queue]) if is_known else None
            previous = by_queue.get(queue, 0)
            by_queue[queue] = None if lag is None or previous is None else max(lag, previous)
    tree: LagTree = {}
    for queue in sorted(by_queue):
        tree.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = by_queue[queue]
    return tree


def total_lag(lag_tree: LagTree) -> int | None:
    """Return the sum of all lags, or None if one of them is unknown."""
    all_lags = [lag for brokers in lag_tree.values() for queues in brokers.values() for lag in queues.values()]
    return None if None in all_lags else sum(lag for lag in all_lags if lag is not None)


def unavailable_servers(progress: Mapping[str, Any] | str | None) -> dict[str, str]:
    """Return the brokers and name servers that did not respond when the last batch was planned, with the reasons."""
    return {
        name: reason
        for source in _parse_progress(progress).get("sources", ())
        for name, reason in _parse_offset(source.get("latestOffset")).get("unavailable", {}).items()
    }


def processed_positions(progress: Mapping[str, Any] | str | None) -> Positions:
    """Return where the query's next batch starts in each queue; if several sources read a queue, the lowest position."""
    lowest: Positions = {}
    for positions, _ in _sources(progress):
        # The lowest, because a committed offset promises that everything before it was processed.
        lowest |= {queue: min(position, lowest.get(queue, position)) for queue, position in positions.items()}
    return lowest


def _sources(progress: Mapping[str, Any] | str | None) -> Iterator[tuple[Positions, Positions]]:
    """Yield the end positions and the latest offsets of each RocketMQ source; other sources are skipped."""
    for source in _parse_progress(progress).get("sources", ()):
        end, latest = _parse_offset(source.get("endOffset")), _parse_offset(source.get("latestOffset"))
        if isinstance(end.get("to", end.get("initial")), dict):  # numbers instead are offsets of store files
            yield offset_ranges.end_positions(end), offset_ranges.positions_from_json(latest.get("latest", {}))


def _parse_progress(progress: Mapping[str, Any] | str | None) -> Mapping[str, Any]:
    """Return the progress as a mapping, or raise ConfigError."""
    tree: Any = progress
    if isinstance(progress, str):
        try:
            tree = json.loads(progress)
        except ValueError:
            tree = progress
    if tree is None:
        return {}
    if not isinstance(tree, Mapping):
        raise ConfigError("progress", str(progress)[:80], "expected query.lastProgress or its JSON text")
    return tree


def _parse_offset(value: Any) -> dict[str, Any]:
    """Return an offset of a progress report as a dict. It may be JSON text, or anything if it is another source's."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


class _Listener(StreamingQueryListener):
    """Passes the progress of one query, selected by name, or of all queries to `on_progress`."""

    def __init__(self, query: str | None) -> None:
        self._query = query

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: the first progress report follows."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        if self._query is not None and progress.name != self._query:
            return
        try:
            self.on_progress(json.loads(progress.json))
        except (ArianeError, ValueError) as error:
            # Spark ignores exceptions of listeners, so a failure is logged; it must not affect the query.
            log.warning("Could not process the progress of query %s: %s", progress.name or progress.id, error)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: nothing has changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: the last batch was reported before."""

    def on_progress(self, progress: Mapping[str, Any]) -> None:
        raise NotImplementedError


class LagListener(_Listener):
    """Streaming query listener that calls a function with the lags after each micro-batch.

    Args:
        callback: Called with the result of `lags`.
        query: Name of the query to observe; None: all queries of the session.

    Example:
        >>> spark.streams.addListener(LagListener(print))
    """

    def __init__(self, callback: Callable[[LagTree], None], query: str | None = None) -> None:
        super().__init__(query)
        self._callback = callback

    def on_progress(self, progress: Mapping[str, Any]) -> None:
        lag_tree = lags(progress)
        if lag_tree:
            self._callback(lag_tree)


class OffsetCommitter(_Listener):
    """Streaming query listener that commits the end of each finished micro-batch to a consumer group, for tools that show lag.

    Args:
        options: The source's options that concern servers: namesrv, groupId, and credentials and TLS if needed. A source's
            complete options are accepted, too.
        query: Name of the query to observe; None: all queries. Use one listener and one group for each query.

    Raises:
        ConfigError: an option is invalid, or groupId is missing.

    Example:
        >>> spark.streams.addListener(OffsetCommitter({"namesrv": "127.0.0.1:9876", "groupId": "orders-report"}))
    """

    def __init__(self, options: Mapping[str, str], query: str | None = None) -> None:
        super().__init__(query)
        names = {name.lower() for name in options}
        # The parser requires a selection of topics, which commits do not need.
        every_topic = {} if names & {"topic", "topics", "topicspattern"} else {"topicsPattern": ".*"}
        parsed = parse({**options, **every_topic})
        if parsed.group_id == DEFAULT_GROUP:
            raise ConfigError("groupId", parsed.group_id, "expected a group that only this query uses: set groupId")
        self._cluster = pull_client.BlockingCluster(pull_access(parsed))
        self._group = GroupOffsets(parsed.group_id)

    def on_progress(self, progress: Mapping[str, Any]) -> None:
        failed = self._group.commit(self._cluster, processed_positions(progress))
        if failed:
            queue, error = next(iter(failed.items()))
            raise ArianeError(f"could not commit {_describe_queues(queue, len(failed))}: {error}")


def _describe_queues(queue: MessageQueue, count: int) -> str:
    return offset_ranges.describe_queue(queue) + (f" and {count - 1} more queues" if count > 1 else "")
