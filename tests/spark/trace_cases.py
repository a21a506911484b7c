"""Many inputs in one query. A test declares its input with `given`, and gets the rows of its input alone:

    given = trace_cases.Cases()

    @pytest.fixture(scope="module")
    def results(spark): return given.split(frames.rows(job(*given.frames(spark))))

    @given([pub("M")], [before("M", "R", 10)])
    def test_a_running_listener(rows): ...

A query is planned for seconds, and its rows for a case take milliseconds: the tests of a module share one. Each case is in a bucket
of its own, as if its messages had been sent at a time of their own; no job joins or sums rows of different buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import trace_frames as frames
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ariane.model.trace_event import TraceEvent
from ariane.tables import MESSAGES

Test = TypeVar("Test", bound=Callable[..., None])
Results = dict[str, list[list[dict[str, Any]]]]  # rows by test, for each of its inputs


class Traces(NamedTuple):
    """A trace message of another host, stored at another time, or with measured clock offsets."""

    events: Sequence[TraceEvent]
    born_host: str = "10.0.0.9:5000"
    stored_at: datetime = frames.STORED
    clock_offsets: str = ""


Body = Sequence[TraceEvent] | Traces


class Case(NamedTuple):
    """The input of a test: trace messages, each with its events, and stored records."""

    test: str
    bodies: Sequence[Traces]
    stored: Sequence[dict[str, Any]]


class Cases:
    """The inputs of a module."""

    def __init__(self) -> None:
        self._cases: list[Case] = []

    def __call__(self, *bodies: Body, stored: Sequence[dict[str, Any]] = ()) -> Callable[[Test], Test]:
        """Add an input of the decorated test. A test with several gets their rows as `inputs`, in the order of the text."""

        def add(test: Test) -> Test:
            traces = [body if isinstance(body, Traces) else Traces(body) for body in bodies]
            self._cases.append(Case(test.__name__, traces, stored))
            return test

        return add

    def of(self, case: tuple[Sequence[Traces], Sequence[dict[str, Any]]]) -> Callable[[Test], Test]:
        """Add an input that a function has made."""
        return self(*case[0], stored=case[1])

    def frames(self, spark: SparkSession) -> tuple[DataFrame, DataFrame]:
        """Return trace_events and messages of all inputs."""
        traces = [
            frames.message(frames.body(events), offset, *place) | {"queue_id": number}
            for number, case in enumerate(self._cases)
            for offset, (events, *place) in enumerate(case.bodies)
        ]
        events = frames.events_of_messages(spark, traces)
        events = events.withColumn("bucket", F.format_string("case %03d", "trace_queue_id"))
        records = [
            {**{name: row[name] for name in MESSAGES.column_names}, "bucket": f"case {number:03}"}
            for number, case in enumerate(self._cases)
            for row in case.stored
        ]
        messages = spark.createDataFrame(records, f"{MESSAGES.ddl}, bucket STRING")
        return frames.solid(spark, events), messages

    def split(self, rows: Iterable[dict[str, Any]]) -> Results:
        """Return the rows by test and input, in the order of their ids, without their bucket."""
        by_bucket: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            by_bucket.setdefault(row.pop("bucket"), []).append(row)
        results: Results = {}
        for number, case in enumerate(self._cases):
            results.setdefault(case.test, []).insert(
                0, by_bucket.get(f"case {number:03}", [])
            )  # the last decorator is first
        return results
