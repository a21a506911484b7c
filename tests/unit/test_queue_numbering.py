"""Queue offsets out of order during a rebuild: which of them restart a queue, and how the others are handled."""

from __future__ import annotations

import pytest

from ariane.model.message import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from ariane.protocol.records import record
from ariane.store.message_store import MessageStore, RecordDraft, StoreConfig, open_store
from ariane.store.queues.queue_numbering import NumberingRestarts, decide, is_last_placed
from ariane.testing.disk import FakeDisk, PowerLost

LOG = "/s/commitlog/" + "0" * 20
QUEUE_OFFSET_AT = 20
HOST = bytes(8)


def opened(disk: FakeDisk, *, follower: bool = False) -> MessageStore:
    config = StoreConfig(root="/s", commit_log_size=4096, consume_queue_size=200, follower=follower)
    return open_store(config, disk, now_ms=lambda: 1_000_000, store_host=HOST)


def put(store: MessageStore, body: str, sys_flag: int = 0) -> int:
    draft = RecordDraft(topic="T", queue_id=0, body=body.encode(), born_ms=1, born_host=HOST, sys_flag=sys_flag)
    return store.put(draft).offset


def tear_number(disk: FakeDisk, offset: int) -> None:
    disk.contents(LOG)[offset + QUEUE_OFFSET_AT : offset + QUEUE_OFFSET_AT + 8] = bytes(8)


def bodies(store: MessageStore) -> list[str]:
    data = [store.read_queue_record("T", 0, position) for position in range(store.max_offset("T", 0))]
    return [record.decode(item).body.decode() for item in data if item is not None]


@pytest.mark.parametrize(
    ("restarts", "due", "held", "number", "is_placed"),
    [
        (NumberingRestarts.LIKELY, 5, 0, 1, True),
        (NumberingRestarts.CONFIRMED, 5, 0, 1, True),
        (NumberingRestarts.NEVER, 5, 0, 1, False),
        (NumberingRestarts.LIKELY, 1, 0, 1, True),
        (NumberingRestarts.CONFIRMED, 1, 0, 1, False),
        (NumberingRestarts.NEVER, 1, 0, 1, False),
        (NumberingRestarts.LIKELY, 5, 0, 3, True),
        (NumberingRestarts.CONFIRMED, 5, 0, 3, False),
        (NumberingRestarts.NEVER, 5, 7, 8, True),
    ],
)
def test_a_queue_offset_out_of_order_is_decided_by_the_next_record(
    restarts: NumberingRestarts, due: int, held: int, number: int, *, is_placed: bool
) -> None:
    assert decide(due, held, number, restarts=restarts).place_deferred is is_placed


@pytest.mark.parametrize(
    ("restarts", "is_placed"),
    [(NumberingRestarts.LIKELY, True), (NumberingRestarts.CONFIRMED, False), (NumberingRestarts.NEVER, False)],
)
def test_a_last_record_with_queue_offset_0_restarts_only_queues_of_java(
    restarts: NumberingRestarts, *, is_placed: bool
) -> None:
    assert is_last_placed(5, 0, 0, restarts=restarts, is_new=False) is is_placed


@pytest.mark.parametrize("sys_flag", [0, TRANSACTION_COMMIT])
def test_a_torn_queue_offset_is_withdrawn_and_reported(sys_flag: int) -> None:
    disk = FakeDisk()
    store = opened(disk)
    put(store, "acknowledged")
    torn = put(store, "torn", sys_flag)
    disk = disk.after_kill()
    tear_number(disk, torn)
    store = opened(disk)
    note = f"record at {torn} (T): queue offset 0 is out of order, expected 1; it was withdrawn and stays readable"
    assert any(item.startswith(note) for item in store.recovery_report.notes)
    assert bodies(store) == ["acknowledged"]
    remaining = store.read_record(torn)
    assert remaining is not None
    assert (record.decode(remaining).body, record.decode(remaining).sys_flag) == (b"torn", TRANSACTION_ROLLBACK)
    put(store, "next")
    store.dispatch_pending()
    assert bodies(store) == ["acknowledged", "next"]
    assert opened(disk.after_kill()).recovery_report.notes == ()


def test_a_new_queue_with_a_lost_first_file_is_rebuilt() -> None:
    disk = FakeDisk()
    opened(disk).close()
    store = opened(disk)
    for number in range(12):
        put(store, str(number))
    store.dispatch_pending()
    disk = disk.after_kill()
    disk.remove("/s/consumequeue/T/0/" + "0" * 20)
    assert bodies(opened(disk)) == [str(number) for number in range(12)]


def test_a_failed_withdrawal_is_reported() -> None:
    disk = FakeDisk()
    store = opened(disk)
    put(store, "acknowledged")
    torn = put(store, "torn")
    disk = disk.after_kill()
    tear_number(disk, torn)

    def fail(kind: str, path: str) -> None:
        if kind == "write" and path == LOG:
            raise OSError(28, "no room", path)

    disk.fail = fail
    store = opened(disk)
    assert any("it could not be withdrawn" in note for note in store.recovery_report.notes)
    assert bodies(store) == ["acknowledged"]


def test_a_slave_does_not_change_the_bytes_of_its_master() -> None:
    disk = FakeDisk()
    store = opened(disk)
    put(store, "acknowledged")
    torn = put(store, "torn")
    disk = disk.after_kill()
    tear_number(disk, torn)
    log = bytes(disk.contents(LOG))
    store = opened(disk, follower=True)
    assert bodies(store) == ["acknowledged"]
    assert bytes(disk.contents(LOG)) == log


def test_a_topic_recreated_by_java_has_its_new_record() -> None:
    """Java records no deletion: after a crash of Java, a last record with queue offset 0 is the first one of the new topic."""
    disk = FakeDisk()
    store = opened(disk)
    for number in range(3):
        put(store, f"old {number}")
    store.dispatch_pending()
    store.delete_topic("T")
    put(store, "new")
    disk = disk.after_kill()
    disk.remove("/s/checkpoint")
    assert bodies(opened(disk)) == ["new"]


def test_an_interrupted_rebuild_of_a_java_log_resumes_as_one() -> None:
    disk = FakeDisk()
    store = opened(disk)
    for number in range(3):
        put(store, f"old {number}")
    store.dispatch_pending()
    store.delete_topic("T")
    put(store, "new")
    java = disk.after_kill()
    java.remove("/s/checkpoint")
    probe = java.after_kill()
    assert bodies(opened(probe)) == ["new"]
    for change in range(1, probe.changes + 1):
        disk = java.after_kill()
        disk.power_off_at = change
        with pytest.raises(PowerLost):
            opened(disk)
        assert bodies(opened(disk.after_kill())) == ["new"]
