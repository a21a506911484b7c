"""Samples of the metrics collector, and messages that contain them as the pipeline reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from ariane.metrics_collector.sample import (
    BrokerRuntime,
    GroupProgress,
    Sample,
    StatsCounter,
    TopicQueueRanges,
    encode_messages,
)

T0_MS = 1_700_000_400_000  # the begin of a bucket
assert T0_MS % 600_000 == 0


def sample(second: float, broker_id: int = 0, **other: Any) -> Sample:
    """Return a round of the collector `second` s after the tests' epoch."""
    values: dict[str, Any] = {
        "collector": "host", "round": round(second), "at_ms": ms(second), "interval_ms": 10_000, "duration_ms": 5, "requests": 9,
        "cluster": "c", "broker": "b", "broker_id": broker_id, "addr": "10.0.0.1:10911",
        "runtime": BrokerRuntime(ms(second), T0_MS - 5000, 10, 20, 0, 900, 0),
    }  # fmt: skip
    return Sample(**(values | other))


def away(second: float, broker_id: int = 0) -> Sample:
    return sample(second, broker_id, error="connection refused", runtime=None)


def ms(second: float) -> int:
    return T0_MS + round(second * 1000)


def at(second: float) -> datetime:
    return datetime.fromtimestamp(T0_MS / 1000, UTC) + timedelta(seconds=second)


def group(
    second: float, *queues: tuple[int, int | None, int | None, int | None, int | None], name: str = "G"
) -> GroupProgress:
    return GroupProgress(name, "T", ms(second), ms(second), queues)


def ends(second: float, *queues: tuple[int, int, int]) -> TopicQueueRanges:
    return TopicQueueRanges("T", ms(second), queues)


def got(second: float, tps: float, name: str = "G") -> StatsCounter:
    return StatsCounter("GROUP_GET_NUMS", "T", name, ms(second), round(tps * 60), tps)


def state(
    second: float,
    committed: int | None,
    end: int,
    *,
    age: int | None = None,
    master: float = 0.0,
    slave: float | None = None,
) -> list[Sample]:
    """Return a round of a master with one queue and one group, and of a slave if it has delivered messages."""
    queue = (0, committed, 0, end, age)
    sampled = sample(
        second, topics=(ends(second, (0, 0, end)),), groups=(group(second, queue),), counters=(got(second, master),)
    )
    return [sampled] if slave is None else [sampled, sample(second, 1, counters=(got(second, slave),))]


def messages_of(samples: Iterable[Sample]) -> pa.Table:
    return messages([body for sampled in samples for body in encode_messages(sampled)])


def messages(bodies: Sequence[bytes | None], stored: datetime | None = None) -> pa.Table:
    """Return messages as the source of samples does, with ascending offsets, stored at the same time."""
    return pa.table(
        {
            "body": pa.array(bodies, pa.binary()),
            "broker": pa.array(["keeper"] * len(bodies), pa.string()),
            "queue_id": pa.array([0] * len(bodies), pa.int32()),
            "queue_offset": pa.array(range(len(bodies)), pa.int64()),
            "store_timestamp": pa.array([stored or at(30)] * len(bodies), pa.timestamp("us", "UTC")),
        }
    )
