"""The report of delayed messages, on small tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")

from ariane.reports import delay_report
from ariane.reports.report import Plot, Report, Table
from ariane.reports.tables import pipeline_status
from ariane.reports.tables.pipeline_status import SourceStatus
from ariane.tables import DELAYS, MESSAGES
from tables_on_disk import put

T0_MS = 1_700_000_000_000  # 2023-11-14 22:13:20
T0 = datetime.fromtimestamp(T0_MS / 1000, UTC)
HOUR = timedelta(hours=1)


def row(number: int, due: timedelta | None, lateness_ms: int | None = None, **more: Any) -> dict[str, Any]:
    due_at = None if due is None else T0 + due
    delivered_at = (
        due_at + timedelta(milliseconds=lateness_ms) if due_at is not None and lateness_ms is not None else None
    )
    return {
        "message_id": f"M{number}", "broker": "broker-a", "topic": "T", "kind": "level", "level": 3, "scheduled_at": due_at,
        "delivered_at": delivered_at, "lateness_ms": lateness_ms, "state": "pending" if lateness_ms is None else "delivered",
        "commit_log_offset": number, **more,
    }  # fmt: skip


def asked(home: Path, **more: Any) -> Report:
    span = {"since_ms": T0_MS - 3_600_000, "until_ms": T0_MS, "now_ms": T0_MS + 1000}
    return delay_report.report(home, **(span | more))


def part(report: Report, title: str) -> Any:
    (result,) = (section for section in report.sections if section.title == title)
    return result


def dicts(sheet: Table) -> list[dict[str, Any]]:
    return [dict(zip((field.name for field in sheet.columns), line, strict=True)) for line in sheet.rows]


def test_deliveries_are_reported_early_and_late_per_kind_and_level(tmp_path: Path) -> None:
    offs = [*range(1, 101), -5, -2000, 0]
    rows = [row(number, timedelta(minutes=-5), off) for number, off in enumerate(offs)]
    rows.append(row(200, timedelta(minutes=-5), 7, kind="time", level=None))
    rows.append(row(201, timedelta(minutes=-5), kind="time", level=None, state="cancelled"))
    rows.append(row(202, None, state="delivered", delivered_at=T0 - HOUR / 2))
    rows.append(row(203, timedelta(days=-2), 99_999))  # before the time that is asked about
    put(tmp_path, DELAYS, rows, as_of_ms=T0_MS)
    report = asked(tmp_path)
    level, time = dicts(part(report, "Deliveries"))
    assert level == {
        "kind": "level", "level": 3, "delivered": 104, "pending": 0, "cancelled": 0, "early": 2, "p50 early": 5,
        "p99 early": 2000, "max early": 2000, "on time or late": 101, "p50 late": 50, "p99 late": 99, "max late": 100,
        "unknown": 1,
    }  # fmt: skip
    assert (time["delivered"], time["cancelled"], time["early"], time["max early"], time["max late"]) == (
        1,
        1,
        0,
        None,
        7,
    )
    distances = {
        line["deviation"]: line["level"] for line in dicts(part(report, "Deviation from the due time")) if line["level"]
    }
    assert distances == {"more than 1 s early": 1, "up to 1 s early": 1, "0 to 100 ms late": 101}
    plot = part(report, "p99 of lateness")
    assert isinstance(plot, Plot)
    assert [(line.name, [value for _, value in line.points]) for line in plot.lines] == [
        ("level", [99.0]),
        ("time", [7.0]),
    ]
    assert report.as_of == T0


def test_pending_messages_are_counted_by_due_hour_with_overdue_ones(tmp_path: Path) -> None:
    rows = [
        row(1, timedelta(seconds=-5)),
        row(2, HOUR),
        row(3, HOUR, kind="retry"),
        row(4, 60 * 24 * HOUR),
        row(5, None),
    ]
    rows += [row(10 + number, timedelta(seconds=-60 - number)) for number in range(25)]
    put(tmp_path, DELAYS, rows, as_of_ms=T0_MS)
    report = asked(tmp_path)
    pending = part(report, "Pending by due hour")
    hour = datetime(2023, 11, 14, 22, tzinfo=UTC)
    assert pending.rows == (
        (None, 1, 0, 0, 1), (hour, 1, 0, 0, 1), (hour + HOUR, 1, 0, 1, 2), (hour + 60 * 24 * HOUR, 1, 0, 0, 1),
    )  # fmt: skip
    overdue = part(report, "Overdue")
    assert overdue.omitted_rows == 5
    assert dicts(overdue)[0] == {
        "message id": "M34", "kind": "level", "level": 3, "topic": "T", "broker": "broker-a",
        "due": T0 - timedelta(seconds=84), "overdue": 84_000,
    }  # fmt: skip


def test_omitted_hours_are_counted(tmp_path: Path) -> None:
    put(tmp_path, DELAYS, [row(number, number * HOUR) for number in range(60)], as_of_ms=T0_MS)
    sheet = part(asked(tmp_path), "Pending by due hour")
    assert (len(sheet.rows), sheet.omitted_rows) == (delay_report.HOURS_MAX, 60 - delay_report.HOURS_MAX)


def test_a_message_is_overdue_only_after_its_delivery_could_be_observed(tmp_path: Path) -> None:
    """Without sends the broker's time is unknown: a message is overdue if the pipeline is up to date without a delivery."""
    put(tmp_path, MESSAGES, [], as_of_ms=T0_MS, applied={"messages Q": 1})
    put(tmp_path, DELAYS, [row(1, timedelta(seconds=30))], as_of_ms=T0_MS, applied={"messages": 1})
    later_ms = T0_MS + 100_000

    def overdue(behind: int | None) -> tuple[int, bool]:
        (tmp_path / "status").mkdir(exist_ok=True)
        pipeline_status.write_status(
            tmp_path, SourceStatus("messages", later_ms, 1, 5, behind, None, 1, None if behind else later_ms)
        )
        report = asked(tmp_path, now_ms=later_ms)
        return len(part(report, "Overdue").rows), not report.warnings

    assert overdue(0) == (1, True)
    assert overdue(7) == (0, False)


def test_filters_apply_and_a_missing_table_is_reported(tmp_path: Path) -> None:
    empty = asked(tmp_path)
    assert empty.as_of is None
    assert empty.warnings
    assert part(empty, "Deliveries").rows == part(empty, "Deviation from the due time").rows == ()
    rows = [row(1, -HOUR / 2, 5), row(2, -HOUR / 2, 6, topic="U"), row(3, -HOUR / 2, 7, topic="%RETRY%G", kind="retry")]
    put(tmp_path, DELAYS, [*rows, row(4, HOUR, topic="U")], as_of_ms=T0_MS)
    for filters, most, waiting in (({"topic": "U"}, 6, 1), ({"group": "G"}, 7, 0), ({"topic": "T"}, 5, 0)):
        report = asked(tmp_path, **filters)
        assert [line["max late"] for line in dicts(part(report, "Deliveries"))] == [most]
        assert len(part(report, "Pending by due hour").rows) == waiting
