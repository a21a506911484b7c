"""Measures a start after a crash, by the size of the log after the last checkpoint.

    python benches/recovery.py --messages 2000000 --body 1000 --behind 100000 [--directory DIR]

A store is written with puts, flushed as a broker does (queues and checkpoint once `behind` messages before the end), and left as a
killed broker leaves it: `abort` there, the rest not in the checkpoint. Then it is opened in a process of its own, cold caches not
forced. With `--no-checkpoint` the checkpoint is removed first: everything is read from the beginning.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ariane.model import host
from ariane.store.files import OpenFiles
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store
from ariane.store.store_directory import release

HOST = host.pack("127.0.0.1", 10911)
QUEUES = 16
BATCH = 100  # messages of one put: filling the store is not what is measured
STEP = 10_000


def fill(root: Path, messages: int, body: int, behind: int) -> None:
    """Write the store and die."""
    store = open_store(StoreConfig(root=str(root)), store_host=HOST)
    data = b"x" * body
    properties = "UNIQ_KEY\x017F000001000018B4AAC20000000000\x02KEYS\x01order-17\x02TAGS\x01a"
    for number in range(0, messages, BATCH):
        drafts = [
            RecordDraft(
                topic="bench",
                queue_id=n % QUEUES,
                body=data,
                born_ms=1,
                born_host=HOST,
                tags="a",
                properties=properties,
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
    began = time.perf_counter()
    store = open_store(StoreConfig(root=str(root)), store_host=HOST)
    seconds = time.perf_counter() - began
    recovered = store.recovery_report
    began = time.perf_counter()
    counts = sum(store.max_offset("bench", queue_id) for queue_id in range(QUEUES))
    return {
        "seconds": round(seconds, 3),
        "first_use_of_queues_s": round(time.perf_counter() - began, 3),
        "read_bytes": recovered.end - recovered.dispatch_from,
        "log_bytes": recovered.end,
        "messages": counts,
        "notes": list(recovered.notes),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--messages", type=int, default=1_000_000)
    options.add_argument("--body", type=int, default=1000)
    options.add_argument("--behind", type=int, default=100_000, help="messages behind the last checkpoint")
    options.add_argument("--no-checkpoint", action="store_true")
    options.add_argument("--directory", type=Path)
    options.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.open:
        print(json.dumps(opened(given.open)))
        return
    root = given.directory or Path(tempfile.mkdtemp(prefix="ariane-recovery-"))
    try:
        began = time.perf_counter()
        fill(root / "store", given.messages, given.body, given.behind)
        print(f"written in {time.perf_counter() - began:.1f} s")
        if given.no_checkpoint:
            (root / "store" / "checkpoint").unlink()
        subprocess.run([sys.executable, __file__, "--open", str(root / "store")], check=True)
    finally:
        if not given.directory:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
