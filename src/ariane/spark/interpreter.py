"""Selects the Python that Spark runs: by default `python3` of the PATH, which ignores a venv that is not activated.

`choose_python` runs on import of `ariane.spark` and loads nothing. It sets PYSPARK_PYTHON to this interpreter if Spark would
run another one and nothing else decides: no variable is set, and neither spark-submit, Spark Connect nor a cluster is used.
If a session is already running it logs a warning, because the setting comes too late.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping, MutableMapping
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
        environ["PYSPARK_PYTHON"] = executable
        log.info("Setting PYSPARK_PYTHON to %s: python3 of the PATH is another interpreter", executable)


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
    path, own_path = which(name), Path(executable)
    if path is None or Path(path).parent != own_path.parent:
        return False
    return not (Path(path).exists() and own_path.exists()) or own_path.samefile(path)
