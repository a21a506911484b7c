"""SQL queries on published tables, and the freshness of their results."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")

import duckdb

from ariane import tables
from ariane.cli.options.command_names import JOBS
from ariane.errors import StoreError
from ariane.reports.tables import pipeline_status, table_contents, table_views
from ariane.reports.tables.pipeline_status import Freshness, SourceStatus
from ariane.tables import JOURNEYS, TRACE_EVENTS, TableSchema, table_format, table_store
from tables_on_disk import put

T0_MS = 1_700_000_000_000
T0 = datetime.fromtimestamp(T0_MS / 1000, UTC)
EVERY = TableSchema(
    "every",
    "One column of every type.",
    {
        "at TIMESTAMP": "",
        "text STRING": "",
        "many BIGINT": "",
        "few INT": "",
        "share DOUBLE": "",
        "is_so BOOLEAN": "",
        "day DATE": "",
        "raw BINARY": "",
        "counts MAP<INT, BIGINT>": "",
        "tries ARRAY<STRUCT<at: TIMESTAMP, hosts: ARRAY<STRING>, cost_ms: BIGINT>>": "",
    },
    time_column="at",
    sort_columns=("text",),
)
ROW = {
    "at": T0,
    "text": "it's",
    "many": 1,
    "few": 2,
    "share": 0.5,
    "is_so": True,
    "day": T0.date(),
    "raw": b"\x00",
    "counts": {1: 2},
    "tries": [{"at": T0, "hosts": ["a", "b"], "cost_ms": None}],
}


def test_every_type_round_trips(tmp_path: Path) -> None:
    put(tmp_path, EVERY, [{**ROW, "counts": list(ROW["counts"].items())}, {}])  # type: ignore[attr-defined]
    with table_views.open_views(tmp_path, table_views.whole_table(EVERY)) as sql:
        full, empty = table_views.query(sql, "SELECT * FROM every ORDER BY many NULLS LAST")
    assert full == ROW
    assert empty == dict.fromkeys(EVERY.column_names)


def test_an_unpublished_table_has_its_columns_and_no_rows(tmp_path: Path) -> None:
    with table_views.open_views(tmp_path, table_views.whole_table(EVERY)) as sql:
        assert table_views.query(sql, 'SELECT tries[1].cost_ms FROM every WHERE counts[1] = 2 AND "at" > now()') == []
        with pytest.raises(duckdb.BinderException):
            table_views.query(sql, "SELECT nothing FROM every")


def test_values_are_passed_as_parameters(tmp_path: Path) -> None:
    put(tmp_path, EVERY, [ROW])
    with table_views.open_views(tmp_path, table_views.whole_table(EVERY)) as sql:
        assert table_views.query(sql, "SELECT many FROM every WHERE text = $1", ["it's"]) == [{"many": 1}]
        assert table_views.query(sql, "SELECT many FROM every WHERE text = $1", ["' OR true --"]) == []


def test_only_files_within_the_query_range_are_opened(tmp_path: Path) -> None:
    for hours in range(3):
        put(
            tmp_path,
            EVERY,
            [{**ROW, "at": T0 + timedelta(hours=hours), "many": hours, "counts": []}],
            bucket=f"S{hours}",
        )
    put(tmp_path, EVERY, [{"many": 99}], bucket="S9")
    hour_ms = 3_600_000

    def found(part: table_views.TablePart) -> list[int]:
        with table_views.open_views(tmp_path, part) as sql:
            return [row["many"] for row in table_views.query(sql, "SELECT many FROM every ORDER BY many")]

    assert found(table_views.whole_table(EVERY)) == [0, 1, 2, 99]
    assert found(table_views.files_between(EVERY, T0_MS + hour_ms, T0_MS + 2 * hour_ms)) == [1, 2, 99]
    assert found(table_views.files_between(EVERY, 0, T0_MS - 1)) == [99], "rows without a time are in every span"
    assert found(table_views.files_of_buckets(EVERY, {"S1", "S7"})) == [1]


def test_an_unreadable_current_file_is_reported(tmp_path: Path) -> None:
    put(tmp_path, EVERY, [{}])
    (tmp_path / "every" / "CURRENT").write_text("nonsense")
    with pytest.raises(StoreError, match=r"Cannot read .*CURRENT: .*run the pipeline again"):
        table_store.read_version(tmp_path, EVERY)


@pytest.mark.parametrize(
    "content", [b'{"version":7,"schema":3,"rows":0,"files":[{"slot":"x"}]}', b'{"format":9,"version":7}']
)
def test_a_table_of_another_format_version_is_rejected_with_a_remedy(tmp_path: Path, content: bytes) -> None:
    (tmp_path / EVERY.name).mkdir()
    (tmp_path / EVERY.name / table_format.CURRENT).write_bytes(content)
    with pytest.raises(
        StoreError, match=rf"has table format [19], expected {table_format.FORMAT}: .*Remove {tmp_path} and run"
    ):
        table_store.read_version(tmp_path, EVERY)


def tell(home: Path, *, behind: int | None = 0, away: str | None = None, read_ms: int | None = None) -> None:
    pipeline_status.write_status(home, SourceStatus("traces", T0_MS, 3, 90, behind, away, 1, read_ms))


def test_a_result_has_its_as_of_time_and_known_gaps(tmp_path: Path) -> None:
    assert pipeline_status.freshness(tmp_path, JOURNEYS, T0_MS) == Freshness(
        None,
        ("no journeys of messages yet: `ariane pipeline run trace` supplies them (needs Spark and Java 17 or newer)",),
    )
    put(tmp_path, TRACE_EVENTS, [{}], as_of_ms=T0_MS - 5, applied={"traces 0a-1b": 3})
    put(tmp_path, JOURNEYS, [{}], as_of_ms=T0_MS - 5, applied={"trace_events": 1})
    assert pipeline_status.freshness(tmp_path, JOURNEYS, T0_MS).warnings == (
        "message traces were never read: is `ariane pipeline run` running?",
    )
    tell(tmp_path)
    fresh = pipeline_status.freshness(tmp_path, JOURNEYS, T0_MS)
    assert fresh == Freshness(T0_MS - 5, ())
    assert fresh.is_complete
    tell(tmp_path, read_ms=T0_MS - 2)
    assert pipeline_status.freshness(tmp_path, JOURNEYS, T0_MS) == Freshness(T0_MS - 2, (), T0_MS - 2)
    stopped = pipeline_status.freshness(tmp_path, JOURNEYS, T0_MS + 180_000)
    assert (stopped.as_of_ms, len(stopped.warnings)) == (T0_MS - 2, 1), "all was read until it stopped"

    tell(tmp_path, behind=1200)
    assert pipeline_status.freshness(tmp_path, JOURNEYS, T0_MS).warnings == ("message traces: 1,200 pending messages",)
    tell(tmp_path, behind=1200, read_ms=T0_MS - pipeline_status.PENDING_MS - 1)
    assert len(pipeline_status.freshness(tmp_path, JOURNEYS, T0_MS).warnings) == 1
    tell(tmp_path, behind=1200, read_ms=T0_MS - 310_000)
    assert pipeline_status.freshness(tmp_path, JOURNEYS, T0_MS).is_complete, "newer messages wait for the next batch"
    tell(tmp_path, behind=None, away="ConnectionLost: refused")
    assert pipeline_status.freshness(tmp_path, JOURNEYS, T0_MS).warnings == (
        "message traces wait for a server: ConnectionLost: refused",
        "message traces: number of pending messages unknown",
    )
    tell(tmp_path)
    assert pipeline_status.freshness(tmp_path, JOURNEYS, T0_MS + 180_000).warnings == (
        "message traces have not been read for 3 minutes: is `ariane pipeline run` running?",
    )
    tell(tmp_path, read_ms=T0_MS + 9)
    put(tmp_path, TRACE_EVENTS, [{}], as_of_ms=T0_MS, applied={"traces 0a-1b": 4})
    assert pipeline_status.freshness(tmp_path, JOURNEYS, T0_MS).as_of_ms == T0_MS - 5, "it lacks what was read last"
    assert pipeline_status.freshness(tmp_path, JOURNEYS, T0_MS).warnings == (
        "journeys of messages do not include the newest message traces yet",
    )


def test_every_table_has_words_for_its_contents_and_a_job_that_supplies_it() -> None:
    assert table_contents.CONTENTS.keys() == {table.name for table in tables.ALL_TABLES}
    assert {job for _, job in table_contents.CONTENTS.values()} - {None} <= JOBS.keys()
    for table in tables.ALL_TABLES:
        assert "_" not in table_contents.no_data(table)


def test_an_invalid_status_file_is_reported(tmp_path: Path) -> None:
    tell(tmp_path)
    (tmp_path / "status" / "traces").write_text("{}")
    with pytest.raises(StoreError, match="is not a valid status file"):
        pipeline_status.read_statuses(tmp_path)
