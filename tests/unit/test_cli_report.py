"""`ariane report`: terminal output within its width, JSON, a self-contained HTML page, and errors for invalid options."""

from __future__ import annotations

import io
import json
import re
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner, Result

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")

from traffic_tables import at, both, consumed, sent, slow

from ariane.cli import main
from ariane.cli.output import html, repetition, terminal, value_format
from ariane.errors import ArianeError
from ariane.reports.report import Column, Line, Plot, Report, Table

BAD = "<script>alert('&')</script>"
ID = "7F00000100002A139A5A3C0000000004"


def series(*values: float | None) -> tuple[tuple[datetime, float | None], ...]:
    return tuple((at(60 * minute), value) for minute, value in enumerate(values))


REPORT = Report(
    "Things",
    at(90),
    ("traces has 3 messages to read",),
    (
        Table(
            "A sheet",
            (Column("topic"), Column("took", "ms"), Column("ok", "%"), Column("at"), Column("whole"), Column("id")),
            ((BAD, 12345, 99.999, at(), True, ID), ("日本", None, 100.0, None, False, "short")),
            f"Mind {BAD}",
            omitted_rows=7,
        ),
        Plot("A plot", "/s", (Line("up", series(0.2, None, 0.0, 2.0)), Line(BAD, series(None, 7.0, None, None))), "so"),
    ),
)


def text(report: Report = REPORT, width: int = 80, is_terminal: bool = True) -> list[str]:
    """Return the lines that a terminal of this width, or a pipe, shows."""
    output = io.StringIO()
    console = Console(
        file=output, width=width, force_terminal=is_terminal, color_system=None, highlight=False, markup=False
    )
    terminal.print_report(console, report)
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in output.getvalue().splitlines()]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    rows = [sent(-1, 1), sent(0, 12), sent(1, 60, topic="other"), consumed(1, 30)]
    both(tmp_path, rows, [slow(70, 900, ID)], as_of_s=150)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main.app, ["report", *arguments], env={"COLUMNS": "80"}, catch_exceptions=True)


def times() -> list[str]:
    return ["--since", f"{at():%Y-%m-%dT%H:%M:%S}", "--until", f"{at(300):%Y-%m-%dT%H:%M:%S}Z"]


@pytest.mark.parametrize("width", [20, 60, 80, 200])
def test_a_report_fits_the_terminal_width_without_truncation(width: int) -> None:
    lines = text(width=width)
    if width >= 60:
        assert max(map(cell_len, lines)) <= width
    complete = "\n".join(lines)
    for part in (BAD, ID, "12,345", "99.99", "日本", "7 rows omitted", "traces has 3"):
        assert part.split()[0] in complete


def test_the_longest_values_of_a_wide_table_move_to_a_second_line() -> None:
    sheet = text(width=60)
    index = next(number for number, line in enumerate(sheet) if "12,345" in line)
    assert sheet[index + 1].strip().startswith(f"topic: {BAD}")
    assert any(f"id: {ID}" in line for line in sheet[index + 1 : index + 3])
    assert next(line for line in text(width=200) if "12,345" in line).endswith(ID)


def test_unknown_values_are_question_marks_with_a_note() -> None:
    lines = text(width=200)
    assert next(line for line in lines if "日本" in line).split() == ["日本", "?", "100", "?", "no", "short"]
    assert "? = unknown" in lines


def test_a_plot_distinguishes_zero_from_unknown() -> None:
    lines = text(width=80)
    index = lines.index("up  0 to 2.00 /s")
    bottom = lines[index + terminal.SHARED_HEIGHT]
    label, marks = bottom.split("┤")
    quarter = len(marks) // 4
    assert label.strip() == "0"
    assert {marks[0], marks[quarter], marks[2 * quarter], marks[3 * quarter]} == {"▂", "·", "_", "█"}
    assert "each series has its own scale;  _ is zero;  · is unknown" in lines


def test_a_plot_with_more_points_than_columns_shows_the_maxima() -> None:
    peak = Line("x", series(*(100.0 if number == 501 else 1.0 for number in range(1000))))
    lines = text(Report("R", at(), (), (Plot("P", "", (peak,)),)), 80)
    assert max(map(len, lines)) <= 80
    assert sum(line.count("█") for line in lines) == terminal.SINGLE_HEIGHT, "one column of 100"
    assert any("each column is the maximum of 14 points" in line for line in lines)


def test_omitted_rows_are_counted() -> None:
    sheet = Table("S", (Column("n"),), tuple((number,) for number in range(terminal.ROWS_MAX + 5)))
    assert "5 more rows: use --json or --html" in text(Report("R", at(), (), (sheet,)))


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (0.2, "/s", "0.2"), (0.0, "/s", "0"), (0.00001, "/s", "<0.001"), (1234.5, "/s", "1,234"), (99.9999, "%", "99.99"),
        (100.0, "%", "100"), (2.02, "ms", "2.0"), (11.1, "ms", "11"), (12_345_678, "B/s", "12.3M"), (None, "ms", "?"),
        (True, "", "yes"), (7, "", "7"),
    ],
)  # fmt: skip
def test_values_are_formatted_by_unit(value: Any, unit: str, said: str) -> None:
    assert value_format.format_value(value, unit) == said


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_html_page_is_self_contained_and_escapes_values() -> None:
    page = html.render(REPORT)
    assert not re.search(r"https?:|//|url\(|@import", page)
    tags = Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == [], "every element is closed"
    assert tags.names.isdisjoint({"script", "link", "img", "iframe", "object"})
    assert tags.attributes.isdisjoint({"src", "href", "onload", "onclick"})
    assert BAD in tags.texts, "the value is there, as a text"
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_plot_lines_of_the_html_page_break_at_unknown_values() -> None:
    line = Line("x", series(1.0, 2.0, None, 3.0, None, 0.0, 4.0))
    page = html.render(Report("R", None, ("nothing yet",), (Plot("P", "ms", (line,)),)))
    assert (page.count("<polyline"), page.count("<circle")) == (2, 1)
    assert "no data yet" in page
    assert "nothing yet" in page


@pytest.mark.parametrize("name", ["tps", "latency"])
def test_the_terminal_shows_the_as_of_time_and_completeness(home: Path, name: str) -> None:
    done = run(name, "--home", str(home), *times())
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith(f"as of {at(150):%Y-%m-%d %H:%M:%S} UTC, INCOMPLETE; times are UTC")
    assert f"tables: {home}" in " ".join(done.output.split())  # a long path has a line of its own
    assert "! message traces have not been read for" in done.output


def test_json_contains_units_nulls_and_times(home: Path) -> None:
    done = run("tps", "--home", str(home), "--json", "--topic", "orders", *times())
    answer = json.loads(done.output)
    assert set(answer) == {"title", "home", "as_of", "complete", "warnings", "tables", "plots"}
    assert answer["home"] == str(home)
    assert answer["title"].startswith("Throughput, topic orders, 2023-11-14 22:14 to")
    assert (answer["as_of"], answer["complete"]) == (at(150).isoformat(), False)
    assert "message traces have not been read" in answer["warnings"][0]
    first = answer["tables"][0]
    assert set(first) == {"title", "note", "omitted_rows", "columns", "rows"}
    assert {"name": "mean", "unit": "/s"} in first["columns"]
    assert first["rows"] == [["orders", "shop", 1, 12, 12 / 150, 0.2, 100.0, 0, 8.0]]
    (line,) = answer["plots"][0]["lines"]
    assert line == {
        "name": "orders · shop",
        "points": [[at(0).isoformat(), 0.2], [at(60).isoformat(), 0.0], [at(120).isoformat(), None]],
    }


def test_html_is_written_to_the_file(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.html"
    assert run("latency", "--home", str(home), "--html", str(file), *times()).exit_code == 0
    assert ID in file.read_text()
    assert f"tables: {home}" in file.read_text()


def test_no_data_exits_with_status_1(tmp_path: Path) -> None:
    done = run("tps", "--home", str(tmp_path))
    assert done.exit_code == 1
    assert "no data yet" in done.output
    assert "no rates and latencies yet: `ariane pipeline run traffic`" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such"], "unknown report. Expected one of:\n  tps"),
        ([], "expected a report:\n  tps"),
        (["tps", "--since", "yesterday"], "expected a duration before now"),
        (["tps", "--since", "1h", "--until", "2h"], "not before --until 2h"),
        (["tps", "--since", "99999999d"], "before 1970"),
        (["tps", "--since", "99999-01-01"], "expected a duration before now"),
        (["tps", "--home", "no/such/place"], "no tables in no/such/place"),
        (["tps", "--watch", "1", "--json"], "cannot be combined with --json or --html"),
        (["tps", "--json", "--html", "x"], "cannot be combined with --json"),
        (["tps", "--html", "no/such/dir/x.html"], "not writable"),
    ],
)
def test_invalid_options_are_reported(home: Path, arguments: list[str], said: str) -> None:
    given = arguments if "--home" in arguments else [*arguments, "--home", str(home)]
    done = run(*given)
    assert isinstance(done.exception, ArianeError)
    assert said in str(done.exception)


def test_watch_repeats_the_report_until_interrupted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(repetition, "sleep", sleep)  # not that of the process: other threads sleep, too
    done = run("tps", "--home", str(home), "--watch", "2", *times())
    assert (done.exit_code, waited) == (0, [2.0, 2.0, 2.0])
    assert done.output.count("Throughput, ") == 3
