"""`ariane.tables.histogram` as Spark expressions: the same buckets, computed in the JVM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ariane.tables.histogram import LN_GAMMA, TYPE, ZERO_BUCKET

MEASURE, BUCKET, COUNT, GREATEST = "_measure", "_bucket", "_count", "_greatest"
_PLACE = "_place"


def bucket_of(ms: Column) -> Column:
    """Return the bucket of a duration (INT); null for null and for negative values."""
    number = F.ceil(F.log(ms.cast("double")) / F.lit(LN_GAMMA)).cast("int")
    return F.when(ms == 0, F.lit(ZERO_BUCKET)).when(ms > 0, F.greatest(F.lit(ZERO_BUCKET), number))


def histogram(ms: Column) -> Column:
    """Return an aggregate: the histogram of a group's durations, empty if all are null.

    It collects the buckets of all rows of a group in memory, at least four bytes per row. Use `aggregated` for groups of many rows
    and for several measures.
    """
    # The sorted array has runs of equal buckets: the count of a bucket is the distance to the start of the next run.
    all_of_them = F.sort_array(F.collect_list(bucket_of(ms)))

    def counts(ordered: Column) -> Column:
        numbers = F.array_distinct(ordered)
        begins = F.transform(numbers, lambda number: F.array_position(ordered, number))
        ends = F.concat(F.slice(begins, 2, F.greatest(F.lit(0), F.size(begins) - 1)), F.array(F.size(ordered) + 1))
        lengths = F.zip_with(ends, begins, lambda end, begin: end.cast("bigint") - begin)
        return F.when(F.size(ordered) > 0, F.map_from_arrays(numbers, lengths)).otherwise(F.lit(None).cast(TYPE))

    # `transform` over an array of one element is Spark's way to name an expression that is used several times.
    named = F.get(F.transform(F.array(all_of_them), counts), F.lit(0))
    return F.coalesce(named, F.create_map().cast(TYPE))


def aggregated(
    rows: DataFrame, by: Sequence[str], measures: Mapping[str, str], other_columns: Mapping[str, Column]
) -> DataFrame:
    """Return `rows` grouped by `by`, with the histogram and the maximum of each measure.

    Rows are counted per bucket first, so that no group is collected as a list of its rows.

    Args:
        rows: durations in ms.
        by: grouping columns.
        measures: result column → column of `rows`. `<result>_max` is the maximum; both are null if all values are.
        other_columns: result column → expression that is summed.
    """
    entries = F.array(
        *(
            F.struct(
                F.lit(name).alias("measure"),
                bucket_of(F.col(column)).alias("bucket"),
                F.when(F.col(column) >= 0, F.col(column)).alias("ms"),
            )
            for name, column in measures.items()
        )
    )
    one_each = rows.withColumn("_entry", F.explode(entries))
    buckets = one_each.groupBy(*by, F.col("_entry.measure").alias(MEASURE), F.col("_entry.bucket").alias(BUCKET)).agg(
        F.count("*").alias(COUNT),
        F.max("_entry.ms").alias(GREATEST),
        *(column.alias(name) for name, column in other_columns.items()),
    )
    first, *_ = measures
    # Each row occurs once per measure, also with a null value: summing over one measure covers all rows.
    return _collected(buckets, by, measures, [F.sum(_if(first, name)).alias(name) for name in other_columns])


def added(rows: DataFrame, by: Sequence[str], measures: Sequence[str], sums: Sequence[str] = ()) -> DataFrame:
    """Return `rows` grouped by `by`, with merged histograms, the maximum of `<measure>_max`, and the sums of `sums`."""
    entries = F.array(
        *(
            F.struct(F.lit(name).alias("measure"), F.col(name).alias("counts"), F.col(f"{name}_max").alias("ms"))
            for name in measures
        )
    )
    one_each = rows.withColumn("_entry", F.explode(entries))
    counts = one_each.select(
        *by,
        F.col("_entry.measure").alias(MEASURE),
        F.col("_entry.ms"),
        F.posexplode_outer("_entry.counts").alias(_PLACE, BUCKET, COUNT),
        *sums,
    )
    # Each row occurs once per bucket: other sums are taken from its first occurrence.
    of_first = (F.sum(F.when(F.coalesce(_PLACE, F.lit(0)) == 0, F.col(name))).alias(name) for name in sums)
    buckets = counts.groupBy(*by, MEASURE, BUCKET).agg(
        F.sum(COUNT).alias(COUNT), F.max("ms").alias(GREATEST), *of_first
    )
    first, *_ = measures
    return _collected(buckets, by, measures, [F.sum(_if(first, name)).alias(name) for name in sums])


def _collected(
    buckets: DataFrame, by: Sequence[str], measures: Iterable[str], other_columns: Sequence[Column]
) -> DataFrame:
    """Merge rows of one measure and bucket (null: no value) each into one row with all of them."""
    names = tuple(measures)

    def of(name: str) -> Column:
        entry = _if(name, F.when(F.col(BUCKET).isNotNull(), F.struct(BUCKET, COUNT)))
        collected = F.sort_array(F.collect_list(entry))
        return F.when(F.size(collected) > 0, F.map_from_entries(collected)).cast(TYPE)

    return buckets.groupBy(*by).agg(
        *(of(name).alias(name) for name in names),
        *(F.max(_if(name, GREATEST)).alias(f"{name}_max") for name in names),
        *other_columns,
    )


def _if(measure: str, value: Column | str) -> Column:
    """Return the value in rows of a measure, otherwise null."""
    return F.when(F.col(MEASURE) == measure, F.col(value) if isinstance(value, str) else value)
