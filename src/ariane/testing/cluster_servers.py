"""The servers of a local cluster: starts them, and carries out in their event loop what tests request from other threads.

name server ◄── broker-a, broker-b, … (masters) ◄── slaves of each
             one clock for all; a disk each: in memory, or below the directory of the cluster
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ariane.broker.config.broker_config import BrokerConfig
from ariane.client.instance import validation
from ariane.client.instance.send_types import SendResult
from ariane.client.instance.settings import ClientSettings
from ariane.client.producer import Producer
from ariane.errors import ConfigError
from ariane.model.message import Message, ReceivedMessage
from ariane.model.topic import TopicConfig, topic_name_fault
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.server import NameServer
from ariane.net.listening.fixed_ports import choose_free_port
from ariane.settings.limits import TrafficLimits
from ariane.settings.tls import ServerTlsSettings
from ariane.testing.fillable_disks import FillableDisk, MemoryDisk
from ariane.testing.hosted_broker import HostedBroker, broker_names
from ariane.testing.movable_clock import MovableClock

LOOPBACK = "127.0.0.1"
PRODUCER_GROUP = "ariane-testing"
POLL_S = 0.02
BROKERS_MAX = 100
MEMORY_ROOT = "/store"  # of each disk in memory
# Files of a store in a directory; those of a usual broker take a gigabyte each.
SMALL_FILES = {"mapped_file_size_commit_log": 16 * 1024 * 1024, "mapped_file_size_consume_queue": 60_000}
# An index file in memory is as large as the position of its last entry.
SMALL_INDEX = {"max_hash_slot_num": 10_000, "max_index_num": 40_000}
# Settings that differ between the brokers of a cluster.
INDIVIDUAL = frozenset({"broker_name", "broker_id", "listen_port", "store_path_root_dir", "stats_log_dir"})
# The name server has these of the brokers, too.
TLS_SETTINGS = frozenset(ServerTlsSettings.__struct_fields__) - frozenset(TrafficLimits.__struct_fields__)


class ClusterServers:
    """Name server and brokers. All methods but the constructor run in the event loop of the servers."""

    def __init__(self, directory: Path | None, brokers: int, slaves: int, settings: Mapping[str, Any]) -> None:
        validation.whole("brokers", brokers, 1, BROKERS_MAX)
        validation.whole("slaves", slaves, 0, BROKERS_MAX)
        fields = BrokerConfig.__struct_fields__
        if unknown := sorted(settings.keys() - set(fields)):
            similar = difflib.get_close_matches(unknown[0], ["directory", "brokers", "slaves", *fields], 1)
            hint = f"did you mean {similar[0]}?" if similar else "expected a field of BrokerConfig"
            raise ConfigError(unknown[0], settings[unknown[0]], f"no setting of a broker; {hint}")
        if (brokers > 1 or slaves) and (individual := sorted(settings.keys() & INDIVIDUAL)):
            name = individual[0]
            raise ConfigError(name, settings[name], "a cluster of several brokers chooses it for each; leave it out")
        self.clock = MovableClock()  # of all brokers
        self.namesrv = ""  # host:port, set by `start`
        self.masters: list[HostedBroker] = []  # by name, also stopped ones
        self.slaves: list[HostedBroker] = []  # of all masters, in their order
        self._directory = directory  # of the stores; None: in memory
        self._home = Path()  # real directory, for the files that are not on a `Disk`
        self._broker_count = brokers  # masters
        self._slave_count = slaves  # of each master
        self._settings = settings  # fields of BrokerConfig
        self._name_server: NameServer | None = None  # None while it is stopped
        self._open = contextlib.AsyncExitStack()  # what `close` closes, in reverse order of the start
        self._producer: Producer | None = None  # opened by the first `send`
        self._opening_producer = asyncio.Lock()  # two sends must not open two

    # --- start and stop ---

    async def start(self) -> None:
        """Start all servers. When this returns, the brokers are registered."""
        try:
            self._home = self._directory or Path(
                self._open.enter_context(tempfile.TemporaryDirectory(prefix="ariane-cluster-"))
            )
            self._open.push_async_callback(self.stop_name_server)
            await self.start_name_server()
            for name in broker_names(self._broker_count):
                self.masters.append(await self._start_broker(name, 0))
                for number in range(1, self._slave_count + 1):
                    self.slaves.append(await self._start_broker(name, number))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop all servers that are running."""
        for hosted in (*self.masters, *self.slaves):
            hosted.disk.is_full = False  # a fault that the test did not end must not fail the stop
        await self._open.aclose()

    async def start_name_server(self) -> None:
        """Start the name server unless it is running, at the port of its first start, and register the running brokers."""
        if self._name_server is not None:
            return
        port = int(self.namesrv.rpartition(":")[2] or choose_free_port())
        path = str(self._home / "kvConfig.json")
        tls = {name: value for name, value in self._settings.items() if name in TLS_SETTINGS}
        config = NameServerConfig(bind_address=LOOPBACK, listen_port=port, kv_config_path=path, **tls)
        server = NameServer(config)
        await server.__aenter__()
        self._name_server = server
        self.namesrv = f"{LOOPBACK}:{server.port}"
        for hosted in (*self.masters, *self.slaves):
            if hosted.running is not None:
                await hosted.running.services.registration.register_now()

    async def stop_name_server(self) -> None:
        """Stop the name server unless it is stopped."""
        server, self._name_server = self._name_server, None
        if server is not None:
            await server.__aexit__(None, None, None)

    async def _start_broker(self, name: str, broker_id: int) -> HostedBroker:
        directory = "store" if self._broker_count == 1 else name
        if broker_id:
            directory = f"slave{broker_id}" if self._broker_count == 1 else f"{name}-slave{broker_id}"
        disk: FillableDisk | MemoryDisk
        if self._directory is None:
            disk, store = MemoryDisk(self.clock), MEMORY_ROOT
            values = {
                **SMALL_INDEX,
                "stats_log_dir": str(self._home / "statistics" / directory),
                "audit_log_path": str(self._home / "audit" / directory),
                **self._settings,
            }
        else:
            disk, store = FillableDisk(), str(self._directory / directory)
            values = {**self._settings}
        values.setdefault("broker_name", name)
        if broker_id:
            values |= {"broker_role": "SLAVE", "broker_id": broker_id}
        hosted = HostedBroker(broker_config(store, self.namesrv, **values), disk, self.clock)
        self._open.push_async_callback(hosted.stop)
        await hosted.start()
        return hosted

    # --- time ---

    async def advance_clock(self, milliseconds: int) -> None:
        """Move the clock, and wait until the masters have delivered the messages that are due and done periodic work."""
        for master in self.masters:
            await master.settle()  # a delayed message that was just stored is scheduled
        await self.clock.wait_idle()
        self.clock.shift(milliseconds)
        await asyncio.sleep(POLL_S)  # the tasks whose sleep is over begin their work
        await self.clock.wait_idle()
        for master in self.masters:
            await master.settle()

    # --- messages ---

    async def create_topic(self, topic: str, queues: int) -> None:
        """Create a topic on all running masters, and wait until the name server has it."""
        if fault := topic_name_fault(topic):
            raise ConfigError("topic", topic, fault)
        config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
        for master in self.masters:
            if master.running is not None:
                services = master.running.services
                services.state.topics.put(config)
                await services.registration.wait_registered()

    async def send(self, message: Message, order_key: str | None) -> SendResult:
        """Send a message as any producer does."""
        async with self._opening_producer:
            if self._producer is None:
                is_encrypted = self._settings.get("tls_server_mode") == "enforcing"
                client = ClientSettings(use_tls=True, tls_verify="false") if is_encrypted else None
                producer = Producer(self.namesrv, PRODUCER_GROUP, client=client)
                self._producer = await self._open.enter_async_context(producer)
        return await self._producer.send(message, order_key=order_key)

    async def messages(self, topic: str) -> list[ReceivedMessage]:
        """Return the messages of a topic in the order of their store times."""
        for master in self.masters:
            await master.settle()
        messages = [message for master in self.masters for message in master.messages(topic)]
        return sorted(messages, key=lambda message: message.store_ms)

    async def wait_messages(self, topic: str, count: int, timeout_s: float) -> list[ReceivedMessage]:
        """Wait until a topic has `count` messages, and return all."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while len(messages := await self.messages(topic)) < count:
            if asyncio.get_running_loop().time() >= deadline:
                raise TimeoutError(
                    f"Topic {topic!r} has {len(messages)} messages after {timeout_s:g} s, expected at least {count}"
                )
            await asyncio.sleep(POLL_S)
        return messages

    async def wait_consumed(self, group: str, topic: str, timeout_s: float) -> None:
        """Wait until a group has committed the offsets of all messages that the topic contains now."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        await self.wait_messages(topic, 1, timeout_s)
        ends = [(master, master.ends(topic)) for master in self.masters]
        while behind := [text for master, queues in ends for text in _behind(master, queues, group, topic)]:
            if asyncio.get_running_loop().time() >= deadline:
                raise TimeoutError(
                    f"Group {group!r} has not consumed topic {topic!r} after {timeout_s:g} s: {'; '.join(behind)}. "
                    f"Connected consumers: {self._consumers(group)}"
                )
            await asyncio.sleep(POLL_S)

    def _consumers(self, group: str) -> str:
        clients = {
            client_id
            for master in self.masters
            if master.running is not None
            for client_id in master.running.services.clients.members.client_ids(group)
        }
        return ", ".join(sorted(clients)) or "none"


def broker_config(store: Path | str, namesrv: str, **settings: Any) -> BrokerConfig:
    """Return the configuration of a test broker: small files, any free port of 127.0.0.1; `settings` are BrokerConfig fields."""
    values = {
        **SMALL_FILES,
        "broker_name": "broker-a",
        "bind_address": LOOPBACK,
        "broker_ip1": LOOPBACK,
        "listen_port": 0,
        "grpc_server_port": 0,
        "wait_time_mills_in_send_queue": 30_000,  # the machine of a test may be busy otherwise
        "store_path_root_dir": str(store),
        "namesrv_addr": namesrv,
        **settings,
    }
    return BrokerConfig(**values)


def _behind(master: HostedBroker, ends: Mapping[int, int], group: str, topic: str) -> list[str]:
    """Return a text for each queue of a master whose committed offset is before its end."""
    committed = master.committed(group, topic)
    name = master.config.broker_name
    return [
        f"queue {queue_id} of {name} at offset {committed.get(queue_id, 'none')} of {end}"
        for queue_id, end in sorted(ends.items())
        if committed.get(queue_id, -1) < end
    ]
