"""How the jobs are, while they run: a table that is drawn anew on a terminal, else a line for the news of some seconds.

    12:10:05  traces 35 behind, 812 ms  samples 0 behind, 300 ms  messages waits  |  rows: journeys 12,345  traffic 960  3 more

`ms` is what the source's last batch took; rows are those of tables that were published since the line before.

What a source waits for, and what the collector says, are lines of their own, when they change. `--once` lists all in the end.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import typer

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from ariane.metrics_collector.publisher import PollingRound
    from ariane.pipeline.run import JobProgress
    from ariane.reports.pipeline_status import SourceStatus

APART_S = 10.0  # between lines
QUIET_S = 60.0  # without news a line comes this often all the same: it runs
NAMED = 3  # tables that a line names, those with most rows
WIDTH = 14  # of names: rejects have the longest

Say = Callable[[str], None]


class ProgressReporter(Protocol):
    """Where it is shown."""

    def on_tables_published(self, progress: JobProgress) -> None:
        """A table is published, in the middle of a round."""
        ...

    def on_round(self, progress: JobProgress) -> None:
        """A round is done."""
        ...

    def print_line(self, line: str) -> None: ...


@contextlib.contextmanager
def progress_reporter(*, once: bool) -> Iterator[ProgressReporter]:
    """What fits standard output."""
    from rich.console import Console

    console = Console()
    if once:
        yield SummaryProgress()
    elif not console.is_terminal:
        yield PlainProgress()
    else:
        from rich.live import Live

        with Live(console=console, auto_refresh=False) as live:
            yield LiveProgress(live)


def wait_reason(status: SourceStatus) -> str | None:
    """What a source waits for."""
    if status.unavailable is not None:
        return status.unavailable
    return "none of its topics is there yet" if status.topics == 0 else None


class JobWaiting:
    """Says what a source waits for when it begins to, waits for something else, or goes on."""

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    def changes(self, progress: JobProgress) -> Iterator[str]:
        for status in progress.sources:
            why, before = wait_reason(status), self._before.get(status.source)
            self._before[status.source] = why
            if why != before:
                yield f"{status.source} waits: {why}" if why else f"{status.source} goes on"


class SummaryProgress:
    """All of it, once."""

    def on_tables_published(self, progress: JobProgress) -> None:
        """The end lists it."""

    def on_round(self, progress: JobProgress) -> None:
        for status in progress.sources:
            why = wait_reason(status)
            typer.echo(f"{status.source:{WIDTH}} {f'waits: {why}' if why else _source(status)}")
        for one in progress.folded:
            slots = f"{one.slots:,} slot{'' if one.slots == 1 else 's'}"
            typer.echo(f"{one.table.name:{WIDTH}} rows {one.published.rows:,}  {slots} folded")
        typer.echo(f"{len(progress.folded)} tables folded in {progress.seconds:.1f} s")

    def print_line(self, line: str) -> None:
        typer.echo(line)


class PlainProgress:
    """A line for the news of ten seconds, of a round or a part of it."""

    def __init__(self, echo: Say = typer.echo, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._echo = echo
        self._monotonic = monotonic
        self._waiting = JobWaiting()
        self._at_s = -math.inf
        self._folded: dict[str, int] = {}  # rows of the tables that no line has named yet

    def on_tables_published(self, progress: JobProgress) -> None:
        for line in self._waiting.changes(progress):
            self.print_line(line)
        self._folded |= {one.table.name: one.published.rows for one in progress.folded}
        if self._folded and self._monotonic() - self._at_s >= APART_S:
            self._line(progress)

    def on_round(self, progress: JobProgress) -> None:
        self.on_tables_published(progress._replace(folded=()))  # they were told one by one
        if self._monotonic() - self._at_s >= QUIET_S:
            self._line(progress)

    def print_line(self, line: str) -> None:
        self._echo(f"{time.strftime('%H:%M:%S')}  {line}")

    def _line(self, progress: JobProgress) -> None:
        self._at_s = self._monotonic()
        sources = "  ".join(f"{one.source} {'waits' if wait_reason(one) else _source(one)}" for one in progress.sources)
        most = sorted(self._folded.items(), key=lambda one: -one[1])
        named = "  ".join(f"{name} {rows:,}" for name, rows in most[:NAMED])
        more = f"  {len(most) - NAMED} more" if len(most) > NAMED else ""
        self.print_line(f"{sources}  |  rows: {named}{more}" if most else f"{sources}  |  no news")
        self._folded = {}


class LiveProgress:
    """A table that is drawn anew with each round; lines stay above it."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._waiting = JobWaiting()
        self._tables: dict[str, tuple[int, str]] = {}  # rows, and when they were folded

    def on_tables_published(self, progress: JobProgress) -> None:
        for line in self._waiting.changes(progress):
            self.print_line(line)
        at = time.strftime("%H:%M:%S")
        self._tables |= {one.table.name: (one.published.rows, at) for one in progress.folded}
        self._live.update(self._table(progress, at), refresh=True)

    def on_round(self, progress: JobProgress) -> None:
        self.on_tables_published(progress._replace(folded=()))  # they were told one by one

    def print_line(self, line: str) -> None:
        self._live.console.print(f"{time.strftime('%H:%M:%S')}  {line}", markup=False, highlight=False, soft_wrap=True)

    def _table(self, progress: JobProgress, at: str) -> Table:
        from rich.table import Table

        drawn = Table(box=None, pad_edge=False, header_style="bold", title=f"{at}  Ctrl-C stops", title_justify="left")
        drawn.add_column("source, table", no_wrap=True)
        for name in ("behind", "batch", "took ms", "rows", "folded at"):
            drawn.add_column(name, justify="right", no_wrap=True)
        for status in progress.sources:
            took = "" if status.batch_ms is None else f"{status.batch_ms:,}"
            batch = "" if status.batch is None else f"{status.batch:,}"
            drawn.add_row(status.source, "waits" if wait_reason(status) else _behind(status), batch, took, style="cyan")
        for name, (rows, folded_at) in sorted(self._tables.items()):
            drawn.add_row(name, "", "", "", f"{rows:,}", folded_at)
        return drawn


class CollectorProgress:
    """What the collector says beside the jobs: when brokers come or go, and its faults, once each."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._before: object = None

    def on_round(self, done: PollingRound) -> None:
        away = {f"{one.broker}/{one.broker_id}": one.away for one in done.samples if one.away is not None}
        now = (len(done.samples), tuple(away), done.fault is None)
        if now == self._before:
            return
        self._before = now
        line = f"collector samples {len(done.samples) - len(away)} of {len(done.samples)} brokers"
        self._say(line + "".join(f"; away: {broker}: {why}" for broker, why in sorted(away.items())))
        if done.fault is not None:
            self._say(f"collector has {done.waiting:,} samples that no broker takes: {done.fault}")

    def on_fault(self, error: Exception) -> None:
        if str(error) != self._before:
            self._before = str(error)
            self._say(f"collector waits: {error}")


def _source(status: SourceStatus) -> str:
    behind = f"{_behind(status)} behind"
    return behind if status.batch_ms is None else f"{behind}, {status.batch_ms:,} ms"


def _behind(status: SourceStatus) -> str:
    return "?" if status.pending is None else f"{status.pending:,}"
