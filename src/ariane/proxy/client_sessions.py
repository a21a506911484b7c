"""Clients of calls. Each counts as a connection of the server: it has a number, limits, memberships in groups, and can be sent to.

    first call of a client id ─▶ session ─ no call for `idle_s`, or NotifyClientTermination ─▶ ended, as a lost connection
    CHECK_TRANSACTION_STATE of the broker ─▶ session ─▶ Telemetry stream ─▶ client

A session needs no settings: after a restart of the server, clients go on with heartbeats and receive calls before they send their
settings again, up to 5 minutes later. It uses what they name in these calls until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from ariane.errors import ConnectionLost
from ariane.net.connection import Peer
from ariane.net.server import RemotingServer
from ariane.protocol.codes import RequestCode, ResponseCode, code_name
from ariane.protocol.command import Command
from ariane.protocol.records import record
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.clients import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from ariane.protocol.requests.messaging import CheckTransactionState
from ariane.proxy import api
from ariane.proxy.conversion import grpc_messages, grpc_statuses
from ariane.proxy.conversion.client_settings import ClientKind, ReportedSettings
from ariane.proxy.transaction_ids import transaction_id

COMMANDS_MAX = 1_000  # queued for the Telemetry stream of a client
NAMES_MAX = 1_000  # topics that a client without settings is known to use

Stream = asyncio.Queue[Any]
"""Commands for a client, until its Telemetry stream has sent them."""


class SessionKey(NamedTuple):
    """Identifies a client. One account cannot use the id of a client of another."""

    client_id: str
    access_key: str


class ClientSession:
    """A client. The server reaches it as it reaches a connection. [ServedClient]"""

    def __init__(self, key: SessionKey, peer: Peer, server: RemotingServer) -> None:
        self.key = key
        self.peer = peer
        self.last_active = 0.0  # loop time of the last call
        self.settings: ReportedSettings | None = None  # None until the client has sent them
        self.stream: Stream | None = None  # None without a Telemetry stream
        self.subscriptions: dict[tuple[str, str], SubscriptionData] = {}  # by group and topic, of receive calls
        self.topics: dict[str, None] = {}  # that it has sent to
        self._server = server

    # --- what it takes part in ---

    def note_subscription(self, group: str, subscription: SubscriptionData) -> None:
        """Note a receive call, for heartbeats before the client sends its settings."""
        key = group, subscription.topic
        former = self.subscriptions.get(key)
        if former is None or former.sub_string != subscription.sub_string:
            if len(self.subscriptions) >= NAMES_MAX:
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
            consume_type="CONSUME_ACTIVELY" if kind is ClientKind.SIMPLE_CONSUMER else "CONSUME_PASSIVELY",
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
        """Send a request of the broker as a command of the Telemetry stream. Others than transaction checks have none."""
        if code != RequestCode.CHECK_TRANSACTION_STATE:
            return
        if self.stream is None or self.stream.full():
            raise ConnectionLost(self.peer.addr, f"client {self.key.client_id} does not read commands")
        header = decode_header(Command(code, fields=fields), CheckTransactionState)
        half = record.decode(body)
        name = transaction_id(header.transaction_id or "", header.tran_state_table_offset, header.commit_log_offset)
        message = grpc_messages.received(half, api.Resource(name=half.topic))
        command = api.RecoverOrphanedTransactionCommand(message=message, transaction_id=name)
        self.stream.put_nowait(
            api.TelemetryCommand(status=grpc_statuses.ok(), recover_orphaned_transaction_command=command)
        )

    async def request(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", *, timeout_ms: float
    ) -> Command:
        """Return the answer of the client to a request of the broker: it has none yet."""
        remark = f"client {self.key.client_id} of the gRPC port does not support {code_name(code)}"
        return Command(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)

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

    def __init__(self, server: RemotingServer) -> None:
        self._server = server
        self._sessions: dict[SessionKey, ClientSession] = {}

    def open(self, key: SessionKey, peer: Peer) -> ClientSession:
        """Return the session of a client, which starts with its first call.

        Raises:
            ReplyError: the server has too many connections.
        """
        session = self._sessions.get(key)
        if session is None or not self._server.is_connected(session.peer.id):
            session = self._server.attach(
                lambda number: ClientSession(key, peer._replace(id=number), self._server), peer
            )
            self._forget_ended()
            self._sessions[key] = session
        elif (session.peer.ip, session.peer.port) != (peer.ip, peer.port):
            session.peer = peer._replace(id=session.peer.id)
        session.last_active = asyncio.get_running_loop().time()
        return session

    def _forget_ended(self) -> None:
        """Forget ended sessions once they are half of all."""
        if len(self._sessions) > 2 * self._server.connection_count + 16:
            ended = [key for key, session in self._sessions.items() if not self._server.is_connected(session.peer.id)]
            for key in ended:
                del self._sessions[key]
