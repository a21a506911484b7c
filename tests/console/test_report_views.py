"""Reports through the REST API: with and without tables of the pipeline."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from fastapi.testclient import TestClient

from ariane.console.app import create_app
from ariane.console.areas.reports.report_views import ReportChart, ReportTableView, report_view
from ariane.console.services import open_services
from ariane.console.settings import ConsoleSettings
from ariane.reports import REPORTS
from ariane.reports.report import Column, Line, Plot, Report, Table
from ariane.reports.texts import ZONE, Moment, Zone, sentences, text
from ariane.tables import CONSUMPTION, DELAYS

AT = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
AT_MS = round(AT.timestamp() * 1000)


@contextmanager
def console(tmp_path: Path, tables_dir: Path | None) -> Iterator[TestClient]:
    settings = ConsoleSettings(namesrv="127.0.0.1:1", data_dir=tmp_path / "console", tables_dir=tables_dir)
    with TestClient(create_app(open_services(settings)), base_url="http://127.0.0.1") as client:
        yield client


def test_times_are_milliseconds_and_unknown_values_stay_unknown() -> None:
    table = Table(
        "T",
        (Column("at"), Column("tps", "/s"), Column("ok"), Column("name")),
        ((AT, None, True, "x"), (None, 2.5, None, "")),
    )
    plot = Plot("P", "%", (Line("a", ((AT, 12.5), (AT, None))),))
    view = report_view("lag", Report("title", AT, (), (table, plot)))
    chart, shown = view.sections  # charts are first on the page
    assert isinstance(shown, ReportTableView) and isinstance(chart, ReportChart)
    assert [column.kind for column in shown.columns] == ["time", "number", "flag", "text"]
    assert shown.rows == [[AT_MS, None, True, "x"], [None, 2.5, None, ""]]
    # The page's percentages are fractions of one.
    assert chart.options == {"unit": "percent", "series": [{"name": "a", "points": [[AT_MS, 0.125], [AT_MS, None]]}]}
    assert (view.as_of_ms, view.is_complete) == (AT_MS, True)


def test_a_report_without_data_is_not_complete() -> None:
    assert not report_view("lag", Report("title", None, (), ())).is_complete


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_every_report_runs_on_an_empty_directory_and_says_that_there_is_no_data(tmp_path: Path, name: str) -> None:
    (tmp_path / "tables").mkdir()
    with console(tmp_path, tmp_path / "tables") as client:
        response = client.get(f"/api/v1/reports/{name}", params={"since": "2h", "topic": "orders"})
        page = client.get(f"/reports/{name}", params={"since": "2h"})
    assert response.status_code == 200, response.text
    view = response.json()
    assert (view["asOfMs"], view["isComplete"]) == (None, False)
    assert view["warnings"]
    assert page.status_code == 200 and "No data yet" in page.text


def test_without_a_pipeline_the_reports_explain_how_to_run_it(tmp_path: Path) -> None:
    for tables_dir in (None, tmp_path / "missing"):
        with console(tmp_path, tables_dir) as client:
            assert client.get("/api/v1/reports").json()["isAvailable"] is False
            response = client.get("/api/v1/reports/lag")
        assert response.status_code == 404
        assert "ariane pipeline run" in response.json()["error"]


PRODUCT_WORDS = {
    "Spark",
    "Broker",
    "TPS",
    "OK",
    "ID",
    "Key",
    "SQL",
    "NTP",
    "Java",
    "UNKNOWN",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "consumerProgress",
    "enableMsgTrace",
    "op",
    "UTC",
    "docs",
    "journeys",
    "md",
    "Clocks",
    "delay",
    "levels",
    "groups",
    "max",
    "p50",
    "p90",
    "p99",
    "Asia",
    "Shanghai",
    "s",
    "B",
}
# Texts of a report on its page: titles, names of columns, notes, and the list of warnings.
REPORT_TEXTS = re.compile(r"<(h2|h3|th|figcaption|caption|p|li|strong)\b[^>]*>(.*?)</\1>", re.DOTALL)


def untranslated_words(page: str) -> set[str]:
    report = page.partition('<div id="report">')[2].partition("</main>")[0]
    texts = " ".join(
        text for _, text in REPORT_TEXTS.findall(re.sub(r"(?s)<script.*?</script>|<svg.*?</svg>", "", report))
    )
    # Commands, and names and titles in attributes.
    plain = re.sub(r"<code>.*?</code>|<[^>]*>|&[#\w]+;", " ", texts)
    return set(re.findall(r"[A-Za-z_]\w*", plain)) - PRODUCT_WORDS


@pytest.mark.parametrize("name", sorted(REPORTS))
@pytest.mark.parametrize("has_data", [False, True])
def test_the_texts_of_each_report_are_chinese_on_a_chinese_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, has_data: bool
) -> None:
    tables = tmp_path / "tables"
    tables.mkdir()
    if has_data:
        pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")
        monkeypatch.syspath_prepend(Path(__file__).parent / "browser")
        from report_rows import write_tables

        write_tables(tables)
    with console(tmp_path, tables) as client:
        client.cookies.set("ariane_language", "zh")
        client.cookies.set("ariane_zone", "Asia%2FShanghai")
        page = client.get(f"/reports/{name}", params={"since": "3h"}).text
    assert untranslated_words(page) == set()
    assert ("<th" in page) == has_data


def test_a_complete_report_says_until_when(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")
    from tables_on_disk import put

    put(tmp_path / "tables", DELAYS, [], as_of_ms=AT_MS)
    with console(tmp_path, tmp_path / "tables") as client:
        page = client.get("/reports/delay").text
    assert re.search(r"Complete until <time[^>]*>2026-11-21 10:00:00", page)


def test_the_times_of_a_text_are_in_the_zone_of_the_page_and_in_utc_elsewhere() -> None:
    note = sentences(
        text(
            "Data covers %(start)s to %(end)s %(zone)s.", start=Moment(AT, "%H:%M"), end=Moment(AT, "%H:%M"), zone=ZONE
        ),
        None,
        text("100 % of a constant text"),
    )
    assert note == "Data covers 10:00 to 10:00 UTC. 100 % of a constant text"
    shanghai = Zone(ZoneInfo("Asia/Shanghai"), "Asia/Shanghai")
    assert note.translated(str, shanghai).startswith("Data covers 18:00 to 18:00 Asia/Shanghai.")


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("nothing", 404, "expected one of: delay"),
        ("lag?since=yesterday", 422, "yesterday"),
        ("lag?since=1h&until=2h", 422, "earlier time"),
        ("lag?since=", 422, "begin of the time range"),
        ("tps?since=1h&until=999999999999999", 422, "earlier time"),
    ],
)
def test_faulty_requests_are_explained(tmp_path: Path, path: str, status: int, reason: str) -> None:
    with console(tmp_path, tmp_path) as client:
        response = client.get(f"/api/v1/reports/{path}")
    assert response.status_code == status
    assert reason in response.json()["error"]


def test_dates_are_in_the_zone_of_the_reader_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    query = {"since": "2026-11-21T10:00", "until": "2026-11-21T11:00"}
    with console(tmp_path, tmp_path / "tables") as client:
        client.cookies.set("ariane_zone", "Asia%2FShanghai")
        page = client.get("/reports/latency", params=query).text
        view = client.get("/api/v1/reports/latency", params=query).json()
    assert "2026-11-21 10:00 to 2026-11-21 11:00 Asia/Shanghai" in re.findall("<h2>(.*)</h2>", page)[0]
    assert "2026-11-21 10:00" in view["title"]


def test_a_report_with_data_has_charts_and_tables_and_names_stay_text(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")
    from tables_on_disk import put

    usual = {
        "broker": "a", "topic": "</script><b>T", "consumer_group": "G", "queues": 4, "seconds": 60.0, "produced_tps": 5.0,
        "consumed_tps": 10.0, "delivered_master_tps": 0.0, "delivered_slaves_tps": 10.0, "lag": 600, "lag_change": -300,
        "oldest_age_ms": 4000, "removed": 0, "drain_s": 120.0, "flags": [],
    }  # fmt: skip
    rows = [{"window_start": AT + timedelta(minutes=number), **usual} for number in range(3)]
    put(tmp_path / "tables", CONSUMPTION, rows, as_of_ms=AT_MS + 185_000)
    query = {"since": str(AT_MS), "until": str(AT_MS + 185_000)}
    with console(tmp_path, tmp_path / "tables") as client:
        view = client.get("/api/v1/reports/lag", params=query).json()
        page = client.get("/reports/lag", params=query).text
    assert view["asOfMs"] == AT_MS + 185_000
    charts = [section for section in view["sections"] if section["kind"] == "chart"]
    assert any(section["rows"] for section in view["sections"] if section["kind"] == "table")
    assert [point[1] for point in charts[0]["series"][0]["points"]].count(600) == 3
    assert ("Complete until <time" if view["isComplete"] else "Up to <time") in page
    assert page.rindex("data-chart-options") < page.index("<table")
    assert page.count("data-chart-options") == len([chart for chart in charts if chart["series"]])
    assert "</script><b>T" not in page and "&lt;/script&gt;&lt;b&gt;T" in page
    # Cells of these columns name their units: "4,000 ms", "2 min 0 s".
    headings = re.findall(r"<th scope=.col.[^>]*>(.*?)</th>", page)
    assert "oldest" in headings and not any(">ms<" in heading or ">B<" in heading for heading in headings)
