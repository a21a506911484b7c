"""All members of a set lose power at once: with SYNC_FLUSH the set goes on, with ASYNC_FLUSH the operator decides."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.failover import supervisor
from ariane.broker.failover.supervisor import FailoverBroker
from ariane.testing.disk import FakeDisk, SurvivingData
from failover_members import MemoryCoordination, configs_of, leads, member, put, until


@contextlib.asynccontextmanager
async def members(
    configs: dict[str, BrokerConfig], disks: dict[str, FakeDisk], service: MemoryCoordination, **options: Any
) -> AsyncIterator[dict[str, FailoverBroker]]:
    async with contextlib.AsyncExitStack() as stack:
        brokers = {}
        for name, config in configs.items():
            brokers[name] = await stack.enter_async_context(member(config, disks[name], service, **options))
            options = {}
        yield brokers


def has_all(service: MemoryCoordination, count: int) -> bool:
    return service.record is not None and len(service.record.in_sync) == count


async def confirmed(brokers: dict[str, FailoverBroker], end: int) -> None:
    await until(lambda: brokers["a"].broker.services.feed.acknowledged_offset >= end)


async def run_and_lose_power(
    configs: dict[str, BrokerConfig], service: MemoryCoordination, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, FakeDisk], int]:
    """Return the disks after a loss of power, and the end of the log that was acknowledged."""
    disks = {name: FakeDisk() for name in configs}
    async with members(configs, disks, service, creates_set=True) as brokers:
        await leads(brokers["a"])
        await until(lambda: has_all(service, len(configs)))
        end = put(brokers["a"])
        brokers["a"].broker.services.dispatcher.on_stored()
        await confirmed(brokers, end)
        lost = {name: disk.after_power_loss(SurvivingData.NONE, random.Random(1)) for name, disk in disks.items()}
    service.end_lease()
    monkeypatch.setattr(supervisor, "read_boot_id", lambda: "another boot")
    return lost, end


def test_a_set_that_flushes_before_it_acknowledges_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        configs, service = configs_of("ab", flush_disk_type="SYNC_FLUSH"), MemoryCoordination()
        disks, end = await run_and_lose_power(configs, service, monkeypatch)
        async with members(configs, disks, service) as brokers:
            await until(lambda: any(broker.is_leader for broker in brokers.values()))
            leader = next(broker for broker in brokers.values() if broker.is_leader)
            assert leader.broker.services.store.commit_log_max >= end
            await until(lambda: has_all(service, 2))

    asyncio.run(work())
