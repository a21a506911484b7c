"""PUBLIC: the servers of a local cluster as tests control them: stop, start, faults.

with cluster.broker.refuse_sends() as fault: ...      # until the end of the block
fault = cluster.broker.delay_responses(0.5)           # until fault.end()
cluster.broker.stop(); ...; cluster.broker.start()    # the same address, and the same messages; also after `kill()`
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from functools import partial

from ariane.broker.lifecycle.write_protection import SEND_CODES
from ariane.client.instance import validation
from ariane.errors import ConfigError
from ariane.net.connection import Reply
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.testing import faults
from ariane.testing.cluster_servers import ClusterServers
from ariane.testing.faults import Fault
from ariane.testing.hosted_broker import HostedBroker
from ariane.testing.server_thread import ServerThread


class LocalNameServer:
    """The name server of a local cluster."""

    def __init__(self, servers: ClusterServers, thread: ServerThread) -> None:
        self._servers = servers
        self._thread = thread  # runs the servers

    @property
    def addr(self) -> str:
        """Address as `host:port`; the same after a restart."""
        return self._servers.namesrv

    def stop(self) -> None:
        """Stop the name server. Clients keep the routes that they have."""
        self._thread.run(self._servers.stop_name_server())

    def start(self) -> None:
        """Start the name server again. When this returns, the brokers are registered."""
        self._thread.run(self._servers.start_name_server())


class LocalBroker:
    """A broker of a local cluster.

    Faults apply to the requests of all clients, also to `LocalCluster.send`; several faults apply together.
    """

    def __init__(self, hosted: HostedBroker, thread: ServerThread) -> None:
        self._hosted = hosted
        self._thread = thread  # runs the servers

    @property
    def name(self) -> str:
        """Name of the broker; a master and its slaves have the same."""
        return self._hosted.config.broker_name

    @property
    def broker_id(self) -> int:
        """0 for a master, the number of a slave."""
        return self._hosted.config.broker_id

    @property
    def addr(self) -> str:
        """Address as `host:port`; the same after a restart."""
        return self._hosted.addr

    @property
    def grpc_addr(self) -> str:
        """Address for clients of RocketMQ 5 as `host:port`; empty without `grpc_server_enable=True`."""
        return self._hosted.grpc_addr

    @property
    def is_running(self) -> bool:
        """Whether the broker is not stopped."""
        return self._hosted.running is not None

    def stop(self) -> None:
        """Stop the broker in an orderly way: it leaves the routes, and closes its connections and its store."""
        self._thread.run(self._hosted.stop())

    def kill(self) -> None:
        """End the broker at once, as `kill -9` does.

        Connections are aborted without responses. Nothing more is written: what the broker had in memory only, such as offsets that
        were committed since they were last saved, is lost. `start` recovers the store as after a crash.

        Example:
            cluster.broker.kill()
            cluster.broker.start()
        """
        self._thread.run(self._hosted.kill())

    def cut_power(self) -> None:
        """End the broker at once, as `kill`, and lose everything that was not flushed to the disk.

        With the default `flush_disk_type="ASYNC_FLUSH"` these are acknowledged messages of the last half second.

        Raises:
            ConfigError: the cluster stores messages in a directory, whose disk cannot lose power.
        """
        if not self._hosted.can_lose_power:
            fix = "expected none: only a cluster that stores messages in memory can lose power; use kill()"
            raise ConfigError("directory", self._hosted.config.store_path_root_dir, fix)
        self._thread.run(self._hosted.kill(power_loss=True))

    def start(self) -> None:
        """Start the broker again, with its messages and offsets. When this returns, it is registered."""
        self._thread.run(self._hosted.start())

    def refuse_sends(self, code: int = ResponseCode.SYSTEM_BUSY, *, times: int | None = None) -> Fault:
        """Respond to sends with an error. Nothing is stored; consumers go on.

        Args:
            code: The response code.
            times: How many sends are refused; None: all until the fault ends.
        """
        return self.fail_requests(SEND_CODES - {RequestCode.CONSUMER_SEND_MSG_BACK}, code, times=times)

    def fail_requests(
        self, request_codes: int | Collection[int], code: int = ResponseCode.SYSTEM_ERROR, *, times: int | None = None
    ) -> Fault:
        """Respond to certain requests with an error, without serving them.

        Args:
            request_codes: One or several codes, such as `RequestCode.PULL_MESSAGE`.
            code: The response code.
            times: How many requests fail; None: all until the fault ends.

        Example:
            cluster.broker.fail_requests(RequestCode.PULL_MESSAGE, times=1)
        """
        reply = Reply(code, {}, remark="a test makes this broker fail the request")
        return self._hosted.faults.add(partial(faults.refuse, reply), _codes(request_codes), times)

    def delay_responses(
        self,
        duration: float | timedelta,
        request_codes: int | Collection[int] | None = None,
        *,
        times: int | None = None,
    ) -> Fault:
        """Serve requests as usual, and respond later: a send may time out although its message is stored.

        Args:
            duration: Seconds of real time, or a timedelta.
            request_codes: Codes of the affected requests; None: all.
            times: How many responses are delayed; None: all until the fault ends.
        """
        seconds = validation.seconds("duration", duration)
        return self._hosted.faults.add(partial(faults.delay, seconds), _codes(request_codes), times)

    def lose_responses(self, request_codes: int | Collection[int] | None = None, *, times: int | None = None) -> Fault:
        """Serve requests as usual, and never respond.

        Args:
            request_codes: Codes of the affected requests; None: all.
            times: How many responses are lost; None: all until the fault ends.
        """
        return self._hosted.faults.add(faults.lose, _codes(request_codes), times)

    def lose_requests(self, request_codes: int | Collection[int] | None = None, *, times: int | None = None) -> Fault:
        """Neither serve requests nor respond, as if the network lost them.

        Args:
            request_codes: Codes of the affected requests; None: all.
            times: How many requests are lost; None: all until the fault ends.
        """
        return self._hosted.faults.add(faults.ignore, _codes(request_codes), times)

    def fill_disk(self) -> Fault:
        """Make the disk full: messages are refused, consumers go on. It has room again when the fault ends.

        `hits` of this fault stays 0.
        """
        self._thread.run(self._hosted.set_full(True))
        return Fault(lambda: self._thread.run(self._hosted.set_full(False)))

    def drop_connections(self) -> int:
        """Abort all connections, of clients and of slaves, and return their number. Clients connect again."""
        return self._thread.run(self._hosted.drop_connections())


def _codes(codes: int | Collection[int] | None) -> frozenset[int] | None:
    return None if codes is None else frozenset({codes} if isinstance(codes, int) else codes)
