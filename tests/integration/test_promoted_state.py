"""A slave has the state of its master when an answer promises it, and serves with it once it is promoted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_replication import Pair, until, with_pair

from ariane.broker.broker import Broker
from ariane.broker.replication.change_follower import ChangeFollower
from ariane.broker.replication.following import Following
from ariane.model.topic import HALF_TOPIC, SubscriptionGroupConfig
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.records import properties, record
from ariane.protocol.records.member_stream import Hello
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.admin import CreateTopic, DeleteGroup, TopicRef
from ariane.protocol.requests.clients import LockBatch, LockBatchResponse, WireQueue
from ariane.protocol.requests.messaging import (
    COMMIT,
    EndTransactionHeader,
    SendMessage,
    SendMessageResponse,
    UpdateConsumerOffset,
)

QUEUES = tuple(WireQueue("broker-a", queue_id, "Orders") for queue_id in range(3))


class Client:
    """Requests of one client to the brokers of a set."""

    def __init__(self, servers: Pair) -> None:
        self.peers = servers.peers

    async def lock(self, broker: Broker, client_id: str, *queues: WireQueue) -> set[int]:
        body = fastjson.write(LockBatch(client_id, "Ordered", queues))
        answer = await self.peers.request_ok(broker.addr, RequestCode.LOCK_BATCH_MQ, None, body)
        return {queue.queue_id for queue in fastjson.decode(answer.body, LockBatchResponse).locked}

    async def create_topic(self, broker: Broker, name: str) -> None:
        header = CreateTopic(name, "TBW102", 4, 4, 6)
        await self.peers.request_ok(broker.addr, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def commit(self, broker: Broker, group: str, offset: int) -> None:
        header = UpdateConsumerOffset(group, "T", 0, offset)
        await self.peers.request_ok(broker.addr, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def half(self, broker: Broker, unique: str) -> SendMessageResponse:
        table = {"UNIQ_KEY": unique, "TRAN_MSG": "true", "PGROUP": "P"}
        header = SendMessage("P", "T", "TBW102", 1, 0, 4, 1, 7, properties.encode(table))
        answer = await self.peers.request_ok(broker.addr, RequestCode.SEND_MESSAGE_V2, header, b"half")
        return decode_header(answer, SendMessageResponse)

    async def end(self, broker: Broker, half: SendMessageResponse) -> int:
        offset = int(half.message_id[16:], 16)
        header = EndTransactionHeader("P", half.queue_offset, offset, COMMIT, msg_id="U")
        return (await self.peers.request(broker.addr, RequestCode.END_TRANSACTION, header)).code


def state(broker: Broker) -> dict[str, Any]:
    tables = broker._state
    return {
        "topics": tables.topics.table(),
        "groups": tables.groups.table(),
        "offsets": tables.offsets.table(),
        "locks": tables.locks.table(),
    }


def without_offsets(broker: Broker) -> dict[str, Any]:
    tables = state(broker)
    del tables["offsets"]
    return tables


def test_a_promoted_slave_has_all_state_of_its_master(tmp_path: Path) -> None:
    """helm#33: topics were forgotten after a switch. Locks, offsets, groups, timers and transactions are not forgotten, either."""

    async def work(servers: Pair) -> None:
        client, peers = Client(servers), servers.peers
        async with servers.broker("master", broker_role="SYNC_MASTER") as master, servers.slave() as slave:
            await until(lambda: master._feed.in_sync_size == 2)
            # What was answered is at the slave: no waiting.
            await client.create_topic(master, "Orders")
            assert without_offsets(slave) == without_offsets(master)
            group = msgspec.json.encode(SubscriptionGroupConfig(group_name="Ordered", retry_max_times=3))
            await peers.request_ok(master.addr, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group)
            assert await client.lock(master, "c1", *QUEUES[:2]) == {0, 1}
            assert without_offsets(slave) == without_offsets(master)
            assert await servers.send(master.addr, b"creates T") == 0
            assert slave._state.topics.get("T") == master._state.topics.get("T") is not None
            for name in ("G", "Gone"):
                await client.commit(master, name, 1)
            await until(lambda: state(slave) == state(master))
            await peers.request_ok(master.addr, RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup("Gone", True))
            await client.create_topic(master, "Deleted")
            await peers.request_ok(master.addr, RequestCode.DELETE_TOPIC_IN_BROKER, TopicRef("Deleted"))
            assert state(slave) == state(master)
            assert slave._state.offsets.get("Gone", "T", 0) is None
            assert (await client.half(master, "decided")).queue_offset == 0
            ended, open_half = await client.half(master, "ended"), await client.half(master, "open")
            assert await client.end(master, ended) == 0
            for name in ("cancelled", "pending"):
                await servers.send(master.addr, name.encode(), TIMER_DELAY_MS="2500", UNIQ_KEY=name)
            await servers.send(master.addr, b"", TIMER_DEL_UNIQKEY="T+cancelled")
            await until(lambda: slave._store.commit_log_max == master._store.commit_log_max)
            body = fastjson.write(LockBatch("c1", "Ordered", QUEUES))
            refused = await peers.request(slave.addr, RequestCode.LOCK_BATCH_MQ, None, body)
            assert (refused.code, "at its master" in str(refused.remark)) == (ResponseCode.SYSTEM_ERROR, True)
        async with servers.broker("slave") as promoted:
            assert {"Orders", "T"} <= set(promoted._state.topics.names())
            assert "Deleted" not in promoted._state.topics.names()
            settings = promoted._state.groups.get("Ordered")
            assert settings is not None and settings.retry_max_times == 3
            assert promoted._state.offsets.get("G", "T", 0) == 1
            assert await client.lock(promoted, "c2", *QUEUES) == {2}  # c1 holds the others until its locks expire
            assert await client.lock(promoted, "c1", *QUEUES) == {0, 1}
            await until(lambda: promoted._transactions.is_ready)
            assert promoted._transactions.halves.count == 2
            assert promoted._store.max_offset(HALF_TOPIC, 0) == 3
            for _ in range(2):
                assert await client.end(promoted, open_half) == 0
            await until(lambda: promoted._store.max_offset("T", 0) == 4)
            await asyncio.sleep(0.2)
            bodies = [record.decode(data).body for data in promoted._store.get("T", 0, 0, 32).records]
            assert sorted(bodies) == sorted([b"creates T", b"half", b"half", b"pending"])

    with_pair(tmp_path, work)


def test_a_group_skips_no_message_after_the_end_of_the_log_was_lost(tmp_path: Path) -> None:
    """The offsets were on the disk, the log was not: the numbers below them are given to new messages."""

    async def work(servers: Pair) -> None:
        client = Client(servers)
        async with servers.broker("master") as master:
            assert await servers.send(master.addr) == 0
            for group, offset in (("G", 1), ("Ahead", 100)):
                await client.commit(master, group, offset)
        async with servers.broker("master") as master:
            assert master._state.offsets.get("Ahead", "T", 0) == 100  # an orderly stop loses nothing
        (tmp_path / "master" / "abort").touch()
        async with servers.broker("master") as master:
            assert not master._store.recovery_report.clean
            assert master._state.offsets.get("Ahead", "T", 0) == 1
            assert master._state.offsets.get("G", "T", 0) == 1

    with_pair(tmp_path, work)


def test_an_answer_that_no_member_confirms_is_not_a_success(tmp_path: Path) -> None:
    """A slave that applies nothing leaves the set; until then locks and topics are not answered."""

    async def work(servers: Pair) -> None:
        client = Client(servers)
        async with servers.broker("master", slave_timeout=300) as master, servers.slave() as slave:
            await until(lambda: master._feed.in_sync_size == 2)
            following = slave._member.following
            assert following is not None and following.changes is not None
            following.changes.apply = lambda data: None  # type: ignore[method-assign]
            body = fastjson.write(LockBatch("c1", "Ordered", QUEUES))
            answer = await servers.peers.request(master.addr, RequestCode.LOCK_BATCH_MQ, None, body)
            assert (answer.code, "not confirmed" in str(answer.remark)) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
            await until(lambda: master._feed.in_sync_size == 1)
            assert await client.lock(master, "c1", *QUEUES) == {0, 1, 2}

    with_pair(tmp_path, work)


@pytest.mark.parametrize("former", ["slave", "master"])
def test_brokers_of_the_former_version_copy_tables(
    former: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither greeting has changes then: the slave copies the tables every 10 s, and answers wait for nothing."""
    plain = Following.hello

    async def work(servers: Pair) -> None:
        client = Client(servers)
        async with servers.broker("master", broker_role="SYNC_MASTER") as master:
            if former == "master":
                master._feed._changes = None
            else:
                monkeypatch.setattr(Following, "hello", lambda self: msgspec.structs.replace(plain(self), changes=None))
            async with servers.slave() as slave:
                await until(lambda: master._feed.in_sync_size == 2)
                following = slave._member.following
                assert following is not None and not following.follows_changes
                await client.create_topic(master, "Orders")
                assert await servers.send(master.addr) == 0
                await until(lambda: slave._state.topics.get("Orders") is not None)

    with_pair(tmp_path, work)
    assert Hello(member="m", incarnation="1", end=0).changes is None


def test_a_slave_continues_or_takes_a_snapshot_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ariane.broker.replication.following.RETRY_S", 0.05)
    snapshots: list[int] = []
    replace = ChangeFollower._replace

    def counted(self: ChangeFollower, snapshot: Any, end: Any) -> None:
        snapshots.append(1)
        replace(self, snapshot, end)

    monkeypatch.setattr(ChangeFollower, "_replace", counted)

    async def work(servers: Pair) -> None:
        client = Client(servers)
        async with servers.slave() as slave:
            for _ in range(2):
                async with servers.broker("master") as master:
                    await until(lambda: master._feed.in_sync_size == 2)
                    count = len(snapshots)
                    for number in range(3):
                        for stream in list(master._feed._members.values()):
                            stream.abort()
                        await client.create_topic(master, f"T{number}")
                        await client.commit(master, "G", number + 1)
                        await until(lambda: master._feed.in_sync_size == 2 and state(slave) == state(master))
                    assert len(snapshots) == count  # a master that restarted sends one, a lost connection needs none
            assert len(snapshots) == 2

    with_pair(tmp_path, work)
