"""How fast a consumer pulls and consumes, by topic: what running info tells of the last minute and hour. [ConsumerStatsManager]

Counters of ten seconds each; the newest ones make the minute, all of them the hour. Time is the caller's monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ariane.protocol.requests.callbacks import ConsumeStatus

BUCKET_S = 10.0
MINUTE_S = 60.0
BUCKETS_MAX = 360  # an hour


class _RateBucket:
    """Ten seconds of one topic."""

    __slots__ = ("call_ms", "calls", "consumed", "failed", "pull_ms", "pulled", "pulls", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.pulls = self.pulled = self.calls = self.consumed = self.failed = 0
        self.pull_ms = self.call_ms = 0.0


class ConsumeRates:
    """Counts of one consumer. Its topics are those it subscribes to, so there are few."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._started_at = monotonic()
        self._buckets: dict[str, deque[_RateBucket]] = {}

    def record_pull(self, topic: str, messages: int, took_s: float) -> None:
        """A pull brought messages."""
        span = self._current_bucket(topic)
        span.pulls += 1
        span.pulled += messages
        span.pull_ms += took_s * 1000

    def record_consume(self, topic: str, messages: int, took_s: float, *, ok: bool) -> None:
        """A call of the listener ended."""
        span = self._current_bucket(topic)
        span.calls += 1
        span.call_ms += took_s * 1000
        if ok:
            span.consumed += messages
        else:
            span.failed += messages

    def status(self, topic: str) -> ConsumeStatus:
        """The last minute (what there is of it), and the failures of the last hour."""
        now = self._monotonic()
        spans = self._buckets.get(topic, ())
        minute = [span for span in spans if now - span.since <= MINUTE_S]
        seconds = max(1.0, min(MINUTE_S, now - self._started_at))
        pulls, calls = sum(span.pulls for span in minute), sum(span.calls for span in minute)
        return ConsumeStatus(
            consume_failed_msgs=sum(span.failed for span in spans if now - span.since <= BUCKET_S * BUCKETS_MAX),
            consume_failed_tps=sum(span.failed for span in minute) / seconds,
            consume_ok_tps=sum(span.consumed for span in minute) / seconds,
            consume_rt=sum(span.call_ms for span in minute) / calls if calls else 0.0,
            pull_rt=sum(span.pull_ms for span in minute) / pulls if pulls else 0.0,
            pull_tps=sum(span.pulled for span in minute) / seconds,
        )

    def _current_bucket(self, topic: str) -> _RateBucket:
        spans = self._buckets.get(topic)
        if spans is None:
            spans = self._buckets[topic] = deque(maxlen=BUCKETS_MAX)
        now = self._monotonic()
        if not spans or now - spans[-1].since >= BUCKET_S:
            spans.append(_RateBucket(now))
        return spans[-1]
