"""A pipeline that starts at a backlog of traces: time and CPU time until each commit of its tables.

    python benches/backlog.py [--messages 180000]

A broker in this process receives the traces of so many messages (five records each, 30 to a trace message), then
`ariane pipeline run trace` starts in a process of its own. Both times are since its start, and CPU seconds are those of the
whole tree, which contain the broker's: on two cores without other work, a commit takes between half of them and all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ariane.client.producer import Producer
from ariane.model.message import Message
from ariane.model.topic import TRACE_TOPIC
from ariane.tables import JOURNEYS, TRACE_EVENTS
from ariane.tables.table_store import read_version
from ariane.testing import LocalCluster
from servers import tree_cpu_s

BODY_MESSAGES = 6
IN_FLIGHT = 32
GROUPS = ("billing", "stock")


def records(number: int, sent_ms: int, month_ms: int) -> str:
    """Return the trace records of a message: sent, and consumed by two groups."""
    unique_id = f"0A0000011F4018B4AAC2{sent_ms - month_ms:08X}{number % 65536:04X}"
    fields = ["Pub", sent_ms, "DefaultRegion", "orders", f"T{number % 10}", unique_id, "new", f"order-{number}"]
    fields += ["10.0.0.2:10911", 1024, 1 + number % 7, 0, f"0A00000200002A9F{number * 1200:016X}", "true"]
    parts = [fields]
    for group in GROUPS:
        cost_ms = 2 + number % 30
        parts.append(["SubBefore", sent_ms + 5, "null", group, unique_id + group, unique_id, 0, f"order-{number}"])
        parts.append(["SubAfter", unique_id + group, unique_id, cost_ms, "true", f"order-{number}", 0])
        parts[-1] += [sent_ms + 5 + cost_ms, group]
    return "".join("\1".join(map(str, part)) + "\2" for part in parts)


async def fill(namesrv: str, messages: int) -> int:
    """Send the traces of messages of the last hour, and return their bytes."""
    now = datetime.now(UTC)
    month_ms = int(datetime(now.year, now.month, 1, tzinfo=UTC).timestamp() * 1000)
    begin_ms = int(now.timestamp() * 1000) - 3_600_000
    limit, size = asyncio.Semaphore(IN_FLIGHT), 0

    async def send(first: int) -> int:
        numbers = range(first, first + BODY_MESSAGES)
        text = "".join(records(number, begin_ms + number * 3_600_000 // messages, month_ms) for number in numbers)
        async with limit:
            await producer.send(Message(topic=TRACE_TOPIC, body=text.encode()))
        return len(text)

    async with Producer(namesrv, "traces") as producer:
        for first in range(0, messages, BODY_MESSAGES * IN_FLIGHT):
            last = min(first + BODY_MESSAGES * IN_FLIGHT, messages)
            size += sum(await asyncio.gather(*map(send, range(first, last, BODY_MESSAGES))))
    return size


def measure(namesrv: str, home: Path, messages: int) -> dict[str, Any]:
    """Run the pipeline until its tables contain everything."""
    command = [sys.executable, "-m", "ariane.cli", "pipeline", "run", "trace", "-n", namesrv, "--home", str(home)]
    began_s, began_cpu_s = time.monotonic(), tree_cpu_s()
    commits: dict[str, list[dict[str, Any]]] = {TRACE_EVENTS.name: [], JOURNEYS.name: []}
    pipeline = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while (commits[JOURNEYS.name] or [{"rows": 0}])[-1]["rows"] < messages * len(GROUPS):
            if pipeline.poll() is not None:
                raise SystemExit(f"the pipeline ended: {pipeline.returncode}")
            for table in (TRACE_EVENTS, JOURNEYS):
                version = read_version(home, table)
                listed = commits[table.name]
                if version is not None and version.rows and (not listed or listed[-1]["version"] != version.version):
                    spent = {"at_s": time.monotonic() - began_s, "cpu_s": tree_cpu_s() - began_cpu_s}
                    spent = {name: round(value, 1) for name, value in spent.items()}
                    listed.append({"version": version.version, "rows": version.rows, **spent})
                    print(json.dumps({"table": table.name, **listed[-1]}), flush=True)
            time.sleep(0.1)
    finally:
        pipeline.send_signal(signal.SIGINT)
        pipeline.wait()
    return {"commits": commits, "load_average": os.getloadavg()[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=180_000, help="traced messages")
    given = parser.parse_args()
    messages = given.messages // BODY_MESSAGES * BODY_MESSAGES
    with (
        tempfile.TemporaryDirectory(prefix="ariane-backlog-") as name,
        LocalCluster(Path(name, "servers"), trace_topic_enable=True) as servers,
    ):
        size = asyncio.run(fill(servers.namesrv, messages))
        print(json.dumps({"events": messages * 5, "bytes": size}), flush=True)
        print(json.dumps(measure(servers.namesrv, Path(name, "tables"), messages), indent=1))


if __name__ == "__main__":
    main()
