"""Many logs in one query: as trace_cases.py, for stored records. Each case has brokers of its own; no job joins those of two."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from pyspark.sql import SparkSession
from record_frames import Row, Tables
from trace_cases import Results

Test = TypeVar("Test", bound=Callable[..., None])


class Case(NamedTuple):
    """The input of a test: records in batches."""

    test: str
    batches: Sequence[Sequence[Row]]


class Cases:
    """The inputs of a module."""

    def __init__(self) -> None:
        self._cases: list[Case] = []

    def __call__(self, *batches: Sequence[Row]) -> Callable[[Test], Test]:
        """Add an input of the decorated test. A test with several gets their rows as `inputs`, in the order of the text."""

        def add(test: Test) -> Test:
            self._cases.append(Case(test.__name__, batches))
            return test

        return add

    def tables(self, spark: SparkSession) -> Tables:
        """Return the base tables of all inputs, batch by batch."""
        of_cases = (
            [[row | {"broker": f"{row['broker']}#{number}"} for row in batch] for batch in case.batches]
            for number, case in enumerate(self._cases)
        )
        batches = itertools.zip_longest(*of_cases, fillvalue=[])
        return Tables(spark, [list(itertools.chain.from_iterable(batch)) for batch in batches])

    def split(self, rows: Iterable[dict[str, Any]]) -> Results:
        """Return the rows by test and input, in their order."""
        by_case: dict[int, list[dict[str, Any]]] = {}
        for row in rows:
            broker, _, number = row["broker"].partition("#")
            by_case.setdefault(int(number), []).append(row | {"broker": broker})
        results: Results = {}
        for number, case in enumerate(self._cases):
            results.setdefault(case.test, []).insert(0, by_case.get(number, []))  # the last decorator is first
        return results
