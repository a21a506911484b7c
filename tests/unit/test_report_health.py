"""The health report on small Parquet files: partial rows are summed, unknown is not zero, omitted data is reported."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")
from ariane.reports import health_report
from ariane.reports.report import Report, Table
from ariane.reports.tables import pipeline_status
from ariane.tables import HEALTH
from tables_on_disk import put

T0_MS = 1_700_000_040_000  # a whole minute
T0 = datetime.fromtimestamp(T0_MS / 1000, UTC)
HOUR_MS = 3_600_000


def row(kind: str, count: int = 1, *, minutes: int = 0, example: str = "M", **other: Any) -> dict[str, Any]:
    time = T0 + timedelta(minutes=minutes)
    examples = [{"worst": other.get("worst"), "message_id": example, "at": time, "detail": ""}]
    empty = dict.fromkeys(HEALTH.column_names)
    return empty | {"kind": kind, "minute": time, "topic": "T", "count": count, "examples": examples} | other


def asked(home: Path, *rows: dict[str, Any], now_ms: int = T0_MS + HOUR_MS, **filters: Any) -> Report:
    put(home, HEALTH, rows, as_of_ms=now_ms)
    return health_report.report(home, since_ms=T0_MS, until_ms=T0_MS + HOUR_MS, now_ms=now_ms, **filters)


def sheet(report: Report, title: str) -> Table:
    (result,) = (part for part in report.sections if isinstance(part, Table) and part.title.startswith(f"{title}:"))
    return result


def test_partial_rows_are_summed_and_sorted_by_severity(tmp_path: Path) -> None:
    ahead = {"host": "10.0.0.7"}
    report = asked(
        tmp_path,
        row("clock-ahead", 3, worst=1200, example="A", **ahead),
        row("clock-ahead", 4, worst=900, minutes=1, example="B", **ahead),
        row("clock-ahead", 1, worst=5000, example="C", host="10.0.0.8"),
        row("clock-ahead", 9, worst=9999, minutes=-5, **ahead),
    )
    clocks = sheet(report, "Producers' clocks ahead of the broker's")
    assert clocks.title.endswith(": 8")
    assert clocks.rows == (
        ("10.0.0.7", "T", 7, 1200, T0 + timedelta(minutes=1), "A"),
        ("10.0.0.8", "T", 1, 5000, T0, "C"),
    )


def test_never_consumed_is_stored_minus_consumed_by_topic_tag_and_group(tmp_path: Path) -> None:
    report = asked(
        tmp_path,
        row("stored", 10, cause="a", consumer_group="G H"),
        row("stored", 2, cause="a", consumer_group="G", example="no H"),
        row("stored", 5, minutes=20, cause="a", example="nobody"),
        row("stored", 7, cause="b", consumer_group="H"),
        row("stored", 3, topic="U", example="unread"),
        row("stored", 99, minutes=55, cause="a"),
        row("stored", 4, cause="a", consumer_group="?"),
        row("stored", 1, minutes=-60, cause="a", consumer_group="I"),
    )
    never = sheet(report, "Never consumed")
    late = T0 + timedelta(minutes=20)
    assert [line[:5] for line in never.rows] == [
        ("T", "I", 17, T0, late),
        ("T", "H", 7, T0, late),
        ("T", "G", 5, late, late),
        ("U", None, 3, T0, T0),
    ]
    assert {line[1]: line[5] for line in never.rows}["G"] == "nobody"


def test_never_consumed_is_known_until_now_if_everything_is_read_without_new_traces(tmp_path: Path) -> None:
    """The newest trace is half an hour old and the pipeline is up to date: dead consumers must be visible."""
    now_ms = T0_MS + HOUR_MS
    put(
        tmp_path,
        HEALTH,
        [row("stored", 5, minutes=40)],
        as_of_ms=T0_MS + HOUR_MS // 2,
        applied={"traces x": 1, "messages y": 1},
    )
    for source, at_ms in (("traces", now_ms), ("messages", now_ms - 60_000)):
        pipeline_status.write_status(tmp_path, pipeline_status.SourceStatus(source, at_ms, 1, 10, 0, None, 1, at_ms))
    report = health_report.report(tmp_path, since_ms=T0_MS, until_ms=now_ms, now_ms=now_ms)
    assert [line[:3] for line in sheet(report, "Never consumed").rows] == [("T", None, 5)]


def test_a_table_that_starts_after_the_requested_time_is_reported(tmp_path: Path) -> None:
    put(tmp_path, HEALTH, [row("stored", 5, minutes=2)], as_of_ms=T0_MS + HOUR_MS)
    gaps = [
        health_report.report(tmp_path, since_ms=T0_MS + ms, until_ms=T0_MS + HOUR_MS, now_ms=T0_MS + HOUR_MS).warnings
        for ms in (0, 90_000)
    ]
    assert [any("the tables start at 2023-11-14 22:16 UTC" in gap for gap in some) for some in gaps] == [True, False]


def test_topic_and_group_filters_apply(tmp_path: Path) -> None:
    dead = {"cause": "exception", "worst": 16}
    report = asked(
        tmp_path,
        row("dead-letter", 1, consumer_group="G", **dead),
        row("dead-letter", 2, consumer_group="H", **dead),
        row("dead-letter", 4, consumer_group="G", **(dead | {"topic": "U"})),
        topic="T",
        group="G",
    )
    assert [line[:4] for line in sheet(report, "Dead letters").rows] == [("G", "T", "exception", 1)]


def test_producers_and_groups_without_traces_are_listed(tmp_path: Path) -> None:
    report = asked(
        tmp_path,
        row("sent", 30, host="p1", cause="traced"), row("sent", 10, host="p1", cause="untraced"),
        row("sent", 5, host="p2", cause="untraced"), row("sent", 5, host="p3", cause="traced"),
        row("retried", 2, consumer_group="silent"), row("retried", 2, consumer_group="G"),
        row("stored", 1, consumer_group="G H"),
    )  # fmt: skip
    assert sheet(report, "Producers without traces").rows == (("p1", "T", 10, 40, 25.0), ("p2", "T", 5, 5, 100.0))
    assert sheet(report, "Groups without traces").rows == (("silent", "T", 2, T0),)


def test_omitted_rows_are_counted(tmp_path: Path) -> None:
    rows = [row("stored-twice", host=f"h{number:02}", worst=2) for number in range(25)]
    twice = sheet(asked(tmp_path, *rows), "Stored twice")
    assert (len(twice.rows), twice.omitted_rows, twice.title) == (20, 5, "Stored twice: 25")


def test_missing_tables_are_reported(tmp_path: Path) -> None:
    report = health_report.report(tmp_path, since_ms=T0_MS, until_ms=T0_MS + 1, now_ms=T0_MS + 2)
    assert report.as_of is None
    assert any("no findings about messages yet" in gap for gap in report.warnings)
    assert any("no headers of messages yet" in gap and "clock errors" in gap for gap in report.warnings)
