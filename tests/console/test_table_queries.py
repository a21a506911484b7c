"""Queries of the pipeline's tables by several readers at a time, and queries that take too long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("duckdb", reason="needs duckdb: pip install 'ariane[spark]'")

import duckdb

from ariane.console.areas.reports import table_queries
from ariane.console.areas.reports.table_queries import QUERIES_AT_ONCE, run_query
from ariane.errors import ServerUnavailable
from ariane.reports.tables import table_views
from ariane.tables import JOURNEYS

SOME_SECONDS = "SELECT count(*) FROM range(30000) AS a, range(300000) AS b WHERE a.range % 7 = b.range % 3"
ENDLESS = "SELECT count(*) FROM range(1000000000000) AS a, range(1000000) AS b WHERE a.range % 7 = b.range % 3"


@pytest.fixture
def short_times() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_queries, "QUEUE_S", 0.05)
        patch.setattr(table_queries, "QUERY_S", 0.05)
        yield


def test_a_query_beyond_the_limit_is_refused_instead_of_failing_later(short_times: None) -> None:
    released, begun = threading.Event(), threading.Semaphore(0)

    def hold() -> str:
        begun.release()
        assert released.wait(60)
        return "done"

    async def run() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(table_queries, "QUERY_S", 60.0)
            holding = [asyncio.create_task(run_query(hold, "a report")) for _ in range(QUERIES_AT_ONCE)]
            for _ in holding:
                assert await asyncio.to_thread(begun.acquire, timeout=60)
            with pytest.raises(ServerUnavailable, match="cannot read report lag: other queries"):
                await run_query(lambda: pytest.fail("it ran"), "report lag")
            released.set()
            assert await asyncio.gather(*holding) == ["done"] * QUERIES_AT_ONCE
            assert await run_query(lambda: 5, "report lag") == 5

    asyncio.run(run())


def test_a_query_that_takes_too_long_is_interrupted(short_times: None, tmp_path: Path) -> None:
    errors: list[Exception] = []
    ended = threading.Event()

    def query() -> None:
        try:
            # Each report opens its views; after the interruption no further ones are opened.
            for _ in range(2):
                try:
                    with table_views.open_views(tmp_path, table_views.whole_table(JOURNEYS)) as sql:
                        table_views.query(sql, ENDLESS)
                except duckdb.Error as error:
                    errors.append(error)
        finally:
            ended.set()

    with pytest.raises(ServerUnavailable, match="report lag took longer"):
        asyncio.run(run_query(query, "report lag"))
    assert ended.wait(60)
    assert [type(error) for error in errors] == [duckdb.InterruptException] * 2


def test_an_interruption_between_two_queries_ends_the_next_one(tmp_path: Path) -> None:
    interruption = table_views.QueryInterruption()

    def query() -> None:
        with table_views.open_views(tmp_path, table_views.whole_table(JOURNEYS)) as sql:
            interruption.interrupt()
            table_views.query(sql, SOME_SECONDS)

    with pytest.raises(duckdb.InterruptException):
        interruption.run(query)


def test_errors_of_a_query_are_those_of_its_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(run_query(lambda: 1 // 0, "report lag"))
