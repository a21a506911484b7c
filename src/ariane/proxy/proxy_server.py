"""The server of the gRPC port: builds its parts around a message service, starts and stops them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self

from ariane.errors import ConfigError
from ariane.kernels.implementation import INSTALL, selected
from ariane.net.listening.connection_gate import ConnectionGate
from ariane.net.listening.server_tls import ServerTls, ServerTlsOptions, watched_tls
from ariane.net.server import RemotingServer
from ariane.net.tasks import BackgroundTasks
from ariane.protocol.signing import Credentials
from ariane.proxy import request_signatures
from ariane.proxy.call_server import CallServer, Method
from ariane.proxy.calls.call import Call, ProxySettings
from ariane.proxy.calls.plain_acks import PlainAckCalls, PlainAckService
from ariane.proxy.calls.plain_sends import PlainSendCalls, PlainSendService
from ariane.proxy.calls.presence_calls import PresenceCalls
from ariane.proxy.calls.receive_calls import ReceiveCalls
from ariane.proxy.calls.route_calls import RouteCalls
from ariane.proxy.calls.send_calls import SendCalls
from ariane.proxy.calls.transaction_calls import TransactionCalls
from ariane.proxy.client_sessions import ClientSessions, OffsetCommits
from ariane.proxy.handle_renewal import SCAN_S, HandleRenewal
from ariane.proxy.message_service import MessageService
from ariane.proxy.traces.message_traces import MessageTraces
from ariane.proxy.transport.aio_transport import AioTransport
from ariane.proxy.transport.native_transport import NativeTransport

TransportName = Literal["aio", "native", "auto"]

HTTP_2 = "h2"  # the name that clients select by ALPN


class Transport(Protocol):
    """Sockets, TLS and HTTP/2 of the port."""

    async def start(self, address: str, port: int) -> int:
        """Listen, and return the port. Raise OSError if it is in use."""
        ...

    def abort(self) -> None:
        """Close the port and abort all connections."""
        ...

    async def close(self) -> None:
        """Close the port, and end all calls."""
        ...


class ProxyService(MessageService, PlainSendService, PlainAckService, Protocol):
    """The cluster, with faster ways for plain calls."""


class ProxyAddress(NamedTuple):
    """Where the server listens, and what clients are given."""

    bind: str
    port: int
    """0: a free one."""
    host: str
    """Of this server, as other machines reach it."""
    advertised: str
    """Host in all routes; empty: the one that a client has reached."""


class AccountSignatures:
    """Accounts whose signatures are verified."""

    def __init__(self, secret_key: Callable[[str], str | None]) -> None:
        self._secret_key = secret_key

    def verify(self, metadata: Mapping[str, str]) -> Credentials | None:
        """Return the account that has signed a call; None without a signature. Raise CallRefused if it has not."""
        return request_signatures.verify(metadata, self._secret_key)


class _Calls:
    """All calls. [CallTable]"""

    def __init__(
        self,
        routes: RouteCalls,
        sends: SendCalls,
        receives: ReceiveCalls,
        transactions: TransactionCalls,
        presence: PresenceCalls,
    ) -> None:
        self._receives, self._presence = receives, presence
        self.unary: Mapping[str, Method] = {
            "QueryRoute": routes.query_route,
            "QueryAssignment": routes.query_assignment,
            "Heartbeat": presence.heartbeat,
            "SendMessage": sends.send_message,
            "RecallMessage": sends.recall_message,
            "AckMessage": receives.ack_message,
            "ChangeInvisibleDuration": receives.change_invisible_duration,
            "ForwardMessageToDeadLetterQueue": receives.forward_message_to_dead_letter_queue,
            "EndTransaction": transactions.end_transaction,
            "NotifyClientTermination": presence.notify_client_termination,
        }

    def receive(self, request: Any, call: Call) -> AsyncIterator[Any]:
        return self._receives.receive(request, call)

    def telemetry(self, commands: AsyncIterator[Any], call: Call) -> AsyncIterator[Any]:
        return self._presence.telemetry(commands, call)


class ProxyServer:
    """Serves clients of RocketMQ 5; an asynchronous context manager.

    Args:
        service: The cluster.
        settings: What may change while the server runs.
        server: Counts the clients as connections, and reaches them.
        offsets: Set when a tool resets those of a group.
        traces: Of what the clients do.
        tls: Certificates, and whether connections must be encrypted.
        secret_key: Returns the secret key of an account; None if calls need no account.
        address: Where it listens, and what clients are given.
        transport: Its HTTP/2.
        now_ms: The clock of the broker.
    """

    def __init__(
        self,
        *,
        service: ProxyService,
        settings: ProxySettings,
        server: RemotingServer,
        tls: ServerTlsOptions,
        offsets: OffsetCommits,
        traces: MessageTraces,
        secret_key: Callable[[str], str | None] | None,
        address: ProxyAddress,
        transport: TransportName,
        now_ms: Callable[[], int],
    ) -> None:
        self.port = address.port
        self._service = service
        self._settings = settings
        self._server = server
        self._offsets = offsets
        self._traces = traces
        self._tls = tls
        self._authentication = None if secret_key is None else AccountSignatures(secret_key)
        self._address = address
        self._transport_name: TransportName = transport
        self._now_ms = now_ms
        self._transport: Transport | None = None  # None until it is started
        self._open = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._open.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    def abort(self) -> None:
        """Close the port and abort all connections, as the end of the process does."""
        if self._transport is not None:
            self._transport.abort()

    async def _start(self) -> None:
        address, tasks = self._address, BackgroundTasks("gRPC")
        self._open.push_async_callback(tasks.close)
        tls = await self._open.enter_async_context(watched_tls(self._tls, protocols=(HTTP_2,)))
        assert tls is not None
        service, settings, traces, now_ms = self._service, self._settings, self._traces, self._now_ms
        renewal = HandleRenewal(service=service, traces=traces, is_connected=self._server.is_connected, now_ms=now_ms)
        sessions = ClientSessions(self._server, self._offsets, now_ms)
        routes = RouteCalls(service=service, settings=settings, advertised=address.advertised, host=address.host)
        sends = SendCalls(service=service, settings=settings, traces=traces, now_ms=now_ms)
        calls = CallServer(
            calls=_Calls(
                routes,
                sends,
                ReceiveCalls(service=service, renewal=renewal, traces=traces, tasks=tasks, now_ms=now_ms),
                TransactionCalls(service=service, traces=traces),
                PresenceCalls(service=service, settings=settings, now_ms=now_ms),
            ),
            sessions=sessions,
            limits=self._server.limits,
            authentication=self._authentication,
        )
        plain_sends = PlainSendCalls(service=service, settings=settings, traces=traces, now_ms=now_ms, turn=sends.turn)
        plain_acks = PlainAckCalls(service=service, renewal=renewal, traces=traces)
        transport = self._transport = self._create_transport(calls, plain_sends, plain_acks, tls)
        self._open.push_async_callback(transport.close)
        try:
            self.port = routes.port = await transport.start(address.bind, address.port)
        except OSError as error:
            place, reason = f"{address.bind}:{address.port}", error.strerror or error
            fix = f"cannot listen on {place} ({reason}); stop what uses it or choose another port"
            raise ConfigError("grpcServerPort", address.port, fix) from error
        tasks.repeat(SCAN_S, renewal.renew_due, "renew deliveries to push consumers")

    def _create_transport(
        self, calls: CallServer, sends: PlainSendCalls, acks: PlainAckCalls, tls: ServerTls
    ) -> Transport:
        name, open_port = self._transport_name, selected().open_grpc_port
        verifies_clients = self._tls.verifies_clients and self._tls.client_auth != "none"
        if name == "auto":
            name = "aio" if open_port is None or verifies_clients else "native"
        if name == "aio":
            return AioTransport(calls, ConnectionGate(tls))
        if open_port is None:
            fix = f"needs the native kernels; install them with `{INSTALL}`, or choose auto"
            raise ConfigError("grpcTransport", name, fix)
        if verifies_clients:
            fix = "cannot verify certificates of clients (tls.server.authClient); choose auto"
            raise ConfigError("grpcTransport", name, fix)
        return NativeTransport(calls=calls, sends=sends, acks=acks, tls=tls, open_port=open_port)
