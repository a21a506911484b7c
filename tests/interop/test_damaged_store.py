"""A damaged record inside the log: our start overwrites the corrupt range, and a Java broker serves all other messages."""

from __future__ import annotations

from pathlib import Path

from interop_servers import produce, pull_all

from ariane.model import host
from ariane.store.message_store import StoreConfig, open_store
from ariane.testing import LocalCluster, java

SMALL = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 2000}
JAVA_SMALL = {"mappedFileSizeCommitLog": str(1 << 20), "mappedFileSizeConsumeQueue": "2000"}


def places(messages: list[dict[str, object]]) -> set[tuple[object, ...]]:
    return {(message["queueId"], message["queueOffset"], message["key"]) for message in messages}


def test_java_reads_past_an_overwritten_corrupt_range(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, **SMALL) as servers:
        namesrv = servers.namesrv
        produce(namesrv, 200, "size=3000", "keys=ours")
        everything = pull_all(namesrv, "T")
    store = tmp_path / "store"
    victim = sorted(int(str(item["offsetMsgId"])[16:], 16) for item in everything)[50]
    log = store / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.seek(victim + 4)
        file.write(b"\0")
    (store / "checkpoint").unlink()
    (store / "abort").touch()
    config = StoreConfig(root=str(store), commit_log_size=1 << 20, consume_queue_size=2000)
    opened = open_store(config, store_host=host.pack("127.0.0.1", 10911))
    assert [hole.offset for hole in opened.recovery_report.corrupt_ranges] == [victim]
    opened.close()
    # As after a crash, so that Java reads the log again, from its beginning.
    (store / "checkpoint").unlink()
    (store / "abort").touch()
    with (
        java.name_server(tmp_path / "ns") as name_server,
        java.broker(tmp_path, name_server.addr, properties=JAVA_SMALL),
    ):
        sent = produce(name_server.addr, 5, "size=3000", "keys=java")
        result = pull_all(name_server.addr, "T")
    lost = {item["offsetMsgId"] for item in everything} - {item["offsetMsgId"] for item in result}
    assert {int(str(item)[16:], 16) for item in lost} == {victim}, "only what was damaged is lost"
    assert places(sent) <= places(result)
    # Java knows no entry that is passed over: the lost one's leads it to the message after it, which it hands out twice.
    assert len({str(item["offsetMsgId"]) for item in result}) == len(everything) - 1 + len(sent)
    assert len(result) == len(everything) + len(sent)
