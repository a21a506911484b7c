"""`ariane.tables.histogram` in DuckDB's SQL: builds and merges histograms and computes quantiles.

Decimal literals are cast to DOUBLE: DuckDB would treat them as DECIMAL, which overflows.
"""

from __future__ import annotations

from collections.abc import Sequence

from ariane.tables.histogram import GAMMA, LN_GAMMA, RANK_SLACK, ZERO_BUCKET


def bucket_expression(ms: str) -> str:
    """Return the expression for the bucket of a duration; NULL for NULL and for negative values."""
    # `ln` rejects zero and negative values: they are replaced before, although the CASE discards the result.
    number = f"greatest({ZERO_BUCKET}, ceil(ln(nullif(greatest({ms}, 0), 0)) / {LN_GAMMA!r}::DOUBLE))"
    return f"(CASE WHEN {ms} = 0 THEN {ZERO_BUCKET} WHEN {ms} > 0 THEN {number} END)::INTEGER"


def value_expression(bucket: str) -> str:
    """Return the expression for the representative value of a bucket, in ms."""
    middle = f"2 * exp({bucket} * {LN_GAMMA!r}::DOUBLE) / {GAMMA + 1!r}::DOUBLE"
    return f"(CASE WHEN {bucket} <= {ZERO_BUCKET} THEN 0.0 ELSE {middle} END)"


def histogram_aggregate(ms: str) -> str:
    """Return the aggregate for the histogram of durations, MAP(INTEGER, BIGINT)."""
    return f"histogram({bucket_expression(ms)})::MAP(INTEGER, BIGINT)"


def merged_histograms(relation: str, by: Sequence[str], column: str) -> str:
    """Return the query that merges the histograms `column` of `relation` by `by`, with their exact maximum `{column}_max`.

    Result columns: by, bucket, count, most (of the rows with values in the bucket).
    """
    keys = "".join(f"{key}, " for key in by)
    return f"""
        SELECT {keys}bucket, sum(count)::BIGINT AS count, max(most) AS most
        FROM (SELECT {keys}unnest(map_keys({column})) AS bucket, unnest(map_values({column})) AS count, {column}_max AS most
              FROM {relation})
        GROUP BY ALL"""


def quantiles(relation: str, by: Sequence[str], column: str, levels: Sequence[float]) -> str:
    """Return the query for quantiles of the histograms `column` of `relation`, merged by `by`.

    Result columns: by, count, q0, q1, … in the order of `levels`. A group without values has no row. The middle of a bucket may
    exceed the largest value in it: no quantile exceeds the exact maximum, `{column}_max` of the relation.
    """
    keys = "".join(f"{key}, " for key in by)
    parted = f"PARTITION BY {', '.join(by)}" if by else ""
    quantile_columns = ", ".join(
        "least(max(most), "
        + value_expression(
            f"min(bucket) FILTER (WHERE upto >= greatest(1, ceil({float(q)!r}::DOUBLE * total - {RANK_SLACK!r}::DOUBLE)))"
        )
        + f") AS q{number}"
        for number, q in enumerate(levels)
    )
    return f"""
        SELECT {keys}any_value(total) AS count, {quantile_columns}
        FROM (
            SELECT *, sum(count) OVER ({parted} ORDER BY bucket)::BIGINT AS upto, sum(count) OVER ({parted})::BIGINT AS total
            FROM ({merged_histograms(relation, by, column)})
        )
        GROUP BY ALL
        HAVING any_value(total) IS NOT NULL"""
