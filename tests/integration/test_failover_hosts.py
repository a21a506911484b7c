"""A broker set on hosts of its own, with disks that fail and a network that loses packets: a short tests/failover_campaign.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from failover_hosts import unavailable

CAMPAIGN = Path(__file__).parent.parent / "failover_campaign.py"
MINUTES = "0.2"  # the round of faults that has begun by then ends


@pytest.mark.long(
    "tests/integration/test_failover_member.py::test_what_a_failed_flush_dropped_is_copied_again_before_the_member_counts",
    "tests/integration/test_broker_set_failover.py::test_6662_nothing_is_confirmed_without_a_member_that_the_record_lists",
)
def test_random_faults_of_all_kinds_lose_nothing(tmp_path: Path) -> None:
    if reason := unavailable():
        pytest.skip(reason)
    figures = tmp_path / "figures"
    command = [sys.executable, str(CAMPAIGN), "1", MINUTES, "5", str(figures)]
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(figures.read_text().splitlines()[-1])
    assert result["lost"] == result["not received"] == 0
    assert result["acknowledged"] > 0
    assert result["faults"] > 0
