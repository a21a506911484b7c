"""The wiring of a proxy in front of a cluster.

async with ClusterProxy(config) as proxy:
    ... proxy.addr serves clients of RocketMQ 5 until the block ends
"""

from __future__ import annotations

import contextlib
import functools
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from ariane.access import public_ports
from ariane.access.access_control import POLL_INTERVAL_S, AccessControl
from ariane.access.own_account import own_credentials
from ariane.access.public_ports import Gap, PortProtection
from ariane.access.request_needs import Action, Permission, RequestNeeds, RequiredPermission
from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.errors import ReplyError
from ariane.net.interfaces import local_ip
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.limits.quotas import Quotas
from ariane.net.listening.server_tls import ServerTls
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.replies import Reply
from ariane.net.server import RemotingServer
from ariane.net.tasks import BackgroundTasks
from ariane.protocol import signing
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.proxy.cluster.client_links import ClientLinks
from ariane.proxy.cluster.cluster_routes import ClusterRoutes
from ariane.proxy.cluster.cluster_service import ClusterMessageService
from ariane.proxy.cluster.cluster_traces import ClusterTraces
from ariane.proxy.cluster.proxy_config import ProxyConfig
from ariane.proxy.message_service import Caller
from ariane.proxy.proxy_server import ProxyAddress, ProxyServer
from ariane.settings.connections import LOOPBACK

log = logging.getLogger("ariane.proxy")

CHECK_INTERVAL_S = 10.0  # of the name servers, for /readyz
ANY_ADDRESSES = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, not listened on
_CALLS = Gap(
    "access",
    "anyone can send and receive messages",
    "aclEnable=true with rocketmqHome, or client certificates",
)
_ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
_NEEDS: dict[int, RequestNeeds] = {
    _ROUTE: RequestNeeds(
        "PUB or SUB topic",
        lambda fields, body: [
            RequiredPermission(fields.get("topic", ""), Permission.PUB | Permission.SUB, Action.PUB | Action.SUB)
        ],
    )
}


class _NoOffsets:
    """Offsets are the brokers'. [OffsetCommits]"""

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Do nothing: `client_links` passes resets on."""


class _Accounts:
    """Accounts of plain_acl.yml. [RouteCheck]"""

    def __init__(self, access: AccessControl, quotas: Quotas) -> None:
        self._access = access
        self._check = access.with_checks({_ROUTE: lambda command, peer: Reply()}, lambda offset: None, quotas)[_ROUTE]

    async def check_topic(self, caller: Caller, topic: str) -> None:
        """Raise ReplyError if the caller may neither send to a topic nor receive from it."""
        fields = {"topic": topic}
        signed = fields if caller.credentials is None else signing.sign(caller.credentials, fields, b"")
        reply = self._check(Command(_ROUTE, fields=signed, language=caller.language), caller.peer)
        if isinstance(reply, Reply) and reply.code != ResponseCode.SUCCESS:
            raise ReplyError(reply.code, reply.remark)

    def secret_key(self, access_key: str) -> str | None:
        """Return the secret key of an account; None if there is no such account."""
        account = self._access.state.acl.account(access_key)
        return None if account is None else account.secret_key


class ClusterProxy:
    """One proxy. After its start, `addr` is an address at which clients on this machine reach it."""

    def __init__(self, config: ProxyConfig, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.config = config.validate()
        self.addr = ""
        self._clock = clock
        self._access: AccessControl | None = None  # None if calls need no account
        self._open = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._open.aclose()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._open.aclose()

    async def _start(self) -> None:
        config = self.config
        gaps = public_ports.find_gaps(
            config.bind_address,
            config.server_tls(),
            has_accounts=config.acl_enable,
            access=_CALLS,
            metrics_port=config.metrics_port,
        )
        if not config.insecure:
            public_ports.check_gaps(
                "bindAddress", config.bind_address, gaps,
                server="proxy", loopback="bindAddress=127.0.0.1", insecure=public_ports.INSECURE,
            )  # fmt: skip
        self.tls = ServerTls(config.server_tls())
        self.tls.load()
        self.protection = PortProtection(self.tls, gaps)
        tasks = BackgroundTasks("proxy", clock=self._clock)
        limits = ServerLimits()
        config.apply_limits(limits)
        credentials, client_tls = own_credentials(config, "proxy.conf"), config.client_tls()
        sign = None if credentials is None else functools.partial(signing.sign, credentials)
        pool = await self._open.enter_async_context(ConnectionPool(sign=sign, tls=client_tls))
        self.routes = ClusterRoutes(pool, config.name_servers)
        accounts = self._accounts(limits.quotas, tasks)
        # It counts the clients, and does not listen: the gRPC server does.
        self.clients = RemotingServer(
            {},
            config.bind_address,
            0,
            on_lost=lambda client: links.end(client),  # noqa: PLW0108 - created below
            idle_s=config.server_channel_max_idle_time_seconds,
            limits=limits,
        )
        links = self.links = ClientLinks(self.clients, client_tls)
        self._open.push_async_callback(tasks.close)
        self._open.push_async_callback(self.clients.__aexit__, None, None, None)
        self.clients.close_idle_connections()
        self.traces = await self._open.enter_async_context(
            ClusterTraces(routes=self.routes, pool=pool, is_on=config.grpc_trace_enable, clock=self._clock)
        )
        self.proxy = ProxyServer(
            service=ClusterMessageService(routes=self.routes, links=links, tasks=tasks, access=accounts),
            settings=config,
            server=self.clients,
            offsets=_NoOffsets(),
            traces=self.traces.grpc,
            tls=config.server_tls(),
            secret_key=None if accounts is None else accounts.secret_key,
            address=self._address(),
            transport=config.grpc_transport,
            now_ms=self._clock.now_ms,
        )
        await self._open.enter_async_context(self.proxy)
        await self.routes.check()
        tasks.repeat(CHECK_INTERVAL_S, self.routes.check, "check the name servers")
        host = LOOPBACK if config.bind_address in ANY_ADDRESSES else config.bind_address
        self.addr = f"{host}:{self.proxy.port}"
        log.info("Listening on %s for clients of RocketMQ 5, cluster of %s", self.addr, config.namesrv_addr)
        public_ports.warn_of_gaps(log, gaps, "Proxy", self.proxy.port)

    def _accounts(self, quotas: Quotas, tasks: BackgroundTasks) -> _Accounts | None:
        if not self.config.acl_enable:
            return None
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ariane-accounts")
        self._open.callback(thread.shutdown)
        self._access = AccessControl(Path(self.config.rocketmq_home), _NEEDS, thread, self._clock.now_ms)
        tasks.repeat(POLL_INTERVAL_S, self._access.reload_if_changed, "reload changed access control files")
        return _Accounts(self._access, quotas)

    def _address(self) -> ProxyAddress:
        config = self.config
        host = local_ip() if config.bind_address in ANY_ADDRESSES else config.bind_address
        return ProxyAddress(config.bind_address, config.grpc_server_port, host, config.advertised_host)

    async def reload(self) -> None:
        """Read certificates and access control files again, at once."""
        await self.tls.reload()
        if self._access is not None:
            await self._access.reload_if_changed()

    @property
    def faults(self) -> list[str]:
        """Why the proxy cannot serve clients."""
        return [self.routes.fault] if self.routes.fault else []
