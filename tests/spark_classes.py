"""Settings of Spark sessions in tests, and a class-data archive for drivers: each starts with the classes of all others parsed.

    python tests/spark_classes.py      write the archive unless it exists: run all jobs of the pipeline once

A driver spends a quarter of its time on loading classes, and a whole run starts about thirty. `activate` makes all drivers use the
archive if it exists; JVMs ignore one that does not exist yet.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CACHE = Path.home() / ".cache" / "ariane" / "spark-classes"
DRIVER_OPTIONS = "SPARK_SUBMIT_OPTS"
BUILD_S = 300

# The tests plan hundreds of queries over a handful of rows: compiling each of them to bytecode costs more than interpreting it, and
# adaptive execution plans each of them again. Both give the same rows. The programs that other tests start (`ariane pipeline run`,
# the demo, the drivers of the kill tests) run every job as users do.
SESSION_SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.lightweightPlanChangeValidation": "false",
}


def archive() -> Path | None:
    """Return the path of the archive for this Java and pyspark; None without them."""
    from ariane.pipeline.spark_session import java_fault
    from ariane.testing.java import java_version

    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None or java_fault():
        return None
    digest = hashlib.sha256(java_version().encode())
    for jar in sorted((Path(spec.origin).parent / "jars").iterdir()):  # the JVM compares paths, sizes and times
        stat = jar.stat()
        digest.update(f"{jar} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return CACHE / f"{digest.hexdigest()[:16]}.jsa"


def activate(path: Path) -> None:
    """Make the drivers that this process starts use the archive, and only the first JIT compiler: their runs are short."""
    os.environ.setdefault(DRIVER_OPTIONS, f"-XX:SharedArchiveFile={path} -XX:TieredStopAtLevel=1")


def build(path: Path) -> None:
    """Run all jobs on a small cluster with a recording driver, and move its archive to `path`."""
    sys.path.insert(0, str(Path(__file__).with_name("spark")))
    import mixed_traffic

    from ariane.testing import LocalCluster

    incomplete = path.with_suffix(f".{os.getpid()}")
    env = {**os.environ, DRIVER_OPTIONS: f"-XX:ArchiveClassesAtExit={incomplete}"}
    try:
        with (
            tempfile.TemporaryDirectory() as home,
            LocalCluster(Path(home) / "servers", **mixed_traffic.QUICK) as servers,
        ):
            mixed_traffic.send(servers.namesrv, "A", plain=2)
            run = [sys.executable, "-m", "ariane.cli", "pipeline", "run", "all", "--once"]
            where = ["--namesrv", servers.namesrv, "--home", f"{home}/tables"]
            # The JVM has this pipe as well, and writes the archive when it exits: the end of the pipe is the end of both.
            subprocess.run([*run, *where], env=env, check=True, stdout=subprocess.PIPE, timeout=BUILD_S)
        incomplete.rename(path)
    finally:
        incomplete.unlink(missing_ok=True)


if __name__ == "__main__":
    path = archive()
    if path is not None and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        build(path)
