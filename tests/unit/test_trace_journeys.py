"""Looking up published journeys, and their timeline."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")
import pyarrow.parquet as pq  # noqa: E402

from ariane.admin import published, traces  # noqa: E402
from ariane.admin.published import Version  # noqa: E402
from ariane.errors import StoreError  # noqa: E402
from ariane.tables import JOURNEYS  # noqa: E402

T0 = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
TYPES = {"STRING": pa.string(), "BIGINT": pa.int64(), "BOOLEAN": pa.bool_(), "TIMESTAMP": pa.timestamp("us", tz="UTC")}
SCHEMA = pa.schema([(column.name, TYPES[column.type]) for column in JOURNEYS.columns])


def at(ms: int) -> datetime:
    return T0 + timedelta(milliseconds=ms)


def journey(message_id: str, group: str | None = "G", **other: Any) -> dict[str, Any]:
    """A row as the fold writes it."""
    sent = {
        "topic": "T", "tags": "new", "producer_group": "P", "producer_host": "10.0.0.2:1", "store_host": "10.0.0.1:10911",
        "offset_message_id": f"OFF-{message_id}", "sent_at": at(0), "send_cost_ms": 3, "stored_at": at(3), "sends": 1,
        "sent_ok": True,
    }  # fmt: skip
    consumed = {
        "delivered_at": at(10), "queueing_ms": 7, "consume_cost_ms": 5, "consumed_at": at(15), "attempts": 1,
        "result": "success", "consumer_host": "10.0.0.3:1", "clock_skew": False,
    }  # fmt: skip
    row = dict.fromkeys(JOURNEYS.names) | sent | (consumed if group else {})
    return row | {"message_id": message_id, "consumer_group": group, "keys": f"order-{message_id} all"} | other


def put(home: Path, version: int, *rows: dict[str, Any]) -> Version:
    """A version as the pipeline publishes it."""
    directory = home / JOURNEYS.name
    place = published.path_of(directory, Version(version, None, 0))
    place.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(list(rows), SCHEMA), place / "part-0.parquet")
    (place / "_SUCCESS").touch()
    pointed = Version(version, 1_700_000_060_000, len(rows))
    (directory / published.CURRENT).write_text(json.dumps(pointed._asdict()))
    return pointed


def ids(found: traces.Found) -> list[str]:
    return [row["message_id"] for row in found.rows]


def test_found_by_a_whole_key_and_by_either_id(tmp_path: Path) -> None:
    put(tmp_path, 1, journey("1"), journey("11"), journey("2", keys=None))
    assert ids(traces.find(tmp_path, key="order-1")) == ["1"]
    assert ids(traces.find(tmp_path, key="all")) == ["1", "11"]
    assert ids(traces.find(tmp_path, key="order")) == []
    assert ids(traces.find(tmp_path, message_id="11")) == ["11"]
    assert ids(traces.find(tmp_path, message_id="OFF-2")) == ["2"]
    assert ids(traces.find(tmp_path, message_id="3")) == []
    assert traces.find(tmp_path, key="all").as_of == datetime(2023, 11, 14, 22, 14, 20, tzinfo=UTC)


def test_rows_have_the_columns_of_the_table_and_times_in_utc(tmp_path: Path) -> None:
    put(tmp_path, 1, journey("1"))
    (row,) = traces.find(tmp_path, message_id="1").rows
    assert row == journey("1")


def test_nothing_published_yet_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no journeys in .* yet: run `ariane pipeline run trace"):
        traces.find(tmp_path, key="k")


def test_a_broken_pointer_is_named(tmp_path: Path) -> None:
    put(tmp_path, 1, journey("1"))
    (tmp_path / JOURNEYS.name / published.CURRENT).write_text("v1")
    with pytest.raises(StoreError, match="CURRENT is no table pointer"):
        traces.find(tmp_path, key="k")


def test_what_is_written_is_not_seen_before_the_pointer_moves(tmp_path: Path) -> None:
    pointed = put(tmp_path, 1, journey("1"))
    put(tmp_path, 2, journey("2"))
    (tmp_path / JOURNEYS.name / published.CURRENT).write_text(json.dumps(pointed._asdict()))
    assert ids(traces.find(tmp_path, key="all")) == ["1"]


def test_a_version_removed_under_the_reader_makes_place_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = put(tmp_path, 1, journey("1")), put(tmp_path, 4, journey("4"))
    shutil.rmtree(published.path_of(tmp_path / JOURNEYS.name, old))
    answers = iter([old, new])
    monkeypatch.setattr(published, "current", lambda directory: next(answers))
    assert ids(traces.find(tmp_path, key="all")) == ["4"]


def test_a_published_version_without_files_is_an_error_with_its_fix(tmp_path: Path) -> None:
    shutil.rmtree(published.path_of(tmp_path / JOURNEYS.name, put(tmp_path, 1, journey("1"))))
    with pytest.raises(StoreError, match=r"lacks files.*run the pipeline once"):
        traces.find(tmp_path, key="all")


@pytest.mark.parametrize("wanted", [{}, {"key": "k", "message_id": "m"}])
def test_either_key_or_id(tmp_path: Path, wanted: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="a key or a message id"):
        traces.find(tmp_path, **wanted)


def test_the_timeline_of_two_groups_tells_the_send_once() -> None:
    late = journey("1", "H", delivered_at=at(20), consumed_at=at(1030), attempts=2, result="failed", queueing_ms=17)
    moments = traces.timeline([late, journey("1")])
    assert [(moment.at, moment.what, moment.group) for moment in moments] == [
        (at(0), "sent", "P"),
        (at(3), "stored", None),
        (at(10), "delivered", "G"),
        (at(15), "consumed", "G"),
        (at(20), "delivered", "H"),
        (at(1030), "consumed: failed", "H"),
    ]
    assert [moment.cost for moment in moments[2:4]] == [timedelta(milliseconds=7), timedelta(milliseconds=5)]
    assert moments[-1].note == "2 attempts"


def test_what_happened_at_one_time_stands_in_the_order_it_must_have_had() -> None:
    row = journey("1", stored_at=at(0), delivered_at=at(0), consumed_at=at(0))
    assert [moment.what for moment in traces.timeline([row])] == ["sent", "stored", "delivered", "consumed"]


def test_a_send_that_failed_and_a_delivery_with_skew_are_said() -> None:
    failed = journey("1", None, sent_ok=False, stored_at=None)
    assert [moment.what for moment in traces.timeline([failed])] == ["send failed"]
    skewed = journey("2", sent_at=at(100), stored_at=at(103), clock_skew=True, queueing_ms=None)
    first, *_ = traces.timeline([skewed])
    assert (first.what, first.cost) == ("delivered", None)
    assert "clocks" in first.note


def test_a_consumption_that_has_not_ended_and_one_without_a_send() -> None:
    running = journey("1", consumed_at=None, consume_cost_ms=None, result="unknown")
    assert [moment.what for moment in traces.timeline([running])] == ["sent", "stored", "delivered"]
    unsent = journey("2", sent_at=None, stored_at=None, sends=None, sent_ok=None)
    assert [moment.what for moment in traces.timeline([unsent])] == ["delivered", "consumed"]
