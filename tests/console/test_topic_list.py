"""The list of topics from a snapshot: kinds, filters, order, unknown values."""

from __future__ import annotations

import asyncio
import html
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastapi.testclient import TestClient
from scripted_cluster import NOW_MS, ScriptedCluster, services

from ariane.console.app import create_app
from ariane.console.areas.topics.topic_list import TopicListQuery, TopicListView, topic_list
from ariane.console.live.live_snapshot import BrokerRow, LiveSnapshot, TopicRow
from ariane.console.services import ConsoleServices
from ariane.errors import UsageError

XSS = "<img src=x onerror=alert(1)>"
SNAPSHOT = LiveSnapshot(
    as_of_ms=NOW_MS,
    base_as_of_ms=NOW_MS,
    brokers=(BrokerRow(cluster="C", broker="broker-a", broker_id=0, addr="a:1", is_up=True),),
    topics=(
        TopicRow(topic="orders", kind="normal", clusters=("C",), brokers=("broker-a", "broker-b"), write_queues=16,
                 read_queues=16, perms=(6,), messages=7, tps_in=1.5, groups=("billing", "mail")),
        TopicRow(topic="Old-Orders", kind="normal", clusters=("C",), brokers=("broker-a",), write_queues=8, read_queues=8,
                 perms=(4, 6), messages=None, tps_in=None, is_partial=True, tps_is_partial=True),
        TopicRow(topic=XSS, kind="normal", clusters=("D",), brokers=("broker-d",), messages=70, perms=(0,)),
        TopicRow(topic="%RETRY%billing", kind="retry", clusters=("C",), brokers=("broker-a",), messages=1),
        TopicRow(topic="%DLQ%billing", kind="dlq", clusters=("C",), brokers=("broker-a",), messages=2),
        TopicRow(topic="SCHEDULE_TOPIC_XXXX", kind="delay", clusters=("C",), brokers=("broker-a",)),
        TopicRow(topic="TBW102", kind="system", clusters=("C",), brokers=("broker-a",)),
    ),
)  # fmt: skip


def list_topics(tmp_path: Path, snapshot: LiveSnapshot = SNAPSHOT, **query: Any) -> TopicListView:
    parts = services(ScriptedCluster(first={}), snapshot, tmp_path)
    return asyncio.run(topic_list(parts, TopicListQuery(**query)))


def names(view: TopicListView) -> list[str]:
    return [row.topic for row in view.topics.items]


def test_the_list_starts_with_topics_of_applications_and_counts_the_others(tmp_path: Path) -> None:
    view = list_topics(tmp_path)
    assert names(view) == [XSS, "Old-Orders", "orders"]
    counts = {count.kind: count.topics for count in view.kinds}
    assert counts == {"normal": 3, "delay": 1, "retry": 1, "dlq": 1, "system": 1, "all": 7}
    assert (view.as_of_ms, view.is_loaded, view.clusters) == (NOW_MS, True, ["C"])


def test_topics_are_filtered_by_kind_cluster_broker_and_name(tmp_path: Path) -> None:
    assert names(list_topics(tmp_path, kind="dlq")) == ["%DLQ%billing"]
    assert list_topics(tmp_path, kind="all").topics.total == 7
    view = list_topics(tmp_path, cluster="D")
    assert (names(view), {count.kind: count.topics for count in view.kinds}["all"]) == ([XSS], 1)
    assert names(list_topics(tmp_path, broker="broker-b")) == ["orders"]
    assert names(list_topics(tmp_path, q="ORDERS", sort="queues", order="desc")) == ["orders", "Old-Orders"]


def test_unknown_values_are_null_and_last(tmp_path: Path) -> None:
    view = list_topics(tmp_path, sort="messages", order="desc")
    assert names(view) == [XSS, "orders", "Old-Orders"]
    unknown = view.topics.items[-1]
    assert (unknown.messages, unknown.tps_in, unknown.is_partial) == (None, None, True)
    assert unknown.permissions == ["read", "read-write"]
    assert view.topics.items[0].permissions == ["none"]


def test_a_console_that_has_not_polled_yet_says_so(tmp_path: Path) -> None:
    view = list_topics(tmp_path, LiveSnapshot(as_of_ms=0))
    assert (view.is_loaded, view.topics.total) == (False, 0)


def test_an_unknown_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="sort = 'size': expected one of"):
        list_topics(tmp_path, sort="size")


def test_pages_of_five_thousand_topics_are_complete(tmp_path: Path) -> None:
    rows = tuple(TopicRow(topic=f"topic-{number:04}", kind="normal", messages=number % 7) for number in range(5_000))
    snapshot = LiveSnapshot(as_of_ms=NOW_MS, base_as_of_ms=NOW_MS, topics=rows)
    found = [
        name
        for page in range(1, 11)
        for name in names(list_topics(tmp_path, snapshot, sort="messages", page=page, size=500))
    ]
    assert sorted(found) == [row.topic for row in rows]


def test_the_page_shows_partial_sums_as_lower_bounds_and_names_as_text(tmp_path: Path) -> None:
    topics = (
        TopicRow(topic=XSS, kind="normal", messages=7, tps_in=0.0, is_partial=True, tps_is_partial=True,
                 missing=("broker-b",), tps_missing=("broker-b", "broker-c")),
        TopicRow(topic="gone", kind="normal", messages=0, write_queues=4, is_partial=True, missing=("broker-d",)),
    )  # fmt: skip
    snapshot = LiveSnapshot(
        as_of_ms=NOW_MS,
        base_as_of_ms=NOW_MS,
        rates_as_of_ms=NOW_MS - 60_001,
        base_unavailable={"b:1": "Broker broker-b b:1 did not respond about topics and groups: slow"},
        topics=topics,
    )

    @asynccontextmanager
    async def opened() -> AsyncIterator[ConsoleServices]:
        yield services(ScriptedCluster(first={}), snapshot, tmp_path)

    with TestClient(create_app(opened()), base_url="http://127.0.0.1") as client:
        page = client.get("/topics").text
    assert XSS not in page
    assert html.escape(XSS) in page
    assert "≥ 7" in page
    assert "≥ 0" not in page, "at least 0 is unknown"
    assert 'href="/topics/%3Cimg%20src%3Dx%20onerror%3Dalert%281%29%3E"' in page
    assert 'title="Without the part of broker-b">≥ 7<' in page
    assert 'title="Without the part of broker-b, broker-c"' in page
    assert 'title="Without the part of broker-d"' in page
    assert "Values with ≥ or ? lack the part of: broker-b, broker-c, broker-d" in page
    assert "Broker broker-b b:1 did not respond about topics and groups: slow" in page
    assert 'class="is-old" title="Older than two intervals of the poll">Rates' in page
    assert "old-dot" in page


@pytest.mark.parametrize(
    ("queues_s", "rates_s", "old"), [(0, 0, []), (10, 60, []), (11, 60, ["queues"]), (0, 61, ["rates"]), (0, None, [])]
)
def test_columns_have_times_of_their_own(tmp_path: Path, queues_s: int, rates_s: int | None, old: list[str]) -> None:
    rates_ms = None if rates_s is None else NOW_MS - rates_s * 1000
    snapshot = LiveSnapshot(as_of_ms=NOW_MS, base_as_of_ms=NOW_MS - queues_s * 1000, rates_as_of_ms=rates_ms)
    view = list_topics(tmp_path, snapshot)
    assert [time.columns for time in view.times if time.is_old] == old
    assert [time.as_of_ms for time in view.times] == [NOW_MS - queues_s * 1000, rates_ms]
    assert view.as_of_ms == min(NOW_MS - queues_s * 1000, rates_ms or NOW_MS)


def test_before_the_first_poll_of_rates_no_broker_is_the_reason(tmp_path: Path) -> None:
    row = TopicRow(topic="T", kind="normal", messages=1, tps_is_partial=True, tps_missing=("broker-a",))
    snapshot = LiveSnapshot(as_of_ms=NOW_MS, base_as_of_ms=NOW_MS, topics=(row,))
    view = list_topics(tmp_path, snapshot)
    assert (view.missing, view.topics.items[0].tps_missing) == ([], [])
    polled = msgspec.structs.replace(snapshot, rates_as_of_ms=NOW_MS)
    assert list_topics(tmp_path, polled).missing == ["broker-a"]
