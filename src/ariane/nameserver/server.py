"""The wiring of the name server.

async with NameServer(config) as name_server:
    ... name_server.addr serves until the block ends
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from ariane.access import public_ports
from ariane.access.access_control import POLL_INTERVAL_S, AccessControl
from ariane.access.public_ports import Gap, PortProtection
from ariane.audit.audit_requests import AuditHandler
from ariane.audit.server_audit_log import DRAIN_INTERVAL_S, open_audit_log
from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.nameserver.config import NameServerConfig
from ariane.nameserver.handlers import EXEMPT_CODES, NameServerHandlers
from ariane.nameserver.kv_store import KvStore
from ariane.nameserver.request_permissions import READS, REQUEST_NEEDS
from ariane.nameserver.route_table import RouteTable
from ariane.net.connection import Handler, Peer
from ariane.net.interfaces import local_ip
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.limits.quotas import Quotas
from ariane.net.listening.connection_gate import ConnectionGate
from ariane.net.listening.server_tls import WATCH_INTERVAL_S, ServerTls
from ariane.net.peer_log import PeerLog
from ariane.net.server import RemotingServer
from ariane.net.tasks import BackgroundTasks
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command
from ariane.settings.connections import LOOPBACK

log = logging.getLogger("ariane.nameserver")

BROKERS_IN_LINE = 5  # of the log
SCAN_INTERVAL_S = 10.0  # of checks for silent brokers
FIRST_SCAN_S = 5.0
ANY_ADDRESSES = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, not listened on
_REGISTRATIONS = Gap(
    "access",
    "anyone can register brokers and change routes",
    "aclEnable=true with rocketmqHome, or client certificates",
)


def local_addr(bind_address: str, port: int) -> str:
    """Return the address at which clients on this machine reach a server that listens on `bind_address`."""
    return f"{LOOPBACK if bind_address in ANY_ADDRESSES else bind_address}:{port}"


class NameServer:
    """One name server. After its start, `addr` is an address at which clients on this machine reach it."""

    def __init__(self, config: NameServerConfig, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.config = config.validate()
        self.addr = ""
        self._clock = clock
        self.routes = RouteTable()
        self._tasks = BackgroundTasks("name server")
        self._peer_log = PeerLog(log)  # without access control anybody registers brokers, and disconnects
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ariane-accounts")  # reads account files
        self._access: AccessControl | None = None  # None without access control

    async def __aenter__(self) -> Self:
        config = self.config
        gaps = public_ports.find_gaps(
            config.bind_address,
            config.server_tls(),
            has_accounts=config.acl_enable,
            access=_REGISTRATIONS,
            metrics_port=config.metrics_port,
        )
        if not config.insecure:
            public_ports.check_gaps(
                "bindAddress", config.bind_address, gaps,
                server="name server", loopback="bindAddress=127.0.0.1", insecure=public_ports.INSECURE,
            )  # fmt: skip
        self.tls = ServerTls(config.server_tls())
        self.tls.load()
        self.protection = PortProtection(self.tls, gaps)
        self._kv = kv = KvStore(Path(config.kv_config_path))
        limits = ServerLimits(exempt=EXEMPT_CODES)
        config.apply_limits(limits)
        handlers: dict[int, Handler] = NameServerHandlers(
            self.routes, kv, config, limits, self.protection, self.monotonic_ms
        ).table()
        directory = Path(config.kv_config_path).parent / "audit"
        self.audit = open_audit_log(config, config.acl_enable, directory, "name server", self._clock)
        handlers[RequestCode.GET_AUDIT_LOG] = AuditHandler(self.audit, is_protected=config.acl_enable).read
        if self.audit:
            limits.audit = self.audit
            handlers = self.audit.with_records(handlers, {RequestCode.REGISTER_BROKER: self._is_new})
        if config.acl_enable:
            handlers = self._with_access_control(handlers, limits.quotas)
        self.connections = RemotingServer(
            handlers,
            config.bind_address,
            config.listen_port,
            on_lost=self._on_connection_lost,
            idle_s=config.server_channel_max_idle_time_seconds,
            limits=limits,
            gate=ConnectionGate(self.tls),
        )
        await self.connections.__aenter__()
        port = self.connections.port
        self.addr = local_addr(config.bind_address, port)
        if self.tls.has_files:
            self._tasks.repeat(WATCH_INTERVAL_S, self.tls.reload_if_changed, "reload changed certificates")
        if self.audit:
            self._tasks.repeat(DRAIN_INTERVAL_S, self.audit.record_due_counts, "record counts of refused requests")
        self._tasks.repeat(SCAN_INTERVAL_S, self._expire, "forget silent brokers", first_s=FIRST_SCAN_S)
        if config.bind_address in ANY_ADDRESSES:
            log.info(
                "Listening on all addresses: clients on this machine use %s, others the address at which they reach it, "
                "such as %s:%d", self.addr, local_ip(), port,
            )  # fmt: skip
        else:
            log.info("Listening on %s", self.addr)
        public_ports.warn_of_gaps(log, gaps, "Name server", port)
        return self

    def _with_access_control(self, handlers: Mapping[int, Handler], quotas: Quotas) -> dict[int, Handler]:
        """Return the handlers with checks by the accounts of plain_acl.yml."""
        config = self.config
        self._access = AccessControl(Path(config.rocketmq_home), REQUEST_NEEDS, self._thread, self._clock.now_ms)
        if self.audit:
            self.audit.identification, self._access.audit = self._access, self.audit
        self._tasks.repeat(POLL_INTERVAL_S, self._access.reload_if_changed, "reload changed access control files")
        checked = self._access.with_checks(handlers, lambda offset: None, quotas)
        if config.acl_read_enable:
            return checked
        return checked | self._access.with_accounts({code: handlers[code] for code in READS}, quotas)

    async def __aexit__(self, *exception: object) -> None:
        await self._tasks.close()
        await self.connections.__aexit__(*exception)
        self._kv.close()
        if self.audit:
            await self.audit.close()
        self._thread.shutdown()

    async def reload(self) -> None:
        """Read certificates and access control files again, at once."""
        await self.tls.reload()
        if self._access:
            await self._access.reload_if_changed()

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return self.connections.port

    def _is_new(self, command: Command, peer: Peer) -> bool:
        """Return whether a registration repeats none of its connection. Brokers repeat theirs twice a minute."""
        return not self.routes.is_registered_by(command.field_map().get("brokerAddr", ""), peer.id)

    def _on_connection_lost(self, peer: Peer) -> None:
        if addresses := self.routes.remove_peer(peer.id):
            now = self._clock.monotonic()
            self._peer_log.warning(peer.ip, now, "Removed %s: its connection closed", _brokers(addresses))

    async def _expire(self) -> None:
        if addresses := self.routes.expire(self.monotonic_ms()):
            log.warning("Removed %s: it did not register in time", _brokers(addresses))

    def monotonic_ms(self) -> float:
        """Return the monotonic time of the route table."""
        return self._clock.monotonic() * 1000


def _brokers(addresses: list[str]) -> str:
    """Return the brokers of a log line: one peer can register thousands."""
    more = len(addresses) - BROKERS_IN_LINE
    return f"broker {', '.join(addresses[:BROKERS_IN_LINE])}" + (f" and {more} more" if more > 0 else "")
