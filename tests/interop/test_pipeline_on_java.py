"""The trace job against a Java cluster with Java clients: their traces become journeys, unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from interop_servers import consume, produce

from ariane.admin import traces
from ariane.pipeline.session import java_fault
from ariane.testing import java

pytestmark = pytest.mark.spark


@pytest.mark.skipif(java_fault() is not None, reason=f"Spark: {java_fault()}")
def test_traces_of_java_clients_on_a_java_broker_become_journeys(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    home = tmp_path / "tables"
    with java.name_server(tmp_path / "ns") as name_server, java.broker(tmp_path / "b", name_server.addr):
        sent = produce(name_server.addr, 20, "trace", "tags=a,b", "keys=ORDER")
        consume(name_server.addr, "G", "*", 20, "trace")
        command = [sys.executable, "-m", "ariane.cli", "pipeline", "run", "trace"]
        where = ["--namesrv", name_server.addr, "--home", str(home), "--once"]
        done = subprocess.run([*command, *where], capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        assert re.search(r"journeys +rows 20 ", done.stdout), done.stdout
    for one in sent:
        (row,) = traces.find(home, message_id=str(one["msgId"])).rows
        assert (row["consumer_group"], row["producer_group"], row["topic"], row["result"]) == ("G", "P", "T", "success")
        assert row["offset_message_id"] == one["offsetMsgId"]
        assert row["sent_ok"] and row["attempts"] == 1
        assert row["send_cost_ms"] >= 0 and row["consume_cost_ms"] >= 0
        assert (row["consumed_times"], row["retries"], row["message_type"]) == (1, 0, 0)
        (attempt,) = row["deliveries"]
        assert (attempt["result"], attempt["retry_times"]) == ("success", 0)
        assert attempt["began_at"] <= attempt["ended_at"]
        (by_offset,) = traces.find(home, message_id=str(one["offsetMsgId"])).rows
        assert by_offset == row
    (by_key,) = traces.find(home, key="ORDER-7").rows
    assert [moment.what for moment in traces.timeline([by_key])] == ["sent", "stored", "delivered", "consumed"]
