"""The lag job on samples of the collector, for its tests."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from pyspark.sql import SparkSession

import collected_samples
from ariane.metrics_collector.sample import Sample
from ariane.pipeline.tables import consumption, samples
from ariane.tables import SAMPLES_BROKERS, SAMPLES_COUNTERS, SAMPLES_QUEUES
from table_contract_checks import check_rows

Row = dict[str, Any]


def folded(spark: SparkSession, cases: Mapping[str, Iterable[Sample]], seed: int | None = None) -> dict[str, list[Row]]:
    """Return the minutes computed from samples, by case, in order, with rounded values. Each case is a broker of its own, so
    that one Spark query computes all. A `seed` shuffles the samples and duplicates some of them."""
    reported = [msgspec.structs.replace(member, broker=case) for case, members in cases.items() for member in members]
    if seed is not None:
        chance = random.Random(seed)
        reported += chance.sample(reported, len(reported) // 3)
        chance.shuffle(reported)
    tables = samples.decode(collected_samples.messages_of(reported))
    inputs = (
        spark.createDataFrame(tables[table.name]) for table in (SAMPLES_BROKERS, SAMPLES_QUEUES, SAMPLES_COUNTERS)
    )
    frame = consumption.consumption(*inputs)
    result: dict[str, list[Row]] = {case: [] for case in cases}
    collected = frame.toArrow().to_pylist()
    check_rows(collected)
    for row in collected:
        result[row["broker"]].append(
            {name: round(member, 3) if isinstance(member, float) else member for name, member in row.items()}
        )
    return {
        case: sorted(rows, key=lambda row: (row["consumer_group"] or "", row["window_start"]))
        for case, rows in result.items()
    }
