"""What open half messages cost: memory and time, with the store on a disk and without sockets.

    python benches/transactions.py --count 1000000

Half messages with small bodies are stored, all of them open; then two rounds of checks ask about each (a producer that takes
every question and answers none), a tenth is committed, and the store is opened again. The last line is JSON: resident memory
in MiB that each step has added, its seconds, and the longest time for which the event loop was held up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.broker.transactions.transaction_check import TransactionChecker
from ariane.broker.transactions.transaction_service import TransactionService
from ariane.clock import SYSTEM_CLOCK
from ariane.model import host
from ariane.protocol.requests.messaging import COMMIT, CheckTransactionState, EndTransactionHeader
from ariane.protocol.requests.routing import TopicTable
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store

HOST = host.pack("127.0.0.1", 10911)
STEP = 1000  # half messages between two dispatch runs of the store


class Producers:
    """Takes every question; keeps the first of each hundred, for commits."""

    def __init__(self) -> None:
        self.asked = 0
        self.kept: list[CheckTransactionState] = []

    def pick(self, group: str) -> int:
        return 1

    def send_check(self, peer_id: int, header: CheckTransactionState, body: bytes) -> None:
        self.asked += 1
        if self.asked % 10 == 0:
            self.kept.append(header)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=16, help="bytes of a body")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ariane-bench-") as home:
        print(json.dumps(asyncio.run(measured(Path(home), args.count, args.size))))


async def measured(home: Path, count: int, size: int) -> dict[str, object]:
    config = StoreConfig(root=str(home / "store"), commit_log_size=1 << 28)
    offsets = ConsumerOffsets()
    result: dict[str, object] = {"count": count}
    store = open_store(config, store_host=HOST)
    transactions = made(store, offsets)
    await transactions.rebuild()
    start_mib = resident_mib()

    began = time.perf_counter()
    for number in range(count):
        put(transactions, number, size)
        if number % STEP == STEP - 1:
            store.dispatch_pending()
    store.dispatch_pending()
    result["stored"] = took(began, start_mib)
    assert transactions.halves.count == count

    for name in ("round_1", "round_2"):
        producers = Producers()
        held = asyncio.ensure_future(longest_hold())
        began = time.perf_counter()
        await checks(transactions, producers).check_all()
        store.dispatch_pending()
        result[name] = {**took(began, start_mib), "asked": producers.asked, "longest_hold_ms": await stopped(held)}
    began = time.perf_counter()
    for one in producers.kept:
        transactions.end(EndTransactionHeader("P", one.tran_state_table_offset, one.commit_log_offset, COMMIT))
    result["commits"] = {**took(began, start_mib), "count": len(producers.kept)}
    store.dispatch_pending()
    left = transactions.halves.count
    transactions.close()
    store.close()

    store = open_store(config, store_host=HOST)
    transactions = made(store, offsets)
    held = asyncio.ensure_future(longest_hold())
    began = time.perf_counter()
    await transactions.rebuild()
    result["restart"] = {**took(began, start_mib), "open": left, "longest_hold_ms": await stopped(held)}
    assert transactions.halves.count == left
    store.close()
    return result


def made(store: MessageStore, offsets: ConsumerOffsets) -> TransactionService:
    topics = TopicRegistry(TopicTable(), BrokerConfig(broker_name="a"), now_ms)

    async def flush_once() -> None:
        store.flush()

    return TransactionService(
        store=store,
        topics=topics,
        offsets=offsets,
        store_host=HOST,
        flusher=SimpleNamespace(flush_once=flush_once),
        listener=SimpleNamespace(on_stored=store.dispatch_pending),
        clock=SYSTEM_CLOCK,
    )


def checks(transactions: TransactionService, producers: Producers) -> TransactionChecker:
    return TransactionChecker(
        transactions,
        producers,  # type: ignore[arg-type]
        timeout_ms=1,
        checks_max=15,
        durability=SimpleNamespace(wait_flushed=lambda end_offset: None),
        clock=SYSTEM_CLOCK,
    )


def put(transactions: TransactionService, number: int, size: int) -> None:
    table = {"UNIQ_KEY": f"{number:032X}", "TRAN_MSG": "true", "PGROUP": "P", "WAIT": "true"}
    draft = RecordDraft(topic="T", queue_id=number % 4, body=b"x" * size, born_ms=1, born_host=HOST, sys_flag=4)
    placed = transactions.store.put(transactions.redirect(draft, table))
    transactions.on_half_stored(placed.queue_offset)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def took(began: float, start_mib: float) -> dict[str, object]:
    return {"seconds": round(time.perf_counter() - began, 1), "more_mib": round(resident_mib() - start_mib, 1)}


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


async def longest_hold() -> float:
    """How long, at the most, others had to wait for their turn: measured until cancelled, in seconds."""
    longest, last = 0.0, time.perf_counter()
    try:
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
    except asyncio.CancelledError:
        return longest


async def stopped(held: asyncio.Future[float]) -> float:
    held.cancel()
    return round(1000 * await held, 1)


if __name__ == "__main__":
    main()
