"""One Spark session per test process, as starting it takes longer than the tests. Skipped without Java or pyspark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import spark_classes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REMOTE = "ARIANE_SPARK_REMOTE"  # sc://host:port of a Spark Connect server, or local[2] for one of its own
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")
    if remote := os.environ.get(REMOTE):
        yield from connect_session(remote)
        return
    from ariane.pipeline.spark_session import get_or_create_session, java_fault

    if fault := java_fault():
        pytest.skip(fault)
    started = get_or_create_session("ariane tests", "local[2]", conf=spark_classes.SESSION_SETTINGS)
    yield started
    started.stop()


def connect_session(remote: str) -> Iterator[SparkSession]:
    """Yield a session of Spark Connect. (Ariane's sessions are classic ones: its jobs need a JVM.)"""
    from pyspark.sql import SparkSession

    import ariane.spark  # noqa: F401 - a server that this session starts runs this Python, not python3 of the PATH

    started = SparkSession.builder.remote(remote).getOrCreate()
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def _two_shuffle_partitions(request: pytest.FixtureRequest) -> None:
    """Shuffle to two partitions: enough to detect a dependence on the partition, at half the cost of the default.

    A job that runs within the test sets the default of the pipeline again.
    """
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark").conf.set(SHUFFLE_PARTITIONS, "2")


@pytest.fixture
def inputs(request: pytest.FixtureRequest) -> list[list[dict[str, Any]]]:
    """Return the rows of each input of the test (trace_cases.py)."""
    found: list[list[dict[str, Any]]] = request.getfixturevalue("results")[request.function.__name__]
    return found


@pytest.fixture
def rows(inputs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the rows of the test's only input."""
    (found,) = inputs
    return found
