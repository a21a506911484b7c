"""The transport of the library grpcio. `grpc` is used in this module only.

client ─▶ byte_bridge ─ bytes ─▶ grpc.aio ─ name, bytes, metadata ─▶ CallServer ─ reply ─▶ grpc.aio
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from ariane.extras import naming_extras
from ariane.net.listening.connection_gate import ConnectionGate
from ariane.proxy import api
from ariane.proxy.call_server import MESSAGE_MAX, CallArrival, CallServer, StreamRefused
from ariane.proxy.transport.byte_bridge import LOOPBACK, BridgePeers, ByteBridge
from ariane.proxy.transport.call_pacer import CallPacer

IDLE_MS = 120_000
STREAMS_MAX = 4_096  # calls of a connection: a process has one connection for all its clients
PENDING_MAX = 65_536  # calls of all connections that wait to be served


class AioTransport:
    """Serves calls through the library. [Transport]

    Args:
        calls: Serves them.
        gate: Opens plain and encrypted connections.
    """

    def __init__(self, calls: CallServer, gate: ConnectionGate) -> None:
        self._calls = calls
        self._peers = BridgePeers()
        self._bridge = ByteBridge(gate, self._peers)
        self._server: Any = None  # None until it is started

    async def start(self, address: str, port: int) -> int:
        """Listen, and return the port. Raise OSError if it is in use."""
        return await self._bridge.start(address, port, await self._start_library())

    def abort(self) -> None:
        """Close the port and abort all connections."""
        self._bridge.abort()

    async def close(self) -> None:
        """Close the port, and end all calls."""
        await self._bridge.close()
        if self._server is not None:
            await self._server.stop(None)

    async def _start_library(self) -> int:
        """Start the server of the library on a port of this machine only, and return the port."""
        with naming_extras():
            import grpc
            import grpc.aio

        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._unary(name), response_serializer=_encoded)
            for name in self._calls.unary_names
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
            # By default, the library cancels calls of any client at random while 1,000 wait to be served.
            ("grpc.server.max_pending_requests", PENDING_MAX),
            ("grpc.server.max_pending_requests_hard_limit", PENDING_MAX),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ]
        self._server = grpc.aio.server(options=options)
        served = grpc.method_handlers_generic_handler(api.SERVICE, handlers)
        self._server.add_generic_rpc_handlers((_BegunCalls(served, self._bridge.pacer),))
        port: int = self._server.add_insecure_port(f"{LOOPBACK}:0")
        await self._server.start()
        return port

    def _unary(self, name: str) -> Callable[[bytes, Any], Awaitable[Any]]:
        async def serve(data: bytes, context: Any) -> Any:
            return await self._calls.unary(name, data, self._arrival(context))

        return serve

    async def _receive(self, data: bytes, context: Any) -> AsyncIterator[Any]:
        async for reply in self._calls.receive(data, self._arrival(context)):
            yield reply

    async def _telemetry(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        import grpc

        try:
            async for command in self._calls.telemetry(messages, self._arrival(context)):
                yield command
        except StreamRefused as refused:
            code = grpc.StatusCode.INTERNAL if refused.is_internal else grpc.StatusCode.INVALID_ARGUMENT
            await context.abort(code, refused.text)

    def _arrival(self, context: Any) -> CallArrival:
        metadata = {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}
        remaining_s = context.time_remaining()
        remaining_ms = None if remaining_s is None else remaining_s * 1000
        return CallArrival(metadata, self._peers.find(context.peer()), remaining_ms)


class _BegunCalls:
    """Finds what serves a call, which the library does when it begins the call. [grpc.GenericRpcHandler]"""

    def __init__(self, served: Any, pacer: CallPacer) -> None:
        self._served = served
        self._pacer = pacer

    def service(self, details: Any) -> Any:
        self._pacer.on_begun()
        return self._served.service(details)


def _encoded(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
