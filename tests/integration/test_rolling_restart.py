"""Rolling restarts of real processes by `ariane cluster restart`: no send of a client fails, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from ariane import Admin, ClientSettings, Producer, PullConsumer, SendStatus
from ariane.errors import ArianeError
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from etcd_cluster import PROGRAM, REASON, EtcdCluster
from failover_processes import BrokerProcess, broker_ports, broker_set

TOPIC = "orders"
SENDERS = 4
LIMIT_S = 150
CLIENT = ClientSettings(route_refresh_interval=1)


class Sends:
    """Sends all the time, and records what was acknowledged and what failed."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self.acknowledged: set[bytes] = set()
        self.failed: list[str] = []
        self._is_over = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with Producer(self._namesrv, "shop", client=CLIENT) as producer:
            tasks = [asyncio.create_task(self._send(producer, sender)) for sender in range(SENDERS)]
            try:
                await self.more()
                yield
                await self.more()
            finally:
                self._is_over = True
                await asyncio.gather(*tasks)

    async def more(self) -> None:
        """Wait for ten acknowledgements of sends."""
        wanted = len(self.acknowledged) + 10
        while len(self.acknowledged) < wanted:
            await asyncio.sleep(0.02)

    async def _send(self, producer: Producer[bytes], sender: int) -> None:
        number = 0
        while not self._is_over:
            number += 1
            body = b"%d-%d" % (sender, number)
            try:
                result = await producer.send(TOPIC, body)
            except ArianeError as error:
                self.failed.append(str(error))
            else:
                if result.status is SendStatus.SEND_OK:
                    self.acknowledged.add(body)
                else:
                    self.failed.append(result.status.name)
            await asyncio.sleep(0.005)

    async def check(self) -> None:
        assert self.failed == []
        assert self.acknowledged <= await self._stored()

    async def _stored(self) -> set[bytes]:
        bodies: set[bytes] = set()
        async with PullConsumer(self._namesrv) as consumer:
            for queue in await consumer.queues_of(TOPIC):
                offset, end = await consumer.bounds(queue)
                while offset < end:
                    result = await consumer.pull(queue, offset)
                    bodies |= {message.body for message in result.messages}
                    offset = result.next_offset
        return bodies


@contextlib.asynccontextmanager
async def supervised(home: Path, members: Iterable[BrokerProcess]) -> AsyncIterator[str]:
    """Start processes again when they end, and yield the command that ends one: `{port}` is that of the broker."""

    def write_pid(member: BrokerProcess) -> None:
        assert member.process is not None
        (home / f"{member.addr.rpartition(':')[2]}.pid").write_text(str(member.process.pid))

    async def supervise(member: BrokerProcess) -> None:
        while True:
            while member.process is None or member.process.poll() is None:
                await asyncio.sleep(0.05)
            member.start()
            write_pid(member)

    for member in members:
        write_pid(member)
    tasks = [asyncio.create_task(supervise(member)) for member in members]
    try:
        yield f"sh -c 'kill $(cat {home}/{{port}}.pid)'"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def restart(namesrv: str, command: str, *options: str) -> list[str]:
    """Run `ariane cluster restart`, and return its steps."""
    arguments = ["cluster", "restart", "-n", namesrv, "--command", command, *options]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ariane.cli", *arguments, stderr=asyncio.subprocess.PIPE
    )
    try:
        _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, errors.decode()
    return [line.partition(" ")[2] for line in errors.decode().splitlines()]


@pytest.mark.long(
    "tests/integration/test_cluster_maintenance.py::test_a_rolling_restart_fails_no_send",
    "tests/unit/test_broker_sets.py::test_the_master_of_a_set_is_restarted_last_after_a_switch",
)
@pytest.mark.skipif(PROGRAM is None, reason=REASON)
def test_a_set_with_failover_is_restarted_without_a_failed_send(tmp_path: Path) -> None:
    etcd = EtcdCluster(tmp_path)

    async def work() -> None:
        async with (
            asyncio.timeout(LIMIT_S),
            broker_set(tmp_path / "set", etcd.urls, minInSyncReplicas=2) as (brokers, namesrv),
            Admin(namesrv) as admin,
        ):
            former = await brokers.master()
            await admin.create_topic(TOPIC, queues=4)
            sends = Sends(namesrv)
            async with supervised(tmp_path, brokers.members.values()) as command:
                async with sends.running():
                    steps = await restart(namesrv, command)
                await sends.check()
                assert await brokers.complete(3) != former
        restarted = [step.partition("(")[2].partition(")")[0] for step in steps if step.startswith("restart ")]
        assert sorted(restarted[:2]) == sorted(set("abc") - {former})
        assert restarted[2] == former

    try:
        etcd.start()
        asyncio.run(work())
    finally:
        etcd.stop()


@pytest.mark.long(
    "tests/integration/test_cluster_maintenance.py::test_a_rolling_restart_fails_no_send",
)
@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_masters_with_slaves_are_restarted_without_a_failed_send(tmp_path: Path, role: str) -> None:
    async def work() -> None:
        names = NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv.json"))
        async with asyncio.timeout(LIMIT_S), NameServer(names) as name_server:
            namesrv = f"127.0.0.1:{name_server.addr.rpartition(':')[2]}"
            members = _masters_and_slaves(tmp_path, namesrv, role)
            try:
                for member in members:
                    member.start()
                await _restart_masters(tmp_path, namesrv, members)
            finally:
                for member in members:
                    member.kill()

    asyncio.run(work())


async def _restart_masters(home: Path, namesrv: str, members: list[BrokerProcess]) -> None:
    async with Admin(namesrv) as admin:
        while await _registered(admin) < len(members):
            await asyncio.sleep(0.1)
        await admin.create_topic(TOPIC, queues=4)
        await _slaves_follow(namesrv)
        sends = Sends(namesrv)
        async with supervised(home, members) as command:
            async with sends.running():
                steps = await restart(namesrv, command, "--route-refresh", "1")
            await sends.check()
    assert [step for step in steps if step.startswith("restart ")] == [
        f"restart broker-{name} ({role}) at {member.addr}"
        for name, (master, slave) in zip("ab", (members[:2], members[2:]), strict=True)
        for role, member in (("slave 1", slave), ("master", master))
    ]


async def _slaves_follow(namesrv: str) -> None:
    """Wait until a send to each queue is acknowledged: a slave that was started before its master tries again after 5 s."""
    async with Producer(namesrv, "first", client=CLIENT) as producer, PullConsumer(namesrv) as consumer:
        for queue in await consumer.queues_of(TOPIC):
            while (await producer.send(TOPIC, b"first", queue=queue)).status is not SendStatus.SEND_OK:
                await asyncio.sleep(0.1)


async def _registered(admin: Admin) -> int:
    try:
        return len(await admin.select_brokers(with_slaves=True))
    except ArianeError:
        return 0


def _masters_and_slaves(home: Path, namesrv: str, role: str) -> list[BrokerProcess]:
    members = []
    for name, port in zip(("a-0", "a-1", "b-0", "b-1"), broker_ports(4), strict=True):
        settings: dict[str, object] = {
            "brokerName": f"broker-{name[0]}",
            "brokerId": name[2],
            "brokerRole": role if name[2] == "0" else "SLAVE",
            "bindAddress": "127.0.0.1",
            "listenPort": port,
            "namesrvAddr": namesrv,
            "storePathRootDir": home / name,
            "mappedFileSizeCommitLog": 1 << 20,
            "haSendHeartbeatInterval": 200,
        }
        members.append(BrokerProcess(home, name, port, settings))
    return members
