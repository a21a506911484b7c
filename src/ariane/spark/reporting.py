"""How errors of the connector reach the user. Spark shows an exception of a Python process as a traceback.

    ConfigError in a planner or task ─→ traceback as text ─→ JVM ─→ AnalysisException of the driver

The message of an ArianeError states what is wrong and what to do, so its traceback is suppressed with Spark's own switch
(`spark.sql.execution.pyspark.udf.hideTraceback.enabled`), in this process only: Spark ends the process after an error.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ariane.errors import ArianeError
from ariane.spark import interpreter

HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"

T = TypeVar("T")
P = ParamSpec("P")


@contextmanager
def message_only() -> Iterator[None]:
    """Make Spark show an ArianeError raised in this context without a traceback."""
    try:
        yield
    except ArianeError:
        if interpreter.is_worker():
            os.environ[HIDE_TRACEBACK] = "1"
        raise


def hide_traceback(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method that Spark calls so that its ArianeErrors are shown without a traceback."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with message_only():
            return method(*args, **kwargs)

    return call


def reader_or_error(factory: Callable[[], DataSourceStreamReader]) -> DataSourceStreamReader:
    """Return the result of `factory`, or a reader whose first call raises the ArianeError of `factory`.

    Spark hides an exception of streamReader() behind its own UnboundLocalError, but shows those of the reader's methods.
    """
    try:
        return factory()
    except ArianeError as error:
        return ErrorReader(error)


class ErrorReader(DataSourceStreamReader):
    """Stream reader whose methods all raise the same error."""

    def __init__(self, error: ArianeError) -> None:
        self._error = error

    @hide_traceback
    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    @hide_traceback
    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        raise self._error

    @hide_traceback
    def getDefaultReadLimit(self) -> Any:
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        raise self._error
