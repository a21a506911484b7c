"""`ariane pipeline run` as a process: its broker and the process itself are killed; finally all rows are correct."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")

import mixed_traffic

from ariane.cli.servers.process.run_server import READY
from ariane.pipeline.spark_session import java_fault
from ariane.reports.tables import table_views
from ariane.tables import DELAYS, JOURNEYS, TRACE_EVENTS, TRANSACTIONS, table_store
from ariane.testing.java import free_ports

if TYPE_CHECKING:
    from ariane.tables import TableSchema

PATIENCE_S = 300  # on a machine that is busy otherwise; alone a round takes some seconds
STOP_S = 60
PART = {"plain": 20, "delayed": 2, "transactions": 2}

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(java_fault() is not None, reason=f"Spark: {java_fault()}"),
]


@contextmanager
def program(log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of our commands in its own process group and kill it when the block ends."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "ariane.cli", *arguments], stdout=file, stderr=file, start_new_session=True
        )
        try:
            yield process
        finally:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the program and all its children, as the kernel does when memory is short. Python workers exit with the JVM."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_S)


def until(what: str, is_so: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert "ERROR Executor" not in log.read_text(), f"{what}\n{log.read_text()[:3000]}"
        assert time.monotonic() < deadline, f"{what}\n{log.read_text()[-3000:]}"
        time.sleep(0.3)


def rows(tables: Path, table: TableSchema) -> int:
    now = table_store.read_version(tables, table)
    return now.rows if now else 0


def group_of(pid: int) -> list[int]:
    """Return the running processes of a group."""
    results = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(group) == pid and state != "Z":
            results.append(int(stat.parent.name))
    return results


@pytest.mark.long(
    "tests/spark/test_pipeline_run.py::test_a_batch_repeated_after_a_crash_is_stored_once",
    "tests/spark/test_pipeline_run.py::test_an_unavailable_server_is_reported_and_retried",
    "tests/spark/test_source.py::test_an_uncommitted_batch_is_replayed_with_the_same_rows",
)
def test_kills_of_brokers_and_drivers_lose_no_rows_and_the_pipeline_stops_on_request(tmp_path: Path) -> None:
    tables, log, servers = tmp_path / "tables", tmp_path / "pipeline.log", tmp_path / "servers.log"
    names_port, port = free_ports()
    names = f"127.0.0.1:{names_port}"
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"brokerIP1=127.0.0.1\nlistenPort={port}\nnamesrvAddr={names}\nstorePathRootDir={tmp_path / 'store'}\n"
        "bindAddress=127.0.0.1\nmappedFileSizeCommitLog=16777216\ntransactionTimeOut=500\ntransactionCheckInterval=500\n"
    )
    name_conf = tmp_path / "namesrv.conf"
    name_conf.write_text(f"listenPort={names_port}\nbindAddress=127.0.0.1\n")
    jobs = ["pipeline", "run", "trace", "delay", "transactions", "-n", names, "--home", str(tables), "--interval", "1"]

    def journeys(count: int) -> Callable[[], bool]:
        return lambda: rows(tables, JOURNEYS) >= count

    with program(servers, "namesrv", "-c", str(name_conf)):
        with program(servers, "broker", "-c", str(conf)):
            until("both servers are ready", lambda: servers.read_text().count(READY) >= 2, servers)
            with program(log, *jobs) as killed:
                mixed_traffic.send(names, "first", **PART)
                until("the first part is folded", journeys(24), log)
                kill(killed)
            mixed_traffic.send(names, "second", **PART)
        # The broker is gone, too: the jobs begin without it, and go on when it is back.
        begins = len(log.read_text())
        with program(log, *jobs) as running:
            # No broker serves the topics: rounds go on, with what was read before.
            until("it goes on without the broker", lambda: "traces waiting  messages" in log.read_text()[begins:], log)
            with program(servers, "broker", "-c", str(conf)):
                until("the second part is folded", journeys(48), log)
                mixed_traffic.send(names, "third", **PART)
                until("the third part is read", lambda: rows(tables, TRACE_EVENTS) >= 3 * 24 * 3, log)
            with program(servers, "broker", "-c", str(conf)):
                mixed_traffic.send(names, "fourth", **PART)
                until("all is folded", lambda: is_all(tables), log)
                os.killpg(running.pid, signal.SIGINT)
                assert running.wait(STOP_S) == 0, log.read_text()[-3000:]
                until("nothing stays behind", lambda: not group_of(running.pid), log)
    assert_right(tables)


def is_all(tables: Path) -> bool:
    tables_now = (rows(tables, JOURNEYS), rows(tables, DELAYS), rows(tables, TRANSACTIONS))
    return tables_now == (96, 8, 8) and all(not wrong(tables, question) for question in QUESTIONS)


# What is wrong in the end, in SQL.
QUESTIONS = (
    "SELECT message_id, result FROM journeys WHERE consumer_group IS DISTINCT FROM 'G' OR result <> 'success'",
    "SELECT message_id, state FROM delays WHERE state <> 'delivered'",
    "SELECT message_id, decision FROM transactions WHERE decision <> 'commit'",
)


def wrong(tables: Path, question: str) -> list[dict[str, object]]:
    with table_views.open_views(tables, *map(table_views.whole_table, (JOURNEYS, DELAYS, TRANSACTIONS))) as sql:
        return table_views.query(sql, question)


def assert_right(tables: Path) -> None:
    assert (rows(tables, JOURNEYS), rows(tables, DELAYS), rows(tables, TRANSACTIONS)) == (96, 8, 8)
    for question in QUESTIONS:
        assert wrong(tables, question) == []
    with table_views.open_views(tables, table_views.whole_table(TRACE_EVENTS)) as sql:
        position = "trace_broker, trace_queue_id, trace_queue_offset, record_index"
        (events,) = table_views.query(sql, f"SELECT count(*) AS n, count(DISTINCT ({position})) AS d FROM trace_events")
    assert events["n"] == events["d"]
