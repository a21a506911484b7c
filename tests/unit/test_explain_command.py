"""`ariane pipeline explain`: contract, sources and freshness of the columns of a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("pyarrow", reason="the tables of this test are written with pyarrow")

from ariane.cli import main
from ariane.tables import CLOCKS, MESSAGES, TRACE_EVENTS, lineage
from tables_on_disk import put


def explain(*arguments: str) -> str:
    result = CliRunner().invoke(main.app, ["pipeline", "explain", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_each_column_has_its_contract_and_the_oldest_as_of_time(tmp_path: Path) -> None:
    put(tmp_path / "tables", TRACE_EVENTS, [], as_of_ms=2_000)
    lines = [json.loads(line) for line in explain("clocks", "--home", str(tmp_path), "--json").splitlines()]
    assert [line["column"] for line in lines] == [*CLOCKS.column_names]
    host, lower = lines[0], lines[3]
    assert (host["nullable"], host["unit"], host["sources"]) == (False, None, ["trace_events.client_host"])
    assert (host["fresh_as"], host["as_of_ms"]) == (["trace_events"], 2_000)
    assert (lower["unit"], lower["fresh_as"], lower["as_of_ms"]) == ("ms", ["messages", "trace_events"], None)
    put(tmp_path / "tables", MESSAGES, [], as_of_ms=1_000)
    again = [json.loads(line) for line in explain("clocks", "--home", str(tmp_path), "--json").splitlines()]
    assert again[3]["as_of_ms"] == 1_000


def test_the_text_names_sources_and_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    text = explain("trace_events", "--home", str(tmp_path))
    assert "message_id  STRING NOT NULL" in text
    assert "from @traces.properties; fresh as trace_events" in text
    assert "trace_events: no data yet" in text


def test_the_text_is_wrapped_in_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert max(map(len, explain("clocks", "--home", str(tmp_path)).splitlines())) > 200
    monkeypatch.setenv("COLUMNS", "80")
    wrapped = explain("clocks", "--home", str(tmp_path)).splitlines()
    assert max(map(len, wrapped)) <= 80
    assert "    messages.store_timestamp; fresh as messages, trace_events" in wrapped


def test_an_openlineage_event_is_printed(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    event = json.loads(explain("latencies", "--home", str(tmp_path), "--openlineage"))
    fields = event["dataset"]["facets"]["columnLineage"]["fields"]
    assert fields["send_cost_ms"]["inputFields"] == [
        {"namespace": "file", "name": f"{tmp_path.resolve()}/tables/traffic", "field": "send_cost_ms"}
    ]


@pytest.mark.parametrize(
    ("home", "namespace", "name"),
    [
        ("s3://bucket/a/tables", "s3://bucket", "a/tables/traffic"),
        ("hdfs://node:8020/a/tables", "hdfs://node:8020", "/a/tables/traffic"),
    ],
)
def test_datasets_of_a_store_are_named_by_authority_and_path(home: str, namespace: str, name: str) -> None:
    event = lineage.openlineage_event(lineage.TABLES["traffic"], home, "2026-01-31T10:00:00+00:00")
    dataset = event["dataset"]
    assert (dataset["namespace"], dataset["name"]) == (namespace, name)


def test_a_home_with_a_password_is_refused_without_showing_it() -> None:
    result = CliRunner().invoke(
        main.app, ["pipeline", "explain", "clocks", "--home", "s3://key:hidden-1@bucket/tables"]
    )
    assert result.exit_code == 2
    assert "no password in the URI" in result.output
    assert "hidden-1" not in result.output
