"""PUBLIC: a name server and real brokers in this process, on free ports of 127.0.0.1, for the tests of applications.

    with LocalCluster() as cluster:                               # synchronous tests
        run_my_application(cluster.namesrv)
        assert [message.body for message in cluster.messages("orders")] == [b"created"]

    async with AsyncLocalCluster() as cluster:                    # the same for asyncio, whose methods are awaited
        await cluster.wait_consumed("billing", "orders")

The servers run in a thread with its own event loop: a test may block, and a cluster serves any number of event loops. They store
messages in memory, or in a directory. `cluster.clock` moves their time, `cluster.broker` makes them fail. In pytest, use the
fixtures of `ariane.testing.plugin`.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack, overload

from ariane.client.instance import validation
from ariane.client.instance.send_types import SendResult
from ariane.client.sending.message_arguments import MessageFields, message_of
from ariane.model.message import Message, ReceivedMessage
from ariane.net.tasks import wait_done
from ariane.testing.cluster_servers import ClusterServers
from ariane.testing.local_server import LocalBroker, LocalNameServer
from ariane.testing.movable_clock import ClusterClock
from ariane.testing.server_thread import ServerThread

QUEUES = 4  # of a new topic on each broker
TIMEOUT_S = 10.0


class RunningCluster:
    """What clusters for synchronous and for asynchronous tests have in common: addresses, servers, clock.

    Args:
        directory: Directory of the stores and of other files, which stay there; None to store messages in memory.
        brokers: Number of masters.
        slaves: Number of slaves of each master.
        settings: Fields of `ariane.broker.config.broker_config.BrokerConfig`, for all brokers.

    Raises:
        ConfigError: an argument is invalid; a setting is checked when the cluster starts.
    """

    def __init__(
        self, directory: Path | str | None = None, *, brokers: int = 1, slaves: int = 0, **settings: Any
    ) -> None:
        self._thread = ServerThread()  # runs the servers
        # Used in the event loop of that thread only, except for their addresses.
        self._servers = ClusterServers(None if directory is None else Path(directory), brokers, slaves, settings)
        self._was_started = False  # a cluster starts once: its ports and its clock are those of one run
        self.clock = ClusterClock(self._servers.clock, self)
        """Time of the servers."""
        self.name_server = LocalNameServer(self._servers, self._thread)
        """The name server."""
        self.brokers: tuple[LocalBroker, ...] = ()
        """The masters."""
        self.slaves: tuple[LocalBroker, ...] = ()
        """The slaves of all masters."""

    @property
    def namesrv(self) -> str:
        """Address of the name server, for clients."""
        return self._servers.namesrv

    @property
    def broker(self) -> LocalBroker:
        """The first master."""
        return self.brokers[0]

    def advance_clock(self, milliseconds: int) -> None:
        """Move the clock of the servers; for `ClusterClock.advance`."""
        self._thread.run(self._servers.advance_clock(milliseconds))

    def start_servers(self) -> None:
        """Start the servers, blocking; for `with` and the fixtures."""
        if self._was_started:
            raise RuntimeError("This cluster was started before: create another one for another start")
        self._was_started = True
        self._thread.start()
        try:
            self._thread.run(self._servers.start())
        except BaseException:
            self._thread.stop()
            raise
        self.brokers = tuple(LocalBroker(hosted, self._thread) for hosted in self._servers.masters)
        self.slaves = tuple(LocalBroker(hosted, self._thread) for hosted in self._servers.slaves)

    def stop_servers(self) -> None:
        """Stop the servers, blocking; for `with` and the fixtures."""
        try:
            self._thread.run(self._servers.close())
        finally:
            self._thread.stop()


class LocalCluster(RunningCluster):
    """A cluster for synchronous tests; a context manager.

    Example:
        with LocalCluster() as cluster:
            cluster.send("orders", b"created", keys=["ORDER-17"])
            [message] = cluster.messages("orders")
    """

    def __enter__(self) -> Self:
        self.start_servers()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_servers()

    def create_topic(self, topic: str, *, queues: int = QUEUES) -> None:
        """Create a topic with `queues` queues on each broker. When this returns, clients find it.

        Raises:
            ConfigError: the name is invalid.
        """
        self._thread.run(self._servers.create_topic(topic, queues))

    @overload
    def send(self, message: Message, /, *, order_key: str | None = None) -> SendResult: ...

    @overload
    def send(
        self, topic: str, body: bytes, /, *, order_key: str | None = None, **fields: Unpack[MessageFields]
    ) -> SendResult: ...

    def send(
        self,
        message: Message | str,
        body: bytes | None = None,
        /,
        *,
        order_key: str | None = None,
        **fields: Unpack[MessageFields],
    ) -> SendResult:
        """Send a message, as any producer does.

        Args:
            message: The message, or the name of its topic.
            body: Body of the message, if `message` is the name of a topic.
            order_key: Messages with the same one go to the same queue.
            fields: Further fields of `Message`, if `message` is the name of a topic: `keys`, `tags`, `delay`, …

        Raises:
            ArianeError: as `Producer.send`.

        Example:
            cluster.send("orders", b"paid", keys=["ORDER-17"])
        """
        return self._thread.run(self._servers.send(message_of(message, body, fields), order_key))

    def messages(self, topic: str) -> list[ReceivedMessage]:
        """Return all stored messages of a topic, in the order of their store times; of running brokers only.

        Also of internal topics, such as `%RETRY%` and `%DLQ%` with the name of a group. A delayed message is in its topic once
        it is due, and a transactional one once it is committed.
        """
        return self._thread.run(self._servers.messages(topic))

    def wait_messages(
        self, topic: str, count: int = 1, *, timeout: float | timedelta = TIMEOUT_S
    ) -> list[ReceivedMessage]:
        """Wait until a topic has at least `count` messages, and return all.

        Raises:
            TimeoutError: it has fewer after `timeout`, seconds of real time or a timedelta.
        """
        _check_no_loop("wait_messages")
        return self._thread.run(self._servers.wait_messages(topic, count, _seconds(timeout)))

    def wait_consumed(self, group: str, topic: str, *, timeout: float | timedelta = TIMEOUT_S) -> None:
        """Wait until a group has consumed the messages that a topic contains now (one at least).

        That is, until the brokers have its offsets: the listener was called for the messages before. A message that failed and
        will be retried counts as consumed; wait for the topic `%RETRY%` with the name of the group as well. `PushConsumer`
        commits offsets soon when this waits, other consumers when they commit; consumers of broadcast messages never do.

        Raises:
            TimeoutError: it has not after `timeout`, seconds of real time or a timedelta; says which offsets are missing.
        """
        _check_no_loop("wait_consumed")
        self._thread.run(self._servers.wait_consumed(group, topic, _seconds(timeout)))


class AsyncLocalCluster(RunningCluster):
    """A cluster for asynchronous tests; an asynchronous context manager.

    Its methods are those of `LocalCluster`, awaited. The clock, and the faults of brokers, are used without `await`.

    Example:
        async with AsyncLocalCluster() as cluster:
            await cluster.send("orders", b"created", keys=["ORDER-17"])
            [message] = await cluster.messages("orders")
    """

    async def __aenter__(self) -> Self:
        starting = asyncio.get_running_loop().run_in_executor(None, self.start_servers)
        cancelled = await wait_done(starting)
        starting.result()
        if cancelled is not None:  # the block will not run, so nothing else would stop the servers
            await self.__aexit__(None, None, None)
            raise cancelled
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stopping = asyncio.get_running_loop().run_in_executor(None, self.stop_servers)
        cancelled = await wait_done(stopping)
        stopping.result()
        if cancelled is not None:
            raise cancelled

    async def create_topic(self, topic: str, *, queues: int = QUEUES) -> None:
        """Create a topic: `LocalCluster.create_topic`."""
        await self._thread.wait(self._servers.create_topic(topic, queues))

    @overload
    async def send(self, message: Message, /, *, order_key: str | None = None) -> SendResult: ...

    @overload
    async def send(
        self, topic: str, body: bytes, /, *, order_key: str | None = None, **fields: Unpack[MessageFields]
    ) -> SendResult: ...

    async def send(
        self,
        message: Message | str,
        body: bytes | None = None,
        /,
        *,
        order_key: str | None = None,
        **fields: Unpack[MessageFields],
    ) -> SendResult:
        """Send a message: `LocalCluster.send`."""
        return await self._thread.wait(self._servers.send(message_of(message, body, fields), order_key))

    async def messages(self, topic: str) -> list[ReceivedMessage]:
        """Return all stored messages of a topic: `LocalCluster.messages`."""
        return await self._thread.wait(self._servers.messages(topic))

    async def wait_messages(
        self, topic: str, count: int = 1, *, timeout: float | timedelta = TIMEOUT_S
    ) -> list[ReceivedMessage]:
        """Wait until a topic has at least `count` messages: `LocalCluster.wait_messages`."""
        return await self._thread.wait(self._servers.wait_messages(topic, count, _seconds(timeout)))

    async def wait_consumed(self, group: str, topic: str, *, timeout: float | timedelta = TIMEOUT_S) -> None:
        """Wait until a group has consumed a topic: `LocalCluster.wait_consumed`."""
        await self._thread.wait(self._servers.wait_consumed(group, topic, _seconds(timeout)))


def _seconds(timeout: float | timedelta) -> float:
    return validation.seconds("timeout", timeout)


def _check_no_loop(method: str) -> None:
    """Raise RuntimeError in a running event loop: consumers of the application may run in it, and could not while it waits."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        f"LocalCluster.{method} blocks this thread, and with it the running event loop: use AsyncLocalCluster (in pytest the"
        f" fixture ariane_async_cluster), and `await cluster.{method}(...)`"
    )
