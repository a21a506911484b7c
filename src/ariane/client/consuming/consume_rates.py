"""Consume rates of the last minute and hour, by topic, for the running info of a consumer. [ConsumerStatsManager]

Counters cover ten seconds each. Those of the last minute are stored, and of the hour before those with failures, because only
failures are reported for an hour. Time is the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable

from ariane.protocol.requests.callbacks import ConsumeStatus

BUCKET_S = 10.0
MINUTE_S = 60.0
HOUR_S = 3_600.0


class _RateBucket:
    """Counters of ten seconds of one topic."""

    __slots__ = ("call_ms", "calls", "consumed", "failed", "pull_ms", "pulled", "pulls", "since")

    def __init__(self, since: float) -> None:
        self.since = since  # monotonic time of the first event
        self.pulls = self.calls = 0  # pulls with messages; calls of the listener
        self.pulled = self.consumed = self.failed = 0  # messages
        self.pull_ms = self.call_ms = 0.0  # total durations


class ConsumeRates:
    """Counters of one consumer. Only subscribed topics are counted, so they are few."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._started_at = monotonic()
        # Buckets of each topic, oldest first.
        self._buckets: dict[str, list[_RateBucket]] = {}

    def record_pull(self, topic: str, messages: int, took_s: float) -> None:
        """Count a pull that returned messages and took `took_s` seconds."""
        bucket = self._current_bucket(topic)
        bucket.pulls += 1
        bucket.pulled += messages
        bucket.pull_ms += took_s * 1000

    def record_consume(self, topic: str, messages: int, took_s: float, *, ok: bool) -> None:
        """Count a call of the listener that took `took_s` seconds."""
        bucket = self._current_bucket(topic)
        bucket.calls += 1
        bucket.call_ms += took_s * 1000
        if ok:
            bucket.consumed += messages
        else:
            bucket.failed += messages

    def status(self, topic: str) -> ConsumeStatus:
        """Return the rates of the last minute (or since the start, if that is later), and the failures of the last hour."""
        now = self._monotonic()
        buckets = self._buckets.get(topic, ())
        minute = [bucket for bucket in buckets if now - bucket.since <= MINUTE_S]
        seconds = max(1.0, min(MINUTE_S, now - self._started_at))
        pulls, calls = sum(bucket.pulls for bucket in minute), sum(bucket.calls for bucket in minute)
        return ConsumeStatus(
            consume_failed_msgs=sum(bucket.failed for bucket in buckets if now - bucket.since < HOUR_S),
            consume_failed_tps=sum(bucket.failed for bucket in minute) / seconds,
            consume_ok_tps=sum(bucket.consumed for bucket in minute) / seconds,
            consume_rt=sum(bucket.call_ms for bucket in minute) / calls if calls else 0.0,
            pull_rt=sum(bucket.pull_ms for bucket in minute) / pulls if pulls else 0.0,
            pull_tps=sum(bucket.pulled for bucket in minute) / seconds,
        )

    def _current_bucket(self, topic: str) -> _RateBucket:
        buckets, now = self._buckets.get(topic, []), self._monotonic()
        if not buckets or now - buckets[-1].since >= BUCKET_S:
            recent = [
                bucket for bucket in buckets if now - bucket.since < (HOUR_S if bucket.failed else MINUTE_S + BUCKET_S)
            ]
            buckets = self._buckets[topic] = [*recent, _RateBucket(now)]
        return buckets[-1]
