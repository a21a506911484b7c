"""Clients of calls. Each counts as a connection of the server: it has a number, limits, memberships in groups, and can be sent to.

    first call of a client id ─▶ session ─ no call for `idle_s`, or NotifyClientTermination ─▶ ended, as a lost connection
    requests of the broker ─▶ session ─┬▶ CHECK_TRANSACTION_STATE, stack traces, verifications: Telemetry stream ─▶ client
                                       └▶ offsets that a tool resets, running info: answered here, the client has no offsets

A session needs no settings: after a restart of the server, clients go on with heartbeats and receive calls before they send their
settings again, up to 5 minutes later. It uses what they name in these calls until then.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from ariane.errors import ConnectionLost, RequestTimeout
from ariane.net.connection import Peer
from ariane.net.server import RemotingServer
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode, code_name
from ariane.protocol.command import Command
from ariane.protocol.records import record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.callbacks import (
    DirectResult,
    ResetOffset,
    RunningInfo,
    RunningInfoRequest,
    reset_table,
    status_body,
)
from ariane.protocol.requests.clients import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from ariane.protocol.requests.messaging import CheckTransactionState
from ariane.proxy import api
from ariane.proxy.conversion import grpc_messages, grpc_statuses
from ariane.proxy.conversion.client_settings import ClientKind, ReportedSettings
from ariane.proxy.transaction_ids import transaction_id

COMMANDS_MAX = 1_000  # queued for the Telemetry stream of a client
NAMES_MAX = 1_000  # topics that a client without settings is known to use
SUBSCRIPTIONS_MAX = 64  # of a client without settings; each may have thousands of tags

BROKER = "bname"  # field of 5.x: the broker that a request comes from, or is for

SIMPLE, PUSH = "CONSUME_ACTIVELY", "CONSUME_PASSIVELY"

Stream = asyncio.Queue[Any]
"""Commands for a client, until its Telemetry stream has sent them."""


class OffsetCommits(Protocol):
    """Committed offsets of groups. [ConsumerOffsets]"""

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None: ...


class SessionKey(NamedTuple):
    """Identifies a client. One account cannot use the id of a client of another."""

    client_id: str
    access_key: str


class ClientSession:
    """A client. The server reaches it as it reaches a connection. [ServedClient]"""

    def __init__(
        self, key: SessionKey, peer: Peer, server: RemotingServer, offsets: OffsetCommits, started_ms: int
    ) -> None:
        self.key = key
        self.peer = peer
        self.last_active = 0.0  # loop time of the last call
        self.settings: ReportedSettings | None = None  # None until the client has sent them
        self.stream: Stream | None = None  # None without a Telemetry stream
        self.subscriptions: dict[tuple[str, str], SubscriptionData] = {}  # by group and topic, of receive calls
        self.topics: dict[str, None] = {}  # that it has sent to
        self._server = server
        self._offsets = offsets
        self._started_ms = started_ms
        self._results: dict[str, asyncio.Future[Any]] = {}  # of commands, by their nonce

    # --- what it takes part in ---

    def note_subscription(self, group: str, subscription: SubscriptionData) -> None:
        """Note a receive call, for heartbeats before the client sends its settings."""
        if self.settings is not None and self.settings.group == group:
            return
        key = group, subscription.topic
        former = self.subscriptions.get(key)
        if former is None or former.sub_string != subscription.sub_string:
            if len(self.subscriptions) >= SUBSCRIPTIONS_MAX:
                self.subscriptions.clear()
            self.subscriptions[key] = subscription

    def note_topic(self, topic: str) -> None:
        """Note a send, for the checks of its transaction."""
        if len(self.topics) < NAMES_MAX:
            self.topics[topic] = None

    def heartbeat(self, kind: ClientKind, group: str) -> HeartbeatData:
        """Return the heartbeat of a client of 4.x that does the same: a producer's group is its topic."""
        if kind is ClientKind.PRODUCER:
            topics = dict.fromkeys(self.settings.topics if self.settings is not None else ()) | self.topics
            return HeartbeatData(self.key.client_id, producers=tuple(map(ProducerData, topics)))
        if self.settings is not None and self.settings.group == group:
            subscriptions = self.settings.subscriptions
        else:
            subscriptions = tuple(each for (of_group, _), each in self.subscriptions.items() if of_group == group)
        consumer = ConsumerData(
            consume_type=SIMPLE if kind is ClientKind.SIMPLE_CONSUMER else PUSH,
            group_name=group,
            subscription_data_set=subscriptions,
        )
        return HeartbeatData(self.key.client_id, consumers=(consumer,))

    # --- ServedClient ---

    @property
    def is_writable(self) -> bool:
        """Whether the client reads commands."""
        return self.stream is not None and not self.stream.full()

    @property
    def is_throttled(self) -> bool:
        """Whether nothing is read from the client because of a limit: such calls are refused instead."""
        return False

    def one_way(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Carry out a request of the broker. A client needs no notice of changes in its group: it owns no queues."""
        if code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            group = decode_header(Command(code, fields=fields), ResetOffset).group
            for queue, offset in reset_table(body).items():
                self._offsets.commit(group, queue.topic, queue.queue_id, offset)
        if code == RequestCode.CHECK_TRANSACTION_STATE:
            self._send_check(Command(code, fields=fields), (fields or {}).get(BROKER, ""), body)

    def _send_check(self, command: Command, broker: str, body: bytes) -> None:
        header = decode_header(command, CheckTransactionState)
        half = record.decode(body)
        name = transaction_id(
            header.transaction_id or "", header.tran_state_table_offset, header.commit_log_offset, broker
        )
        message = grpc_messages.received(half, api.Resource(name=half.topic))
        check = api.RecoverOrphanedTransactionCommand(message=message, transaction_id=name)
        self._send(recover_orphaned_transaction_command=check)

    def _send(self, **command: Any) -> None:
        if self.stream is None or self.stream.full():
            raise ConnectionLost(self.peer.addr, f"client {self.key.client_id} does not read commands")
        self.stream.put_nowait(api.TelemetryCommand(status=grpc_statuses.ok(), **command))

    async def request(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", *, timeout_ms: float
    ) -> Command:
        """Return the answer to a request of the broker.

        Raises:
            RequestTimeout: the client did not answer its command in time; some clients answer none.
            ConnectionLost: the client does not read commands.
        """
        command = Command(code, fields=fields)
        match code:
            case RequestCode.GET_CONSUMER_RUNNING_INFO:
                stacks = None
                if decode_header(command, RunningInfoRequest).jstack_enable:
                    result = await self._result("print_thread_stack_trace_command", timeout_ms)
                    stacks = result.thread_stack_trace.thread_stack_trace
                return Command(ResponseCode.SUCCESS, body=fastjson.write(self._running_info(stacks)))
            case RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                return Command(ResponseCode.SUCCESS, body=status_body({}))
            case RequestCode.CONSUME_MESSAGE_DIRECTLY:
                stored = record.decode(body)
                message = grpc_messages.received(stored, api.Resource(name=stored.topic))
                result = await self._result("verify_message_command", timeout_ms, message=message)
                is_consumed = result.status.code == grpc_statuses.StatusCode.OK
                verified = DirectResult(consume_result="CR_SUCCESS" if is_consumed else "CR_LATER")
                return Command(ResponseCode.SUCCESS, body=fastjson.write(verified))
        remark = f"client {self.key.client_id} of the gRPC port does not support {code_name(code)}"
        return Command(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)

    def on_result(self, nonce: str, result: Any) -> None:
        """Resolve the command that a client has answered."""
        future = self._results.get(nonce)
        if future is not None and not future.done():
            future.set_result(result)

    async def _result(self, name: str, timeout_ms: float, **fields: Any) -> Any:
        """Send a command, and return the client's answer."""
        nonce = secrets.token_hex(8)
        future = self._results[nonce] = asyncio.get_running_loop().create_future()
        try:
            self._send(**{name: {"nonce": nonce, **fields}})
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError:
            raise RequestTimeout(self.peer.addr, timeout_ms) from None
        finally:
            del self._results[nonce]

    def _running_info(self, stacks: str | None) -> RunningInfo:
        settings = self.settings
        is_simple = settings is not None and settings.kind is ClientKind.SIMPLE_CONSUMER
        properties = {
            **({} if settings is None else settings.properties),
            "PROP_CONSUME_TYPE": SIMPLE if is_simple else PUSH,
            "PROP_CONSUMEORDERLY": "false",
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
        }
        subscriptions = () if settings is None else settings.subscriptions
        return RunningInfo(jstack=stacks, properties=properties, subscription_set=subscriptions)

    def resume_writing(self, *, is_release: bool = False) -> None:
        """Write held responses: calls hold none."""

    def close(self) -> None:
        """End the session, and its Telemetry stream."""
        if self.stream is not None and not self.stream.full():
            self.stream.put_nowait(None)
        self._server.detach(self)

    def abort(self) -> None:
        """End the session."""
        self.close()


class ClientSessions:
    """The sessions of a server."""

    def __init__(self, server: RemotingServer, offsets: OffsetCommits, now_ms: Callable[[], int]) -> None:
        self._server = server
        self._now_ms = now_ms
        self._offsets = offsets
        self._sessions: dict[SessionKey, ClientSession] = {}

    def open(self, key: SessionKey, peer: Peer) -> ClientSession:
        """Return the session of a client, which starts with its first call.

        Raises:
            ReplyError: the server has too many connections.
        """
        session = self._sessions.get(key)
        if session is None or not self._server.is_connected(session.peer.id):
            started_ms = self._now_ms()

            def create(number: int) -> ClientSession:
                return ClientSession(key, peer._replace(id=number), self._server, self._offsets, started_ms)

            session = self._server.attach(create, peer)
            self._forget_ended()
            self._sessions[key] = session
        elif (session.peer.ip, session.peer.port) != (peer.ip, peer.port):
            session.peer = peer._replace(id=session.peer.id)
        session.last_active = asyncio.get_running_loop().time()
        return session

    def refresh(self, session: ClientSession) -> bool:
        """Note a call of a client. Return whether its session has not ended."""
        session.last_active = asyncio.get_running_loop().time()
        return self._server.is_connected(session.peer.id)

    def _forget_ended(self) -> None:
        """Forget ended sessions once they are half of all."""
        if len(self._sessions) > 2 * self._server.connection_count + 16:
            ended = [key for key, session in self._sessions.items() if not self._server.is_connected(session.peer.id)]
            for key in ended:
                del self._sessions[key]
