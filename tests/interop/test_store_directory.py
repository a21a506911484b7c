"""One store directory, opened in turn by Java's 4.9.4 broker and by ours: every message is read both ways."""

from __future__ import annotations

from pathlib import Path

import pytest
from interop_servers import produce, pull_all

from ariane.testing import LocalCluster, java

# Small files, so that the log and the queues have several.
SMALL = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 2000}
JAVA_SMALL = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "2000",
}


def identities(messages: list[dict[str, object]]) -> set[tuple[object, ...]]:
    return {(message["msgId"], message["queueId"], message["queueOffset"], message["key"]) for message in messages}


def by_us(home: Path, count: int) -> tuple[set[tuple[object, ...]], set[tuple[object, ...]]]:
    """Send `count` messages through our broker on home/store. Return the messages before and after."""
    with LocalCluster(home, **SMALL) as servers:
        namesrv = servers.namesrv
        before = identities(pull_all(namesrv, "T")) if (home / "known").exists() else set()
        sent = produce(namesrv, count, "size=3000", f"keys=ours{count}")
        (home / "known").touch()
        after = identities(pull_all(namesrv, "T"))
    assert after == before | identities(sent)
    return before, after


def by_java(home: Path, count: int) -> tuple[set[tuple[object, ...]], set[tuple[object, ...]]]:
    """Do the same with the Java broker."""
    with java.name_server(home / "ns") as name_server, java.broker(home, name_server.addr, properties=JAVA_SMALL):
        before = identities(pull_all(name_server.addr, "T")) if (home / "known").exists() else set()
        sent = produce(name_server.addr, count, "size=3000", f"keys=java{count}")
        (home / "known").touch()
        after = identities(pull_all(name_server.addr, "T"))
    assert after == before | identities(sent)
    return before, after


@pytest.mark.long(
    "tests/interop/test_store_directory.py::test_a_store_opened_by_java_then_ours_then_java",
)
def test_a_store_opened_by_ours_then_java_then_ours(tmp_path: Path) -> None:
    _, first = by_us(tmp_path, 700)
    before, second = by_java(tmp_path, 701)
    assert before == first
    before, third = by_us(tmp_path, 5)
    assert before == second
    assert len(third) == 1406


def test_a_store_opened_by_java_then_ours_then_java(tmp_path: Path) -> None:
    _, first = by_java(tmp_path, 700)
    before, second = by_us(tmp_path, 701)
    assert before == first
    before, third = by_java(tmp_path, 5)
    assert before == second
    assert len(third) == 1406
