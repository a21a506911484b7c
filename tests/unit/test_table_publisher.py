"""Changing tables: concurrent threads, manually removed tables, and what is rebuilt then. Without Spark."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

from ariane.errors import ConfigError, StoreError
from ariane.model import ids
from ariane.pipeline import jobs, run, source_reader
from ariane.pipeline.publishing import incremental, staged_tables, table_publisher
from ariane.pipeline.publishing.data_files import Target
from ariane.pipeline.publishing.directory_files import DirectoryFiles
from ariane.reports.tables import pipeline_status
from ariane.tables import (
    JOURNEYS,
    MESSAGES,
    TRACE_EVENTS,
    TRAFFIC,
    TableSchema,
    directory_tables,
    table_format,
    table_store,
)
from ariane.tables.table_format import DataFile, TableVersion
from ariane.tables.time_buckets import bucket_of_id, bucket_of_time

T0_MS = 1_700_000_000_000
QUERY = "traces 4f0c"
FRAME: Any = None  # files are written by a double


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[DataFile]]:
    """The files of the next version, in place of what Spark would write."""
    next_ones: list[DataFile] = []

    def write(files: DirectoryFiles, target: Target, *rows: object) -> list[DataFile]:
        table, number, added = target
        (files.home / table.name).mkdir(parents=True, exist_ok=True)
        bucket = bucket_of_time(T0_MS)
        return next_ones or [
            DataFile(f"v={number:08d}/bucket={bucket}/part.parquet", bucket, 1, 9, added, T0_MS, T0_MS)
        ]

    monkeypatch.setattr(DirectoryFiles, "write", write)
    monkeypatch.setattr(staged_tables, "MAX_ROWS", 0)  # nothing is computed without Spark
    yield next_ones


def there(home: Path, table: TableSchema) -> TableVersion:
    now = table_store.read_version(home, table)
    assert now is not None
    return now


def test_a_batch_during_an_expiry_loses_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table_publisher.append_batch(FRAME, tmp_path, TRACE_EVENTS, QUERY, 0, T0_MS)
    write = DirectoryFiles.write
    others: list[threading.Thread] = []

    def write_while_others_change(*of: Any) -> list[DataFile]:
        other = threading.Thread(target=table_publisher.expire, args=(tmp_path, TRACE_EVENTS, "2024-01-01T0000", T0_MS))
        other.start()
        other.join(0.2)  # it has to wait; when it does not, it is done by now
        others.append(other)
        return write(*of)

    monkeypatch.setattr(DirectoryFiles, "write", write_while_others_change)
    table_publisher.append_batch(FRAME, tmp_path, TRACE_EVENTS, QUERY, 1, T0_MS)
    for other in others:
        other.join(10)
    now = there(tmp_path, TRACE_EVENTS)
    assert now.applied == {QUERY: 1}
    assert (len(now.files), len(now.retired)) == (0, 2), "both batches were there, then both left"


def test_the_list_of_a_version_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = table_publisher.append_batch(FRAME, tmp_path, TRACE_EVENTS, QUERY, 0, T0_MS)
    path = tmp_path / TRACE_EVENTS.name / table_format.CURRENT
    assert there(tmp_path, TRACE_EVENTS) is published
    path.with_name("backup").write_bytes(path.read_bytes())
    path.with_name("backup").replace(path)  # another writer, or a backup
    version = there(tmp_path, TRACE_EVENTS)
    assert version == published and version is not published
    assert there(tmp_path, TRACE_EVENTS) is version
    table_publisher.append_batch(FRAME, tmp_path, TRACE_EVENTS, QUERY, 1, T0_MS)
    assert there(tmp_path, TRACE_EVENTS).applied == {QUERY: 1}
    monkeypatch.setattr(directory_tables, "MAX_LAST_VERSIONS", len(directory_tables._last_versions))
    table_publisher.append_batch(FRAME, tmp_path, JOURNEYS, QUERY, 0, T0_MS)
    assert len(directory_tables._last_versions) == directory_tables.MAX_LAST_VERSIONS


def test_rows_expire_by_their_time_not_by_an_id_from_a_clock_that_is_ahead(
    tmp_path: Path, files: list[DataFile]
) -> None:
    noon_ms, hour_ms, keep_ms = 1_786_795_200_000, 3_600_000, 30 * 86_400_000  # 2026-08-15 12:00
    counted = noon_ms + 20 * hour_ms - ids.month_start_ms(noon_ms)
    ahead = bucket_of_id(f"7F0000010001AABBCCDD{counted:08X}0001", noon_ms)
    first = bucket_of_time(noon_ms - keep_ms)
    assert ahead < first, "by its id it is of the month before"

    def file(name: str, bucket: str, last_ms: int | None) -> DataFile:
        return DataFile(f"v=1/bucket={bucket}/{name}.parquet", bucket, 1, 9, 1, last_ms, last_ms)

    old_ms = noon_ms - keep_ms - 1
    kept = [file("new", ahead, noon_ms), file("old", first, old_ms), file("none", first, None)]
    kept += [file("new", "unknown-03", noon_ms), file("none", "unknown-03", None)]
    files[:] = [*kept, file("old", ahead, old_ms), file("none", ahead, None), file("old", "unknown-03", old_ms)]
    files.append(file("far", bucket_of_time(noon_ms - keep_ms - 33 * 86_400_000), noon_ms + 3650 * 86_400_000))
    table_publisher.append_batch(FRAME, tmp_path, TRACE_EVENTS, QUERY, 0, noon_ms)
    table_publisher.expire(tmp_path, TRACE_EVENTS, first, noon_ms)
    assert there(tmp_path, TRACE_EVENTS).files == tuple(kept)
    assert table_publisher.expire(tmp_path, TRACE_EVENTS, first, noon_ms) is None


def test_a_removed_base_table_is_not_a_silent_gap(tmp_path: Path) -> None:
    for batch in (0, 1, 1):
        table_publisher.append_batch(FRAME, tmp_path, TRACE_EVENTS, QUERY, batch, T0_MS)
    assert there(tmp_path, TRACE_EVENTS).rows == 2, "a batch that is done again is there once"
    (tmp_path / TRACE_EVENTS.name / table_format.CURRENT).unlink()
    with pytest.raises(StoreError, match=r"trace_events lacks batches 0 to 1 of traces: .*remove .*checkpoint/traces"):
        table_publisher.append_batch(FRAME, tmp_path, TRACE_EVENTS, QUERY, 2, T0_MS)


@pytest.mark.parametrize("batches", [1, 4, 9])
def test_a_recreated_table_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    """Whether it has fewer, as many or more versions than the rebuild had processed of its predecessor."""
    fold = incremental.IncrementalTable(TRAFFIC, (JOURNEYS,), lambda *_: FRAME)
    monkeypatch.setattr(table_publisher, "read_table", lambda *_: FRAME)
    for batch in range(4):
        table_publisher.append_batch(FRAME, tmp_path, JOURNEYS, QUERY, batch, T0_MS)
    assert incremental.rebuild_changed(FRAME, tmp_path, fold, T0_MS) is not None
    assert incremental.rebuild_changed(FRAME, tmp_path, fold, T0_MS) is None
    (tmp_path / JOURNEYS.name / table_format.CURRENT).unlink()
    for batch in range(batches):
        table_publisher.append_batch(FRAME, tmp_path, JOURNEYS, "traces another", batch, T0_MS + 60_000)
    (gap,) = [
        warning for warning in pipeline_status.freshness(tmp_path, TRAFFIC, T0_MS).warnings if "newest" in warning
    ]
    assert gap == "rates and latencies do not include the newest journeys of messages yet"
    assert incremental.rebuild_changed(FRAME, tmp_path, fold, T0_MS + 60_000) is not None


def test_a_restored_older_version_of_a_table_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup of one table was restored."""
    fold = incremental.IncrementalTable(TRAFFIC, (JOURNEYS,), lambda *_: FRAME)
    monkeypatch.setattr(table_publisher, "read_table", lambda *_: FRAME)
    table_publisher.append_batch(FRAME, tmp_path, JOURNEYS, QUERY, 0, T0_MS)
    backup = (tmp_path / JOURNEYS.name / table_format.CURRENT).read_bytes()
    table_publisher.append_batch(FRAME, tmp_path, JOURNEYS, QUERY, 1, T0_MS)
    incremental.rebuild_changed(FRAME, tmp_path, fold, T0_MS)
    (tmp_path / JOURNEYS.name / table_format.CURRENT).write_bytes(backup)
    assert (
        "rates and latencies do not include the newest journeys of messages yet"
        in pipeline_status.freshness(tmp_path, TRAFFIC, T0_MS).warnings
    )
    assert incremental.rebuild_changed(FRAME, tmp_path, fold, T0_MS) is not None


def test_journeys_are_as_fresh_as_traces_if_messages_were_read_long_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[DataFile]
) -> None:
    monkeypatch.setattr(table_publisher, "read_table", lambda *_: FRAME)
    day_ms = 86_400_000
    for table, at_ms in ((MESSAGES, T0_MS), (TRACE_EVENTS, T0_MS + 7 * day_ms)):
        files[:] = [DataFile("v=1/bucket=s/part.parquet", bucket_of_time(at_ms), 1, 9, 2_000_000_000, at_ms, at_ms)]
        table_publisher.append_batch(FRAME, tmp_path, table, "source id", 0, T0_MS)
    for fold in jobs.TRACE_TABLES:
        incremental.rebuild_changed(FRAME, tmp_path, dataclasses.replace(fold, compute=lambda *_: FRAME), T0_MS)
    assert there(tmp_path, JOURNEYS).as_of_ms == T0_MS + 7 * day_ms


def test_unreferenced_version_directories_are_removed(tmp_path: Path) -> None:
    table_publisher.append_batch(FRAME, tmp_path, TRACE_EVENTS, QUERY, 0, T0_MS)
    (file,) = there(tmp_path, TRACE_EVENTS).files
    for name in (file.path.partition("/")[0], "v=00000007", "v=9999999999"):
        (tmp_path / TRACE_EVENTS.name / name).mkdir()
    with table_publisher.lock_tables(tmp_path, [TRACE_EVENTS]):
        assert [directory.name for directory in (tmp_path / TRACE_EVENTS.name).glob("v=*")] == [
            file.path.partition("/")[0]
        ]


def test_a_query_can_be_stopped_while_it_is_awaited() -> None:
    stop = threading.Event()

    class Query:
        def awaitTermination(self, timeout: float) -> bool:
            stop.set()
            return False

    source_reader._await_end(Query(), stop)  # type: ignore[arg-type]
    assert stop.is_set()


class Query:
    """A query that goes on, or has done what there was."""

    def __init__(self, *, active: bool, ends: int | None = None, away: str | None = None) -> None:
        self.isActive = active
        latest = {"latest": {"T": {"a": {"0": ends}}}, **({"unavailable": {"a": away}} if away else {})}
        reported = {"sources": [{"endOffset": {"to": {"T": {"a": {"0": 7}}}}, "latestOffset": latest}]}
        self.lastProgress = ends and SimpleNamespace(
            json=json.dumps(reported),
            timestamp="2023-11-14T22:13:20.123Z",
            batchId=3,
            durationMs={"triggerExecution": 9},
        )

    def exception(self) -> None:
        return None


def test_a_query_without_input_has_no_pending_messages() -> None:
    result = source_reader.source_status(jobs.TRACES, source_reader.RunningQuery(Query(active=False), 1000))  # type: ignore[arg-type]
    assert (result.batch, result.pending, result.unavailable, result.caught_up_ms) == (None, 0, None, 1000)


@pytest.mark.parametrize(
    ("ends", "away", "behind", "read_ms"),
    [(7, None, 0, 1_700_000_000_123), (9, None, 2, None), (7, "refused", 0, None)],
)
def test_a_query_reports_pending_messages_and_its_caught_up_time(
    ends: int, away: str | None, behind: int, read_ms: int | None
) -> None:
    """A batch requests the end offsets when it begins, so all messages stored before then are read when none is pending."""
    result = source_reader.source_status(
        jobs.TRACES, source_reader.RunningQuery(Query(active=True, ends=ends, away=away), None)
    )  # type: ignore[arg-type]
    assert (result.pending, result.caught_up_ms, result.batch, result.batch_ms) == (behind, read_ms, 3, 9)
    assert result.unavailable == (away and f"a is unavailable: {away}")


@pytest.mark.parametrize(("option", "value"), [("keep_days", 0), ("interval_s", 0.0), ("interval_s", -1.0)])
def test_settings_that_retain_nothing_or_never_pause_are_rejected(tmp_path: Path, option: str, value: float) -> None:
    with pytest.raises(ConfigError, match=option.partition("_")[0]):
        run.run(jobs.JOBS["trace"], {}, tmp_path, settings=run.RunSettings(**{option: value}))
