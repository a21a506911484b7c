"""Three brokers and an etcd of three members fail over by themselves: what was acknowledged stays, at its position."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from ariane import Admin, Producer, SendStatus
from ariane.errors import ArianeError
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.records import record
from ariane.protocol.records.record import Record as StoredRecord
from ariane.protocol.requests.admin import CreateTopic, TopicRef
from ariane.protocol.requests.clients import LockBatch, LockBatchResponse, WireQueue
from ariane.protocol.requests.messaging import SUBSCRIPTION, PullMessage
from ariane.store.check.reader import read_log
from etcd_cluster import PROGRAM, REASON, EtcdCluster
from failover_processes import BROKER_NAME, TTL_S, BrokerSet, broker_set

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=REASON)

QUEUES = 4
SENDERS = 4
Position = tuple[int, int]  # queue and number
_topics = (f"T{number}" for number in itertools.count())


class RunningSet:
    """Three brokers for all tests of this module, each with ways to etcd that can be closed."""

    def __init__(
        self, runner: asyncio.Runner, etcd: EtcdCluster, brokers: BrokerSet, namesrv: str, ways: dict[str, Proxies]
    ) -> None:
        self.runner = runner
        self.etcd = etcd
        self.brokers = brokers
        self.namesrv = namesrv
        self.ways = ways

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a test once the set is complete."""

        async def limited() -> None:
            for member in self.brokers.members.values():
                if member.process is None:  # the test before failed while it was killed
                    member.start()
            async with asyncio.timeout(100):
                await self.brokers.complete(3)
                await work()

        self.runner.run(limited())

    async def load(self) -> Load:
        """Return a load on a new topic."""
        return await new_load(self.brokers, self.namesrv)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSet]:
    home = tmp_path_factory.mktemp("failover")
    etcd = EtcdCluster(home)
    etcd.start()

    async def enter(stack: contextlib.AsyncExitStack, runner: asyncio.Runner) -> RunningSet:
        ways = {name: await stack.enter_async_context(Proxies(etcd.urls)) for name in "abc"}
        endpoints = {name: way.urls for name, way in ways.items()}
        brokers, namesrv = await stack.enter_async_context(
            broker_set(home / "set", endpoints, minInSyncReplicas=2, slaveTimeout=2000)
        )
        return RunningSet(runner, etcd, brokers, namesrv, ways)

    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        try:
            yield runner.run(enter(stack, runner))
        finally:
            runner.run(stack.aclose())
            etcd.stop()


class Proxies:
    """A way to each endpoint that can be closed: connections through it are silent then."""

    def __init__(self, urls: list[str]) -> None:
        self._targets = [url.partition("//")[2] for url in urls]
        self._servers: list[asyncio.Server] = []
        self._open = asyncio.Event()
        self._open.set()
        self.urls: list[str] = []

    async def __aenter__(self) -> Proxies:
        for target in self._targets:
            server = await asyncio.start_server(lambda r, w, target=target: self._serve(target, r, w), "127.0.0.1", 0)
            self._servers.append(server)
            self.urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open.set()
        for server in self._servers:
            server.close()

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def _serve(self, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        addr, _, port = target.partition(":")
        await self._open.wait()
        there, back = await asyncio.open_connection(addr, int(port))
        await asyncio.gather(self._copy(reader, back), self._copy(there, writer), return_exceptions=True)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


class Load:
    """Sends and reads all the time, and notes what was promised."""

    def __init__(self, topic: str, namesrv: str, brokers: BrokerSet) -> None:
        self.topic = topic
        self._namesrv, self._brokers = namesrv, brokers
        self.acknowledged: dict[Position, bytes] = {}
        self.seen: dict[Position, bytes] = {}
        self.failed = 0
        self.last_at = time.monotonic()
        self.longest_s = 0.0  # between two acknowledgements
        self._is_over = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with Producer(self._namesrv, "P") as producer:
            tasks = [asyncio.create_task(self._send(producer, sender)) for sender in range(SENDERS)]
            tasks.append(asyncio.create_task(self._read()))
            try:
                yield
            finally:
                self._is_over = True
                await asyncio.gather(*tasks)

    async def sent(self, count: int) -> None:
        """Wait for `count` further acknowledgements."""
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(60):
            while len(self.acknowledged) < wanted:
                await asyncio.sleep(0.02)

    async def settled(self, seconds: float) -> None:
        """Wait until nothing was acknowledged or read for some time."""
        async with asyncio.timeout(10 + seconds):
            before = -1, -1
            while before != (before := (len(self.acknowledged), len(self.seen))):
                await asyncio.sleep(seconds)

    async def _send(self, producer: Producer[bytes], sender: int) -> None:
        number = 0
        while not self._is_over:
            number += 1
            body = b"%d-%d" % (sender, number)
            try:
                result = await producer.send(self.topic, body)
            except ArianeError:
                self.failed += 1
                await asyncio.sleep(0.05)
                continue
            if result.status is not SendStatus.SEND_OK:
                self.failed += 1
                continue
            now = time.monotonic()
            self.longest_s, self.last_at = max(self.longest_s, now - self.last_at), now
            position = result.queue.queue_id, result.queue_offset
            assert self.acknowledged.setdefault(position, body) == body, f"two messages at {position}"
            await asyncio.sleep(0.005)

    async def _read(self) -> None:
        offsets = dict.fromkeys(range(QUEUES), 0)
        async with ConnectionPool() as peers:
            while not self._is_over:
                for member in self._brokers.members.values():
                    for queue in range(QUEUES):
                        with contextlib.suppress(ArianeError):
                            messages = await self.pull(peers, member.addr, queue, offsets[queue], timeout_ms=300)
                            for position, body in messages.items():
                                assert self.seen.setdefault(position, body) == body, f"two messages read at {position}"
                            offsets[queue] += len(messages)
                await asyncio.sleep(0.05)

    async def pull(
        self, peers: ConnectionPool, addr: str, queue: int, offset: int, *, timeout_ms: float = 3000
    ) -> dict[Position, bytes]:
        """Return messages of a queue from `offset` on; none at its end, or if the broker does not serve reads."""
        header = PullMessage("G", self.topic, queue, offset, 32, SUBSCRIPTION, 0, 0, "*", 0, None)
        answer = await peers.request(addr, RequestCode.PULL_MESSAGE, header, timeout_ms=timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            return {}
        return {(item.queue_id, item.queue_offset): item.body for item in record.decode_all(answer.body)}

    async def contents(self, addr: str) -> dict[Position, bytes]:
        """Return all messages of a broker."""
        messages: dict[Position, bytes] = {}
        for queue in range(QUEUES):
            offset = 0
            while batch := await self.pull(self._brokers.peers, addr, queue, offset):
                messages |= batch
                offset += len(batch)
        return messages

    async def check(self) -> dict[Position, bytes]:
        """Everything acknowledged or read is in the log of the master, and later in those of the others."""
        brokers = self._brokers
        master = await brokers.complete(len(brokers.members))
        messages = await self.contents(brokers.members[master].addr)
        lost = {position for position, body in self.acknowledged.items() if messages.get(position) != body}
        assert not lost, f"{len(lost)} of {len(self.acknowledged)} acknowledged messages are lost: {sorted(lost)[:5]}"
        assert self.seen.items() <= messages.items(), "consumers have read messages that are not in the log"
        for member in brokers.members.values():
            async with asyncio.timeout(20):
                while await self.contents(member.addr) != messages:
                    await asyncio.sleep(0.2)
        return messages


async def new_load(brokers: BrokerSet, namesrv: str) -> Load:
    topic, master = next(_topics), await brokers.complete(3)
    header = CreateTopic(topic, "TBW102", QUEUES, QUEUES, 6, "SINGLE_TAG", 0, order=False)
    await brokers.peers.request_ok(brokers.members[master].addr, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    return Load(topic, namesrv, brokers)


Record = Callable[[str, object], None]


def report(record_property: Record, load: Load, name: str) -> None:
    figures = {
        "acknowledged": len(load.acknowledged),
        "failed": load.failed,
        "seconds without": round(load.longest_s, 1),
    }
    print(name, figures)
    record_property(name, figures)


async def locked(brokers: BrokerSet, member: str, client_id: str, *queue_ids: int) -> set[int]:
    """Lock queues of a group, again while a busy machine does not confirm it, and return those that the client owns."""
    queues = tuple(WireQueue("set", queue_id, "Locked") for queue_id in queue_ids)
    body, addr = fastjson.write(LockBatch(client_id, "Ordered", queues)), brokers.members[member].addr
    while True:
        answer = await brokers.peers.request(addr, RequestCode.LOCK_BATCH_MQ, None, body)
        if answer.code == ResponseCode.SUCCESS:
            return {queue.queue_id for queue in fastjson.decode(answer.body, LockBatchResponse).locked}
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, answer.remark


def test_a_killed_master_is_replaced_and_returns_without_its_last_records(
    running: RunningSet, record_property: Record
) -> None:
    brokers = running.brokers

    async def work() -> None:
        load, former = await running.load(), await brokers.master()
        async with load.running():
            await load.sent(200)
            assert await locked(brokers, former, "c1", 0, 1) == {0, 1}
            await brokers.peers.request_ok(
                brokers.members[former].addr,
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                CreateTopic("Last", "TBW102", 1, 1, 6),
            )
            brokers.members[former].kill()
            successor = await brokers.master(other_than=former)
            # helm#33: what was answered by the former master is there. Its locks are held, too.
            topic = TopicRef("Last")
            await brokers.peers.request_ok(brokers.members[successor].addr, RequestCode.GET_TOPIC_CONFIG, topic)
            assert await locked(brokers, successor, "c2", 0, 1, 2) == {2}
            assert await locked(brokers, successor, "c1", 0, 1) == {0, 1}
            await load.sent(100)
            brokers.members[former].start()
            await brokers.complete(3)
            await load.sent(20)
        await load.check()
        report(record_property, load, "kill -9")

    running.run(work)


@pytest.mark.long(
    "tests/simulation/test_failover.py::test_every_acknowledged_record_survives",
    "tests/unit/test_failover_decisions.py::test_a_master_stops_at_its_deadline_and_resumes_its_epoch_only_under_its_lease",
)
def test_a_stopped_process_does_not_answer_when_it_continues(running: RunningSet, record_property: Record) -> None:
    brokers = running.brokers

    async def work() -> None:
        load, former = await running.load(), await brokers.master()
        async with load.running():
            await load.sent(100)
            brokers.members[former].signal(signal.SIGSTOP)
            await asyncio.sleep(TTL_S)
            await brokers.master(other_than=former)
            await load.sent(20)
            brokers.members[former].signal(signal.SIGCONT)
            await brokers.complete(3)
            await load.sent(20)
        await load.check()
        report(record_property, load, "SIGSTOP")

    running.run(work)


@pytest.mark.long(
    "tests/integration/test_broker_set_failover.py::test_6662_nothing_is_confirmed_without_a_member_that_the_record_lists"
)
def test_a_master_without_etcd_holds_its_answers_until_it_follows(running: RunningSet, record_property: Record) -> None:
    brokers = running.brokers

    async def work() -> None:
        load, former = await running.load(), await brokers.master()
        async with load.running():
            await load.sent(100)
            running.ways[former].close()
            await brokers.master(other_than=former)
            await load.sent(20)
            running.ways[former].open()
            await brokers.complete(3)
            await load.sent(20)
        await load.check()
        report(record_property, load, "no way to etcd")

    running.run(work)


def test_a_planned_switch_loses_nothing(running: RunningSet, record_property: Record) -> None:
    brokers = running.brokers

    async def work() -> None:
        load, former = await running.load(), await brokers.master()
        successor = next(name for name in brokers.members if name != former)
        async with load.running():
            await load.sent(50)
            async with asyncio.timeout(
                60
            ):  # it reads the record of its admission some time after the master has written it
                while (await brokers.describe(successor)).get("failoverRefusal") != "":
                    await asyncio.sleep(0.1)
            async with Admin(running.namesrv) as admin:
                switch = await admin.switch_master(BROKER_NAME, successor)
            assert switch is not None
            assert (switch.former, switch.master) == (former, successor)
            await load.sent(20)
            assert await asyncio.to_thread(brokers.members[successor].stop) == 0
            third = await brokers.master(other_than=successor)
            assert third != successor
            await load.sent(20)
            brokers.members[successor].start()
        await load.check()
        report(record_property, load, "planned switch, then an orderly stop")

    running.run(work)


def test_7689_a_number_belongs_to_one_message_after_a_restart(running: RunningSet) -> None:
    """apache/rocketmq#7689: records that were not confirmed kept their numbers, and new ones got the same."""
    brokers = running.brokers

    async def work() -> None:
        load, master = await running.load(), await brokers.master()
        others = [member for name, member in brokers.members.items() if name != master]
        async with load.running():
            await load.sent(50)
            for member in others:
                member.signal(signal.SIGSTOP)
            await asyncio.sleep(0.5)  # the senders' last messages are in one log only
            brokers.members[master].kill()
            brokers.members[master].start()
            await brokers.master()
            for member in others:
                member.signal(signal.SIGCONT)
            await load.sent(50)
        await load.check()
        for member in brokers.members.values():
            found = Counter(
                (item.queue_id, item.queue_offset)
                for item in read_log(str(member.store))
                if isinstance(item, StoredRecord) and item.topic == load.topic
            )
            assert set(found.values()) == {1}, member.name

    running.run(work)


def test_6662_nothing_is_confirmed_without_a_member_that_the_record_lists(running: RunningSet) -> None:
    """apache/rocketmq#6662: an isolated master confirmed records without a member, and consumers read what was cut later."""
    brokers = running.brokers

    async def work() -> None:
        load, master = await running.load(), await brokers.master()
        absent = next(name for name in brokers.members if name != master)
        async with load.running():
            await load.sent(50)
            running.ways[master].close()  # it cannot make the set in the record smaller
            brokers.members[absent].signal(signal.SIGSTOP)
            # Longer than a member may be behind: nothing is acknowledged or read without one of the stored set.
            await load.settled(2.5)
            await brokers.master(other_than=master)
            brokers.members[absent].signal(signal.SIGCONT)
            running.ways[master].open()
            await load.sent(20)
        await load.check()

    running.run(work)


@pytest.mark.long("tests/unit/test_failover_decisions.py::test_failsafe_needs_every_member_of_the_set")
def test_in_fail_safe_mode_a_master_serves_on_without_etcd_while_all_agree(running: RunningSet, tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            asyncio.timeout(100),
            Proxies(running.etcd.urls) as way,
            broker_set(tmp_path / "set", dict.fromkeys("abc", way.urls), failoverFailsafe="true") as (brokers, namesrv),
        ):
            load, master = await new_load(brokers, namesrv), await brokers.master()
            async with load.running():
                await load.sent(20)
                way.close()
                await asyncio.sleep(1.5 * TTL_S)
                await load.sent(20)
                assert (await brokers.describe(master))["failoverRole"] == "MASTER"
                other = next(member for name, member in brokers.members.items() if name != master)
                other.kill()
                await asyncio.sleep(1.2 * TTL_S)
                before = len(load.acknowledged)
                await asyncio.sleep(1)
                assert len(load.acknowledged) == before, "a member of the set did not agree"
                way.open()
                other.start()
                await load.sent(20)
            await load.check()

    running.runner.run(work())
