"""docs/tables.md: its code counts rows and reads a range of time with every engine, from a table with several versions."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import pyspark

from ariane.clock import ms_of
from ariane.pipeline.publishing import table_publisher
from ariane.pipeline.publishing.table_publisher import TableChange
from ariane.tables import TRAFFIC, table_store
from ariane.tables.time_buckets import bucket_of_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")
BLOCKS = {
    f"{section.partition(chr(10))[0]} {number}": block
    for section in PAGE.split("\n## ")
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))
}
DELTA_CONNECTORS = {"4.2": "io.delta:delta-spark_4.2_2.13:4.4.0"}  # by version of Spark
T0 = datetime(2026, 11, 21, 10, 20, tzinfo=UTC)
NOW_MS = ms_of(T0) + 3_600_000


def minutes(spark: SparkSession, topic: str, *values: int) -> DataFrame:
    """Return rows of `traffic`: minutes after T0, in buckets of ten minutes."""
    empty = dict.fromkeys(TRAFFIC.column_names)
    times = [T0 + timedelta(minutes=value) for value in values]
    same = empty | {"topic": topic, "messages": 1, "queueing_ms": {5: 1}}
    rows: list[dict[str, Any]] = [{**same, "minute": at, "bucket": bucket_of_time(ms_of(at))} for at in times]
    return spark.createDataFrame(rows, f"{TRAFFIC.ddl}, bucket STRING")


@pytest.fixture(scope="module")
def home(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables after appends, a replaced bucket, a compaction and an expiry: minutes 0 to 8, 10, and 20 to 22."""
    home = tmp_path_factory.mktemp("tables")
    table_publisher.append_batch(minutes(spark, "a", -60, 0, 1, 2, 10, 11, 12), home, TRAFFIC, "q", 0, NOW_MS)
    table_publisher.append_batch(minutes(spark, "b", 3, 4, 5, 20, 21, 22), home, TRAFFIC, "q", 1, NOW_MS)
    table_publisher.append_batch(minutes(spark, "c", 6, 7, 8), home, TRAFFIC, "q", 2, NOW_MS)
    replaced = [bucket_of_time(ms_of(T0) + 600_000)]
    change = TableChange(frame=minutes(spark, "d", 10), applied={"q": 2}, replaced=replaced)
    table_publisher.commit(home, TRAFFIC, change, NOW_MS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_publisher, "MAX_SMALL_FILES", 2)
        table_publisher.compact(spark, home, TRAFFIC, NOW_MS)
    table_publisher.expire(home, TRAFFIC, bucket_of_time(ms_of(T0)), NOW_MS)
    version = table_store.read_version(home, TRAFFIC)
    assert version is not None
    assert (version.rows, len(version.files), len(version.retired)) == (13, 3, 5)
    return home


@pytest.mark.parametrize("engine", BLOCKS)
def test_every_engine_reads_each_row_once(spark: SparkSession, home: Path, engine: str) -> None:
    for package in ("deltalake", "polars", "pandas"):
        if package in BLOCKS[engine] and importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}: pip install {package}")
    since, until = T0 + timedelta(minutes=2), T0 + timedelta(minutes=21)
    names: dict[str, Any] = {"spark": spark, "home": str(home), "since": since, "until": until}
    exec(BLOCKS[engine], names)
    assert (names["total"], names["count"]) == (13, 9), "minutes 2 to 8, 10 and 20"


def test_duckdbs_extension_reads_each_row_once(home: Path) -> None:
    import duckdb

    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as sql:
        try:
            sql.execute("LOAD delta")
        except duckdb.Error as error:
            pytest.skip(f"needs DuckDB's extension, which INSTALL delta downloads: {str(error).splitlines()[0]}")
        assert sql.sql(f"SELECT count(*) FROM delta_scan('{home}/traffic')").fetchall() == [(13,)]


def test_sparks_delta_connector_reads_each_row_once(home: Path) -> None:
    version = ".".join(pyspark.__version__.split(".")[:2])
    if version not in DELTA_CONNECTORS:
        pytest.skip(f"Delta's connector has no release for Spark {version}: run it with .ci/other-sparks 4.2")
    program = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.jars.packages", sys.argv[1]).config("spark.ui.enabled", "false") \\
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension") \\
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog").getOrCreate()
traffic = spark.read.format("delta").load(sys.argv[2])
stream = spark.readStream.format("delta").option("ignoreChanges", "true").load(sys.argv[2])
stream.writeStream.format("memory").queryName("streamed").trigger(availableNow=True).start().awaitTermination()
count = traffic.where(f"minute >= timestamp '{sys.argv[3]}' AND minute < timestamp '{sys.argv[4]}'").count()
print(traffic.count(), count, spark.table("streamed").count())
"""
    times = [str(T0 + timedelta(minutes=minute)) for minute in (2, 21)]
    command = [sys.executable, "-c", program, DELTA_CONNECTORS[version], str(home / "traffic"), *times]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if "unresolved dependency" in done.stdout + done.stderr:
        pytest.skip(f"needs {DELTA_CONNECTORS[version]} from Maven Central, which cannot be reached")
    assert done.stdout.splitlines()[-1:] == ["13 9 13"], done.stderr


def test_the_schema_of_the_log_is_that_of_the_files(home: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason="needs deltalake: pip install deltalake")
    import pyarrow.dataset as ds

    table = deltalake.DeltaTable(f"{home}/traffic")
    logged = {field.name: field for field in table.schema().fields}
    assert list(logged) == [*TRAFFIC.column_names, "v", "bucket"]
    assert logged["topic"].metadata == {"comment": TRAFFIC.definitions["topic STRING"]}
    rows = table.to_pyarrow_table(columns=["topic", "queueing_ms", "bucket", "v"])
    assert set(rows["topic"].to_pylist()) == {"a", "b", "c", "d"}
    assert rows["queueing_ms"].to_pylist() == [[(5, 1)]] * 13
    assert ds.dataset(table.file_uris()).count_rows() == 13
