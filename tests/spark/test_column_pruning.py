"""With the jar, queries give the rows that they give without it, read the columns that they need, and read them as columns."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")
if shutil.which("javac") is None:
    pytest.skip("needs a Java compiler", allow_module_level=True)

import pruning_cases

from ariane.client import Producer
from ariane.cluster.admin import Admin
from ariane.errors import ConfigError
from ariane.model.message import Message
from ariane.spark import pruning
from ariane.spark.pruning import compilation
from ariane.testing import LocalCluster
from java_store import unpack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ = {
    "count": ["queue_offset"],
    "select": ["queue_id", "keys"],
    "order of the select": ["queue_id", "keys"],
    "filter": ["keys", "tags"],
    "schema": ["body", "body_error"],
    "text": ["value", "value_error"],
    "field of a value": ["value", "value_error"],
    "errors of values": ["value", "value_error"],
    "pushed filter": ["queue_id", "keys"],
    "count of a store": ["topic"],
}
# Without a conversion of columns to rows: Spark reads rows, or the function reads columns.
WITHOUT_CONVERSION = {"field of a value", "errors of values", "pushed filter", "count of a store", "function"}


async def fill(namesrv: str) -> None:
    async with Admin(namesrv) as admin, Producer(namesrv, "P") as producer:
        for topic in ("T", "PLAIN", "PRUNED", "EMPTY"):
            await admin.create_topic(topic, queues=2)
        for number in range(6):
            body = b'{"id": %d, "customer": "C%d"}' % (number, number) if number else b"no JSON"
            await producer.send(Message(topic="T", body=body, keys=[f"K{number}"], tags="AB"[number % 2]))
        for number in range(8):  # for several Arrow batches of each queue
            body = random.Random(number).randbytes(3_000_000)
            await producer.send(Message(topic="T", body=body, properties={"umlaut": "ä", f"n{number}": "1"}))


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.long(
    "tests/spark/test_arrow_messages.py::test_columns_have_the_values_of_the_batch",
    "tests/unit/test_spark_arrow_messages.py::test_a_message_has_the_rows_of_its_batch",
)
def test_queries_give_the_same_rows_and_read_fewer_columns(spark: SparkSession, tmp_path: Path) -> None:
    from ariane.spark import RocketMQSource, StoreSource

    spark.dataSource.register(RocketMQSource)
    spark.dataSource.register(StoreSource)
    store = str(unpack(tmp_path / "store"))
    with LocalCluster(tmp_path / "cluster") as servers:
        asyncio.run(fill(servers.namesrv))
        plain = pruning_cases.run_cases(spark, servers.namesrv, store, "PLAIN", str(tmp_path / "plain"))
        command = [sys.executable, pruning_cases.__file__, servers.namesrv, store, "PRUNED", str(tmp_path / "pruned")]
        run = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    pruned: dict[str, pruning_cases.Result] = json.loads(run.stdout.splitlines()[-1])
    assert {name: case["rows"] for name, case in pruned.items()} == {name: case["rows"] for name, case in plain.items()}
    assert [row[-2:] for row in pruned["copies"]["rows"]] == ["2]"] * 14, "a stream and a batch copied each message"
    assert pruned["stream"]["rows"][14:] == ["14"], "rows of its progress"
    assert not pruned["no messages"]["rows"]
    assert len(pruned["batches without rows"]["rows"]) == 1
    assert {name: pruned[name]["read"] for name in READ} == READ
    assert {name for name, case in pruned.items() if not case.get("columnar", True)} == WITHOUT_CONVERSION
    assert not any(case.get("columnar", False) for case in plain.values())
    assert len(plain["count"]["read"]) == 25, "of 31: Spark prints no more"


@pytest.mark.long("tests/style/test_wheel.py::test_the_jar_for_spark_is_in_the_wheel_if_the_jars_of_spark_are_given")
def test_the_same_source_gives_the_same_jar(tmp_path: Path) -> None:
    jars = []
    for name in ("a.jar", "b.jar"):
        compilation.compile_jar("javac", pruning.installed_jars(), tmp_path / name)
        jars.append((tmp_path / name).read_bytes())
    assert jars[0] == jars[1]


def test_both_lists_of_versions_are_the_same() -> None:
    versions = ", ".join(f'"{version}"' for version in pruning.SPARK_VERSIONS)
    source = Path(pruning.__file__).with_name("ColumnPruning.java")
    assert f"List.of({versions});" in source.read_text(encoding="utf-8")


@pytest.fixture
def source_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(pruning, "RELEASED", tmp_path / "absent.jar")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return monkeypatch


def test_an_untested_spark_is_refused(source_installation: Any) -> None:
    source_installation.setattr("pyspark.__version__", "4.4.0")
    with pytest.raises(ConfigError, match=r"Spark = '4.4.0': .* supports 4.2 and 4.3; name the columns in a schema"):
        pruning.pruning_jar()


def test_without_a_compiler_the_error_names_the_alternative(source_installation: Any, tmp_path: Path) -> None:
    source_installation.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"javac: not found.* install a JDK, or name the columns in a schema"):
        pruning.pruning_jar()


def test_an_error_of_the_compiler_is_reported(source_installation: Any, tmp_path: Path) -> None:
    broken = tmp_path / "Broken.java"
    broken.write_text("class {")
    source_installation.setattr(compilation, "SOURCES", [broken])
    with pytest.raises(ConfigError, match=r"javac = .*cannot compile .*expected"):
        pruning.pruning_jar()
    assert not list(tmp_path.rglob("*.jar"))


def test_the_jar_of_a_release_is_preferred(source_installation: Any, tmp_path: Path) -> None:
    (tmp_path / "released.jar").touch()
    source_installation.setattr(pruning, "RELEASED", tmp_path / "released.jar")
    assert pruning.pruning_jar() == str(tmp_path / "released.jar")
