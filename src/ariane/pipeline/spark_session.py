"""Spark session of the jobs, local or on a cluster, with a clear error if Spark cannot run."""

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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ariane
from ariane.errors import ConfigError
from ariane.spark import interpreter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
# Set by users and by SparkSession.builder.remote(): sessions are then clients of a Spark Connect server, without a JVM.
CONNECT_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")

FORMAT_MODULES = (
    "pyspark_rocketmq",
    "pyspark_rocketmq_store",
)  # top-level modules that Spark imports to find the formats

CHECKPOINT_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
SETTINGS = {
    # Connect Python workers by Unix sockets: loopback TCP was observed to stall with both ends blocked.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Spark's default, INT96, has no time zone for other readers of Parquet.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Jobs aggregate by message. Spark's hash aggregation of objects falls back to sorting after 128 keys and loses the order that
    # the following step needs.
    "spark.sql.execution.useObjectHashAggregateExec": "false",
    # Rows partitioned by message need no further shuffle to be joined by message and group.
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    # `read_table` selects the files. With pruning Spark would plan each table twice to select them again.
    "spark.sql.optimizer.dynamicPartitionPruning.enabled": "false",
    # Recording where each column was created in Python takes a third of the planning time.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Tables are planned again every few seconds: the default of 100 entries evicts their compiled code in between.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # Micro-batches are cached for a second: compressing them costs more than the memory is worth.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    CHECKPOINT_MANAGER: ("org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"),
}
LOG4J_OPTION = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
# With only the first JIT compiler the JVM starts in half the time; long-running jobs need the second one as well. The default code
# cache is full after some minutes of micro-batches, and then nothing is compiled any more.
C1_ONLY = "-XX:TieredStopAtLevel=1"
# With the default thresholds the second one takes almost half of the CPU time of the first minutes.
C2_LATER = (
    "-XX:Tier4InvocationThreshold=30000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=100000 "
    "-XX:Tier4BackEdgeThreshold=400000"
)
# Spark generates methods of many columns. The second compiler spent a third of its time on two of them; with this limit it ends
# their compilation early, and the code of the first one runs on.
HUGE_METHODS = "-XX:-DontCompileHugeMethods -XX:MaxNodeLimit=20000"
LOCAL_JAVA = f"-XX:+UseSerialGC {HUGE_METHODS} -XX:ReservedCodeCacheSize=256m {LOG4J_OPTION}"
LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # About the number of cores of a laptop; the default of 200 means 200 tasks for a handful of rows.
    "spark.sql.shuffle.partitions": "4",
}
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
CLUSTER_SETTINGS = {
    JAVA_OPTIONS: LOG4J_OPTION,
}
# Classes that PySpark looks up in the JVM for every column and plan, hundreds of times for a table: each lookup is a round trip,
# and searches the 280 jars of the class path once for each package that lacks the class. The session keeps them.
JVM_CLASSES = (
    "functions",
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.functions",
    "PythonSQLUtils",
    "PythonUtils",
)
# Settings that tables and their readers depend on, with the reason why a user cannot change them.
RESERVED_SETTINGS = {
    "spark.master": "give --master",
    "spark.app.name": "it is the name of the job",
    "spark.submit.pyFiles": "it is this package, which executors import",
    "spark.sql.session.timeZone": "tables are in UTC",
    "spark.sql.parquet.outputTimestampType": "tables have times in microseconds",
    CHECKPOINT_MANAGER: "checkpoints are replaced atomically by it",
}


def java_fault() -> str | None:
    """Return why Spark cannot run on this machine's Java, with the fix; None if it can."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    fix = f"install Java {JAVA_MIN} or newer (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
    if java is None or not Path(java).exists():
        return f"Spark needs Java, and none was found; {fix}"
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603
    version = re.search(r'version "(?:1\.)?(\d+)', output)
    if version is None or int(version[1]) < JAVA_MIN:
        return (
            f"Spark needs Java {JAVA_MIN} or newer, {java} is {output.splitlines()[0] if output else 'silent'}; {fix}"
        )
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
    """Return the session of this process, created if none is active.

    Outside local masters the package is sent to the executors as a zip; they need pyarrow and numpy of their own.

    Args:
        name: application name.
        master: Spark's master: local[2], spark://host:port, …
        long_running: optimize for throughput rather than for a quick start.
        log: file for the standard error of a new session.
        conf: settings of the user, which override the defaults; Java options of the driver are appended to them.

    Raises:
        ConfigError: Java or pyspark is missing, or `conf` has a reserved setting.
    """
    if fault := spark_fault():
        raise ConfigError("Spark", None, fault)
    if remote := next((variable for variable in CONNECT_VARIABLES if variable in os.environ), None):
        fix = (
            "selects Spark Connect, which has no JVM for Ariane's jobs: unset it; the connector alone works with any session of "
            "SparkSession.builder.remote"
        )
        raise ConfigError(remote, os.environ[remote], fix)
    import pyspark
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    package = str(Path(ariane.__file__).parents[1])
    path = os.environ.get("PYTHONPATH", "")
    if package not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (package, path)))
    builder = SparkSession.builder.appName(name).master(master)
    settings = dict(SETTINGS)
    if pyspark.__version__.startswith("4.0."):  # a package of its own since 4.1
        settings[CHECKPOINT_MANAGER] = settings[CHECKPOINT_MANAGER].replace(".checkpointing.", ".")
    if master.startswith("local"):
        settings |= LOCAL_SETTINGS
        settings[JAVA_OPTIONS] = f"{LOCAL_JAVA} {C2_LATER if long_running else C1_ONLY}"
    else:
        settings |= CLUSTER_SETTINGS | {"spark.submit.pyFiles": str(package_zip())}
    for key, value in _merge_settings(settings, conf or {}).items():
        builder = builder.config(key, value)
    on_interrupt = signal.getsignal(signal.SIGINT)
    with ExitStack() as stack:
        stack.enter_context(_stderr_to(log))
        if master.startswith("local"):
            stack.enter_context(interpreter.compiled_modules(Path(pyspark.__file__).parent))
        spark = builder.getOrCreate()
    # Spark installs its own SIGINT handler (cancel all jobs). Restore the handler of a program that had one.
    if on_interrupt is not signal.default_int_handler and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, on_interrupt)
    spark.sparkContext.setLogLevel("ERROR")
    jvm: Any = spark.sparkContext._jvm
    for class_name in JVM_CLASSES:
        setattr(jvm, class_name, getattr(jvm, class_name))
    return spark


def setting_fault(key: str) -> str | None:
    """Return why a user cannot set this key of Spark; None if it can be set."""
    if not key.startswith("spark."):
        return "expected a name that starts with 'spark.'"
    return RESERVED_SETTINGS.get(key)


def _merge_settings(ours: Mapping[str, str], conf: Mapping[str, str]) -> dict[str, str]:
    for key, value in conf.items():
        if fault := setting_fault(key):
            # Show no other value: it may be a password.
            raise ConfigError(key, value if key in RESERVED_SETTINGS else None, fault)
    java = " ".join(filter(None, (ours.get(JAVA_OPTIONS), conf.get(JAVA_OPTIONS))))
    return {**ours, **conf, JAVA_OPTIONS: java}


@contextmanager
def _stderr_to(path: Path | None) -> Iterator[None]:
    """Redirect the standard error of processes started within the block to a file; this process keeps its own.

    The JVM prints a banner there, and Python workers print errors when they are ended for being idle.
    """
    if path is None:
        yield
        return
    saved_fd = os.dup(2)
    try:
        with path.open("w") as file:
            os.dup2(file.fileno(), 2)
        yield
    except Exception as error:
        error.add_note(f"Spark's messages are in {path}")
        raise
    finally:
        os.dup2(saved_fd, 2)
        os.close(saved_fd)


@contextmanager
def open_session(
    name: str,
    master: str,
    *,
    long_running: bool = False,
    log: Path | None = None,
    conf: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Open the session of `get_or_create_session` for jobs in a block; afterwards stop it unless it was active before.

    Raises:
        ConfigError: as `get_or_create_session`, or Spark is too old for jobs.
    """
    try:
        from pyspark.sql import SparkSession

        from ariane.spark.availability import require_jobs

        require_jobs()
        is_there = SparkSession.getActiveSession() is not None
    except ImportError:
        is_there = False  # get_or_create_session raises the error
    spark = get_or_create_session(name, master, long_running=long_running, log=log, conf=conf)
    try:
        yield spark
    finally:
        if not is_there:
            spark.stop()


def package_zip() -> Path:
    """Return this package as a zip that executors can import. (Spark does not put wheels on their path.)"""
    root = Path(ariane.__file__).parent
    directory = tempfile.mkdtemp(prefix="ariane-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = Path(directory) / "ariane.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in (root, *(root.parent / name for name in FORMAT_MODULES)):
            for file in sorted(package.rglob("*.py")):
                archive.write(file, file.relative_to(root.parent))
    return path
