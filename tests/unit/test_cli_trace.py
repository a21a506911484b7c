"""`ariane trace` on published tables: timeline, list, JSON, and messages about missing data."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")

from test_trace_lookup import T0_MS, at, delivery, journey, publish, unique_id
from typer.testing import CliRunner

from ariane.cli.main import app
from ariane.clock import SYSTEM_CLOCK
from ariane.errors import StoreError


def said(home: Path, *words: str, status: int = 0, columns: int = 160) -> str:
    done = CliRunner().invoke(app, ["trace", "--home", str(home), *words], env={"COLUMNS": str(columns)})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, done.output
    return done.output


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    ahead = journey(
        unique_id(1), sent_at=at(1200), stored_at=at(2), stored_exact=True, producer_clock_ms=-1200, producer_clock_error_ms=3,
        deliveries=[delivery(9, 16, result="failed"), delivery(1009, 1016, clock_ms=0, clock_error_ms=4, retry_times=1)],
        attempts=2,
    )  # fmt: skip
    publish(tmp_path, ahead, journey(unique_id(2), None), journey(unique_id(3), queueing_ms=900))
    monkeypatch.setattr(type(SYSTEM_CLOCK), "now_ms", lambda self: T0_MS + 60_000)
    return tmp_path


def test_the_timeline_uses_the_brokers_clock_and_shows_the_clock_error(home: Path) -> None:
    lines = [line.split() for line in said(home, "--id", unique_id(1)).splitlines()]
    assert [(line[0], line[1], line[4]) for line in lines[1:2]] == [("22:13:20.000", "3", "sent")]
    assert lines[2][:4] == ["22:13:20.002", "2ms", "1", "stored"]
    assert lines[3][:2] == ["22:13:20.009", "?"]
    assert " ".join(lines[4][4:6]) == "consumed: failed"
    assert lines[5][:2] == ["22:13:21.009", "4"]
    assert lines[5][-2:] == ["retry", "1"]
    assert lines[-2][:2] == ["as", "of"]
    assert lines[-1] == ["tables:", str(home)]


@pytest.mark.parametrize("columns", [80, 100])
def test_times_are_not_cut_in_a_narrow_terminal(home: Path, columns: int) -> None:
    group = "a-consumer-group-with-a-long-name"
    long = journey(
        unique_id(4), group, sent_at=at(1200), stored_at=at(2), queueing_ms=123_456, deliveries=[delivery(9, 16)]
    )
    publish(home, long)
    listed = said(home, "--topic", "T", columns=columns)
    timeline = said(home, "--id", unique_id(4), columns=columns)
    for output, times in (
        (listed, ["22:13:21.200", "22:13:20.002", "22:13:20.010", "123,456ms"]),
        (timeline, ["22:13:20.002"]),
    ):
        lines = output.splitlines()
        assert max(map(len, lines[:-1])) <= columns, output
        assert "…" not in output
        assert any(all(time in line for time in times) for line in lines), output
        assert any(re.fullmatch(f"#\\d {unique_id(4)}", line) for line in lines), output


def test_a_topic_is_printed_as_one_line_per_journey(home: Path) -> None:
    lines = said(home, "--topic", "T", "--slowest", "--limit", "1").splitlines()
    assert unique_id(3) in lines[1]
    assert "900ms" in lines[1]
    assert "2 more results omitted; raise --limit to see them" in lines[2]
    assert "not consumed" in said(home, "--topic", "T")


def test_a_recalled_message_is_shown_as_recalled_unless_it_was_consumed(tmp_path: Path, home: Path) -> None:
    publish(
        tmp_path, journey(unique_id(4), None, recalled_at=at(40), message_type=3), journey(unique_id(5), recalled_at=at(8)),
    )  # fmt: skip
    recalled, consumed = (
        next(line for line in said(home, "--topic", "T").splitlines() if unique_id(number) in line) for number in (4, 5)
    )
    assert (recalled.split()[-1], consumed.split()[-1]) == ("recalled", "success")
    timeline = [line.split() for line in said(home, "--id", unique_id(4)).splitlines()]
    assert (timeline[3][0], timeline[3][-1]) == ("22:13:20.040", "new")
    assert "recalled" in timeline[3]


def test_json_is_printed_as_one_row_per_line(home: Path) -> None:
    done = CliRunner().invoke(app, ["trace", "--home", str(home), "--key", "all", "--limit", "2", "--json"])
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["message_id"] for row in rows] == [unique_id(2), unique_id(3)]
    assert rows[1]["deliveries"][0]["started_at"] == "2023-11-14T22:13:20.010000+00:00"
    assert done.stderr.splitlines()[0] == "1 more results omitted; raise --limit to see them"


def test_missing_messages_and_tables_are_reported(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert "no traced message with key nobody" in said(home, "--key", "nobody", status=1)
    with pytest.raises(StoreError, match="no traced messages of topic V"):
        said(home, "--topic", "V")
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(StoreError, match="no journeys in") as nothing:
        said(empty, "--topic", "T")
    command = re.search(r"`ariane (.*?)`", str(nothing.value))
    assert command is not None
    assert shlex.split(command[1]) == ["pipeline", "run", "trace", "-n", "127.0.0.1:9876", "--home", str(empty)]
