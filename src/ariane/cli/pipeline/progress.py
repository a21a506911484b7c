"""Reports the progress of pipeline jobs: a live table in a terminal, lines in a pipe, a summary with --once.

    12:10:05  traces 35 pending, 812 ms  samples 0 pending, 300 ms  messages waiting  |  rows: journeys 12,345  3 more

`ms` is the duration of the source's last micro-batch. Rows are those of tables that were published since the previous line.
A source that starts or stops waiting for a server, and faults of the collector, get lines of their own.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import typer

from ariane.model.quantities import count_text

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from ariane.metrics_collector.publisher import PollingRound
    from ariane.pipeline.run import JobProgress
    from ariane.reports.tables.pipeline_status import SourceStatus

LINE_INTERVAL_S = 10.0  # shortest time between two lines
HEARTBEAT_S = 60.0  # without changes a line is printed this often, to show that the pipeline runs
TABLES_SHOWN = 3  # tables that a line names: those with the most rows
NAME_WIDTH = 14  # the longest name of a source or table is that of the rejects

PrintLine = Callable[[str], None]


class ProgressReporter(Protocol):
    """Shows the progress of jobs on standard output."""

    def on_tables_published(self, progress: JobProgress) -> None:
        """Report tables that were published in the middle of a round."""
        ...

    def on_round(self, progress: JobProgress) -> None:
        """Report the end of a round."""
        ...

    def print_line(self, line: str) -> None:
        """Print a line without disturbing the display."""
        ...


@contextlib.contextmanager
def progress_reporter(*, once: bool) -> Iterator[ProgressReporter]:
    """Provide the reporter that suits standard output."""
    from ariane.cli.output.terminal import create_console

    console = create_console()
    if once:
        yield SummaryProgress()
    elif not console.is_terminal:
        yield PlainProgress()
    else:
        from rich.live import Live

        # The reporter refreshes after each event; a timer would only redraw the same table.
        with Live(console=console, auto_refresh=False) as live:
            yield LiveProgress(live)


def wait_reason(status: SourceStatus) -> str | None:
    """Return why a source waits; None if it reads."""
    if status.unavailable is not None:
        return status.unavailable
    return "none of its topics exists yet" if status.topics == 0 else None


class JobWaiting:
    """Detects when a source starts to wait, waits for another reason, or resumes."""

    def __init__(self) -> None:
        self._reasons: dict[str, str | None] = {}  # by source: why it waited at the previous call; None: it read

    def changes(self, progress: JobProgress) -> Iterator[str]:
        """Yield a line for each source whose state changed since the previous call."""
        for status in progress.sources:
            reason, previous = wait_reason(status), self._reasons.get(status.source)
            self._reasons[status.source] = reason
            if reason != previous:
                yield f"{status.source} waiting: {reason}" if reason else f"{status.source} resumed"


class SummaryProgress:
    """Prints one summary at the end (`--once`)."""

    def on_tables_published(self, progress: JobProgress) -> None:
        """Print nothing: the summary lists all tables."""

    def on_round(self, progress: JobProgress) -> None:
        for status in progress.sources:
            reason = wait_reason(status)
            typer.echo(f"{status.source:{NAME_WIDTH}} {f'waiting: {reason}' if reason else _source_state(status)}")
        for result in progress.rebuilt:
            buckets = f"{count_text(result.buckets, 'time bucket')}"
            typer.echo(f"{result.table.name:{NAME_WIDTH}} rows {result.published.rows:,}  {buckets} updated")
        typer.echo(f"{count_text(len(progress.rebuilt), 'table')} updated in {progress.seconds:.1f} s")

    def print_line(self, line: str) -> None:
        typer.echo(line)


class PlainProgress:
    """Prints a line per ten seconds with changes, for pipes and log files."""

    def __init__(self, echo: PrintLine = typer.echo, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._echo = echo
        self._monotonic = monotonic
        self._waiting = JobWaiting()
        # The first change is printed at once.
        self._printed_at_s = -math.inf
        self._published: dict[str, int] = {}  # table -> rows, for tables that no line has named yet

    def on_tables_published(self, progress: JobProgress) -> None:
        for line in self._waiting.changes(progress):
            self.print_line(line)
        self._published |= {result.table.name: result.published.rows for result in progress.rebuilt}
        if self._published and self._monotonic() - self._printed_at_s >= LINE_INTERVAL_S:
            self._print_progress(progress)

    def on_round(self, progress: JobProgress) -> None:
        # The tables of the round were already reported one by one.
        self.on_tables_published(progress._replace(rebuilt=()))
        if self._monotonic() - self._printed_at_s >= HEARTBEAT_S:
            self._print_progress(progress)

    def print_line(self, line: str) -> None:
        self._echo(f"{time.strftime('%H:%M:%S')}  {line}")

    def _print_progress(self, progress: JobProgress) -> None:
        self._printed_at_s = self._monotonic()
        sources = "  ".join(
            f"{status.source} {'waiting' if wait_reason(status) else _source_state(status)}"
            for status in progress.sources
        )
        tables = sorted(self._published.items(), key=lambda item: -item[1])
        names = "  ".join(f"{name} {rows:,}" for name, rows in tables[:TABLES_SHOWN])
        omitted = f"  {len(tables) - TABLES_SHOWN} more" if len(tables) > TABLES_SHOWN else ""
        self.print_line(f"{sources}  |  rows: {names}{omitted}" if tables else f"{sources}  |  no changes")
        self._published = {}


class LiveProgress:
    """Redraws a table with each event; lines scroll above it."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._waiting = JobWaiting()
        self._tables: dict[str, tuple[int, str]] = {}  # table -> rows, time of the last update

    def on_tables_published(self, progress: JobProgress) -> None:
        for line in self._waiting.changes(progress):
            self.print_line(line)
        now_text = time.strftime("%H:%M:%S")
        self._tables |= {result.table.name: (result.published.rows, now_text) for result in progress.rebuilt}
        self._live.update(self._build_table(progress, now_text), refresh=True)

    def on_round(self, progress: JobProgress) -> None:
        # The tables of the round were already reported one by one.
        self.on_tables_published(progress._replace(rebuilt=()))

    def print_line(self, line: str) -> None:
        self._live.console.print(f"{time.strftime('%H:%M:%S')}  {line}", markup=False, highlight=False, soft_wrap=True)

    def _build_table(self, progress: JobProgress, now_text: str) -> Table:
        from rich.table import Table

        table = Table(
            box=None, pad_edge=False, header_style="bold", title=f"{now_text}  Ctrl-C to stop", title_justify="left"
        )
        table.add_column("source, table", no_wrap=True)
        for name in ("pending", "batch", "batch ms", "rows", "updated at"):
            table.add_column(name, justify="right", no_wrap=True)
        for status in progress.sources:
            batch_ms = "" if status.batch_ms is None else f"{status.batch_ms:,}"
            batch = "" if status.batch is None else f"{status.batch:,}"
            pending = "waiting" if wait_reason(status) else _pending(status)
            table.add_row(status.source, pending, batch, batch_ms, style="cyan")
        for name, (rows, updated_at) in sorted(self._tables.items()):
            table.add_row(name, "", "", "", f"{rows:,}", updated_at)
        return table


class CollectorProgress:
    """Reports changes of the collector that runs in the same process: brokers that come and go, and each fault once."""

    def __init__(self, print_line: PrintLine) -> None:
        self._print_line = print_line
        self._previous: object = None  # state or fault that was printed last

    def on_round(self, polled: PollingRound) -> None:
        unavailable = polled.unavailable
        state = (len(polled.samples), tuple(unavailable), polled.error is None)
        # A round every five seconds: only changes are worth a line.
        if state == self._previous:
            return
        self._previous = state
        line = f"collector: polled {len(polled.samples) - len(unavailable)} of {len(polled.samples)} brokers"
        self._print_line(
            line + "".join(f"; {broker} unavailable: {reason}" for broker, reason in sorted(unavailable.items()))
        )
        if polled.error is not None:
            self._print_line(f"collector: {polled.pending:,} samples pending, no broker accepts them: {polled.error}")

    def on_fault(self, error: Exception) -> None:
        if str(error) != self._previous:
            self._previous = str(error)
            self._print_line(f"collector waiting: {error}")


def _source_state(status: SourceStatus) -> str:
    pending = f"{_pending(status)} pending"
    return pending if status.batch_ms is None else f"{pending}, {status.batch_ms:,} ms"


def _pending(status: SourceStatus) -> str:
    return "?" if status.pending is None else f"{status.pending:,}"
