"""Error texts for invalid options: the connector's message in the first line, and no Python traceback."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

WRONG = {"namesrv": "127.0.0.1:1", "topic": "T", "startingOffset": "latest"}
SAID = "ariane.errors.ConfigError: startingoffset = ...: is not an option of the rocketmq"


def check(error: pytest.ExceptionInfo[Exception]) -> None:
    first, *others = str(error.value).splitlines()
    assert SAID in first
    assert "Traceback" not in "".join(others)


@pytest.mark.long(
    "tests/unit/test_spark_availability.py::test_connector_errors_are_printed_without_a_traceback_by_spark_only",
    "tests/spark/test_source.py::test_an_unknown_topic_and_a_wrong_option_are_named",
)
def test_the_first_line_names_the_option(spark: SparkSession, tmp_path: Path) -> None:
    for reader in (spark.read, spark.readStream):
        with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as refused:
            reader.format("rocketmq").options(**WRONG).load()
        check(refused)
    frame = spark.readStream.format("rocketmq").schema("body BINARY").options(**WRONG).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "read")).start()
    with pytest.raises(Exception, match="STREAM_FAILED") as refused:
        query.awaitTermination(120)
    check(refused)
    rows = spark.range(1).selectExpr("CAST(id AS STRING) AS body")
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as refused:
        rows.write.format("rocketmq").options(**WRONG).mode("append").save()
    check(refused)
