"""Selects the Python that Spark runs: by default `python3` of the PATH, which ignores a venv that is not activated.

`choose_python` runs on import of `ariane.spark` and loads nothing. It sets PYSPARK_PYTHON to this interpreter if Spark would
run another one and nothing else decides: no variable is set, and neither spark-submit, Spark Connect nor a cluster is used.
If a session is already running it logs a warning, because the setting comes too late.

In a local session that this project starts, Spark runs the script `worker-python`, which executes this interpreter
(`compiled_modules`): its Python processes start in a third of the CPU time.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

log = logging.getLogger("ariane.spark")

# If one of these is set, the user has configured how Spark runs, mostly for executors on other machines.
EXPLICIT_SETTINGS = (
    "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON",
    "PYSPARK_GATEWAY_PORT",  # spark-submit and pyspark
    "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_HOME", "SPARK_CONF_DIR", "MASTER", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "KUBERNETES_SERVICE_HOST",
    "DATABRICKS_RUNTIME_VERSION",
)  # fmt: skip
VARIABLE = "PYSPARK_PYTHON"
WORKER_PYTHON = Path(__file__).with_name("worker-python")
WORKER_PYTHON_TARGET = "ARIANE_WORKER_PYTHON"  # the interpreter that the script above executes
WORKER_PREFIX = "PYTHON_WORKER_FACTORY_"  # prefix of variables that Spark sets in its Python processes


def choose_python(
    environ: MutableMapping[str, str] = os.environ,
    modules: Mapping[str, Any] = sys.modules,
    executable: str = sys.executable,
    which: Callable[[str], str | None] = shutil.which,
) -> None:
    """Set PYSPARK_PYTHON to this interpreter, or log a warning if Spark already runs another one."""
    if not executable or is_worker(environ):
        return
    context = getattr(modules.get("pyspark.core.context"), "SparkContext", None)
    if getattr(context, "_gateway", None) is not None:
        _warn_if_different(getattr(context, "_active_spark_context", None), executable, which)
    elif not any(name in environ for name in EXPLICIT_SETTINGS) and not _is_same_environment(
        "python3", executable, which
    ):
        environ[VARIABLE] = executable
        log.info("Setting PYSPARK_PYTHON to %s: python3 of the PATH is another interpreter", executable)


@contextmanager
def compiled_modules(
    spark_home: Path,
    environ: MutableMapping[str, str] = os.environ,
    modules: Mapping[str, Any] = sys.modules,
    executable: str = sys.executable,
) -> Iterator[None]:
    """Make a local session that starts within the block run `worker-python`.

    Does nothing if a JVM runs already, or if the user selected another Python or another Spark than the installed one.

    Args:
        spark_home: Directory of the installed package `pyspark`.
    """
    context = getattr(modules.get("pyspark.core.context"), "SparkContext", None)
    if (
        environ.get(VARIABLE, executable) != executable
        or "PYSPARK_GATEWAY_PORT" in environ
        or getattr(context, "_gateway", None) is not None
        or Path(environ.get("SPARK_HOME", spark_home)) != spark_home
        or not (spark_home / "python" / "lib" / "pyspark.zip").exists()
        or not os.access(WORKER_PYTHON, os.X_OK)
    ):
        yield
        return
    before = environ.get(VARIABLE)
    environ.update({WORKER_PYTHON_TARGET: executable, VARIABLE: str(WORKER_PYTHON)})
    try:
        yield
    finally:  # programs that this process starts later may run other sessions
        del environ[WORKER_PYTHON_TARGET], environ[VARIABLE]
        if before is not None:
            environ[VARIABLE] = before


def is_worker(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether Spark started this process, as a planner or a worker."""
    return any(name.startswith(WORKER_PREFIX) for name in environ)


def _warn_if_different(context: Any, executable: str, which: Callable[[str], str | None]) -> None:
    """Log a warning if a local master runs another interpreter. Executors on other machines have their own Python."""
    if (
        context is None
        or not str(context.master).startswith("local")
        or _is_same_environment(context.pythonExec, executable, which)
    ):
        return
    log.warning(
        'Spark runs %s (%s) instead of %s, and may not find format("rocketmq") there: import ariane.spark before the first '
        "SparkSession, activate the virtual environment, or set PYSPARK_PYTHON=%s",
        context.pythonExec, which(context.pythonExec) or "not found", executable, executable,
    )  # fmt: skip


def _is_same_environment(name: str, executable: str, which: Callable[[str], str | None]) -> bool:
    """Return whether `name` is an interpreter of the same environment and version.

    Environments link to one interpreter, so their directories are compared; /usr/bin contains several interpreters.
    """
    if name == str(WORKER_PYTHON):
        return True
    path, own_path = which(name), Path(executable)
    if path is None or Path(path).parent != own_path.parent:
        return False
    return not (Path(path).exists() and own_path.exists()) or own_path.samefile(path)
