"""The lag report on small published tables: sums over brokers, unknown values, misleading console values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")

from ariane.reports import lag_report
from ariane.reports.report import Plot, Report, Table, Value
from ariane.reports.tables import pipeline_status
from ariane.tables import CONSUMPTION, SAMPLES_BROKERS, SAMPLES_COUNTERS, SAMPLES_QUEUES
from tables_on_disk import put

T0 = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
T0_MS = round(T0.timestamp() * 1000)
AS_OF_MS = T0_MS + 185_000


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def minute(number: int, broker: str = "a", **other: Any) -> dict[str, Any]:
    """A row of consumption."""
    usual = {
        "queues": 4, "seconds": 60.0, "produced_tps": 5.0, "consumed_tps": 10.0, "delivered_master_tps": 10.0,
        "delivered_slaves_tps": 0.0, "lag": 600, "lag_change": -300, "oldest_age_ms": 4000, "removed": 0, "drain_s": 120.0,
        "flags": [],
    }  # fmt: skip
    who = {"window_start": at(60 * number), "broker": broker, "topic": "T", "consumer_group": "G"}
    return who | usual | other


def broker(second: int, broker_id: int = 0, **other: Any) -> dict[str, Any]:
    """A row of samples_brokers."""
    usual = {
        "collector": "host", "stored_at": at(second), "broker": "a", "cluster": "c", "addr": f"10.0.0.{broker_id}:10911",
        "interval_ms": 5000, "booted_at": at(-9), "put_total": 10 * second, "get_total": 20 * second, "log_max": 1000,
        "skipped_groups": 0, "dropped_samples": 0, "failed_requests": [],
    }  # fmt: skip
    return {"sampled_at": at(second), "broker_id": broker_id} | usual | other


def reported(
    home: Path, minutes: list[dict[str, Any]], brokers: list[dict[str, Any]] | None = None, **filters: str
) -> Report:
    reports = [broker(180), broker(185)] if brokers is None else brokers
    inputs = (SAMPLES_BROKERS, SAMPLES_QUEUES, SAMPLES_COUNTERS)
    for table in inputs:
        put(home, table, reports if table is SAMPLES_BROKERS else [], as_of_ms=AS_OF_MS, applied={"samples x": 1})
    put(home, CONSUMPTION, minutes, as_of_ms=AS_OF_MS, applied={table.name: 1 for table in inputs})
    pipeline_status.write_status(home, pipeline_status.SourceStatus("samples", T0_MS + 185_000, 1, 10, 0, None))
    return lag_report.report(home, since_ms=T0_MS, until_ms=T0_MS + 190_000, now_ms=T0_MS + 190_000, **filters)


def sheet(report: Report, title: str) -> list[dict[str, Value]]:
    (result,) = (part for part in report.sections if isinstance(part, Table) and part.title == title)
    return [dict(zip((field.name for field in result.columns), row, strict=True)) for row in result.rows]


def plot(report: Report, title: str) -> Plot:
    (result,) = (part for part in report.sections if isinstance(part, Plot) and part.title == title)
    return result


def test_group_values_are_sums_over_brokers_in_the_last_complete_minute(tmp_path: Path) -> None:
    last = {"lag": 1, "consumed_tps": 1.0}  # a minute that has just begun
    report = reported(
        tmp_path, [minute(1), minute(2), minute(2, "b", lag=30, drain_s=6.0, oldest_age_ms=9000), minute(3, **last)]
    )
    assert report.as_of == at(185)
    assert report.warnings == ("the tables start at 2026-11-21 10:01 UTC: no data before",)
    (row,) = sheet(report, "Groups")
    assert row == {
        "group": "G", "topic": "T", "minute": at(120), "lag": 630, "change": -600, "in": 10.0, "consumed": 20.0,
        "by slaves": 0.0, "oldest": 9000, "ETA": 120_000, "remarks": "",
    }  # fmt: skip
    assert [item["share of group"] for item in sheet(report, "By broker")] == [50.0, 50.0]
    assert sheet(report, "Misleading TPS in consoles") == []


@pytest.mark.parametrize("drain_s", [None, 50_000.0], ids=["in balance", "a chance difference"])
def test_a_broker_that_keeps_up_does_not_hide_when_the_lag_of_another_ends(
    tmp_path: Path, drain_s: float | None
) -> None:
    follows = {"lag": 3, "lag_change": 0, "produced_tps": 5.0, "consumed_tps": 5.0, "drain_s": drain_s}
    (row,) = sheet(reported(tmp_path, [minute(1), minute(2), minute(2, "b", **follows), minute(3)]), "Groups")
    assert row["ETA"] == 120_000


@pytest.mark.parametrize("values", [{"lag": 600}, {"lag": None}, {"lag": 0, "consumed_tps": None, "drain_s": 0.0}])
def test_the_group_drains_when_its_last_broker_does(tmp_path: Path, values: dict[str, Any]) -> None:
    other = {"produced_tps": 5.0, "consumed_tps": 5.0, "drain_s": None} | values
    (row,) = sheet(reported(tmp_path, [minute(1), minute(2), minute(2, "b", **other), minute(3)]), "Groups")
    assert row["ETA"] == (120_000 if values["lag"] == 0 else None)


def test_the_consoles_tps_is_shown_next_to_the_actual_one_if_a_slave_serves(tmp_path: Path) -> None:
    served = {"delivered_master_tps": 0.0, "delivered_slaves_tps": 12.0}
    report = reported(tmp_path, [minute(1, **served), minute(2, **served), minute(3, **served)])
    (row,) = sheet(report, "Groups")
    assert (row["by slaves"], row["consumed"], row["ETA"], row["change"]) == (100.0, 10.0, 120_000, -300)
    (reports,) = sheet(report, "Misleading TPS in consoles")
    assert (reports["TPS in consoles"], reports["consumed"], reports["by slaves"]) == (0.0, 10.0, 12.0)


def test_misleading_console_values_in_any_minute_are_reported(tmp_path: Path) -> None:
    """The slave served in the first two minutes only; one broker is not known in the second."""
    served = {"delivered_master_tps": 0.0, "delivered_slaves_tps": 12.0, "lag": 900, "oldest_age_ms": 8000}
    unknown = dict.fromkeys(("delivered_master_tps", "delivered_slaves_tps", "lag"))
    rows = [minute(0, **served), minute(1, **served), minute(1, "b", **unknown, flags=["master unreachable"])]
    rows += [minute(number, name) for number in (2, 3) for name in "ab"]
    report = reported(tmp_path, rows)
    (reports,) = sheet(report, "Misleading TPS in consoles")
    assert (reports["minutes"], reports["of"], reports["last"], reports["worst"]) == (2, 3, at(60), at(0))
    assert (reports["TPS in consoles"], reports["consumed"], reports["by slaves"], reports["lag"]) == (0, 10, 12, 900)


def test_a_console_value_of_zero_while_a_group_commits_is_reported(tmp_path: Path) -> None:
    rows = [minute(0, delivered_master_tps=0.0), minute(1), minute(2)]
    (reports,) = sheet(reported(tmp_path, rows), "Misleading TPS in consoles")
    assert (reports["minutes"], reports["of"], reports["worst"]) == (1, 2, at(0))


def test_the_time_range_shows_the_maximum_lag_and_every_warning(tmp_path: Path) -> None:
    away = minute(1, produced_tps=None, consumed_tps=None, lag=None, flags=["master unreachable"])
    early = minute(0, produced_tps=35.0, lag=5000, oldest_age_ms=70_000, delivered_slaves_tps=30.0)
    report = reported(tmp_path, [early, away, minute(2), minute(3, lag=9999)])
    (row,) = sheet(report, "Groups over the time range")
    assert row == {
        "group": "G", "topic": "T", "minutes": 3, "in": 20.0, "consumed": 10.0, "by slaves": 50.0, "max lag": 5000,
        "at": at(0), "oldest": 70_000, "remarks": "master unreachable (1 min)",
    }  # fmt: skip
    assert sheet(report, "Groups")[0]["lag"] == 600, "the last whole minute"
    assert sheet(reported(tmp_path / "other", [minute(0)], group="H"), "Groups over the time range") == []


def test_a_partly_covered_minute_counts_by_its_time(tmp_path: Path) -> None:
    first = minute(0, seconds=20.0, produced_tps=80.0, consumed_tps=40.0)
    (row,) = sheet(reported(tmp_path, [first, minute(1), minute(2)]), "Groups over the time range")
    assert (row["in"], row["consumed"]) == ((80 * 20 + 5 * 60) / 80, (40 * 20 + 10 * 60) / 80)


def test_past_outages_of_a_broker_or_the_collector_are_reported(tmp_path: Path) -> None:
    samples = [
        broker(second, error="refused" if second == 5 else None, dropped_samples=9 if second == 5 else 0)
        for second in (0, 5, 80, 180)
    ]
    report = reported(tmp_path, [minute(0), minute(1)], [*samples, broker(185)])
    (row,) = sheet(report, "Brokers")
    assert (row["state"], row["unavailable"]) == ("available", 20.0)
    assert report.warnings == (
        "no samples from 11-21 10:01:20 to 11-21 10:03:00 UTC, and 1 more gaps",
        "the collector discarded 9 samples: no broker accepted them",
    )


def test_a_value_missing_from_one_broker_is_unknown_not_zero(tmp_path: Path) -> None:
    nothing = dict.fromkeys(set(CONSUMPTION.column_names) - {"window_start", "broker", "topic", "consumer_group"})
    away = minute(2, "b") | nothing | {"flags": ["master unreachable"]}
    report = reported(tmp_path, [minute(1), minute(1, "b"), minute(2), away, minute(3)])
    (row,) = sheet(report, "Groups")
    unknown = {name for name, value in row.items() if value is None}
    assert unknown == {"lag", "change", "in", "consumed", "by slaves", "ETA"}
    assert row["remarks"] == "master unreachable"
    lags = [point[1] for point in plot(report, "Lag").lines[0].points]
    assert lags == [1200.0, None, None]


def test_a_broker_without_rows_in_the_minute_is_reported(tmp_path: Path) -> None:
    (row,) = sheet(reported(tmp_path, [minute(1), minute(1, "b"), minute(2), minute(3)]), "Groups")
    assert (row["lag"], row["remarks"]) == (None, "no data for this minute")


def test_minutes_without_samples_are_gaps_in_the_plot(tmp_path: Path) -> None:
    report = reported(tmp_path, [minute(0), minute(3)])
    (line,) = plot(report, "Lag").lines
    assert line.points == ((at(0), 600.0), (at(60), None), (at(120), None), (at(180), 600.0))
    names = [item.name for item in plot(report, "Messages in and consumed").lines]
    assert names == ["G · T in", "G · T consumed"]


def test_filters_apply_and_rows_are_sorted(tmp_path: Path) -> None:
    rows = [minute(1, consumer_group=f"G{number}", lag=number, topic=f"T{number % 2}") for number in range(8)]
    rows.append(minute(1, consumer_group="lost", lag=None))
    report = reported(tmp_path / "all", rows)
    assert [row["group"] for row in sheet(report, "Groups")] == ["lost", "G7", "G6", "G5", "G4", "G3", "G2", "G1", "G0"]
    assert len(plot(report, "Lag").lines) == lag_report.LINES_MAX
    assert plot(report, "Lag").note.startswith("The 5 of 9 groups with the highest lag.")
    (row,) = sheet(reported(tmp_path / "one", rows, group="G3"), "Groups")
    assert row["lag"] == 3
    assert len(sheet(reported(tmp_path / "topic", rows, topic="T1"), "Groups")) == 4


def test_omitted_rows_are_counted(tmp_path: Path) -> None:
    rows = [minute(1, consumer_group=f"G{number}") for number in range(lag_report.ROWS_MAX + 3)]
    first = reported(tmp_path, rows).sections[0]
    assert isinstance(first, Table)
    assert (len(first.rows), first.omitted_rows) == (lag_report.ROWS_MAX, 3)


def test_brokers_are_listed_with_rates_and_replication_lag(tmp_path: Path) -> None:
    samples = [
        broker(180), broker(185), broker(185, stored_at=at(187)), broker(180, 1, log_max=300),
        broker(185, 1, log_max=400, booted_at=at(184), put_total=3),
    ]  # fmt: skip
    master, slave = sheet(reported(tmp_path, [minute(1)], samples), "Brokers")
    assert (master["role"], master["stored"], master["delivered"], master["replication lag"]) == (
        "master",
        10.0,
        20.0,
        None,
    )
    # It was restarted between the two samples, so its counters cannot be compared.
    assert (slave["role"], slave["stored"], slave["delivered"], slave["replication lag"]) == (
        "slave 1",
        None,
        None,
        600,
    )


def test_reasons_for_missing_samples_are_reported(tmp_path: Path) -> None:
    early = [broker(60, dropped_samples=7, skipped_groups=2)]
    report = reported(tmp_path / "late", [minute(0)], early)
    assert report.warnings == (
        "no samples since 10:01:00 UTC: is `ariane collect` running?",
        "the collector discarded 7 samples: no broker accepted them",
        "groups are sampled in turns: there are more than the collector polls per round (--groups-max)",
    )
    gaps = reported(tmp_path / "none", [], []).warnings
    assert gaps == ("no samples in the last 10 minutes: is `ariane collect` running?",)
    empty = lag_report.report(tmp_path / "empty", since_ms=0, until_ms=T0_MS, now_ms=T0_MS)
    assert empty.as_of is None
    assert empty.warnings[0].startswith("no lag and rates of groups yet")


def test_the_share_of_slaves_that_serve_everything_is_exactly_100() -> None:
    for messages in range(1, 200):
        tps = messages / 60
        group = lag_report.GroupSnapshot("G", "T", T0, 1, -1, 0.0, tps, 0.0, tps, None, None, ())
        assert group.slaves_share == 100.0
