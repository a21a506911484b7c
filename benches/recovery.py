"""Measures a start after a crash, by the size of the log after the last checkpoint.

    python benches/recovery.py --messages 1000000 --body 128 --behind 1000000 --servers native,python,java --rounds 3

A store is written with puts, flushed as a broker does (all of it once, `behind` messages before the end), and left
as a killed broker leaves it: `abort` there, the rest not in the checkpoint. Each broker starts on a copy of it, and on an empty
directory: the difference of CPU time is that of the recovery. The start ends with the first accepted message. Caches are warm.

With `--store` only the store is opened, in a process of its own; `--no-checkpoint` removes the checkpoint first: everything is
read. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ariane.model import host
from ariane.store.disk.files import OpenFiles
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store
from ariane.store.recovery.store_directory import release
from ariane.testing import java
from servers import cpu_s, environment, memory_mib, started

HOST = host.pack("127.0.0.1", 10911)
QUEUES = 16
BATCH = 100  # messages of one put: filling the store is not what is measured
STEP = 10_000


def fill(root: Path, messages: int, body: int, behind: int) -> None:
    """Write the store and die."""
    store = open_store(StoreConfig(root=str(root), index=True), store_host=HOST)
    data = b"x" * body
    for number in range(0, messages, BATCH):
        drafts = [
            RecordDraft(
                topic="bench",
                queue_id=n % QUEUES,
                body=data,
                born_ms=1,
                born_host=HOST,
                tags="a",
                properties=f"UNIQ_KEY\x017F000001000018B4AAC2{n:012X}\x02KEYS\x01order-{n}\x02TAGS\x01a",
            )
            for n in range(number, min(number + BATCH, messages))
        ]
        store.put_batch(drafts)
        if number % STEP == 0:
            store.dispatch_pending()
        if number < messages - behind <= number + BATCH:
            store.flush()
            store.dispatch_pending()
            store.write_checkpoint()
    store.dispatch_pending()
    _die(store)


def _die(store: MessageStore) -> None:
    """Leave everything as it lies, `abort` included; only the descriptors go."""
    files: OpenFiles = store._files
    files.close()
    release(files.disk, store._locks)


def opened(root: Path) -> dict[str, object]:
    """Open the store once and say how long it took. It is not closed: it stays as a crash left it."""
    began, before = time.perf_counter(), time.process_time()
    store = open_store(StoreConfig(root=str(root), index=True), store_host=HOST)
    seconds, used = time.perf_counter() - began, time.process_time() - before
    recovered = store.recovery_report
    counts = sum(store.max_offset("bench", queue_id) for queue_id in range(QUEUES))
    return {
        "seconds": round(seconds, 3),
        "cpu_s": round(used, 3),
        "read_bytes": recovered.end - recovered.dispatch_from,
        "log_bytes": recovered.end,
        "messages": counts,
        "notes": list(recovered.notes),
    }


def start(server: str, store: Path | None) -> dict[str, float]:
    """Start a broker on a copy of a store, or without one; return its figures."""
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ariane-recovery-")))
        if store is not None:
            subprocess.run(["cp", "-a", "--sparse=always", str(store), str(place / "store")], check=True)
        namesrv = stack.enter_context(java.name_server(place / "namesrv")).addr
        running = stack.enter_context(started(server, namesrv, place))
        return {"start s": running.start_s, "cpu s": cpu_s(running.pid), "MiB": memory_mib(running.pid)["VmHWM"]}


def measure(store: Path, servers: list[str], behind: int, rounds: int) -> dict[str, dict[str, float]]:
    """Start each server several times, in turn; return medians."""
    results: dict[str, list[dict[str, float]]] = {server: [] for server in servers}
    for _ in range(rounds):
        for server in servers:
            empty, full = start(server, None), start(server, store)
            recovery_us = (full["cpu s"] - empty["cpu s"]) / behind * 1e6
            figures = {**full, "empty start s": empty["start s"], "us per message": recovery_us}
            results[server].append(figures)
            print(f"{server:8}", "  ".join(f"{name} {value:.3f}" for name, value in figures.items()), flush=True)
    return {
        server: {name: round(statistics.median(figures[name] for figures in rows), 3) for name in rows[0]}
        for server, rows in results.items()
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--messages", type=int, default=1_000_000)
    options.add_argument("--body", type=int, default=128)
    options.add_argument("--behind", type=int, default=1_000_000, help="messages behind the last checkpoint")
    options.add_argument("--servers", default="native,python", help="native, python, java")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--no-checkpoint", action="store_true")
    options.add_argument("--store", action="store_true", help="open the store only")
    options.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.open:
        print(json.dumps(opened(args.open)))
        return
    with tempfile.TemporaryDirectory(prefix="ariane-recovery-") as place:
        root = Path(place) / "store"
        fill(root, args.messages, args.body, args.behind)
        if args.no_checkpoint:
            (root / "checkpoint").unlink()
        result: dict[str, Any] = {"messages": args.messages, "body": args.body, "behind": args.behind}
        if args.store:
            for server in args.servers.split(","):
                command = [sys.executable, __file__, "--open", str(root)]
                done = subprocess.run(command, env=environment(server), check=True, capture_output=True, text=True)
                result[server] = json.loads(done.stdout)
        else:
            result |= measure(root, args.servers.split(","), args.behind, args.rounds)
        print(json.dumps(result))


if __name__ == "__main__":
    main()
