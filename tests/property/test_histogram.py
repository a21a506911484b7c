"""Histograms: the error of a quantile is bounded, merging is associative, and DuckDB computes the same as Python."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

duckdb = pytest.importorskip("duckdb")

from ariane.reports.tables import histogram_sql as in_sql  # noqa: E402
from ariane.tables.histogram import (  # noqa: E402
    GAMMA,
    ZERO_BUCKET,
    bucket_index,
    bucket_value,
    histogram_of,
    merge_histograms,
    quantile,
)

DURATIONS = st.one_of(
    st.integers(0, 10**15), st.integers(0, 5000), st.floats(1e-6, 1e12, allow_nan=False, allow_infinity=False)
)
QS = (0.0, 0.07, 0.5, 0.9, 0.99, 0.999, 1.0)


def exact(values: list[float], q: float) -> float:
    return sorted(values)[max(1, math.ceil(q * len(values) - 1e-9)) - 1]


@given(st.lists(DURATIONS, min_size=1, max_size=200), st.sampled_from(QS))
def test_a_quantile_is_within_one_per_cent(values: list[float], q: float) -> None:
    result = quantile(histogram_of(values), q)
    assert result is not None
    assert abs(result - exact(values, q)) <= 0.01 * exact(values, q)


@given(st.lists(st.lists(DURATIONS, max_size=30), min_size=3, max_size=3))
def test_merging_is_associative_and_commutative(parts: list[list[float]]) -> None:
    item, two, three = map(histogram_of, parts)
    complete = histogram_of([ms for part in parts for ms in part])
    assert (
        merge_histograms([merge_histograms([item, two]), three])
        == merge_histograms([item, merge_histograms([two, three])])
        == merge_histograms([three, item, two])
        == complete
    )


@given(DURATIONS)
def test_a_bucket_covers_its_durations(ms: float) -> None:
    number = bucket_index(ms)
    if ms == 0:
        assert (number, bucket_value(number)) == (ZERO_BUCKET, 0.0)
    else:
        assert GAMMA ** (number - 1) * (1 - 1e-9) < ms <= GAMMA**number * (1 + 1e-9)


def test_an_empty_histogram_has_no_quantiles() -> None:
    assert quantile({}, 0.5) is None


@pytest.mark.parametrize("ms", [-1, -0.001, math.nan, math.inf])
def test_an_invalid_duration_is_rejected(ms: float) -> None:
    with pytest.raises(ValueError, match="Invalid duration"):
        bucket_index(ms)


def asked(question: str, *values: object) -> list[tuple[Any, ...]]:
    with duckdb.connect() as sql:
        return sql.execute(question, values).fetchall()  # type: ignore[no-any-return]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), DURATIONS), min_size=1, max_size=100))
def test_duckdb_computes_the_same_buckets_and_quantiles(rows: list[tuple[str, float]]) -> None:
    names, durations = [name for name, _ in rows], [float(ms) for _, ms in rows]
    # Three partial rows of each name, as they come from several buckets.
    question = f"""
        SELECT * FROM ({in_sql.quantiles("partial", ["name"], "h", QS)}) ORDER BY name"""
    statement = f"""
        WITH partial AS (
            SELECT name, place % 3 AS part, {in_sql.histogram_aggregate("ms")} AS h, max(ms) AS h_max
            FROM (SELECT unnest($1) AS name, unnest($2::DOUBLE[]) AS ms, generate_subscripts($1, 1) AS place) GROUP BY ALL
        ) {question}"""
    expected = []
    for name in sorted(set(names)):
        of_name = [ms for key, ms in zip(names, durations, strict=True) if key == name]
        own, most = histogram_of(of_name), max(of_name)
        expected.append((name, sum(own.values()), *(min(quantile(own, q) or 0.0, most) for q in QS)))
    result = asked(statement, names, durations)
    assert [row[:2] for row in result] == [row[:2] for row in expected]
    for row, expected_row in zip(result, expected, strict=True):
        assert row[2:] == pytest.approx(expected_row[2:], rel=1e-9)


def test_duckdb_ignores_missing_and_negative_durations() -> None:
    question = f"SELECT {in_sql.bucket_expression('ms')} FROM (SELECT unnest([NULL, -3, 0, 1, 250]::BIGINT[]) AS ms)"
    assert asked(question) == [(None,), (None,), (ZERO_BUCKET,), (0,), (bucket_index(250),)]


def test_duckdb_quantiles_without_keys_and_without_rows() -> None:
    rows = "(SELECT MAP {0: 3, 35: 1}::MAP(INTEGER, BIGINT) AS h, 2 AS h_max)"
    ((count, half, most),) = asked(in_sql.quantiles(rows, [], "h", (0.5, 1.0)))
    assert (count, half, most) == (4, pytest.approx(bucket_value(0)), pytest.approx(bucket_value(35)))
    assert asked(in_sql.quantiles(f"(SELECT * FROM {rows} WHERE false)", [], "h", (0.5,))) == []
