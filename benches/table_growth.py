"""Simulation of the list of files of a large table: time of a commit and sizes of CURRENT and of the Delta log, without any data.

python benches/table_growth.py [--messages-per-day 1000000000] [--days 1,10,30] [--hours 2] [--out FILE]

Files have declared sizes (those of `trace_events` per event, benches/results/pipeline.json); versions, commits and checkpoints
are the pipeline's, files are merged by its rule. Each number of days begins with the list that so many days leave, and runs the
commits of some hours. With `delta-rs` the same commits are those of an object store, into a directory: without the network's time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ariane.pipeline.publishing.table_publisher import MAX_SMALL_FILES, SMALL_BYTES
from ariane.tables import TRACE_EVENTS, delta_log, table_format
from ariane.tables.directory_tables import DirectoryTables
from ariane.tables.object_tables import ObjectTables, file_path
from ariane.tables.table_format import RETIRED_RETENTION_MS, DataFile, TableVersion
from ariane.tables.table_home import ObjectHome
from ariane.tables.time_buckets import bucket_of_time

EVENTS_PER_MESSAGE = 5  # a send, and the begin and end of its consumption by two groups
BYTES_PER_EVENT = 6.6
BATCH_S = 30
BUCKET_MS = 600_000
DAY_MS = 86_400_000
BEGIN_MS = 1_800_000_000_000 // DAY_MS * DAY_MS
LATE_SHARE = 0.02  # of a batch, in the bucket before

Publish = Callable[[TableVersion, TableVersion, int], None]


class Load(NamedTuple):
    """What a micro-batch adds."""

    events: int

    def files(self, version: TableVersion, now_ms: int) -> list[DataFile]:
        late = int(self.events * LATE_SHARE)
        return [
            data_file(version.version + 1, now_ms - BUCKET_MS, late),
            data_file(version.version + 1, now_ms, self.events - late),
        ]


def data_file(number: int, at_ms: int, events: int, added_version: int | None = None) -> DataFile:
    bucket, added = bucket_of_time(at_ms), added_version or number
    path = file_path(number, bucket, added, at_ms, at_ms)
    return DataFile(path, bucket, events, int(events * BYTES_PER_EVENT), added, at_ms, at_ms)


def merged(version: TableVersion, now_ms: int) -> tuple[set[str], list[DataFile]]:
    """Return the paths of the files that `table_publisher.compact` would merge now, and the files in their place."""
    by_bucket: dict[str, list[DataFile]] = {}
    for file in version.files:
        if file.bytes < SMALL_BYTES:
            by_bucket.setdefault(file.bucket, []).append(file)
    parts = [files for files in by_bucket.values() if len(files) > MAX_SMALL_FILES]
    added = [
        data_file(
            version.version + 1, files[0].first_ms or now_ms, sum(file.rows for file in files), files[-1].added_version
        )
        for files in parts
    ]
    return {file.path for files in parts for file in files}, added


def batches(
    version: TableVersion, load: Load, begin_ms: int, hours: float
) -> Iterator[tuple[TableVersion, TableVersion, int, str]]:
    """Yield each commit: the version before, the version, its time and its kind. Files are merged once a minute."""
    for number in range(int(hours * 3600 / BATCH_S)):
        now_ms = begin_ms + number * BATCH_S * 1000
        retired = [file for file in version.retired if now_ms - file.retired_ms < RETIRED_RETENTION_MS]
        following = version.replace(
            removed=lambda _: False, added=load.files(version, now_ms), retired=retired, now_ms=now_ms
        )
        yield version, following, now_ms, "append"
        version = following
        paths, added = merged(version, now_ms)
        if paths and number % 2:
            following = version.replace(removed=lambda file: file.path in paths, added=added, now_ms=now_ms)  # noqa: B023
            yield version, following, now_ms, "merge"
            version = following


def filled(load: Load, days: int) -> TableVersion:
    """Return the version after some days, by the files that the commits of one bucket leave."""
    version = TableVersion.initial(TRACE_EVENTS, BEGIN_MS)
    for _, following, _, _ in batches(version, load, BEGIN_MS, 0.5):
        version = following
    bucket = bucket_of_time(BEGIN_MS + BUCKET_MS)  # complete, and followed by the one with its late rows
    pattern = [file for file in version.files if file.bucket == bucket]
    files, begin_ms = [], BEGIN_MS - days * DAY_MS
    for number in range(days * DAY_MS // BUCKET_MS):
        at_ms = begin_ms + number * BUCKET_MS
        files += [data_file(1 + number, at_ms, file.rows) for file in pattern]
    return TableVersion(BEGIN_MS // 1000, TRACE_EVENTS.schema, sum(file.rows for file in files), BEGIN_MS, tuple(files))


def run(load: Load, days: int, hours: float, publish: Publish) -> dict[str, Any]:
    version, times_ms = filled(load, days), {"append": [0.0][:0], "merge": [0.0][:0]}
    publish(TableVersion.initial(TRACE_EVENTS, 0), version, BEGIN_MS)
    for former, following, now_ms, kind in batches(version, load, BEGIN_MS, hours):
        begin_s = time.perf_counter()
        publish(former, following, now_ms)
        times_ms[kind].append((time.perf_counter() - begin_s) * 1000)
        version = following
    result: dict[str, Any] = {
        "days": days,
        "files": len(version.files),
        "table_bytes": sum(file.bytes for file in version.files),
    }
    for kind, values in times_ms.items():
        result[kind] = {"commits": len(values)}
        if values:
            result[kind] |= {"median_ms": round(statistics.median(values), 1), "longest_ms": round(max(values), 1)}
    return result


def of_directory(load: Load, days: int, hours: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        directory = home / TRACE_EVENTS.name
        directory.mkdir()

        def publish(former: TableVersion, version: TableVersion, now_ms: int) -> None:
            DirectoryTables(home).publish(TRACE_EVENTS, former, version, now_ms)

        result = run(load, days, hours, publish)
        log = list((directory / delta_log.DELTA_LOG).iterdir())
        checkpoints = [path.stat().st_size for path in log if "checkpoint.parquet" in path.name]
        begin_s = time.perf_counter()
        DirectoryTables(home).read_version(TRACE_EVENTS)
        return result | {
            "read_ms": round((time.perf_counter() - begin_s) * 1000, 1),
            "current_bytes": (directory / table_format.CURRENT).stat().st_size,
            "checkpoint_bytes": max(checkpoints, default=0),
            "commit_bytes": int(statistics.median(path.stat().st_size for path in log if path.suffix == ".json")),
        }


def of_delta_rs(load: Load, days: int, hours: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        home = ObjectHome(Path(name).as_uri(), Path(name))

        def publish(former: TableVersion, version: TableVersion, now_ms: int) -> None:
            ObjectTables(home).publish(TRACE_EVENTS, former, version, now_ms)

        result = run(load, days, hours, publish)
        begin_s = time.perf_counter()
        ObjectTables(home).read_version(TRACE_EVENTS)
        return result | {"read_ms": round((time.perf_counter() - begin_s) * 1000, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages-per-day", type=int, default=1_000_000_000)
    parser.add_argument("--days", default="1,10,30")
    parser.add_argument("--hours", type=float, default=2)
    parser.add_argument("--delta-rs-hours", type=float, default=0.25)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load = Load(options.messages_per_day * EVENTS_PER_MESSAGE * BATCH_S // 86_400)
    days = [int(text) for text in options.days.split(",")]
    results = {
        "events_per_batch": load.events,
        "directory": [of_directory(load, count, options.hours) for count in days],
        "delta_rs": [of_delta_rs(load, count, options.delta_rs_hours) for count in days],
    }
    text = json.dumps(results, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
