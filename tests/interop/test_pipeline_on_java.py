"""The jobs against a Java cluster with Java clients: their traces and messages become tables, unchanged. Then at our broker, from
the log that the Java broker wrote.

Java's trace dispatcher drops traces younger than 500 ms when a client stops, and those that exceed its queue: the programs wait
before they exit, and send only some tens of messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from interop_servers import consume, produce
from typer.testing import CliRunner

import spark_classes
from ariane.cli import main
from ariane.cli.servers.process import signals
from ariane.client import LocalState, TransactionProducer
from ariane.clock import SYSTEM_CLOCK
from ariane.model.message import Message
from ariane.pipeline.spark_session import java_fault
from ariane.reports import REPORTS, trace_lookup
from ariane.reports.tables import table_views
from ariane.tables import DELAYS, JOURNEYS, TRANSACTIONS, TableSchema
from ariane.testing import LocalCluster, java
from ariane.testing.cluster_servers import SMALL_FILES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.long(
        "tests/spark/test_pipeline_records.py::test_from_a_broker_to_the_reports",
        "tests/interop/test_spark_on_java.py::test_half_messages_of_open_transactions_are_readable",
    ),
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(java_fault() is not None, reason=f"Spark: {java_fault()}"),
]
COUNT = 20
LEVELS, LEVELS_MS = "1s 2s 3s", (1000, 2000, 3000)
SETTINGS = {
    "messageDelayLevel": LEVELS,
    "transactionTimeOut": "500",
    "transactionCheckInterval": "700",
    "mappedFileSizeCommitLog": str(SMALL_FILES["mapped_file_size_commit_log"]),
    "mappedFileSizeConsumeQueue": str(SMALL_FILES["mapped_file_size_consume_queue"]),
}
# Topics apart from T, whose messages and journeys the tests count: delays and retries, and transactions of six fates.
DELAYED, RETRIED, DECIDED = "D", "R", "X"
HOUR_MS = 3_600_000


class Done(NamedTuple):
    """Messages sent, the resulting tables, and data read while the broker ran and afterwards."""

    sent: list[dict[str, object]]
    delayed: dict[str, object]
    failing: dict[str, object]
    half: dict[str, object]
    broker_home: Path
    home: Path
    said: str
    live: list[tuple[object, ...]]
    stored: list[tuple[object, ...]]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    from ariane.pipeline.spark_session import open_session

    directory = tmp_path_factory.mktemp("java")
    home, broker_home = directory / "tables", directory / "b"
    with contextlib.ExitStack() as stack, contextlib.ExitStack() as java_servers:
        names = java_servers.enter_context(java.name_server(directory / "ns"))
        java_servers.enter_context(java.broker(broker_home, names.addr, properties=SETTINGS))
        sent = produce(names.addr, COUNT, "trace", "tags=a,b", "keys=ORDER")
        (delayed,) = produce(names.addr, 1, "trace", "keys=LATER", "delay=1")
        transacted = java.run("ariane.peers.Transact", [names.addr, "T", "TP", "1", "3", "trace", "keys=HALF"])
        (half,) = (event for event in java.events(transacted) if event["event"] == "sent")
        consume(names.addr, "G", "*", COUNT + 2, "trace")
        produce(names.addr, 4, "delay=1|2", "keys=level", topic=DELAYED)
        (failing,) = produce(names.addr, 1, "keys=retry", topic=RETRIED)
        java.run("ariane.peers.Consume", [names.addr, RETRIED, "RG", "*", "2", "60", "fail", "most=1"])
        fates = ("first=commit,rollback,unknown", "check=,,commit,,,rollback")
        java.run("ariane.peers.Transact", [names.addr, DECIDED, "XP", "6", "6", *fates, "trace"])
        # One session for all: starting one takes longer than most of its work.
        session = stack.enter_context(open_session("Java", "local[2]", conf=spark_classes.SESSION_SETTINGS))
        said = pipeline(names.addr, home)
        live, stored = both(session, names.addr, broker_home / "store")
        java_servers.close()
        yield Done(sent, delayed, failing, half, broker_home, home, said, live, stored)


def pipeline(namesrv: str, home: Path) -> str:
    """Run the command in this process, and return its output."""
    command = ["pipeline", "run", "all", "--delay-levels", LEVELS, "--namesrv", namesrv, "--home", str(home), "--once"]
    handlers = {number: signal.getsignal(number) for number in signals.NUMBERS}
    try:
        done = CliRunner().invoke(main.app, command)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert done.exit_code == 0, done.output
    return done.output


def rows_of(home: Path, table: TableSchema, where: str) -> list[dict[str, Any]]:
    with table_views.open_views(home, table_views.whole_table(table)) as sql:
        return table_views.query(sql, f"SELECT * FROM {table.name} WHERE {where} ORDER BY keys")


COMPARED = (
    "queue_id", "queue_offset", "commit_log_offset", "message_id", "keys", "tags", "properties", "body",
    "born_timestamp", "store_timestamp", "born_host", "store_host", "sys_flag",
)  # fmt: skip


def both(spark: SparkSession, namesrv: str, store: Path) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """Read topic T through the connector, from the broker and from the store files."""
    from ariane.spark import RocketMQSource, StoreSource

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
    journeys = rows_of(done.home, JOURNEYS, "true")
    assert re.search(rf"journeys +rows {len(journeys)} ", done.said), done.said
    assert {row["topic"] for row in journeys} == {"T", DECIDED}, "no others have traces"
    ended = [(row["consumer_group"], row["result"], row["sent_ok"]) for row in journeys if row["topic"] == "T"]
    assert Counter(ended) == Counter({("G", "success", True): COUNT + 2})


def test_a_java_delayed_message_and_transaction_are_in_the_tables(done: Done) -> None:
    (late,) = rows_of(done.home, DELAYS, "topic = 'T'")
    assert (late["message_id"], late["level"], late["state"]) == (done.delayed["msgId"], 1, "delivered")
    assert isinstance(late["lateness_ms"], int) and -1000 < late["lateness_ms"] < 60_000
    (half,) = rows_of(done.home, TRANSACTIONS, "topic = 'T'")
    found = (half["message_id"], half["producer_group"], half["decision"], half["commits"])
    assert found == (done.half["msgId"], "TP", "commit", 1)


def test_delays_of_levels_and_of_a_retry(done: Done) -> None:
    assert {row["topic"] for row in rows_of(done.home, DELAYS, "true")} == {"T", DELAYED, "%RETRY%RG"}
    delays = rows_of(done.home, DELAYS, f"topic = '{DELAYED}'")
    assert [(row["keys"], row["kind"], row["level"], row["state"]) for row in delays] == [
        (f"level-{number}", "level", 1 + number % 2, "delivered") for number in range(4)
    ]
    retries = rows_of(done.home, DELAYS, f"message_id = '{done.failing['msgId']}'")
    retry = min(retries, key=lambda row: row["stored_at"])
    assert (retry["kind"], retry["level"], retry["topic"], retry["state"]) == ("retry", 3, "%RETRY%RG", "delivered")
    for row in [*delays, retry]:
        assert 0 <= row["lateness_ms"] < 60_000, "never early; late by as much as the machine is busy"
        assert row["lateness_ms"] == (row["delivered_at"] - row["scheduled_at"]).total_seconds() * 1000


def test_decisions_are_the_same_from_the_java_broker_and_from_its_log_at_ours(done: Done) -> None:
    ended = {row["keys"]: row for row in rows_of(done.home, TRANSACTIONS, f"topic = '{DECIDED}'")}
    assert {key: row["decision"] for key, row in ended.items()} == {
        "K-0": "commit", "K-1": "rollback", "K-2": "commit", "K-3": "commit", "K-4": "rollback", "K-5": "rollback",
    }  # fmt: skip
    assert [ended[key]["from_check"] for key in ("K-0", "K-1", "K-2", "K-5")] == [False, False, True, True]
    assert ended["K-2"]["checks"] >= 1
    assert ended["K-2"]["decision_ms"] >= 500 > 0 <= ended["K-0"]["decision_ms"]
    # A Java broker does not let its op messages be pulled: when it heard of a rollback is not known.
    assert [ended[key]["decided_at"] for key in ("K-1", "K-4", "K-5")] == [None] * 3

    # Ours shows them, of the same log, once it has taken a half message itself. No traces are read this time.
    from ariane.pipeline import jobs, run

    repeated = done.home.with_name("again")
    with LocalCluster(done.broker_home, message_delay_level=LEVELS) as servers:
        asyncio.run(send_half(servers.namesrv))
        job = jobs.with_delay_levels(jobs.combine_jobs(("delay", "transactions")), LEVELS_MS)
        run.run(job, {"namesrv": servers.namesrv}, repeated, settings=run.RunSettings(once=True))
    result = {row["keys"]: row for row in rows_of(repeated, TRANSACTIONS, f"topic = '{DECIDED}'")}
    assert result.pop("ours")["decision"] == "commit"
    assert {key: row["decision"] for key, row in result.items()} == {key: row["decision"] for key, row in ended.items()}
    assert all(row["decided_at"] and row["decision_ms"] >= 0 and row["from_check"] is None for row in result.values())
    for key in ("K-0", "K-2", "K-3"):
        same = ("half_stored_at", "decided_at", "decision_ms", "checked_at", "commits")
        assert [result[key][name] for name in same] == [ended[key][name] for name in same]


async def send_half(namesrv: str) -> None:
    message = Message(topic=DECIDED, body=b"half", keys=["ours"])
    async with TransactionProducer(namesrv, "Q", check=lambda _: LocalState.UNKNOWN) as producer:
        await producer.send_in_transaction(message, lambda _: LocalState.COMMIT)


@pytest.mark.parametrize("name", REPORTS)
def test_every_report_is_complete(done: Done, name: str) -> None:
    now_ms = SYSTEM_CLOCK.now_ms()
    answer = REPORTS[name](done.home, since_ms=now_ms - HOUR_MS, until_ms=now_ms, now_ms=now_ms)
    assert answer.as_of is not None
    assert answer.sections
    # The cluster is younger than the requested hour, and `--once` has ended: the brokers are no longer polled.
    expected = ("the tables start at", "have not been read for", "no samples since")
    assert [gap for gap in answer.warnings if not any(text in gap for text in expected)] == []
