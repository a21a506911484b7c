"""The gRPC server: calls arrive here, get their client and account, and leave as replies. `grpcio` is used in this module only.

    bytes (`byte_bridge`) ─▶ grpc.aio ─▶ request, metadata ─▶ signature ─▶ session, limits ─▶ method of `calls` ─▶ reply

Refusals are replies with a status, whose gRPC status is OK; in Telemetry they end the stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol

from ariane.errors import ArianeError, ReplyError
from ariane.extras import naming_extras
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.peer_log import PeerLog
from ariane.net.replies import Peer
from ariane.protocol.command import LANGUAGES
from ariane.protocol.signing import Credentials
from ariane.proxy import api
from ariane.proxy.byte_bridge import LOOPBACK, BridgedClient, BridgePeers
from ariane.proxy.calls.call import Call
from ariane.proxy.client_sessions import ClientSessions, SessionKey
from ariane.proxy.conversion import grpc_statuses, request_sizes
from ariane.proxy.conversion.grpc_statuses import CallRefused, StatusCode
from ariane.proxy.message_service import Caller

log = logging.getLogger("ariane.proxy")
_peer_log = PeerLog(log)

MESSAGE_MAX = 16 * 1024 * 1024  # bytes of a request, as of a frame of remoting
SIZES_MAX = {"SendMessage": MESSAGE_MAX, "Telemetry": 4 * 1024 * 1024}  # with bodies, and stack traces
IDLE_MS = 120_000
STREAMS_MAX = 4_096  # calls of a connection: a process has one connection for all its clients
CLIENT_ID_MAX = 255  # characters
OTHER_LANGUAGE = "OTHER"
VERSION_5 = 479  # V5_3_3, for clients whose version has no number

Method = Callable[[Any, Call], Awaitable[Any]]


class CallTable(Protocol):
    """The methods of all calls, by name."""

    unary: Mapping[str, Method]

    def receive(self, request: Any, call: Call) -> AsyncIterator[Any]: ...

    def telemetry(self, commands: AsyncIterator[Any], call: Call) -> AsyncIterator[Any]: ...


class Authentication(Protocol):
    """Accounts of the server."""

    def verify(self, metadata: Mapping[str, str]) -> Credentials | None:
        """Return the account that has signed a call. Raise CallRefused if it has not."""
        ...


class _Arrival(NamedTuple):
    """What a call brings in addition to its request."""

    metadata: dict[str, str]
    client: BridgedClient
    remaining_ms: float | None


class GrpcTransport:
    """Serves calls that the byte bridge passes on.

    Args:
        calls: What is called.
        sessions: Clients of calls.
        peers: Clients of bridged connections.
        limits: Rates of the clients.
        authentication: Accounts; None if calls need none.
    """

    def __init__(
        self,
        *,
        calls: CallTable,
        sessions: ClientSessions,
        peers: BridgePeers,
        limits: ServerLimits,
        authentication: Authentication | None,
    ) -> None:
        self._calls = calls
        self._sessions = sessions
        self._peers = peers
        self._limits = limits
        self._authentication = authentication
        self._server: Any = None  # None until it is started

    async def start(self) -> int:
        """Start the server on a port of this machine only, and return the port."""
        with naming_extras():
            import grpc
            import grpc.aio

        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._unary(name, method), response_serializer=_encoded)
            for name, method in self._calls.unary.items()
        }
        # Requests are decoded with the call: the library would log each one that cannot be decoded, at any rate.
        handlers |= {
            "ReceiveMessage": grpc.unary_stream_rpc_method_handler(self._receive, response_serializer=_encoded),
            "Telemetry": grpc.stream_stream_rpc_method_handler(self._telemetry, response_serializer=_encoded),
        }
        options = [
            ("grpc.max_receive_message_length", MESSAGE_MAX),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            ("grpc.max_connection_idle_ms", IDLE_MS),  # without calls; a Telemetry stream is one
            ("grpc.max_concurrent_streams", STREAMS_MAX),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(api.SERVICE, handlers),))
        port: int = self._server.add_insecure_port(f"{LOOPBACK}:0")
        await self._server.start()
        return port

    async def close(self) -> None:
        """End all calls."""
        if self._server is not None:
            await self._server.stop(None)

    # --- calls ---

    def _unary(self, name: str, method: Method) -> Callable[[bytes, Any], Awaitable[Any]]:
        async def serve(data: bytes, context: Any) -> Any:
            try:
                call = self._open(context, len(data))
                try:
                    return await method(_decoded(name, data), call)
                except ReplyError as error:
                    raise call.refusal_of(error) from error
            except Exception as error:  # noqa: BLE001 - whatever a call does, the server answers the next
                status = grpc_statuses.of_refusal(self._refusal(name, error, context))
                return getattr(api, f"{name}Response")(status=status)

        return serve

    async def _receive(self, data: bytes, context: Any) -> AsyncIterator[Any]:
        name = "ReceiveMessage"
        try:
            call = self._open(context, len(data))
            try:
                async for reply in self._calls.receive(_decoded(name, data), call):
                    yield reply
            except ReplyError as error:
                raise call.refusal_of(error) from error
        except Exception as error:  # noqa: BLE001
            status = grpc_statuses.of_refusal(self._refusal(name, error, context))
            yield api.ReceiveMessageResponse(status=status)

    async def _telemetry(self, commands: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        import grpc

        async def decoded() -> AsyncIterator[Any]:
            async for data in commands:
                yield _decoded("Telemetry", data)

        try:
            call = self._open(context, 0)
            try:
                async for command in self._calls.telemetry(decoded(), call):
                    yield command
                return
            except ReplyError as error:
                raise call.refusal_of(error) from error
        except Exception as error:  # noqa: BLE001
            refusal = self._refusal("Telemetry", error, context)
        if refusal.code in (StatusCode.UNAUTHORIZED, StatusCode.FORBIDDEN, StatusCode.CLIENT_ID_REQUIRED):
            yield api.TelemetryCommand(status=grpc_statuses.of_refusal(refusal))
            return
        is_internal = refusal.code is StatusCode.INTERNAL_SERVER_ERROR
        code = grpc.StatusCode.INTERNAL if is_internal else grpc.StatusCode.INVALID_ARGUMENT
        await context.abort(code, f"process client telemetryCommand failed. {refusal.text}")

    # --- around a call ---

    def _open(self, context: Any, size: int) -> Call:
        """Return a call with its client. Raise CallRefused or ReplyError if it is not served."""
        arrival = self._arrival(context)
        client_id = arrival.metadata.get("x-mq-client-id", "")
        if not client_id.strip():
            raise CallRefused(StatusCode.CLIENT_ID_REQUIRED, "client id cannot be empty")
        if len(client_id) > CLIENT_ID_MAX:
            text = f"Invalid client id of {len(client_id)} characters: expected at most {CLIENT_ID_MAX}"
            raise CallRefused(StatusCode.CLIENT_ID_REQUIRED, text)
        credentials = None if self._authentication is None else self._authentication.verify(arrival.metadata)
        session = self._sessions.open(
            SessionKey(client_id, "" if credentials is None else credentials.access_key), arrival.client.peer
        )
        arrival.client.is_identified = True
        self._count(session.peer, size)
        language = arrival.metadata.get("x-mq-language", OTHER_LANGUAGE)
        caller = Caller(
            session.peer, client_id, language if language in LANGUAGES else OTHER_LANGUAGE, VERSION_5, credentials
        )
        return Call(caller, session, arrival.remaining_ms)

    def _arrival(self, context: Any) -> _Arrival:
        client = self._peers.find(context.peer())
        if client is None:
            text = "calls are served on the port of grpcServerPort only"
            raise CallRefused(StatusCode.UNAUTHORIZED, text)
        metadata = {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}
        remaining_s = context.time_remaining()
        return _Arrival(metadata, client, None if remaining_s is None else remaining_s * 1000)

    def _count(self, peer: Peer, size: int) -> None:
        """Count a call for the limits of its client. Raise CallRefused if it exceeds one."""
        quotas = self._limits.quotas
        quota = quotas.server.connections.get(peer.id) if quotas.is_active else None
        if quota is None:
            return
        now = asyncio.get_running_loop().time()
        quota.add("bytes_in", size, now)
        refusal = quota.refusal("requests", 1, now)
        quota.add("requests", 1, now)
        if refusal is not None:
            quotas.exceeded[refusal.key] += 1
            raise CallRefused(StatusCode.TOO_MANY_REQUESTS, refusal.remark)

    def _refusal(self, name: str, error: Exception, context: Any) -> CallRefused:
        """Return the refusal that an error becomes, and log what is not one."""
        if isinstance(error, CallRefused):
            return error
        if isinstance(error, ReplyError):
            return grpc_statuses.refusal_of(error, is_anonymous=False)
        now = asyncio.get_running_loop().time()
        client = self._peers.find(context.peer())
        ip, addr = ("", context.peer()) if client is None else (client.ip, client.peer.addr)
        if isinstance(error, ArianeError):
            _peer_log.warning(ip, now, "%s of %s failed: %s", name, addr, error)
            return CallRefused(StatusCode.INTERNAL_SERVER_ERROR, str(error))
        _peer_log.error(ip, now, "%s of %s failed", name, addr, exc_info=error)
        return CallRefused(StatusCode.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")


def _decoded(call: str, data: bytes) -> Any:
    """Return the message of a call. Raise CallRefused if the data is not one, or too large."""
    from google.protobuf.message import DecodeError

    most = SIZES_MAX.get(call, request_sizes.OVERHEAD_MAX)
    if len(data) > most:
        raise CallRefused(StatusCode.BAD_REQUEST, f"Invalid {call} of {len(data)} bytes: expected at most {most}")
    request_sizes.check(call, data)
    name = f"{call}Command" if call == "Telemetry" else f"{call}Request"
    try:
        return getattr(api, name).FromString(data)
    except DecodeError as error:
        raise CallRefused(StatusCode.BAD_REQUEST, f"Invalid {name}: {error}") from None


def _encoded(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
