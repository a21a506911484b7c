"""Measures the planning of a read of many queues: topics, routes and bounds of every queue. No Spark, no messages.

    python benches/planning.py [topics] [queues of each]

A broker runs in a process of its own on this machine, so the wall time includes its share; the CPU time is the planner's.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from ariane.cluster.admin import Admin
from ariane.spark.read import offset_ranges, planning, pull_client, queue_bounds
from ariane.spark.read.source_options import parse
from ariane.testing import AsyncLocalCluster

ROUNDS = 5


def serve(home: str, topics: int, queues: int, ready: Connection) -> None:
    async def run() -> None:
        async with AsyncLocalCluster(Path(home)) as servers, Admin(servers.namesrv) as admin:
            for number in range(topics):
                await admin.create_topic(f"T{number}", queues=queues)
            ready.send(servers.namesrv)
            await asyncio.to_thread(ready.recv)

    asyncio.run(run())


def main() -> None:
    topics, queues = (int(text) for text in [*sys.argv[1:], "10", "1000"][:2])
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    with tempfile.TemporaryDirectory(prefix="ariane-bench-") as home:
        args = (home, topics, queues, theirs)
        broker = multiprocessing.get_context("spawn").Process(target=serve, args=args)
        broker.start()
        options = parse({"namesrv": ours.recv(), "topicsPattern": "T[0-9]+"})
        planner = pull_client.shared_cluster(options)
        for number in range(ROUNDS):
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            chosen = queue_bounds.select_topics(planner, options)
            found = queue_bounds.fetch_bounds(planner, planner.queues(*chosen))
            asked_s = time.perf_counter() - wall_s
            start = offset_ranges.initial_offset(found.first)
            more = {queue: last + 1 for queue, last in found.end.items()}
            end = offset_ranges.next_offset(start, found.first, more)
            parts = planning.split_for_tasks(offset_ranges.batch_ranges(end), options)
            wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
            print(
                f"round {number}: {len(chosen)} topics, {len(parts)} queues: {wall_s:.2f} s "
                f"({asked_s:.2f} s of requests), {cpu_s:.2f} s CPU time"
            )
        ours.send("stop")
        broker.join(30)


if __name__ == "__main__":
    main()
