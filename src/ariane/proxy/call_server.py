"""Around a call, the same for all transports: its client and account, limits, the decoding of its request, refusals.

    transport ─ name, bytes, metadata ─▶ signature ─▶ session, limits ─▶ request ─▶ method of `calls` ─▶ reply

Refusals are replies with a status, whose gRPC status is OK; in Telemetry they end the stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol

from ariane.errors import ArianeError, ReplyError
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.peer_log import PeerLog
from ariane.net.replies import Peer
from ariane.protocol.command import LANGUAGES
from ariane.protocol.signing import Credentials
from ariane.protocol.versions import release_number
from ariane.proxy import api
from ariane.proxy.calls.call import Call, ReceivedEncoder
from ariane.proxy.client_sessions import ClientSessions, SessionKey
from ariane.proxy.conversion import grpc_statuses, request_sizes
from ariane.proxy.conversion.grpc_statuses import CallRefused, StatusCode
from ariane.proxy.message_service import Caller

log = logging.getLogger("ariane.proxy")
_peer_log = PeerLog(log)

MESSAGE_MAX = 16 * 1024 * 1024  # bytes of a request, as of a frame of remoting
SIZES_MAX = {"SendMessage": MESSAGE_MAX, "Telemetry": 4 * 1024 * 1024}  # with bodies, and stack traces
CLIENT_ID_MAX = 255  # characters
OTHER_LANGUAGE = "OTHER"
VERSION_5_MIN, VERSION_5 = 413, 479  # V5_0_0; V5_3_3, for clients whose version has no number

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


class CallConnection(Protocol):
    """The connection of a call."""

    is_identified: bool
    """Whether a call came from it that named its client."""

    @property
    def peer(self) -> Peer:
        """Return the address of the client."""
        ...


class CallArrival(NamedTuple):
    """What a call brings in addition to its request."""

    metadata: Mapping[str, str]
    connection: CallConnection | None
    """None if it did not come through the port."""
    remaining_ms: float | None
    """Time to its deadline; None without one."""
    encoder: ReceivedEncoder | None = None
    """Of the transport."""


class StreamRefused(Exception):
    """A Telemetry stream that ends with a status of gRPC."""

    def __init__(self, text: str, *, is_internal: bool) -> None:
        super().__init__(text)
        self.text = text
        self.is_internal = is_internal  # INTERNAL, or else INVALID_ARGUMENT


class CallServer:
    """Serves calls that a transport has received.

    Args:
        calls: What is called.
        sessions: Clients of calls.
        limits: Rates of the clients.
        authentication: Accounts; None if calls need none.
    """

    def __init__(
        self, *, calls: CallTable, sessions: ClientSessions, limits: ServerLimits, authentication: Authentication | None
    ) -> None:
        self._calls = calls
        self._sessions = sessions
        self._limits = limits
        self._authentication = authentication

    @property
    def unary_names(self) -> list[str]:
        """Return the names of the calls that are answered with one message."""
        return list(self._calls.unary)

    @property
    def needs_accounts(self) -> bool:
        """Return whether calls are signed."""
        return self._authentication is not None

    async def unary(self, name: str, data: bytes, arrival: CallArrival) -> Any:
        """Return the reply to a call."""
        try:
            call = self._open(arrival, len(data))
            try:
                return await self._calls.unary[name](_decoded(name, data), call)
            except ReplyError as error:
                raise call.refusal_of(error) from error
        except Exception as error:  # noqa: BLE001 - whatever a call does, the server answers the next
            return refusal_reply(name, self._refusal(name, error, arrival))

    async def receive(self, data: bytes, arrival: CallArrival) -> AsyncIterator[Any]:
        """Yield the replies to ReceiveMessage."""
        name = "ReceiveMessage"
        try:
            call = self._open(arrival, len(data))
            try:
                async for reply in self._calls.receive(_decoded(name, data), call):
                    yield reply
            except ReplyError as error:
                raise call.refusal_of(error) from error
        except Exception as error:  # noqa: BLE001
            yield refusal_reply(name, self._refusal(name, error, arrival))

    async def telemetry(self, messages: AsyncIterator[bytes], arrival: CallArrival) -> AsyncIterator[Any]:
        """Yield the commands of a Telemetry stream. Raise StreamRefused if it ends with a status of gRPC."""

        async def decoded() -> AsyncIterator[Any]:
            async for data in messages:
                yield _decoded("Telemetry", data)

        try:
            call = self._open(arrival, 0)
            try:
                async for command in self._calls.telemetry(decoded(), call):
                    yield command
                return
            except ReplyError as error:
                raise call.refusal_of(error) from error
        except Exception as error:  # noqa: BLE001
            refusal = self._refusal("Telemetry", error, arrival)
        if refusal.code in (StatusCode.UNAUTHORIZED, StatusCode.FORBIDDEN, StatusCode.CLIENT_ID_REQUIRED):
            yield api.TelemetryCommand(status=grpc_statuses.of_refusal(refusal))
            return
        text = f"process client telemetryCommand failed. {refusal.text}"
        raise StreamRefused(text, is_internal=refusal.code is StatusCode.INTERNAL_SERVER_ERROR)

    def open_plain(self, arrival: CallArrival) -> Call | None:
        """Return the first of several calls of a client in place of all; None if each has to be opened by itself."""
        if self._limits.quotas.is_active:
            return None
        try:
            return self._open(arrival, 0)
        except ArianeError:
            return None

    def stands_for(self, opened: Call) -> bool:
        """Return whether a call that `open_plain` has returned stands for further ones of its client and connection."""
        is_same = opened.caller.peer is opened.session.peer  # and not of another connection meanwhile
        return is_same and not self._limits.quotas.is_active and self._sessions.refresh(opened.session)

    # --- around a call ---

    def _open(self, arrival: CallArrival, size: int) -> Call:
        """Return a call with its client. Raise CallRefused or ReplyError if it is not served."""
        connection, metadata = arrival.connection, arrival.metadata
        if connection is None:
            raise CallRefused(StatusCode.UNAUTHORIZED, "calls are served on the port of grpcServerPort only")
        client_id = metadata.get("x-mq-client-id", "")
        if not client_id.strip():
            raise CallRefused(StatusCode.CLIENT_ID_REQUIRED, "client id cannot be empty")
        if len(client_id) > CLIENT_ID_MAX:
            text = f"Invalid client id of {len(client_id)} characters: expected at most {CLIENT_ID_MAX}"
            raise CallRefused(StatusCode.CLIENT_ID_REQUIRED, text)
        credentials = None if self._authentication is None else self._authentication.verify(metadata)
        session = self._sessions.open(
            SessionKey(client_id, "" if credentials is None else credentials.access_key), connection.peer
        )
        connection.is_identified = True
        self._count(session.peer, size)
        language = metadata.get("x-mq-language", OTHER_LANGUAGE)
        # Servers decide by it what clients of 4.x support, so that only one of 5.x counts.
        version = release_number(metadata.get("x-mq-client-version", "")) or 0
        caller = Caller(
            session.peer,
            client_id,
            language if language in LANGUAGES else OTHER_LANGUAGE,
            version if version >= VERSION_5_MIN else VERSION_5,
            credentials,
        )
        return Call(caller, session, arrival.remaining_ms, arrival.encoder)

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

    def _refusal(self, name: str, error: Exception, arrival: CallArrival) -> CallRefused:
        """Return the refusal that an error becomes, and log what is not one."""
        if isinstance(error, CallRefused | ReplyError):
            return grpc_statuses.refusal_of(error, is_anonymous=False)
        now = asyncio.get_running_loop().time()
        connection = arrival.connection
        ip, addr = ("", "this machine") if connection is None else (connection.peer.ip, connection.peer.addr)
        if isinstance(error, ArianeError):
            _peer_log.warning(ip, now, "%s of %s failed: %s", name, addr, error)
            return grpc_statuses.refusal_of(error, is_anonymous=False)
        _peer_log.error(ip, now, "%s of %s failed", name, addr, exc_info=error)
        return CallRefused(StatusCode.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")


def refusal_reply(name: str, refusal: CallRefused) -> Any:
    """Return the reply to a call that is refused."""
    return getattr(api, f"{name}Response")(status=grpc_statuses.of_refusal(refusal))


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
