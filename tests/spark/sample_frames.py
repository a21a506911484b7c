"""Samples of the collector as small data frames, for the tests of the lag job."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from ariane.metrics_collector.sample import (
    BrokerRuntime,
    GroupProgress,
    Sample,
    StatsCounter,
    TopicQueueRanges,
    encode_messages,
)
from ariane.pipeline.tables import consumption, samples
from table_contract_checks import check_rows

Row = dict[str, Any]

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


def messages(spark: SparkSession, contents: Iterable[bytes], stored: datetime | None = None) -> DataFrame:
    rows = [(body, "keeper", 0, number, stored or at(30)) for number, body in enumerate(contents)]
    return spark.createDataFrame(rows, samples.MESSAGE)


def records(spark: SparkSession, told: Iterable[Sample]) -> DataFrame:
    return samples.records(messages(spark, [body for item in told for body in encode_messages(item)]))


def folded(spark: SparkSession, cases: Mapping[str, Iterable[Sample]], seed: int | None = None) -> dict[str, list[Row]]:
    """Return the minutes computed from samples, by case, in order, with rounded values. Each case is a broker of its own, so
    that one Spark query computes all. A `seed` shuffles the samples and duplicates some of them."""
    reported = [msgspec.structs.replace(member, broker=case) for case, members in cases.items() for member in members]
    if seed is not None:
        chance = random.Random(seed)
        reported += chance.sample(reported, len(reported) // 3)
        chance.shuffle(reported)
    read = records(spark, reported).persist()
    frame = consumption.consumption(samples.brokers(read), samples.queues(read), samples.counters(read))
    result: dict[str, list[Row]] = {case: [] for case in cases}
    collected = frame.toArrow().to_pylist()
    check_rows(collected)
    for row in collected:
        result[row["broker"]].append(
            {name: round(member, 3) if isinstance(member, float) else member for name, member in row.items()}
        )
    read.unpersist()
    return {
        case: sorted(rows, key=lambda row: (row["consumer_group"] or "", row["window_start"]))
        for case, rows in result.items()
    }
