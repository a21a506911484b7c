"""Selection of the replication connection to close above the limits."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.replication import replication
from ariane.broker.replication.replication import ReplicationFeed
from ariane.errors import ConnectionLost
from ariane.net.limits.connection_limits import select_displaced
from ariane.net.streams import CLOSE_S, LIMITS, Stream
from ariane.store.message_store import MessageStore
from ariane.testing.virtual.virtual_time import VirtualLoop


class Connected:
    """What `displaced_by` looks at."""

    def __init__(self, ip: str, *, is_slave: bool = False) -> None:
        self.ip = ip
        self.is_identified = is_slave


def test_a_slave_can_connect_despite_many_other_connections() -> None:
    """64 connections that send no reports, or come from a few addresses, do not exclude a slave."""
    for is_slave in (False, True):
        attackers = [Connected(f"10.0.0.{number % 4}", is_slave=is_slave) for number in range(LIMITS.total)]
        slave = Connected("10.0.1.1")
        displaced = select_displaced(slave, [*attackers, slave], LIMITS)
        assert displaced in attackers


def test_a_host_with_many_ipv6_addresses_does_not_exclude_a_slave() -> None:
    """A slave of 4.9.4 sends nothing for 5 s: it must not be displaced as the oldest connection meanwhile."""
    slave = Connected("2001:db8:0:1::5")
    streams = [slave]
    for number in range(1000):
        newest = Connected(f"2001:db8:0:2:{number:x}::1")
        streams.append(newest)
        displaced = select_displaced(newest, streams, LIMITS)
        if displaced is not None:
            streams.remove(displaced)
    assert slave in streams
    assert len(streams) == LIMITS.per_address + 1


@pytest.mark.parametrize("ip", ["::ffff:10.0.{}.1", "10.0.{}.1"])
def test_ipv4_addresses_count_individually(ip: str) -> None:
    streams = [Connected(ip.format(number)) for number in range(LIMITS.total)]
    assert select_displaced(streams[-1], streams, LIMITS) is None


def test_slaves_remain_connected_while_idle_connections_come_and_go() -> None:
    slave = Connected("10.0.1.1", is_slave=True)
    streams = [slave]
    for number in range(1000):
        newest = Connected(f"10.0.{number // 250}.{number % 250}")
        streams.append(newest)
        displaced = select_displaced(newest, streams, LIMITS)
        if displaced is not None:
            streams.remove(displaced)
    assert slave in streams
    assert len(streams) == LIMITS.total


def test_connections_per_address_are_bounded() -> None:
    slave = Connected("10.0.0.1", is_slave=True)
    streams = [slave, *(Connected("10.0.0.1") for _ in range(LIMITS.per_address))]
    assert select_displaced(streams[-1], streams, LIMITS) is streams[1]
    full = [Connected("10.0.0.1", is_slave=True) for _ in range(LIMITS.per_address + 1)]
    assert select_displaced(full[-1], full, LIMITS) is full[-1]
    assert select_displaced(full[0], full[:3], LIMITS) is None


class Silent:
    """A connection that never sends anything, or only part of a report again and again."""

    addr = "10.0.0.1:1"
    ip = "10.0.0.1"

    def __init__(self, piece: bytes) -> None:
        self._piece = piece
        self._sent = 0

    async def read(self, silence_s: float) -> bytes:
        if self._sent < len(self._piece):
            await asyncio.sleep(1)
            self._sent += 1
            return self._piece[self._sent - 1 : self._sent]
        await asyncio.sleep(silence_s)
        raise ConnectionLost(self.addr, f"was silent for {silence_s:g} s")

    async def read_exactly(self, size: int, silence_s: float) -> bytes:
        await asyncio.sleep(silence_s)  # whatever arrives meanwhile
        raise ConnectionLost(self.addr, f"sent no {size} bytes within {silence_s:g} s")


@pytest.mark.parametrize("piece", [b"", b"\0" * 7])
def test_a_connection_without_reports_is_closed_within_seconds(piece: bytes) -> None:
    async def run() -> float:
        feed = ReplicationFeed(BrokerConfig(), cast(MessageStore, None))
        began = asyncio.get_running_loop().time()
        with pytest.raises(ConnectionLost):
            await feed.serve(cast(Stream, Silent(piece)))
        return asyncio.get_running_loop().time() - began

    loop = VirtualLoop()
    took_s = loop.run_until_complete(run())
    loop.close()
    assert took_s <= replication.FIRST_REPORT_S + 0.01


def test_a_peer_that_reads_nothing_cannot_keep_a_connection_open() -> None:
    """Pending bytes are written for CLOSE_S; then the connection is aborted, whatever the peer does."""

    class Unread:
        is_aborted = False

        @property
        def transport(self) -> Unread:
            return self

        def get_extra_info(self, name: str) -> tuple[str, int]:
            return ("10.0.0.1", 1)

        def close(self) -> None:
            pass

        async def wait_closed(self) -> None:
            await asyncio.Event().wait()

        def abort(self) -> None:
            self.is_aborted = True

    async def run() -> float:
        writer = Unread()
        began = asyncio.get_running_loop().time()
        await Stream(cast(asyncio.StreamReader, None), cast(asyncio.StreamWriter, writer)).close()
        assert writer.is_aborted
        return asyncio.get_running_loop().time() - began

    loop = VirtualLoop()
    took_s = loop.run_until_complete(asyncio.wait_for(run(), 3600))
    loop.close()
    assert took_s <= CLOSE_S + 0.01
