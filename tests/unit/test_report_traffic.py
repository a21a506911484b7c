"""Reports tps and latency: partial rows are summed, unknown is not zero, percentiles cover all summed histograms."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")

from traffic_tables import T0_MS, at, both, consumed, ms, put, sent, slow

from ariane.reports import REPORTS
from ariane.reports.report import Plot, Report, Table
from ariane.reports.tps_report import LINES_MAX, ROWS_MAX
from ariane.tables import CLOCKS, TRACE_EVENTS
from ariane.tables.declarations.traffic import EXCLUSION_COUNTERS

OF_TRAFFIC = ("tps", "latency")


def asked(name: str, home: Path, since_s: float = 0, until_s: float = 600, **filters: Any) -> Report:
    return REPORTS[name](home, since_ms=ms(since_s), until_ms=ms(until_s), now_ms=ms(until_s), **filters)


def sheet(report: Report, title: str) -> list[dict[str, Any]]:
    (result,) = (part for part in report.sections if isinstance(part, Table) and part.title == title)
    return [dict(zip((field.name for field in result.columns), row, strict=True)) for row in result.rows]


def plot(report: Report, title: str) -> dict[str, list[float | None]]:
    (result,) = (part for part in report.sections if isinstance(part, Plot) and part.title.startswith(title))
    return {line.name: [value for _, value in line.points] for line in result.lines}


def test_partial_rows_of_a_minute_are_summed(tmp_path: Path) -> None:
    rows = [
        sent(-1, 1),
        sent(0, 30),
        sent(0, 30, client_host="10.0.0.9"),
        sent(1, 12, successes=9, failures=3),
        consumed(1, 6),
    ]
    both(tmp_path, rows, [], as_of_s=120)
    report = asked("tps", tmp_path)
    (first,), (second,) = (sheet(report, f"{name} by topic and group") for name in ("Sent", "Consumed"))
    assert first == {
        "topic": "orders", "group": "shop", "hosts": 2, "messages": 72, "mean": 0.6, "peak": 1.0,
        "OK": pytest.approx(100 * 69 / 72), "failed": 3, "bytes": 60.0,
    }  # fmt: skip
    assert (second["mean"], second["peak"], second["open"]) == (0.05, 0.1, 0)


def test_a_rate_below_one_per_second_is_not_zero(tmp_path: Path) -> None:
    both(tmp_path, [sent(-1, 1), sent(0, 12)], [], as_of_s=60)
    report = asked("tps", tmp_path)
    assert sheet(report, "Sent by topic and group")[0]["mean"] == 0.2
    assert plot(report, "Sent by")["orders · shop"] == [0.2]


def test_minutes_without_data_are_zero_only_if_they_are_known(tmp_path: Path) -> None:
    # Minute 1: another topic only; minute 2: no traces; minute 4: complete for half of it.
    rows = [sent(-1, 1), sent(0, 60), sent(1, 6, topic="other"), sent(3, 60), sent(4, 30)]
    both(tmp_path, rows, [], as_of_s=270)
    report = asked("tps", tmp_path)
    assert plot(report, "Sent by") == {
        "orders · shop": [1.0, 0.0, None, 1.0, None],
        "other · shop": [0.0, 0.1, None, 0.0, None],
    }
    steps = sheet(report, "By minute, newest first")
    assert [(row["complete"], row["sent"], row["TPS out"]) for row in reversed(steps)] == [
        (True, 60, 1.0), (True, 6, 0.1), (True, None, None), (True, 60, 1.0), (False, 30, None),
    ]  # fmt: skip
    assert [row["start"] for row in steps] == [at(60 * minute) for minute in reversed(range(5))]
    only = plot(asked("tps", tmp_path, topic="other"), "Sent by")
    assert only == {"other · shop": [0.0, 0.1, None, 0.0, None]}, "a filter changes nothing of what is known"


def test_the_first_minute_of_the_table_is_incomplete(tmp_path: Path) -> None:
    both(tmp_path, [sent(2, 6), sent(3, 6)], [], as_of_s=240)
    steps = sheet(asked("tps", tmp_path), "By minute, newest first")
    assert [(row["complete"], row["sent"]) for row in steps] == [(True, 6), (False, 6)]
    for name in OF_TRAFFIC:
        warning = f"the tables start at {at(120):%Y-%m-%d %H:%M} UTC: no data before"
        assert warning in REPORTS[name](tmp_path, since_ms=ms(0), until_ms=ms(240), now_ms=ms(240)).warnings
        assert REPORTS[name](tmp_path, since_ms=ms(180), until_ms=ms(240), now_ms=ms(240)).warnings == ()


@pytest.mark.parametrize("is_long", [False, True])
def test_a_slow_client_clock_does_not_change_the_start_of_the_tables(tmp_path: Path, is_long: bool) -> None:
    hour, two_days, three_days = 60, 2 * 1440, 3 * 1440
    slow_one = [sent(minute - two_days + 70, 5, topic="slow") for minute in range(60)]
    rows = [sent(minute, 60) for minute in range(hour)]
    both(tmp_path, [sent(-three_days, 5, topic="slow"), *slow_one, *rows], [], as_of_s=60 * hour)
    put(tmp_path, TRACE_EVENTS, [{"trace_stored_at": at(second)} for second in (12, 3600)], as_of_s=60 * hour)
    since_s = 60 * (hour - two_days) if is_long else -600
    tps = asked("tps", tmp_path, since_s, 60 * hour)
    (row,) = sheet(tps, "Sent by topic and group")
    assert (row["topic"], row["messages"], row["mean"], row["peak"]) == ("orders", 3600, 1.0, 1.0)
    assert ("300 messages excluded: their clients' clocks are before" in tps.sections[0].note) == is_long
    begins = {"tps": 0, "latency": 0 if not is_long else -(T0_MS // 1000 % 600)}
    for name, seconds in begins.items():
        report = asked(name, tmp_path, since_s, 60 * hour)
        assert f"the tables start at {at(seconds):%Y-%m-%d %H:%M} UTC: no data before" in report.warnings
    (send,) = sheet(asked("latency", tmp_path, since_s, 60 * hour), "Send")
    assert (send["topic"], send["messages"]) == ("orders", 3600)


def test_messages_sent_just_before_their_trace_was_stored_are_known(tmp_path: Path) -> None:
    both(tmp_path, [sent(0, 6)], [], as_of_s=90)
    put(tmp_path, TRACE_EVENTS, [{"trace_stored_at": at(62)}], as_of_s=90)
    assert sheet(asked("tps", tmp_path), "Sent by topic and group")[0]["messages"] == 6


def test_the_success_rate_covers_completed_consumptions_only(tmp_path: Path) -> None:
    both(tmp_path, [consumed(0, 4, successes=1, failures=1), consumed(0, 2, topic="open", successes=0)], [], as_of_s=60)
    ended, still_open = sheet(asked("tps", tmp_path), "Consumed by topic and group")
    assert (ended["OK"], ended["open"]) == (50.0, 2)
    assert (still_open["OK"], still_open["open"]) == (None, 2)


def test_messages_after_the_known_time_are_excluded_and_reported(tmp_path: Path) -> None:
    both(tmp_path, [sent(0, 6), sent(5, 7)], [], as_of_s=90)
    report = asked("tps", tmp_path)
    assert sheet(report, "Sent by topic and group")[0]["messages"] == 6
    assert "7 messages excluded" in report.sections[0].note


def test_omitted_rows_and_plot_lines_are_reported(tmp_path: Path) -> None:
    both(tmp_path, [sent(0, 1 + number, topic=f"t{number}") for number in range(ROWS_MAX + 5)], [], as_of_s=90)
    report = asked("tps", tmp_path)
    assert isinstance(report.sections[0], Table)
    assert (len(report.sections[0].rows), report.sections[0].omitted_rows) == (ROWS_MAX, 5)
    assert isinstance(report.sections[1], Plot)
    assert len(report.sections[1].lines) == LINES_MAX
    assert f"{ROWS_MAX + 5 - LINES_MAX} more" in report.sections[1].note


def test_two_days_use_longer_buckets_with_the_same_rates(tmp_path: Path) -> None:
    both(tmp_path, [sent(minute, 60) for minute in range(0, 2880)], [], as_of_s=2880 * 60)
    report = asked("tps", tmp_path, until_s=2880 * 60)
    values = plot(report, "Sent by")["orders · shop"]
    assert len(values) <= 720
    assert set(values[1:-1]) == {1.0}
    assert sheet(report, "Sent by topic and group")[0]["peak"] == 1.0


@pytest.mark.parametrize("name", OF_TRAFFIC)
def test_an_empty_home_has_no_data(tmp_path: Path, name: str) -> None:
    report = asked(name, tmp_path)
    assert report.as_of is None
    assert re.fullmatch(
        r"no [a-z ]+ yet: `ariane pipeline run traffic` supplies them \(needs Spark.*\)", report.warnings[0]
    )
    assert all(not (part.rows if isinstance(part, Table) else part.lines) for part in report.sections)


def test_percentiles_cover_all_hosts_and_time_buckets(tmp_path: Path) -> None:
    rows = [
        sent(0, 50, send=range(1, 51)),
        sent(0, 50, send=range(51, 101), client_host="10.0.0.9"),
        sent(1, 0, send=[900]),
    ]
    both(tmp_path, rows, [], as_of_s=120)
    (row,) = sheet(asked("latency", tmp_path, until_s=120), "Send")
    assert row == {
        "topic": "orders", "group": "shop", "messages": 101, "p50": pytest.approx(51, rel=0.01),
        "p90": pytest.approx(91, rel=0.01), "p99": pytest.approx(100, rel=0.01), "max": 900, "not included": 0,
    }  # fmt: skip
    series = plot(asked("latency", tmp_path), "Send: p99")["orders · shop"]
    assert series == [pytest.approx(99, rel=0.01), pytest.approx(900, rel=0.01)]


def test_no_percentile_exceeds_the_exact_maximum(tmp_path: Path) -> None:
    rows = [sent(0, 3, send=[1, 2, 614]), sent(1, 1, send=[614])]
    both(tmp_path, rows, [], as_of_s=120)
    (row,) = sheet(asked("latency", tmp_path, until_s=120), "Send")
    assert (row["p90"], row["p99"], row["max"]) == (614, 614, 614)
    assert plot(asked("latency", tmp_path), "Send: p99")["orders · shop"] == [614, 614]


def test_latency_filters_apply_and_null_topics_are_included(tmp_path: Path) -> None:
    rows = [consumed(0, 2), consumed(0, 3, client_group="audit"), consumed(2, 1, topic=None, cost=[70])]
    both(tmp_path, rows, [], as_of_s=180)
    report = asked("latency", tmp_path)
    assert [(row["topic"], row["group"], row["messages"]) for row in sheet(report, "Consumption")] == [
        (None, "billing", 1), ("orders", "audit", 3), ("orders", "billing", 2),
    ]  # fmt: skip
    assert plot(report, "Consumption")["unknown · billing"] == [None, None, pytest.approx(70, rel=0.01)]
    narrowed = asked("latency", tmp_path, group="audit", topic="orders")
    assert [row["group"] for row in sheet(narrowed, "Consumption")] == ["audit"]


def test_exclusion_reasons_fit_80_columns(tmp_path: Path) -> None:
    """A text printed on its own line is not wrapped."""

    from rich.console import Console

    from ariane.cli.output import terminal

    both(tmp_path, [sent(0, 1), consumed(0, 6, **dict.fromkeys(EXCLUSION_COUNTERS, 1_000_000))], [], as_of_s=60)
    output = io.StringIO()
    console = Console(file=output, width=80, force_terminal=True, color_system=None, highlight=False, markup=False)
    terminal.print_report(console, asked("latency", tmp_path))
    lines = [line.rstrip() for line in output.getvalue().splitlines()]
    assert sum("meaning: " in line for line in lines) == len(EXCLUSION_COUNTERS)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("until_s", [600, 6 * 3600])
def test_excluded_messages_are_reported_with_the_reason(tmp_path: Path, until_s: int) -> None:
    """45 of 18,000 messages say nothing about queueing unless the report states it."""
    rows = [
        consumed(0, 18_000, queueing=[20] * 45, queueing_outlier=17_900, queueing_no_clock=50, queueing_redelivered=5),
        consumed(1, 10, client_group="audit", queueing=[], queueing_contradiction=10, consume_cost_missing=3),
        sent(0, 9),
        sent(1, 1, send=[], send_cost_missing=1),
    ]
    both(tmp_path, rows, [], as_of_s=until_s)
    report = asked("latency", tmp_path, until_s=until_s)
    assert [(row["group"], row["messages"], row["not included"]) for row in sheet(report, "Queueing")] == [
        ("billing", 45, 17_955), ("audit", 0, 10),
    ]  # fmt: skip
    assert [row["p99"] for row in sheet(report, "Queueing")] == [pytest.approx(20, rel=0.01), None]
    (queueing,) = (part for part in report.sections if isinstance(part, Table) and part.title == "Queueing")
    assert "17,965 listener calls are not included" in queueing.note
    assert [(row["measure"], row["count"], row["reason"]) for row in sheet(report, "Not included")] == [
        ("Send", 1, "no_cost"), ("Queueing", 5, "redelivered"), ("Queueing", 17_900, "outlier"),
        ("Queueing", 10, "contradiction"), ("Queueing", 50, "no_clock"), ("Consumption", 3, "no_cost"),
    ]  # fmt: skip
    assert [
        row["count"] for row in sheet(asked("latency", tmp_path, until_s=until_s, group="audit"), "Not included")
    ] == [10, 3]


def test_messages_that_contradict_a_clock_are_reported(tmp_path: Path) -> None:
    both(tmp_path, [sent(0, 9)], [], as_of_s=600)
    assert not [part for part in asked("latency", tmp_path).sections if part.title.startswith("Records that")]
    clock = {"minute": at(0).replace(second=0), "messages": 500, "sends": 500, "deliveries": 500}
    rows = [
        clock
        | {"host": "10.0.0.1", "lower_ms": -1, "upper_ms": 2, "discarded": 3, "discarded_ids": ["M1", "M2", "M3"]},
        clock | {"host": "10.0.0.1", "lower_ms": -1, "upper_ms": 2, "discarded": 1, "discarded_ids": ["M0"]},
        clock | {"host": "10.0.0.2", "lower_ms": 0, "upper_ms": 2, "discarded": 0, "discarded_ids": []},
        clock | {"host": "10.0.0.9", "lower_ms": 900, "upper_ms": 2, "discarded": 500, "discarded_ids": []},
    ]
    put(tmp_path, CLOCKS, rows, as_of_s=600)
    result = sheet(asked("latency", tmp_path), "Discarded clock records")
    assert [(row["host"], row["messages"], row["discarded"], row["message id"]) for row in result] == [
        ("10.0.0.9", 500, 500, None), ("10.0.0.1", 1000, 4, "M0"),
    ]  # fmt: skip
    assert ["no majority" in row["clock"] for row in result] == [True, False]


def test_a_long_time_range_gives_the_same_result_in_ten_minute_buckets(tmp_path: Path) -> None:
    rows = [sent(minute, 2, send=[minute, 2 * minute]) for minute in range(1, 400)]
    both(tmp_path, rows, [], as_of_s=400 * 60)
    report = asked("latency", tmp_path, until_s=400 * 60)
    (row,) = sheet(report, "Send")
    assert (row["messages"], row["max"]) == (2 * 399, 798)
    costs = sorted([*range(1, 400), *range(2, 800, 2)])
    assert row["p90"] == pytest.approx(costs[-(-9 * len(costs) // 10) - 1], rel=0.01)
    (result,) = (part for part in report.sections if part.title == "Send: p99 by 10 minutes")
    assert isinstance(result, Plot)
    assert {time.minute % 10 for time, _ in result.lines[0].points} == {0}
    assert len(result.lines[0].points) in (40, 41)


def test_the_slowest_messages_of_all_time_buckets_are_listed(tmp_path: Path) -> None:
    rows = [slow(40 * number, 100 + number, f"M{number:02}") for number in range(14)]
    rows.append(slow(3, 5, "S", measure="send_cost_ms", client_group="shop"))
    rows.append(slow(5000, 99999, "later"))
    both(tmp_path, [sent(0, 1)], rows, as_of_s=599)
    result = sheet(asked("latency", tmp_path), "Slowest messages")
    assert [row["message id"] for row in result] == ["S", *(f"M{number:02}" for number in range(13, 3, -1))]
    assert result[1] == {
        "measure": "Queueing", "duration": 113, "at": at(520), "topic": "orders", "group": "billing", "host": "10.0.0.2",
        "message id": "M13", "keys": "order-M13",
    }  # fmt: skip
