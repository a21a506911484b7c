"""Checks of the environment: the version of Spark, and the packages installed for the Python that Spark starts.

                    batches     pushed filters, writing streams     reading streams
    Spark 4.2, 4.3  yes         yes                                 yes
    Spark 4.1       yes         yes                                 no: Python sources get no start offset and no limit
    Spark 4.0       yes         no: no filters, no Arrow writer for streams

Spark imports all sources in one step, and one that fails to import hides the others. A source that cannot be imported is therefore
replaced by one that raises the reason when it is used.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module

from pyspark import __version__ as spark_version
from pyspark.sql.datasource import DataSource

from ariane.errors import ConfigError

MIN_SPARK = (4, 0)
MIN_SPARK_FOR_FILTERS = MIN_SPARK_FOR_STREAM_WRITES = (4, 1)
MIN_SPARK_FOR_STREAM_READS = (4, 2)


def require_spark(minimum: tuple[int, int], feature: str, version: str = spark_version, instead: str = "") -> None:
    """Raise ConfigError if Spark is older than `minimum`, which `feature` needs; `instead` is what older versions can do."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) < minimum:
        needed = ".".join(map(str, minimum))
        fix = f"{feature} needs Spark {needed} or newer: pip install 'pyspark>=4.2'"
        raise ConfigError("Spark", version, f"{fix}, or {instead}" if instead else fix)


def require_connector(version: str = spark_version) -> None:
    """Raise ConfigError if this Spark is too old for the connector."""
    require_spark(MIN_SPARK, "the RocketMQ connector", version)


def require_filters(version: str = spark_version) -> None:
    """Raise ConfigError if this Spark is too old to push filters to the connector."""
    require_spark(MIN_SPARK_FOR_FILTERS, "the option pushDownPredicate", version, "remove the option")


def require_stream_writes(version: str = spark_version) -> None:
    """Raise ConfigError if this Spark is too old to write streams to the connector."""
    instead = "write each micro-batch as a batch with foreachBatch"
    require_spark(MIN_SPARK_FOR_STREAM_WRITES, "writing a RocketMQ stream", version, instead)


def require_stream_reads(version: str = spark_version) -> None:
    """Raise ConfigError if this Spark is too old to read streams from the connector."""
    require_spark(MIN_SPARK_FOR_STREAM_READS, "reading a RocketMQ stream", version)


def require_jobs(version: str = spark_version) -> None:
    """Raise ConfigError if this Spark is too old for the pipeline and the archive, which read streams."""
    require_spark(MIN_SPARK_FOR_STREAM_READS, "the pipeline", version)


def load_source(name: str, module: str, class_name: str) -> type[DataSource]:
    """Return the source `class_name` of `module`, or a substitute of the same name that raises ConfigError when it is used."""
    try:
        require_connector()
        source_class: type[DataSource] = getattr(import_module(module), class_name)
        return source_class
    except ConfigError as error:
        return _unavailable_source(name, error)
    except ModuleNotFoundError as error:
        fix = (
            "is not installed for the Python that Spark runs: pip install 'ariane[spark]' there, or set PYSPARK_PYTHON"
        )
        return _unavailable_source(name, ConfigError(error.name or str(error), sys.executable, fix))


def _unavailable_source(source_name: str, error: ConfigError) -> type[DataSource]:
    # Spark pickles the class, so it captures plain texts only.
    key, value, fix = error.key, str(error.value), error.fix

    class UnavailableSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return source_name

        def __init__(self, options: dict[str, str]) -> None:
            from ariane.spark.reporting import message_only

            with message_only():
                raise ConfigError(key, value, fix)

    return UnavailableSource
