"""A set with failover is upgraded from a former version by a rolling restart, and set back, while clients send.

The former version is a commit of this repository from before a change of the files in `ariane/`, or of the record of the set.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from test_rolling_restart import TOPIC, Sends, restart, supervised

from ariane import Admin
from etcd_cluster import PROGRAM, REASON, EtcdCluster
from failover_processes import broker_set

REPOSITORY = Path(__file__).resolve().parents[2]
FORMER = "73fbd77f"  # before `is_unproven` of ariane/member, and epochs of records that are not proven
LIMIT_S = 400


def former_sources(home: Path) -> Path:
    """Return a directory with the packages of the former version."""
    archive = home / "former.tar"
    command = ["git", "-C", str(REPOSITORY), "archive", "--output", str(archive), FORMER, "src"]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"needs git: {error}")
    if done.returncode:
        pytest.skip(f"needs commit {FORMER} of the history: {done.stderr.strip()}")
    with tarfile.open(archive) as files:
        files.extractall(home / "former", filter="data")
    return home / "former" / "src"


@pytest.mark.long(
    "tests/integration/test_cluster_maintenance.py::test_a_rolling_restart_fails_no_send",
    "tests/unit/test_member_identity.py::test_after_a_failed_flush_records_are_unproven_until_the_epochs_say_which",
)
@pytest.mark.skipif(PROGRAM is None, reason=REASON)
def test_a_set_is_upgraded_and_set_back_without_a_failed_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, present = former_sources(tmp_path), os.environ.get("PYTHONPATH", str(REPOSITORY / "src"))
    etcd = EtcdCluster(tmp_path)

    async def work() -> None:
        monkeypatch.setenv("PYTHONPATH", str(sources))
        async with (
            asyncio.timeout(LIMIT_S),
            broker_set(tmp_path / "set", etcd.urls, minInSyncReplicas=2, flushDiskType="SYNC_FLUSH") as (
                brokers,
                namesrv,
            ),
            Admin(namesrv) as admin,
        ):
            await brokers.complete(3)
            await admin.create_topic(TOPIC, queues=4)
            sends = Sends(namesrv)
            async with supervised(tmp_path, brokers.members.values()) as command:
                async with sends.running():
                    for version in (present, str(sources)):
                        monkeypatch.setenv("PYTHONPATH", version)
                        await restart(namesrv, command)
                        await brokers.complete(3)
                        for member in brokers.members.values():
                            assert member.process is not None
                            environment = Path(f"/proc/{member.process.pid}/environ").read_bytes()
                            assert f"PYTHONPATH={version}\0".encode() in environment
                        monkeypatch.setenv("PYTHONPATH", present)
                await sends.check()

    try:
        etcd.start()
        asyncio.run(work())
    finally:
        etcd.stop()
