"""When a member keeps the incarnation of its data over a start."""

from __future__ import annotations

import errno

import pytest

from ariane.broker.replication.member_identity import MemberIdentity, open_identity, read_boot_id
from ariane.testing.disk import FakeDisk


@pytest.mark.parametrize(
    ("flushed", "flushes", "boot_id", "is_kept"),
    [
        (False, False, "1", True),  # killed: the page cache survives
        (False, False, "2", False),
        (True, True, "2", True),  # all that it acknowledged was on the disk
        (True, False, "2", True),  # the setting of the former run counts
        (False, True, "2", False),
    ],
)
def test_a_loss_of_power_ends_the_incarnation_unless_acknowledgements_were_flushed(
    flushed: bool, flushes: bool, boot_id: str, is_kept: bool
) -> None:
    disk = FakeDisk()
    former = open_identity(disk, "/store", "a", boot_id="1", log_end=1, flushes=flushed).member
    member = open_identity(disk, "/store", "a", boot_id=boot_id, log_end=1, flushes=flushes).member
    assert (member == former) is is_kept


def test_what_a_killed_process_left_in_the_page_cache_is_not_durable_afterwards() -> None:
    disk = FakeDisk()
    former = open_identity(disk, "/store", "a", boot_id="1", log_end=1).member
    assert open_identity(disk, "/store", "a", boot_id="1", log_end=1, flushes=True).member == former
    assert open_identity(disk, "/store", "a", boot_id="2", log_end=1, flushes=True).member != former


def test_after_an_orderly_stop_everything_is_durable() -> None:
    disk = FakeDisk()
    former = open_identity(disk, "/store", "a", boot_id="1", log_end=1)
    former.mark_stopped(1)
    for boot_id in "23":
        assert open_identity(disk, "/store", "a", boot_id=boot_id, log_end=1, flushes=True).member == former.member


def test_a_new_incarnation_after_a_failed_flush_is_not_durable() -> None:
    disk = FakeDisk()
    renewed = open_identity(disk, "/store", "a", boot_id="1", log_end=1, flushes=True).renewed(is_unproven=False)
    renewed.store()
    assert open_identity(disk, "/store", "a", boot_id="2", log_end=1, flushes=True).member != renewed.member


def test_after_a_failed_flush_records_are_unproven_until_the_epochs_say_which() -> None:
    disk = FakeDisk()
    failed = open_identity(disk, "/store", "a", boot_id=read_boot_id(), log_end=1, flushes=True)
    failed.renewed(is_unproven=True).store()
    for _ in range(2):
        killed = open_identity(disk, "/store", "a", boot_id=read_boot_id(), log_end=1, flushes=True)
        assert killed.is_unproven
    killed.mark_distrusted()
    assert not killed.is_unproven
    again = open_identity(disk, "/store", "a", boot_id=read_boot_id(), log_end=1, flushes=True)
    assert again.member == killed.member
    assert not again.is_unproven


def test_a_failure_of_the_disk_is_noted_until_a_start_has_read_the_whole_log() -> None:
    disk = FakeDisk()

    def opened() -> MemberIdentity:
        return open_identity(disk, "/store", "a", boot_id="1", log_end=1)

    opened().mark_read()
    assert not opened().has_failed
    failed = opened().renewed(is_unproven=True)
    failed.store()
    assert opened().has_failed
    failed.mark_distrusted()
    failed.mark_stopped(1)
    assert opened().has_failed
    opened().mark_read()
    assert not opened().renewed(is_unproven=False).has_failed


@pytest.mark.parametrize(("log_end", "is_unproven"), [(1, True), (0, False)])
def test_records_of_a_new_incarnation_are_unproven(log_end: int, is_unproven: bool) -> None:
    assert open_identity(FakeDisk(), "/store", "a", boot_id="1", log_end=log_end).is_unproven is is_unproven


def test_a_note_that_cannot_be_written_leaves_records_unproven() -> None:
    disk = FakeDisk()
    identity = open_identity(disk, "/store", "a", boot_id="1", log_end=1)

    def fail(kind: str, path: str) -> None:
        raise OSError(errno.EIO, "I/O error", path)

    disk.fail = fail
    with pytest.raises(OSError, match="I/O error"):
        identity.mark_distrusted()
    assert identity.is_unproven
