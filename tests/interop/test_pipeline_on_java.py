"""The jobs against a Java cluster with Java clients: their traces and messages become tables, unchanged.

Java's trace dispatcher drops traces younger than 500 ms when a client stops, and those that exceed its queue: the programs wait
before they exit, and send only some tens of messages.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from interop_servers import consume, produce

from ariane.clock import SYSTEM_CLOCK
from ariane.pipeline.spark_session import java_fault
from ariane.reports import REPORTS, trace_lookup
from ariane.reports.tables import table_views
from ariane.tables import DELAYS, JOURNEYS, TRANSACTIONS
from ariane.testing import java

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(java_fault() is not None, reason=f"Spark: {java_fault()}"),
]
COUNT = 20
CHECKS = {"transactionTimeOut": "500", "transactionCheckInterval": "500"}
HOUR_MS = 3_600_000


class Done(NamedTuple):
    """Messages sent, the resulting tables, and data read while the broker ran and afterwards."""

    sent: list[dict[str, object]]
    delayed: dict[str, object]
    half: dict[str, object]
    home: Path
    said: str
    live: list[tuple[object, ...]]
    stored: list[tuple[object, ...]]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    directory = tmp_path_factory.mktemp("java")
    home, broker_home = directory / "tables", directory / "b"
    with (
        java.name_server(directory / "ns") as names,
        java.broker(broker_home, names.addr, properties=CHECKS),
    ):
        sent = produce(names.addr, COUNT, "trace", "tags=a,b", "keys=ORDER")
        (delayed,) = produce(names.addr, 1, "trace", "keys=LATER", "delay=1")
        transacted = java.run("ariane.peers.Transact", [names.addr, "T", "TP", "1", "3", "trace", "keys=HALF"])
        (half,) = (event for event in java.events(transacted) if event["event"] == "sent")
        consume(names.addr, "G", "*", COUNT + 2, "trace")
        command = [sys.executable, "-m", "ariane.cli", "pipeline", "run", "all", "--once"]
        where = ["--namesrv", names.addr, "--home", str(home)]
        ran = subprocess.run([*command, *where], capture_output=True, text=True, timeout=500, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        live, stored = both(names.addr, broker_home / "store")
    yield Done(sent, delayed, half, home, ran.stdout, live, stored)


COMPARED = (
    "queue_id", "queue_offset", "commit_log_offset", "message_id", "keys", "tags", "properties", "body",
    "born_timestamp", "store_timestamp", "born_host", "store_host", "sys_flag",
)  # fmt: skip


def both(namesrv: str, store: Path) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """Read topic T through the connector, from the broker and from the store files."""
    from ariane.pipeline.spark_session import open_session
    from ariane.spark import RocketMQSource, StoreSource

    with open_session("both", "local[2]") as spark:
        for source in (RocketMQSource, StoreSource):
            spark.dataSource.register(source)
        of_broker = spark.read.format("rocketmq").option("namesrv", namesrv).option("topic", "T").load()
        of_files = spark.read.format("rocketmq-store").load(str(store)).where("valid and topic = 'T'")
        frames = (of_broker, of_files)
        live, stored = ([plain(row) for row in frame.select(*COMPARED).collect()] for frame in frames)
    return sorted(live), sorted(stored)


def plain(row: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(str(sorted(cell.items())) if isinstance(cell, dict) else str(cell) for cell in row)


def test_a_java_store_and_its_broker_return_the_same_messages(done: Done) -> None:
    assert len(done.live) == COUNT + 2
    assert done.live == done.stored


def test_each_message_of_a_java_client_has_a_complete_journey(done: Done) -> None:
    assert re.search(rf"journeys +rows {COUNT + 2} ", done.said), done.said
    for item in done.sent:
        (row,) = trace_lookup.find_journeys(done.home, message_id=str(item["msgId"])).rows
        assert (row["consumer_group"], row["producer_group"], row["topic"], row["result"]) == ("G", "P", "T", "success")
        assert row["offset_message_id"] == item["offsetMsgId"]
        assert row["sent_ok"] and row["attempts"] == 1
        assert row["send_cost_ms"] >= 0 and row["consume_cost_ms"] >= 0
        assert (row["consumed_times"], row["retries"], row["message_type"]) == (1, 0, 0)
        (attempt,) = row["deliveries"]
        assert (attempt["result"], attempt["retry_times"]) == ("success", 0)
        assert attempt["started_at"] <= attempt["ended_at"]
        (by_offset,) = trace_lookup.find_journeys(done.home, message_id=str(item["offsetMsgId"])).rows
        assert by_offset == row
    (by_key,) = trace_lookup.find_journeys(done.home, key="ORDER-7").rows
    assert [moment.event for moment in trace_lookup.timeline([by_key])] == ["sent", "stored", "delivered", "consumed"]
    with table_views.open_views(done.home, table_views.whole_table(JOURNEYS)) as sql:
        rows = table_views.query(sql, "SELECT topic, consumer_group, result, sent_ok FROM journeys")
    assert Counter(tuple(row.values()) for row in rows) == Counter({("T", "G", "success", True): COUNT + 2})


def test_a_java_delayed_message_and_transaction_are_in_the_tables(done: Done) -> None:
    with table_views.open_views(
        done.home, table_views.whole_table(DELAYS), table_views.whole_table(TRANSACTIONS)
    ) as sql:
        delays = table_views.query(sql, "SELECT message_id, level, state, topic, lateness_ms FROM delays")
        halves = table_views.query(sql, "SELECT message_id, topic, producer_group, decision, commits FROM transactions")
    ((late,), (half,)) = delays, halves
    lateness_ms = late.pop("lateness_ms")
    assert late == {"message_id": done.delayed["msgId"], "level": 1, "state": "delivered", "topic": "T"}
    assert isinstance(lateness_ms, int) and -1000 < lateness_ms < 60_000
    assert half == {
        "message_id": done.half["msgId"], "topic": "T", "producer_group": "TP", "decision": "commit", "commits": 1,
    }  # fmt: skip


@pytest.mark.parametrize("name", REPORTS)
def test_every_report_is_complete(done: Done, name: str) -> None:
    now_ms = SYSTEM_CLOCK.now_ms()
    answer = REPORTS[name].function(done.home, since_ms=now_ms - HOUR_MS, until_ms=now_ms, now_ms=now_ms)
    assert answer.as_of is not None
    assert answer.sections
    # The cluster is younger than the requested hour, and `--once` has ended: the brokers are no longer polled.
    expected = ("the tables start at", "have not been read for", "no samples since")
    assert [gap for gap in answer.warnings if not any(text in gap for text in expected)] == []
