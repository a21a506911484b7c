"""Where the connector runs: versions of Spark, and what is installed for the Python that Spark starts.

                                    batches, writing streams    reading streams
    Spark 4.2 and later             yes                         yes
    Spark 4.1                       yes                         no: a Python source is given no start and no limit
    Spark 4.0                       no: no filters, no Arrow writer for streams

Spark looks at all sources at once, and one that cannot be imported hides the others. So each is replaced by one that says why.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module

from pyspark import __version__ as spark_version
from pyspark.sql.datasource import DataSource

from ariane.errors import ConfigError

LEAST = (4, 1)
LEAST_FOR_STREAM_READS = (4, 2)


def require(least: tuple[int, int], what: str, version: str = spark_version) -> None:
    """Raise ConfigError when Spark is older than `least`, which `what` needs."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < least:
        needed = ".".join(map(str, least))
        raise ConfigError("Spark", version, f"{what} needs Spark {needed} or newer: pip install 'pyspark>=4.2'")


def require_connector(version: str = spark_version) -> None:
    """Raise ConfigError when no part of the connector runs on this Spark."""
    require(LEAST, "the RocketMQ connector", version)


def require_stream_reads(version: str = spark_version) -> None:
    """Raise ConfigError when this Spark cannot read streams from the connector."""
    require(LEAST_FOR_STREAM_READS, "reading a stream of RocketMQ", version)


def source(name: str, module: str, class_name: str) -> type[DataSource]:
    """Return the source `class_name` of `module`, or a source of the same name that raises ConfigError when it is used."""
    try:
        require_connector()
        found: type[DataSource] = getattr(import_module(module), class_name)
        return found
    except ConfigError as error:
        return _unavailable(name, error)
    except ModuleNotFoundError as error:
        fix = (
            "is not installed for the Python that Spark runs: pip install 'ariane[spark]' there, or set PYSPARK_PYTHON"
        )
        return _unavailable(name, ConfigError(error.name or str(error), sys.executable, fix))


def _unavailable(source_name: str, error: ConfigError) -> type[DataSource]:
    # Spark sends the class to other processes: it holds texts only.
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
