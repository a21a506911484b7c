"""A Java broker opens a store that was restored from a backup, without queues, index and checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from interop_servers import produce, pull_all

from ariane.backup.backup_target import DirectoryTarget
from ariane.backup.create import create_backup
from ariane.backup.restore import restore_backup
from ariane.testing import LocalCluster, java

SEGMENT = 1 << 18
SMALL = {"mapped_file_size_commit_log": SEGMENT, "mapped_file_size_consume_queue": 2000}
JAVA_SMALL = {"mappedFileSizeCommitLog": str(SEGMENT), "mappedFileSizeConsumeQueue": "2000"}


@pytest.mark.long("tests/unit/test_backup.py::test_a_store_that_is_open_is_restored_with_all_of_its_messages")
def test_java_serves_every_message_of_a_restored_store(tmp_path: Path) -> None:
    store, backups = tmp_path / "store", DirectoryTarget(tmp_path / "backups")
    with LocalCluster(tmp_path, **SMALL) as servers:
        produce(servers.namesrv, 600, "size=3000", "keys=ours")
        everything = pull_all(servers.namesrv, "T")
        manifest = create_backup(str(store), backups, now_ms=lambda: 1).manifest
    assert manifest.log_end > 6 * SEGMENT, (
        "Java reads only the last three files if it believes that the stop was orderly"
    )
    store.rename(tmp_path / "former")
    restore_backup(backups, manifest, store)
    with (
        java.name_server(tmp_path / "ns") as name_server,
        java.broker(tmp_path, name_server.addr, properties=JAVA_SMALL),
    ):
        result = pull_all(name_server.addr, "T")
    assert [item["offsetMsgId"] for item in result] == [item["offsetMsgId"] for item in everything]
