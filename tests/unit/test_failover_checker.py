"""The checker of failover simulations judges cuts of members of the stored set, and only those."""

from __future__ import annotations

import pytest

from ariane.failover.leader_record import InSyncMember, LeaderRecord
from failover_checker import FailoverChecker, InvariantBroken

A, B = InSyncMember("a", "0"), InSyncMember("b", "0")
LOG = [(1, "v1"), (1, "v2")]


@pytest.fixture
def checker() -> FailoverChecker:
    checker = FailoverChecker(lambda: {A: LOG, B: LOG})
    checker.on_written(LeaderRecord(holder="a", epoch=1, in_sync=(A,), set_version=1, token="a.1", successor=""))
    checker.on_confirmed("a", LOG, 2)
    return checker


def test_a_member_of_the_set_cuts_nothing_confirmed(checker: FailoverChecker) -> None:
    checker.on_cut(A, LOG, 2)
    with pytest.raises(InvariantBroken, match="11: a cuts the confirmed record at 1"):
        checker.on_cut(A, LOG, 1)


def test_another_member_may_follow_a_former_master(checker: FailoverChecker) -> None:
    """Seed 3,000,451: b was not in the set, and followed the former master, which knew of no later epoch."""
    checker.on_cut(B, LOG, 0)
