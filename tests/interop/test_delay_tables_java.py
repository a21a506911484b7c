"""The delay and transaction jobs on traffic of Java 4.9.4 clients: at a Java broker, and from its log at our broker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from interop_servers import produce

from ariane.client import LocalState, TransactionProducer
from ariane.model.message import Message
from ariane.pipeline.spark_session import java_fault
from ariane.reports.tables import table_views
from ariane.tables import DELAYS, TRANSACTIONS, TableSchema
from ariane.testing import LocalCluster, java
from ariane.testing.cluster_servers import SMALL_FILES

pytestmark = [pytest.mark.spark, pytest.mark.skipif(java_fault() is not None, reason=f"Spark: {java_fault()}")]
LEVELS = "1s 2s 3s"
SETTINGS = {
    "messageDelayLevel": LEVELS,
    "transactionTimeOut": "500",
    "transactionCheckInterval": "700",
    "mappedFileSizeCommitLog": str(SMALL_FILES["mapped_file_size_commit_log"]),
    "mappedFileSizeConsumeQueue": str(SMALL_FILES["mapped_file_size_consume_queue"]),
}


def pipeline(namesrv: str, home: Path, *names: str) -> None:
    command = [sys.executable, "-m", "ariane.cli", "pipeline", "run", *names, "--delay-levels", LEVELS]
    where = ["--namesrv", namesrv, "--home", str(home), "--once"]
    done = subprocess.run([*command, *where], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


async def send_half(namesrv: str) -> None:
    async with TransactionProducer(namesrv, "Q", check=lambda _: LocalState.UNKNOWN) as producer:
        await producer.send_in_transaction(Message(topic="T", body=b"half", keys=["ours"]), lambda _: LocalState.COMMIT)


def rows_of(home: Path, table: TableSchema) -> list[dict[str, Any]]:
    with table_views.open_views(home, table_views.whole_table(table)) as sql:
        return table_views.query(sql, f"SELECT * FROM {table.name} ORDER BY keys, stored_at" if table == DELAYS else
                           f"SELECT * FROM {table.name} ORDER BY keys")  # fmt: skip


def test_delay_and_transaction_tables_of_java_traffic(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    home = tmp_path / "tables"
    with java.name_server(tmp_path / "ns") as ns, java.broker(tmp_path, ns.addr, properties=SETTINGS):
        produce(ns.addr, 4, "delay=1|2", "keys=level")
        (failing,) = produce(ns.addr, 1, "keys=retry", topic="R")
        java.run("ariane.peers.Consume", [ns.addr, "R", "G", "*", "2", "60", "fail", "most=1"])
        check = "check=,,commit,,,rollback"
        java.run(
            "ariane.peers.Transact", [ns.addr, "T", "P", "6", "6", "first=commit,rollback,unknown", check, "trace"]
        )
        pipeline(ns.addr, home, "trace", "delay", "transactions")

    delays = [row for row in rows_of(home, DELAYS) if row["keys"] and row["keys"].startswith("level")]
    assert [(row["keys"], row["kind"], row["level"], row["topic"], row["state"]) for row in delays] == [
        (f"level-{number}", "level", 1 + number % 2, "T", "delivered") for number in range(4)
    ]
    retries = [row for row in rows_of(home, DELAYS) if row["message_id"] == failing["msgId"]]
    retry = retries[0]
    assert (retry["kind"], retry["level"], retry["topic"], retry["state"]) == ("retry", 3, "%RETRY%G", "delivered")
    for row in [*delays, retry]:
        assert 0 <= row["lateness_ms"] < 60_000, "never early; late by as much as the machine is busy"
        assert row["lateness_ms"] == (row["delivered_at"] - row["scheduled_at"]).total_seconds() * 1000

    ended = {row["keys"]: row for row in rows_of(home, TRANSACTIONS)}
    assert {key: row["decision"] for key, row in ended.items()} == {
        "K-0": "commit", "K-1": "rollback", "K-2": "commit", "K-3": "commit", "K-4": "rollback", "K-5": "rollback",
    }  # fmt: skip
    assert [ended[key]["from_check"] for key in ("K-0", "K-1", "K-2", "K-5")] == [False, False, True, True]
    assert ended["K-2"]["checks"] >= 1
    assert ended["K-2"]["decision_ms"] >= 500 > 0 <= ended["K-0"]["decision_ms"]
    # A Java broker does not let its op messages be pulled: when it heard of a rollback is not known.
    assert [ended[key]["decided_at"] for key in ("K-1", "K-4", "K-5")] == [None] * 3

    # Ours shows them, of the same log, once it has taken a half message itself. No traces are read this time.
    repeated = tmp_path / "again"
    with LocalCluster(tmp_path, message_delay_level=LEVELS) as servers:
        asyncio.run(send_half(servers.namesrv))
        pipeline(servers.namesrv, repeated, "delay", "transactions")
    result = {row["keys"]: row for row in rows_of(repeated, TRANSACTIONS)}
    assert result.pop("ours")["decision"] == "commit"
    assert {key: row["decision"] for key, row in result.items()} == {key: row["decision"] for key, row in ended.items()}
    assert all(row["decided_at"] and row["decision_ms"] >= 0 and row["from_check"] is None for row in result.values())
    for key in ("K-0", "K-2", "K-3"):
        same = ("half_stored_at", "decided_at", "decision_ms", "checked_at", "commits")
        assert [result[key][name] for name in same] == [ended[key][name] for name in same]
