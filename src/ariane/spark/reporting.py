"""How an error of the connector reaches the user: Spark shows what a Python process raised as a traceback.

    ConfigError in a planner or task ─→ traceback as text ─→ JVM ─→ AnalysisException of the driver

An ArianeError says in its message what is wrong and what to do, so its traceback is left out by the switch that Spark has for it
(`spark.sql.execution.pyspark.udf.hideTraceback.enabled`), set in this process only: Spark ends it after an error.
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
    """Let Spark show an ArianeError that is raised within by its message alone."""
    try:
        yield
    except ArianeError:
        if interpreter.is_worker():
            os.environ[HIDE_TRACEBACK] = "1"
        raise


def hide_traceback(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method that Spark calls: Spark shows its ArianeErrors by their message alone."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with message_only():
            return method(*args, **kwargs)

    return call


def reader_or_error(factory: Callable[[], DataSourceStreamReader]) -> DataSourceStreamReader:
    """Return what `make` returns, or a reader whose first call raises the ArianeError of `make`.

    Spark hides an error of streamReader() behind an UnboundLocalError of its own; those of the reader's methods it shows.
    """
    try:
        return factory()
    except ArianeError as error:
        return ErrorReader(error)


class ErrorReader(DataSourceStreamReader):
    """Raises an error as soon as Spark wants to know anything."""

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
