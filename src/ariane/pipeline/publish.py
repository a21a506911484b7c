"""Writing a table that is replaced as a whole: readers see the former version or the new one (`admin.published`).

One writer at a time; what one that died has left behind is overwritten by the next.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from ariane.admin.published import CURRENT, Version, current, path_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VERSIONS_KEPT = 2  # who has just read the pointer can still read what it named


def publish(frame: DataFrame, directory: Path, as_of_ms: int | None) -> Version:
    """Write `frame` beside what is published, then point to it; versions that nobody is told of any more are removed."""
    former = current(directory)
    version = Version(former.version + 1 if former else 1, as_of_ms, 0)
    place = path_of(directory, version)
    frame.write.mode("overwrite").parquet(str(place))
    version = version._replace(rows=frame.sparkSession.read.parquet(str(place)).count())
    replace(directory / CURRENT, json.dumps(version._asdict()) + "\n")
    for old in directory.glob("v=*"):
        if int(old.name.removeprefix("v=")) <= version.version - VERSIONS_KEPT:
            shutil.rmtree(old)
    return version


def replace(path: Path, text: str) -> None:
    """Replace a small file: readers see the old text or the new one, also after a crash."""
    beside = path.with_name(f"{path.name}.tmp")
    with beside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
