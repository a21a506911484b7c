"""Master and slave over sockets: log and tables are replicated, each server accepts the requests of its role."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ariane.broker.broker import Broker
from ariane.client.push_consumer import PushConsumer
from ariane.model.message import ReceivedMessage
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import properties, record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.admin import ConsumerOffsetTable, CreateTopic, TopicRef
from ariane.protocol.requests.audit import GetAuditLog
from ariane.protocol.requests.messaging import (
    COMMIT_OFFSET,
    SUBSCRIPTION,
    PullMessage,
    PullMessageResponse,
    SendMessage,
    UpdateConsumerOffset,
)
from ariane.protocol.requests.routing import TopicTable
from ariane.testing import AsyncLocalCluster
from ariane.testing.cluster_servers import broker_config

QUICK = {"ha_send_heartbeat_interval": 100, "ha_housekeeping_interval": 2000}


class Pair:
    """Name server and brokers that a test starts and stops."""

    def __init__(self, home: Path, namesrv: str, peers: ConnectionPool) -> None:
        self.home = home
        self.namesrv = namesrv
        self.peers = peers

    def broker(self, name: str, **settings: Any) -> Broker:
        values = {"mapped_file_size_commit_log": 1 << 20, **QUICK, **settings}
        return Broker(broker_config(self.home / name, self.namesrv, **values))

    def slave(self, name: str = "slave", **settings: Any) -> Broker:
        return self.broker(name, broker_role="SLAVE", broker_id=1, **settings)

    async def send(self, addr: str, body: bytes = b"hello", **own: str) -> int:
        header = SendMessage("P", "T", "TBW102", 1, 0, 0, 1, 0, properties.encode({"KEYS": "k", **own}))
        return (await self.peers.request(addr, RequestCode.SEND_MESSAGE_V2, header, body, timeout_ms=6000)).code

    async def pull(self, addr: str, offset: int = 0, flag: int = SUBSCRIPTION, commit: int = 0) -> Command:
        header = PullMessage("G", "T", 0, offset, 32, flag, commit, 0, "*", 0, None)
        return await self.peers.request(addr, RequestCode.PULL_MESSAGE, header)


def with_pair(home: Path, work: Callable[[Pair], Awaitable[None]]) -> None:
    @contextlib.asynccontextmanager
    async def pair() -> AsyncIterator[Pair]:
        names = NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(home / "kv.json"))
        async with NameServer(names) as name_server, ConnectionPool() as peers:
            yield Pair(home, f"127.0.0.1:{name_server.addr.rpartition(':')[2]}", peers)

    async def run() -> None:
        async with pair() as servers:
            await work(servers)

    asyncio.run(asyncio.wait_for(run(), 120))


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not what():
            await asyncio.sleep(0.01)


def log_of(home: Path, name: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((home / name / "commitlog").iterdir()))


def test_a_slave_has_the_same_log_after_a_disconnection(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        async with servers.broker("master") as master:
            for number in range(500):
                assert await servers.send(master.addr, b"%d" % number * 1000) == 0
            async with servers.slave() as slave:
                await until(lambda: slave._store.commit_log_max == master._store.commit_log_max)
                await until(lambda: slave._store.max_offset("T", 0) == 500)
                assert slave._store.commit_log_min == 0
            for number in range(500):
                assert await servers.send(master.addr, b"%d" % number * 1000) == 0
            async with servers.slave() as slave:
                await until(lambda: slave._store.max_offset("T", 0) == 1000)
                for offset in (0, 499, 500, 999):
                    slave_result = slave._store.get("T", 0, offset, 32)
                    assert slave_result.records == master._store.get("T", 0, offset, 32).records != []
                assert await servers.send(master.addr, b"now") == 0
                await until(lambda: slave._store.max_offset("T", 0) == 1001)

    with_pair(tmp_path, work)
    assert log_of(tmp_path, "slave") == log_of(tmp_path, "master")


def test_a_killed_slave_recovers(tmp_path: Path) -> None:
    """The slave's store is left with an `abort` file and possibly half a record, as after a kill."""

    async def work(servers: Pair) -> None:
        async with servers.broker("master") as master:
            async with servers.slave() as slave:
                for number in range(300):
                    assert await servers.send(master.addr, b"%d" % number * 500) == 0
                await until(lambda: slave._store.max_offset("T", 0) > 100)
                copy = tmp_path / "killed"
                for path in (tmp_path / "slave").rglob("*"):
                    target = copy / path.relative_to(tmp_path / "slave")
                    if path.is_file():
                        target.parent.mkdir(parents=True, exist_ok=True)
                        target.write_bytes(path.read_bytes())
            assert (copy / "abort").exists()
            async with servers.slave("killed") as slave:
                assert not slave._store.recovery_report.clean
                await until(lambda: slave._store.max_offset("T", 0) == 300)

    with_pair(tmp_path, work)
    assert log_of(tmp_path, "killed") == log_of(tmp_path, "master")


def test_a_sync_master_reports_whether_a_slave_has_the_message(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        async with servers.broker("master", broker_role="SYNC_MASTER", slave_timeout=300) as master:
            assert await servers.send(master.addr) == ResponseCode.SLAVE_NOT_AVAILABLE
            assert await servers.send(master.addr, WAIT="false") == 0
            async with servers.slave() as slave:
                await until(lambda: slave._store.max_offset("T", 0) == 2)
                answers = await asyncio.gather(*(servers.send(master.addr) for _ in range(100)))
                assert set(answers) == {0}
                assert slave._store.commit_log_max == master._store.commit_log_max
                # A slave that takes nothing more, and is still there.
                assert slave._member.following is not None
                slave._member.following.replica.append = _silent  # type: ignore[method-assign]
                assert await servers.send(master.addr) == ResponseCode.FLUSH_SLAVE_TIMEOUT
            await until(lambda: master._feed.acknowledged_offset == 0)
            assert await servers.send(master.addr) == ResponseCode.SLAVE_NOT_AVAILABLE

    def _silent(offset: int, data: bytes) -> None:
        pass

    with_pair(tmp_path, work)


def test_a_sync_master_refuses_sends_without_enough_members(tmp_path: Path) -> None:
    """Slaves of Ariane join by name, again after a restart; each of them has to have a message."""

    async def work(servers: Pair) -> None:
        async with servers.broker("master", broker_role="SYNC_MASTER", min_in_sync_replicas=3) as master:
            assert await servers.send(master.addr) == ResponseCode.SERVICE_NOT_AVAILABLE
            incarnations = set()
            for _ in range(2):
                async with servers.slave("s1"), servers.broker("s2", broker_role="SLAVE", broker_id=2) as second:
                    await until(lambda: master._feed.in_sync_size == 3)
                    assert await servers.send(master.addr) == ResponseCode.SUCCESS
                    assert second._store.commit_log_max == master._store.commit_log_max
                    assert second._member.following is not None
                    incarnations.add(second._member.following.member)
                await until(lambda: master._feed.in_sync_size == 1)
                assert await servers.send(master.addr) == ResponseCode.SERVICE_NOT_AVAILABLE
            assert [member.name for member in incarnations] == ["broker-a-2"]  # an orderly stop keeps the incarnation

    with_pair(tmp_path, work)


def test_consumers_read_what_all_members_have(tmp_path: Path) -> None:
    """Pulls wait for the slave; after a restart of the master so do reads of what it had."""

    async def work(servers: Pair) -> None:
        master_of = functools.partial(
            servers.broker, "master", broker_role="SYNC_MASTER", confirmed_reads=True, min_in_sync_replicas=2
        )
        async with master_of() as master, servers.slave(confirmed_reads=True) as slave:
            await until(lambda: master._feed.in_sync_size == 2)
            assert await servers.send(master.addr) == 0
            assert (await servers.pull(master.addr)).code == ResponseCode.SUCCESS
            await until(lambda: slave._store.max_offset("T", 0) == 1)
            following = slave._member.following
            assert following is not None
            following.replica.append = lambda offset, data: None  # type: ignore[method-assign]  # it takes nothing more
            assert await servers.send(master.addr) != 0
            assert (await servers.pull(master.addr, offset=1)).code == ResponseCode.PULL_NOT_FOUND
        async with master_of() as master:
            assert (await servers.pull(master.addr)).code == ResponseCode.SERVICE_NOT_AVAILABLE
            async with servers.slave(confirmed_reads=True) as slave:
                await until(lambda: master._reads.is_open)
                assert (await servers.pull(master.addr, offset=1)).code == ResponseCode.SUCCESS
                await until(lambda: slave._store.max_offset("T", 0) == 2)

    with_pair(tmp_path, work)


def test_a_sync_flush_master_waits_for_the_disk_and_the_slave(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        both = {"broker_role": "SYNC_MASTER", "flush_disk_type": "SYNC_FLUSH", "broker_fast_failure_enable": False}
        async with servers.broker("master", **both) as master, servers.slave(flush_disk_type="SYNC_FLUSH") as slave:
            await until(lambda: master._feed.has_slaves)
            answers = await asyncio.gather(*(servers.send(master.addr, b"%d" % n) for n in range(50)))
            assert set(answers) == {0}
            assert master._store.flushed == master._store.commit_log_max
            await until(lambda: slave._store.max_offset("T", 0) == 50)

    with_pair(tmp_path, work)


def test_a_slave_rejects_requests_reserved_for_the_master(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        async with servers.broker("master") as master, servers.slave() as slave:
            await servers.send(master.addr)
            await slave_copies(slave, servers)
            topics = slave._state.topics.table()
            assert await servers.send(slave.addr) == ResponseCode.SERVICE_NOT_AVAILABLE
            ask = servers.peers.request
            assert (await ask(slave.addr, RequestCode.END_TRANSACTION)).code == ResponseCode.SLAVE_NOT_AVAILABLE
            response = await ask(slave.addr, RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopic("New", "TBW102", 1, 1, 6))
            assert response.code == ResponseCode.SYSTEM_ERROR
            assert slave._state.topics.table() == topics
            # A slave does not correct a wrong offset and publishes no event about it.
            await until(lambda: slave._store.max_offset("T", 0) == 1)
            answer = await servers.pull(slave.addr, 99)
            assert (answer.code, decode_header(answer, PullMessageResponse).next_begin_offset) == (20, 99)
            answer = await servers.pull(master.addr, 99)
            assert (answer.code, decode_header(answer, PullMessageResponse).next_begin_offset) == (21, 1)
            await servers.pull(slave.addr, 0, SUBSCRIPTION | COMMIT_OFFSET, 1)
            assert slave._state.offsets.get("G", "T", 0) is None

    with_pair(tmp_path, work)


async def slave_copies(slave: Broker, servers: Pair) -> None:
    """Wait until the slave has the tables of its master, judged by its topics."""
    await until(lambda: slave._state.topics.get("T") is not None)


def test_a_slave_copies_topics_groups_and_offsets(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        async with servers.broker("master") as master, servers.slave() as slave:
            await servers.send(master.addr)
            await servers.peers.request_ok(
                master.addr, RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("G", "T", 0, 1)
            )
            await servers.pull(master.addr)
            await until(lambda: slave._state.topics.get("T") is not None)
            await until(lambda: slave._state.groups.get("G") is not None)
            assert slave._state.topics.table() == master._state.topics.table()
            assert slave._state.groups.table() == master._state.groups.table()
            answer = await servers.peers.request_ok(slave.addr, RequestCode.GET_ALL_CONSUMER_OFFSET)
            assert fastjson.decode(answer.body, ConsumerOffsetTable).offset_table == {"T@G": {0: 1}}

    with_pair(tmp_path, work)
    kept = json.loads((tmp_path / "slave" / "config" / "topics.json").read_text())
    assert "T" in kept["topicConfigTable"]


def test_a_slave_deletes_a_topic_at_its_master_first(tmp_path: Path) -> None:
    """`mqadmin deleteTopic -c` sends the request to every broker of a cluster; an error of a slave fails the command."""

    async def work(servers: Pair) -> None:
        async with servers.slave() as slave:
            answer = await servers.peers.request(slave.addr, RequestCode.DELETE_TOPIC_IN_BROKER, TopicRef("T"))
            assert (answer.code, "start the master" in str(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)
            async with servers.broker("master") as master:
                await servers.send(master.addr)
                await slave_copies(slave, servers)
                await until(lambda: slave._store.max_offset("T", 0) == 1)
                for topic, code in (("TBW102", ResponseCode.SYSTEM_ERROR), ("T", 0), ("T", 0)):
                    answer = await servers.peers.request(
                        slave.addr, RequestCode.DELETE_TOPIC_IN_BROKER, TopicRef(topic)
                    )
                    assert answer.code == code, answer.remark
                for broker in (master, slave):
                    assert broker._state.topics.get("T") is None
                    assert "T" not in broker._store.topics()
                assert "TBW102" in master._state.topics.table().topic_config_table

    with_pair(tmp_path, work)


def test_the_vip_port_serves_everything_but_pulls(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        async with servers.broker("master") as master:
            ip, _, port = master.addr.rpartition(":")
            fast = f"{ip}:{int(port) - 2}"
            assert await servers.send(fast) == 0
            table = await servers.peers.request_ok(fast, RequestCode.GET_ALL_TOPIC_CONFIG)
            assert "T" in fastjson.decode(table.body, TopicTable).topic_config_table
            assert (await servers.pull(fast)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert [
                stored_record.body for stored_record in record.decode_all((await servers.pull(master.addr)).body)
            ] == [b"hello"]

    with_pair(tmp_path, work)


def test_slow_consumers_are_redirected_to_a_slave_where_allowed(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        async with servers.broker("master", slave_read_enable=True, access_message_in_memory_max_ratio=0) as master:
            await servers.send(master.addr)
            assert decode_header(await servers.pull(master.addr), PullMessageResponse).suggest_which_broker_id == 1
        async with servers.broker("other", access_message_in_memory_max_ratio=0) as other:
            await servers.send(other.addr)
            assert decode_header(await servers.pull(other.addr), PullMessageResponse).suggest_which_broker_id == 0

    with_pair(tmp_path, work)


def test_a_consumer_continues_at_the_slave_after_the_master_stops(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        async with servers.slave() as slave:
            async with servers.broker("master") as master:
                for number in range(20):
                    assert await servers.send(master.addr, b"%d" % number) == 0
                await until(lambda: slave._store.max_offset("T", 0) == 20)
                await slave_copies(slave, servers)
            received: list[bytes] = []

            async def listener(messages: Sequence[ReceivedMessage]) -> None:
                received.extend(message.body for message in messages)

            async with PushConsumer(servers.namesrv, "G2", {"T": "*"}, listener, start="first"):
                await until(lambda: len(received) >= 20)
            assert sorted(received, key=int) == [b"%d" % number for number in range(20)]

    with_pair(tmp_path, work)


def test_the_local_cluster_supports_slaves(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncLocalCluster(tmp_path, slaves=2) as servers:
            assert len(servers.slaves) == 2
            async with ConnectionPool() as peers:
                pair = Pair(tmp_path, servers.namesrv, peers)
                assert await pair.send(servers.broker.addr) == 0
                for addr in (slave.addr for slave in servers.slaves):
                    async with asyncio.timeout(20):
                        while not (await pair.pull(addr)).body:
                            await asyncio.sleep(0.05)

    asyncio.run(run())


def test_a_promoted_slave_delivers_pending_messages_exactly_once(tmp_path: Path) -> None:
    """The slave determines from the log alone whether a delayed message is delivered or pending."""

    async def work(servers: Pair) -> None:
        async with servers.broker("master") as master, servers.slave() as slave:
            for number in range(20):
                assert await servers.send(master.addr, b"%d" % number, TIMER_DELAY_MS="100") == 0
                assert await servers.send(master.addr, b"%d" % number, DELAY="1") == 0
            for number in range(5):
                assert await servers.send(master.addr, b"late %d" % number, TIMER_DELAY_MS="6000") == 0
            await until(lambda: master._store.max_offset("T", 0) == 40)
            await until(lambda: slave._store.max_offset("T", 0) == 40)
            assert slave._store.delayed.timer_count == 5
        async with servers.broker("slave") as promoted:
            assert promoted._store.max_offset("T", 0) == 40
            await until(lambda: promoted._store.max_offset("T", 0) >= 45)
            await asyncio.sleep(0.5)
            assert promoted._store.max_offset("T", 0) == 45
            late = [record.decode(data).body for data in promoted._store.get("T", 0, 40, 32).records]
            assert late == [b"late %d" % number for number in range(5)]

    with_pair(tmp_path, work)


ACCOUNTS = """
accounts:
- {accessKey: cluster-account, secretKey: cluster-secret, admin: true, brokers: [broker-a]}
- {accessKey: reader-account, secretKey: reader-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
"""


@pytest.mark.parametrize(("account", "is_served"), [("cluster", True), ("reader", False)])
def test_a_master_serves_only_slaves_that_prove_an_account(
    account: str, is_served: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    common = {"acl_enable": True, "ha_acl_enable": True, "rocketmq_home": str(tmp_path), "broker_name": "broker-a"}

    async def work(servers: Pair) -> None:
        async with servers.broker("master", **common) as master:
            master._state.topics.get_or_create_internal("T", 1)
            keys = {"access_key": f"{account}-account", "secret_key": f"{account}-secret"}
            async with servers.slave(**common, **keys) as slave:
                if is_served:
                    await until(lambda: master._feed.has_slaves)
                    # Requests for the tables are signed by the same account.
                    await until(lambda: slave._state.topics.get("T") is not None)
                else:
                    await until(lambda: "does not have broker:broker-a" in caplog.text)
                    assert not master._feed.has_slaves
                    assert master._audit is not None
                    record, *_ = (await master._audit.read(GetAuditLog(result="refused"))).records
                    assert (record.request, record.account) == ("REPLICATION", "reader-account")
                    assert record.address.startswith("127.0.0.1:") and "broker:broker-a" in record.reason

    with caplog.at_level(logging.INFO):
        with_pair(tmp_path, work)
    assert "-secret" not in caplog.text
