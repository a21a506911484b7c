"""Compilation of the jar. hatch_build.py loads this module alone to put the jar into a release."""

from __future__ import annotations

import subprocess
import tempfile
import zipfile
from pathlib import Path

SOURCES = sorted(Path(__file__).parent.glob("*.java"))
FORMATS = ("Messages", "StoreFiles")  # the classes that Spark finds by their short names
REGISTRATION = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
JAVA_RELEASE = "17"  # the oldest that Spark 4 runs on
TIMESTAMP = (2020, 1, 1, 0, 0, 0)  # the same sources give the same jar


def compile_jar(javac: str, spark_jars: Path, target: Path) -> None:
    """Compile the sources with the jars of Spark, and write the jar `target`.

    Raises:
        subprocess.CalledProcessError: the compiler failed; `stderr` has its messages.
    """
    with tempfile.TemporaryDirectory() as classes:
        command = [javac, "-nowarn", "-proc:none", "-encoding", "UTF-8", "--release", JAVA_RELEASE]
        command += ["-cp", f"{spark_jars}/*", "-d", classes, *map(str, SOURCES)]
        subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
        entries = {path.relative_to(classes).as_posix(): path.read_bytes() for path in Path(classes).rglob("*.class")}
    entries[REGISTRATION] = "".join(f"ariane.spark.ColumnPruning${name}\n" for name in FORMATS).encode()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as jar:
        for name in sorted(entries):
            jar.writestr(zipfile.ZipInfo(name, TIMESTAMP), entries[name], zipfile.ZIP_DEFLATED)
