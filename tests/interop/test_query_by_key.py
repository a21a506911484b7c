"""Queries by key with unmodified Java 4.9.4 tools, and index files exchanged between Java and us."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from interop_servers import produce

from ariane.cluster.admin import Admin
from ariane.cluster.messages.message_query import QueryResult
from ariane.model import ids
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.records import properties, record
from ariane.protocol.requests.messaging import QueryMessage, SendMessage
from ariane.testing import LocalCluster, java
from ariane.testing.cluster_servers import SMALL_FILES

# Small files, so that there are several of the index.
INDEX = {"max_hash_slot_num": 64, "max_index_num": 128}
JAVA_INDEX = {
    "maxHashSlotNum": "64",
    "maxIndexNum": "128",
    "mappedFileSizeCommitLog": str(SMALL_FILES["mapped_file_size_commit_log"]),
    "mappedFileSizeConsumeQueue": str(SMALL_FILES["mapped_file_size_consume_queue"]),
}


def by_key(namesrv: str, key: str, topic: str = "T") -> list[str]:
    """Return the unique ids printed by mqadmin queryMsgByKey."""
    lines = java.run(java.ADMIN, ["queryMsgByKey", "-t", topic, "-k", key, "-n", namesrv])
    return [line.split()[0] for line in lines if line[:1] not in "#\t " and len(line.split()) == 3]


def by_unique_key(namesrv: str, message_id: str) -> str:
    """Return the output of mqadmin queryMsgByUniqueKey."""
    command = ["queryMsgByUniqueKey", "-t", "T", "-i", message_id, "-n", namesrv]
    return "\n".join(java.run(java.ADMIN, command))


def check(namesrv: str, sent: Sequence[dict[str, object]]) -> None:
    """Query the first, middle and last message by key and by id; more would take too long, as each query starts a JVM."""
    for item in (sent[0], sent[len(sent) // 2], sent[-1]):
        assert by_key(namesrv, str(item["key"])) == [item["msgId"]]
    assert f"UNIQ_KEY={sent[0]['msgId']}" in by_unique_key(namesrv, str(sent[0]["msgId"]))


def index_files(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "store" / "index").iterdir())


def every_id(namesrv: str, sent: Sequence[dict[str, object]]) -> None:
    """Query every message by unique id and by key through our use cases, at either broker."""

    async def run() -> None:
        async with Admin(namesrv) as admin:
            for item in sent:
                result = await admin.query_by_unique_key("T", str(item["msgId"]))
                assert result.first is not None
                assert result.first.offset_message_id == item["offsetMsgId"]
                same = await admin.query_by_key("T", str(item["key"]))
                assert [other.message_id for other in same.messages] == [item["msgId"]]
                assert (same.unavailable, same.truncated) == ((), {})

    asyncio.run(run())


def test_mqadmin_finds_messages_of_java_producers(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, **INDEX) as servers:
        namesrv = servers.namesrv
        sent = produce(namesrv, 100) + produce(namesrv, 20, "batch=5", "keys=batch")
        check(namesrv, sent)
        assert by_key(namesrv, "none") == []


AHEAD_MS = 1200


async def asked_ahead(namesrv: str, addr: str) -> tuple[str, int, QueryResult]:
    """Send a message with a unique id from a client whose clock is ahead, and query it as Java's client does: from one second
    before the id's time, which is 200 ms after the store time. Return the id, the response code and the result of our tools."""
    now_ms = time.time_ns() // 1_000_000
    ahead = f"7F0000011A2B18B4AAC2{now_ms + AHEAD_MS - ids.month_start_ms(now_ms):08X}0007"
    async with Admin(namesrv) as admin:
        peers = admin.peers
        header = SendMessage("P", "T", "TBW102", 4, 0, 0, now_ms + AHEAD_MS, 0, properties.encode({"UNIQ_KEY": ahead}))
        await peers.request_ok(addr, RequestCode.SEND_MESSAGE_V2, header, b"b")
        await asyncio.sleep(0.3)  # Java's broker indexes a moment later
        result = await admin.query_by_unique_key("T", ahead)
        assert result.first is not None
        begin_ms = result.first.store_ms + AHEAD_MS - 1000
        request = QueryMessage("T", ahead, 32, begin_ms, (1 << 63) - 1, "true")
        return ahead, (await peers.request(addr, RequestCode.QUERY_MESSAGE, request)).code, result


def test_an_id_from_a_client_with_a_fast_clock_is_found(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as servers:
        namesrv, addr = servers.namesrv, servers.broker.addr
        produce(namesrv, 1)
        ahead, code, _ = asyncio.run(asked_ahead(namesrv, addr))
        assert code == ResponseCode.SUCCESS
        assert f"UNIQ_KEY={ahead}" in by_unique_key(namesrv, ahead)


@pytest.mark.long(
    "tests/interop/test_query_by_key.py::test_an_id_from_a_client_with_a_fast_clock_is_found",
)
def test_our_tools_find_an_id_from_a_fast_clock_at_a_java_broker(tmp_path: Path) -> None:
    with java.name_server(tmp_path / "ns") as ns, java.broker(tmp_path, ns.addr) as broker:
        produce(ns.addr, 1)
        ahead, code, result = asyncio.run(asked_ahead(ns.addr, broker.addr))
    assert code == ResponseCode.QUERY_NOT_FOUND, "4.9.4 does not find it"
    assert result.first is not None
    assert result.first.message_id == ahead
    assert (result.unavailable, result.truncated) == ((), {})


def test_java_reads_and_extends_our_index(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, **INDEX) as servers:
        namesrv = servers.namesrv
        ours = produce(namesrv, 150, "keys=ours")
    files = index_files(tmp_path)
    assert len(files) > 2
    with java.name_server(tmp_path / "ns") as ns, java.broker(tmp_path, ns.addr, properties=JAVA_INDEX):
        every_id(ns.addr, ours)
        check(ns.addr, ours)
        javas = produce(ns.addr, 100, "keys=javas")
        every_id(ns.addr, javas[:1])
    after = index_files(tmp_path)
    assert set(after) > set(files), "Java took our files and added its own"
    with LocalCluster(tmp_path, **INDEX) as servers:
        namesrv = servers.namesrv
        every_id(namesrv, ours + javas)
        check(namesrv, javas)
    assert set(index_files(tmp_path)) >= set(after), "nothing had to be made anew"


def test_the_index_of_a_killed_java_broker_is_completed(tmp_path: Path) -> None:
    with java.name_server(tmp_path / "ns") as ns, java.broker(tmp_path, ns.addr, properties=JAVA_INDEX) as broker:
        sent = produce(ns.addr, 150)
        every_id(ns.addr, sent[-1:])  # it is dispatched
        broker.process.kill()
        broker.process.wait()
    assert (tmp_path / "store" / "abort").exists()
    with LocalCluster(tmp_path, **INDEX) as servers:
        namesrv = servers.namesrv
        every_id(namesrv, sent)
    shutil.rmtree(tmp_path / "store" / "index")
    with LocalCluster(tmp_path, **INDEX) as servers:
        namesrv = servers.namesrv
        every_id(namesrv, sent)


@pytest.mark.long(
    "tests/interop/test_query_by_key.py::test_mqadmin_finds_messages_of_java_producers",
)
def test_results_truncated_silently_by_a_java_broker_are_reported(tmp_path: Path) -> None:
    async def run(namesrv: str, addr: str, offset_id: str) -> QueryResult:
        async with Admin(namesrv) as admin:
            answer = await admin.peers.request_ok(
                addr, RequestCode.QUERY_MESSAGE, QueryMessage("T", "K-0", 1000, 0, 1 << 62)
            )
            assert len(list(record.decode_all(answer.body))) == 64
            item = await admin.view_by_offset_id(offset_id)
            assert (item.offset_message_id, item.keys) == (offset_id, ("K-0",))
            return await admin.query_by_key("T", "K-0")

    with java.name_server(tmp_path / "ns") as ns, java.broker(tmp_path, ns.addr) as broker:
        sent = produce(ns.addr, 160, "orders=2")
        result = asyncio.run(run(ns.addr, broker.addr, str(sent[0]["offsetMsgId"])))
    assert len(result.messages) >= 64
    assert len(result.messages) == 80 or "the others cannot be queried" in result.truncated["broker-a"]
