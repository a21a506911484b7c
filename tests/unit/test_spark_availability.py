"""Errors where the connector cannot run or Spark runs another Python. No Spark session."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

import pyspark
from pyspark import cloudpickle

from ariane.errors import ConfigError
from ariane.spark import availability, interpreter, reporting

OLD = "import sys, pyspark; pyspark.__version__ = '3.5.9'\n"
FIX = "pip install 'pyspark>=4.2'"
STREAM_READS = f"reading a RocketMQ stream needs Spark 4.2 or newer: {FIX}"
STREAM_WRITES = (
    f"writing a RocketMQ stream needs Spark 4.1 or newer: {FIX}, or write each micro-batch as a batch with foreachBatch"
)
FILTERS = f"the option pushDownPredicate needs Spark 4.1 or newer: {FIX}, or remove the option"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr.strip().splitlines()[-1] if done.returncode else done.stdout


def test_an_old_spark_is_reported_with_the_required_version() -> None:
    text = f"the RocketMQ connector needs Spark 4.0 or newer: {FIX}"
    assert f"ariane.errors.ConfigError: Spark = '3.5.9': {text}" in run(OLD + "from ariane.spark import RocketMQSource")
    for module, name in (("pyspark_rocketmq", "rocketmq"), ("pyspark_rocketmq_store", "rocketmq-store")):
        code = f"import {module}; s = {module}.DefaultSource; assert s.name() == '{name}'; s(options={{}})"
        assert text in run(OLD + code)
    with pytest.raises(ConfigError, match=r"Spark = '4.1.4': the pipeline needs Spark 4.2 or newer"):
        availability.require_jobs("4.1.4")
    for version in ("4.0.0", "4.10.0", "5.0.0.dev1"):
        availability.require_connector(version)
    availability.require_connector(pyspark.__version__)


@pytest.mark.parametrize(
    ("version", "absent", "faults"),
    [
        ("4.1.4", "", [*[STREAM_READS] * 6]),
        # What Spark 4.0 lacks in pyspark.sql.datasource
        ("4.0.5", "DataSourceStreamArrowWriter Filter EqualTo", [STREAM_WRITES, FILTERS, *[STREAM_READS] * 6]),
    ],
)
def test_batches_work_on_older_sparks_and_errors_name_the_rest(version: str, absent: str, faults: list[str]) -> None:
    code = f"""
import sys, pyspark
import pyspark.sql.datasource
sys.modules['pyspark.sql.streaming.datasource'] = None
pyspark.__version__ = '{version}'
for name in '{absent}'.split():
    delattr(pyspark.sql.datasource, name)
from ariane.spark import OffsetCommitter, RocketMQSource, StoreSource, drop_duplicates
from pyspark.sql.types import StructType, StructField, BinaryType
from ariane.errors import ConfigError
schema = StructType([StructField('body', BinaryType())])
options = {{'namesrv': 'h:1', 'topic': 'T'}}
source, store = RocketMQSource(options), StoreSource({{'path': '/x'}})
source.reader(schema), store.reader(schema)
filtered = RocketMQSource({{**options, 'pushDownPredicate': 'true'}})
calls = [lambda: source.streamWriter(schema, False), lambda: filtered.reader(schema)]
for reader in (source.streamReader(schema), store.streamReader(schema)):
    calls += [reader.initialOffset, reader.latestOffset, reader.getDefaultReadLimit]
for call in calls:
    try:
        call()
    except ConfigError as error:
        print(error)
"""
    assert run(code).splitlines() == [f"Spark = '{version}': {fault}" for fault in faults]


def test_a_missing_package_is_named_and_does_not_hide_other_sources() -> None:
    code = "import sys; sys.modules['pyarrow'] = None; import pyspark_rocketmq as m; m.DefaultSource(options={})"
    reported = run(code)
    assert "pyarrow = " in reported
    assert "is not installed for the Python that Spark runs: pip install 'ariane[spark]' there" in reported


def test_a_substitute_source_can_be_pickled() -> None:
    result = availability.load_source("rocketmq", "no_such_module", "Source")
    repeated = cloudpickle.loads(cloudpickle.dumps(result))
    assert repeated.name() == "rocketmq"
    with pytest.raises(ConfigError, match="no_such_module = .*is not installed"):
        repeated(options={})


# --- which Python ---

VENV = "/srv/venv/bin/python"


def chosen(on_path: str | None, environ: dict[str, str], modules: dict[str, Any] | None = None) -> dict[str, str]:
    interpreter.choose_python(environ, modules or {}, VENV, lambda name: on_path if name == "python3" else name)
    return environ


def test_import_sets_the_interpreter_of_an_inactive_venv() -> None:
    assert chosen("/usr/bin/python3", {}) == {"PYSPARK_PYTHON": VENV}
    assert chosen(None, {}) == {"PYSPARK_PYTHON": VENV}
    assert chosen("/srv/venv/bin/python3", {}) == {}, "activated: nothing changes"


def test_another_python_version_in_the_same_directory_is_detected(tmp_path: Path) -> None:
    for name in ("python3.10", "python3.12"):
        (tmp_path / name).touch()
    for link, target in (("python3", "python3.10"), ("python", "python3.12")):
        (tmp_path / link).symlink_to(target)

    def which(name: str) -> str:
        return str(tmp_path / name)

    environ: dict[str, str] = {}
    interpreter.choose_python(environ, {}, str(tmp_path / "python3.12"), which)
    assert environ == {"PYSPARK_PYTHON": str(tmp_path / "python3.12")}
    environ = {}
    interpreter.choose_python(environ, {}, str(tmp_path / "python3.10"), which)
    assert environ == {}, "python3 is a link to it"


@pytest.mark.parametrize("name", [*interpreter.EXPLICIT_SETTINGS, "PYTHON_WORKER_FACTORY_PORT"])
def test_existing_settings_are_not_overridden(name: str) -> None:
    assert chosen("/usr/bin/python3", {name: "x"}) == {name: "x"}


@pytest.mark.parametrize(
    ("master", "python", "is_told"),
    [("local[2]", "python3", True), ("local[2]", VENV, False), ("spark://h:7077", "python3", False)],
)
def test_a_session_with_another_python_logs_a_warning(
    caplog: pytest.LogCaptureFixture, master: str, python: str, is_told: bool
) -> None:
    context = SimpleNamespace(_gateway=1, _active_spark_context=SimpleNamespace(master=master, pythonExec=python))
    with caplog.at_level(logging.WARNING, "ariane.spark"):
        assert chosen("/usr/bin/python3", {}, {"pyspark.core.context": SimpleNamespace(SparkContext=context)}) == {}
    reported = f"Spark runs python3 (/usr/bin/python3) instead of {VENV}"
    assert (reported in caplog.text, f"set PYSPARK_PYTHON={VENV}" in caplog.text) == (is_told, is_told)


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    (tmp_path / "python" / "lib").mkdir(parents=True)
    (tmp_path / "python" / "lib" / "pyspark.zip").touch()
    return tmp_path


@pytest.mark.parametrize("environ", [{}, {"PYSPARK_PYTHON": VENV}])
def test_a_session_of_ours_runs_compiled_modules(spark_home: Path, environ: dict[str, str]) -> None:
    before = dict(environ)
    with interpreter.compiled_modules(spark_home, environ, {}, VENV):
        assert environ == {"PYSPARK_PYTHON": str(interpreter.WORKER_PYTHON), "ARIANE_WORKER_PYTHON": VENV}
    assert environ == before


@pytest.mark.parametrize(
    "environ", [{"PYSPARK_PYTHON": "/usr/bin/python3"}, {"PYSPARK_GATEWAY_PORT": "1"}, {"SPARK_HOME": "/opt/spark"}]
)
def test_another_selected_python_or_spark_is_kept(spark_home: Path, environ: dict[str, str]) -> None:
    before = dict(environ)
    with interpreter.compiled_modules(spark_home, environ, {}, VENV):
        assert environ == before


def test_a_running_jvm_keeps_its_python(spark_home: Path) -> None:
    modules = {"pyspark.core.context": SimpleNamespace(SparkContext=SimpleNamespace(_gateway=1))}
    environ: dict[str, str] = {}
    with interpreter.compiled_modules(spark_home, environ, modules, VENV):
        assert environ == {}


def test_a_spark_without_its_archive_of_modules_is_kept(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    with interpreter.compiled_modules(tmp_path, environ, {}, VENV):
        assert environ == {}


def test_the_script_omits_the_directory_of_spark_and_passes_arguments_on(tmp_path: Path) -> None:
    home = tmp_path / "site packages" / "pyspark"
    path = [f"{home}/python/lib/pyspark.zip", "/opt/a b", f"{home}/jars/spark-core.jar", "/opt/*"]
    environ = {"PYTHONPATH": ":".join(path), "SPARK_HOME": str(home), "ARIANE_WORKER_PYTHON": sys.executable}
    program = "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:])"
    command = [str(interpreter.WORKER_PYTHON), "-c", program, "x y"]
    printed = subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout
    assert printed == f"/opt/a b:/opt/*:{home.parent} ['x y']\n"


def test_a_session_of_ours_is_no_other_python(caplog: pytest.LogCaptureFixture) -> None:
    python = str(interpreter.WORKER_PYTHON)
    context = SimpleNamespace(_gateway=1, _active_spark_context=SimpleNamespace(master="local[2]", pythonExec=python))
    chosen("/usr/bin/python3", {}, {"pyspark.core.context": SimpleNamespace(SparkContext=context)})
    assert caplog.text == ""


# --- errors ---


@pytest.mark.parametrize("in_worker", [True, False])
def test_connector_errors_are_printed_without_a_traceback_by_spark_only(
    monkeypatch: pytest.MonkeyPatch, in_worker: bool
) -> None:
    monkeypatch.setenv(reporting.HIDE_TRACEBACK, "")  # restored after the test
    monkeypatch.delenv(reporting.HIDE_TRACEBACK)
    if in_worker:
        monkeypatch.setenv("PYTHON_WORKER_FACTORY_PORT", "1")

    @reporting.hide_traceback
    def work(error: Exception) -> None:
        raise error

    with pytest.raises(ZeroDivisionError):
        work(ZeroDivisionError())
    assert reporting.HIDE_TRACEBACK not in os.environ, "a mistake of ours keeps its traceback"
    with pytest.raises(ConfigError):
        work(ConfigError("a", 1, "b"))
    assert (reporting.HIDE_TRACEBACK in os.environ) == in_worker
