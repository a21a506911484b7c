"""Writing a table that is replaced as a whole: readers see the former version or the new one (`admin.published`)."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from ariane.admin.published import CURRENT, Version, current, path_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VERSIONS_KEPT = 2


def publish(frame: DataFrame, directory: Path, as_of_ms: int | None) -> Version:
    """Write `frame` beside what is published, then point to it; versions that nobody is told of any more are removed."""
    former = current(directory)
    place = path_of(directory, Version(former.version + 1 if former else 1, as_of_ms, 0))
    frame.write.mode("overwrite").parquet(str(place))
    rows = frame.sparkSession.read.parquet(str(place)).count()
    published = Version(former.version + 1 if former else 1, as_of_ms, rows)
    beside = directory / f"{CURRENT}.tmp"
    with beside.open("w") as file:
        file.write(json.dumps(published._asdict()) + "\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(directory / CURRENT)
    for old in directory.glob("v=*"):
        if int(old.name.removeprefix("v=")) <= published.version - VERSIONS_KEPT:
            shutil.rmtree(old)
    return published
