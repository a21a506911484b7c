"""A broker of a local cluster, in the event loop of the servers: it has faults, and can be stopped and started again."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from pathlib import Path

import msgspec

from ariane.broker.broker import Broker
from ariane.broker.config.broker_config import BrokerConfig
from ariane.clock import Clock
from ariane.model.message import MessageQueue, ReceivedMessage
from ariane.net.connection import Handler
from ariane.net.listening.fixed_ports import choose_free_port
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.replies import TurnHandler
from ariane.protocol.records import record
from ariane.protocol.records.received_messages import to_received_message
from ariane.testing.faults import RequestFaults, TurnsWithoutFaults
from ariane.testing.fillable_disks import FillableDisk, MemoryDisk, copy_sparse

POLL_S = 0.001
SETTLE_S = 10.0  # longest wait for deliveries; a broker that cannot write never delivers


class _FaultyBroker(Broker):
    """A broker with faults in front of its handlers."""

    def __init__(
        self, config: BrokerConfig, *, disk: FillableDisk | MemoryDisk, clock: Clock, faults: RequestFaults
    ) -> None:
        super().__init__(config, disk=disk, clock=clock)
        self._faults = faults

    def _handlers(self, store_host: bytes, peers: ConnectionPool) -> dict[int, Handler]:
        handlers = super()._handlers(store_host, peers)
        return {code: self._faults.in_front_of(handler) for code, handler in handlers.items()}

    def _turns(self) -> dict[int, TurnHandler]:
        turns = super()._turns()
        return {code: TurnsWithoutFaults(handler, self._faults) for code, handler in turns.items()}

    def cut_off(self) -> None:
        """Close ports and connections without responses, and unregister nowhere: what the end of the process does to others."""
        self._registration.abandon()
        self._server.abort()
        self._ha_server.abort()
        if self.proxy is not None:
            self.proxy.abort()


class HostedBroker:
    """A broker and what outlives its restarts: configuration, port, disk, clock and faults."""

    def __init__(self, config: BrokerConfig, disk: FillableDisk | MemoryDisk, clock: Clock) -> None:
        self.config = config  # with the port of the first start
        self.disk = disk  # contains the messages over restarts
        self.faults = RequestFaults()  # also those that began while the broker was stopped
        self.addr = ""  # set by the first start
        self.grpc_addr = ""  # set by the first start, with grpc_server_enable
        self._clock = clock  # of all servers of the cluster
        self._broker: _FaultyBroker | None = None  # None while it is stopped

    @property
    def running(self) -> Broker | None:
        """The broker; None while it is stopped."""
        return self._broker

    @property
    def can_lose_power(self) -> bool:
        """Whether `kill` can lose what was not flushed."""
        return isinstance(self.disk, MemoryDisk)

    async def start(self) -> None:
        """Start the broker unless it is running. It has the port of its first start."""
        if self._broker is not None:
            return
        if not self.config.listen_port:
            self.config = msgspec.structs.replace(self.config, listen_port=choose_free_port((-2, 0, 1)))
        broker = _FaultyBroker(self.config, disk=self.disk, clock=self._clock, faults=self.faults)
        await broker.__aenter__()
        self._broker = broker
        self.addr = broker.addr
        if broker.proxy is not None:
            self.grpc_addr = f"{self.config.broker_ip1}:{broker.proxy.port}"
            self.config = msgspec.structs.replace(self.config, grpc_server_port=broker.proxy.port)

    async def stop(self) -> None:
        """Stop the broker unless it is stopped."""
        broker, self._broker = self._broker, None
        if broker is not None:
            await broker.__aexit__(None, None, None)

    async def kill(self, *, power_loss: bool = False) -> None:
        """End the broker unless it is stopped: from now on nothing reaches its clients or its disk.

        With `power_loss`, the disk loses what was not flushed. Only a disk in memory can do so.
        """
        broker, self._broker = self._broker, None
        if broker is None:
            return
        broker.cut_off()
        # An orderly stop releases threads and handles. What it changes on the disk is then replaced by the state of now.
        is_full, root = self.disk.is_full, Path(self.config.store_path_root_dir)
        left = root.with_name(f"{root.name}.left")
        disk = self.disk.copy() if isinstance(self.disk, MemoryDisk) else self.disk
        if disk is self.disk:
            shutil.copytree(root, left, symlinks=True, copy_function=copy_sparse)
        self.disk.is_full = False
        try:
            await broker.__aexit__(None, None, None)
        finally:
            if disk is self.disk:
                shutil.rmtree(root)
                left.rename(root)
            elif power_loss and isinstance(disk, MemoryDisk):
                disk.lose_unflushed()
            self.disk = disk
            disk.is_full = is_full

    async def set_full(self, is_full: bool) -> None:
        """Make the disk full or empty, and let the broker notice it now."""
        await self.settle()
        if self._broker is not None:  # stored messages stay readable: reading the end of a queue writes its entries
            store = self._broker.services.store
            for topic, queue_ids in store.topics().items():
                for queue_id in queue_ids:
                    store.max_offset(topic, queue_id)
        self.disk.is_full = is_full
        if self._broker is not None:
            await self._broker.services.cleaner.check_disk_space()

    async def drop_connections(self) -> int:
        """Abort all connections; return how many there were."""
        return 0 if self._broker is None else self._broker.services.server.abort_connections()

    async def settle(self) -> None:
        """Wait until all stored messages can be read and all due messages are delivered, at most SETTLE_S."""
        broker = self._broker
        if broker is None or broker.config.is_slave:
            return
        store = broker.services.store
        deadline = asyncio.get_running_loop().time() + SETTLE_S
        while asyncio.get_running_loop().time() < deadline and not (store.failure or store.refusal):
            due_ms = store.delayed.next_due_ms()
            if store.dispatched >= store.commit_log_max and (due_ms is None or due_ms > self._clock.now_ms()):
                return
            await asyncio.sleep(POLL_S)

    def messages(self, topic: str) -> list[ReceivedMessage]:
        """Return the stored messages of a topic, by queue and offset."""
        if self._broker is None:
            return []
        store = self._broker.services.store
        messages = []
        for queue_id in sorted(store.topics().get(topic, ())):
            queue = MessageQueue(topic, self.config.broker_name, queue_id)
            for offset in range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)):
                data = store.read_queue_record(topic, queue_id, offset)
                if data is not None:
                    stored = record.decode(data)
                    messages.append(to_received_message(stored, stored.property_map(), queue))
        return messages

    def ends(self, topic: str) -> dict[int, int]:
        """Return by queue the offset after the last message, for queues with messages."""
        if self._broker is None:
            return {}
        store = self._broker.services.store
        ends = {queue_id: store.max_offset(topic, queue_id) for queue_id in store.topics().get(topic, ())}
        return {queue_id: end for queue_id, end in ends.items() if end > store.min_offset(topic, queue_id)}

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the committed offsets of a group by queue, and let its consumers commit what they have consumed meanwhile."""
        if self._broker is None:
            return {}
        services = self._broker.services
        services.dispatcher.pull_waiters.expire(topic)  # the next pull commits; otherwise it takes seconds
        return services.state.offsets.queue_offsets(group, topic)


def broker_names(count: int) -> list[str]:
    """Return the names of `count` masters: broker-a, broker-b, … broker-z, broker-aa."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    suffixes = itertools.chain.from_iterable(itertools.product(letters, repeat=size) for size in itertools.count(1))
    return ["broker-" + "".join(suffix) for suffix in itertools.islice(suffixes, count)]
