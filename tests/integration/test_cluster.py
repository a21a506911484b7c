"""The public test cluster: an application's test sends and receives through it, with or without its own event loop."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from ariane.client.producer import Producer
from ariane.client.push_consumer import PushConsumer
from ariane.errors import ConfigError
from ariane.model.message import Message, ReceivedMessage
from ariane.testing.cluster import cluster, cluster_in_thread
from ariane.testing.plugin import ariane_cluster

__all__ = ["ariane_cluster"]  # the fixture, whether or not the package is installed with its entry points


async def there_and_back(namesrv: str, bodies: list[bytes]) -> list[bytes]:
    received: list[bytes] = []
    everything = asyncio.Event()

    async def listener(messages: Sequence[ReceivedMessage]) -> None:
        received.extend(message.body for message in messages)
        if len(received) >= len(bodies):
            everything.set()

    async with Producer(namesrv, "p") as producer:
        for body in bodies:
            await producer.send(Message(topic="t", body=body), order_key="one queue")
        async with PushConsumer(namesrv, "g", {"t": "*"}, listener, start="first", orderly=True), asyncio.timeout(30):
            await everything.wait()
    return received


def test_a_cluster_runs_in_the_current_event_loop(tmp_path: Path):
    async def main() -> list[bytes]:
        async with cluster(tmp_path) as servers:
            return await there_and_back(servers.namesrv, [b"1", b"2", b"3"])

    assert asyncio.run(main()) == [b"1", b"2", b"3"]


def test_the_fixture_provides_a_cluster_in_a_thread(ariane_cluster, tmp_path: Path):
    assert asyncio.run(there_and_back(ariane_cluster.namesrv, [b"1", b"2"])) == [b"1", b"2"]
    assert list((tmp_path / "store" / "commitlog").iterdir())


def test_the_thread_and_the_ports_are_released_at_exit(tmp_path: Path):
    with cluster_in_thread(tmp_path) as servers:
        host, _, port = servers.broker.rpartition(":")
    assert not [thread for thread in threading.enumerate() if thread.name == "ariane-cluster"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=5)


def test_invalid_settings_raise_on_entering_the_context(tmp_path: Path):
    with pytest.raises(ConfigError, match="flushDiskType"), cluster_in_thread(tmp_path, flush_disk_type="SOMETIMES"):
        pass
