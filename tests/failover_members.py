"""Members of a set with failover in this process: real brokers on disks in memory, and a coordination service in memory.

async with member(config_of(), FakeDisk(), MemoryCoordination(), creates_set=True) as broker:
    await leads(broker)
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.failover.supervisor import FailoverBroker
from ariane.failover.coordination import RecordSnapshot, WriteOutcome, WriteResult
from ariane.failover.leader_record import LeaderRecord
from ariane.failover.member_state import MemberRole
from ariane.model import host
from ariane.store.message_store import RecordDraft
from ariane.testing.disk import FakeDisk
from failover_processes import broker_ports

TTL_S = 3
FILE_BYTES = 1 << 20
HOST = host.pack("127.0.0.1", 10911)


class MemoryCoordination:
    """A coordination service in this process, whose record a test may read."""

    def __init__(self) -> None:
        self.record: LeaderRecord | None = None
        self._version = self._leases = 0
        self._lease_end = 0.0

    @property
    def has_lease(self) -> bool:
        return time.monotonic() < self._lease_end

    def end_lease(self) -> None:
        self._lease_end = 0.0

    async def read(self) -> RecordSnapshot:
        lease = str(self._leases) if self.has_lease else ""
        return RecordSnapshot(self.record, str(self._version), lease)

    def _store(self, record: LeaderRecord) -> None:
        self.record, self._version = record, self._version + 1

    def _grant(self) -> None:
        self._leases, self._lease_end = self._leases + 1, time.monotonic() + TTL_S

    async def _apply(self, *, applies: bool, record: LeaderRecord | None, lease: bool | None) -> WriteResult:
        if applies:
            if record is not None:
                self._store(record)
            if lease is not None:
                self._grant() if lease else setattr(self, "_lease_end", 0.0)
        return WriteResult(WriteOutcome.DONE if applies else WriteOutcome.REFUSED, await self.read())

    async def create(self, record: LeaderRecord) -> WriteResult:
        return await self._apply(applies=self.record is None, record=record, lease=None)

    async def acquire(self, expected: RecordSnapshot, record: LeaderRecord) -> WriteResult:
        return await self._apply(
            applies=not expected.lease and await self.read() == expected, record=record, lease=True
        )

    async def renew(self, expected: RecordSnapshot) -> WriteResult:
        is_held = bool(expected.lease) and (await self.read()).lease == expected.lease
        return await self._apply(applies=is_held, record=None, lease=True)

    async def swap(self, expected: RecordSnapshot, record: LeaderRecord) -> WriteResult:
        return await self._apply(applies=(await self.read()).version == expected.version, record=record, lease=None)

    async def release(self, expected: RecordSnapshot, record: LeaderRecord) -> WriteResult:
        return await self._apply(applies=(await self.read()).version == expected.version, record=record, lease=False)

    async def close(self) -> None:
        """Do nothing: it has no connection."""


def config_of(**settings: Any) -> BrokerConfig:
    """Return the settings of member a, whose other member b is never reachable."""
    return next(iter(configs_of("ab", **settings).values()))


def configs_of(names: str, **settings: Any) -> dict[str, BrokerConfig]:
    """Return the settings of members with names of one letter."""
    ports = dict(zip(names, broker_ports(len(names)), strict=True))
    members = ";".join(f"{name}=127.0.0.1:{port}" for name, port in ports.items())
    return {
        name: BrokerConfig(
            store_path_root_dir="/store", bind_address="127.0.0.1", listen_port=port, broker_ip1="127.0.0.1",
            broker_role="SYNC_MASTER", broker_id=number, member_name=name, failover_ttl=TTL_S,
            failover_members=members, failover_endpoints="http://127.0.0.1:1",
            mapped_file_size_commit_log=FILE_BYTES, max_hash_slot_num=1000, max_index_num=4000, **settings,
        )
        for number, (name, port) in enumerate(ports.items(), 1)
    }  # fmt: skip


@contextlib.asynccontextmanager
async def member(
    config: BrokerConfig, disk: FakeDisk, service: MemoryCoordination, **options: Any
) -> AsyncIterator[FailoverBroker]:
    async with asyncio.timeout(60):
        async with FailoverBroker(config, disk=disk, coordination=service, **options) as broker:
            yield broker


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


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.02)


async def leads(broker: FailoverBroker) -> None:
    await until(lambda: broker.is_leader and broker.agent.state.role is MemberRole.MASTER)


def put(broker: FailoverBroker) -> int:
    store = broker.broker.services.store
    store.put(RecordDraft(topic="T", queue_id=0, body=b"x", born_ms=1, born_host=HOST))
    return store.commit_log_max
