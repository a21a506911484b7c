"""Runs queries of the pipeline's tables: few at a time, because DuckDB uses several cores and much memory for one.

run_query(function) ─→ a free thread within QUEUE_S ─→ result within QUERY_S; then its DuckDB query is interrupted
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ariane.errors import ServerUnavailable
from ariane.reports.tables.table_views import QueryInterruption

QUERIES_AT_ONCE = 2
QUEUE_S = 3.0
QUERY_S = 30.0

Result = TypeVar("Result")

_threads = ThreadPoolExecutor(QUERIES_AT_ONCE, thread_name_prefix="console-tables")


async def run_query(function: Callable[[], Result], title: str) -> Result:
    """Return the result of a function that reads the pipeline's tables. It runs in a thread.

    Args:
        function: Opens views of the tables and queries them.
        title: What is read, for errors.

    Raises:
        ServerUnavailable: other queries are running, or it took too long.
    """
    interruption = QueryInterruption()
    running = _threads.submit(interruption.run, function)
    result = asyncio.wrap_future(running)
    try:
        await asyncio.wait([result], timeout=QUEUE_S)
        if running.cancel():  # it has not begun
            raise ServerUnavailable(f"cannot read {title}: other queries of the tables are running; try it again later")
        return await asyncio.wait_for(result, QUERY_S)
    except TimeoutError:
        raise ServerUnavailable(f"{title} took longer than {QUERY_S:.0f} s; choose a shorter time range") from None
    finally:
        # Also if the request was cancelled: the thread would delay later queries without a need.
        result.cancel()
        interruption.interrupt()
