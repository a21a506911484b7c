"""Guarantees of the store after a crash, a failed fsync, a full disk, a damaged disk. The checks are in `promises`.

With ARIANE_CRASH_FULL=1 each of the 524,288 bits of a 64 KB segment is flipped (about half an hour), else a sample, each day
another one; ARIANE_CRASH_SEED=n repeats that of a failure.
"""

from __future__ import annotations

import errno
import os
import random
import time

import promises
import pytest

from ariane.testing.disk import SurvivingData

FLIPS = 1_000  # of a plain run
TORN_NUMBERS = (
    9,
    20,
    25,
    28,
    30,
    42,
    43,
    51,
    63,
    83,
)  # seeds that tear the queue id or queue offset of a record and leave the rest
SEGMENT_BITS = 8 * promises.FLIP_CONFIG.commit_log_size


@pytest.mark.parametrize(("kept", "seed"), promises.FATES)
def test_power_lost_at_every_change(kept: SurvivingData, seed: int) -> None:
    assert promises.power_lost_at_every_change(kept, seed) > 60


@pytest.mark.parametrize(("kept", "seed"), promises.FATES)
def test_runs_lost_at_every_change(kept: SurvivingData, seed: int) -> None:
    assert promises.runs_lost_at_every_change(kept, seed) > 60


@pytest.mark.parametrize(("kept", "seed"), promises.FATES)
def test_power_lost_again_while_recovering(kept: SurvivingData, seed: int) -> None:
    promises.power_lost_again_while_recovering(kept, seed)


def test_messages_read_after_a_kill_survive_a_power_loss() -> None:
    promises.killed_then_power_lost()


@pytest.mark.parametrize("seed", TORN_NUMBERS)
def test_power_lost_at_every_change_with_torn_numbers(seed: int) -> None:
    assert promises.power_lost_at_every_change(SurvivingData.TORN, seed) > 60


def test_a_torn_number_hides_no_acknowledged_record() -> None:
    assert promises.numbers_torn() == 24


def test_a_record_inside_a_body_is_not_a_record_of_the_log() -> None:
    promises.record_within_a_body()


def test_a_write_torn_at_every_byte() -> None:
    promises.last_write_torn_at_every_byte()


@pytest.mark.long(
    "tests/crash/test_power_loss.py::test_a_write_torn_at_every_byte",
    "tests/crash/test_index_loss.py::test_every_write_of_the_index_torn_at_every_byte",
)
def test_a_write_of_a_derived_file_torn_at_every_byte() -> None:
    assert promises.derived_write_torn_at_every_byte() > 500


def test_lost_derived_files_are_rebuilt() -> None:
    promises.derived_files_lost()


@pytest.mark.parametrize("kind", ["fsync", "fsync_dir"])
def test_a_failed_fsync_never_acknowledges(kind: str) -> None:
    assert promises.changes_failed_in_turn(kind) > 3


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("kind", ["write", "create"])
def test_a_failed_write_is_never_acknowledged(kind: str, code: int) -> None:
    assert promises.changes_failed_in_turn(kind, code) > 3


def test_a_full_disk_refuses_writes_and_serves_reads() -> None:
    promises.full_disk()


def test_in_sync_mode_no_consumer_reads_unflushed_messages() -> None:
    promises.unflushed_is_unread()


def test_a_damaged_record_is_skipped_and_reported_and_affects_no_other() -> None:
    promises.damaged_in_the_middle()


@pytest.mark.timeout(7200)
def test_each_bit_of_a_segment_flipped() -> None:
    flips = promises.Flips()
    bits = range(SEGMENT_BITS)
    if not os.environ.get("ARIANE_CRASH_FULL"):
        seed = int(os.environ.get("ARIANE_CRASH_SEED", time.time() // 86_400))
        print(f"ARIANE_CRASH_SEED={seed}")
        bits = random.Random(seed).sample(bits, FLIPS)
    for bit in bits:
        flips.judge(bit)
