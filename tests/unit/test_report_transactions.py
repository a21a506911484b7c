"""The report of transactions, on small tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")

from ariane.reports import transaction_report
from ariane.reports.report import Plot, Report, Table
from ariane.tables import TRANSACTIONS
from tables_on_disk import put

T0_MS = 1_700_000_000_000
T0 = datetime.fromtimestamp(T0_MS / 1000, UTC)


def row(number: int, decision: str, ms: int | None = None, *, age_s: float = 60, **more: Any) -> dict[str, Any]:
    half_stored_at = T0 - timedelta(seconds=age_s)
    return {
        "message_id": f"M{number}", "broker": "broker-a", "topic": "T", "producer_group": "P", "half_stored_at": half_stored_at,
        "half_count": 1, "checks": 0, "decision": decision, "decision_ms": ms, "commits": 1 if decision == "commit" else 0,
        "last_copy_at": half_stored_at,
        "decided_at": None if ms is None else half_stored_at + timedelta(milliseconds=ms), "offset_message_id": f"OFF-{number}",
        **more,
    }  # fmt: skip


def asked(home: Path, **more: Any) -> Report:
    span = {"since_ms": T0_MS - 3_600_000, "until_ms": T0_MS, "now_ms": T0_MS}
    return transaction_report.report(home, **(span | more))


def part(report: Report, title: str) -> Any:
    (result,) = (section for section in report.sections if section.title == title)
    return result


def dicts(sheet: Table) -> list[dict[str, Any]]:
    return [dict(zip((field.name for field in sheet.columns), line, strict=True)) for line in sheet.rows]


ROWS = [
    *(row(number, "commit", number) for number in range(1, 101)),
    row(101, "commit", 60_005, checks=1, from_check=True, commits=2),
    row(102, "rollback", 12),
    row(103, "unknown", 13, reported_state="COMMIT_MESSAGE"),
    row(104, "discarded", 900_000, checks=15, reported_state="UNKNOW"),
    row(105, "open", checks=2, reported_state="UNKNOW"),
    row(106, "open", age_s=5, topic="U"),
    row(107, "open", age_s=2 * 86_400, checks=3),  # older than what is asked about, and still open
    row(108, "open", half_stored_at=None),
    row(109, "commit", half_stored_at=None, decided_at=T0, half_count=None, checks=None),
]


def test_transactions_are_counted_by_decision_and_time_to_decision(tmp_path: Path) -> None:
    put(tmp_path, TRANSACTIONS, ROWS, as_of_ms=T0_MS)
    report = asked(tmp_path)
    first, second = dicts(part(report, "Decisions"))
    assert first == {
        "topic": "T", "group": "P", "transactions": 106, "committed": 102, "rolled back": 1, "ended, decision unknown": 1,
        "discarded": 1, "open": 1, "last answer UNKNOWN": 2, "committed twice": 1,
    }  # fmt: skip
    assert (second["topic"], second["transactions"], second["open"]) == ("U", 1, 1)
    times = {(line["decision"], line["checked"]): line for line in dicts(part(report, "Time to decision"))}
    quick = times["commit", False]
    assert (quick["transactions"], quick["p50"], quick["p90"], quick["p99"], quick["max"]) == (101, 50, 90, 99, 100)
    assert quick["time unknown"] == 1
    assert (times["commit", True]["max"], times["commit", True]["decided by a check"]) == (60_005, 1)
    checks = {line["checks"]: line for line in dicts(part(report, "Checks"))}
    assert (checks[0]["transactions"], checks[15]["discarded"], checks[None]["committed"]) == (103, 1, 1)
    plot = part(report, "Transactions by decision")
    assert isinstance(plot, Plot)
    assert {line.name: sum(value or 0 for _, value in line.points) for line in plot.lines} == {
        "commit": 101, "rollback": 1, "unknown": 1, "discarded": 1, "open": 2,
    }  # fmt: skip


def test_open_transactions_are_listed_by_age_regardless_of_the_time_range(tmp_path: Path) -> None:
    put(tmp_path, TRANSACTIONS, ROWS, as_of_ms=T0_MS)
    report = asked(tmp_path)
    assert part(report, "Open by age").rows == (
        ("to 10 s", 1, 0, 0, 0, 0), ("to 1 min", 1, 0, 1, 2, 1), ("older", 1, 1, 1, 3, 0), ("unknown", 1, 0, 0, 0, 0),
    )  # fmt: skip
    oldest = dicts(part(report, "Oldest open"))
    assert [(line["message id"], line["age"]) for line in oldest] == [
        ("M108", None), ("M107", 172_800_000), ("M105", 60_000), ("M106", 5000),
    ]  # fmt: skip
    assert oldest[1]["offset id"] == "OFF-107"
    assert [line["message id"] for line in dicts(part(report, "Discarded"))] == ["M104"]
    assert (report.as_of, part(asked(tmp_path, now_ms=T0_MS + 7000), "Oldest open").rows[1][5]) == (T0, 172_807_000)


def test_omitted_rows_are_counted(tmp_path: Path) -> None:
    put(tmp_path, TRANSACTIONS, [row(number, "open", age_s=number) for number in range(30)], as_of_ms=T0_MS)
    sheet = part(asked(tmp_path), "Oldest open")
    assert (len(sheet.rows), sheet.omitted_rows, sheet.rows[0][0]) == (20, 10, "M29")


def test_filters_apply_and_a_missing_table_is_reported(tmp_path: Path) -> None:
    empty = asked(tmp_path)
    assert empty.as_of is None
    assert empty.warnings
    assert all(not section.rows for section in empty.sections if isinstance(section, Table))
    put(tmp_path, TRANSACTIONS, [*ROWS, row(200, "rollback", 5, producer_group="Q")], as_of_ms=T0_MS)
    assert [line["transactions"] for line in dicts(part(asked(tmp_path, group="Q"), "Decisions"))] == [1]
    assert part(asked(tmp_path, topic="U"), "Oldest open").rows[0][0] == "M106"
