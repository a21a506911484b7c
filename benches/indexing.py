"""Measures the key index in process: hashed keys of runs become entries of index files, as a broker adds them.

    python benches/indexing.py --keys 2000000 --run 32 [--slots 5000000] [--entries 20000000] [--directory DIR]

`--run` is the number of keys of records that were appended together: 1 for a send that is served alone. ARIANE_IMPL selects the
implementation. The last line is JSON: µs of CPU time per key, and growth of the resident memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ariane.protocol.records.queue_entry import INDEX_KEY
from ariane.store.disk.files import OpenFiles, SystemDisk
from ariane.store.index.index_builder import IndexBuilder
from ariane.store.index.index_file import IndexSizes
from ariane.store.index.key_index import IndexProgress, KeyIndex

RECORD_BYTES = 250
START_MS = 1_700_000_000_000
KEYS_PER_MS = 30


def runs(count: int, run: int, rng: random.Random) -> list[tuple[int, int, bytes]]:
    """Return `(offset, store time, keys)` of each run."""
    found = []
    for first in range(0, count, run):
        offsets = range(first * RECORD_BYTES, min(first + run, count) * RECORD_BYTES, RECORD_BYTES)
        keys = b"".join([INDEX_KEY.pack(rng.getrandbits(31), offset) for offset in offsets])
        found.append((offsets[0], START_MS + first // KEYS_PER_MS, keys))
    return found


def resident_kb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def measure(root: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Add all runs to a new index."""
    added = runs(args.keys, args.run, random.Random(494))
    log: Any = SimpleNamespace(start=0, size=1 << 30)
    disk = SystemDisk()
    disk.make_dirs(str(root))
    sizes = IndexSizes(args.slots, args.entries)
    index = KeyIndex(OpenFiles(disk), str(root), sizes, now_ms=lambda: START_MS, log=log)
    index.open(IndexProgress(True, 0, 0, 0), 0)
    builder = IndexBuilder(index, log)
    before_kb = resident_kb()
    began = time.process_time()
    for offset, store_ms, keys in added:
        builder.add_pending_keys(offset, store_ms, keys)
        builder.on_dispatched(offset + args.run * RECORD_BYTES)
    adding_s = time.process_time() - began
    builder.complete(args.keys * RECORD_BYTES)
    total_s = time.process_time() - began
    return {
        "keys": args.keys,
        "us_per_key": round(adding_s / args.keys * 1e6, 3),
        "slots_written_s": round(total_s - adding_s, 3),
        "files": len(index),
        "resident_kb": resident_kb() - before_kb,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=2_000_000)
    parser.add_argument("--run", type=int, default=32)
    parser.add_argument("--slots", type=int, default=5_000_000)
    parser.add_argument("--entries", type=int, default=20_000_000)
    parser.add_argument("--directory", type=Path)
    args = parser.parse_args()
    root = args.directory or Path(tempfile.mkdtemp(prefix="ariane-indexing-"))
    try:
        print(json.dumps(measure(root / "index", args)))
    finally:
        if not args.directory:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
