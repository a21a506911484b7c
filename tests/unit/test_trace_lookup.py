"""Lookup of published journeys, and their timeline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")

from ariane.errors import StoreError
from ariane.reports import trace_lookup
from ariane.reports.trace_lookup import TopicSelection
from ariane.tables import JOURNEYS, MESSAGE_KEYS
from ariane.tables.time_buckets import bucket_of_id
from tables_on_disk import put

T0_MS = 1_700_000_000_000
T0 = datetime.fromtimestamp(T0_MS / 1000, UTC)
# Unique ids count the ms since their month began.
SINCE_MONTH_MS = T0_MS - int(datetime(2023, 11, 1, tzinfo=UTC).timestamp() * 1000)


def at(ms: int) -> datetime:
    return T0 + timedelta(milliseconds=ms)


def unique_id(number: int) -> str:
    return f"0A00000200010A0B0C0D{SINCE_MONTH_MS:08X}{number:04X}"


def delivery(began_ms: int | None, ended_ms: int | None, **other: Any) -> dict[str, Any]:
    item = {
        "request_id": f"R{began_ms}", "started_at": None if began_ms is None else at(began_ms),
        "ended_at": None if ended_ms is None else at(ended_ms), "cost_ms": 5, "result": "success", "retry_times": 0,
        "host": "10.0.0.3:1", "region": None, "clock_ms": None, "clock_error_ms": None, "started_corrected_at": None,
        "ended_corrected_at": None,
    }  # fmt: skip
    return item | other


def journey(message_id: str, group: str | None = "G", **other: Any) -> dict[str, Any]:
    """A row as the pipeline writes it."""
    sent = {
        "topic": "T", "tags": "new", "producer_group": "P", "producer_host": "10.0.0.2:1", "store_host": "10.0.0.1:10911",
        "offset_message_id": f"OFF-{message_id}", "sent_at": at(0), "send_cost_ms": 3, "stored_at": at(3), "sends": 1,
        "sent_ok": True, "stored_exact": False,
    }  # fmt: skip
    consumed = {
        "delivered_at": at(10), "queueing_ms": 7, "consume_cost_ms": 5, "consumed_at": at(15), "attempts": 1,
        "result": "success", "consumer_host": "10.0.0.3:1", "clock_skew": False, "deliveries": [delivery(10, 15)],
        "consumed_times": 1,
    }  # fmt: skip
    row = dict.fromkeys(JOURNEYS.column_names) | sent | (consumed if group else {})
    return row | {"message_id": message_id, "consumer_group": group, "keys": f"order-{message_id} all"} | other


def publish(home: Path, *rows: dict[str, Any]) -> None:
    """Journeys and the terms that lead to them, each in the bucket of its id."""
    buckets: dict[str, list[dict[str, Any]]] = {}
    terms: dict[str, list[dict[str, Any]]] = {}
    for number, row in enumerate(rows):
        bucket = bucket_of_id(row["message_id"], T0_MS)
        buckets.setdefault(bucket, []).append(row)
        for term in (*(row["keys"] or "").split(), row["offset_message_id"]):
            result = {
                "term": term,
                "message_id": row["message_id"],
                "journey_bucket": bucket,
                "first_traced_at": at(number),
            }
            # As after a merge: a day's file and a bucket's have the same row.
            for name in ("2023-11-14", bucket):
                terms.setdefault(name, []).append(result)
    for table, by_bucket in ((JOURNEYS, buckets), (MESSAGE_KEYS, terms)):
        for bucket, rows_of_bucket in by_bucket.items():
            put(home, table, rows_of_bucket, bucket=bucket, as_of_ms=T0_MS + 60_000)


def ids(found: trace_lookup.LookupResult) -> list[str]:
    return [row["message_id"] for row in found.rows]


def test_journeys_are_found_by_a_complete_key_and_by_either_id(tmp_path: Path) -> None:
    item, two, three = (unique_id(number) for number in (1, 2, 3))
    publish(tmp_path, journey(item), journey(two), journey(three, keys=None), journey("not-unique"))
    assert ids(trace_lookup.find_journeys(tmp_path, key=f"order-{item}")) == [item]
    assert ids(trace_lookup.find_journeys(tmp_path, key="all")) == [item, two, "not-unique"]
    assert ids(trace_lookup.find_journeys(tmp_path, key="order")) == []
    assert ids(trace_lookup.find_journeys(tmp_path, message_id=two)) == [two]
    assert ids(trace_lookup.find_journeys(tmp_path, message_id="not-unique")) == ["not-unique"]
    assert ids(trace_lookup.find_journeys(tmp_path, message_id=f"OFF-{three}")) == [three]
    assert ids(trace_lookup.find_journeys(tmp_path, message_id=unique_id(9))) == []


def test_the_newest_of_many_messages_are_returned_with_the_omitted_count(tmp_path: Path) -> None:
    publish(tmp_path, *(journey(unique_id(number)) for number in range(5)))
    result = trace_lookup.find_journeys(tmp_path, key="all", limit=2)
    assert (ids(result), result.omitted) == ([unique_id(3), unique_id(4)], 3)
    assert trace_lookup.find_journeys(tmp_path, key="all").omitted == 0


def test_journeys_are_restricted_to_one_group(tmp_path: Path) -> None:
    publish(tmp_path, journey(unique_id(1)), journey(unique_id(1), "H"))
    assert [
        row["consumer_group"] for row in trace_lookup.find_journeys(tmp_path, message_id=unique_id(1), group="H").rows
    ] == ["H"]
    assert [row["consumer_group"] for row in trace_lookup.find_journeys(tmp_path, key="all").rows] == ["G", "H"]


@pytest.mark.parametrize("looked_at", [1, 7, 1000])
def test_a_groups_messages_with_a_key_are_found_despite_newer_ones_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_at: int
) -> None:
    monkeypatch.setattr(trace_lookup, "GROUP_PAGE_MESSAGES", looked_at)
    theirs = [journey(unique_id(number), group) for number in range(3) for group in ("H", "G")]
    publish(tmp_path, *theirs, *(journey(unique_id(number)) for number in range(3, 3 + trace_lookup.LIMIT)))
    result = trace_lookup.find_journeys(tmp_path, key="all", group="H")
    assert ([(row["message_id"], row["consumer_group"]) for row in result.rows], result.omitted) == (
        [(unique_id(number), "H") for number in range(3)], 0,
    )  # fmt: skip
    newest = trace_lookup.find_journeys(tmp_path, key="all", group="H", limit=1)
    assert (ids(newest), newest.omitted) == ([unique_id(2)], 2)
    assert trace_lookup.find_journeys(tmp_path, key="all", group="none") == ([], 0)


def test_a_topics_messages_with_a_key_are_found_despite_newer_ones_of_others(tmp_path: Path) -> None:
    first, unknown = unique_id(0), unique_id(1)
    others = [journey(unique_id(number), topic="U") for number in range(2, 2 + trace_lookup.LIMIT)]
    # Consumption alone does not name the topic.
    publish(tmp_path, journey(first), journey(unknown, topic=None), *others)
    result = trace_lookup.find_journeys(tmp_path, key="all", topic="T")
    assert (ids(result), result.omitted) == ([first, unknown], 0)
    newest = trace_lookup.find_journeys(tmp_path, key="all", topic="U", limit=1)
    # The omitted ones are those of U, and that of an unknown topic.
    assert (ids(newest), newest.omitted) == ([unique_id(1 + trace_lookup.LIMIT)], trace_lookup.LIMIT - 1 + 1)
    assert trace_lookup.find_journeys(tmp_path, message_id=first, topic="U") == ([], 0)


def test_messages_of_a_client_with_a_wrong_clock_are_found_by_topic(tmp_path: Path) -> None:
    """Files are selected by the broker's clock, as rows are."""
    publish(tmp_path, journey(unique_id(1), sent_at=at(-8 * 3_600_000), stored_at=at(0), stored_exact=True))
    result = trace_lookup.journeys_of_topic(tmp_path, TopicSelection("T", T0_MS - 600_000, T0_MS + 60_000))
    assert ids(result) == [unique_id(1)]


def test_rows_have_the_columns_of_the_table_and_utc_times(tmp_path: Path) -> None:
    publish(tmp_path, journey(unique_id(1)))
    (row,) = trace_lookup.find_journeys(tmp_path, message_id=unique_id(1)).rows
    assert row == journey(unique_id(1))


def test_messages_of_a_topic_are_sorted_newest_or_slowest_first(tmp_path: Path) -> None:
    fast, slow, old, other = (unique_id(number) for number in range(4))
    publish(
        tmp_path,
        journey(fast, stored_at=at(2000)),
        journey(slow, stored_at=at(1000), queueing_ms=400),
        journey(old, stored_at=at(-9000), sent_at=at(-9000)),
        journey(other, topic="U", stored_at=at(2500)),
    )
    selection = TopicSelection("T", T0_MS, T0_MS + 3000)
    assert ids(trace_lookup.journeys_of_topic(tmp_path, selection)) == [fast, slow]
    slowest = trace_lookup.journeys_of_topic(tmp_path, selection, is_slowest_first=True, limit=1)
    assert (ids(slowest), slowest.omitted, slowest.rows[0]["took_ms"]) == ([slow], 1, 405)
    assert ids(trace_lookup.journeys_of_topic(tmp_path, selection._replace(group="H"))) == []
    with pytest.raises(StoreError, match="no traced messages of topic V in this time range; topics with traces: T, U"):
        trace_lookup.journeys_of_topic(tmp_path, selection._replace(topic="V"))
    with pytest.raises(StoreError, match="widen --since"):
        trace_lookup.journeys_of_topic(tmp_path, TopicSelection("T", T0_MS + 9000, T0_MS + 9999))


def test_unpublished_tables_are_reported_with_the_command_to_run(tmp_path: Path) -> None:
    for ask in (
        lambda: trace_lookup.find_journeys(tmp_path, key="k"),
        lambda: trace_lookup.journeys_of_topic(tmp_path, TopicSelection("T", 0, 1)),
    ):
        with pytest.raises(
            StoreError, match=r"no journeys in .* yet: .* or run `ariane pipeline run trace .*\(needs Spark: Java 17"
        ):
            ask()


@pytest.mark.parametrize("wanted", [{}, {"key": "k", "message_id": "m"}])
def test_key_and_id_exclude_each_other(tmp_path: Path, wanted: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="expected exactly one of key and message_id"):
        trace_lookup.find_journeys(tmp_path, **wanted)


def test_the_timeline_of_two_groups_shows_the_send_once_and_every_attempt() -> None:
    tries = [delivery(20, 30, result="failed"), delivery(1020, 1030, retry_times=1)]
    late = journey("1", "H", delivered_at=at(20), consumed_at=at(1030), attempts=2, queueing_ms=17, deliveries=tries)
    moments = trace_lookup.timeline([late, journey("1")])
    assert [(moment.at, moment.event, moment.group) for moment in moments] == [
        (at(0), "sent", "P"),
        (at(3), "stored", None),
        (at(10), "delivered", "G"),
        (at(15), "consumed", "G"),
        (at(20), "delivered", "H"),
        (at(30), "consumed: failed", "H"),
        (at(1020), "delivered", "H"),
        (at(1030), "consumed", "H"),
    ]
    assert [moment.duration for moment in moments[2:4]] == [timedelta(milliseconds=7), timedelta(milliseconds=5)]
    assert moments[-2].note == "retry 1"


def test_times_are_converted_to_the_brokers_clock_if_offsets_are_known() -> None:
    """The producer's clock is 1.2 s ahead, the consumer's is right; the broker's store time is exact."""
    row = journey(
        "1", sent_at=at(1200), stored_at=at(2), stored_exact=True, producer_clock_ms=-1200, producer_clock_error_ms=2,
        deliveries=[delivery(10, 15, clock_ms=0, clock_error_ms=4)],
    )  # fmt: skip
    assert [(moment.event, moment.at, moment.error_ms) for moment in trace_lookup.timeline([row])] == [
        ("sent", at(0), 2),
        ("stored", at(2), 0),
        ("delivered", at(10), 4),
        ("consumed", at(15), 4),
    ]
    assert {moment.error_ms for moment in trace_lookup.timeline([journey("2")])} == {None}


def test_simultaneous_events_are_listed_in_causal_order() -> None:
    row = journey("1", stored_at=at(0), deliveries=[delivery(0, 0)])
    assert [moment.event for moment in trace_lookup.timeline([row])] == ["sent", "stored", "delivered", "consumed"]


def test_the_timeline_shows_decisions_delays_recalls_and_dead_letters() -> None:
    decision = {"decided_at": at(50), "state": "COMMIT_MESSAGE", "from_check": True, "host": "p", "transaction_id": "X"}
    row = journey(
        "1", transactions=[decision], available_at=at(60), delay_ms=57, dead_lettered_at=at(90), recalled_at=at(55)
    )
    assert [moment.event for moment in trace_lookup.timeline([row])] == [
        "sent", "stored", "delivered", "consumed", "decided: COMMIT_MESSAGE", "recalled", "available", "dead-lettered",
    ]  # fmt: skip


def test_a_failed_send_and_a_delivery_with_clock_skew_are_reported() -> None:
    failed = journey("1", None, sent_ok=False, stored_at=None)
    assert [moment.event for moment in trace_lookup.timeline([failed])] == ["send failed"]
    skewed = journey("2", sent_at=at(100), stored_at=at(103), clock_skew=True, queueing_ms=None)
    first, *_ = trace_lookup.timeline([skewed])
    assert (first.event, first.duration) == ("delivered", None)
    assert "clocks" in first.note


def test_consumptions_without_an_end_a_send_or_a_start_are_shown() -> None:
    running = journey("1", deliveries=[delivery(10, None, result="unknown", cost_ms=None)])
    assert [moment.event for moment in trace_lookup.timeline([running])] == ["sent", "stored", "delivered"]
    unsent = journey("2", sent_at=None, stored_at=None, deliveries=[delivery(None, 15)])
    assert [(moment.event, moment.at) for moment in trace_lookup.timeline([unsent])] == [
        ("delivered", at(10)),
        ("consumed", at(15)),
    ]


def test_omitted_attempts_are_counted() -> None:
    row = journey("1", attempts=100, deliveries=[delivery(10, 15), delivery(20, 25)])
    assert trace_lookup.timeline([row])[2].note == "98 attempts in between omitted"
