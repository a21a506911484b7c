"""All members of a set lose power at once: with SYNC_FLUSH the set goes on, with ASYNC_FLUSH the operator decides."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.failover import supervisor
from ariane.broker.failover.supervisor import FailoverBroker
from ariane.cli import main
from ariane.failover.member_state import MemberRole
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.failover import MemberAnswer, MemberRequest
from ariane.testing.disk import FakeDisk, SurvivingData
from etcd_cluster import PROGRAM, REASON, EtcdCluster
from failover_members import MemoryCoordination, configs_of, has_all, leads, members, put, until
from failover_processes import BROKER_NAME, broker_set

NEVER_MS = 600_000


def log_end(broker: FailoverBroker) -> int:
    return broker.broker.services.store.commit_log_max


async def send(leader: FailoverBroker) -> int:
    """Store a record; return the end of the log once it is acknowledged."""
    end = put(leader)
    leader.broker.services.dispatcher.on_stored()
    await until(lambda: leader.broker.services.feed.acknowledged_offset >= end)
    return end


async def run_and_lose_power(
    configs: dict[str, BrokerConfig], service: MemoryCoordination, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, FakeDisk], int]:
    """Return the disks after a loss of power, which only that of a survives with everything, and the acknowledged end."""
    disks = {name: FakeDisk() for name in configs}
    async with members(configs, disks, service, creates_set=True) as brokers:
        await leads(brokers["a"])
        await until(lambda: has_all(service, len(configs)))
        await send(brokers["a"])
        for broker in brokers.values():
            broker.broker.services.store.flush()
        end = await send(brokers["a"])
        lost = {
            name: disk.after_power_loss(SurvivingData.ALL if name == "a" else SurvivingData.NONE, random.Random(1))
            for name, disk in disks.items()
        }
    service.end_lease()
    monkeypatch.setattr(supervisor, "read_boot_id", lambda: "another boot")
    return lost, end


async def ask(broker: FailoverBroker, request: MemberRequest) -> MemberAnswer:
    async with ConnectionPool() as peers:
        response = await peers.request_ok(broker.addr, RequestCode.MEMBER_REQUEST, request)
    return msgspec.json.decode(response.body, type=MemberAnswer)


def test_a_set_that_flushes_before_it_acknowledges_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        configs, service = configs_of("ab", flush_disk_type="SYNC_FLUSH"), MemoryCoordination()
        disks, end = await run_and_lose_power(configs, service, monkeypatch)
        async with members(configs, disks, service) as brokers:
            await until(lambda: any(broker.is_leader for broker in brokers.values()))
            leader = next(broker for broker in brokers.values() if broker.is_leader)
            assert log_end(leader) >= end
            await until(lambda: has_all(service, 2))

    asyncio.run(work())


@pytest.mark.long(
    "tests/unit/test_failover_decisions.py::test_with_an_accepted_loss_a_member_leads_alone_that_the_set_does_not_list",
    "tests/integration/test_lost_power.py::test_the_command_promotes_a_member_of_a_set_without_one",
)
def test_without_flushes_no_member_leads_until_the_operator_accepts_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        configs, service = configs_of("ab", flush_interval_commit_log=NEVER_MS), MemoryCoordination()
        disks, end = await run_and_lose_power(configs, service, monkeypatch)
        async with members(configs, disks, service) as brokers:
            former, chosen = brokers["a"], brokers["b"]
            await until(lambda: chosen.agent.state.role is MemberRole.FOLLOWER)
            before = service.record
            assert before is not None
            assert not any(before.admits(broker.agent.state.me) for broker in brokers.values())
            assert log_end(chosen) < log_end(former) == end
            refusals = {("b", before.epoch - 1): "look again", ("a", before.epoch): "it is b, and not a"}
            for (name, epoch), reason in refusals.items():
                answer = await ask(chosen, MemberRequest("acceptloss", name, epoch))
                assert (answer.agrees, reason in answer.refusal) == (False, True)
            answer = await ask(chosen, MemberRequest("acceptloss", "b", before.epoch))
            assert answer.agrees, answer.refusal
            await leads(chosen)
            assert service.record is not None
            assert service.record.epoch == before.epoch + 1
            await until(lambda: has_all(service, 2))
            await send(chosen)
            assert log_end(former) == log_end(chosen)
            assert [path for path in disks["a"].paths() if "/cut/" in path], "what only a had is kept aside"

    asyncio.run(work())


@pytest.mark.skipif(PROGRAM is None, reason=REASON)
def test_the_command_promotes_a_member_of_a_set_without_one(tmp_path: Path) -> None:
    """Three processes are killed, and start as after another start of their machines."""
    etcd = EtcdCluster(tmp_path, 1)

    async def work() -> None:
        async with asyncio.timeout(120), broker_set(tmp_path / "set", etcd.urls) as (brokers, namesrv):
            for process in brokers.members.values():
                process.kill()
            for process in brokers.members.values():
                identity = process.store / "ariane" / "member"
                identity.write_text(json.dumps(json.loads(identity.read_text()) | {"boot_id": "former"}))
                process.start()
            while {(await brokers.describe(name)).get("failoverRole") for name in "abc"} != {"FOLLOWER"}:
                await asyncio.sleep(0.1)

            async def promote(*options: str) -> str:
                command = ["broker", "promote", BROKER_NAME, "--member", "b", "-n", namesrv, *options]
                result = await asyncio.to_thread(CliRunner().invoke, main.app, command)
                return f"{result.output}{result.exception or ''}"

            assert "ariane broker promote --accept-loss" in await promote()
            planned = await promote("--accept-loss", "--dry-run")
            assert "bytes that may be lost" in planned
            assert "would let b lead broker-a with its log up to" in planned
            assert not [name for name in "abc" if (await brokers.describe(name)).get("failoverRole") == "MASTER"]
            assert "b is the master of broker-a, after" in await promote("--accept-loss")
            assert await brokers.complete(3) == "b"
            assert "b is the master of broker-a: promote without this option" in await promote("--accept-loss")

    etcd.start()
    try:
        asyncio.run(work())
    finally:
        etcd.stop()
