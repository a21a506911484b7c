"""The optional jar with which Spark prunes columns of the formats, and reads columns instead of rows. Python still reads.

A release contains the jar. Another installation compiles it on first use, if a Java compiler is available.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from ariane.errors import ConfigError
from ariane.spark.pruning.compilation import SOURCES, compile_jar

SPARK_VERSIONS = (
    "4.2",
    "4.3",
)  # as in the source: it extends internal classes of Spark, so each version has to be tested
RELEASED = Path(__file__).with_name("ariane-spark.jar")


def pruning_jar() -> str:
    """Return the path of the jar, for Spark's setting `spark.jars` before a session starts.

    Raises:
        ConfigError: the jar does not support the installed Spark, or it has to be compiled and cannot be.
    """
    import pyspark

    version = re.match(r"\d+\.\d+", pyspark.__version__)
    if version is None or version[0] not in SPARK_VERSIONS:
        fix = (
            f"the jar for column pruning supports {' and '.join(SPARK_VERSIONS)}; name the columns in a schema instead"
        )
        raise ConfigError("Spark", pyspark.__version__, fix)
    if RELEASED.exists():
        return str(RELEASED)
    contents = [pyspark.__version__.encode(), *(source.read_bytes() for source in SOURCES)]
    digest = hashlib.sha256(b"".join(contents)).hexdigest()[:16]
    target = Path.home() / ".cache" / "ariane" / "spark" / f"column-pruning-{digest}.jar"
    if not target.exists():
        _compile(target)
    return str(target)


def installed_jars() -> Path:
    """Return the directory of Spark's jars in the installed pyspark."""
    import pyspark

    return Path(pyspark.__file__).parent / "jars"


def _compile(target: Path) -> None:
    home = os.environ.get("JAVA_HOME")
    javac = shutil.which(str(Path(home) / "bin" / "javac") if home else "javac")
    instead = "name the columns in a schema instead"
    if javac is None:
        fix = f"not found, and this installation from source has no jar for column pruning: install a JDK, or {instead}"
        raise ConfigError("javac", None, fix)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:  # the other processes see the complete jar only
        jar = Path(directory) / target.name
        try:
            compile_jar(javac, installed_jars(), jar)
        except subprocess.CalledProcessError as error:
            fix = f"cannot compile the jar for column pruning: {error.stderr.strip()}; {instead}"
            raise ConfigError("javac", javac, fix) from error
        jar.replace(target)
