"""Power is lost at every change of a workload that deletes old files: the store opens and has all remaining messages."""

from __future__ import annotations

import random

import pytest

import ci_form
from ariane.model import host
from ariane.protocol.records import record
from ariane.store.message_store import GetStatus, MessageStore, RecordDraft, StoreConfig, open_store
from ariane.testing.clock import FakeClock
from ariane.testing.disk import FakeDisk, PowerLost, SurvivingData

HOST = host.pack("127.0.0.1", 10911)
CONFIG = StoreConfig(root="/store", commit_log_size=1024, consume_queue_size=100, flush="sync")
SEEDS = range(ci_form.number("ARIANE_SEEDS", short=1, long=4))
FATES = [(SurvivingData.NONE, 0), (SurvivingData.ALL, 0), *((SurvivingData.SOME, seed) for seed in SEEDS)]


def opened(disk: FakeDisk) -> MessageStore:
    return open_store(CONFIG, disk, now_ms=FakeClock(tick_ms=1).now_ms, store_host=HOST)


def draft(body: bytes, queue_id: int) -> RecordDraft:
    return RecordDraft(topic="T", queue_id=queue_id, body=body, born_ms=1, born_host=HOST)


class Known:
    """Acknowledged messages by commit-log offset, and the offset below which messages may be missing."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, bytes] = {}
        self.removed_below = 0
        self.removing = False  # nothing was written since the last flush, files are being removed


def workload(store: MessageStore, known: Known) -> None:
    for turn in range(5):
        known.removing = False
        waiting = {}
        for number in range(14):
            placed = store.put(draft(b"%d.%d" % (turn, number), number % 2))
            waiting[placed.offset] = b"%d.%d" % (turn, number)
        store.flush()
        known.acknowledged.update(waiting)
        store.dispatch_pending()
        store.write_checkpoint()
        if turn >= 2:
            remove(store, known)


def remove(store: MessageStore, known: Known) -> None:
    """Delete all files but the last two, as the broker does."""
    known.removing = True
    for file in store.retention.log_files()[:-2]:
        known.removed_below = file.base + CONFIG.commit_log_size
        removal = store.retention.begin_log_removal(file)
        assert removal is not None
        removal.run()
        store.retention.end_log_removal(removal)
    while store.retention.plan_queue_files():
        store.write_checkpoint()
        store.retention.remove_queue_files()


def stored(store: MessageStore) -> dict[int, bytes]:
    results = {}
    for queue_id in (0, 1):
        offset = store.min_offset("T", queue_id)
        while offset < store.max_offset("T", queue_id):
            result = store.get("T", queue_id, offset, 32)
            assert result.status is GetStatus.FOUND
            for data in result.records:  # what was lost of the unflushed end is passed over
                item = record.decode(data)
                assert item.queue_id == queue_id
                assert offset <= item.queue_offset < result.next_offset
                results[item.offset] = item.body
            offset = result.next_offset
    return results


def check(disk: FakeDisk, known: Known) -> None:
    store = opened(disk)
    result = stored(store)
    retained = {offset: body for offset, body in known.acknowledged.items() if offset >= known.removed_below}
    assert result.items() >= retained.items()
    assert store.commit_log_min <= known.removed_below or not known.acknowledged
    # A start that had to rebuild all queues would report it; on a large store it would take minutes.
    if known.removing:
        assert not [note for note in store.recovery_report.notes if "anew" in note]
    more = store.put(draft(b"after", 0))
    store.flush()
    store.dispatch_pending()
    store.write_checkpoint()
    remove(store, known)
    after = stored(store)
    assert after[more.offset] == b"after"
    store.close()
    repeated = opened(disk)
    assert stored(repeated) == after
    repeated.close()


@pytest.mark.parametrize(("kept", "seed"), FATES)
def test_power_lost_at_every_change_while_old_files_are_removed(kept: SurvivingData, seed: int) -> None:
    complete, known = FakeDisk(), Known()
    store = opened(complete)
    workload(store, known)
    store.close()
    assert known.removed_below > 0
    for cut in range(1, complete.changes + 1):
        disk, known = FakeDisk(), Known()
        disk.power_off_at = cut
        try:
            store = opened(disk)
            workload(store, known)
            store.close()
        except PowerLost:
            pass
        check(disk.after_power_loss(kept, random.Random(seed * 1000 + cut)), known)
