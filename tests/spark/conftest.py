"""One Spark session for the whole run, as starting it takes longer than the tests. Skipped without Java or pyspark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")
    from ariane.pipeline.spark_session import get_or_create_session, java_fault

    if fault := java_fault():
        pytest.skip(fault)
    started = get_or_create_session("ariane tests", "local[2]")
    yield started
    started.stop()
