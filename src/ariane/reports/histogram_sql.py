"""`ariane.tables.histogram` in DuckDB's SQL: histograms made, added up, and asked for quantiles.

Numbers with a point are cast: DuckDB takes them for decimals, which overflow.
"""

from __future__ import annotations

from collections.abc import Sequence

from ariane.tables.histogram import GAMMA, LN_GAMMA, RANK_SLACK, ZERO_BUCKET


def bucket_expression(ms: str) -> str:
    """Expression: the bucket of a duration; NULL for NULL, and for a negative one, which is no duration."""
    number = f"greatest({ZERO_BUCKET}, ceil(ln(nullif(greatest({ms}, 0), 0)) / {LN_GAMMA!r}::DOUBLE))"
    return f"(CASE WHEN {ms} = 0 THEN {ZERO_BUCKET} WHEN {ms} > 0 THEN {number} END)::INTEGER"


def value_expression(bucket: str) -> str:
    """Expression: the ms that stand for a bucket."""
    middle = f"2 * exp({bucket} * {LN_GAMMA!r}::DOUBLE) / {GAMMA + 1!r}::DOUBLE"
    return f"(CASE WHEN {bucket} <= {ZERO_BUCKET} THEN 0.0 ELSE {middle} END)"


def histogram_aggregate(ms: str) -> str:
    """Aggregate: the histogram of durations, MAP(INTEGER, BIGINT)."""
    return f"histogram({bucket_expression(ms)})::MAP(INTEGER, BIGINT)"


def merged_histograms(relation: str, by: Sequence[str], column: str) -> str:
    """Question: the rows of `relation` grouped by `by` with their histograms `column` added up: by, bucket, count."""
    keys = "".join(f"{key}, " for key in by)
    return f"""
        SELECT {keys}bucket, sum(count)::BIGINT AS count
        FROM (SELECT {keys}unnest(map_keys({column})) AS bucket, unnest(map_values({column})) AS count FROM {relation})
        GROUP BY ALL"""


def quantiles(relation: str, by: Sequence[str], column: str, levels: Sequence[float]) -> str:
    """Question: quantiles of the histograms `column` of `relation` added up by `by`: by, count, q0, q1, … in the order of
    `wanted`. A group without a value has no row."""
    keys = "".join(f"{key}, " for key in by)
    parted = f"PARTITION BY {', '.join(by)}" if by else ""
    found = ", ".join(
        value_expression(
            f"min(bucket) FILTER (WHERE upto >= greatest(1, ceil({float(q)!r}::DOUBLE * total - {RANK_SLACK!r}::DOUBLE)))"
        )
        + f" AS q{number}"
        for number, q in enumerate(levels)
    )
    return f"""
        SELECT {keys}any_value(total) AS count, {found}
        FROM (
            SELECT *, sum(count) OVER ({parted} ORDER BY bucket)::BIGINT AS upto, sum(count) OVER ({parted})::BIGINT AS total
            FROM ({merged_histograms(relation, by, column)})
        )
        GROUP BY ALL
        HAVING any_value(total) IS NOT NULL"""
