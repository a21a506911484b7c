"""Delays and transactions from our broker through the connector into tables and reports; and round by round from files."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

from record_frames import SCHEMA, Log, Row, at, frame, unique_id
from typer.testing import CliRunner

from ariane.cli import main
from ariane.client import (
    ClientSettings,
    Credentials,
    LocalState,
    Producer,
    SendResult,
    TraceSettings,
    TransactionProducer,
)
from ariane.clock import SYSTEM_CLOCK
from ariane.errors import ArianeError
from ariane.model.message import CHECK_IMMUNITY_TIME, Message, ReceivedMessage
from ariane.pipeline import jobs, run, source_reader
from ariane.pipeline.tables import messages
from ariane.reports import delay_report, transaction_report
from ariane.reports.report import Report, Table
from ariane.reports.tables import table_views
from ariane.tables import DELAYS, JOURNEYS, MESSAGES, POSITION_MARKS, TRANSACTIONS, TableSchema, table_store
from ariane.testing import LocalCluster
from planted_secrets import files_below, leaks, planted
from table_contract_checks import check_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
FOREVER = 36_500  # days: the tests' messages are of 2023
HOUR_MS = 3_600_000
BOTH = jobs.combine_jobs(("delay", "transactions"))


def rows_of(home: Path, table: TableSchema) -> list[dict[str, Any]]:
    with table_views.open_views(home, table_views.whole_table(table)) as sql:
        return table_views.query(sql, f"SELECT * FROM {table.name} ORDER BY {', '.join(table.sort_columns)}")


def test_the_topic_pattern_selects_message_topics() -> None:
    import re

    taken = re.compile(messages.options()["topicsPattern"]).fullmatch
    for topic in ("T", "%RETRY%G", "%DLQ%G", *messages.READ_SYSTEM_TOPICS):
        assert taken(topic), topic
    for topic in (
        "RMQ_SYS_TRACE_TOPIC",
        "TBW102",
        "SELF_TEST_TOPIC",
        "rmq_sys_wheel_timer_2",
        "rmq_sys_ariane",
        "ARIANE_SAMPLES",
    ):
        assert not taken(topic), topic


def test_custom_trace_and_sample_topics_are_excluded() -> None:
    import re

    of_all = jobs.with_topics(jobs.combine_jobs(tuple(jobs.JOBS)), "MY_TRACE", "MY|SAMPLES")
    of_one = jobs.with_topics(jobs.JOBS["delay"], "MY_TRACE", "MY|SAMPLES")
    options = {source.name: source.options for source in of_all.sources}
    assert (options["traces"], options["samples"]) == ({"topic": "MY_TRACE"}, {"topic": "MY|SAMPLES"})
    assert options["messages"] == of_one.sources[0].options, "also where no job reads traces or samples"
    taken = re.compile(options["messages"]["topicsPattern"]).fullmatch
    for topic in ("MY_TRACE_2", "MY", "SAMPLES", *messages.READ_SYSTEM_TOPICS):
        assert taken(topic), topic
    for topic in ("MY_TRACE", "MY|SAMPLES", "RMQ_SYS_TRACE_TOPIC", "ARIANE_SAMPLES"):
        assert not taken(topic), topic


class LastRound(run.SilentListener):
    """Listener that records the progress of the last round."""

    progress: run.JobProgress | None = None

    def on_round(self, progress: run.JobProgress) -> None:
        self.progress = progress


def run_once(spark: SparkSession, home: Path, inbox: Path) -> list[tuple[str, int]]:
    """Return the rebuilt tables and their row counts."""
    listener = LastRound()
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(inbox))
    settings = run.RunSettings(once=True, keep_days=FOREVER)
    runner = run.JobRunner(
        spark=spark,
        job=BOTH,
        streams={"messages": source_reader.SourceStream(stream)},
        home=home,
        settings=settings,
        stop=threading.Event(),
    )
    runner.run(listener)
    assert listener.progress is not None
    return [(item.table.name, item.published.rows) for item in listener.progress.rebuilt]


@pytest.mark.long(
    "tests/spark/test_pipeline_delays.py::test_position_marks_match_if_either_side_is_new",
)
def test_late_position_marks_update_their_messages(spark: SparkSession, tmp_path: Path) -> None:
    home, inbox = tmp_path / "tables", tmp_path / "inbox"
    home.mkdir()
    inbox.mkdir()

    def send(rows: Sequence[Row]) -> None:
        frame(spark, rows).coalesce(1).write.mode("append").parquet(str(inbox))

    log = Log()
    a, b, c = (unique_id(number, HOUR_MS * number) for number in (1, 2, 3))  # three buckets
    half, other, timer = log.half(a, 0), log.half(b, 0), log.timer(c, 0, 90_000_000)
    send(log.rows)
    assert run_once(spark, home, inbox) == [("position_marks", 0), ("delays", 1), ("transactions", 2)]
    before = table_store.read_version(home, TRANSACTIONS)
    assert before is not None

    op, cancel = log.op(half, ms=86_400_000), log.cancel(timer, 86_400_001)
    send([op, cancel])
    assert run_once(spark, home, inbox) == [("position_marks", 2), ("delays", 1), ("transactions", 2)]
    assert [(row["message_id"], row["decision"]) for row in rows_of(home, TRANSACTIONS)] == [
        (a, "rollback"),
        (b, "open"),
    ]
    assert [(row["state"], row["cancelled_at"]) for row in rows_of(home, DELAYS)] == [("cancelled", at(86_400_001))]
    after = table_store.read_version(home, TRANSACTIONS)
    assert after is not None
    kept = {file.path for file in before.files} & {file.path for file in after.files}
    assert len(kept) == 1, "the bucket of the half that nobody marked was folded again"
    # The as-of time of the tables is that of the newest message of any topic, although the last mark is older.
    send([log.put("T", unique_id(9), 90_000_000)])
    assert [name for name, _ in run_once(spark, home, inbox)] == ["delays", "transactions"]
    delays = table_store.read_version(home, DELAYS)
    assert delays is not None
    assert delays.as_of_ms == int(at(90_000_000).timestamp() * 1000)

    # A mark before its record, and a mark once more.
    log.op(other, ms=86_400_002)
    late = log.half(unique_id(4, HOUR_MS), 0)
    send([log.op(late, ms=86_500_000), op])
    run_once(spark, home, inbox)
    assert {row["decision"] for row in rows_of(home, TRANSACTIONS)} == {"rollback", "open"}
    send([late, *log.rows])
    run_once(spark, home, inbox)
    assert [row["decision"] for row in rows_of(home, TRANSACTIONS)] == ["rollback"] * 3
    assert len({(row["message_id"], row["marked_at"]) for row in rows_of(home, POSITION_MARKS)}) == 4
    assert run_once(spark, home, inbox) == []


CHECKS = {"transaction_time_out": 300, "transaction_check_interval": 400, "transaction_check_max": 3}


class Sent:
    """Messages sent to a broker of the test, with their ids."""

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}
        self.asked: Counter[str] = Counter()

    async def all_of_it(self, namesrv: str) -> None:
        now_ms = SYSTEM_CLOCK.now_ms()
        trace = TraceSettings(flush_interval=0.1)
        async with (
            TransactionProducer(namesrv, "P", check=self._check, trace=trace) as producer,
            Producer(namesrv, "Q", trace=False) as untraced,
        ):
            for name, asked in {
                "level": {"delay_level": 2}, "soon": {"deliver_at_ms": now_ms + 1500},
                "far": {"deliver_at_ms": now_ms + HOUR_MS}, "recalled": {"deliver_at_ms": now_ms + HOUR_MS},
                "recalled-untraced": {"deliver_at_ms": now_ms + HOUR_MS},
            }.items():  # fmt: skip
                sent = await producer.send(Message(topic="T", body=name.encode(), keys=[name], **asked))  # type: ignore[arg-type]
                self.ids[name] = sent.message_id
                if name.startswith("recalled"):
                    await (untraced if name.endswith("untraced") else producer).recall(sent)
            for name in ("commit", "rollback", "checked", "never", "immune"):
                own = {CHECK_IMMUNITY_TIME: "3600"} if name == "immune" else {}
                message = Message(topic="T", body=name.encode(), keys=[name], properties=own)
                done = await producer.send_in_transaction(message, lambda _, name=name: STATES[name])  # type: ignore[misc]
                self.ids[name] = done.sent.message_id
            async with asyncio.timeout(60):
                while self.asked["never"] < 3 or self.asked["checked"] < 2:
                    await asyncio.sleep(0.05)
            await asyncio.sleep(1)  # it is put aside by the next round

    async def _check(self, message: ReceivedMessage) -> LocalState:
        name = message.keys[0]
        self.asked[name] += 1
        return LocalState.COMMIT if name == "checked" and self.asked[name] == 2 else LocalState.UNKNOWN


STATES = {
    "commit": LocalState.COMMIT, "rollback": LocalState.ROLLBACK, "checked": LocalState.UNKNOWN,
    "never": LocalState.UNKNOWN, "immune": LocalState.UNKNOWN,
}  # fmt: skip


def part(report: Report, title: str) -> list[dict[str, Any]]:
    (result,) = (section for section in report.sections if section.title == title)
    assert isinstance(result, Table)
    return [dict(zip((field.name for field in result.columns), line, strict=True)) for line in result.rows]


def test_from_a_broker_to_the_reports(spark: SparkSession, tmp_path: Path) -> None:
    home, sent = tmp_path / "tables", Sent()
    job = jobs.with_delay_levels(jobs.combine_jobs(("trace", "delay", "transactions")), (1000, 2000))
    settings = {"trace_topic_enable": True, "message_delay_level": "1s 2s", **CHECKS}
    began_ms = SYSTEM_CLOCK.now_ms()
    with LocalCluster(tmp_path / "servers", **settings) as servers:
        asyncio.run(sent.all_of_it(servers.namesrv))
        time.sleep(1)  # for the delays
        for _ in range(2):  # the second one finds nothing that would change a row
            run.run(job, {"namesrv": servers.namesrv}, home, settings=run.RunSettings(once=True))
    # All clients measure their clock offsets, so there are none to infer.
    tables = {"trace_events", "messages", "record_positions", "position_marks", "journeys", "delays", "transactions"}
    assert tables <= set(check_home(home))
    names = {message_id: name for name, message_id in sent.ids.items()}
    delayed = {names[row["message_id"]]: row for row in rows_of(home, DELAYS)}
    assert {name: (row["kind"], row["level"], row["state"]) for name, row in delayed.items()} == {
        "level": ("level", 2, "delivered"), "soon": ("time", None, "delivered"), "far": ("time", None, "pending"),
        "recalled": ("time", None, "cancelled"), "recalled-untraced": ("time", None, "cancelled"),
    }  # fmt: skip
    recalled = {names[row["message_id"]] for row in rows_of(home, JOURNEYS) if row["recalled_at"] is not None}
    assert recalled == {"recalled", "recalled-untraced"}
    for name in ("level", "soon"):
        assert 0 <= delayed[name]["lateness_ms"] < 2000
        assert delayed[name]["topic"] == "T"
    assert (delayed["level"]["scheduled_at"] - delayed["level"]["stored_at"]).total_seconds() == 2

    ended = {names[row["message_id"]]: row for row in rows_of(home, TRANSACTIONS)}
    assert {name: (row["decision"], row["checks"], row["from_check"], row["reported_state"]) for name, row in ended.items()} == {
        "commit": ("commit", 0, False, "COMMIT_MESSAGE"), "rollback": ("rollback", 0, False, "ROLLBACK_MESSAGE"),
        "checked": ("commit", ended["checked"]["checks"], True, "COMMIT_MESSAGE"),
        "never": ("discarded", 3, None, "UNKNOW"), "immune": ("open", 0, None, "UNKNOW"),
    }  # fmt: skip
    assert ended["checked"]["checks"] == len(ended["checked"]["checked_at"]) >= 2
    assert all(row["half_count"] == 1 and row["producer_group"] == "P" for row in ended.values())
    assert 0 <= ended["commit"]["decision_ms"] < 5000 <= 10_000 + ended["checked"]["decision_ms"]

    span = {"since_ms": began_ms - 1000, "until_ms": began_ms + 2 * HOUR_MS, "now_ms": SYSTEM_CLOCK.now_ms()}
    report = delay_report.report(home, **span)
    assert report.warnings == ()
    assert [(row["kind"], row["delivered"], row["pending"], row["cancelled"]) for row in part(report, "Deliveries")] == [
        ("level", 1, 0, 0), ("time", 1, 1, 2),
    ]  # fmt: skip
    assert [row["time"] for row in part(report, "Pending by due hour")] == [1]
    assert part(report, "Overdue") == []
    report = transaction_report.report(home, **span)
    assert report.warnings == ()
    (row,) = part(report, "Decisions")
    assert (row["committed"], row["rolled back"], row["discarded"], row["open"]) == (2, 1, 1, 1)
    assert row["last answer UNKNOWN"] == 2
    assert [row["message id"] for row in part(report, "Oldest open")] == [sent.ids["immune"]]


def test_headers_of_every_record_are_stored_and_no_secret(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    secret, wrong = planted("pipeline"), planted("wrong")
    (tmp_path / "conf").mkdir()
    account = f"{{accessKey: the-pipeline, secretKey: '{secret}', admin: true}}"
    (tmp_path / "conf" / "plain_acl.yml").write_text(f"accounts: [{account}]")

    async def produce(namesrv: str) -> list[SendResult]:
        settings = ClientSettings(credentials=Credentials("the-pipeline", secret))
        async with Producer(namesrv, "P", client=settings) as producer:
            return [await producer.send(Message(topic="T", body=b"x" * 5000, keys=["a", "b"], tags="t"))]

    home = tmp_path / "tables"
    with LocalCluster(tmp_path / "servers", acl_enable=True, rocketmq_home=str(tmp_path)) as servers:
        (sent,) = asyncio.run(produce(servers.namesrv))
        options = {"namesrv": servers.namesrv, "accessKey": "the-pipeline", "secretKey": secret}
        run.run(jobs.JOBS["delay"], options, home, settings=run.RunSettings(once=True))
        with pytest.raises(ArianeError, match="AclException") as denied:
            run.run(jobs.JOBS["delay"], {**options, "secretKey": wrong}, home, settings=run.RunSettings(once=True))
    texts = {"output": "".join(capfd.readouterr()), "error": "".join(traceback.format_exception(denied.value))}
    for line in ("status", "status --json", *(f"explain messages{form}" for form in ("", " --json", " --openlineage"))):
        texts[line] = CliRunner().invoke(main.app, ["pipeline", *line.split(), "--home", str(home)]).output
    assert "messages" in texts["status"]
    assert "columnLineage" in texts["explain messages --openlineage"]
    outputs = files_below(home) | {name: text.encode() for name, text in texts.items()}
    assert "status/messages" in outputs
    assert leaks(outputs, (secret, wrong)) == []
    (row,) = rows_of(home, MESSAGES)
    assert (row["message_id"], row["offset_message_id"]) == (sent.message_id, sent.offset_message_id)
    assert (row["body_length"], row["keys"], row["tags"], row["topic"]) == (5000, "a b", "t", "T")
    assert rows_of(home, DELAYS) == []
