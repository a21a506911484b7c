"""Progress of the jobs as lines, as a live table and as the final summary."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from rich.console import Console
from rich.live import Live

from ariane.cli.pipeline import progress
from ariane.errors import ConnectionLost
from ariane.metrics_collector.publisher import PollingRound
from ariane.pipeline.publishing.incremental import AggregationResult
from ariane.pipeline.run import JobProgress
from ariane.reports.tables.pipeline_status import SourceStatus
from ariane.tables import CLOCKS, DELAYS, JOURNEYS, TRAFFIC, TableSchema
from ariane.tables.table_format import TableVersion
from ariane.testing.clock import FakeClock


def source(name: str = "traces", behind: int | None = 0, **other: Any) -> SourceStatus:
    values = {"at_ms": 1, "batch": 7, "batch_ms": 812, "pending": behind, "unavailable": None, "topics": 1}
    return SourceStatus(name, **(values | other))


def folded(table: TableSchema, rows: int) -> AggregationResult:
    return AggregationResult(table, 1, TableVersion(3, table.schema, rows, None))


def done(*sources: SourceStatus, folds: tuple[AggregationResult, ...] = ()) -> JobProgress:
    return JobProgress(folds, sources, 0.5)


class Told:
    """Lines, and the clock they go by."""

    def __init__(self) -> None:
        self.clock = FakeClock(100_000)
        self.lines: list[str] = []
        self.screen = progress.PlainProgress(self.lines.append, self.clock.monotonic)

    def new(self) -> list[str]:
        """What was said since, without the time of day."""
        lines, self.lines[:] = [re.sub(r"^\d\d:\d\d:\d\d  ", "", line) for line in self.lines], []
        return lines


def test_a_line_summarizes_ten_seconds_and_lists_the_largest_tables() -> None:
    reported = Told()
    reported.screen.on_tables_published(done(source(behind=1234), folds=(folded(JOURNEYS, 12345),)))
    assert reported.new() == ["traces 1,234 pending, 812 ms  |  rows: journeys 12,345"]
    for table, rows in ((JOURNEYS, 12346), (TRAFFIC, 960), (CLOCKS, 2), (DELAYS, 1)):
        reported.clock.advance(2)
        reported.screen.on_tables_published(done(source(), folds=(folded(table, rows),)))
    assert reported.new() == []
    reported.clock.advance(2)
    reported.screen.on_tables_published(done(source(behind=None), folds=(folded(TRAFFIC, 961),)))
    assert reported.new() == ["traces ? pending, 812 ms  |  rows: journeys 12,346  traffic 961  clocks 2  1 more"]


def test_without_updates_one_line_per_minute_reports_that_the_jobs_run() -> None:
    reported = Told()
    reported.screen.on_round(done(source(batch=None, batch_ms=None)))
    assert reported.new() == ["traces 0 pending  |  no changes"]
    reported.clock.advance(59)
    reported.screen.on_round(done(source()))
    assert reported.new() == []
    reported.clock.advance(1)
    reported.screen.on_round(done(source()))
    assert reported.new() == ["traces 0 pending, 812 ms  |  no changes"]


def test_the_reason_for_a_waiting_source_is_printed_when_it_changes() -> None:
    reported = Told()
    reported.screen.on_round(done(source(topics=0), source("samples")))
    assert reported.new() == [
        "traces waiting: none of its topics exists yet",
        "traces waiting  samples 0 pending, 812 ms  |  no changes",
    ]
    for why in ("broker-a is away: refused", "broker-a is away: refused", "broker-b is away: refused", None):
        reported.screen.on_round(done(source(unavailable=why), source("samples")))
    assert reported.new() == [
        "traces waiting: broker-a is away: refused",
        "traces waiting: broker-b is away: refused",
        "traces resumed",
    ]


def test_the_live_table_fits_80_columns_and_retains_row_counts() -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=80, color_system=None)
    with Live(console=console, auto_refresh=False) as live:
        drawn = progress.LiveProgress(live)
        drawn.on_tables_published(done(source(behind=1_234_567), folds=(folded(JOURNEYS, 123_456_789),)))
        drawn.on_round(done(source(behind=9), source("samples", unavailable="broker-a is away: refused")))
    last = shown.getvalue().rpartition("Ctrl-C to stop")[2].splitlines()
    assert [line.split()[:5] for line in last[2:5]] == [
        ["traces", "9", "7", "812"],
        ["samples", "waiting", "7", "812"],
        ["journeys", "123,456,789", last[4].split()[-1]],
    ]
    assert "samples waiting: broker-a is away: refused" in shown.getvalue()
    assert all(len(line.rstrip()) <= 80 for line in last)


def test_once_ends_with_a_list_of_sources_and_tables(capsys: pytest.CaptureFixture[str]) -> None:
    progress.SummaryProgress().on_round(
        done(source(), source("samples", topics=0), folds=(folded(JOURNEYS, 12), folded(TRAFFIC, 3)))
    )
    assert [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()] == [
        ["traces", "0 pending, 812 ms"],
        ["samples", "waiting: none of its topics exists yet"],
        ["journeys", "rows 12  1 time bucket updated"],
        ["traffic", "rows 3  1 time bucket updated"],
        ["2", "tables updated in 0.5 s"],
    ]


def test_the_collector_reports_broker_changes_and_each_fault_once() -> None:
    lines: list[str] = []
    collected = progress.CollectorProgress(lines.append)

    def seen(*away: str | None, fault: ConnectionLost | None = None) -> PollingRound:
        samples = [SimpleNamespace(broker=f"b{at}", broker_id=0, error=why) for at, why in enumerate(away)]
        return PollingRound(samples, 3 if fault else 0, 0, fault)  # type: ignore[arg-type]

    lost = ConnectionLost("h:1", "refused")
    for item in (seen(None, None), seen(None, None), seen(None, "refused"), seen(None, "refused", fault=lost)):
        collected.on_round(item)
    for _ in range(2):
        collected.on_fault(lost)
    collected.on_round(seen(None, None))
    assert lines == [
        "collector: polled 2 of 2 brokers",
        "collector: polled 1 of 2 brokers; b1/0 unavailable: refused",
        "collector: polled 1 of 2 brokers; b1/0 unavailable: refused",
        "collector: 3 samples pending, no broker accepts them: connection to h:1: refused",
        "collector waiting: connection to h:1: refused",
        "collector: polled 2 of 2 brokers",
    ]
