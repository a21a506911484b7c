"""A Spark session as the jobs want it, local or on a cluster, and a clear word when there can be none."""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import ariane
from ariane.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17

FORMAT_MODULES = ("pyspark_rocketmq", "pyspark_rocketmq_store")  # modules beside this package that name its formats

SETTINGS = {
    # Python workers over Unix sockets: loopback TCP has been seen to stall with both ends blocked.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Spark's default, INT96, has no time zone for other readers of Parquet.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Folds group by message: a hash table of objects gives up after 128 keys and sorts, and leaves no order for what comes next.
    "spark.sql.execution.useObjectHashAggregateExec": "false",
    # What lies together by message needs no other shuffle to be joined by message and group.
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    # `publish.read` chooses the files; Spark would plan every fold twice to choose them again.
    "spark.sql.optimizer.dynamicPartitionPruning.enabled": "false",
    # To note where each column was made in Python takes a third of the time in which folds are put together, again and again.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Folds are planned again every few seconds: with the default of 100 what was compiled for them is dropped meanwhile.
    "spark.sql.codegen.cache.maxEntries": "1000",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
LOG4J_OPTION = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
# The first compiler alone starts in half the time; what keeps going wants the second one too. The default cache for compiled
# code is full after some minutes of micro-batches, and then nothing is compiled any more.
C1_ONLY = "-XX:TieredStopAtLevel=1"
LOCAL_JAVA = f"-XX:+UseSerialGC -XX:-DontCompileHugeMethods -XX:ReservedCodeCacheSize=256m {LOG4J_OPTION}"
LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # As many as a laptop has cores, or nearly; the default of 200 is 200 tasks for a handful of rows.
    "spark.sql.shuffle.partitions": "4",
}
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
CLUSTER_SETTINGS = {
    JAVA_OPTIONS: LOG4J_OPTION,
}
# What tables and their readers rely on: a user's value would change what is stored.
RESERVED_SETTINGS = {
    "spark.master": "give --master",
    "spark.app.name": "it is the name of the job",
    "spark.submit.pyFiles": "it is this package, which executors import",
    "spark.sql.session.timeZone": "tables are in UTC",
    "spark.sql.parquet.outputTimestampType": "tables have times in microseconds",
    "spark.sql.streaming.checkpointFileManagerClass": "checkpoints are replaced atomically by it",
}


def java_fault() -> str | None:
    """Why Spark cannot run on this machine's Java, with the fix; None when it can."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    fix = f"install Java {JAVA_MIN} or newer (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
    if java is None or not Path(java).exists():
        return f"Spark needs Java, and there is none; {fix}"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    if version is None or int(version[1]) < JAVA_MIN:
        return f"Spark needs Java {JAVA_MIN} or newer, {java} is {said.splitlines()[0] if said else 'silent'}; {fix}"
    return None


def spark_fault() -> str | None:
    """Return why Spark cannot run here, with the fix; None if it can."""
    faults = [java_fault()]
    if importlib.util.find_spec("pyspark") is None:
        faults.append("pyspark is not installed: pip install 'ariane[spark]'")
    return "; ".join(filter(None, faults)) or None


def get_or_create_session(
    name: str,
    master: str,
    *,
    long_running: bool = False,
    log: Path | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """The session of this process: the one that runs, else a new one. `master` is Spark's: local[2], spark://host:port, …
    `lasting`: it is to run for long, and may take longer to start. `log`: the file for what a new one writes to standard error.
    `conf`: settings of the user, which replace ours; options of the driver's Java are added to ours.

    Away from local masters the package is sent to the executors as a zip; they need pyarrow and numpy of their own.

    Raises:
        ConfigError: there is no Java or no pyspark, or `conf` has a setting that only this package may choose.
    """
    if fault := spark_fault():
        raise ConfigError("Spark", None, fault)
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    package = str(Path(ariane.__file__).parents[1])
    path = os.environ.get("PYTHONPATH", "")
    if package not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (package, path)))
    builder = SparkSession.builder.appName(name).master(master)
    settings = dict(SETTINGS)
    if master.startswith("local"):
        settings |= LOCAL_SETTINGS
        settings[JAVA_OPTIONS] = LOCAL_JAVA if long_running else f"{LOCAL_JAVA} {C1_ONLY}"
    else:
        settings |= CLUSTER_SETTINGS | {"spark.submit.pyFiles": str(package_zip())}
    for key, value in _merge_settings(settings, conf or {}).items():
        builder = builder.config(key, value)
    on_interrupt = signal.getsignal(signal.SIGINT)
    with _stderr_to(log):
        spark = builder.getOrCreate()
    # Spark takes SIGINT for itself (all jobs are cancelled); a program that had decided what it means is left its own.
    if on_interrupt is not signal.default_int_handler and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, on_interrupt)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def setting_fault(key: str) -> str | None:
    """Return why a user cannot set this key of Spark; None if it can be set."""
    if not key.startswith("spark."):
        return "settings of Spark begin with spark."
    return RESERVED_SETTINGS.get(key)


def _merge_settings(ours: Mapping[str, str], conf: Mapping[str, str]) -> dict[str, str]:
    for key, value in conf.items():
        if fault := setting_fault(key):
            # The value of any other key may be a password.
            raise ConfigError(key, value if key in RESERVED_SETTINGS else None, fault)
    java = " ".join(filter(None, (ours.get(JAVA_OPTIONS), conf.get(JAVA_OPTIONS))))
    return {**ours, **conf, JAVA_OPTIONS: java}


@contextmanager
def _stderr_to(path: Path | None) -> Iterator[None]:
    """A process that is started here writes its standard error to a file; this one goes on with its own. The JVM greets there, and
    its Python workers cry out when they are ended for being idle."""
    if path is None:
        yield
        return
    kept = os.dup(2)
    try:
        with path.open("w") as file:
            os.dup2(file.fileno(), 2)
        yield
    except Exception as error:
        error.add_note(f"what Spark said stands in {path}")
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def open_session(
    name: str,
    master: str,
    *,
    long_running: bool = False,
    log: Path | None = None,
    conf: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """The session, as `session` gives it; in the end it is stopped, if it was not running before."""
    try:
        from pyspark.sql import SparkSession

        is_there = SparkSession.getActiveSession() is not None
    except ImportError:
        is_there = False  # `session` says it
    spark = get_or_create_session(name, master, long_running=long_running, log=log, conf=conf)
    try:
        yield spark
    finally:
        if not is_there:
            spark.stop()


def package_zip() -> Path:
    """This package as a zip that executors can import. (Spark does not put wheels on their path.)"""
    root = Path(ariane.__file__).parent
    directory = tempfile.mkdtemp(prefix="ariane-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = Path(directory) / "ariane.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in (root, *(root.parent / name for name in FORMAT_MODULES)):
            for file in sorted(package.rglob("*.py")):
                archive.write(file, file.relative_to(root.parent))
    return path
